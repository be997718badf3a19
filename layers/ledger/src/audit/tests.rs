use std::sync::Arc;

use super::{breaches::BREACHES_MAX, *};
use crate::{
    contract::{Item, OpenHold},
    price::{Class, Counts, Price, Rate, Rates},
    testing::given::{acme, key, number},
    usage::{End, Usage},
};

fn snapshot(id: &str, spent: i64, held: i64) -> KeySnapshot {
    KeySnapshot {
        id: key(id),
        spent_rub: MicroRub::new(spent),
        held_rub: MicroRub::new(held),
        before_rub: None,
        group: None,
        calls: None,
    }
}

/// An account with payments of 150, charges of 10 and open holds of 30.
pub(super) fn books() -> Snapshot {
    Snapshot {
        id: acme(),
        balance_rub: MicroRub::new(140),
        held_rub: MicroRub::new(30),
        spent_rub: MicroRub::new(10),
        loss_rub: MicroRub::new(2),
        entered_rub: MicroRub::new(150),
        keys: vec![snapshot("k1", 10, 30), snapshot("k2", 0, 0)],
        groups: Vec::new(),
        holds: vec![hold(1, "k1", 20), hold(2, "k1", 10)],
        journal_complete: true,
    }
}

fn hold(n: u128, id: &str, held: i64) -> OpenHold {
    OpenHold {
        number: number(n),
        key: key(id),
        held_rub: MicroRub::new(held),
        due_ms: Some(1),
    }
}

fn call(n: u128, cost: i64, charged: i64, loss: i64, booked: Booked) -> JournalLine {
    JournalLine::Call(Receipt {
        number: number(n),
        at_ms: 5,
        account: acme(),
        key: key("k1"),
        group: None,
        held_rub: MicroRub::new(cost),
        cost_rub: MicroRub::new(cost),
        charged_rub: MicroRub::new(charged),
        loss_rub: MicroRub::new(loss),
        booked,
        item: Item::new("m", "v", End::Finished),
    })
}

fn entry(id: &str, amount: i64) -> JournalLine {
    JournalLine::Entry {
        id: id.into(),
        at_ms: 1,
        account: acme(),
        amount_rub: MicroRub::new(amount),
        reason: None,
    }
}

pub(super) fn journal() -> Vec<JournalLine> {
    vec![
        entry("p1", 200),
        call(7, 9, 7, 2, Booked::Held),
        call(8, 3, 0, 0, Booked::Stale),
        entry("c1", -50),
        call(8, 3, 3, 0, Booked::Late),
    ]
}

fn found(books: Snapshot, journal: &[JournalLine]) -> Vec<String> {
    let mut audit = AccountAudit::new(books);
    journal.iter().for_each(|line| audit.line(line));
    audit.finish()
}

#[test]
fn consistent_books_have_no_breach() {
    assert_eq!(found(books(), &journal()), Vec::<String>::new());
    // Lines that were trimmed off the journal are missing only in the journal's sums. The books still include them.
    let trimmed = Snapshot {
        journal_complete: false,
        ..books()
    };
    assert_eq!(found(trimmed, &journal()[2..]), Vec::<String>::new());
}

