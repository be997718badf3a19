//! Leases: money that a gateway takes out of an account in advance. The gateway then holds this money for calls in
//! memory, without a request to the ledger.
//!
//! ```text
//! pace   how fast a key spends: whether a lease is worth it, and how large
//! turn   a request to the ledger about a lease, and its answer
//! lease  one lease: how much it may grant, and its next turn; pure
//! slot   a key's lease, shared by its calls and by the task that sends its turns
//! task   sends turns to the ledger
//! recall recalls money from leases before a call is refused
//! ```
//!
//! If a key has no lease, or its lease has too little money, the call's hold is made in the ledger. Therefore a lease
//! never causes a refusal for lack of money. The ledger is any implementation of [`LeaseLedger`]; clocks and unique
//! names come from a [`LeaseSource`].

#[cfg(test)]
mod adjust_tests;
pub(crate) mod lease;
#[cfg(any(test, feature = "testing"))]
pub mod model;
mod pace;
mod raises;
mod recall;
mod slot;
mod source;
mod task;
mod turn;

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

pub(crate) use self::recall::{RECALL_LOOK_EVERY, RECALL_WAIT};
use self::{lease::Adjusting, slot::Slot, source::System};
pub use self::{
    recall::{adjust, reserve},
    source::{LeaseSource, Now},
    turn::{LeaseLedger, RECALLED_FOR, Step, Turn, TurnAnswer, TurnEnd, Word},
};
use crate::{
    BoxError,
    account::{AccountId, KeyId},
    book::{Hashing, Millis, millis},
    contract::{Adjusted, Adjustment, Hold, LedgerError, Refusal, Reserved, Settled, Settlement},
    money::MicroRub,
    number::RequestNumber,
};

/// The largest number of keys whose call rate is tracked. If more keys make calls, the rates of all keys without a
/// lease are dropped.
const SLOTS_MAX: usize = 20_000;
/// The largest number of new leases in the queue of the task that sends turns to the ledger.
const NEW_MAX: usize = 1_024;
/// How often a stopping gateway checks whether all of its leases were given back.
const LOOK_EVERY: Duration = Duration::from_millis(15);
/// How long a stopping gateway waits until all of its leases are given back.
const GIVE_BACK_WAIT: Duration = Duration::from_secs(2);
/// The longest time for which any gateway may grant holds from a lease after a turn of this lease.
pub const LEASE_MAX: Duration = Duration::from_secs(10);
/// How far the gateway's clock may be behind the ledger server's clock at most.
const CLOCK_SLACK: Duration = Duration::from_millis(20);
/// The longest time to live of a hold: one year. Limited because Lua stores numbers as doubles: expiry times in
/// milliseconds must stay below 2⁵³ to be exact.
pub(crate) const TTL_MS_MAX: u64 = 365 * 24 * 3_600_000;

/// Settings of a gateway's leases.
#[derive(Clone, Debug)]
pub struct LeaseSettings {
    /// How long a gateway may grant holds from a lease without an answer from the ledger.
    pub lease_max: Duration,
    /// A key gets a lease only if it makes at least this many calls per second.
    pub calls_per_second_min: u64,
    /// The gateway's name in the lists of leases that operators see.
    pub owner: String,
}

impl LeaseSettings {
    /// Creates the default settings with this `lease_max` and `owner`.
    #[must_use]
    pub fn new(lease_max: Duration, owner: impl Into<String>) -> Self {
        Self {
            lease_max,
            calls_per_second_min: 40,
            owner: owner.into(),
        }
    }
}

