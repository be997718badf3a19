//! Returns the same response when a client sends a call again. Requests with the same idempotency key, caller and
//! content are one call, with one hold and one charge, as in the draft "The Idempotency-Key HTTP Header Field"
//! (draft-ietf-httpapi-idempotency-key-header).
//!
//! ```text
//! not sent before               the call runs in a task of its own: its client may disconnect
//! running in this process       the client joins the answer, from its beginning
//! running in another process    409 with retry-after
//! answered                      the same answer again
//! charged, answer not stored    409: another idempotency key is needed
//! sent with another request     422
//! ```
//!
//! The caller's key must permit stored responses ([`KeyRecord::idempotency`]), and `auth` must have inserted the key
//! that encrypts them ([`AnswerKey`]). A call without the header or without this permission is forwarded unchanged.
//!
//! The process that runs a call has a claim in an [`AnswerStore`] and renews it. After a claim has expired, the ledger
//! ([`Money`]) decides whether the call was charged, before the call may run again.

mod run;
mod seal;
#[cfg(feature = "auth")]
#[cfg(test)]
mod tests;
mod work;

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::Body;
use tokio::{sync::oneshot, task::JoinSet};
use tollgate_ledger::idempotency::{AnswerStore, Claim, Digest};
use tower_layer::Layer;
use tower_service::Service;

use self::{
    run::{Buffered, Reader, Run},
    seal::Seal,
    work::{Entered, Work},
};
use crate::{
    body::{AnswerBody, boxed},
    call::Call,
    error::{BoxError, Error, Problem},
    facts::{Caller, RequestNumber},
    key::{AccountId, KeyId, KeyRecord},
    undecided,
};
pub use crate::{
    facts::{AnswerKey, IDEMPOTENCY_KEY},
    forward::{Mapped, ResponseFuture},
};

/// Header of a response to a repeated call; its value is `true`.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// Header of a response to a repeated call: the request number of the call that produced the response.
pub const ORIGINAL_REQUEST_ID: HeaderName = HeaderName::from_static("x-original-request-id");
/// Header of a response that is not stored because the store is full; its value is `false`.
pub const IDEMPOTENT_STORED: HeaderName = HeaderName::from_static("idempotent-stored");

/// The maximum number of bytes of an idempotency key.
const KEY_BYTES_MAX: usize = 255;

/// The limits of the idempotency layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencySettings {
    /// How long a response is stored for repeated calls.
    pub stored: Duration,
    /// The lifetime of a claim. If a process does not renew its claim in this time, the process counts as dead.
    pub lease: Duration,
    /// The maximum size of a stored response, in bytes. A longer response is forwarded but not stored.
    pub answer_bytes_max: u64,
    /// The maximum total size, in bytes, of responses in memory, which are still arriving or still being read. The
    /// responses of one account may take half of it.
    pub running_bytes_max: u64,
}

impl Default for IdempotencySettings {
    fn default() -> Self {
        Self {
            stored: Duration::from_secs(24 * 3600),
            lease: Duration::from_secs(15),
            answer_bytes_max: 1 << 20,
            running_bytes_max: 64 << 20,
        }
    }
}

/// Whether a call was charged, if the process that ran it has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The call was charged.
    Charged,
    /// The call was not charged, and never will be charged.
    Free,
    /// The call may still be charged.
    Open,
}

/// The operations of the ledger that this layer needs.
pub trait Money: Send + Sync + 'static {
    /// Ends the hold of a call whose process has died, so that the call cannot be charged later. Returns whether the
    /// call was charged.
    fn abandon(
        &self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> impl Future<Output = Result<Fate, BoxError>> + Send;

    /// Returns whether the key may make calls. The layer's record of the key may come from a cache, and an operator may
    /// have disabled the key since. For a new call, the ledger would refuse the hold; a repeated call needs no hold, so
    /// the layer checks the key here.
    fn permits(
        &self,
        account: &AccountId,
        key: &KeyId,
    ) -> impl Future<Output = Result<bool, BoxError>> + Send;
}

/// An event of the idempotency layer, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A call began for the first time. Its response will be stored.
    Ran,
    /// A call began again, because the process that ran it first has died and the call had cost nothing.
    RanAgain,
    /// A response of this many bytes was stored.
    Stored(u64),
    /// A response was not stored, because it was too long or the store was full.
    NotStored,
    /// The store could not record that a call has ended.
    NotWritten,
    /// A request got the stored response of an earlier call. The first field is the number of the request, the second
    /// is the number of the earlier call.
    Replayed(RequestNumber, RequestNumber),
    /// A request joined the response of a call that is still running. The first field is the number of the request, the
    /// second is the number of the in-flight call.
    Joined(RequestNumber, RequestNumber),
    /// A request was refused because its call is running in another process.
    Conflict,
    /// A request was refused because its idempotency key was already used for a different request.
    Mismatch,
    /// A request was refused because its call was or may be charged, but the response is not stored.
    Gone,
}

type Report = dyn Fn(Event) + Send + Sync;
type Name = (AccountId, Digest);

/// Recognizes repeated calls by their idempotency key. A repeated call gets the stored response of the first call, or
/// waits for that response if the first call is still running. See the module's documentation.
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
    /// The tasks that run calls with an idempotency key.
    tasks: Mutex<JoinSet<()>>,
}

impl<K, M> IdempotencyLayer<K, M> {
    /// Creates a layer that stores responses in `store`. If the process of a call has died, `money` ends the call's
    /// hold.
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
        let shared = Arc::clone(&self.shared);
        Self { shared }
    }
}

debug_fields!(impl[K, M] IdempotencyLayer<K, M> { settings: shared.settings });

