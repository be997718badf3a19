//! Endpoints about the caller's own key: the models that the key may call, and its money.

use std::sync::Arc;

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

use crate::{
    catalog::snapshot::{Listed, Live},
    edge::routes::{Matched, Route},
    endpoints::{codex, error::EndpointError, handler::Handler, page::shown, reply},
    ledger::AnyLedger,
    text::{
        percent::decoded,
        time::{now_ms, rfc3339},
    },
};

const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");

/// Answers `GET /v1/models`, `GET /v1/models/<id>` and `GET /v1/<service>/key`. Must be below `auth`, which identifies
/// the key.
#[derive(Clone, Debug)]
pub struct KeyInfo {
    pub(crate) live: Arc<Live>,
    pub(crate) store: AnyLedger,
}

impl KeyInfo {
    /// Returns the models that this key may call, in the caller's format.
    fn models(&self, key: &KeyRecord, format: Format, uri: &Uri) -> Value {
        let snapshot = self.live.snapshot();
        let since = snapshot.version().effective_from_ms;
        let listed = || {
            let listed = snapshot.listed(&key.account);
            listed.filter(|model| key.allows_model(model.id))
        };
        let data = listed().map(|model| model_json(model, format, since));
        let data: Vec<_> = data.collect();
        match format {
            Format::Chat | Format::Responses if codex::asks(uri) => {
                let chats = listed().filter(|model| model.kind == ModelKind::Chat);
                let models = chats.enumerate().map(|(place, model)| {
                    codex::model(&model, description(&model).as_deref(), place)
                });
                let models: Vec<_> = models.collect();
                json!({ "object": "list", "data": data, "models": models })
            }
            Format::Chat | Format::Responses => json!({ "object": "list", "data": data }),
            Format::Messages => {
                let ends = [data.first(), data.last()];
                let [first, last] = ends.map(|model| model.map(|model| &model["id"]));
                json!({ "first_id": first, "last_id": last, "has_more": false, "data": data })
            }
        }
    }

    /// Returns a model that this key may call. For any other model, the error is the same as for an unknown model.
    fn model(&self, id: &str, key: &KeyRecord, format: Format) -> Result<Value, Error> {
        let snapshot = self.live.snapshot();
        let since = snapshot.version().effective_from_ms;
        let mut listed = snapshot.listed(&key.account);
        let found = listed.find(|model| model.id == id && key.allows_model(id));
        let found = found.map(|model| model_json(model, format, since));
        found.ok_or_else(|| Error::custom(EndpointError::ModelNotListed { model: id.into() }))
    }

    /// Returns the key's money and limits: the amounts that admission uses.
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

/// Returns a model in the caller's format; `since` is when its price came into force, in Unix milliseconds.
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
    // Prices are shown only if a customer price rule sets them, because the public price list does not contain such
    // prices.
    if let Some(prices) = model.prices.filter(|prices| prices.usual.rule.is_some()) {
        let own: Vec<_> = prices.prices().collect();
        json["prices"] = json!(own);
    }
    json
}

/// Returns the text that clients show next to the model's name when a person chooses a model: the operator's
/// description, and the price.
fn description(model: &Listed<'_>) -> Option<String> {
    let price = model.prices.map(|prices| {
        let price = prices.in_force(now_ms());
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
        (Some(reported), Some(price)) => {
            let end = match reported.ends_with(['.', '!', '?', '…']) {
                true => "",
                false => ".",
            };
            Some(format!("{reported}{end} {price}"))
        }
        (reported, price) => price.or_else(|| reported.map(str::to_owned)),
    }
}

/// Returns a key's spending in a day or a month. Held money counts against the ceilings of both periods, whenever it
/// will be charged. A period without a ceiling limits nothing.
fn period(period: &PeriodView, held: MicroRub) -> Value {
    let taken = period.spent_rub.plus_or_max(held);
    json!({
        "ceiling_rub": period.ceiling_rub,
        "spent_rub": period.spent_rub,
        "free_rub": period.ceiling_rub.map(|ceiling| ceiling.minus_or_zero(taken)),
        "resets_at": rfc3339(period.resets_at_ms),
    })
}

impl<B: Send + 'static> Handler<B> for KeyInfo {
    async fn handle(self, req: Request<B>) -> Result<Response<AnswerBody>, Error> {
        let Caller(key) = Caller::of(&req)?;
        let format = format_of(req.headers());
        let found = Matched::from_request(&req)?;
        let body = match (found.route, found.parameter.as_deref()) {
            (Route::Key, _) => self.key(key).await?,
            (_, None) => self.models(key, format, req.uri()),
            (_, Some(id)) => {
                // A name that is encoded wrongly cannot be a model's name, so it is left as it is.
                let id = decoded(id).unwrap_or_else(|| id.to_owned());
                self.model(&id, key, format)?
            }
        };
        Ok(reply::json(&body))
    }
}

/// Converts the error of a ledger that could not be read into the error for the caller.
pub(crate) fn no_books(error: BookError) -> Error {
    match error {
        BookError::Unavailable(cause) => Error::LedgerUnavailable(cause),
        BookError::NotFound => Error::KeyUnknown,
        other => Error::Internal(other.into()),
    }
}

/// Returns the caller's format for a path that does not determine it: Messages if the request has the header
/// `anthropic-version`, which only clients of that format send.
pub(crate) fn format_of(headers: &HeaderMap) -> Format {
    match headers.contains_key(ANTHROPIC_VERSION) {
        true => Format::Messages,
        false => Format::Chat,
    }
}
