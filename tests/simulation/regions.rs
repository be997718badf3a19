//! Measures how often a caller waits for the ledger if gateways in several regions use one account, and the ledger is
//! far from most of them. The leases are the real ones, the ledger's server is a model, and time is simulated.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tollgate_layers::{
    ceiling::Ceilings,
    facts::RequestNumber,
    key::{AccountId, KeyId},
    money::MicroRub,
    reserve::{
        book::{self, Book, Command},
        ledger::{Entry, Hold, Item, LedgerError, Reserved, Settled, Settlement},
    },
    usage::End,
};
use tollgate_ledger::leases::{
    LeaseLedger, LeaseSettings, LeaseSource, Leases, Now, Turn, TurnAnswer, model::LeaseBooks,
};
use uuid::Uuid;

use crate::{
    plan::{EPOCH_MS, Ms},
    random::Random,
    world::lock,
};

/// The round-trip time from each region to the ledger, in milliseconds.
const ROUND_TRIPS: [Ms; 5] = [1, 50, 100, 150, 200];
/// The number of calls per second in each region.
const RATES: [u64; 4] = [100, 200, 1_000, 3_000];
/// The time in which calls begin, in milliseconds. Calls before `COUNTED_FROM` are not counted, because the gateways
/// open their leases during these calls.
const LASTS: Ms = 30_000;
const COUNTED_FROM: Ms = 2_000;
/// The mean duration of a call, in milliseconds.
const CALL_MS: u64 = 1_500;
/// The time after which the rate of `Load::Uneven` changes, in milliseconds.
const SWING_MS: Ms = 5_000;
const LEASE_MAX: Duration = Duration::from_secs(1);
/// The maximum share of a busy account's calls that may wait for the ledger, in thousandths.
const WAIT_MAX: u64 = 10;

/// How calls are distributed over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Independent calls at a constant rate.
    Even,
    /// Independent calls, alternately five seconds at half of the rate and five seconds at one and a half times the
    /// rate.
    Uneven,
}

impl Load {
    const ALL: [Self; 2] = [Self::Even, Self::Uneven];

    const fn name(self) -> &'static str {
        match self {
            Self::Even => "even",
            Self::Uneven => "uneven",
        }
    }

    fn rate(self, rate: u64, at: Ms) -> u64 {
        match self {
            Self::Even => rate,
            Self::Uneven if (at / SWING_MS).is_multiple_of(2) => rate / 2,
            Self::Uneven => rate * 3 / 2,
        }
    }
}

/// The measurements in one region.
struct Row {
    round_trip: Ms,
    rate: u64,
    load: Load,
    calls: u64,
    waited: u64,
    commands: u64,
}

impl Row {
    /// Returns the share of calls that waited for the ledger, in thousandths, rounded up.
    const fn waited_permille(&self) -> u64 {
        (self.waited * 1_000).div_ceil(self.calls)
    }
}

/// Measures all loads and prints a table. If `keep` is given, also writes the table to that file. Returns whether the
/// bound [`WAIT_MAX`] was kept.
pub(crate) fn report(keep: Option<&str>) -> bool {
    let mut rows = Vec::new();
    print_head();
    for rate in RATES {
        for load in Load::ALL {
            for row in play(rate, load, LASTS) {
                print(&row);
                rows.push(row);
            }
        }
    }
    if let Some(file) = keep {
        let results: Vec<Value> = rows.iter().map(Row::json).collect();
        let entry = json!({ "regions": { "results": results } });
        let text = format!("{entry:#}\n");
        if let Err(error) = std::fs::write(file, text) {
            eprintln!("simulation: {file}: {error}");
            return false;
        }
    }
    judge(&rows)
}

/// Measures one load in a shorter run. Returns whether the bound [`WAIT_MAX`] was kept.
pub(crate) fn holds() -> bool {
    judge(&play(200, Load::Uneven, 12_000))
}

fn judge(rows: &[Row]) -> bool {
    let (mut good, mut asked_for) = (true, 0);
    for row in rows.iter().filter(|row| row.waited_permille() > WAIT_MAX) {
        good = false;
        asked_for += 1;
        println!(
            "regions: {} of {} calls waited for a ledger {} ms away, {} calls/s, {}",
            row.waited,
            row.calls,
            row.round_trip,
            row.rate,
            row.load.name()
        );
    }
    if asked_for == 0 {
        println!(
            "regions: at most {WAIT_MAX} of 1000 calls waited for the ledger in any of {}",
            rows.len()
        );
    }
    good
}

fn print_head() {
    println!(
        "{:>14}{:>10}{:>9}{:>9}{:>12}{:>16}",
        "round trip, ms", "calls/s", "load", "calls", "waited, ‰", "commands a call"
    );
}