#[test]
fn breach_is_reported_with_the_name_of_its_invariant() {
    type Edit = fn(&mut Snapshot, &mut Vec<JournalLine>);
    let cases: [(Edit, &str); 18] = [
        (
            |books, _| books.held_rub = MicroRub::new(31),
            "I2 account acme: held 31",
        ),
        (
            |books, _| books.keys[0].held_rub = MicroRub::new(29),
            "I2 key k1: held 29",
        ),
        (
            |books, _| books.holds[1].key = key("k3"),
            "I2 account acme: there are holds on key k3",
        ),
        (
            |books, _| books.holds.truncate(1),
            "I2 account acme: held 30 but its holds sum to 20",
        ),
        (
            |books, _| books.holds[1].number = number(1),
            "I5 account acme: one number holds twice",
        ),
        (
            |books, _| books.holds[1].due_ms = None,
            "I8 account acme: hold",
        ),
        (
            |books, _| books.balance_rub = MicroRub::new(141),
            "I3 account acme: balance 141",
        ),
        (
            |books, _| books.entered_rub = MicroRub::new(149),
            "I3 account acme: balance 140",
        ),
        (
            |books, _| books.keys[1].spent_rub = MicroRub::new(1),
            "I3 account acme: balance 140",
        ),
        (
            |books, _| books.spent_rub = MicroRub::new(9),
            "I3 account acme: spent 9",
        ),
        (
            |books, _| books.loss_rub = MicroRub::new(1),
            "I3 account acme: loss 1",
        ),
        (
            |books, _| {
                books.balance_rub = MicroRub::new(29);
                books.entered_rub = MicroRub::new(39);
            },
            "I4 account acme: held 30 of a balance of 29",
        ),
        (
            |_, lines| lines[1] = call(7, 10, 7, 2, Booked::Held),
            "I3 key k1: call",
        ),
        (
            |_, lines| lines[2] = call(8, 3, 1, 2, Booked::Stale),
            "I3 key k1: call",
        ),
        (
            |_, lines| lines[1] = call(1, 9, 7, 2, Booked::Held),
            "I5 account acme: hold",
        ),
        (
            |_, lines| drop(lines.remove(4)),
            "I3 key k1: used 10, but its receipts sum to 7",
        ),
        (
            |_, lines| drop(lines.remove(3)),
            "I3 account acme: entered 150, but its entries sum to 200",
        ),
        (
            |_, lines| lines.push(entry("c1", -50)),
            "I10 account acme: entry \"c1\"",
        ),
    ];
    for (index, (edit, says)) in cases.into_iter().enumerate() {
        let (mut books, mut journal) = (books(), journal());
        edit(&mut books, &mut journal);
        let breaches = found(books, &journal);
        assert!(
            breaches.iter().any(|breach| breach.starts_with(says)),
            "{index}: {says}: {breaches:?}"
        );
    }
}

fn receipt_of(cost: i64) -> Receipt {
    let rate = |micro| Rate::new(micro);
    let price = Price {
        input: rate(1_000_000),
        cached_input: rate(100_000),
        output: rate(4_000_000),
        cache_write: rate(1_250_000),
        classes: Rates::default()
            .with(Class::CacheWrite1h, Some(rate(2_000_000)))
            .with(Class::WebSearchCall, Some(rate(9))),
        ..Price::default()
    };
    let mut item = Item::new("m", "v", End::ClientLeft);
    item.price = Some(price.into());
    item.usage = Usage {
        input: 3,
        cached_input: 1,
        cache_write: 2,
        output: 5,
        classes: Counts::default()
            .with(Class::CacheWrite1h, 7)
            .with(Class::WebSearchCall, 2),
    };
    (item.estimated, item.bounded, item.unpriced) = (true, true, true);
    match call(7, cost, cost, 0, Booked::Held) {
        JournalLine::Call(receipt) => Receipt { item, ..receipt },
        JournalLine::Entry { .. } => unreachable!(),
    }
}

/// The cost of the receipt's usage at its prices: 3 · 1 + 1 · 0.1 + 2 · 1.25 + 5 · 4 + 7 · 2 + 2 · 9 = 57.6 µ₽, rounded
/// up once.
const COST: i64 = 58;

