//! Compares the data that a lease turn writes with the data that settling the same calls one by one writes.

use std::sync::Arc;

use super::*;
use crate::{
    contract::{
        Booked, Hold, JournalLine, JournalPages, JournalPart, Ledger, LedgerAdmin, Receipt,
        Settled, Settlement,
    },
    leases::{Step, TurnEnd, Word},
    number::RequestNumber,
    redis::test_server::Server,
    rollup::{Rollup, check, roll_up},
    testing::given::{acme, hold, key, micro, settlement, topup},
};

const MONEY: i64 = 100_000;

/// Returns a turn of a lease of the key k1. It opens the lease or continues it, and the lease pays the full cost of
/// `ends`.
fn turn(lease: RequestNumber, words: [&str; 2], ends: &[Settlement]) -> Turn {
    let [before, this] = words.map(str::to_owned);
    Turn {
        lease,
        account: acme(),
        key: key("k1"),
        step: if before.is_empty() {
            Step::Open
        } else {
            Step::GoOn
        },
        before,
        this,
        give: micro(0),
        more: micro(1_000),
        raise: micro(0),
        short_of: micro(0),
        ttl_ms: 60_000,
        grants_ms: 1_000,
        ends: ends
            .iter()
            .map(|end| TurnEnd {
                settlement: Arc::new(end.clone()),
                cover: end.cost,
            })
            .collect(),
    }
}

/// Returns a ledger in which the turn `a` has opened a lease.
async fn with_lease() -> (Server, RedisLedger, RequestNumber) {
    let (server, ledger) = Server::with_balance(MONEY).await;
    let lease = RequestNumber::now_v7();
    ledger.turn(&turn(lease, ["", "a"], &[])).await.unwrap();
    (server, ledger, lease)
}

fn ended(number: RequestNumber, cost: i64) -> Settlement {
    Settlement {
        number,
        ..settlement(0, "k1", cost)
    }
}

async fn pages(ledger: &RedisLedger, newest_first: bool, limit: usize) -> Vec<JournalLine> {
    let (mut lines, mut after) = (Vec::new(), None::<String>);
    loop {
        let part = JournalPart {
            newest_first,
            limit,
            after: after.as_deref(),
            ..JournalPart::whole()
        };
        let page = ledger.journal(&acme(), &part).await.unwrap();
        assert!(page.lines.len() <= limit, "{} of {limit}", page.lines.len());
        lines.extend(page.lines);
        match page.next {
            Some(next) => after = Some(next),
            None => return lines,
        }
    }
}

fn receipts(lines: &[JournalLine]) -> Vec<&Receipt> {
    let calls = lines.iter().filter_map(|line| match line {
        JournalLine::Call(receipt) => Some(receipt),
        JournalLine::Entry { .. } => None,
    });
    calls.collect()
}

