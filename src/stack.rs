//! The way of a request, top to bottom: a caller's, and an operator's. Nothing else assembles services.
//!
//! Below the callers' `paths` a request changes its type at each step, so that an order that would be wrong does
//! not compile. `server` feeds the top and tells each request its client's address; what `reserve` has
//! held ends in the settler, off the caller's way. Every [`Error`] goes up to `respond`, which alone knows HTTP.

use std::{convert::Infallible, future::ready, net::IpAddr, sync::Arc};

use http::{Request, Response};
use http_body::Body;
use secrecy::SecretString;
use tollgate_layers::{
    Error,
    auth::AuthLayer,
    body::AnswerBody,
    error::{BoxError, Limit},
    facts::{Caller, ClientAddr},
    failover::{FailoverLayer, FailoverSettings, Health},
    idempotency::IdempotencyLayer,
    in_flight::{self, InFlightLayer},
    key::{KeyId, KeyRecord},
    parse::ParseLayer,
    passthrough::PassthroughLayer,
    rate_limit::{Gcra, Quota, RateLimitLayer, RateVerdictLayer, RefusalLimitLayer},
    request_number::RequestNumberLayer,
    reserve::{ReserveLayer, Settler, refusal, tokens::ByTokens},
    respond::{self, Language, RespondLayer},
    select::SelectLayer,
    setting::Setting,
    translate::TranslateLayer,
    upstream::Upstream,
};
use tower::{Service, ServiceBuilder};

use crate::{
    admin::{self, Admin, AdminAuthLayer, BodyLimitLayer, OperatorsShape, Routes, WhichCall},
    catalog::snapshot::Live,
    config::Config,
    console::ConsoleLayer,
    edge::{
        head::{HeadLayer, HeadLimits},
        limiter::{AddressLimiter, Counted},
        panics::{self, PanicsLayer},
        server::RequestBody,
    },
    endpoints::{
        any_origin::AnyOriginLayer,
        catalog, connect,
        count_tokens::CountTokens,
        estimate::{self, Estimate},
        key_info::KeyInfo,
        openapi,
        own_keys::OwnKeys,
        page,
        payments::{KeyPayments, Notifications},
        receipts::Receipts,
        router::{Branches, Paths, boxed, boxed_with_body, from_boxed},
        spending::Spending,
        usage_page,
    },
    idempotency::{self, AnyAnswers, Books},
    ledger::AnyLedger,
    node::{
        limits::LiveLimits,
        rates::{KEYS_MAX, KeyRates},
    },
    observe::{
        metrics::{ledger::Measured, requests::LimitedBy},
        record::{self, AttemptsLayer, Calls, ObserveLayer, RecordLayer},
    },
    payments::Payments,
};

/// What comes out at the top of the callers' list.
pub type Answer = Response<
    respond::ResponseBody<
        record::ResponseBody<panics::ResponseBody<in_flight::ResponseBody<AnswerBody>>>,
    >,
>;

/// What comes out at the top of the operators' list.
pub type OperatorsAnswer = Response<
    respond::ResponseBody<panics::ResponseBody<admin::AnswerBody, WhichCall>, OperatorsShape>,
>;

/// What the layers share with the rest of the gateway.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    /// What a reload does not change.
    pub config: &'a Config,
    /// What it does.
    pub limits: &'a LiveLimits,
    /// Models and prices in force.
    pub live: &'a Arc<Live>,
    /// Where the books are kept.
    pub store: &'a AnyLedger,
    /// Ends holds.
    pub settler: &'a Settler,
    /// What keys have asked and used by the minute.
    pub rates: &'a KeyRates,
    /// What is known of vendors.
    pub health: &'a Health,
    /// The way to them.
    pub upstream: &'a Upstream,
    /// Counts calls and writes their lines.
    pub calls: &'a Calls,
    /// Payments at providers.
    pub payments: &'a Payments,
}

