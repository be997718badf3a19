//! Tests that calls left by an earlier process are charged once or released.

use super::*;

/// Makes a call that a fault interrupts, for example by killing the process. Returns the ledger and the steps in the
/// log.
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
async fn call_of_a_killed_process_is_charged_once_or_released() {
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
        for stored in 0..=all_lines.len() {
            let case = format!("{faults:?}, {stored} of {} lines", all_lines.len());
            let (ledger, lines) = cut_call(&faults).await;
            let lines = &lines[..stored];
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

            // The next process settles or releases the call. The process after that has nothing to do.
            let mut lines = Lines::from_steps(lines);
            for _ in 0..2 {
                let outbox = opened(&Wire::to(&ledger), &lines, OutboxSettings::default()).await;
                outbox.recover(&|_| {}).await;
                assert_eq!(1_000 - balance(&ledger).await, expected, "{case}");
                assert_eq!(outbox.backlog(), Backlog::default(), "{case}");
                let left = log::pending(lines.all());
                assert!(left.iter().all(|call| call.done), "{case}: {left:?}");
                lines = Lines::from_steps(&lines.all());
            }
            // If the process died before any step was written, the hold expires by itself.
            if stored > 0 {
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

#[tokio::test(start_paused = true)]
async fn calls_of_an_earlier_process_are_settled_while_new_calls_run() {
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
    let lines = Lines::from_steps(&[
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
    // The backlog contains a call of an earlier process only after an attempt to settle or release the call has failed.
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
    // In ten seconds of retries, the wait between attempts doubles until it is two seconds.
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