impl<K, M> Shared<K, M> {
    fn running(&self) -> MutexGuard<'_, HashMap<Name, Arc<Run<AnswerBody>>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the in-flight call with this [`Name`], and whether this request created it.
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

    /// Checks the limits for a repeated call. The call counts towards the pending rate limits of the layers above, and
    /// is refused if one of these limits or the ledger refuses its key.
    async fn admit(&self, req: &mut Request<Call>, caller: &KeyRecord) -> Result<(), Error>
    where
        M: Money,
    {
        let verdicts = undecided::take(req.extensions_mut());
        let permitted = self.money.permits(&caller.account, &caller.id).await;
        if !permitted.map_err(Error::LedgerUnavailable)? {
            return Err(Error::KeyDisabled);
        }
        undecided::decided(verdicts).await
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // Results of tasks that have ended are removed.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(work);
    }
}

impl<S, K, M> Layer<S> for IdempotencyLayer<K, M> {
    type Service = Idempotency<S, K, M>;

    fn layer(&self, inner: S) -> Self::Service {
        let shared = Arc::clone(&self.shared);
        Idempotency { inner, shared }
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

debug_fields!(impl[S: fmt::Debug, K, M] Idempotency<S, K, M> { inner: inner });

impl<S, A, K, M> Service<Request<Call>> for Idempotency<S, K, M>
where
    S: Service<Request<Call>, Response = Response<A>, Error: Into<BoxError> + 'static>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
    A: Body<Data = Bytes, Error: Into<BoxError> + 'static> + Send + 'static,
    K: AnswerStore,
    M: Money,
{
    type Response = Response<AnswerBody>;
    type Error = Error;
    type Future = ResponseFuture<Mapped<S::Future, A, AnswerBody>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_below)
    }

    fn call(&mut self, req: Request<Call>) -> Self::Future {
        let Some((caller, answer_key)) = key_of_request(&req) else {
            return ResponseFuture::forwarded(Mapped::new(self.inner.call(req), boxed));
        };
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        let shared = Arc::clone(&self.shared);
        ResponseFuture::boxed(keyed(inner, shared, req, caller, answer_key))
    }
}

/// Returns the caller and the key that encrypts stored responses, if the request has an idempotency key and the
/// caller's key permits stored responses.
fn key_of_request(req: &Request<Call>) -> Option<(Arc<KeyRecord>, AnswerKey)> {
    // `auth` inserts the `AnswerKey` only if the request has an idempotency key and the caller's key permits stored
    // responses.
    let answer_key = req.extensions().get::<AnswerKey>()?;
    let Caller(key) = req.extensions().get()?;
    Some((Arc::clone(key), answer_key.clone()))
}

/// Returns the value of the header `idempotency-key`.
fn presented(headers: &HeaderMap) -> Result<&[u8], Error> {
    let malformed = || Error::invalid("idempotency-key", Problem::NotAnIdempotencyKey);
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let key = values.next().ok_or_else(malformed)?.as_bytes();
    let is_good = (1..=KEY_BYTES_MAX).contains(&key.len())
        && key.iter().all(u8::is_ascii_graphic)
        && values.next().is_none();
    is_good.then_some(key).ok_or_else(malformed)
}

async fn keyed<S, A, K, M>(
    inner: S,
    shared: Arc<Shared<K, M>>,
    mut req: Request<Call>,
    caller: Arc<KeyRecord>,
    answer_key: AnswerKey,
) -> Result<Response<AnswerBody>, Error>
where
    S: Service<Request<Call>, Response = Response<A>, Error: Into<BoxError> + 'static>
        + Send
        + 'static,
    S::Future: Send,
    A: Body<Data = Bytes, Error: Into<BoxError> + 'static> + Send + 'static,
    K: AnswerStore,
    M: Money,
{
    let seal = Seal::new(&answer_key, &caller, presented(req.headers())?)?;
    let fingerprint = seal.fingerprint(req.uri().path(), req.headers(), &req.body().body);
    let number = req.extensions().get::<RequestNumber>().copied();
    let number = number.unwrap_or_else(RequestNumber::now_v7);
    // The hold of this call gets the claim's number, so that another process can find the hold in the ledger if this
    // process dies.
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
        shared.admit(&mut req, &caller).await?;
        // If the in-flight call ends without a response, this request makes the call itself.
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
        stored: shared.settings.stored,
    };
    let (to_client, send_answer) = oneshot::channel();
    let tasks = Arc::clone(&shared);
    let work = Work {
        entered: Entered {
            shared,
            name,
            run,
            ending: AtomicBool::new(false),
        },
        claim,
        seal,
        caller,
        to_client,
    };
    tasks.spawn(work.run(inner, req));
    match send_answer.await {
        Ok(WorkMessage::Answer(answer)) => *answer,
        Ok(WorkMessage::NotStored(call)) => {
            let (mut inner, req) = *call;
            let res = inner.call(req).await.map_err(Error::from_below)?;
            let mut res = res.map(boxed);
            let no = HeaderValue::from_static("false");
            res.headers_mut().insert(IDEMPOTENT_STORED, no);
            Ok(res)
        }
        Err(_) => Err(Error::Internal(
            "the task of the call ended without an answer".into(),
        )),
    }
}

/// A message from the task that runs a call to the future of the client's request.
enum WorkMessage<S> {
    Answer(Box<Result<Response<AnswerBody>, Error>>),
    /// The response will not be stored, so the future of the client's request makes the call itself.
    NotStored(Box<(S, Request<Call>)>),
}

/// Adds the headers that mark the response to a repeated call.
fn stamp(headers: &mut HeaderMap, number: RequestNumber) {
    headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    if let Ok(number) = HeaderValue::from_str(&number.to_string()) {
        headers.insert(ORIGINAL_REQUEST_ID, number);
    }
}
