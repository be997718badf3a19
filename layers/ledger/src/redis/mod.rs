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
mod standing;
#[cfg(test)]
pub(crate) mod test_server;
mod turn;
mod watch;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt, iter,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::future::{join, join_all};
use uuid::Uuid;

pub use self::{copy::RedisCopy, leases::LEFT_FOR, turn::LeaseView, watch::Watch};
use self::{
    days::Days,
    identity::KeyCache,
    names::{
        account_key, call_keys, hold_keys, place_field, places_key, receipt_key, text_of, turns_key,
    },
    scripts::Scripts,
    watch::DataSet,
};
use super::contract::{
    Adjusted, Adjustment, BookError, Booked, Hold, Ledger, LedgerError, Refusal, Reserved, Settled,
    Settlement,
};
use crate::{
    account::{AccountId, KeyId},
    ceiling::Ceiling,
    conn::{Args, Lane, OPERATOR_TIMEOUT, RedisConn, RedisFault, RedisScript, Reply, Value, read},
    leases::{Leases, Turn, TurnEnd, lease::ENDS_MAX, ttl_ms},
    money::MicroRub,
    number::RequestNumber,
    settle::cause_of,
};

pub use crate::{
    conn::{RedisSettings, RedisUrl},
    leases::{LeaseCounts, LeaseSettings},
};

/// The version of the layout of keys and of the scripts.
const SCHEMA: &str = "1";
/// Stored in place of the version while another ledger is copied to this server. No gateway opens such a ledger.
const COPYING: &str = "copying";
/// The time for which a forbidden call cannot be charged, in milliseconds: one day longer than a process may report
/// ends of an expired lease.
const FORBIDDEN_MS: u64 = crate::book::EXPIRED_MS + 24 * 3_600_000;
/// The time for which receipts are kept, in days.
pub const RECEIPT_DAYS: u64 = 400;
const RECEIPT_MS: u64 = RECEIPT_DAYS * 24 * 3_600_000;
/// The usual largest size of a receipt's item in bytes, to allocate a buffer once.
const ITEM_SIZE: usize = 512;
/// The largest number of expired holds that a single EXPIRE ends, so that its script is short.
const EXPIRE_MAX: usize = 100;
/// The largest number of accounts that one sweep reads; the next sweep continues with the next accounts.
const SWEPT_MAX: usize = 1_000;
/// The approximate number of accounts that one command of a sweep fetches.
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
    told: events::Told,
    /// The position in `tg:accounts` at which the next sweep continues.
    sweep: tokio::sync::Mutex<u64>,
    leases: OnceLock<Leases>,
}

impl RedisLedger {
    /// Connects, and initialises an empty server as a ledger of this version. The address is a [`RedisUrl`]: one
    /// server, one behind Sentinels, or a Cluster. Gives up after a few seconds if the server is out of reach.
    ///
    /// # Errors
    /// The server is out of reach, too old, or contains a ledger of another version.
    pub async fn connect(url: &str, settings: RedisSettings) -> Result<Self, LedgerError> {
        Self::over(RedisConn::connect(url, settings).await?).await
    }

    /// Creates a ledger over an existing connection.
    ///
    /// # Errors
    /// The errors of [`RedisLedger::connect`].
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
            told: events::Told::default(),
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
    /// The ledger is out of reach.
    pub async fn forbid(
        &self,
        number: RequestNumber,
        account: &AccountId,
    ) -> Result<(), LedgerError> {
        self.forbid_call(number, account, "").await.map(drop)
    }

    /// Forbids a call of another process, as [`Self::forbid`] does, but only if it has a hold of its own. Returns whether
    /// it had one. Without one, a lease of that process may have paid for it.
    ///
    /// # Errors
    /// The ledger is out of reach.
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
        // Boxed: a lease answers most calls without a script. Otherwise each call would reserve the 3 KB of this
        // future.
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

    async fn expire_in(&self, account: &AccountId) -> Result<usize, RedisFault> {
        let keys = hold_keys(account);
        self.ask_patiently(&self.0.scripts.expire, &keys, &[EXPIRE_MAX.to_string()])
            .await
    }
}

