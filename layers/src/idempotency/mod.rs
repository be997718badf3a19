//! Repeats the answer of a call that is sent again, after the draft "The Idempotency-Key HTTP Header Field"
//! (draft-ietf-httpapi-idempotency-key-header): the same key, caller and request are one call, one hold and one charge.
//!
//! ```text
//! nobody has sent it           it runs, in a task of its own: its client may leave
//! it runs in this process      its answer is joined from its beginning
//! it runs in another one       409 with retry-after
//! it was answered              the answer again
//! it was charged, no answer    409: another key is needed
//! another request              422
//! ```
//!
//! A caller's key has to allow it ([`KeyRecord::idempotency`]), and `auth` above hands on what answers are sealed with
//! ([`AnswerKey`]). Without the header, or the permission, a call passes through.
//!
//! Whoever runs a call has a claim on it in an [`AnswerStore`], which lives as long as somebody says so. Where nobody does
//! any more, the ledger is asked what became of its money ([`Money`]), before it runs again.

mod run;
mod seal;
#[cfg(feature = "auth")]
#[cfg(test)]
mod tests;
mod work;

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use pin_project_lite::pin_project;
use tokio::{sync::oneshot, task::JoinSet};
use tollgate_ledger::idempotency::{AnswerStore, Claim, Digest};
use tower::{Layer, Service};

use self::{
    run::{Buffered, Reader, Run},
    seal::Seal,
    work::Work,
};
pub use crate::facts::{AnswerKey, IDEMPOTENCY_KEY};
use crate::{
    body::{AnswerBody, boxed},
    call::Call,
    error::{BoxError, Error, Problem},
    facts::{Caller, RequestNumber},
    key::{AccountId, KeyId, KeyRecord},
    undecided,
};

/// On an answer that was given before: `true`.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// On such an answer: the number of the call that was made.
pub const ORIGINAL_REQUEST_ID: HeaderName = HeaderName::from_static("x-original-request-id");
/// On an answer that is not kept, because enough is: `false`.
pub const IDEMPOTENT_STORED: HeaderName = HeaderName::from_static("idempotent-stored");

/// The most bytes of an idempotency key.
const KEY_BYTES_MAX: usize = 255;

/// What the layer keeps, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencySettings {
    /// How long answers are kept.
    pub kept: Duration,
    /// How long a claim lives that nobody renews: after that, the process is taken for dead.
    pub lease: Duration,
    /// Bytes of an answer that is kept; a longer one is not.
    pub answer_bytes_max: u64,
    /// Bytes of all answers that come at the same time, or have come and are still read; of one account half of it.
    pub running_bytes_max: u64,
}

impl Default for IdempotencySettings {
    fn default() -> Self {
        Self {
            kept: Duration::from_secs(24 * 3600),
            lease: Duration::from_secs(15),
            answer_bytes_max: 1 << 20,
            running_bytes_max: 64 << 20,
        }
    }
}

/// What became of the money of a call that nobody runs any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was charged.
    Charged,
    /// It was not, and never will be.
    Free,
    /// It may yet be charged.
    Open,
}

/// Where money is.
pub trait Money: Send + Sync + 'static {
    /// Ends a call that nobody runs any more, so that it is charged no later, and says whether it was.
    fn abandon(
        &self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> impl Future<Output = Result<Fate, BoxError>> + Send;
}

/// What the layer has done, for whoever counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A call runs, and its answer will be kept.
    Ran,
    /// A call of an earlier process runs again: it had cost nothing.
    RanAgain,
    /// An answer was kept, of so many bytes.
    Stored(u64),
    /// An answer was too much to be kept, or there was no room for the call.
    NotStored,
    /// It could not be written how a call ended.
    NotWritten,
    /// An answer was repeated: to this request, of this call.
    Replayed(RequestNumber, RequestNumber),
    /// A running call's answer was joined: by this request, of this call.
    Joined(RequestNumber, RequestNumber),
    /// The call runs elsewhere.
    Conflict,
    /// Another request under the same key.
    Mismatch,
    /// The answer to a call that was charged is not there.
    Gone,
}

