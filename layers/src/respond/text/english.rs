//! The English texts for callers.

use super::{OtherWay, is_header, listed, rubles, shown, whole_seconds};
use crate::{
    ceiling::Ceiling,
    error::{Error, Limit, Problem},
    model::ModelKind,
    respond::Language,
};

/// Returns the text of an error, without the request's number.
pub(super) fn text(error: &Error) -> String {
    match error {
        Error::Custom(custom) => custom.text(Language::En),
        Error::PathUnknown => {
            "No such path. Check the request's path and the client's base address.".into()
        }
        Error::MethodNotAllowed { allow } => format!("This path does not accept the method. Use: {allow}."),
        Error::Invalid { field, problem } if field.is_empty() => {
            format!("Invalid request body: {}.", problem_text(problem))
        }
        Error::Invalid { field, problem } if is_header(field, problem) => format!(
            "Invalid request, header '{field}': {}.",
            problem_text(problem)
        ),
        Error::Invalid { field, problem } => format!(
            "Invalid request, field '{field}': {}.",
            problem_text(problem)
        ),
        Error::UriTooLong { bytes_max } => {
            format!("The request's address is longer than {bytes_max} bytes. Shorten it.")
        }
        Error::HeadTooLarge {
            headers_max,
            bytes_max,
        } => format!(
            "The request's headers are too large: at most {headers_max} lines and {bytes_max} bytes. Remove some."
        ),
        Error::BodyTooSlow => {
            "The request body arrives too slowly. Check the connection and try again.".into()
        }
        Error::BodyTooLarge { bytes_max } => {
            format!("The request body is larger than {bytes_max} bytes. Shorten the conversation or its attachments.")
        }
        Error::ContentType => {
            "The request body must be JSON. Send 'content-type: application/json'.".into()
        }
        Error::ContentEncoding => {
            "A request body may be compressed only with gzip. Use gzip, or send the body without 'content-encoding'.".into()
        }
        Error::BodyBroken(_) => {
            "The request body is incomplete. Check the connection and try again.".into()
        }
        Error::KeyMissing => "No API key. Send 'Authorization: Bearer <key>'.".into(),
        Error::KeyMalformed => "Malformed API key. Check that all of it was copied.".into(),
        Error::KeyConflict => {
            "Two different API keys. Send one: 'Authorization: Bearer' or 'x-api-key'.".into()
        }
        Error::KeyUnknown => "Unknown API key. Check that all of it was copied and that this service issued it.".into(),
        Error::KeyDisabled => "The API key is disabled or deleted. Use another one.".into(),
        Error::KeyExpired => "The API key has expired. Use another one.".into(),
        Error::CeilingUsedUp(ceiling) => {
            let wait = match ceiling.resets_on() {
                Some(_) => "Wait until then, or ask",
                None => "Ask",
            };
            let (ceiling, renewed) = ceiling_and_reset(ceiling);
            format!("{ceiling} is used up{renewed}. {wait} for a higher limit.")
        }
        Error::TooManyCalls { most } => format!(
            "The API key has reached its limit of concurrent requests: {most}. Try again when one of them has ended."
        ),
        Error::AccountEmpty => "The company's balance has no funds. Top it up.".into(),
        Error::AccountSuspended => "The company is suspended, so its balance is not available. Contact the service's administrator.".into(),
        Error::DoesNotFit {
            needs,
            free,
            held,
            ceiling,
            has_output,
        } => {
            let bound = ceiling.as_ref().map_or_else(String::new, |ceiling| {
                let (ceiling, renewed) = ceiling_and_reset(ceiling);
                format!("{ceiling} allows no more{renewed}. ")
            });
            let other_way = match OtherWay::new(*held, ceiling.as_ref()) {
                OtherWay::Wait => "wait for the running requests",
                OtherWay::Renewal => "wait until the limit resets",
                OtherWay::HigherCeiling => "ask for a higher limit",
                OtherWay::TopUp => "top up the balance",
            };
            let less = match has_output {
                true => {
                    "Shorten the request, lower the limit of its answer (max_tokens, max_output_tokens),"
                }
                false => "Shorten the request",
            };
            let [needs, free, held] = [needs, free, held].map(|amount| rubles(*amount, Language::En));
            format!(
                "The request does not fit into what is left: it needs {needs}, {free} is free, the key's running \
                 requests hold {held}. {bound}{less} or {other_way}."
            )
        }
        Error::ModelNotAllowed { model } => {
            format!(
                "This API key may not use the model '{}'. Choose another model from 'GET /v1/models', or ask for \
                 this model to be allowed.",
                shown(model)
            )
        }
        Error::OwnerKey => {
            "This is an owner key: it only manages the account's keys. Use an ordinary API key for models.".into()
        }
        Error::AddressNotAllowed { address } => {
            let address = address.map_or_else(String::new, |address| format!(" {address}"));
            format!(
                "This API key may not be used from your address{address}. Use another key, or ask for the address to be \
                 allowed."
            )
        }
        Error::IdempotencyKeyInUse { .. } => {
            "A request with this 'Idempotency-Key' is still running. Send it again later with the same idempotency key."
                .into()
        }
        Error::IdempotentAnswerGone => {
            "A request with this 'Idempotency-Key' has already run, but its answer is not stored. To run it again and \
             pay for it again, send a new idempotency key."
                .into()
        }
        Error::IdempotencyKeyReused => {
            "This 'Idempotency-Key' was used for another request. Send a new idempotency key with a new request.".into()
        }
        Error::TooManyRequests { limit, retry_after } => {
            let counted = match limit {
                Limit::Requests => {
                    return "Too many requests. Try again later, waiting longer each time.".into();
                }
                Limit::KeyRequestsPerSecond => "requests per second",
                Limit::KeyRequestsPerMinute => "requests per minute",
                Limit::KeyTokensPerMinute => "tokens per minute",
            };
            let seconds = whole_seconds(*retry_after);
            format!("Too many {counted} for this API key. Try again in {seconds} s.")
        }
        Error::VendorLimit { .. } => {
            "The model's vendor limits the rate of requests. Try again later, waiting longer each time.".into()
        }
        Error::ModelUnknown { model, similar } => {
            let similar = similar
                .as_ref()
                .map_or_else(String::new, |similar| format!(" Did you mean '{similar}'?"));
            format!("No model '{}'.{similar} Check the name against the catalog.", shown(model))
        }
        Error::PriceUnavailable => "Prices are not available now, so the request was not run. Try again later.".into(),
        Error::LedgerUnavailable(_) => {
            "The balance cannot be checked now: the ledger is not available. Try again later.".into()
        }
        Error::Overloaded => "The service is overloaded. Try again later.".into(),
        Error::Draining => "The service is restarting. Try again in a few seconds.".into(),
        Error::VendorUnavailable(_) | Error::VendorKeyRefused { .. } | Error::RoutesOut { .. } => {
            "The model's vendor is not available now. Try again later, or use another model.".into()
        }
        Error::VendorRefused { text, too_long: false, .. } => {
            format!("{text} — refused by the model's vendor.")
        }
        Error::VendorRefused { text, .. } => format!(
            "{text} — refused by the model's vendor. The request and its answer do not fit into the model's context: \
             shorten the request, or lower the limit of its answer."
        ),
        Error::VendorBroken(_) => {
            "The model's vendor answered with an error. Try again, or use another model.".into()
        }
        Error::AnswerTooLong(_) => {
            "The model's answer is longer than the service can pass on. Lower the limit of the answer, or request a \
             stream: \"stream\": true."
                .into()
        }
        Error::VendorTimeout { .. } => {
            "The model's vendor did not answer in time. Try again later, or use another model.".into()
        }
        Error::Internal(_) => {
            "Internal error of the service. Try again. If the error persists, send the request's number to support.".into()
        }
    }
}

