//! Has the system map less of a program's file into memory.
//!
//! Its text is mapped in pieces, whole neighbourhoods of each function that runs. What runs at start and in a call is a
//! seventh of the text; spread over all of it, it brings most of it into memory. So the linker puts those functions side by side
//! that [order.ld](order.ld) names; one that it does not name lies where it would without it. `benches/order` writes the list.
//!
//! Of relocations, all of which are read at start, there are 0.7 MB, or 12 KB where they are packed: glibc can read those from
//! 2.36 on. A program that was built beside such a one needs it.

use std::{env, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=order.ld");
    let is = |name: &str, value: &str| env::var(name).as_deref() == Ok(value);
    // Elsewhere linkers take other scripts; a debug build is not measured.
    if !is("CARGO_CFG_TARGET_OS", "linux") || !is("PROFILE", "release") {
        return;
    }
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is");
    let mut args = vec![format!("-Wl,-T,{root}/order.ld")];
    let is_built_here = env::var("HOST") == env::var("TARGET");
    if is_built_here && is("CARGO_CFG_TARGET_ENV", "gnu") && glibc() >= Some((2, 36)) {
        args.push("-Wl,-z,pack-relative-relocs".into());
    }
    for arg in args {
        for kind in ["bins", "benches"] {
            println!("cargo::rustc-link-arg-{kind}={arg}");
        }
    }
}

/// The version of this machine's.
fn glibc() -> Option<(u32, u32)> {
    let told = Command::new("getconf")
        .arg("GNU_LIBC_VERSION")
        .output()
        .ok()?;
    let told = String::from_utf8(told.stdout).ok()?;
    let (major, minor) = told.trim().strip_prefix("glibc ")?.split_once('.')?;
    // Some have a third number.
    let minor = minor.split('.').next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
