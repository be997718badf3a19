//! Runs the `tollgate` binary as a process: start, signals, output, exit.

use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Mutex,
    time::Duration,
};

use serde_json::Value;
use tokio::time::{Instant, sleep};

pub const ADMIN_KEY: &str = "admin-key-of-the-tests";
pub const VENDOR_KEY: &str = "sk-vendor-key-of-the-tests";
/// The token of a Telegram bot, in the environment of every gateway.
pub const BOT_TOKEN: &str = "123456:token-of-the-tests-bot";
/// The signing secret of webhooks, in the environment of every gateway.
pub const WEBHOOK_SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1ub3BxcnN0dXY=";
/// The maximum time that a start or an exit may take on a busy machine. A start includes the check of the books.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Shell text for [`Start::shell`] that raises the limit of open files to its maximum.
pub const MANY_FILES: &str = "ulimit -n $(ulimit -Hn) 2>/dev/null; exec \"$0\" \"$@\"";
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The path of the `tollgate` binary.
pub const TOLLGATE: &str = env!("CARGO_BIN_EXE_tollgate");

/// Sets the environment variables to which the configurations of this module refer, and the log level `info`.
pub fn with_secrets(command: &mut Command) -> &mut Command {
    command
        .env("ADMIN_KEY", ADMIN_KEY)
        .env("VENDOR_KEY", VENDOR_KEY)
        .env("WEBHOOK_SECRET", WEBHOOK_SECRET)
        .env("RUST_LOG", "info")
}

/// Sends a signal to a process.
pub fn signal(name: &str, pid: u32) {
    let sent = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(sent.unwrap().success(), "{name} {pid}");
}

/// The options with which `tollgate serve` is started.
#[derive(Clone, Debug)]
pub struct Start<'a> {
    pub config: &'a Path,
    /// The file to which the output of the process is appended.
    pub log: &'a Path,
    /// The text of a shell that starts the binary. It ends with `exec … "$0" "$@"`.
    pub shell: Option<&'a str>,
    /// The value of `RUST_LOG` for the gateway.
    pub level: &'a str,
    /// Whether the test may limit the size of the gateway's files. Such a limit must not apply to the log, so another
    /// process then writes the log.
    pub limited: bool,
}

impl<'a> Start<'a> {
    pub const fn new(config: &'a Path, log: &'a Path) -> Self {
        Self {
            config,
            log,
            shell: None,
            level: "info",
            limited: false,
        }
    }

    /// Starts the process of the gateway, and does not wait until it listens.
    pub fn spawn(&self) -> Served {
        let log = || File::options().create(true).append(true).open(self.log);
        let since = log().unwrap().metadata().unwrap().len();
        let mut command = match self.shell {
            None => Command::new(TOLLGATE),
            Some(text) => {
                let mut shell = Command::new("sh");
                shell.arg("-c").arg(text).arg(TOLLGATE);
                shell
            }
        };
        with_secrets(&mut command)
            .args(["serve", "--config"])
            .arg(self.config)
            .env("RUST_LOG", self.level)
            .stdin(Stdio::null());
        let mut writer = None;
        if self.limited {
            let (from, to) = std::io::pipe().unwrap();
            command.stdout(to.try_clone().unwrap()).stderr(to);
            let mut cat = Command::new("cat");
            cat.stdin(from).stdout(log().unwrap());
            writer = Some(Mutex::new(cat.spawn().unwrap()));
        } else {
            command.stdout(log().unwrap()).stderr(log().unwrap());
        }
        Served {
            child: Mutex::new(command.spawn().unwrap()),
            writer,
            log: Log(self.log.to_owned()),
            since,
        }
    }
}

/// A running `tollgate serve`. Dropping it kills the process.
#[derive(Debug)]
pub struct Served {
    child: Mutex<Child>,
    /// The process that writes the log; `None` if the gateway writes it itself.
    writer: Option<Mutex<Child>>,
    pub log: Log,
    /// The byte position in the log at which the output of this process begins.
    since: u64,
}

impl Served {
    pub fn pid(&self) -> u32 {
        self.child.lock().unwrap().id()
    }

    pub fn signal(&self, name: &str) {
        signal(name, self.pid());
    }

    /// Returns the exit status of the process; `None` while it is running.
    pub fn exited(&self) -> Option<ExitStatus> {
        self.child.lock().unwrap().try_wait().unwrap()
    }

