//! Fills a ledger with any number of receipts, in the same way as `tollgate ledger copy`.

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::future::try_join_all;
use serde_json::json;
use tokio::time::Instant;
use tollgate_layers::{
    auth::SecretKey,
    ceiling::Ceilings,
    endpoint::Endpoint,
    facts::RequestNumber,
    key::{AccountId, KeyId},
    money::MicroRub,
    price::{Price, Rate},
    reserve::ledger::{Booked, Entry, Item, JournalLine, LedgerAdmin, Receipt},
    timeline::Timeline,
    usage::{End, Usage},
};
use tollgate_ledger::{
    conn::RedisConn,
    contract::Documents,
    memory::MemoryLedger,
    redis::{RedisCopy, RedisSettings},
    rollup::{Rollup, STANDS_MS, roll_up},
    sqlite::SqliteCopy,
    transfer::Target,
    unbooked::{
        RedisUnbooked, SqliteUnbooked, UnbookedBounds, UnbookedCall, UnbookedState, UnbookedStore,
    },
};

use crate::{Options, fixtures::key_record};

const DAY_MS: u64 = 86_400_000;
const HOUR_MS: u64 = 3_600_000;
/// The age in milliseconds at which journal lines are certainly rolled up. Every five seconds, a gateway rolls up the
/// lines that are older than ten seconds.
const LEFT_MS: u64 = STANDS_MS + 5_000;
/// The number of journal lines that are written at once.
const LINES: usize = 1_000;
/// The number of tasks that write to a server at the same time.
const WRITERS: u64 = 4;
const KEYS: u64 = 2;
const MODELS: u64 = 8;
const VENDORS: u64 = 3;
/// The number and age up to which the ledger keeps the refused calls that the bench writes. The measured gateway has
/// its own bounds.
const BOUNDS: UnbookedBounds = UnbookedBounds {
    calls_max: u64::MAX >> 1,
    age_max: Duration::from_secs(400 * 86_400),
};
const PAID: MicroRub = MicroRub::new(1_000_000_000_000_000);

/// The content that the ledger was filled with.
pub(crate) struct Filled {
    /// The account that has the most receipts.
    pub(crate) account: AccountId,
    pub(crate) key: KeyId,
    /// The number of days over which the receipts are distributed.
    pub(crate) days: u64,
    /// The request number of a refused call of `account`; `None` if an earlier run has filled the ledger.
    pub(crate) refused: Option<RequestNumber>,
    /// The number of receipts; `None` if an earlier run has filled the ledger.
    pub(crate) receipts: Option<u64>,
}

/// A generator of pseudo-random numbers. Each run gets the same numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        // This is the algorithm xorshift64*.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        // Times need more than 32 random bits, so 53 bits are used.
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) % end
    }
}

/// The content that is to be written, account by account.
struct Plan<'a> {
    options: &'a Options,
    now_ms: u64,
    price: Arc<Price>,
    written: AtomicU64,
    begun: Instant,
}

impl<'a> Plan<'a> {
    fn new(options: &'a Options) -> anyhow::Result<Self> {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH)?;
        Ok(Self {
            options,
            now_ms: u64::try_from(since_epoch.as_millis())?,
            price: Arc::new(Price {
                input: Rate::new(100_000_000),
                output: Rate::new(400_000_000),
                ..Price::default()
            }),
            written: AtomicU64::new(0),
            begun: Instant::now(),
        })
    }

    fn account(at: u64) -> AccountId {
        format!("account-{at}").parse().expect("it is an id")
    }

    fn key(account: u64, key: u64) -> KeyId {
        format!("key-{account}-{key}").parse().expect("it is an id")
    }

    /// Returns how many receipts this account gets. The first account gets a fifth of all receipts.
    const fn receipts_of(&self, account: u64) -> u64 {
        let Options {
            receipts, accounts, ..
        } = self.options;
        let first = *receipts / 5;
        match account {
            0 => first,
            _ => (*receipts - first) / (*accounts - 1),
        }
    }

    /// Returns the times of an account's receipts, oldest first. One receipt in twenty is in the last hour.
    fn times(&self, account: u64, dice: &mut Dice) -> Vec<u64> {
        let all = self.receipts_of(account);
        let time = self.options.days * DAY_MS;
        let ago = (0..all).map(|at| dice.below(if at % 20 == 0 { HOUR_MS } else { time }));
        let mut times: Vec<u64> = ago.map(|ago| self.now_ms - ago).collect();
        times.sort_unstable();
        times
    }