#[test]
fn receipt_whose_usage_does_not_match_its_cost_is_reported() {
    type Edit = fn(&mut Receipt);
    let says = |receipt: &Receipt| {
        let cost = receipt.charged_rub.micro();
        let mut audit = AccountAudit::new(Snapshot {
            balance_rub: MicroRub::new(150 - cost),
            spent_rub: MicroRub::new(cost),
            loss_rub: MicroRub::ZERO,
            keys: vec![snapshot("k1", cost, 30)],
            ..books()
        });
        audit.line(&entry("p1", 150));
        audit.call(receipt);
        audit.finish()
    };
    assert_eq!(says(&receipt_of(COST)), Vec::<String>::new());
    let number = number(7);
    for cost in [COST - 1, COST + 1] {
        let breach = format!(
            "I3 key k1: call {number} cost {cost} µ₽, but its usage at its prices comes to 58"
        );
        assert_eq!(says(&receipt_of(cost)), [breach]);
    }
    let price = |receipt: &mut Receipt, edit: fn(&mut Price)| {
        edit(Arc::make_mut(receipt.item.price.as_mut().unwrap()));
    };
    let rewritten = |edit: &dyn Fn(&mut Receipt)| {
        let mut receipt = receipt_of(COST);
        edit(&mut receipt);
        says(&receipt)
    };
    let edits: [Edit; 4] = [
        |receipt| receipt.item.usage.output = 4,
        |receipt| receipt.item.usage.input += 1,
        |receipt| *receipt.item.usage.classes.get_mut(Class::CacheWrite1h) = 6,
        |receipt| receipt.item.usage.classes = Counts::default(),
    ];
    for edit in edits {
        let found = rewritten(&edit);
        assert!(found[0].contains("58 µ₽, but its usage"), "{found:?}");
    }
    let found = rewritten(&|receipt| price(receipt, |it| it.output = Rate::new(4_500_000)));
    assert!(found[0].ends_with("comes to 61"), "{found:?}");
    let found = rewritten(&|receipt| price(receipt, |it| it.classes = Rates::default()));
    let free = format!("I3 key k1: call {number} cost 58 µ₽ without a price of cache_write_1h");
    assert_eq!(found, [free]);
    // A receipt without prices does not show how its cost was computed, so the audit accepts any cost.
    assert_eq!(
        rewritten(&|receipt| receipt.item.price = None),
        Vec::<String>::new()
    );
}

#[test]
fn fault_that_a_store_reports_to_the_audit_becomes_a_breach() {
    type Tell = fn(&mut AccountAudit);
    let cases: [(Tell, &str); 4] = [
        (
            |audit| audit.books.keys[0].before_rub = Some(MicroRub::new(11)),
            "I3 key k1: used 10, but 11 µ₽ before its day or month began",
        ),
        (
            |audit| audit.ended(number(1)),
            "I5 account acme: hold 00000000-0000-0000-0000-000000000001 is both open and ended",
        ),
        (
            |audit| audit.entries_kept(151),
            "I3 account acme: entered 150, but its entries sum to 151 µ₽",
        ),
        (
            |audit| audit.settled_twice(number(7)),
            "I5 account acme: call 00000000-0000-0000-0000-000000000007 was settled twice",
        ),
    ];
    for (tell, says) in cases {
        let mut audit = AccountAudit::new(books());
        tell(&mut audit);
        assert_eq!(audit.without_journal(), [says]);
    }
    // A call that has ended while its hold is open is reported once, even if both the store and the journal show its
    // end.
    let mut audit = AccountAudit::new(books());
    audit.line(&call(1, 0, 0, 0, Booked::Held));
    audit.ended(number(1));
    assert_eq!(audit.without_journal().len(), 1);
    // A sum that the store itself computes can exceed the largest amount. A sum that the audit computes cannot: it is
    // capped.
    let largest = Snapshot {
        entered_rub: MicroRub::MAX,
        ..books()
    };
    let mut audit = AccountAudit::new(largest);
    audit.entries_kept(i128::from(MicroRub::MAX.micro()) + 7);
    let breaches = audit.without_journal();
    assert!(
        breaches[0].starts_with("I3 account acme: balance 140"),
        "{breaches:?}"
    );
}

