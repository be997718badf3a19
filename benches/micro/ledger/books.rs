//! Ledgers with funded keys, and the calls that are made on them.

use std::{
    any::Any,
    fs,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use clap::ValueEnum;
use futures_util::{StreamExt, stream};
use tempfile::TempDir;
use tokio::time::Instant;
use tollgate_layers::{
    ceiling::Ceilings,
    facts::RequestNumber,
    key::{AccountId, KeyDigest, KeyId},
    money::MicroRub,
    price::{Price, Rate},
    reserve::{
        ledger::{
            BookError, Entry, Hold, Item, Ledger, LedgerAdmin, LedgerError, Reserved, Settled,
            Settlement,
        },
        memory::MemoryLedger,
        outbox::{Outbox, OutboxSettings, sqlite::SqliteLog},
        redis::{RedisLedger, RedisSettings},
        sqlite::SqliteLedger,
        testing::bench,
    },
    usage::{End, Usage},
};

use crate::fixtures::{
    directory, key_record, redis_server,
    support::redis::{RedisCluster, RedisServer},
};

/// The number of calls that are made at the same time when concurrent calls are measured.
pub(crate) const AT_A_TIME: usize = 64;

const PRIMARIES: usize = 3;
/// The persistence settings of a Redis server that keeps money, except that rewrites of its append-only file are off. A
/// rewrite during a round would distort the result.
const AS_FOR_MONEY: [&str; 6] = [
    "--appendonly",
    "yes",
    "--appendfsync",
    "everysec",
    "--auto-aof-rewrite-percentage",
    "0",
];
const HELD: MicroRub = MicroRub::new(200_000);
const COST: MicroRub = MicroRub::new(100);
/// The time after which the hold of a measured call expires.
const TTL: Duration = Duration::from_secs(960);
/// The lifetime of the holds that stay open during a whole run.
const LONG_TTL: Duration = Duration::from_secs(24 * 3600);
/// The timeout for a response of Redis. It is long, so that a stall of the server is measured and not reported as an
/// error.
const PATIENCE: Duration = Duration::from_secs(5);
/// If less memory than this (in bytes) is available while a ledger is filled, the run ends, so that other programs can
/// continue.
const MEMORY_LEFT_MIN: u64 = 1_000_000_000;
/// The interval at which progress is printed while a ledger is filled.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// The kinds of ledgers that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Memory,
    Sqlite,
    /// Redis as a single server, used directly.
    Redis,
    /// Redis as a single server, used through an outbox, as in a gateway.
    Outbox,
    /// Redis as a Cluster of three primaries.
    Cluster,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::Outbox => "outbox",
            Self::Cluster => "cluster",
        }
    }

    /// Returns the name of the program that this kind of ledger needs and that is not installed; `None` if nothing is
    /// missing.
    pub(crate) fn missing(self) -> Option<&'static str> {
        let redis = matches!(self, Self::Redis | Self::Outbox | Self::Cluster);
        if redis && !RedisServer::is_installed() {
            return Some("redis-server");
        }
        let cli = || {
            Command::new("redis-cli")
                .arg("--version")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
        };
        (self == Self::Cluster && !cli()).then_some("redis-cli")
    }

    /// The number of accounts that are filled at the same time. SQLite commits them together, and at most 16 384
    /// changes may wait for its file.
    const fn filled_at_a_time(self) -> usize {
        match self {
            Self::Memory => 1,
            Self::Sqlite => 4096,
            Self::Redis | Self::Outbox | Self::Cluster => 512,
        }
    }
}

/// A ledger with funded keys. Each key has a separate account.
pub(crate) struct Books {
    kind: Kind,
    ledger: Kept,
    keys: Arc<[(AccountId, KeyId)]>,
    turn: AtomicUsize,
    price: Arc<Price>,
    /// The servers and folders that the ledger uses. This field is declared last, so that they are dropped after the
    /// ledger.
    places: Vec<Place>,
}

enum Kept {
    Memory(MemoryLedger),
    Sqlite(SqliteLedger),
    Redis(RedisLedger),
    Outbox(Outbox<RedisLedger, SqliteLog>),
}

/// A server, or a folder with a file, that exists as long as the ledger uses it.
type Place = Arc<dyn Any + Send + Sync>;

/// One call: the request for its hold, and its settlement.
pub(crate) struct Call {
    pub(crate) hold: Hold,
    pub(crate) settlement: Settlement,
}

/// Calls a method of the ledger that a `Kept` contains, whatever the ledger's type.
macro_rules! ask {
    ($stored:expr, $ledger:ident => $call:expr) => {
        match $stored {
            Kept::Memory($ledger) => $call,
            Kept::Sqlite($ledger) => $call,
            Kept::Redis($ledger) => $call,
            Kept::Outbox($ledger) => $call,
        }
    };
}

