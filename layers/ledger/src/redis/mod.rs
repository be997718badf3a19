//! The ledger in Redis, which many gateways share.
//!
//! All Redis keys of an account share one hash tag. So each command of [`crate::book`] is one script in one slot, which
//! is atomic over the account, the API key and the hold:
//!
//! ```text
//! tg:{A}            HASH    the account: name b h s loss; for each key <key>.s .l .lm .ld .u .h .m .d .v (see below);
//!                           o:<number> → "<held>:<key>:<want>:<least>", and ":<number of its last change>" if any
//! tg:{A}:k          HASH    key → its record, JSON
//! tg:{A}:x          ZSET    number → when the hold expires, in ms of the server's clock
//! tg:{A}:e          HASH    number → an expired hold that is not settled yet
//! tg:{A}:ex         ZSET    number → when the hold expired
//! tg:{A}:d:<number> STRING  the first result of an ended hold, for ten minutes
//! tg:{A}:t          HASH    entry id → amount, for ever
//! tg:{A}:j          STREAM  the journal: calls and entries, written by the script that moves the money (see lines.rs)
//! tg:{A}:r:<number> STRING  the receipt's position in the journal
//! tg:{A}:n:<digits> HASH    calls that lease turns have charged and whose numbers begin with these digits. 9 digits:
//!                           "<first>:<last>:<position of the turn in the journal>" → the other digits of each number.
//!                           8 digits: the other digits of a number → the position of its turn
//! tg:{A}:ev         STREAM  the account's events, written by the script that moves the money
//! tg:{A}:l          HASH    a lease's number → "<last turn> <grants until, ms> <since, ms> <owner>"; it is a hold too
//! tg:id:<key>       STRING  the key's account
//! tg:k:<digest>     HASH    a copy of the key's record, looked up by digest; tg:{A} decides what the key may hold
//! tg:accounts       SET     all accounts
//! tg:day:<day>      SET     accounts that settled a call of that day; a call's receipt is searched for in them first
//! tg:ev:{feed}      STREAM  all events by their numbers
//! tg:ev:{feed}:from HASH    account → up to which of its events the feed contains them
//! tg:ev:{feed}:last         the last number
//! tg:ev:{feed}:told:<once>  names of events that were emitted once
//! tg:ev:{feed}:notes HASH   document's name → "<version>:<text>"
//! tg:ev:{feed}:lease:<name> the owner of a leader lease
//! tg:sums:{sums}    HASH    the roll-up and how far it reaches (see rollup.rs): derived, computed again if lost
//! tg:sys            HASH    the version of this layout; the data set's epoch; the tariff's version
//! tg:epoch:<n>      STRING  the epoch again, in many slots of a Cluster
//! tg:w:{...}        STRING  written for a second after an operator's write that waits for a replica
//! ```
//!
//! The hash of an account has these fields for each of its keys:
//!
//! ```text
//! s       whether the key is enabled; then its group and its limit of open calls, if any (see scripts/state.lua)
//! n       the number of its open calls, if that number is limited
//! l lm ld its ceilings in total, per month and per day
//! u       its spending so far
//! lo      its alert levels; the account has a field of this name for its balance
//! h       the sum of its open holds
//! m d     the month and the day of its last charge: "<index>:<spending before that month or day>"
//! v       the version of its record
//! ```
//!
//! Gateways of earlier versions may use the same server. A version without groups and limits of open calls cannot parse
//! the field `s` of a key that has a group or such a limit, so it grants such a key no holds. A version without the
//! fields `m`, `d`, `lm` and `ld` does not change them; its charges still count under the ceilings per month and per
//! day, because they are added to `u`.
//!
//! A group has the same fields as a key, under the name `g:<group>`, which no key can have. It has two more fields:
//! `name`, and `c`, the group's spending minus the spending of its present keys. The account's field `groups` lists the
//! ids of all its groups.
//!
//! All times are times of the server's clock. Every command is harmless to repeat: if a reply is lost, the server may
//! have executed the command, so the gateway sends it again.

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

use serde::{
    Deserialize,
    de::{IntoDeserializer, value::Error as WordError},
};

pub use self::{copy::RedisCopy, leases::LEFT_FOR, turn::LeaseView, watch::Watch};
use self::{
    days::Days, identity::KeyCache, keys::CeilingsSet, names::call_keys, scripts::Scripts,
    watch::DataSet,
};
use super::contract::{BookError, Booked, LedgerError, to_json};
use crate::{
    account::AccountId,
    conn::{Args, OPERATOR_TIMEOUT, RedisConn, RedisFault, RedisScript, Reply, Result},
    leases::Leases,
    money::MicroRub,
    number::RequestNumber,
};

