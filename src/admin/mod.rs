//! The operator's API: accounts, payments, keys, receipts, usage, vendors, export and the audit, on a
//! listener of its own.
//!
//! Every call needs the admin key; every change leaves a line under the log target `audit`: who, what, and
//! from what to what. An unknown field, parameter or model is refused, never ignored: a misspelt ceiling
//! must not become no ceiling.

mod answer;
mod body;
mod change;
pub(crate) mod export;
mod fields;
mod query;
mod refusal;
mod route;
mod usage;
mod vendor;

use std::{
    collections::BTreeMap,
    fmt,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Request, Response, StatusCode, header, request::Parts};
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tollgate_layers::{
    auth::SecretKey,
    ceiling::Ceilings,
    error::BoxError,
    facts::RequestNumber,
    failover::Health,
    key::{AccountId, KeyDigest, KeyId, KeyRecord, KeyStatus, KeyStore},
    money::MicroRub,
    reserve::ledger::{BookError, Entry, KeyChange, KeyView, LedgerAdmin},
};

use self::{
    answer::{AccountAnswer, KeyAnswer, ReceiptAnswer},
    change::changes,
    export::Export,
    fields::Fields,
    query::Query,
    refusal::{Refusal, json_response, response},
    route::{Call, Route, route},
    usage::UsageQuery,
    vendor::VendorAnswer,
};
use crate::{
    catalog::snapshot::Live,
    edge::{
        head::TwoLengths,
        host::{self, HostFault},
        panics,
    },
    endpoints::openapi,
    ledger::AnyLedger,
    node::readiness::Readiness,
    observe::{Scrape, metrics::text::Format},
    text::{causes::chain, similar::nearest},
};

pub use self::body::AnswerBody;
pub(crate) use self::{
    fields::{
        address, amount, ceiling, line, parse_address, prefix, requests, sha256, time_after,
        tokens, words,
    },
    vendor::path_segment,
};

/// What a call's number looks like, for those who wrote something else.
pub(crate) const NOT_A_NUMBER: &str = "a call's number looks like 0190163d-8694-739b-aea5-966c26f8ad91; it stands \
    in the header x-request-id of the answer, and in parentheses at the end of an error";

const BODY_BYTES_MAX: usize = 64 * 1024;
const BODY_SECONDS_MAX: u64 = 10;

const ACCOUNT_CHANGE_FIELDS: &[&str] = &["name", "status"];
const KEY_FIELDS: &[&str] = &[
    "sha256",
    "prefix",
    "name",
    "ceiling_rub",
    "ceiling_month_rub",
    "ceiling_day_rub",
    "models",
    "addresses",
    "requests_per_second",
    "requests_per_minute",
    "tokens_per_minute",
    "expires_at",
];
const KEY_CHANGE_FIELDS: &[&str] = &[
    "status",
    "name",
    "ceiling_rub",
    "ceiling_month_rub",
    "ceiling_day_rub",
    "models",
    "addresses",
    "requests_per_second",
    "requests_per_minute",
    "tokens_per_minute",
    "expires_at",
];
const VENDOR_CHANGE_FIELDS: &[&str] = &["status"];
/// How many models are named to whoever has named another one.
const MODELS_NAMED_MAX: usize = 5;

type Answer = Response<AnswerBody>;

/// The operator's API over one ledger, one catalog and one node's vendors.
pub struct Admin {
    store: AnyLedger,
    live: Arc<Live>,
    health: Health,
    /// SHA-256 of the admin key: digests are of one length, so comparing them tells nothing.
    key_digest: [u8; 32],
    readiness: Readiness,
    scrape: Scrape,
}

impl Admin {
    /// An API over `store`, `live` and `health` that answers whoever shows `key`, and scrapers.
    #[must_use]
    pub fn new(
        store: AnyLedger,
        live: Arc<Live>,
        health: Health,
        key: &SecretString,
        readiness: Readiness,
        scrape: Scrape,
    ) -> Self {
        Self {
            store,
            live,
            health,
            key_digest: digest(key.expose_secret().as_bytes()),
            readiness,
            scrape,
        }
    }

    /// Answers one request of the operator's listener. A panic is an answer too, and its connection goes on.
    pub async fn handle<B>(self: Arc<Self>, req: Request<B>) -> Response<AnswerBody>
    where
        B: Body,
        B::Error: Into<BoxError>,
    {
        let (head, body) = req.into_parts();
        let answer = AssertUnwindSafe(self.answer(&head, body)).catch_unwind();
        let answer = answer.await.unwrap_or_else(|panic| {
            let number = RequestNumber::now_v7();
            tracing::error!(
                %number, method = %head.method, path = head.uri.path(), cause = panics::panic_message(&*panic),
                "a call of the admin API panicked"
            );
            Err(Refusal::Panicked { number })
        });
        answer.unwrap_or_else(Refusal::into_response)
    }

