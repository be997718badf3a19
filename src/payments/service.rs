//! Creates payments at providers, and finds the intents of payments.

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use tollgate_layers::{
    key::AccountId,
    money::MicroRub,
    rate_limit::{Gcra, Limiter, Quota},
    reserve::ledger::{BookError, LedgerAdmin},
    respond::Language,
};
use tollgate_ledger::settle::Running;
use uuid::Uuid;

use super::{
    auto::Rules,
    intent::{CardUse, Intent, IntentId, State},
    intent_store::IntentStore,
    provider::ProviderError,
    providers::Provider,
};
use crate::{
    config::{PaymentsConfig, is_whole_kopecks},
    ledger::AnyLedger,
    observe::metrics::payments::Payments as Counters,
    text::causes::chain,
};

/// Maximum number of intents whose fetches are counted. The count limits how often each intent is fetched.
const COUNTED_MAX: usize = 10_000;
/// Maximum number of concurrent fetches that are caused by notifications.
const AT_ONCE_MAX: usize = 32;
/// How often the holders of an account's keys may start a payment at one gateway.
const STARTS: Quota = Quota {
    count: 1,
    per: Duration::from_secs(10),
    burst: 20,
};

/// The payment service of a gateway, with all providers. Clones share state.
#[derive(Clone, Debug)]
pub struct Payments(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) store: AnyLedger,
    pub(super) intents: IntentStore,
    pub(super) rules: Rules,
    pub(super) providers: Vec<Provider>,
    pub(super) config: Option<PaymentsConfig>,
    pub(super) language: Language,
    pub(super) counters: Counters,
    /// The calls in flight at this gateway. Their cost so far counts as spent.
    pub(super) running: Running,
    pub(super) fetches: Gcra<IntentId>,
    /// Limits how often the holders of an account's keys start payments. The maximum number of open intents is not
    /// enough: a request that the provider refuses leaves no open intent.
    pub(super) starts: Gcra<AccountId>,
    pub(super) at_once: Semaphore,
    /// The name of this process as the owner of leader leases.
    pub(super) owner: String,
}

/// A request to create a payment at a provider.
#[derive(Clone, Debug)]
pub struct NewPayment {
    /// The id of the intent. If a request is repeated with the same id, no second intent is created.
    pub id: IntentId,
    /// The account to which the payment will be credited.
    pub account: AccountId,
    /// The requested amount.
    pub amount: MicroRub,
    /// The name of the provider; `None` selects the only configured provider.
    pub provider: Option<String>,
    /// The email address to which the fiscal receipt is sent.
    pub email: Option<String>,
    /// The requester of the payment: an operator's name, or `key:` followed by a key's id.
    pub by: String,
    /// Whether the provider saves the card with which the payer pays. By paying, the payer consents to this.
    pub saves_card: bool,
}

/// Why a payment was not created or not processed.
#[derive(Debug, thiserror::Error)]
pub enum PaymentError {
    /// The requested provider is not configured. Contains the names of the configured providers.
    #[error("{}", no_provider(.0))]
    NoProvider(Vec<&'static str>),
    /// The amount is not a positive number of whole kopecks.
    #[error("must be whole kopecks, above 0")]
    NotKopecks,
    /// Another intent has this id.
    #[error("another payment has this id")]
    Exists,
    /// No intent has this id.
    #[error("no such payment")]
    Unknown,
    /// The account already has the maximum number of open intents. Contains this maximum.
    #[error("the account already has {0} unpaid payments: wait until some are paid or expire")]
    TooMany(usize),
    /// The automatic top-up rule is invalid. Contains the name of the invalid field, and what is wrong with it.
    #[error("{1}")]
    Rule(&'static str, &'static str),
    /// The account has no automatic top-up rule.
    #[error("the account has no automatic top-up by card")]
    NoRule,
    /// The automatic top-up rule has no saved card that could be charged.
    #[error("no card is saved: create another rule, so that the payer can save one")]
    NoCard,
    /// A request to the provider failed. Contains the provider's name and the error.
    #[error("{0}: {cause}", cause = chain(.1))]
    Provider(&'static str, ProviderError),
    /// A request to the ledger failed.
    #[error("{0}")]
    Ledger(BookError),
}

fn no_provider(known: &[&str]) -> String {
    match known {
        [] => "no payment provider is configured: see [payments]".to_owned(),
        known => format!("name one of these: {}", known.join(", ")),
    }
}

impl From<BookError> for PaymentError {
    fn from(error: BookError) -> Self {
        Self::Ledger(error)
    }
}

impl Payments {
    /// Creates the service. Intents are stored in `store`, and payments are made at the providers of `config`.
    #[must_use]
    pub fn new(store: AnyLedger, config: Option<PaymentsConfig>, language: Language) -> Self {
        let (counters, running) = Default::default();
        Self::for_gateway(store, config, language, counters, running)
    }

    /// Creates the payment service of a gateway. Outcomes are counted in the gateway's metrics. For automatic top-ups,
    /// the cost so far of calls in flight is subtracted from the balance.
    pub(crate) fn for_gateway(
        store: AnyLedger,
        config: Option<PaymentsConfig>,
        language: Language,
        counters: Counters,
        running: Running,
    ) -> Self {
        let providers = config.as_ref().map(Provider::configured);
        Self(Arc::new(Inner {
            intents: IntentStore {
                store: store.clone(),
            },
            rules: Rules {
                store: store.clone(),
            },
            store,
            providers: providers.unwrap_or_default(),
            config,
            language,
            counters,
            running,
            fetches: Gcra::new(COUNTED_MAX),
            starts: Gcra::new(COUNTED_MAX),
            at_once: Semaphore::new(AT_ONCE_MAX),
            owner: Uuid::now_v7().to_string(),
        }))
    }

    /// Returns the configuration of payments; `None` if payments are not configured.
    pub(crate) fn config(&self) -> Option<&PaymentsConfig> {
        let config = self.0.config.as_ref();
        config.filter(|_| !self.0.providers.is_empty())
    }

    /// Returns whether a provider of this name is configured.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.provider(Some(name)).is_ok()
    }

    /// Returns the names of the configured providers.
    pub(crate) fn providers(&self) -> Vec<&'static str> {
        self.0.providers.iter().map(Provider::name).collect()
    }

