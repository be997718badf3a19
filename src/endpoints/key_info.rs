//! What a key may know of itself: the models it may call, and its money.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{HeaderMap, HeaderName, Request, Response, Uri};
use serde_json::{Value, json};
use tollgate_layers::{
    Error,
    body::AnswerBody,
    call::Format,
    facts::Caller,
    key::KeyRecord,
    model::ModelKind,
    money::MicroRub,
    reserve::ledger::{BookError, LedgerAdmin, PeriodView},
    respond::Language,
};
use tower::Service;

use crate::{
    catalog::snapshot::{Listed, Live},
    endpoints::{codex, page::shown, reply},
    ledger::AnyLedger,
    text::{percent::decoded, time::rfc3339},
};

const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");

/// Answers `GET /v1/models`, `GET /v1/models/<id>` and `GET /v1/<service>/key`, behind `auth`.
#[derive(Clone, Debug)]
pub struct KeyInfo {
    live: Arc<Live>,
    store: AnyLedger,
}

impl KeyInfo {
    /// Reads the catalog from `live` and the books from `store`.
    #[must_use]
    pub const fn new(live: Arc<Live>, store: AnyLedger) -> Self {
        Self { live, store }
    }

    /// The models that this key may call, in the caller's format.
    fn models(&self, key: &KeyRecord, format: Format, uri: &Uri) -> Value {
        let snapshot = self.live.snapshot();
        let since = snapshot.version().effective_from_ms;
        let listed = || {
            let listed = snapshot.listed(&key.account);
            listed.filter(|model| key.allows_model(model.id))
        };
        let data: Vec<_> = listed()
            .map(|model| model_json(model, format, since))
            .collect();
        match format {
            Format::Chat | Format::Responses if codex::asks(uri) => {
                let chats = listed().filter(|model| model.kind == ModelKind::Chat);
                let models: Vec<_> = chats
                    .enumerate()
                    .map(|(place, model)| {
                        codex::model(&model, description(&model).as_deref(), place)
                    })
                    .collect();
                json!({ "object": "list", "data": data, "models": models })
            }
            Format::Chat | Format::Responses => json!({ "object": "list", "data": data }),
            Format::Messages => {
                let (first, last) = (
                    data.first().map(|model| &model["id"]),
                    data.last().map(|model| &model["id"]),
                );
                json!({ "first_id": first, "last_id": last, "has_more": false, "data": data })
            }
        }
    }

    /// One of them. Of a model that this key may not call no more is said than of one that there is not.
    fn model(&self, id: &str, key: &KeyRecord, format: Format) -> Result<Value, Error> {
        let snapshot = self.live.snapshot();
        let since = snapshot.version().effective_from_ms;
        let found = snapshot
            .listed(&key.account)
            .find(|model| model.id == id && key.allows_model(id));
        found
            .map(|model| model_json(model, format, since))
            .ok_or_else(|| Error::ModelNotListed { model: id.into() })
    }

    /// The numbers that admission uses.
    async fn key(&self, key: &KeyRecord) -> Result<Value, Error> {
        let view = self.store.key(&key.id).await.map_err(no_books)?;
        Ok(json!({
            "kind": view.record.kind(),
            "prefix": view.record.prefix,
            "name": view.record.name,
            "ceiling_rub": view.ceiling_rub,
            "spent_rub": view.spent_rub,
            "held_rub": view.held_rub,
            "free_rub": view.free_rub,
            "day": period(&view.day, view.held_rub),
            "month": period(&view.month, view.held_rub),
        }))
    }
}

/// A model as clients of the format read it; `since` is when its price came into force, in Unix milliseconds.
fn model_json(model: Listed<'_>, format: Format, since: u64) -> Value {
    let (id, name) = (model.id, model.display_name);
    let mut json = match format {
        Format::Chat | Format::Responses => {
            json!({ "id": id, "object": "model", "created": since / 1000, "owned_by": "tollgate",
                "display_name": name })
        }
        Format::Messages => {
            json!({ "type": "model", "id": id, "display_name": name, "created_at": rfc3339(since) })
        }
    };
    json["kind"] = json!(model.kind);
    json["surfaces"] = json!(model.kind.surfaces());
    if let Some(description) = description(&model) {
        json["description"] = description.into();
    }
    // What the public price list does not say.
    if let Some(prices) = model.prices.filter(|prices| prices.usual.rule.is_some()) {
        let own: Vec<_> = prices.prices().collect();
        json["prices"] = json!(own);
    }
    json
}

/// What people read beside the model's name where a client lets them choose: what the operator says, and the price.
fn description(model: &Listed<'_>) -> Option<String> {
    let price = model.prices.map(|prices| {
        let price = &prices.usual;
        let [input, output] = [price.input, price.output].map(|rate| shown(rate, model.language));
        match model.language {
            Language::En if model.kind == ModelKind::Embedding => {
                format!("Input {input} per 1M tokens")
            }
            _ if model.kind == ModelKind::Embedding => format!("Вход {input} за 1 млн токенов"),
            Language::En => format!("Input {input}, output {output} per 1M tokens"),
            _ => format!("Вход {input}, выход {output} за 1 млн токенов"),
        }
    });
    match (model.description, price) {
        (Some(said), Some(price)) => {
            let end = if said.ends_with(['.', '!', '?', '…']) {
                ""
            } else {
                "."
            };
            Some(format!("{said}{end} {price}"))
        }
        (said, price) => price.or_else(|| said.map(str::to_owned)),
    }
}

/// A key's day or month. What it holds bounds it too, whenever it will be charged; where there is no
/// ceiling, nothing of the period does.
fn period(period: &PeriodView, held: MicroRub) -> Value {
    let taken = period.spent_rub.plus_or_max(held);
    json!({
        "ceiling_rub": period.ceiling_rub,
        "spent_rub": period.spent_rub,
        "free_rub": period.ceiling_rub.map(|ceiling| ceiling.minus_or_zero(taken)),
        "resets_at": rfc3339(period.resets_at_ms),
    })
}

impl<B: Send + 'static> Service<Request<B>> for KeyInfo {
    type Response = Response<AnswerBody>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let Caller(key) = Caller::of(&req)?;
            let format = format_of(req.headers());
            let path = req.uri().path();
            let body = match path.strip_prefix("/v1/models/") {
                Some(id) => {
                    // What is encoded wrongly is no model's name either.
                    let id = decoded(id).unwrap_or_else(|| id.to_owned());
                    this.model(&id, key, format)?
                }
                None if path == "/v1/models" => this.models(key, format, req.uri()),
                None => this.key(key).await?,
            };
            Ok(reply::json(&body))
        })
    }
}

/// Why a key's books could not be read, as the caller's error.
pub(crate) fn no_books(error: BookError) -> Error {
    match error {
        BookError::Unavailable(cause) => Error::LedgerUnavailable(cause),
        BookError::NotFound => Error::KeyUnknown,
        other => Error::Internal(other.into()),
    }
}

/// The format of a caller where the path does not say it: clients of the messages format alone send its
/// version.
pub(crate) fn format_of(headers: &HeaderMap) -> Format {
    if headers.contains_key(ANTHROPIC_VERSION) {
        Format::Messages
    } else {
        Format::Chat
    }
}
