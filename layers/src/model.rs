//! What the catalog sells: models, the routes that lead to a vendor, and where they are found.
//!
//! ```
//! use std::time::Duration;
//!
//! use http::Uri;
//! use tollgate_layers::{
//!     call::Format,
//!     model::{Model, Route, Vendor},
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let endpoint = Uri::from_static("https://api.openai.com/v1/chat/completions");
//! let key = Format::Chat.credential("sk-our-key")?;
//! let vendor = Vendor::new("openai", Format::Chat, endpoint, key)
//!     .connections_max(100)
//!     .idle_timeout(Duration::from_secs(30));
//! let model = Model::new("small", 128_000)
//!     .family("Small")
//!     .route(Route::new(vendor, "gpt-5-mini"));
//!
//! assert_eq!(model.output_tokens_min, 256);
//! assert_eq!(model.routes[0].weight, 1);
//! # Ok(())
//! # }
//! ```

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Uri};

use crate::{format::Format, key::AccountId, price::PriceList};

/// Methods that take a value with another field, and the fields' names.
macro_rules! with {
    ($($field:ident: $kind:ty),* $(,)?) => {
        $(
            #[doc = concat!("With another `", stringify!($field), "`.")]
            #[must_use]
            pub fn $field(mut self, $field: $kind) -> Self {
                self.$field = $field;
                self
            }
        )*
    };
}

/// A model of the catalog.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Model {
    /// Name in the request field `model`.
    pub id: String,
    /// Family name, for people.
    pub family: String,
    /// What it makes.
    pub kind: ModelKind,
    /// Most output tokens that the model can be asked for.
    pub output_tokens_max: u64,
    /// Fewest output tokens worth a call when the client named no ceiling and funds are short.
    pub output_tokens_min: u64,
    /// Output tokens that a call is given whose client named no ceiling; `None`: `output_tokens_max`.
    pub output_tokens_default: Option<u64>,
    /// The model's context window, if known: no input is counted beyond it.
    pub input_tokens_max: Option<u64>,
    /// Input tokens up to which the price holds, if it does not hold for all: a call that may have more is refused.
    pub input_tokens_priced_max: Option<u64>,
    /// Whether a conversation stays on the route that it began on, which keeps the vendor's prompt
    /// cache warm.
    pub sticky: bool,
    /// Ways to a vendor, by priority.
    pub routes: Vec<Arc<Route>>,
}

impl Model {
    /// A model that can be asked for so many output tokens. Without a ceiling it is not called for
    /// fewer than 256, conversations may move, its family has its own name, and there is no way to it
    /// yet.
    #[must_use]
    pub fn new(id: impl Into<String>, output_tokens_max: u64) -> Self {
        let id = id.into();
        Self {
            family: id.clone(),
            id,
            kind: ModelKind::default(),
            output_tokens_max,
            output_tokens_min: output_tokens_max.min(256),
            output_tokens_default: None,
            input_tokens_max: None,
            input_tokens_priced_max: None,
            sticky: false,
            routes: Vec::new(),
        }
    }

    /// With one way more.
    #[must_use]
    pub fn route(mut self, route: impl Into<Arc<Route>>) -> Self {
        self.routes.push(route.into());
        self.routes.sort_by_key(|route| route.priority);
        self
    }

    /// With another family.
    #[must_use]
    pub fn family(mut self, family: impl Into<String>) -> Self {
        self.family = family.into();
        self
    }

    /// With a context window that is known.
    #[must_use]
    pub fn input_tokens_max(mut self, input_tokens_max: u64) -> Self {
        self.input_tokens_max = Some(input_tokens_max);
        self
    }

    /// With so many output tokens for a call without a ceiling.
    #[must_use]
    pub fn output_tokens_default(mut self, output_tokens_default: u64) -> Self {
        self.output_tokens_default = Some(output_tokens_default);
        self
    }

    /// With a price that holds up to so many input tokens.
    #[must_use]
    pub fn input_tokens_priced_max(mut self, input_tokens_priced_max: u64) -> Self {
        self.input_tokens_priced_max = Some(input_tokens_priced_max);
        self
    }

    with! {
        kind: ModelKind,
        output_tokens_min: u64,
        sticky: bool,
    }
}

/// What a model makes, which is what it can be asked for.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ModelKind {
    /// Text that answers text.
    #[default]
    Chat,
    /// Vectors of what it is given. There is no output that costs anything; its vendors speak the chat format, and its
    /// routes lead to where they take embeddings.
    Embedding,
}

impl ModelKind {
    /// Where calls of such a model are posted.
    #[must_use]
    pub const fn surfaces(self) -> &'static [&'static str] {
        match self {
            Self::Chat => &["/v1/chat/completions", "/v1/messages", "/v1/responses"],
            Self::Embedding => &["/v1/embeddings"],
        }
    }
}

