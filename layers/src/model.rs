//! Models of the catalog, their routes to vendors, and the trait that finds them.
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
use http::{HeaderMap, HeaderName, HeaderValue, Uri};

pub use crate::format::Format;
use crate::{key::AccountId, login::Login, price::PriceList};

/// Generates builder methods. Each of them sets one field.
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

// The module is declared below the macro because it uses the macro.
mod dialect;

pub use self::dialect::{CacheMarks, Dialect, OutputField, SystemRole, Thinking};

/// A model of the catalog.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Model {
    /// The name by which callers request the model, in the field `model`.
    pub id: String,
    /// The name of the model's family; only shown.
    pub family: String,
    /// The kind of the model's output, which decides the paths at which the model is called.
    pub kind: ModelKind,
    /// The maximum number of output tokens of a call.
    pub output_tokens_max: u64,
    /// The least output that makes a call worthwhile, in tokens. If money is short and the request sets no output
    /// limit, the gateway lowers the call's output limit, but not below this number.
    pub output_tokens_min: u64,
    /// The output limit, in tokens, of calls whose request sets none. `None` means `output_tokens_max`.
    pub output_tokens_default: Option<u64>,
    /// The maximum number of output tokens that the model generates per second, including reasoning. If it is unknown
    /// (`None`), a hold covers the whole output from the start.
    pub output_tokens_per_second_max: Option<u64>,
    /// Whether a stream's hold grows with the stream's output, provided that `output_tokens_per_second_max` is known. A
    /// call whose hold cannot be raised is stopped. The ledger must be able to adjust holds.
    pub hold_grows: bool,
    /// The model's context window in tokens, if known. The hold counts at most this much input.
    pub input_tokens_max: Option<u64>,
    /// The largest number of input tokens for which the model has a price; `None` if the price has no such limit. A
    /// call that may have more input is refused.
    pub input_tokens_priced_max: Option<u64>,
    /// Whether all calls of a conversation take the route of its first call, so that the vendor's prompt cache is used.
    pub sticky: bool,
    /// The model's routes, each to one vendor.
    pub routes: Vec<Arc<Route>>,
}

impl Model {
    /// Creates a model with this maximum number of output tokens. It has no routes yet, `output_tokens_min` is 256, its
    /// family is its own id, and it is not sticky.
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
            output_tokens_per_second_max: None,
            hold_grows: false,
            input_tokens_max: None,
            input_tokens_priced_max: None,
            sticky: false,
            routes: Vec::new(),
        }
    }

    /// Adds a route to the model.
    #[must_use]
    pub fn route(mut self, route: impl Into<Arc<Route>>) -> Self {
        self.routes.push(route.into());
        self.routes.sort_by_key(|route| route.priority);
        self
    }

    /// Sets the name of the model's family.
    #[must_use]
    pub fn family(mut self, family: impl Into<String>) -> Self {
        self.family = family.into();
        self
    }

    /// Sets the maximum number of output tokens per second.
    #[must_use]
    pub fn output_tokens_per_second_max(mut self, tokens: u64) -> Self {
        self.output_tokens_per_second_max = Some(tokens);
        self
    }

    /// Sets the size of the model's context window, in tokens.
    #[must_use]
    pub fn input_tokens_max(mut self, input_tokens_max: u64) -> Self {
        self.input_tokens_max = Some(input_tokens_max);
        self
    }

    /// Sets the output limit, in tokens, of calls whose request sets none.
    #[must_use]
    pub fn output_tokens_default(mut self, output_tokens_default: u64) -> Self {
        self.output_tokens_default = Some(output_tokens_default);
        self
    }

    /// Sets the largest number of input tokens for which the model has a price.
    #[must_use]
    pub fn input_tokens_priced_max(mut self, input_tokens_priced_max: u64) -> Self {
        self.input_tokens_priced_max = Some(input_tokens_priced_max);
        self
    }

    with! {
        kind: ModelKind,
        output_tokens_min: u64,
        hold_grows: bool,
        sticky: bool,
    }
}

/// The kind of a model's output. It decides the paths at which the model is called.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ModelKind {
    /// The model reads text and generates text.
    #[default]
    Chat,
    /// The model returns a vector for each input, and its output is free. Vendors use the Chat Completions format; the
    /// model's routes lead to a vendor's embeddings endpoint.
    Embedding,
}

impl ModelKind {
    /// Returns the paths at which models of this kind are called.
    #[must_use]
    pub const fn surfaces(self) -> &'static [&'static str] {
        match self {
            Self::Chat => &["/v1/chat/completions", "/v1/messages", "/v1/responses"],
            Self::Embedding => &["/v1/embeddings"],
        }
    }
}