/// All that callers are answered by, as one service.
pub fn callers(
    Shared {
        config,
        limits,
        live,
        store,
        settler,
        rates,
        health,
        upstream,
        calls: observed,
        payments,
    }: Shared<'_>,
) -> impl Service<Request<RequestBody>, Response = Answer, Error = Infallible, Future: Send>
+ Clone
+ Send
+ Sync
+ 'static {
    let ledger = &config.ledger;
    let tariff = ByTokens::new(ledger.hold, ledger.image_tokens, ledger.document_tokens)
        .search_tokens(ledger.search_tokens);

    let metrics = observed.metrics();
    let counted = |by| metrics.requests.limited(by);
    let by_address_counted = |limiter, by| Counted::new(limiter, counted(by));
    let books = Measured::new(store.clone(), Arc::clone(metrics));

    let request_number = RequestNumberLayer::new();
    let any_origin = AnyOriginLayer::new(&config.service);
    let respond = RespondLayer::new(config.language).without_log();
    let observe = ObserveLayer::new(observed.clone());
    let panics = PanicsLayer::new();
    let head = HeadLayer::new(limits.head.clone());
    let in_flight = InFlightLayer::new(limits.in_flight_max.clone());
    let catalog_rate = RateLimitLayer::new(
        by_address_counted(AddressLimiter::shared(store), LimitedBy::Catalog),
        by_address(&limits.catalog),
    );
    let address_rate = RateLimitLayer::new(
        by_address_counted(AddressLimiter::local(), LimitedBy::Address),
        by_address(&limits.callers),
    );
    let guesses = RefusalLimitLayer::new(
        by_address_counted(AddressLimiter::local(), LimitedBy::UnknownKey),
        by_address(&limits.unknown_keys),
        is_guess,
    );
    let key_rate = Counted::new(Gcra::new(KEYS_MAX), counted(LimitedBy::Key));
    let key_rate =
        RateLimitLayer::new(key_rate, by_key_and_second).named(Limit::KeyRequestsPerSecond);
    let key_minute_rate = Counted::new(rates.requests.clone(), counted(LimitedBy::Key));
    let key_minute_rate =
        RateLimitLayer::new(key_minute_rate, by_key_and_minute).named(Limit::KeyRequestsPerMinute);
    let key_tokens = Counted::new(rates.tokens.clone(), counted(LimitedBy::Key));
    let key_tokens =
        RateLimitLayer::new(key_tokens, tokens_by_key).named(Limit::KeyTokensPerMinute);
    let rate_verdict = RateVerdictLayer::new();
    let auth = AuthLayer::new(books.clone());
    let parse = ParseLayer::new(limits.parse.clone());
    let idempotency = IdempotencyLayer::new(
        AnyAnswers::beside(store, config),
        Books {
            store: store.clone(),
            leased: !ledger.lease_max.is_zero(),
        },
        config.idempotency.settings,
        idempotency::report(&metrics.idempotency),
    );
    let select = SelectLayer::new(Arc::clone(live), Funds(books.clone()));
    let reserve = ReserveLayer::new(books, tariff, settler.clone(), limits.hold_ttl.clone());
    let failover = FailoverLayer::new(health.clone(), FailoverSettings::default());
    let attempts = AttemptsLayer::new(Arc::clone(metrics));
    let translate = TranslateLayer::new();
    let passthrough = PassthroughLayer::new(limits.answer_bytes_max.clone());
    let upstream = upstream.clone();

    let callers = ServiceBuilder::new()
        .layer(in_flight.clone()) // 503      permit until the body ends
        .layer(RecordLayer(record::admitted))
        .layer(address_rate.clone()) // 429   per address, before the key costs a look-up
        .layer(guesses) //        429      per address, unknown keys alone: good ones go on
        .layer(auth) //           401 403 503  + Caller; the key leaves the request here
        .layer(RecordLayer(record::known))
        .layer(key_rate); //      429      per key, by the second
    let callers_of_calls = callers
        .clone()
        .layer(key_minute_rate.clone().early()) // 429  per key, by the minute: where it waits for Redis, below the hold
        .layer(key_tokens.clone().early()); // 429      the same; the settler tells what calls took
    let callers = callers.layer(key_minute_rate); // 429  for all other paths here
    let callers_of_models = callers.clone().layer(key_tokens); // 429
    let parsed = ServiceBuilder::new()
        .layer(parse) //          400 408 413 415 503  bounded in all; Request<B> → Request<Call>
        .layer(RecordLayer(record::parsed));
    let calls = parsed.clone().layer(select.clone()); // 400 503 403  → Request<Priced>: one snapshot for the whole call
    let inference = ServiceBuilder::new()
        .layer(reserve) //    400 401 403 503  hold; settled or released on end or drop
        .layer(RecordLayer(record::granted))
        .layer(rate_verdict) //   429      what was asked above; Redis has answered both by now. Who answers above it waits too
        .layer(failover) //       429 503  → Request<Attempt>: a route, and the next one before the first byte
        .layer(attempts) //                counts how soon each vendor answers, or that it does not
        .layer(translate) //      400      → Request<Outbound>: the vendor's format; events back
        .layer(passthrough) //             reads usage off the frames, into the call's meter
        .layer(RecordLayer(record::sent))
        .service(upstream.clone()); // 429 502 503 504  hyper client: address, key, timeouts of the vendor
    // Boxed on the way too: a compiler's work doubles with each layer that it has to see through.
    let inference = parsed
        .layer(idempotency) //    400 409 422 429  a call that is sent again is one: above prices, which may have changed
        .layer(select)
        .service(boxed_with_body(inference));
    let inference = callers_of_calls.service(from_boxed(inference));
    let count = CountTokens::new(upstream); //  free: nothing is held
    let count = calls.clone().service(boxed(count));
    let count = callers_of_models.clone().service(from_boxed(count));
    let estimate = Estimate::new(store.clone(), tariff); //  free: nothing is held
    let estimate = callers_of_models.service(from_boxed(
        ServiceBuilder::new()
            .map_request(estimate::as_call::<RequestBody>) // whose body it is: no path says that
            .layer(calls)
            .service(boxed(estimate)),
    ));
    let key_info = callers
        .clone()
        .service(KeyInfo::new(Arc::clone(live), store.clone()));
    let receipts = callers.clone().service(Receipts::new(store.clone()));
    let spending = callers.clone().service(Spending::new(store.clone()));
    let body_limit = BodyLimitLayer::default();
    let own_keys = callers
        .clone()
        .layer(body_limit) //     408 413  64 KiB within 10 seconds, read where it is asked for
        .service(OwnKeys::new(Arc::clone(live), store.clone()));
    let key_payments = callers
        .layer(body_limit) //     408 413  the same
        .service(KeyPayments::new(payments.clone()));
    let notifications = ServiceBuilder::new()
        .layer(in_flight.clone()) // 503      the same permits
        .layer(RecordLayer(record::admitted))
        .layer(address_rate) //   429      per address, as for callers
        .layer(body_limit) //     408 413  nothing of it is believed
        .service(Notifications::new(payments.clone()));
    let public = ServiceBuilder::new()
        .layer(in_flight) //      503      the same permits
        .layer(RecordLayer(record::admitted))
        .layer(catalog_rate); //  429      10 per second per address
    let document = |answer: catalog::Answer<RequestBody>| {
        let live = Arc::clone(live);
        let answers = move |req: Request<RequestBody>| ready(answer(&live, &req));
        boxed(public.clone().service_fn(answers))
    };
    let branches = Branches {
        inference: boxed(inference),
        count: boxed(count),
        estimate: boxed(estimate),
        key_info: boxed(key_info),
        receipts: boxed(receipts),
        spending: boxed(spending),
        payments: boxed(key_payments),
        notifications: boxed(notifications),
        own_keys: boxed(own_keys),
        usage_page: document(usage_page::answer),
        catalog: document(catalog::answer),
        page: document(page::answer),
        connect: document(connect::answer),
        openapi: document(openapi::answer),
    };
    ServiceBuilder::new()
        .layer(request_number) //          + RequestNumber
        .layer(any_origin) //              refusals of the price list may be read from anywhere, as it may
        .layer(respond) //                 Error → JSON with the number; above it: Infallible
        .layer(observe) //                 + CallRecord, written by each RecordLayer below; one log line, the counters
        .layer(panics) //         500      in the call and in its body
        .layer(head) //           400 414 431  before anything is decided by it
        .service(Paths::new(&config.service, branches)) // 404 405
}

