//! Builds the spans of a call from its record when the call has ended: a span for the request, and a child span for
//! each attempt at a vendor.
//!
//! Names follow OpenTelemetry's semantic conventions: those for HTTP for the request, those for generative AI
//! (`gen_ai.*`) for attempts. Names without a convention begin with `tollgate.`. Only attempts have token counts, so a
//! sum over all spans counts each token once. No span contains a prompt, a response or an error text, because an error
//! text may quote a prompt or a response.

use tollgate_ledger::{contract::Settlement, usage::Usage};

use super::{
    facts::EndedCall,
    line::{MODEL_CHARS_MAX, end, shortened},
};
use crate::observe::{
    metrics::requests::CLIENT_LEFT,
    traces::{
        AttemptMade, Trail,
        otlp::{Attributes, Kind, Span},
    },
};

/// Returns the spans of a request that has ended: the request's own span, and one for each attempt.
pub(super) fn of_a_call(trail: &Trail, call: &EndedCall<'_>) -> Vec<Span> {
    let settlement = call.booked.map(|(settlement, _)| settlement);
    let mut spans = vec![of_the_request(trail, call)];
    for attempt in &trail.attempts {
        // This id is never zero: the id of the request's span begins with a UUID's variant bits, and adding the number
        // of an attempt does not overflow.
        let span_id = trail.span_id + spans.len() as u64;
        let is_last = spans.len() == trail.attempts.len();
        let settlement = settlement.filter(|_| is_last);
        spans.push(of_an_attempt(trail, span_id, attempt, call, settlement));
    }
    spans
}

fn of_the_request(trail: &Trail, call: &EndedCall<'_>) -> Span {
    let (path, facts, answered) = (call.path, call.facts, call.answered);
    let key = facts.key.as_deref();
    let failure = answered.failure.as_deref();
    let status = Some(answered.status).filter(|status| *status != CLIENT_LEFT);
    let model = facts.model.as_deref();
    let model = model.map(|model| shortened(model, MODEL_CHARS_MAX));
    let (settlement, settled) = call.booked.unzip();
    let item = settlement.map(|settlement| &settlement.item);
    let end = end(facts, item.map(|item| item.end.as_str()));
    let held = settlement.map(|settlement| settlement.held.to_string());
    let charged = settled.map(|settled| settled.charged.to_string());
    let attributes = Attributes::default()
        .with("http.request.method", "POST")
        .with("http.route", path)
        .with_known("http.response.status_code", status.map(u64::from))
        .with_known("error.type", failure.map(|failure| failure.code))
        .with_known("gen_ai.request.model", model)
        .with("tollgate.request_number", call.number.to_string())
        .with_known("tollgate.account", key.map(|key| key.account.to_string()))
        .with_known("tollgate.key.prefix", key.map(|key| key.prefix.as_str()))
        .with_known("tollgate.end", end)
        .with_known("tollgate.estimated", item.map(|item| item.estimated))
        .with_known("tollgate.held_rub", held)
        .with_known("tollgate.charged_rub", charged);
    // A 4xx is the caller's mistake. Any other failure, and an abort after a successful head, is an error of the
    // gateway or of a vendor.
    let is_error = failure.is_some() && !(400..500).contains(&answered.status);
    Span {
        trace_id: trail.trace_id,
        span_id: trail.span_id,
        parent_span_id: trail.parent,
        name: format!("POST {path}"),
        kind: Kind::Server,
        began: trail.began,
        ended: trail.began + answered.whole,
        attributes,
        is_error,
    }
}

fn of_an_attempt(
    trail: &Trail,
    span_id: u64,
    attempt: &AttemptMade,
    call: &EndedCall<'_>,
    settlement: Option<&Settlement>,
) -> Span {
    let (route, began, answered) = (&attempt.route, attempt.began, call.answered);
    let endpoint = &route.vendor.endpoint;
    let port = match (endpoint.port_u16(), endpoint.scheme_str()) {
        (Some(port), _) => port,
        (None, Some("https")) => 443,
        (None, _) => 80,
    };
    // If an attempt was answered, it lasts until the response ends, and it fails if the response fails.
    let failure = answered.failure.as_ref().map(|failure| failure.code);
    let (code, ended) = match attempt.failed {
        Some((code, at)) => (Some(code), at),
        None => (failure, answered.whole),
    };
    let usage = settlement.map(|settlement| settlement.item.usage);
    let attributes = Attributes::default()
        .with("gen_ai.operation.name", trail.operation())
        .with("gen_ai.provider.name", &*route.vendor.name)
        .with("gen_ai.request.model", route.model.as_str())
        .with_known("gen_ai.request.stream", call.facts.streamed)
        .with_known("gen_ai.request.max_tokens", trail.output_tokens_max);
    let attributes = with_usage(attributes, usage)
        .with_known("server.address", endpoint.host())
        .with("server.port", u64::from(port))
        .with_known("error.type", code);
    Span {
        trace_id: trail.trace_id,
        span_id,
        parent_span_id: Some(trail.span_id),
        name: format!("{} {}", trail.operation(), route.model),
        kind: Kind::Client,
        began: trail.began + began,
        ended: trail.began + ended.max(began),
        attributes,
        is_error: code.is_some(),
    }
}

fn with_usage(attributes: Attributes, usage: Option<Usage>) -> Attributes {
    let input = usage.map(|usage| usage.input_total());
    let output = usage.map(|usage| usage.output);
    let [read, written] = [
        usage.map(|usage| usage.cached_input),
        usage.map(|usage| usage.cache_write),
    ]
    .map(|cached| cached.filter(|tokens| *tokens > 0));
    attributes
        .with_known("gen_ai.usage.input_tokens", input)
        .with_known("gen_ai.usage.output_tokens", output)
        .with_known("gen_ai.usage.cache_read.input_tokens", read)
        .with_known("gen_ai.usage.cache_creation.input_tokens", written)
}
