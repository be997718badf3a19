//! A ledger with one deliberate bug at a time. Each bug is listed with the contract test that must fail because of it.
//!
//! The ledger resembles a first attempt at an implementation. Its accounts are in a map, and some operations continue
//! after an await, as if after a second query to a database.

#![expect(
    clippy::disallowed_types,
    reason = "its clock must also work in threads without a runtime"
)]

mod adjust;
mod bugs;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use tokio::task::yield_now;

use self::bugs::{BUGS, Bug};
use super::{Opening, cases, given::HOUR};
use crate::{
    account::{AccountId, KeyId},
    contract::{
        Adjusted, Adjustment, Booked, Hold, Ledger, LedgerError, Refusal, Reserved, Settled,
        Settlement,
    },
    money::MicroRub,
    number::RequestNumber,
};

/// The time between a check and the change that relies on it. In this time another thread can run.
const GAP: Duration = Duration::from_micros(20);

/// Bugs of a ledger that checks whether a hold fits and takes the money later, instead of doing both in one atomic
/// step.
const IN_TWO_STEPS: &[Bug] = &[
    Bug::ReserveDroppedAfterTakingMoney,
    Bug::ReserveDroppedLivesForEver,
    Bug::ReserveChecksBeforeItLocks,
    Bug::RepeatIsCheckedBeforeTheLock,
    Bug::ReserveAwaitsAfterTheCheck,
];

