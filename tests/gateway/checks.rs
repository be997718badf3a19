//! Helpers of the tests: checks of refusals, parsing of amounts, and requests that no client library would send.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use rust_decimal::{Decimal, prelude::ToPrimitive};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    harness::{Answer, Key, World},
    ops::Op,
};

pub const INVALID: &str = "invalid_request_error";
pub const AUTHENTICATION: &str = "authentication_error";
pub const PERMISSION: &str = "permission_error";
pub const NOT_FOUND: &str = "not_found_error";
pub const LIMIT: &str = "rate_limit_error";
pub const OVERLOADED: &str = "overloaded_error";
pub const API: &str = "api_error";

/// Checks that a response is a refusal of this kind: in Russian, in the common error format, and with the headers of
/// its status. Returns the text of the refusal without the request number.
pub fn refused(what: &str, answer: &Answer, status: u16, kind: &str, code: &str) -> String {
    let text = shape(what, answer, status, kind, code);
    assert!(is_russian(&text), "{what}: {text}");
    text
}

/// Checks the error format and the headers of a refusal, but not its text. Returns the text.
pub fn shape(what: &str, answer: &Answer, status: u16, kind: &str, code: &str) -> String {
    assert_eq!(answer.status, status, "{what}: {answer:?}");
    let header = |name: &str| {
        answer
            .headers
            .get(name)
            .map(|value| value.to_str().unwrap())
    };
    assert_eq!(header("content-type"), Some("application/json"), "{what}");
    assert_eq!(header("request-id"), header("x-request-id"), "{what}");

    let body = answer.json();
    assert_eq!(names(&body), ["error"], "{what}");
    let error = &body["error"];
    let of_a_vendor = error.get("vendor").is_some();
    let fields: &[_] = match of_a_vendor {
        true => &["code", "message", "type", "vendor"],
        false => &["code", "message", "type"],
    };
    assert_eq!(names(error), fields, "{what}");
    assert_eq!(error["type"], kind, "{what}");
    assert_eq!(error["code"], code, "{what}");

    let challenge = (status == 401).then_some("Bearer");
    assert_eq!(header("www-authenticate"), challenge, "{what}");
    // A refusal for lack of money suggests a retry only if calls in flight hold money that may become free.
    let useless = code == "model_not_found" || (status < 500 && status != 429);
    let held = code == "insufficient_balance"
        && !answer.text().contains(" 0,00\u{a0}₽. ")
        && !answer.text().contains(" 0.00 RUB. ");
    assert_eq!(
        header("x-should-retry"),
        (useless && !held).then_some("false"),
        "{what}: {answer:?}"
    );
    let wait = header("retry-after").map(|seconds| seconds.parse::<u64>().unwrap());
    assert_eq!(
        wait.is_some(),
        matches!(status, 429 | 503) && !useless,
        "{what}: retry-after {wait:?}"
    );
    assert_ne!(wait, Some(0), "{what}");
    answer.refusal()
}

/// Returns the names of an object's fields in alphabetical order.
pub fn names(object: &Value) -> Vec<&str> {
    let mut names: Vec<_> = object.as_object().unwrap().keys().map(|n| &**n).collect();
    names.sort_unstable();
    names
}

/// Checks that a text contains this part.
#[track_caller]
pub fn has(text: &str, part: &str) {
    assert!(text.contains(part), "no {part:?} in: {text}");
}

pub fn is_russian(text: &str) -> bool {
    text.chars().any(|c| ('а'..='я').contains(&c))
}

/// Checks that each of these bodies is refused with a 400 that names the field, and that no vendor receives the body.
pub async fn refuses(op: Op, field: &str, bodies: impl IntoIterator<Item = Value>) {
    let (world, key) = World::start_with_key().await;
    for body in bodies {
        let answer = op.call(&world, &key, &body).await;
        let text = refused(&body.to_string(), &answer, 400, INVALID, "");
        assert!(text.contains(&format!("«{field}»")), "{body}: {text}");
    }
    assert!(world.vendor.received().is_empty());
    assert_eq!(world.settled(&key).await["balance_rub"], "1000.00");
}

/// Checks that a call cost nothing: no money is held, no money is charged, and there is no receipt.
pub async fn cost_nothing(what: &str, world: &World, key: &Key, answer: &Answer) {
    let account = world.settled(key).await;
    assert_eq!(account["balance_rub"], "1000.00", "{what}");
    assert_eq!(account["spent_rub"], "0.00", "{what}");
    let path = format!("/admin/v1/receipts/{}", answer.number());
    let receipt = world.admin_get(&path).await;
    assert_eq!(receipt.status, 404, "{what}: {receipt:?}");
}

/// Checks that a call was not charged more than it held.
#[track_caller]
pub fn hold_covers_charge(receipt: &Value) {
    let amount = |field: &str| micro(&receipt[field]);
    assert!(amount("held_rub") >= amount("charged_rub"), "{receipt}");
}

/// Parses a decimal string as a number.
pub fn decimal(value: &Value) -> Decimal {
    let text = value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is no string"));
    text.parse()
        .unwrap_or_else(|error| panic!("{value} is no decimal: {error}"))
}

/// Parses an amount of decimal rubles. Returns micro-rubles.
pub fn micro(rubles: &Value) -> i64 {
    let micro = decimal(rubles) * Decimal::from(1_000_000);
    assert!(micro.is_integer(), "{rubles} is finer than a micro-ruble");
    micro.to_i64().unwrap()
}

/// Converts micro-rubles to decimal rubles, the format of amounts in requests.
pub fn rubles(micro: i64) -> String {
    Decimal::new(micro, 6).to_string()
}

/// Sends these bytes on a new connection, and parses what arrives until the connection closes.
pub async fn raw(world: &World, bytes: &str) -> Answer {
    let mut socket = TcpStream::connect(world.gateway.address()).await.unwrap();
    socket.write_all(bytes.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // The gateway may reset the connection after its response. The response is complete by then.
    let read = socket.read_to_end(&mut answer);
    drop(
        tokio::time::timeout(Duration::from_secs(10), read)
            .await
            .expect("the gateway answers and closes"),
    );
    let text = String::from_utf8(answer).unwrap();
    let (head, body) = text
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no answer: {text:?}"));
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap();
    let headers: HeaderMap = lines
        .map(|line| {
            let (name, value) = line.split_once(':').unwrap();
            (
                name.parse::<HeaderName>().unwrap(),
                value.trim().parse::<HeaderValue>().unwrap(),
            )
        })
        .collect();
    Answer {
        status: status.parse().unwrap(),
        headers,
        body: body.to_owned().into(),
        failed: false,
    }
}

/// Returns the head of a request for [`raw`]. The lines in `more` each end in `\r\n`.
pub fn head(op: Op, key: Option<&str>, more: &str) -> String {
    let path = op.path();
    let key = key
        .map(|key| format!("authorization: Bearer {key}\r\n"))
        .unwrap_or_default();
    format!(
        "POST {path} HTTP/1.1\r\nhost: gateway.example\r\nconnection: close\r\n{key}\
         content-type: application/json\r\nanthropic-version: 2026-10-21\r\n{more}\r\n"
    )
}
