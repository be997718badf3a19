//! The layers that a caller's request passes through, from top to bottom. The submodules assemble the layers for other
//! requests: `operators` for operators' requests, `member` for the playground of the customer portal, `one_vendor` for
//! a test of a vendor. `parts` creates the layers from their settings. Services are assembled only here.
//!
//! Below the callers' router, each layer changes the type of the request, so that a wrong order does not compile. Every
//! [`Error`](tollgate_layers::Error) goes up to `respond`, the only layer that turns an error into an HTTP response.

mod member;
mod one_vendor;
mod operators;
mod parts;

use std::{convert::Infallible, sync::Arc};

use http::Request;
use tollgate_layers::{
    rate_limit::RateVerdictLayer, request_number::RequestNumberLayer, translate::TranslateLayer,
    upstream::Upstream,
};
use tower::{Service, ServiceBuilder};

use self::parts::Parts;
use crate::{
    cabinet::playground::as_chat,
    edge::{
        body_limit::limit_body,
        head::HeadLayer,
        panics::PanicsLayer,
        router::{BoxedService, PathBody, Router, Services, boxed, boxed_with_body, from_boxed},
        routes::{Route, Routes},
        server::RequestBody,
    },
    endpoints::{
        catalog, connect, count_tokens::CountTokens, estimate, handler::handled, key_info::KeyInfo,
        openapi, own_keys::OwnKeys, page, payments, receipts::Receipts, spending::Spending,
        usage_page,
    },
    observe::record::{self, AttemptsLayer, ObserveLayer},
};

pub(crate) use self::one_vendor::one_vendor;
pub use self::operators::{OperatorsAnswer, operators};
pub use self::parts::{Answer, Shared};

