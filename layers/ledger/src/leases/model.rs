//! A model of a ledger that carries out lease turns, over a [`Book`]: the scripts `turn.lua` and `recall.lua` in Rust,
//! without a server. A test runs the same random commands against the model and the scripts, and compares the results.

use std::collections::{BTreeMap, BTreeSet};

use super::{RECALLED_FOR, Step, Turn, TurnAnswer, TurnEnd, Word};
use crate::{
    account::AccountId,
    book::{Account, Book, Millis, millis},
    ceiling::Ceiling,
    contract::{Booked, Refusal, Settled, Settlement},
    money::MicroRub,
    number::RequestNumber,
    redis::names::begins,
};

/// The leases of all accounts, without their money: the hold of each lease is in a [`Book`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseBooks(BTreeMap<AccountId, AccountLeases>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct AccountLeases {
    records: BTreeMap<RequestNumber, Record>,
    /// Calls whose settlement was reported by the lease's owner. An owner reports each settlement once, so the ledger
    /// need not search for an earlier charge when it handles an owner's turn.
    reported_by_owners: BTreeSet<RequestNumber>,
    /// The numbers of leases that were given back.
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

/// A rule that the ledger follows when it carries out lease turns. The model can leave out one rule; some test must
/// then fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A settlement that is reported twice is charged once.
    EndOnce,
    /// A turn that is sent twice is carried out once.
    TurnOnce,
    /// A gateway can continue a lease only if it has the name of the lease's last turn.
    Fence,
    /// Money that a lease has paid for calls is no longer in the lease.
    Paid,
    /// A lease pays only for calls of its own key.
    PaysItsOwn,
    /// Money that a lease gives back is no longer held on the account.
    GivenBack,
    /// A lease is enlarged by at most the free money of the account.
    Free,
    /// The money of a lease counts against the ceilings of the lease's key and of its group.
    Ceilings,
    /// A lease gets no money if its account is suspended, its key is disabled, or a ceiling is exceeded.
    Forbidden,
    /// A gateway may grant holds until the time that its last answered turn allows, even if the key was suspended,
    /// disabled or over a ceiling meanwhile.
    AnswerReceived,
    /// A key with a limit of concurrent calls gets no lease.
    CallsLimited,
    /// For [`RECALLED_FOR`] after a recall, no lease of the account is enlarged.
    Recall,
    /// An increase of the holds of in-flight calls is at most the free money of the account.
    RaiseFits,
    /// The holds of in-flight calls do not grow while the account is suspended, the key is disabled, or a ceiling is
    /// exceeded.
    RaiseForbidden,
}

impl Rule {
    /// All rules.
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
    /// Carries out a turn. `charged` looks up the result of an earlier charge of a call, whether a turn or SETTLE made
    /// it. `without` is the rule that the model leaves out.
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
        let leases = self.0.entry(turn.account.clone()).or_default();
        let refusal = account.refuses(&turn.key, now);
        let refused = refusal.is_some();
        let lease = LeaseState::read(leases, account, turn);
        let mut word = lease.word_for(turn, rules);
        if turn.step == Step::Open && lease.is_of_key && !lease.again {
            // Removes leases of this account that have expired: their gateways have died.
            leases.records.retain(|lease, _| account.is_open(*lease));
        }
        let goes_on =
            word == Word::Done && !lease.again && matches!(turn.step, Step::GoOn | Step::Close);
        let again = lease.again && rules.keeps(Rule::TurnOnce);
        let ends = leases.charge_ends(book, turn, &lease, goes_on, now, charged, rules);

