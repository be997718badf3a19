//! A model call on its way down the stack. Its type states which checks it has passed.
//!
//! [`Call`] (parsed) → [`Priced`] (model and price known) → [`Attempt`] (one route chosen) →
//! [`Outbound`] (bytes in the vendor's format).

use std::{ops::Range, sync::Arc};

use bytes::Bytes;

use crate::{
    endpoint::Endpoint,
    model::{Model, ModelKind, Route},
    price::{Class, Extras, Label, PriceList, Unpriced},
    session::SessionId,
    text_sample::TextSample,
    usage::Meter,
};
pub use crate::{format::Format, segments::Segments};

/// A request whose fields are checked, with its bytes as the client sent them.
#[derive(Clone, Debug)]
pub struct Call {
    /// The format that the client speaks.
    pub format: Format,
    /// The kind of the requested model.
    pub kind: ModelKind,
    /// The whole body of the request.
    pub body: Bytes,
    /// The catalog name of the requested model.
    pub model: String,
    /// Whether the client requested a stream.
    pub stream: bool,
    /// The client's ceiling on output tokens.
    pub output_tokens: Option<u64>,
    /// The number of answers requested (`n` of the chat format).
    pub choices: u64,
    /// Whether the client requested the usage chunk (`stream_options.include_usage`). In the messages format, answers
    /// always contain usage.
    pub usage_asked: bool,
    /// The size of the input.
    pub input: InputSize,
    /// Samples of the texts in the input.
    pub texts: TextSample,
    /// Parts of the request that are billed separately; `None` for most requests.
    pub asks: Option<Box<Asks>>,
    /// Positions of the fields that layers below may have to change.
    pub spans: Spans,
    /// The id of the session that the client named; shown on receipts.
    pub session: Option<SessionId>,
}

impl Call {
    /// The endpoint that the call was sent to.
    #[must_use]
    pub const fn endpoint(&self) -> Endpoint {
        match (self.kind, self.format) {
            (ModelKind::Embedding, _) => Endpoint::Embeddings,
            (ModelKind::Chat, Format::Chat) => Endpoint::ChatCompletions,
            (ModelKind::Chat, Format::Messages) => Endpoint::Messages,
            (ModelKind::Chat, Format::Responses) => Endpoint::Responses,
        }
    }

    /// Estimated tokens of all texts of the input, in thousandths.
    #[must_use]
    pub fn text_milli(&self) -> u64 {
        self.input
            .unsampled_milli
            .saturating_add(self.texts.milli())
    }
}

/// Input size by kind. Text counts as UTF-8 bytes after JSON decoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputSize {
    /// The bytes of text: contents, instructions, tools, names.
    pub text_bytes: u64,
    /// The number of messages.
    pub messages: u64,
    /// The number of tools.
    pub tools: u64,
    /// Images, inline or by URL; an image requested at its original size counts twice.
    pub images: u64,
    /// The largest possible cost of the images, in parts of a full-size image ([`IMAGE_SHARES`]).
    pub image_shares: u64,
    /// Documents other than plain text, inline or by URL.
    pub documents: u64,
    /// The number of documents whose size is unknown. The hold assumes that they fill the model's context window.
    pub documents_unseen: u64,
    /// The largest possible number of tokens of the documents of known size, computed from their pages and bytes.
    pub document_tokens: u64,
    /// The tokens by which documents exceed [`DOCUMENT_TOKENS`], summed over all documents.
    pub document_tokens_beyond: u64,
    /// Estimated tokens of the texts of which `Call::texts` has no sample, in thousandths.
    pub unsampled_milli: u64,
    /// The estimated tokens of the images; the hold for a call may use this estimate instead of the maximum.
    pub usual_images: u64,
    /// The estimated tokens of the documents; the hold for a call may use this estimate instead of the maximum.
    pub usual_documents: u64,
    /// Inputs of an embeddings call; each yields a vector. 0 for chats.
    pub inputs: u64,
    /// The input tokens that were sent as token ids.
    pub tokens: u64,
}

/// The number of shares in an image of full size: the unit in which smaller images are counted.
pub const IMAGE_SHARES: u64 = 5_000;
/// Tokens that are held for a document of up to six pages, unless configured otherwise.
pub const DOCUMENT_TOKENS: u64 = 50_000;

impl InputSize {
    /// Adds a text without a sample. Its tokens are estimated as one per four bytes.
    pub const fn add_unsampled(&mut self, bytes: u64) {
        self.text_bytes += bytes;
        let milli = bytes.saturating_mul(250);
        self.unsampled_milli = self.unsampled_milli.saturating_add(milli);
    }

    /// Adds an image, with its largest possible cost in shares and its estimated (`usual`) number of tokens.
    pub fn add_image(&mut self, shares: u64, usual: u64) {
        self.images += 1;
        self.image_shares += shares;
        self.usual_images += usual;
    }

