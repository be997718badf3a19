//! A model call on its way down the stack. The call's type states which checks it has passed.
//!
//! The types in order: [`Call`] (parsed) → [`Priced`] (model and prices found) → [`Attempt`] (route chosen) →
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

/// A request with its fields checked and its bytes unchanged since the client sent them.
#[derive(Clone, Debug)]
pub struct Call {
    /// The wire format of the request.
    pub format: Format,
    /// The kind of model that the request's path calls: chat or embeddings.
    pub kind: ModelKind,
    /// The whole body of the request, as the client sent it.
    pub body: Bytes,
    /// The name of the requested model in the catalog.
    pub model: String,
    /// Whether the client requested a streamed response.
    pub stream: bool,
    /// The client's limit of output tokens, if the request sets one.
    pub output_tokens: Option<u64>,
    /// The number of responses requested (`n` of the Chat Completions format).
    pub choices: u64,
    /// Whether the client requested a chunk with the usage (`stream_options.include_usage`). In the Messages format,
    /// responses always contain the usage.
    pub usage_asked: bool,
    /// The size of the request's input, by kind.
    pub input: InputSize,
    /// Samples of the texts in the request's input, from which their tokens can be estimated.
    pub texts: TextSample,
    /// The parts of the request that are billed separately; `None` if there are none, as in most requests.
    pub asks: Option<Box<Asks>>,
    /// Byte ranges of the body's fields that layers below may have to change.
    pub spans: Spans,
    /// The id of the client's session, if the client sent one; shown on receipts.
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

    /// Returns the estimated tokens of all texts in the input, in thousandths of a token.
    #[must_use]
    pub fn text_milli(&self) -> u64 {
        self.input
            .unsampled_milli
            .saturating_add(self.texts.milli())
    }
}

/// The size of a request's input, by kind of content. Texts count in UTF-8 bytes, after JSON escapes are decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputSize {
    /// The bytes of all texts: contents, instructions, tools and names.
    pub text_bytes: u64,
    /// The number of messages in the conversation.
    pub messages: u64,
    /// The number of tools in the request.
    pub tools: u64,
    /// The number of images, inline or by URL. An image requested at its original size counts twice.
    pub images: u64,
    /// The largest possible cost of all images, in shares: a full-size image costs [`IMAGE_SHARES`].
    pub image_shares: u64,
    /// The number of documents other than plain text, inline or by URL.
    pub documents: u64,
    /// The number of documents whose size is unknown. The hold assumes that they fill the model's context window.
    pub documents_unseen: u64,
    /// The largest possible number of tokens in the documents of known size, computed from their pages and bytes.
    pub document_tokens: u64,
    /// The tokens by which single documents exceed [`DOCUMENT_TOKENS`], summed over all documents.
    pub document_tokens_beyond: u64,
    /// Estimated tokens of the texts that are not sampled in `Call::texts`, in thousandths of a token.
    pub unsampled_milli: u64,
    /// The estimated tokens of the images. A hold may cover this estimate instead of the maximum.
    pub usual_images: u64,
    /// The estimated tokens of the documents. A hold may cover this estimate instead of the maximum.
    pub usual_documents: u64,
    /// The number of inputs in an embeddings call, which returns one vector per input. 0 for chats.
    pub inputs: u64,
    /// The number of input tokens that the client sent as token ids.
    pub tokens: u64,
}

/// The cost of a full-size image, in shares. A smaller image costs fewer shares.
pub const IMAGE_SHARES: u64 = 5_000;
/// Tokens that are held for a document of up to six pages, unless the configuration sets another number.
pub const DOCUMENT_TOKENS: u64 = 50_000;

impl InputSize {
    /// Adds a text of `bytes` bytes without a sample. Its tokens are estimated as one per four bytes.
    pub const fn add_unsampled(&mut self, bytes: u64) {
        self.text_bytes += bytes;
        let milli = bytes.saturating_mul(250);
        self.unsampled_milli = self.unsampled_milli.saturating_add(milli);
    }

    /// Adds an image: its largest possible cost in `shares`, and its estimated number of tokens, `usual`.
    pub fn add_image(&mut self, shares: u64, usual: u64) {
        self.images += 1;
        self.image_shares += shares;
        self.usual_images += usual;
    }

    /// Adds a document that has at most `tokens` tokens, and probably `usual` tokens.
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

/// The parts of a call that are billed separately. For each part, the path of the request's field that requests it is
/// stored for error messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asks {
    extras: Extras,
    /// For each kind of part that may have no price, the path of the first field that requests it.
    fields: Vec<(Unpriced, Box<str>)>,
    /// The path of the first field that requests something for which no model has a price.
    unknown: Option<Box<str>>,
    /// The path of the first field that contains sound of unknown length.
    unmeasured: Option<Box<str>>,
    /// The path of the first field that contains a document of unknown size.
    unseen: Option<Box<str>>,
}