    fn receipt(&self, account: u64, at_ms: u64, dice: &mut Dice) -> Receipt {
        let usage = Usage {
            input: 500 + dice.below(4_000),
            cached_input: dice.below(3_000),
            output: 20 + dice.below(900),
            ..Usage::default()
        };
        let cost = self.price.cost(&usage);
        let vendor_cost = MicroRub::new(cost.micro() * 4 / 5);
        let end = match dice.below(50) {
            0 => End::VendorCut,
            1 => End::ClientLeft,
            _ => End::Finished,
        };
        let session = format!("s-{}", dice.below(200));
        // Most calls are fast, but some are slow.
        let mut ms = |doublings| {
            let most = 100 << dice.below(doublings);
            u32::try_from(50 + dice.below(most)).expect("it is small")
        };
        let (first_byte_ms, whole_ms) = (ms(5), ms(8));
        let endpoint = Endpoint::ALL[usize::try_from(dice.below(2)).expect("it is small")];
        Receipt {
            number: RequestNumber::now_v7(),
            at_ms,
            account: Self::account(account),
            key: Self::key(account, dice.below(KEYS)),
            group: None,
            held_rub: cost,
            cost_rub: cost,
            charged_rub: cost,
            loss_rub: MicroRub::ZERO,
            booked: Booked::Held,
            item: Item {
                usage,
                price: Some(Arc::clone(&self.price)),
                vendor_cost_rub: Some(vendor_cost),
                session: session.parse().ok(),
                endpoint: Some(endpoint),
                timeline: Some(Timeline {
                    held_ms: 1,
                    asked_ms: Some(2),
                    first_byte_ms: Some(first_byte_ms),
                    whole_ms: first_byte_ms + whole_ms,
                    status: Some(200),
                    failed: Vec::new(),
                }),
                ..Item::new(
                    format!("model-{}", dice.below(MODELS)),
                    format!("vendor-{}", dice.below(VENDORS)),
                    end,
                )
            },
        }
    }

    /// Writes an account with its receipts.
    async fn write<T: Target>(&self, target: &mut T, at: u64) -> anyhow::Result<()> {
        let mut dice = Dice(0x9E37_79B9_7F4A_7C15 ^ (at + 1));
        let times = self.times(at, &mut dice);
        let id = Self::account(at);
        let paid = JournalLine::Entry {
            id: "paid".into(),
            at_ms: self.now_ms - (self.options.days + 1) * DAY_MS,
            account: id.clone(),
            amount_rub: PAID,
            reason: None,
        };
        target.lines(&id, &[paid], false).await?;
        let mut spent: HashMap<KeyId, i64> = HashMap::new();
        for times in times.chunks(LINES) {
            let mut lines = Vec::with_capacity(times.len());
            for at_ms in times {
                let receipt = self.receipt(at, *at_ms, &mut dice);
                *spent.entry(receipt.key.clone()).or_default() += receipt.charged_rub.micro();
                lines.push(JournalLine::Call(receipt));
            }
            target.lines(&id, &lines, false).await?;
            self.progress(times.len() as u64);
        }
        let scratch = MemoryLedger::new();
        scratch
            .create_account(&id, &format!("Account {at}"))
            .await?;
        let paid = Entry {
            id: "paid".into(),
            amount: PAID,
            reason: None,
        };
        scratch.enter(&id, &paid).await?;
        for key in 0..KEYS {
            let digest = SecretKey::generate().digest();
            let record = key_record(&id, &Self::key(at, key), digest);
            scratch.create_key(&record, Ceilings::NONE).await?;
        }
        let mut books = scratch.books(&id).await?;
        for key in &mut books.keys {
            let of_key = spent.get(&key.record.id).copied().unwrap_or_default();
            key.spent_rub = MicroRub::new(of_key);
        }
        let spent = spent.values().sum();
        books.view.spent_rub = MicroRub::new(spent);
        books.view.balance_rub = MicroRub::new(PAID.micro() - spent);
        let entries = [("paid".to_owned(), PAID)].into();
        target.account(&books, &entries).await?;
        Ok(())
    }

    fn progress(&self, lines: u64) {
        let before = self.written.fetch_add(lines, Ordering::Relaxed);
        let now = before + lines;
        let step = (self.options.receipts / 20).max(1);
        if before / step != now / step {
            let seconds = self.begun.elapsed().as_secs_f64();
            let all = self.options.receipts;
            eprintln!("pages: {now} of {all} receipts in {seconds:.0} s");
        }
    }

    /// Rolls the journals up to the point that a running gateway would have reached.
    async fn roll_up<L: Rollup>(&self, ledger: &L) -> anyhow::Result<()> {
        let begun = self.begun.elapsed();
        // The newest lines are left out of the roll-up, because a running gateway does not roll them up either.
        let lines = roll_up(ledger, self.now_ms - LEFT_MS).await?;
        let seconds = (self.begun.elapsed() - begun).as_secs_f64();
        eprintln!("pages: {lines} lines rolled up in {seconds:.1} s");
        Ok(())
    }

