use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use tokio::task::JoinSet;

use super::*;
use crate::{
    account::{AccountId, KeyId},
    contract::{Hold, Item, LedgerAdmin, LedgerError, Reserved},
    memory::MemoryLedger,
    money::MicroRub,
    usage::End,
};

/// A ledger that records how many settlements it gets together, and loses its first response for one of the calls.
#[derive(Clone, Default)]
struct Recorder {
    ledger: MemoryLedger,
    submitted: Arc<Mutex<Vec<usize>>>,
    loses: Arc<Mutex<Option<RequestNumber>>>,
}

impl Ledger for Recorder {
    async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        self.ledger.reserve(hold).await
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        self.submitted.lock().unwrap().push(1);
        self.ledger.settle(settlement).await
    }

    async fn settle_all(&self, calls: &[Settlement]) -> Vec<Result<Settled, LedgerError>> {
        self.submitted.lock().unwrap().push(calls.len());
        let lost = self.loses.lock().unwrap().take();
        let mut answers = self.ledger.settle_all(calls).await;
        for (call, answer) in calls.iter().zip(&mut answers) {
            if Some(call.number) == lost {
                *answer = Err(LedgerError::Unavailable("no way back".into()));
            }
        }
        answers
    }

    async fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> Result<(), LedgerError> {
        self.ledger.release(number, account, key).await
    }

    async fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> Result<bool, LedgerError> {
        self.ledger.extend(number, account, ttl).await
    }

    async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
        self.ledger.probe(account, key).await
    }

    async fn expire(&self) -> Result<usize, LedgerError> {
        self.ledger.expire().await
    }
}

/// A ledger that is unreachable.
struct Away;

impl Ledger for Away {
    async fn reserve(&self, _: &Hold) -> Result<Reserved, LedgerError> {
        Err(LedgerError::Unavailable("away".into()))
    }

    async fn settle(&self, _: &Settlement) -> Result<Settled, LedgerError> {
        Err(LedgerError::Unavailable("away".into()))
    }

    async fn release(&self, _: RequestNumber, _: &AccountId, _: &KeyId) -> Result<(), LedgerError> {
        Err(LedgerError::Unavailable("away".into()))
    }

    async fn extend(
        &self,
        _: RequestNumber,
        _: &AccountId,
        _: Duration,
    ) -> Result<bool, LedgerError> {
        Err(LedgerError::Unavailable("away".into()))
    }

    async fn probe(&self, _: &AccountId, _: &KeyId) -> Result<(), LedgerError> {
        Err(LedgerError::Unavailable("away".into()))
    }

    async fn expire(&self) -> Result<usize, LedgerError> {
        Err(LedgerError::Unavailable("away".into()))
    }
}

fn settle(number: RequestNumber) -> Ending {
    let item = Item::new("m", "v", End::Finished);
    Ending::Settle(Arc::new(Settlement {
        number,
        account: "acme".parse().unwrap(),
        key: "k1".parse().unwrap(),
        held: MicroRub::ZERO,
        cost: MicroRub::ZERO,
        fresh: true,
        lease: None,
        item,
    }))
}

fn release(number: RequestNumber) -> Ending {
    Ending::Release {
        number,
        account: "acme".parse().unwrap(),
        key: "k1".parse().unwrap(),
    }
}

#[tokio::test(start_paused = true)]
async fn settlements_are_sent_in_batches_and_only_failed_ones_are_retried() {
    let ledger = Recorder::default();
    let numbers: [RequestNumber; 4] = std::array::from_fn(|_| RequestNumber::now_v7());
    *ledger.loses.lock().unwrap() = Some(numbers[1]);
    let reports = Arc::new(Mutex::new(Vec::new()));
    let reported = Arc::clone(&reports);
    let report = move |event: &Event<'_>| {
        let line = match event {
            Event::Settled { settlement, .. } => ("settled", settlement.number),
            Event::Released { number } => ("released", *number),
            Event::Unavailable { number, .. } => ("unavailable", *number),
            Event::Untended { .. } => unreachable!("no call runs"),
        };
        reported.lock().unwrap().push(line);
    };
    let (settler, task) = Settler::new(ledger.clone(), SettlerSettings::default(), report);
    let mut tasks = JoinSet::new();
    tasks.spawn(task.run());
    for number in &numbers[..3] {
        settler.permit().unwrap().send(settle(*number));
    }
    settler.permit().unwrap().send(release(numbers[3]));
    drop(settler);
    tasks.join_next().await.unwrap().unwrap();
    assert_eq!(*ledger.submitted.lock().unwrap(), [3, 1]);
    let reports = reports.lock().unwrap();
    assert_eq!(
        *reports,
        [
            ("settled", numbers[0]),
            ("settled", numbers[2]),
            ("released", numbers[3]),
            ("unavailable", numbers[1]),
            ("settled", numbers[1]),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn number_of_unacknowledged_settlements_is_limited() {
    let ledger = Recorder::default();
    let settings = SettlerSettings {
        under_way_max: 2,
        ..SettlerSettings::default()
    };
    let (settler, task) = Settler::new(ledger.clone(), settings, |_| {});
    for _ in 0..5 {
        let place = settler.permit().unwrap();
        place.send(settle(RequestNumber::now_v7()));
    }
    drop(settler);
    task.run().await;
    assert_eq!(*ledger.submitted.lock().unwrap(), [2, 2, 1]);
}

#[tokio::test(start_paused = true)]
async fn calls_with_unacknowledged_settlements_are_counted() {
    let (settler, task) = Settler::new(Away, SettlerSettings::default(), |_| {});
    let unacknowledged = settler.unacknowledged();
    assert_eq!(unacknowledged.count(), 0);
    settler
        .permit()
        .unwrap()
        .send(settle(RequestNumber::now_v7()));
    settler
        .permit()
        .unwrap()
        .send(release(RequestNumber::now_v7()));
    drop(settler);
    let stopped = tokio::time::timeout(Duration::from_secs(60), task.run()).await;
    assert!(
        stopped.is_err(),
        "the task runs until all ends are acknowledged"
    );
    assert_eq!(unacknowledged.count(), 2);

    let (settler, task) = Settler::new(Recorder::default(), SettlerSettings::default(), |_| {});
    let unacknowledged = settler.unacknowledged();
    settler
        .permit()
        .unwrap()
        .send(settle(RequestNumber::now_v7()));
    drop(settler);
    task.run().await;
    assert_eq!(unacknowledged.count(), 0);
}

#[tokio::test]
async fn panic_in_the_report_of_a_settlement_stops_no_other_report() {
    let ledger = MemoryLedger::new();
    let account: AccountId = "acme".parse().unwrap();
    ledger.create_account(&account, "Acme").await.unwrap();
    let reports = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reports);
    let (settler, task) = Settler::new(ledger, SettlerSettings::default(), move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        panic!("the test panics");
    });
    for _ in 0..2 {
        let place = settler.permit().unwrap();
        place.send(release(RequestNumber::now_v7()));
    }
    drop(settler);
    task.run().await;
    assert_eq!(reports.load(Ordering::Relaxed), 2);
}
