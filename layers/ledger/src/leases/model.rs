//! A model of how a ledger carries out turns of leases, over a [`Book`]: `turn.lua` and `recall.lua` in Rust, without a
//! server. A test runs the same random commands against the model and the scripts.

use std::collections::{BTreeMap, BTreeSet};

use super::{RECALLED_FOR, Step, Turn, TurnAnswer, TurnEnd, Word};
use crate::{
    account::AccountId,
    book::{Book, Millis},
    contract::{Booked, Refusal, Settled, Settlement},
    money::MicroRub,
    number::RequestNumber,
    redis::names::begins,
};

/// The leases of all accounts. The holds of these leases are in a book.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseBooks(BTreeMap<AccountId, OfAccount>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OfAccount {
    records: BTreeMap<RequestNumber, Record>,
    /// Calls whose ends were reported by the owners of their leases. An owner reports each end once, so the ledger need
    /// not look for an earlier charge of the call when it carries out an owner's turn.
    told_by_owners: BTreeSet<RequestNumber>,
    /// The leases that were given back.
    closed: BTreeSet<RequestNumber>,
    recalled_at: Option<Millis>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    /// The name of the lease's last turn.
    last: String,
    /// The time until which the owner may grant holds from the lease.
    until: Millis,
}

/// A rule that the ledger follows when it carries out turns of leases. If the model leaves out a rule, a test must
/// fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// An end that is reported twice is charged once.
    EndOnce,
    /// A turn of a lease that is sent twice is carried out once.
    TurnOnce,
    /// A gateway that does not have the name of the lease's last turn cannot continue the lease.
    Fence,
    /// An amount that a lease has paid is no longer in the lease.
    Paid,
    /// A lease pays only for calls of its own key.
    PaysItsOwn,
    /// An amount that a lease gives back is no longer held.
    GivenBack,
    /// A lease gets at most the free money of the account.
    Free,
    /// A lease's amount counts against the ceilings of its key and its group.
    Ceilings,
    /// A lease gets no money on an account or a key that is suspended, disabled or over a ceiling.
    Forbidden,
    /// Until the next turn of its lease is answered, a gateway may grant holds as its previous turn allows, even if the
    /// key was suspended, disabled or over a ceiling meanwhile.
    AnswerReceived,
    /// A key with limited concurrency gets no lease.
    CallsLimited,
    /// No lease is enlarged for a while after a recall.
    Recall,
    /// Holds of running calls grow only by free money of the account.
    RaiseFits,
    /// Holds of running calls do not grow once their account or key is suspended, disabled or over a ceiling.
    RaiseForbidden,
}

impl Rule {
    /// All rules of the model.
    pub const ALL: [Self; 14] = [
        Self::EndOnce,
        Self::TurnOnce,
        Self::Fence,
        Self::Paid,
        Self::PaysItsOwn,
        Self::GivenBack,
        Self::Free,
        Self::Ceilings,
        Self::Forbidden,
        Self::AnswerReceived,
        Self::CallsLimited,
        Self::Recall,
        Self::RaiseFits,
        Self::RaiseForbidden,
    ];
}

