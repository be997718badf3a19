//! Recovery of calls that were in flight when the process died: the latest record of each call determines how the next
//! process ends the call.
//!
//! From time to time, the settler passes what in-flight calls have cost so far to
//! [`Ledger::checkpoint`](crate::contract::Ledger::checkpoint). A ledger in a local file stores these checkpoints next
//! to its books ([`note`], [`forget`], [`left`]). For a remote ledger, the outbox stores them, together with each
//! call's intent and its settlement or release ([`CallNote`]). Both follow these rules:
//!
//! - **Only the latest record of a call counts.** It contains everything that the earlier records contain, so the
//!   earlier records may be deleted.
//! - **The record of an in-flight call is the settlement that the call would have if it ended now**
//!   (`End::GatewayStopped`). A record that arrives after the call has ended is ignored.
//! - **A settlement is written before its effect or together with it, and a record is deleted before the ledger's
//!   result is returned.** A ledger file deletes the record in the commit of the charge, or before it answers a
//!   release. The outbox writes a settlement before sending it to the ledger, and marks it as done after the ledger has
//!   acknowledged it. If the process dies between these steps, a settlement may be sent twice, but no charge is lost.
//! - **Records are read once, before the gateway serves calls**, and are kept until the ledger has acknowledged all of
//!   them. A call with only an intent (to hold money) is released. A call with a checkpoint is settled at the cost in
//!   the checkpoint. If the settlement or release of a call was recorded, it is sent again.
//! - **Sending a settlement twice is harmless.** The ledger identifies the call by its number and returns the first
//!   result.

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
    /// The settlement or release that the next process sends if this process dies now.
    pub(crate) ending: Ending,
    /// Whether the call has ended. If false, the call is in flight.
    pub(crate) ended: bool,
    /// The time of the record, in Unix milliseconds.
    pub(crate) at_ms: u64,
}

/// A call of an earlier process that the next process must settle or release.
#[cfg(feature = "outbox")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Unix time in milliseconds of the step from which `ending` was derived.
    pub at_ms: u64,
    /// The settlement or release to send. A call with only an intent is released; a call with a checkpoint is settled.
    pub ending: Ending,
    /// Whether the ledger has acknowledged the settlement or release. A call with `done` is listed only if the
    /// acknowledgement is so recent that the settlement or release may have to be sent again.
    pub done: bool,
}

#[cfg(feature = "outbox")]
impl CallNote {
    /// Returns the record that is written before the call's hold is requested from the ledger.
    pub(crate) fn intent(
        number: RequestNumber,
        account: AccountId,
        key: KeyId,
        at_ms: u64,
    ) -> Self {
        Self {
            ending: Ending::release(number, account, key),
            ended: false,
            at_ms,
        }
    }

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

    /// Returns the call that the next process must settle or release. `None` if the call's hold was refused, because
    /// then there is nothing to settle or release.
    pub(crate) fn pending(self, done: bool) -> Option<Pending> {
        (self.ended || !done).then_some(Pending {
            at_ms: self.at_ms,
            ending: self.ending,
            done,
        })
    }
}

/// The SQL of the table of checkpoints, for a file that also contains the books.
#[cfg(feature = "sqlite")]
pub(crate) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS running (
    number TEXT PRIMARY KEY NOT NULL,
    settlement TEXT NOT NULL
) STRICT, WITHOUT ROWID;
";

/// Stores checkpoints of in-flight calls.
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

#[cfg(feature = "sqlite")]
pub(crate) fn forget(conn: &Connection, number: RequestNumber) -> rusqlite::Result<()> {
    let sql = "DELETE FROM running WHERE number = ?1";
    conn.prepare_cached(sql)?
        .execute([number_text(number, &mut [0; Hyphenated::LENGTH])])?;
    Ok(())
}

/// Returns the checkpoints that an earlier process left, oldest call first.
#[cfg(feature = "sqlite")]
pub(crate) fn left(conn: &Connection) -> rusqlite::Result<Vec<Settlement>> {
    conn.prepare("SELECT settlement FROM running ORDER BY number")?
        .query_map([], |row| from_json(row, 0))?
        .collect()
}

/// Deletes all checkpoints, after their calls were settled.
#[cfg(feature = "sqlite")]
pub(crate) fn forget_all(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute("DELETE FROM running", []).map(drop)
}
