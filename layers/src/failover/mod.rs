//! Sends a call to one of its model's routes, and to the next one when a vendor fails before the first
//! byte: `Request<Priced>` → `Request<Attempt>`, under one hold and one number.
//!
//! **Which one.** Lower priorities first. Within a priority by weight, or by load where the weights are
//! equal, or where a conversation has been before ([`Model::sticky`](crate::model::Model)). See `choice`,
//! `load`, `conversation`.
//!
//! **When another.** On connections that are refused, fail or time out, on silence before the first byte,
//! on 404, 408, 429, 5xx, on answers that are none, on a stream whose first event is an error, and on
//! refusals of our key, which also is an alert. Never once the answer has begun, never on a 4xx that is the
//! request's own, never for a client that has left, and not beyond a number, a time and a budget: then
//! the most telling of the errors is the answer. A route whose format cannot carry a request is passed
//! by. Layers below must answer only when they know that an answer has begun. See `class`, `budget`.
//!
//! **Who is asked at all.** Five failures in a row, cut streams included, shut a route for a second, then
//! for two, up to a minute; a single call looks whether it is back. Where all five are one caller's and a
//! connection was there, it is shut for that caller alone: others do not lose a route by what one asks for.
//! A vendor that has no such model (404) is asked again after 30 seconds. A limit (429) lets the key rest on
//! that route for as long as the vendor says, a refused key is parked for all of them. A vendor that is
//! full (`connections_max`, streams counted to their ends) or taken out by hand is passed by. See
//! `breaker`, `health`.
//!
//! **When none is left.** A route that only rests is still tried, by one call at a time: limits often
//! depend on a request's size, and one large request of one caller must not shut out all others. So is a
//! route that is shut, the one that is due the soonest: by each call where the vendor answered, whatever it
//! said; where it could not be reached or kept silent, four times a second and by all once a connection is
//! there, since others would only wait for the failure. A caller whom nobody was asked for is told when to
//! come back, as 429 or 503.
//!
//! ```
//! # use std::sync::Arc;
//! use bytes::Bytes;
//! use http::{Request, Response, Uri};
//! use http_body_util::BodyExt;
//! use tollgate_layers::{
//!     Error, body,
//!     call::{Attempt, Format, Operation, Priced},
//!     failover::{BreakerState, FailoverLayer, FailoverSettings, Health},
//!     model::{Model, Route, Vendor},
//! };
//! # use tollgate_layers::{parse, price::{Price, Rate}, usage::Meter};
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # fn priced(body: &'static str, model: &Arc<Model>) -> Priced {
//! #     let rate = Rate::new(1);
//! #     let price = Price {
//! #         input: rate,
//! #         cached_input: rate,
//! #         output: rate,
//! #         cache_write: rate,
//! #         version: 1,
//! #         exchange_rate: "1".into(),
//! #         ..Price::default()
//! #     };
//! #     let body = Bytes::from_static(body.as_bytes());
//! #     let call = parse::call(Operation::Chat, &body, 100).unwrap();
//! #     Priced {
//! #         call: Arc::new(call),
//! #         model: Arc::clone(model),
//! #         prices: price.into(),
//! #         output_tokens: 100,
//! #         meter: Meter::default(),
//! #     }
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let vendor = |name: &str| -> Result<Vendor, http::Error> {
//!     let endpoint = Uri::from_static("https://vendor.example/v1/chat/completions");
//!     Ok(Vendor::new(name, Format::Chat, endpoint, Format::Chat.credential("our key")?))
//! };
//! let model = Model::new("large", 4096)
//!     .route(Route::new(vendor("first")?, "large-1"))
//!     .route(Route::new(vendor("second")?, "large-1").priority(1));
//! let model = Arc::new(model);
//!
//! // The first vendor is down.
//! let vendors = |req: Request<Attempt>| async move {
//!     match &*req.body().route.vendor.name {
//!         "first" => Err(Error::VendorUnavailable("connection refused".into())),
//!         name => Ok(Response::new(body::full(format!("{name} answers")))),
//!     }
//! };
//! let health = Health::new();
//! let service = ServiceBuilder::new()
//!     .layer(FailoverLayer::new(health.clone(), FailoverSettings::default()))
//!     .service_fn(vendors);
//!
//! // `priced` parses a call and puts its model and a price beside it, as `parse` and `select` do.
//! let text = r#"{"model":"large","messages":[{"role":"user","content":"Hello"}]}"#;
//! for _ in 0..5 {
//!     let call = Request::new(priced(text, &model));
//!     let answer = service.clone().oneshot(call).await?.into_body().collect().await?;
//!     assert_eq!(answer.to_bytes(), "second answers");
//! }
//! // Five failures in a row: nobody asks the first vendor for a while.
//! assert_eq!(health.snapshot()[0].routes[0].breaker, BreakerState::Open);
//! # Ok(())
//! # }
//! ```

mod breaker;
mod budget;
mod choice;
mod class;
mod conversation;
mod health;
mod load;
mod route_plan;
mod running;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use tokio::time::Instant;
use tower::{Layer, Service};

use self::{
    budget::Budget,
    class::{Class, more_telling},
    route_plan::{Chosen, RoutePlan},
};
pub use self::{
    budget::BudgetSettings,
    health::{BreakerState, Health, LastError, RouteState, VendorState},
    running::ResponseBody,
};
use crate::{
    call::{Attempt, Priced},
    error::{Error, VendorAnswered},
    facts::{NothingSaid, RequestNumber},
};

/// How far a call may go.
#[derive(Clone, Copy, Debug)]
pub struct FailoverSettings {
    /// Most vendors' answers to one call.
    pub attempts_max: u32,
    /// No attempt begins later than this after the call: one that runs has its own times.
    pub begin_within: Duration,
    /// How many attempts beyond each call's first there may be, over all calls.
    pub budget: BudgetSettings,
}

impl Default for FailoverSettings {
    fn default() -> Self {
        Self {
            attempts_max: 4,
            begin_within: Duration::from_secs(150),
            budget: BudgetSettings::default(),
        }
    }
}

/// Sends each call to a route of its model.
#[derive(Clone)]
pub struct FailoverLayer {
    shared: Arc<Shared>,
}

struct Shared {
    health: Health,
    settings: FailoverSettings,
    budget: Mutex<Budget>,
}

impl FailoverLayer {
    /// Reads and writes `health`; the budget is shared by all services that this layer makes.
    #[must_use]
    pub fn new(health: Health, settings: FailoverSettings) -> Self {
        Self {
            shared: Arc::new(Shared {
                health,
                settings,
                budget: Mutex::new(Budget::new(settings.budget, Instant::now())),
            }),
        }
    }
}

impl fmt::Debug for FailoverLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailoverLayer")
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for FailoverLayer {
    type Service = Failover<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Failover {
            inner,
            shared: Arc::clone(&self.shared),
        }
    }
}

