//! `/v1/<service>/keys`: list, create, limit and revoke an account's keys, for the holder of its owner key.
//!
//! An owner key cannot call models, and these endpoints refuse every other key. The returned list of keys also contains
//! owner keys, including the key that sends the request, but only the operator can change owner keys.

use std::sync::Arc;

use http::{Method, Request, Response};
use serde::Serialize;
use serde_json::{Map, Value};
use tollgate_layers::{
    Error,
    auth::SecretKey,
    body::AnswerBody,
    ceiling::Ceilings,
    error::Problem,
    facts::Caller,
    key::{GroupId, KeyId, KeyRecord, KeyStatus},
    money::MicroRub,
    reserve::ledger::{BookError, KeyChange, KeyView, LedgerAdmin},
};

use crate::{
    api::{
        ceilings::{self, Spending},
        fields::{ceiling, line},
        new_key_id,
    },
    catalog::snapshot::Live,
    edge::{body_limit::UnreadBody, routes::Matched},
    endpoints::{
        error::EndpointError, handler::Handler, key_info::no_books, params::unknown_field, reply,
    },
    ledger::AnyLedger,
    text::time::{now_ms, rfc3339},
};

/// The maximum number of keys that an owner may create in an account; deleted keys do not count.
const KEYS_MAX: usize = 1_000;
const MODELS_MAX: u64 = 1_000;

/// Serves requests of an owner key about the account's keys. Must be below `auth`, which identifies the key.
#[derive(Clone, Debug)]
pub struct OwnKeys {
    pub(crate) live: Arc<Live>,
    pub(crate) store: AnyLedger,
}

impl OwnKeys {
    async fn answer(
        self,
        owner: &KeyRecord,
        method: &Method,
        id: Option<&str>,
        body: UnreadBody,
    ) -> Result<Response<AnswerBody>, Error> {
        let Some(id) = id else {
            if *method == Method::POST {
                return self.create(owner, &read(body).await?).await;
            }
            let keys = self.store.keys(&owner.account).await.map_err(no_books)?;
            let seen = keys.iter().filter(|key| sees(owner, key));
            let keys = seen.map(OwnKey::from).collect();
            return Ok(reply::json(&OwnKeysJson { keys }));
        };
        let known = self.known(owner, id).await?;
        let mut change = match *method {
            Method::PATCH => {
                let fields = read(body).await?;
                self.check(&fields, &["status"])?;
                let change = KeyChange {
                    status: fields.get("status").map(status).transpose()?,
                    ..wanted(&fields)?
                };
                if change == KeyChange::default() {
                    return Err(Error::invalid("", Problem::Empty));
                }
                stays_in_group(owner, &change)?;
                change
            }
            Method::DELETE => KeyChange {
                status: Some(KeyStatus::Deleted),
                ..KeyChange::default()
            },
            _ => return Ok(reply::json(&OwnKey::from(&known))),
        };
        if known.record.is_owner() || known.record.status == KeyStatus::Deleted {
            return Err(Error::custom(EndpointError::OwnKeyUnknown));
        }
        change.changed_at_ms = Some(now_ms());
        let changed = self.store.change_key(&known.record.id, &change).await;
        let changed = changed.map_err(of_change)?;
        let what = match method {
            &Method::DELETE => "key.delete",
            _ => "key.change",
        };
        tracing::info!(
            target: "audit", who = %who(owner), what, account = %owner.account, key = %known.record.id,
            before = %limits(&known), after = %limits(&changed)
        );
        Ok(reply::json(&OwnKey::from(&changed)))
    }

    /// Finds a key of the owner key's account. For another account's key, the error is the same as for an unknown key.
    async fn known(&self, owner: &KeyRecord, id: &str) -> Result<KeyView, Error> {
        let unknown = || Error::custom(EndpointError::OwnKeyUnknown);
        let id: KeyId = id.parse().map_err(|_| unknown())?;
        match self.store.key(&id).await {
            Ok(view) if view.record.account == owner.account && sees(owner, &view) => Ok(view),
            Ok(_) | Err(BookError::NotFound) => Err(unknown()),
            Err(error) => Err(no_books(error)),
        }
    }