    /// Adds a document that has at most `tokens` tokens; its estimated number of tokens is `usual`.
    pub fn add_document(&mut self, tokens: u64, usual: u64) {
        self.documents += 1;
        self.document_tokens = self.document_tokens.saturating_add(tokens);
        let beyond = tokens.saturating_sub(DOCUMENT_TOKENS);
        self.document_tokens_beyond = self.document_tokens_beyond.saturating_add(beyond);
        self.usual_documents = self.usual_documents.saturating_add(usual);
    }

    /// Adds a document of unknown size.
    pub fn add_unseen_document(&mut self) {
        /// A document of unknown size is estimated like a document of five pages.
        const USUAL: u64 = 15_000;
        self.documents += 1;
        self.documents_unseen += 1;
        self.usual_documents = self.usual_documents.saturating_add(USUAL);
    }
}

/// Parts of a call that are billed separately. For each, the path of the field that requests it is stored, for error
/// messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asks {
    extras: Extras,
    /// For each kind of part without a price, the first field that requests it.
    fields: Vec<(Unpriced, Box<str>)>,
    /// The first field that requests something that has no price at any model.
    unknown: Option<Box<str>>,
    /// The first field that contains sound of unknown length.
    unmeasured: Option<Box<str>>,
    /// The first field that has a document of unknown size.
    unseen: Option<Box<str>>,
}

/// A part of a request that is billed separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A rate class, such as a longer cache lifetime. For tool calls and sound, the number is the maximum quantity.
    Class(Class, u64),
    /// The request has sound of unknown length.
    UnmeasuredSound,
    /// The request has a document of unknown size.
    UnseenDocument,
    /// The request has the field `service_tier` with this value.
    ServiceTier(Label),
    /// The request has the field `speed` with this value.
    Speed(Label),
    /// The request has the field `inference_geo` with this value.
    InferenceGeo(Label),
    /// The request names a cache lifetime that no vendor sells.
    UnknownLifetime,
}

impl Ask {
    /// The maximum number of calls of a tool if the request does not limit them.
    pub const WITHOUT_END: u64 = u64::MAX;
}

impl Asks {
    /// Adds the feature `ask`. `field` returns the path of the field that requests it.
    pub fn add(&mut self, ask: Ask, field: impl FnOnce() -> String) {
        let served = &mut self.extras.served;
        let kind = match ask {
            Ask::Class(class, count) => {
                let most = self.extras.classes.get_mut(class);
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
            Ask::UnseenDocument => {
                self.unseen.get_or_insert_with(|| field().into());
                return;
            }
        };
        if self.field(kind).is_none() {
            self.fields.push((kind, field().into()));
        }
    }

    /// Returns all requested parts, as the price list expects them.
    #[must_use]
    pub const fn extras(&self) -> &Extras {
        &self.extras
    }

    /// Returns the first field of the request that requests this kind of part.
    #[must_use]
    pub fn field(&self, kind: Unpriced) -> Option<&str> {
        let mut fields = self.fields.iter();
        fields.find(|it| it.0 == kind).map(|(_, field)| &**field)
    }

    /// Returns the first field that requests something that has no price at any model.
    #[must_use]
    pub fn unknown(&self) -> Option<&str> {
        self.unknown.as_deref()
    }

    /// Returns the rate class of the answer's sound or images, if the request allows the model to generate them.
    #[must_use]
    pub fn output_class(&self) -> Option<Class> {
        [Class::OutputAudio, Class::OutputImage]
            .into_iter()
            .find(|class| self.extras.classes.get(*class) > 0)
    }

    /// Returns the first field that has sound of unknown length.
    #[must_use]
    pub fn unmeasured(&self) -> Option<&str> {
        self.unmeasured.as_deref()
    }

    /// Returns the first field that has a document of unknown size.
    #[must_use]
    pub fn unseen(&self) -> Option<&str> {
        self.unseen.as_deref()
    }

    /// Returns the first field whose request only the chat format can express: sound, or images generated by the model.
    #[must_use]
    pub fn of_chat_alone(&self) -> Option<&str> {
        [Class::InputAudio, Class::OutputAudio, Class::OutputImage]
            .into_iter()
            .find_map(|class| self.field(Unpriced::Class(class)))
    }

    /// Returns a copy without the requested cache lifetimes, which translation removes.
    #[must_use]
    pub fn without_cache(&self) -> Self {
        let mut asks = self.clone();
        asks.unknown = None;
        for class in [Class::CacheWrite1h, Class::CacheWrite12h] {
            *asks.extras.classes.get_mut(class) = 0;
        }
        asks
    }

    /// Returns the longest cache lifetime that the request names, unless it requests only the vendor's default
    /// lifetime.
    #[must_use]
    pub fn cache_write(&self) -> Option<Class> {
        [Class::CacheWrite12h, Class::CacheWrite1h]
            .into_iter()
            .find(|class| self.extras.classes.get(*class) > 0)
    }
}

/// The positions of fields in [`Call::body`], as byte ranges. Layers below change or remove these fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// The position after the opening brace of the body, where a field can be inserted.
    pub start: usize,
    /// The value of `model`.
    pub model: Range<usize>,
    /// The value of `stream_options`, if present.
    pub stream_options: Option<Range<usize>>,
    /// The value of `stream_options.include_usage`, if present.
    pub include_usage: Option<Range<usize>>,
    /// The value of `max_tokens`, or of the responses format's `max_output_tokens`, if present. Chat and responses
    /// allow null.
    pub max_tokens: Option<Range<usize>>,
    /// The value of the chat format's `max_completion_tokens`, if present; may be null.
    pub max_completion_tokens: Option<Range<usize>>,
    /// Positions that only the responses format has.
    pub responses: Option<Box<ResponsesSpans>>,
    /// Messages format: whether a turn of the conversation has thinking. The thinking may be a capsule of this gateway,
    /// which contains the signature of a vendor of another format.
    pub has_thinking: bool,
    /// The turns of the conversation, in order.
    pub turns: Turns,
}

