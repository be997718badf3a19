//! Endpoints for keys: create or import, limit, disable, delete.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;
use tollgate_layers::{
    auth::SecretKey,
    ceiling::Ceilings,
    key::{KeyDigest, KeyId, KeyRecord, KeyStatus, KeyStore},
    reserve::ledger::{BookError, KeyChange, KeyView, LedgerAdmin},
};
use tollgate_ledger::account::OWNER_MARK;

use super::{
    Admin, Answer, Operator, Right,
    accounts::account_id,
    answer::KeyAnswer,
    change::changes,
    fields::Fields,
    now_ms, ok,
    refusal::{OrRefuse as _, Refusal},
    route::{AdminRequest, Route, routes},
};
use crate::{
    api::{
        ceilings,
        fields::{self, either},
        new_key_id,
    },
    config::PaymentsConfig,
    ledger::AnyLedger,
    text::{causes::chain, similar::nearest},
};

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/accounts/{account}/keys" => list_keys;
    post "/admin/v1/accounts/{account}/keys" => create_key .needs(Right::Support);
    get "/admin/v1/keys/{key}" => show_key;
    patch "/admin/v1/keys/{key}" => change_key .needs(Right::Support);
    delete "/admin/v1/keys/{key}" => delete_key .needs(Right::Support);
};

/// The names of a key's limits other than its ceilings.
const LIMITS: [&str; 10] = [
    "models",
    "addresses",
    "requests_per_second",
    "requests_per_minute",
    "tokens_per_minute",
    "group",
    "concurrency",
    "idempotency",
    "growing_holds",
    "expires_at",
];
/// The maximum number of models listed in the error for an unknown model.
const MODELS_NAMED_MAX: usize = 5;

impl Admin {
    async fn list_keys(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let account = account_id(request.named())?;
        let keys = self.store.keys(&account).await;
        let keys = keys.or_refuse(format_args!("account {account}"))?;
        let keys: Vec<KeyAnswer<'_>> = keys.iter().map(KeyAnswer::from).collect();
        ok(&BTreeMap::from([("keys", keys)]))
    }

    async fn create_key(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let account = account_id(request.named())?;
        let who = request.who();
        let body = request.body().await?;
        let now_ms = now_ms();
        let mut fields = Fields::parse(&body, &new_fields())?;
        let shown = Shown::read(&mut fields)?;
        let kind = either([("caller", false), ("owner", true)]);
        let is_owner = fields.optional("kind", kind)?.unwrap_or(false);
        self.check_owner(is_owner, &who)?;
        let change = key_change(&mut fields, now_ms)?;
        self.check_models(change.models.as_deref())?;
        check_owner_models(is_owner, &change)?;
        let ceilings = change.ceilings(Ceilings::NONE);
        if let Shown::Issued { digest, .. } = &shown
            && let Some(known) = self.key_of(digest).await?
        {
            return Err(Refusal::Conflict(format!(
                "sha256: key {} of account {} already has this digest",
                known.id, known.account
            )));
        }
        let (digest, prefix) = shown.parts();
        let id = new_key_id().map_err(|error| {
            tracing::error!(%error, "the operating system returned no random bytes for a new key");
            Refusal::Internal
        })?;
        let mut record = KeyRecord::new(id, account, digest);
        record.prefix = prefix;
        record.created_at_ms = now_ms;
        change.apply(&mut record);
        if is_owner {
            record.models = vec![OWNER_MARK.to_owned()];
        }
        let view = self.store.create_key(&record, ceilings).await;
        let view = view.map_err(|error| not_created(&error, &record, &shown))?;
        let (account, unlimited) = (&record.account, unlimited(&view));
        let [before, after] = [&unlimited, &view].map(KeyAnswer::from);
        let limits = changes(&new_fields(), &before, &after);
        tracing::info!(
            target: "audit", who = who.name(), what = "key.create", account = %account, key = %record.id,
            prefix = record.prefix, limits
        );
        match &shown {
            Shown::Made(secret) => ok(&KeyAnswer::with_secret(&view, secret.expose())),
            Shown::Issued { .. } => ok(&KeyAnswer::from(&view)),
        }
    }

    /// Returns the key with this id or this SHA-256. An id and a digest cannot be confused, because every id is shorter
    /// than a digest.
    async fn show_key(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let text = request.named();
        let id = match text.strip_prefix("sha256-").map(str::parse::<KeyDigest>) {
            Some(digest) => {
                let none = || Refusal::NotFound("no key with this SHA-256".into());
                let digest = digest.map_err(|_| none())?;
                self.key_of(&digest).await?.ok_or_else(none)?.id.clone()
            }
            None => key_id(text)?,
        };
        ok(&KeyAnswer::from(&find_key(&self.store, &id).await?))
    }

