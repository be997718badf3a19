//! Tests that each step of a call is written once and in order, and that no call is admitted if its steps cannot be
//! written.

use super::*;

#[tokio::test]
async fn each_step_of_a_call_is_written_to_the_outbox_once_and_in_order() {
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
        // A checkpoint has no effect after the settlement of its call.
        outbox.checkpoint(&[settlement(1, NOTED)]).await.unwrap();
        assert_eq!(log.shown(), lines, "{faults:?}");
        // A settlement that was not acknowledged is synced to the disk before it is sent again.
        let failures = faults[1..].iter().filter(|fault| **fault != Fine).count();
        assert_eq!(log.0.lock().unwrap().syncs, failures, "{faults:?}");
        assert_eq!(outbox.backlog(), Backlog::default(), "{faults:?}");
    }
}

#[tokio::test]
async fn call_with_a_refused_hold_need_not_be_settled_or_released() {
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

    // The ledger refuses a hold that has the number of an existing hold but another amount. The existing hold is
    // unchanged.
    outbox.reserve(&hold(2)).await.unwrap();
    let conflict = Hold {
        want: MicroRub::new(101),
        ..hold(2)
    };
    assert!(outbox.reserve(&conflict).await.is_err());
    assert_eq!(lines.shown()[2..], ["intent 2"]);
    assert_eq!(held(&ledger).await, 100);
    assert_eq!(wire.requested().len(), 3);
}

#[tokio::test]
async fn call_is_released_if_its_caller_disconnects_during_the_reservation() {
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
async fn on_a_full_disk_new_calls_are_refused_and_running_calls_are_charged() {
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
    assert_eq!(wire.requested(), ["reserve 1", "settle 1", "settle 1"]);
}

#[tokio::test(start_paused = true)]
async fn full_outbox_refuses_new_calls_until_the_ledger_acknowledges_old_ones() {
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
    // In the gateway, a guard releases even a refused call. The outbox must not record that release.
    assert!(outbox.release(number(4), &account(), &key()).await.is_err());
    assert_eq!(outbox.backlog(), expected(10, false));
    assert!(!lines.shown().iter().any(|line| line.ends_with(" 4")));
    // A call that was admitted before the outbox was full can still be settled.
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
