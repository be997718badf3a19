//! A model call on its way down: what each layer has proved about it is in its type.
//!
//! [`Call`] (parsed) → [`Priced`] (model and price known) → [`Attempt`] (one route chosen) →
//! [`Outbound`] (bytes in the vendor's format).

use std::{ops::Range, sync::Arc};

use bytes::Bytes;

use crate::{
    endpoint::Endpoint,
    model::{Model, ModelKind, Route},
    price::{Asked, Class, Label, PriceList, Unpriced},
    session::SessionId,
    usage::Meter,
};
pub use crate::{format::Format, segments::Segments};

/// A request whose fields have been checked, with its bytes as the client sent them.
#[derive(Clone, Debug)]
pub struct Call {
    /// The format that the client speaks.
    pub format: Format,
    /// The kind of model that is asked.
    pub kind: ModelKind,
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
    /// What it asks for that vendors bill apart; most ask for nothing of the kind.
    pub asks: Option<Box<Asks>>,
    /// Where the fields stand that may have to change.
    pub spans: Spans,
    /// The session that the client named.
    pub session: Option<SessionId>,
}

impl Call {
    /// Where it came in.
    #[must_use]
    pub const fn endpoint(&self) -> Endpoint {
        match (self.kind, self.format) {
            (ModelKind::Embedding, _) => Endpoint::Embeddings,
            (ModelKind::Chat, Format::Chat) => Endpoint::ChatCompletions,
            (ModelKind::Chat, Format::Messages) => Endpoint::Messages,
            (ModelKind::Chat, Format::Responses) => Endpoint::Responses,
        }
    }
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
    /// Inputs of a call for embeddings, each of which becomes a vector. No chat has any.
    pub inputs: u64,
    /// What came as tokens already.
    pub tokens: u64,
}

/// What a call asks for that vendors bill apart, each with the field that asks for it, as errors name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asks {
    asked: Asked,
    /// The first field of each kind.
    fields: Vec<(Unpriced, Box<str>)>,
    /// The first field that asks for something that no model has a price for.
    unknown: Option<Box<str>>,
    /// The first field with sound of which nobody can say how long it is.
    unmeasured: Option<Box<str>>,
}

/// One such thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A class; of calls of a tool and of sound, so many more at most.
    Class(Class, u64),
    /// Sound of which nobody can say how long it is.
    UnmeasuredSound,
    /// `service_tier`.
    ServiceTier(Label),
    /// `speed`.
    Speed(Label),
    /// `inference_geo`.
    InferenceGeo(Label),
    /// A lifetime in the cache that nobody sells.
    UnknownLifetime,
}

impl Ask {
    /// So many calls of a tool of which the request does not say how many.
    pub const WITHOUT_END: u64 = u64::MAX;
}

impl Asks {
    /// With one thing more, that this field asks for.
    pub fn add(&mut self, ask: Ask, field: impl FnOnce() -> String) {
        let served = &mut self.asked.served;
        let kind = match ask {
            Ask::Class(class, count) => {
                let most = self.asked.classes.get_mut(class);
                *most = most.saturating_add(count);
                Unpriced::Class(class)
            }
            Ask::ServiceTier(label) => {
                served.service_tier = label.as_tier();
                Unpriced::ServiceTier
            }
            Ask::Speed(label) => {
                served.speed = label;
                Unpriced::Speed
            }
            Ask::InferenceGeo(label) => {
                served.inference_geo = label;
                Unpriced::InferenceGeo
            }
            Ask::UnknownLifetime => {
                self.unknown.get_or_insert_with(|| field().into());
                return;
            }
            Ask::UnmeasuredSound => {
                self.unmeasured.get_or_insert_with(|| field().into());
                return;
            }
        };
        if self.field(kind).is_none() {
            self.fields.push((kind, field().into()));
        }
    }

    /// The same in the words of prices.
    #[must_use]
    pub const fn asked(&self) -> &Asked {
        &self.asked
    }

    /// The field that asks for it.
    #[must_use]
    pub fn field(&self, kind: Unpriced) -> Option<&str> {
        let mut fields = self.fields.iter();
        fields.find(|it| it.0 == kind).map(|(_, field)| &**field)
    }

    /// The field that asks for something that no model has a price for.
    #[must_use]
    pub fn unknown(&self) -> Option<&str> {
        self.unknown.as_deref()
    }