    async fn answer<B>(&self, head: &Parts, body: B) -> Result<Answer, Refusal>
    where
        B: Body,
        B::Error: Into<BoxError>,
    {
        if head.extensions.get::<TwoLengths>().is_some() {
            let problem = "stands beside transfer-encoding: send one of them";
            return Err(Refusal::invalid("content-length", problem));
        }
        if let Err(doubt) = host::check(head.version, &head.uri, &head.headers) {
            return Err(Refusal::invalid("host", no_host(doubt)));
        }
        let call = match route(&head.method, head.uri.path())? {
            Route::Live => return Ok(json_response(StatusCode::OK, &json!({"status": "live"}))),
            Route::Ready => {
                return Ok(match self.readiness.check() {
                    Ok(()) => json_response(StatusCode::OK, &json!({"status": "ready"})),
                    Err(reason) => json_response(
                        StatusCode::SERVICE_UNAVAILABLE,
                        &json!({"status": "not ready", "reason": reason}),
                    ),
                });
            }
            Route::Metrics => return self.metrics(&head.headers),
            Route::OpenApi => {
                let body = AnswerBody::from(Bytes::from_static(openapi::ADMIN.as_bytes()));
                return Ok(response(body, openapi::CONTENT_TYPE));
            }
            Route::Call(call) => call,
        };
        if !shows_key(&head.headers, &self.key_digest) {
            tracing::warn!(target: "audit", what = "admin.refused", method = %head.method, path = head.uri.path());
            return Err(Refusal::KeyRefused);
        }
        let query = head.uri.query();
        if !matches!(call, Call::ShowUsage | Call::Export) {
            Query::parse(query, &[])?;
        }
        match call {
            Call::ListAccounts => self.list_accounts().await,
            Call::CreateAccount => self.create_account(&collect(body).await?).await,
            Call::ShowAccount(id) => self.show_account(&account_id(id)?).await,
            Call::ChangeAccount(id) => {
                self.change_account(&account_id(id)?, &collect(body).await?)
                    .await
            }
            Call::TopUp(id) => self.top_up(&account_id(id)?, &collect(body).await?).await,
            Call::Adjust(id) => self.adjust(&account_id(id)?, &collect(body).await?).await,
            Call::ListKeys(id) => self.list_keys(&account_id(id)?).await,
            Call::CreateKey(id) => {
                self.create_key(account_id(id)?, &collect(body).await?)
                    .await
            }
            Call::ShowKey(id) => self.show_key(id).await,
            Call::ChangeKey(id) => self.change_key(&key_id(id)?, &collect(body).await?).await,
            Call::DeleteKey(id) => self.delete_key(&key_id(id)?).await,
            Call::ShowReceipt(number) => self.show_receipt(number).await,
            Call::ShowUsage => self.show_usage(query).await,
            Call::Export => self.export(query).await,
            Call::ListVendors => self.list_vendors(),
            Call::ChangeVendor(name) => self.change_vendor(name, &collect(body).await?),
            Call::Audit => self.audit(&collect(body).await?).await,
        }
    }

    fn metrics(&self, headers: &HeaderMap) -> Result<Answer, Refusal> {
        let format = Format::asked_for(headers);
        let text = self.scrape.text(format).map_err(|error| {
            tracing::error!(%error, "the metrics cannot be written");
            Refusal::Internal
        })?;
        let body = AnswerBody::from(Bytes::from(text));
        Ok(response(body, format.content_type()))
    }

    async fn list_accounts(&self) -> Result<Answer, Refusal> {
        let accounts = self
            .store
            .accounts()
            .await
            .map_err(|error| Refusal::of_ledger(&error, "accounts"))?;
        ok(&BTreeMap::from([("accounts", accounts)]))
    }

    async fn create_account(&self, body: &[u8]) -> Result<Answer, Refusal> {
        let mut fields = Fields::parse(body, &["id", "name"])?;
        let id: AccountId = fields.required("id", fields::id)?;
        let name = fields.optional("name", fields::line)?.unwrap_or_default();
        let view = self
            .store
            .create_account(&id, &name)
            .await
            .map_err(|error| match error {
                BookError::Exists => Refusal::Conflict(format!(
                    "account {id} exists already, with another name: rename it (tollgate account set {id} \
                     --name NAME), or choose another id for another account"
                )),
                error => Refusal::of_change(&error, &format!("account {id}")),
            })?;
        tracing::info!(target: "audit", who = "admin", what = "account.create", account = %id, name);
        ok(&view)
    }

    async fn show_account(&self, id: &AccountId) -> Result<Answer, Refusal> {
        let of_ledger = |error: BookError| Refusal::of_ledger(&error, &format!("account {id}"));
        let view = self.store.account(id).await.map_err(of_ledger)?;
        let keys = self.store.keys(id).await.map_err(of_ledger)?;
        ok(&AccountAnswer::new(&view, &keys))
    }

    async fn change_account(&self, id: &AccountId, body: &[u8]) -> Result<Answer, Refusal> {
        let mut fields = Fields::parse(body, ACCOUNT_CHANGE_FIELDS)?;
        let name = fields.optional("name", fields::line)?;
        let suspended = fields.optional("status", suspended)?;
        if name.is_none() && suspended.is_none() {
            return Err(Refusal::invalid(
                "",
                "nothing to change: send name or status",
            ));
        }
        let of_ledger = |error: BookError| Refusal::of_ledger(&error, &format!("account {id}"));
        let before = self.store.account(id).await.map_err(of_ledger)?;
        let view = self
            .store
            .change_account(id, name.as_deref(), suspended)
            .await;
        let view = view.map_err(|error| Refusal::of_change(&error, &format!("account {id}")))?;
        let change = changes(ACCOUNT_CHANGE_FIELDS, &before, &view);
        tracing::info!(target: "audit", who = "admin", what = "account.change", account = %id, change);
        ok(&view)
    }

