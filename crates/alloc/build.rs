//! Gives the library its name.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libisthmus-alloc.so");
}
