//! The ledger's server: the book, receipts beside it, a replica that lags, a clock that can be set.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
};

use tollgate_layers::{
    facts::RequestNumber,
    key::{AccountId, KeyId},
    money::MicroRub,
    reserve::{
        book::{self, Account, Book, Command, Outcome},
        ledger::{Booked, Settled},
    },
};
use uuid::Uuid;

use crate::{
    plan::{EPOCH_MS, Failover, Ms, about, bits_of},
    vendor::Short,
    world::Sabotage,
};

/// As many holds of an account end in one sweep.
const EXPIRE_MAX: usize = 256;

/// What a gateway or an operator asks of the server.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// One step of the book.
    Step(Command),
    /// A sweep over all accounts.
    Expire,
}

/// A server with its replica.
#[derive(Debug)]
pub(crate) struct Server {
    books: Books,
    replica: Option<Replica>,
    /// A primary that was replaced and does not know it yet.
    old: Option<OldPrimary>,
    epoch: u64,
    /// How far its clock is ahead of the run's.
    ahead: i64,
    /// Every number that was ever told that it holds money.
    granted: BTreeSet<RequestNumber>,
    /// Keys that operators know to be disabled.
    closed: BTreeSet<KeyId>,
    pub(crate) breaches: Vec<String>,
}

/// What the server keeps, and a replica gets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Books {
    pub(crate) book: Book,
    /// Receipts: a number with two was charged twice.
    pub(crate) charges: BTreeMap<RequestNumber, Vec<Charge>>,
    /// Payments and corrections.
    pub(crate) entries: BTreeMap<(AccountId, String), MicroRub>,
}

/// A receipt.
#[derive(Clone, Debug)]
pub(crate) struct Charge {
    pub(crate) account: AccountId,
    pub(crate) cost: MicroRub,
    pub(crate) settled: Settled,
}

#[derive(Debug)]
struct Replica {
    lag: Ms,
    books: Books,
    /// What it has not got yet: when, at which time of the server, what.
    behind: VecDeque<(Ms, u64, Command)>,
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
            books.carry_out(command, EPOCH_MS, None);
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
            breaches: Vec::new(),
        }
    }

    /// Does what `from` asks at `now`.
    pub(crate) fn carry_out(
        &mut self,
        now: Ms,
        from: usize,
        ask: &Ask,
        sabotage: Option<Sabotage>,
    ) -> Outcome {
        let clock = self.clock(now);
        let old = self
            .old
            .as_mut()
            .filter(|old| old.gateway == from && now < old.until);
        let is_old = old.is_some();
        let books = old.map_or(&mut self.books, |old| &mut old.books);
        let outcome = match ask {
            Ask::Step(command) => books.carry_out(command, clock, sabotage),
            Ask::Expire => {
                let mut ended = 0;
                for command in sweep(&books.book) {
                    if let Outcome::Expired(count) = books.carry_out(&command, clock, sabotage) {
                        ended += count;
                    }
                }
                Outcome::Expired(ended)
            }
        };
        for (id, account) in books.book.accounts() {
            if account.held < MicroRub::ZERO || account.held > account.balance {
                self.breaches
                    .push(format!("I4 account {id}: {account:?} at {now} ms"));
            }
            self.breaches.extend(beyond_a_limit(id, account, now));
        }
        if !is_old && let Some(replica) = &mut self.replica {
            match ask {
                Ask::Step(command) => replica.behind.push_back((now, clock, command.clone())),
                Ask::Expire => {
                    let commands = sweep(&self.books.book);
                    let steps = commands.into_iter().map(|command| (now, clock, command));
                    replica.behind.extend(steps);
                }
            }
            replica.catch_up(now.saturating_sub(replica.lag), sabotage);
        }
        if let (Ask::Step(Command::Reserve(hold)), Outcome::Reserve(Ok(_))) = (ask, &outcome) {
            self.tell_granted(hold.number, &hold.key, is_old);
        }
        outcome
    }

    /// What a RESERVE would be answered now. Nothing is held.
    pub(crate) fn only_look(&mut self, now: Ms, command: &Command) -> Outcome {
        let clock = self.clock(now);
        let outcome = book::apply(&mut self.books.book.clone(), command, clock);
        if let (Command::Reserve(hold), Outcome::Reserve(Ok(_))) = (command, &outcome) {
            self.tell_granted(hold.number, &hold.key, false);
        }
        outcome
    }

    fn tell_granted(&mut self, number: RequestNumber, key: &KeyId, by_the_old: bool) {
        // An old primary does not know what was acknowledged after it was replaced.
        if self.granted.insert(number) && !by_the_old && self.closed.contains(key) {
            self.breaches.push(format!(
                "I12 {number}: a hold on key {key}, whose disabling was acknowledged"
            ));
        }
    }

    pub(crate) fn was_granted(&self, number: RequestNumber) -> bool {
        self.granted.contains(&number)
    }

    /// An operator knows the key to be disabled, or begins to enable it again.
    pub(crate) fn close(&mut self, key: &KeyId, closed: bool) {
        if closed {
            self.closed.insert(key.clone());
        } else {
            self.closed.remove(key);
        }
    }

    /// The server that a gateway talks to now.
    pub(crate) fn epoch(&self, gateway: usize, now: Ms) -> u64 {
        match &self.old {
            Some(old) if old.gateway == gateway && now < old.until => old.epoch,
            _ => self.epoch,
        }
    }

    /// How long until the replica has what is done now.
    pub(crate) fn replica_lag(&self) -> Option<Ms> {
        self.replica.as_ref().map(|replica| replica.lag)
    }

    /// The replica becomes the ledger.
    pub(crate) fn fail_over(&mut self, now: Ms, failover: Failover, sabotage: Option<Sabotage>) {
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
    }

    /// Sets its clock.
    pub(crate) const fn set_clock(&mut self, by: i64) {
        self.ahead += by;
    }

    fn clock(&self, now: Ms) -> u64 {
        (EPOCH_MS + now).saturating_add_signed(self.ahead)
    }

    /// The books that count.
    pub(crate) const fn books(&self) -> &Books {
        &self.books
    }
}