    async fn top_up(&self, account: &AccountId, body: &[u8]) -> Result<Answer, Refusal> {
        let mut fields = Fields::parse(body, &["id", "amount_rub"])?;
        let id = fields.required("id", fields::words)?;
        let amount = fields.required("amount_rub", fields::amount)?;
        if amount <= MicroRub::ZERO {
            let problem = "must be more than 0; to take money off, send an adjustment";
            return Err(Refusal::invalid("amount_rub", problem));
        }
        self.enter(
            account,
            Entry {
                id,
                amount,
                reason: None,
            },
        )
        .await
    }

    async fn adjust(&self, account: &AccountId, body: &[u8]) -> Result<Answer, Refusal> {
        let mut fields = Fields::parse(body, &["id", "amount_rub", "reason"])?;
        let id = fields.required("id", fields::words)?;
        let amount = fields.required("amount_rub", fields::amount)?;
        let reason = fields.required("reason", fields::words)?;
        if amount == MicroRub::ZERO {
            return Err(Refusal::invalid("amount_rub", "must not be 0"));
        }
        self.enter(
            account,
            Entry {
                id,
                amount,
                reason: Some(reason),
            },
        )
        .await
    }

    async fn enter(&self, account: &AccountId, entry: Entry) -> Result<Answer, Refusal> {
        let of_ledger =
            |error: BookError| Refusal::of_ledger(&error, &format!("account {account}"));
        let before = self.store.account(account).await.map_err(of_ledger)?;
        let view = self
            .store
            .enter(account, &entry)
            .await
            .map_err(|error| match error {
                BookError::Exists => Refusal::Conflict(format!(
                    "id: {:?} was booked on account {account} before, with another amount; \
                 send that amount to repeat it, or a new id to book another",
                    entry.id
                )),
                error => Refusal::of_change(&error, &format!("account {account}")),
            })?;
        let what = if entry.reason.is_some() {
            "account.adjust"
        } else {
            "account.topup"
        };
        let Entry { id, amount, reason } = entry;
        // The ledger does not say whether the id was new: a repeat leaves a line too.
        tracing::info!(
            target: "audit", who = "admin", what, account = %account, id, amount_rub = %amount, reason,
            balance_before_rub = %before.balance_rub, balance_rub = %view.balance_rub
        );
        ok(&view)
    }

    async fn list_keys(&self, account: &AccountId) -> Result<Answer, Refusal> {
        let keys = self.store.keys(account).await;
        let keys =
            keys.map_err(|error| Refusal::of_ledger(&error, &format!("account {account}")))?;
        let keys: Vec<KeyAnswer<'_>> = keys.iter().map(KeyAnswer::from).collect();
        ok(&BTreeMap::from([("keys", keys)]))
    }

    async fn create_key(&self, account: AccountId, body: &[u8]) -> Result<Answer, Refusal> {
        let now_ms = now_ms();
        let mut fields = Fields::parse(body, KEY_FIELDS)?;
        let shown = Shown::read(&mut fields)?;
        let wish = key_change(&mut fields, now_ms)?;
        self.check_models(wish.models.as_deref())?;
        let ceilings = wish.ceilings(Ceilings::NONE);
        if let Shown::Issued { digest, .. } = &shown
            && let Some(known) = self.key_of(digest).await?
        {
            return Err(Refusal::Conflict(format!(
                "sha256: that is key {} of account {} already",
                known.id, known.account
            )));
        }
        let (digest, prefix) = shown.parts();
        let mut record = KeyRecord {
            id: new_key_id()?,
            account,
            digest,
            prefix,
            name: String::new(),
            status: KeyStatus::Active,
            models: Vec::new(),
            addresses: Vec::new(),
            requests_per_second: None,
            requests_per_minute: None,
            tokens_per_minute: None,
            expires_at_ms: None,
            created_at_ms: now_ms,
            changed_at_ms: 0,
        };
        wish.apply(&mut record);
        let view = self.store.create_key(&record, ceilings).await.map_err(|error| match error {
            BookError::Unavailable(source) => {
                tracing::warn!(error = chain(&*source), account = %record.account, "ledger out of reach");
                Refusal::LedgerOutOfReach(match &shown {
                    Shown::Made(_) => format!(
                        "the ledger is out of reach and may have made key {}: delete it if the account lists it, \
                         then create another",
                        record.id
                    ),
                    Shown::Issued { .. } => {
                        "the ledger is out of reach; the key may have been made: send the same again".into()
                    }
                })
            }
            BookError::NotFound => Refusal::NotFound(format!("no account {}", record.account)),
            // Our own are never the same twice.
            BookError::Exists => Refusal::Conflict("sha256: there is a key with this digest already".into()),
            error => Refusal::of_ledger(&error, &format!("key {}", record.id)),
        })?;
        let (account, unlimited) = (&record.account, unlimited(&view));
        let limits = changes(
            KEY_FIELDS,
            &KeyAnswer::from(&unlimited),
            &KeyAnswer::from(&view),
        );
        tracing::info!(
            target: "audit", who = "admin", what = "key.create", account = %account, key = %record.id,
            prefix = record.prefix, limits
        );
        match &shown {
            Shown::Made(secret) => ok(&KeyAnswer::with_secret(&view, secret.expose())),
            Shown::Issued { .. } => ok(&KeyAnswer::from(&view)),
        }
    }

