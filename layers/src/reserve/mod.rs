//! Reserves the maximum cost of a call before the call is made, and charges the actual cost afterwards, even if the
//! call fails or is dropped.
//!
//! The layer does not depend on what is sold. A [`Tariff`] computes the most that a request can cost, and its [`Bill`]
//! computes the actual cost. [`tokens::ByTokens`] is the tariff of model calls. The tariff below charges a fee for each
//! page. [`Bill::charge`] also runs if a call fails, so this tariff charges the fee only if the [`Meter`] recorded that
//! the page was delivered.
//!
//! ```
//! use std::time::Duration;
//!
//! use http::{Request, Response, StatusCode};
//! use tollgate_layers::{
//!     Error,
//!     auth::SecretKey,
//!     body::{self, AnswerBody},
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
//! /// The same fee for each page, from one account.
//! struct Fee(AccountId, KeyId);
//!
//! impl<B> Tariff<B> for Fee {
//!     type Bill = Ticket;
//!
//!     fn quote(&self, _: &Request<B>) -> Result<Quote<Ticket>, Error> {
//!         let meter = Meter::default();
//!         let ticket = Ticket(meter.clone());
//!         let mut quote = Quote::new(self.0.clone(), self.1.clone(), FEE, ticket);
//!         quote.meter = meter;
//!         Ok(quote)
//!     }
//!
//!     /// Passes the meter to the service below, which records in it how the answer ended.
//!     fn granted(&self, req: &mut Request<B>, ticket: &mut Ticket, _: MicroRub) {
//!         req.extensions_mut().insert(ticket.0.clone());
//!     }
//! }
//!
//! struct Ticket(Meter);
//!
//! impl Bill for Ticket {
//!     /// `None` releases the hold: an error, or an answer that is not a page, costs nothing.
//!     fn charge(&self, reading: &Reading) -> Option<(MicroRub, Item)> {
//!         (reading.end == Some(End::Finished)).then(|| (FEE, Item::new("a page", "us", End::Finished)))
//!     }
//! }
//!
//! async fn pages(req: Request<()>) -> Result<Response<AnswerBody>, Error> {
//!     let mut res = Response::new(body::full("a page"));
//!     match req.uri().path() {
//!         "/refused" => return Err(Error::VendorUnavailable("connection refused".into())),
//!         "/broken" => *res.status_mut() = StatusCode::INTERNAL_SERVER_ERROR,
//!         _ => {
//!             let meter: &Meter = req.extensions().get().expect("the tariff inserts it");
//!             meter.update(|reading| reading.end = Some(End::Finished));
//!         }
//!     }
//!     Ok(res)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (acme, web): (AccountId, KeyId) = ("acme".parse()?, "web".parse()?);
//! let ledger = MemoryLedger::new();
//! ledger.create_account(&acme, "Acme").await?;
//! let payment = Entry { id: "1".into(), amount: MicroRub::rubles(7), reason: None };
//! ledger.enter(&acme, &payment).await?;
//! let key = SecretKey::generate().record(web.clone(), acme.clone());
//! ledger.create_key(&key, Ceilings::NONE).await?;
//!
//! let (settler, settling) = Settler::new(ledger.clone(), SettlerSettings::default(), |_| {});
//! let fee = Fee(acme.clone(), web);
//! let service = ServiceBuilder::new()
//!     .layer(ReserveLayer::new(ledger.clone(), fee, settler, Duration::from_secs(60)))
//!     .service_fn(pages);
//! let get = async move |path: &'static str| {
//!     let req = Request::get(path).body(()).expect("a valid request");
//!     service.clone().oneshot(req).await
//! };
//!
//! assert!(matches!(get("/refused").await, Err(Error::VendorUnavailable(_))));
//! assert_eq!(get("/broken").await?.status(), StatusCode::INTERNAL_SERVER_ERROR);
//! assert_eq!(get("/page").await?.status(), StatusCode::OK);
//! // Each of these calls holds 2 ₽ until the settler has ended its hold.
//! let Err(Error::DoesNotFit { needs, free, .. }) = get("/page").await else {
//!     panic!("the account has 1 ₽ that is not held");
//! };
//! assert_eq!((needs, free), (FEE, MicroRub::rubles(1)));
//!
//! // A server spawns this task; it ends once nothing can send to it any more. Only the page was charged.
//! drop(get);
//! settling.run().await;
//! assert_eq!(ledger.account(&acme).await?.balance_rub, MicroRub::rubles(5));
//! # Ok(())
//! # }
//! ```
//!
//! Every hold must be ended, so no code outside this module gets one. A guard owns the hold from before the ledger is
//! called until the response's body has ended or was dropped. Dropping the guard neither waits nor fails, because its
//! place in the [`Settler`]'s queue was reserved before the hold was made.
//!
//! # Cost in the response
//!
//! If the usage of a plain response is known when its head is sent, the header [`X_COST_RUB`] states the cost of the
//! call in decimal rubles. An event stream can state its cost only at its end, in a comment, which clients ignore. The
//! comment precedes the last event, because nothing may follow that event:
//!
//! ```text
//! : cost_rub 0.000859
//!
//! data: [DONE]
//! ```
//!
//! The stated cost is the cost that the layer sends to the ledger. If it is higher than the hold and the account cannot
//! pay the difference, the ledger charges less, and the receipt states the difference.

