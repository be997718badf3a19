//! The model of the ledger's server: the book, the receipts, a replica that lags behind the primary, and a clock that
//! can jump.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    sync::Arc,
    time::Duration,
};

use tollgate_layers::{
    facts::RequestNumber,
    key::{AccountId, KeyId},
    money::MicroRub,
    reserve::{
        book::{self, Account, Book, Command, Outcome},
        ledger::{Adjustment, Booked, Hold, Item, Settled, Settlement},
    },
    usage::End,
};
use tollgate_ledger::leases::{Turn, TurnAnswer, model::LeaseBooks};
use uuid::Uuid;

use crate::{
    leases::Grants,
    plan::{EPOCH_MS, Failover, Ms, about, bits_of},
    vendor::Short,
    world::Sabotage,
};

/// The maximum number of an account's expired holds that one sweep ends.
const EXPIRE_MAX: usize = 256;

/// A request of a gateway or of an operator.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// A command to the ledger's book.
    Step(Command),
    /// A sweep of expired holds, for all accounts.
    Expire,
    /// A lease turn, in which a gateway reports settlements and changes its lease.
    Turn(Arc<Turn>),
    /// A recall of the leased money that no call of the account holds.
    Recall(AccountId),
    /// A query for the time until which the account's leases may grant holds.
    Leases(AccountId),
}

/// The response of the server.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Step(Outcome),
    Turn(TurnAnswer),
    /// The number of leases that may still grant holds.
    Recalled(u64),
    /// The time of the server, and the time until which leases may grant holds.
    Leases(u64, u64),
}

/// A ledger server with its replica.
#[derive(Debug)]
pub(crate) struct Server {
    books: Books,
    replica: Option<Replica>,
    /// A primary that was replaced but is still used by one gateway.
    old: Option<OldPrimary>,
    epoch: u64,
    /// How far the server's clock is ahead of the clock of the run, in milliseconds.
    ahead: i64,
    /// The request numbers of all calls for which a hold was ever granted.
    granted: BTreeSet<RequestNumber>,
    /// The disabled keys whose disabling was acknowledged to the operator.
    closed: BTreeSet<KeyId>,
    pub(crate) grants: Grants,
    pub(crate) breaches: Vec<String>,
}

/// The data of the server. A replica has a copy of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Books {
    pub(crate) book: Book,
    /// The receipts by call. A call with two receipts was charged twice.
    pub(crate) charges: BTreeMap<RequestNumber, Vec<Charge>>,
    /// The payments and corrections.
    pub(crate) entries: BTreeMap<(AccountId, String), MicroRub>,
    leases: LeaseBooks,
    /// The number of changes of holds so far. It determines which changes a sabotage loses.
    adjustments: u32,
}

/// The receipt of a charged call.
#[derive(Clone, Debug)]
pub(crate) struct Charge {
    pub(crate) account: AccountId,
    /// The amount of the call's own hold at the end of the call; `None` if a lease held the money or if there was no
    /// hold.
    pub(crate) held: Option<MicroRub>,
    pub(crate) cost: MicroRub,
    pub(crate) settled: Settled,
}

#[derive(Debug)]
struct Replica {
    lag: Ms,
    books: Books,
    /// The changes that the replica does not have yet. Each has the time of the run, the time of the server, and the
    /// change.
    behind: VecDeque<(Ms, u64, Ask)>,
}

#[derive(Debug)]
struct OldPrimary {
    gateway: usize,
    until: Ms,
    epoch: u64,
    books: Books,
}

impl Server {
    pub(crate) fn new(opening: &[Command], replica_lag: Option<Ms>) -> Self {
        let mut books = Books::default();
        for command in opening {
            books.step(command, EPOCH_MS, None);
        }
        Self {
            replica: replica_lag.map(|lag| Replica {
                lag,
                books: books.clone(),
                behind: VecDeque::new(),
            }),
            books,
            old: None,
            epoch: 0,
            ahead: 0,
            granted: BTreeSet::new(),
            closed: BTreeSet::new(),
            grants: Grants::default(),
            breaches: Vec::new(),
        }
    }

