//! The task of a call: claims the call, runs it and stores its answer. Its client may disconnect.

use std::{
    future::{pending, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};
use tollgate_ledger::idempotency::{
    AnswerStore, Claim, Claimed, Earlier, Finished, Outcome, Stage,
};
use tower_service::Service;

use super::{
    Event, Fate, Money, Name, Shared, Told,
    run::{Reader, Run},
    seal::{self, Seal},
    stamp,
};
use crate::{
    body::{AnswerBody, boxed, full},
    call::Call,
    error::{BoxError, Error},
    facts::CallCost,
    key::KeyRecord,
};

/// The number of times that a claim is renewed during its lifetime.
const RENEWALS: u32 = 3;

pub(super) struct Work<S, K, M> {
    entered: Entered<K, M>,
    claim: Claim,
    seal: Seal,
    caller: Arc<KeyRecord>,
    tell: oneshot::Sender<Told<S>>,
}

/// A run in the map of running calls; removed and ended on drop.
struct Entered<K, M> {
    shared: Arc<Shared<K, M>>,
    name: Name,
    run: Arc<Run<AnswerBody>>,
    /// Whether the end of the call is being recorded.
    ending: AtomicBool,
}

impl<K, M> Entered<K, M> {
    fn leave(&self) {
        let mut running = self.shared.running();
        if running
            .get(&self.name)
            .is_some_and(|run| Arc::ptr_eq(run, &self.run))
        {
            running.remove(&self.name);
        }
    }

    /// Ends the run without an answer; requests that waited for it make the call themselves.
    fn end(&self) {
        self.leave();
        self.run.broken(None);
    }
}

impl<K, M> Drop for Entered<K, M> {
    fn drop(&mut self) {
        self.end();
    }
}

/// The result of claiming a call.
enum Begin {
    Run,
    NotKept,
    /// The store failed, so the claim may or may not exist.
    Unclaimed(BoxError),
    Answer(Result<Response<AnswerBody>, Error>),
}

impl<S, A, K, M> Work<S, K, M>
where
    S: Service<Request<Call>, Response = Response<A>, Error: Into<BoxError> + 'static>
        + Send
        + 'static,
    A: Body<Data = Bytes, Error: Into<BoxError> + 'static> + Send + 'static,
    S::Future: Send,
    K: AnswerStore,
    M: Money,
{
    pub(super) fn new(
        shared: Arc<Shared<K, M>>,
        name: Name,
        run: Arc<Run<AnswerBody>>,
        claim: Claim,
        seal: Seal,
        caller: Arc<KeyRecord>,
        tell: oneshot::Sender<Told<S>>,
    ) -> Self {
        Self {
            entered: Entered {
                shared,
                name,
                run,
                ending: AtomicBool::new(false),
            },
            claim,
            seal,
            caller,
            tell,
        }
    }

    pub(super) async fn run(self, inner: S, mut req: Request<Call>) {
        let claimed_at = Instant::now();
        let begin = self.begin(&mut req).await;
        let Self {
            entered,
            claim,
            seal,
            tell,
            ..
        } = self;
        match begin {
            Begin::Run => {}
            Begin::NotKept => {
                entered.shared.report(Event::NotStored);
                // Requests that wait for this run then start a run of their own.
                drop(entered);
                drop(tell.send(Told::NotKept(Box::new((inner, req)))));
                return;
            }
            Begin::Answer(answer) => {
                drop(entered);
                drop(tell.send(Told::Answer(Box::new(answer))));
                return;
            }
            Begin::Unclaimed(error) => {
                // Releases what the call holds, because the retries below may take a while.
                drop((inner, req));
                entered.end();
                let unavailable = Err(Error::LedgerUnavailable(error));
                drop(tell.send(Told::Answer(Box::new(unavailable))));
                // The claim may exist nevertheless; a repeat of the call would then wait for a run that does not exist.
                insist(&entered, &claim, Outcome::Free).await;
                return;
            }
        }
        let shared = Arc::clone(&entered.shared);
        let taken_over = taken_over(&shared.store, &claim, claimed_at, &entered.ending);
        let mut tell = Some(tell);
        {
            let calling = call(&entered, &claim, &seal, &mut tell, inner, req);
            let (mut taken_over, mut calling) = (pin!(taken_over), pin!(calling));
            poll_fn(|cx| match calling.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(()),
                // The process that took over the claim has ended the hold, and makes the call. The ledger soon rejects
                // charges for that hold; if this run continued, the ledger might have forgotten the hold before its
                // end.
                Poll::Pending => taken_over.as_mut().poll(cx),
            })
            .await;
        }
        // Another process took over the claim before the answer began.
        if let Some(tell) = tell {
            shared.report(Event::Conflict);
            let retry_after = claim.lease;
            let elsewhere = Err(Error::IdempotencyKeyInUse { retry_after });
            drop(entered);
            drop(tell.send(Told::Answer(Box::new(elsewhere))));
        }
    }

    /// Claims the call, or determines the answer if it was made before.
    async fn begin(&self, req: &mut Request<Call>) -> Begin {
        let shared = &self.entered.shared;
        let mut from = None;
        loop {
            let claimed = match shared.store.claim(&self.claim, from).await {
                Ok(claimed) => claimed,
                Err(error) => return Begin::Unclaimed(error),
            };
            let earlier = match claimed {
                Claimed::Mine => {
                    shared.report(match from {
                        None => Event::Ran,
                        Some(_) => Event::RanAgain,
                    });
                    return Begin::Run;
                }
                Claimed::Full => return Begin::NotKept,
                Claimed::Earlier(earlier) => earlier,
            };
            let Earlier { number, stage, .. } = earlier;
            if earlier.fingerprint != self.claim.fingerprint {
                shared.report(Event::Mismatch);
                return Begin::Answer(Err(Error::IdempotencyKeyReused));
            }
            match stage {
                Stage::Running(retry_after) => {
                    shared.report(Event::Conflict);
                    return Begin::Answer(Err(Error::IdempotencyKeyInUse { retry_after }));
                }
                Stage::Answered(sealed) => {
                    let opened = self.seal.open(&self.claim.fingerprint, sealed);
                    if let Some((head, body)) = opened.and_then(seal::decode) {
                        if let Err(error) = shared.admit(req, &self.caller).await {
                            return Begin::Answer(Err(error));
                        }
                        shared.report(Event::Replayed(self.claim.number, number));
                        let mut res = Response::from_parts(head, full(body));
                        stamp(res.headers_mut(), number);
                        return Begin::Answer(Ok(res));
                    }
                }
                Stage::Unanswered => {}
                Stage::Abandoned => {
                    let KeyRecord { id, account, .. } = &*self.caller;
                    match shared.money.abandon(number, account, id).await {
                        Ok(Fate::Free) => {
                            from = Some(number);
                            continue;
                        }
                        Ok(Fate::Charged | Fate::Open) => {}
                        Err(error) => return Begin::Answer(Err(Error::LedgerUnavailable(error))),
                    }
                }
            }
            shared.report(Event::Gone);
            return Begin::Answer(Err(Error::IdempotentAnswerGone));
        }
    }
}

