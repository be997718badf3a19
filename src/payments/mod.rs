//! Payments that customers make by themselves, at providers: YooKassa, CloudPayments, Stripe.
//!
//! An intent says what somebody was asked for; the provider says what came of it. Whatever wakes us up, a notification,
//! an operator or the clock, the payment is fetched from the provider and brought to the ledger in the same way
//! (`settle`): so it does not matter how often, how late or in what order it is told. The ledger books a
//! top-up once for its id, which is made of the provider's: whoever is killed between two steps leaves something that
//! is done again, not twice.

mod auto;
mod charging;
mod cloudpayments;
mod intent;
mod notified;
mod provider;
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
use tollgate_ledger::contract::Feed;
use uuid::Uuid;

pub(crate) use self::notified::Notified;
pub use self::{
    auto::AutoShown,
    intent::{CardUse, Intent, IntentId, Refund, State},
    provider::ProviderError,
    rules::NewAutoTopup,
};
use self::{
    auto::Rules,
    cloudpayments::CloudPayments,
    provider::{Provider, Standing},
    shelf::{NotOpened, Shelf},
    stripe::Stripe,
    yookassa::YooKassa,
};
use crate::{
    admin::now_ms,
    config::{PaymentsConfig, is_whole_kopecks},
    edge::panics::catch_round,
    ledger::AnyLedger,
    node::https::{self, HttpsClient},
    observe::metrics::payments::{Outcome, Payments as Counters},
    text::causes::chain,
};

/// Intents whose fetches are counted.
const COUNTED_MAX: usize = 10_000;
/// Fetches that notifications cause at the same time.
const AT_ONCE_MAX: usize = 32;
/// How long an intent is waited for whose provider has not answered: its link was shown to nobody.
const CREATING_MS_MAX: u64 = 3_600_000;
/// How long a link is good that its provider would keep for ever.
const UNPAID_MS_MAX: u64 = 24 * 3_600_000;
/// How long a provider keeps our keys of idempotency.
const REPEATABLE_MS_MAX: u64 = 23 * 3_600_000;
/// How often the holders of an account's keys may ask for payments at a gateway.
const ASKS: Quota = Quota {
    count: 1,
    per: Duration::from_secs(10),
    burst: 20,
};
/// Among gateways, one polls.
const LEASE: &str = "payments";

/// Payments at all providers. Clones share them.
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
    fetches: Gcra<IntentId>,
    /// What holders of keys ask for: what a provider refuses leaves nothing open that would count.
    asks: Gcra<AccountId>,
    at_once: Semaphore,
    /// This process, for the lease.
    owner: String,
}

/// What somebody wants to be asked for.
#[derive(Clone, Debug)]
pub struct NewPayment {
    /// The intent's id: the same again is the same intent.
    pub id: IntentId,
    /// Whose account it is for.
    pub account: AccountId,
    /// How much.
    pub amount: MicroRub,
    /// At which provider; `None`: the one that there is.
    pub provider: Option<String>,
    /// Where the receipt goes.
    pub email: Option<String>,
    /// Who asks.
    pub by: String,
    /// Whether the provider is to keep the card: the payer agrees to that by paying.
    pub saves_card: bool,
}