    /// Of the key with this id, or of the one whose SHA-256 stands there: no id is so long.
    async fn show_key(&self, text: &str) -> Result<Answer, Refusal> {
        let id = match text.strip_prefix("sha256-").map(str::parse::<KeyDigest>) {
            Some(digest) => {
                let none = || Refusal::NotFound("no key with this SHA-256".into());
                let digest = digest.map_err(|_| none())?;
                self.key_of(&digest).await?.ok_or_else(none)?.id.clone()
            }
            None => key_id(text)?,
        };
        let view = self
            .store
            .key(&id)
            .await
            .map_err(|error| Refusal::of_ledger(&error, &format!("key {id}")))?;
        ok(&KeyAnswer::from(&view))
    }

    async fn key_of(&self, digest: &KeyDigest) -> Result<Option<Arc<KeyRecord>>, Refusal> {
        let found = self.store.find_key(digest).await;
        found.map_err(|error| Refusal::of_ledger(&BookError::Unavailable(error), "key"))
    }

    async fn change_key(&self, id: &KeyId, body: &[u8]) -> Result<Answer, Refusal> {
        let mut fields = Fields::parse(body, KEY_CHANGE_FIELDS)?;
        let status = fields.optional("status", key_status)?;
        let now_ms = now_ms();
        let mut change = KeyChange {
            status,
            ..key_change(&mut fields, now_ms)?
        };
        if change == KeyChange::default() {
            let problem = format!(
                "nothing to change: send one of {}",
                KEY_CHANGE_FIELDS.join(", ")
            );
            return Err(Refusal::invalid("", problem));
        }
        self.check_models(change.models.as_deref())?;
        change.changed_at_ms = Some(now_ms);
        let of_ledger = |error: BookError| Refusal::of_ledger(&error, &format!("key {id}"));
        let before = self.store.key(id).await.map_err(of_ledger)?;
        if before.record.status == KeyStatus::Deleted {
            return Err(deleted(id));
        }
        let view = self
            .store
            .change_key(id, &change)
            .await
            .map_err(|error| Refusal::of_change(&error, &format!("key {id}")))?;
        // Deleted since it was looked at: the ledger has left it so.
        if view.record.status == KeyStatus::Deleted {
            return Err(deleted(id));
        }
        log_key("key.change", &before, &view);
        ok(&KeyAnswer::from(&view))
    }

    async fn delete_key(&self, id: &KeyId) -> Result<Answer, Refusal> {
        let of_ledger = |error: BookError| Refusal::of_ledger(&error, &format!("key {id}"));
        let before = self.store.key(id).await.map_err(of_ledger)?;
        let is_new = before.record.status != KeyStatus::Deleted;
        let change = KeyChange {
            status: Some(KeyStatus::Deleted),
            changed_at_ms: is_new.then(now_ms),
            ..KeyChange::default()
        };
        let view = self.store.change_key(id, &change).await;
        let view = view.map_err(|error| Refusal::of_change(&error, &format!("key {id}")))?;
        log_key("key.delete", &before, &view);
        ok(&KeyAnswer::from(&view))
    }

    /// Refuses models that the catalog does not have: under a misspelt name a key could call nothing.
    fn check_models(&self, models: Option<&[String]>) -> Result<(), Refusal> {
        let snapshot = self.live.snapshot();
        let known = || snapshot.models().map(|(model, _)| model.id.as_str());
        for (index, model) in models.unwrap_or_default().iter().enumerate() {
            if known().any(|name| name == model) {
                continue;
            }
            let hint = match nearest(model, known()) {
                Some(near) => format!("did you mean {near:?}?"),
                None => {
                    let some: Vec<&str> = known().take(MODELS_NAMED_MAX).collect();
                    let more = if known().count() > some.len() {
                        ", …"
                    } else {
                        ""
                    };
                    format!("it has {}{more}", some.join(", "))
                }
            };
            return Err(Refusal::invalid(
                format!("models[{index}]"),
                format!("the catalog has no model {model:?}; {hint}"),
            ));
        }
        Ok(())
    }

    async fn show_receipt(&self, number: &str) -> Result<Answer, Refusal> {
        let number: RequestNumber = number
            .parse()
            .map_err(|_| Refusal::NotFound(format!("no receipt: {NOT_A_NUMBER}")))?;
        let receipt = self.store.receipt(number).await.map_err(|error| match error {
            BookError::NotFound => Refusal::NotFound(format!(
                "no receipt {number}: the call was refused, failed or still runs, or the number is wrong"
            )),
            error => Refusal::of_ledger(&error, &format!("receipt {number}")),
        })?;
        ok(&ReceiptAnswer::from(&receipt))
    }

    async fn show_usage(&self, query: Option<&str>) -> Result<Answer, Refusal> {
        ok(&UsageQuery::parse(query)?.fulfil(&self.store).await?)
    }

