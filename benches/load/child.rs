//! A process of the bench: this binary in another role.

use std::{
    collections::BTreeMap,
    env,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{ChildStdout, Command, Stdio},
};

use anyhow::Context as _;

use crate::{fixtures::support::process::MANY_FILES, options::RoleName};

/// Stopped when dropped, and by itself when this process dies: its standard input ends then.
pub(crate) struct Child {
    name: &'static str,
    process: std::process::Child,
    lines: BufReader<ChildStdout>,
    said: BTreeMap<String, String>,
}

impl Child {
    /// Starts a role and waits until it is ready.
    pub(crate) fn start(role: RoleName, args: &[(&str, &str)]) -> anyhow::Result<Self> {
        Self::start_in(Path::new("."), role, args)
    }

    /// The same in a folder of its own.
    pub(crate) fn start_in(
        directory: &Path,
        role: RoleName,
        args: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let name = role.name();
        let mut command = Command::new("sh");
        command.args(["-c", MANY_FILES]).arg(env::current_exe()?);
        command.args(["--role", name]).current_dir(directory);
        for (flag, value) in args {
            command.args([flag, value]);
        }
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A log line costs its making and one write; where it goes is not ours to measure.
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start the {name}"))?;
        let lines = process.stdout.take().context("its output is piped")?;
        let mut child = Self {
            name,
            process,
            lines: BufReader::new(lines),
            said: BTreeMap::new(),
        };
        child.listen()?;
        Ok(child)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.said("address")?.parse()?)
    }

    /// What it has said under this name.
    pub(crate) fn said(&self, name: &str) -> anyhow::Result<&str> {
        let value = self.said.get(name).map(String::as_str);
        value.with_context(|| format!("the {} said no {name}", self.name))
    }

    /// Lets it come to its own end, and hears what it has to say then.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        drop(self.process.stdin.take());
        self.listen()?;
        self.process.wait()?;
        Ok(())
    }

    /// Reads until it is ready or at its end.
    fn listen(&mut self) -> anyhow::Result<()> {
        let mut line = String::new();
        while self.lines.read_line(&mut line)? > 0 {
            match line.trim_end().split_once(": ") {
                None if line.trim_end() == "ready" => break,
                Some(("error", what)) => anyhow::bail!("the {}: {what}", self.name),
                Some((name, value)) => {
                    self.said.insert(name.to_owned(), value.to_owned());
                }
                None => {}
            }
            line.clear();
        }
        Ok(())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