fn print(row: &Row) {
    println!(
        "{:>14}{:>10}{:>9}{:>9}{:>12}{:>16}",
        row.round_trip,
        row.rate,
        row.load.name(),
        row.calls,
        thousandths(row.waited * 1_000_000 / row.calls),
        thousandths(row.commands * 1_000 / row.calls),
    );
}

fn thousandths(amount: u64) -> String {
    format!("{}.{:03}", amount / 1_000, amount % 1_000)
}

impl Row {
    fn json(&self) -> Value {
        json!({
            "round_trip_ms": self.round_trip,
            "calls_per_second": self.rate,
            "load": self.load.name(),
            "calls": self.calls,
            "waited": self.waited,
            "commands": self.commands,
        })
    }
}

/// Runs all regions at the same time, with one account and one key. Returns one table row per region.
fn play(rate: u64, load: Load, lasts: Ms) -> Vec<Row> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without sockets needs nothing of the system");
    runtime.block_on(async {
        let server = Arc::new(Server::new());
        let mut regions = JoinSet::new();
        for (nth, round_trip) in ROUND_TRIPS.into_iter().enumerate() {
            let seed = Random::of(rate, &[nth as u64, load as u64]).bits();
            let region = Region::new(&server, round_trip, seed);
            regions.spawn(async move {
                let waited = region.calls(rate, load, lasts, seed).await;
                (nth, waited)
            });
        }
        let mut rows: Vec<(usize, Row)> = Vec::new();
        while let Some(done) = regions.join_next().await {
            let (nth, [calls, waited, commands]) = done.expect("no region panics");
            let round_trip = ROUND_TRIPS[nth];
            rows.push((
                nth,
                Row {
                    round_trip,
                    rate,
                    load,
                    calls,
                    waited,
                    commands,
                },
            ));
        }
        rows.sort_by_key(|(nth, _)| *nth);
        let audit = lock(&server.books).book.audit();
        assert_eq!(audit.breaches, Vec::<String>::new());
        rows.into_iter().map(|(_, row)| row).collect()
    })
}

/// The model of the ledger's server.
struct Server {
    books: Mutex<Books>,
    began: Instant,
}

struct Books {
    book: Book,
    leases: LeaseBooks,
    charged: HashMap<RequestNumber, Settled>,
}

impl Server {
    fn new() -> Self {
        let mut book = Book::default();
        let opening = [
            Command::SetAccount {
                account: account(),
                suspended: false,
            },
            Command::SetKey {
                account: account(),
                key: key(),
                ceilings: Ceilings::NONE,
                enabled: true,
            },
            Command::Enter {
                account: account(),
                entry: Entry {
                    id: "opening".into(),
                    amount: MicroRub::rubles(1_000_000),
                    reason: None,
                },
            },
        ];
        for command in &opening {
            book::apply(&mut book, command, EPOCH_MS);
        }
        Self {
            books: Mutex::new(Books {
                book,
                leases: LeaseBooks::default(),
                charged: HashMap::new(),
            }),
            began: Instant::now(),
        }
    }

    fn now(&self) -> Ms {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(Ms::MAX)
    }
}

fn account() -> AccountId {
    "busy".parse().expect("a good id")
}

fn key() -> KeyId {
    "k".parse().expect("a good id")
}

/// A gateway in its region, and the connection from this region to the server.
#[derive(Clone)]
struct Region {
    server: Arc<Server>,
    round_trip: Ms,
    leases: Arc<Leases>,
    commands: Arc<AtomicU64>,
}

struct Names {
    server: Arc<Server>,
    seed: u64,
    named: AtomicU64,
}

impl LeaseSource for Names {
    fn now(&self) -> Now {
        let steady = self.server.now();
        Now {
            steady,
            wall: EPOCH_MS + steady,
        }
    }

    fn name(&self) -> Uuid {
        let nth = self.named.fetch_add(1, Ordering::Relaxed);
        uuid(self.seed, 0, nth)
    }
}

fn uuid(seed: u64, kind: u64, nth: u64) -> Uuid {
    let random = &mut Random::of(seed, &[kind, nth]);
    Uuid::from_u128((u128::from(random.bits()) << 64) | u128::from(random.bits()))
}

impl Region {
    fn new(server: &Arc<Server>, round_trip: Ms, seed: u64) -> Self {
        let names = Names {
            server: Arc::clone(server),
            seed,
            named: AtomicU64::new(0),
        };
        let settings = LeaseSettings::new(LEASE_MAX, format!("{round_trip} ms away"));
        Self {
            server: Arc::clone(server),
            round_trip,
            leases: Arc::new(Leases::by(settings, names)),
            commands: Arc::default(),
        }
    }