#[tokio::test]
async fn each_planted_bug_is_detected_by_the_contract_test_named_next_to_it() {
    assert!(BUGS.len() >= 21);
    let cases = cases::<Arc<Planted>>();
    let mut missed = Vec::new();
    for &(bug, promise) in BUGS {
        let case = cases.iter().find(|case| case.name == promise);
        let case = case.unwrap_or_else(|| panic!("{promise} is not a promise"));
        match case.breach(&Arc::new(Planted::new(Some(bug)))).await {
            Some(breach) if breach.contains("expected") && breach.contains("found") => {}
            other => missed.push((bug, promise, other)),
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[tokio::test]
async fn ledger_without_a_planted_bug_passes_every_contract_test() {
    super::check(async |openings| Planted::open(None, openings)).await;
}

#[tokio::test]
#[should_panic(
    expected = "a_settlement_charges_the_cost_and_frees_the_hold: paid: expected Settled"
)]
async fn broken_promise_is_reported_by_name_with_the_expected_and_found_values() {
    super::check(async |openings| Planted::open(Some(Bug::TheHoldIsCharged), openings)).await;
}

#[derive(Debug)]
struct Planted {
    bug: Option<Bug>,
    accounts: Mutex<HashMap<AccountId, Account>>,
}

#[derive(Debug, Default)]
struct Account {
    balance: MicroRub,
    keys: Vec<KeyId>,
    open: HashMap<RequestNumber, Open>,
    ended: HashMap<RequestNumber, Ended>,
    /// Money that a planted bug has removed from the books.
    lost: MicroRub,
    releases: u64,
}

#[derive(Clone, Debug)]
struct Open {
    hold: Hold,
    held: MicroRub,
    adjusted: u32,
    due: Instant,
}

#[derive(Clone, Debug)]
enum Ended {
    Expired(KeyId),
    Booked(Settled),
}

impl Account {
    fn held(&self, counts: impl Fn(&Hold) -> bool) -> MicroRub {
        let counted = self.open.values().filter(|open| counts(&open.hold));
        counted.fold(MicroRub::ZERO, |sum, open| sum.plus_or_max(open.held))
    }

    fn free(&self) -> MicroRub {
        let taken = self.held(|_| true).plus_or_max(self.lost);
        self.balance.minus_or_zero(taken)
    }
}

impl Planted {
    fn new(bug: Option<Bug>) -> Self {
        Self::open(bug, super::openings())
    }

    fn open(bug: Option<Bug>, openings: Vec<Opening>) -> Self {
        let accounts = openings.into_iter().map(|opening| {
            let account = Account {
                balance: opening.payment.amount,
                keys: opening.keys.into_iter().map(|key| key.id).collect(),
                ..Account::default()
            };
            (opening.account, account)
        });
        Self {
            bug,
            accounts: Mutex::new(accounts.collect()),
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AccountId, Account>> {
        self.accounts.lock().unwrap()
    }

    fn on<T>(&self, id: &AccountId, change: impl FnOnce(&mut Account) -> T) -> Option<T> {
        self.lock().get_mut(id).map(change)
    }

    /// Removes an amount from the account's money, awaits, and puts it back. If the future is dropped at this await,
    /// the amount is lost.
    async fn misplace(&self, id: &AccountId, amount: MicroRub) {
        self.on(id, |account| {
            account.lost = account.lost.plus_or_max(amount)
        });
        yield_now().await;
        self.on(id, |account| {
            account.lost = account.lost.minus_or_zero(amount)
        });
    }

    /// Removes an open hold, awaits, and puts it back. If the future is dropped at this await, the hold is lost.
    async fn remove_for_a_moment(&self, id: &AccountId, number: RequestNumber) {
        let open = self.on(id, |account| account.open.remove(&number));
        yield_now().await;
        if let Some(Some(open)) = open {
            self.on(id, |account| account.open.insert(number, open));
        }
    }

    fn leave_a_gap(&self, bug: Bug) {
        if self.has(bug) {
            std::thread::sleep(GAP);
        }
    }

    fn admits(&self, account: &Account, key: &KeyId) -> Result<(), Refusal> {
        let posted = if self.has(Bug::HeldMoneyCountsAsSpent) {
            account.free()
        } else {
            account.balance
        };
        if !account.keys.contains(key) && !self.has(Bug::AnyKeyOfAnyAccount) {
            Err(Refusal::Unknown)
        } else if posted == MicroRub::ZERO {
            Err(Refusal::AccountEmpty)
        } else {
            Ok(())
        }
    }

    /// Returns the hold that the call already has, or the reason why it can get none. `None` if the call may get a
    /// hold.
    fn known(&self, account: &Account, hold: &Hold) -> Option<Result<Reserved, Refusal>> {
        let has_ended = account.ended.contains_key(&hold.number);
        if has_ended && !self.has(Bug::EndedNumberHoldsAgain) {
            return Some(Err(Refusal::Gone));
        }
        let open = account.open.get(&hold.number)?;
        if self.has(Bug::RepeatedHoldTakesTwice) {
            return None;
        }
        let same = open.hold == *hold || self.has(Bug::AnotherHoldUnderTheSameNumber);
        let same = same && !(self.has(Bug::AdjustedHoldIsAnother) && open.adjusted > 0);
        Some(if same {
            Ok(Reserved {
                held: open.held,
                free: account.free(),
            })
        } else {
            Err(Refusal::Conflict)
        })
    }

    /// Returns the amount to grant for a new hold.
    fn granted(&self, account: &mut Account, hold: &Hold) -> Result<MicroRub, Refusal> {
        self.admits(account, &hold.key)?;
        if account.free() < hold.want && !self.has(Bug::ExpiredHoldsBlock) {
            self.sweep(account);
        }
        let free = if self.has(Bug::OpenHoldsAreNotCounted) {
            account.balance
        } else if self.has(Bug::EachKeyHasTheWholeBalance) {
            let own = account.held(|other| other.key == hold.key);
            account.balance.minus_or_zero(own)
        } else {
            account.free()
        };
        let held = hold.want.min(free);
        let fits = if self.has(Bug::AllOrNothing) {
            held == hold.want
        } else {
            held >= hold.least || self.has(Bug::LeastIsIgnored)
        };
        if fits {
            return Ok(held);
        }
        Err(Refusal::DoesNotFit {
            free,
            held: account.held(|other| other.key == hold.key),
            ceiling: None,
        })
    }

    fn take(&self, account: &mut Account, hold: &Hold, held: MicroRub) -> Reserved {
        let open = Open {
            hold: hold.clone(),
            held,
            adjusted: 0,
            due: Instant::now() + hold.ttl,
        };
        if let Some(earlier) = account.open.insert(hold.number, open) {
            account.lost = account.lost.plus_or_max(earlier.held);
        }
        Reserved {
            held,
            free: account.free(),
        }
    }

    fn sweep(&self, account: &mut Account) -> Vec<(RequestNumber, Open)> {
        let now = Instant::now();
        let everything = self.has(Bug::SweepEndsEveryHold);
        let due = |_: &RequestNumber, open: &mut Open| open.due <= now || everything;
        let expired: Vec<_> = account.open.extract_if(due).collect();
        for (number, open) in &expired {
            let ended = Ended::Expired(open.hold.key.clone());
            account.ended.insert(*number, ended);
        }
        expired
    }

    /// Runs after a hold is checked and before it is made. A ledger without bugs has no such gap.
    async fn between(&self, id: &AccountId, hold: &Hold, held: MicroRub) {
        match self.bug {
            Some(Bug::ReserveDroppedAfterTakingMoney) => self.misplace(id, held).await,
            // The planted bug: a hold that never expires is made first, and removed after an await.
            Some(Bug::ReserveDroppedLivesForEver) => {
                let endless = Hold {
                    ttl: HOUR,
                    ..hold.clone()
                };
                self.on(id, |account| self.take(account, &endless, held));
                yield_now().await;
                self.on(id, |account| account.open.remove(&hold.number));
            }
            Some(Bug::ReserveAwaitsAfterTheCheck) => yield_now().await,
            _ => std::thread::sleep(GAP),
        }
    }

    /// Returns how the call is to be booked, or the result of its earlier settlement.
    fn to_book(&self, account: &Account, call: &Settlement) -> Result<Booked, Settled> {
        let any_key = self.has(Bug::AnotherKeySettles);
        let known_key = account.keys.contains(&call.key);
        match (
            account.ended.get(&call.number),
            account.open.get(&call.number),
        ) {
            (Some(Ended::Booked(first)), _) => Err(Settled {
                repeated: true,
                ..*first
            }),
            (Some(Ended::Expired(_)), _) if self.has(Bug::ExpiredHoldIsNotCharged) => {
                Err(nothing(Booked::Stale))
            }
            (Some(Ended::Expired(on)), _) if *on == call.key => Ok(Booked::Late),
            (None, Some(open)) if open.hold.key == call.key || any_key => Ok(Booked::Held),
            (None, None) if self.has(Bug::LostHoldIsNotCharged) => Err(nothing(Booked::Stale)),
            (None, None) if known_key && (call.fresh || self.has(Bug::OldNumberIsCharged)) => {
                Ok(Booked::Forced)
            }
            _ => Err(nothing(Booked::Stale)),
        }
    }

    fn charge(&self, account: &mut Account, call: &Settlement, booked: Booked) -> Settled {
        let open = if self.has(Bug::TheHoldIsKept) {
            account.open.get(&call.number).cloned()
        } else {
            account.open.remove(&call.number)
        };
        let (held, first) = open.map_or((MicroRub::ZERO, MicroRub::ZERO), |open| {
            (open.held, open.hold.want)
        });
        let available = if self.has(Bug::CostTakesOtherHolds) {
            account.balance
        } else if self.has(Bug::TheFirstHoldPays) {
            first.max(account.free())
        } else if self.has(Bug::CostIsCutToTheHold) && booked == Booked::Held {
            held
        } else {
            account.free()
        };
        let cost = if self.has(Bug::TheHoldIsCharged) && booked == Booked::Held {
            held
        } else {
            call.cost
        };
        let charged = cost.min(available);
        account.balance = account.balance.minus_or_zero(charged);
        let loss = if self.has(Bug::LossIsForgotten) {
            MicroRub::ZERO
        } else {
            cost.minus_or_zero(charged)
        };
        Settled {
            charged,
            loss,
            ..nothing(booked)
        }
    }
}

fn nothing(booked: Booked) -> Settled {
    Settled {
        booked,
        charged: MicroRub::ZERO,
        loss: MicroRub::ZERO,
        repeated: false,
    }
}

impl Ledger for Planted {
    async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        let id = &hold.account;
        if self.has(Bug::ReserveDroppedIsGone) {
            let released = Ended::Booked(nothing(Booked::Released));
            let earlier = self.on(id, |account| account.ended.insert(hold.number, released));
            yield_now().await;
            self.on(id, |account| match earlier.flatten() {
                Some(earlier) => account.ended.insert(hold.number, earlier),
                None => account.ended.remove(&hold.number),
            });
        }
        yield_now().await;
        let check = |account: &mut Account| match self.known(account, hold) {
            Some(known) => Err(known),
            None => self.granted(account, hold).map_err(Err),
        };
        let answer = if self.bug.is_some_and(|bug| IN_TWO_STEPS.contains(&bug)) {
            match self.on(id, check) {
                Some(Ok(held)) => {
                    self.between(id, hold, held).await;
                    self.on(id, |account| Ok(self.take(account, hold, held)))
                }
                Some(Err(known)) => Some(known),
                None => None,
            }
        } else {
            self.on(id, |account| match check(account) {
                Ok(held) => Ok(self.take(account, hold, held)),
                Err(known) => known,
            })
        };
        let answer = answer.unwrap_or(Err(Refusal::Unknown));
        answer.map_err(LedgerError::Refused)
    }

    async fn settle(&self, call: &Settlement) -> Result<Settled, LedgerError> {
        yield_now().await;
        let Some(known) = self.on(&call.account, |account| self.to_book(account, call)) else {
            if self.has(Bug::MissingAccountIsAnError) {
                return Err(LedgerError::Unavailable("no such account".into()));
            }
            return Ok(nothing(Booked::NoAccount));
        };
        self.leave_a_gap(Bug::SettleChecksBeforeItLocks);
        let charges_again = self.has(Bug::RepeatedSettlementCharges);
        let unlocked = self.has(Bug::SettleChecksBeforeItLocks);
        let forgets = self.has(Bug::SettleDroppedAfterTheCharge);
        let settled = self.on(&call.account, |account| {
            let booked = if unlocked {
                known
            } else {
                self.to_book(account, call)
            };
            let booked = match booked {
                Ok(booked) => booked,
                Err(first) if first.repeated && charges_again => Booked::Held,
                Err(settled) => return settled,
            };
            let settled = self.charge(account, call, booked);
            if !forgets {
                let ended = Ended::Booked(settled);
                account.ended.insert(call.number, ended);
            }
            settled
        });
        let settled = settled.expect("no account is ever deleted");
        if forgets && !settled.repeated {
            yield_now().await;
            self.on(&call.account, |account| {
                account.ended.insert(call.number, Ended::Booked(settled))
            });
        }
        Ok(settled)
    }

    async fn settle_all(&self, calls: &[Settlement]) -> Vec<Result<Settled, LedgerError>> {
        let mut answers = Vec::new();
        for call in calls {
            answers.push(self.settle(call).await);
            if self.has(Bug::SettlementsDroppedAfterTheFirst) {
                // The planted bug: the record of the ended call is missing during an await. If the future is dropped at
                // this await, the record is lost.
                let forgotten =
                    self.on(&call.account, |account| account.ended.remove(&call.number));
                yield_now().await;
                if let Some(Some(ended)) = forgotten {
                    self.on(&call.account, |account| {
                        account.ended.insert(call.number, ended)
                    });
                }
            }
        }
        if self.has(Bug::AnswersInAnotherOrder) {
            answers.reverse();
        }
        answers
    }

    async fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        _: &KeyId,
    ) -> Result<(), LedgerError> {
        yield_now().await;
        let known = self.on(account, |account| {
            account.releases += 1;
            matches!(account.ended.get(&number), Some(Ended::Booked(_)))
        });
        self.leave_a_gap(Bug::ReleaseChecksBeforeItLocks);
        let unlocked = self.has(Bug::ReleaseChecksBeforeItLocks);
        let returned = self.on(account, |account| {
            if self.has(Bug::EverySecondReleaseIsIgnored) && account.releases.is_multiple_of(2) {
                return None;
            }
            let open = account.open.remove(&number);
            let booked = match account.ended.get(&number) {
                Some(Ended::Booked(settled)) => Some(*settled),
                _ => None,
            };
            if let Some(settled) = booked
                && self.has(Bug::ReleaseRefundsASettledCall)
            {
                account.balance = account.balance.plus_or_max(settled.charged);
            }
            let keeps = if unlocked {
                known == Some(true)
            } else {
                booked.is_some()
            };
            let forgets = self.has(Bug::ReleaseOfAnUnknownCallIsForgotten) && open.is_none();
            if !keeps && !forgets {
                let released = nothing(Booked::Released);
                account.ended.insert(number, Ended::Booked(released));
            }
            open.map(|open| open.held)
        });
        if let Some(Some(held)) = returned
            && self.has(Bug::ReleaseDroppedBeforeMoneyReturns)
        {
            self.misplace(account, held).await;
        }
        Ok(())
    }

    async fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> Result<bool, LedgerError> {
        yield_now().await;
        if self.has(Bug::ExtendDroppedWithoutTheHold) {
            self.remove_for_a_moment(account, number).await;
        }
        let extended = self.on(account, |account| {
            let Some(open) = account.open.get_mut(&number) else {
                return false;
            };
            if !self.has(Bug::ExtendChangesNothing) {
                open.due = Instant::now() + ttl;
            }
            true
        });
        Ok(extended.unwrap_or(false))
    }

    async fn adjust(&self, adjustment: &Adjustment) -> Result<Adjusted, LedgerError> {
        self.adjust_hold(adjustment).await
    }

    async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
        yield_now().await;
        let admitted = self.on(account, |account| self.admits(account, key));
        let admitted = admitted.unwrap_or(Err(Refusal::Unknown));
        admitted.map_err(LedgerError::Refused)
    }

    async fn expire(&self) -> Result<usize, LedgerError> {
        yield_now().await;
        let accounts: Vec<AccountId> = self.lock().keys().cloned().collect();
        let mut count = 0;
        for id in accounts {
            let expired = self
                .on(&id, |account| self.sweep(account))
                .unwrap_or_default();
            count += expired.len();
            if self.has(Bug::SweepDroppedBeforeMoneyReturns) {
                let held = expired
                    .iter()
                    .fold(MicroRub::ZERO, |sum, (_, open)| sum.plus_or_max(open.held));
                self.misplace(&id, held).await;
            }
        }
        Ok(count + usize::from(self.has(Bug::SweepAlwaysFindsOne)))
    }
}