    async fn key_of(&self, digest: &KeyDigest) -> Result<Option<Arc<KeyRecord>>, Refusal> {
        let found = self.store.find_key(digest).await;
        found.map_err(BookError::Unavailable).or_refuse("key")
    }

    async fn change_key(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let id = &key_id(request.named())?;
        let who = request.who();
        let mut fields = Fields::parse(&request.body().await?, &change_fields())?;
        let status = fields.optional("status", key_status)?;
        let now_ms = now_ms();
        let mut change = KeyChange {
            status,
            ..key_change(&mut fields, now_ms)?
        };
        if change == KeyChange::default() {
            return Err(Refusal::nothing_to_change(&change_fields()));
        }
        self.check_models(change.models.as_deref())?;
        change.changed_at_ms = Some(now_ms);
        let before = find_key(&self.store, id).await?;
        if before.record.status == KeyStatus::Deleted {
            return Err(deleted(id));
        }
        self.check_owner(before.record.is_owner(), &who)?;
        check_owner_models(before.record.is_owner(), &change)?;
        let view = self.store.change_key(id, &change).await;
        let view = view.or_refuse_change(format_args!("key {id}"))?;
        // Another request deleted the key after this request had read the key, so the ledger did not apply the change.
        if view.record.status == KeyStatus::Deleted {
            return Err(deleted(id));
        }
        log_key(&who, "key.change", &before, &view);
        ok(&KeyAnswer::from(&view))
    }

    async fn delete_key(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let id = &key_id(request.named())?;
        let before = find_key(&self.store, id).await?;
        self.check_owner(before.record.is_owner(), &request.who())?;
        let is_new = before.record.status != KeyStatus::Deleted;
        let change = KeyChange {
            status: Some(KeyStatus::Deleted),
            changed_at_ms: is_new.then(now_ms),
            ..KeyChange::default()
        };
        let view = self.store.change_key(id, &change).await;
        let view = view.or_refuse_change(format_args!("key {id}"))?;
        log_key(&request.who(), "key.delete", &before, &view);
        ok(&KeyAnswer::from(&view))
    }

    /// Refuses an owner key to operators whose role may not create one, because the key's holder can start and stop
    /// payments by card.
    fn check_owner(&self, is_owner: bool, who: &Operator) -> Result<(), Refusal> {
        let config = self.payments.config();
        let pays = config.is_some_and(PaymentsConfig::is_offered);
        if is_owner && !who.role().may(Right::Money) && pays {
            return Err(Refusal::RoleRefused(who.role()));
        }
        Ok(())
    }

    /// Refuses models that are not in the catalog, because a key limited to a misspelt model could call nothing.
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
                    let more = match known().count() > some.len() {
                        true => ", …",
                        false => "",
                    };
                    format!("its models are {}{more}", some.join(", "))
                }
            };
            return Err(Refusal::invalid(
                format!("models[{index}]"),
                format!("the catalog has no model {model:?}; {hint}"),
            ));
        }
        Ok(())
    }
}

/// Refuses models for an owner key, which cannot call any.
fn check_owner_models(is_owner: bool, change: &KeyChange) -> Result<(), Refusal> {
    let models = change.models.as_deref().unwrap_or_default();
    if is_owner && !models.is_empty() {
        let problem = "an owner key cannot call models; leave this field out";
        return Err(Refusal::invalid("models", problem));
    }
    Ok(())
}

fn deleted(id: &KeyId) -> Refusal {
    Refusal::Conflict(format!(
        "key {id} was deleted and cannot be restored; create another key"
    ))
}

fn log_key(who: &Operator, what: &str, before: &KeyView, after: &KeyView) {
    let KeyRecord { id, account, .. } = &after.record;
    let [before, after] = [before, after].map(KeyAnswer::from);
    let change = changes(&change_fields(), &before, &after);
    tracing::info!(target: "audit", who = who.name(), what, account = %account, key = %id, change);
}

/// Returns the key without its name and limits. The audit line of a new key lists the differences from this state.
fn unlimited(key: &KeyView) -> KeyView {
    let mut key = key.clone();
    (key.ceiling_rub, key.month.ceiling_rub, key.day.ceiling_rub) = (None, None, None);
    let old = key.record;
    key.record = KeyRecord::new(old.id, old.account, old.digest);
    key.record.prefix = old.prefix;
    key.record.status = old.status;
    key.record.created_at_ms = old.created_at_ms;
    key.record.changed_at_ms = old.changed_at_ms;
    key
}