    /// Executes a request of `from` at `now`.
    pub(crate) fn carry_out(
        &mut self,
        now: Ms,
        from: usize,
        ask: &Ask,
        sabotage: Option<Sabotage>,
    ) -> Answer {
        let clock = self.clock(now);
        let old = self
            .old
            .as_mut()
            .filter(|old| old.gateway == from && now < old.until);
        let is_old = old.is_some();
        let books = old.map_or(&mut self.books, |old| &mut old.books);
        let before = books.held_for(ask);
        let answer = books.carry_out(ask, clock, sabotage);
        if let (Some((key, before)), Some((_, after))) = (before, books.held_for(ask))
            && after > before
        {
            if !is_old && self.closed.contains(&key) {
                self.breaches.push(format!(
                    "I12 key {key}: {after} held after {before}, and its disabling was acknowledged"
                ));
            }
            // If a ceiling was lowered, the key may already hold more than the ceiling. So the ceiling is checked only
            // if the held amount has grown.
            let beyond = books.beyond_its_ceiling(ask);
            self.breaches
                .extend(beyond.map(|beyond| format!("I4 key {key}: {beyond} at {now} ms")));
        }
        for (id, account) in books.book.accounts() {
            if account.held < MicroRub::ZERO || account.held > account.balance {
                self.breaches
                    .push(format!("I4 account {id}: {account:?} at {now} ms"));
            }
            self.breaches.extend(beyond_a_limit(id, account, now));
        }
        if !is_old && let Some(replica) = &mut self.replica {
            match ask {
                Ask::Leases(_) => {}
                Ask::Expire => {
                    let commands = sweep(&self.books.book);
                    let steps = commands.into_iter();
                    let steps = steps.map(|command| (now, clock, Ask::Step(command)));
                    replica.behind.extend(steps);
                }
                ask => replica.behind.push_back((now, clock, ask.clone())),
            }
            replica.catch_up(now.saturating_sub(replica.lag), sabotage);
        }
        match (ask, &answer) {
            (Ask::Step(Command::Reserve(hold)), Answer::Step(Outcome::Reserve(Ok(_)))) => {
                self.tell_granted(hold.number, &hold.key, is_old);
            }
            (Ask::Turn(turn), Answer::Turn(answer)) => self.grants.reported(turn, answer, now),
            _ => {}
        }
        answer
    }

    /// Records that a lease has granted a hold, and checks whether the lease was allowed to grant it.
    pub(crate) fn lease_granted(&mut self, now: Ms, hold: &Hold, lease: RequestNumber, max: Ms) {
        self.granted.insert(hold.number);
        let limited = self.books.book.account(&hold.account).and_then(|account| {
            let key = account.key(&hold.key)?;
            key.concurrency
        });
        if limited.is_some() {
            self.breaches.push(format!(
                "{}: granted from lease {lease} on key {}, whose calls are limited",
                hold.number, hold.key
            ));
        }
        self.breaches
            .extend(self.grants.granted(hold, lease, max, now));
    }

    /// Returns the response that a RESERVE would get now, and makes no hold.
    pub(crate) fn only_look(&mut self, now: Ms, command: &Command) -> Outcome {
        let clock = self.clock(now);
        let outcome = book::apply(&mut self.books.book.clone(), command, clock);
        if let (Command::Reserve(hold), Outcome::Reserve(Ok(_))) = (command, &outcome) {
            self.tell_granted(hold.number, &hold.key, false);
        }
        outcome
    }

    fn tell_granted(&mut self, number: RequestNumber, key: &KeyId, by_the_old: bool) {
        // The old primary does not have changes that were acknowledged after it was replaced, so it may still grant
        // holds.
        if self.granted.insert(number) && !by_the_old && self.closed.contains(key) {
            self.breaches.push(format!(
                "I12 {number}: a hold on key {key}, whose disabling was acknowledged"
            ));
        }
    }

    pub(crate) fn was_granted(&self, number: RequestNumber) -> bool {
        self.granted.contains(&number)
    }

