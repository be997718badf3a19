//! Tests that drop the futures of calls at every await, and that stop the renewal of claims.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tollgate_ledger::idempotency::{Bounds, Claimed, Finished, MemoryAnswers, Outcome};
use tower::{ServiceExt, service_fn};

use super::*;
use crate::{
    auth::SecretKey,
    body::{AnswerBody, boxed},
    call::{Format, InputSize, Spans},
    error::Limit,
    facts::CallCost,
    model::ModelKind,
    money::MicroRub,
};

const CHUNKS: usize = 4;

/// A ledger that returns this [`Fate`] for every call whose process has died.
#[derive(Clone, Copy)]
struct Says(Fate);

impl Money for Says {
    async fn abandon(&self, _: RequestNumber, _: &AccountId, _: &KeyId) -> Result<Fate, BoxError> {
        Ok(self.0)
    }

    async fn permits(&self, _: &AccountId, _: &KeyId) -> Result<bool, BoxError> {
        Ok(true)
    }
}

/// An error type that is not of this crate. [`Error::from_below`] finds the [`Error`] in it.
struct Foreign(Error);

impl From<Foreign> for BoxError {
    fn from(foreign: Foreign) -> Self {
        foreign.0.into()
    }
}

struct Given {
    store: MemoryAnswers,
    layer: IdempotencyLayer<MemoryAnswers, Says>,
    made: Arc<AtomicUsize>,
    /// The cost of each call. The next field: whether each call's response breaks off.
    cost: MicroRub,
    breaks: bool,
    caller: Arc<KeyRecord>,
}

impl Given {
    fn new(fate: Fate) -> Self {
        let store = MemoryAnswers::new(Bounds::default());
        let settings = IdempotencySettings {
            lease: Duration::from_secs(3),
            ..IdempotencySettings::default()
        };
        let record = SecretKey::generate().record("k".parse().unwrap(), "acme".parse().unwrap());
        Self {
            layer: IdempotencyLayer::new(store.clone(), Says(fate), settings, |_| {}),
            store,
            made: Arc::default(),
            cost: MicroRub::rubles(1),
            breaks: false,
            caller: Arc::new(record),
        }
    }

    fn request(&self, body: &'static str) -> Request<Call> {
        let call = Call {
            format: Format::Chat,
            kind: ModelKind::Chat,
            body: Bytes::from(body),
            model: "m".into(),
            stream: true,
            output_tokens: None,
            choices: 1,
            usage_asked: false,
            input: InputSize::default(),
            texts: crate::text_sample::TextSample::default(),
            asks: None,
            spans: Spans::default(),
            session: None,
        };
        let mut req = Request::post("/v1/chat/completions").body(call).unwrap();
        let presented = HeaderValue::from_static("one");
        req.headers_mut().insert(IDEMPOTENCY_KEY, presented);
        req.extensions_mut()
            .insert(Caller(Arc::clone(&self.caller)));
        req.extensions_mut().insert(AnswerKey([7; 32]));
        req.extensions_mut().insert(RequestNumber::now_v7());
        req
    }

    /// Sends a call with this body to a service whose response is pending once before its head and once before each
    /// chunk.
    async fn ask(&self, body: &'static str) -> Result<Response<AnswerBody>, Error> {
        self.answer(self.request(body)).await
    }

    async fn answer(&self, req: Request<Call>) -> Result<Response<AnswerBody>, Error> {
        let (made, cost, breaks) = (Arc::clone(&self.made), self.cost, self.breaks);
        let service = self.layer.layer(service_fn(move |req: Request<Call>| {
            made.fetch_add(1, Ordering::SeqCst);
            async move {
                tokio::task::yield_now().await;
                req.extensions().get::<CallCost>().unwrap().set(cost);
                let chunks = futures_util::stream::unfold(0, move |sent| async move {
                    tokio::task::yield_now().await;
                    let chunk = Ok::<_, Foreign>(Frame::data(Bytes::from(format!("{sent},"))));
                    match sent {
                        CHUNKS => None,
                        2 if breaks => Some((Err(Foreign(Error::Draining)), CHUNKS)),
                        sent => Some((chunk, sent + 1)),
                    }
                });
                Ok::<_, Foreign>(Response::new(StreamBody::new(Box::pin(chunks))))
            }
        }));
        service.oneshot(req).await
    }

