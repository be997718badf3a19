use futures_util::FutureExt;
use proptest::prelude::*;

use super::*;
use crate::{
    contract::{Entry, Item},
    memory::MemoryLedger,
    number::RequestNumber,
    testing::given::acme as account,
    usage::End,
};

const MONTH: u64 = 1000;

fn entry(at_ms: u64, amount: i64, reason: Option<&str>) -> JournalLine {
    JournalLine::Entry {
        id: format!("{at_ms}-{amount}"),
        at_ms,
        account: account(),
        amount_rub: MicroRub::new(amount),
        reason: reason.map(str::to_owned),
    }
}

fn call(at_ms: u64, model: &str, charged: i64, booked: Booked) -> JournalLine {
    JournalLine::Call(Receipt {
        number: RequestNumber::now_v7(),
        at_ms,
        account: account(),
        key: "k1".parse().unwrap(),
        group: None,
        held_rub: MicroRub::new(charged),
        cost_rub: MicroRub::new(charged),
        charged_rub: MicroRub::new(charged),
        loss_rub: MicroRub::ZERO,
        booked,
        item: Item {
            usage: Usage {
                input: 3,
                output: 4,
                ..Usage::default()
            },
            ..Item::new(model, "v", End::Finished)
        },
    })
}

/// Returns the statement for a period. `balance` is the balance after all of these lines.
fn statement(lines: &[JournalLine], balance: i64, time: Range<u64>) -> Statement {
    let mut reader = Reader::new(MicroRub::new(balance), time);
    for line in lines {
        reader.line(line.clone()).unwrap();
    }
    reader.finish()
}

/// Returns the balance after these lines, starting from zero.
fn balance(lines: &[JournalLine]) -> i64 {
    i64::try_from(lines.iter().map(moved_by).sum::<i128>()).unwrap()
}

#[test]
fn statement_contains_exactly_the_lines_of_its_month() {
    let lines = [
        entry(999, 50_000_000, None),
        entry(1000, 10_000_000, None),
        call(1001, "b", 1_000_004, Booked::Held),
        call(1002, "a", 2_000_000, Booked::Late),
        call(1002, "a", 7, Booked::Forced),
        // A disputed call moved no money, whatever its amount.
        call(1003, "a", 9_000_000, Booked::Stale),
        entry(1999, -1_500_000, Some("paid twice")),
        call(2000, "a", 5, Booked::Held),
        entry(2001, 3, None),
    ];
    let statement = statement(&lines, balance(&lines), 1000..2000);
    assert_eq!(statement.opening_micro, 50_000_000);
    assert_eq!(statement.closing_micro, 55_499_989);
    let [payment] = statement.payments.as_slice() else {
        panic!("{statement:?}");
    };
    assert_eq!(
        (payment.at_ms, payment.amount_rub.micro()),
        (1000, 10_000_000)
    );
    let [correction] = statement.corrections.as_slice() else {
        panic!("{statement:?}");
    };
    assert_eq!(correction.reason.as_deref(), Some("paid twice"));
    let models: Vec<_> = statement
        .models
        .iter()
        .map(|(model, spent)| {
            (
                model.as_str(),
                spent.calls,
                spent.usage.input,
                spent.charged_micro,
            )
        })
        .collect();
    assert_eq!(models, [("a", 2, 6, 2_000_007), ("b", 1, 3, 1_000_004)]);
    assert_eq!(
        statement.kopecks(),
        Kopecks {
            opening: 5000,
            payments: 1000,
            corrections: -150,
            spent: 300,
            models: vec![200, 100],
            models_rounding: 0,
            closing: 5550,
        }
    );
}

#[test]
fn rounding_difference_between_the_model_lines_and_the_total_is_a_separate_line() {
    // Three models cost a third of a kopeck each. Each cost rounds to zero, but their sum rounds to one kopeck.
    let lines: Vec<_> = [entry(0, 1_000_000, None)]
        .into_iter()
        .chain(["a", "b", "c"].map(|model| call(1, model, 3_334, Booked::Held)))
        .collect();
    let kopecks = statement(&lines, balance(&lines), 0..10).kopecks();
    assert_eq!(kopecks.models, [0, 0, 0]);
    assert_eq!((kopecks.spent, kopecks.models_rounding), (1, 1));
}

#[test]
fn amounts_round_to_the_nearest_kopeck_and_halves_away_from_zero() {
    for (micro, kopecks) in [
        (0, 0),
        (4_999, 0),
        (5_000, 1),
        (-4_999, 0),
        (-5_000, -1),
        (14_999, 1),
        (i128::from(MicroRub::MAX.micro()), 900_719_925_474),
    ] {
        assert_eq!(to_kopecks(micro), kopecks, "{micro}");
    }
}

#[test]
fn number_of_statement_lines_is_limited() {
    let mut reader = Reader::new(MicroRub::ZERO, 0..10);
    for _ in 0..LINES_MAX {
        reader.line(entry(1, 1, None)).unwrap();
    }
    let refused = reader.line(entry(1, 1, Some("one too many")));
    assert!(matches!(refused, Err(StatementError::TooLong)));
}