#[tokio::test]
async fn call_in_a_lease_turn_has_the_same_journal_line_as_one_settled_alone() {
    let (_server, ledger, lease) = with_lease().await;
    // Call numbers with unusual times: one UUID contains no time, and one is from years ago.
    let numbers: Vec<RequestNumber> = [1_u128, 0x0190_163d_8694_739b_aea5_966c_26f8_ad91]
        .map(|n| RequestNumber::from_uuid(uuid::Uuid::from_u128(n)))
        .into_iter()
        .chain((0..5).map(|_| RequestNumber::now_v7()))
        .collect();
    let costs = numbers.iter().copied().zip(1..);
    let ends: Vec<Settlement> = costs.map(|(number, cost)| ended(number, cost)).collect();
    let first = ledger
        .turn(&turn(lease, ["a", "b"], &ends[..4]))
        .await
        .unwrap();
    ledger.enter(&acme(), &topup("second", 7)).await.unwrap();
    ledger.reserve(&hold(900, "k1", 50)).await.unwrap();
    ledger.settle(&settlement(900, "k1", 50)).await.unwrap();
    // The outbox of a dead process reports new settlements together with one that was already charged.
    let left = Turn {
        step: Step::Tell,
        ..turn(lease, ["b", "c"], &ends[3..])
    };
    let again = ledger.turn(&left).await.unwrap();
    assert_eq!(first.word, Word::Done);
    assert_eq!(again.ends[0].charged, first.ends[3].charged);
    assert!(again.ends[0].repeated && again.ends[1..].iter().all(|end| !end.repeated));

    let whole = pages(&ledger, false, 1_000).await;
    let acknowledged: Vec<RequestNumber> = receipts(&whole)
        .iter()
        .map(|receipt| receipt.number)
        .collect();
    let mut expected = numbers[..4].to_vec();
    expected.push(settlement(900, "k1", 50).number);
    expected.extend(&numbers[4..]);
    assert_eq!(acknowledged, expected);
    for end in &ends {
        let lines = receipts(&whole);
        let receipt = lines.iter().find(|line| line.number == end.number).unwrap();
        assert_eq!(receipt.item, end.item);
        assert_eq!((receipt.held_rub, receipt.cost_rub), (end.held, end.cost));
        assert_eq!(
            (receipt.charged_rub, receipt.booked),
            (end.cost, Booked::Held)
        );
        assert_eq!(&ledger.receipt(receipt.number).await.unwrap(), *receipt);
    }
    for limit in 1..=10 {
        assert_eq!(pages(&ledger, false, limit).await, whole, "{limit}");
        let mut back = pages(&ledger, true, limit).await;
        back.reverse();
        assert_eq!(back, whole, "{limit}");
    }
    let mut books = JournalPages::up_to(&ledger.books(&acme()).await.unwrap());
    assert_eq!(books.next(&ledger).await.unwrap().unwrap(), whole);
    // A summation can continue after any line, even within a lease turn: sums of an earlier version may end there.
    for limit in 1..whole.len() {
        let part = JournalPart {
            limit,
            ..JournalPart::whole()
        };
        let page = ledger.journal(&acme(), &part).await.unwrap();
        let after = page.next.as_deref();
        let unrolled = ledger.unrolled_lines(&acme(), after, u64::MAX).await;
        let unrolled = unrolled.unwrap();
        assert_eq!(unrolled.lines, whole.len() - limit, "{after:?}");
        let rows = unrolled.calls.rows();
        let charged: i128 = rows.map(|(_, _, sums)| sums.charged_micro).sum();
        let left = receipts(&whole[limit..]);
        let left: i64 = left.iter().map(|call| call.charged_rub.micro()).sum();
        assert_eq!(charged, left.into(), "{after:?}");
    }
    let rolled = roll_up(&ledger, u64::MAX).await.unwrap();
    assert_eq!(rolled, whole.len() as u64);
    assert_eq!(check(&ledger).await.unwrap(), Vec::<String>::new());
    assert_eq!(ledger.audit().await.unwrap().breaches, Vec::<String>::new());
}

#[tokio::test]
async fn audit_reports_a_lease_turn_that_is_in_the_journal_twice() {
    let (server, ledger, lease) = with_lease().await;
    let ends = many(40, 5);
    ledger.turn(&turn(lease, ["a", "b"], &ends)).await.unwrap();
    let breaches = async || ledger.audit().await.unwrap().breaches;
    assert_eq!(breaches().await, Vec::<String>::new());
    // Writes the journal entry of the lease turn a second time, as if a fault had charged its calls twice.
    let script = "
local entry = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local place = redis.call('XADD', KEYS[1], '*', unpack(entry[2]))
for _, hash in ipairs(redis.call('KEYS', 'tg:{acme}:n:*')) do
  for _, field in ipairs(redis.call('HKEYS', hash)) do
    local span = string.match(field, '^%d+:%d+:')
    redis.call('HSET', hash, span .. place, redis.call('HGET', hash, field))
  end
end
return 1";
    let _: i64 = server.ask(&["EVAL", script, "1", "tg:{acme}:j"]).await;
    let found = breaches().await;
    assert!(
        found.iter().any(|breach| breach.contains("I5")),
        "{found:?}"
    );
}