/// Returns the name of a spending ceiling, and the text about when it resets.
fn ceiling_and_reset(ceiling: &Ceiling) -> (&'static str, String) {
    let name = match ceiling {
        Ceiling::Total => "The API key's spending ceiling",
        Ceiling::Month { .. } => "The API key's monthly spending ceiling",
        Ceiling::Day { .. } => "The API key's daily spending ceiling",
        Ceiling::GroupTotal => "The spending ceiling of the API key's group",
        Ceiling::GroupMonth { .. } => "The monthly spending ceiling of the API key's group",
        Ceiling::GroupDay { .. } => "The daily spending ceiling of the API key's group",
    };
    let renewed = ceiling
        .resets_on()
        .map(|date| format!("; it resets on {date} at 00:00 UTC"));
    (name, renewed.unwrap_or_default())
}

fn problem_text(problem: &Problem) -> String {
    match problem {
        Problem::NotJson(why) => format!("it is not JSON, the error is at {why} (line:column)"),
        Problem::Missing | Problem::HeaderMissing => "it is missing".into(),
        Problem::NotAnIdempotencyKey => "send it once, with 1 to 255 visible ASCII characters".into(),
        Problem::WrongType("cursor") => "expected 'next' of the previous page".into(),
        Problem::WrongType("RFC 3339") => {
            "expected a date or a time like 2026-11-28T10:15:00Z (RFC 3339)".into()
        }
        Problem::WrongType(expected) => format!("wrong type, expected {expected}"),
        Problem::NotOneOf(values) => format!("expected one of {values}"),
        Problem::BelowMin(min) => format!("must be at least {min}"),
        Problem::AboveMax(max) => format!("must be at most {max}"),
        Problem::Duplicate => "it occurs twice, keep one".into(),
        Problem::TooDeep(levels) => format!("nested deeper than {levels} levels"),
        Problem::Empty => "it is empty".into(),
        Problem::NothingSaid => {
            "the vendor of this model requires a user message that is not empty, add one".into()
        }
        Problem::NotKopecks => {
            "expected rubles above 0 with whole kopecks, a decimal number in quotes: \"12.50\"".into()
        }
        Problem::LessThan(other) => format!("it is less than '{other}'"),
        Problem::Contradicts(other) => format!("it contradicts '{other}'"),
        Problem::NotAHost => "expected a name, IPv4 or [IPv6], and :port where needed".into(),
        Problem::Unsupported => "the service does not support this, remove it".into(),
        Problem::ThreadUnsupported => "the service does not store conversations, send all messages".into(),
        Problem::StateUnsupported => {
            "the service stores nothing: leave the field out, send the whole conversation in 'input'".into()
        }
        Problem::StoreUnsupported => {
            "the service stores nothing, leave the field out or send false".into()
        }
        Problem::ReferenceUnsupported => {
            "the service stores nothing, send the items themselves (in the client: store: false)".into()
        }
        Problem::ToolUnsupported => {
            "the vendor runs this tool, and the catalog has no price for it; remove it".into()
        }
        Problem::SearchUnsupported => {
            "the vendor runs this tool, and the catalog has no price for it (in Codex: web_search = \"disabled\")"
                .into()
        }
        Problem::SizeUnseen => {
            "the size of this input is not known in advance, send the data itself".into()
        }
        Problem::NotTranslated => "the format of this model's vendor has no equivalent; remove it or use another model".into(),
        Problem::Unpriced => "the model has no price for this; remove it or use another model".into(),
        Problem::ModelOfKind(kind) => {
            let is = match kind {
                ModelKind::Embedding => "this model is only for embeddings",
                ModelKind::Chat => "this model is not for embeddings",
            };
            format!("{is}, send the request to POST {}", listed(kind.surfaces(), "or").0)
        }
        Problem::MixedLifetimes => {
            "other cache_control marks of the request last 5 minutes, use one lifetime per request"
                .into()
        }
        Problem::InputUnpriced { tokens, max } => format!(
            "the prompt is too long: it may have up to {tokens} tokens, and this model's price covers {max}; shorten it"
        ),
    }
}