/// Renews the claim, and completes if another process has taken it over, because that process may have ended this
/// call's hold. If the claim is missing, although this process renewed it within the claim's lifetime, the claim was
/// lost or deleted: the call continues with a new claim, if there is room for one. Once the call is `ending`, a missing
/// claim means that its end was recorded.
async fn taken_over<K: AnswerStore>(
    store: &K,
    claim: &Claim,
    claimed_at: Instant,
    ending: &AtomicBool,
) {
    let mut renewed_at = claimed_at;
    loop {
        sleep(claim.lease / RENEWALS).await;
        let asked_at = Instant::now();
        match store.renew(claim).await {
            Ok(true) => renewed_at = asked_at,
            Ok(false) if ending.load(Ordering::Relaxed) => return pending().await,
            Ok(false) if renewed_at.elapsed() >= claim.lease => return,
            Ok(false) => match store.claim(claim, None).await {
                Ok(Claimed::Mine) => renewed_at = asked_at,
                Ok(Claimed::Earlier(_)) => return,
                // The call continues, but its answer is not stored.
                Ok(Claimed::Full) => return pending().await,
                Err(_) => {}
            },
            Err(_) => {}
        }
    }
}

/// Makes the call, shares its answer with all readers, and stores it.
async fn call<S, A, K, M>(
    entered: &Entered<K, M>,
    claim: &Claim,
    seal: &Seal,
    tell: &mut Option<oneshot::Sender<Told<S>>>,
    mut inner: S,
    mut req: Request<Call>,
) where
    S: Service<Request<Call>, Response = Response<A>, Error: Into<BoxError> + 'static>
        + Send
        + 'static,
    A: Body<Data = Bytes, Error: Into<BoxError> + 'static> + Send + 'static,
    K: AnswerStore,
{
    let Entered { shared, run, .. } = entered;
    let mut told = |answer| {
        if let Some(tell) = tell.take() {
            drop(tell.send(Told::Answer(Box::new(answer))));
        }
    };
    let cost = CallCost::default();
    req.extensions_mut().insert(cost.clone());
    let answered = inner.call(req).await.map_err(Error::from_below);
    drop(inner);
    let (head, mut body) = match answered {
        Ok(res) => res.map(boxed).into_parts(),
        Err(error) => {
            // Record the end first, then answer: a client that repeats the call at once must find the end recorded.
            let outcome = outcome_without_answer(&cost);
            let written = finish(entered, claim, outcome).await;
            entered.end();
            told(Err(error));
            if !written {
                insist(entered, claim, outcome).await;
            }
            return;
        }
    };
    run.begin(head.clone(), body.size_hint().exact());
    let res = Response::from_parts(head.clone(), boxed(Reader::first(Arc::clone(run))));
    told(Ok(res));
    let settings = &shared.settings;
    let ended = loop {
        let chunk = match body.frame().await {
            None => break Ok(()),
            Some(Err(error)) => break Err(error),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(chunk) => chunk,
                Err(_) => continue,
            },
        };
        let pushed = run.push(chunk, settings.answer_bytes_max, settings.running_bytes_max);
        if let Err(chunk) = pushed {
            shared.report(Event::NotStored);
            run.hand_over(chunk, body);
            insist(entered, claim, Outcome::Unanswered).await;
            return;
        }
    };
    drop(body);
    match ended {
        Ok(()) => {
            run.done();
            let sealed = seal.seal(&claim.fingerprint, seal::encode(&head, &run.chunks()));
            let outcome = match &sealed {
                Ok(sealed) => Outcome::Answered(sealed),
                Err(_) => Outcome::Unanswered,
            };
            insist(entered, claim, outcome).await;
        }
        Err(error) => {
            let outcome = outcome_without_answer(&cost);
            let written = finish(entered, claim, outcome).await;
            entered.leave();
            run.broken(Some(error));
            if !written {
                insist(entered, claim, outcome).await;
            }
        }
    }
}

