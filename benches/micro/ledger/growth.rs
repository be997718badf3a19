//! Measures whether a hold takes longer if the ledger has more keys and accounts, or more open holds.
//!
//! The ledgers of all sizes are open at the same time and are measured in turn, so that a slow moment of the machine
//! affects all sizes alike.

use std::{hint::black_box, sync::Arc, time::Duration};

use clap::Parser;
use futures_util::future::join_all;
use tokio::{runtime::Runtime, time::Instant};
use tollgate_layers::{
    key::{AccountId, KeyId},
    reserve::ledger::Booked,
};

use crate::{
    books::{AT_A_TIME, Books, Call, Kind},
    report::{Place, Report, Round},
};

/// The numbers of keys at which a ledger is measured. Each key has a separate account.
const KEYS: [usize; 4] = [10, 1_000, 100_000, 1_000_000];
/// The numbers of open holds at which an account is measured, in the ledger with the fewest keys.
const HOLDS: [usize; 3] = [0, 100, 10_000];
/// Groups of ledgers that are measured together because they use the same data: the Redis server is filled only once.
const GROUPS: [&[Kind]; 4] = [
    &[Kind::Memory],
    &[Kind::Sqlite],
    &[Kind::Redis, Kind::Outbox],
    &[Kind::Cluster],
];
/// The number of batches per round. A batch holds money for [`AT_A_TIME`] calls and then settles them.
const CHUNKS: u32 = 32;

/// Measures holds in ledgers with few entries and in ledgers with many.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// The largest number of keys and accounts.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    max: u32,
    /// The ledgers to measure; by default all that this machine can run.
    #[arg(long, value_enum, value_delimiter = ',')]
    stores: Vec<Kind>,
    /// The number of rounds. The results are medians over the rounds.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// The word `growth`, which selects this bench.
    #[arg(hide = true)]
    _growth: String,
    /// An argument that cargo passes to every bench.
    #[arg(long = "bench", hide = true)]
    _bench: bool,
}

impl Options {
    fn keys(&self) -> impl Iterator<Item = usize> {
        let max = self.max as usize;
        KEYS.into_iter().filter(move |keys| *keys <= max)
    }

    fn asks_for(&self, kind: Kind) -> bool {
        self.stores.is_empty() || self.stores.contains(&kind)
    }
}

/// A ledger of one size, and the keys that calls are made with.
struct Point {
    place: Place,
    books: Arc<Books>,
    /// The only key that calls are made with; `None` means all keys in turn.
    only: Option<(AccountId, KeyId)>,
}

impl Point {
    fn call(&self) -> Call {
        match &self.only {
            Some((account, key)) => self.books.call_on(account, key),
            None => self.books.call(),
        }
    }
}

pub(crate) fn run(runtime: &Runtime, options: &Options) -> anyhow::Result<()> {
    for group in GROUPS {
        let mut kinds = group.to_vec();
        kinds.retain(|kind| options.asks_for(*kind));
        let missing = kinds.iter().find_map(|kind| kind.missing());
        if let Some(program) = missing {
            eprintln!("ledger: no {program} on the PATH, so no lines for {kinds:?}");
        } else if !kinds.is_empty() {
            let mut report = Report::new(options.rounds);
            runtime.block_on(measure_group(&kinds, options, &mut report));
            // The results are stored already at this point, because a later ledger may run out of memory.
            report.finish()?;
        }
    }
    Ok(())
}

async fn measure_group(kinds: &[Kind], options: &Options, report: &mut Report) {
    let points = open(kinds, options).await;
    let mut rounds: Vec<Vec<Round>> = vec![Vec::new(); points.len()];
    // The first round is a warm-up. Its results are not counted.
    for number in 0..=options.rounds as usize {
        eprintln!("ledger: {kinds:?}: round {number} of {}", options.rounds);
        for turn in 0..points.len() {
            // Each round begins with a different size, so that no size is always measured first.
            let index = (turn + number) % points.len();
            let round = measure(&points[index]).await;
            if number > 0 {
                rounds[index].push(round);
            }
        }
    }
    for (point, rounds) in points.iter().zip(rounds) {
        report.add(point.place, rounds);
    }
}

/// Opens all ledgers that are measured together. The sizes of each ledger are in the order of the table.
async fn open(kinds: &[Kind], options: &Options) -> Vec<Point> {
    let mut points = Vec::new();
    let mut opened: Vec<Arc<Books>> = Vec::new();
    for kind in kinds {
        let mut of_kind = Vec::new();
        for (index, keys) in options.keys().enumerate() {
            let books = match opened.get(index) {
                Some(redis) if *kind == Kind::Outbox => redis.through_outbox().await,
                _ => Books::open(*kind, keys).await,
            };
            of_kind.push(Arc::new(books));
        }
        for (books, keys) in of_kind.iter().zip(options.keys()) {
            points.push(Point {
                place: Place::Keys(kind.name(), keys),
                books: Arc::clone(books),
                only: None,
            });
        }
        for holds in HOLDS {
            let smallest = &of_kind[0];
            points.push(Point {
                place: Place::Holds(kind.name(), holds),
                books: Arc::clone(smallest),
                only: Some(smallest.account_with_holds(holds).await),
            });
        }
        opened = of_kind;
    }
    points
}

/// Measures one round. Holds are made one after another, because a call waits for its own hold. Then the calls are
/// settled together, because the settler settles them together.
async fn measure(point: &Point) -> Round {
    let (mut reserving, mut settling) = (Duration::ZERO, Duration::ZERO);
    let books = &point.books;
    books.looked_at();
    for _ in 0..CHUNKS {
        let calls: Vec<Call> = (0..AT_A_TIME).map(|_| point.call()).collect();
        let began = Instant::now();
        for call in &calls {
            let reserved = books.reserve(&call.hold).await;
            black_box(reserved.expect("the key has funds"));
        }
        reserving += began.elapsed();

        let began = Instant::now();
        let settled = join_all(calls.iter().map(|call| books.settle(&call.settlement))).await;
        settling += began.elapsed();
        for settled in settled {
            let settled = settled.expect("the ledger is there");
            assert_eq!(
                settled.booked,
                Booked::Held,
                "each hold stood until it was settled"
            );
        }
    }
    let calls = f64::from(CHUNKS) * AT_A_TIME as f64;
    let each_us = |time: Duration| time.as_secs_f64() * 1e6 / calls;
    Round {
        reserve_us: each_us(reserving),
        both_us: each_us(reserving + settling),
    }
}