    /// Sends a command to the server, and waits until the response has come back.
    async fn ask<T>(&self, act: impl FnOnce(&mut Books, u64) -> T + Send) -> T {
        self.commands.fetch_add(1, Ordering::Relaxed);
        let there = self.round_trip / 2;
        sleep(Duration::from_millis(there)).await;
        let answer = act(&mut lock(&self.server.books), EPOCH_MS + self.server.now());
        sleep(Duration::from_millis(self.round_trip - there)).await;
        answer
    }

    /// Makes calls. Returns the number of counted calls, the number of those that waited for the ledger, and the number
    /// of commands for all calls.
    async fn calls(self, rate: u64, load: Load, lasts: Ms, seed: u64) -> [u64; 3] {
        let mut tasks = JoinSet::new();
        let tender = self.clone();
        tasks.spawn(async move { tender.leases.tend(&tender).await });
        let random = &mut Random::of(seed, &[1]);
        let (mut calls, mut waited, mut commands) = (0, 0, 0);
        // Times are in microseconds, so that calls of the same second begin at many different times.
        let (mut at, mut nth) = (0, 0);
        let began = self.server.began;
        while at < lasts * 1_000 {
            at += apart(random, 1_000_000 / load.rate(rate, at / 1_000).max(1));
            sleep_until(began + Duration::from_micros(at)).await;
            nth += 1;
            let counted = at >= COUNTED_FROM * 1_000;
            if counted && calls == 0 {
                commands = self.commands.load(Ordering::Relaxed);
            }
            let number = RequestNumber::from_uuid(uuid(seed, 2, nth));
            let want = MicroRub::new(random.between(10_000, 60_000) as i64);
            let mut hold = Hold::new(number, account(), key(), want, Duration::from_secs(900));
            hold.least = MicroRub::new(10_000);
            // Chooses the cost and the duration of the call at random.
            let cost = hold.want.micro() * random.between(10, 100) as i64 / 100;
            let runs = apart(random, CALL_MS);
            let granted = self
                .leases
                .reserve(&hold)
                .is_some_and(|answer| answer.is_ok());
            if counted {
                calls += 1;
                waited += u64::from(!granted);
            }
            while tasks.try_join_next().is_some() {}
            let region = self.clone();
            tasks.spawn(async move { region.call(hold, granted, MicroRub::new(cost), runs).await });
        }
        let commands = self.commands.load(Ordering::Relaxed) - commands;
        tasks.abort_all();
        [calls, waited, commands]
    }

    async fn call(&self, hold: Hold, granted: bool, cost: MicroRub, runs: Ms) {
        let held = if granted {
            hold.want
        } else {
            match self.hold(&hold).await {
                Ok(reserved) => reserved.held,
                Err(_) => return,
            }
        };
        sleep(Duration::from_millis(runs)).await;
        let item = Item::new("m", "v", End::Finished);
        let settlement = Settlement::new(&hold, held, cost, item);
        if self.leases.settle(&settlement).await.is_none() {
            self.ask(|books, now| {
                let known = books.charged.get(&settlement.number).copied();
                books
                    .leases
                    .settle(&mut books.book, &settlement, now, known)
            })
            .await;
        }
    }
}

impl LeaseLedger for Region {
    async fn turn(&self, turn: &Turn) -> Result<TurnAnswer, LedgerError> {
        let answer = self.ask(|books, now| {
            let Books {
                book,
                leases,
                charged,
            } = books;
            let known = |number| charged.get(&number).copied();
            let answer = leases.turn(book, turn, now, known, None);
            for (end, settled) in turn.ends.iter().zip(&answer.ends) {
                charged.entry(end.settlement.number).or_insert(*settled);
            }
            answer
        });
        Ok(answer.await)
    }

    async fn recall(&self, account: &AccountId) -> Result<u64, LedgerError> {
        let account = account.clone();
        Ok(self
            .ask(|books, now| books.leases.recall(&account, now))
            .await)
    }

    async fn hold(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        let answer = self.ask(|books, now| books.book.reserve(hold, now));
        answer.await.map_err(LedgerError::Refused)
    }
}

/// Returns a random time until the next of independent events with this mean interval: about −ln(u). The logarithm is
/// approximated with integers, so that every machine gets the same values.
fn apart(random: &mut Random, mean: u64) -> u64 {
    // The n leading zero bits of u contribute n × ln 2 = n × 0.693. For the remaining bits, a random value up to 0.693
    // is added.
    let bits = random.bits();
    let halvings = u64::from(bits.leading_zeros().min(40));
    let rest = random.between(0, 693);
    mean * (halvings * 693 + rest) / 1_000
}
