//! Holds what a call can cost before it is made, and charges what it did cost, whatever happens in
//! between.
//!
//! The layer is generic in what is sold: a [`Tariff`] says what a request can cost and, at the end,
//! what it did. [`tokens::ByTokens`] does so for model calls; here is one for anything:
//!
//! ```
//! use std::time::Duration;
//!
//! use http::{Request, Response};
//! use tollgate_layers::{
//!     Error,
//!     auth::SecretKey,
//!     body,
//!     ceiling::Ceilings,
//!     key::{AccountId, KeyId},
//!     money::MicroRub,
//!     reserve::{
//!         Bill, Quote, ReserveLayer, Settler, SettlerSettings, Tariff,
//!         ledger::{LedgerAdmin, Entry, Item},
//!         memory::MemoryLedger,
//!     },
//!     usage::{End, Meter, Reading},
//! };
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! const FEE: MicroRub = MicroRub::rubles(2);
//!
//! /// So much for each request, from one account.
//! #[derive(Clone)]
//! struct Fee(AccountId, KeyId);
//!
//! impl<B> Tariff<B> for Fee {
//!     type Bill = Ticket;
//!
//!     fn quote(&self, _: &Request<B>) -> Result<Quote<Ticket>, Error> {
//!         Ok(Quote {
//!             account: self.0.clone(),
//!             key: self.1.clone(),
//!             want: FEE,
//!             least: FEE,
//!             meter: Meter::default(),
//!             finish_without_client: false,
//!             tells_cost: false,
//!             has_output: false,
//!             bill: Ticket,
//!         })
//!     }
//!
//!     fn granted(&self, _: &mut Request<B>, _: &mut Ticket, _: MicroRub) {}
//! }
//!
//! struct Ticket;
//!
//! impl Bill for Ticket {
//!     fn charge(&self, _: &Reading) -> Option<(MicroRub, Item)> {
//!         Some((FEE, Item::new("a page", "us", End::Finished)))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (acme, web): (AccountId, KeyId) = ("acme".parse()?, "web".parse()?);
//! let ledger = MemoryLedger::new();
//! ledger.create_account(&acme, "Acme").await?;
//! let payment = Entry { id: "1".into(), amount: MicroRub::rubles(3), reason: None };
//! ledger.enter(&acme, &payment).await?;
//! let key = SecretKey::generate().record(web.clone(), acme.clone());
//! ledger.create_key(&key, Ceilings::NONE).await?;
//!
//! let (settler, settling) = Settler::new(ledger.clone(), SettlerSettings::default(), |_| {});
//! let fee = Fee(acme.clone(), web);
//! let service = ServiceBuilder::new()
//!     .layer(ReserveLayer::new(ledger.clone(), fee, settler, Duration::from_secs(60)))
//!     .service_fn(|_| async { Ok::<_, Error>(Response::new(body::full("a page"))) });
//!
//! let page = service.clone().oneshot(Request::new(())).await?;
//! let Err(Error::DoesNotFit { needs, free, .. }) = service.oneshot(Request::new(())).await else {
//!     panic!("the account has 1 ₽ beside what is held");
//! };
//! assert_eq!((needs, free), (FEE, MicroRub::rubles(1)));
//!
//! // What ends the answer, or drops it, settles: off the caller's way, in a task that a server spawns.
//! drop(page);
//! settling.run().await;
//! assert_eq!(ledger.account(&acme).await?.balance_rub, MicroRub::rubles(1));
//! # Ok(())
//! # }
//! ```
//!
//! A hold is a duty, and it never leaves this module: a guard owns it from before the ledger is asked
//! until the answer's body has ended or was dropped. The guard's `Drop` neither waits nor fails: its
//! place in the [`Settler`]'s queue was taken before the hold was.
//!
//! # What the caller is told
//!
//! A plain answer whose use is known with its head says in [`X_COST_RUB`] what it costs, in decimal rubles. An
//! event stream can say so only at its end, in a comment, which clients pass over. It stands in front of the
//! last event, behind which nothing may come:
//!
//! ```text
//! : cost_rub 0.000859
//!
//! data: [DONE]
//! ```
//!
//! It is the cost that the ledger is told. Where that is more than was held and the rest is not there, the ledger
//! charges less, and the receipt says how much.