/// A repeated settlement gets the first result, whether it is repeated in a lease turn or without a lease.
#[tokio::test]
async fn call_settled_again_with_or_without_a_lease_is_charged_once() {
    let (_server, ledger, lease) = with_lease().await;
    let end = ended(RequestNumber::now_v7(), 40);
    let once = [end.clone()];
    let answer = ledger.turn(&turn(lease, ["a", "b"], &once)).await.unwrap();
    let charged = |settled: &Settled| (settled.booked, settled.charged, settled.repeated);
    let first = (Booked::Held, micro(40), false);
    assert_eq!(charged(&answer.ends[0]), first);
    // The process has lost the response and the lease's number, so it settles the call without a lease.
    let settled = ledger.settle(&end).await.unwrap();
    assert_eq!(charged(&settled), (first.0, first.1, true));
    // The outbox of a dead process settles the call too: once with this lease, and once with a lease that never
    // existed.
    for lease in [lease, RequestNumber::now_v7()] {
        let left = Settlement {
            lease: Some(lease),
            ..end.clone()
        };
        let settled = ledger.settle(&left).await.unwrap();
        assert_eq!(charged(&settled), (first.0, first.1, true));
    }
    // The call's lease never existed and its settlement is not fresh, so it may have been charged before. The ledger
    // records it once, without a charge.
    let stale = Settlement {
        fresh: false,
        lease: Some(RequestNumber::now_v7()),
        ..ended(RequestNumber::now_v7(), 9)
    };
    for _ in 0..2 {
        assert_eq!(ledger.settle(&stale).await.unwrap().booked, Booked::Stale);
    }
    let lines = pages(&ledger, false, 1_000).await;
    let booked: Vec<Booked> = receipts(&lines)
        .iter()
        .map(|receipt| receipt.booked)
        .collect();
    assert_eq!(booked, [Booked::Held, Booked::Stale]);
    let view = ledger.account(&acme()).await.unwrap();
    assert_eq!(view.balance_rub, micro(MONEY - 40));
    assert_eq!(ledger.audit().await.unwrap().breaches, Vec::<String>::new());
}

/// The parts of items that the calls of a lease turn share are stored once.
#[tokio::test]
async fn receipt_in_a_large_lease_turn_takes_at_most_five_ninths_of_a_single_receipts_memory() {
    const CALLS: usize = 2_000;
    const TOGETHER: [usize; 6] = [1, 4, 8, 16, 24, 32];
    let mut sizes = Vec::new();
    for together in TOGETHER {
        let (server, ledger) = Server::with_balance(MONEY).await;
        let lease = RequestNumber::now_v7();
        let mut word = "0".to_owned();
        ledger.turn(&turn(lease, ["", &word], &[])).await.unwrap();
        let before = memory(&server).await;
        let mut acknowledged = 0;
        while acknowledged < CALLS {
            let ends: Vec<Settlement> = (0..together)
                .map(|_| ended(RequestNumber::now_v7(), 1))
                .collect();
            acknowledged += ends.len();
            if let [alone] = ends.as_slice() {
                let held = Hold {
                    number: alone.number,
                    ..hold(0, "k1", 1)
                };
                ledger.reserve_in_ledger(&held).await.unwrap();
                ledger.settle_in_ledger(alone).await.unwrap();
            } else {
                let this = acknowledged.to_string();
                ledger
                    .turn(&turn(lease, [&word, &this], &ends))
                    .await
                    .unwrap();
                word = this;
            }
        }
        // The tombstones would expire after ten minutes. They are deleted now, so that they do not count as memory of
        // receipts.
        let script = "for _, key in ipairs(redis.call('KEYS', 'tg:{acme}:d:*')) do redis.call('DEL', key) end return 1";
        let _: i64 = server.ask(&["EVAL", script, "0"]).await;
        sizes.push((memory(&server).await - before) / CALLS);
    }
    println!("bytes of the server for a receipt, of turns of {TOGETHER:?}: {sizes:?}");
    // For a lease turn with few calls, the server's own overhead per journal entry is large.
    let [alone, few, turns @ ..] = &sizes[..] else {
        unreachable!("there are six")
    };
    assert!(few * 4 <= alone * 3, "{sizes:?}");
    assert!(turns.iter().all(|size| size * 9 <= *alone * 5), "{sizes:?}");
}

async fn memory(server: &Server) -> usize {
    let stats: String = server.ask(&["INFO", "memory"]).await;
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix("used_memory_dataset:"));
    line.unwrap().trim().parse().unwrap()
}

