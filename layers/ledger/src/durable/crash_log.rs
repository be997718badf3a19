//! Recovery of calls that were running when the process died: the latest record of each call, and how the next process
//! ends the call.
//!
//! In rounds, the settler passes the costs so far of running calls to
//! [`Ledger::checkpoint`](crate::contract::Ledger::checkpoint). A ledger in a local file stores these checkpoints next
//! to its books ([`note`], [`forget`], [`left`]). For a remote ledger the outbox stores them, and also how each call
//! began and ended ([`CallNote`]). The file and the outbox both keep these rules:
//!
//! - **The latest record counts.** It contains all data of the call's earlier records, which may be deleted.
//! - **The record of a running call is how the call would end now** (`End::GatewayStopped`). A record that arrives
//!   after the call's end changes nothing.
//! - **An end is written before its effect or together with it, and a record is deleted before the ledger's result is
//!   returned.** A file with the books deletes the record in the commit of the charge, or before it answers a release.
//!   The outbox writes the end before it sends the end to the ledger, and marks it as done after the ledger has
//!   acknowledged it. So if the process dies in between, an end may be sent again, but no charge is lost.
//! - **Records are read once, before the gateway serves calls**, and are kept until the ledger has acknowledged them
//!   all. A call with only an intent (to hold money) is released. A call with a checkpoint is settled at the cost in
//!   the checkpoint. A call whose end was recorded is ended in the recorded way.
//! - **Sending an end twice is harmless.** The ledger identifies the call by its number, and returns the first result.

#[cfg(feature = "outbox")]
use std::sync::Arc;

#[cfg(feature = "sqlite")]
use rusqlite::{Connection, params};
#[cfg(feature = "sqlite")]
use uuid::fmt::Hyphenated;

#[cfg(feature = "sqlite")]
use super::file::{from_json, number_text, one, to_json};
#[cfg(feature = "outbox")]
use crate::{
    account::{AccountId, KeyId},
    settle::Ending,
};
use crate::{contract::Settlement, number::RequestNumber};

/// The latest record of a call.
#[cfg(feature = "outbox")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallNote {
    /// How the next process ends the call in the ledger if this process dies now.
    pub(crate) ending: Ending,
    /// Whether the call has ended in this way. If false, the call is running.
    pub(crate) ended: bool,
    /// The time of the record, in Unix milliseconds.
    pub(crate) at_ms: u64,
}

/// A call that an earlier process left unfinished.
#[cfg(feature = "outbox")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Unix time in milliseconds of the step that determines how the call ends.
    pub at_ms: u64,
    /// How to end the call in the ledger: a call with only an intent is released, a call with a checkpoint is settled.
    pub ending: Ending,
    /// Whether the ledger has acknowledged the end. Such a call is listed only if this was so recent that the end may
    /// be sent again.
    pub done: bool,
}

#[cfg(feature = "outbox")]
impl CallNote {
    /// The record written before a call's hold is requested from the ledger.
    pub(crate) fn intent(
        number: RequestNumber,
        account: AccountId,
        key: KeyId,
        at_ms: u64,
    ) -> Self {
        let ending = Ending::Release {
            number,
            account,
            key,
        };
        Self {
            ending,
            ended: false,
            at_ms,
        }
    }

    /// The record of a running call's cost so far.
    pub(crate) fn checkpoint(settlement: Arc<Settlement>, at_ms: u64) -> Self {
        Self {
            ending: Ending::Settle(settlement),
            ended: false,
            at_ms,
        }
    }

    pub(crate) fn end(ending: Ending, at_ms: u64) -> Self {
        Self {
            ending,
            ended: true,
            at_ms,
        }
    }

    /// The end that the next process must send for the call. `None` if the call's hold was refused: such a call has no
    /// end.
    pub(crate) fn pending(self, done: bool) -> Option<Pending> {
        let Self {
            ending,
            ended,
            at_ms,
        } = self;
        (ended || !done).then_some(Pending {
            at_ms,
            ending,
            done,
        })
    }
}

/// The table of checkpoints, in a file that also has the books.
#[cfg(feature = "sqlite")]
pub(crate) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS running (
    number TEXT PRIMARY KEY NOT NULL,
    settlement TEXT NOT NULL
) STRICT, WITHOUT ROWID;
";

/// Stores checkpoints of running calls.
#[cfg(feature = "sqlite")]
pub(crate) fn note(conn: &Connection, running: &[Settlement]) -> rusqlite::Result<()> {
    let sql = "INSERT INTO running (number, settlement) VALUES (?1, ?2)
               ON CONFLICT (number) DO UPDATE SET settlement = excluded.settlement";
    let mut insert = conn.prepare_cached(sql)?;
    for call in running {
        let mut number = [0; Hyphenated::LENGTH];
        let row = params![number_text(call.number, &mut number), to_json(call)?];
        one(insert.execute(row)?)?;
    }
    Ok(())
}

/// Deletes the checkpoint of a call that has ended.
#[cfg(feature = "sqlite")]
pub(crate) fn forget(conn: &Connection, number: RequestNumber) -> rusqlite::Result<()> {
    let sql = "DELETE FROM running WHERE number = ?1";
    conn.prepare_cached(sql)?
        .execute([number_text(number, &mut [0; Hyphenated::LENGTH])])?;
    Ok(())
}

/// Returns the checkpoints that an earlier process left, in the order in which the calls began.
#[cfg(feature = "sqlite")]
pub(crate) fn left(conn: &Connection) -> rusqlite::Result<Vec<Settlement>> {
    conn.prepare("SELECT settlement FROM running ORDER BY number")?
        .query_map([], |row| from_json(row, 0))?
        .collect()
}

/// Deletes all checkpoints, once their calls are settled.
#[cfg(feature = "sqlite")]
pub(crate) fn forget_all(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute("DELETE FROM running", []).map(drop)
}