type Report = dyn Fn(Event) + Send + Sync;
type Name = (AccountId, Digest);

/// Repeats answers; see the module.
pub struct IdempotencyLayer<K, M> {
    shared: Arc<Shared<K, M>>,
}

struct Shared<K, M> {
    store: K,
    money: M,
    settings: IdempotencySettings,
    report: Box<Report>,
    running: Mutex<HashMap<Name, Arc<Run<AnswerBody>>>>,
    buffered: Arc<Buffered>,
    /// The calls' tasks.
    tasks: Mutex<JoinSet<()>>,
}

impl<K, M> IdempotencyLayer<K, M> {
    /// Keeps answers in `store`, and asks `money` for the fate of abandoned calls.
    pub fn new(
        store: K,
        money: M,
        settings: IdempotencySettings,
        report: impl Fn(Event) + Send + Sync + 'static,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                store,
                money,
                settings,
                report: Box::new(report),
                running: Mutex::default(),
                buffered: Arc::default(),
                tasks: Mutex::default(),
            }),
        }
    }
}

impl<K, M> Clone for IdempotencyLayer<K, M> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<K, M> fmt::Debug for IdempotencyLayer<K, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}

impl<K, M> Shared<K, M> {
    fn running(&self) -> MutexGuard<'_, HashMap<Name, Arc<Run<AnswerBody>>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run of this name, and whether it has just been made.
    fn enter(
        &self,
        name: &Name,
        fingerprint: Digest,
        number: RequestNumber,
    ) -> (Arc<Run<AnswerBody>>, bool) {
        match self.running().entry(name.clone()) {
            Entry::Occupied(there) => (Arc::clone(there.get()), false),
            Entry::Vacant(place) => {
                let buffered = Arc::clone(&self.buffered);
                let run = Run::new(fingerprint, number, name.0.clone(), buffered);
                (Arc::clone(place.insert(Arc::new(run))), true)
            }
        }
    }

    fn report(&self, event: Event) {
        (self.report)(event);
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // What has ended makes room.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(work);
    }
}

impl<S, K, M> Layer<S> for IdempotencyLayer<K, M> {
    type Service = Idempotency<S, K, M>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotency {
            inner,
            shared: Arc::clone(&self.shared),
        }
    }
}

/// The service of [`IdempotencyLayer`].
pub struct Idempotency<S, K, M> {
    inner: S,
    shared: Arc<Shared<K, M>>,
}

impl<S: Clone, K, M> Clone for Idempotency<S, K, M> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S: fmt::Debug, K, M> fmt::Debug for Idempotency<S, K, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S, K, M> Service<Request<Call>> for Idempotency<S, K, M>
where
    S: Service<Request<Call>, Response = Response<AnswerBody>, Error = Error>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
    K: AnswerStore,
    M: Money,
{
    type Response = Response<AnswerBody>;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<Call>) -> Self::Future {
        let Some((caller, answer_key)) = asked(&req) else {
            return ResponseFuture::below(self.inner.call(req));
        };
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        let shared = Arc::clone(&self.shared);
        ResponseFuture::keyed(Box::pin(keyed(inner, shared, req, caller, answer_key)))
    }
}

/// Who asks for it, where the header and the caller's key do.
fn asked(req: &Request<Call>) -> Option<(Arc<KeyRecord>, AnswerKey)> {
    // `auth` hands it on where both do.
    let answer_key = req.extensions().get::<AnswerKey>()?;
    let Caller(key) = req.extensions().get()?;
    Some((Arc::clone(key), answer_key.clone()))
}

/// What the header says.
fn presented(headers: &HeaderMap) -> Result<&[u8], Error> {
    let malformed = || Error::invalid("idempotency-key", Problem::NotAnIdempotencyKey);
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let key = values.next().ok_or_else(malformed)?.as_bytes();
    let is_good = (1..=KEY_BYTES_MAX).contains(&key.len())
        && key.iter().all(u8::is_ascii_graphic)
        && values.next().is_none();
    is_good.then_some(key).ok_or_else(malformed)
}