/// The service of [`FailoverLayer`].
#[derive(Clone)]
pub struct Failover<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S: fmt::Debug> fmt::Debug for Failover<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failover")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S, A> Service<Request<Priced>> for Failover<S>
where
    S: Service<Request<Attempt>, Response = Response<A>, Error = Error> + Clone + Send + 'static,
    S::Future: Send,
    A: Body<Data = Bytes, Error = Error> + Send + 'static,
{
    type Response = Response<ResponseBody<A>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<Priced>) -> Self::Future {
        let began = Instant::now();
        self.shared.budget().deposit();
        let plan = RoutePlan::new(&self.shared.health, &req);
        let Some(chosen) = plan.first(began) else {
            let error = plan.refusal(began);
            return Box::pin(async { Err(error) });
        };
        let number = req.extensions().get::<RequestNumber>().copied();
        let again = plan.may_go_on().then(|| {
            Box::new(RetryRequest {
                inner: self.inner.clone(),
                req: req.clone(),
            })
        });
        // Begun at once, so that a request that is sent only once is not kept.
        let attempt = self.inner.call(chosen.attempt(req));
        let dispatch = Dispatch {
            shared: Arc::clone(&self.shared),
            number,
            began,
            plan,
            again,
        };
        Box::pin(answered(dispatch, chosen, attempt))
    }
}

/// A call on its way over its routes.
struct Dispatch<S> {
    shared: Arc<Shared>,
    number: Option<RequestNumber>,
    began: Instant,
    plan: RoutePlan,
    again: Option<Box<RetryRequest<S>>>,
}

/// What a call needs that may be sent to another route, or with another key.
struct RetryRequest<S> {
    inner: S,
    req: Request<Priced>,
}