/// Positions of the turns of a conversation. A hold uses them to recognize that a call continues an earlier
/// conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// The bytes of the array of turns in [`Call::body`].
    pub all: Range<usize>,
    /// The turns, in order. Empty if the body is short, or if the vendor may leave turns out.
    pub each: Vec<Turn>,
}

/// A turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The bytes of the turn in [`Call::body`].
    pub span: Range<usize>,
    /// The number of text bytes from the beginning of the body to the end of this turn, as [`InputSize::text_bytes`]
    /// counts them.
    pub text_bytes: u64,
}

/// Byte ranges in [`Call::body`] that exist only in the responses format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponsesSpans {
    /// The value of `store`, if present: false or null.
    pub store: Option<Range<usize>>,
    /// The value of `include`, if present: an array or null.
    pub include: Option<Range<usize>>,
    /// Whether `include` requests encrypted reasoning.
    pub encrypted_reasoning_asked: bool,
    /// Ranges that the gateway cuts out before it sends the request to a vendor of this format, in order. Each range
    /// includes one comma, so that the remaining text is valid JSON.
    pub cut: Vec<Range<usize>>,
    /// How many of the cut ranges are tools of the vendor that the request only makes available to the model.
    pub tools_cut: u64,
}

/// A call with the model and prices by which it is charged, fixed until it ends.
#[derive(Clone, Debug)]
pub struct Priced {
    /// The parsed request.
    pub call: Arc<Call>,
    /// The call's model, as it was in the catalog when the call began.
    pub model: Arc<Model>,
    /// The model's prices. Some depend on conditions, so the price that applies is chosen when the call is charged.
    pub prices: PriceList,
    /// The output-token ceiling per choice that the hold covers.
    pub output_tokens: u64,
    /// The meter of the call, to which layers below write the usage.
    pub meter: Meter,
}

/// One attempt of a call on one of its routes.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The call with its prices.
    pub priced: Priced,
    /// The chosen route.
    pub route: Arc<Route>,
    /// Which of the vendor's keys to use: an index into its credentials.
    pub credential: usize,
}

/// A request in the vendor's format.
#[derive(Clone, Debug)]
pub struct Outbound {
    /// The route on which the request is sent: a vendor, and the vendor's name of the model.
    pub route: Arc<Route>,
    /// Which of the vendor's keys to use: an index into its credentials.
    pub credential: usize,
    /// The complete body.
    pub body: Segments,
    /// Whether the answer is a stream.
    pub stream: bool,
    /// The number of answers requested.
    pub choices: u64,
    /// The kind of the requested model.
    pub kind: ModelKind,
    /// Whether only the gateway, and not the caller, requested the chat format's usage chunk; then it is removed from
    /// the answer.
    pub strip_usage: bool,
    /// The meter, to which the layers below write the usage of the call.
    pub meter: Meter,
}

/// The operation that a request performs with a model.
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
    /// Chat or responses, decided by the body: chat has `messages`, responses has `input`. Its path is
    /// [`Operation::CHAT_OR_RESPONSES`], which callers cannot post to.
    ChatOrResponses,
    /// `POST /v1/embeddings`.
    Embeddings,
}

impl Operation {
    /// The path of [`Operation::ChatOrResponses`], for requests whose own path does not determine the format.
    pub const CHAT_OR_RESPONSES: &'static str = "/chat-or-responses";

    /// Returns the operation that is requested at this path.
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

    /// Returns the request's format; `None` if only the body determines it. Embeddings belong to the chat format.
    #[must_use]
    pub const fn format(self) -> Format {
        match self {
            Self::Chat | Self::ChatOrResponses | Self::Embeddings => Format::Chat,
            Self::Messages | Self::CountTokens => Format::Messages,
            Self::Responses => Format::Responses,
        }
    }
}
