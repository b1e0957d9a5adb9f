//! The service as a program of its own: `isthmus host`.