impl LeaseBooks {
    /// Carries out a turn of a lease. `charged` returns the result of an earlier charge of a call, whether it was made
    /// by a turn or by SETTLE. `without` is a rule that the model leaves out.
    pub fn turn(
        &mut self,
        book: &mut Book,
        turn: &Turn,
        now: Millis,
        charged: impl Fn(RequestNumber) -> Option<Settled>,
        without: Option<Rule>,
    ) -> TurnAnswer {
        let rules = Rules(without);
        let Some(account) = book.account(&turn.account) else {
            return no_account(turn);
        };
        let of_account = self.0.entry(turn.account.clone()).or_default();
        let refusal = account.refuses(&turn.key, now);
        let refused = refusal.is_some();
        let (holder, booked) = match (account.hold(turn.lease), account.expired_hold(turn.lease)) {
            (Some((key, ..)), _) => (key, Some(Booked::Held)),
            (None, Some(key)) => (key, Some(Booked::Late)),
            (None, None) => (&turn.key, None),
        };
        let stands = booked == Some(Booked::Held);
        let is_of_key = *holder == turn.key;
        let record = of_account.records.get(&turn.lease).cloned();
        let (last, granted_until) = record.map(|record| (record.last, record.until)).unzip();
        let again = turn.step != Step::Tell && last.as_ref() == Some(&turn.this);
        let knows_the_last = last.as_ref() == Some(&turn.before) || !rules.keeps(Rule::Fence);
        let is_new = (last.is_none() && !stands) || !rules.keeps(Rule::Fence);
        let mut word = match turn.step {
            Step::Tell => Word::Done,
            _ if !is_of_key => Word::Fenced,
            _ if again && stands => Word::Done,
            _ if again => Word::Gone,
            Step::Open if !is_new => Word::Fenced,
            // The lease was opened before this turn arrived, and has expired or was given back since.
            Step::Open
                if booked == Some(Booked::Late) || of_account.closed.contains(&turn.lease) =>
            {
                Word::Gone
            }
            Step::Open => Word::Done,
            Step::GoOn | Step::Close if !stands => Word::Gone,
            Step::GoOn | Step::Close if !knows_the_last => Word::Fenced,
            Step::GoOn | Step::Close => Word::Done,
        };
        if turn.step == Step::Open && is_of_key && !again {
            // Forgets expired leases of this account: gateways that died have left them.
            let records = &mut of_account.records;
            records.retain(|lease, _| account.is_open(*lease));
        }
        let goes_on = word == Word::Done && !again && matches!(turn.step, Step::GoOn | Step::Close);
        let again = again && rules.keeps(Rule::TurnOnce);

        let numbers = turn.ends.iter().map(|end| end.settlement.number);
        // A call that was released by a process that did not have the number of its lease stays released, unless the
        // lease's owner continues the lease in this turn.
        let forbidden = numbers.filter_map(|number| {
            let buried = book.buried(number, &turn.account, now)?;
            (!goes_on && buried.booked == Booked::Released).then_some((number, buried))
        });
        let forbidden: BTreeMap<RequestNumber, Settled> = forbidden.collect();
        let told_by_owners = &of_account.told_by_owners;
        let charged = |number| {
            charged(number)
                .filter(|_| !goes_on || !told_by_owners.contains(&number))
                .filter(|first| first.booked != Booked::Stale)
                .or_else(|| forbidden.get(&number).copied())
        };
        let ends = charge(book, turn, is_of_key.then_some(booked), now, charged, rules);
        if goes_on {
            let acknowledged = turn.ends.iter().map(|end| end.settlement.number);
            of_account.told_by_owners.extend(acknowledged);
        }

        let account = book
            .account(&turn.account)
            .expect("the account was found above");
        let limited = account
            .key(&turn.key)
            .is_some_and(|key| key.concurrency.is_some())
            && rules.keeps(Rule::CallsLimited);
        let forbidden =
            (refused || account.is_over_a_ceiling(&turn.key, now)) && rules.keeps(Rule::Forbidden);
        let may = !forbidden && !limited;
        let (mut free, ceiling) = if rules.keeps(Rule::Ceilings) {
            account.room(&turn.key, now)
        } else {
            (account.balance.minus_or_zero(account.held), None)
        };
        let held = account
            .key(&turn.key)
            .map_or(MicroRub::ZERO, |key| key.held);
        let mut refusal = refusal.filter(|_| turn.raise > MicroRub::ZERO);
        if account.key(&turn.key).is_none() {
            free = account.balance.minus_or_zero(account.held);
        }
        let recalled_for = u64::try_from(RECALLED_FOR.as_millis()).unwrap_or(Millis::MAX);
        let recalled = of_account
            .recalled_at
            .is_some_and(|at| now.abs_diff(at) < recalled_for)
            && rules.keeps(Rule::Recall);
        let short = !may || free < turn.short_of || recalled;
        let mut left = account
            .hold(turn.lease)
            .map_or(MicroRub::ZERO, |(_, held, _)| held);
        let mut resized = word == Word::Done && turn.step != Step::Tell && !again;
        let mut given = MicroRub::ZERO;
        if again && word == Word::Done && !may {
            word = Word::Refused;
        }
        if resized {
            let before = left;
            if turn.give > MicroRub::ZERO || turn.step == Step::Close {
                given = if turn.step == Step::Close {
                    left
                } else {
                    turn.give.min(left)
                };
                left = left.minus_or_zero(given);
            } else if turn.more > MicroRub::ZERO && !short {
                let leases = of_account.records.len() + usize::from(last.is_none());
                left = left.plus_or_max(if rules.keeps(Rule::Free) {
                    turn.more.min(share(free, leases))
                } else {
                    turn.more
                });
            }
            free = free.plus_or_max(before).minus_or_zero(left);
            let raised = raised(turn, refused, free, rules);
            left = left.plus_or_max(raised);
            free = free.minus_or_zero(raised);
            if raised < turn.raise && !refused {
                refusal = Some(Refusal::DoesNotFit {
                    free,
                    held: held.minus_or_zero(before).plus_or_max(left),
                    ceiling,
                });
            }
            if turn.step == Step::Open && left == MicroRub::ZERO {
                word = if refused { Word::Refused } else { Word::Short };
                resized = false;
                // From here on the gateway that sent this turn has no lease. A late copy of the turn must not open a
                // lease.
                of_account.closed.insert(turn.lease);
            } else if !may {
                word = Word::Refused;
            }
        }
        let closes = resized && turn.step == Step::Close;
        if closes {
            of_account.records.remove(&turn.lease);
            of_account.closed.insert(turn.lease);
        } else if resized || (again && word == Word::Done) {
            let until = match granted_until {
                _ if turn.grants_ms == 0 => 0,
                _ if may => now.saturating_add(turn.grants_ms),
                Some(until) if rules.keeps(Rule::AnswerReceived) => until,
                _ => 0,
            };
            let last = turn.this.clone();
            of_account
                .records
                .insert(turn.lease, Record { last, until });
        }
        if closes && rules.keeps(Rule::GivenBack) {
            book.end_hold(turn.lease, &turn.account);
        } else if resized && (given == MicroRub::ZERO || rules.keeps(Rule::GivenBack)) {
            let due = now.saturating_add(turn.ttl_ms);
            book.resize_hold(turn.lease, &turn.account, &turn.key, left, due);
        }
        TurnAnswer {
            word,
            left,
            free,
            short: short || recalled,
            recalled,
            refusal,
            last: last.filter(|_| word == Word::Fenced).unwrap_or_default(),
            ends,
        }
    }