/// All that operators are answered by, as one service. `key` is the admin key.
pub fn operators<B>(
    key: &SecretString,
    admin: Admin,
    console: ConsoleLayer,
) -> impl Service<Request<B>, Response = OperatorsAnswer, Error = Infallible, Future: Send>
+ Clone
+ Send
+ Sync
+ 'static
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    let request_number = RequestNumberLayer::new();
    let respond = RespondLayer::new(Language::En)
        .shaped_by(OperatorsShape)
        .without_log();
    let panics = PanicsLayer::new().witnessed_by::<WhichCall>();
    let head = HeadLayer::new(HeadLimits::OF_THE_SERVER);
    let admin_auth = AdminAuthLayer::new(key);
    let body_limit = BodyLimitLayer::default();
    ServiceBuilder::new()
        .layer(request_number) //          + RequestNumber
        .layer(respond) //                 Error → JSON in the operators' words; above it: Infallible
        .layer(panics) //         500      in the call and in its body; the log is told which call it was
        .layer(head) //           400      one length, one host; no limits but the server's
        .layer(admin_auth) //     401      where a route needs the key; what is no route is let through to its 404
        .layer(body_limit) //     408 413  Request<B> → Request<UnreadBody>: read where a route asks for it
        .layer(console) //        303 401 403 429  pages, for whoever has signed in: they ask what stands below
        .service(Routes::new(admin)) // 404 405, and what the ledger says
}

