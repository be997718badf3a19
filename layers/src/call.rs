//! A model call on its way down: what each layer has proved about it is in its type.
//!
//! [`Call`] (parsed) → [`Priced`] (model and price known) → [`Attempt`] (one route chosen) →
//! [`Outbound`] (bytes in the vendor's format).

use std::{ops::Range, sync::Arc};

use bytes::Bytes;

pub use crate::{format::Format, segments::Segments};
use crate::{
    model::{Model, Route},
    price::Price,
    session::SessionId,
    usage::Meter,
};

/// A request whose fields have been checked, with its bytes as the client sent them.
#[derive(Clone, Debug)]
pub struct Call {
    /// The format that the client speaks.
    pub format: Format,
    /// The whole body.
    pub body: Bytes,
    /// The catalog name asked for.
    pub model: String,
    /// Whether the answer is to be a stream.
    pub stream: bool,
    /// The client's ceiling on output tokens.
    pub output_tokens: Option<u64>,
    /// How many answers (`n` of the chat format).
    pub choices: u64,
    /// Whether the client asked for the usage chunk (`stream_options.include_usage`). The messages
    /// format always carries usage.
    pub usage_asked: bool,
    /// How much input there is.
    pub input: InputSize,
    /// For how long the vendor's cache is asked to keep what the call writes to it.
    pub cache_write: CacheWrite,
    /// Where the fields stand that may have to change.
    pub spans: Spans,
    /// The session that the client named.
    pub session: Option<SessionId>,
}

/// Input by what it weighs. Text is counted in UTF-8 bytes after JSON decoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputSize {
    /// Bytes of text: contents, instructions, tools, names.
    pub text_bytes: u64,
    /// Messages.
    pub messages: u64,
    /// Tools.
    pub tools: u64,
    /// Images, inline or by address.
    pub images: u64,
    /// Documents, inline or by address.
    pub documents: u64,
    /// Bytes of inline images and documents, as sent (base64).
    pub binary_bytes: u64,
}

/// For how long a call asks its vendor's cache to keep what it writes, which decides what writing costs. Fields are
/// named as errors name them, the first of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheWrite {
    /// It does not say.
    #[default]
    Unsaid,
    /// Five minutes, as each mark without a time does.
    FiveMinutes,
    /// An hour; the field that says so.
    OneHour(Box<str>),
    /// An hour here, five minutes there; the field that says an hour.
    Mixed(Box<str>),
    /// Another time; the field that says so.
    Other(Box<str>),
}

impl CacheWrite {
    /// What a call asks for that asks for both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unsaid, one) | (one, Self::Unsaid) => one,
            (Self::Other(field), _) | (_, Self::Other(field)) => Self::Other(field),
            (Self::Mixed(field), _) | (_, Self::Mixed(field)) => Self::Mixed(field),
            (Self::FiveMinutes, Self::FiveMinutes) => Self::FiveMinutes,
            (Self::OneHour(field), Self::OneHour(_)) => Self::OneHour(field),
            (Self::OneHour(field), Self::FiveMinutes)
            | (Self::FiveMinutes, Self::OneHour(field)) => Self::Mixed(field),
        }
    }
}

/// Byte ranges in [`Call::body`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// Just behind the opening brace: where a field may be put in.
    pub start: usize,
    /// The value of `model`.
    pub model: Range<usize>,
    /// The value of `stream_options`, if it is there.
    pub stream_options: Option<Range<usize>>,
    /// The value of `stream_options.include_usage`, if it is there.
    pub include_usage: Option<Range<usize>>,
    /// The value of `max_tokens`, if it is there: the chat format allows null.
    pub max_tokens: Option<Range<usize>>,
    /// The value of the chat format's `max_completion_tokens`, if it is there: it may be null.
    pub max_completion_tokens: Option<Range<usize>>,
}

/// A call with the model and the price that it is charged by to its end.
#[derive(Clone, Debug)]
pub struct Priced {
    /// The call.
    pub call: Arc<Call>,
    /// Its model.
    pub model: Arc<Model>,
    /// Its price.
    pub price: Arc<Price>,
    /// The ceiling on output tokens for each choice that the hold pays for.
    pub output_tokens: u64,
    /// What the call uses.
    pub meter: Meter,
}

/// A call on one of its routes.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The call.
    pub priced: Priced,
    /// The route chosen.
    pub route: Arc<Route>,
    /// Which of the vendor's keys, as an index of its credentials.
    pub credential: usize,
}

/// A request in the vendor's format.
#[derive(Clone, Debug)]
pub struct Outbound {
    /// The way it goes.
    pub route: Arc<Route>,
    /// Which of the vendor's keys, as an index of its credentials.
    pub credential: usize,
    /// The body, whole.
    pub body: Segments,
    /// Whether the answer is to be a stream.
    pub stream: bool,
    /// How many answers beside each other were asked for.
    pub choices: u64,
    /// Whether the vendor's chat usage chunk was our wish alone and is to be taken out again.
    pub strip_usage: bool,
    /// What the call uses.
    pub meter: Meter,
}

/// What is asked of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /v1/messages`.
    Messages,
    /// `POST /v1/messages/count_tokens`.
    CountTokens,
}

impl Operation {
    /// The operation that is posted to this path.
    #[must_use]
    pub fn of_path(path: &str) -> Option<Self> {
        match path {
            "/v1/chat/completions" => Some(Self::Chat),
            "/v1/messages" => Some(Self::Messages),
            "/v1/messages/count_tokens" => Some(Self::CountTokens),
            _ => None,
        }
    }

    /// The format of its request.
    #[must_use]
    pub const fn format(self) -> Format {
        match self {
            Self::Chat => Format::Chat,
            Self::Messages | Self::CountTokens => Format::Messages,
        }
    }
}