#![warn(clippy::float_arithmetic)]

mod body;
pub mod tokens;

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response};
use http_body::Body;
use tower::{Layer, Service};

#[cfg(feature = "outbox")]
pub use tollgate_ledger::outbox;
#[cfg(feature = "redis")]
pub use tollgate_ledger::redis;
#[cfg(feature = "sqlite")]
pub use tollgate_ledger::sqlite;
#[cfg(feature = "testing")]
pub use tollgate_ledger::testing;
pub use tollgate_ledger::{
    audit, book, contract as ledger, memory,
    settle::{Bill, Ending, Event, Settler, SettlerSettings, SettlerTask, Unacknowledged},
    transfer as copy,
};

use self::ledger::{Hold, Ledger, LedgerError, Refusal};
pub use self::{body::ResponseBody, tokens::HoldMode};
use crate::{
    error::Error,
    facts::{CallCost, EventStream, RequestNumber},
    key::{AccountId, KeyId},
    money::MicroRub,
    setting::Setting,
    usage::Meter,
};

/// The header of a plain answer that says what it costs, in decimal rubles.
pub const X_COST_RUB: HeaderName = HeaderName::from_static("x-cost-rub");

/// What a request of type `B` can cost and what it did cost.
pub trait Tariff<B>: Clone + Send + Sync + 'static {
    /// What is kept of the request to compute its charge.
    type Bill: Bill;

    /// The hold that the request needs.
    ///
    /// # Errors
    /// The request cannot be sold.
    fn quote(&self, req: &Request<B>) -> Result<Quote<Self::Bill>, Error>;

    /// The hold was granted: `held` lies between what was wanted and the least. What the request may
    /// use has to be fitted into it.
    fn granted(&self, req: &mut Request<B>, bill: &mut Self::Bill, held: MicroRub);
}

/// The wish to hold money for a request.
#[derive(Debug)]
pub struct Quote<T> {
    /// Who pays.
    pub account: AccountId,
    /// On which key.
    pub key: KeyId,
    /// What the request can cost.
    pub want: MicroRub,
    /// What it must at least hold.
    pub least: MicroRub,
    /// What the layers below will write the use into.
    pub meter: Meter,
    /// Whether the call goes on to its end when its client leaves, whoever answers it. The meter may
    /// say so of the vendor that does (`Reading::outlives_client`).
    pub finish_without_client: bool,
    /// Whether an answer that is an [`EventStream`], of frames that are whole events, says at its end what it
    /// cost.
    pub tells_cost: bool,
    /// Whether there is output, whose ceiling the caller may lower where the hold does not fit.
    pub has_output: bool,
    /// What is kept to compute the charge.
    pub bill: T,
}

/// Puts a hold around each call.
///
/// Sold by tokens, a call needs its price: with [`tokens::ByTokens`] it does not compile straight below `parse`,
/// without `select` between them.
///
/// ```
/// # use std::time::Duration;
/// # use http::{Request, Response};
/// # use tollgate_layers::{
/// #     Error, body::AnswerBody, call::{Call, Priced},
/// #     reserve::{ReserveLayer, Settler, memory::MemoryLedger, tokens::ByTokens},
/// # };
/// # use tower::{Service, ServiceBuilder};
/// # fn takes<B, S: Service<Request<B>>>(_: S) {}
/// # async fn inner<B>(_: Request<B>) -> Result<Response<AnswerBody>, Error> {
/// #     Err(Error::Draining)
/// # }
/// # fn stacked(ledger: MemoryLedger, tariff: ByTokens, settler: Settler) {
/// let reserve = ReserveLayer::new(ledger, tariff, settler, Duration::from_secs(960));
/// takes::<Priced, _>(ServiceBuilder::new().layer(reserve).service_fn(inner));
/// # }
/// ```
///
/// ```compile_fail
/// # use std::time::Duration;
/// # use http::{Request, Response};
/// # use tollgate_layers::{
/// #     Error, body::AnswerBody, call::{Call, Priced},
/// #     reserve::{ReserveLayer, Settler, memory::MemoryLedger, tokens::ByTokens},
/// # };
/// # use tower::{Service, ServiceBuilder};
/// # fn takes<B, S: Service<Request<B>>>(_: S) {}
/// # async fn inner<B>(_: Request<B>) -> Result<Response<AnswerBody>, Error> {
/// #     Err(Error::Draining)
/// # }
/// # fn stacked(ledger: MemoryLedger, tariff: ByTokens, settler: Settler) {
/// let reserve = ReserveLayer::new(ledger, tariff, settler, Duration::from_secs(960));
/// takes::<Call, _>(ServiceBuilder::new().layer(reserve).service_fn(inner));
/// # }
/// ```
pub struct ReserveLayer<L, T> {
    shared: Arc<Shared<L, T>>,
}

