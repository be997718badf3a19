//! Creates the layers for callers' requests from their settings. The module `stack` puts the layers in order.

use std::{
    future::{Ready, ready},
    net::IpAddr,
    sync::Arc,
};

use http::{Request, Response};
use tollgate_layers::{
    Error,
    auth::AuthLayer,
    body::AnswerBody,
    error::Limit,
    facts::{Caller, ClientAddr},
    failover::{FailoverLayer, FailoverSettings, Health},
    idempotency::IdempotencyLayer,
    in_flight::{self, InFlightLayer},
    key::KeyId,
    parse::ParseLayer,
    passthrough::PassthroughLayer,
    rate_limit::{Gcra, Quota, RateLimitLayer, RefusalLimitLayer},
    reserve::{LedgerFunds, ReserveLayer, Settler, tokens::ByTokens},
    respond::{self, RespondLayer},
    select::SelectLayer,
    setting::Setting,
    upstream::Upstream,
};
use tower::util::{ServiceFn, service_fn};

use crate::{
    cabinet::Cabinet,
    catalog::snapshot::Live,
    config::Config,
    edge::{cors::CorsLayer, panics, routes::Routes},
    endpoints::catalog,
    idempotency::{self, AnyAnswers, Books},
    ledger::AnyLedger,
    observe::{
        metrics::{Metrics, ledger::InstrumentedLedger, requests::LimitedBy},
        record::{self, Calls},
    },
    payments::Payments,
    state::{
        limiter::{AddressLimiter, Counted},
        limits::LiveLimits,
        rates::{KEYS_MAX, KeyRates, KeyRequests, KeyTokens},
    },
};

/// The response type of the outermost layer for callers.
pub type Answer = Response<
    respond::ResponseBody<
        record::ResponseBody<panics::ResponseBody<in_flight::ResponseBody<AnswerBody>>>,
    >,
>;

/// State of the gateway that the layers use.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    /// The configuration. Layers read from it only settings that a reload does not change.
    pub config: &'a Config,
    /// The limits that a reload can change.
    pub limits: &'a LiveLimits,
    /// The models and prices in force.
    pub live: &'a Arc<Live>,
    /// The ledger in which calls are booked.
    pub store: &'a AnyLedger,
    /// The settler, which settles or releases holds when calls end.
    pub settler: &'a Settler,
    /// Counters of requests and tokens per minute, per key.
    pub rates: &'a KeyRates,
    /// The record of which routes to vendors fail.
    pub health: &'a Health,
    /// The HTTP client for vendors.
    pub upstream: &'a Upstream,
    /// Counts requests and writes a log line for each.
    pub calls: &'a Calls,
    /// Payments of customers at payment providers.
    pub payments: &'a Payments,
    /// The customer portal; `None` if it is not configured.
    pub cabinet: Option<&'a Cabinet>,
}

type DocumentFuture = Ready<Result<Response<AnswerBody>, Error>>;

/// Counts requests per client address, on callers' paths and on public paths.
type PerAddress = Counted<AddressLimiter>;

/// Layers that several half-stacks use, and the values from which the other layers are created.
pub(super) struct Parts<'a> {
    shared: Shared<'a>,
    pub(super) in_flight: InFlightLayer,
    pub(super) parse: ParseLayer,
    pub(super) tariff: ByTokens,
    books: InstrumentedLedger<AnyLedger>,
    addresses: PerAddress,
    key_seconds: Counted<Gcra<KeyId>>,
}

impl<'a> Parts<'a> {
    pub(super) fn new(shared: Shared<'a>) -> Self {
        let metrics = shared.calls.metrics();
        let (ledger, limits) = (&shared.config.ledger, shared.limits);
        Self {
            in_flight: InFlightLayer::new(limits.in_flight_max.clone()),
            parse: ParseLayer::new(limits.parse.clone()),
            tariff: ByTokens::new(ledger.hold, ledger.image_tokens, ledger.document_tokens)
                .search_tokens(ledger.search_tokens)
                .call_time_max(limits.call_time_max.clone())
                .conversations_max(ledger.hold_conversations_max),
            books: InstrumentedLedger::new(shared.store.clone(), Arc::clone(&metrics.ledger)),
            addresses: counted(metrics, AddressLimiter::local(), LimitedBy::Address),
            key_seconds: counted(metrics, Gcra::new(KEYS_MAX), LimitedBy::Key),
            shared,
        }
    }

