mod batch;
mod opening;
mod restart;

use std::fs;

use tempfile::TempDir;
use uuid::Uuid;

use super::*;
use crate::{
    account::KeyStatus,
    ceiling::Ceiling,
    contract::{Booked, Documents, EventStore, GroupRecord, Item, JournalLine, OnceEvent, Refusal},
    durable::test_files::edit,
    happening::{Happening, Levels, Watched},
    money::MicroRub,
    price::{Price, Rate},
    usage::{End, Usage},
};

fn account(index: u8) -> AccountId {
    format!("a{index}").parse().unwrap()
}

fn key(index: u8) -> KeyId {
    format!("k{index}").parse().unwrap()
}

fn number(index: u8) -> RequestNumber {
    RequestNumber::from_uuid(Uuid::from_u128(u128::from(index)))
}

/// Returns the record of one of four keys. Each account has two of them.
fn record(index: u8) -> KeyRecord {
    KeyRecord {
        prefix: format!("tg-{index}…"),
        name: "laptop".into(),
        models: vec!["m".into()],
        addresses: vec!["192.0.2.0/24".parse().unwrap()],
        requests_per_second: Some(3),
        expires_at_ms: Some(4_000_000_000_000),
        created_at_ms: 5,
        ..KeyRecord::new(key(index), account(index / 2), KeyDigest::new([index; 32]))
    }
}

fn topup(id: &str, micro: i64) -> Entry {
    Entry {
        id: id.into(),
        amount: MicroRub::new(micro),
        reason: None,
    }
}

/// A hold on one of the four keys. The call's number determines the key.
fn hold(index: u8, want: i64, least: i64, ttl: Duration) -> Hold {
    Hold {
        number: number(index),
        account: account(index % 4 / 2),
        key: key(index % 4),
        want: MicroRub::new(want),
        least: MicroRub::new(least),
        ttl,
    }
}

fn settlement(index: u8, cost: i64, fresh: bool) -> Settlement {
    // Each of the four output tokens costs a quarter of the cost. All other tokens together cost less than a
    // micro-ruble.
    let each = u64::try_from(cost).unwrap() * 250_000;
    let rate = Rate::new(u64::from(cost > 0));
    let price = Price {
        input: rate,
        cached_input: rate,
        output: Rate::new(each.saturating_sub(2)),
        cache_write: rate,
        version: 7,
        exchange_rate: "90.5".into(),
        ..Price::default()
    };
    Settlement {
        number: number(index),
        account: account(index % 4 / 2),
        key: key(index % 4),
        held: MicroRub::new(100),
        cost: MicroRub::new(cost),
        fresh,
        lease: None,
        item: Item {
            usage: Usage {
                input: 1,
                cached_input: 2,
                cache_write: 3,
                output: 4,
                ..Usage::default()
            },
            price: Some(Arc::new(price)),
            estimated: true,
            bounded: true,
            session: Some("s-1".parse().unwrap()),
            endpoint: Some(crate::endpoint::Endpoint::Messages),
            timeline: "3 - 1500 5003 200|4 1059 502 vendor_unavailable acme"
                .parse()
                .ok(),
            ..Item::new("m", "v", End::ClientLeft)
        },
    }
}

const HOUR: Duration = Duration::from_secs(3_600);

/// Returns a ledger with one account, two keys, a payment of 1000, and a charge of 70 for call 0 on key 0.
async fn used(dir: &TempDir) -> (SqliteLedger, PathBuf) {
    let path = dir.path().join("ledger.db");
    let ledger = SqliteLedger::open(&path).unwrap();
    ledger.create_account(&account(0), "Acme").await.unwrap();
    ledger
        .enter(&account(0), &topup("t1", 1_000))
        .await
        .unwrap();
    ledger.create_key(&record(0), Ceilings::NONE).await.unwrap();
    ledger
        .create_key(&record(1), Ceilings::total(MicroRub::new(500)))
        .await
        .unwrap();
    ledger.reserve(&hold(0, 100, 100, HOUR)).await.unwrap();
    let settled = ledger.settle(&settlement(0, 70, true)).await.unwrap();
    assert_eq!(
        (settled.booked, settled.charged),
        (Booked::Held, MicroRub::new(70))
    );
    (ledger, path)
}

