//! Benchmarks: subjects and peers side by side, JSON records, tables.