    /// Creates a request with a pending rate limit, whose decision is `answer`, and a counter of the decisions that
    /// were awaited.
    fn limited(&self, answer: Result<(), Duration>) -> (Request<Call>, Arc<AtomicUsize>) {
        let (mut req, answered) = (self.request("{}"), Arc::<AtomicUsize>::default());
        let counted = Arc::clone(&answered);
        let verdict = Box::pin(async move {
            tokio::task::yield_now().await;
            counted.fetch_add(1, Ordering::SeqCst);
            answer.map_err(|retry_after| Error::TooManyRequests {
                limit: Limit::KeyRequestsPerMinute,
                retry_after,
            })
        });
        undecided::add(req.extensions_mut(), verdict);
        (req, answered)
    }

    /// Calls the service and reads at most this many chunks of the response.
    async fn read(&self, chunks: usize) -> Result<String, Error> {
        let mut body = self.ask("{}").await?.into_body();
        let mut text = String::new();
        for _ in 0..chunks {
            let Some(frame) = body.frame().await else {
                break;
            };
            text.push_str(std::str::from_utf8(frame?.data_ref().unwrap()).unwrap());
        }
        Ok(text)
    }

    /// Creates the claim that another process would make for the same call.
    fn claim(&self, body: &'static str) -> Claim {
        let seal = Seal::new(&AnswerKey([7; 32]), &self.caller, b"one").unwrap();
        let req = self.request(body);
        Claim {
            account: self.caller.account.clone(),
            id: seal.id,
            fingerprint: seal.fingerprint(req.uri().path(), req.headers(), body.as_bytes()),
            number: RequestNumber::now_v7(),
            lease: Duration::from_secs(3),
            stored: Duration::from_secs(60),
        }
    }
}

/// Lets the other tasks run until all of them are idle.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn call_is_made_once_and_its_response_is_stored_even_if_its_client_leaves() {
    let mut dropped = 0;
    for polls in 0.. {
        let given = Given::new(Fate::Open);
        let mut reading = Box::pin(given.read(usize::MAX));
        let mut ended = false;
        for _ in 0..polls {
            ended =
                std::future::poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx).is_ready())).await;
            if ended {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(reading);
        // The repeated request joins the in-flight call or gets the stored response, depending on how far the call has
        // got.
        assert_eq!(given.read(usize::MAX).await.unwrap(), "0,1,2,3,");
        settle().await;
        assert_eq!(given.read(usize::MAX).await.unwrap(), "0,1,2,3,");
        // If the first future was dropped before it was polled, the repeated request made the call.
        assert_eq!(given.made.load(Ordering::SeqCst), 1, "{polls}");
        if ended {
            break;
        }
        dropped += 1;
    }
    assert!(dropped > 1, "{dropped}");
}

