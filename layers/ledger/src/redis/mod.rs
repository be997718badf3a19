//! The ledger in Redis: one book for many gateways.
//!
//! All keys of an account share one hash tag, so that each command of [`crate::book`] is one script in one slot, atomic
//! over the account, its key and the hold:
//!
//! ```text
//! tg:{A}            HASH    name b h s loss; of each key <key>.s .l .lm .ld .u .h .m .d .v;
//!                           o:<number> → "<held>:<key>:<want>:<least>", and ":<number of its last change>" if any
//! tg:{A}:k          HASH    key → its record, JSON
//! tg:{A}:x          ZSET    number → when the hold expires, in ms of the server's clock
//! tg:{A}:e          HASH    number → an expired hold, not yet settled; tg:{A}:ex ZSET when it expired
//! tg:{A}:d:<number> STRING  the first result of an ended hold, for ten minutes
//! tg:{A}:t          HASH    entry id → amount, for ever
//! tg:{A}:j          STREAM  the journal: calls and entries, written by the script that moves the money (see lines.rs)
//! tg:{A}:r:<number> STRING  the receipt's position in the journal
//! tg:{A}:n:<digits> HASH    calls that turns of leases have charged and whose numbers begin with these digits: for nine
//!                           digits, "<first>:<last>:<position of the turn in the journal>" → the other digits of each number;
//!                           for eight, the other digits of a number → the position of its turn
//! tg:{A}:ev         STREAM  the account's events, written by the script that moves the money
//! tg:{A}:l          HASH    a lease's number → "<last turn> <grants until, ms> <since, ms> <owner>"; its amount is a hold
//! tg:id:<key>       STRING  the key's account
//! tg:k:<digest>     HASH    a copy of the key's record, found by digest; tg:{A} decides what the key may hold
//! tg:accounts       SET     all accounts
//! tg:day:<day>      SET     accounts that settled a call of that day, where its receipt is looked for first
//! tg:ev:{feed}      STREAM  all events by their numbers; :from HASH how far each account's are included; :last the last
//!                           number; :told:<once> names of events that were emitted once; :notes HASH name →
//!                           "<version>:<text>"; :lease:<name>
//! tg:sums:{sums}    HASH    the roll-up and how far it reaches (see rollup.rs): derived, computed again if lost
//! tg:sys            HASH    the version of this layout; the data set's epoch; the tariff's version
//! tg:epoch:<n>      STRING  the epoch again, in many slots of a Cluster
//! tg:w:{...}        STRING  written for a second after an operator's write that waits for a replica
//! ```
//!
//! A key has these fields. `s`: whether it is enabled, followed by its group and its limit of open calls, if it has any
//! (see scripts/state.lua); a gateway of a version without groups and such limits grants such a key no holds. `n`: the
//! number of its open calls, if that is limited. `l`, `lm`, `ld`: its ceilings in total, per month and per day. `u`:
//! what it has used. `lo`: its alert levels; the account has a field of that name for its balance. `h`: the sum of its
//! open holds. `m` and `d`: the month and the day of its last charge, `"<index>:<used before it>"`. `v`: the version of
//! its record. `m`, `d`, `lm` and `ld` were added later: an older gateway does not change these fields, and its charges
//! still count in them, since they count in `u`.
//!
//! A group has the fields of a key's money under the name `g:<group>`, which no key can have. It also has `name`, and
//! `c`: its spending minus that of its present keys. `groups` lists the ids of all groups.
//!
//! All times are the server's. If the answer to a command was lost, the server may have executed the command, so every
//! command can be sent again without harm.

mod audit;
mod books;
mod calls;
mod check;
mod copy;
mod counted;
mod days;
mod events;
mod groups;
mod identity;
mod journal;
mod keys;
mod leases;
mod lines;
pub(crate) mod names;
mod rollup;
mod scripts;
mod state;
#[cfg(test)]
pub(crate) mod test_server;
mod turn;
mod watch;

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