#![warn(clippy::float_arithmetic)]

mod adjust;
mod body;
mod cached_shares;
mod early;
mod growth;
mod prefixes;
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
use tower_layer::Layer;
use tower_service::Service;

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

use self::{
    adjust::Adjuster,
    ledger::{Hold, Ledger, LedgerError, Refusal},
};
pub use self::{body::ResponseBody, tokens::HoldMode};
use crate::{
    error::{BoxError, Error},
    facts::{CallCost, EventStream, RequestNumber},
    key::{AccountId, Funds, KeyId, KeyRecord},
    money::MicroRub,
    setting::Setting,
    usage::Meter,
};

/// Header of a plain response with the cost of the call, in decimal rubles.
pub const X_COST_RUB: HeaderName = HeaderName::from_static("x-cost-rub");

/// Prices requests of type `B`: before a call, the most that its request can cost; after the call, its actual cost.
pub trait Tariff<B>: Send + Sync + 'static {
    /// The data of a request from which the charge is computed after the call.
    type Bill: Bill;

    /// Returns the hold that the request needs.
    ///
    /// # Errors
    /// An error if the request cannot be sold, for example because its cost has no bound.
    fn quote(&self, req: &Request<B>) -> Result<Quote<Self::Bill>, Error>;

    /// Limits the request to the usage that `held` pays for. Called when the ledger has granted the hold; `held` is
    /// between the quote's `least` and `want`.
    fn granted(&self, req: &mut Request<B>, bill: &mut Self::Bill, held: MicroRub);
}

/// The hold that a tariff requests for a call, and how the call is made.
#[derive(Debug)]
#[non_exhaustive]
pub struct Quote<T> {
    /// The account that pays for the request.
    pub account: AccountId,
    /// The key with which the call is made.
    pub key: KeyId,
    /// The most that the request can cost.
    pub want: MicroRub,
    /// The smallest hold with which the request can be sent. If the granted hold is smaller than `want`, the layer limits
    /// the request's usage.
    pub least: MicroRub,
    /// The call's meter, to which the layers below write the usage.
    pub meter: Meter,
    /// Whether the call runs to its end if its client disconnects, whichever vendor answers. For a single vendor, the
    /// meter can request this (`Reading::outlives_client`).
    pub finish_without_client: bool,
    /// Whether an [`EventStream`] states the cost of the call at its end. Its frames must be complete events.
    pub tells_cost: bool,
    /// Whether the hold includes output. If so, and the hold does not fit, a lower output limit can reduce it.
    pub has_output: bool,
    /// The data of the request from which the charge is computed after the call.
    pub bill: T,
}

impl<T> Quote<T> {
    /// Creates a quote for exactly `amount`, with a new meter. All boolean fields are false.
    pub fn new(account: AccountId, key: KeyId, amount: MicroRub, bill: T) -> Self {
        Self {
            account,
            key,
            want: amount,
            least: amount,
            meter: Meter::default(),
            finish_without_client: false,
            tells_cost: false,
            has_output: false,
            bill,
        }
    }
}

/// Asks a ledger whether a key has money to spend, for the `parse` and `select` layers.
#[derive(Clone, Debug)]
pub struct LedgerFunds<L>(pub L);

impl<L: Ledger> Funds for LedgerFunds<L> {
    async fn check(&self, key: &KeyRecord) -> Result<(), Error> {
        let probed = self.0.probe(&key.account, &key.id).await;
        probed.map_err(|error| refusal(error, MicroRub::ZERO, true))
    }
}

/// Holds money for each call before the call is made, and charges the call's cost afterwards.
///
/// Tokens have a price only when the model is known. So with [`tokens::ByTokens`], this layer compiles below `select`,
/// but not directly below `parse`.
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
    /// Creates a layer that holds in `ledger` the amount that `tariff` quotes. A hold expires after `ttl`, which must
    /// be longer than any call.
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
        let shared = Arc::clone(&self.shared);
        Self { shared }
    }
}

debug_fields!(impl[L, T] ReserveLayer<L, T> { ttl: shared.ttl });

impl<S, L, T> Layer<S> for ReserveLayer<L, T> {
    type Service = Reserve<S, L, T>;