#[tokio::test(start_paused = true)]
async fn simultaneous_calls_with_one_idempotency_key_reach_the_vendor_once() {
    let given = Arc::new(Given::new(Fate::Open));
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let given = Arc::clone(&given);
        calls.spawn(async move { given.read(usize::MAX).await.unwrap() });
    }
    for text in calls.join_all().await {
        assert_eq!(text, "0,1,2,3,");
    }
    assert_eq!(given.made.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn call_whose_response_broke_off_runs_again_only_if_it_was_free() {
    for (cost, made) in [(MicroRub::ZERO, 2), (MicroRub::new(1), 1)] {
        let given = Given {
            breaks: true,
            cost,
            ..Given::new(Fate::Open)
        };
        let broke = given.read(usize::MAX).await;
        assert!(matches!(broke, Err(Error::Draining)), "{broke:?}");
        let again = given.read(usize::MAX).await;
        match made {
            2 => assert!(matches!(again, Err(Error::Draining)), "{again:?}"),
            _ => assert!(
                matches!(again, Err(Error::IdempotentAnswerGone)),
                "{again:?}"
            ),
        }
        assert_eq!(given.made.load(Ordering::SeqCst), made);
    }
}

#[tokio::test(start_paused = true)]
async fn call_of_a_crashed_gateway_runs_again_only_if_it_was_free() {
    for (fate, runs) in [
        (Fate::Free, true),
        (Fate::Charged, false),
        (Fate::Open, false),
    ] {
        let given = Given::new(fate);
        let claim = given.claim("{}");
        assert_eq!(
            given.store.claim(&claim, None).await.unwrap(),
            Claimed::Mine
        );
        let refused = given.read(usize::MAX).await;
        assert!(
            matches!(refused, Err(Error::IdempotencyKeyInUse { retry_after }) if retry_after <= claim.lease),
            "{refused:?}"
        );
        let other = given.ask("{ }").await.map(drop);
        assert!(
            matches!(other, Err(Error::IdempotencyKeyReused)),
            "{other:?}"
        );
        tokio::time::advance(claim.lease).await;
        let answer = given.read(usize::MAX).await;
        assert_eq!(given.made.load(Ordering::SeqCst), usize::from(runs));
        if !runs {
            assert!(
                matches!(answer, Err(Error::IdempotentAnswerGone)),
                "{answer:?}"
            );
            continue;
        }
        assert_eq!(answer.unwrap(), "0,1,2,3,");
        settle().await;
        // The first process counts as dead, so it can no longer record that the call has ended.
        let late = given.store.finish(&claim, Outcome::Unanswered).await;
        assert_eq!(late.unwrap(), Finished::NotMine);
        assert_eq!(given.read(usize::MAX).await.unwrap(), "0,1,2,3,");
    }
}

#[tokio::test(start_paused = true)]
async fn claim_is_renewed_while_its_call_runs() {
    let given = Given::new(Fate::Free);
    let claim = given.claim("{}");
    let service = given.layer.layer(service_fn(|_: Request<Call>| async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok::<_, Error>(Response::new(crate::body::full("late")))
    }));
    let req = given.request("{}");
    let running = service.oneshot(req);
    let mut running = Box::pin(running);
    let begun = std::future::poll_fn(|cx| Poll::Ready(running.as_mut().poll(cx).is_pending()));
    assert!(begun.await);
    tokio::time::sleep(Duration::from_secs(30)).await;
    let Claimed::Earlier(earlier) = given.store.claim(&claim, None).await.unwrap() else {
        panic!("it runs");
    };
    assert!(matches!(
        earlier.stage,
        tollgate_ledger::idempotency::Stage::Running(_)
    ));
    let answer = running.await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(answer.to_bytes(), "late");
}

/// For a new call, the layers below await the pending rate limits. For a repeated call, this layer awaits them.
#[tokio::test(start_paused = true)]
async fn repeated_calls_wait_for_their_own_rate_limits_even_during_the_first_call() {
    let no = Err(Duration::from_secs(7));
    for joins in [true, false] {
        let given = Given::new(Fate::Open);
        let (req, answered) = given.limited(Ok(()));
        let mut first = given.answer(req).await.unwrap().into_body();
        assert_eq!(
            answered.load(Ordering::SeqCst),
            0,
            "the limit is left to the new call"
        );
        if !joins {
            while first.frame().await.is_some() {}
            settle().await;
        }
        let (req, answered) = given.limited(no);
        let refused = given.answer(req).await.map(drop);
        assert!(
            matches!(refused, Err(Error::TooManyRequests { .. })),
            "{joins}: {refused:?}"
        );
        assert_eq!(answered.load(Ordering::SeqCst), 1);
        let (req, answered) = given.limited(Ok(()));
        let again = given.answer(req).await.unwrap();
        assert_eq!(again.headers()[IDEMPOTENT_REPLAYED], "true");
        let again = again.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(
            (&again[..], answered.load(Ordering::SeqCst)),
            (&b"0,1,2,3,"[..], 1)
        );
        assert_eq!(given.made.load(Ordering::SeqCst), 1);
        drop(first);
    }
}

