//! Leases: money that this gateway has taken out of an account ahead of need, so that it can hold it for calls by itself.
//!
//! ```text
//! pace   how fast a key spends: whether a lease is worth it, and how large
//! lease  one lease: what may be granted from it, and what the ledger is told next; pure
//! slot   a key's lease, shared by its calls and by the task that tells the ledger
//! task   turns: when the ledger is told
//! ```
//!
//! Where there is no lease, or not enough in it, the ledger is asked as without: nothing is refused here.

mod lease;
mod pace;
mod slot;
mod task;

use std::{
    collections::HashMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, timeout},
};

use self::{
    lease::{Now, Told},
    slot::Slot,
};
use super::{ACCOUNTS_AT_ONCE, LeaseView, RedisLedger};
use crate::{
    account::{AccountId, KeyId},
    conn::RedisFault,
    contract::{BookError, Hold, LedgerError, Refusal, Reserved, Settlement},
    embedded::now_ms,
    money::MicroRub,
    number::RequestNumber,
};

/// Keys whose pace is remembered; of those without a lease some are forgotten beyond it.
const SLOTS_MAX: usize = 20_000;
/// Leases that wait for their task to look at them.
const NEW_MAX: usize = 1_024;
/// How long it is waited, before a call is refused, that other gateways give back what no call holds.
const RECALL_WAIT: Duration = Duration::from_millis(150);
/// How often the ledger is asked meanwhile.
const RECALL_LOOK_EVERY: Duration = Duration::from_millis(15);
/// How long leases may take to be given back when the gateway stops.
const GIVE_BACK_WAIT: Duration = Duration::from_secs(2);
/// What a gateway's clock may run slower than the server's.
const CLOCK_SLACK_MS: u64 = 20;

/// When and how a gateway takes leases.
#[derive(Clone, Debug)]
pub struct LeaseSettings {
    /// For how long something may be granted from a lease after the ledger was told of it last.
    pub lease_max: Duration,
    /// Keys with fewer calls have no lease.
    pub calls_per_second_min: u64,
    /// What the gateway is called where leases are listed.
    pub owner: String,
}

impl LeaseSettings {
    /// The usual ones, where something may be granted for so long.
    #[must_use]
    pub fn new(lease_max: Duration, owner: impl Into<String>) -> Self {
        Self {
            lease_max,
            calls_per_second_min: 40,
            owner: owner.into(),
        }
    }
}

/// What leases have done since the gateway was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseCounts {
    /// Leases that stand.
    pub open: u64,
    /// What they have, as far as the ledger has answered.
    pub leased_rub: MicroRub,
    /// Holds that were granted from a lease.
    pub granted: u64,
    /// Turns that the ledger has answered.
    pub turns: u64,
    /// Ends that it was told in them.
    pub ends: u64,
    /// How long the oldest end of each turn had waited for the turn's answer, together.
    pub ends_waited: Duration,
    /// Leases that turned out to be another's, or none's.
    pub lost: u64,
    /// Recalls before a refusal.
    pub recalls: u64,
    /// Recalls by others that a lease has heard of, and was given back for.
    pub recalls_heard: u64,
    /// Calls that were refused after one.
    pub refused: u64,
}

/// The same, while they are counted.
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

/// The leases of a gateway.
pub(super) struct Leases {
    settings: LeaseSettings,
    slots: RwLock<HashMap<KeyId, Arc<Slot>>>,
    new: mpsc::Sender<Arc<Slot>>,
    /// Held by whoever looks after leases.
    slots_in: tokio::sync::Mutex<mpsc::Receiver<Arc<Slot>>>,
    began: Instant,
    counters: Counters,
    /// All are given back, and there are no new ones.
    stopping: AtomicBool,
}

impl Leases {
    fn new(settings: LeaseSettings) -> Self {
        let (new, slots_in) = mpsc::channel(NEW_MAX);
        Self {
            settings,
            slots: RwLock::default(),
            new,
            slots_in: tokio::sync::Mutex::new(slots_in),
            began: Instant::now(),
            counters: Counters::default(),
            stopping: AtomicBool::new(false),
        }
    }

    fn now(&self) -> Now {
        let steady = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        Now {
            steady,
            wall: now_ms(),
        }
    }