/// The outcome of a call without a complete answer: depends on whether it was charged.
fn outcome_without_answer(cost: &CallCost) -> Outcome<'static> {
    if cost.is_charged() {
        Outcome::Unanswered
    } else {
        Outcome::Free
    }
}

/// Records the end of a call. Returns `false` if it is unknown whether it was recorded.
async fn finish<K: AnswerStore, M>(
    entered: &Entered<K, M>,
    claim: &Claim,
    outcome: Outcome<'_>,
) -> bool {
    entered.ending.store(true, Ordering::Relaxed);
    let Ok(finished) = entered.shared.store.finish(claim, outcome).await else {
        return false;
    };
    match (finished, outcome) {
        (Finished::Kept, Outcome::Answered(sealed)) => {
            entered.shared.report(Event::Stored(sealed.len() as u64));
        }
        // If the call has nothing to store, it is correct that its claim is gone.
        (Finished::Kept, _) | (Finished::NotMine, Outcome::Free) => {}
        (Finished::TooMuch, _) => entered.shared.report(Event::NotStored),
        (Finished::NotMine, _) => entered.shared.report(Event::NotWritten),
    }
    true
}

/// Records the end of a call, with retries for about the lifetime of a claim. After that the claim expires, and the
/// ledger decides about the call.
async fn insist<K: AnswerStore, M>(entered: &Entered<K, M>, claim: &Claim, outcome: Outcome<'_>) {
    for again in 0..RENEWALS {
        if again > 0 {
            sleep(claim.lease / RENEWALS).await;
        }
        if finish(entered, claim, outcome).await {
            return;
        }
    }
    // If there was nothing to store, the ledger decides correctly about the next run.
    if outcome != Outcome::Free {
        entered.shared.report(Event::NotWritten);
    }
}
