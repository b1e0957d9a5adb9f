//! Names the library for the loader: programs ask for the version of its interface.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libisthmus.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