    pub(super) fn cors(&self, routes: &Routes) -> CorsLayer {
        CorsLayer::new(routes.clone(), self.shared.limits.cors_origins.clone())
    }

    pub(super) fn respond(&self) -> RespondLayer {
        RespondLayer::new(self.shared.config.language).without_log()
    }

    /// Returns the layer that limits requests per address. It shares its counts with [`Self::wrong_paths`].
    pub(super) fn address_rate<B>(&self) -> RateLimitLayer<PerAddress, impl ByAddress<B> + use<B>> {
        RateLimitLayer::new(
            self.addresses.clone(),
            by_address(&self.shared.limits.callers),
        )
    }

    /// Returns the layer that limits, per address, requests that reach no service.
    pub(super) fn wrong_paths<B>(
        &self,
    ) -> RefusalLimitLayer<PerAddress, impl ByAddress<B> + use<B>, fn(&Error) -> bool> {
        RefusalLimitLayer::new(
            self.addresses.clone(),
            by_address(&self.shared.limits.callers),
            is_wrong_path as fn(&Error) -> bool,
        )
    }

    /// Returns the layer that limits requests for public documents per address. If gateways share a Redis, their
    /// requests are counted together.
    pub(super) fn catalog_rate<B>(&self) -> RateLimitLayer<PerAddress, impl ByAddress<B> + use<B>> {
        let limiter = AddressLimiter::shared(self.shared.store);
        RateLimitLayer::new(
            counted(self.metrics(), limiter, LimitedBy::Catalog),
            by_address(&self.shared.limits.catalog),
        )
    }

    /// Returns the layer that limits requests with an unknown key, per address.
    pub(super) fn guesses<B>(
        &self,
    ) -> RefusalLimitLayer<PerAddress, impl ByAddress<B> + use<B>, fn(&Error) -> bool> {
        let limiter = AddressLimiter::local();
        RefusalLimitLayer::new(
            counted(self.metrics(), limiter, LimitedBy::UnknownKey),
            by_address(&self.shared.limits.unknown_keys),
            is_guess as fn(&Error) -> bool,
        )
    }

    pub(super) fn auth(&self) -> AuthLayer<InstrumentedLedger<AnyLedger>> {
        AuthLayer::new(self.books.clone())
    }

    /// Returns the layer that limits requests per second, per key.
    pub(super) fn key_rate<B>(&self) -> RateLimitLayer<Counted<Gcra<KeyId>>, ByKey<B>> {
        RateLimitLayer::new(self.key_seconds.clone(), by_key_and_second as ByKey<B>)
            .named(Limit::KeyRequestsPerSecond)
    }

    /// Returns the layer that limits requests per minute, per key.
    pub(super) fn key_minute_rate<B>(&self) -> RateLimitLayer<Counted<KeyRequests>, ByKey<B>> {
        let limiter = self.shared.rates.requests.clone();
        let limiter = counted(self.metrics(), limiter, LimitedBy::Key);
        RateLimitLayer::new(limiter, by_key_and_minute as ByKey<B>)
            .named(Limit::KeyRequestsPerMinute)
    }

    /// Returns the layer that limits tokens per minute, per key. The settler reports how many tokens each call has
    /// used.
    pub(super) fn key_tokens<B>(&self) -> RateLimitLayer<Counted<KeyTokens>, ByKey<B>> {
        let limiter = self.shared.rates.tokens.clone();
        let limiter = counted(self.metrics(), limiter, LimitedBy::Key);
        RateLimitLayer::new(limiter, tokens_by_key as ByKey<B>).named(Limit::KeyTokensPerMinute)
    }

    /// Returns a parser of request bodies that does not read a large body if the key has no money. It shares with the
    /// layer `parse` the limit on the total size of all bodies in memory.
    pub(super) fn parse_for_money(&self) -> ParseLayer<LedgerFunds<InstrumentedLedger<AnyLedger>>> {
        self.parse
            .clone()
            .with_funds(LedgerFunds(self.books.clone()))
    }

    pub(super) fn idempotency(&self) -> IdempotencyLayer<AnyAnswers, Books> {
        let Shared { config, store, .. } = self.shared;
        IdempotencyLayer::new(
            AnyAnswers::beside(store, config),
            Books {
                store: store.clone(),
                leased: config.ledger.has_leases(),
            },
            config.idempotency.settings,
            idempotency::report(&self.metrics().idempotency),
        )
    }

