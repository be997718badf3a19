//! Tells the linker which functions to put side by side: those of [order.ld](order.ld).
//!
//! The system maps a program's text in pieces, whole neighbourhoods of each function that runs. What runs at start and in a call
//! is a seventh of the text; spread over all of it, it brings most of it into memory. A function that the list does
//! not know lies where it would without it. `benches/order` writes the list.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=order.ld");
    let is = |name: &str, value: &str| env::var(name).as_deref() == Ok(value);
    // Elsewhere linkers take other scripts; a debug build is not measured.
    if is("CARGO_CFG_TARGET_OS", "linux") && is("PROFILE", "release") {
        let root = env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is");
        for kind in ["bins", "benches"] {
            println!("cargo::rustc-link-arg-{kind}=-Wl,-T,{root}/order.ld");
        }
    }
}
