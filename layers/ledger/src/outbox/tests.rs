use std::{collections::HashSet, future::pending};

use futures_util::FutureExt;
use tokio::{join, time::advance};
use uuid::Uuid;

use super::*;
use crate::{
    account::{KeyDigest, KeyRecord, KeyStatus},
    ceiling::Ceilings,
    contract::{Booked, Entry, Item, LedgerAdmin},
    memory::MemoryLedger,
    money::MicroRub,
    usage::End,
};

/// What a call costs in the end, and what was noted of it while it ran.
const COST: i64 = 70;
const NOTED: i64 = 40;

fn account() -> AccountId {
    "acme".parse().unwrap()
}

fn key() -> KeyId {
    "k1".parse().unwrap()
}

fn number(index: u128) -> RequestNumber {
    RequestNumber::from_uuid(Uuid::from_u128(index))
}

fn hold(index: u128) -> Hold {
    Hold {
        number: number(index),
        account: account(),
        key: key(),
        want: MicroRub::new(100),
        least: MicroRub::new(100),
        // Due at once: what is forgotten is what the next sweep ends.
        ttl: Duration::ZERO,
    }
}

fn settlement(index: u128, cost: i64) -> Settlement {
    Settlement {
        number: number(index),
        account: account(),
        key: key(),
        held: MicroRub::new(100),
        cost: MicroRub::new(cost),
        fresh: true,
        item: Item {
            session: Some("s-1".parse().unwrap()),
            ..Item::new("m", "v", End::Finished)
        },
    }
}

async fn funded() -> MemoryLedger {
    let ledger = MemoryLedger::new();
    ledger.create_account(&account(), "Acme").await.unwrap();
    let record = KeyRecord {
        id: key(),
        account: account(),
        digest: KeyDigest::new([1; 32]),
        prefix: "tg-AbC123…".into(),
        name: "laptop".into(),
        status: KeyStatus::Active,
        models: Vec::new(),
        addresses: Vec::new(),
        requests_per_second: None,
        requests_per_minute: None,
        tokens_per_minute: None,
        expires_at_ms: None,
        created_at_ms: 0,
        changed_at_ms: 0,
    };
    ledger.create_key(&record, Ceilings::NONE).await.unwrap();
    let topup = Entry {
        id: "t1".into(),
        amount: MicroRub::new(1_000),
        reason: None,
    };
    ledger.enter(&account(), &topup).await.unwrap();
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
    /// The question is lost.
    Before,
    /// The answer is lost.
    After,
    /// The process dies before the question is there.
    DiesBefore,
    /// The process dies before the answer is there.
    DiesAfter,
}

/// The way to a memory ledger, which fails as it is told to. Another ledger may take its place.
#[derive(Clone)]
struct Wire(Arc<Mutex<Way>>);

struct Way {
    ledger: MemoryLedger,
    faults: VecDeque<Fault>,
    down: bool,
    asked: Vec<String>,
}