/// A gateway without leases settled the call from an outbox that did not contain the lease's number.
#[tokio::test]
async fn call_settled_without_a_lease_is_not_charged_again_in_a_lease_turn() {
    let (_server, ledger, lease) = with_lease().await;
    let numbers = [(); 3].map(|()| RequestNumber::now_v7());
    // One call had its own hold. The other call had only a hold against the lease.
    let own = Hold {
        number: numbers[0],
        ..hold(0, "k1", 50)
    };
    ledger.reserve(&own).await.unwrap();
    for (number, cost) in [(numbers[0], 50), (numbers[1], 60)] {
        let settled = ledger.settle(&ended(number, cost)).await.unwrap();
        assert_eq!((settled.charged, settled.repeated), (micro(cost), false));
    }
    let acknowledged = [50, 60, 70].into_iter().zip(numbers);
    let acknowledged: Vec<Settlement> = acknowledged
        .map(|(cost, number)| ended(number, cost))
        .collect();
    let answer = ledger
        .turn(&turn(lease, ["a", "b"], &acknowledged))
        .await
        .unwrap();
    let charged = |settled: &Settled| (settled.booked, settled.charged, settled.repeated);
    let answers: Vec<_> = answer.ends.iter().map(charged).collect();
    assert_eq!(
        answers,
        [
            (Booked::Held, micro(50), true),
            (Booked::Forced, micro(60), true),
            (Booked::Held, micro(70), false),
        ]
    );
    let view = ledger.account(&acme()).await.unwrap();
    assert_eq!(view.spent_rub, micro(180));
    assert_eq!(receipts(&pages(&ledger, false, 10).await).len(), 3);
    crate::testing::is_sound(&ledger).await;
}

/// The ledger did not have the lease when the turn arrived, so it booked the call as stale. Then the call was settled
/// without a lease and charged.
#[tokio::test]
async fn call_booked_as_stale_in_a_lease_turn_and_charged_later_is_not_charged_again() {
    let (_server, ledger) = Server::with_balance(MONEY).await;
    let [unknown, lease, number] = [(); 3].map(|()| RequestNumber::now_v7());
    ledger.turn(&turn(lease, ["", "a"], &[])).await.unwrap();
    let late = Settlement {
        fresh: false,
        ..ended(number, 60)
    };
    let stale = ledger.turn(&Turn::report(unknown, &late)).await.unwrap();
    assert_eq!(stale.ends[0].booked, Booked::Stale);
    let settled = ledger.settle(&ended(number, 60)).await.unwrap();
    assert_eq!((settled.charged, settled.repeated), (micro(60), false));
    for _ in 0..2 {
        let acknowledged = Turn::report(lease, &ended(number, 60));
        let again = ledger.turn(&acknowledged).await.unwrap().ends[0];
        assert_eq!((again.charged, again.repeated), (micro(60), true));
    }
    assert_eq!(ledger.account(&acme()).await.unwrap().spent_rub, micro(60));
    crate::testing::is_sound(&ledger).await;
}

/// Another gateway considered the call dead, because the call's lease had expired, and ran the call again under another
/// number.
#[tokio::test]
async fn call_whose_charge_was_forbidden_is_not_charged_by_a_late_turn_of_its_lease() {
    let (_server, ledger) = Server::with_balance(MONEY).await;
    let [lease, living] = [(); 2].map(|()| RequestNumber::now_v7());
    let opens = Turn {
        ttl_ms: 0,
        ..turn(lease, ["", "a"], &[])
    };
    ledger.turn(&opens).await.unwrap();
    assert_eq!(ledger.expire().await.unwrap(), 1);
    ledger.turn(&turn(living, ["", "a"], &[])).await.unwrap();
    let [forbidden, other] = [(); 2].map(|()| RequestNumber::now_v7());
    ledger.forbid(forbidden, &acme()).await.unwrap();
    let ends = [ended(forbidden, 60), ended(other, 7)];
    // Three processes report the same settlements: the lease's owner, the process that reads the owner's outbox, and a
    // process that names another lease.
    let own = turn(lease, ["a", "b"], &ends);
    let left = Turn {
        step: Step::Tell,
        ..own.clone()
    };
    let of_another = Turn {
        lease: living,
        ..left.clone()
    };
    for acknowledged in [own, left, of_another] {
        let acknowledged = ledger.turn(&acknowledged).await.unwrap().ends;
        assert_eq!(acknowledged[0].booked, Booked::Released);
        assert_eq!(
            (acknowledged[0].charged, acknowledged[1].charged),
            (micro(0), micro(7)),
            "{acknowledged:?}"
        );
    }
    // A call that was charged before `forbid` stays charged, however often its settlement is repeated.
    ledger.forbid(other, &acme()).await.unwrap();
    let acknowledged = Turn::report(lease, &ended(other, 7));
    let again = ledger.turn(&acknowledged).await.unwrap().ends[0];
    assert_eq!((again.charged, again.repeated), (micro(7), true));
    assert_eq!(ledger.account(&acme()).await.unwrap().spent_rub, micro(7));
    crate::testing::is_sound(&ledger).await;
}