/// A part of a request that is billed separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A rate class, for example a longer cache lifetime. For tool calls and sound, the second field is the maximum
    /// quantity.
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
    /// The maximum number of tool calls if the request does not limit them.
    pub const WITHOUT_END: u64 = u64::MAX;
}

impl Asks {
    /// Adds the part `ask`. `field` returns the path of the field that requests it; it is called only if the path is
    /// needed.
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
            Ask::UnknownLifetime => return keep_first(&mut self.unknown, field),
            Ask::UnmeasuredSound => return keep_first(&mut self.unmeasured, field),
            Ask::UnseenDocument => return keep_first(&mut self.unseen, field),
        };
        if self.field(kind).is_none() {
            self.fields.push((kind, field().into()));
        }
    }

    /// Returns all requested parts, in the form that the price list expects.
    #[must_use]
    pub const fn extras(&self) -> &Extras {
        &self.extras
    }

    /// Returns the path of the first field that requests this kind of part.
    #[must_use]
    pub fn field(&self, kind: Unpriced) -> Option<&str> {
        let mut fields = self.fields.iter();
        fields.find(|it| it.0 == kind).map(|(_, field)| &**field)
    }

    /// Returns the path of the first field that requests something for which no model has a price.
    #[must_use]
    pub fn unknown(&self) -> Option<&str> {
        self.unknown.as_deref()
    }

    /// Returns the rate class of the response's sound or images, if the request allows the model to generate them.
    #[must_use]
    pub fn output_class(&self) -> Option<Class> {
        [Class::OutputAudio, Class::OutputImage]
            .into_iter()
            .find(|class| self.extras.classes.get(*class) > 0)
    }

    /// Returns the path of the first field that contains sound of unknown length.
    #[must_use]
    pub fn unmeasured(&self) -> Option<&str> {
        self.unmeasured.as_deref()
    }

    /// Returns the path of the first field that contains a document of unknown size.
    #[must_use]
    pub fn unseen(&self) -> Option<&str> {
        self.unseen.as_deref()
    }

    /// Returns the path of the first field that requests sound, or images that the model generates. Only the Chat
    /// Completions format can express such a request.
    #[must_use]
    pub fn of_chat_alone(&self) -> Option<&str> {
        [Class::InputAudio, Class::OutputAudio, Class::OutputImage]
            .into_iter()
            .find_map(|class| self.field(Unpriced::Class(class)))
    }

    /// Returns a copy without the requested cache lifetimes, for a call that is translated: translation removes the
    /// cache marks.
    #[must_use]
    pub fn without_cache(&self) -> Self {
        let mut asks = self.clone();
        asks.unknown = None;
        for class in [Class::CacheWrite1h, Class::CacheWrite12h] {
            *asks.extras.classes.get_mut(class) = 0;
        }
        asks
    }

    /// Returns the longest cache lifetime that the request names; `None` if it requests only the vendor's default
    /// lifetime.
    #[must_use]
    pub fn cache_write(&self) -> Option<Class> {
        [Class::CacheWrite12h, Class::CacheWrite1h]
            .into_iter()
            .find(|class| self.extras.classes.get(*class) > 0)
    }
}

/// Stores the name of the field, unless an earlier field is stored.
fn keep_first(place: &mut Option<Box<str>>, field: impl FnOnce() -> String) {
    place.get_or_insert_with(|| field().into());
}

/// Byte ranges of fields in [`Call::body`]. Layers below change or remove these fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// The position after the body's opening brace, where a field can be inserted.
    pub start: usize,
    /// The range of the value of `model`.
    pub model: Range<usize>,
    /// The range of the value of `stream_options`, if present.
    pub stream_options: Option<Range<usize>>,
    /// The range of the value of `stream_options.include_usage`, if present.
    pub include_usage: Option<Range<usize>>,
    /// The range of the value of `max_tokens`, or of `max_output_tokens` in the Responses format, if present. In the
    /// Chat Completions and Responses formats the value may be null.
    pub max_tokens: Option<Range<usize>>,
    /// The range of the value of `max_completion_tokens` in the Chat Completions format, if present; the value may be
    /// null.
    pub max_completion_tokens: Option<Range<usize>>,
    /// Ranges of fields that only the Responses format has.
    pub responses: Option<Box<ResponsesSpans>>,
    /// Messages format: whether a turn of the conversation contains thinking. The thinking may be a capsule of this
    /// gateway, which contains the signature of a vendor of another format.
    pub has_thinking: bool,
    /// The ranges of the conversation's turns.
    pub turns: Turns,
}

