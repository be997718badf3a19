//! Checks that the ledger does not depend on certain crates.

use std::process::Command;

/// A ledger that depends on HTTP could only be used in a gateway.
#[test]
fn the_ledger_depends_on_no_http_crate() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let tree = Command::new(cargo)
        .args([
            "tree",
            "--offline",
            "-p",
            "tollgate-ledger",
            "--all-features",
        ])
        .args(["-e", "normal,build", "--prefix", "none"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(
        tree.status.success(),
        "{}",
        String::from_utf8_lossy(&tree.stderr)
    );
    let tree = String::from_utf8(tree.stdout).expect("UTF-8");
    let names = || tree.lines().filter_map(|line| line.split(' ').next());
    // The list of dependencies must not be empty, because otherwise the test would find nothing in it.
    assert!(
        names().any(|name| name == "rusqlite") && names().any(|name| name == "redis"),
        "{tree}"
    );
    for name in names() {
        let known = ["http", "hyper", "tower", "axum", "h2", "reqwest"];
        let prefixes = ["http-", "hyper-", "tower-"];
        assert!(
            !known.contains(&name) && !prefixes.iter().any(|prefix| name.starts_with(prefix)),
            "{name} is about HTTP"
        );
    }
}