struct Shared<L, T> {
    ledger: L,
    tariff: T,
    settler: Settler,
    ttl: Setting<Duration>,
}

impl<L, T> ReserveLayer<L, T> {
    /// Holds in `ledger` what `tariff` quotes. A hold lives for `ttl` at most, which must be longer
    /// than any call.
    pub fn new(ledger: L, tariff: T, settler: Settler, ttl: impl Into<Setting<Duration>>) -> Self {
        Self {
            shared: Arc::new(Shared {
                ledger,
                tariff,
                settler,
                ttl: ttl.into(),
            }),
        }
    }
}

impl<L, T> Clone for ReserveLayer<L, T> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<L, T> fmt::Debug for ReserveLayer<L, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReserveLayer")
            .field("ttl", &self.shared.ttl)
            .finish_non_exhaustive()
    }
}

impl<S, L, T> Layer<S> for ReserveLayer<L, T> {
    type Service = Reserve<S, L, T>;

    fn layer(&self, inner: S) -> Self::Service {
        Reserve {
            inner,
            shared: Arc::clone(&self.shared),
        }
    }
}

/// The service of [`ReserveLayer`].
pub struct Reserve<S, L, T> {
    inner: S,
    shared: Arc<Shared<L, T>>,
}

impl<S: Clone, L, T> Clone for Reserve<S, L, T> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S: fmt::Debug, L, T> fmt::Debug for Reserve<S, L, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserve")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S, L, T, B, A> Service<Request<B>> for Reserve<S, L, T>
where
    S: Service<Request<B>, Response = Response<A>, Error = Error> + Clone + Send + 'static,
    S::Future: Send,
    L: Ledger,
    T: Tariff<B>,
    B: Send + 'static,
    A: Body<Data = Bytes, Error = Error> + Send + Unpin + 'static,
{
    type Response = Response<ResponseBody<A, T::Bill>>;
    type Error = Error;
    type Future = ResponseFuture<Self::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        let shared = Arc::clone(&self.shared);
        match shared.tariff.quote(&req) {
            Err(error) => ResponseFuture {
                call: Some(Box::pin(async { Err(error) })),
                left_behind: None,
            },
            Ok(quote) => {
                let left_behind = LeftBehind {
                    meter: quote.meter.clone(),
                    settler: shared.settler.clone(),
                    finish: quote.finish_without_client,
                };
                ResponseFuture {
                    call: Some(Box::pin(held_call(inner, shared, req, quote))),
                    left_behind: Some(left_behind),
                }
            }
        }
    }
}

