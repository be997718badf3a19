//! Encodes OTLP 1 over HTTP as JSON: ids are hexadecimal, 64-bit integers are decimal text, enumerations are numbers.
//! <https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>
//!
//! This code replaces the OpenTelemetry crates, because they send from a thread without the reactor that this gateway's
//! HTTP client needs, and do not report how many spans they dropped.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use serde_json::json;

/// A span that is complete.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Span {
    #[serde(serialize_with = "trace_id")]
    pub(crate) trace_id: u128,
    #[serde(serialize_with = "span_id")]
    pub(crate) span_id: u64,
    #[serde(
        serialize_with = "parent_span_id",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) parent_span_id: Option<u64>,
    pub(crate) name: String,
    #[serde(serialize_with = "kind")]
    pub(crate) kind: Kind,
    #[serde(rename = "startTimeUnixNano", serialize_with = "unix_nanos")]
    pub(crate) began: SystemTime,
    #[serde(rename = "endTimeUnixNano", serialize_with = "unix_nanos")]
    pub(crate) ended: SystemTime,
    pub(crate) attributes: Attributes,
    pub(crate) status: Status,
}

/// The side of a request that a span describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Server = 2,
    Client = 3,
}

/// Whether the operation of a span failed.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Status {
    /// The code 2 means "error". Without a code, the status is neither success nor failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u8>,
}

impl Status {
    pub(crate) fn error_if(is_error: bool) -> Self {
        Self {
            code: is_error.then_some(2),
        }
    }
}

/// The attributes of a span, as key-value pairs.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Attributes(Vec<Attribute>);

#[derive(Debug, Serialize)]
struct Attribute {
    key: &'static str,
    value: Value,
}

/// The value of an attribute, with its type.
#[derive(Debug, Serialize)]
pub(crate) enum Value {
    #[serde(rename = "stringValue")]
    Text(String),
    #[serde(rename = "intValue", serialize_with = "decimal")]
    Whole(u64),
    #[serde(rename = "boolValue")]
    Truth(bool),
}

impl Attributes {
    /// Adds an attribute to the span.
    pub(crate) fn with(self, key: &'static str, value: impl Into<Value>) -> Self {
        self.with_known(key, Some(value))
    }

    /// Adds an attribute if there is a value.
    pub(crate) fn with_known(mut self, key: &'static str, value: Option<impl Into<Value>>) -> Self {
        self.0.extend(value.map(|value| Attribute {
            key,
            value: value.into(),
        }));
        self
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Whole(number)
    }
}

impl From<bool> for Value {
    fn from(truth: bool) -> Self {
        Self::Truth(truth)
    }
}

/// Returns the body of an export request with these calls' spans, from the service that `resource` describes.
pub(super) fn encode(resource: &Attributes, calls: &[Vec<Span>]) -> String {
    let spans: Vec<&Span> = calls.iter().flatten().collect();
    let scope = json!({ "name": "tollgate", "version": env!("CARGO_PKG_VERSION") });
    json!({
        "resourceSpans": [{
            "resource": { "attributes": resource },
            "scopeSpans": [{ "scope": scope, "spans": spans }],
        }],
    })
    .to_string()
}

fn trace_id<S: Serializer>(id: &u128, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{id:032x}"))
}

fn span_id<S: Serializer>(id: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{id:016x}"))
}

fn parent_span_id<S: Serializer>(id: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    span_id(&id.unwrap_or_default(), serializer)
}

fn kind<S: Serializer>(kind: &Kind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u8(*kind as u8)
}

fn unix_nanos<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    serializer.collect_str(&since.as_nanos())
}

fn decimal<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
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
            status: Status::error_if(true),
        }
    }

    /// The spans are compared with the shape of `examples/trace.json` in the protocol's repository.
    #[test]
    fn exported_spans_follow_the_otlp_protocol() {
        let root = Span {
            span_id: 1,
            parent_span_id: None,
            kind: Kind::Client,
            attributes: Attributes::default(),
            status: Status::error_if(false),
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