    /// Returns whether the owner of a call's lease has reported the end of the call.
    #[must_use]
    pub fn is_told_by_owner(&self, account: &AccountId, number: RequestNumber) -> bool {
        let of_account = self.0.get(account);
        of_account.is_some_and(|of_account| of_account.told_by_owners.contains(&number))
    }

    /// Carries out SETTLE. `charged` is the result of an earlier charge of the call, if a turn of a lease or SETTLE
    /// made a charge.
    pub fn settle(
        &self,
        book: &mut Book,
        settlement: &Settlement,
        now: Millis,
        charged: Option<Settled>,
    ) -> Settled {
        let Settlement {
            number,
            account,
            key,
            cost,
            fresh,
            ..
        } = settlement;
        let buried = book.buried(*number, account, now);
        let first = charged.filter(|first| first.booked != Booked::Stale);
        // A lease pays only for calls without a hold of their own. So if the ledger has an open hold for this call, an
        // earlier charge by the lease's owner does not apply to it.
        let is_open = book
            .account(account)
            .is_some_and(|account| account.is_open(*number));
        let first = first.filter(|_| !is_open || !self.is_told_by_owner(account, *number));
        if let (None, Some(first)) = (buried, first) {
            book.end_hold(*number, account);
            return Settled {
                repeated: true,
                ..first
            };
        }
        book.settle(*number, account, key, *cost, *fresh, now)
    }

    /// Recalls the account's leased money that no call holds. Returns the number of leases that may still grant holds.
    pub fn recall(&mut self, account: &AccountId, now: Millis) -> u64 {
        let Some(of_account) = self.0.get_mut(account) else {
            return 0;
        };
        let granting = of_account.records.values();
        let count = granting.filter(|record| record.until > now).count();
        if count > 0 {
            of_account.recalled_at = Some(now);
        }
        count as u64
    }

