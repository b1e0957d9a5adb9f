//! Panic guard, pointer and string checks for the C edges.