        let account = book
            .account(&turn.account)
            .expect("the account of the turn exists: this was checked at the beginning");
        let recalled = leases.is_recalled(now) && rules.keeps(Rule::Recall);
        let mut money = Money::read(account, turn, refused, now, rules);
        let short = !money.may || money.free < turn.short_of || recalled;
        let mut refusal = refusal.filter(|_| turn.raise > MicroRub::ZERO);
        let mut resized = word == Word::Done && turn.step != Step::Tell && !again;
        let mut given = MicroRub::ZERO;
        if again && word == Word::Done && !money.may {
            word = Word::Refused;
        }
        if resized {
            let count = leases.records.len() + usize::from(lease.last.is_none());
            given = money.resize(turn, count, short, rules);
            refusal = money.raise(turn, refused, rules).or(refusal);
            if turn.step == Step::Open && money.left == MicroRub::ZERO {
                word = if refused { Word::Refused } else { Word::Short };
                resized = false;
                // The gateway drops this lease. A late copy of the turn must not open the lease.
                leases.closed.insert(turn.lease);
            } else if !money.may {
                word = Word::Refused;
            }
        }
        let closes = resized && turn.step == Step::Close;
        if closes {
            leases.records.remove(&turn.lease);
            leases.closed.insert(turn.lease);
        } else if resized || (again && word == Word::Done) {
            let until = lease.next_grants_until(turn, money.may, now, rules);
            let last = turn.this.clone();
            leases.records.insert(turn.lease, Record { last, until });
        }
        if closes && rules.keeps(Rule::GivenBack) {
            book.end_hold(turn.lease, &turn.account);
        } else if resized && (given == MicroRub::ZERO || rules.keeps(Rule::GivenBack)) {
            let due = now.saturating_add(turn.ttl_ms);
            book.resize_hold(turn.lease, &turn.account, &turn.key, money.left, due);
        }
        TurnAnswer {
            word,
            left: money.left,
            free: money.free,
            short: short || recalled,
            recalled,
            refusal,
            last: (lease.last)
                .filter(|_| word == Word::Fenced)
                .unwrap_or_default(),
            ends,
        }
    }

    /// Returns whether the lease's owner has reported the settlement of the call.
    #[must_use]
    pub fn is_reported_by_owner(&self, account: &AccountId, number: RequestNumber) -> bool {
        let leases = self.0.get(account);
        leases.is_some_and(|leases| leases.reported_by_owners.contains(&number))
    }

    /// Carries out SETTLE. `charged` is the result of an earlier charge of the call, if a turn or SETTLE has charged
    /// it.
    pub fn settle(
        &self,
        book: &mut Book,
        settlement: &Settlement,
        now: Millis,
        charged: Option<Settled>,
    ) -> Settled {
        let (number, account) = (settlement.number, &settlement.account);
        let buried = book.buried(number, account, now);
        let first = charged.filter(|first| first.booked != Booked::Stale);
        // A lease pays only for calls that have no hold of their own. So if the ledger has an open hold for this call,
        // an earlier charge by the lease's owner was for another hold, and this settlement is not a repeat of it.
        let is_open = book
            .account(account)
            .is_some_and(|account| account.is_open(number));
        let first = first.filter(|_| !is_open || !self.is_reported_by_owner(account, number));
        if let (None, Some(first)) = (buried, first) {
            book.end_hold(number, account);
            return Settled {
                repeated: true,
                ..first
            };
        }
        let (key, cost) = (&settlement.key, settlement.cost);
        book.settle(number, account, key, cost, settlement.fresh, now)
    }

    /// Recalls the leased money of the account that no call holds. Returns how many leases may still grant holds.
    pub fn recall(&mut self, account: &AccountId, now: Millis) -> u64 {
        let Some(leases) = self.0.get_mut(account) else {
            return 0;
        };
        let granting = leases.records.values();
        let count = granting.filter(|record| record.until > now).count();
        if count > 0 {
            leases.recalled_at = Some(now);
        }
        count as u64
    }

    /// Returns the latest time until which a lease of the account may grant holds. An operator's command waits for this
    /// time.
    #[must_use]
    pub fn grants_until(&self, book: &Book, account: &AccountId) -> Millis {
        let (Some(leases), Some(account)) = (self.0.get(account), book.account(account)) else {
            return 0;
        };
        let state = leases.records.iter();
        state
            .filter(|(lease, _)| account.is_open(**lease))
            .map(|(_, record)| record.until)
            .max()
            .unwrap_or(0)
    }

    /// Sets when leases of the account were last recalled; `None` if they never were.
    pub fn set_recalled(&mut self, account: &AccountId, at: Option<Millis>) {
        self.0.entry(account.clone()).or_default().recalled_at = at;
    }
}

impl AccountLeases {
    fn is_recalled(&self, now: Millis) -> bool {
        let recalled_for = millis(RECALLED_FOR);
        (self.recalled_at).is_some_and(|at| now.abs_diff(at) < recalled_for)
    }

