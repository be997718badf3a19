//! Sends a call on one of its model's routes, and if a vendor fails before the first byte, on the next route:
//! `Request<Priced>` → `Request<Attempt>`. All attempts have the same hold and the same request number.
//!
//! **Which route.** Routes with lower priority numbers are tried first. Among routes of equal priority, the layer takes
//! the conversation's previous route if the model is [`Model::sticky`](crate::model::Model); otherwise it chooses by
//! weight if the weights differ, and by load if they are equal. See `choice`, `load`, `conversation`.
//!
//! **When to retry.** A call is retried after each of these failures: a connection that is refused, fails or times out;
//! silence before the first byte; 404, 408, 429 and 5xx; an invalid response; a stream whose first event is an error; a
//! rejection of the operator's API key, which also raises an alert. A call is not retried after its response has begun,
//! after a 4xx that the request itself caused, or after its client has disconnected. The attempts are limited by their
//! number, by time and by a budget. When a limit is reached, the most informative error is returned. A route whose
//! format cannot express the request is skipped. Layers below must not return a response before its first byte has
//! arrived. See `class`, `budget`.
//!
//! **Which routes are skipped.** After five failures in a row, including streams that broke off, a route's breaker
//! opens for a second. When this time is over, a single call probes the route. If the probe fails, the breaker opens
//! for two seconds, and so on up to a minute. If all five failures occurred in one caller's calls, and connections were
//! made, the breaker is open for that caller only. So one caller's requests cannot take the route from others. A vendor
//! that does not have the model (404) is not called for that model for 30 seconds. After a rate limit (429), the API
//! key is not used on that route for as long as the vendor states. A rejected key is not used on any route for a while.
//! A vendor is skipped while it has `connections_max` calls in flight (a stream counts until it ends), or while the
//! operator has disabled it. See `breaker`, `health`.
//!
//! **The last resort.** If no other route is left, a call still tries a route that is paused after a limit. Only one
//! call at a time does so: limits often depend on a request's size, and one large request must not block other callers.
//! If no paused route can be tried, the call tries a route with an open breaker: first the route whose wait ends
//! soonest. If that vendor's last failure was a response, every call may try the route. If the vendor was unreachable
//! or silent, only one call per 250 ms may try it until a connection was made, because other calls would only wait for
//! the same failure. If no vendor was called, the caller gets a 429 or 503 that states when to retry.
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
//! // `priced` parses a call and adds its model and a price, as `parse` and `select` do.
//! let text = r#"{"model":"large","messages":[{"role":"user","content":"Hello"}]}"#;
//! for _ in 0..5 {
//!     let call = Request::new(priced(text, &model));
//!     let answer = service.clone().oneshot(call).await?.into_body().collect().await?;
//!     assert_eq!(answer.to_bytes(), "second answers");
//! }
//! // Five failures in a row: the first vendor is not called for a while.
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
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

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
    error::{BoxError, Error, VendorAnswered},
    facts::{NothingSaid, RequestNumber},
    lock::lock,
};

/// The limits on the attempts of a call.
#[derive(Clone, Copy, Debug)]
pub struct FailoverSettings {
    /// The maximum number of attempts per call.
    pub attempts_max: u32,
    /// Attempts may begin only within this time after the beginning of the call. Timeouts limit how long an attempt
    /// takes.
    pub begin_within: Duration,
    /// The retry budget, which all calls share.
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

/// Sends each call to a route of its model, and retries on other routes.
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
    /// Creates a layer that uses and updates `health`. All services that this layer makes share one retry budget.
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

debug_fields!(impl[] FailoverLayer { settings: shared.settings });

impl<S> Layer<S> for FailoverLayer {
    type Service = Failover<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let shared = Arc::clone(&self.shared);
        Failover { inner, shared }
    }
}

/// The service of [`FailoverLayer`].
#[derive(Clone)]
pub struct Failover<S> {
    inner: S,
    shared: Arc<Shared>,
}

debug_fields!(impl[S: fmt::Debug] Failover<S> { inner: inner });

