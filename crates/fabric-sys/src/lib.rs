//! libfabric's declarations, for a provider that is loaded by any of its versions.
