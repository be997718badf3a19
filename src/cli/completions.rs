//! Prints shell completions and writes manual pages. Both are generated from the commands' definitions.

use std::{fs, io, path::Path};

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, failure::Failure, show};

pub(super) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tollgate", &mut script);
    show::write(&String::from_utf8_lossy(&script))
}

pub(super) fn man(out: &Path) -> Result<(), Failure> {
    let cannot = |error: io::Error| Failure::Io(format!("--out {}: {error}", out.display()));
    fs::create_dir_all(out).map_err(cannot)?;
    clap_mangen::generate_to(Cli::command(), out).map_err(cannot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_manual_page_with_an_example() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("man1");
        man(&out).unwrap();
        for (page, says) in [
            ("tollgate.1", "tollgate"),
            ("tollgate-key-create.1", "203.0.113.0/24"),
            ("tollgate-ledger-copy.1", "sqlite:tollgate.db"),
        ] {
            let text = fs::read_to_string(out.join(page)).unwrap();
            assert!(text.contains(says), "{page}: {text}");
        }
    }

    #[test]
    fn completions_of_every_shell_contain_the_commands() {
        for shell in [
            Shell::Bash,
            Shell::Zsh,
            Shell::Fish,
            Shell::Elvish,
            Shell::PowerShell,
        ] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tollgate", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(
                script.contains("topup") && script.contains("adjust"),
                "{shell}"
            );
        }
    }
}