pub use self::{copy::RedisCopy, leases::LEFT_FOR, turn::LeaseView, watch::Watch};
use self::{days::Days, identity::KeyCache, names::call_keys, scripts::Scripts, watch::DataSet};
use super::contract::{BookError, Booked, LedgerError};
use crate::{
    account::AccountId,
    conn::{Args, OPERATOR_TIMEOUT, RedisConn, RedisFault, RedisScript, Reply},
    leases::Leases,
    money::MicroRub,
    number::RequestNumber,
};

pub use crate::{
    conn::{RedisSettings, RedisUrl},
    leases::{LeaseCounts, LeaseSettings},
};

/// The version of the layout of Redis keys and of the scripts.
const SCHEMA: &str = "1";
/// Stored in place of the version while another ledger is copied to this server. No gateway opens such a ledger.
const COPYING: &str = "copying";
/// The time for which a forbidden call cannot be charged, in milliseconds: one day longer than a process may report
/// ends of an expired lease.
const FORBIDDEN_MS: u64 = crate::book::EXPIRED_MS + 24 * 3_600_000;
/// The time for which receipts are kept, in days.
pub const RECEIPT_DAYS: u64 = 400;
const RECEIPT_MS: u64 = RECEIPT_DAYS * 24 * 3_600_000;
/// The largest number of accounts that one sweep reads; the next sweep continues with the next accounts.
const SWEPT_MAX: usize = 1_000;
/// The approximate number of account ids that one command of a sweep fetches.
const SWEPT_AT_ONCE: &str = "250";
/// The number of accounts that are read at the same time.
const ACCOUNTS_AT_ONCE: usize = 32;

/// A ledger in Redis or Valkey, 6.2 or newer. Clones share connections and cache.
#[derive(Clone)]
pub struct RedisLedger(Arc<Inner>);

struct Inner {
    conn: RedisConn,
    scripts: Scripts,
    keys: KeyCache,
    data: DataSet,
    days: Days,
    noticed: events::NoticedAccounts,
    /// The position in `tg:accounts` at which the next sweep continues.
    sweep: tokio::sync::Mutex<u64>,
    leases: OnceLock<Leases>,
}

impl RedisLedger {
    /// Connects, and initialises an empty server as a ledger of this version. The address is a [`RedisUrl`]: one
    /// server, one behind Sentinels, or a Cluster. Gives up after a few seconds if the server is out of reach.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the server is out of reach, too old, or contains a ledger of another version.
    pub async fn connect(url: &str, settings: RedisSettings) -> Result<Self, LedgerError> {
        Self::over(RedisConn::connect(url, settings).await?).await
    }

    /// Opens a ledger over an existing connection.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] as from [`RedisLedger::connect`].
    pub async fn over(conn: RedisConn) -> Result<Self, LedgerError> {
        new_enough(&conn)?;
        let set: i64 = conn
            .command(&["HSETNX", "tg:sys", "schema", SCHEMA], OPERATOR_TIMEOUT)
            .await?;
        if set == 0 {
            let schema: Option<String> = conn
                .command(&["HGET", "tg:sys", "schema"], OPERATOR_TIMEOUT)
                .await?;
            if schema.as_deref() != Some(SCHEMA) {
                return Err(other_schema(&schema.unwrap_or_default()).into());
            }
        }
        Self::begin(conn).await
    }

    /// Opens the ledger without checking its schema.
    async fn begin(conn: RedisConn) -> Result<Self, LedgerError> {
        let scripts = Scripts::new(&conn);
        let data = DataSet::begin(&conn).await?;
        Ok(Self(Arc::new(Inner {
            conn,
            scripts,
            keys: identity::cache(),
            data,
            days: Days::new(),
            noticed: events::NoticedAccounts::default(),
            sweep: tokio::sync::Mutex::new(0),
            leases: OnceLock::new(),
        })))
    }

    /// Returns the ledger's connection, which other components may share.
    #[must_use]
    pub fn conn(&self) -> &RedisConn {
        &self.0.conn
    }