/// How a new key is identified: by a secret generated here, or by the digest of a key issued elsewhere.
enum Shown {
    /// The gateway generates the key and shows it once.
    Made(SecretKey),
    /// The key was issued elsewhere: the gateway has only its digest and prefix.
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
                "valid only with sha256; a generated key has its own prefix",
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

/// Returns the error for a key that the ledger did not create, or may have created without confirming it.
fn not_created(error: &BookError, record: &KeyRecord, shown: &Shown) -> Refusal {
    match error {
        BookError::Unavailable(source) => {
            tracing::warn!(error = chain(&**source), account = %record.account, "the ledger is out of reach; a key may have been created");
            Refusal::LedgerOutOfReach(match shown {
                Shown::Made(_) => format!(
                    "the ledger is out of reach and may have created key {}: if the account lists this key, delete it; \
                     then create another key",
                    record.id
                ),
                Shown::Issued { .. } => {
                    "the ledger is out of reach; the key may have been created: repeat the request"
                        .into()
                }
            })
        }
        BookError::NotFound => Refusal::NotFound(format!("no account {}", record.account)),
        // Generated keys never collide, so the existing digest belongs to an imported key.
        BookError::Exists => {
            Refusal::Conflict("sha256: another key already has this digest".into())
        }
        error => Refusal::of_ledger(error, &format!("key {}", record.id)),
    }
}

/// Returns the field names `first`, followed by the fields that both requests (create and change a key) accept.
fn fields_after(first: &[&'static str]) -> Vec<&'static str> {
    let first = first.iter().copied().chain(["name"]);
    first.chain(ceilings::fields()).chain(LIMITS).collect()
}

fn new_fields() -> Vec<&'static str> {
    fields_after(&["kind", "sha256", "prefix"])
}

fn change_fields() -> Vec<&'static str> {
    fields_after(&["status"])
}

/// Reads the fields that the requests to create and to change a key have in common.
fn key_change(fields: &mut Fields, now_ms: u64) -> Result<KeyChange, Refusal> {
    let name = fields.optional("name", fields::line)?;
    let ceilings = ceilings::of_key(|field| fields.nullable(field, fields::ceiling))?;
    Ok(KeyChange {
        name,
        models: fields.list("models", fields::words)?,
        addresses: fields.list("addresses", fields::address)?,
        requests_per_second: fields.nullable("requests_per_second", fields::requests)?,
        requests_per_minute: fields.nullable("requests_per_minute", fields::requests)?,
        tokens_per_minute: fields.nullable("tokens_per_minute", fields::tokens)?,
        group: fields.nullable("group", fields::id)?,
        concurrency: fields.nullable("concurrency", fields::calls)?,
        idempotency: fields.optional("idempotency", fields::flag)?,
        growing_holds: fields.optional("growing_holds", fields::flag)?,
        expires_at_ms: fields.nullable("expires_at", fields::time_after(now_ms))?,
        ..ceilings
    })
}

pub(super) fn key_id(text: &str) -> Result<KeyId, Refusal> {
    text.parse::<KeyId>()
        .map_err(|error| Refusal::NotFound(format!("no such key: {error}")))
}

/// Returns a key of the ledger.
pub(super) async fn find_key(store: &AnyLedger, id: &KeyId) -> Result<KeyView, Refusal> {
    let found = store.key(id).await;
    found.or_refuse(format_args!("key {id}"))
}

fn key_status(value: &Value) -> Result<KeyStatus, String> {
    match value.as_str() {
        Some("active") => Ok(KeyStatus::Active),
        Some("disabled") => Ok(KeyStatus::Disabled),
        _ => Err("must be \"active\" or \"disabled\"; to delete the key, send DELETE".into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn error_about_a_key_names_the_unknown_or_invalid_field() {
        for (known, body, begins) in [
            (
                &new_fields(),
                r#"{"ceiling":"10"}"#,
                "ceiling: unknown field; this call takes kind, sha256, prefix, name, ceiling_rub,",
            ),
            (
                &new_fields(),
                r#"{"status":"active"}"#,
                "status: unknown field",
            ),
            (
                &new_fields(),
                r#"{"ceiling_rub":10}"#,
                "ceiling_rub: must be a string of decimal rubles",
            ),
            (
                &new_fields(),
                r#"{"expires_at":"2001-01-01"}"#,
                "expires_at: is in the past",
            ),
            (
                &change_fields(),
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
    }

    #[test]
    fn null_removes_a_keys_limit() {
        let body =
            br#"{"ceiling_rub":null,"models":null,"addresses":["10.0.0.1"],"expires_at":null}"#;
        let mut fields = Fields::parse(body, &change_fields()).unwrap();
        let change = KeyChange {
            ceiling: Some(None),
            models: Some(Vec::new()),
            addresses: Some(vec!["10.0.0.1/32".parse().unwrap()]),
            expires_at_ms: Some(None),
            ..KeyChange::default()
        };
        assert_eq!(key_change(&mut fields, 0), Ok(change));
    }
}
