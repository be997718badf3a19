//! Tests of journals and books in each store: what an export contains, and which breaches an audit finds.

use std::{
    collections::HashSet,
    time::{SystemTime, UNIX_EPOCH},
};

use tollgate_layers::{
    ceiling::Ceilings,
    facts::RequestNumber,
    key::{AccountId, KeyStatus},
    reserve::{
        audit::{AccountAudit, Snapshot},
        ledger::{
            AccountBooks, BookError, Booked, Entry, JournalLine, JournalPart, KeyChange, Ledger,
            LedgerAdmin,
        },
        memory::MemoryLedger,
    },
};

use crate::{
    harness::RedisServer,
    ledger::{
        Books, acme, folder, hold, in_file, is_sound, item, micro, number, open, over, record,
        settlement, topup,
    },
};

macro_rules! on_every_store {
    ($($promise:ident)*) => {
        mod in_memory {
            $(
                #[tokio::test]
                async fn $promise() {
                    let ledger = super::MemoryLedger::new();
                    super::$promise(&ledger).await;
                    super::is_sound(&ledger).await;
                }
            )*
        }

        mod in_sqlite {
            $(
                #[tokio::test]
                async fn $promise() {
                    let folder = super::folder();
                    let ledger = super::in_file(&folder);
                    super::$promise(&ledger).await;
                    super::is_sound(&ledger).await;
                    ledger.close().await;
                }
            )*
        }

        mod in_redis {
            $(
                #[tokio::test]
                async fn $promise() {
                    let server = super::RedisServer::start().await;
                    let ledger = super::over(&server).await;
                    super::$promise(&ledger).await;
                    super::is_sound(&ledger).await;
                }
            )*
        }
    };
}

on_every_store! {
    a_journal_has_what_moved_money_in_its_order
    pages_have_every_line_once_whatever_is_booked_in_between
    a_journal_is_read_backwards_in_the_same_order
    a_part_of_a_journal_is_cut_by_time
    a_dispute_is_in_the_journal_and_moves_nothing
    books_show_keys_holds_and_all_that_was_entered
    books_and_the_journal_up_to_them_agree_while_calls_are_booked
    an_account_without_a_line_has_an_empty_journal_and_none_is_not_found
    a_deleted_key_is_not_brought_back_by_a_change_on_its_way
}

/// Reserves and settles a call of the key. The call has this cost.
async fn call<L: Books>(ledger: &L, n: u128, id: &str, cost: i64) {
    ledger.reserve(&hold(n, id, cost)).await.unwrap();
    let settled = ledger.settle(&settlement(n, id, cost)).await.unwrap();
    assert_eq!(settled.booked, Booked::Held);
    assert_eq!(settled.charged, micro(cost));
}

/// Reads all journal lines of a part of the journal, page by page.
async fn lines<L: Books>(ledger: &L, part: JournalPart<'_>) -> Vec<JournalLine> {
    let mut lines = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let part = JournalPart {
            after: after.as_deref(),
            ..part
        };
        let page = ledger.journal(&acme(), &part).await.unwrap();
        assert!(page.lines.len() <= part.limit, "{part:?}");
        lines.extend(page.lines);
        after = page.next;
        if after.is_none() {
            return lines;
        }
    }
}

/// Returns an id for each line: an entry's id, or a call's number.
fn names(lines: &[JournalLine]) -> Vec<String> {
    lines
        .iter()
        .map(|line| match line {
            JournalLine::Entry { id, .. } => id.clone(),
            JournalLine::Call(receipt) => receipt.number.to_string(),
        })
        .collect()
}

fn audited(books: &AccountBooks, lines: &[JournalLine]) -> Vec<String> {
    let mut audit = AccountAudit::new(Snapshot::from(books));
    lines.iter().for_each(|line| audit.line(line));
    audit.finish()
}

#[tokio::test]
async fn audit_finds_a_receipt_wrong_by_a_micro_ruble_in_every_store() {
    let folder = folder();
    let file = in_file(&folder);
    let server = RedisServer::start().await;
    let (memory, redis) = (MemoryLedger::new(), over(&server).await);
    tokio::join!(
        is_off_by_one(&memory),
        is_off_by_one(&file),
        is_off_by_one(&redis)
    );
    file.close().await;
}

