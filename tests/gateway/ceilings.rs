//! Tests of a key's daily and monthly ceilings: across midnight, with many concurrent calls, with data of an earlier
//! version of the gateway, and as callers see them.

use tokio::task::JoinSet;
use tollgate_layers::{
    calendar::{DAY_MS, month_begins_ms, month_of},
    ceiling::{Ceiling, Ceilings},
    reserve::{
        book::{Book, Command, Outcome, apply},
        ledger::{Booked, KeyChange, Ledger, LedgerAdmin, LedgerError, Refusal},
        memory::MemoryLedger,
    },
};

use crate::{
    ledger::{
        Books, acme, folder, hold, in_file, is_sound, micro, number, open, over, settlement, topup,
    },
    prelude::*,
};

/// 2026-02-28 00:00 UTC, the first moment of the last day of a month.
const BEGIN: u64 = 1_772_236_800_000;
const FEB_28: u64 = BEGIN / DAY_MS;

/// Creates a book with one account that has 1000 µ₽, and with one key that has these ceilings.
fn book(ceilings: Ceilings) -> Book {
    let mut book = Book::default();
    for command in [
        Command::SetAccount {
            account: acme(),
            suspended: false,
        },
        Command::Enter {
            account: acme(),
            entry: topup("first", 1000),
        },
        Command::SetKey {
            account: acme(),
            key: "k1".parse().unwrap(),
            ceilings,
            enabled: true,
        },
    ] {
        assert_eq!(apply(&mut book, &command, BEGIN), Outcome::Done);
    }
    book
}

/// Reserves `want` for call `n` at time `now`. Returns the free amount that is left, or the reason for the refusal.
fn reserve(book: &mut Book, n: u128, want: i64, now: u64) -> Result<i64, Refusal> {
    let reserved = book.reserve(&hold(n, "k1", want), now)?;
    assert_eq!(reserved.held, micro(want));
    Ok(reserved.free.micro())
}

/// Settles call `n` with this cost at time `now`. Returns how it was booked, the charge and the loss.
fn settle(book: &mut Book, n: u128, cost: i64, now: u64) -> (Booked, i64, i64) {
    let key = "k1".parse().unwrap();
    let settled = book.settle(number(n), &acme(), &key, micro(cost), true, now);
    assert_eq!(book.audit().breaches, Vec::<String>::new());
    (
        settled.booked,
        settled.charged.micro(),
        settled.loss.micro(),
    )
}

const fn under(ceiling: Ceiling, free: i64, held: i64) -> Refusal {
    Refusal::DoesNotFit {
        free: micro(free),
        held: micro(held),
        ceiling: Some(ceiling),
    }
}

#[test]
fn daily_ceiling_resets_at_midnight_except_for_open_holds() {
    let mut book = book(Ceilings {
        day: Some(micro(100)),
        ..Ceilings::NONE
    });
    let (before, midnight) = (BEGIN + DAY_MS - 1, BEGIN + DAY_MS);
    let (today, tomorrow) = (Ceiling::of_day(FEB_28), Ceiling::of_day(FEB_28 + 1));
    assert_eq!(reserve(&mut book, 1, 30, BEGIN), Ok(70));
    assert_eq!(settle(&mut book, 1, 30, BEGIN), (Booked::Held, 30, 0));
    assert_eq!(reserve(&mut book, 2, 60, before), Ok(10));
    assert_eq!(reserve(&mut book, 3, 11, before), Err(under(today, 10, 60)));

    // One millisecond after midnight, the day's spending is zero again, and 60 µ₽ are free.
    assert_eq!(
        reserve(&mut book, 3, 41, midnight),
        Err(under(tomorrow, 40, 60))
    );
    assert_eq!(reserve(&mut book, 3, 40, midnight), Ok(0));
    // A call is charged on the day on which it ends. Both charges are within the ceiling of that day.
    assert_eq!(settle(&mut book, 2, 90, midnight), (Booked::Held, 60, 30));
    assert_eq!(
        settle(&mut book, 3, 40, midnight + 1),
        (Booked::Held, 40, 0)
    );
    assert_eq!(
        reserve(&mut book, 4, 1, midnight + 2),
        Err(Refusal::CeilingUsedUp(tomorrow))
    );
    // A charge without a hold is limited by a ceiling, too. The ceiling is used up, so the cost is a loss.
    assert_eq!(
        settle(&mut book, 5, 7, midnight + 3),
        (Booked::Forced, 0, 7)
    );
    assert_eq!(reserve(&mut book, 6, 100, midnight + DAY_MS), Ok(0));
}

