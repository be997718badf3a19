//! Checks that the data set is still the one with which the gateway started, and detects replaced servers.
//!
//! The hash `tg:sys` contains a random `epoch`, which is written once. In a Cluster, `tg:sys` is on one server only. So
//! further Redis keys with the same epoch (marks) are distributed over the slots. A server that has lost its data lacks
//! its marks.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::future::{join, join_all};
use uuid::Uuid;

use super::RedisLedger;
use crate::{
    conn::{OPERATOR_TIMEOUT, Primary, RedisConn, RedisFault, Result, ServerInfo},
    contract::LedgerError,
};

/// The number of marks in a Cluster. With six primaries, each primary has some of them.
const MARKS: usize = 64;

/// The result of a check of the data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// The servers are the same processes with the same data as before.
    Same,
    /// A server was restarted or replaced, so its newest data may be missing. This result is returned until
    /// [`RedisLedger::known`] is called.
    Changed,
    /// A server is empty or has another data set. The ledger serves no call until the original data set is back.
    Lost,
}

/// The data set as it was at the start of the gateway.
pub(super) struct DataSet {
    epoch: String,
    /// Whether this gateway has created the data set at its start.
    is_new: bool,
    /// The marks that existed at the start of the gateway.
    marks: Vec<String>,
    lost: AtomicBool,
    servers: Mutex<Servers>,
}

/// The reply of each primary to INFO, by the primary's address.
type ServerReports = Vec<(Arc<str>, Result<Option<ServerInfo>>)>;
/// The run id and the replication id of each server, by address.
type Identities = BTreeMap<Arc<str>, String>;

#[derive(Default)]
struct Servers {
    seen: Identities,
    known: Identities,
    /// Whether the data set was lost and is back.
    returned: bool,
}

impl RedisLedger {
    /// Finds the current primaries, and checks that they have the data set with which this gateway started. Primaries
    /// that do not answer are skipped, unless none answers.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the ledger is unreachable.
    pub async fn watch(&self) -> Result<Watch, LedgerError> {
        let conn = &self.0.conn;
        let (is_intact, server_reports) =
            join(self.0.data.is_intact(conn), server_reports(conn)).await;
        if !is_intact? {
            self.0.data.lost.store(true, Ordering::Relaxed);
            return Ok(Watch::Lost);
        }
        // A server that refuses writes cannot serve a ledger: it is out of memory, its disk is full, or no replica is
        // connected. In a Cluster, the answer of one server proves nothing about the others.
        if !conn.is_cluster() {
            let words = ["SET", "tg:w", "1", "PX", "1000"];
            let _: String = conn.command(&words, OPERATOR_TIMEOUT).await?;
        }
        Ok(self.0.data.note(server_reports))
    }

    /// Returns the name of the data set with which this gateway started.
    #[must_use]
    pub fn data_set(&self) -> &str {
        &self.0.data.epoch
    }

    /// Returns whether the servers contained no ledger before this gateway: they are new, or were emptied.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.0.data.is_new
    }

    /// Confirms that the caller has handled [`Watch::Changed`], for example by a replay of acknowledged settlements.
    pub fn known(&self) {
        let mut servers = self.0.data.servers();
        servers.known = servers.seen.clone();
        servers.returned = false;
    }

    /// Checks the data set because an account is missing that should exist.
    pub(super) async fn missing_account(&self) -> Result<()> {
        let data = &self.0.data;
        if !Box::pin(data.is_intact(&self.0.conn)).await? {
            data.lost.store(true, Ordering::Relaxed);
        }
        data.present()
    }

    /// Checks the data set because a caller's key was not found. This happens often, since clients send invented keys.
    pub(super) async fn missing_key(&self) -> Result<()> {
        let data = &self.0.data;
        if let Ok(epoch) = read_epoch(&self.0.conn).await
            && epoch.as_deref() != Some(data.epoch.as_str())
        {
            data.lost.store(true, Ordering::Relaxed);
        }
        data.present()
    }
}

impl DataSet {
    /// Reads the epoch of the data set. Writes a new epoch first if the server has none.
    pub(super) async fn begin(conn: &RedisConn) -> Result<Self> {
        let fresh = Uuid::now_v7().to_string();
        let words = ["HSETNX", "tg:sys", "epoch", &fresh];
        match conn.command_durably::<i64>(&words, OPERATOR_TIMEOUT).await {
            // The gateway starts even if no replica acknowledges the epoch in time.
            Ok(_) | Err(RedisFault::NotReplicated { .. }) => {}
            Err(fault) => return Err(fault),
        }
        let epoch = read_epoch(conn).await?.ok_or(RedisFault::OtherData)?;
        let marks = if conn.is_cluster() {
            let words = ["HGET", "tg:sys", "marked"];
            let complete: Option<String> = conn.command(&words, OPERATOR_TIMEOUT).await?;
            let marks = marked(conn, &epoch, complete.is_some()).await?;
            if complete.is_none() && marks.len() == MARKS {
                let words = ["HSET", "tg:sys", "marked", "1"];
                let _: i64 = conn.command(&words, OPERATOR_TIMEOUT).await?;
            }
            marks
        } else {
            Vec::new()
        };
        let server_reports = server_reports(conn).await;
        let data = Self {
            is_new: epoch == fresh,
            epoch,
            marks,
            lost: AtomicBool::new(false),
            servers: Mutex::default(),
        };
        data.note(server_reports);
        {
            let mut servers = data.servers();
            servers.known = servers.seen.clone();
        }
        Ok(data)
    }