/// The first answer that begins, or the most telling error.
///
/// No `async fn`: its future would have room for each argument twice.
fn answered<S, A>(
    dispatch: Dispatch<S>,
    mut chosen: Chosen,
    mut attempt: S::Future,
) -> impl Future<Output = Result<Response<ResponseBody<A>>, Error>> + Send
where
    S: Service<Request<Attempt>, Response = Response<A>, Error = Error> + Send,
    S::Future: Send,
    A: Send,
{
    let Dispatch {
        shared,
        number,
        began,
        mut plan,
        mut again,
    } = dispatch;
    async move {
        let (mut asked, mut told) = (0, None::<Error>);
        loop {
            let error = match attempt.await {
                Ok(res) => {
                    let nothing_said = res.extensions().get::<NothingSaid>();
                    chosen.running.began(nothing_said.is_none());
                    return Ok(res.map(|body| ResponseBody::new(body, chosen.running)));
                }
                Err(error) => error,
            };
            let Chosen {
                index,
                route,
                mut running,
            } = chosen;
            let class = running.ended(&error);
            let key = running.credential() + 1;
            // Its places are free for the next attempt.
            drop(running);
            let number = number.map(tracing::field::display);
            let (vendor, model) = (&*route.vendor.name, route.model.as_str());
            let is_of_key = matches!(
                class,
                Class::KeyRefused(_) | Class::Forbidden | Class::Limited(_)
            );
            // What was wrong with one key need not be with the next.
            if !is_of_key || route.vendor.credentials.len() < 2 {
                plan.done(index);
            }
            match class {
                Class::Request | Class::Own => {
                    if let Some(VendorAnswered { status, text, .. }) = words_of(&error) {
                        let status = status.as_u16();
                        tracing::warn!(
                            number,
                            vendor,
                            model,
                            status,
                            error = text.as_str(),
                            "vendor refused a call, and its caller is not told why"
                        );
                    }
                    return Err(error);
                }
                Class::Unfit => {}
                Class::Failed(..) | Class::Limited(_) => asked += 1,
                Class::ModelUnknown => {
                    asked += 1;
                    let status = StatusCode::NOT_FOUND.as_u16();
                    tracing::error!(
                        number,
                        vendor,
                        model,
                        status,
                        error = words_of(&error).map(|answered| answered.text.as_str()),
                        "vendor knows no such model, and its route rests: check routes[].model, and the vendor's url"
                    );
                }
                Class::KeyRefused(status) => {
                    asked += 1;
                    let status = status.as_u16();
                    tracing::error!(
                        number,
                        vendor,
                        model,
                        status,
                        key,
                        "vendor refused our key, which is parked: look after the key and the account"
                    );
                }
                Class::Forbidden => {
                    asked += 1;
                    let status = StatusCode::FORBIDDEN.as_u16();
                    tracing::error!(
                        number,
                        vendor,
                        model,
                        status,
                        key,
                        "vendor forbade a call, and its route rests: look whether the account may use this model"
                    );
                }
            }
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            let why = error.to_string();
            let is_unfit = class == Class::Unfit;
            let error = match told.take() {
                None => error,
                Some(before) => more_telling(before, error),
            };
            let Some(again) = &mut again else {
                return Err(error);
            };
            let now = Instant::now();
            let settings = &shared.settings;
            let meter = &again.req.body().meter;
            if asked >= settings.attempts_max
                || now - began > settings.begin_within
                || meter.look(|reading| reading.client_gone)
            {
                return Err(error);
            }
            let Some(next) = plan.next(now) else {
                return Err(error);
            };
            if !is_unfit && !shared.withdraw(now) {
                tracing::warn!(number, vendor, model, "no retry left in the budget");
                return Err(error);
            }
            let to = &*next.route.vendor.name;
            tracing::warn!(number, vendor, model, to, cause, "attempt failed: {why}");
            poll_fn(|cx| again.inner.poll_ready(cx)).await?;
            attempt = again.inner.call(next.attempt(again.req.clone()));
            chosen = next;
            told = Some(error);
        }
    }
}

/// What a vendor said with a status that is no answer.
fn words_of(error: &Error) -> Option<&VendorAnswered> {
    match error {
        Error::VendorUnavailable(cause) => cause.downcast_ref(),
        _ => None,
    }
}

impl Shared {
    fn withdraw(&self, now: Instant) -> bool {
        self.budget().withdraw(now)
    }

    fn budget(&self) -> std::sync::MutexGuard<'_, Budget> {
        // A number and a time: never half written.
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