#[test]
fn monthly_spending_resets_on_the_first_day_of_the_month() {
    let ceilings = Ceilings {
        total: Some(micro(400)),
        month: Some(micro(150)),
        day: Some(micro(100)),
    };
    let mut book = book(ceilings);
    let february = Ceiling::of_month(month_of(BEGIN));
    assert_eq!(
        february,
        Ceiling::Month {
            resets_at_ms: BEGIN + DAY_MS
        }
    );
    let day_before = BEGIN - DAY_MS;
    assert_eq!(reserve(&mut book, 1, 100, day_before), Ok(0));
    assert_eq!(
        settle(&mut book, 1, 100, day_before),
        (Booked::Held, 100, 0)
    );
    assert_eq!(
        reserve(&mut book, 2, 51, BEGIN),
        Err(under(february, 50, 0))
    );
    assert_eq!(reserve(&mut book, 2, 50, BEGIN), Ok(0));
    assert_eq!(settle(&mut book, 2, 50, BEGIN), (Booked::Held, 50, 0));
    assert_eq!(
        reserve(&mut book, 3, 1, BEGIN),
        Err(Refusal::CeilingUsedUp(february))
    );
    // The monthly spending starts at zero in March. The total ceiling still counts the spending of February.
    let march = BEGIN + DAY_MS;
    for (n, at) in [(4, march), (5, march + DAY_MS)] {
        let want = if n == 4 { 100 } else { 50 };
        assert!(reserve(&mut book, n, want, at).is_ok(), "{n}");
        assert_eq!(settle(&mut book, n, want, at), (Booked::Held, want, 0));
    }
    let april = month_begins_ms(month_of(march) + 1);
    assert_eq!(
        reserve(&mut book, 6, 101, april),
        Err(under(Ceiling::Total, 100, 0))
    );
    assert_eq!(reserve(&mut book, 6, 100, april), Ok(0));
    assert_eq!(settle(&mut book, 6, 100, april), (Booked::Held, 100, 0));
    assert_eq!(
        reserve(&mut book, 7, 1, april + DAY_MS),
        Err(Refusal::CeilingUsedUp(Ceiling::Total))
    );
}

#[test]
fn clock_set_back_over_midnight_resets_no_ceiling() {
    let mut book = book(Ceilings {
        day: Some(micro(100)),
        ..Ceilings::NONE
    });
    let midnight = BEGIN + DAY_MS;
    assert_eq!(reserve(&mut book, 1, 100, midnight), Ok(0));
    assert_eq!(settle(&mut book, 1, 100, midnight), (Booked::Held, 100, 0));
    assert_eq!(
        reserve(&mut book, 2, 1, midnight - 1),
        Err(Refusal::CeilingUsedUp(Ceiling::of_day(FEB_28 + 1)))
    );
}

const CALLS: u128 = 100;
const PAID_FOR: usize = 7;