    async fn export(&self, query: Option<&str>) -> Result<Answer, Refusal> {
        let account: Option<AccountId> =
            Query::parse(query, &["account"])?.optional("account", query::id)?;
        let accounts = match &account {
            Some(id) => {
                let view = self.store.account(id).await;
                view.map_err(|error| Refusal::of_ledger(&error, &format!("account {id}")))?;
                vec![id.clone()]
            }
            None => {
                let views = self.store.accounts().await;
                let views = views.map_err(|error| Refusal::of_ledger(&error, "accounts"))?;
                views.into_iter().map(|view| view.id).collect()
            }
        };
        let account = account.as_ref().map(tracing::field::display);
        tracing::info!(target: "audit", who = "admin", what = "export", account, accounts = accounts.len());
        let export = Export::new(self.store.clone(), accounts, now_ms());
        let body = AnswerBody::stream(export.pieces());
        Ok(response(body, "application/x-ndjson"))
    }

    fn list_vendors(&self) -> Result<Answer, Refusal> {
        let vendors = self.health.snapshot();
        let now_ms = now_ms();
        let vendors: Vec<VendorAnswer<'_>> = vendors
            .iter()
            .map(|vendor| VendorAnswer::new(vendor, now_ms))
            .collect();
        ok(&BTreeMap::from([("vendors", vendors)]))
    }

    /// On this node, until it is restarted: a vendor is left out for good in the config.
    fn change_vendor(&self, name: &str, body: &[u8]) -> Result<Answer, Refusal> {
        let none = || {
            Refusal::NotFound(
                "no such vendor: `tollgate vendor list` (GET /admin/v1/vendors) shows them".into(),
            )
        };
        let name = vendor::name_of(name).ok_or_else(none)?;
        let mut fields = Fields::parse(body, &["status"])?;
        let enabled = fields.required("status", vendor::enabled)?;
        let find = || {
            let vendors = self.health.snapshot();
            vendors.into_iter().find(|vendor| *vendor.name == *name)
        };
        let before = find().ok_or_else(none)?;
        if !self.health.enable(&name, enabled) {
            return Err(none());
        }
        let vendor = find().ok_or_else(none)?;
        let now_ms = now_ms();
        let [before, after] = [&before, &vendor].map(|state| VendorAnswer::new(state, now_ms));
        let change = changes(VENDOR_CHANGE_FIELDS, &before, &after);
        tracing::info!(target: "audit", who = "admin", what = "vendor.change", vendor = name, change);
        ok(&after)
    }

    async fn audit(&self, body: &[u8]) -> Result<Answer, Refusal> {
        if !body.trim_ascii().is_empty() {
            Fields::parse(body, &[])?;
        }
        let audit = self
            .store
            .audit()
            .await
            .map_err(|error| Refusal::of_ledger(&error, "ledger"))?;
        for breach in &audit.breaches {
            tracing::error!(target: "audit", what = "breach", breach);
        }
        tracing::info!(target: "audit", who = "admin", what = "audit", breaches = audit.breaches.len());
        ok(&audit)
    }
}

/// The store and the key stay out of it.
impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").finish_non_exhaustive()
    }
}

fn ok(body: &impl serde::Serialize) -> Result<Answer, Refusal> {
    Ok(json_response(StatusCode::OK, body))
}

fn deleted(id: &KeyId) -> Refusal {
    Refusal::Conflict(format!("key {id} was deleted and stays so; create another"))
}

fn log_key(what: &str, before: &KeyView, after: &KeyView) {
    let KeyRecord { id, account, .. } = &after.record;
    let [before, after] = [before, after].map(KeyAnswer::from);
    let change = changes(KEY_CHANGE_FIELDS, &before, &after);
    tracing::info!(target: "audit", who = "admin", what, account = %account, key = %id, change);
}

/// The same key as it would have been made without a name and without limits.
fn unlimited(key: &KeyView) -> KeyView {
    let mut key = key.clone();
    (key.ceiling_rub, key.month.ceiling_rub, key.day.ceiling_rub) = (None, None, None);
    key.record = KeyRecord {
        name: String::new(),
        models: Vec::new(),
        addresses: Vec::new(),
        requests_per_second: None,
        requests_per_minute: None,
        tokens_per_minute: None,
        expires_at_ms: None,
        ..key.record
    };
    key
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// What an operator's client should say of the host.
const fn no_host(doubt: HostFault) -> &'static str {
    match doubt {
        HostFault::Missing => "a header that HTTP/1.1 requires: send it",
        HostFault::Twice => "stands there twice: send it once",
        HostFault::Malformed | HostFault::TargetMalformed => {
            "not a host: send a name, IPv4 or [IPv6], and :port where needed"
        }
        HostFault::Contradicts => "another one than :authority says: send one of them",
    }
}

/// Whether the one `authorization` header is the bearer form of the key with this digest.
fn shows_key(headers: &HeaderMap, key_digest: &[u8; 32]) -> bool {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return false;
    };
    let Some((scheme, key)) = value.as_bytes().split_at_checked("Bearer ".len()) else {
        return false;
    };
    scheme.eq_ignore_ascii_case(b"Bearer ")
        && bool::from(digest(key).as_slice().ct_eq(key_digest.as_slice()))
}