/// Settles a call that costs one micro-ruble more than its usage multiplied by its prices. All sums agree, so only the
/// receipt shows the error.
async fn is_off_by_one<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    call(ledger, 1, "k1", 70).await;
    ledger.reserve(&hold(2, "k1", 100)).await.unwrap();
    let mut off = settlement(2, "k1", 70);
    off.cost = micro(71);
    ledger.settle(&off).await.unwrap();
    let breach = format!(
        "I3 key k1: call {} cost 71 µ₽, but its usage at its prices comes to 70",
        number(2)
    );
    assert_eq!(breaches(ledger).await, std::slice::from_ref(&breach));
    let books = ledger.books(&acme()).await.unwrap();
    let lines = lines(ledger, JournalPart::whole()).await;
    assert_eq!(audited(&books, &lines), [breach]);
}

/// Waits for the next millisecond, so that later journal lines have a later time.
async fn next_ms() {
    let now = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.unwrap().as_millis()
    };
    let begun = now();
    while now() <= begun + 1 {
        tokio::task::yield_now().await;
    }
}

async fn breaches<L: Books>(ledger: &L) -> Vec<String> {
    ledger.audit().await.unwrap().breaches
}

async fn a_journal_has_what_moved_money_in_its_order<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    call(ledger, 1, "k1", 70).await;
    let correction = Entry {
        reason: Some("paid twice".into()),
        ..topup("c1", -30)
    };
    ledger.enter(&acme(), &correction).await.unwrap();
    ledger.enter(&acme(), &correction).await.unwrap();
    ledger.enter(&acme(), &topup("first", 1000)).await.unwrap();
    call(ledger, 2, "k2", 0).await;
    ledger.settle(&settlement(2, "k2", 0)).await.unwrap();
    ledger.reserve(&hold(3, "k1", 5)).await.unwrap();
    ledger
        .release(number(3), &acme(), &"k1".parse().unwrap())
        .await
        .unwrap();

    let lines = lines(ledger, JournalPart::whole()).await;
    let (one, two) = (number(1).to_string(), number(2).to_string());
    assert_eq!(names(&lines), ["first", &one, "c1", &two]);
    assert!(lines.is_sorted_by_key(JournalLine::at_ms));
    let receipt = ledger.receipt(number(1)).await.unwrap();
    assert_eq!(receipt.item, item(70));
    assert_eq!(lines[1], JournalLine::Call(receipt));
    let entries: Vec<_> = lines
        .iter()
        .filter_map(|line| match line {
            JournalLine::Entry {
                account,
                amount_rub,
                reason,
                ..
            } => Some((account.clone(), *amount_rub, reason.as_deref())),
            JournalLine::Call(_) => None,
        })
        .collect();
    assert_eq!(
        entries,
        [
            (acme(), micro(1000), None),
            (acme(), micro(-30), Some("paid twice"))
        ]
    );
}

async fn pages_have_every_line_once_whatever_is_booked_in_between<L: Books>(ledger: &L) {
    open(ledger, 1_000_000).await;
    for n in 0..25 {
        call(ledger, n, "k1", 3).await;
        let id = format!("p{n}");
        ledger.enter(&acme(), &topup(&id, 1)).await.unwrap();
    }
    for limit in [1, 7, 51, 1000, 0, usize::MAX] {
        let part = JournalPart {
            limit,
            ..JournalPart::whole()
        };
        let page = ledger.journal(&acme(), &part).await.unwrap();
        assert_eq!(page.lines.len(), limit.clamp(1, 51), "{limit}");
        assert_eq!(page.next.is_some(), limit <= 51, "{limit}");
    }

    let (mut seen, mut after): (Vec<String>, Option<String>) = (Vec::new(), None);
    for n in 100.. {
        let part = JournalPart {
            limit: 7,
            after: after.as_deref(),
            ..JournalPart::whole()
        };
        let page = ledger.journal(&acme(), &part).await.unwrap();
        seen.extend(names(&page.lines));
        after = page.next;
        if after.is_none() {
            break;
        }
        if n < 110 {
            call(ledger, n, "k2", 3).await;
        }
    }
    let all = lines(ledger, JournalPart::whole()).await;
    assert_eq!(all.len(), 51 + 8);
    let end: HashSet<&String> = seen.iter().collect();
    assert_eq!(end.len(), seen.len(), "none twice");
    let all = names(&all);
    assert_eq!(
        seen,
        all[..seen.len()],
        "in the same order, and none left out"
    );
    assert!(seen.len() >= 51, "{seen:?}");
}