/// Builds the service that handles callers' requests.
#[rustfmt::skip] // A layer a line, with the statuses with which it refuses.
pub fn callers(shared: Shared<'_>) -> impl Service<Request<RequestBody>, Response = Answer, Error = Infallible, Future: Send> + Clone + Send + Sync + 'static {
    let (parts, routes) = (Parts::new(shared), Routes::new(&shared.config.service));
    ServiceBuilder::new()
        .layer(RequestNumberLayer::new()) //               + RequestNumber
        .layer(parts.cors(&routes)) //                     CORS headers, on refusals too
        .layer(parts.respond()) //                         Error → JSON with the number; above it: Infallible
        .layer(ObserveLayer::new(shared.calls.clone())) // + CallRecord, filled by the functions of `record` below; writes the log line, counts
        .layer(PanicsLayer::new()) //         500          in the call and in its body
        .layer(HeadLayer::new(shared.limits.head.clone())) // 400 414 431  before any layer uses the head
        .layer(parts.wrong_paths()) //        429          per address: unknown paths count like known ones
        .service(Router::new(routes, services(&parts, shared))) // 404 405
}

/// Builds one service for each route of the callers' listener.
#[rustfmt::skip]
fn services(parts: &Parts<'_>, shared: Shared<'_>) -> Services<RequestBody> {
    let Shared { live, store, upstream, payments: paying, .. } = shared;
    // Half-stacks: layers that several paths have in common. Each one adds layers to an earlier one.
    let admission = ServiceBuilder::new()
        .layer(parts.in_flight.clone()) //    503          permit until the body ends
        .map_request(record::admitted);
    let public = admission.clone()
        .layer(parts.catalog_rate()); //      429          10 per second per address
    let open = admission
        .layer(parts.address_rate()); //      429          per address, before a key is looked up
    let notified = open.clone()
        .map_request(limit_body::<RequestBody>); // 408 413   64 KiB; the content is not trusted
    let before_key = open.clone()
        .layer(parts.guesses()); //           429          per address, only unknown keys; known keys pass
    let key_check = ServiceBuilder::new()
        .layer(parts.auth()) //               401 403 503  + Caller; removes the key from the request
        .map_request(record::known)
        .layer(parts.key_rate()); //          429          per key, per second
    let limited = ServiceBuilder::new()
        .layer(parts.key_minute_rate()); //   429          per key, per minute
    let free = limited.clone()
        .layer(parts.key_tokens()); //        429          per key, tokens per minute; here for calls that cost nothing
    let parsed = ServiceBuilder::new()
        .layer(parts.parse.clone()) //        400 408 413 415 503  bounds and parses the body; Request<B> → Request<Call>
        .map_request(record::parsed)
        .layer(parts.select()); //            400 503 403  → Request<Priced>: one snapshot for the whole call
    // Boxed on both sides, so that the compiler processes the layers that check the key once, not once for each path.
    let with_key = |below: BoxedService<RequestBody>| -> BoxedService<RequestBody, PathBody> {
        boxed(before_key.clone().service(boxed(key_check.clone().service(from_boxed(below)))))
    };
    let as_member = |below| shared.cabinet.map_or_else(page::unknown, |cabinet| boxed(before_key.clone().service(member::member(parts, cabinet, below))));
    let calls = inference(parts, upstream);
    let inference = with_key(calls.clone());
    let count = with_key(boxed(free.clone().service(parsed.clone().service(boxed(CountTokens(upstream.clone()))))));
    let estimates = boxed(free
        .map_request(estimate::as_call::<RequestBody>) //  sets the operation, which the path does not determine
        .service(parsed.service(handled(estimate::Estimate { store: store.clone(), tariff: parts.tariff.clone() }))));
    let estimate = with_key(estimates.clone());
    let reading = |handler| with_key(boxed(limited.clone().service(handler)));
    let changing = |handler| with_key(boxed(limited.clone().map_request(limit_body::<RequestBody>).service(handler))); // 408 413, when the handler reads
    let document = |answer| boxed(public.clone().service(parts.document(answer)));
    Route::ALL.map(|route| match route {
        Route::Chat | Route::Messages | Route::Responses | Route::Embeddings => inference.clone(),
        Route::CountTokens => count.clone(),
        Route::Estimate => estimate.clone(),
        Route::Key | Route::Models | Route::Model => reading(handled(KeyInfo { live: Arc::clone(live), store: store.clone() })),
        Route::Receipts | Route::Receipt => reading(handled(Receipts(store.clone()))),
        Route::Spending => reading(handled(Spending::new(store.clone()))),
        Route::OwnKeys | Route::OwnKey => changing(handled(OwnKeys { live: Arc::clone(live), store: store.clone() })),
        Route::Payments | Route::AutoTopup => changing(handled(payments::KeyPayments(paying.clone()))),
        Route::Notification => boxed(notified.clone().service(handled(payments::Notifications(paying.clone())))),
        Route::Catalog => document(catalog::answer),
        Route::Connect | Route::ConnectClient => document(connect::answer),
        Route::UsagePage => document(usage_page::answer),
        Route::UsagePageFile => boxed(open.clone().service(parts.document(usage_page::answer))),
        Route::Cabinet | Route::CabinetPage => shared.cabinet.map_or_else(page::unknown, |cabinet| boxed(notified.clone().service(handled(cabinet.clone())))),
        Route::PlayCall => as_member(boxed(ServiceBuilder::new().map_request(as_chat::<RequestBody>).service(calls.clone()))),
        Route::PlayEstimate => as_member(estimates.clone()),
        Route::OpenApi => document(openapi::answer),
        Route::Page => page::or_nothing(document(page::answer)),
        Route::Hello => page::hello(),
    })
}

/// Builds the layers of a model call, from the rate limits of its key down to its vendor. The layers are split into
/// boxed groups, because compile time doubles with every nested layer.
#[rustfmt::skip]
fn inference(parts: &Parts<'_>, upstream: &Upstream) -> BoxedService<RequestBody> {
    let inference = ServiceBuilder::new()
        .layer(parts.reserve()) //            400 401 403 503  hold; settled or released on end or drop
        .map_request(record::granted)
        .layer(RateVerdictLayer::new()) //    429          awaits the rate decisions started above, which Redis makes during the hold. Replayed answers wait for them, too
        .layer(parts.failover()) //           429 503      → Request<Attempt>: a route; on failure before the first byte, the next one
        .layer(AttemptsLayer(Arc::clone(parts.metrics()))) // counts each vendor's answers, failures and delays
        .layer(TranslateLayer::new()) //      400          → Request<Outbound>: the vendor's format; translates events back
        .layer(parts.passthrough()) //        502          reads usage from the frames into the call's meter
        .map_request(record::sent)
        .service(upstream.clone()); //        429 502 503 504  hyper client: address, key, timeouts of the vendor
    let inference = ServiceBuilder::new()
        .layer(parts.parse_for_money()) //    400 401 403 408 413 415 503  as `parse`, but does not read a large body if the key has no money
        .map_request(record::parsed)
        .layer(parts.idempotency()) //        400 409 422 429  a repeated call runs once; above `select`, because prices may have changed
        .layer(parts.select())
        .service(boxed_with_body(inference));
    boxed(ServiceBuilder::new()
        .layer(parts.key_minute_rate().early()) // 429     per key, per minute; with Redis, decided during the hold
        .layer(parts.key_tokens().early()) //  429         per key, tokens per minute; the settler reports usage
        .service(from_boxed(inference)))
}
