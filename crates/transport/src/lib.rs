//! Endpoints, lanes, matching and protocols over a region.