    /// Requests a payment from the provider, and returns its intent with the payment link. If a request is repeated,
    /// the same payment is returned.
    ///
    /// # Errors
    /// Any [`PaymentError`]: if the request is invalid, or the provider or the ledger fails. If the failure is
    /// transient, the request may be repeated.
    pub async fn create(&self, wanted: NewPayment) -> Result<Intent, PaymentError> {
        let provider = self.provider(wanted.provider.as_deref())?;
        if wanted.amount <= MicroRub::ZERO || !is_whole_kopecks(wanted.amount) {
            return Err(PaymentError::NotKopecks);
        }
        let (intents, starts) = (&self.0.intents, &self.0.starts);
        self.0.store.account(&wanted.account).await?;
        let wanted = Intent {
            email: wanted.email,
            card: wanted.saves_card.then_some(CardUse::Save),
            ..Intent::new(
                wanted.id,
                &wanted.account,
                wanted.amount,
                provider.name(),
                &wanted.by,
            )
        };
        let intent = match intents.find(wanted.id).await? {
            Some(intent) => intent,
            None => {
                let max = self.0.config.as_ref().map_or(0, |config| config.open_max);
                let by_key = wanted.by.starts_with("key:");
                let is_limited =
                    by_key && starts.admit(wanted.account.clone(), STARTS).await.is_err();
                if is_limited || !intents.add_open(&wanted, max).await? {
                    return Err(PaymentError::TooMany(max));
                }
                intents.create(&wanted).await?
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

    /// Creates the intent's payment at the provider, unless the intent already has a payment.
    pub(super) async fn link(
        &self,
        provider: &Provider,
        intent: &Intent,
    ) -> Result<Intent, PaymentError> {
        let created = match provider.create(intent).await {
            Ok(created) => created,
            Err(error) => {
                tracing::warn!(
                    provider = provider.name(), intent = %intent.id, error = chain(&error),
                    "a payment could not be created at the provider"
                );
                if !error.may_pass() {
                    self.cancel(intent.id, &error.to_string()).await?;
                }
                return Err(PaymentError::Provider(provider.name(), error));
            }
        };
        let url = Some(created.url.as_str());
        self.adopt(provider, intent.id, &created.payment, url).await
    }

    /// Records in an intent which payment the provider has created for it.
    pub(super) async fn adopt(
        &self,
        provider: &Provider,
        id: IntentId,
        payment: &str,
        url: Option<&str>,
    ) -> Result<Intent, PaymentError> {
        let intents = &self.0.intents;
        intents.map_payment(id, provider.name(), payment).await?;
        let intent = intents.change(id, |intent| {
            let before = intent.clone();
            intent.payment.get_or_insert_with(|| payment.to_owned());
            intent.url = intent.url.take().or(url.map(str::to_owned));
            if intent.state == State::Creating {
                intent.state = State::Open;
            }
            *intent != before
        });
        Ok(intent.await?)
    }

    /// Returns the intent with this id.
    ///
    /// # Errors
    /// [`PaymentError::Unknown`] if no intent has this id; [`PaymentError::Ledger`] if the ledger cannot be reached.
    pub async fn find(&self, id: IntentId) -> Result<Intent, PaymentError> {
        let found = self.0.intents.find(id).await?;
        found.ok_or(PaymentError::Unknown)
    }

    /// Returns the intents of an account, or all intents, newest first.
    ///
    /// # Errors
    /// [`PaymentError::Ledger`] if the ledger cannot be reached.
    pub async fn list(&self, account: Option<&AccountId>) -> Result<Vec<Intent>, PaymentError> {
        let mut intents = self.0.intents.all().await?;
        intents.retain(|intent| account.is_none_or(|account| intent.account == *account));
        Ok(intents)
    }

    /// Returns the open intents of an account.
    pub(crate) async fn open_of(&self, account: &AccountId) -> Result<Vec<Intent>, PaymentError> {
        let intents = &self.0.intents;
        let mut found = Vec::new();
        for open in intents.open().await? {
            if open.account == *account {
                let intent = intents.find(open.id).await?;
                found.extend(intent.filter(|intent| intent.state.is_open()));
            }
        }
        Ok(found)
    }

    /// Returns how much the account owes for refunds.
    ///
    /// # Errors
    /// [`BookError`] if the ledger cannot be reached.
    pub(crate) async fn debt_of(&self, account: &AccountId) -> Result<MicroRub, BookError> {
        let intents = &self.0.intents;
        let mut debt = MicroRub::ZERO;
        for id in intents.owing(account).await? {
            let found = intents.find(id).await?;
            debt = debt.plus_or_max(found.map_or(MicroRub::ZERO, |intent| intent.debt()));
        }
        Ok(debt)
    }

    pub(super) fn provider(&self, name: Option<&str>) -> Result<&Provider, PaymentError> {
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