/// A settlement that the lease's owner reported is found by the exact call number, and not by a similar text.
#[tokio::test]
async fn call_of_a_lease_turn_is_found_only_by_its_exact_number() {
    let (server, ledger, lease) = with_lease().await;
    // The calls are 50 ms apart, over 20 s. All other digits of their numbers are equal, and the last digits of a
    // number resemble the first digits of the next.
    let at = |n: u128| {
        let time = (1_795_713_301_418 + 50 * n) << 80;
        RequestNumber::from_uuid(uuid::Uuid::from_u128(time | 0x7_694d_694d_694d_694d_694d))
    };
    let (mut word, mut acknowledged) = ("a".to_owned(), Vec::new());
    for round in 0..4 {
        // Calls that end at the same time, in one lease turn, began at different times.
        let numbers: Vec<RequestNumber> = (0..100).map(|n| at(4 * n + round)).collect();
        let ends: Vec<Settlement> = numbers.iter().map(|number| ended(*number, 1)).collect();
        let this = round.to_string();
        let answer = ledger.turn(&turn(lease, [&word, &this], &ends)).await;
        assert!(answer.unwrap().ends.iter().all(|end| !end.repeated));
        (word, acknowledged) = (this, [acknowledged, ends].concat());
    }
    let hashes: Vec<String> = server.ask(&["KEYS", "tg:{acme}:n:?????????"]).await;
    // Numbers are stored in groups of 4 s. The first and the last group may have few numbers; these are stored
    // individually.
    assert!((4..=6).contains(&hashes.len()), "{hashes:?}");
    for hash in &hashes {
        let turns: i64 = server.ask(&["HLEN", hash]).await;
        assert!((1..=4).contains(&turns), "{turns} in {hash}");
    }
    for end in &acknowledged {
        let receipt = ledger.receipt(end.number).await.unwrap();
        assert_eq!(
            (receipt.number, receipt.charged_rub),
            (end.number, micro(1))
        );
        let settled = ledger.settle(end).await.unwrap();
        assert_eq!((settled.charged, settled.repeated), (micro(1), true));
    }
    for never in [at(400), at(10_000)] {
        assert!(ledger.receipt(never).await.is_err());
    }
    assert_eq!(ledger.audit().await.unwrap().breaches, Vec::<String>::new());
}

/// Earlier versions stored each call number of a lease turn individually.
#[tokio::test]
async fn call_is_found_in_a_lease_turn_that_an_earlier_version_stored() {
    let (server, ledger, lease) = with_lease().await;
    let ends = many(40, 7);
    ledger.turn(&turn(lease, ["a", "b"], &ends)).await.unwrap();
    let script = "
for _, hash in ipairs(redis.call('KEYS', 'tg:{acme}:n:?????????')) do
  for _, field in ipairs(redis.call('HKEYS', hash)) do
    local numbers, place = redis.call('HGET', hash, field), string.match(field, '[^:]+$')
    for at = 1, #numbers, 12 do
      redis.call('HSET', string.sub(hash, 1, -2), string.sub(numbers, at, at + 11), place)
    end
  end
  redis.call('DEL', hash)
end
return 1";
    let _: i64 = server.ask(&["EVAL", script, "0"]).await;
    for end in &ends {
        let receipt = ledger.receipt(end.number).await.unwrap();
        assert_eq!(receipt.charged_rub, end.cost);
        assert!(ledger.settle(end).await.unwrap().repeated);
    }
    let again = ledger.turn(&turn(lease, ["b", "c"], &ends)).await.unwrap();
    assert!(again.ends.iter().all(|end| end.repeated), "{again:?}");
    assert_eq!(ledger.audit().await.unwrap().breaches, Vec::<String>::new());
}