/// No `async fn`: its future would have room for each argument twice, and the request is large.
fn held_call<S, L, T, B, A>(
    mut inner: S,
    shared: Arc<Shared<L, T>>,
    mut req: Request<B>,
    quote: Quote<T::Bill>,
) -> impl Future<Output = Result<Response<ResponseBody<A, T::Bill>>, Error>> + Send
where
    S: Service<Request<B>, Response = Response<A>, Error = Error> + Send,
    S::Future: Send,
    L: Ledger,
    T: Tariff<B>,
    B: Send,
    A: Body<Data = Bytes, Error = Error> + Send + Unpin + 'static,
{
    let (finish_without_client, tells_cost) = (quote.finish_without_client, quote.tells_cost);
    let (least, meter, bill) = (quote.least, quote.meter, quote.bill);
    let has_output = quote.has_output;
    let number = req
        .extensions()
        .get::<RequestNumber>()
        .copied()
        .unwrap_or_else(RequestNumber::now_v7);
    let hold = Hold {
        number,
        account: quote.account,
        key: quote.key,
        want: quote.want,
        least,
        ttl: shared.ttl.get(),
    };
    async move {
        // From here on the hold may exist: the guard is there before the ledger is asked, since this
        // future may be dropped while it waits for the answer.
        let mut guard =
            body::Guard::new(&shared.settler, hold, meter, bill).ok_or(Error::Overloaded)?;
        guard.tell_cost_to(req.extensions().get::<CallCost>().cloned());
        let reserved = shared.ledger.reserve(guard.hold()).await;
        match reserved {
            Ok(reserved) => {
                guard.granted(&shared.settler, reserved.held, |bill| {
                    shared.tariff.granted(&mut req, bill, reserved.held);
                });
            }
            Err(error @ LedgerError::Refused(_)) => {
                guard.refused();
                return Err(refusal(error, least, has_output));
            }
            Err(error) => return Err(refusal(error, least, has_output)),
        }
        let mut res = guard.unless_cut(inner.call(req)).await?;
        let stream = res.extensions().get::<EventStream>().copied();
        if stream.is_none()
            && let Some(cost) = guard.end_if_over()
        {
            let cost = HeaderValue::from_str(cost.encode(&mut [0; MicroRub::TEXT_BYTES_MAX]));
            let cost = cost.expect("digits and a point");
            res.headers_mut().insert(X_COST_RUB, cost);
            return Ok(res.map(ResponseBody::ended));
        }
        let settler = shared.settler.clone();
        Ok(res.map(|inner| {
            ResponseBody::new(inner, guard, settler)
                .finish_without_client(finish_without_client)
                .tell_cost(stream.filter(|_| tells_cost))
        }))
    }
}

/// A ledger's refusal of a call that needs `needs`, of which output may be a part, as the caller's error.
#[must_use]
pub fn refusal(error: LedgerError, needs: MicroRub, has_output: bool) -> Error {
    match error {
        LedgerError::Unavailable(cause) => Error::LedgerUnavailable(cause),
        LedgerError::Refused(refusal) => match refusal {
            Refusal::Unknown => Error::KeyUnknown,
            Refusal::Suspended => Error::AccountSuspended,
            Refusal::Disabled => Error::KeyDisabled,
            Refusal::AccountEmpty => Error::AccountEmpty,
            Refusal::CeilingUsedUp(ceiling) => Error::CeilingUsedUp(ceiling),
            Refusal::DoesNotFit {
                free,
                held,
                ceiling,
            } => Error::DoesNotFit {
                needs,
                free,
                held,
                ceiling,
                has_output,
            },
            Refusal::TooManyCalls { most } => Error::TooManyCalls { most },
            // Our own numbers are never used twice.
            Refusal::Gone | Refusal::Conflict => {
                Error::Internal("request number used twice".into())
            }
        },
    }
}

type BoxCall<R> = Pin<Box<dyn Future<Output = Result<R, Error>> + Send>>;

/// The future of [`Reserve`].
///
/// Dropped before the head of the answer, it hands a call that is to be finished without its client
/// to the settler, if a vendor is at work on it already.
pub struct ResponseFuture<R: Send + 'static> {
    call: Option<BoxCall<R>>,
    left_behind: Option<LeftBehind>,
}

/// What is needed of a call whose client leaves.
struct LeftBehind {
    meter: Meter,
    settler: Settler,
    finish: bool,
}

impl<R: Send + 'static> Future for ResponseFuture<R> {
    type Output = Result<R, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Taken out while it is polled: a call that panics must not be polled again by the drop.
        let mut call = self.call.take().expect("polled after it was ready");
        let result = call.as_mut().poll(cx);
        if result.is_pending() {
            self.call = Some(call);
        }
        result
    }
}

impl<R: Send + 'static> Drop for ResponseFuture<R> {
    fn drop(&mut self) {
        let (Some(call), Some(left)) = (self.call.take(), self.left_behind.take()) else {
            return;
        };
        let reading = left.meter.read();
        if reading.dispatched && (left.finish || reading.outlives_client) {
            // If this vendor fails, no other one is asked: nobody would read its answer.
            left.meter.update(|reading| reading.client_gone = true);
            left.settler.finish_without_client(Box::pin(async move {
                drop(call.await);
            }));
        }
    }
}

impl<R: Send + 'static> fmt::Debug for ResponseFuture<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
