//! A gateway as a process of its own: killed, stopped, drained, started again.

use std::{
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::proxy::Proxy;

pub const ADMIN_KEY: &str = "admin-key-of-the-tests";
pub const VENDOR_KEY: &str = "sk-vendor-key-of-the-tests";

/// How long a start, with its check of the books, may take on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(20);

/// `tollgate serve`, behind the proxy that its clients know.
pub struct GatewayProcess {
    index: usize,
    config: PathBuf,
    /// The text of the shell that starts it, where there is one.
    shell: Option<String>,
    front: Arc<Proxy>,
    log: Arc<Log>,
    running: Mutex<Option<Running>>,
    deaths: Mutex<Vec<Instant>>,
}

struct Running {
    child: Child,
    admin: Option<SocketAddr>,
    /// Where its lines begin in the log.
    since: usize,
}

impl GatewayProcess {
    /// Starts it and waits until it serves.
    pub async fn start(
        index: usize,
        config: PathBuf,
        shell: Option<String>,
        front: Arc<Proxy>,
    ) -> Self {
        let gateway = Self {
            index,
            config,
            shell,
            front,
            log: Arc::new(Log::new()),
            running: Mutex::new(None),
            deaths: Mutex::default(),
        };
        gateway.restart().await;
        gateway
    }

    /// Starts it again, with the same files, and waits until it serves. What still runs is killed.
    pub async fn restart(&self) {
        self.spawn();
        let serving = self.says("serving", START_LIMIT).await;
        let address = |field: &str| serving[field].as_str().and_then(|text| text.parse().ok());
        self.front
            .set_target(address("address").expect("it says where it serves"));
        if let Some(running) = &mut *self.running.lock().unwrap() {
            running.admin = address("admin");
        }
    }

    /// Starts it again and does not wait: for starts that are to fail.
    pub fn spawn(&self) {
        self.end();
        let binary = env!("CARGO_BIN_EXE_tollgate");
        let mut command = match &self.shell {
            None => Command::new(binary),
            Some(text) => {
                let mut shell = Command::new("sh");
                shell.arg("-c").arg(text).arg(binary);
                shell
            }
        };
        let mut child = command
            .args(["serve", "--config"])
            .arg(&self.config)
            .env("ADMIN_KEY", ADMIN_KEY)
            .env("VENDOR_KEY", VENDOR_KEY)
            .env("RUST_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let since = self.log.len();
        self.log.keep(child.stdout.take().unwrap());
        self.log.keep(child.stderr.take().unwrap());
        *self.running.lock().unwrap() = Some(Running {
            child,
            admin: None,
            since,
        });
    }

    /// Kills it. Says when.
    pub fn kill9(&self) -> Instant {
        let mut running = self.running.lock().unwrap().take().expect("it runs");
        running.child.kill().unwrap();
        let at = Instant::now();
        self.deaths.lock().unwrap().push(at);
        running.child.wait().unwrap();
        at
    }

    /// Stops its clock and all that it does.
    pub fn stop(&self) {
        self.signal("-STOP");
    }

    /// Lets a stopped one go on.
    pub fn cont(&self) {
        self.signal("-CONT");
    }

    /// Tells it to drain; a second time: to end now.
    pub fn term(&self) {
        self.signal("-TERM");
    }

    /// Tells it to read its config again.
    pub fn hangup(&self) {
        self.signal("-HUP");
    }

    fn signal(&self, name: &str) {
        let pid = match &*self.running.lock().unwrap() {
            Some(running) => running.child.id().to_string(),
            None => panic!("gateway {} does not run", self.index),
        };
        assert!(
            Command::new("kill")
                .args([name, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    /// How it ended, once it has. One that did not end well counts as dead from then on.
    pub async fn wait_exit(&self, limit: Duration) -> Option<ExitStatus> {
        let ended = timeout(limit, async {
            loop {
                if let Some(status) = self.exited() {
                    return status;
                }
                sleep(Duration::from_millis(5)).await;
            }
        });
        let status = ended.await.ok()?;
        if !status.success() {
            self.deaths.lock().unwrap().push(Instant::now());
        }
        Some(status)
    }

    fn exited(&self) -> Option<ExitStatus> {
        let mut running = self.running.lock().unwrap();
        let status = running.as_mut()?.child.try_wait().unwrap()?;
        *running = None;
        Some(status)
    }

    pub fn is_running(&self) -> bool {
        let mut running = self.running.lock().unwrap();
        running
            .as_mut()
            .is_some_and(|running| matches!(running.child.try_wait(), Ok(None)))
    }

    /// Ends it, whatever it does; that is no death of a case's.
    pub fn end(&self) {
        if let Ok(mut running) = self.running.lock() {
            let _ = running.take().map(end);
        }
    }

    /// When it was killed or ended badly.
    pub fn deaths(&self) -> Vec<Instant> {
        self.deaths.lock().unwrap().clone()
    }

    /// Where operators are served, while it runs.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.running.lock().unwrap().as_ref()?.admin
    }

    pub fn pid(&self) -> Option<u32> {
        Some(self.running.lock().unwrap().as_ref()?.child.id())
    }

    /// The first line since its last start whose message begins so.
    pub async fn says(&self, begin: &str, limit: Duration) -> Value {
        let since = self
            .running
            .lock()
            .unwrap()
            .as_ref()
            .map_or(0, |running| running.since);
        let mut news = self.log.news.subscribe();
        let found = timeout(limit, async {
            loop {
                news.borrow_and_update();
                if let Some(line) = self.log.find(since, begin) {
                    return line;
                }
                // It may have ended without a word: nobody would tell.
                let _ = timeout(Duration::from_millis(100), news.changed()).await;
                if !self.is_running() && self.log.find(since, begin).is_none() {
                    sleep(Duration::from_millis(50)).await;
                    let found = self.log.find(since, begin);
                    return found.unwrap_or_else(|| {
                        panic!(
                            "gateway {} ended without {begin:?}:\n{}",
                            self.index,
                            self.log.tail(30)
                        )
                    });
                }
            }
        });
        match found.await {
            Ok(line) => line,
            Err(_) => panic!(
                "gateway {} did not say {begin:?} within {limit:?}:\n{}",
                self.index,
                self.log.tail(30)
            ),
        }
    }

    /// Whether a line since its last start has a message that begins so.
    pub fn has_said(&self, begin: &str) -> bool {
        let since = self
            .running
            .lock()
            .unwrap()
            .as_ref()
            .map_or(0, |running| running.since);
        self.log.find(since, begin).is_some()
    }

    /// All that it printed.
    pub fn log(&self) -> Vec<String> {
        self.log.lines.lock().unwrap().clone()
    }

    /// The last lines of it.
    pub fn log_tail(&self, lines: usize) -> String {
        self.log.tail(lines)
    }
}

impl Drop for GatewayProcess {
    fn drop(&mut self) {
        self.end();
    }
}

fn end(mut running: Running) {
    let _ = running.child.kill();
    let _ = running.child.wait();
}

/// What a process prints, kept.
struct Log {
    lines: Mutex<Vec<String>>,
    news: watch::Sender<usize>,
}

impl Log {
    fn new() -> Self {
        Self {
            lines: Mutex::default(),
            news: watch::channel(0).0,
        }
    }

    /// Keeps what comes, on a thread that ends with it.
    fn keep(self: &Arc<Self>, from: impl Read + Send + 'static) {
        let log = Arc::clone(self);
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines() {
                let Ok(line) = line else { return };
                log.lines.lock().unwrap().push(line);
                log.news.send_modify(|count| *count += 1);
            }
        });
    }

    fn len(&self) -> usize {
        self.lines.lock().unwrap().len()
    }

    fn find(&self, since: usize, begin: &str) -> Option<Value> {
        let lines = self.lines.lock().unwrap();
        lines.iter().skip(since).find_map(|line| {
            let line: Value = serde_json::from_str(line).ok()?;
            let said = line["message"].as_str()?.starts_with(begin);
            said.then_some(line)
        })
    }

    fn tail(&self, count: usize) -> String {
        let lines = self.lines.lock().unwrap();
        lines[lines.len().saturating_sub(count)..].join("\n")
    }
}