    async fn create(
        &self,
        owner: &KeyRecord,
        fields: &Map<String, Value>,
    ) -> Result<Response<AnswerBody>, Error> {
        self.check(fields, &[])?;
        let wanted = wanted(fields)?;
        stays_in_group(owner, &wanted)?;
        let ceilings = wanted.ceilings(Ceilings::NONE);
        let keys = self.store.keys(&owner.account).await.map_err(no_books)?;
        let is_there = |key: &&KeyView| key.record.status != KeyStatus::Deleted;
        // Deleted keys stay in the ledger for their receipts, so their number is bounded, too.
        if keys.iter().filter(is_there).count() >= KEYS_MAX || keys.len() >= 10 * KEYS_MAX {
            return Err(Error::invalid("keys", Problem::AboveMax(KEYS_MAX as u64)));
        }
        let secret = SecretKey::generate();
        // Limits that an operator set for the owner key also apply to the keys that it creates.
        let mut record = owner.clone();
        record.id = new_key_id().map_err(Error::Internal)?;
        record.digest = secret.digest();
        record.prefix = secret.prefix();
        record.name = String::new();
        record.models = Vec::new();
        record.created_at_ms = now_ms();
        record.changed_at_ms = 0;
        wanted.apply(&mut record);
        let view = self.store.create_key(&record, ceilings).await;
        let view = view.map_err(of_change)?;
        tracing::info!(
            target: "audit", who = %who(owner), what = "key.create", account = %owner.account, key = %record.id,
            prefix = record.prefix, after = %limits(&view)
        );
        Ok(reply::json(&OwnKey {
            key: Some(secret.expose()),
            ..OwnKey::from(&view)
        }))
    }

    /// Refuses unknown fields, because a misspelt ceiling must not result in no ceiling. `also` lists fields that are
    /// accepted in addition to those of a new key.
    fn check(&self, fields: &Map<String, Value>, also: &[&str]) -> Result<(), Error> {
        let known = |name: &str| {
            ["name", "models", "group"].contains(&name)
                || ceilings::fields().any(|field| field == name)
                || also.contains(&name)
        };
        if let Some(name) = fields.keys().find(|name| !known(name)) {
            return Err(unknown_field(name));
        }
        let snapshot = self.live.snapshot();
        for model in models(fields)?.unwrap_or_default() {
            if !snapshot.models().any(|(known, _)| known.id == model) {
                return Err(Error::custom(EndpointError::ModelNotListed { model }));
            }
        }
        Ok(())
    }
}

impl Handler<UnreadBody> for OwnKeys {
    async fn handle(self, req: Request<UnreadBody>) -> Result<Response<AnswerBody>, Error> {
        let Caller(key) = Caller::of(&req)?;
        let key = Arc::clone(key);
        if !key.is_owner() {
            return Err(Error::custom(EndpointError::OwnerKeyNeeded));
        }
        let id = Matched::from_request(&req)?.parameter.clone();
        let (head, body) = req.into_parts();
        self.answer(&key, &head.method, id.as_deref(), body).await
    }
}

/// Returns the name under which the holder of an owner key appears in the audit log.
fn who(owner: &KeyRecord) -> String {
    format!("key {}", owner.id)
}

/// Returns the fields of a request's body; none if there is no body.
pub(super) async fn read(body: UnreadBody) -> Result<Map<String, Value>, Error> {
    let bytes = body.whole().await?;
    if bytes.trim_ascii().is_empty() {
        return Ok(Map::new());
    }
    let not_json = |error: serde_json::Error| Problem::NotJson(error.to_string());
    serde_json::from_slice(&bytes).map_err(|error| Error::invalid("", not_json(error)))
}

