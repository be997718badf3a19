//! Tests two hundred concurrent calls on a key whose money covers thirty-seven of them (invariants I1 and I4), on each
//! store.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use http::StatusCode;
use tokio::{sync::Mutex, task::JoinSet, time::timeout};
use tollgate::demo::script::polite;
use tollgate_layers::{
    money::MicroRub,
    reserve::{
        ledger::{Booked, LedgerError, Refusal},
        memory::MemoryLedger,
    },
};

use crate::{
    ledger::{Books, acme, folder, hold, in_file, is_sound, micro, open, over, settlement},
    prelude::*,
};

const CALLS: usize = 200;
const PAID_FOR: usize = 37;
const PATIENCE: Duration = Duration::from_secs(30);

/// These tests run one at a time. Each opens about five hundred sockets, and on some machines a process may have only a
/// thousand.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// The limit of the key that the calls use up: the balance or a ceiling.
#[derive(Clone, Copy)]
enum Short {
    Balance,
    /// A ceiling, given by the name of its field in the admin API.
    Ceiling(&'static str),
}

const EACH: [Short; 3] = [
    Short::Balance,
    Short::Ceiling("ceiling_rub"),
    Short::Ceiling("ceiling_day_rub"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_calls_on_a_memory_ledger_are_served_only_up_to_the_balance() {
    for short in EACH {
        two_hundred_calls(Setup::default(), short).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_calls_on_a_sqlite_ledger_are_served_only_up_to_the_balance() {
    for short in EACH {
        let folder = folder();
        let path = folder.path().join("ledger.db");
        let url = format!("sqlite:{}", path.display());
        two_hundred_calls(Setup::default().ledger(&url), short).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_calls_on_a_redis_ledger_are_served_only_up_to_the_balance() {
    for short in EACH {
        let server = RedisServer::start().await;
        two_hundred_calls(Setup::default().ledger(&server.url()), short).await;
    }
}

async fn two_hundred_calls(setup: Setup, short: Short) {
    let _alone = ONE_AT_A_TIME.lock().await;
    let (world, key) = setup.start_with_key().await;
    let body = chat_body("Привет");

    // The first call shows how much every call holds and costs.
    let first = world.chat(&key, &body).await;
    let receipt = world.receipt(&first.number()).await;
    let [held, cost] = ["held_rub", "charged_rub"].map(|field| rubles(&receipt[field]));
    assert!(cost < held, "{receipt}");
    let funds = held * i64::try_from(PAID_FOR).unwrap();
    leave(&world, &key, short, cost, funds).await;
    let before = world.settled(&key).await;

    // The vendor answers only after every call was admitted or refused. So all holds exist at the same time.
    let decided = Arc::new(Notify::new());
    let all_decided = Arc::clone(&decided);
    let served_before = world.vendor.received().len();
    world.vendor.script(move |received| {
        polite(received).with_step(0, Step::Hold(Arc::clone(&all_decided)))
    });
    let (refused, answered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut calls: JoinSet<Answer> = JoinSet::new();
    for _ in 0..CALLS {
        let (client, req) = (world.client.clone(), world.chat_request(&key, &body));
        let (refused, answered) = (Arc::clone(&refused), Arc::clone(&answered));
        calls.spawn(async move {
            let answer = whole(client.request(req).await.unwrap()).await;
            if answer.status != StatusCode::OK {
                refused.fetch_add(1, Ordering::SeqCst);
            }
            answered.fetch_add(1, Ordering::SeqCst);
            answer
        });
    }
    let sample = async || {
        let account = world.account(&key).await;
        let [balance, held] = ["balance_rub", "held_rub"].map(|field| rubles(&account[field]));
        assert!(0 <= held && held <= balance, "I4: {account}");
        assert!(held <= funds, "I1: {account}");
    };
    until("each call is held or refused", async || {
        sample().await;
        world.vendor.open() + refused.load(Ordering::SeqCst) == CALLS
    })
    .await;
    assert_eq!(world.vendor.open(), PAID_FOR);
    until("each call is answered", async || {
        decided.notify_waiters();
        sample().await;
        answered.load(Ordering::SeqCst) == CALLS
    })
    .await;

    let answers = calls.join_all().await;
    let mut statuses: BTreeMap<u16, usize> = BTreeMap::new();
    for answer in &answers {
        *statuses.entry(answer.status.as_u16()).or_default() += 1;
    }
    let expected = BTreeMap::from([(200, PAID_FOR), (403, CALLS - PAID_FOR)]);
    assert_eq!(statuses, expected);
    for answer in &answers {
        if answer.status == StatusCode::FORBIDDEN {
            assert_eq!(answer.json()["error"]["code"], "insufficient_balance");
        }
    }
    // No refused call reaches the vendor (I6), and each served call is charged once (I3).
    assert_eq!(world.vendor.received().len() - served_before, PAID_FOR);
    let after = world.settled(&key).await;
    let spent = cost * i64::try_from(PAID_FOR).unwrap();
    for (field, change) in [
        ("balance_rub", -spent),
        ("spent_rub", spent),
        ("loss_rub", 0),
    ] {
        let change_found = rubles(&after[field]) - rubles(&before[field]);
        assert_eq!(change_found, change, "{field}: {before} {after}");
    }
    is_sound(world.gateway.store()).await;
}

/// Changes the balance or the ceiling so that the key may spend exactly `funds`. The key has already spent `cost` of
/// 1000 ₽.
async fn leave(world: &World, key: &Key, short: Short, cost: i64, funds: i64) {
    world.settled(key).await;
    let text = |amount| MicroRub::new(amount).to_string();
    let changed = match short {
        Short::Balance => {
            let surplus = MicroRub::rubles(1000).micro() - cost - funds;
            let path = format!("/admin/v1/accounts/{}/adjustments", key.account);
            let body = json!({ "id": "rest", "amount_rub": text(-surplus), "reason": "a test" });
            world.admin_post(&path, body).await
        }
        Short::Ceiling(field) => {
            let path = format!("/admin/v1/keys/{}", key.id);
            let body = json!({ field: text(cost + funds) });
            world.admin_patch(&path, body).await
        }
    };
    assert!(changed.status.is_success(), "{changed:?}");
    let bearer = format!("Bearer {}", key.secret);
    let shown = request(
        Method::GET,
        &world.url("/v1/tollgate/key"),
        &[("authorization", bearer.as_str())],
        bytes::Bytes::new(),
    );
    let shown = world.ask(shown).await.json();
    assert_eq!(rubles(&shown["free_rub"]), funds, "{shown}");
}

/// Returns an amount in a response, in micro-rubles.
fn rubles(amount: &Value) -> i64 {
    let amount = amount.as_str().unwrap_or_else(|| panic!("{amount}"));
    amount.parse::<MicroRub>().unwrap().micro()
}

async fn until(what: &str, mut probe: impl AsyncFnMut() -> bool) {
    let patience = timeout(PATIENCE, async {
        while !probe().await {
            tokio::task::yield_now().await;
        }
    });
    if patience.await.is_err() {
        panic!("it did not come about that {what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_holds_in_a_memory_ledger_are_granted_only_up_to_the_balance() {
    two_hundred_holds(&MemoryLedger::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_holds_in_a_sqlite_ledger_are_granted_only_up_to_the_balance() {
    let folder = folder();
    let ledger = in_file(&folder);
    two_hundred_holds(&ledger).await;
    ledger.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_holds_in_a_redis_ledger_are_granted_only_up_to_the_balance() {
    let server = RedisServer::start().await;
    two_hundred_holds(&over(&server).await).await;
}

async fn two_hundred_holds<L: Books>(ledger: &L) {
    let (each, cost) = (10, 7);
    let all = each * i64::try_from(PAID_FOR).unwrap();
    open(ledger, all).await;
    let mut holds = JoinSet::new();
    for n in 0..CALLS as u128 {
        let ledger = ledger.clone();
        let id = if n % 2 == 0 { "k1" } else { "k2" };
        holds.spawn(async move { (n, id, ledger.reserve(&hold(n, id, each)).await) });
    }
    let mut granted = Vec::new();
    while let Some(answered) = holds.join_next().await {
        let account = ledger.account(&acme()).await.unwrap();
        assert!(account.held_rub <= account.balance_rub, "I4: {account:?}");
        match answered.unwrap() {
            (n, id, Ok(reserved)) => {
                assert_eq!(reserved.held, micro(each));
                granted.push((n, id));
            }
            (_, _, Err(LedgerError::Refused(Refusal::DoesNotFit { free, .. }))) => {
                assert_eq!(free, micro(0));
            }
            (n, _, Err(error)) => panic!("{n}: {error:?}"),
        }
    }
    assert_eq!(granted.len(), PAID_FOR);
    let account = ledger.account(&acme()).await.unwrap();
    assert_eq!(account.held_rub, micro(all));

    // Each call is settled three times at the same time, and charged once (I5).
    let mut settlements = JoinSet::new();
    for (n, id) in granted.iter().copied().cycle().take(3 * PAID_FOR) {
        let ledger = ledger.clone();
        settlements.spawn(async move { ledger.settle(&settlement(n, id, cost)).await });
    }
    let mut first = 0;
    while let Some(answered) = settlements.join_next().await {
        let settled = answered.unwrap().unwrap();
        assert_eq!(settled.booked, Booked::Held);
        assert_eq!(settled.charged, micro(cost));
        first += usize::from(!settled.repeated);
    }
    assert_eq!(first, PAID_FOR);
    let account = ledger.account(&acme()).await.unwrap();
    let spent = cost * i64::try_from(PAID_FOR).unwrap();
    assert_eq!(
        [
            account.balance_rub,
            account.held_rub,
            account.spent_rub,
            account.loss_rub
        ],
        [all - spent, 0, spent, 0].map(micro)
    );
    is_sound(ledger).await;
}