    /// Forbids a call of another process: ends it without a charge, so that it stays free even if that process reports
    /// its end much later.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the ledger is out of reach.
    pub async fn forbid(
        &self,
        number: RequestNumber,
        account: &AccountId,
    ) -> Result<(), LedgerError> {
        self.forbid_call(number, account, "").await.map(drop)
    }

    /// Forbids a call of another process, as [`Self::forbid`] does, but only if the call has a hold of its own. Returns
    /// whether it had such a hold. If it had none, a lease of that process may have paid for the call.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the ledger is out of reach.
    pub async fn forbid_held(
        &self,
        number: RequestNumber,
        account: &AccountId,
    ) -> Result<bool, LedgerError> {
        self.forbid_call(number, account, "held").await
    }

    async fn forbid_call(
        &self,
        number: RequestNumber,
        account: &AccountId,
        only: &str,
    ) -> Result<bool, LedgerError> {
        self.0.data.present()?;
        let keys = call_keys(account, number);
        let args = [
            number.to_string(),
            FORBIDDEN_MS.to_string(),
            only.to_owned(),
        ];
        let release = &self.0.scripts.release;
        Ok(self.ask_durably(release, &keys, &args[..]).await?)
    }

    /// Runs a script while a caller's request waits for it.
    async fn ask<T: Reply>(
        &self,
        script: &RedisScript,
        keys: &[String],
        args: impl Args,
    ) -> Result<T, RedisFault> {
        // Boxed, because a lease answers most calls without a script: otherwise each call would reserve the 3 KB of
        // this future.
        let limit = self.0.conn.response_timeout();
        Box::pin(self.0.conn.eval(script, keys, args, limit)).await
    }

    /// Runs a script for an operator or a sweep.
    async fn ask_patiently<T: Reply>(
        &self,
        script: &RedisScript,
        keys: &[String],
        args: &[String],
    ) -> Result<T, RedisFault> {
        self.0.conn.eval(script, keys, args, OPERATOR_TIMEOUT).await
    }

    /// Runs a script that writes for an operator. Returns after a replica has acknowledged the write, if there are
    /// replicas.
    async fn ask_durably<T: Reply>(
        &self,
        script: &RedisScript,
        keys: &[String],
        args: &[String],
    ) -> Result<T, RedisFault> {
        let conn = &self.0.conn;
        conn.eval_durably(script, keys, args, OPERATOR_TIMEOUT)
            .await
    }

    /// Returns the ids of all accounts. Fails if the data set is gone.
    async fn account_ids(&self) -> Result<Vec<AccountId>, RedisFault> {
        self.missing_account().await?;
        self.ids_in("tg:accounts").await
    }
}

impl fmt::Debug for RedisLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLedger")
            .field("conn", &self.0.conn)
            .finish_non_exhaustive()
    }
}

impl From<RedisFault> for LedgerError {
    fn from(fault: RedisFault) -> Self {
        Self::Unavailable(fault.into())
    }
}

impl From<RedisFault> for BookError {
    fn from(fault: RedisFault) -> Self {
        Self::Unavailable(fault.into())
    }
}

fn new_enough(conn: &RedisConn) -> Result<(), RedisFault> {
    let (major, minor) = conn.version();
    if (major, minor) < (6, 2) {
        let text = format!("the server is Redis {major}.{minor}; 6.2 or newer is needed");
        return Err(RedisFault::Unexpected(text));
    }
    Ok(())
}

/// The error of a server whose ledger has another version, or is an incomplete copy.
fn other_schema(schema: &str) -> RedisFault {
    RedisFault::Unexpected(if schema == COPYING {
        "the server holds an incomplete copy of a ledger: run `tollgate ledger copy` again, or empty the server"
            .to_owned()
    } else {
        format!("the server holds a ledger of version {schema:?}; this program writes {SCHEMA:?}")
    })
}

