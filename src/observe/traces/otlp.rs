//! Encodes spans as OTLP 1 over HTTP in JSON: ids are hexadecimal text, 64-bit integers are decimal text, enumerations
//! are numbers. See <https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>.
//!
//! This code is used instead of the OpenTelemetry crates for two reasons. The crates send spans from a thread without
//! the reactor that this gateway's HTTP client needs, and they do not report how many spans they dropped.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Value, json};

/// A span that has ended.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) trace_id: u128,
    pub(crate) span_id: u64,
    pub(crate) parent_span_id: Option<u64>,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) began: SystemTime,
    pub(crate) ended: SystemTime,
    pub(crate) attributes: Attributes,
    pub(crate) is_error: bool,
}

impl Span {
    fn json(&self) -> Value {
        let nanos = |time: SystemTime| {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            since.as_nanos().to_string()
        };
        // Without a status code, the span counts neither as a success nor as a failure.
        let status = match self.is_error {
            true => json!({ "code": 2 }),
            false => json!({}),
        };
        let mut span = json!({
            "traceId": format!("{:032x}", self.trace_id),
            "spanId": format!("{:016x}", self.span_id),
            "name": self.name,
            "kind": self.kind as u8,
            "startTimeUnixNano": nanos(self.began),
            "endTimeUnixNano": nanos(self.ended),
            "attributes": self.attributes,
            "status": status,
        });
        if let Some(parent) = self.parent_span_id {
            span["parentSpanId"] = format!("{parent:016x}").into();
        }
        span
    }
}

/// Whether a span describes the server's or the client's side of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Server = 2,
    Client = 3,
}

/// Attributes of a span; each value has its type.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Attributes(Vec<Value>);

impl Attributes {
    /// Adds an attribute with a text, a whole number or a boolean.
    pub(crate) fn with(self, key: &'static str, value: impl Into<Value>) -> Self {
        self.with_known(key, Some(value))
    }

    /// Adds an attribute, unless the value is `None`.
    pub(crate) fn with_known(mut self, key: &'static str, value: Option<impl Into<Value>>) -> Self {
        self.0.extend(value.map(|value| {
            let typed = match value.into() {
                Value::Number(number) => json!({ "intValue": number.to_string() }),
                Value::Bool(truth) => json!({ "boolValue": truth }),
                text => json!({ "stringValue": text }),
            };
            json!({ "key": key, "value": typed })
        }));
        self
    }
}

/// Returns the body of an export request with the spans of these calls. `resource` describes the service.
pub(super) fn encode(resource: &Attributes, calls: &[Vec<Span>]) -> String {
    let spans: Vec<Value> = calls.iter().flatten().map(Span::json).collect();
    let scope = json!({ "name": "tollgate", "version": env!("CARGO_PKG_VERSION") });
    json!({
        "resourceSpans": [{
            "resource": { "attributes": resource },
            "scopeSpans": [{ "scope": scope, "spans": spans }],
        }],
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value as Json;

    use super::*;

    fn span() -> Span {
        let began = UNIX_EPOCH + Duration::from_nanos(1_544_712_660_000_000_000);
        Span {
            trace_id: 0x5b8e_fff7_9803_8103_d269_b633_813f_c60c,
            span_id: 0x0ee1_9b7e_c3c1_b174,
            parent_span_id: Some(0xeee1_9b7e_c3c1_b173),
            name: "I'm a server span".to_owned(),
            kind: Kind::Server,
            began,
            ended: began + Duration::from_secs(1),
            attributes: Attributes::default()
                .with("my.span.attr", "some value")
                .with("my.count", u64::from(u32::MAX) << 32)
                .with("my.truth", true)
                .with_known("my.nothing", None::<u64>),
            is_error: true,
        }
    }

    /// Compares the encoded spans with the shape of `examples/trace.json` in the OTLP repository.
    #[test]
    fn exported_spans_follow_the_otlp_protocol() {
        let root = Span {
            span_id: 1,
            parent_span_id: None,
            kind: Kind::Client,
            attributes: Attributes::default(),
            is_error: false,
            ..span()
        };
        let resource = Attributes::default().with("service.name", "my.service");
        let written = encode(&resource, &[vec![span()], vec![root]]);
        let written: Json = serde_json::from_str(&written).unwrap();
        let expected = json!({ "resourceSpans": [{
            "resource": { "attributes": [
                { "key": "service.name", "value": { "stringValue": "my.service" } },
            ] },
            "scopeSpans": [{
                "scope": { "name": "tollgate", "version": env!("CARGO_PKG_VERSION") },
                "spans": [
                    {
                        "traceId": "5b8efff798038103d269b633813fc60c",
                        "spanId": "0ee19b7ec3c1b174",
                        "parentSpanId": "eee19b7ec3c1b173",
                        "name": "I'm a server span",
                        "kind": 2,
                        "startTimeUnixNano": "1544712660000000000",
                        "endTimeUnixNano": "1544712661000000000",
                        "attributes": [
                            { "key": "my.span.attr", "value": { "stringValue": "some value" } },
                            { "key": "my.count", "value": { "intValue": "18446744069414584320" } },
                            { "key": "my.truth", "value": { "boolValue": true } },
                        ],
                        "status": { "code": 2 },
                    },
                    {
                        "traceId": "5b8efff798038103d269b633813fc60c",
                        "spanId": "0000000000000001",
                        "name": "I'm a server span",
                        "kind": 3,
                        "startTimeUnixNano": "1544712660000000000",
                        "endTimeUnixNano": "1544712661000000000",
                        "attributes": [],
                        "status": {},
                    },
                ],
            }],
        }] });
        assert_eq!(written, expected);
    }
}
