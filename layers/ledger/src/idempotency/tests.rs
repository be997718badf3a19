//! Tests of the contract that every store of claims and responses must keep.

use super::*;

const LEASE: Duration = Duration::from_millis(300);
const KEPT: Duration = Duration::from_secs(60);

fn bounds() -> Bounds {
    Bounds {
        account_calls_max: 4,
        account_bytes_max: 100,
        bytes_max: 150,
    }
}

fn claim(account: &str, id: u8) -> Claim {
    Claim {
        account: account.parse().unwrap(),
        id: Digest([id; 32]),
        fingerprint: Digest([id ^ 0xff; 32]),
        number: RequestNumber::now_v7(),
        lease: LEASE,
        stored: KEPT,
    }
}

fn earlier(claimed: Claimed) -> Earlier {
    match claimed {
        Claimed::Earlier(earlier) => earlier,
        other => panic!("{other:?}"),
    }
}

/// Runs the contract tests on one store.
async fn contract(store: &impl AnswerStore) {
    one_call_runs_and_the_others_get_its_state(store).await;
    a_free_call_may_run_again(store).await;
    an_abandoned_call_is_taken_over_once(store).await;
    a_running_call_does_not_expire(store).await;
    bounds_are_kept(store).await;
    expired_answers_are_deleted(store).await;
}

async fn one_call_runs_and_the_others_get_its_state(store: &impl AnswerStore) {
    let (first, second) = (claim("acme", 1), claim("acme", 1));
    assert_eq!(store.claim(&first, None).await.unwrap(), Claimed::Mine);
    // The answer to the claim was lost, so the claim is made again.
    assert_eq!(store.claim(&first, None).await.unwrap(), Claimed::Mine);
    let reported = earlier(store.claim(&second, None).await.unwrap());
    assert_eq!(
        (reported.number, reported.fingerprint),
        (first.number, first.fingerprint)
    );
    assert!(matches!(reported.stage, Stage::Running(left) if left <= LEASE && !left.is_zero()));
    assert!(store.renew(&first).await.unwrap());
    assert!(!store.renew(&second).await.unwrap());
    let of_another = store.finish(&second, Outcome::Answered(b"no")).await;
    assert_eq!(of_another.unwrap(), Finished::NotMine);
    let answered = store
        .finish(&first, Outcome::Answered(b"\0sealed\xff"))
        .await;
    assert_eq!(answered.unwrap(), Finished::Kept);
    // Storing the outcome twice has the same effect as storing it once.
    let again = store.finish(&first, Outcome::Free).await;
    assert_eq!(again.unwrap(), Finished::Kept);
    let reported = earlier(store.claim(&second, None).await.unwrap());
    assert_eq!(reported.stage, Stage::Answered(b"\0sealed\xff".to_vec()));
    assert_eq!(reported.number, first.number);
    // The same idempotency key in another account is a different claim.
    assert_eq!(
        store.claim(&claim("other", 1), None).await.unwrap(),
        Claimed::Mine
    );
}

async fn a_free_call_may_run_again(store: &impl AnswerStore) {
    let (first, second) = (claim("acme", 2), claim("acme", 2));
    assert_eq!(store.claim(&first, None).await.unwrap(), Claimed::Mine);
    store.finish(&first, Outcome::Free).await.unwrap();
    assert_eq!(store.claim(&second, None).await.unwrap(), Claimed::Mine);
    store.finish(&second, Outcome::Unanswered).await.unwrap();
    let reported = earlier(store.claim(&first, None).await.unwrap());
    assert_eq!(
        (reported.stage, reported.number),
        (Stage::Unanswered, second.number)
    );
}

async fn an_abandoned_call_is_taken_over_once(store: &impl AnswerStore) {
    let (first, second, third) = (claim("b", 3), claim("b", 3), claim("b", 3));
    assert_eq!(store.claim(&first, None).await.unwrap(), Claimed::Mine);
    let early = store.claim(&second, Some(first.number)).await.unwrap();
    assert!(matches!(earlier(early).stage, Stage::Running(_)));
    tokio::time::sleep(2 * LEASE).await;
    let reported = earlier(store.claim(&second, None).await.unwrap());
    assert_eq!(
        (reported.stage, reported.number),
        (Stage::Abandoned, first.number)
    );
    let taken = store.claim(&second, Some(first.number)).await.unwrap();
    assert_eq!(taken, Claimed::Mine);
    let late = store.claim(&third, Some(first.number)).await.unwrap();
    assert_eq!(earlier(late).number, second.number);
    // A call that has lost its claim cannot change anything.
    assert!(!store.renew(&first).await.unwrap());
    let lost = store.finish(&first, Outcome::Answered(b"late")).await;
    assert_eq!(lost.unwrap(), Finished::NotMine);
    assert!(store.renew(&second).await.unwrap());
}