fn booked_of(word: &str) -> Result<Booked, RedisFault> {
    Ok(match word {
        "held" => Booked::Held,
        "late" => Booked::Late,
        "forced" => Booked::Forced,
        "stale" => Booked::Stale,
        "no_account" => Booked::NoAccount,
        "released" => Booked::Released,
        word => return Err(RedisFault::Unexpected(format!("booked {word:?}"))),
    })
}

fn digits(amount: MicroRub) -> String {
    amount.micro().to_string()
}

fn retention_ms() -> String {
    RECEIPT_MS.to_string()
}

#[cfg(test)]
mod tests {
    use super::{test_server::Server, *};
    use crate::{
        ceiling::Ceilings,
        contract::{Ledger, LedgerAdmin},
        testing::given::{acme, hold, micro, number, record, settlement, topup},
    };

    #[test]
    fn booking_result_has_the_same_name_in_redis_as_on_receipts() {
        for booked in [
            Booked::Held,
            Booked::Late,
            Booked::Forced,
            Booked::Stale,
            Booked::NoAccount,
            Booked::Released,
        ] {
            let word = serde_json::to_value(booked).unwrap();
            assert_eq!(booked_of(word.as_str().unwrap()).unwrap(), booked);
        }
        assert!(booked_of("lent").is_err());
    }

    #[tokio::test]
    async fn forbidden_call_is_not_charged_a_day_later() {
        let server = Server::start().await;
        let ledger = server.ledger().await;
        ledger.create_account(&acme(), "Acme").await.unwrap();
        ledger.enter(&acme(), &topup("t1", 1_000)).await.unwrap();
        let key = record(&acme(), "k1", 1);
        ledger.create_key(&key, Ceilings::NONE).await.unwrap();
        for call in [1, 2] {
            ledger.reserve(&hold(call, "k1", 100)).await.unwrap();
        }
        // Another gateway may have released call 2 before, which leaves a record with the usual shorter lifetime.
        let released = ledger.release(number(2), &acme(), &key.id).await;
        released.unwrap();
        let left = server.conn.script("", "return redis.call('PTTL', KEYS[1])");
        for call in [1, 2] {
            ledger.forbid(number(call), &acme()).await.unwrap();
            let keys = call_keys(&acme(), number(call));
            let none: [String; 0] = [];
            let left: u64 = server
                .conn
                .eval(&left, &keys[4..], &none[..], OPERATOR_TIMEOUT)
                .await
                .unwrap();
            assert!(left > FORBIDDEN_MS - 60_000, "{left}");
            let settled = ledger.settle(&settlement(call, "k1", 40)).await.unwrap();
            assert_eq!(settled.booked, Booked::Released);
        }
        let view = ledger.account(&acme()).await.unwrap();
        assert_eq!((view.balance_rub, view.held_rub), (micro(1_000), micro(0)));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn call_is_forbidden_only_if_it_has_a_hold_of_its_own() {
        let server = Server::start().await;
        let ledger = server.ledger().await;
        ledger.create_account(&acme(), "Acme").await.unwrap();
        ledger.enter(&acme(), &topup("t1", 1_000)).await.unwrap();
        let key = record(&acme(), "k1", 1);
        ledger.create_key(&key, Ceilings::NONE).await.unwrap();
        ledger.reserve(&hold(1, "k1", 100)).await.unwrap();
        assert!(ledger.forbid_held(number(1), &acme()).await.unwrap());
        // The hold has ended, and a lease may pay for call 2.
        for call in [1, 2] {
            assert!(!ledger.forbid_held(number(call), &acme()).await.unwrap());
        }
        let settled = ledger.settle(&settlement(1, "k1", 40)).await.unwrap();
        assert_eq!(settled.booked, Booked::Released);
        ledger.reserve(&hold(2, "k1", 100)).await.unwrap();
        let settled = ledger.settle(&settlement(2, "k1", 40)).await.unwrap();
        assert_eq!(settled.booked, Booked::Held);
    }
}
