//! Checks that `SECURITY.md` names an existing test for each attack.

use std::path::{Path, PathBuf};

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(repository().join(path)).ok()
}

/// Returns the names in backticks in a table row, each with the text before it.
pub fn named(row: &str) -> Vec<(&str, &str)> {
    let parts: Vec<_> = row.split('`').collect();
    parts
        .chunks_exact(2)
        .map(|pair| (pair[0].trim_matches([' ', ',', ';']), pair[1]))
        .collect()
}

/// Returns whether a test with this name exists: a file or a module with tests, or a test function in one.
pub fn is_test(name: &str) -> bool {
    let segments: Vec<_> = name.split("::").filter(|part| *part != "tests").collect();
    (1..=segments.len()).any(|split| {
        let (modules, function) = segments.split_at(split);
        let module = modules.join("/");
        let mut files = ["tests/gateway", "src", "layers/src", "layers/ledger/src"]
            .into_iter()
            .flat_map(|root| {
                [".rs", "/mod.rs", "/tests.rs"].map(|end| format!("{root}/{module}{end}"))
            })
            .filter_map(read);
        let found = |text: String| match function {
            [] => text.contains("#[test]") || text.contains("#[tokio::test"),
            [function] => text.contains(&format!("fn {function}(")),
            _ => false,
        };
        files.any(found)
    })
}

pub fn is_case_of_faults(name: &str) -> bool {
    let folder = std::fs::read_dir(repository().join("tests/faults")).unwrap();
    let mut files = folder.filter_map(|file| read(file.ok()?.path()));
    files.any(|text| text.contains(&format!("\"{name}\"")))
}

#[test]
fn every_documented_attack_names_an_existing_test() {
    let text = read("SECURITY.md").unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| "));
    let (mut attacks, mut tests) = (0, 0);
    for row in rows.skip(1) {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        if cells.len() != 3 {
            assert!(row.starts_with("| **"), "{row}");
            continue;
        }
        attacks += 1;
        let named = named(cells[2]);
        assert!(!named.is_empty() || cells[2] == "the same", "{row}");
        for (kind, name) in named {
            tests += 1;
            let there = match kind {
                "" => is_test(name),
                "fuzz" => {
                    let seeds = repository().join("tests/fuzz/seeds").join(name);
                    read(format!("tests/fuzz/fuzz_targets/{name}.rs")).is_some() && seeds.is_dir()
                }
                "faults" => is_case_of_faults(name),
                "bench" => read(format!("benches/load/{name}/main.rs")).is_some(),
                _ => false,
            };
            assert!(there, "{kind} {name}: there is no such test\n{row}");
        }
    }
    assert!(attacks > 30 && tests > attacks, "{attacks} {tests}");
    assert!(!is_test("edge_h2::no_such_test") && !is_test("no_such_file"));
}