/// In what models of one format differ: switches of the config, by the vendor's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
    /// Chat: whether `verbosity` is taken; it is dropped otherwise.
    pub verbosity: bool,
    /// Responses: whether a summary of the reasoning is asked for where a caller of another format wants to see it.
    pub reasoning_summary: bool,
    /// Responses: whether the vendor is asked to hand out its reasoning, encrypted, since it keeps nothing.
    pub encrypted_reasoning: bool,
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
            verbosity: false,
            reasoning_summary: true,
            encrypted_reasoning: true,
        }
    }
}

impl Dialect {
    with! {
        output_field: OutputField,
        system_role: SystemRole,
        reasoning_effort: bool,
        sampling: bool,
        thinking: Thinking,
        json_schema: bool,
        verbosity: bool,
        reasoning_summary: bool,
        encrypted_reasoning: bool,
    }
}

/// The chat format has two names for the ceiling on output tokens; vendors take one or the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
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
#[non_exhaustive]
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
#[non_exhaustive]
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
#[non_exhaustive]
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

impl Route {
    /// A way to what the vendor calls `model`, of weight 1 and priority 0.
    #[must_use]
    pub fn new(vendor: impl Into<Arc<Vendor>>, model: impl Into<String>) -> Self {
        Self {
            vendor: vendor.into(),
            model: model.into(),
            weight: 1,
            priority: 0,
            dialect: Dialect::default(),
        }
    }

    with! {
        weight: u32,
        priority: u32,
        dialect: Dialect,
    }

    /// The same way, in the format that its vendor is spoken to for a caller of this one: [`Vendor::speaking`].
    #[must_use]
    pub fn speaking(self: &Arc<Self>, caller: Format) -> Arc<Self> {
        let vendor = self.vendor.speaking(caller);
        if Arc::ptr_eq(vendor, &self.vendor) {
            return Arc::clone(self);
        }
        Arc::new(Self {
            vendor: Arc::clone(vendor),
            model: self.model.clone(),
            ..**self
        })
    }
}

/// A vendor: its format, address, keys and patience.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Vendor {
    /// The operator's name for it.
    pub name: Arc<str>,
    /// What it speaks; the first of its formats.
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
    /// The same vendor in each other format that it speaks: [`Vendor::also`].
    pub others: Vec<Arc<Self>>,
}

impl Vendor {
    /// A vendor with one key, as [`Format::credential`] writes it.
    ///
    /// It may be silent for 120 seconds before the first byte and between two frames, 900 before the
    /// head of a plain answer; the head of a stream waits 30 for the first event. It takes 1024
    /// connections, and streams whose client left are closed. The beta `context-1m`, which doubles the
    /// price, is not passed on.
    #[must_use]
    pub fn new(
        name: impl Into<Arc<str>>,
        format: Format,
        endpoint: Uri,
        credential: HeaderValue,
    ) -> Self {
        let vendor = Self {
            name: name.into(),
            format,
            endpoint,
            credentials: Vec::new(),
            betas_removed: vec!["context-1m".to_owned()],
            on_disconnect: OnDisconnect::default(),
            egress: Arc::default(),
            first_byte_timeout: Duration::from_secs(120),
            plain_timeout: Duration::from_secs(900),
            head_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(120),
            connections_max: 1024,
            others: Vec::new(),
        };
        vendor.credential(credential)
    }

    /// Speaking another format too: posted to that `endpoint`, with the same keys in the same order, as
    /// [`Format::credential`] writes them there. In everything else it is what it has been made so far, so this comes
    /// last; and it stays one vendor, with one health and one bound of connections.
    #[must_use]
    pub fn also(
        mut self,
        format: Format,
        endpoint: Uri,
        credentials: impl IntoIterator<Item = HeaderValue>,
    ) -> Self {
        let other = Self {
            format,
            endpoint,
            credentials: Vec::new(),
            others: Vec::new(),
            ..self.clone()
        };
        let other = credentials.into_iter().fold(other, Self::credential);
        self.others.push(Arc::new(other));
        self
    }

    /// The vendor as a caller of this format has it: in that format if the vendor speaks it, so that nothing is
    /// translated without need, else in its first.
    #[must_use]
    pub fn speaking(self: &Arc<Self>, caller: Format) -> &Arc<Self> {
        let all = std::iter::once(self).chain(&self.others);
        let mut same = all.filter(|vendor| vendor.format == caller);
        same.next().unwrap_or(self)
    }

    /// With one key more.
    #[must_use]
    pub fn credential(mut self, mut credential: HeaderValue) -> Self {
        credential.set_sensitive(true);
        self.credentials.push(credential);
        self
    }

    /// With other connections. Vendors may share an egress.
    #[must_use]
    pub fn egress(mut self, egress: impl Into<Arc<Egress>>) -> Self {
        self.egress = egress.into();
        self
    }

    with! {
        betas_removed: Vec<String>,
        on_disconnect: OnDisconnect,
        first_byte_timeout: Duration,
        plain_timeout: Duration,
        head_timeout: Duration,
        idle_timeout: Duration,
        connections_max: usize,
    }
}