    fn layer(&self, inner: S) -> Self::Service {
        let shared = Arc::clone(&self.shared);
        Reserve { inner, shared }
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

debug_fields!(impl[S: fmt::Debug, L, T] Reserve<S, L, T> { inner: inner });

impl<S, L, T, B, A> Service<Request<B>> for Reserve<S, L, T>
where
    S: Service<Request<B>, Response = Response<A>, Error: Into<BoxError> + 'static>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
    L: Ledger,
    T: Tariff<B>,
    B: Send + 'static,
    A: Body<Data = Bytes, Error: Into<BoxError> + 'static> + Send + Unpin + 'static,
{
    type Response = Response<ResponseBody<A, T::Bill>>;
    type Error = Error;
    type Future = ResponseFuture<Self::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_below)
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

/// This is not an `async fn`, because its future would store each argument twice, and the request is large.
fn held_call<S, L, T, B, A>(
    mut inner: S,
    shared: Arc<Shared<L, T>>,
    mut req: Request<B>,
    quote: Quote<T::Bill>,
) -> impl Future<Output = Result<Response<ResponseBody<A, T::Bill>>, Error>> + Send
where
    S: Service<Request<B>, Response = Response<A>, Error: Into<BoxError> + 'static> + Send,
    S::Future: Send,
    L: Ledger,
    T: Tariff<B>,
    B: Send,
    A: Body<Data = Bytes, Error: Into<BoxError> + 'static> + Send + Unpin + 'static,
{
    let (finish_without_client, tells_cost) = (quote.finish_without_client, quote.tells_cost);
    let (least, meter, bill) = (quote.least, quote.meter, quote.bill);
    let has_output = quote.has_output;
    let number = req.extensions().get::<RequestNumber>().copied();
    let number = number.unwrap_or_else(RequestNumber::now_v7);
    let (account, key) = (quote.account, quote.key);
    let mut hold = Hold::new(number, account, key, quote.want, shared.ttl.get());
    hold.least = least;
    async move {
        // From now on the hold may exist. The guard is created before the ledger is called, because this future may be
        // dropped while it waits for the ledger.
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
        let mut adjuster = Adjuster::growing(&shared, guard.call());
        let mut res = match &mut adjuster {
            None => guard.unless_cut(inner.call(req)).await?,
            Some(adjuster) => {
                let call = adjuster.while_growing(Arc::clone(guard.call()), inner.call(req));
                guard.unless_cut(Box::pin(call)).await?
            }
        };
        let stream = res.extensions().get::<EventStream>().copied();
        if stream.is_none()
            && let Some(cost) = guard.end_if_over()
        {
            let cost = HeaderValue::from_str(cost.encode(&mut [0; MicroRub::TEXT_BYTES_MAX]));
            let cost = cost.expect("a decimal number is always a valid header value");
            res.headers_mut().insert(X_COST_RUB, cost);
            return Ok(res.map(|inner| ResponseBody::new(inner, None, None)));
        }
        let settler = shared.settler.clone();
        Ok(res.map(|inner| {
            let held = body::Held {
                guard,
                settler,
                finish_without_client,
                adjuster: stream.map(|_| adjuster.unwrap_or_else(|| Adjuster::new(shared))),
            };
            ResponseBody::new(inner, Some(held), stream.filter(|_| tells_cost))
        }))
    }
}

/// Converts a ledger's error for a call that needs `needs` into the error for the caller. `has_output` is whether a
/// lower output limit would make the call cheaper.
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
            // Each request has its own number, so the ledger returns these refusals only after a bug.
            Refusal::Gone | Refusal::Conflict => {
                Error::Internal("two holds have the same request number".into())
            }
        },
    }
}

type BoxCall<R> = Pin<Box<dyn Future<Output = Result<R, Error>> + Send>>;

/// The future of [`Reserve`].
///
/// If the future is dropped before the response's head has arrived, the settler continues the call, provided that the
/// call must run to its end without its client and a vendor already works on it.
pub struct ResponseFuture<R: Send + 'static> {
    call: Option<BoxCall<R>>,
    left_behind: Option<LeftBehind>,
}

/// The parts that are needed to continue a call after its client has disconnected.
struct LeftBehind {
    meter: Meter,
    settler: Settler,
    finish: bool,
}

impl<R: Send + 'static> Future for ResponseFuture<R> {
    type Output = Result<R, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // The call is taken out of `self` while it is polled. If the poll panics, the drop must not poll the call
        // again.
        let call = self.call.take();
        let mut call = call.expect("a future must not be polled after it has completed");
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
            // If this vendor fails, no other vendor is tried, because no client waits for the response any more.
            left.meter.update(|reading| reading.client_gone = true);
            left.settler.finish_without_client(Box::pin(async move {
                drop(call.await);
            }));
        }
    }
}

debug_fields!(impl[R: Send + 'static] ResponseFuture<R> {});
