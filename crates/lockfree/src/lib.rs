//! Lock-free cells that live in shared memory: the only crate that names a memory ordering.
