//! Runs a command that prints a token on its standard output.

use std::{
    io::{self, Read},
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::sync_channel,
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use secrecy::SecretString;
use tokio::{task::spawn_blocking, time::Instant};

use super::{
    LoginError,
    renewed::{Fetched, Life, Source},
};

const OUTPUT_BYTES_MAX: u64 = 64 * 1024;
const TIME_MAX: Duration = Duration::from_secs(15);
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// A program and its arguments. It is run without a shell.
#[derive(Clone)]
pub(crate) struct CommandLine {
    pub(crate) program: String,
    pub(crate) arguments: Vec<String>,
    /// How often the command is run again to renew the token.
    pub(crate) refresh: Duration,
}

impl CommandLine {
    /// Passes each setting of the command to `add`, so that equal logins can be recognised.
    pub(super) fn describe(&self, add: &mut dyn FnMut(&str)) {
        add(&self.program);
        self.arguments.iter().for_each(|argument| add(argument));
        add(&self.refresh.as_secs().to_string());
    }

    /// Runs the command and returns its output, trimmed.
    ///
    /// # Errors
    /// If the command cannot be run, fails, takes more than 15 seconds, or prints nothing or more than 64 KiB. The
    /// error never contains the command's output.
    pub(super) async fn output(&self) -> Result<String, LoginError> {
        let line = self.clone();
        let program = &self.program;
        // The command runs in a task of its own, so that it is killed in time even if the caller has disconnected.
        let ran = spawn_blocking(move || run(&line, TIME_MAX)).await;
        let ran = ran.map_err(|error| LoginError::new(error.to_string()))?;
        let cannot_run = |error| LoginError::new(format!("cannot run {program}: {error}"));
        let (status, output) = ran.map_err(cannot_run)?;
        if !status.success() {
            return Err(LoginError::new(format!(
                "{program} failed ({status}): run it as the gateway's user to see why"
            )));
        }
        let output = String::from_utf8(output).unwrap_or_default();
        let output = output.trim();
        if output.is_empty() {
            return Err(LoginError::new(format!("{program} printed no text")));
        }
        Ok(output.to_owned())
    }
}

/// Runs a command and returns its exit status and output. Kills the command after `time_max`.
fn run(line: &CommandLine, time_max: Duration) -> io::Result<(ExitStatus, Vec<u8>)> {
    let mut child = Command::new(&line.program)
        .args(&line.arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // Standard error is discarded, because it may contain a secret.
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    let until = Instant::now() + time_max;
    let outcome = finished(&mut child, until);
    if outcome.is_err() {
        kill(&mut child);
    }
    outcome
}

fn finished(child: &mut Child, until: Instant) -> io::Result<(ExitStatus, Vec<u8>)> {
    let too_slow = || io::Error::new(io::ErrorKind::TimedOut, "it did not end in time");
    let stdout = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    // A process that the command started may keep the command's output open. So the thread that reads the output is not
    // joined.
    let (sender, output) = sync_channel(1);
    thread::spawn(move || {
        let mut output = Vec::new();
        let read = stdout.take(OUTPUT_BYTES_MAX + 1).read_to_end(&mut output);
        drop(sender.send(read.map(|_| output)));
    });
    let left = until.saturating_duration_since(Instant::now());
    let output = output.recv_timeout(left).map_err(|_| too_slow())??;
    if output.len() as u64 > OUTPUT_BYTES_MAX {
        let kind = io::ErrorKind::InvalidData;
        return Err(io::Error::new(kind, "it prints too much"));
    }
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, output));
        }
        if Instant::now() >= until {
            return Err(too_slow());
        }
        thread::sleep(CHECK_EVERY);
    }
}

/// Kills the command, with all processes that it has started.
fn kill(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // All processes of the group may have ended already, so an error is ignored.
        let _ = kill_process_group(group, Signal::KILL);
    }
    drop(child.kill());
    drop(child.wait());
}

impl Source for CommandLine {
    type Credential = SecretString;

    async fn fetch(&self) -> Result<Fetched<SecretString>, LoginError> {
        Ok(Fetched {
            credential: self.output().await?.into(),
            life: Life::Unknown(self.refresh),
        })
    }
}

#[cfg(test)]
mod tests {
    use tollgate_layers::model::Egress;

    use super::*;
    use crate::logins::{Form, TokenHeader, testing::bearer};

    fn line(program: &str, arguments: &[&str]) -> CommandLine {
        CommandLine {
            program: program.to_owned(),
            arguments: arguments.iter().map(|&it| it.to_owned()).collect(),
            refresh: Duration::from_secs(1800),
        }
    }

    #[tokio::test]
    async fn output_of_the_login_command_is_the_token() {
        let form = Form::Command(line("echo", &["a-token"]), TokenHeader::default());
        let (login, _) = crate::logins::login("v", form, &Egress::default());
        assert_eq!(bearer(&*login).await.unwrap(), "Bearer a-token");
    }

    #[tokio::test]
    async fn login_command_gets_its_arguments_unchanged() {
        let printed = line("printf", &["%s", "$HOME `id` ; \"x\""]).output().await;
        assert_eq!(printed.unwrap(), "$HOME `id` ; \"x\"");
    }

    #[tokio::test]
    async fn error_of_a_login_command_names_the_program_but_not_its_output() {
        for (arguments, problem) in [
            (
                ["-c", "echo s3cret; echo s3cret >&2; exit 3"],
                "failed (exit status: 3)",
            ),
            (["-c", "exit 0"], "printed no text"),
            (["-c", "yes s3cret"], "prints too much"),
        ] {
            let error = line("sh", &arguments)
                .output()
                .await
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(problem) && !error.contains("s3cret"),
                "{error}"
            );
        }
        let error = line("/no/such/program", &[]).output().await.unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("cannot run /no/such/program: "),
            "{error}"
        );
    }

    #[test]
    fn slow_login_command_is_killed_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("late");
        let script = format!("(sleep 2; touch {}) & sleep 60", file.display());
        let began = std::time::SystemTime::now();
        let error = run(&line("sh", &["-c", &script]), Duration::from_millis(300)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed().unwrap() < Duration::from_secs(2));
        thread::sleep(Duration::from_millis(2500));
        assert!(!file.exists());
    }
}