    /// Writes the history of tariffs as gateways would. The multiplier changes three times, each time in the middle of
    /// an hour. The last change is half an hour ago, in the hour with the most calls.
    async fn tariffs<L: LedgerAdmin + Documents>(&self, ledger: &L) -> anyhow::Result<()> {
        let ago = |days: u64| self.now_ms - days * DAY_MS - HOUR_MS / 2;
        for (since_ms, multiplier) in [
            (ago(self.options.days), "1"),
            (ago(8), "1.2"),
            (ago(0), "1.1"),
        ] {
            let version = ledger.tariff_version(multiplier).await?;
            let tariff = json!({ "since_ms": since_ms, "multiplier": multiplier, "models": {} });
            let name = format!("tariff/{:020}", version.id);
            ledger.write_value(&name, 0, &tariff).await?;
        }
        Ok(())
    }

    /// Writes refused calls, oldest first. One call in a thousand has the error code `address_not_allowed`, which no
    /// other call has. Returns the request number of a refused call of the first account.
    async fn refused(&self, store: &dyn UnbookedStore) -> anyhow::Result<Option<RequestNumber>> {
        let Options {
            refused,
            accounts,
            days,
            ..
        } = *self.options;
        let (begun, mut dice) = (Instant::now(), Dice(0x2545_F491_4F6C_DD1D));
        let mut of_first = None;
        for first in (0..refused).step_by(LINES) {
            let last = refused.min(first + LINES as u64);
            let calls = (first..last).map(|at| {
                let ago_ms = days * DAY_MS - at * (days * DAY_MS / refused);
                let account = match at % 5 {
                    0 => 0,
                    _ => dice.below(accounts),
                };
                let code = match at % 1_000 {
                    7 => "address_not_allowed",
                    _ => ["account_empty", "insufficient_balance", "model_not_found"]
                        [at as usize % 3],
                };
                let number = format!("{:012x}70008{:015x}", self.now_ms - ago_ms, at);
                anyhow::Ok(UnbookedCall {
                    number: number.parse()?,
                    state: UnbookedState::Refused,
                    path: "/v1/chat/completions".into(),
                    account: Some(Self::account(account)),
                    key: Some(Self::key(account, dice.below(KEYS))),
                    model: Some(format!("model-{}", dice.below(MODELS))),
                    session: None,
                    vendor: None,
                    status: Some(403),
                    code: Some(code.into()),
                    field: None,
                    error: Some("hold of 12.34 does not fit into the 3.21 that is free; the key's other calls hold 5.67".into()),
                    whole_ms: 3,
                })
            });
            let calls = calls.collect::<anyhow::Result<Vec<_>>>()?;
            of_first = calls.first().map(|call| call.number);
            store
                .write(&calls)
                .await
                .map_err(anyhow::Error::from_boxed)?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        eprintln!("pages: {refused} refused calls in {seconds:.0} s");
        Ok(of_first)
    }

    fn filled(self, refused: Option<RequestNumber>) -> Filled {
        Filled {
            refused,
            receipts: Some(self.written.into_inner()),
            ..Filled::before(self.options)
        }
    }
}

impl Filled {
    /// Describes a ledger that an earlier run has filled.
    pub(crate) fn before(options: &Options) -> Self {
        Self {
            days: options.days,
            account: Plan::account(0),
            key: Plan::key(0, 0),
            refused: None,
            receipts: None,
        }
    }

    pub(crate) async fn file(options: &Options, path: &Path) -> anyhow::Result<Self> {
        let plan = Plan::new(options)?;
        let mut copy = SqliteCopy::begin(path).map_err(anyhow::Error::from_boxed)?;
        for at in 0..options.accounts {
            plan.write(&mut copy, at).await?;
        }
        let ledger = copy.filled().await?;
        plan.roll_up(&ledger).await?;
        plan.tariffs(&ledger).await?;
        copy.publish(ledger).await?;
        let mut calls = path.as_os_str().to_owned();
        calls.push(".calls");
        let calls = SqliteUnbooked::new(Path::new(&calls), BOUNDS);
        let refused = plan.refused(&calls).await?;
        Ok(plan.filled(refused))
    }

    pub(crate) async fn redis(options: &Options, url: &str) -> anyhow::Result<Self> {
        let plan = Plan::new(options)?;
        let writers = (0..WRITERS).map(|writer| {
            let plan = &plan;
            async move {
                let mut copy = RedisCopy::begin(url, RedisSettings::default()).await?;
                let own = (0..options.accounts).filter(|at| at % WRITERS == writer);
                for at in own {
                    plan.write(&mut copy, at).await?;
                }
                anyhow::Ok(())
            }
        });
        try_join_all(writers).await?;
        let mut copy = RedisCopy::begin(url, RedisSettings::default()).await?;
        let ledger = copy.filled().await?;
        plan.roll_up(&ledger).await?;
        plan.tariffs(&ledger).await?;
        copy.publish(ledger).await?;
        let conn = RedisConn::connect(url, RedisSettings::default()).await?;
        let refused = plan.refused(&RedisUnbooked::new(conn, BOUNDS)).await?;
        Ok(plan.filled(refused))
    }
}