/// What a group's keys have spent and hold beyond its ceiling, and calls of a key beyond as many as may be open.
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

fn sweep(book: &Book) -> Vec<Command> {
    book.accounts()
        .map(|(account, _)| Command::Expire {
            account: account.clone(),
            most: EXPIRE_MAX,
        })
        .collect()
}

impl Books {
    fn carry_out(&mut self, command: &Command, now: u64, sabotage: Option<Sabotage>) -> Outcome {
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
                    self.charged(*number, account, *cost, settled)
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
            _ => book::apply(&mut self.book, command, now),
        }
    }

    /// As every store does it: before a charge is forced, a receipt is looked for.
    fn settle(
        &mut self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
        cost: MicroRub,
        fresh: bool,
        now: u64,
    ) -> Settled {
        let known = self.book.settle(number, account, key, cost, false, now);
        if known.booked != Booked::Stale {
            return self.charged(number, account, cost, known);
        }
        if let Some(first) = self.charges.get(&number).and_then(|all| all.first()) {
            return Settled {
                repeated: true,
                ..first.settled
            };
        }
        let settled = self.book.settle(number, account, key, cost, fresh, now);
        self.charged(number, account, cost, settled)
    }

    fn charged(
        &mut self,
        number: RequestNumber,
        account: &AccountId,
        cost: MicroRub,
        settled: Settled,
    ) -> Settled {
        let moved = matches!(settled.booked, Booked::Held | Booked::Late | Booked::Forced);
        if moved && !settled.repeated {
            self.charges.entry(number).or_default().push(Charge {
                account: account.clone(),
                cost,
                settled,
            });
        }
        settled
    }
}

impl Replica {
    /// Gets what was done up to `until`.
    fn catch_up(&mut self, until: Ms, sabotage: Option<Sabotage>) {
        while let Some((at, _, _)) = self.behind.front()
            && *at <= until
        {
            if let Some((_, clock, command)) = self.behind.pop_front() {
                self.books.carry_out(&command, clock, sabotage);
            }
        }
    }
}

/// As the trace shows it.
impl std::fmt::Display for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let command = match self {
            Self::Expire => return f.write_str("expire"),
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