    /// Records that the operator got the acknowledgement for disabling a key, or that the operator has begun to enable
    /// the key again.
    pub(crate) fn close(&mut self, key: &KeyId, closed: bool) {
        if closed {
            self.closed.insert(key.clone());
        } else {
            self.closed.remove(key);
        }
    }

    /// Returns the number of the server that a gateway uses now. Each failover results in a new number.
    pub(crate) fn epoch(&self, gateway: usize, now: Ms) -> u64 {
        match &self.old {
            Some(old) if old.gateway == gateway && now < old.until => old.epoch,
            _ => self.epoch,
        }
    }

    /// Returns the time at which the replica gets a change that is made now.
    pub(crate) fn replica_lag(&self) -> Option<Ms> {
        self.replica.as_ref().map(|replica| replica.lag)
    }

    /// Makes the replica the ledger, as a failover does.
    pub(crate) fn fail_over(
        &mut self,
        now: Ms,
        failover: Failover,
        lease_max: Ms,
        sabotage: Option<Sabotage>,
    ) {
        let Some(replica) = &mut self.replica else {
            return;
        };
        replica.catch_up(now.saturating_sub(failover.drops), sabotage);
        replica.behind.clear();
        let books = mem::replace(&mut self.books, replica.books.clone());
        self.old = failover.split.map(|(gateway, ms)| OldPrimary {
            gateway,
            until: now + ms,
            epoch: self.epoch,
            books,
        });
        self.epoch += 1;
        self.grants
            .unsure(now + failover.split.map_or(0, |(_, ms)| ms) + lease_max);
    }

    /// Moves the server's clock by `by` milliseconds.
    pub(crate) fn set_clock(&mut self, now: Ms, by: i64, lease_max: Ms) {
        self.ahead += by;
        self.grants.unsure(now + lease_max);
    }

    fn clock(&self, now: Ms) -> u64 {
        (EPOCH_MS + now).saturating_add_signed(self.ahead)
    }

    /// Returns the books of the current ledger.
    pub(crate) const fn books(&self) -> &Books {
        &self.books
    }
}

/// Returns breaches of a group's ceiling by what its keys have spent and hold, and breaches of a key's limit of open
/// calls.
fn beyond_a_limit(id: &AccountId, account: &Account, now: Ms) -> Vec<String> {
    let groups = account.groups().filter_map(|(group, book)| {
        let ceiling = book.money.ceilings.total?;
        let taken = book.money.used.plus_or_max(book.money.held);
        (taken > ceiling)
            .then(|| format!("I4 group {group} of {id}: {taken} of {ceiling} at {now} ms"))
    });
    let keys = account.keys().filter_map(|(key, book)| {
        let most = usize::try_from(book.concurrency?).ok()?;
        let open = account
            .holds()
            .filter(|(_, holder, ..)| *holder == key)
            .count();
        (open > most).then(|| format!("key {key}: {open} calls at once of {most} at {now} ms"))
    });
    groups.chain(keys).collect()
}

/// Returns the account and key of a request that may hold money.
fn holder(ask: &Ask) -> Option<(&AccountId, &KeyId)> {
    match ask {
        Ask::Step(Command::Reserve(hold)) => Some((&hold.account, &hold.key)),
        Ask::Step(Command::Adjust(adjustment)) => Some((&adjustment.account, &adjustment.key)),
        Ask::Turn(turn) => Some((&turn.account, &turn.key)),
        _ => None,
    }
}

fn sweep(book: &Book) -> Vec<Command> {
    book.accounts()
        .map(|(account, _)| Command::Expire {
            account: account.clone(),
            most: EXPIRE_MAX,
        })
        .collect()
}

impl Books {
    fn carry_out(&mut self, ask: &Ask, now: u64, sabotage: Option<Sabotage>) -> Answer {
        match ask {
            Ask::Step(command) => Answer::Step(self.step(command, now, sabotage)),
            Ask::Expire => {
                let mut ended = 0;
                for command in sweep(&self.book) {
                    if let Outcome::Expired(count) = self.step(&command, now, sabotage) {
                        ended += count;
                    }
                }
                Answer::Step(Outcome::Expired(ended))
            }
            Ask::Turn(turn) => Answer::Turn(self.turn(turn, now, sabotage)),
            Ask::Recall(account) => Answer::Recalled(self.leases.recall(account, now)),
            Ask::Leases(account) => {
                Answer::Leases(now, self.leases.grants_until(&self.book, account))
            }
        }
    }