/// Byte ranges of the turns of a conversation. From these ranges the gateway recognizes that a call continues an
/// earlier conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// The range of the array of turns in [`Call::body`].
    pub all: Range<usize>,
    /// The turns, in order. Empty if the body is short, or if the vendor may leave turns out.
    pub each: Vec<Turn>,
}

/// One turn of a conversation: where it is in the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The range of the turn in [`Call::body`].
    pub span: Range<usize>,
    /// The number of text bytes from the beginning of the body to the end of this turn, as [`InputSize::text_bytes`]
    /// counts them.
    pub text_bytes: u64,
}

/// Byte ranges in [`Call::body`] of fields that exist only in the Responses format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponsesSpans {
    /// The range of the value of `store`, if present. The value is false or null.
    pub store: Option<Range<usize>>,
    /// The range of the value of `include`, if present. The value is an array or null.
    pub include: Option<Range<usize>>,
    /// Whether `include` requests encrypted reasoning.
    pub encrypted_reasoning_asked: bool,
    /// Ranges that the gateway cuts out, in order, before it sends the request to a Responses vendor. Each range
    /// includes one comma, so that the remaining text is valid JSON.
    pub cut: Vec<Range<usize>>,
    /// How many of the ranges in `cut` are web search tools that the vendor would run and that the request offers to
    /// the model without requiring their use.
    pub tools_cut: u64,
}

/// A call with its model and the prices at which it is charged. Both stay the same until the call ends.
#[derive(Clone, Debug)]
pub struct Priced {
    /// The parsed request of the call.
    pub call: Arc<Call>,
    /// The call's model, as it was in the catalog when the call began.
    pub model: Arc<Model>,
    /// The model's prices. Some depend on conditions, so the price that applies is chosen when the call is charged.
    pub prices: PriceList,
    /// The limit of output tokens per choice that the hold covers.
    pub output_tokens: u64,
    /// The call's meter, to which the layers below write the usage.
    pub meter: Meter,
}

/// One attempt of a call on one of its routes.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The call to which the attempt belongs, with its prices.
    pub priced: Priced,
    /// The route that the attempt takes.
    pub route: Arc<Route>,
    /// The index of the credential that the attempt uses, in the vendor's list of credentials.
    pub credential: usize,
}

/// A request in the vendor's format, ready to be sent.
#[derive(Clone, Debug)]
pub struct Outbound {
    /// The route on which the request is sent: a vendor, and the vendor's name for the model.
    pub route: Arc<Route>,
    /// The index of the credential with which the request is sent, in the vendor's list of credentials.
    pub credential: usize,
    /// The complete request body in the vendor's format.
    pub body: Segments,
    /// Whether the vendor's response is a stream.
    pub stream: bool,
    /// The number of choices that the request wants (`n` of the Chat Completions format).
    pub choices: u64,
    /// The kind of model that is called: chat or embeddings.
    pub kind: ModelKind,
    /// Whether the gateway requested the usage chunk of the Chat Completions format although the caller did not. If so,
    /// the chunk is removed from the response.
    pub strip_usage: bool,
    /// The call's meter, to which the layers below write the usage.
    pub meter: Meter,
}

/// The operation that a request performs with a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// A chat, requested by `POST /v1/chat/completions`.
    Chat,
    /// A call of the Messages format, requested by `POST /v1/messages`.
    Messages,
    /// A count of input tokens, requested by `POST /v1/messages/count_tokens`.
    CountTokens,
    /// A call of the Responses format, requested by `POST /v1/responses`.
    Responses,
    /// A chat or a Responses call, which the body decides: a chat has `messages`, a Responses call has `input`. Callers
    /// cannot post to the operation's path, [`Operation::CHAT_OR_RESPONSES`].
    ChatOrResponses,
    /// A call for embeddings, requested by `POST /v1/embeddings`.
    Embeddings,
}

impl Operation {
    /// The internal path of [`Operation::ChatOrResponses`], for requests whose own path does not determine the format.
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

    /// Returns the request's format. Embeddings belong to the Chat Completions format.
    #[must_use]
    pub const fn format(self) -> Format {
        match self {
            Self::Chat | Self::ChatOrResponses | Self::Embeddings => Format::Chat,
            Self::Messages | Self::CountTokens => Format::Messages,
            Self::Responses => Format::Responses,
        }
    }
}
