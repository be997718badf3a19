//! Starts child processes of the bench: its own binary in another role, or another program that follows the same
//! protocol.

use std::{
    collections::BTreeMap,
    env,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::Context as _;

use crate::{fixtures::support::process::MANY_FILES, options::RoleName};

/// A child process, which is stopped when this value is dropped. If the bench's own process dies, the child's standard
/// input closes, and the child ends by itself.
pub(crate) struct Child {
    name: &'static str,
    process: std::process::Child,
    lines: BufReader<ChildStdout>,
    reported: BTreeMap<String, String>,
}

impl Child {
    /// Starts this binary in a role, and waits until the role is ready.
    pub(crate) fn start(role: RoleName, args: &[(&str, &str)]) -> anyhow::Result<Self> {
        Self::start_in(Path::new("."), role, args)
    }

    /// Starts this binary in a role, in a separate working directory, and waits until the role is ready.
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
        Self::run(name, command)
    }

    /// Starts another program that behaves like a role: it prints facts, and ends when its standard input closes.
    pub(crate) fn run(name: &'static str, mut command: Command) -> anyhow::Result<Self> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // The log lines are formatted and written, because this is part of the gateway's cost. The destination is
            // not part of the cost, so the lines are discarded.
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start the {name}"))?;
        let lines = process.stdout.take().context("its output is piped")?;
        let mut child = Self {
            name,
            process,
            lines: BufReader::new(lines),
            reported: BTreeMap::new(),
        };
        child.listen()?;
        Ok(child)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.reported("address")?.parse()?)
    }

    /// Returns the value of a fact that the child process has printed.
    pub(crate) fn reported(&self, name: &str) -> anyhow::Result<&str> {
        let value = self.reported.get(name).map(String::as_str);
        value.with_context(|| format!("the {} said no {name}", self.name))
    }

    /// Returns the facts whose names begin with this prefix. The returned names do not contain the prefix.
    pub(crate) fn all_said<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.reported.iter().filter_map(move |(name, value)| {
            let name = name.strip_prefix(prefix)?;
            Some((name, value.as_str()))
        })
    }

    /// Ends the child process gracefully, and returns the facts that it prints before it ends.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        drop(self.process.stdin.take());
        self.listen()?;
        self.process.wait()?;
        Ok(())
    }

    /// Reads facts until the child process is ready or has ended.
    fn listen(&mut self) -> anyhow::Result<()> {
        let mut line = String::new();
        while self.lines.read_line(&mut line)? > 0 {
            match line.trim_end().split_once(": ") {
                None if line.trim_end() == "ready" => break,
                Some(("error", what)) => anyhow::bail!("the {}: {what}", self.name),
                Some((name, value)) => {
                    self.reported.insert(name.to_owned(), value.to_owned());
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
        // When its standard input closes, the child stops its own children and ends. If this takes too long, the child
        // is killed.
        drop(self.process.stdin.take());
        for _ in 0..200 {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