    pub(super) fn select(
        &self,
    ) -> SelectLayer<Arc<Live>, LedgerFunds<InstrumentedLedger<AnyLedger>>> {
        SelectLayer::new(
            Arc::clone(self.shared.live),
            LedgerFunds(self.books.clone()),
        )
    }

    pub(super) fn reserve(&self) -> ReserveLayer<InstrumentedLedger<AnyLedger>, ByTokens> {
        ReserveLayer::new(
            self.books.clone(),
            self.tariff.clone(),
            self.shared.settler.clone(),
            self.shared.limits.hold_ttl.clone(),
        )
    }

    pub(super) fn failover(&self) -> FailoverLayer {
        FailoverLayer::new(self.shared.health.clone(), FailoverSettings::default())
    }

    pub(super) fn passthrough(&self) -> PassthroughLayer {
        let limits = self.shared.limits;
        PassthroughLayer::new(limits.answer_bytes_max.clone())
            .answers_bytes_max(limits.answers_bytes_max.clone())
    }

    /// Returns the service that answers with a document of the current snapshot.
    pub(super) fn document<B>(
        &self,
        answer: catalog::Answer<B>,
    ) -> ServiceFn<impl Fn(Request<B>) -> DocumentFuture + Clone + use<B>> {
        let live = Arc::clone(self.shared.live);
        service_fn(move |req: Request<B>| ready(answer(&live, &req)))
    }

    pub(super) fn metrics(&self) -> &'a Arc<Metrics> {
        self.shared.calls.metrics()
    }
}

/// Counts each refusal of `limiter` in the metrics, under the label `by`.
fn counted<L>(metrics: &Metrics, limiter: L, by: LimitedBy) -> Counted<L> {
    Counted::new(limiter, metrics.requests.limited(by))
}

/// Determines the client address under which a request is counted, and the quota of that address.
pub(super) trait ByAddress<B>:
    Fn(&Request<B>) -> Option<(IpAddr, Quota)> + Clone + Send + Sync + 'static
{
}

impl<B, F> ByAddress<B> for F where
    F: Fn(&Request<B>) -> Option<(IpAddr, Quota)> + Clone + Send + Sync + 'static
{
}

/// Determines the key under which a request is counted, and the quota of that key.
pub(super) type ByKey<B> = fn(&Request<B>) -> Option<(KeyId, Quota)>;

/// Counts requests per client address. Without a configured quota, requests are not limited.
fn by_address<B>(quota: &Setting<Option<Quota>>) -> impl ByAddress<B> + use<B> {
    let quota = quota.clone();
    move |req: &Request<B>| Some((req.extensions().get::<ClientAddr>()?.block(), quota.get()?))
}

/// Returns whether the error is that a request with an unknown key was refused after a lookup of the key. A mistyped
/// key of this gateway fails its checksum and is not looked up. A key in another issuer's format has no checksum and is
/// looked up.
const fn is_guess(error: &Error) -> bool {
    matches!(error, Error::KeyUnknown)
}

/// Returns whether the error is that the request reached no service. No other limit per address has counted such a
/// request.
const fn is_wrong_path(error: &Error) -> bool {
    matches!(error, Error::PathUnknown | Error::MethodNotAllowed { .. })
}

/// Counts requests per key against the key's limit per second.
fn by_key_and_second<B>(req: &Request<B>) -> Option<(KeyId, Quota)> {
    let Caller(key) = req.extensions().get()?;
    Some((key.id.clone(), Quota::per_second(key.requests_per_second?)))
}

/// Counts requests per key against the key's limit per minute.
fn by_key_and_minute<B>(req: &Request<B>) -> Option<(KeyId, Quota)> {
    let Caller(key) = req.extensions().get()?;
    Some((key.id.clone(), Quota::per_minute(key.requests_per_minute?)))
}

/// Counts tokens per key against the key's limit per minute. A key may use a minute's tokens all at once.
fn tokens_by_key<B>(req: &Request<B>) -> Option<(KeyId, Quota)> {
    let Caller(key) = req.extensions().get()?;
    let tokens = key.tokens_per_minute?;
    Some((key.id.clone(), Quota::per_minute(tokens).with_burst(tokens)))
}