impl Books {
    /// Creates a ledger with `keys` keys, each with a separate account.
    pub(crate) async fn open(kind: Kind, keys: usize) -> Self {
        let (ledger, place) = match kind {
            Kind::Memory => (Kept::Memory(MemoryLedger::new()), place(())),
            Kind::Sqlite => {
                let dir = new_directory();
                let ledger = SqliteLedger::open(&dir.path().join("ledger.db"));
                let ledger = ledger.expect("a new file opens");
                (Kept::Sqlite(ledger), place(dir))
            }
            Kind::Redis | Kind::Outbox => {
                let server = redis_server().await.expect("there is room for its files");
                (connected(&server.url()).await, place(server))
            }
            Kind::Cluster => {
                let cluster = RedisCluster::start_with(PRIMARIES, 0, &AS_FOR_MONEY).await;
                (connected(&cluster.url()).await, place(cluster))
            }
        };
        let mut books = Self {
            kind,
            ledger,
            keys: Arc::new([]),
            turn: AtomicUsize::new(0),
            price: price(),
            places: vec![place],
        };
        books.fill(keys).await;
        books.reopen().await;
        if kind == Kind::Outbox {
            books.through_outbox().await
        } else {
            books
        }
    }

    /// Returns the same accounts and keys on the same Redis server, but used through an outbox.
    pub(crate) async fn through_outbox(&self) -> Self {
        let Kept::Redis(ledger) = &self.ledger else {
            panic!("an outbox is for books in Redis");
        };
        let dir = new_directory();
        let log = SqliteLog::open(&dir.path().join("outbox.db")).expect("a new file opens");
        let outbox = Outbox::open(ledger.clone(), log, OutboxSettings::default()).await;
        let mut places = self.places.clone();
        places.push(place(dir));
        Self {
            kind: Kind::Outbox,
            ledger: Kept::Outbox(outbox.expect("a new file is read")),
            keys: Arc::clone(&self.keys),
            turn: AtomicUsize::new(0),
            price: Arc::clone(&self.price),
            places,
        }
    }

    async fn fill(&mut self, keys: usize) {
        let ids: Vec<(AccountId, KeyId)> = (0..keys)
            .map(|index| ids(&format!("account-{index}"), &format!("key-{index}")))
            .collect();
        let what = format!("{}, {keys} keys", self.kind.name());
        let mut progress = Progress::new(what, keys);
        let books = &*self;
        let mut filled = stream::iter(&ids)
            .map(|(account, key)| books.fund(account, key))
            .buffer_unordered(self.kind.filled_at_a_time());
        while let Some(funded) = filled.next().await {
            funded.expect("a new ledger takes accounts and keys");
            progress.step();
        }
        drop(filled);
        self.keys = ids.into();
    }

    /// Closes the ledger's file and opens it again, as a gateway does at its start.
    async fn reopen(&mut self) {
        let Kept::Sqlite(ledger) = &self.ledger else {
            return;
        };
        ledger.close().await;
        let dir = self.places[0].downcast_ref::<TempDir>();
        let path = dir.expect("the file's place").path().join("ledger.db");
        let began = Instant::now();
        self.ledger = Kept::Sqlite(SqliteLedger::open(&path).expect("a closed file opens again"));
        if PROGRESS_EVERY < began.elapsed() {
            let (keys, seconds) = (self.keys.len(), began.elapsed().as_secs_f64());
            eprintln!("ledger: sqlite, {keys} keys: opened in {seconds:.1} s");
        }
    }

    /// Creates an account with funds and one key.
    async fn fund(&self, account: &AccountId, key: &KeyId) -> Result<(), BookError> {
        match &self.ledger {
            Kept::Memory(ledger) => fund(ledger, account, key).await,
            Kept::Sqlite(ledger) => fund(ledger, account, key).await,
            Kept::Redis(ledger) => fund(ledger, account, key).await,
            Kept::Outbox(outbox) => fund(outbox.ledger(), account, key).await,
        }
    }

    /// Adds an account with `holds` holds that stay open until the end of the run.
    pub(crate) async fn account_with_holds(&self, holds: usize) -> (AccountId, KeyId) {
        let name = format!("{}-holds-{holds}", self.kind.name());
        let (account, key) = ids(&name, &name);
        let funded = self.fund(&account, &key).await;
        funded.expect("the ledger takes one account more");
        let mut held = stream::iter(0..holds)
            .map(|_| {
                let mut hold = self.call_on(&account, &key).hold;
                hold.ttl = LONG_TTL;
                async move { self.reserve(&hold).await }
            })
            .buffer_unordered(AT_A_TIME);
        while let Some(reserved) = held.next().await {
            reserved.expect("the account has funds");
        }
        drop(held);
        (account, key)
    }

    /// Confirms to the outbox that the server has lost no data. A gateway does this every second.
    pub(crate) fn looked_at(&self) {
        if let Kept::Outbox(outbox) = &self.ledger {
            outbox.confirmed();
        }
    }

