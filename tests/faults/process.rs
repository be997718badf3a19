//! A gateway as a process of its own: killed, stopped, drained, started again.

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

/// `tollgate serve`, behind the proxy that its clients know.
pub struct GatewayProcess {
    index: usize,
    config: PathBuf,
    /// The text of the shell that starts it, where there is one.
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
    /// Starts it and waits until it serves.
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

    /// Starts it again, with the same files, and waits until it serves. What still runs is killed.
    pub async fn restart(&self) {
        self.spawn();
        let (address, admin) = self.served().serving().await;
        self.front.set_target(address);
        if let Some(running) = &mut *self.running.lock().unwrap() {
            running.admin = admin;
        }
    }

    /// Starts it again and does not wait: for starts that are to fail.
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

    /// Kills it. Says when.
    pub fn kill9(&self) -> Instant {
        let at = self.served().kill();
        self.deaths.lock().unwrap().push(at);
        self.end();
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
        self.served().signal(name);
    }

    /// How it ended, once it has. One that did not end well counts as dead from then on.
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

    /// Ends it, whatever it does; that is no death of a case's.
    pub fn end(&self) {
        if let Some(running) = self.running.lock().ok().and_then(|mut it| it.take()) {
            running.served.kill();
        }
    }

    /// When it was killed or ended badly.
    pub fn deaths(&self) -> Vec<Instant> {
        self.deaths.lock().unwrap().clone()
    }

    /// Where operators are served, while it runs.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.running()?.admin
    }

    pub fn pid(&self) -> Option<u32> {
        Some(self.running()?.served.pid())
    }

    /// The first line since its last start whose message begins so.
    pub async fn says(&self, begin: &str, limit: Duration) -> Value {
        self.served().says_within(begin, limit).await
    }

    /// All that it printed.
    pub fn log(&self) -> Vec<String> {
        self.log.text().lines().map(str::to_owned).collect()
    }

    /// The last lines of it.
    pub fn log_tail(&self, lines: usize) -> String {
        self.log.tail(lines)
    }
}
