//! The host service: region creation, ivshmem server, membership, attach service.