/// How connections to a vendor are made. Vendors that agree in all of it share a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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

/// Straight, within 3 seconds, over HTTP/1.1, trusting Mozilla's list; a connection idles for 50
/// seconds at most.
impl Default for Egress {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(3),
            proxy: None,
            authorities: None,
            protocol: Protocol::default(),
            // Vendors and what stands in front of them close idle connections after 60 and more.
            idle_connection_timeout: Duration::from_secs(50),
        }
    }
}

impl Egress {
    /// Through a proxy.
    #[must_use]
    pub fn proxy(mut self, proxy: Proxy) -> Self {
        self.proxy = Some(proxy);
        self
    }

    /// Trusting these authorities, PEM, and no others.
    #[must_use]
    pub fn authorities(mut self, pem: impl Into<Bytes>) -> Self {
        self.authorities = Some(pem.into());
        self
    }

    with! {
        connect_timeout: Duration,
        protocol: Protocol,
        idle_connection_timeout: Duration,
    }
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
#[non_exhaustive]
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
#[non_exhaustive]
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
    Callable(Arc<Model>, PriceList),
    /// A model without a price for now.
    Unpriced,
    /// Nothing.
    Unknown,
}

/// Where models are found. One look a call: what it returns is the call's snapshot to its end.
pub trait Models: Send + Sync + 'static {
    /// The model of this name and its price now.
    fn find_model(&self, id: &str) -> Found;

    /// The same for a call that this account pays for, which may have prices of its own. Every account has everybody's
    /// prices, unless a catalog says otherwise here.
    fn find_model_for(&self, id: &str, _payer: &AccountId) -> Found {
        self.find_model(id)
    }

    /// The name that was likely meant where [`Models::find_model`] knows nothing; `None`: nobody guesses.
    fn similar(&self, _id: &str) -> Option<String> {
        None
    }
}

impl<M: Models> Models for Arc<M> {
    fn find_model(&self, id: &str) -> Found {
        (**self).find_model(id)
    }

    fn find_model_for(&self, id: &str, payer: &AccountId) -> Found {
        (**self).find_model_for(id, payer)
    }

    fn similar(&self, id: &str) -> Option<String> {
        (**self).similar(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vendor() -> Vendor {
        let endpoint = Uri::from_static("http://vendor.example/v1/messages");
        let key = Format::Messages.credential("hunter2").unwrap();
        Vendor::new("v", Format::Messages, endpoint, key)
    }

    #[test]
    fn routes_stand_by_priority_and_then_as_they_came() {
        let vendor = Arc::new(vendor());
        let route = |model: &str| Route::new(Arc::clone(&vendor), model);
        let model = Model::new("m", 100)
            .route(route("last").priority(1))
            .route(route("first"))
            .route(route("second").weight(3));
        let order: Vec<&str> = model.routes.iter().map(|it| it.model.as_str()).collect();
        assert_eq!(order, ["first", "second", "last"]);
        assert_eq!(model.output_tokens_min, 100);
    }

    #[test]
    fn keys_are_never_shown() {
        let vendor = vendor().credential(HeaderValue::from_static("hunter2 too"));
        assert_eq!(vendor.credentials, ["hunter2", "hunter2 too"]);
        let shown = format!("{vendor:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
        assert_eq!(Format::Chat.credential("k").unwrap(), "Bearer k");
        for bad in ["ключ", "two\nlines"] {
            assert!(Format::Chat.credential(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_caller_has_a_vendor_in_its_own_format_or_in_the_vendors_first() {
        let chats = Uri::from_static("http://vendor.example/v1/chat/completions");
        let key = Format::Chat.credential("hunter2").unwrap();
        let one = vendor().connections_max(7);
        let two = one.clone().also(Format::Chat, chats, [key]);
        let shown = format!("{two:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
        let (chat, messages, responses) = (Format::Chat, Format::Messages, Format::Responses);
        for (vendor, caller, spoken, path, key) in [
            (&one, messages, messages, "/v1/messages", "hunter2"),
            (&one, chat, messages, "/v1/messages", "hunter2"),
            (&two, messages, messages, "/v1/messages", "hunter2"),
            (&two, responses, messages, "/v1/messages", "hunter2"),
            (&two, chat, chat, "/v1/chat/completions", "Bearer hunter2"),
        ] {
            let route = Arc::new(Route::new(vendor.clone(), "m-1").weight(3));
            let route = route.speaking(caller);
            assert_eq!((route.model.as_str(), route.weight), ("m-1", 3));
            let vendor = &route.vendor;
            assert_eq!((vendor.format, vendor.endpoint.path()), (spoken, path));
            assert_eq!(vendor.credentials, [key]);
            assert_eq!((&*vendor.name, vendor.connections_max), ("v", 7));
        }
    }

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
