mod calls;
mod recovery;
mod replay;

use std::{collections::HashSet, future::pending};

use futures_util::FutureExt;
use tokio::{join, time::advance};

use super::*;
use crate::{
    contract::{Booked, Item, LedgerAdmin},
    memory::MemoryLedger,
    money::MicroRub,
    testing::{
        given::{self, acme as account, number},
        open,
    },
    usage::End,
};

/// The final cost of the test's call, in micro-rubles.
const COST: i64 = 70;
/// The cost in the checkpoint of the test's call, in micro-rubles.
const NOTED: i64 = 40;

fn key() -> KeyId {
    given::key("k1")
}

/// Returns a hold that expires immediately. The next sweep ends it, unless the outbox settles or releases it.
fn hold(index: u128) -> Hold {
    given::due(index, "k1", 100)
}

fn settlement(index: u128, cost: i64) -> Settlement {
    Settlement {
        item: Item {
            session: Some("s-1".parse().unwrap()),
            ..Item::new("m", "v", End::Finished)
        },
        ..given::settlement(index, "k1", cost)
    }
}

async fn funded() -> MemoryLedger {
    let ledger = MemoryLedger::new();
    open(&ledger, 1_000).await;
    ledger
}

async fn balance(ledger: &MemoryLedger) -> i64 {
    let view = ledger.account(&account()).await.unwrap();
    view.balance_rub.micro()
}

async fn held(ledger: &MemoryLedger) -> i64 {
    ledger.account(&account()).await.unwrap().held_rub.micro()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fault {
    Fine,
    /// The request does not reach the ledger.
    Before,
    /// The ledger carries out the request, but its answer is lost.
    After,
    /// The process dies before the request reaches the ledger.
    DiesBefore,
    /// The process dies after the ledger has carried out the request and before the answer arrives.
    DiesAfter,
}

/// A connection to an in-memory ledger that fails on demand. A test can replace the ledger.
#[derive(Clone)]
struct Wire(Arc<Mutex<Way>>);

struct Way {
    ledger: MemoryLedger,
    faults: VecDeque<Fault>,
    down: bool,
    requested: Vec<String>,
}

impl Wire {
    fn to(ledger: &MemoryLedger) -> Self {
        Self(Arc::new(Mutex::new(Way {
            ledger: ledger.clone(),
            faults: VecDeque::new(),
            down: false,
            requested: Vec::new(),
        })))
    }

    fn faulty(self, faults: &[Fault]) -> Self {
        self.0.lock().unwrap().faults = faults.iter().copied().collect();
        self
    }

    fn down(&self, down: bool) {
        self.0.lock().unwrap().down = down;
    }

    fn fails_over_to(&self, ledger: &MemoryLedger) {
        self.0.lock().unwrap().ledger = ledger.clone();
    }

    /// Returns the requests that reached the ledger since the last call of this function.
    fn requested(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().requested)
    }

    async fn ask<T, F>(
        &self,
        what: String,
        step: impl FnOnce(MemoryLedger) -> F + Send,
    ) -> Result<T, LedgerError>
    where
        T: Send,
        F: Future<Output = Result<T, LedgerError>> + Send,
    {
        let (fault, ledger) = {
            let mut way = self.0.lock().unwrap();
            way.requested.push(what);
            let otherwise = if way.down { Fault::Before } else { Fault::Fine };
            let fault = way.faults.pop_front().unwrap_or(otherwise);
            (fault, way.ledger.clone())
        };
        match fault {
            Fault::Fine => step(ledger).await,
            Fault::Before => Err(LedgerError::Unavailable("no way there".into())),
            Fault::After => {
                drop(step(ledger).await);
                Err(LedgerError::Unavailable("no way back".into()))
            }
            Fault::DiesBefore => pending().await,
            Fault::DiesAfter => {
                drop(step(ledger).await);
                pending().await
            }
        }
    }
}

