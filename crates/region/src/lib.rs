//! The region: its format, its sections and who writes which word; map, check, allocate.