/// Lease counters since the gateway was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseCounts {
    /// The number of open leases.
    pub open: u64,
    /// The sum of the money in this gateway's open leases, according to the ledger's last answers.
    pub leased_rub: MicroRub,
    /// The number of holds that this gateway has granted from its leases.
    pub granted: u64,
    /// The number of lease turns that the ledger has answered.
    pub turns: u64,
    /// The number of settlements that lease turns have reported and the ledger has answered.
    pub ends: u64,
    /// The sum of the waiting times of all answered lease turns. A turn's waiting time begins when the oldest of the
    /// settlements in the turn was queued, and ends with the ledger's answer.
    pub ends_waited: Duration,
    /// The number of leases that the ledger has reported as missing or as owned by another gateway.
    pub lost: u64,
    /// How often this gateway has recalled leases before refusing a call.
    pub recalls: u64,
    /// How often this gateway has given a lease back because another process made a recall.
    pub recalls_heard: u64,
    /// The number of calls that were refused although leases had been recalled first.
    pub refused: u64,
}

/// The counters from which [`LeaseCounts`] is read.
#[derive(Default)]
struct Counters {
    granted: AtomicU64,
    turns: AtomicU64,
    ends: AtomicU64,
    ends_waited_ms: AtomicU64,
    lost: AtomicU64,
    recalls: AtomicU64,
    recalls_heard: AtomicU64,
    refused: AtomicU64,
}

/// All leases of a gateway.
pub struct Leases {
    settings: LeaseSettings,
    source: Box<dyn LeaseSource>,
    /// The leases by key. The hash function has no random state, so that simulations are repeatable.
    slots: RwLock<HashMap<KeyId, Arc<Slot>, Hashing>>,
    new: mpsc::Sender<Arc<Slot>>,
    /// Receives the slots of keys that have just taken a lease. Locked by the task that sends the turns.
    slots_in: tokio::sync::Mutex<mpsc::Receiver<Arc<Slot>>>,
    counters: Counters,
    /// If true, all leases are being given back and no new lease is taken.
    stopping: AtomicBool,
}

impl Leases {
    /// Creates the leases of a gateway; at first no lease is open.
    #[must_use]
    pub fn new(settings: LeaseSettings) -> Self {
        Self::by(settings, System(Instant::now()))
    }

    /// Creates leases as [`Self::new`] does, with the clocks and unique names of `source`.
    #[must_use]
    pub fn by(settings: LeaseSettings, source: impl LeaseSource) -> Self {
        let (new, slots_in) = mpsc::channel(NEW_MAX);
        Self {
            settings,
            source: Box::new(source),
            slots: RwLock::default(),
            new,
            slots_in: tokio::sync::Mutex::new(slots_in),
            counters: Counters::default(),
            stopping: AtomicBool::new(false),
        }
    }