/// The breaches found for a store that sums its own journal equal those found by reading the journal line by line.
#[cfg(feature = "sqlite")]
#[test]
fn audit_of_journal_sums_finds_the_same_breaches_as_audit_of_journal_lines() {
    let in_sums = |books: Snapshot, lines: &[JournalLine]| {
        let mut audit = AccountAudit::new(books);
        let (mut entered, mut sums) = (0, BTreeMap::<KeyId, (i128, i128)>::new());
        for line in lines {
            let receipt = match line {
                JournalLine::Entry { amount_rub, .. } => {
                    entered += micro(*amount_rub);
                    continue;
                }
                JournalLine::Call(receipt) => receipt,
            };
            let money = CallMoney::from(receipt);
            if !money.adds_up() {
                audit.call_money(receipt.number, &receipt.key, &money);
            } else if money.moved() {
                let (charged, lost) = sums.entry(receipt.key.clone()).or_default();
                *charged += money.charged;
                *lost += money.loss;
            }
        }
        audit.entered_in_all(entered);
        for (key, (charged, lost)) in &sums {
            audit.charged_in_all(key, *charged, *lost);
        }
        audit.finish()
    };
    let no_holds = || Snapshot {
        held_rub: MicroRub::ZERO,
        keys: vec![snapshot("k1", 10, 0), snapshot("k2", 0, 0)],
        holds: Vec::new(),
        ..books()
    };
    assert_eq!(in_sums(no_holds(), &journal()), Vec::<String>::new());
    let booked = [
        Booked::Held,
        Booked::Late,
        Booked::Forced,
        Booked::Stale,
        Booked::NoAccount,
        Booked::Released,
    ];
    for (n, booked) in (10..).zip(booked) {
        for (cost, charged, loss) in [
            (0, 0, 0),
            (3, 3, 0),
            (3, 1, 2),
            (3, 0, 0),
            (3, 3, 3),
            (3, 4, -1),
            (0, -1, 1),
        ] {
            for complete in [true, false] {
                let books = Snapshot {
                    journal_complete: complete,
                    ..no_holds()
                };
                let mut lines = journal();
                lines.push(call(n, cost, charged, loss, booked));
                let says = found(books.clone(), &lines);
                assert_eq!(
                    in_sums(books, &lines),
                    says,
                    "{booked:?} {cost} {charged} {loss}"
                );
            }
        }
    }
}

#[test]
fn audit_that_keeps_request_numbers_finds_a_call_settled_twice() {
    let mut lines = journal();
    lines.push(call(8, 0, 0, 0, Booked::Late));
    assert_eq!(found(books(), &lines), Vec::<String>::new());
    let mut audit = AccountAudit::new(books()).keeping_numbers();
    lines.iter().for_each(|line| audit.line(line));
    let twice = "I5 account acme: call 00000000-0000-0000-0000-000000000008 was settled twice";
    assert_eq!(audit.finish(), [twice]);
}

#[test]
fn export_with_unknown_fields_is_read() {
    let json = r#"{"kind":"account","id":"acme","name":"Acme","status":"active","balance_rub":"1.00",
        "held_rub":"0.00","free_rub":"1.00","spent_rub":"0.00","loss_rub":"0.00","entered_rub":"1.00",
        "keys":[{"id":"k1","spent_rub":"0.00","held_rub":"0.00","prefix":"tg-"}],"holds":[],
        "journal_end":"5","journal_complete":true}"#;
    let books: Snapshot = serde_json::from_str(json).unwrap();
    assert_eq!(books.balance_rub, MicroRub::rubles(1));
    assert_eq!(AccountAudit::new(books).finish().len(), 1, "no entry");
}

#[test]
fn number_of_listed_breaches_is_limited() {
    let mut audit = AccountAudit::new(books());
    for n in 0..500 {
        audit.settled_twice(number(n));
    }
    let breaches = audit.finish();
    assert_eq!(breaches.len(), BREACHES_MAX + 1);
    assert!(
        breaches[BREACHES_MAX].ends_with("more breaches are not listed"),
        "{breaches:?}"
    );
}