async fn keyed<S, K, M>(
    inner: S,
    shared: Arc<Shared<K, M>>,
    mut req: Request<Call>,
    caller: Arc<KeyRecord>,
    answer_key: AnswerKey,
) -> Result<Response<AnswerBody>, Error>
where
    S: Service<Request<Call>, Response = Response<AnswerBody>, Error = Error> + Send + 'static,
    S::Future: Send,
    K: AnswerStore,
    M: Money,
{
    let seal = Seal::new(&answer_key, &caller, presented(req.headers())?)?;
    let fingerprint = seal.fingerprint(req.uri().path(), req.headers(), &req.body().body);
    let number = req.extensions().get::<RequestNumber>().copied();
    let number = number.unwrap_or_else(RequestNumber::now_v7);
    // The hold has the claim's number: by it the ledger is asked what became of the call.
    req.extensions_mut().insert(number);
    let name = (caller.account.clone(), seal.id);
    let run = loop {
        let (run, is_first) = shared.enter(&name, fingerprint, number);
        if is_first {
            break run;
        }
        if run.fingerprint != fingerprint {
            shared.report(Event::Mismatch);
            return Err(Error::IdempotencyKeyReused);
        }
        // A repeat is a request too: it counts for what limits were asked above, and gets no further than they let it.
        undecided::decided(undecided::take(req.extensions_mut())).await?;
        // What has ended without an answer may run again.
        if let Some(head) = run.started().await {
            shared.report(Event::Joined(number, run.number));
            let mut res = Response::from_parts(head, boxed(Reader::joined(Arc::clone(&run))));
            stamp(res.headers_mut(), run.number);
            return Ok(res);
        }
    };
    let claim = Claim {
        account: caller.account.clone(),
        id: seal.id,
        fingerprint,
        number,
        lease: shared.settings.lease,
        kept: shared.settings.kept,
    };
    let (tell, told) = oneshot::channel();
    let tasks = Arc::clone(&shared);
    tasks.spawn(Work::new(shared, name, run, claim, seal, caller, tell).run(inner, req));
    match told.await {
        Ok(Told::Answer(answer)) => *answer,
        Ok(Told::NotKept(call)) => {
            let (mut inner, req) = *call;
            let mut res = inner.call(req).await?;
            let no = HeaderValue::from_static("false");
            res.headers_mut().insert(IDEMPOTENT_STORED, no);
            Ok(res)
        }
        Err(_) => Err(Error::Internal("a call's task is gone".into())),
    }
}

/// What the caller's future is told by the call's task.
enum Told<S> {
    Answer(Box<Result<Response<AnswerBody>, Error>>),
    /// It goes on by itself.
    NotKept(Box<(S, Request<Call>)>),
}

/// Says that an answer was given before.
fn stamp(headers: &mut HeaderMap, number: RequestNumber) {
    headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    if let Ok(number) = HeaderValue::from_str(&number.to_string()) {
        headers.insert(ORIGINAL_REQUEST_ID, number);
    }
}

pin_project! {
    /// The future of [`Idempotency`]: the call below, or one with an idempotency key.
    pub struct ResponseFuture<F> {
        #[pin]
        inner: Inner<F>,
    }
}

/// A call, a repeat or a refusal.
type Keyed = Pin<Box<dyn Future<Output = Result<Response<AnswerBody>, Error>> + Send>>;

pin_project! {
    #[project = Projected]
    enum Inner<F> {
        Below { #[pin] call: F },
        Keyed { call: Keyed },
    }
}

impl<F> ResponseFuture<F> {
    const fn below(call: F) -> Self {
        Self {
            inner: Inner::Below { call },
        }
    }

    const fn keyed(call: Keyed) -> Self {
        Self {
            inner: Inner::Keyed { call },
        }
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

impl<F> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<AnswerBody>, Error>>,
{
    type Output = Result<Response<AnswerBody>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().inner.project() {
            Projected::Below { call } => call.poll(cx),
            Projected::Keyed { call } => call.as_mut().poll(cx),
        }
    }
}