/// Pages that are read backwards contain the same lines in reverse order, even if several entries and calls have the
/// same millisecond.
async fn a_journal_is_read_backwards_in_the_same_order<L: Books>(ledger: &L) {
    open(ledger, 1_000_000).await;
    for n in 0..12 {
        call(ledger, n, "k1", 3).await;
        let id = format!("p{n}");
        ledger.enter(&acme(), &topup(&id, 1)).await.unwrap();
    }
    let forward = lines(ledger, JournalPart::whole()).await;
    let books = ledger.books(&acme()).await.unwrap();
    call(ledger, 100, "k2", 3).await;
    let [since_ms, until_ms] = [4, 20].map(|at: usize| forward[at].at_ms());
    for limit in [1, 7, 25, 1000] {
        let backwards = JournalPart {
            newest_first: true,
            limit,
            ..JournalPart::whole()
        };
        for part in [
            JournalPart {
                end: Some(&books.journal_end),
                ..backwards
            },
            JournalPart {
                since_ms,
                until_ms,
                ..backwards
            },
        ] {
            let wanted: Vec<JournalLine> = (forward.iter().rev())
                .filter(|line| (part.since_ms..part.until_ms).contains(&line.at_ms()))
                .cloned()
                .collect();
            assert_eq!(lines(ledger, part).await, wanted, "{part:?}");
        }
        let newest = lines(ledger, backwards).await;
        assert_eq!(names(&newest[..1]), [number(100).to_string()]);
        assert_eq!(newest.len(), forward.len() + 1);
    }
}

async fn a_part_of_a_journal_is_cut_by_time<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    for n in 1..=5 {
        next_ms().await;
        call(ledger, n, "k1", 1).await;
    }
    let all = lines(ledger, JournalPart::whole()).await;
    let third = all[3].at_ms();
    let part = |since_ms, until_ms| JournalPart {
        since_ms,
        until_ms,
        limit: 2,
        ..JournalPart::whole()
    };
    for (part, expected) in [
        (part(third, u64::MAX), &all[3..]),
        (part(0, third), &all[..3]),
        (part(third, third + 1), &all[3..4]),
        (part(all[1].at_ms(), third), &all[1..3]),
        (part(third, third), &all[..0]),
        (part(third + 1_000_000, u64::MAX), &all[..0]),
        (part(0, 1), &all[..0]),
        (part(u64::MAX, 0), &all[..0]),
    ] {
        assert_eq!(lines(ledger, part).await, expected, "{part:?}");
    }
}

async fn a_dispute_is_in_the_journal_and_moves_nothing<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    let mut stale = settlement(1, "k1", 70);
    stale.fresh = false;
    let settled = ledger.settle(&stale).await.unwrap();
    assert_eq!(settled.booked, Booked::Stale);
    let books = ledger.books(&acme()).await.unwrap();
    let journal = lines(ledger, JournalPart::whole()).await;
    assert_eq!(names(&journal), ["first", &number(1).to_string()]);
    assert_eq!(audited(&books, &journal), Vec::<String>::new());

    // The stale settlement has not used up the request number. So a fresh settlement of the call is charged.
    let settled = ledger.settle(&settlement(1, "k1", 70)).await.unwrap();
    assert_eq!(settled.booked, Booked::Forced);
    let books = ledger.books(&acme()).await.unwrap();
    let journal = lines(ledger, JournalPart::whole()).await;
    let Some(JournalLine::Call(last)) = journal.last() else {
        panic!("{journal:?}")
    };
    assert_eq!((last.booked, last.charged_rub), (Booked::Forced, micro(70)));
    assert_eq!(audited(&books, &journal), Vec::<String>::new());
}

async fn books_show_keys_holds_and_all_that_was_entered<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    ledger.enter(&acme(), &topup("c", -100)).await.unwrap();
    call(ledger, 1, "k1", 70).await;
    let mut long = hold(3, "k2", 0);
    long.want = micro(500);
    long.least = micro(5);
    ledger.reserve(&hold(2, "k1", 20)).await.unwrap();
    ledger.reserve(&long).await.unwrap();

    let books = ledger.books(&acme()).await.unwrap();
    assert_eq!(books.view, ledger.account(&acme()).await.unwrap());
    assert_eq!(books.keys, ledger.keys(&acme()).await.unwrap());
    assert_eq!(books.entered_rub, micro(900));
    assert!(books.journal_complete);
    let holds: Vec<_> = books
        .holds
        .iter()
        .map(|hold| (hold.number, &*hold.key, hold.held_rub))
        .collect();
    assert_eq!(
        holds,
        [(number(2), "k1", micro(20)), (number(3), "k2", micro(500))]
    );
    let made = ledger.receipt(number(1)).await.unwrap().at_ms;
    for hold in &books.holds {
        let lives_ms = hold.due_ms.unwrap() - made;
        assert!((3_590_000..3_660_000).contains(&lives_ms), "{hold:?}");
    }

    // This call ends after the books were read. They contain everything up to `journal_end`, so the journal is read up
    // to there.
    call(ledger, 4, "k1", 1).await;
    let part = JournalPart {
        end: Some(&books.journal_end),
        limit: 2,
        ..JournalPart::whole()
    };
    let lines = lines(ledger, part).await;
    assert_eq!(lines.len(), 3);
    assert_eq!(audited(&books, &lines), Vec::<String>::new());
    for n in [2, 3] {
        ledger
            .release(number(n), &acme(), &"k1".parse().unwrap())
            .await
            .unwrap();
    }
}