#[tokio::test]
async fn audit_finds_faults_that_are_not_checked_when_the_file_is_opened() {
    for (tampering, breach) in [
        (
            "DELETE FROM receipts",
            "I3 key k0: used 70, but its receipts sum to 0",
        ),
        (
            "UPDATE accounts SET loss = loss + 1",
            "I3 account a0: loss 1, but its receipts sum to 0",
        ),
        // All sums agree, but the cost in the receipt does not follow from its usage.
        (
            "UPDATE receipts SET cost = 71, charged = 71; UPDATE keys SET used = 71 WHERE id = 'k0';
             UPDATE accounts SET balance = balance - 1",
            "I3 key k0: call 00000000-0000-0000-0000-000000000000 cost 71 µ₽, but its usage at its prices comes to 70",
        ),
        (
            "UPDATE receipts SET output = output - 1",
            "I3 key k0: call 00000000-0000-0000-0000-000000000000 cost 70 µ₽, but its usage at its prices comes to 53",
        ),
        (
            "UPDATE receipts SET price = replace(price, '\"input\":\"0.000001\"', '\"input\":\"1.000001\"')",
            "I3 key k0: call 00000000-0000-0000-0000-000000000000 cost 70 µ₽, but its usage at its prices comes to 71",
        ),
        (
            "UPDATE receipts SET classes = '{\"input_audio\":1}'",
            "I3 key k0: call 00000000-0000-0000-0000-000000000000 cost 70 µ₽ without a price of input_audio",
        ),
        (
            "UPDATE receipts SET price = '{'",
            "I3 key k0: call 00000000-0000-0000-0000-000000000000 has usage or prices that cannot be read",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (ledger, path) = used(&dir).await;
        ledger.close().await;
        edit(&path, tampering);
        let ledger = SqliteLedger::open(&path).unwrap();
        let breaches = ledger.audit().await.unwrap().breaches;
        assert!(
            breaches.iter().any(|found| found.starts_with(breach)),
            "{tampering}: {breaches:?}"
        );
    }
}

#[tokio::test]
async fn audit_finds_an_open_hold_of_a_charged_call() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    ledger.close().await;
    // The tombstone was lost with the earlier process; only the receipt is in the file.
    let ledger = SqliteLedger::open(&path).unwrap();
    ledger.reserve(&hold(0, 100, 100, HOUR)).await.unwrap();
    let breaches = ledger.audit().await.unwrap().breaches;
    let number = number(0);
    assert_eq!(
        breaches,
        [format!(
            "I5 account a0: hold {number} is both open and ended"
        )]
    );
}

#[tokio::test]
async fn line_written_after_the_clock_was_set_back_sorts_after_earlier_lines() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    ledger.close().await;
    // The clock was ahead when the line was written: by one hour in the first case, by two years in the second.
    for (ahead_ms, followed) in [(3_600_000, true), (63_072_000_000, false)] {
        let ahead = crate::embedded::now_ms() + ahead_ms;
        Connection::open(&path)
            .unwrap()
            .execute("UPDATE receipts SET at_ms = ?1", [ahead.cast_signed()])
            .unwrap();
        let ledger = SqliteLedger::open(&path).unwrap();
        let id = format!("after-{ahead_ms}");
        ledger.enter(&account(0), &topup(&id, 1)).await.unwrap();
        let page = ledger.journal(&account(0), &JournalPart::whole()).await;
        let entered = page.unwrap().lines.into_iter().find_map(|line| match line {
            JournalLine::Entry {
                id: found, at_ms, ..
            } if found == id => Some(at_ms),
            _ => None,
        });
        assert_eq!(entered.unwrap() >= ahead, followed, "{ahead_ms}");
        ledger.close().await;
    }
}

#[tokio::test]
async fn each_call_of_the_same_millisecond_is_on_exactly_one_journal_page() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    for call in [4, 8, 12] {
        ledger.settle(&settlement(call, 10, true)).await.unwrap();
    }
    ledger.close().await;
    edit(
        &path,
        "UPDATE receipts SET at_ms = (SELECT max(at_ms) FROM receipts)",
    );
    let ledger = SqliteLedger::open(&path).unwrap();
    let mut found = Vec::new();
    let mut after = None;
    // Each page has one line. There are five lines, so the sixth page is empty.
    for _ in 0..6 {
        let part = JournalPart {
            after: after.as_deref(),
            limit: 1,
            ..JournalPart::whole()
        };
        let page = ledger.journal(&account(0), &part).await.unwrap();
        found.extend(page.lines.into_iter().filter_map(|line| match line {
            JournalLine::Call(receipt) => Some(receipt.number),
            JournalLine::Entry { .. } => None,
        }));
        let Some(next) = page.next else { break };
        after = Some(next);
    }
    assert_eq!(found, [0, 4, 8, 12].map(number));
}