    /// Charges the settlements that a turn reports, except for calls that were charged, or finally released, before.
    /// `goes_on` is true if the turn is one in which the owner continues its lease.
    #[expect(
        clippy::too_many_arguments,
        reason = "needs the turn, the state before the turn, and the variant of the model"
    )]
    fn charge_ends(
        &mut self,
        book: &mut Book,
        turn: &Turn,
        lease: &LeaseState,
        goes_on: bool,
        now: Millis,
        charged: impl Fn(RequestNumber) -> Option<Settled>,
        rules: Rules,
    ) -> Vec<Settled> {
        let numbers = || turn.ends.iter().map(|end| end.settlement.number);
        // A process that did not have the lease's number may have released the call. Such a call stays released, unless
        // the lease's owner continues the lease in this turn.
        let forbidden = numbers().filter_map(|number| {
            let buried = book.buried(number, &turn.account, now)?;
            (!goes_on && buried.booked == Booked::Released).then_some((number, buried))
        });
        let forbidden: BTreeMap<RequestNumber, Settled> = forbidden.collect();
        let reported_by_owners = &self.reported_by_owners;
        let charged = |number| {
            charged(number)
                .filter(|_| !goes_on || !reported_by_owners.contains(&number))
                .filter(|first| first.booked != Booked::Stale)
                .or_else(|| forbidden.get(&number).copied())
        };
        let booked = lease.is_of_key.then_some(lease.booked);
        let ends = charge(book, turn, booked, now, charged, rules);
        if goes_on {
            self.reported_by_owners.extend(numbers());
        }
        ends
    }
}

/// The state of a lease in the ledger when one of its turns arrives.
struct LeaseState {
    /// Whether the lease belongs to the turn's key. True if the lease does not exist.
    is_of_key: bool,
    /// How charges of the lease are booked: `Held` if it is open, `Late` if it has expired, `None` if it does not
    /// exist.
    booked: Option<Booked>,
    /// The name of the lease's last turn.
    last: Option<String>,
    /// The time until which the last turn lets the owner grant holds.
    granted_until: Option<Millis>,
    /// Whether the owner has given the lease back.
    is_closed: bool,
    /// Whether the arriving turn repeats the lease's last turn.
    again: bool,
}

impl LeaseState {
    fn read(leases: &AccountLeases, account: &Account, turn: &Turn) -> Self {
        let (holder, booked) = match (account.hold(turn.lease), account.expired_hold(turn.lease)) {
            (Some((key, ..)), _) => (key, Some(Booked::Held)),
            (None, Some(key)) => (key, Some(Booked::Late)),
            (None, None) => (&turn.key, None),
        };
        let record = leases.records.get(&turn.lease).cloned();
        let (last, granted_until) = record.map(|record| (record.last, record.until)).unzip();
        Self {
            is_of_key: *holder == turn.key,
            booked,
            again: turn.step != Step::Tell && last.as_ref() == Some(&turn.this),
            last,
            granted_until,
            is_closed: leases.closed.contains(&turn.lease),
        }
    }

    /// Returns the outcome of the turn, as far as it does not depend on money.
    fn word_for(&self, turn: &Turn, rules: Rules) -> Word {
        let is_open = self.booked == Some(Booked::Held);
        let fences = rules.keeps(Rule::Fence);
        let is_new = (self.last.is_none() && !is_open) || !fences;
        match turn.step {
            Step::Tell => Word::Done,
            _ if !self.is_of_key => Word::Fenced,
            _ if self.again && is_open => Word::Done,
            _ if self.again => Word::Gone,
            Step::Open if !is_new => Word::Fenced,
            // The lease was opened by an earlier copy of this turn, and has expired or was given back since.
            Step::Open if self.booked == Some(Booked::Late) || self.is_closed => Word::Gone,
            Step::Open => Word::Done,
            Step::GoOn | Step::Close if !is_open => Word::Gone,
            Step::GoOn | Step::Close if fences && self.last.as_ref() != Some(&turn.before) => {
                Word::Fenced
            }
            Step::GoOn | Step::Close => Word::Done,
        }
    }

    /// Returns the time until which the owner may grant holds after the turn. `may` is true if the lease may get money
    /// now.
    fn next_grants_until(&self, turn: &Turn, may: bool, now: Millis, rules: Rules) -> Millis {
        match self.granted_until {
            _ if turn.grants_ms == 0 => 0,
            _ if may => now.saturating_add(turn.grants_ms),
            Some(until) if rules.keeps(Rule::AnswerReceived) => until,
            _ => 0,
        }
    }
}

