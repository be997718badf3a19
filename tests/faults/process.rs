//! A gateway process that a case can kill, suspend, drain and restart.

use std::{
    net::SocketAddr,
    path::PathBuf,
    process::ExitStatus,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::Value;
use tokio::time::{Instant, timeout};

use crate::{
    proxy::Proxy,
    support::process::{Log, Served, Start},
};

/// A process of `tollgate serve`, behind the proxy that its clients use.
pub struct GatewayProcess {
    index: usize,
    config: PathBuf,
    /// The text of the shell that starts the process, if there is one.
    shell: Option<String>,
    front: Arc<Proxy>,
    log: Log,
    running: Mutex<Option<Running>>,
    deaths: Mutex<Vec<Instant>>,
}

#[derive(Clone)]
struct Running {
    served: Arc<Served>,
    admin: Option<SocketAddr>,
}

impl GatewayProcess {
    /// Starts the process, and waits until it serves.
    pub async fn start(
        index: usize,
        config: PathBuf,
        shell: Option<String>,
        front: Arc<Proxy>,
    ) -> Self {
        let gateway = Self {
            index,
            log: Log(config.with_extension("log")),
            config,
            shell,
            front,
            running: Mutex::new(None),
            deaths: Mutex::default(),
        };
        gateway.restart().await;
        gateway
    }

    /// Starts the gateway again with the same files, and waits until it serves. If the process is still running, kills
    /// it first.
    pub async fn restart(&self) {
        self.spawn();
        let (address, admin) = self.served().serving().await;
        self.front.set_target(address);
        if let Some(running) = &mut *self.running.lock().unwrap() {
            running.admin = admin;
        }
    }

    /// Starts the gateway again and does not wait, for starts that should fail.
    pub fn spawn(&self) {
        self.end();
        let start = Start {
            shell: self.shell.as_deref(),
            limited: true,
            ..Start::new(&self.config, &self.log.0)
        };
        *self.running.lock().unwrap() = Some(Running {
            served: Arc::new(start.spawn()),
            admin: None,
        });
    }

    fn running(&self) -> Option<Running> {
        self.running.lock().unwrap().clone()
    }

    fn served(&self) -> Arc<Served> {
        let running = self.running();
        let running = running.unwrap_or_else(|| panic!("gateway {} does not run", self.index));
        running.served
    }

    /// Kills the process. Returns the time of the kill.
    pub fn kill9(&self) -> Instant {
        let at = self.served().kill();
        self.deaths.lock().unwrap().push(at);
        self.end();
        at
    }

    /// Suspends the process with SIGSTOP, which stops its timers as well.
    pub fn stop(&self) {
        self.signal("-STOP");
    }

    /// Continues a suspended process.
    pub fn cont(&self) {
        self.signal("-CONT");
    }

    /// Sends SIGTERM, at which the gateway drains. A second SIGTERM ends it at once.
    pub fn term(&self) {
        self.signal("-TERM");
    }

    /// Sends SIGHUP, at which the gateway reads its configuration again.
    pub fn hangup(&self) {
        self.signal("-HUP");
    }

    fn signal(&self, name: &str) {
        self.served().signal(name);
    }

    /// Waits for the exit status of the gateway. An exit with an error counts as a death.
    pub async fn wait_exit(&self, limit: Duration) -> Option<ExitStatus> {
        let served = self.running()?.served;
        let status = timeout(limit, served.ended()).await.ok()?;
        *self.running.lock().unwrap() = None;
        if !status.success() {
            self.deaths.lock().unwrap().push(Instant::now());
        }
        Some(status)
    }

    pub fn is_running(&self) -> bool {
        self.running().is_some_and(|it| it.served.is_running())
    }

    /// Kills the gateway if it is running. This is not counted as a death.
    pub fn end(&self) {
        if let Some(running) = self.running.lock().ok().and_then(|mut it| it.take()) {
            running.served.kill();
        }
    }

    /// Returns the times at which the process was killed or failed.
    pub fn deaths(&self) -> Vec<Instant> {
        self.deaths.lock().unwrap().clone()
    }

    /// Returns the address of the operators' listener, if the process is running.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.running()?.admin
    }

    pub fn pid(&self) -> Option<u32> {
        Some(self.running()?.served.pid())
    }

    /// Waits for the first log line since the last start whose message begins with this text.
    pub async fn says(&self, begin: &str, limit: Duration) -> Value {
        self.served().says_within(begin, limit).await
    }

    /// Returns all lines of the process's output.
    pub fn log(&self) -> Vec<String> {
        self.log.text().lines().map(str::to_owned).collect()
    }

    /// Returns the last lines of the process's output.
    pub fn log_tail(&self, lines: usize) -> String {
        self.log.tail(lines)
    }
}
