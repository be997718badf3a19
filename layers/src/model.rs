//! What the catalog sells: models, the routes that lead to a vendor, and where they are found.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Uri};

use crate::{call::Format, price::Price};

/// A model of the catalog.
#[derive(Clone, Debug)]
pub struct Model {
    /// Name in the request field `model`.
    pub id: String,
    /// Family name, for people.
    pub family: String,
    /// Most output tokens that the model can be asked for.
    pub output_tokens_max: u64,
    /// Fewest output tokens worth a call when the client named no ceiling and funds are short.
    pub output_tokens_min: u64,
    /// The model's context window, if known: no input is counted beyond it.
    pub input_tokens_max: Option<u64>,
    /// Whether a conversation stays on the route that it began on, which keeps the vendor's prompt
    /// cache warm.
    pub sticky: bool,
    /// Ways to a vendor, by priority.
    pub routes: Vec<Arc<Route>>,
}

/// In what models of one format differ: switches of the config, by the vendor's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Chat: the field that a ceiling on output tokens is written into where the caller named none,
    /// or named it in the other format.
    pub output_field: OutputField,
    /// Chat: the role that instructions are given in.
    pub system_role: SystemRole,
    /// Chat: whether `reasoning_effort` is taken; it is dropped otherwise.
    pub reasoning_effort: bool,
    /// Both: whether `temperature`, `top_p` and `top_k` are taken; they are dropped otherwise.
    pub sampling: bool,
    /// Messages: how a wish for reasoning is written.
    pub thinking: Thinking,
    /// Both: whether answers can be held to a JSON schema; a wish for one is a 400 otherwise.
    pub json_schema: bool,
}

impl Default for Dialect {
    fn default() -> Self {
        Self {
            output_field: OutputField::default(),
            system_role: SystemRole::default(),
            reasoning_effort: true,
            sampling: true,
            thinking: Thinking::default(),
            json_schema: true,
        }
    }
}

/// The chat format has two names for the ceiling on output tokens; vendors take one or the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputField {
    /// Today's name.
    #[default]
    MaxCompletionTokens,
    /// The older name.
    MaxTokens,
}

impl OutputField {
    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MaxCompletionTokens => "max_completion_tokens",
            Self::MaxTokens => "max_tokens",
        }
    }
}

/// The chat format's role for instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SystemRole {
    /// What every vendor takes.
    #[default]
    System,
    /// What newer models of one vendor ask for.
    Developer,
}

/// How a model of the messages format is asked to think.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Thinking {
    /// By `output_config.effort`.
    #[default]
    Effort,
    /// By `thinking.budget_tokens`.
    Budget,
    /// It does not.
    None,
}

/// One way to a model.
#[derive(Clone, Debug)]
pub struct Route {
    /// Who answers.
    pub vendor: Arc<Vendor>,
    /// What the vendor calls the model.
    pub model: String,
    /// Share among routes of one priority.
    pub weight: u32,
    /// Lower is tried first.
    pub priority: u32,
    /// What the model takes of the vendor's format.
    pub dialect: Dialect,
}

/// A vendor: its format, address, keys and patience.
#[derive(Clone, Debug)]
pub struct Vendor {
    /// The operator's name for it.
    pub name: Arc<str>,
    /// What it speaks.
    pub format: Format,
    /// Where calls are posted.
    pub endpoint: Uri,
    /// What the header that carries a key says, for each of our keys: `authorization` or `x-api-key`.
    /// Marked sensitive. Never empty.
    pub credentials: Vec<HeaderValue>,
    /// Beginnings of the names of betas (messages format) that are not passed on: they change the price.
    pub betas_removed: Vec<String>,
    /// What to do with a stream whose client left.
    pub on_disconnect: OnDisconnect,
    /// How connections are made.
    pub egress: Arc<Egress>,
    /// Time from the request to the first byte of a stream.
    pub first_byte_timeout: Duration,
    /// Time from the request to the head of a plain answer, which comes after all its tokens.
    pub plain_timeout: Duration,
    /// How long the head of a stream is kept from the caller for the sake of its first event: until
    /// then an error has a status, and another route can be tried.
    pub head_timeout: Duration,
    /// Time between two frames.
    pub idle_timeout: Duration,
    /// Most connections at a time.
    pub connections_max: usize,
}

/// How connections to a vendor are made. Vendors that agree in all of it share a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Egress {
    /// Time for a connection, through the proxy and with TLS.
    pub connect_timeout: Duration,
    /// What it goes through.
    pub proxy: Option<Proxy>,
    /// PEM of the certificate authorities that are trusted, in place of Mozilla's list.
    pub authorities: Option<Bytes>,
    /// What is spoken.
    pub protocol: Protocol,
    /// A connection that idles this long is closed: before the vendor does it.
    pub idle_connection_timeout: Duration,
}

/// The authorities count by their length alone: a file of them may be long, and this is for each call.
impl Hash for Egress {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.connect_timeout.hash(state);
        self.proxy.hash(state);
        self.authorities.as_ref().map(Bytes::len).hash(state);
        self.protocol.hash(state);
        self.idle_connection_timeout.hash(state);
    }
}

/// The address of a proxy, `http` (CONNECT) or `socks5`, with a user and a password if it asks for them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Proxy(String);

impl Proxy {
    /// Wraps an address like `http://user:password@host:port`.
    #[must_use]
    pub const fn new(address: String) -> Self {
        Self(address)
    }

    /// The whole address. It may carry a password.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// Without the user and the password.
impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or_default();
        let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
        write!(f, "Proxy({scheme}://{place})")
    }
}

/// What is spoken on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.1: a call has its connection for itself.
    #[default]
    Http1,
    /// HTTP/2 where the vendor offers it in the TLS handshake, else HTTP/1.1.
    Http2Offered,
    /// HTTP/2 without asking, as there is no TLS to ask in.
    Http2,
}

/// What to do with the vendor's stream when the client leaves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDisconnect {
    /// Close it at once; what was seen is charged.
    #[default]
    Cancel,
    /// Read it to its end; what was used is charged.
    Drain,
}

/// What a catalog knows under a name.
#[derive(Clone, Debug)]
pub enum Found {
    /// A model with a full price.
    Callable(Arc<Model>, Arc<Price>),
    /// A model without a price for now.
    Unpriced,
    /// Nothing.
    Unknown,
}

/// Where models are found. One look a call: what it returns is the call's snapshot to its end.
pub trait Models: Send + Sync + 'static {
    /// The model of this name and its price now.
    fn find_model(&self, id: &str) -> Found;
}

impl<M: Models> Models for Arc<M> {
    fn find_model(&self, id: &str) -> Found {
        (**self).find_model(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxys_password_is_not_shown() {
        for (address, shown) in [
            ("http://u:hunter2@p:8080", "Proxy(http://p:8080)"),
            (
                "socks5://u:hun@ter2@[::1]:1080",
                "Proxy(socks5://[::1]:1080)",
            ),
            ("http://p:3128", "Proxy(http://p:3128)"),
        ] {
            assert_eq!(format!("{:?}", Proxy::new(address.to_owned())), shown);
        }
    }
}