impl RedisLedger {
    /// Makes a hold in the ledger itself, without a lease.
    async fn reserve_in_ledger(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        let keys = call_keys(&hold.account, hold.number);
        let mut buffer = Uuid::encode_buffer();
        let args = (
            text_of(hold.number, &mut buffer),
            &*hold.key,
            hold.want.micro(),
            hold.least.micro(),
            ttl_ms(hold.ttl),
        );
        let answer: Value = self.ask(&self.0.scripts.reserve, &keys, args).await?;
        if let Value::Array(amounts) = &answer
            && let [Value::Int(held), Value::Int(free)] = amounts.as_slice()
        {
            return Ok(Reserved {
                held: MicroRub::new(*held),
                free: MicroRub::new(*free),
            });
        }
        let (word, first, second, ceiling, index): Refused = read(answer)?;
        if word == "unknown" {
            self.missing_account().await?;
        }
        Err(refused_hold(&word, first, second, &ceiling, index))
    }

    /// Changes the amount of a hold in the ledger itself, without a lease.
    async fn adjust_in_ledger(&self, adjustment: &Adjustment) -> Result<Adjusted, LedgerError> {
        let keys = hold_keys(&adjustment.account);
        let mut buffer = Uuid::encode_buffer();
        let args = (
            text_of(adjustment.number, &mut buffer),
            &*adjustment.key,
            adjustment.sequence,
            adjustment.amount.max(MicroRub::ZERO).micro(),
        );
        let (word, first, second, ceiling, index): Refused =
            self.ask(&self.0.scripts.adjust, &keys, args).await?;
        match word.as_str() {
            "held" => Ok(Adjusted::Held(MicroRub::new(first))),
            "gone" => Ok(Adjusted::Gone),
            "no_account" => {
                self.missing_account().await?;
                Ok(Adjusted::Gone)
            }
            word => Err(refused_hold(word, first, second, &ceiling, index)),
        }
    }

    /// Settles a call in the ledger itself, without a lease.
    async fn settle_in_ledger(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        let Settlement {
            number,
            account,
            key,
            held,
            cost,
            fresh,
            lease: _,
            item,
        } = settlement;
        let mut keys = call_keys(account, *number);
        keys.extend([
            account_key(account, ":j"),
            receipt_key(account, *number),
            account_key(account, ":ev"),
            places_key(account, *number),
            turns_key(account, *number),
        ]);
        let mut json: Vec<u8> = Vec::with_capacity(ITEM_SIZE);
        serde_json::to_writer(&mut json, item)
            .map_err(|error| LedgerError::Unavailable(error.into()))?;
        let mut buffer = Uuid::encode_buffer();
        let args = (
            text_of(*number, &mut buffer),
            &**key,
            cost.micro(),
            u8::from(*fresh),
            held.micro(),
            json.as_slice(),
            RECEIPT_MS,
            place_field(number),
        );
        let mut answer: Value = self.ask(&self.0.scripts.settle, &keys, args).await?;
        if let Value::Array(words) = &mut answer
            && words.len() == 5
        {
            words.truncate(4);
            self.0.told.note(account);
        }
        let (booked, charged, loss, repeated): (String, i64, i64, bool) = read(answer)?;
        let booked = booked_of(&booked)?;
        let (charged, loss) = (MicroRub::new(charged), MicroRub::new(loss));
        if booked == Booked::NoAccount {
            self.missing_account().await?;
        } else {
            self.note_day(*number, account).await;
        }
        Ok(Settled {
            booked,
            charged,
            loss,
            repeated,
        })
    }

