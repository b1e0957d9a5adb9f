//! The one binary, `isthmus`: flags, output, exit status; no work of its own.

fn main() {}
