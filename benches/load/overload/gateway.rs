//! The `tollgate` binary, as an operator runs it: a config file, a ledger in a file, a key made by the admin
//! API, logs at `info`.

use std::{fs, net::SocketAddr, time::Duration};

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

use crate::fixtures::{
    PRICES, directory,
    support::{
        config::ConfigText,
        process::{ADMIN_KEY, MANY_FILES, PATIENCE, Served, Start},
    },
};

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A running gateway. Killed when dropped.
pub(crate) struct Gateway {
    served: Served,
    pub(crate) address: SocketAddr,
    admin: SocketAddr,
    /// Of an account with much money.
    pub(crate) key: String,
    _directory: TempDir,
}

impl Gateway {
    /// Before this vendor, with lines under `[limits]`.
    pub(crate) async fn start(vendor: SocketAddr, limits: &str) -> anyhow::Result<Self> {
        let directory = TempDir::new_in(directory()?)?;
        let path = |name: &str| directory.path().join(name);
        let config = ConfigText::over(&format!("sqlite:{}", path("ledger.db").display()))
            .admin()
            .limit(limits)
            .rates("90.50", "1")
            .vendor("vendor", "chat", &format!("http://{vendor}"), "")
            .model("plain", PRICES, 128_000, ("vendor", "plain-2026-10-21"));
        fs::write(path("tollgate.toml"), config.text())?;
        let served = Start {
            shell: Some(MANY_FILES),
            ..Start::new(&path("tollgate.toml"), &path("log"))
        }
        .spawn();
        let (address, admin) = served.serving().await;
        let mut gateway = Self {
            served,
            address,
            admin: admin.context("it says where operators are served")?,
            key: String::new(),
            _directory: directory,
        };
        gateway.key = gateway.funded_key().await?;
        Ok(gateway)
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
    pub(crate) fn rss_kib(&self) -> u64 {
        self.served.rss_kib()
    }
}
