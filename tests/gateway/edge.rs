//! Starts the gateway as a separate process, so that tests can measure its memory and read its log. Its vendor is
//! scripted. Also contains helpers that send arbitrary bytes on a connection.

use std::{
    fs::File,
    io::{Read, Write},
    net::SocketAddr,
    path::Path,
    thread,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::{Instant, timeout},
};
use tollgate::demo::vendor::ScriptedVendor;

use crate::{
    prelude::*,
    secrets::Folder,
    support::process::{MANY_FILES, PATIENCE, Served, Start},
};

/// A process of `tollgate serve`. Its limit of open files is the highest that this machine allows.
pub struct Edge {
    served: Served,
    pub address: SocketAddr,
    pub admin_address: SocketAddr,
    pub vendor: ScriptedVendor,
    pub client: HttpClient,
    /// The folder with the configuration, the ledger and the log.
    pub dir: Folder,
}

impl Edge {
    /// Starts a gateway with these lines in the section `[limits]`, and with a ledger in a file.
    pub async fn start(limits: &str) -> Self {
        let limits = format!("[limits]\n{limits}\n[tariff]");
        Self::start_with(|text| text.replace("[tariff]", &limits)).await
    }

    /// Starts a gateway with this `ledger.url`.
    pub async fn over(ledger: &str) -> Self {
        Self::run(Some(ledger), "debug", None, |text| text).await
    }

    /// Starts a gateway with this `ledger.url` and an edited configuration.
    pub async fn over_with(ledger: &str, edit: impl FnOnce(String) -> String) -> Self {
        Self::run(Some(ledger), "debug", None, edit).await
    }

    /// Starts a gateway with the log level `info`, because the debug lines of a million requests would fill the disk.
    pub async fn quiet() -> Self {
        Self::run(None, "info", None, |text| text).await
    }

    /// Starts a gateway that writes its log into a pipe. The test reads at most this number of bytes per second from
    /// the pipe.
    pub async fn read_slowly(bytes_per_second: usize) -> Self {
        Self::run(None, "info", Some(bytes_per_second), |text| text).await
    }

    /// Starts a gateway with an edited configuration, and a ledger in a file.
    pub async fn start_with(edit: impl FnOnce(String) -> String) -> Self {
        Self::run(None, "debug", None, edit).await
    }

    async fn run(
        ledger: Option<&str>,
        level: &str,
        read: Option<usize>,
        edit: impl FnOnce(String) -> String,
    ) -> Self {
        let vendor = ScriptedVendor::start().await.unwrap();
        let dir = Folder::create();
        let path = |name: &str| dir.path().join(name);
        let books = format!("sqlite:{}", path("books.db").display());
        let ledger = ledger.unwrap_or(&books);
        let text = config_text(vendor.address(), ledger, path("outbox.db"));
        let config = path("tollgate.toml");
        std::fs::write(&config, edit(text)).unwrap();
        if let Some(bytes_per_second) = read {
            let (pipe, log) = (path("pipe"), path("log"));
            let made = std::process::Command::new("mkfifo").arg(&pipe).status();
            assert!(made.unwrap().success());
            thread::spawn(move || copy_slowly(&pipe, &log, bytes_per_second));
        }
        let served = Start {
            shell: Some(read.map_or(MANY_FILES, |_| INTO_PIPE)),
            level: &format!("info,tollgate={level},tollgate_layers={level}"),
            ..Start::new(&config, &path("log"))
        }
        .spawn();
        let (address, admin) = served.serving().await;
        Self {
            served,
            address,
            admin_address: admin.expect("operators are served"),
            vendor,
            client: client(),
            dir,
        }
    }

    /// Returns everything that the gateway has logged.
    pub fn log(&self) -> String {
        self.served.log.text()
    }

    /// Returns the log from byte `place` on, and sets `place` to the end of the log.
    pub fn log_behind(&self, place: &mut u64) -> String {
        let (text, end) = self.served.log.behind(*place);
        *place = end;
        text
    }

    /// Returns the number of log lines whose message begins with this text.
    pub fn reported(&self, begin: &str) -> usize {
        self.served.log.count(begin)
    }

    /// Waits until the gateway has logged `nth` lines whose message begins with this text.
    pub async fn says(&self, begin: &str, nth: usize) {
        self.served.log.says(begin, nth).await;
    }