    pub(crate) async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        ask!(&self.ledger, ledger => ledger.reserve(hold).await)
    }

    pub(crate) async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        ask!(&self.ledger, ledger => ledger.settle(settlement).await)
    }

    /// Makes `pairs` RESERVEs over all keys in turn, each followed by its SETTLE. Returns the total time.
    pub(crate) async fn one_after_another(&self, pairs: u64) -> Duration {
        self.looked_at();
        let keys = &self.keys;
        ask!(&self.ledger, ledger => bench::one_after_another(ledger, keys, pairs).await)
    }

    /// Makes `pairs` RESERVEs and SETTLEs, with [`AT_A_TIME`] calls at the same time. Returns the total time.
    pub(crate) async fn many_at_a_time(&self, pairs: u64) -> Duration {
        self.looked_at();
        let keys = &self.keys;
        ask!(&self.ledger, ledger => bench::at_a_time(ledger, keys, pairs, AT_A_TIME).await)
    }

    /// Creates a call with the next key.
    pub(crate) fn call(&self) -> Call {
        // The keys of consecutive calls are a prime number of positions apart, so that they are not neighbours in the
        // books.
        let turn = self.turn.fetch_add(7919, Ordering::Relaxed);
        let (account, key) = &self.keys[turn % self.keys.len()];
        self.call_on(account, key)
    }

    pub(crate) fn call_on(&self, account: &AccountId, key: &KeyId) -> Call {
        let number = RequestNumber::now_v7();
        let hold = Hold::new(number, account.clone(), key.clone(), HELD, TTL);
        let settlement = Settlement::new(&hold, HELD, COST, item(&self.price));
        Call { hold, settlement }
    }
}

async fn connected(url: &str) -> Kept {
    let settings = RedisSettings {
        response_timeout: PATIENCE,
        ..RedisSettings::default()
    };
    Kept::Redis(
        RedisLedger::connect(url, settings)
            .await
            .expect("the server is there"),
    )
}

async fn fund(
    ledger: &impl LedgerAdmin,
    account: &AccountId,
    key: &KeyId,
) -> Result<(), BookError> {
    ledger.create_account(account, "Bench").await?;
    let funds = Entry {
        id: "funds".into(),
        amount: MicroRub::rubles(1_000_000),
        reason: None,
    };
    ledger.enter(account, &funds).await?;
    // A made-up digest that is different for each key.
    let mut digest = [0; 32];
    digest[..key.len()].copy_from_slice(key.as_bytes());
    let record = key_record(account, key, KeyDigest::new(digest));
    ledger.create_key(&record, Ceilings::NONE).await?;
    Ok(())
}

fn ids(account: &str, key: &str) -> (AccountId, KeyId) {
    let why = "the benches' ids are ids";
    (account.parse().expect(why), key.parse().expect(why))
}

/// The usage and prices that a call's receipt contains.
pub(crate) fn item(price: &Arc<Price>) -> Item {
    Item {
        usage: Usage {
            input: 31,
            output: 40,
            ..Usage::default()
        },
        price: Some(Arc::clone(price)),
        ..Item::new("plain", "plain-vendor", End::Finished)
    }
}

pub(crate) fn price() -> Arc<Price> {
    let rate = Rate::new(100_000_000);
    Arc::new(Price {
        input: rate,
        cached_input: rate,
        output: rate,
        cache_write: rate,
        version: 1,
        exchange_rate: "90.50".into(),
        ..Price::default()
    })
}

fn place(place: impl Any + Send + Sync) -> Place {
    Arc::new(place)
}

fn new_directory() -> TempDir {
    let place = directory().expect("target/bench can be made");
    TempDir::new_in(place).expect("target/bench is writable")
}

/// Prints progress to standard error while a ledger is filled, and ends the run before the machine runs out of memory.
struct Progress {
    what: String,
    all: usize,
    done: usize,
    began: Instant,
    say_at: Instant,
}

impl Progress {
    fn new(what: String, all: usize) -> Self {
        let began = Instant::now();
        Self {
            what,
            all,
            done: 0,
            began,
            say_at: began + PROGRESS_EVERY,
        }
    }

    fn step(&mut self) {
        self.done += 1;
        if Instant::now() < self.say_at {
            return;
        }
        self.say_at = Instant::now() + PROGRESS_EVERY;
        let left = self.began.elapsed().as_secs_f64() / self.done as f64
            * self.all.saturating_sub(self.done) as f64;
        eprintln!(
            "ledger: {}: {} filled, {left:.0} s left",
            self.what, self.done
        );
        let memory = memory_available();
        assert!(
            memory > MEMORY_LEFT_MIN,
            "{}: {} MB of memory are left: use a smaller --max, or --stores one by one",
            self.what,
            memory / 1_000_000
        );
    }
}

/// Returns the memory that is available on the system, in bytes; `MAX` if the system does not report it.
fn memory_available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kilobytes.map_or(u64::MAX, |kilobytes| kilobytes * 1024)
}
