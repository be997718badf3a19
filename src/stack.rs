//! The way of a request, top to bottom. Nothing else assembles services.
//!
//! Below `paths` a request changes its type at each step, so that an order that would be wrong does
//! not compile. `server` feeds the top and tells each request its client's address; what `reserve` has
//! held ends in the settler, off the caller's way. Every [`Error`] goes up to `respond`, which alone knows HTTP.

use std::{convert::Infallible, net::IpAddr, sync::Arc};

use http::{Request, Response};
use hyper::body::Incoming;
use tollgate_layers::{
    Error,
    auth::AuthLayer,
    body::AnswerBody,
    facts::{Caller, ClientAddr},
    failover::{FailoverLayer, FailoverSettings, Health},
    in_flight::InFlightLayer,
    key::{KeyId, KeyRecord},
    parse::ParseLayer,
    passthrough::PassthroughLayer,
    rate_limit::{Gcra, Quota, RateLimitLayer, RefusalLimitLayer},
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
    count_tokens::CountTokens,
    head::{HeadLayer, HeadLimits},
    limiter::AddressLimiter,
    live::Live,
    own::Own,
    panics::{self, PanicsLayer},
    paths::{Branches, Paths, branch},
    runtime::parse_limits,
    store::Store,
};

/// What comes out at the top.
pub type Answer = Response<respond::ResponseBody<panics::ResponseBody<AnswerBody>>>;

/// How many keys' request rates are remembered.
const KEYS_MAX: usize = 100_000;

/// The whole gateway as one service.
pub fn stack(
    config: &Config,
    live: &Arc<Live>,
    store: &Store,
    settler: &Settler,
    health: &Health,
    upstream: &Upstream,
) -> impl Service<Request<Incoming>, Response = Answer, Error = Infallible, Future: Send>
+ Clone
+ Send
+ Sync
+ 'static {
    let (limits, ledger) = (&config.limits, &config.ledger);
    let tariff = ByTokens::new(ledger.hold, ledger.image_tokens, ledger.document_tokens);
    let hold_ttl = limits.call_time_max + ledger.hold_grace;
    let catalog_quota = Some(Quota::per_second(limits.catalog_requests_per_second));
    let caller_quota = limits.requests_per_second.map(Quota::per_second);

    let guess_quota = Some(Quota {
        per_second: limits.unknown_keys_per_second,
        burst: limits.unknown_keys_burst,
    });
    let head_limits = HeadLimits {
        uri_bytes_max: limits.uri_bytes_max,
        headers_max: limits.connections.headers_max,
        bytes_max: limits.connections.head_bytes_max,
    };

    let request_number = RequestNumberLayer::new();
    let respond = RespondLayer::new(config.language);
    let panics = PanicsLayer;
    let head = HeadLayer::new(head_limits);
    let in_flight = InFlightLayer::new(limits.in_flight_max);
    let catalog_rate =
        RateLimitLayer::new(AddressLimiter::shared(store), by_address(catalog_quota));
    let address_rate = RateLimitLayer::new(AddressLimiter::local(), by_address(caller_quota));
    let guesses =
        RefusalLimitLayer::new(AddressLimiter::local(), by_address(guess_quota), is_guess);
    let key_rate = RateLimitLayer::new(Gcra::new(KEYS_MAX), by_key);
    let auth = AuthLayer::new(store.clone());
    let parse = ParseLayer::new(parse_limits(limits));
    let select = SelectLayer::new(Arc::clone(live), Funds(store.clone()));
    let reserve = ReserveLayer::new(store.clone(), tariff, settler.clone(), hold_ttl);
    let failover = FailoverLayer::new(health.clone(), FailoverSettings::default());
    let translate = TranslateLayer::new();
    let passthrough = PassthroughLayer::new(limits.answer_bytes_max);
    let upstream = upstream.clone();

    let callers = ServiceBuilder::new()
        .layer(in_flight.clone()) // 503      permit until the body ends
        .layer(address_rate) //   429      per address, before the key costs a look-up
        .layer(guesses) //        429      per address, unknown keys alone: good ones go on
        .layer(auth) //           401 403  + Caller; the key leaves the request here
        .layer(key_rate); //      429      per key
    let calls = callers
        .clone()
        .layer(parse) //          400 413 503  bounded in all; Request<B> → Request<Call>
        .layer(select); //        503 403  → Request<Priced>: one snapshot for the whole call
    let inference = calls
        .clone()
        .layer(reserve) //        401 403  hold; settled or released on end or drop
        .layer(failover) //       503      → Request<Attempt>: a route, and the next one before the first byte
        .layer(translate) //      400      → Request<Outbound>: the vendor's format; events back
        .layer(passthrough) //             reads usage off the frames, into the call's meter
        .service(upstream.clone()); // 502 504  hyper client: address, key, timeouts of the vendor
    let count = calls.service(CountTokens::new(upstream)); //  free: nothing is held
    let own = callers.service(Own::new(Arc::clone(live), store.clone()));
    let catalog = ServiceBuilder::new()
        .layer(in_flight) //      503      the same permits
        .layer(catalog_rate) //   429      10 per second per address
        .service(Catalog::new(Arc::clone(live)));
    let branches = Branches {
        inference: branch(inference),
        count: branch(count),
        own: branch(own),
        catalog: branch(catalog),
    };
    ServiceBuilder::new()
        .layer(request_number) //          + RequestNumber
        .layer(respond) //                 Error → JSON with the number; above it: Infallible
        .layer(panics) //         500      in the call and in its body
        .layer(head) //           400 414 431  before anything is decided by it
        .service(Paths::new(&config.service, branches)) // 404 405
}

/// Counts for the client's address; uncounted where there is no quota.
fn by_address<B>(
    quota: Option<Quota>,
) -> impl Fn(&Request<B>) -> Option<(IpAddr, Quota)> + Clone + Send + Sync {
    move |req| Some((req.extensions().get::<ClientAddr>()?.block(), quota?))
}

/// Whether a key was shown that had to be looked up and is not there: a typo of ours is seen by its
/// checksum and is no guess, a key of another issuer's form is one.
const fn is_guess(error: &Error) -> bool {
    matches!(error, Error::KeyUnknown)
}

/// Counts for the key, at the key's own rate.
fn by_key<B>(req: &Request<B>) -> Option<(KeyId, Quota)> {
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
