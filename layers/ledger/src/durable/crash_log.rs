//! What ran when the process died: the newest note of each call, and what the next process makes of it.
//!
//! The settler hands what running calls have cost to [`Ledger::checkpoint`](crate::contract::Ledger::checkpoint), round
//! by round. A ledger in a file of its own keeps that beside its books ([`note`], [`forget`], [`left`]); for a ledger
//! elsewhere the outbox does, with how each call began and ended ([`CallNote`]). Both keep to this:
//!
//! - **The newest note counts.** It says all that is known of the call; what came before it need not be kept.
//! - **A note of a running call is its end, were it now** (`End::GatewayStopped`). One that comes behind the end
//!   changes nothing.
//! - **An end is written before or with what it does, and a note is gone no later than the ledger's answer is given.**
//!   A file that has the books too forgets the note in the commit of the charge, or before a release is answered; the
//!   outbox writes the end before the ledger is told, and that it is done after the ledger has answered. So a death in
//!   between leaves an end to be told again, never a charge that nobody knows of.
//! - **It is read back once, before anything is served**, and stays until the ledger has all of it. A call of which
//!   there is but an intent is released; one that was noted is settled so; one that has ended is told as it ended.
//! - **Telling twice is harmless.** The ledger knows a call by its number, and answers a repeat with the first result.

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

/// The newest that is known of a call.
#[cfg(feature = "outbox")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallNote {
    /// What the ledger is to be told, should the process die now.
    pub(crate) ending: Ending,
    /// The call has ended so. If not, it ran.
    pub(crate) ended: bool,
    /// Unix time in milliseconds.
    pub(crate) at_ms: u64,
}

/// A call that an earlier process left.
#[cfg(feature = "outbox")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Unix time in milliseconds of the step that says how it ends.
    pub at_ms: u64,
    /// What the ledger is to be told: a call of which there is but an intent is released, one that was noted
    /// while it ran is settled so.
    pub ending: Ending,
    /// The ledger acknowledged it, so lately that it may be told again.
    pub done: bool,
}

#[cfg(feature = "outbox")]
impl CallNote {
    /// The ledger is being asked to hold money for it.
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

    /// It has cost so much by now.
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

    /// What the next process has to do for it. Nothing for a hold that was refused: no call has ended, and none runs.
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

/// Where a file that has the books keeps its notes.
#[cfg(feature = "sqlite")]
pub(crate) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS running (
    number TEXT PRIMARY KEY NOT NULL,
    settlement TEXT NOT NULL
) STRICT, WITHOUT ROWID;
";

/// Notes what running calls have cost.
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

/// Forgets the note of a call that has ended.
#[cfg(feature = "sqlite")]
pub(crate) fn forget(conn: &Connection, number: RequestNumber) -> rusqlite::Result<()> {
    let sql = "DELETE FROM running WHERE number = ?1";
    conn.prepare_cached(sql)?
        .execute([number_text(number, &mut [0; Hyphenated::LENGTH])])?;
    Ok(())
}

/// What an earlier process left, in the order in which its calls began.
#[cfg(feature = "sqlite")]
pub(crate) fn left(conn: &Connection) -> rusqlite::Result<Vec<Settlement>> {
    conn.prepare("SELECT settlement FROM running ORDER BY number")?
        .query_map([], |row| from_json(row, 0))?
        .collect()
}

/// Forgets all of it, once it is charged.
#[cfg(feature = "sqlite")]
pub(crate) fn forget_all(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute("DELETE FROM running", []).map(drop)
}