/// The whole body, within its limits of size and time.
async fn collect<B>(body: B) -> Result<Bytes, Refusal>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    let whole = Limited::new(body, BODY_BYTES_MAX).collect();
    match tokio::time::timeout(Duration::from_secs(BODY_SECONDS_MAX), whole).await {
        Err(_) => Err(Refusal::BodyTooSlow),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Refusal::BodyTooLarge {
            bytes_max: BODY_BYTES_MAX,
        }),
        Ok(Err(_)) => Err(Refusal::BodyBroken),
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
    }
}

fn account_id(text: &str) -> Result<AccountId, Refusal> {
    text.parse::<AccountId>()
        .map_err(|error| Refusal::NotFound(format!("no such account: {error}")))
}

fn key_id(text: &str) -> Result<KeyId, Refusal> {
    text.parse::<KeyId>()
        .map_err(|error| Refusal::NotFound(format!("no such key: {error}")))
}

fn suspended(value: &Value) -> Result<bool, String> {
    match value.as_str() {
        Some("active") => Ok(false),
        Some("suspended") => Ok(true),
        _ => Err("must be \"active\" or \"suspended\"".into()),
    }
}

fn key_status(value: &Value) -> Result<KeyStatus, String> {
    match value.as_str() {
        Some("active") => Ok(KeyStatus::Active),
        Some("disabled") => Ok(KeyStatus::Disabled),
        _ => Err("must be \"active\" or \"disabled\"; to delete the key, send DELETE".into()),
    }
}

/// What a new key is known by.
enum Shown {
    /// We make it, and show it once.
    Made(SecretKey),
    /// Its caller has it; we get to know its digest alone.
    Issued { digest: KeyDigest, prefix: String },
}

impl Shown {
    fn read(fields: &mut Fields) -> Result<Self, Refusal> {
        let digest = fields.optional("sha256", fields::sha256)?;
        let prefix = fields.optional("prefix", fields::prefix)?;
        match (digest, prefix) {
            (None, None) => Ok(Self::Made(SecretKey::generate())),
            (None, Some(_)) => Err(Refusal::invalid(
                "prefix",
                "goes with sha256; a key that is made here has a prefix of its own",
            )),
            (Some(digest), prefix) => Ok(Self::Issued {
                prefix: prefix.unwrap_or_else(|| format!("sha256:{}…", &digest.to_string()[..6])),
                digest,
            }),
        }
    }

    fn parts(&self) -> (KeyDigest, String) {
        match self {
            Self::Made(secret) => (secret.digest(), secret.prefix()),
            Self::Issued { digest, prefix } => (*digest, prefix.clone()),
        }
    }
}

/// The fields that making and changing a key have in common.
fn key_change(fields: &mut Fields, now_ms: u64) -> Result<KeyChange, Refusal> {
    Ok(KeyChange {
        name: fields.optional("name", fields::line)?,
        status: None,
        ceiling: fields.nullable("ceiling_rub", fields::ceiling)?,
        ceiling_month: fields.nullable("ceiling_month_rub", fields::ceiling)?,
        ceiling_day: fields.nullable("ceiling_day_rub", fields::ceiling)?,
        models: fields.list("models", fields::words)?,
        addresses: fields.list("addresses", fields::address)?,
        requests_per_second: fields.nullable("requests_per_second", fields::requests)?,
        requests_per_minute: fields.nullable("requests_per_minute", fields::requests)?,
        tokens_per_minute: fields.nullable("tokens_per_minute", fields::tokens)?,
        expires_at_ms: fields.nullable("expires_at", fields::time_after(now_ms))?,
        changed_at_ms: None,
    })
}

/// `k` and 15 random letters and digits: 89 bits, so that two never meet.
fn new_key_id() -> Result<KeyId, Refusal> {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

    let mut id = String::from("k");
    while id.len() < 16 {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| {
            tracing::error!(%error, "no random bytes from the operating system");
            Refusal::Internal
        })?;
        // 248 = 4 × 62: bytes above it would make some letters likelier than others.
        let letters = bytes
            .iter()
            .filter(|byte| **byte < 248)
            .map(|byte| char::from(LETTERS[usize::from(*byte % 62)]));
        id.extend(letters.take(16 - id.len()));
    }
    Ok(id.parse().expect("letters and digits make an id"))
}