pub use crate::{
    conn::{RedisSettings, RedisUrl},
    leases::{LeaseCounts, LeaseSettings},
};

/// The version of the layout of Redis keys, and of the scripts.
const SCHEMA: &str = "1";
/// Stored instead of the version while another ledger is copied to this server. Gateways do not open such a ledger.
const COPYING: &str = "copying";
/// How long a forbidden call cannot be charged, in milliseconds. This is one day longer than a process may report
/// settlements for an expired lease.
const FORBIDDEN_MS: u64 = crate::book::EXPIRED_MS + 24 * 3_600_000;
/// How long receipts are kept, in days.
pub const RECEIPT_DAYS: u64 = 400;
const RECEIPT_MS: u64 = RECEIPT_DAYS * 24 * 3_600_000;
/// The largest number of accounts that one sweep reads. The next sweep continues with the next accounts.
const SWEPT_MAX: usize = 1_000;
/// About how many account ids one command of a sweep fetches.
const SWEPT_AT_ONCE: &str = "250";
/// An empty list of arguments, for scripts without arguments.
const NO_ARGS: &[String] = &[];
/// How many accounts are read at the same time.
const ACCOUNTS_AT_ONCE: usize = 32;

/// A ledger in Redis or Valkey, version 6.2 or newer. Clones share the connections and the cache of keys.
#[derive(Clone)]
pub struct RedisLedger(Arc<Inner>);

struct Inner {
    conn: RedisConn,
    scripts: Scripts,
    keys: KeyCache,
    data: DataSet,
    days: Days,
    noticed: events::NoticedAccounts,
    /// The position in `tg:accounts` from which the next sweep continues.
    sweep: tokio::sync::Mutex<u64>,
    leases: OnceLock<Leases>,
}

impl RedisLedger {
    /// Connects to a ledger. If the server is empty, initialises it as a ledger of this version. The address is a
    /// [`RedisUrl`]: one server, one server found through Sentinels, or a Cluster. Fails after a few seconds if the
    /// server is unreachable.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the server is unreachable, too old, or contains a ledger of another version.
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

    /// Opens the ledger without checking the server's schema version.
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

    /// Returns the ledger's connection. Other components may share it.
    #[must_use]
    pub fn conn(&self) -> &RedisConn {
        &self.0.conn
    }

    /// Forbids a call of another process. The call's hold ends without a charge, and the call stays free even if that
    /// process sends its settlement much later.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the ledger is unreachable.
    pub async fn forbid(
        &self,
        number: RequestNumber,
        account: &AccountId,
    ) -> Result<(), LedgerError> {
        self.forbid_call(number, account, "").await.map(drop)
    }

    /// Forbids a call of another process as [`Self::forbid`] does, but only if the call has its own hold in the ledger.
    /// Returns whether it had one. A call without its own hold may have been paid from a lease of that process.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the ledger is unreachable.
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

    /// Runs a script for which a caller's request is waiting, with the short response timeout.
    async fn ask<T: Reply>(
        &self,
        script: &RedisScript,
        keys: &[String],
        args: impl Args,
    ) -> Result<T> {
        // Boxed, because leases answer most calls without a script. Otherwise each call would reserve 3 KB for this
        // future.
        let limit = self.0.conn.response_timeout();
        Box::pin(self.0.conn.eval(script, keys, args, limit)).await
    }

    /// Runs a script for an operator or a sweep, with a long timeout.
    async fn ask_patiently<T: Reply>(
        &self,
        script: &RedisScript,
        keys: &[String],
        args: impl Args,
    ) -> Result<T> {
        self.0.conn.eval(script, keys, args, OPERATOR_TIMEOUT).await
    }

    /// Runs a script that writes for an operator. If the server has replicas, returns only after a replica has
    /// acknowledged the write.
    async fn ask_durably<T: Reply>(
        &self,
        script: &RedisScript,
        keys: &[String],
        args: &[String],
    ) -> Result<T> {
        let conn = &self.0.conn;
        conn.eval_durably(script, keys, args, OPERATOR_TIMEOUT)
            .await
    }

    /// Sends a command for an operator or a sweep, with a long timeout.
    async fn command<T: Reply>(&self, words: &[&str]) -> Result<T> {
        self.0.conn.command(words, OPERATOR_TIMEOUT).await
    }

