//! The attach protocol: how a process reaches its local service and receives its part of the region.