    /// Returns the key that may hold more money after a request, and the amount that the key holds now.
    fn held_for(&self, ask: &Ask) -> Option<(KeyId, MicroRub)> {
        let (account, key) = holder(ask)?;
        let held = self.book.account(account)?.key(key)?.held;
        Some((key.clone(), held))
    }

    /// Returns what the key of a request has spent and holds in total, together with its ceiling, if the total exceeds
    /// the ceiling.
    fn beyond_its_ceiling(&self, ask: &Ask) -> Option<String> {
        let (account, key) = holder(ask)?;
        let key = self.book.account(account)?.key(key)?;
        let ceiling = key.ceilings.total?;
        let taken = key.used.plus_or_max(key.held);
        (taken > ceiling).then(|| format!("{taken} of {ceiling}"))
    }

    fn turn(&mut self, turn: &Turn, now: u64, sabotage: Option<Sabotage>) -> TurnAnswer {
        let rule = sabotage.and_then(Sabotage::rule);
        let charges = &self.charges;
        let known = |number| Some(charges.get(&number)?.first()?.settled);
        let answer = self.leases.turn(&mut self.book, turn, now, known, rule);
        for (end, settled) in turn.ends.iter().zip(&answer.ends) {
            let end = &end.settlement;
            self.charged(end.number, &end.account, None, end.cost, *settled);
        }
        answer
    }

    fn step(&mut self, command: &Command, now: u64, sabotage: Option<Sabotage>) -> Outcome {
        match command {
            Command::Settle {
                number,
                account,
                key,
                cost,
                fresh,
            } => Outcome::Settled(match sabotage {
                Some(Sabotage::LoseSettle) if bits_of(*number).is_multiple_of(8) => Settled {
                    booked: Booked::Held,
                    charged: *cost,
                    loss: MicroRub::ZERO,
                    repeated: false,
                },
                Some(Sabotage::SettleTwice) if self.charges.contains_key(number) => {
                    let times = self.charges[number].len() as u128;
                    let other = Uuid::from_u128(number.uuid().as_u128() ^ (times << 100));
                    let other = RequestNumber::from_uuid(other);
                    let settled = self.book.settle(other, account, key, *cost, true, now);
                    self.charged(*number, account, None, *cost, settled)
                }
                _ => self.settle(*number, account, key, *cost, *fresh, now),
            }),
            Command::Enter { account, entry } => {
                let outcome = book::apply(&mut self.book, command, now);
                if outcome == Outcome::Done {
                    self.entries
                        .insert((account.clone(), entry.id.clone()), entry.amount);
                }
                outcome
            }
            Command::Adjust(adjustment) => self.adjust(adjustment, now, sabotage),
            _ => book::apply(&mut self.book, command, now),
        }
    }

    fn adjust(&mut self, adjustment: &Adjustment, now: u64, sabotage: Option<Sabotage>) -> Outcome {
        self.adjustments += 1;
        let mut adjustment = adjustment.clone();
        if sabotage == Some(Sabotage::StaleAdjustment) {
            adjustment.sequence = self.adjustments;
        }
        let loses =
            sabotage == Some(Sabotage::LoseAdjustment) && self.adjustments.is_multiple_of(3);
        if !loses {
            return Outcome::Adjust(self.book.adjust(&adjustment, now));
        }
        let before = self.book.clone();
        let held = |book: &Book| Some(book.account(&adjustment.account)?.held);
        let answer = self.book.adjust(&adjustment, now);
        if held(&self.book) > held(&before) {
            self.book = before;
        }
        Outcome::Adjust(answer)
    }