    /// The time until which the account's leases may grant holds. An operator's command waits for this time.
    #[must_use]
    pub fn grants_until(&self, book: &Book, account: &AccountId) -> Millis {
        let (Some(of_account), Some(account)) = (self.0.get(account), book.account(account)) else {
            return 0;
        };
        let state = of_account.records.iter();
        state
            .filter(|(lease, _)| account.is_open(**lease))
            .map(|(_, record)| record.until)
            .max()
            .unwrap_or(0)
    }

    /// Sets the time of the last recall; `None` if there was none.
    pub fn set_recalled(&mut self, account: &AccountId, at: Option<Millis>) {
        self.0.entry(account.clone()).or_default().recalled_at = at;
    }
}

#[derive(Clone, Copy)]
struct Rules(Option<Rule>);

impl Rules {
    fn keeps(self, rule: Rule) -> bool {
        self.0 != Some(rule)
    }
}

fn no_account(turn: &Turn) -> TurnAnswer {
    let nothing = nothing(Booked::NoAccount);
    TurnAnswer {
        word: Word::Gone,
        left: MicroRub::ZERO,
        free: MicroRub::ZERO,
        short: true,
        recalled: false,
        refusal: None,
        last: String::new(),
        ends: turn.ends.iter().map(|_| nothing).collect(),
    }
}

const fn nothing(booked: Booked) -> Settled {
    Settled {
        booked,
        charged: MicroRub::ZERO,
        loss: MicroRub::ZERO,
        repeated: false,
    }
}

/// The part of the free money that each lease may get: the leases share one half, and the other half is left for calls
/// without a lease.
fn share(free: MicroRub, leases: usize) -> MicroRub {
    let leases = i64::try_from(leases.max(1)).unwrap_or(i64::MAX);
    MicroRub::new(free.micro() / leases.saturating_mul(2))
}

/// The amount that a turn adds to the lease for larger holds of running calls. A turn that opens a lease adds no such
/// amount, since no call has a hold from the lease yet.
fn raised(turn: &Turn, refused: bool, free: MicroRub, rules: Rules) -> MicroRub {
    let forbidden = refused && rules.keeps(Rule::RaiseForbidden);
    if forbidden || turn.step != Step::GoOn {
        MicroRub::ZERO
    } else if rules.keeps(Rule::RaiseFits) {
        turn.raise.min(free)
    } else {
        turn.raise
    }
}

/// Charges the ends of calls that a turn reports, in the order in which the script `turn.lua` receives them. `booked`
/// is the kind of these charges: `Held` for an open lease, `Late` for an expired lease, `None` if the lease does not
/// belong to the turn's key.
fn charge(
    book: &mut Book,
    turn: &Turn,
    booked: Option<Option<Booked>>,
    now: Millis,
    charged: impl Fn(RequestNumber) -> Option<Settled>,
    rules: Rules,
) -> Vec<Settled> {
    let account = book
        .account_mut(&turn.account)
        .expect("the account was found above");
    let is_key = account.key(&turn.key).is_some();
    let mut ordered: Vec<&TurnEnd> = turn.ends.iter().collect();
    ordered.sort_by_key(|end| begins(end.settlement.number));
    let mut answers = BTreeMap::new();
    for end in ordered {
        let call = &end.settlement;
        let first = charged(call.number).filter(|first| first.booked != Booked::Stale);
        if let Some(first) = first
            && rules.keeps(Rule::EndOnce)
        {
            let again = Settled {
                repeated: true,
                ..first
            };
            answers.insert(call.number, again);
            continue;
        }
        let forced = (call.fresh && is_key).then_some(Booked::Forced);
        let Some(how) = booked.and_then(|booked| booked.or(forced)) else {
            answers.insert(call.number, nothing(Booked::Stale));
            continue;
        };
        let left = account
            .hold(turn.lease)
            .map_or(MicroRub::ZERO, |(_, held, _)| held);
        let cover = if how == Booked::Held && rules.keeps(Rule::PaysItsOwn) {
            end.cover.min(call.cost).min(left)
        } else {
            MicroRub::ZERO
        };
        let lease = if rules.keeps(Rule::Paid) {
            turn.lease
        } else {
            call.number
        };
        let settled =
            account.charge_from(lease, call.number, &turn.key, call.cost, cover, how, now);
        answers.insert(call.number, settled);
    }
    let in_turn = turn.ends.iter();
    in_turn.map(|end| answers[&end.settlement.number]).collect()
}
