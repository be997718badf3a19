//! The `tollgate` binary, as an operator runs it: a config file, a ledger in a file, a key made by the admin
//! API, logs at `info`.

use std::{
    fs::{self, File},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::fixtures::directory;

const ADMIN_KEY: &str = "admin-key-of-the-benches";
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A running gateway. Killed when dropped.
pub(crate) struct Gateway {
    process: Child,
    pub(crate) address: SocketAddr,
    admin: SocketAddr,
    /// Of an account with much money.
    pub(crate) key: String,
    directory: TempDir,
}

impl Gateway {
    /// Before this vendor, with lines under `[limits]`.
    pub(crate) async fn start(vendor: SocketAddr, limits: &str) -> anyhow::Result<Self> {
        let directory = TempDir::new_in(directory()?)?;
        let path = |name: &str| directory.path().join(name);
        fs::write(path("tollgate.toml"), config(vendor, &directory, limits))?;
        let log = File::create(path("log"))?;
        let process = Command::new("sh")
            .arg("-c")
            .arg("ulimit -n $(ulimit -Hn) 2>/dev/null; exec \"$0\" \"$@\"")
            .arg(env!("CARGO_BIN_EXE_tollgate"))
            .args(["serve", "--config"])
            .arg(path("tollgate.toml"))
            .env("ADMIN_KEY", ADMIN_KEY)
            .env("VENDOR_KEY", "sk-vendor-key-of-the-benches")
            .env("RUST_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("cannot start the gateway")?;
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut gateway = Self {
            process,
            address: nowhere,
            admin: nowhere,
            key: String::new(),
            directory,
        };
        let serving = gateway.serving().await?;
        let address = |field: &str| -> anyhow::Result<SocketAddr> {
            let text = serving[field].as_str();
            Ok(text.context("it says where it listens")?.parse()?)
        };
        (gateway.address, gateway.admin) = (address("address")?, address("admin")?);
        gateway.key = gateway.funded_key().await?;
        Ok(gateway)
    }

    /// The line of its log that says where it listens.
    async fn serving(&mut self) -> anyhow::Result<Value> {
        let begun = Instant::now();
        loop {
            let log = fs::read_to_string(self.directory.path().join("log"))?;
            let mut lines = log.lines().filter(|line| line.contains("\"serving\""));
            if let Some(Ok(line)) = lines.next().map(serde_json::from_str) {
                return Ok(line);
            }
            let runs = self.process.try_wait()?.is_none();
            ensure!(
                runs && begun.elapsed() < PATIENCE,
                "it does not serve: {log}"
            );
            sleep(LOOK_EVERY).await;
        }
    }

    async fn funded_key(&self) -> anyhow::Result<String> {
        let account = json!({ "id": "bench", "name": "Bench" });
        self.admin(Method::POST, "accounts", &account).await?;
        let money = json!({ "id": "funds", "amount_rub": "1000000000" });
        self.admin(Method::POST, "accounts/bench/topups", &money)
            .await?;
        let key = self
            .admin(Method::POST, "accounts/bench/keys", &json!({}))
            .await?;
        let key = key["key"].as_str().context("a key is shown once")?;
        Ok(key.to_owned())
    }

    /// Waits until nothing is held: all calls have ended.
    pub(crate) async fn settled(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let account = self
                .admin(Method::GET, "accounts/bench", &Value::Null)
                .await?;
            if account["held_rub"] == "0.00" {
                return Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "it still holds: {account}");
            sleep(LOOK_EVERY).await;
        }
    }

    async fn admin(&self, method: Method, path: &str, body: &Value) -> anyhow::Result<Value> {
        let body = if body.is_null() {
            Bytes::new()
        } else {
            body.to_string().into()
        };
        let socket = TcpStream::connect(self.admin).await?;
        let (mut requests, connection) = http1::handshake(TokioIo::new(socket)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        let req = Request::builder()
            .method(method)
            .uri(format!("/admin/v1/{path}"))
            .header("host", "operators.example")
            .header("authorization", format!("Bearer {ADMIN_KEY}"))
            .header("content-type", "application/json")
            .body(Full::new(body))?;
        let res = requests.send_request(req).await?;
        let status = res.status();
        let bytes = res.into_body().collect().await?.to_bytes();
        ensure!(
            status.is_success(),
            "{path}: {status} {}",
            String::from_utf8_lossy(&bytes)
        );
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// Its resident memory.
    pub(crate) fn rss_kib(&self) -> anyhow::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        Ok(number.context("it has no memory")?.parse()?)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn config(vendor: SocketAddr, directory: &TempDir, limits: &str) -> String {
    let ledger = directory.path().join("ledger.db");
    format!(
        r#"
listen = "127.0.0.1:0"
base_url = "http://gateway.example/v1"
[admin]
listen = "127.0.0.1:0"
key = "${{ADMIN_KEY}}"
[ledger]
url = "sqlite:{}"
[limits]
{limits}
[[rate.source]]
fixed = "90.50"
[[vendor]]
name = "vendor"
format = "chat"
url = "http://{vendor}"
key = "${{VENDOR_KEY}}"
[[model]]
id = "plain"
family = "Bench"
usdt_mtok = {{ input = "0.25", cached_input = "0.025", output = "2.00", cache_write = "0.25" }}
output_tokens_max = 128000
routes = [ {{ vendor = "vendor", model = "plain-2026-10-21" }} ]
"#,
        ledger.display()
    )
}
