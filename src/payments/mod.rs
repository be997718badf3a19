//! Payments that customers make themselves at a provider: YooKassa, CloudPayments or Stripe.
//!
//! An intent records the request; the provider decides the outcome. The processing of an intent is triggered by a
//! notification, by an operator or by a timer. In each case the payment is fetched from the provider and booked in the
//! same way (`settle`). So it does not matter how often, how late or in which order notifications arrive. The ledger
//! books each top-up once, because its id is derived from the provider's id. If a process dies midway, the unfinished
//! part is repeated, and takes effect once.

mod auto;
mod charging;
mod cloudpayments;
mod intent;
mod notified;
mod provider;
mod providers;
mod rules;
mod settle;
mod shelf;
mod stripe;
mod yookassa;

use std::{
    fmt,
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::sync::Semaphore;
use tollgate_layers::{
    key::AccountId,
    money::MicroRub,
    rate_limit::{Gcra, Limiter, Quota},
    reserve::ledger::{BookError, LedgerAdmin},
    respond::Language,
};
use tollgate_ledger::{contract::LeaderLease, settle::Running};
use uuid::Uuid;

pub(crate) use self::notified::Notified;
pub use self::{
    auto::AutoShown,
    intent::{CardUse, Dispute, DisputeStatus, Intent, IntentId, Refund, RefundKind, State},
    provider::ProviderError,
    rules::NewAutoTopup,
};
use self::{
    auto::Rules,
    cloudpayments::CloudPayments,
    provider::ProviderStatus,
    providers::Provider,
    shelf::{NotOpened, Shelf},
    stripe::Stripe,
    yookassa::YooKassa,
};
use crate::{
    config::{PaymentsConfig, is_whole_kopecks},
    edge::panics::catch_round,
    ledger::AnyLedger,
    net::https::{self, HttpsClient},
    observe::metrics::payments::{Outcome, Payments as Counters},
    text::{causes::chain, time::now_ms},
};

/// The largest number of intents whose fetches are rate-limited.
const COUNTED_MAX: usize = 10_000;
/// The largest number of concurrent fetches that notifications cause.
const AT_ONCE_MAX: usize = 32;
/// The age at which an intent that is still in state `Creating` is closed, in milliseconds. No payer has received its
/// link.
const CREATING_MS_MAX: u64 = 3_600_000;
/// For a provider whose links never expire: how long an unpaid link is valid, in milliseconds.
const UNPAID_MS_MAX: u64 = 24 * 3_600_000;
/// The time for which every provider keeps idempotency keys, in milliseconds.
const REPEATABLE_MS_MAX: u64 = 23 * 3_600_000;
/// The rate at which the holders of an account's keys may start payments at a gateway.
const ASKS: Quota = Quota {
    count: 1,
    per: Duration::from_secs(10),
    burst: 20,
};
/// The name of the leader lease under which one gateway polls.
const LEASE: &str = "payments";

/// Checks that one gateway makes for all.
struct Checks {
    /// The name of the leader lease.
    lease: &'static str,
    pause: Duration,
    /// The name of the checks in the log, and the message if a check fails.
    part: &'static str,
    failed: &'static str,
}

/// Payments at all providers. Clones share state.
#[derive(Clone)]
pub struct Payments(Arc<Inner>);

struct Inner {
    store: AnyLedger,
    shelf: Shelf,
    rules: Rules,
    client: HttpsClient,
    providers: Vec<Provider>,
    config: Option<PaymentsConfig>,
    language: Language,
    counters: Counters,
    /// The calls that are running on this gateway, whose cost so far counts as spent.
    running: Running,
    fetches: Gcra<IntentId>,
    /// The rate limit of payment requests by the holders of an account's keys. The limit of open intents is not
    /// sufficient for this: a request that the provider refuses leaves no open intent.
    asks: Gcra<AccountId>,
    at_once: Semaphore,
    /// The name under which this process holds leader leases.
    owner: String,
}

/// A request to create a payment.
#[derive(Clone, Debug)]
pub struct NewPayment {
    /// The intent's id. A repeated request with this id creates no second intent.
    pub id: IntentId,
    /// The account that the payment is for.
    pub account: AccountId,
    /// The requested amount.
    pub amount: MicroRub,
    /// The name of the provider. `None` means the only configured provider.
    pub provider: Option<String>,
    /// The email address for the fiscal receipt.
    pub email: Option<String>,
    /// The name of the requester: an operator, or `key:` and a key's id.
    pub by: String,
    /// Whether the provider saves the card. The payer consents by paying.
    pub saves_card: bool,
}

/// The reason why a payment was not created or not processed.
#[derive(Debug)]
pub enum PaymentError {
    /// The provider is not configured. Contains the names of the configured providers.
    NoProvider(Vec<&'static str>),
    /// The amount is not a positive number of whole kopecks.
    NotKopecks,
    /// Another intent has this id.
    Exists,
    /// No intent has this id.
    Unknown,
    /// The account already has the maximum number of open intents. Contains this number.
    TooMany(usize),
    /// The rule of automatic top-up is invalid. Contains the name of the invalid field, and why it is invalid.
    Rule(&'static str, &'static str),
    /// The account has no rule of automatic top-up.
    NoRule,
    /// The rule of automatic top-up has no card to charge.
    NoCard,
    /// A request to the provider failed.
    Provider(&'static str, ProviderError),
    /// A request to the ledger failed.
    Ledger(BookError),
}

impl fmt::Display for PaymentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProvider(known) if known.is_empty() => {
                f.write_str("no payment provider is configured: see [payments]")
            }
            Self::NoProvider(known) => write!(f, "name one of these: {}", known.join(", ")),
            Self::NotKopecks => f.write_str("must be whole kopecks, above 0"),
            Self::Exists => f.write_str("another payment has that id"),
            Self::Unknown => f.write_str("no such payment"),
            Self::Rule(_, problem) => f.write_str(problem),
            Self::NoRule => f.write_str("the account has no automatic top-up by card"),
            Self::NoCard => {
                f.write_str("no card is saved: create another rule, so that the payer can save one")
            }
            Self::TooMany(max) => write!(
                f,
                "the account already has {max} unpaid payments: wait until some are paid or expire"
            ),
            Self::Provider(name, error) => write!(f, "{name}: {}", chain(error)),
            Self::Ledger(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PaymentError {}

impl From<BookError> for PaymentError {
    fn from(error: BookError) -> Self {
        Self::Ledger(error)
    }
}

impl Payments {
    /// Creates the service: intents are stored in `store`, and payments are made at the providers of `config`.
    #[must_use]
    pub fn new(store: AnyLedger, config: Option<PaymentsConfig>, language: Language) -> Self {
        let (counters, running) = Default::default();
        Self::of_gateway(store, config, language, counters, running)
    }

    /// Creates the service for a gateway. It counts outcomes in metrics, and deducts the cost so far of the gateway's
    /// running calls from balances.
    pub(crate) fn of_gateway(
        store: AnyLedger,
        config: Option<PaymentsConfig>,
        language: Language,
        counters: Counters,
        running: Running,
    ) -> Self {
        let mut providers = Vec::new();
        if let Some(payments) = &config {
            let yookassa = payments.yookassa.clone();
            providers.extend(yookassa.map(|shop| Provider::YooKassa(YooKassa(shop))));
            let cloudpayments = payments.cloudpayments.clone();
            let cloudpayments =
                cloudpayments.map(|site| Provider::CloudPayments(CloudPayments(site)));
            providers.extend(cloudpayments);
            let stripe = payments.stripe.clone();
            providers.extend(stripe.map(|stripe| Provider::Stripe(Stripe(stripe))));
        }
        Self(Arc::new(Inner {
            shelf: Shelf::new(store.clone()),
            rules: Rules::new(store.clone()),
            store,
            client: https::client(),
            providers,
            config,
            language,
            counters,
            running,
            fetches: Gcra::new(COUNTED_MAX),
            asks: Gcra::new(COUNTED_MAX),
            at_once: Semaphore::new(AT_ONCE_MAX),
            owner: Uuid::now_v7().to_string(),
        }))
    }

    /// Returns the configuration; `None` if payments are not configured.
    pub(crate) fn config(&self) -> Option<&PaymentsConfig> {
        self.0
            .config
            .as_ref()
            .filter(|_| !self.0.providers.is_empty())
    }

    /// Returns whether a provider of this name is configured.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.provider(Some(name)).is_ok()
    }

    /// Returns the names of the configured providers.
    pub(crate) fn providers(&self) -> Vec<&'static str> {
        self.0.providers.iter().map(Provider::name).collect()
    }

    /// Requests a payment from the provider, and returns its link. A repeated request returns the same payment.
    ///
    /// # Errors
    /// Any [`PaymentError`], if the request is invalid or the provider or the ledger fails. After a transient failure
    /// the request may be repeated.
    pub async fn create(&self, wanted: NewPayment) -> Result<Intent, PaymentError> {
        let provider = self.provider(wanted.provider.as_deref())?;
        if wanted.amount <= MicroRub::ZERO || !is_whole_kopecks(wanted.amount) {
            return Err(PaymentError::NotKopecks);
        }
        let Inner {
            store, shelf, asks, ..
        } = &*self.0;
        store.account(&wanted.account).await?;
        let wanted = Intent {
            id: wanted.id,
            account: wanted.account,
            amount_rub: wanted.amount,
            provider: provider.name().to_owned(),
            created_ms: now_ms(),
            by: wanted.by,
            email: wanted.email,
            card: wanted.saves_card.then_some(CardUse::Save),
            state: State::Creating,
            reason: None,
            payment: None,
            url: None,
            entry: None,
            refunds: Vec::new(),
            disputes: Vec::new(),
        };
        let intent = match shelf.find(wanted.id).await? {
            Some(intent) => intent,
            None => {
                let max = self.0.config.as_ref().map_or(0, |config| config.open_max);
                let by_key = wanted.by.starts_with("key:");
                if by_key && asks.admit(wanted.account.clone(), ASKS).await.is_err() {
                    return Err(PaymentError::TooMany(max));
                }
                shelf
                    .add_open(&wanted, max)
                    .await
                    .map_err(|error| match error {
                        NotOpened::TooMany => PaymentError::TooMany(max),
                        NotOpened::Ledger(error) => error.into(),
                    })?;
                shelf.make(&wanted).await?
            }
        };
        if !intent.is_same(&wanted) {
            return Err(PaymentError::Exists);
        }
        if intent.state != State::Creating {
            return Ok(intent);
        }
        self.link(provider, &intent).await
    }

    /// Creates the payment of an intent at the provider, if the intent has no payment yet.
    async fn link(&self, provider: &Provider, intent: &Intent) -> Result<Intent, PaymentError> {
        let created = match provider.create(&self.0.client, intent).await {
            Ok(created) => created,
            Err(error) => {
                tracing::warn!(
                    provider = provider.name(), intent = %intent.id, error = chain(&error),
                    "a payment was not made"
                );
                if !error.may_pass() {
                    self.cancel(intent.id, &error.to_string()).await?;
                }
                return Err(PaymentError::Provider(provider.name(), error));
            }
        };
        self.adopt(provider, intent.id, &created.payment, Some(&created.url))
            .await
    }

    /// Records in an intent the payment that the provider created for it.
    async fn adopt(
        &self,
        provider: &Provider,
        id: IntentId,
        payment: &str,
        url: Option<&str>,
    ) -> Result<Intent, PaymentError> {
        let shelf = &self.0.shelf;
        shelf.lead(id, provider.name(), payment).await?;
        let intent = shelf.change(id, |intent| {
            let before = intent.clone();
            if intent.payment.is_none() {
                intent.payment = Some(payment.to_owned());
            }
            if intent.url.is_none() {
                intent.url = url.map(str::to_owned);
            }
            if intent.state == State::Creating {
                intent.state = State::Open;
            }
            *intent != before
        });
        Ok(intent.await?)
    }

    /// Returns an intent.
    ///
    /// # Errors
    /// [`PaymentError::Unknown`] if no intent has this id; [`PaymentError::Ledger`] if the ledger cannot be reached.
    pub async fn find(&self, id: IntentId) -> Result<Intent, PaymentError> {
        let found = self.0.shelf.find(id).await?;
        found.ok_or(PaymentError::Unknown)
    }

    /// Returns all intents, or those of an account, newest first.
    ///
    /// # Errors
    /// [`PaymentError::Ledger`] if the ledger cannot be reached.
    pub async fn list(&self, account: Option<&AccountId>) -> Result<Vec<Intent>, PaymentError> {
        let mut intents = self.0.shelf.all().await?;
        intents.retain(|intent| account.is_none_or(|account| intent.account == *account));
        Ok(intents)
    }

    /// Returns the open intents of an account.
    pub(crate) async fn open_of(&self, account: &AccountId) -> Result<Vec<Intent>, PaymentError> {
        let shelf = &self.0.shelf;
        let mut intents = Vec::new();
        for open in shelf.open().await? {
            if open.account == *account {
                let found = shelf.find(open.id).await?;
                intents.extend(found.filter(|intent| intent.state.is_open()));
            }
        }
        Ok(intents)
    }

    /// Returns the account's debt for refunds.
    ///
    /// # Errors
    /// [`BookError`] if the ledger cannot be reached.
    pub(crate) async fn debt_of(&self, account: &AccountId) -> Result<MicroRub, BookError> {
        let shelf = &self.0.shelf;
        let mut debt = MicroRub::ZERO;
        for id in shelf.owing(account).await? {
            let found = shelf.find(id).await?;
            debt = debt.plus_or_max(found.map_or(MicroRub::ZERO, |intent| intent.debt()));
        }
        Ok(debt)
    }

    /// Fetches an intent's payment from the provider and books its outcome. Then takes the account's debt for refunds,
    /// as far as the account has free money.
    ///
    /// # Errors
    /// Any [`PaymentError`], if the intent is unknown or the provider or the ledger fails.
    pub async fn check(&self, id: IntentId) -> Result<Intent, PaymentError> {
        let intent = self.find(id).await?;
        let provider = self.provider(Some(&intent.provider))?;
        if intent.state == State::Creating && intent.card == Some(CardUse::Saved) {
            self.look_after(&intent.account, &Mutex::default()).await?;
            self.ask_again(id, &[]).await?;
            return self.find(id).await;
        }
        let young = now_ms().saturating_sub(intent.created_ms) < REPEATABLE_MS_MAX;
        let intent = if intent.state == State::Creating && young {
            self.link(provider, &intent).await?
        } else {
            intent
        };
        let Some(payment) = intent.payment.clone() else {
            return self.cancel(id, "the provider never answered").await;
        };
        let intent = self.look(provider, intent, &payment, true).await?;
        for refund in &intent.refunds {
            if refund.debt() > MicroRub::ZERO {
                self.take(&intent, refund).await?;
            }
        }
        self.find(id).await
    }

    /// Fetches the payment of every open intent, because notifications can be lost.
    ///
    /// # Errors
    /// [`BookError`] if the ledger cannot be reached. If a provider fails, the failure is logged.
    pub async fn poll(&self) -> Result<(), BookError> {
        // A provider that timed out is not called again in the same round.
        let mut silent = Vec::new();
        for open in self.0.shelf.open().await? {
            match self.ask_again(open.id, &silent).await {
                Ok(()) => {}
                Err(PaymentError::Ledger(error)) => return Err(error),
                Err(error) => {
                    tracing::warn!(intent = %open.id, error = chain(&error), "an open payment could not be checked");
                    if let PaymentError::Provider(name, error) = error
                        && error.may_pass()
                    {
                        silent.push(name);
                    }
                }
            }
        }
        Ok(())
    }

    async fn ask_again(&self, id: IntentId, silent: &[&str]) -> Result<(), PaymentError> {
        let Some(intent) = self.0.shelf.find(id).await? else {
            // The list has an intent that does not exist. An intent is listed before it is written, so the process that
            // listed it is about to write it, or has died.
            if id.age_ms(now_ms()) > CREATING_MS_MAX {
                self.0.shelf.close(id).await?;
            }
            return Ok(());
        };
        if silent.contains(&&*intent.provider) {
            return Ok(());
        }
        match intent.payment.clone() {
            Some(payment) => {
                let provider = self.provider(Some(&intent.provider))?;
                self.look(provider, intent, &payment, false).await?;
            }
            // As long as the intent's rule exists, this card charge is continued when the rule is processed.
            None if intent.card == Some(CardUse::Saved) => {
                let rule = self.0.rules.find(&intent.account).await?;
                if rule.is_none_or(|rule| rule.charging != Some(id)) {
                    self.cancel(id, "the rule was removed").await?;
                }
            }
            None if now_ms().saturating_sub(intent.created_ms) > CREATING_MS_MAX => {
                self.cancel(id, "the provider never answered").await?;
            }
            None => {}
        }
        Ok(())
    }

    /// Polls until `shutdown` resolves. Pauses while another gateway holds the leader lease.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Some(config) = self.config() else {
            return shutdown.await;
        };
        let checks = Checks {
            lease: LEASE,
            pause: config.poll,
            part: "the check of open payments",
            failed: "open payments could not be checked",
        };
        self.lead(&checks, || self.poll(), shutdown).await;
    }

    /// Runs a round of `checks` after each pause until `shutdown` resolves, while this gateway holds the leader lease.
    async fn lead<F: Future<Output = Result<(), BookError>>>(
        &self,
        checks: &Checks,
        round: impl Fn() -> F,
        shutdown: impl Future<Output = ()>,
    ) {
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                () = tokio::time::sleep(checks.pause) => {}
            }
            let led = async {
                // The leader lease lasts longer than a round usually takes. If two gateways run rounds nevertheless, no
                // harm is done.
                let ttl = checks.pause.saturating_mul(2);
                if self.0.store.lead(checks.lease, &self.0.owner, ttl).await? {
                    round().await?;
                }
                Ok::<_, BookError>(())
            };
            tokio::select! {
                () = &mut shutdown => return,
                done = catch_round(checks.part, led) => {
                    if let Some(Err(error)) = done {
                        tracing::warn!(error = chain(&error), "{}", checks.failed);
                    }
                }
            }
        }
    }

    /// Fetches a payment and books its outcome.
    async fn look(
        &self,
        provider: &Provider,
        intent: Intent,
        payment: &str,
        refunds: bool,
    ) -> Result<Intent, PaymentError> {
        let seen = provider
            .fetch(&self.0.client, &intent, payment, refunds)
            .await;
        let seen = seen.map_err(|error| {
            self.0.counters.count(Outcome::Failed);
            PaymentError::Provider(provider.name(), error)
        })?;
        let intent = if intent.payment.is_none() {
            // Only the notification has linked this payment to the intent so far, so the provider must confirm this
            // link.
            if seen.intent.as_deref() != Some(&intent.id.to_string()) {
                return Err(PaymentError::Provider(
                    provider.name(),
                    ProviderError::NotFound,
                ));
            }
            self.adopt(provider, intent.id, payment, None).await?
        } else {
            intent
        };
        let is_over = seen.provider_status == ProviderStatus::Pending
            && intent.state.is_open()
            && intent.url.is_some()
            && now_ms().saturating_sub(intent.created_ms) > UNPAID_MS_MAX;
        if is_over {
            let withdrawn = provider.withdraw(&self.0.client, payment).await;
            let withdrawn =
                withdrawn.map_err(|error| PaymentError::Provider(provider.name(), error))?;
            if withdrawn {
                return self.cancel(intent.id, "not paid in time").await;
            }
        }
        self.settle(intent, seen).await
    }

    fn provider(&self, name: Option<&str>) -> Result<&Provider, PaymentError> {
        let providers = &self.0.providers;
        let found = match (name, providers.as_slice()) {
            (None, [only]) => Some(only),
            (None, _) => None,
            (Some(name), all) => all.iter().find(|provider| provider.name() == name),
        };
        found
            .ok_or_else(|| PaymentError::NoProvider(providers.iter().map(Provider::name).collect()))
    }
}

impl fmt::Debug for Payments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payments").finish_non_exhaustive()
    }
}
