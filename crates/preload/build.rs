//! The object is initialised before all others: its fork handlers must be the first that are registered.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo::rerun-if-changed=build.rs");
}