/// A store that can fail. While `cut` is set, it fails to renew claims. The two counters state how many of the next
/// commands lose their response or are lost.
#[derive(Clone)]
struct CutOff {
    store: MemoryAnswers,
    cut: Arc<AtomicBool>,
    /// How many of the next claims are stored but get an error as their response.
    claims_lost: Arc<AtomicUsize>,
    /// How many of the next commands to record that a call has ended fail without being stored.
    ends_lost: Arc<AtomicUsize>,
}

impl CutOff {
    fn from(store: &MemoryAnswers) -> Self {
        Self {
            store: store.clone(),
            cut: Arc::default(),
            claims_lost: Arc::default(),
            ends_lost: Arc::default(),
        }
    }
}

/// Decrements the counter if it is not 0, and returns whether it was not 0.
fn is_due(left: &AtomicUsize) -> bool {
    let take = |left: usize| left.checked_sub(1);
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
        .is_ok()
}

impl AnswerStore for CutOff {
    async fn claim(&self, claim: &Claim, from: Option<RequestNumber>) -> Result<Claimed, BoxError> {
        let claimed = self.store.claim(claim, from).await;
        if is_due(&self.claims_lost) {
            return Err("the answer was lost".into());
        }
        claimed
    }

    async fn renew(&self, claim: &Claim) -> Result<bool, BoxError> {
        if self.cut.load(Ordering::SeqCst) {
            return Err("cut off".into());
        }
        self.store.renew(claim).await
    }

    async fn finish(&self, claim: &Claim, outcome: Outcome<'_>) -> Result<Finished, BoxError> {
        if is_due(&self.ends_lost) {
            return Err("it never came".into());
        }
        self.store.finish(claim, outcome).await
    }
}

/// Records that it was dropped. The call owns this value, so everything else that the call owns is dropped too.
struct Held(Arc<AtomicBool>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn call_stops_without_a_response_if_another_gateway_takes_over_its_claim() {
    for head_first in [false, true] {
        let given = Given::new(Fate::Free);
        let store = CutOff::from(&given.store);
        let settings = IdempotencySettings {
            lease: Duration::from_secs(3),
            ..IdempotencySettings::default()
        };
        let layer = IdempotencyLayer::new(store.clone(), Says(Fate::Free), settings, |_| {});
        let let_go = Arc::<AtomicBool>::default();
        let held = Arc::clone(&let_go);
        let service = layer.layer(service_fn(move |_: Request<Call>| {
            let held = Held(Arc::clone(&held));
            async move {
                let late = async move {
                    tokio::time::sleep(Duration::from_secs(600)).await;
                    drop(held);
                    Ok::<_, Error>(Frame::data(Bytes::from("late")))
                };
                if head_first {
                    let late = futures_util::stream::once(Box::pin(late));
                    return Ok::<_, Error>(Response::new(boxed(StreamBody::new(late))));
                }
                let late = late.await?.into_data().unwrap();
                Ok(Response::new(crate::body::full(late)))
            }
        }));
        let req = given.request("{}");
        let number = req.extensions().get::<RequestNumber>().copied();
        #[expect(
            clippy::disallowed_methods,
            reason = "the call continues while its process counts as dead"
        )]
        let running = tokio::spawn(async move {
            let answer = service.oneshot(req).await?;
            answer.into_body().collect().await.map(drop)
        });
        settle().await;
        // The call's process cannot renew its claim, so another process takes over the claim.
        store.cut.store(true, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(4)).await;
        let other = given.claim("{}");
        let taken = given.store.claim(&other, number).await.unwrap();
        assert_eq!(taken, Claimed::Mine);
        store.cut.store(false, Ordering::SeqCst);
        assert!(!let_go.load(Ordering::SeqCst), "it still runs");
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(
            let_go.load(Ordering::SeqCst),
            "the call continues: {head_first}"
        );
        let send_answer = running.await.unwrap();
        match head_first {
            false => assert!(
                matches!(send_answer, Err(Error::IdempotencyKeyInUse { .. })),
                "{send_answer:?}"
            ),
            true => assert!(
                matches!(send_answer, Err(Error::VendorBroken(_))),
                "{send_answer:?}"
            ),
        }
        // The claim belongs to the other process, and only that process can end it.
        let answered = given.store.finish(&other, Outcome::Free).await.unwrap();
        assert_eq!(answered, Finished::Kept);
    }
}

