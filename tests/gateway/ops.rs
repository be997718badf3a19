//! The chat operation and the messages operation as one type, so that a test can check both operations with the same
//! code.

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::Value;

use crate::harness::{Answer, Key, Setup, World, chat_body, messages_body, request};

/// An operation that calls a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Chat,
    Messages,
}

pub const BOTH: [Op; 2] = [Op::Chat, Op::Messages];

impl Op {
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Messages => "/v1/messages",
        }
    }

    /// Returns the catalog name of the model whose vendor speaks the format of this operation.
    pub const fn model(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Messages => "messages",
        }
    }

    /// Returns the vendor's name for the model [`Self::model`].
    pub const fn vendor_model(self) -> &'static str {
        match self {
            Self::Chat => "vendor-chat-1",
            Self::Messages => "vendor-messages-1",
        }
    }

    /// Returns a body with one user turn and `max_tokens` 100.
    pub fn body(self, text: &str) -> Value {
        match self {
            Self::Chat => chat_body(text),
            Self::Messages => messages_body(text),
        }
    }

    pub fn request(self, world: &World, key: &Key, body: &Value) -> Request<Full<Bytes>> {
        match self {
            Self::Chat => world.chat_request(key, body),
            Self::Messages => world.messages_request(key, body),
        }
    }

    pub async fn call(self, world: &World, key: &Key, body: &Value) -> Answer {
        world.ask(self.request(world, key, body)).await
    }

    /// Sends the body of a call to another path that accepts such bodies, for example the token-counting path.
    pub async fn call_at(self, path: &str, world: &World, key: &Key, body: &Value) -> Answer {
        let mut headers = vec![
            ("x-api-key", key.secret.as_str()),
            ("content-type", "application/json"),
        ];
        if self == Self::Messages {
            headers.push(("anthropic-version", "2026-10-21"));
        }
        let (url, body) = (world.url(path), body.to_string().into());
        world.ask(request(Method::POST, &url, &headers, body)).await
    }

    /// Sends a body with these headers. Adds the usual content type and format version if they are missing.
    pub async fn post(
        self,
        world: &World,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let usual = [
            ("content-type", "application/json"),
            ("anthropic-version", "2026-10-21"),
        ];
        let mut all = headers.to_vec();
        all.extend(
            usual
                .into_iter()
                .filter(|(name, _)| headers.iter().all(|(given, _)| given != name)),
        );
        let url = world.url(self.path());
        world
            .ask(request(Method::POST, &url, &all, body.into()))
            .await
    }
}

/// Returns the `authorization` header with this key, which both operations accept.
pub fn bearer(key: &Key) -> String {
    format!("Bearer {}", key.secret)
}

/// Returns a setup with these lines in the section `[limits]`.
pub fn limits(lines: &str) -> Setup {
    Setup::default().edit("[tariff]", &format!("[limits]\n{lines}\n[tariff]"))
}

/// Returns a setup with these lines at the beginning of the configuration, before all sections.
pub fn top(lines: &str) -> Setup {
    Setup::default().edit("base_url =", &format!("{lines}\nbase_url ="))
}

/// Returns a setup in which both vendors have this address, for example `127.0.0.1:1`, and these additional
/// configuration lines.
pub fn vendors_at(address: &str, lines: &str) -> Setup {
    ["chat", "messages"]
        .into_iter()
        .fold(Setup::default(), |setup, format| {
            setup.edit(
                &format!("format = \"{format}\"\nurl = \"http://"),
                &format!("format = \"{format}\"\n{lines}\nurl = \"http://{address}/"),
            )
        })
}

/// Returns a setup with these additional configuration lines for both vendors.
pub fn vendors(lines: &str) -> Setup {
    Setup::default().edit(
        "key = \"${VENDOR_KEY}\"",
        &format!("key = \"${{VENDOR_KEY}}\"\n{lines}"),
    )
}