fn wanted(fields: &Map<String, Value>) -> Result<KeyChange, Error> {
    let no_line = |_| Error::invalid("name", Problem::WrongType("string"));
    let name = fields.get("name").map(line).transpose().map_err(no_line)?;
    let ceilings = ceilings::of_key(|field| rubles(fields, field))?;
    Ok(KeyChange {
        name,
        models: models(fields)?,
        group: group(fields)?,
        ..ceilings
    })
}

/// Parses the field `group`; null removes the key from its group.
fn group(fields: &Map<String, Value>) -> Result<Option<Option<GroupId>>, Error> {
    match fields.get("group") {
        None => Ok(None),
        Some(Value::Null) => Ok(Some(None)),
        Some(Value::String(group)) => group.parse().map(Some).map(Some).map_err(|_| no_group()),
        Some(_) => Err(Error::invalid("group", Problem::WrongType("string"))),
    }
}

fn no_group() -> Error {
    Error::invalid("group", Problem::NotOneOf("the account's groups"))
}

/// Returns whether the owner key sees `key`: an owner key that is in a group sees only keys of that group.
fn sees(owner: &KeyRecord, key: &KeyView) -> bool {
    owner.group.is_none() || owner.group == key.record.group
}

/// Refuses a change by which an owner key in a group would create a key outside its group or move a key out of it. So
/// no key escapes the group's ceilings.
fn stays_in_group(owner: &KeyRecord, change: &KeyChange) -> Result<(), Error> {
    match (&owner.group, &change.group) {
        (Some(own), Some(wished)) if wished.as_ref() != Some(own) => {
            let problem = Problem::NotOneOf("the owner key's group");
            Err(Error::invalid("group", problem))
        }
        _ => Ok(()),
    }
}

/// Parses a ceiling; null removes it.
fn rubles(
    fields: &Map<String, Value>,
    name: &'static str,
) -> Result<Option<Option<MicroRub>>, Error> {
    let wrong = |_| Error::invalid(name, Problem::WrongType("\"12.50\""));
    match fields.get(name) {
        None => Ok(None),
        Some(Value::Null) => Ok(Some(None)),
        Some(value) => ceiling(value).map(Some).map(Some).map_err(wrong),
    }
}

fn models(fields: &Map<String, Value>) -> Result<Option<Vec<String>>, Error> {
    let wrong = || Error::invalid("models", Problem::WrongType("array of strings"));
    let Some(value) = fields.get("models") else {
        return Ok(None);
    };
    let names = value.as_array().ok_or_else(wrong)?;
    if names.len() as u64 > MODELS_MAX {
        return Err(Error::invalid("models", Problem::AboveMax(MODELS_MAX)));
    }
    let texts = names.iter().map(|name| name.as_str().map(str::to_owned));
    texts.collect::<Option<_>>().ok_or_else(wrong).map(Some)
}

fn status(value: &Value) -> Result<KeyStatus, Error> {
    match value.as_str() {
        Some("active") => Ok(KeyStatus::Active),
        Some("disabled") => Ok(KeyStatus::Disabled),
        _ => {
            let problem = Problem::NotOneOf("active, disabled");
            Err(Error::invalid("status", problem))
        }
    }
}

fn of_change(error: BookError) -> Error {
    match error {
        BookError::NotFound => Error::custom(EndpointError::OwnKeyUnknown),
        BookError::NoGroup => no_group(),
        other => no_books(other),
    }
}

/// Writes a key's limits for the audit log.
fn limits(view: &KeyView) -> String {
    serde_json::to_string(&OwnKey::from(view)).unwrap_or_default()
}

#[derive(Serialize)]
struct OwnKeysJson<'a> {
    keys: Vec<OwnKey<'a>>,
}

/// A key, as the holder of the owner key sees it. The fields have the same names as in the operators' responses.
#[derive(Serialize)]
struct OwnKey<'a> {
    /// The key's secret; present only in the response to the request that created the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    id: &'a KeyId,
    kind: &'static str,
    prefix: &'a str,
    name: &'a str,
    status: KeyStatus,
    #[serde(flatten)]
    spending: Spending,
    held_rub: MicroRub,
    free_rub: MicroRub,
    models: &'a [String],
    group: Option<&'a GroupId>,
    expires_at: Option<String>,
    created_at: String,
}

