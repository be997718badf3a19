//! Runs the contract tests for ledgers on a file and on a real Redis: on a single server, on a server with a replica
//! behind Sentinels, and on a Cluster of three primaries. The ledger crate itself runs these tests on the ledger in
//! memory.
//!
//! The contract tests are in the layers crate, in `reserve::testing`, so that every author of a ledger can run them.
//! The books are audited after each test.

use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;
pub use tollgate_layers::reserve::testing::{
    Books,
    given::{HOUR, acme, hold, item, micro, number, record, settlement, topup},
    is_sound, open,
};
use tollgate_layers::reserve::{
    redis::{RedisLedger, RedisSettings},
    sqlite::SqliteLedger,
    testing::check_store,
};

use crate::support::redis::{RedisCluster, RedisSentinels, RedisServer};

#[tokio::test]
async fn sqlite_ledger_passes_the_contract_tests() {
    let (folder, count) = (folder(), AtomicUsize::new(0));
    let path = || {
        let name = format!("{}.db", count.fetch_add(1, Ordering::Relaxed));
        folder.path().join(name)
    };
    check_store(async || SqliteLedger::open(&path()).unwrap()).await;
}

#[tokio::test]
async fn redis_ledger_passes_the_contract_tests() {
    let server = RedisServer::start().await;
    check_store(async || over_flushed(&server, &server.url()).await).await;
}

#[tokio::test]
async fn cluster_ledger_passes_the_contract_tests() {
    let cluster = RedisCluster::start(3, 0).await;
    let open = async || {
        cluster.flush().await;
        over_url(&cluster.url()).await
    };
    check_store(open).await;
}

#[tokio::test]
async fn ledger_with_redis_sentinels_passes_the_contract_tests() {
    let primary = RedisServer::start().await;
    let _replica = RedisServer::replica_of(&primary).await;
    let sentinels = RedisSentinels::start(&primary).await;
    check_store(async || over_flushed(&primary, &sentinels.url()).await).await;
}

/// Empties the server and connects to it again, because a ledger that was connected before would report lost data.
async fn over_flushed(server: &RedisServer, url: &str) -> RedisLedger {
    server.ask::<String>(&["FLUSHALL"]).await.unwrap();
    over_url(url).await
}

/// Returns a folder for a ledger file. If the machine has a file system in memory, the folder is there, because these
/// tests do not measure disk syncs.
pub fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

pub fn in_file(folder: &TempDir) -> SqliteLedger {
    SqliteLedger::open(&folder.path().join("ledger.db")).unwrap()
}

pub async fn over(server: &RedisServer) -> RedisLedger {
    over_url(&server.url()).await
}

/// Connects to a ledger in Redis, as a new process does.
pub async fn over_url(url: &str) -> RedisLedger {
    RedisLedger::connect(url, RedisSettings::default())
        .await
        .unwrap()
}
