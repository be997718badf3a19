//! Checks that the tests named in `cases.md` exist. That file lists every design case of the Responses format, with the
//! tests that cover it.

use crate::security::{is_case_of_faults, is_test, named, read};

const CASES: usize = 100;

/// Returns whether a suite in `tests/sdk` has this test. `name` is the file, and the beginning of the test's name.
fn is_test_of_sdk(name: &str) -> bool {
    let Some((file, title)) = name.split_once(": ") else {
        return false;
    };
    let text = read(format!("tests/sdk/{file}")).unwrap_or_default();
    let begins = [
        format!("test(\"{title}"),
        format!("test(`${{model}}: {title}"),
    ];
    let method = format!("    def {title}(self)");
    begins
        .iter()
        .chain([&method])
        .any(|begin| text.contains(begin))
}

#[test]
fn every_documented_case_of_the_responses_format_names_an_existing_test() {
    let text = read("tests/gateway/responses/cases.md").unwrap();
    let rows: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("| R"))
        .collect();
    assert_eq!(rows.len(), CASES);
    for (row, number) in rows.iter().zip(1..) {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [case, what, tests] = cells[..] else {
            panic!("{row}");
        };
        assert_eq!(case, format!("R{number}"), "{row}");
        assert!(!what.is_empty(), "{row}");
        let tests = named(tests);
        assert!(!tests.is_empty(), "{row}");
        for (kind, name) in tests {
            let there = match kind {
                "" => is_test(name),
                "sdk" => is_test_of_sdk(name),
                "faults" => is_case_of_faults(name),
                _ => false,
            };
            assert!(there, "{kind} {name}: there is no such test\n{row}");
        }
    }
    assert!(!is_test_of_sdk("codex.test.mjs: no such test"));
}