/// A route to a model: a vendor, and the vendor's name for the model.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Route {
    /// The vendor that the route leads to.
    pub vendor: Arc<Vendor>,
    /// The vendor's name for the model.
    pub model: String,
    /// The route's share of calls, relative to the weights of the other routes of the same priority.
    pub weight: u32,
    /// The route's priority; lower numbers are tried first.
    pub priority: u32,
    /// Which fields of the vendor's format the model accepts.
    pub dialect: Dialect,
}

impl Route {
    /// Creates a route to the vendor's `model`, with weight 1 and priority 0.
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

    /// Returns this route with its vendor in the format that [`Vendor::speaking`] chooses for this caller's format.
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

/// A vendor, with its formats, addresses, API keys and timeouts.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Vendor {
    /// The operator's name for the vendor.
    pub name: Arc<str>,
    /// The vendor's first format. It is used for callers whose format the vendor does not support.
    pub format: Format,
    /// The URL to which calls are posted.
    pub endpoint: Uri,
    /// Values of the header that carries a key (`authorization` or `x-api-key`), one per key, marked sensitive. The
    /// list is never empty: a vendor without keys has one value, which is not sent and only identifies the vendor's
    /// login.
    pub credentials: Vec<HeaderValue>,
    /// How requests to the vendor are authenticated.
    pub authentication: Authentication,
    /// Headers that are added to every request. They replace headers of the same name that the gateway would send.
    pub headers: HeaderMap,
    /// Messages format: prefixes of beta names that are not forwarded, because these betas change the price.
    pub betas_removed: Vec<String>,
    /// Messages format: the version that the body carries in `anthropic_version` instead of the field `model`. If
    /// `None`, the body names the model.
    pub anthropic_version: Option<&'static str>,
    /// Whether the gateway closes the vendor's stream when the client disconnects, or reads the stream to its end.
    pub on_disconnect: OnDisconnect,
    /// How connections to the vendor are made: proxy, TLS and HTTP version.
    pub egress: Arc<Egress>,
    /// The maximum time from the request to the first byte of a streamed response.
    pub first_byte_timeout: Duration,
    /// The maximum time from the request to the head of a plain response. The head arrives after all tokens are
    /// generated.
    pub plain_timeout: Duration,
    /// How long the gateway waits for a stream's first event before it forwards the stream's head. During this time the
    /// gateway can still answer an error with an HTTP status, or try another route.
    pub head_timeout: Duration,
    /// The maximum time between two frames of a response.
    pub idle_timeout: Duration,
    /// The maximum number of calls in flight at this vendor.
    pub connections_max: usize,
    /// Copies of this vendor in its other formats, which [`Vendor::also`] adds.
    pub others: Vec<Arc<Self>>,
}

impl Vendor {
    /// Creates a vendor with one key. [`Format::credential`] formats the key as a header value.
    ///
    /// The defaults are 120 seconds to the first byte and between frames, and 900 seconds to the head of a plain
    /// response. A stream's head waits for the first event for up to 30 seconds. The vendor may have 1024 calls in
    /// flight. If a client disconnects, the vendor's stream is closed. The beta `context-1m`, which doubles the price,
    /// is not forwarded.
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
            authentication: Authentication::default(),
            headers: HeaderMap::new(),
            betas_removed: vec!["context-1m".to_owned()],
            anthropic_version: None,
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

    /// Adds another format, whose requests are posted to `endpoint`. `credentials` are the same keys in the same order,
    /// formatted by [`Format::credential`] for the added format. All other fields are copied from the vendor as built
    /// so far, so call this method last. All formats share one health state and one connection limit.
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

    /// Returns this vendor in the caller's format if the vendor supports that format, so that no translation is needed.
    /// Otherwise returns the vendor in its first format.
    #[must_use]
    pub fn speaking(self: &Arc<Self>, caller: Format) -> &Arc<Self> {
        let all = std::iter::once(self).chain(&self.others);
        let mut same = all.filter(|vendor| vendor.format == caller);
        same.next().unwrap_or(self)
    }

    /// Adds the header value of another API key.
    #[must_use]
    pub fn credential(mut self, mut credential: HeaderValue) -> Self {
        credential.set_sensitive(true);
        self.credentials.push(credential);
        self
    }

    /// Sets how connections to the vendor are made. Vendors that share an egress share its connection pool.
    #[must_use]
    pub fn egress(mut self, egress: impl Into<Arc<Egress>>) -> Self {
        self.egress = egress.into();
        self
    }