/// A lease's money, and the money available to it, while a turn is carried out.
struct Money {
    /// Whether the account's state, the key's state and the ceilings allow the lease to get money.
    may: bool,
    /// The lease's money.
    left: MicroRub,
    /// The money that is free outside the lease, and the ceiling that limits this amount.
    free: MicroRub,
    ceiling: Option<Ceiling>,
    /// The amount that the key holds outside the lease.
    held_otherwise: MicroRub,
}

impl Money {
    fn read(account: &Account, turn: &Turn, refused: bool, now: Millis, rules: Rules) -> Self {
        let key = account.key(&turn.key);
        let limited =
            key.is_some_and(|key| key.concurrency.is_some()) && rules.keeps(Rule::CallsLimited);
        let forbidden =
            (refused || account.is_over_a_ceiling(&turn.key, now)) && rules.keeps(Rule::Forbidden);
        let (free, ceiling) = if key.is_some() && rules.keeps(Rule::Ceilings) {
            account.room(&turn.key, now)
        } else {
            (account.balance.minus_or_zero(account.held), None)
        };
        let hold = account.hold(turn.lease);
        let left = hold.map_or(MicroRub::ZERO, |(_, held, _)| held);
        let held = key.map_or(MicroRub::ZERO, |key| key.held);
        Self {
            may: !forbidden && !limited,
            left,
            free,
            ceiling,
            held_otherwise: held.minus_or_zero(left),
        }
    }

    /// Takes from the lease, or adds to it, the amount that the turn names. `leases` is the number of leases of the
    /// account. Returns the amount taken.
    fn resize(&mut self, turn: &Turn, leases: usize, short: bool, rules: Rules) -> MicroRub {
        let (before, mut given) = (self.left, MicroRub::ZERO);
        if turn.step == Step::Close {
            given = self.left;
        } else if turn.give > MicroRub::ZERO {
            given = turn.give.min(self.left);
        } else if turn.more > MicroRub::ZERO && !short {
            let more = match rules.keeps(Rule::Free) {
                true => turn.more.min(share(self.free, leases)),
                false => turn.more,
            };
            self.left = self.left.plus_or_max(more);
        }
        self.left = self.left.minus_or_zero(given);
        self.free = self.free.plus_or_max(before).minus_or_zero(self.left);
        given
    }

    /// Adds the amount by which the holds of in-flight calls grow. If money is short and the holds cannot grow in full,
    /// returns the reason.
    fn raise(&mut self, turn: &Turn, refused: bool, rules: Rules) -> Option<Refusal> {
        let raised = raised(turn, refused, self.free, rules);
        self.left = self.left.plus_or_max(raised);
        self.free = self.free.minus_or_zero(raised);
        (raised < turn.raise && !refused).then_some(Refusal::DoesNotFit {
            free: self.free,
            held: self.held_otherwise.plus_or_max(self.left),
            ceiling: self.ceiling,
        })
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
    TurnAnswer {
        word: Word::Gone,
        left: MicroRub::ZERO,
        free: MicroRub::ZERO,
        short: true,
        recalled: false,
        refusal: None,
        last: String::new(),
        ends: vec![Settled::nothing(Booked::NoAccount); turn.ends.len()],
    }
}

/// Returns the largest amount that may be added to one lease: the leases share one half of the free money, and the
/// other half is left for calls without a lease.
fn share(free: MicroRub, leases: usize) -> MicroRub {
    let leases = i64::try_from(leases.max(1)).unwrap_or(i64::MAX);
    MicroRub::new(free.micro() / leases.saturating_mul(2))
}

/// Returns the amount that a turn adds to the lease for larger holds of in-flight calls. A turn that opens a lease adds
/// nothing for such holds, because no call has a hold against the lease yet.
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

/// Charges the settlements that a turn reports, in the order in which `turn.lua` receives them. `booked` is the way in
/// which they are booked: `Held` for an open lease, `Late` for an expired lease, `None` if the lease does not belong to
/// the turn's key.
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
        .expect("the account of the turn exists: this was checked at the beginning");
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
            answers.insert(call.number, Settled::nothing(Booked::Stale));
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