    /// Fails if the last check found that the data set is lost.
    pub(super) fn present(&self) -> Result<()> {
        if self.lost.load(Ordering::Relaxed) {
            Err(RedisFault::OtherData)
        } else {
            Ok(())
        }
    }

    /// Returns whether all servers that answer have the data set with which this gateway started.
    async fn is_intact(&self, conn: &RedisConn) -> Result<bool> {
        let marks = self.marks.iter().map(|mark| read_mark(conn, mark));
        let (epoch, marks) = join(read_epoch(conn), join_all(marks)).await;
        let mut silent = None;
        let mut somebody_answered = false;
        for answer in marks.into_iter().chain([epoch]) {
            match answer {
                Ok(found) if found.as_deref() != Some(self.epoch.as_str()) => return Ok(false),
                Ok(_) => somebody_answered = true,
                Err(fault) => silent = Some(fault),
            }
        }
        match silent {
            Some(fault) if !somebody_answered => Err(fault),
            _ => Ok(true),
        }
    }

    /// Records the identities of the servers that have answered, and compares them with the previous ones.
    fn note(&self, server_reports: ServerReports) -> Watch {
        let mut servers = self.servers();
        servers.returned |= self.lost.swap(false, Ordering::Relaxed);
        let addresses: Vec<Arc<str>> = server_reports
            .iter()
            .map(|(address, _)| Arc::clone(address))
            .collect();
        servers
            .seen
            .retain(|address, _| addresses.contains(address));
        for (address, answer) in server_reports {
            if let Ok(info) = answer {
                // If the hosting provider forbids INFO, only the server's address identifies it.
                let identity = info.map_or_else(String::new, |info| info.identity);
                servers.seen.insert(address, identity);
            }
        }
        let mut seen = servers.seen.iter();
        let strange = seen.any(|(address, identity)| servers.known.get(address) != Some(identity));
        if servers.returned || strange {
            Watch::Changed
        } else {
            Watch::Same
        }
    }

    fn servers(&self) -> std::sync::MutexGuard<'_, Servers> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn read_epoch(conn: &RedisConn) -> Result<Option<String>> {
    conn.command(&["HGET", "tg:sys", "epoch"], conn.response_timeout())
        .await
}

async fn read_mark(conn: &RedisConn, mark: &str) -> Result<Option<String>> {
    conn.command(&["GET", mark], conn.response_timeout()).await
}

async fn server_reports(conn: &RedisConn) -> ServerReports {
    let primaries = conn.look().await;
    let limit = conn.response_timeout();
    let info = |primary| async move { (Primary::address(primary), primary.info(limit).await) };
    join_all(primaries.iter().map(info)).await
}

/// Writes the missing marks of a new data set, and returns the marks that exist. A server that does not answer counts
/// as a server without marks.
///
/// Marks are written only once per data set. If missing marks were written again later, a server that has lost its data
/// would appear to have all of it.
async fn marked(conn: &RedisConn, epoch: &str, complete: bool) -> Result<Vec<String>> {
    let mut there = Vec::with_capacity(MARKS);
    let marks = (0..MARKS).map(|index| mark(conn, epoch, index, complete));
    for (mark, found) in join_all(marks).await.into_iter().flatten() {
        if found.as_deref() != Some(epoch) {
            // A server of the Cluster has another data set.
            return Err(RedisFault::OtherData);
        }
        there.push(mark);
    }
    Ok(there)
}

/// Returns a mark and its content. Writes the mark first, unless all marks of the data set were written before
/// (`complete`).
async fn mark(
    conn: &RedisConn,
    epoch: &str,
    index: usize,
    complete: bool,
) -> Option<(String, Option<String>)> {
    let mark = format!("tg:epoch:{index}");
    if !complete {
        let words = ["SET", mark.as_str(), epoch, "NX"];
        let _: Option<String> = conn.command(&words, conn.response_timeout()).await.ok()?;
    }
    let found = read_mark(conn, &mark).await.ok()?;
    Some((mark, found))
}