impl<'a> From<&'a KeyView> for OwnKey<'a> {
    fn from(view: &'a KeyView) -> Self {
        let record = &view.record;
        Self {
            key: None,
            id: &record.id,
            kind: record.kind(),
            prefix: &record.prefix,
            name: &record.name,
            status: record.status,
            spending: Spending::from(view),
            held_rub: view.held_rub,
            free_rub: view.free_rub,
            models: record.models_named(),
            group: record.group.as_ref(),
            expires_at: record.expires_at_ms.map(rfc3339),
            created_at: rfc3339(record.created_at_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::BodyExt;
    use serde_json::json;
    use tollgate_layers::key::KeyStore;
    use tollgate_ledger::{account::OWNER_MARK, memory::MemoryLedger};

    use super::*;
    use crate::{admin::tests::Log, catalog::snapshot::tests::live, edge::routes::Route};

    /// Creates an account with an owner key.
    async fn owner(store: &AnyLedger) -> Arc<KeyRecord> {
        let account = "acme".parse().unwrap();
        store.create_account(&account, "Acme").await.unwrap();
        let secret = SecretKey::generate();
        let mut record = secret.record("k-owner".parse().unwrap(), account);
        record.name = "owner".into();
        record.models = vec![OWNER_MARK.to_owned()];
        store.create_key(&record, Ceilings::NONE).await.unwrap();
        store.find_key(&record.digest).await.unwrap().unwrap()
    }

    #[tokio::test(flavor = "current_thread")]
    async fn change_by_an_owner_key_leaves_one_log_line_with_the_owner_key_and_the_changed_key() {
        let log = Log::listen();
        let store = AnyLedger::Memory(MemoryLedger::new());
        let owner = owner(&store).await;
        let live = Arc::new(live());
        let keys = OwnKeys { live, store };
        let made = async |method: Method, id: &str, body: Value| {
            let mut req = Request::builder()
                .method(method)
                .extension(Matched {
                    route: Route::OwnKey,
                    parameter: (!id.is_empty()).then(|| id.into()),
                })
                .body(UnreadBody::read(Bytes::from(body.to_string())))
                .unwrap();
            req.extensions_mut().insert(Caller(Arc::clone(&owner)));
            log.take();
            let res = keys.clone().handle(req).await.unwrap();
            let bytes = res.into_body().collect().await.unwrap().to_bytes();
            let answer: Value = serde_json::from_slice(&bytes).unwrap();
            (answer, log.take())
        };
        let audited = |lines: &[String], what: &str, words: &[&str]| {
            let [line] = lines else {
                panic!("{what}: {lines:?}");
            };
            let what = format!("what=\"{what}\"");
            let always = ["audit: ", "who=key k-owner", "account=acme", &what];
            for word in always.iter().chain(words) {
                assert!(line.contains(word), "{word}: {line}");
            }
        };

        let wanted = json!({ "name": "ci", "ceiling_day_rub": "5" });
        let (key, lines) = made(Method::POST, "", wanted).await;
        let id = key["id"].as_str().unwrap();
        audited(&lines, "key.create", &[id, r#""ceiling_day_rub":"5.00""#]);
        assert!(!lines[0].contains(key["key"].as_str().unwrap()));
        let disable = json!({ "status": "disabled" });
        let (_, lines) = made(Method::PATCH, id, disable).await;
        let words = [id, r#""status":"active""#, r#""status":"disabled""#];
        audited(&lines, "key.change", &words);
        let (_, lines) = made(Method::DELETE, id, Value::Null).await;
        audited(&lines, "key.delete", &[id, r#""status":"deleted""#]);
        let (_, lines) = made(Method::GET, "", Value::Null).await;
        assert_eq!(lines, Vec::<String>::new());
    }
}