#[tokio::test]
async fn spending_of_a_past_day_counts_for_the_month_but_not_for_the_day() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    let limited = KeyChange {
        ceiling_day: Some(Some(MicroRub::new(100))),
        ceiling_month: Some(Some(MicroRub::new(150))),
        ..KeyChange::default()
    };
    ledger.change_key(&key(0), &limited).await.unwrap();
    ledger.close().await;
    // Changes the file so that the charge was made on an earlier day.
    edit(&path, "UPDATE keys SET day = day - 2 WHERE id = 'k0'");

    let ledger = SqliteLedger::open(&path).unwrap();
    let view = ledger.key(&key(0)).await.unwrap();
    assert_eq!(
        (view.day.spent_rub, view.month.spent_rub, view.free_rub),
        (MicroRub::ZERO, MicroRub::new(70), MicroRub::new(80))
    );
    ledger.reserve(&hold(4, 80, 80, HOUR)).await.unwrap();
    ledger.settle(&settlement(4, 80, true)).await.unwrap();
    let refused = ledger.reserve(&hold(8, 1, 1, HOUR)).await;
    assert!(
        matches!(
            refused,
            Err(LedgerError::Refused(Refusal::CeilingUsedUp(
                Ceiling::Month { .. }
            )))
        ),
        "{refused:?}"
    );
    let view = ledger.key(&key(0)).await.unwrap();
    assert_eq!(
        (view.day.spent_rub, view.month.spent_rub),
        (MicroRub::new(80), MicroRub::new(150))
    );
    ledger.close().await;

    edit(
        &path,
        "UPDATE keys SET day_before = used + 1 WHERE id = 'k0'",
    );
    match SqliteLedger::open(&path) {
        Err(OpenError::Mismatch { breaches, .. }) => {
            assert!(breaches[0].starts_with("I3 key k0: used 150, but 151"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn sqlite_ledger_passes_the_event_tests() {
    let dir = tempfile::tempdir().unwrap();
    let made = std::sync::atomic::AtomicU32::new(0);
    let make = async || {
        let n = made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        SqliteLedger::open(&dir.path().join(format!("{n}.db"))).unwrap()
    };
    crate::testing::check_events(make).await;
    crate::testing::check_documents(make).await;
}

#[tokio::test]
async fn events_and_documents_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    let levels = Levels::new(&[MicroRub::new(900)]).unwrap();
    let group = GroupRecord {
        id: "g1".parse().unwrap(),
        name: String::new(),
        removed: false,
    };
    ledger
        .create_group(&account(0), &group, Ceilings::NONE)
        .await
        .unwrap();
    let of = [
        Watched::Balance,
        Watched::Key(key(1)),
        Watched::Group(group.id),
    ];
    for of in &of {
        ledger.set_levels(&account(0), of, levels).await.unwrap();
    }
    let event = OnceEvent {
        once: "rate".into(),
        account: None,
        key: None,
        what: Happening::RateStale { since_ms: 3 },
    };
    assert!(ledger.emit_once(&event).await.unwrap());
    assert!(ledger.compare_and_swap("n", 0, "kept").await.unwrap());
    let before = ledger.events(0, 10).await.unwrap();
    assert_eq!(before.len(), 2);
    ledger.close().await;
    let ledger = SqliteLedger::open(&path).unwrap();
    assert_eq!(ledger.events(0, 10).await.unwrap(), before);
    assert!(!ledger.emit_once(&event).await.unwrap());
    assert_eq!(ledger.document("n").await.unwrap().unwrap().text, "kept");
    // The alert levels are unchanged, and event numbers continue.
    let all = ledger.levels(&account(0)).await.unwrap();
    assert_eq!(all, of.map(|of| (of, levels)));
    ledger.reserve(&hold(4, 100, 100, HOUR)).await.unwrap();
    ledger.settle(&settlement(4, 30, true)).await.unwrap();
    let events = ledger.events(2, 10).await.unwrap();
    let reported: Vec<_> = events
        .iter()
        .map(|event| (event.number, event.what.kind()))
        .collect();
    assert_eq!(reported, [(3, "balance_low")]);
}