/// Unix time in milliseconds.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Mutex, PoisonError},
    };

    use http::{HeaderValue, Method};
    use http_body_util::Full;
    use tollgate_layers::reserve::memory::MemoryLedger;

    use super::*;
    use crate::{
        catalog::snapshot::tests::live,
        edge::server::OpenConnections,
        observe::{Sources, metrics::Metrics, record::Calls},
    };

    /// What is logged on this thread.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Log {
        /// The lines since the last time.
        fn take(&self) -> Vec<String> {
            let bytes = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
            let text = String::from_utf8(bytes).unwrap();
            text.lines().map(str::to_owned).collect()
        }
    }

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            log.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// An API over an empty ledger in memory, the catalog of `live` and its vendor `v`.
    fn admin() -> Arc<Admin> {
        let (live, health) = (Arc::new(live()), Health::new());
        let snapshot = live.snapshot();
        health.follow(snapshot.models().flat_map(|(model, _)| &model.routes));
        let store = AnyLedger::Memory(MemoryLedger::new());
        let key = SecretString::from("correct horse".to_owned());
        let (metrics, readiness) = (Arc::new(Metrics::new("tollgate")), Readiness::default());
        let sources = Sources {
            calls: Calls::new(Arc::clone(&metrics)),
            live: Arc::clone(&live),
            store: store.clone(),
            health: health.clone(),
            readiness: readiness.clone(),
            connections: OpenConnections::default(),
        };
        let scrape = Scrape::new(metrics, sources);
        Arc::new(Admin::new(store, live, health, &key, readiness, scrape))
    }

    async fn asked(admin: &Arc<Admin>, method: Method, path: &str, body: &str) -> (u16, Value) {
        let req = Request::builder()
            .method(method)
            .uri(format!("/admin/v1/{path}"))
            .header(header::HOST, "operators.example")
            .header(header::AUTHORIZATION, "Bearer correct horse")
            .body(Full::new(Bytes::from(body.to_owned())))
            .unwrap();
        let res = Arc::clone(admin).handle(req).await;
        let status = res.status().as_u16();
        let body = res.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    #[tokio::test(flavor = "current_thread")]
    async fn every_change_leaves_one_line_that_says_who_what_and_from_what_to_what() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        let _logging = tracing::subscriber::set_default(subscriber);
        let admin = admin();
        let made = async |method: Method, path: &str, body: &str| {
            log.take();
            let (status, answer) = asked(&admin, method, path, body).await;
            assert_eq!(status, 200, "{path}: {answer}");
            (answer, log.take())
        };
        let (post, patch) = (Method::POST, Method::PATCH);

        let account = r#"{"id":"acme","name":"Acme"}"#;
        let (_, lines) = made(post.clone(), "accounts", account).await;
        audited(
            &lines,
            "account.create",
            &["account=acme", r#"name="Acme""#],
        );
        let topup = r#"{"id":"p1","amount_rub":"10"}"#;
        let (_, lines) = made(post.clone(), "accounts/acme/topups", topup).await;
        let money = ["balance_before_rub=0.00", "balance_rub=10.00", r#"id="p1""#];
        audited(&lines, "account.topup", &money);
        let adjustment = r#"{"id":"c1","amount_rub":"-4","reason":"a mistake"}"#;
        let (_, lines) = made(post.clone(), "accounts/acme/adjustments", adjustment).await;
        let money = ["balance_before_rub=10.00", "balance_rub=6.00", "a mistake"];
        audited(&lines, "account.adjust", &money);
        for (body, change) in [
            (r#"{"name":"Acme Ltd"}"#, r#"name: \"Acme\" → \"Acme Ltd\""#),
            (r#"{"status":"suspended"}"#, r#"\"active\" → \"suspended\""#),
            (r#"{"status":"active"}"#, r#"\"suspended\" → \"active\""#),
            (r#"{"status":"active"}"#, "nothing"),
        ] {
            let (_, lines) = made(patch.clone(), "accounts/acme", body).await;
            audited(&lines, "account.change", &["account=acme", change]);
        }

        let limits = r#"{"name":"ci","ceiling_day_rub":"5","models":["z-first"]}"#;
        let (key, lines) = made(post.clone(), "accounts/acme/keys", limits).await;
        let id = key["id"].as_str().unwrap();
        let path = format!("keys/{id}");
        let words = [id, r#"ceiling_day_rub: null → \"5.00\""#, "z-first"];
        audited(&lines, "key.create", &words);
        assert!(!lines[0].contains(key["key"].as_str().unwrap()));
        for (body, change) in [
            (
                r#"{"ceiling_day_rub":null}"#,
                r#"ceiling_day_rub: \"5.00\" → null"#,
            ),
            (
                r#"{"ceiling_month_rub":"7"}"#,
                r#"ceiling_month_rub: null → \"7.00\""#,
            ),
            (r#"{"tokens_per_minute":9}"#, "tokens_per_minute: null → 9"),
            (r#"{"name":"build"}"#, r#"name: \"ci\" → \"build\""#),
            (
                r#"{"status":"disabled"}"#,
                r#"status: \"active\" → \"disabled\""#,
            ),
        ] {
            let (_, lines) = made(patch.clone(), &path, body).await;
            audited(&lines, "key.change", &[id, "account=acme", change]);
        }
        let (_, lines) = made(Method::DELETE, &path, "").await;
        let change = r#"status: \"disabled\" → \"deleted\""#;
        audited(&lines, "key.delete", &[id, change]);

        let (_, lines) = made(patch, "vendors/v", r#"{"status":"disabled"}"#).await;
        let change = r#"status: \"active\" → \"disabled\""#;
        audited(&lines, "vendor.change", &[r#"vendor="v""#, change]);
        let (_, lines) = made(post, "audit", "").await;
        audited(&lines, "audit", &["breaches=0"]);

        // Whoever only looks leaves none, and neither does what was refused.
        let looks = ["accounts", "accounts/acme", "accounts/acme/keys", "vendors"];
        for path in looks.into_iter().chain([path.as_str()]) {
            let (_, lines) = made(Method::GET, path, "").await;
            assert_eq!(lines, Vec::<String>::new(), "{path}");
        }
        let (status, _) = asked(&admin, Method::PATCH, &path, r#"{"name":"x"}"#).await;
        assert_eq!((status, log.take()), (409, Vec::new()));
    }

    /// One line, of this target, about this, with these words in it.
    fn audited(lines: &[String], what: &str, words: &[&str]) {
        let [line] = lines else {
            panic!("{what}: {lines:?}");
        };
        let what = format!("what=\"{what}\"");
        let always = ["audit: ", r#"who="admin""#, what.as_str()];
        for word in always.iter().chain(words) {
            assert!(line.contains(word), "{word}: {line}");
        }
    }

    #[tokio::test]
    async fn a_model_that_is_not_in_the_catalog_is_refused_with_the_one_that_was_meant() {
        let admin = admin();
        asked(&admin, Method::POST, "accounts", r#"{"id":"acme"}"#).await;
        let keys = "accounts/acme/keys";
        for (models, says) in [
            (
                r#"["a-second","z-frist"]"#,
                r#"models[1]: the catalog has no model "z-frist"; did you mean "z-first"?"#,
            ),
            (
                r#"["gpt-5"]"#,
                r#"models[0]: the catalog has no model "gpt-5"; it has z-first, a-second"#,
            ),
        ] {
            let body = format!(r#"{{"models":{models}}}"#);
            let (status, answer) = asked(&admin, Method::POST, keys, &body).await;
            assert_eq!(status, 400, "{answer}");
            assert_eq!(answer["error"]["message"], says);
        }
        let (_, key) = asked(&admin, Method::POST, keys, r#"{"models":["z-first"]}"#).await;
        let path = format!("keys/{}", key["id"].as_str().unwrap());
        let (status, _) = asked(&admin, Method::PATCH, &path, r#"{"models":["x"]}"#).await;
        assert_eq!(status, 400);
        let (_, shown) = asked(&admin, Method::GET, &path, "").await;
        assert_eq!(shown["models"], json!(["z-first"]));
    }

    #[test]
    fn only_the_admin_key_is_let_in() {
        let key_digest = digest(b"correct horse");
        let cases: [(&[&'static str], bool); 10] = [
            (&["Bearer correct horse"], true),
            (&["bearer correct horse"], true),
            (&[], false),
            (&["Bearer "], false),
            (&["Bearer"], false),
            (&["Bearer correct hors"], false),
            (&["Bearer correct horse "], false),
            (&["Basic correct horse"], false),
            (&["correct horse"], false),
            (&["Bearer correct horse", "Bearer correct horse"], false),
        ];
        for (values, let_in) in cases {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, HeaderValue::from_static(value));
            }
            assert_eq!(shows_key(&headers, &key_digest), let_in, "{values:?}");
        }
    }

    #[test]
    fn a_misspelt_field_of_a_key_is_refused_by_name() {
        for (known, body, begins) in [
            (
                KEY_FIELDS,
                r#"{"ceiling":"10"}"#,
                "ceiling: unknown field; this call takes sha256, prefix, name, ceiling_rub,",
            ),
            (
                KEY_FIELDS,
                r#"{"status":"active"}"#,
                "status: unknown field",
            ),
            (
                KEY_FIELDS,
                r#"{"ceiling_rub":10}"#,
                "ceiling_rub: must be a string of decimal rubles",
            ),
            (
                KEY_FIELDS,
                r#"{"expires_at":"2001-01-01"}"#,
                "expires_at: lies in the past",
            ),
            (
                KEY_CHANGE_FIELDS,
                r#"{"name":null}"#,
                "name: must be a string",
            ),
        ] {
            let read = Fields::parse(body.as_bytes(), known)
                .and_then(|mut fields| key_change(&mut fields, now_ms()));
            let message = read.unwrap_err().message();
            assert!(message.starts_with(begins), "{body}: {message}");
        }
        assert!(
            key_status(&json!("deleted"))
                .unwrap_err()
                .contains("send DELETE")
        );
        assert!(suspended(&json!(true)).is_err());
    }

    #[test]
    fn null_takes_a_limit_of_a_key_away() {
        let body =
            br#"{"ceiling_rub":null,"models":null,"addresses":["10.0.0.1"],"expires_at":null}"#;
        let mut fields = Fields::parse(body, KEY_CHANGE_FIELDS).unwrap();
        let change = KeyChange {
            ceiling: Some(None),
            models: Some(Vec::new()),
            addresses: Some(vec!["10.0.0.1/32".parse().unwrap()]),
            expires_at_ms: Some(None),
            ..KeyChange::default()
        };
        assert_eq!(key_change(&mut fields, 0), Ok(change));
    }

    #[test]
    fn key_ids_are_ids_and_differ() {
        let (one, other) = (new_key_id().unwrap(), new_key_id().unwrap());
        assert!(one.len() == 16 && one.starts_with('k') && one != other);
    }

    #[tokio::test]
    async fn a_body_is_held_to_its_limit() {
        let whole = collect(Full::new(Bytes::from(vec![b' '; BODY_BYTES_MAX]))).await;
        assert_eq!(whole.unwrap().len(), BODY_BYTES_MAX);
        let larger = collect(Full::new(Bytes::from(vec![b' '; BODY_BYTES_MAX + 1]))).await;
        assert_eq!(
            larger,
            Err(Refusal::BodyTooLarge {
                bytes_max: BODY_BYTES_MAX
            })
        );
    }
}