/// Counts for the client's address; uncounted while there is no quota.
fn by_address<B>(
    quota: &Setting<Option<Quota>>,
) -> impl Fn(&Request<B>) -> Option<(IpAddr, Quota)> + Clone + Send + Sync + use<B> {
    let quota = quota.clone();
    move |req| Some((req.extensions().get::<ClientAddr>()?.block(), quota.get()?))
}

/// Whether a key was shown that had to be looked up and is not there: a typo of ours is seen by its
/// checksum and is no guess, a key of another issuer's form is one.
const fn is_guess(error: &Error) -> bool {
    matches!(error, Error::KeyUnknown)
}

/// Counts for the key, at the key's own rate.
fn by_key_and_second<B>(req: &Request<B>) -> Option<(KeyId, Quota)> {
    let Caller(key) = req.extensions().get()?;
    Some((key.id.clone(), Quota::per_second(key.requests_per_second?)))
}

/// The same by the minute.
fn by_key_and_minute<B>(req: &Request<B>) -> Option<(KeyId, Quota)> {
    let Caller(key) = req.extensions().get()?;
    Some((key.id.clone(), Quota::per_minute(key.requests_per_minute?)))
}

/// Counts the key's tokens; a minute's may be used at once.
fn tokens_by_key<B>(req: &Request<B>) -> Option<(KeyId, Quota)> {
    let Caller(key) = req.extensions().get()?;
    let tokens = key.tokens_per_minute?;
    Some((key.id.clone(), Quota::per_minute(tokens).with_burst(tokens)))
}

/// Tells `select` whether a key has anything to spend.
#[derive(Clone, Debug)]
struct Funds(Measured<AnyLedger>);

impl tollgate_layers::key::Funds for Funds {
    async fn check(&self, key: &KeyRecord) -> Result<(), Error> {
        use tollgate_layers::{money::MicroRub, reserve::ledger::Ledger};
        self.0
            .probe(&key.account, &key.id)
            .await
            .map_err(|error| refusal(error, MicroRub::ZERO, true))
    }
}
