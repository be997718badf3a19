//! What do a hold and its settlement cost on each ledger, and does the number of keys matter?
//!
//! Each line is one RESERVE and its SETTLE, both waited for, as the gateway's own store does them; over
//! many keys in turn, ten to an account. One after another it is what a call waits for and what its
//! settling takes; 64 at a time it is what the ledger carries. SQLite's SETTLE waits for the disk,
//! together with others: no caller does.

mod fixtures;

use std::{
    cell::LazyCell,
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use criterion::{Criterion, Throughput};
use futures_util::{StreamExt, stream};
use tempfile::TempDir;
use tokio::{task::JoinSet, time::Instant};
use tollgate::{config::LedgerUrl, store::Store};
use tollgate_layers::{
    facts::RequestNumber,
    key::{AccountId, KeyDigest, KeyId},
    money::MicroRub,
    price::{Price, Rate},
    reserve::ledger::{BookError, Bookkeeping, Entry, Hold, Item, Ledger, Settlement},
    usage::{End, Usage},
};

use crate::fixtures::{
    directory, key_record,
    redis_server::{self, RedisServer},
};

const KEYS: [usize; 2] = [10, 100_000];
const KEYS_PER_ACCOUNT: usize = 10;
const AT_A_TIME: usize = 64;
const HELD: MicroRub = MicroRub::new(200_000);
const COST: MicroRub = MicroRub::new(100);

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    let mut group = criterion.benchmark_group("ledger");
    group.throughput(Throughput::Elements(1));
    for kind in [Kind::Memory, Kind::Sqlite, Kind::Redis] {
        if kind == Kind::Redis && !redis_server::is_installed() {
            eprintln!("ledger: no redis-server on the PATH, so there are no lines for Redis");
            continue;
        }
        for keys in KEYS {
            // Opened by the first line that is not filtered out.
            let books = LazyCell::new(|| Arc::new(runtime.block_on(Books::open(kind, keys))));
            let name = format!("{}, {keys} keys", kind.name());
            group.bench_function(format!("{name}, one after another"), |bencher| {
                let books = &*books;
                bencher.iter_custom(|pairs| runtime.block_on(one_after_another(books, pairs)));
            });
            group.bench_function(format!("{name}, {AT_A_TIME} at a time"), |bencher| {
                let books = &*books;
                bencher.iter_custom(|pairs| runtime.block_on(many_at_a_time(books, pairs)));
            });
        }
    }
    group.finish();
    criterion.final_summary();
}

async fn one_after_another(books: &Books, pairs: u64) -> Duration {
    let began = Instant::now();
    for _ in 0..pairs {
        books.reserve_and_settle().await;
    }
    began.elapsed()
}

async fn many_at_a_time(books: &Arc<Books>, pairs: u64) -> Duration {
    let taken = Arc::new(AtomicU64::new(0));
    let mut callers = JoinSet::new();
    let began = Instant::now();
    for _ in 0..AT_A_TIME {
        let (books, taken) = (Arc::clone(books), Arc::clone(&taken));
        callers.spawn(async move {
            while taken.fetch_add(1, Ordering::Relaxed) < pairs {
                books.reserve_and_settle().await;
            }
        });
    }
    callers.join_all().await;
    began.elapsed()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    Sqlite,
    Redis,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
        }
    }
}

/// A ledger with funded keys.
struct Books {
    store: Store,
    keys: Vec<(AccountId, KeyId)>,
    turn: AtomicUsize,
    price: Arc<Price>,
    // Both go after the store.
    _directory: Option<TempDir>,
    _server: Option<RedisServer>,
}

impl Books {
    async fn open(kind: Kind, keys: usize) -> Self {
        let (mut dir, mut server) = (None, None);
        let url = match kind {
            Kind::Memory => LedgerUrl::Memory,
            Kind::Sqlite => {
                let place = directory().expect("target/bench can be made");
                let made = dir.insert(TempDir::new_in(place).expect("target/bench is writable"));
                LedgerUrl::Sqlite(made.path().join("ledger.db"))
            }
            Kind::Redis => {
                let started = server.insert(RedisServer::start().expect("redis-server starts"));
                LedgerUrl::Redis(started.url())
            }
        };
        let store = Store::open(&url).await.expect("a new ledger opens");
        let rate = Rate::new(100_000_000);
        let price = Arc::new(Price {
            input: rate,
            cached_input: rate,
            output: rate,
            cache_write: rate,
            version: 1,
            exchange_rate: "90.50".into(),
        });
        let accounts = stream::iter(0..keys.div_ceil(KEYS_PER_ACCOUNT))
            .map(|account| fund(&store, account))
            .buffer_unordered(256)
            .collect::<Vec<_>>()
            .await;
        let keys = accounts
            .into_iter()
            .flat_map(|keys| keys.expect("a new ledger takes accounts and keys"))
            .collect();
        Self {
            store,
            keys,
            turn: AtomicUsize::new(0),
            price,
            _directory: dir,
            _server: server,
        }
    }

    async fn reserve_and_settle(&self) {
        // A prime step: neighbours in time are not neighbours in the books.
        let turn = self.turn.fetch_add(7919, Ordering::Relaxed);
        let (account, key) = &self.keys[turn % self.keys.len()];
        let number = RequestNumber::now_v7();
        let hold = Hold {
            number,
            account: account.clone(),
            key: key.clone(),
            want: HELD,
            least: HELD,
            ttl: Duration::from_secs(960),
        };
        let reserved = self.store.reserve(&hold).await;
        let reserved = reserved.expect("the key has funds");
        let settlement = Settlement {
            number,
            account: account.clone(),
            key: key.clone(),
            held: reserved.held,
            cost: COST,
            fresh: true,
            item: Item {
                model: "plain".into(),
                vendor: "plain-vendor".into(),
                usage: Usage {
                    input: 31,
                    output: 40,
                    ..Usage::default()
                },
                price: Some(Arc::clone(&self.price)),
                estimated: false,
                end: End::Finished,
            },
        };
        let settled = self.store.settle(&settlement).await;
        black_box(settled.expect("the ledger is there"));
    }
}

/// An account with funds and keys.
async fn fund(store: &Store, index: usize) -> Result<Vec<(AccountId, KeyId)>, BookError> {
    let account: AccountId = format!("account-{index}").parse().expect("an id");
    store.create_account(&account, "Bench").await?;
    let funds = Entry {
        id: "funds".into(),
        amount: MicroRub::rubles(1_000_000),
        reason: None,
    };
    store.enter(&account, &funds).await?;
    let mut keys = Vec::with_capacity(KEYS_PER_ACCOUNT);
    for key in 0..KEYS_PER_ACCOUNT {
        let number = index * KEYS_PER_ACCOUNT + key;
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&number.to_be_bytes());
        let record = key_record(&account, &format!("key-{number}"), KeyDigest::new(digest));
        store.create_key(&record, None).await?;
        keys.push((account.clone(), record.id));
    }
    Ok(keys)
}