    pub fn is_running(&self) -> bool {
        self.exited().is_none()
    }

    /// Waits until the process has ended.
    pub async fn ended(&self) -> ExitStatus {
        loop {
            if let Some(status) = self.exited() {
                return status;
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Kills the process. Returns the time of the kill.
    pub fn kill(&self) -> Instant {
        let mut child = self.child.lock().unwrap();
        let _ = child.kill();
        let at = Instant::now();
        let _ = child.wait();
        at
    }

    /// Waits until the gateway serves. Returns the address for callers, and the address for operators if there is one.
    pub async fn serving(&self) -> (SocketAddr, Option<SocketAddr>) {
        let line = self.says("serving").await;
        addresses(&line)
    }

    /// Waits for a log line of this process whose message begins with this text. Returns the first such line.
    pub async fn says(&self, begin: &str) -> Value {
        self.says_within(begin, PATIENCE).await
    }

    pub async fn says_within(&self, begin: &str, limit: Duration) -> Value {
        let until = Instant::now() + limit;
        loop {
            let runs = self.is_running();
            if let (false, Some(writer)) = (runs, &self.writer) {
                // The process that writes the log ends when its input ends.
                let _ = writer.lock().unwrap().wait();
            }
            if let Some(line) = self.reported(begin) {
                return line;
            }
            let log = || self.log.tail(30);
            assert!(runs, "it ended without {begin:?}:\n{}", log());
            assert!(
                Instant::now() < until,
                "no {begin:?} within {limit:?}:\n{}",
                log()
            );
            sleep(LOOK_EVERY).await;
        }
    }

    /// Returns the first log line whose message begins with this text, if there is one.
    pub fn reported(&self, begin: &str) -> Option<Value> {
        let (lines, _) = self.log.behind(self.since);
        messages(&lines, begin).next()
    }

    /// Returns the resident memory of the process, in KiB.
    pub fn rss_kib(&self) -> u64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        number.unwrap().parse().unwrap()
    }

    /// Returns the content of a file in `/proc` about this process.
    pub fn proc(&self, name: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{name}", self.pid())).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.kill();
        if let Some(writer) = &self.writer {
            let _ = writer.lock().unwrap().wait();
        }
    }
}

/// Returns the addresses for callers and for operators, from the log line that a gateway writes when it serves.
pub fn addresses(serving: &Value) -> (SocketAddr, Option<SocketAddr>) {
    let address = |field: &str| serving[field].as_str().map(|text| text.parse().unwrap());
    (address("address").unwrap(), address("admin"))
}

/// A file with the output of one or more processes.
#[derive(Clone, Debug)]
pub struct Log(pub PathBuf);

impl Log {
    pub fn text(&self) -> String {
        self.behind(0).0
    }

    /// Returns the text after this position, and the position at which the text ends.
    pub fn behind(&self, place: u64) -> (String, u64) {
        let mut bytes = Vec::new();
        if let Ok(mut file) = File::open(&self.0) {
            file.seek(SeekFrom::Start(place)).unwrap();
            file.read_to_end(&mut bytes).unwrap();
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        (text, place + bytes.len() as u64)
    }

    /// Returns the last `count` lines.
    pub fn tail(&self, count: usize) -> String {
        let text = self.text();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(count)..].join("\n")
    }

    /// Returns the number of lines whose message begins with this text.
    pub fn count(&self, begin: &str) -> usize {
        messages(&self.text(), begin).count()
    }

    /// Waits for the `nth` line whose message begins with this text.
    pub async fn says(&self, begin: &str, nth: usize) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let text = self.text();
            if let Some(line) = messages(&text, begin).nth(nth - 1) {
                return line;
            }
            assert!(Instant::now() < until, "no {begin:?}:\n{text}");
            sleep(LOOK_EVERY).await;
        }
    }
}

/// Returns the log lines in `text` whose message begins with `begin`.
pub fn messages<'a>(text: &'a str, begin: &str) -> impl Iterator<Item = Value> + use<'a> {
    let begin = format!("\"message\":\"{begin}");
    let lines = text.lines().filter(move |line| line.contains(&begin));
    // The last line may be incomplete. So a line that is not JSON is skipped.
    lines.filter_map(|line| serde_json::from_str(line).ok())
}