    /// Settles different calls of one key that were held from a lease which this process does not have: a lease of
    /// another process, or an earlier lease of its own.
    async fn settle_from<'a>(
        &self,
        lease: RequestNumber,
        mut settlements: impl ExactSizeIterator<Item = &'a Settlement>,
    ) -> Vec<Result<Settled, LedgerError>> {
        let count = settlements.len();
        let Some(first) = settlements.next() else {
            return Vec::new();
        };
        let mut turn = Turn::tell(lease, first);
        turn.ends.extend(settlements.map(TurnEnd::of));
        match self.turn_of(&turn, Lane::Shared).await {
            Ok(answer) => answer.ends.into_iter().map(Ok).collect(),
            Err(error) => {
                let cause = cause_of(error).to_string();
                let each = || Err(LedgerError::Unavailable(cause.clone().into()));
                iter::repeat_with(each).take(count).collect()
            }
        }
    }
}

impl fmt::Debug for RedisLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLedger")
            .field("conn", &self.0.conn)
            .finish_non_exhaustive()
    }
}

impl Ledger for RedisLedger {
    async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        self.0.data.present()?;
        crate::leases::reserve(self, self.leases(), hold).await
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        self.0.data.present()?;
        if let Some(leases) = self.leases()
            && let Some(settled) = leases.settle(settlement).await
        {
            return settled;
        }
        match settlement.lease {
            Some(lease) => {
                let told = self.settle_from(lease, iter::once(settlement));
                let settled = Box::pin(told).await.pop();
                settled.unwrap_or_else(|| {
                    Err(
                        RedisFault::Unexpected("the script returned no result for an end".into())
                            .into(),
                    )
                })
            }
            None => self.settle_in_ledger(settlement).await,
        }
    }

    /// Reports all ends of calls of one lease in one turn, if the lease's owner is gone. After a failover there are
    /// many such ends.
    async fn settle_all(&self, settlements: &[Settlement]) -> Vec<Result<Settled, LedgerError>> {
        let mut of_leases: HashMap<_, Vec<usize>> = HashMap::new();
        let (mut others, mut seen) = (Vec::new(), HashSet::new());
        for (at, settlement) in settlements.iter().enumerate() {
            let Settlement {
                number,
                account,
                key,
                ..
            } = settlement;
            match settlement.lease {
                Some(lease) if self.lease_of(*number, key).is_none() && seen.insert(number) => {
                    of_leases.entry((lease, account, key)).or_default().push(at);
                }
                _ => others.push(at),
            }
        }
        let turns = of_leases
            .iter()
            .flat_map(|((lease, ..), all)| all.chunks(ENDS_MAX).map(|some| (*lease, some)));
        let told = turns.map(|(lease, some)| async move {
            let ends = some.iter().map(|at| &settlements[*at]);
            let answers = self.settle_from(lease, ends).await;
            some.iter().copied().zip(answers).collect::<Vec<_>>()
        });
        let settled = others
            .into_iter()
            .map(|at| async move { (at, self.settle(&settlements[at]).await) });
        let (told, settled) = join(join_all(told), join_all(settled)).await;
        let answers: BTreeMap<usize, _> = told.into_iter().flatten().chain(settled).collect();
        answers.into_values().collect()
    }

    async fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> Result<(), LedgerError> {
        self.0.data.present()?;
        if self
            .leases()
            .is_some_and(|leases| leases.release(number, key))
        {
            return Ok(());
        }
        let keys = call_keys(account, number);
        let _: i64 = self
            .ask(&self.0.scripts.release, &keys, number.to_string())
            .await?;
        Ok(())
    }

    async fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> Result<bool, LedgerError> {
        self.0.data.present()?;
        if self
            .leases()
            .is_some_and(|leases| leases.extend(number, account, ttl))
        {
            return Ok(true);
        }
        let keys = [account_key(account, ""), account_key(account, ":x")];
        Ok(self
            .ask(
                &self.0.scripts.extend,
                &keys,
                (number.to_string(), ttl_ms(ttl)),
            )
            .await?)
    }

    async fn adjust(&self, adjustment: &Adjustment) -> Result<Adjusted, LedgerError> {
        self.0.data.present()?;
        crate::leases::adjust(self, self.leases(), adjustment).await
    }

    fn lease_of(&self, number: RequestNumber, key: &KeyId) -> Option<RequestNumber> {
        self.leases()?.lease_of(number, key)
    }

    async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
        self.0.data.present()?;
        let keys = [account_key(account, "")];
        let (word, ceiling, index): (String, String, u64) =
            self.ask(&self.0.scripts.probe, &keys, &**key).await?;
        match word.as_str() {
            "ok" => Ok(()),
            "unknown" => {
                self.missing_account().await?;
                Err(refused("unknown", None))
            }
            word => Err(refused(word, ceiling_of(&ceiling, index)?)),
        }
    }

    async fn expire(&self) -> Result<usize, LedgerError> {
        let mut cursor = self.0.sweep.lock().await;
        let (mut swept, mut count) = (0, 0);
        let (mut silent, mut somebody_answered) = (None, false);
        loop {
            let (next, ids): (u64, Vec<String>) = self
                .0
                .conn
                .command(
                    &[
                        "SSCAN",
                        "tg:accounts",
                        &cursor.to_string(),
                        "COUNT",
                        SWEPT_AT_ONCE,
                    ],
                    OPERATOR_TIMEOUT,
                )
                .await?;
            let ids = days::parsed(&ids)?;
            for ids in ids.chunks(ACCOUNTS_AT_ONCE) {
                for ended in join_all(ids.iter().map(|id| self.expire_in(id))).await {
                    match ended {
                        Ok(ended) => {
                            somebody_answered = true;
                            count += ended;
                        }
                        // A failed primary must not prevent the expiry of holds on other primaries.
                        Err(fault) => silent = Some(fault),
                    }
                }
            }
            *cursor = next;
            swept += ids.len();
            if next == 0 || swept >= SWEPT_MAX {
                break;
            }
        }
        match silent {
            Some(fault) if !somebody_answered => Err(fault.into()),
            _ => Ok(count),
        }
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

/// How scripts refuse a hold: a word, two amounts, the ceiling that refuses it, and the index of the ceiling's month or
/// day.
type Refused = (String, i64, i64, String, u64);

/// Parses the refusal of a hold, or of a larger amount for a hold.
fn refused_hold(word: &str, first: i64, second: i64, ceiling: &str, index: u64) -> LedgerError {
    let (first, second) = (MicroRub::new(first), MicroRub::new(second));
    let ceiling = match ceiling_of(ceiling, index) {
        Ok(ceiling) => ceiling,
        Err(fault) => return fault.into(),
    };
    match word {
        "does_not_fit" => LedgerError::Refused(Refusal::DoesNotFit {
            free: first,
            held: second,
            ceiling,
        }),
        "too_many_calls" => LedgerError::Refused(Refusal::TooManyCalls {
            most: u32::try_from(first.micro()).unwrap_or(u32::MAX),
        }),
        word => refused(word, ceiling),
    }
}

/// Parses a refusal that has no amounts.
fn refused(word: &str, ceiling: Option<Ceiling>) -> LedgerError {
    LedgerError::Refused(match (word, ceiling) {
        ("unknown", None) => Refusal::Unknown,
        ("suspended", None) => Refusal::Suspended,
        ("disabled", None) => Refusal::Disabled,
        ("account_empty", None) => Refusal::AccountEmpty,
        ("used_up", Some(ceiling)) => Refusal::CeilingUsedUp(ceiling),
        ("gone", None) => Refusal::Gone,
        ("conflict", None) => Refusal::Conflict,
        (word, _) => return RedisFault::Unexpected(format!("answer {word:?}")).into(),
    })
}

/// Parses the ceiling that a script reports, if any. `index` is that of its month or day.
fn ceiling_of(word: &str, index: u64) -> Result<Option<Ceiling>, RedisFault> {
    Ok(match word {
        "" => None,
        "total" => Some(Ceiling::Total),
        "month" => Some(Ceiling::of_month(index)),
        "day" => Some(Ceiling::of_day(index)),
        "group_total" => Some(Ceiling::GroupTotal),
        "group_month" => Some(Ceiling::of_month(index).of_group()),
        "group_day" => Some(Ceiling::of_day(index).of_group()),
        word => return Err(RedisFault::Unexpected(format!("ceiling {word:?}"))),
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
        contract::LedgerAdmin,
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
}
