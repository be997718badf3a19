//! A Redis server for one test. `redis-server` must be installed.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::Duration,
};

use tempfile::TempDir;

use super::RedisLedger;
use crate::conn::{RedisConn, RedisSettings, Reply};

const LIMIT: Duration = Duration::from_secs(10);

/// A test's own Redis server, which writes nothing to the disk.
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
    pub(crate) conn: RedisConn,
    _folder: TempDir,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Another process may occupy the chosen port first, so several ports are tried.
        for _ in 0..10 {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = free.local_addr().unwrap().port();
            drop(free);
            let mut child = Command::new("redis-server")
                .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
                .args(["--save", "", "--appendonly", "no", "--dir"])
                .arg(folder.path())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("redis-server must be installed");
            let url = format!("redis://127.0.0.1:{port}");
            while child.try_wait().unwrap().is_none() {
                let connected = RedisConn::connect(&url, RedisSettings::default());
                if let Ok(conn) = connected.await {
                    return Self {
                        child,
                        url,
                        conn,
                        _folder: folder,
                    };
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        panic!("redis-server stops immediately after its start");
    }

    /// Starts a server with a ledger. The ledger has the account `acme` with this balance, and its keys `k1` and `k2`.
    pub(crate) async fn with_balance(balance: i64) -> (Self, RedisLedger) {
        let server = Self::start().await;
        let ledger = server.ledger().await;
        crate::testing::open(&ledger, balance).await;
        (server, ledger)
    }

    /// Connects to the ledger, with a response timeout that is long enough for a busy machine.
    pub(crate) async fn ledger(&self) -> RedisLedger {
        let settings = RedisSettings {
            response_timeout: LIMIT,
            ..RedisSettings::default()
        };
        RedisLedger::connect(&self.url, settings).await.unwrap()
    }

    pub(crate) async fn ask<T: Reply>(&self, words: &[&str]) -> T {
        self.conn.command(words, LIMIT).await.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
