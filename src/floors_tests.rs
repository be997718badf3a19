//! Checks which modules of `src/` import which: a module may import only modules below it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The modules from the bottom up: a module may use only the modules before it in this list. `node`, which assembles
/// the gateway, is above all of its parts; the modules above `node` run the gateway.
const FLOORS: [&str; 27] = [
    "text",
    "net",
    "logins",
    "edge",
    "operators",
    "api",
    "config",
    "ledger",
    "members",
    "codes",
    "catalog",
    "observe",
    "idempotency",
    "statement",
    "events",
    "payments",
    "state",
    "endpoints",
    "admin",
    "console",
    "cabinet",
    "stack",
    "node",
    "demo",
    "load",
    "cli",
    "main",
];

/// Groups of files that import each other in a cycle: the name of one file of the group, and the group's number of
/// files. `docs/architecture.md` gives the reason for each group.
const CIRCLES: [(&str, usize); 4] = [
    ("cabinet", 3),
    ("config/check", 3),
    ("console", 5),
    ("demo/script", 2),
];

/// The path of a module, from the root of the crate.
type Module = Vec<String>;

/// Returns the modules that each module imports. Imports of tests are not included.
fn imports() -> BTreeMap<Module, BTreeSet<Module>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = files(&root);
    let modules: BTreeSet<Module> = files.iter().map(|file| module(&root, file)).collect();
    let mut imports = BTreeMap::new();
    for file in &files {
        let module = module(&root, file);
        let text = fs::read_to_string(file).expect("a source file is text");
        let used = paths(&text).into_iter().filter_map(|path| {
            let mut found = absolute(&module, &modules, &path)?;
            while !modules.contains(&found) {
                found.pop()?;
            }
            (found != module).then_some(found)
        });
        imports.insert(module.clone(), used.collect());
    }
    imports
}

/// Returns all source files except tests.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of sources");
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.expect("a file of the sources").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            files.extend(self::files(&path));
        } else if name.ends_with(".rs")
            && !["tests.rs", "testing.rs", "floors_tests.rs", "lib.rs"].contains(&&*name)
        {
            files.push(path);
        }
    }
    files
}

fn module(root: &Path, file: &Path) -> Module {
    let path = file.strip_prefix(root).expect("a file below the root");
    let mut module: Module = path
        .with_extension("")
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    if module.last().is_some_and(|last| last == "mod") {
        module.pop();
    }
    module
}

/// Returns the paths that a file names after `use`, `crate::`, `super::` or `self::`.
fn paths(text: &str) -> Vec<Module> {
    let code: String = text
        .split("#[cfg(test)]")
        .next()
        .unwrap_or_default()
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join(" ");
    let mut paths = Vec::new();
    for begin in ["use ", "crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(begin) {
            let is_inside =
                code[..at].ends_with(|c: char| c.is_alphanumeric() || "_:\"".contains(c));
            if is_inside {
                continue;
            }
            let rest = code[at..].strip_prefix("use ").unwrap_or(&code[at..]);
            expand(&[], rest, &mut paths);
        }
    }
    paths
}

/// Reads one path, or a tree of paths in braces, and returns the text that follows it.
fn expand<'t>(before: &[String], text: &'t str, paths: &mut Vec<Module>) -> &'t str {
    let mut path = before.to_vec();
    let mut rest = text.trim_start();
    loop {
        if let Some(mut inside) = rest.strip_prefix('{') {
            loop {
                inside = inside.trim_start_matches([' ', ',', '*']);
                if let Some(after) = inside.strip_prefix('}') {
                    return after;
                }
                let after = expand(&path, inside, paths);
                if after.len() == inside.len() {
                    return after;
                }
                inside = after;
            }
        }
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        let (name, after) = rest.split_at(end.unwrap_or(rest.len()));
        if !name.is_empty() {
            path.push(name.to_owned());
        }
        match after.strip_prefix("::") {
            Some(after) if !name.is_empty() => rest = after,
            _ => {
                paths.push(path);
                let alias = after.strip_prefix(" as ").map(|alias| {
                    alias.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_')
                });
                return alias.unwrap_or(after);
            }
        }
    }
}

/// Returns the path from the crate's root; `None` for a path into another crate.
fn absolute(module: &Module, modules: &BTreeSet<Module>, path: &[String]) -> Option<Module> {
    let mut from = module.clone();
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => return Some(rest[1..].to_vec()),
        "super" | "self" => {
            while let Some((first, after)) = rest.split_first()
                && ["super", "self"].contains(&first.as_str())
            {
                if first == "super" {
                    from.pop();
                }
                rest = after;
            }
        }
        child => {
            from.push(child.to_owned());
            if !modules.contains(&from) {
                return None;
            }
            rest = &rest[1..];
        }
    }
    from.extend_from_slice(rest);
    Some(from)
}

#[test]
fn each_module_imports_only_modules_below_it() {
    let floor = |module: &Module| {
        let room = module.first()?;
        FLOORS.iter().position(|known| known == room)
    };
    let mut crossed = 0;
    for (module, used) in imports() {
        let own = floor(&module).unwrap_or_else(|| panic!("{module:?} has no floor"));
        for other in used {
            let below = floor(&other).unwrap_or_else(|| panic!("{other:?} has no floor"));
            assert!(
                below <= own,
                "{module:?} imports {other:?}, which is above it"
            );
            crossed += usize::from(below < own);
        }
    }
    // Without this check, the check above would pass if no imports had been read at all.
    assert!(crossed > 300, "only {crossed} imports were read");
}

#[test]
fn only_the_documented_files_import_each_other_in_cycles() {
    let imports = imports();
    let reach = |from: &Module| {
        let mut seen = BTreeSet::new();
        let mut open = vec![from];
        while let Some(module) = open.pop() {
            for next in imports.get(module).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> = imports
        .keys()
        .map(|module| (module, reach(module)))
        .collect();
    let mut circles = BTreeSet::new();
    for (module, there) in &reached {
        let circle: BTreeSet<String> = there
            .iter()
            .filter(|other| {
                reached
                    .get(other)
                    .is_some_and(|back| back.contains(*module))
            })
            .map(|other| other.join("/"))
            .collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    let found: BTreeMap<&str, usize> = circles
        .iter()
        .filter_map(|circle| Some((circle.first()?.as_str(), circle.len())))
        .collect();
    assert_eq!(found, BTreeMap::from(CIRCLES), "{circles:#?}");
    let page = include_str!("../docs/architecture.md");
    for (name, _) in CIRCLES {
        assert!(
            page.contains(&format!("| `{name}` |")),
            "no reason for {name}"
        );
    }
}