/// The daily ceiling of the key is 75 µ₽, and each of a hundred concurrent calls requests a hold of 10 µ₽. So seven
/// calls get a hold.
async fn a_hundred_holds_on_a_days_money_for_seven<L: Books>(ledger: &L) {
    open(ledger, 1_000_000).await;
    let limited = KeyChange {
        ceiling_day: Some(Some(micro(75))),
        ..KeyChange::default()
    };
    let key = "k1".parse().unwrap();
    ledger.change_key(&key, &limited).await.unwrap();
    let mut holds = JoinSet::new();
    for n in 0..CALLS {
        let ledger = ledger.clone();
        holds.spawn(async move { (n, ledger.reserve(&hold(n, "k1", 10)).await) });
    }
    let (mut granted, mut refusals) = (Vec::new(), 0);
    while let Some(held) = holds.join_next().await {
        match held.unwrap() {
            (n, Ok(_)) => granted.push(n),
            (
                _,
                Err(LedgerError::Refused(Refusal::DoesNotFit {
                    ceiling: Some(Ceiling::Day { .. }),
                    ..
                })),
            ) => refusals += 1,
            (n, other) => panic!("{n}: {other:?}"),
        }
    }
    assert_eq!((granted.len(), refusals), (PAID_FOR, 93));
    for n in granted {
        // Each of the seven calls holds 10 µ₽ and costs 11 µ₽, which is 77 µ₽ in total. The charges stop at the daily
        // ceiling of 75 µ₽, and the rest is a loss.
        ledger.settle(&settlement(n, "k1", 11)).await.unwrap();
    }
    let view = ledger.key(&key).await.unwrap();
    assert_eq!(view.day.spent_rub, micro(75));
    assert_eq!((view.spent_rub, view.free_rub), (micro(75), micro(0)));
    assert_eq!(ledger.account(&acme()).await.unwrap().loss_rub, micro(2));
    is_sound(ledger).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_holds_in_memory_never_exceed_the_daily_ceiling() {
    a_hundred_holds_on_a_days_money_for_seven(&MemoryLedger::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_holds_in_sqlite_never_exceed_the_daily_ceiling() {
    let folder = folder();
    let ledger = in_file(&folder);
    a_hundred_holds_on_a_days_money_for_seven(&ledger).await;
    ledger.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_holds_in_redis_never_exceed_the_daily_ceiling() {
    let server = RedisServer::start().await;
    a_hundred_holds_on_a_days_money_for_seven(&over(&server).await).await;
}

/// Redis uses its own clock, which a test cannot set. So the test changes the stored day.
#[tokio::test]
async fn daily_ceiling_in_redis_resets_at_midnight_and_works_on_data_of_an_earlier_version() {
    let server = RedisServer::start().await;
    let ledger = over(&server).await;
    open(&ledger, 1000).await;
    let key = "k1".parse().unwrap();
    let limited = KeyChange {
        ceiling_month: Some(Some(micro(300))),
        ceiling_day: Some(Some(micro(100))),
        ..KeyChange::default()
    };
    ledger.change_key(&key, &limited).await.unwrap();
    let spend = async |n: u128, cost: i64| {
        ledger.reserve(&hold(n, "k1", cost)).await.unwrap();
        ledger.settle(&settlement(n, "k1", cost)).await.unwrap();
    };
    let spent = async || {
        let view = ledger.key(&key).await.unwrap();
        [view.month.spent_rub, view.day.spent_rub].map(|spent| spent.micro())
    };
    spend(1, 100).await;
    assert_eq!(spent().await, [100, 100]);
    assert!(matches!(
        ledger.probe(&acme(), &key).await,
        Err(LedgerError::Refused(Refusal::CeilingUsedUp(
            Ceiling::Day { .. }
        )))
    ));
    // On the next morning, the day's spending is zero, and the month's spending continues.
    let day = server.ask::<String>(&["HGET", "tg:{acme}", "k1.d"]).await;
    let (index, before) = day.as_deref().unwrap().split_once(':').unwrap();
    let yesterday = index.parse::<u64>().unwrap() - 1;
    let yesterday = format!("{yesterday}:{before}");
    let set = ["HSET", "tg:{acme}", "k1.d", yesterday.as_str()];
    server.ask::<i64>(&set).await.unwrap();
    assert_eq!(spent().await, [100, 0]);
    spend(2, 40).await;
    assert_eq!(spent().await, [140, 40]);
    is_sound(&ledger).await;

    // This simulates a charge of 30 µ₽ by a gateway of an earlier version, which updates only the balance and the total
    // spending of the key.
    for (field, change) in [("b", "-30"), ("k1.u", "30")] {
        let step = ["HINCRBY", "tg:{acme}", field, change];
        server.ask::<i64>(&step).await.unwrap();
    }
    assert_eq!(spent().await, [170, 70]);
    // Gateways of an earlier version store no daily or monthly sums, so the key's sums start at zero now.
    let forget = ["HDEL", "tg:{acme}", "k1.d", "k1.m"];
    server.ask::<i64>(&forget).await.unwrap();
    assert_eq!(spent().await, [0, 0]);
    spend(3, 100).await;
    assert_eq!(spent().await, [100, 100]);
    assert!(ledger.reserve(&hold(4, "k1", 1)).await.is_err());
}

/// Returns the spending and the ceilings of a key, as the callers' API shows them.
async fn own(world: &World, key: &Key) -> Value {
    world.get_by(key, "/v1/tollgate/key").await.json()
}

async fn change(world: &World, key: &Key, change: Value) {
    let path = format!("/admin/v1/keys/{}", key.id);
    world.admin_patch(&path, change).await.expect(200);
}

#[tokio::test]
async fn key_endpoint_shows_daily_and_monthly_spending_with_reset_times() {
    let world = World::start().await;
    let fields = json!({ "ceiling_day_rub": "2", "ceiling_month_rub": "30" });
    let key = world.key_with("acme", "1000", fields).await;
    let answer = world.chat(&key, &Op::Chat.body("x")).await;
    let charged = world.receipt(&answer.number()).await["charged_rub"].clone();
    world.settled(&key).await;
    let own = own(&world, &key).await;
    assert_eq!(own["ceiling_rub"], Value::Null);
    for (period, ceiling) in [("day", "2.00"), ("month", "30.00")] {
        let shown = &own[period];
        assert_eq!(shown["ceiling_rub"], ceiling);
        assert_eq!(shown["spent_rub"], charged);
        let left = decimal(&shown["ceiling_rub"]) - decimal(&charged);
        assert_eq!(decimal(&shown["free_rub"]), left);
        let resets_at = shown["resets_at"].as_str().unwrap();
        assert!(resets_at.ends_with("T00:00:00Z"), "{resets_at}");
        assert!(period == "day" || resets_at.ends_with("-01T00:00:00Z"));
    }
    assert_eq!(own["free_rub"], own["day"]["free_rub"]);
    // A key without a ceiling can still see how much it has spent.
    change(&world, &key, json!({ "ceiling_day_rub": null })).await;
    let own = self::own(&world, &key).await;
    assert_eq!(own["day"]["ceiling_rub"], Value::Null);
    assert_eq!(own["day"]["free_rub"], Value::Null);
    assert_eq!(own["day"]["spent_rub"], charged);
    assert_eq!(own["free_rub"], own["month"]["free_rub"]);
}

#[tokio::test]
async fn call_gets_403_if_it_exceeds_the_rest_of_a_ceiling_and_401_if_the_ceiling_is_used_up() {
    for (setup, russian) in [(Setup::default(), true), (top("language = \"en\""), false)] {
        let (world, key) = setup.start_with_key().await;
        assert_eq!(world.chat(&key, &Op::Chat.body("x")).await.status, 200);
        world.settled(&key).await;
        for (field, word) in [
            (
                "ceiling_month_rub",
                if russian {
                    "Месячный"
                } else {
                    "monthly"
                },
            ),
            ("ceiling_day_rub", if russian { "Дневной" } else { "daily" }),
        ] {
            change(&world, &key, json!({ field: "0.01" })).await;
            let answer = world.chat(&key, &Op::Chat.body("x")).await;
            let text = shape(field, &answer, 403, PERMISSION, "insufficient_balance");
            assert!(text.contains(word) && text.contains(" 00:00 UTC"), "{text}");
            change(&world, &key, json!({ field: "0.0001" })).await;
            let answer = world.chat(&key, &Op::Chat.body("x")).await;
            let text = shape(field, &answer, 401, AUTHENTICATION, "ceiling_used_up");
            assert!(text.contains(word) && text.contains(" 00:00 UTC"), "{text}");
            change(&world, &key, json!({ field: null })).await;
        }
        // If the daily and the monthly ceiling are used up, the refusal names the monthly one. After both are removed,
        // the key may call again.
        let both = json!({ "ceiling_month_rub": "0.0001", "ceiling_day_rub": "0.0001" });
        change(&world, &key, both).await;
        let answer = world.chat(&key, &Op::Chat.body("x")).await;
        let text = shape("both", &answer, 401, AUTHENTICATION, "ceiling_used_up");
        let word = if russian {
            "Месячный"
        } else {
            "monthly"
        };
        assert!(text.contains(word), "{text}");
        let none = json!({ "ceiling_month_rub": null, "ceiling_day_rub": null });
        change(&world, &key, none).await;
        assert_eq!(world.chat(&key, &Op::Chat.body("x")).await.status, 200);
    }
}

#[tokio::test]
async fn exhausted_daily_ceiling_is_reported_before_an_unknown_model() {
    let world = World::start().await;
    let key = world
        .key_with("acme", "10", json!({ "ceiling_day_rub": "0" }))
        .await;
    let body = with(Op::Chat.body("x"), json!({ "model": "nothing" }));
    let answer = world.chat(&key, &body).await;
    refused("day", &answer, 401, AUTHENTICATION, "ceiling_used_up");
    assert!(world.vendor.received().is_empty());
}