    /// Settles a call. As in every store, a repeated settlement is answered from the receipt, even after the tombstone
    /// has expired.
    fn settle(
        &mut self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
        cost: MicroRub,
        fresh: bool,
        now: u64,
    ) -> Settled {
        let first = self.charges.get(&number).and_then(|all| all.first());
        let first = first.map(|charge| charge.settled);
        let (held, item) = (MicroRub::ZERO, Item::new("", "", End::Finished));
        let hold = Hold::new(number, account.clone(), key.clone(), held, Duration::ZERO);
        let mut settlement = Settlement::new(&hold, held, cost, item);
        settlement.fresh = fresh;
        let held = self.book.account(account).and_then(|account| {
            let mut holds = account.holds();
            holds.find_map(|(open, _, held, _)| (open == number).then_some(held))
        });
        let settled = self.leases.settle(&mut self.book, &settlement, now, first);
        self.charged(number, account, held, cost, settled)
    }

    fn charged(
        &mut self,
        number: RequestNumber,
        account: &AccountId,
        held: Option<MicroRub>,
        cost: MicroRub,
        settled: Settled,
    ) -> Settled {
        let moved = matches!(settled.booked, Booked::Held | Booked::Late | Booked::Forced);
        if moved && !settled.repeated {
            self.charges.entry(number).or_default().push(Charge {
                account: account.clone(),
                held,
                cost,
                settled,
            });
        }
        settled
    }
}

impl Replica {
    /// Applies the changes that were made up to `until`.
    fn catch_up(&mut self, until: Ms, sabotage: Option<Sabotage>) {
        while let Some((at, _, _)) = self.behind.front()
            && *at <= until
        {
            if let Some((_, clock, ask)) = self.behind.pop_front() {
                self.books.carry_out(&ask, clock, sabotage);
            }
        }
    }
}

/// Returns the text of a request for the log of a run.
impl std::fmt::Display for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let command = match self {
            Self::Expire => return f.write_str("expire"),
            Self::Recall(account) => return write!(f, "recall {account}"),
            Self::Leases(account) => return write!(f, "leases {account}"),
            Self::Turn(turn) => {
                write!(f, "turn of {} on {}", Short(turn.lease), turn.key)?;
                write!(f, " {:?} -{} +{}", turn.step, turn.give, turn.more)?;
                if turn.raise > MicroRub::ZERO {
                    write!(f, " raise {}", turn.raise)?;
                }
                for end in &turn.ends {
                    let (number, cost) = (Short(end.settlement.number), end.settlement.cost);
                    write!(f, ", {number} {cost} of {}", end.cover)?;
                }
                return Ok(());
            }
            Self::Step(command) => command,
        };
        let word = match command {
            Command::Reserve(hold) => {
                let number = Short(hold.number);
                return write!(f, "reserve {number} {}..{}", hold.least, hold.want);
            }
            Command::Settle {
                number,
                cost,
                fresh,
                ..
            } => {
                let stale = if *fresh { "" } else { " not fresh" };
                return write!(f, "settle {} {cost}{stale}", Short(*number));
            }
            Command::Enter { entry, .. } => {
                return write!(f, "enter {} {}", entry.id, entry.amount);
            }
            Command::SetKey {
                key,
                ceilings,
                enabled,
                ..
            } => return write!(f, "set {key} {ceilings:?} enabled {enabled}"),
            Command::SetGroup {
                group, ceilings, ..
            } => return write!(f, "set {group} {ceilings:?}"),
            Command::Bind {
                key,
                group,
                concurrency,
                ..
            } => return write!(f, "bind {key} {group:?} {concurrency:?}"),
            Command::SetAccount { suspended, .. } => {
                return write!(f, "set {} suspended {suspended}", about(command).0);
            }
            Command::Release { .. } => "release",
            Command::Adjust(adjustment) => {
                let (number, amount) = (Short(adjustment.number), adjustment.amount);
                return write!(f, "adjust {number} {} {amount}", adjustment.sequence);
            }
            Command::Extend { .. } => "extend",
            Command::Probe { .. } => "probe",
            Command::Expire { .. } => "expire",
        };
        match about(command) {
            (_, Some(number)) => write!(f, "{word} {}", Short(number)),
            (account, None) => write!(f, "{word} {account}"),
        }
    }
}