/// An in-flight call keeps its claim even after `stored`, which is very short here.
async fn a_running_call_does_not_expire(store: &impl AnswerStore) {
    let (mut first, second) = (claim("long", 1), claim("long", 1));
    // The claim must be long enough for a busy machine to renew it in time.
    first.lease = 5 * LEASE;
    first.stored = LEASE / 3;
    assert_eq!(store.claim(&first, None).await.unwrap(), Claimed::Mine);
    for _ in 0..5 {
        tokio::time::sleep(2 * LEASE).await;
        // Each claim deletes expired rows, but not the row of the in-flight call.
        store.claim(&claim("long", 2), None).await.unwrap();
        assert!(store.renew(&first).await.unwrap());
    }
    let reported = earlier(store.claim(&second, None).await.unwrap());
    assert!(matches!(reported.stage, Stage::Running(_)), "{reported:?}");
    store.finish(&first, Outcome::Unanswered).await.unwrap();
    tokio::time::sleep(6 * LEASE).await;
    assert_eq!(store.claim(&second, None).await.unwrap(), Claimed::Mine);
}

async fn bounds_are_kept(store: &impl AnswerStore) {
    let of = |id| claim("c", id);
    let calls = [of(1), of(2), of(3), of(4)];
    for call in &calls {
        assert_eq!(store.claim(call, None).await.unwrap(), Claimed::Mine);
    }
    assert_eq!(store.claim(&of(5), None).await.unwrap(), Claimed::Full);
    store.finish(&calls[0], Outcome::Free).await.unwrap();
    assert_eq!(store.claim(&of(5), None).await.unwrap(), Claimed::Mine);
    let sixty = Outcome::Answered(&[7; 60]);
    assert_eq!(
        store.finish(&calls[1], sixty).await.unwrap(),
        Finished::Kept
    );
    // The account would have 120 bytes of stored responses, but 100 are allowed.
    assert_eq!(
        store.finish(&calls[2], sixty).await.unwrap(),
        Finished::TooMuch
    );
    let reported = earlier(store.claim(&of(3), None).await.unwrap());
    assert_eq!(reported.stage, Stage::Unanswered);
    // All accounts together may store 150 bytes. 60 are stored below, and some were stored above.
    let (one, two) = (claim("d", 1), claim("e", 1));
    for call in [&one, &two] {
        assert_eq!(store.claim(call, None).await.unwrap(), Claimed::Mine);
    }
    let all = Outcome::Answered(&[7; 90]);
    assert_eq!(store.finish(&one, all).await.unwrap(), Finished::TooMuch);
    // A response that exceeds its account's limit uses nothing of the limit over all accounts.
    let few = Outcome::Answered(&[7; 75]);
    assert_eq!(store.finish(&two, few).await.unwrap(), Finished::Kept);
}

async fn expired_answers_are_deleted(store: &impl AnswerStore) {
    let short = Claim {
        stored: LEASE,
        ..claim("f", 1)
    };
    assert_eq!(store.claim(&short, None).await.unwrap(), Claimed::Mine);
    store.finish(&short, Outcome::Answered(b"x")).await.unwrap();
    tokio::time::sleep(2 * LEASE).await;
    assert_eq!(
        store.claim(&claim("f", 1), None).await.unwrap(),
        Claimed::Mine
    );
}

#[tokio::test]
async fn answer_store_in_memory_passes_the_contract_tests() {
    contract(&MemoryAnswers::new(bounds())).await;
}

#[tokio::test]
async fn idempotency_claims_of_free_calls_do_not_accumulate_in_memory() {
    let store = MemoryAnswers::new(bounds());
    let one = claim("acme", 1);
    for _ in 0..10_000 {
        let mut free = claim("acme", 2);
        free.number = RequestNumber::now_v7();
        assert!(matches!(
            store.claim(&free, None).await.unwrap(),
            Claimed::Mine
        ));
        store.finish(&free, Outcome::Free).await.unwrap();
        // A claim is not removed before it expires.
        drop(store.claim(&one, None).await.unwrap());
    }
    assert!(store.remembered() < 2_000, "{}", store.remembered());
    tokio::time::pause();
    tokio::time::advance(KEPT).await;
    assert!(matches!(
        store.claim(&claim("acme", 1), None).await.unwrap(),
        Claimed::Mine
    ));
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn answer_store_in_a_file_passes_the_contract_tests_and_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("answers");
    contract(&SqliteAnswers::new(&path, bounds())).await;
    let (store, again) = (SqliteAnswers::new(&path, bounds()), claim("acme", 1));
    let reported = earlier(store.claim(&again, None).await.unwrap());
    assert_eq!(reported.stage, Stage::Answered(b"\0sealed\xff".to_vec()));
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn answer_store_in_redis_passes_the_contract_tests() {
    let server = crate::redis::test_server::Server::start().await;
    contract(&RedisAnswers::new(server.conn.clone(), bounds())).await;
    let left: i64 = server.ask(&["PTTL", &keys_of(&claim("acme", 1))]).await;
    assert!((1..=60_000).contains(&left), "{left}");
}

#[cfg(feature = "redis")]
fn keys_of(claim: &Claim) -> String {
    format!("tg:{{{}}}:i:{}", claim.account, claim.id)
}