impl Wire {
    fn to(ledger: &MemoryLedger) -> Self {
        Self(Arc::new(Mutex::new(Way {
            ledger: ledger.clone(),
            faults: VecDeque::new(),
            down: false,
            asked: Vec::new(),
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

    /// What was asked since the last look.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().asked)
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
            way.asked.push(what);
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
    fn of(lines: &[CallStep]) -> Self {
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

/// An outbox whose clock goes with tokio's, from the 1 000 000th millisecond on.
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

/// A call as the layers above make it: whatever fails is tried again.
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

/// The call, cut short where a fault says so.
async fn cut_call(faults: &[Fault]) -> (MemoryLedger, Vec<CallStep>) {
    let ledger = funded().await;
    let lines = Lines::default();
    let wire = Wire::to(&ledger).faulty(faults);
    let outbox = opened(&wire, &lines, OutboxSettings::default()).await;
    let ended = call(&outbox).now_or_never().is_some();
    let dies = |fault: &Fault| matches!(fault, Fault::DiesBefore | Fault::DiesAfter);
    assert_eq!(ended, !faults.iter().any(dies), "{faults:?}");
    (ledger, lines.all())
}

#[tokio::test]
async fn whenever_a_process_dies_its_call_is_charged_once_or_released() {
    use Fault::{After, Before, DiesAfter, DiesBefore, Fine};
    let plans: [&[Fault]; 8] = [
        &[Fine, Fine],
        &[Fine, Before, Fine],
        &[Fine, After, Fine],
        &[Fine, Before, After, Fine],
        &[Before, Fine],
        &[After, Fine],
        &[After, Before, Fine],
        &[After, After, Fine],
    ];
    let mut cases = HashSet::new();
    for plan in plans {
        cases.insert(plan.to_vec());
        for step in 0..plan.len() {
            for death in [DiesBefore, DiesAfter] {
                cases.insert([&plan[..step], &[death][..]].concat());
            }
        }
    }
    let mut charges_seen = HashSet::new();
    for faults in cases {
        let (_, all_lines) = cut_call(&faults).await;
        for kept in 0..=all_lines.len() {
            let case = format!("{faults:?}, {kept} of {} lines", all_lines.len());
            let (ledger, lines) = cut_call(&faults).await;
            let lines = &lines[..kept];
            let charged_before = 1_000 - balance(&ledger).await;
            let newest = lines
                .iter()
                .rfind(|line| !matches!(line, CallStep::Done { .. }));
            let expected = match newest {
                _ if charged_before != 0 => charged_before,
                Some(CallStep::Settle(..)) => COST,
                Some(CallStep::Checkpoint(_)) => NOTED,
                _ => 0,
            };

            // The next process, and one after it: that finds nothing left to do.
            let mut lines = Lines::of(lines);
            for _ in 0..2 {
                let outbox = opened(&Wire::to(&ledger), &lines, OutboxSettings::default()).await;
                outbox.recover(&|_| {}).await;
                assert_eq!(1_000 - balance(&ledger).await, expected, "{case}");
                assert_eq!(outbox.backlog(), Backlog::default(), "{case}");
                let left = log::pending(lines.all());
                assert!(left.iter().all(|call| call.done), "{case}: {left:?}");
                lines = Lines::of(&lines.all());
            }
            // A process that died before it wrote anything leaves a hold that expires by itself.
            if kept > 0 {
                assert_eq!(held(&ledger).await, 0, "{case}");
            }
            ledger.expire().await.unwrap();
            assert_eq!(held(&ledger).await, 0, "{case}");
            let audit = ledger.audit().await.unwrap();
            assert_eq!(audit.breaches, Vec::<String>::new(), "{case}");
            charges_seen.insert(expected);
        }
    }
    assert_eq!(charges_seen, HashSet::from([0, NOTED, COST]));
}

#[tokio::test]
async fn each_step_of_a_call_is_written_once_and_in_order() {
    use Fault::{After, Before, Fine};
    let settled = ["intent 1", "checkpoint 1", "settle 1", "done 1"];
    let released = ["intent 1", "release 1", "done 1"];
    for (faults, lines) in [
        (&[Fine][..], &settled[..]),
        (&[Fine, Before, After, Before, Fine], &settled),
        (&[After, Fine], &released),
        (&[Before, After, Before, Fine], &released),
    ] {
        let ledger = funded().await;
        let log = Lines::default();
        let wire = Wire::to(&ledger).faulty(faults);
        let outbox = opened(&wire, &log, OutboxSettings::default()).await;
        call(&outbox).await;
        assert_eq!(log.shown(), lines, "{faults:?}");
        // Too late: the call has ended.
        outbox.checkpoint(&[settlement(1, NOTED)]).await.unwrap();
        assert_eq!(log.shown(), lines, "{faults:?}");
        // An end that was not acknowledged is made durable before it is waited for.
        let failures = faults[1..].iter().filter(|fault| **fault != Fine).count();
        assert_eq!(log.0.lock().unwrap().syncs, failures, "{faults:?}");
        assert_eq!(outbox.backlog(), Backlog::default(), "{faults:?}");
    }
}

#[tokio::test]
async fn a_refused_hold_leaves_nothing_to_end() {
    let (ledger, wire, lines, outbox) = fresh_outbox().await;
    let dear = Hold {
        want: MicroRub::new(5_000),
        least: MicroRub::new(5_000),
        ..hold(1)
    };
    let refused = outbox.reserve(&dear).await;
    assert!(
        matches!(refused, Err(LedgerError::Refused(_))),
        "{refused:?}"
    );
    assert_eq!(lines.shown(), ["intent 1", "done 1"]);
    assert_eq!(log::pending(lines.all()), []);

    // A hold that stands is not given up because its number comes again with other wishes.
    outbox.reserve(&hold(2)).await.unwrap();
    let conflict = Hold {
        want: MicroRub::new(101),
        ..hold(2)
    };
    assert!(outbox.reserve(&conflict).await.is_err());
    assert_eq!(lines.shown()[2..], ["intent 2"]);
    assert_eq!(held(&ledger).await, 100);
    assert_eq!(wire.asked().len(), 3);
}

#[tokio::test]
async fn a_call_whose_caller_left_while_it_was_reserved_is_released() {
    let ledger = funded().await;
    let lines = Lines::default();
    let wire = Wire::to(&ledger).faulty(&[Fault::DiesAfter]);
    let outbox = opened(&wire, &lines, OutboxSettings::default()).await;
    assert!(outbox.reserve(&hold(1)).now_or_never().is_none());
    assert_eq!(held(&ledger).await, 100);
    outbox.release(number(1), &account(), &key()).await.unwrap();
    assert_eq!(held(&ledger).await, 0);
    assert_eq!(lines.shown(), ["intent 1", "release 1", "done 1"]);
}

#[tokio::test]
async fn nothing_is_sold_that_could_not_be_written_down_but_what_was_sold_is_charged() {
    let (ledger, wire, lines, outbox) = fresh_outbox().await;
    outbox.reserve(&hold(1)).await.unwrap();
    lines.0.lock().unwrap().fault = Some("the disk is full".into());

    let Err(LedgerError::Unavailable(cause)) = outbox.reserve(&hold(2)).await else {
        panic!("a hold without a record")
    };
    assert!(cause.to_string().contains("the disk is full"), "{cause}");
    assert!(outbox.checkpoint(&[settlement(1, NOTED)]).await.is_err());
    assert_eq!(outbox.backlog().broken.as_deref(), Some("the disk is full"));

    wire.down(true);
    assert!(outbox.settle(&settlement(1, COST)).await.is_err());
    wire.down(false);
    outbox.settle(&settlement(1, COST)).await.unwrap();
    assert_eq!(balance(&ledger).await, 1_000 - COST);
    assert_eq!(wire.asked(), ["reserve 1", "settle 1", "settle 1"]);
}

#[tokio::test(start_paused = true)]
async fn a_full_outbox_admits_nothing_until_the_ledger_has_answered() {
    let ledger = funded().await;
    let (wire, lines) = (Wire::to(&ledger), Lines::default());
    let settings = OutboxSettings {
        calls_max: 2,
        age_max: Duration::from_secs(60),
        ..OutboxSettings::default()
    };
    let outbox = opened(&wire, &lines, settings).await;
    for index in 1..=3 {
        outbox.reserve(&hold(index)).await.unwrap();
    }
    assert_eq!(outbox.backlog(), Backlog::default());

    wire.down(true);
    assert!(outbox.settle(&settlement(1, COST)).await.is_err());
    advance(Duration::from_secs(10)).await;
    assert!(outbox.release(number(2), &account(), &key()).await.is_err());
    let expected = |seconds, overdue| Backlog {
        calls: 2,
        oldest: Some(Duration::from_secs(seconds)),
        overdue,
        full: true,
        broken: None,
    };
    assert_eq!(outbox.backlog(), expected(10, false));
    let Err(LedgerError::Unavailable(cause)) = outbox.reserve(&hold(4)).await else {
        panic!("a full outbox admitted a call")
    };
    assert!(cause.to_string().contains("full: 2 calls"), "{cause}");
    // Its guard releases it all the same; the outbox does not fill further with what it refused.
    assert!(outbox.release(number(4), &account(), &key()).await.is_err());
    assert_eq!(outbox.backlog(), expected(10, false));
    assert!(!lines.shown().iter().any(|line| line.ends_with(" 4")));
    // What was admitted may end still.
    assert!(outbox.settle(&settlement(3, COST)).await.is_err());
    assert_eq!(outbox.backlog().calls, 3);
    advance(Duration::from_secs(51)).await;
    assert!(outbox.backlog().overdue);

    wire.down(false);
    outbox.settle(&settlement(1, COST)).await.unwrap();
    outbox.settle(&settlement(3, COST)).await.unwrap();
    assert_eq!(
        outbox.backlog(),
        Backlog {
            calls: 1,
            full: false,
            ..expected(51, false)
        }
    );
    outbox.reserve(&hold(4)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_process_left_is_ended_while_new_calls_run() {
    let ledger = funded().await;
    for index in 1..=3 {
        ledger.reserve(&hold(index)).await.unwrap();
    }
    let at_ms = 999_000;
    let intent = |index| CallStep::Intent {
        number: number(index),
        account: account(),
        key: key(),
        at_ms,
    };
    let lines = Lines::of(&[
        intent(1),
        intent(2),
        CallStep::Checkpoint(Arc::new(settlement(2, NOTED))),
        intent(3),
        CallStep::Settle(Arc::new(settlement(3, COST)), at_ms),
    ]);
    let wire = Wire::to(&ledger);
    let settings = OutboxSettings {
        age_max: Duration::from_secs(5),
        ..OutboxSettings::default()
    };
    let outbox = opened(&wire, &lines, settings).await;
    // It is no debt of this process until it has tried.
    assert_eq!(outbox.backlog(), Backlog::default());
    wire.down(true);

    let events = Mutex::new(Vec::new());
    let report = |event: &Event<'_>| {
        let text = match event {
            Event::Settled {
                settlement,
                settled,
            } => format!(
                "settled {} {:?} {}",
                settlement.number.uuid().as_u128(),
                settled.booked,
                settled.charged.micro()
            ),
            Event::Released { number } => format!("released {}", number.uuid().as_u128()),
            Event::Unavailable { number, .. } => format!("away {}", number.uuid().as_u128()),
            Event::Untended { .. } => unreachable!("no call runs"),
        };
        events.lock().unwrap().push(text);
    };
    let meanwhile = async {
        sleep(Duration::from_secs(10)).await;
        let backlog = outbox.backlog();
        assert_eq!((backlog.calls, backlog.overdue), (3, true));
        assert!(backlog.oldest.unwrap() >= Duration::from_secs(11));
        wire.down(false);
        served(&outbox, 4).await;
    };
    join!(outbox.recover(&report), meanwhile);

    let events = events.into_inner().unwrap();
    let (away, mut ended): (Vec<_>, Vec<_>) =
        events.iter().partition(|event| event.starts_with("away"));
    ended.sort();
    // Ten seconds of waits that double up to two seconds.
    assert!((3 * 6..3 * 20).contains(&away.len()), "{away:?}");
    assert_eq!(
        ended,
        ["released 1", "settled 2 Held 40", "settled 3 Held 70"]
    );
    assert_eq!(balance(&ledger).await, 1_000 - NOTED - 2 * COST);
    assert_eq!(held(&ledger).await, 0);
    assert_eq!(outbox.backlog(), Backlog::default());
    assert!(log::pending(lines.all()).iter().all(|call| call.done));
}

#[tokio::test(start_paused = true)]
async fn a_settlement_is_fresh_for_five_minutes_after_its_first_attempt() {
    // The clock begins at 1 000 000 ms.
    for (at_ms, asked) in [
        (1_000_000, "settle 1"),
        (1_000_000 - 299_000, "settle 1"),
        (1_000_000 - 301_000, "settle 1 not fresh"),
        (1_000_000 + 301_000, "settle 1 not fresh"),
    ] {
        let settle = CallStep::Settle(Arc::new(settlement(1, COST)), at_ms);
        let done = CallStep::Done {
            number: number(1),
            at_ms,
        };
        for lines in [&[settle.clone()][..], &[settle, done]] {
            let wire = Wire::to(&funded().await);
            let outbox = opened(&wire, &Lines::of(lines), OutboxSettings::default()).await;
            outbox.recover(&|_| {}).await;
            assert_eq!(wire.asked(), [asked], "{at_ms}");
        }
    }

    let (_, wire, _, outbox) = fresh_outbox().await;
    served(&outbox, 1).await;
    for (seconds, asked) in [(299, "settle 1"), (2, "settle 1 not fresh")] {
        advance(Duration::from_secs(seconds)).await;
        wire.asked();
        outbox.replay().await.unwrap();
        assert_eq!(wire.asked(), [asked]);
    }
}

#[tokio::test]
async fn a_ledger_that_fell_back_is_told_again_what_it_lost() {
    let (_, wire, lines, outbox) = fresh_outbox().await;
    for index in 1..=3 {
        served(&outbox, index).await;
    }
    outbox.reserve(&hold(4)).await.unwrap();
    outbox.release(number(4), &account(), &key()).await.unwrap();

    // The replica has the holds of the first and the last, knows nothing of the second, and has all
    // of the third.
    let replica = || async {
        let replica = funded().await;
        for index in [1, 3, 4] {
            replica.reserve(&hold(index)).await.unwrap();
        }
        replica.settle(&settlement(3, COST)).await.unwrap();
        replica
    };
    let retold = ["settle 1", "settle 2", "settle 3", "release 4"];
    let promoted = replica().await;
    wire.fails_over_to(&promoted);
    wire.asked();
    assert_eq!(outbox.replay().await.unwrap(), 2);
    assert_eq!(wire.asked(), retold);
    assert_eq!(balance(&promoted).await, 1_000 - 3 * COST);
    assert_eq!(held(&promoted).await, 0);
    let receipts = [1, 2, 3].map(|index| promoted.receipt(number(index)));
    let booked = futures_util::future::join_all(receipts).await;
    let booked: Vec<Booked> = booked
        .into_iter()
        .map(|receipt| {
            let receipt = receipt.unwrap();
            assert_eq!(receipt.item, settlement(1, COST).item);
            receipt.booked
        })
        .collect();
    assert_eq!(booked, [Booked::Held, Booked::Forced, Booked::Held]);
    assert_eq!(
        promoted.audit().await.unwrap().breaches,
        Vec::<String>::new()
    );
    // Once more: nothing is booked twice.
    assert_eq!(outbox.replay().await.unwrap(), 0);
    assert_eq!(balance(&promoted).await, 1_000 - 3 * COST);

    // The gateway died together with the ledger: the next process tells it.
    let promoted = replica().await;
    let wire = Wire::to(&promoted);
    let outbox = opened(&wire, &lines, OutboxSettings::default()).await;
    outbox.recover(&|_| {}).await;
    let asked = wire.asked();
    assert_eq!(asked.len(), retold.len(), "{asked:?}");
    assert_eq!(balance(&promoted).await, 1_000 - 3 * COST);
    assert_eq!(held(&promoted).await, 0);
}

#[tokio::test]
async fn a_number_that_may_have_been_charged_long_ago_is_not_counted_as_booked() {
    // What two processes ago was settled and is known to the log alone: the ledger disputes it.
    let lines = Lines::of(&[
        CallStep::Settle(Arc::new(settlement(1, COST)), 1),
        CallStep::Done {
            number: number(1),
            at_ms: 1,
        },
    ]);
    let ledger = funded().await;
    let outbox = opened(&Wire::to(&ledger), &lines, OutboxSettings::default()).await;
    assert_eq!(outbox.replay().await.unwrap(), 0);
    assert_eq!(balance(&ledger).await, 1_000);
    let receipt = ledger.receipt(number(1)).await.unwrap();
    assert_eq!(receipt.booked, Booked::Stale);
}

#[tokio::test(start_paused = true)]
async fn what_was_acknowledged_is_kept_until_the_ledger_is_confirmed_for_the_replay_window() {
    let (_, wire, lines, outbox) = fresh_outbox().await;
    let seconds = |seconds| advance(Duration::from_secs(seconds));
    served(&outbox, 1).await;
    seconds(50).await;
    served(&outbox, 2).await;
    seconds(20).await;
    wire.asked();
    // Nobody has seen the ledger for seventy seconds.
    outbox.replay().await.unwrap();
    assert_eq!(wire.asked(), ["settle 1", "settle 2"]);

    // What has just been told again may be lost once more.
    seconds(59).await;
    outbox.confirmed();
    outbox.replay().await.unwrap();
    assert_eq!(wire.asked(), ["settle 1", "settle 2"]);
    assert_eq!(
        lines.0.lock().unwrap().forgotten_until_ms,
        Vec::<u64>::new()
    );

    // A replay that did not come to its end is still due, whatever is confirmed.
    wire.down(true);
    seconds(61).await;
    assert!(outbox.replay().await.is_err());
    outbox.confirmed();
    wire.down(false);
    wire.asked();
    outbox.replay().await.unwrap();
    assert_eq!(wire.asked(), ["settle 1", "settle 2"]);

    seconds(61).await;
    served(&outbox, 3).await;
    wire.asked();
    outbox.confirmed();
    outbox.replay().await.unwrap();
    assert_eq!(wire.asked(), ["settle 3"]);
    // The log is told, too: the second call was done fifty seconds after the clock began.
    assert_eq!(lines.0.lock().unwrap().forgotten_until_ms, [1_050_000_u64]);
}

#[tokio::test]
async fn what_is_kept_for_a_replay_is_bounded() {
    let ledger = funded().await;
    let wire = Wire::to(&ledger);
    let settings = OutboxSettings {
        calls_max: 2,
        ..OutboxSettings::default()
    };
    let outbox = opened(&wire, &Lines::default(), settings).await;
    for index in 1..=5 {
        served(&outbox, index).await;
    }
    wire.asked();
    outbox.replay().await.unwrap();
    assert_eq!(wire.asked(), ["settle 4", "settle 5"]);
}

/// A ledger that can be put back to what it was.
#[derive(Clone)]
struct Restorable(Arc<Mutex<MemoryLedger>>);

impl Restorable {
    fn now(&self) -> MemoryLedger {
        self.0.lock().unwrap().clone()
    }
}

impl Ledger for Restorable {
    async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        self.now().reserve(hold).await
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        self.now().settle(settlement).await
    }

    async fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> Result<(), LedgerError> {
        self.now().release(number, account, key).await
    }

    async fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> Result<bool, LedgerError> {
        self.now().extend(number, account, ttl).await
    }

    async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
        self.now().probe(account, key).await
    }

    async fn expire(&self) -> Result<usize, LedgerError> {
        self.now().expire().await
    }
}

#[tokio::test]
async fn an_account_that_a_backup_does_not_have_keeps_no_other_from_being_told_again() {
    let ledger = Restorable(Arc::new(Mutex::new(funded().await)));
    let newco: AccountId = "newco".parse().unwrap();
    ledger.now().create_account(&newco, "New").await.unwrap();
    let outbox = Outbox::open(ledger.clone(), Lines::default(), OutboxSettings::default())
        .await
        .unwrap();
    for (index, account) in [newco.clone(), account(), newco, account()]
        .into_iter()
        .enumerate()
    {
        let settlement = Settlement {
            account,
            ..settlement(index as u128 + 1, 10)
        };
        outbox.settle(&settlement).await.unwrap();
    }

    // The backup is older than the account.
    *ledger.0.lock().unwrap() = funded().await;
    let before = balance(&ledger.now()).await;
    assert_eq!(outbox.replay().await.unwrap(), 2);
    assert_eq!(balance(&ledger.now()).await, before - 20);
    assert!(!outbox.replay_due());
}