    /// Returns the gateway's name in the lists of leases that operators see.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.settings.owner
    }

    fn now(&self) -> Now {
        self.source.now()
    }

    fn lease_ms(&self) -> u64 {
        ttl_ms(self.settings.lease_max.min(LEASE_MAX))
    }

    /// Returns how long a lease may grant holds after each turn, measured by the ledger's clock.
    #[cfg(feature = "redis")]
    pub(crate) fn grants_for(&self) -> Duration {
        Duration::from_millis(self.lease_ms()) + CLOCK_SLACK
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Grants or refuses a hold in memory. Returns `None` if the ledger must decide.
    ///
    /// # Errors
    /// A [`Refusal`] if the lease's book refuses the hold.
    pub fn reserve(&self, hold: &Hold) -> Option<Result<Reserved, Refusal>> {
        let slot = self.slot_for(hold);
        let (answer, is_new) = slot.reserve(hold, self, self.now());
        if is_new && self.new.try_send(Arc::clone(&slot)).is_err() {
            slot.forget_lease();
        }
        if let Some(Ok(_)) = answer {
            self.counters.granted.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }

    /// Settles a call that has a hold against a lease, and waits for the ledger's acknowledgement. Returns `None` if no
    /// lease has the call.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the turn that reports this settlement got no answer, or if the task that sends
    /// turns has ended.
    pub async fn settle(&self, settlement: &Settlement) -> Option<Result<Settled, LedgerError>> {
        let acknowledged = self.slot(&settlement.key)?.settle(settlement, self.now())?;
        Some(match acknowledged.await {
            Ok(Ok(settled)) => Ok(settled),
            Ok(Err(cause)) => Err(LedgerError::Unavailable(Box::new(NotAcknowledged(cause)))),
            // The task that sends turns has ended, so another process must settle the call.
            Err(_) => Err(LedgerError::Unavailable(
                "the task for leases has ended".into(),
            )),
        })
    }

    /// Ends the hold that a call has against a lease, without a charge. Returns false if no lease has the call.
    #[must_use]
    pub fn release(&self, number: RequestNumber, key: &KeyId) -> bool {
        self.slot(key).is_some_and(|slot| slot.release(number, key))
    }

    /// Sets the expiry time of a hold against a lease to `ttl` from now. Returns false if no lease has the call.
    #[must_use]
    pub fn extend(&self, number: RequestNumber, account: &AccountId, ttl: Duration) -> bool {
        let now = self.now();
        let of_account = self.slots_of(account);
        of_account.iter().any(|slot| slot.extend(number, ttl, now))
    }

    /// Changes the amount that a call holds against a lease; returns `None` if no lease has the call. If the lease has
    /// too little money, its next turn requests the missing amount from the ledger.
    ///
    /// # Errors
    /// [`LedgerError::Refused`] if an increase does not fit. [`LedgerError::Unavailable`] if the turn that requests the
    /// increase got no answer.
    pub async fn adjust(&self, adjustment: &Adjustment) -> Option<Result<Adjusted, LedgerError>> {
        let adjusting = self.slot(&adjustment.key)?.adjust(adjustment, self.now())?;
        Some(match adjusting {
            Adjusting::Done(adjusted) => Ok(adjusted),
            Adjusting::Waits(raised) => match raised.await {
                Ok(Ok(answer)) => answer.map_err(LedgerError::Refused),
                Ok(Err(cause)) => Err(LedgerError::Unavailable(Box::new(NotAcknowledged(cause)))),
                // The lease was closed before the ledger answered.
                Err(_) => Ok(Adjusted::Gone),
            },
        })
    }

    /// Handles a recall that a call of this gateway makes: this gateway's own leases of the account give money back at
    /// once, and do not wait until an answer of the ledger reports the recall.
    pub(crate) fn recalled(&self, account: &AccountId) {
        let now = self.now();
        self.slots_of(account)
            .iter()
            .for_each(|slot| slot.recalled(now));
    }

    fn slots_with_leases(&self) -> Vec<Arc<Slot>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let with_leases = slots.values().filter(|slot| slot.has_lease());
        with_leases.cloned().collect()
    }

    fn slots_of(&self, account: &AccountId) -> Vec<Arc<Slot>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let of_account = slots.values().filter(|slot| slot.account() == account);
        of_account.cloned().collect()
    }

    /// Returns the number of the lease against which the call has a hold, if there is such a lease.
    #[must_use]
    pub fn lease_of(&self, number: RequestNumber, key: &KeyId) -> Option<RequestNumber> {
        self.slot(key)?.lease_of(number)
    }

    /// Returns the sum of the holds that in-flight calls have against this lease; `None` if this gateway does not have
    /// the lease.
    pub(crate) fn held_by_calls(&self, key: &KeyId, lease: RequestNumber) -> Option<MicroRub> {
        self.slot(key)?.held_by_calls(lease)
    }

    fn slot(&self, key: &KeyId) -> Option<Arc<Slot>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.get(key).cloned()
    }

    fn slot_for(&self, hold: &Hold) -> Arc<Slot> {
        if let Some(slot) = self.slot(&hold.key) {
            return slot;
        }
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= SLOTS_MAX {
            slots.retain(|_, slot| slot.has_lease());
        }
        let slot = slots
            .entry(hold.key.clone())
            .or_insert_with(|| Arc::new(Slot::new(&hold.account, &hold.key)));
        Arc::clone(slot)
    }

    /// Gives back all leased money that no call holds, and takes no further lease. Waits until all leases are closed,
    /// at most two seconds. Returns whether they are closed.
    pub async fn give_back(&self) -> bool {
        self.stopping.store(true, Ordering::Relaxed);
        let ended = async {
            loop {
                let left = self.slots_with_leases();
                if left.is_empty() {
                    return;
                }
                left.iter().for_each(|slot| slot.wake());
                sleep(LOOK_EVERY).await;
            }
        };
        timeout(GIVE_BACK_WAIT, ended).await.is_ok()
    }

    /// Returns the current values of the counters.
    #[must_use]
    pub fn counts(&self) -> LeaseCounts {
        let counters = &self.counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let state = self.slots_with_leases();
        let leased = state.iter().map(|slot| slot.leased());
        LeaseCounts {
            open: state.len() as u64,
            leased_rub: leased.fold(MicroRub::ZERO, MicroRub::plus_or_max),
            granted: count(&counters.granted),
            turns: count(&counters.turns),
            ends: count(&counters.ends),
            ends_waited: Duration::from_millis(count(&counters.ends_waited_ms)),
            lost: count(&counters.lost),
            recalls: count(&counters.recalls),
            recalls_heard: count(&counters.recalls_heard),
            refused: count(&counters.refused),
        }
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("settings", &self.settings)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

/// The error of a settlement that the ledger has not acknowledged, because the turn that reports it got no answer. All
/// settlements of that turn share the cause.
#[derive(Debug)]
struct NotAcknowledged(Arc<BoxError>);

impl fmt::Display for NotAcknowledged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for NotAcknowledged {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

/// Returns how long an operator's command must wait until every lease that existed before the command has stopped
/// granting holds. Both arguments are times of the ledger's clock: `now`, and the latest time until which one of these
/// leases may grant holds.
#[must_use]
pub fn until_heard(now: Millis, grants_until: Millis) -> Duration {
    match grants_until.saturating_sub(now) {
        0 => Duration::ZERO,
        // If the server's clock was set back, `grants_until` may be hours ahead, so the wait is limited to
        // [`LEASE_MAX`].
        left => Duration::from_millis(left).min(LEASE_MAX) + CLOCK_SLACK,
    }
}

/// Returns a time to live in milliseconds, at most [`TTL_MS_MAX`].
pub(crate) fn ttl_ms(ttl: Duration) -> u64 {
    millis(ttl).min(TTL_MS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_expiry_time_of_a_hold_is_an_exact_integer_in_lua() {
        assert_eq!(ttl_ms(Duration::from_millis(1_500)), 1_500);
        assert_eq!(ttl_ms(Duration::MAX), TTL_MS_MAX);
    }

    /// A new lease must live as long as the first hold that it grants, even if no further turn reaches the ledger.
    #[test]
    fn new_lease_expires_no_earlier_than_its_first_hold() {
        let settings = LeaseSettings {
            calls_per_second_min: 0,
            ..LeaseSettings::new(Duration::from_millis(500), "one")
        };
        let leases = Leases::new(settings);
        let hold = Hold {
            number: RequestNumber::now_v7(),
            account: "acme".parse().unwrap(),
            key: "k1".parse().unwrap(),
            want: MicroRub::new(10),
            least: MicroRub::new(10),
            ttl: Duration::from_secs(900),
        };
        assert_eq!(leases.reserve(&hold), None);
        let slot = leases.slot(&hold.key).unwrap();
        let later = Now {
            steady: 1_000,
            wall: 1_000,
        };
        let slot::Due::Turn(turn) = slot.due(&leases, later) else {
            panic!("a lease is opened by a turn");
        };
        assert_eq!((turn.step, turn.ttl_ms), (Step::Open, 900_000));
    }

    fn answer(word: Word, left: i64, last: &str) -> TurnAnswer {
        TurnAnswer {
            word,
            left: MicroRub::new(left),
            free: MicroRub::new(100),
            short: false,
            recalled: false,
            refusal: None,
            last: last.to_owned(),
            ends: Vec::new(),
        }
    }

    /// If the ledger lost data, the lease's last turn in the remaining data may be an earlier turn of this gateway;
    /// then this gateway gives the lease back. If that last turn is another gateway's, the other gateway owns the
    /// lease.
    #[test]
    fn lost_lease_is_given_back_unless_another_gateway_owns_it() {
        let number = RequestNumber::now_v7();
        let size = lease::Size {
            free: MicroRub::new(100),
            short_of: MicroRub::ZERO,
        };
        let words = [1, 2, 3].map(uuid::Uuid::from_u128);
        let [first, second, third] = words.map(|word| word.simple().to_string());
        let others = uuid::Uuid::from_u128(9).simple().to_string();
        for (answered, before) in [
            (answer(Word::Fenced, 0, &first), Some(&first)),
            (answer(Word::Fenced, 0, &second), Some(&second)),
            (answer(Word::Fenced, 0, &others), None),
            (answer(Word::Fenced, 0, ""), None),
            (answer(Word::Gone, 0, ""), None),
            // The ledger has carried out the third turn, but the lease has less money than the ledger reported before.
            (answer(Word::Done, 40, ""), Some(&third)),
        ] {
            let (account, key) = ("acme".parse().unwrap(), "k1".parse().unwrap());
            let mut lease = lease::Lease::new(number, &account, &key, 60_000);
            for word in &words[..2] {
                let turn = lease.turn(size, Now::default(), *word);
                lease.answered(&turn, &answer(Word::Done, 100, ""));
            }
            assert!(lease.left_behind(uuid::Uuid::nil()).is_none());
            let turn = lease.turn(size, Now::default(), words[2]);
            lease.answered(&turn, &answered);
            assert!(lease.is_closed(), "{answered:?}");
            let left = lease.left_behind(uuid::Uuid::from_u128(4));
            let acknowledged = left.map(|turn| (turn.step, turn.lease, turn.before));
            let expected = before.map(|before| (Step::Close, number, before.clone()));
            assert_eq!(acknowledged, expected, "{answered:?}");
        }
    }

    /// A ledger that grants every request, and that falls back to its state after the first turn when it receives the
    /// second.
    #[derive(Default)]
    struct FallsBack(std::sync::Mutex<Vec<(Turn, tokio::time::Instant)>>);

    impl LeaseLedger for FallsBack {
        async fn turn(&self, turn: &Turn) -> Result<TurnAnswer, LedgerError> {
            let mut acknowledged = self.0.lock().unwrap();
            acknowledged.push((turn.clone(), tokio::time::Instant::now()));
            Ok(match acknowledged.len() {
                1 => answer(Word::Done, turn.more.micro(), ""),
                2 => answer(Word::Fenced, 0, &acknowledged[0].0.this),
                _ => answer(Word::Done, 0, ""),
            })
        }

        async fn recall(&self, _: &AccountId) -> Result<u64, LedgerError> {
            Ok(0)
        }

        async fn hold(&self, _: &Hold) -> Result<Reserved, LedgerError> {
            unreachable!("nobody asks")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lost_lease_is_given_back_30_seconds_after_the_ledger_lost_data() {
        let settings = LeaseSettings {
            calls_per_second_min: 0,
            ..LeaseSettings::new(Duration::from_secs(1), "one")
        };
        let (leases, ledger) = (Leases::new(settings), FallsBack::default());
        let hold = Hold {
            number: RequestNumber::now_v7(),
            account: "acme".parse().unwrap(),
            key: "k1".parse().unwrap(),
            want: MicroRub::new(10),
            least: MicroRub::new(10),
            ttl: Duration::from_secs(900),
        };
        assert_eq!(leases.reserve(&hold), None);
        let all_told = async {
            while ledger.0.lock().unwrap().len() < 3 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            () = leases.tend(&ledger) => unreachable!("it does not end"),
            () = all_told => {}
        }
        let acknowledged = ledger.0.lock().unwrap();
        let [(first, _), (second, fenced_at), (last, at)] = &acknowledged[..] else {
            panic!("{acknowledged:?}")
        };
        assert_eq!(
            (first.step, second.step, last.step),
            (Step::Open, Step::GoOn, Step::Close)
        );
        assert_eq!((last.lease, &last.before), (first.lease, &first.this));
        assert!(*at - *fenced_at >= Duration::from_secs(30));
    }

    /// A settlement that fails is written to the outbox at once. Otherwise the outbox would wait for a turn that may
    /// never be answered.
    #[tokio::test]
    async fn settlement_queued_after_a_failed_lease_turn_fails_with_the_error_of_that_turn() {
        let (account, key): (AccountId, KeyId) = ("acme".parse().unwrap(), "k1".parse().unwrap());
        let number = RequestNumber::now_v7();
        let mut lease = lease::Lease::new(number, &account, &key, 60_000);
        let size = lease::Size {
            free: MicroRub::new(100),
            short_of: MicroRub::ZERO,
        };
        let at = Now::default();
        let word = uuid::Uuid::now_v7;
        let open = lease.turn(size, at, word());
        lease.answered(&open, &answer(Word::Done, 100, ""));
        let hold = Hold {
            number: RequestNumber::now_v7(),
            account: account.clone(),
            key: key.clone(),
            want: MicroRub::new(10),
            least: MicroRub::new(10),
            ttl: Duration::from_secs(900),
        };
        lease.reserve(&hold, at).unwrap().unwrap();
        let under_way = lease.turn(size, at, word());
        let settlement = Settlement {
            number: hold.number,
            account,
            key,
            held: hold.want,
            cost: MicroRub::new(5),
            fresh: true,
            lease: None,
            item: crate::contract::Item::new("m", "v", crate::usage::End::Finished),
        };
        let acknowledged = lease.settle(&settlement, at).unwrap();
        assert!(under_way.ends.is_empty());
        lease.unanswered("gone".into());
        assert!(acknowledged.await.unwrap().is_err());
        // The lease still reports the settlement later. If the settlement is repeated, the repetition waits for the
        // same report.
        assert!(lease.settle(&settlement, at).is_some());
        assert_eq!(lease.ends_waiting(), 1);
    }

    /// A hold of zero fits into every lease that has money. A lease without money would refuse it, although the account
    /// may have money, so the ledger decides.
    #[test]
    fn free_call_is_reserved_in_the_ledger_if_the_lease_has_no_money() {
        let (account, key): (AccountId, KeyId) = ("acme".parse().unwrap(), "k1".parse().unwrap());
        let mut lease = lease::Lease::new(RequestNumber::now_v7(), &account, &key, 60_000);
        let size = lease::Size {
            free: MicroRub::new(100),
            short_of: MicroRub::ZERO,
        };
        let at = Now::default();
        let open = lease.turn(size, at, uuid::Uuid::now_v7());
        lease.answered(&open, &answer(Word::Done, 100, ""));
        let hold = |rub: i64| Hold {
            number: RequestNumber::now_v7(),
            account: account.clone(),
            key: key.clone(),
            want: MicroRub::new(rub),
            least: MicroRub::new(rub),
            ttl: Duration::from_secs(900),
        };
        let whole = hold(100);
        assert!(lease.reserve(&hold(0), at).is_some_and(|held| held.is_ok()));
        lease.reserve(&whole, at).unwrap().unwrap();
        let settlement = Settlement {
            number: whole.number,
            account: account.clone(),
            key: key.clone(),
            held: whole.want,
            cost: whole.want,
            fresh: true,
            lease: None,
            item: crate::contract::Item::new("m", "v", crate::usage::End::Finished),
        };
        lease.settle(&settlement, at).unwrap();
        assert_eq!(lease.reserve(&hold(0), at), None);
    }

    #[test]
    fn after_a_clock_jump_a_command_waits_at_most_ten_seconds_for_leases() {
        let ms = Duration::from_millis;
        assert_eq!(until_heard(5_000, 0), Duration::ZERO);
        assert_eq!(until_heard(5_000, 5_000), Duration::ZERO);
        assert_eq!(until_heard(5_000, 5_700), ms(720));
        assert_eq!(until_heard(5_000, 3_605_000), ms(10_020));
    }
}