/// Checks the invariants I2, I3 and I5 repeatedly while calls are settled.
async fn books_and_the_journal_up_to_them_agree_while_calls_are_booked<L: Books>(ledger: &L) {
    open(ledger, 1_000_000).await;
    let booking = async {
        for n in 0..200 {
            let key = if n % 3 == 0 { "k1" } else { "k2" };
            ledger.reserve(&hold(n, key, 50)).await.unwrap();
            tokio::task::yield_now().await;
            // Some of the calls cost more than their hold, and some cost nothing.
            let cost = i64::try_from(n % 7 * 11).unwrap();
            ledger.settle(&settlement(n, key, cost)).await.unwrap();
            if n % 10 == 0 {
                let id = format!("p{n}");
                ledger.enter(&acme(), &topup(&id, 5)).await.unwrap();
            }
            tokio::task::yield_now().await;
        }
    };
    let reading = async {
        let mut read = 0;
        while read < 200 {
            let books = ledger.books(&acme()).await.unwrap();
            tokio::task::yield_now().await;
            let part = JournalPart {
                end: Some(&books.journal_end),
                limit: 9,
                ..JournalPart::whole()
            };
            let lines = lines(ledger, part).await;
            assert_eq!(audited(&books, &lines), Vec::<String>::new(), "{books:?}");
            assert!(books.journal_complete);
            read = lines
                .iter()
                .filter(|line| matches!(line, JournalLine::Call(_)))
                .count();
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(booking, reading);
}

async fn an_account_without_a_line_has_an_empty_journal_and_none_is_not_found<L: Books>(
    ledger: &L,
) {
    open(ledger, 0).await;
    let nobody: AccountId = "nobody".parse().unwrap();
    assert!(lines(ledger, JournalPart::whole()).await.is_empty());
    let books = ledger.books(&acme()).await.unwrap();
    assert!(books.journal_complete && books.holds.is_empty());
    let part = JournalPart {
        end: Some(&books.journal_end),
        ..JournalPart::whole()
    };
    assert!(lines(ledger, part).await.is_empty());
    let journal = ledger.journal(&nobody, &JournalPart::whole()).await;
    assert!(matches!(journal, Err(BookError::NotFound)), "{journal:?}");
    let books = ledger.books(&nobody).await;
    assert!(matches!(books, Err(BookError::NotFound)), "{books:?}");
    for nonsense in ["x", "1:2", "-"] {
        let part = JournalPart {
            after: Some(nonsense),
            ..JournalPart::whole()
        };
        let answer = ledger.journal(&acme(), &part).await;
        assert!(answer.is_err(), "{nonsense}");
    }
}

/// Invariant I12: a deleted key stays deleted, even if the key is changed at the same time.
async fn a_deleted_key_is_not_brought_back_by_a_change_on_its_way<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    for digest in 10..30 {
        let key = record(&acme(), &format!("x{digest}"), digest);
        ledger.create_key(&key, Ceilings::NONE).await.unwrap();
        let change = |status: Option<KeyStatus>| KeyChange {
            status,
            name: status.is_none().then(|| "renamed".into()),
            ..KeyChange::default()
        };
        let [deleted, disabled, enabled, renamed] = [
            Some(KeyStatus::Deleted),
            Some(KeyStatus::Disabled),
            Some(KeyStatus::Active),
            None,
        ]
        .map(change);
        let (a, b, c, d) = tokio::join!(
            ledger.change_key(&key.id, &disabled),
            ledger.change_key(&key.id, &deleted),
            ledger.change_key(&key.id, &enabled),
            ledger.change_key(&key.id, &renamed),
        );
        for changed in [a, b, c, d] {
            changed.unwrap();
        }
        let view = ledger.key(&key.id).await.unwrap();
        assert_eq!(view.record.status, KeyStatus::Deleted);
        assert_eq!(view.record.name, "renamed");
        let found = ledger.find_key(&key.digest).await.unwrap().unwrap();
        assert_eq!(found.status, KeyStatus::Deleted);
        let mut hold = hold(0, "k1", 1);
        hold.key = key.id.clone();
        hold.number = RequestNumber::now_v7();
        ledger.reserve(&hold).await.unwrap_err();
    }
}

/// In Redis, the audit by the running gateway finds the same breaches as `audit --export` finds in an export.
#[tokio::test]
async fn redis_edit_that_breaks_an_invariant_is_reported_with_the_invariants_name() {
    for (edit, says) in [
        (
            vec!["HINCRBY", "tg:{acme}", "h", "1"],
            "I2 account acme: held",
        ),
        (vec!["HINCRBY", "tg:{acme}", "k1.h", "1"], "I2 key k1: held"),
        (
            vec!["HINCRBY", "tg:{acme}", "b", "1"],
            "I3 account acme: balance",
        ),
        (
            vec!["HINCRBY", "tg:{acme}", "k1.u", "-1"],
            "I3 key k1: used 69",
        ),
        (
            vec!["HINCRBY", "tg:{acme}", "loss", "1"],
            "I3 account acme: loss 1",
        ),
        (
            vec!["HSET", "tg:{acme}:t", "first", "999"],
            "I3 account acme: balance",
        ),
        (vec!["DEL", "tg:{acme}:j"], "I3 key k1: used 70"),
        (
            vec!["HSET", "tg:{acme}", "b", "19"],
            "I4 account acme: held",
        ),
        (vec!["DEL", "tg:{acme}:x"], "I8 account acme: hold"),
    ] {
        let server = RedisServer::start().await;
        let ledger = over(&server).await;
        open(&ledger, 1000).await;
        call(&ledger, 1, "k1", 70).await;
        ledger.reserve(&hold(2, "k1", 20)).await.unwrap();
        is_sound(&ledger).await;
        server.ask::<i64>(&edit).await.unwrap();
        let found = breaches(&ledger).await;
        assert!(
            found.iter().any(|breach| breach.starts_with(says)),
            "{edit:?}: {found:?}"
        );
    }
}

/// Invariant I5: a hold ends exactly once, either by a charge or by a release.
#[tokio::test]
async fn audit_finds_a_double_charge_and_an_open_hold_of_an_ended_call() {
    let server = RedisServer::start().await;
    let ledger = over(&server).await;
    open(&ledger, 1000).await;
    call(&ledger, 1, "k1", 70).await;
    // The tombstone of the ended call is removed. So a new hold with the call's request number is granted, although the
    // call was charged.
    let tombstone = format!("tg:{{acme}}:d:{}", number(1));
    server.ask::<i64>(&["DEL", &tombstone]).await.unwrap();
    ledger.reserve(&hold(1, "k1", 70)).await.unwrap();
    let both = format!("I5 account acme: hold {} is both open and ended", number(1));
    assert_eq!(breaches(&ledger).await, [both]);

    // If the index entry of the receipt is removed as well, the ledger charges the call a second time.
    let place = format!("tg:{{acme}}:r:{}", number(1));
    server.ask::<i64>(&["DEL", &place]).await.unwrap();
    ledger.settle(&settlement(1, "k1", 70)).await.unwrap();
    let twice = format!("I5 account acme: call {} was settled twice", number(1));
    assert_eq!(breaches(&ledger).await, [twice]);
}

/// If the oldest lines of a journal were trimmed, the sums of the journal may be smaller than the books.
#[tokio::test]
async fn audit_reports_a_trimmed_journal_but_no_breach() {
    let server = RedisServer::start().await;
    let ledger = over(&server).await;
    open(&ledger, 1000).await;
    for n in 1..=3 {
        call(&ledger, n, "k1", 70).await;
    }
    let trimmed: i64 = server
        .ask(&["XTRIM", "tg:{acme}:j", "MAXLEN", "2"])
        .await
        .unwrap();
    assert_eq!(trimmed, 2);
    // The scripts of the ledger store in this field how many lines they have removed.
    server
        .ask::<i64>(&["HSET", "tg:{acme}", "jf", "2:1"])
        .await
        .unwrap();
    is_sound(&ledger).await;
    let books = ledger.books(&acme()).await.unwrap();
    assert!(!books.journal_complete);
    assert_eq!(books.entered_rub, micro(1000));
    let lines = lines(&ledger, JournalPart::whole()).await;
    assert_eq!(audited(&books, &lines), Vec::<String>::new());
    // If the sum of the receipts is larger than the charges in the books, that is a breach even in a trimmed journal.
    server
        .ask::<i64>(&["HINCRBY", "tg:{acme}", "k1.u", "-100"])
        .await
        .unwrap();
    let found = breaches(&ledger).await;
    assert!(
        found
            .iter()
            .any(|breach| breach.starts_with("I3 key k1: used 110")),
        "{found:?}"
    );
}