    with! {
        authentication: Authentication,
        headers: HeaderMap,
        betas_removed: Vec<String>,
        anthropic_version: Option<&'static str>,
        on_disconnect: OnDisconnect,
        first_byte_timeout: Duration,
        plain_timeout: Duration,
        head_timeout: Duration,
        idle_timeout: Duration,
        connections_max: usize,
    }
}

/// How requests to a vendor are authenticated.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Authentication {
    /// Requests have a key in the header that the vendor's format uses for keys.
    #[default]
    Key,
    /// Requests have a key in this header, instead of the header of the vendor's format.
    Header(HeaderName),
    /// Requests have a token or a signature, which a login adds to each of them.
    Login(Arc<dyn Login>),
    /// Requests carry no credential.
    None,
}

/// How connections to a vendor are made. Vendors with equal settings share a connection pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Egress {
    /// The maximum time to connect, including the handshakes with the proxy and of TLS.
    pub connect_timeout: Duration,
    /// The proxy through which connections are made, if any.
    pub proxy: Option<Proxy>,
    /// The trusted certificate authorities, in PEM. `None` means the authorities of Mozilla's list.
    pub authorities: Option<Bytes>,
    /// The HTTP version of connections to the vendor.
    pub protocol: Protocol,
    /// The time after which idle connections are closed. It is shorter than the vendor's own limit.
    pub idle_connection_timeout: Duration,
}

/// Connects directly, within 3 seconds, by HTTP/1.1, and trusts Mozilla's list of authorities. Idle connections are
/// closed after 50 seconds.
impl Default for Egress {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(3),
            proxy: None,
            authorities: None,
            protocol: Protocol::default(),
            // Vendors and their load balancers close idle connections after 60 seconds or more.
            idle_connection_timeout: Duration::from_secs(50),
        }
    }
}

impl Egress {
    /// Makes connections through this proxy.
    #[must_use]
    pub fn proxy(mut self, proxy: Proxy) -> Self {
        self.proxy = Some(proxy);
        self
    }

    /// Trusts only these certificate authorities, in PEM.
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

/// Hashes only the length of the authorities' PEM text, because the text may be long and every call computes this hash.
impl Hash for Egress {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.connect_timeout.hash(state);
        self.proxy.hash(state);
        self.authorities.as_ref().map(Bytes::len).hash(state);
        self.protocol.hash(state);
        self.idle_connection_timeout.hash(state);
    }
}

/// URL of an `http` (CONNECT) or `socks5` proxy, with user and password if needed.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Proxy(String);

impl Proxy {
    /// Creates a proxy from a URL such as `http://user:password@host:port`.
    #[must_use]
    pub const fn new(address: String) -> Self {
        Self(address)
    }

    /// Returns the whole URL of the proxy, which may contain a password.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// Prints the proxy's URL without the user and the password.
impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or_default();
        let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
        write!(f, "Proxy({scheme}://{place})")
    }
}

/// The HTTP version of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// HTTP/1.1, with one call at a time per connection.
    #[default]
    Http1,
    /// HTTP/2 if the vendor offers it in the TLS handshake, else HTTP/1.1.
    Http2Offered,
    /// HTTP/2 with prior knowledge. Without TLS, no handshake can negotiate the version.
    Http2,
}

/// The treatment of a vendor's stream after the client has disconnected: close it, or read it to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum OnDisconnect {
    /// The vendor's connection is closed at once, and the part that was received is charged.
    #[default]
    Cancel,
    /// The gateway reads the vendor's stream to its end and charges what was used.
    Drain,
}

/// The result of looking a model up in the catalog.
#[derive(Clone, Debug)]
pub enum Found {
    /// The model exists and has a complete price.
    Callable(Arc<Model>, PriceList),
    /// The model exists but has no price at present.
    Unpriced,
    /// The catalog has no model of this name.
    Unknown,
}

/// A catalog of models. A call looks its model up once and keeps the result until it ends.
pub trait Models: Send + Sync + 'static {
    /// Returns the model of this name with its current prices.
    fn find_model(&self, id: &str) -> Found;

    /// Returns the model of this name with its prices for the account `payer`. By default all accounts have the same
    /// prices.
    fn find_model_for(&self, id: &str, _payer: &AccountId) -> Found {
        self.find_model(id)
    }

    /// Returns the most similar name, as a suggestion for a caller whose model [`Models::find_model`] does not find.
    /// `None` means that there is no suggestion.
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
    fn routes_are_ordered_by_priority_then_by_insertion() {
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
    fn debug_output_never_shows_vendor_keys() {
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
    fn vendor_is_called_in_the_callers_format_or_else_in_the_vendors_first_format() {
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
    fn debug_output_of_a_proxy_does_not_show_its_password() {
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