    /// Returns the next account ids of a sweep, and the cursor from which to continue; the cursor is 0 after the last
    /// account.
    async fn next_ids(&self, cursor: u64) -> Result<(u64, Vec<AccountId>)> {
        let cursor = cursor.to_string();
        let words = ["SSCAN", "tg:accounts", &cursor, "COUNT", SWEPT_AT_ONCE];
        let (next, ids): (u64, Vec<String>) = self.command(&words).await?;
        Ok((next, days::parsed(&ids)?))
    }

    /// Returns the hash fields whose names match the pattern. The same field may be returned twice.
    async fn scan_hash<T: Reply>(&self, key: &str, pattern: &str) -> Result<Vec<(String, T)>> {
        let (mut cursor, mut found) = (0_u64, Vec::new());
        loop {
            let at = cursor.to_string();
            let words = ["HSCAN", key, &at, "MATCH", pattern, "COUNT", "1000"];
            let (next, some): (u64, Vec<(String, T)>) = self.command(&words).await?;
            found.extend(some);
            cursor = next;
            if cursor == 0 {
                return Ok(found);
            }
        }
    }

    /// Returns the ids of all accounts. Fails if the server has lost the data set.
    async fn account_ids(&self) -> Result<Vec<AccountId>> {
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

fn new_enough(conn: &RedisConn) -> Result<()> {
    let (major, minor) = conn.version();
    if (major, minor) < (6, 2) {
        let text =
            format!("the server is Redis {major}.{minor}, but the ledger needs 6.2 or newer");
        return Err(RedisFault::Unexpected(text));
    }
    Ok(())
}

/// Returns the error for a server whose ledger has another version or is an incomplete copy.
fn other_schema(schema: &str) -> RedisFault {
    RedisFault::Unexpected(if schema == COPYING {
        "the server holds an incomplete copy of a ledger: run `tollgate ledger copy` again, or empty the server"
            .to_owned()
    } else {
        format!(
            "the server holds a ledger of version {schema:?}, but this program uses version {SCHEMA:?}"
        )
    })
}

fn booked_of(word: &str) -> Result<Booked> {
    let booked: Result<_, WordError> = Booked::deserialize(word.into_deserializer());
    booked.map_err(|_| RedisFault::Unexpected(format!("booked {word:?}")))
}

fn digits(amount: MicroRub) -> String {
    amount.micro().to_string()
}

/// Returns ceilings as arguments of a script: `=` leaves a ceiling unchanged, and an empty text removes it.
fn ceiling_words(ceilings: CeilingsSet) -> [String; 3] {
    ceilings.map(|set| match set {
        None => "=".to_owned(),
        Some(None) => String::new(),
        Some(Some(ceiling)) => digits(ceiling),
    })
}

fn retention_ms() -> String {
    RECEIPT_MS.to_string()
}

#[cfg(test)]
mod tests {
    use super::{test_server::Server, *};
    use crate::{
        contract::{Ledger, LedgerAdmin},
        testing::given::{acme, hold, key, micro, number, settlement},
    };

    #[test]
    fn every_value_of_the_booked_field_has_the_same_name_in_redis_as_in_receipts() {
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
    async fn call_whose_charge_was_forbidden_is_not_charged_even_a_day_later() {
        let (server, ledger) = Server::with_balance(1_000).await;
        for call in [1, 2] {
            ledger.reserve(&hold(call, "k1", 100)).await.unwrap();
        }
        // Another gateway may have released call 2 before. A release is recorded for a shorter time than a call that
        // `forbid` keeps free.
        let released = ledger.release(number(2), &acme(), &key("k1")).await;
        released.unwrap();
        let left = server.conn.script("", "return redis.call('PTTL', KEYS[1])");
        for call in [1, 2] {
            ledger.forbid(number(call), &acme()).await.unwrap();
            let keys = call_keys(&acme(), number(call));
            let conn = &server.conn;
            let left = conn.eval::<u64>(&left, &keys[4..], NO_ARGS, OPERATOR_TIMEOUT);
            let left = left.await.unwrap();
            assert!(left > FORBIDDEN_MS - 60_000, "{left}");
            let settled = ledger.settle(&settlement(call, "k1", 40)).await.unwrap();
            assert_eq!(settled.booked, Booked::Released);
        }
        let view = ledger.account(&acme()).await.unwrap();
        assert_eq!((view.balance_rub, view.held_rub), (micro(1_000), micro(0)));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn charge_is_forbidden_only_for_a_call_with_its_own_hold_in_the_ledger() {
        let (_server, ledger) = Server::with_balance(1_000).await;
        ledger.reserve(&hold(1, "k1", 100)).await.unwrap();
        assert!(ledger.forbid_held(number(1), &acme()).await.unwrap());
        // Call 2 has no hold of its own; it may have been paid from a lease.
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
