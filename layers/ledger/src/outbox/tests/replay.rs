//! Tests that settlements and releases which the ledger acknowledged and then lost are sent again, and that the number
//! of calls kept for this replay is bounded.

use super::*;

#[tokio::test(start_paused = true)]
async fn settlement_counts_as_fresh_for_five_minutes_after_its_first_attempt() {
    // The outbox's clock starts at 1 000 000 ms.
    for (at_ms, requested) in [
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
            let outbox = opened(&wire, &Lines::from_steps(lines), OutboxSettings::default()).await;
            outbox.recover(&|_| {}).await;
            assert_eq!(wire.requested(), [requested], "{at_ms}");
        }
    }

    let (_, wire, _, outbox) = fresh_outbox().await;
    served(&outbox, 1).await;
    for (seconds, requested) in [(299, "settle 1"), (2, "settle 1 not fresh")] {
        advance(Duration::from_secs(seconds)).await;
        wire.requested();
        outbox.replay().await.unwrap();
        assert_eq!(wire.requested(), [requested]);
    }
}

#[tokio::test]
async fn settlements_and_releases_are_replayed_to_a_ledger_that_lost_them() {
    let (_, wire, lines, outbox) = fresh_outbox().await;
    for index in 1..=3 {
        served(&outbox, index).await;
    }
    outbox.reserve(&hold(4)).await.unwrap();
    outbox.release(number(4), &account(), &key()).await.unwrap();

    // The replica has lost some data: the settlement of call 1, everything about call 2, and the release of call 4.
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
    wire.requested();
    assert_eq!(outbox.replay().await.unwrap(), 2);
    assert_eq!(wire.requested(), retold);
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
    // In a second replay the ledger has lost no charge, so nothing is charged.
    assert_eq!(outbox.replay().await.unwrap(), 0);
    assert_eq!(balance(&promoted).await, 1_000 - 3 * COST);

    // The gateway died at the same time as the ledger. The next process replays the calls in the log.
    let promoted = replica().await;
    let wire = Wire::to(&promoted);
    let outbox = opened(&wire, &lines, OutboxSettings::default()).await;
    outbox.recover(&|_| {}).await;
    let requested = wire.requested();
    assert_eq!(requested.len(), retold.len(), "{requested:?}");
    assert_eq!(balance(&promoted).await, 1_000 - 3 * COST);
    assert_eq!(held(&promoted).await, 0);
}

#[tokio::test]
async fn replayed_settlement_that_is_booked_as_stale_is_not_counted_as_charged() {
    // An earlier process settled call 1, which is only in the log. The ledger has no hold of this call any more, so it
    // books the settlement as stale and charges nothing.
    let lines = Lines::from_steps(&[
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
async fn acknowledged_calls_are_kept_for_replay_until_the_ledgers_data_is_confirmed() {
    let (_, wire, lines, outbox) = fresh_outbox().await;
    let seconds = |seconds| advance(Duration::from_secs(seconds));
    served(&outbox, 1).await;
    seconds(50).await;
    served(&outbox, 2).await;
    seconds(20).await;
    wire.requested();
    // The ledger's data was last confirmed seventy seconds ago, so the outbox still has both calls.
    outbox.replay().await.unwrap();
    assert_eq!(wire.requested(), ["settle 1", "settle 2"]);

    // The ledger may lose a replayed settlement again, so the outbox keeps the settlement for another replay window.
    seconds(59).await;
    outbox.confirmed();
    outbox.replay().await.unwrap();
    assert_eq!(wire.requested(), ["settle 1", "settle 2"]);
    assert_eq!(
        lines.0.lock().unwrap().forgotten_until_ms,
        Vec::<u64>::new()
    );

    // A replay that has not finished stays due, even if the ledger's data is confirmed.
    wire.down(true);
    seconds(61).await;
    assert!(outbox.replay().await.is_err());
    outbox.confirmed();
    wire.down(false);
    wire.requested();
    outbox.replay().await.unwrap();
    assert_eq!(wire.requested(), ["settle 1", "settle 2"]);

    seconds(61).await;
    served(&outbox, 3).await;
    wire.requested();
    outbox.confirmed();
    outbox.replay().await.unwrap();
    assert_eq!(wire.requested(), ["settle 3"]);
    // The log may delete call 2, which was done fifty seconds after the start of the clock.
    assert_eq!(lines.0.lock().unwrap().forgotten_until_ms, [1_050_000_u64]);
}

#[tokio::test]
async fn number_of_acknowledged_calls_kept_for_replay_is_limited() {
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
    wire.requested();
    outbox.replay().await.unwrap();
    assert_eq!(wire.requested(), ["settle 4", "settle 5"]);
}

#[tokio::test]
async fn account_missing_from_a_backup_does_not_stop_the_replay_for_other_accounts() {
    let ledger = funded().await;
    let newco: AccountId = "newco".parse().unwrap();
    ledger.create_account(&newco, "New").await.unwrap();
    let wire = Wire::to(&ledger);
    let outbox = opened(&wire, &Lines::default(), OutboxSettings::default()).await;
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

    // The ledger is replaced by a backup that was made before the account was created.
    let backup = funded().await;
    wire.fails_over_to(&backup);
    let before = balance(&backup).await;
    assert_eq!(outbox.replay().await.unwrap(), 2);
    assert_eq!(balance(&backup).await, before - 20);
    assert!(!outbox.replay_due());
}