/// Two unanswered turns are sent again, and arrive after the lease was given back.
#[tokio::test]
async fn lease_turns_repeated_after_their_lease_was_given_back_charge_nothing() {
    let (_server, ledger) = Server::with_balance(MONEY).await;
    let lease = RequestNumber::now_v7();
    let ends = many(20, 10);
    let opens = turn(lease, ["", "a"], &[]);
    let tells = turn(lease, ["a", "b"], &ends);
    let closes = Turn {
        step: Step::Close,
        ..turn(lease, ["b", "c"], &[])
    };
    for done in [&opens, &tells, &closes] {
        assert_eq!(ledger.turn(done).await.unwrap().word, Word::Done);
    }
    assert_eq!(ledger.turn(&opens).await.unwrap().word, Word::Gone);
    let late = ledger.turn(&tells).await.unwrap();
    assert_eq!(late.word, Word::Gone);
    assert!(late.ends.iter().all(|end| end.repeated), "{late:?}");
    let view = ledger.account(&acme()).await.unwrap();
    assert_eq!((view.spent_rub, view.held_rub), (micro(200), micro(0)));
    crate::testing::is_sound(&ledger).await;
}

/// After a failover, an outbox sends settlements again, many at a time. A new process also sends the settlements that a
/// dead process has left.
#[tokio::test]
async fn each_call_is_charged_once_even_if_many_settlements_are_sent_again_together() {
    let (server, ledger) = Server::with_balance(MONEY).await;
    let leases = [(); 2].map(|()| RequestNumber::now_v7());
    let mut ends = Vec::new();
    for lease in leases {
        ledger.turn(&turn(lease, ["", "a"], &[])).await.unwrap();
        let acknowledged = many(20, 3);
        ledger
            .turn(&turn(lease, ["a", "b"], &acknowledged))
            .await
            .unwrap();
        ends.extend(acknowledged.into_iter().map(|end| (Some(lease), end, true)));
        ends.extend(many(3, 4).into_iter().map(|end| (Some(lease), end, false)));
    }
    ends.extend(many(2, 5).into_iter().map(|end| (None, end, false)));
    // The settlements are sent in arbitrary order, and one of them twice.
    ends.sort_by_key(|(_, end, _)| end.number.uuid().as_bytes()[15]);
    ends.push(ends[0].clone());
    let settlements = ends.iter().map(|(lease, end, _)| Settlement {
        lease: *lease,
        ..end.clone()
    });
    let settlements: Vec<Settlement> = settlements.collect();
    let _: String = server.ask(&["CONFIG", "RESETSTAT"]).await;
    let answers = ledger.settle_all(&settlements).await;
    let stats: String = server.ask(&["INFO", "commandstats"]).await;
    let scripts = stats
        .lines()
        .find(|line| line.starts_with("cmdstat_evalsha:"));
    let count = scripts.unwrap().split(['=', ',']).nth(1).unwrap();
    // The batch needs one script per lease, one for the calls without a lease, and one for the repeated settlement.
    assert!(count.parse::<u32>().unwrap() <= 5, "{count} scripts");
    assert_eq!(answers.len(), ends.len());
    for (n, ((_, end, known), answer)) in ends.iter().zip(answers).enumerate() {
        let settled = answer.unwrap();
        assert_eq!(settled.charged, end.cost);
        if n > 0 && n + 1 < ends.len() {
            assert_eq!(settled.repeated, *known, "{n}");
        }
    }
    let spent = 40 * 3 + 6 * 4 + 2 * 5;
    let view = ledger.account(&acme()).await.unwrap();
    assert_eq!(view.spent_rub, micro(spent));
    crate::testing::is_sound(&ledger).await;
}

/// Returns settlements of enough calls for a lease turn to store their numbers together.
fn many(count: usize, cost: i64) -> Vec<Settlement> {
    let ends = (0..count).map(|_| ended(RequestNumber::now_v7(), cost));
    ends.collect()
}

/// Most calls are held and charged in memory, against a lease. The futures of these calls must not reserve the 3 KB
/// that a script needs.
#[tokio::test]
async fn futures_of_reserve_and_settle_have_at_most_768_bytes() {
    let server = Server::start().await;
    let ledger = server.ledger().await;
    let (hold, settlement) = (hold(1, "k1", 5), settlement(1, "k1", 5));
    let sizes = [
        size_of_val(&ledger.reserve(&hold)),
        size_of_val(&ledger.settle(&settlement)),
    ];
    assert!(sizes.iter().all(|size| *size <= 768), "{sizes:?}");
}