impl<S, A> Service<Request<Priced>> for Failover<S>
where
    S: Service<Request<Attempt>, Response = Response<A>, Error: Into<BoxError> + 'static>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
    A: Body<Data = Bytes, Error: Into<BoxError> + 'static> + Send + 'static,
{
    type Response = Response<ResponseBody<A>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_below)
    }

    fn call(&mut self, req: Request<Priced>) -> Self::Future {
        let began = Instant::now();
        lock(&self.shared.budget).deposit();
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
        // The first attempt starts here, not when the returned future is polled. So a call that cannot be retried needs
        // no copy of its request.
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

/// The state of a call while it tries its routes.
struct Dispatch<S> {
    shared: Arc<Shared>,
    number: Option<RequestNumber>,
    began: Instant,
    plan: RoutePlan,
    again: Option<Box<RetryRequest<S>>>,
}

/// Copies of the request and of the inner service, for a retry on another route or with another key.
struct RetryRequest<S> {
    inner: S,
    req: Request<Priced>,
}

/// Returns the first response that begins. If no attempt gets a response, returns the most informative error.
///
/// This is not an `async fn`, because its future would store each argument twice.
fn answered<S, A>(
    dispatch: Dispatch<S>,
    mut chosen: Chosen,
    mut attempt: S::Future,
) -> impl Future<Output = Result<Response<ResponseBody<A>>, Error>> + Send
where
    S: Service<Request<Attempt>, Response = Response<A>, Error: Into<BoxError> + 'static> + Send,
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
        let (mut requested, mut returned) = (0, None::<Error>);
        loop {
            let error = match attempt.await.map_err(Error::from_below) {
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
            // Dropping the attempt frees its slots at the route and at the vendor, so that the next attempt can use
            // them.
            drop(running);
            let number = number.map(tracing::field::display);
            let (vendor, model) = (&*route.vendor.name, route.model.as_str());
            let is_of_key = matches!(
                class,
                Class::KeyRefused(_) | Class::Forbidden | Class::Limited(_)
            );
            // If the error concerns one API key, the route stays in the call's plan, because another API key of the
            // vendor may still work.
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
                            "vendor refused a call; its caller does not get the reason"
                        );
                    }
                    return Err(error);
                }
                Class::Unfit => {}
                _ => requested += 1,
            }
            if let Some((status, advice)) = advice(class) {
                let status = status.as_u16();
                let error = words_of(&error).map(|answered| answered.text.as_str());
                let key = is_of_key.then_some(key);
                tracing::error!(number, vendor, model, status, error, key, "{advice}");
            }
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            let why = error.to_string();
            let is_unfit = class == Class::Unfit;
            let error = match returned.take() {
                None => error,
                Some(before) => more_telling(before, error),
            };
            let Some(again) = &mut again else {
                return Err(error);
            };
            let now = Instant::now();
            let settings = &shared.settings;
            let meter = &again.req.body().meter;
            if requested >= settings.attempts_max
                || now - began > settings.begin_within
                || meter.look(|reading| reading.client_gone)
            {
                return Err(error);
            }
            let Some(next) = plan.next(now) else {
                return Err(error);
            };
            if !is_unfit && !lock(&shared.budget).withdraw(now) {
                tracing::warn!(number, vendor, model, "no retry left in the budget");
                return Err(error);
            }
            let to = &*next.route.vendor.name;
            tracing::warn!(number, vendor, model, to, cause, "attempt failed: {why}");
            poll_fn(|cx| again.inner.poll_ready(cx).map_err(Error::from_below)).await?;
            attempt = again.inner.call(next.attempt(again.req.clone()));
            chosen = next;
            returned = Some(error);
        }
    }
}

/// Returns the vendor's status and message, if the error is a vendor's response.
/// For a failure that persists until the operator acts: the vendor's status, and what the log advises the operator.
const fn advice(class: Class) -> Option<(StatusCode, &'static str)> {
    match class {
        Class::ModelUnknown => Some((
            StatusCode::NOT_FOUND,
            "vendor has no such model; its route is paused: check routes[].model and the vendor's url",
        )),
        Class::KeyRefused(status) => Some((
            status,
            "vendor refused our key, which is parked: check the key and the account",
        )),
        Class::Forbidden => Some((
            StatusCode::FORBIDDEN,
            "vendor forbade a call; its route is paused: check whether the account may use this model",
        )),
        _ => None,
    }
}

fn words_of(error: &Error) -> Option<&VendorAnswered> {
    match error {
        Error::VendorUnavailable(cause) => cause.downcast_ref(),
        _ => None,
    }
}