/// A missing account has no statement; an existing account without lines has an empty one.
#[test]
fn statement_of_an_account_without_journal_lines_has_only_zeros() {
    let ledger = MemoryLedger::new();
    let acme = account();
    let read = |time| {
        Statement::read(&ledger, &acme, time)
            .now_or_never()
            .unwrap()
    };
    assert!(matches!(
        read(0..10),
        Err(StatementError::Ledger(BookError::NotFound))
    ));
    let made = ledger.create_account(&acme, "Acme");
    made.now_or_never().unwrap().unwrap();
    assert_eq!(read(0..10).unwrap(), Statement::default());
    // The payment is in the period that includes the current time, and not in the period that is long past.
    let topup = Entry {
        id: "p1".into(),
        amount: MicroRub::new(7),
        reason: None,
    };
    let entered = ledger.enter(&acme, &topup);
    entered.now_or_never().unwrap().unwrap();
    let now = read(10..u64::MAX).unwrap();
    assert_eq!((now.opening_micro, now.closing_micro), (0, 7));
    assert_eq!(now.payments.len(), 1);
    assert_eq!(read(0..10).unwrap(), Statement::default());
}

/// Generates an account's history, oldest line first. The balance is never negative.
fn journal() -> impl Strategy<Value = Vec<JournalLine>> {
    let line = (0u64..6 * MONTH, 0u8..8, 0i64..3_000_000, 0usize..5);
    prop::collection::vec(line, 0..120).prop_map(|mut wanted| {
        wanted.sort_by_key(|wanted| wanted.0);
        let mut left = 0;
        let mut lines = Vec::new();
        for (at_ms, kind, amount, model) in wanted {
            let line = match kind {
                0 => entry(at_ms, amount * 10, None),
                1 => entry(at_ms, amount, Some("more")),
                2 => entry(at_ms, -amount.min(left), Some("less")),
                3 => call(at_ms, "a", amount, Booked::Stale),
                _ => {
                    let model = ["a", "b", "модель", "c/d", "e"][model];
                    call(at_ms, model, amount.min(left), Booked::Held)
                }
            };
            left += i64::try_from(moved_by(&line)).unwrap();
            lines.push(line);
        }
        lines
    })
}

proptest! {
    /// Checks random journals month by month. The sums are exact to the micro-ruble and to the kopeck, each month
    /// begins with the closing balance of the previous month, and all months together equal the ledger's totals.
    #[test]
    fn opening_balance_plus_payments_minus_charges_equals_closing_balance(lines in journal()) {
        let has = balance(&lines);
        let (mut closed, mut closed_kopecks) = (0, 0);
        let (mut charged, mut spent_kopecks, mut entered_kopecks) = (0, 0, 0);
        for month in 0..6 {
            let time = month * MONTH..(month + 1) * MONTH;
            let of_it = statement(&lines, has, time.clone());
            prop_assert_eq!(of_it.opening_micro, closed);
            let came = of_it.payments_micro() + of_it.corrections_micro();
            prop_assert_eq!(of_it.opening_micro + came - of_it.spent_micro(), of_it.closing_micro);

            // The expected total is the sum of the charges in the receipts.
            let receipts = lines.iter().filter_map(|line| match line {
                JournalLine::Call(receipt) if time.contains(&receipt.at_ms) && is_charge(receipt) => Some(receipt),
                _ => None,
            });
            let reported: i128 = receipts.clone().map(|receipt| i128::from(receipt.charged_rub.micro())).sum();
            prop_assert_eq!(of_it.spent_micro(), reported);
            let calls: u64 = of_it.models.values().map(|spent| spent.calls).sum();
            prop_assert_eq!(calls, receipts.count() as u64);

            let kopecks = of_it.kopecks();
            prop_assert_eq!(kopecks.opening, closed_kopecks);
            prop_assert_eq!(
                kopecks.opening + kopecks.payments + kopecks.corrections - kopecks.spent,
                kopecks.closing
            );
            prop_assert_eq!(kopecks.models.iter().sum::<i128>() + kopecks.models_rounding, kopecks.spent);
            // The spending is computed from four rounded sums, each of which is off by at most half a kopeck.
            prop_assert!((kopecks.spent * KOPECK - of_it.spent_micro()).abs() <= 2 * KOPECK);

            (closed, closed_kopecks) = (of_it.closing_micro, kopecks.closing);
            charged += of_it.spent_micro();
            spent_kopecks += kopecks.spent;
            entered_kopecks += kopecks.payments + kopecks.corrections;
        }
        prop_assert_eq!(closed, i128::from(has));
        prop_assert_eq!(entered_kopecks - spent_kopecks, to_kopecks(has.into()));
        let all = statement(&lines, has, 0..u64::MAX);
        prop_assert_eq!(all.spent_micro(), charged);
        prop_assert_eq!((all.opening_micro, all.closing_micro), (0, has.into()));
    }

    /// If all payments and corrections are whole kopecks, no statement has a negative sum, and the spending over all
    /// months equals the charges, to the kopeck.
    #[test]
    fn rounding_to_kopecks_does_not_accumulate_over_months(lines in journal()) {
        let whole = |line: JournalLine| match line {
            JournalLine::Entry { at_ms, amount_rub, reason, .. } => {
                let amount = amount_rub.micro() / 10_000 * 10_000;
                entry(at_ms, amount.abs(), reason.as_deref())
            }
            line => line,
        };
        let lines: Vec<_> = lines.into_iter().map(whole).collect();
        let has = balance(&lines);
        let (mut spent, mut charged) = (0, 0);
        for month in 0..6 {
            let of_it = statement(&lines, has, month * MONTH..(month + 1) * MONTH);
            prop_assert!(of_it.kopecks().spent >= 0);
            spent += of_it.kopecks().spent;
            charged += of_it.spent_micro();
        }
        prop_assert!((spent * KOPECK - charged).abs() <= KOPECK / 2);
    }
}
