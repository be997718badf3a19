//! Builds a call's spans from its record when the call has ended: one for the request, and as its children one per
//! attempt at a vendor.
//!
//! Names follow OpenTelemetry's semantic conventions: HTTP for the request, generative AI (`gen_ai.*`) for attempts;
//! the gateway's own begin with `tollgate.`. Only attempts have token counts, so that no sum counts them twice. Spans
//! contain no prompts, no answers and no error texts, because an error text may quote a prompt or an answer.

use tollgate_ledger::{
    contract::{Settled, Settlement},
    usage::Usage,
};

use super::{
    Answered, CallRecord, Facts,
    line::{end, shortened},
};
use crate::observe::{
    metrics::requests::CLIENT_LEFT,
    traces::{
        AttemptMade, Trail,
        otlp::{Attributes, Kind, Span, Status},
    },
};

/// Returns the spans of a request that has ended; `booked` is its settlement, if it was settled.
pub(super) fn of_a_call(
    record: &CallRecord,
    trail: &Trail,
    facts: &Facts,
    answered: &Answered,
    booked: Option<(&Settlement, &Settled)>,
) -> Vec<Span> {
    let request = of_the_request(record, trail, facts, answered, booked);
    let settlement = booked.map(|(settlement, _)| settlement);
    let mut spans = vec![request];
    for attempt in &trail.attempts {
        // The span id is never zero: the request's id begins with a UUID's variant bits, and there are few attempts.
        let span_id = trail.span_id + spans.len() as u64;
        let is_last = spans.len() == trail.attempts.len();
        let settlement = settlement.filter(|_| is_last);
        spans.push(of_an_attempt(
            trail, span_id, attempt, facts, answered, settlement,
        ));
    }
    spans
}

fn of_the_request(
    record: &CallRecord,
    trail: &Trail,
    facts: &Facts,
    answered: &Answered,
    booked: Option<(&Settlement, &Settled)>,
) -> Span {
    let path = record.metrics().requests.path(record.0.path);
    let key = facts.key.as_deref();
    let failure = answered.failure.as_deref();
    let status = Some(answered.status).filter(|status| *status != CLIENT_LEFT);
    let item = booked.map(|(settlement, _)| &settlement.item);
    let attributes = Attributes::default()
        .with("http.request.method", "POST")
        .with("http.route", path)
        .with_known("http.response.status_code", status.map(u64::from))
        .with_known("error.type", failure.map(|failure| failure.code))
        .with_known(
            "gen_ai.request.model",
            facts.model.as_deref().map(shortened),
        )
        .with("tollgate.request_number", record.0.number.to_string())
        .with_known("tollgate.account", key.map(|key| key.account.to_string()))
        .with_known("tollgate.key.prefix", key.map(|key| key.prefix.as_str()))
        .with_known(
            "tollgate.end",
            end(facts, item.map(|item| item.end.as_str())),
        )
        .with_known("tollgate.estimated", item.map(|item| item.estimated))
        .with_known(
            "tollgate.held_rub",
            booked.map(|(settlement, _)| settlement.held.to_string()),
        )
        .with_known(
            "tollgate.charged_rub",
            booked.map(|(_, settled)| settled.charged.to_string()),
        );
    // A 4xx is the caller's error. Any other failure, and an abort after a successful head, is an error of the gateway
    // or of a vendor.
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
        status: Status::error_if(is_error),
    }
}

fn of_an_attempt(
    trail: &Trail,
    span_id: u64,
    attempt: &AttemptMade,
    facts: &Facts,
    answered: &Answered,
    settlement: Option<&Settlement>,
) -> Span {
    let AttemptMade {
        route,
        began,
        failed,
    } = attempt;
    let endpoint = &route.vendor.endpoint;
    let https_port = || {
        if endpoint.scheme_str() == Some("https") {
            443
        } else {
            80
        }
    };
    // If an attempt has got an answer, it lasts as long as the answer, and fails if the answer fails.
    let (code, ended) = match failed {
        Some((code, at)) => (Some(*code), *at),
        None => (
            answered.failure.as_ref().map(|failure| failure.code),
            answered.whole,
        ),
    };
    let usage = settlement.map(|settlement| settlement.item.usage);
    let attributes = Attributes::default()
        .with("gen_ai.operation.name", trail.operation())
        .with("gen_ai.provider.name", &*route.vendor.name)
        .with("gen_ai.request.model", route.model.as_str())
        .with_known("gen_ai.request.stream", facts.streamed)
        .with_known("gen_ai.request.max_tokens", trail.output_tokens_max);
    let attributes = with_usage(attributes, usage)
        .with_known("server.address", endpoint.host())
        .with(
            "server.port",
            u64::from(endpoint.port_u16().unwrap_or_else(https_port)),
        )
        .with_known("error.type", code);
    Span {
        trace_id: trail.trace_id,
        span_id,
        parent_span_id: Some(trail.span_id),
        name: format!("{} {}", trail.operation(), route.model),
        kind: Kind::Client,
        began: trail.began + *began,
        ended: trail.began + ended.max(*began),
        attributes,
        status: Status::error_if(code.is_some()),
    }
}

fn with_usage(attributes: Attributes, usage: Option<Usage>) -> Attributes {
    let cached = |tokens: u64| Some(tokens).filter(|tokens| *tokens > 0);
    attributes
        .with_known(
            "gen_ai.usage.input_tokens",
            usage.map(|usage| usage.input_total()),
        )
        .with_known(
            "gen_ai.usage.output_tokens",
            usage.map(|usage| usage.output),
        )
        .with_known(
            "gen_ai.usage.cache_read.input_tokens",
            usage.and_then(|usage| cached(usage.cached_input)),
        )
        .with_known(
            "gen_ai.usage.cache_creation.input_tokens",
            usage.and_then(|usage| cached(usage.cache_write)),
        )
}