    /// Returns the text of the gateway's configuration file.
    pub fn config(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("tollgate.toml")).unwrap()
    }

    /// Overwrites the configuration file as an editor does, and does not signal the gateway.
    pub fn configure(&self, text: &str) {
        let file = self.dir.path().join("tollgate.toml");
        std::fs::write(file, text).unwrap();
    }

    /// Overwrites the configuration file, sends SIGHUP, and waits until the gateway has reloaded it.
    pub async fn reload(&self, text: &str) {
        let before = self.reported("reloaded");
        self.configure(text);
        self.signal("-HUP");
        self.says("reloaded", before + 1).await;
    }

    /// Sends a signal to the gateway.
    pub fn signal(&self, name: &str) {
        self.served.signal(name);
    }

    /// Returns `None` while the gateway runs. After that, returns its exit code, or `Some(None)` if a signal ended it.
    pub fn exit_code(&mut self) -> Option<Option<i32>> {
        self.served.exited().map(|status| status.code())
    }

    pub fn is_alive(&mut self) -> bool {
        self.served.is_running()
    }

    /// Returns the resident memory of the gateway, in KiB.
    pub fn rss_kib(&self) -> u64 {
        self.served.rss_kib()
    }

    /// Returns the peak resident memory of the gateway, in KiB.
    pub fn peak_kib(&self) -> u64 {
        let status = self.served.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        number.unwrap().parse().unwrap()
    }

    /// Returns a resource limit of the gateway's process: the soft limit, the hard limit and the unit, from the line
    /// that begins with `name`.
    pub fn system_limit(&self, name: &str) -> String {
        let limits = self.served.proc("limits");
        let line = limits.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().to_owned()
    }

    /// Returns the gateway's command line, which every user of the machine can read.
    pub fn command_line(&self) -> String {
        self.served.proc("cmdline")
    }

    /// Stops the gateway, waits until it has ended, and returns its exit code.
    pub async fn stop(&mut self) -> Option<i32> {
        self.signal("-TERM");
        let ended = timeout(PATIENCE, self.served.ended()).await;
        ended.expect("it stops in time").code()
    }

    /// Sends SIGHUP, at which the gateway reads its configuration again.
    pub fn hang_up(&self) {
        self.signal("-HUP");
    }

    /// Sends a request to the admin API.
    pub async fn admin(&self, method: Method, path: &str, body: Option<Value>) -> Answer {
        let url = format!("http://{}{path}", self.admin_address);
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let req = json_request(method, &url, ADMIN_KEY, body);
        whole(self.client.request(req).await.unwrap()).await
    }

    /// Creates an account `acme` with much money, and returns the secret of its key.
    pub async fn key(&self) -> String {
        let mut made = Value::Null;
        for (path, body) in [
            ("", json!({ "id": "acme", "name": "acme" })),
            (
                "/acme/topups",
                json!({ "id": "first", "amount_rub": "1000000" }),
            ),
            ("/acme/keys", json!({})),
        ] {
            let path = format!("/admin/v1/accounts{path}");
            let answer = self.admin(Method::POST, &path, Some(body)).await;
            assert!(answer.status.is_success(), "{answer:?}");
            made = answer.json();
        }
        made["key"].as_str().unwrap().to_owned()
    }

    /// Makes a chat call on a connection of the shared client.
    pub async fn chat(&self, key: &str, body: &Value) -> Answer {
        let url = format!("http://{}/v1/chat/completions", self.address);
        let req = json_request(Method::POST, &url, key, body.to_string());
        whole(self.client.request(req).await.unwrap()).await
    }

    /// Waits until the account holds no money. Every hold must end, including the holds of calls whose connections were
    /// closed.
    pub async fn nothing_is_held(&self) {
        let begun = Instant::now();
        loop {
            let path = "/admin/v1/accounts/acme";
            let account = self.admin(Method::GET, path, None).await.json();
            if account["held_rub"] == "0.00" {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{account}");
            tokio::task::yield_now().await;
        }
    }
}

/// The shell text for [`Start::shell`] that writes the log into a pipe in the folder of the configuration.
const INTO_PIPE: &str = "exec \"$0\" \"$@\" 2>\"$(dirname \"$3\")/pipe\"";

/// Copies the pipe into a file at a limited rate, until the writer closes the pipe.
fn copy_slowly(pipe: &Path, to: &Path, bytes_per_second: usize) {
    const PARTS: usize = 50;
    let mut from = File::open(pipe).unwrap();
    // The path of the pipe is removed as soon as the pipe is open. Another test reads every file of the folder, and
    // would block on a pipe.
    std::fs::remove_file(pipe).unwrap();
    let mut to = File::options().create(true).append(true).open(to).unwrap();
    let mut part = vec![0; bytes_per_second / PARTS];
    while let Ok(count @ 1..) = from.read(&mut part) {
        to.write_all(&part[..count]).unwrap();
        thread::sleep(Duration::from_secs(1) / PARTS as u32);
    }
}

/// Connects from loopback address number `nth` of this machine. The gateway counts each address as a separate client.
pub async fn connect_from(nth: usize, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    let [high, low] = u16::try_from(nth % 60_000)
        .unwrap_or_default()
        .to_be_bytes();
    socket.bind(SocketAddr::from(([127, 1, high, low], 0)))?;
    socket.connect(to).await
}

/// Sends these bytes and reads until the gateway closes the connection. Returns `None` if the connection stays open for
/// `patience`.
pub async fn talk(to: SocketAddr, bytes: &[u8], patience: Duration) -> Option<Vec<u8>> {
    let mut socket = TcpStream::connect(to).await.unwrap();
    // The write may fail, because the gateway may close the connection before it has read all bytes.
    let _ = socket.write_all(bytes).await;
    read_to_close(&mut socket, patience).await
}

/// Reads until the gateway closes or resets the connection. Returns `None` if the connection stays open for `patience`.
pub async fn read_to_close(socket: &mut TcpStream, patience: Duration) -> Option<Vec<u8>> {
    let mut read = Vec::new();
    let _ = timeout(patience, socket.read_to_end(&mut read))
        .await
        .ok()?;
    Some(read)
}

/// Returns the statuses of all HTTP/1.1 responses in these bytes.
pub fn statuses(bytes: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(bytes);
    text.match_indices("HTTP/1.")
        .filter_map(|(at, _)| text.get(at + 9..at + 12)?.parse().ok())
        .collect()
}

/// Sorts the durations, and returns the given percentile.
pub fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}