    fn lease_ms(&self) -> u64 {
        super::ttl_ms(self.settings.lease_max)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// What a lease says to a hold; `None` where the ledger is to be asked.
    pub(super) fn reserve(&self, hold: &Hold) -> Option<Result<Reserved, Refusal>> {
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

    /// Who says what became of a settlement; `None` where the ledger is to be told.
    pub(super) fn settle(&self, settlement: &Settlement) -> Option<oneshot::Receiver<Told>> {
        self.slot(&settlement.key)?.settle(settlement, self.now())
    }

    /// Whether the call was held from a lease; then it has ended.
    pub(super) fn release(&self, number: RequestNumber, key: &KeyId) -> bool {
        self.slot(key).is_some_and(|slot| slot.release(number, key))
    }

    /// Whether the call is held from a lease; then it lives for so long.
    pub(super) fn extend(&self, number: RequestNumber, account: &AccountId, ttl: Duration) -> bool {
        let now = self.now();
        let of_account = self.slots_of(account);
        of_account.iter().any(|slot| slot.extend(number, ttl, now))
    }

    /// Those of this gateway need no message.
    fn recalled(&self, account: &AccountId) {
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

    /// The lease that holds money for the call.
    pub(super) fn lease_of(&self, number: RequestNumber, key: &KeyId) -> Option<RequestNumber> {
        self.slot(key)?.lease_of(number)
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

    fn counts(&self) -> LeaseCounts {
        let counters = &self.counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let standing = self.slots_with_leases();
        let leased = standing.iter().map(|slot| slot.leased());
        LeaseCounts {
            open: standing.len() as u64,
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

impl RedisLedger {
    /// The same ledger, and from here on with leases while [`RedisLedger::tend_leases`] runs. One that has them keeps
    /// those that it has.
    #[must_use]
    pub fn with_leases(self, settings: LeaseSettings) -> Self {
        self.0.leases.get_or_init(|| Leases::new(settings));
        self
    }

    /// What leases have done; `None` where there are none.
    #[must_use]
    pub fn lease_counts(&self) -> Option<LeaseCounts> {
        self.leases().map(Leases::counts)
    }

    /// The leases of an account, of all gateways.
    ///
    /// # Errors
    /// The ledger is out of reach.
    pub async fn leases_of(&self, account: &AccountId) -> Result<Vec<LeaseView>, BookError> {
        let (_, mut views) = self.leases_at(account).await?;
        if let Some(leases) = self.leases() {
            for view in &mut views {
                let slot = leases.slot(&view.key);
                view.calls_rub = slot.and_then(|slot| slot.held_by_calls(view.number));
            }
        }
        Ok(views)
    }

    /// The leases of all accounts, by account.
    ///
    /// # Errors
    /// The ledger is out of reach.
    pub async fn all_leases(&self) -> Result<Vec<LeaseView>, BookError> {
        let mut all = Vec::new();
        for ids in self.account_ids().await?.chunks(ACCOUNTS_AT_ONCE) {
            for views in join_all(ids.iter().map(|id| self.leases_of(id))).await {
                all.extend(views?);
            }
        }
        Ok(all)
    }

    /// Gives back all that no call holds; no lease is taken from here on. Says whether all leases were ended.
    pub async fn give_back(&self) -> bool {
        let Some(leases) = self.leases() else {
            return true;
        };
        leases.stopping.store(true, Ordering::Relaxed);
        let ended = async {
            loop {
                let left = leases.slots_with_leases();
                if left.is_empty() {
                    return;
                }
                left.iter().for_each(|slot| slot.wake());
                sleep(RECALL_LOOK_EVERY).await;
            }
        };
        timeout(GIVE_BACK_WAIT, ended).await.is_ok()
    }

    pub(super) fn leases(&self) -> Option<&Leases> {
        self.0.leases.get()
    }

    pub(super) fn owner(&self) -> &str {
        self.leases().map_or("", |leases| &leases.settings.owner)
    }

    /// A hold that did not fit: what leases have and no call holds is asked for first, of this gateway and of others.
    pub(super) async fn reserve_after_recall(
        &self,
        hold: &Hold,
        answer: Result<Reserved, LedgerError>,
    ) -> Result<Reserved, LedgerError> {
        let leases = self.leases();
        if self.recall(&hold.account).await? == 0 {
            // One without leases has asked for no more than this.
            return match leases {
                None => answer,
                Some(_) => self.reserve_in_ledger(hold).await,
            };
        }
        if let Some(leases) = leases {
            leases.counters.recalls.fetch_add(1, Ordering::Relaxed);
            leases.recalled(&hold.account);
        }
        let (whole, until) = (hold.whole(), Instant::now() + RECALL_WAIT);
        while Instant::now() < until {
            sleep(RECALL_LOOK_EVERY).await;
            // Counted before the ledger is asked: what is given back between the two is seen.
            let left = self.recall(&hold.account).await?;
            match self.reserve_in_ledger(&whole).await {
                Err(LedgerError::Refused(Refusal::DoesNotFit { .. })) if left > 0 => {}
                Err(LedgerError::Refused(Refusal::DoesNotFit { .. })) => break,
                answer => return answer,
            }
        }
        let answer = self.reserve_in_ledger(hold).await;
        if let (Some(leases), Err(LedgerError::Refused(_))) = (leases, &answer) {
            leases.counters.refused.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }

    /// What a correction would take may lie in leases that no call holds anything of. Says whether some was asked for,
    /// and waited for.
    pub(super) async fn recall_for_entry(&self, account: &AccountId) -> Result<bool, RedisFault> {
        let until = Instant::now() + RECALL_WAIT;
        let mut asked = false;
        while self.recall(account).await? > 0 && Instant::now() < until {
            asked = true;
            if let Some(leases) = self.leases() {
                leases.recalled(account);
            }
            sleep(RECALL_LOOK_EVERY).await;
        }
        Ok(asked)
    }

    /// Waits until no gateway grants anything on the account that it was leased before now: what an operator has
    /// forbidden is forbidden everywhere then.
    pub(super) async fn leases_have_heard(&self, account: &AccountId) -> Result<(), RedisFault> {
        let (now, leases) = self.leases_at(account).await?;
        let until = leases.iter().map(|lease| lease.grants_until_ms).max();
        let wait = until.unwrap_or_default().saturating_sub(now);
        if wait > 0 {
            sleep(Duration::from_millis(wait + CLOCK_SLACK_MS)).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod contract_tests;
#[cfg(test)]
mod fleet_tests;
#[cfg(test)]
mod journal_tests;
#[cfg(test)]
mod tests;
