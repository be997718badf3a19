//! The task of a call with an idempotency key. It claims the call, runs it and stores its response. The task continues
//! if the client disconnects.

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
    Event, Fate, Money, Name, Shared, WorkMessage,
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

/// How many times a claim is renewed during its lifetime.
const RENEWALS: u32 = 3;

pub(super) struct Work<S, K, M> {
    pub(super) entered: Entered<K, M>,
    pub(super) claim: Claim,
    pub(super) seal: Seal,
    pub(super) caller: Arc<KeyRecord>,
    pub(super) to_client: oneshot::Sender<WorkMessage<S>>,
}

/// Keeps an in-flight call in the map of runs. Dropping it removes the run from the map and ends the run.
pub(super) struct Entered<K, M> {
    pub(super) shared: Arc<Shared<K, M>>,
    pub(super) name: Name,
    pub(super) run: Arc<Run<AnswerBody>>,
    /// Whether the task has begun to record that the call has ended.
    pub(super) ending: AtomicBool,
}

impl<K, M> Entered<K, M> {
    fn leave(&self) {
        let mut running = self.shared.running();
        let run = running.get(&self.name);
        if run.is_some_and(|run| Arc::ptr_eq(run, &self.run)) {
            running.remove(&self.name);
        }
    }

    /// Ends the run without a response. Requests that waited for its response make the call themselves.
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

/// The result of claiming a call in the store.
enum Begin {
    Run,
    NotStored,
    /// The store returned an error, so it is unknown whether the claim exists.
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
    pub(super) async fn run(self, inner: S, mut req: Request<Call>) {
        let claimed_at = Instant::now();
        let begin = self.begin(&mut req).await;
        let Self {
            entered,
            claim,
            seal,
            to_client,
            ..
        } = self;
        match begin {
            Begin::Run => {}
            Begin::NotStored => {
                entered.shared.report(Event::NotStored);
                // Requests that wait for this run are woken and start a run of their own.
                drop(entered);
                drop(to_client.send(WorkMessage::NotStored(Box::new((inner, req)))));
                return;
            }
            Begin::Answer(answer) => {
                drop(entered);
                drop(to_client.send(WorkMessage::Answer(Box::new(answer))));
                return;
            }
            Begin::Unclaimed(error) => {
                // The request and the service are dropped before the retries below, which may take a while.
                drop((inner, req));
                entered.end();
                let unavailable = Err(Error::LedgerUnavailable(error));
                drop(to_client.send(WorkMessage::Answer(Box::new(unavailable))));
                // The claim may exist although the store failed. Until the store records that the call has ended, a
                // repeated call would be refused as if the call were running.
                insist(&entered, &claim, Outcome::Free).await;
                return;
            }
        }
        let shared = Arc::clone(&entered.shared);
        let taken_over = taken_over(&shared.store, &claim, claimed_at, &entered.ending);
        let mut to_client = Some(to_client);
        {
            let calling = call(&entered, &claim, &seal, &mut to_client, inner, req);
            let (mut taken_over, mut calling) = (pin!(taken_over), pin!(calling));
            poll_fn(|cx| match calling.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(()),
                // The process that took over the claim has ended this call's hold and makes the call itself. The ledger
                // now rejects charges for that hold, but forgets the hold after a while. This run must stop: if it
                // ended after the ledger has forgotten the hold, the call could be charged twice.
                Poll::Pending => taken_over.as_mut().poll(cx),
            })
            .await;
        }
        // No response has begun, so the client gets the error that another process runs the call.
        if let Some(to_client) = to_client {
            shared.report(Event::Conflict);
            let retry_after = claim.lease;
            let elsewhere = Err(Error::IdempotencyKeyInUse { retry_after });
            drop(entered);
            drop(to_client.send(WorkMessage::Answer(Box::new(elsewhere))));
        }
    }

    /// Claims the call in the store. If the call was claimed before, returns the stored response or the error for this
    /// request.
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
                Claimed::Full => return Begin::NotStored,
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
/// call's hold. If the claim is missing although this process renewed it in time, it was lost or deleted. The call then
/// continues with a new claim, if the store has room for one. If the task has begun to record that the call has ended
/// (`ending`), a missing claim means that the store has recorded it.
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
                // The store has no room for a claim. The call continues, but its response is not stored.
                Ok(Claimed::Full) => return pending().await,
                Err(_) => {}
            },
            Err(_) => {}
        }
    }
}

/// Makes the call, passes its response to all readers, and stores the response.
async fn call<S, A, K, M>(
    entered: &Entered<K, M>,
    claim: &Claim,
    seal: &Seal,
    to_client: &mut Option<oneshot::Sender<WorkMessage<S>>>,
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
    let mut send_answer = |answer| {
        if let Some(to_client) = to_client.take() {
            drop(to_client.send(WorkMessage::Answer(Box::new(answer))));
        }
    };
    let cost = CallCost::default();
    req.extensions_mut().insert(cost.clone());
    let answered = inner.call(req).await.map_err(Error::from_below);
    drop(inner);
    let (head, mut body) = match answered {
        Ok(res) => res.map(boxed).into_parts(),
        Err(error) => {
            // The store records that the call has ended before the client gets the error, so that a client can repeat
            // the call at once.
            let outcome = outcome_without_answer(&cost);
            let written = finish(entered, claim, outcome).await;
            entered.end();
            send_answer(Err(error));
            if !written {
                insist(entered, claim, outcome).await;
            }
            return;
        }
    };
    run.begin(head.clone(), body.size_hint().exact());
    let res = Response::from_parts(head.clone(), boxed(Reader::first(Arc::clone(run))));
    send_answer(Ok(res));
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

/// Returns the outcome of a call without a complete response. The call may run again only if it was not charged.
fn outcome_without_answer(cost: &CallCost) -> Outcome<'static> {
    if cost.is_charged() {
        Outcome::Unanswered
    } else {
        Outcome::Free
    }
}

/// Records that a call has ended. Returns `false` if it is unknown whether the store recorded it.
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
        // The store keeps nothing for a call that cost nothing, so a missing claim is correct.
        (Finished::Kept, _) | (Finished::NotMine, Outcome::Free) => {}
        (Finished::TooMuch, _) => entered.shared.report(Event::NotStored),
        (Finished::NotMine, _) => entered.shared.report(Event::NotWritten),
    }
    true
}

/// Records that a call has ended, and retries for about the lifetime of a claim. After that the claim has expired, and
/// the ledger decides whether the call may run again.
async fn insist<K: AnswerStore, M>(entered: &Entered<K, M>, claim: &Claim, outcome: Outcome<'_>) {
    for again in 0..RENEWALS {
        if again > 0 {
            sleep(claim.lease / RENEWALS).await;
        }
        if finish(entered, claim, outcome).await {
            return;
        }
    }
    // If the call cost nothing, the failure need not be reported, because the ledger has no charge for the call.
    if outcome != Outcome::Free {
        entered.shared.report(Event::NotWritten);
    }
}
