//! libisthmus-fi.so: the libfabric provider.