/// A claim can be lost in a failover of the store, or an operator can delete it. In this test no other process has made
/// the call.
#[tokio::test(start_paused = true)]
async fn call_whose_claim_was_lost_claims_its_idempotency_key_again_and_continues() {
    for claimed_by_another in [false, true] {
        let given = Given::new(Fate::Free);
        let service = given.layer.layer(service_fn(|_: Request<Call>| async {
            tokio::time::sleep(Duration::from_secs(20)).await;
            Ok::<_, Error>(Response::new(crate::body::full("late")))
        }));
        let req = given.request("{}");
        let (mut ours, other) = (given.claim("{}"), given.claim("{}"));
        ours.number = *req.extensions().get::<RequestNumber>().unwrap();
        let mut running = Box::pin(service.oneshot(req));
        let begun = std::future::poll_fn(|cx| Poll::Ready(running.as_mut().poll(cx).is_pending()));
        assert!(begun.await);
        settle().await;
        given.store.finish(&ours, Outcome::Free).await.unwrap();
        if claimed_by_another {
            let claimed = given.store.claim(&other, None).await.unwrap();
            assert_eq!(claimed, Claimed::Mine);
        }
        let answer = running.await;
        if claimed_by_another {
            // The other process may have ended this call's hold, so this call must not return a response.
            assert!(matches!(answer, Err(Error::IdempotencyKeyInUse { .. })));
        } else {
            let answer = answer.unwrap().into_body().collect().await.unwrap();
            assert_eq!(answer.to_bytes(), "late");
        }
        settle().await;
        let Claimed::Earlier(earlier) = given.store.claim(&given.claim("{}"), None).await.unwrap()
        else {
            panic!("nobody has it");
        };
        let number = if claimed_by_another {
            other.number
        } else {
            ours.number
        };
        assert_eq!(earlier.number, number);
    }
}

/// A claim or the record that a call has ended is lost, because the store is slow or cannot be reached for a moment.
#[tokio::test(start_paused = true)]
async fn end_of_a_call_is_recorded_later_if_it_could_not_be_recorded_at_once() {
    for (claims_lost, ends_lost) in [(1, 0), (1, 1), (0, 1), (0, 2)] {
        let given = Given::new(Fate::Open);
        let store = CutOff::from(&given.store);
        store.claims_lost.store(claims_lost, Ordering::SeqCst);
        store.ends_lost.store(ends_lost, Ordering::SeqCst);
        let settings = IdempotencySettings {
            lease: Duration::from_secs(3),
            ..IdempotencySettings::default()
        };
        let layer = IdempotencyLayer::new(store, Says(Fate::Open), settings, |_| {});
        let made = Arc::<AtomicUsize>::default();
        let ask = || {
            let counted = Arc::clone(&made);
            let service = layer.layer(service_fn(move |_: Request<Call>| {
                counted.fetch_add(1, Ordering::SeqCst);
                async { Ok::<_, Error>(Response::new(crate::body::full("x"))) }
            }));
            service.oneshot(given.request("{}"))
        };
        let first = ask().await;
        if claims_lost > 0 {
            assert!(matches!(first, Err(Error::LedgerUnavailable(_))));
        } else {
            first.unwrap().into_body().collect().await.unwrap();
        }
        // The claim has not expired yet. If it had, the ledger would decide about the repeated call.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let again = ask().await.unwrap().into_body().collect().await.unwrap();
        assert_eq!(again.to_bytes(), "x");
        settle().await;
        assert_eq!(made.load(Ordering::SeqCst), 1, "{claims_lost}, {ends_lost}");
        let Claimed::Earlier(earlier) = given.store.claim(&given.claim("{}"), None).await.unwrap()
        else {
            panic!("it is kept");
        };
        assert!(matches!(
            earlier.stage,
            tollgate_ledger::idempotency::Stage::Answered(_)
        ));
    }
}
