//! The way of a request, top to bottom. Nothing else assembles services.
//!
//! Below `paths` a request changes its type at each step, so that an order that would be wrong does
//! not compile; every [`Error`](tollgate_layers::Error) goes up to `respond`, which alone knows HTTP.

use std::{convert::Infallible, net::IpAddr, sync::Arc};

use http::{Request, Response};
use hyper::body::Incoming;
use tollgate_layers::{
    Error,
    auth::AuthLayer,
    body::AnswerBody,
    facts::{Caller, ClientAddr},
    failover::FailoverLayer,
    in_flight::{self, InFlightLayer},
    key::{KeyId, KeyRecord},
    parse::ParseLayer,
    passthrough::PassthroughLayer,
    rate_limit::{Gcra, Quota, RateLimitLayer},
    request_number::RequestNumberLayer,
    reserve::{ReserveLayer, Settler, refusal, tokens::ByTokens},
    respond::{self, RespondLayer},
    select::SelectLayer,
    translate::TranslateLayer,
    upstream::Upstream,
};
use tower::{Service, ServiceBuilder};

use crate::{
    catalog::Catalog,
    config::Config,
    limiter::AddressLimiter,
    live::Live,
    own::Own,
    paths::Paths,
    runtime::{CALL_TIME_MAX, HOLD_TTL, parse_limits},
    store::Store,
};

/// What comes out at the top.
pub type Answer = Response<respond::ResponseBody<in_flight::ResponseBody<AnswerBody>>>;

/// How many keys' request rates are remembered.
const KEYS_MAX: usize = 100_000;

/// The whole gateway as one service.
pub fn stack(
    config: &Config,
    live: &Arc<Live>,
    store: &Store,
    settler: &Settler,
) -> impl Service<Request<Incoming>, Response = Answer, Error = Infallible, Future: Send>
+ Clone
+ Send
+ Sync
+ 'static {
    let limits = &config.limits;
    let tariff = ByTokens::new(
        config.ledger.hold,
        config.ledger.image_tokens,
        config.ledger.document_tokens,
    );
    let inference_quota = limits.requests_per_second.map(Quota::per_second);
    let catalog_quota = Quota::per_second(limits.catalog_requests_per_second);
    let by_address = AddressLimiter::local();

    let inference = ServiceBuilder::new()
        .layer(RateLimitLayer::new(
            by_address.clone(),
            address_of(inference_quota),
        )) // 429  per address
        .layer(AuthLayer::new(store.clone())) //                     401 403  + Caller; the key leaves the request
        .layer(RateLimitLayer::new(Gcra::new(KEYS_MAX), key_of)) //  429      per key, if the key has a rate
        .layer(ParseLayer::new(parse_limits(limits))) //             400 413  Request<B> → Request<Call>
        .layer(SelectLayer::new(Arc::clone(live), Funds(store.clone()))) // 503 403  → Request<Priced>: one snapshot
        .layer(ReserveLayer::new(
            store.clone(),
            tariff,
            settler.clone(),
            HOLD_TTL,
        )) // 401 403  hold; ended once
        .layer(FailoverLayer::new()) //                              503      → Request<Attempt>: a route
        .layer(TranslateLayer::new()) //                             400      → Request<Outbound>: the vendor's format
        .layer(PassthroughLayer::new(limits.answer_bytes_max as usize)) //    usage off the frames, into the call's meter
        .service(Upstream::new(CALL_TIME_MAX)); //                   502 504  hyper client
    let own = ServiceBuilder::new()
        .layer(RateLimitLayer::new(by_address, address_of(inference_quota))) // 429  per address
        .layer(AuthLayer::new(store.clone())) //                     401 403  + Caller
        .service(Own::new(Arc::clone(live), store.clone())); //               what a key may know of itself
    let catalog = ServiceBuilder::new()
        .layer(RateLimitLayer::new(
            AddressLimiter::shared(store),
            address_of(Some(catalog_quota)),
        )) // 429  per address
        .service(Catalog::new(Arc::clone(live)));
    ServiceBuilder::new()
        .layer(RequestNumberLayer::new()) //                                  + RequestNumber
        .layer(RespondLayer::new(config.language)) //                         Error → JSON with the number
        .layer(InFlightLayer::new(limits.in_flight_max)) //          503      permit until the body ends
        .service(Paths::new(&config.service, inference, own, catalog)) // 404 405
}

/// Counts for the client's address; uncounted where there is no quota.
fn address_of<B>(
    quota: Option<Quota>,
) -> impl Fn(&Request<B>) -> Option<(IpAddr, Quota)> + Clone + Send + Sync {
    move |req| Some((req.extensions().get::<ClientAddr>()?.block(), quota?))
}

/// Counts for the key, at the key's own rate.
fn key_of<B>(req: &Request<B>) -> Option<(KeyId, Quota)> {
    let Caller(key) = req.extensions().get()?;
    Some((key.id.clone(), Quota::per_second(key.requests_per_second?)))
}

/// Tells `select` whether a key has anything to spend.
#[derive(Clone, Debug)]
struct Funds(Store);

impl tollgate_layers::key::Funds for Funds {
    async fn check(&self, key: &KeyRecord) -> Result<(), Error> {
        use tollgate_layers::{money::MicroRub, reserve::ledger::Ledger};
        self.0
            .probe(&key.account, &key.id)
            .await
            .map_err(|error| refusal(error, MicroRub::ZERO))
    }
}
