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
    setting::Setting,
    translate::TranslateLayer,
    upstream::Upstream,
};
use tower::{Service, ServiceBuilder};

use crate::{
    catalog::Catalog,
    config::Config,
    count_tokens::CountTokens,
    head::HeadLayer,
    limiter::AddressLimiter,
    live::Live,
    live_limits::LiveLimits,
    own::Own,
    panics::{self, PanicsLayer},
    paths::{Branches, Paths, branch},
    store::Store,
};

/// What comes out at the top.
pub type Answer = Response<respond::ResponseBody<panics::ResponseBody<AnswerBody>>>;

/// How many keys' request rates are remembered.
const KEYS_MAX: usize = 100_000;

/// The whole gateway as one service.
pub fn stack(
    config: &Config,
    limits: &LiveLimits,
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
    let ledger = &config.ledger;
    let tariff = ByTokens::new(ledger.hold, ledger.image_tokens, ledger.document_tokens);

    let request_number = RequestNumberLayer::new();
    let respond = RespondLayer::new(config.language);
    let panics = PanicsLayer;
    let head = HeadLayer::new(limits.head.clone());
    let in_flight = InFlightLayer::new(limits.in_flight_max.clone());
    let catalog_rate =
        RateLimitLayer::new(AddressLimiter::shared(store), by_address(&limits.catalog));
    let address_rate = RateLimitLayer::new(AddressLimiter::local(), by_address(&limits.callers));
    let guesses = RefusalLimitLayer::new(
        AddressLimiter::local(),
        by_address(&limits.unknown_keys),
        is_guess,
    );
    let key_rate = RateLimitLayer::new(Gcra::new(KEYS_MAX), by_key);
    let auth = AuthLayer::new(store.clone());
    let parse = ParseLayer::new(limits.parse.clone());
    let select = SelectLayer::new(Arc::clone(live), Funds(store.clone()));
    let hold_ttl = limits.hold_ttl.clone();
    let reserve = ReserveLayer::new(store.clone(), tariff, settler.clone(), hold_ttl);
    let failover = FailoverLayer::new(health.clone(), FailoverSettings::default());
    let translate = TranslateLayer::new();
    let passthrough = PassthroughLayer::new(limits.answer_bytes_max.clone());
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

/// Counts for the client's address; uncounted while there is no quota.
fn by_address<B>(
    quota: &Setting<Option<Quota>>,
) -> impl Fn(&Request<B>) -> Option<(IpAddr, Quota)> + Clone + Send + Sync + use<B> {
    let quota = quota.clone();
    move |req| Some((req.extensions().get::<ClientAddr>()?.block(), quota.get()?))
}

/// Whether a key was shown that could be one of ours and is not: what has no checksum is no guess.
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