    /// The class of the answer, if it may be more than text.
    #[must_use]
    pub fn output_class(&self) -> Option<Class> {
        [Class::OutputAudio, Class::OutputImage]
            .into_iter()
            .find(|class| self.asked.classes.get(*class) > 0)
    }

    /// The field with sound of which nobody can say how long it is.
    #[must_use]
    pub fn unmeasured(&self) -> Option<&str> {
        self.unmeasured.as_deref()
    }

    /// The field that asks for what the messages format has nothing for: sound, or images that the model makes.
    #[must_use]
    pub fn of_chat_alone(&self) -> Option<&str> {
        [Class::InputAudio, Class::OutputAudio, Class::OutputImage]
            .into_iter()
            .find_map(|class| self.field(Unpriced::Class(class)))
    }

    /// The same without what is asked of the vendor's cache.
    #[must_use]
    pub fn without_cache(&self) -> Self {
        let mut asks = self.clone();
        asks.unknown = None;
        for class in [Class::CacheWrite1h, Class::CacheWrite12h] {
            *asks.asked.classes.get_mut(class) = 0;
        }
        asks
    }

    /// The lifetime in the cache that is asked for beside the usual one, the longest.
    #[must_use]
    pub fn cache_write(&self) -> Option<Class> {
        [Class::CacheWrite12h, Class::CacheWrite1h]
            .into_iter()
            .find(|class| self.asked.classes.get(*class) > 0)
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
    /// The value of `max_tokens`, if it is there: the chat format allows null. Of the responses format's
    /// `max_output_tokens`, which may be null too.
    pub max_tokens: Option<Range<usize>>,
    /// The value of the chat format's `max_completion_tokens`, if it is there: it may be null.
    pub max_completion_tokens: Option<Range<usize>>,
    /// What the responses format has besides.
    pub responses: Option<Box<ResponsesSpans>>,
    /// Of the messages format: a turn has thinking, which may stand in a capsule of ours.
    pub has_thinking: bool,
}

/// Byte ranges in [`Call::body`] that the responses format alone has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponsesSpans {
    /// The value of `store`, if it is there: false or null.
    pub store: Option<Range<usize>>,
    /// The value of `include`, if it is there: an array or null.
    pub include: Option<Range<usize>>,
    /// `include` asks for encrypted reasoning.
    pub encrypted_reasoning_asked: bool,
    /// What no vendor of this format is sent, in the order of the body, each with the comma that goes along: nothing but commas and
    /// values is missing without them.
    pub cut: Vec<Range<usize>>,
    /// How many tools of the vendor's own were merely offered, and are among what is cut.
    pub tools_cut: u64,
}

/// A call with the model and the prices that it is charged by to its end.
#[derive(Clone, Debug)]
pub struct Priced {
    /// The call.
    pub call: Arc<Call>,
    /// Its model.
    pub model: Arc<Model>,
    /// Its prices, of which it is charged by one.
    pub prices: PriceList,
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
    /// The kind of model that is asked.
    pub kind: ModelKind,
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
    /// `POST /v1/responses`.
    Responses,
    /// Whichever of the chat and the responses format the body is of: one has `messages`, the other `input`.
    /// [`Operation::CHAT_OR_RESPONSES`] is its path, which no caller may post to.
    ChatOrResponses,
    /// `POST /v1/embeddings`.
    Embeddings,
}

impl Operation {
    /// The path of [`Operation::ChatOrResponses`], for requests whose own says nothing.
    pub const CHAT_OR_RESPONSES: &'static str = "/chat-or-responses";

    /// The operation that is posted to this path.
    #[must_use]
    pub fn of_path(path: &str) -> Option<Self> {
        match path {
            "/v1/chat/completions" => Some(Self::Chat),
            "/v1/messages" => Some(Self::Messages),
            "/v1/messages/count_tokens" => Some(Self::CountTokens),
            "/v1/responses" => Some(Self::Responses),
            Self::CHAT_OR_RESPONSES => Some(Self::ChatOrResponses),
            "/v1/embeddings" => Some(Self::Embeddings),
            _ => None,
        }
    }

    /// The format of its request, as far as the path says it. Vendors of the chat format take embeddings, too.
    #[must_use]
    pub const fn format(self) -> Format {
        match self {
            Self::Chat | Self::ChatOrResponses | Self::Embeddings => Format::Chat,
            Self::Messages | Self::CountTokens => Format::Messages,
            Self::Responses => Format::Responses,
        }
    }
}