/// Why a payment was not made or looked after.
#[derive(Debug)]
pub enum PaymentError {
    /// There is no provider of that name, or none at all; those that there are.
    NoProvider(Vec<&'static str>),
    /// Providers take whole kopecks.
    NotKopecks,
    /// There is another intent under the id.
    Exists,
    /// There is no such intent.
    Unknown,
    /// As many are open as may be.
    TooMany(usize),
    /// An account cannot be topped up so: which field, and why.
    Rule(&'static str, &'static str),
    /// The account has no rule.
    NoRule,
    /// Its rule has no card.
    NoCard,
    /// The provider did not do it.
    Provider(&'static str, ProviderError),
    /// The ledger did not.
    Ledger(BookError),
}

impl fmt::Display for PaymentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProvider(known) if known.is_empty() => {
                f.write_str("no provider of payments is configured: see [payments]")
            }
            Self::NoProvider(known) => write!(f, "name one of these: {}", known.join(", ")),
            Self::NotKopecks => f.write_str("must be whole kopecks, above 0"),
            Self::Exists => f.write_str("another payment has that id"),
            Self::Unknown => f.write_str("no such payment"),
            Self::Rule(_, problem) => f.write_str(problem),
            Self::NoRule => f.write_str("the account is not topped up by a card"),
            Self::NoCard => f.write_str("no card is saved: ask the payer for it with another rule"),
            Self::TooMany(max) => write!(
                f,
                "{max} payments of the account wait for their money: let some be paid, or expire"
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
    /// Payments into `store`, at the providers of `config`.
    #[must_use]
    pub fn new(store: AnyLedger, config: Option<PaymentsConfig>, language: Language) -> Self {
        Self::counted(store, config, language, Counters::default())
    }

    /// The same, and what comes of them is counted.
    pub(crate) fn counted(
        store: AnyLedger,
        config: Option<PaymentsConfig>,
        language: Language,
        counters: Counters,
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
            fetches: Gcra::new(COUNTED_MAX),
            asks: Gcra::new(COUNTED_MAX),
            at_once: Semaphore::new(AT_ONCE_MAX),
            owner: Uuid::now_v7().to_string(),
        }))
    }

    /// What is configured; `None`: nothing.
    pub(crate) fn config(&self) -> Option<&PaymentsConfig> {
        self.0
            .config
            .as_ref()
            .filter(|_| !self.0.providers.is_empty())
    }

    /// Whether there is a provider of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.provider(Some(name)).is_ok()
    }

    /// The providers that there are.
    pub(crate) fn providers(&self) -> Vec<&'static str> {
        self.0.providers.iter().map(Provider::name).collect()
    }

    /// Asks the provider for a payment, and says where it is paid. The same wish again is the same payment.
    ///
    /// # Errors
    /// See [`PaymentError`]; after one that may pass, the same wish may be repeated.
    pub async fn create(&self, wish: NewPayment) -> Result<Intent, PaymentError> {
        let provider = self.provider(wish.provider.as_deref())?;
        if wish.amount <= MicroRub::ZERO || !is_whole_kopecks(wish.amount) {
            return Err(PaymentError::NotKopecks);
        }
        let Inner {
            store, shelf, asks, ..
        } = &*self.0;
        store.account(&wish.account).await?;
        let wanted = Intent {
            id: wish.id,
            account: wish.account,
            amount_rub: wish.amount,
            provider: provider.name().to_owned(),
            created_ms: now_ms(),
            by: wish.by,
            email: wish.email,
            card: wish.saves_card.then_some(CardUse::Save),
            state: State::Creating,
            reason: None,
            payment: None,
            url: None,
            entry: None,
            refunds: Vec::new(),
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

    /// Lets the provider make the payment of an intent that has none.
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

    /// Notes which payment of the provider is the intent's.
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

    /// One intent.
    ///
    /// # Errors
    /// See [`PaymentError`].
    pub async fn find(&self, id: IntentId) -> Result<Intent, PaymentError> {
        let found = self.0.shelf.find(id).await?;
        found.ok_or(PaymentError::Unknown)
    }

    /// All intents, or those of an account, the latest first.
    ///
    /// # Errors
    /// See [`PaymentError`].
    pub async fn list(&self, account: Option<&AccountId>) -> Result<Vec<Intent>, PaymentError> {
        let mut intents = self.0.shelf.all().await?;
        intents.retain(|intent| account.is_none_or(|account| intent.account == *account));
        Ok(intents)
    }

    /// The open intents of an account.
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

    /// What an account owes for refunds.
    ///
    /// # Errors
    /// The ledger is out of reach.
    pub(crate) async fn debt_of(&self, account: &AccountId) -> Result<MicroRub, BookError> {
        let shelf = &self.0.shelf;
        let mut debt = MicroRub::ZERO;
        for id in shelf.owing(account).await? {
            let found = shelf.find(id).await?;
            debt = debt.plus_or_max(found.map_or(MicroRub::ZERO, |intent| intent.debt()));
        }
        Ok(debt)
    }

    /// Asks the provider what has come of an intent, and books it; what an account owes for refunds is taken, as far as
    /// it has become free.
    ///
    /// # Errors
    /// See [`PaymentError`].
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

    /// Asks again for every intent that is open: notifications get lost.
    ///
    /// # Errors
    /// The ledger is out of reach. What a provider does not answer is in the log.
    pub async fn poll(&self) -> Result<(), BookError> {
        // Who does not answer is not waited for once more in the same round.
        let mut silent = Vec::new();
        for open in self.0.shelf.open().await? {
            match self.ask_again(open.id, &silent).await {
                Ok(()) => {}
                Err(PaymentError::Ledger(error)) => return Err(error),
                Err(error) => {
                    tracing::warn!(intent = %open.id, error = chain(&error), "an open payment was not looked at");
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
            // Its maker was killed before it was made, or is about to make it.
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
            // Its rule goes on with it, as long as it is there.
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

    /// Polls until `shutdown` is done, where no other gateway does.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let Some(config) = self.config() else {
            return shutdown.await;
        };
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                () = tokio::time::sleep(config.poll) => {}
            }
            let round = async {
                // Longer than a round usually takes: two that poll do no harm.
                let ttl = config.poll.saturating_mul(2);
                if self.0.store.lease(LEASE, &self.0.owner, ttl).await? {
                    self.poll().await?;
                }
                Ok::<_, BookError>(())
            };
            tokio::select! {
                () = &mut shutdown => return,
                done = catch_round("the look after open payments", round) => {
                    if let Some(Err(error)) = done {
                        tracing::warn!(error = chain(&error), "open payments were not looked at");
                    }
                }
            }
        }
    }

    /// Fetches a payment, and books what has come of it.
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
            // The body of a notification said so alone: now the provider has to.
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
        let is_over = seen.standing == Standing::Pending
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