impl Ledger for Wire {
    async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        let what = format!("reserve {}", hold.number.uuid().as_u128());
        self.ask(what, |ledger| async move { ledger.reserve(hold).await })
            .await
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        let fresh = if settlement.fresh { "" } else { " not fresh" };
        let what = format!("settle {}{fresh}", settlement.number.uuid().as_u128());
        self.ask(
            what,
            |ledger| async move { ledger.settle(settlement).await },
        )
        .await
    }

    async fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> Result<(), LedgerError> {
        let what = format!("release {}", number.uuid().as_u128());
        self.ask(what, |ledger| async move {
            ledger.release(number, account, key).await
        })
        .await
    }

    async fn extend(
        &self,
        _: RequestNumber,
        _: &AccountId,
        _: Duration,
    ) -> Result<bool, LedgerError> {
        unreachable!("nothing is extended here")
    }

    async fn probe(&self, _: &AccountId, _: &KeyId) -> Result<(), LedgerError> {
        unreachable!("nothing is probed here")
    }

    async fn expire(&self) -> Result<usize, LedgerError> {
        unreachable!("nothing expires here")
    }
}

/// A log in memory.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Disk>>);

#[derive(Default)]
struct Disk {
    lines: Vec<CallStep>,
    syncs: usize,
    fault: Option<String>,
    forgotten_until_ms: Vec<u64>,
}

impl Lines {
    fn from_steps(lines: &[CallStep]) -> Self {
        let log = Self::default();
        log.0.lock().unwrap().lines = lines.to_vec();
        log
    }

    fn all(&self) -> Vec<CallStep> {
        self.0.lock().unwrap().lines.clone()
    }

    fn shown(&self) -> Vec<String> {
        let shown = |line: &CallStep| {
            let (word, number) = match line {
                CallStep::Intent { number, .. } => ("intent", number),
                CallStep::Checkpoint(settlement) => ("checkpoint", &settlement.number),
                CallStep::Settle(settlement, _) => ("settle", &settlement.number),
                CallStep::Release { number, .. } => ("release", number),
                CallStep::Done { number, .. } => ("done", number),
            };
            format!("{word} {}", number.uuid().as_u128())
        };
        self.all().iter().map(shown).collect()
    }
}

impl Log for Lines {
    fn append(&self, line: CallStep) {
        let mut disk = self.0.lock().unwrap();
        if disk.fault.is_none() {
            disk.lines.push(line);
        }
    }

    async fn sync(&self) -> Result<(), BoxError> {
        let mut disk = self.0.lock().unwrap();
        disk.syncs += 1;
        disk.fault.clone().map_or(Ok(()), |fault| Err(fault.into()))
    }

    async fn load(&self) -> Result<Vec<Pending>, BoxError> {
        Ok(log::pending(self.all()))
    }

    fn fault(&self) -> Option<String> {
        self.0.lock().unwrap().fault.clone()
    }

    fn forget(&self, until_ms: u64) {
        self.0.lock().unwrap().forgotten_until_ms.push(until_ms);
    }
}

type TestOutbox = Outbox<Wire, Lines>;

/// Opens an outbox whose clock advances with tokio's clock and starts at 1 000 000 ms.
async fn opened(wire: &Wire, lines: &Lines, settings: OutboxSettings) -> TestOutbox {
    let began = Instant::now();
    let clock = move || 1_000_000 + u64::try_from(began.elapsed().as_millis()).unwrap();
    Outbox::open_by_clock(wire.clone(), lines.clone(), settings, clock)
        .await
        .unwrap()
}

async fn fresh_outbox() -> (MemoryLedger, Wire, Lines, TestOutbox) {
    let ledger = funded().await;
    let (wire, lines) = (Wire::to(&ledger), Lines::default());
    let outbox = opened(&wire, &lines, OutboxSettings::default()).await;
    (ledger, wire, lines, outbox)
}

async fn served(outbox: &TestOutbox, index: u128) {
    outbox.reserve(&hold(index)).await.unwrap();
    outbox.settle(&settlement(index, COST)).await.unwrap();
}

/// Makes a call in the way the gateway does: each failed request is retried.
async fn call(outbox: &TestOutbox) {
    match outbox.reserve(&hold(1)).await {
        Ok(_) => {
            outbox.checkpoint(&[settlement(1, NOTED)]).await.unwrap();
            while outbox.settle(&settlement(1, COST)).await.is_err() {}
        }
        Err(LedgerError::Refused(_)) => {}
        Err(_) => while outbox.release(number(1), &account(), &key()).await.is_err() {},
    }
}
