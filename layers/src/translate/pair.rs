use std::time::SystemTime;

use bytes::{Bytes, BytesMut};

use super::{
    chat, messages,
    origin::Origin,
    responses::{self, Asked},
    wire::{AnswerCx, RequestCx},
};
use crate::{
    call::{Attempt, Format},
    error::Error,
    facts::RequestNumber,
    sse::{Event, sign_of_life},
    stream_progress::StreamProgress,
};

/// The format of the caller and the format of the vendor, if they differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pair {
    ChatToMessages,
    ChatToResponses,
    MessagesToChat,
    MessagesToResponses,
    ResponsesToChat,
    ResponsesToMessages,
}

impl Pair {
    /// Returns the translation that an attempt needs; `None` if caller and vendor use the same format.
    pub(super) fn of(attempt: &Attempt) -> Option<Self> {
        match (attempt.priced.call.format, attempt.route.vendor.format) {
            (Format::Chat, Format::Chat)
            | (Format::Messages, Format::Messages)
            | (Format::Responses, Format::Responses) => None,
            (Format::Chat, Format::Messages) => Some(Self::ChatToMessages),
            (Format::Chat, Format::Responses) => Some(Self::ChatToResponses),
            (Format::Messages, Format::Chat) => Some(Self::MessagesToChat),
            (Format::Messages, Format::Responses) => Some(Self::MessagesToResponses),
            (Format::Responses, Format::Chat) => Some(Self::ResponsesToChat),
            (Format::Responses, Format::Messages) => Some(Self::ResponsesToMessages),
        }
    }

    /// Translates the body of the request to the vendor's format.
    pub(super) fn request(
        self,
        body: &Bytes,
        vendor: &str,
        cx: &RequestCx<'_>,
    ) -> Result<Bytes, Error> {
        match self {
            Self::ChatToMessages => chat::request(body, cx),
            Self::ChatToResponses => responses::of_chat(body, cx),
            Self::MessagesToChat => messages::request(body, vendor, cx),
            Self::MessagesToResponses => responses::of_messages(body, vendor, cx),
            Self::ResponsesToChat => responses::to_chat(body, vendor, cx),
            Self::ResponsesToMessages => responses::to_messages(body, vendor, cx),
        }
    }
}

/// The translation of an answer, with the data that it needs.
#[derive(Clone, Debug)]
pub(super) enum Answering {
    ChatToMessages(AnswerCx),
    ChatToResponses(AnswerCx, Origin),
    MessagesToChat(AnswerCx, Origin),
    MessagesToResponses(AnswerCx, Origin),
    ResponsesToChat(Box<Asked>),
    ResponsesToMessages(Box<Asked>),
}

impl Answering {
    /// Returns the translation of the answer to this attempt; `None` if caller and vendor use the same format.
    ///
    /// # Errors
    /// Those of translating the request.
    pub(super) fn of(
        attempt: &Attempt,
        number: Option<RequestNumber>,
    ) -> Result<Option<Self>, Error> {
        let Some(pair) = Pair::of(attempt) else {
            return Ok(None);
        };
        let (call, vendor) = (&attempt.priced.call, &attempt.route.vendor.name);
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let cx = AnswerCx {
            created: now.as_secs(),
            usage_asked: call.usage_asked,
            thinking_asked: call.format == Format::Messages && messages::thinking_asked(&call.body),
        };
        let origin = || Origin::new(vendor, &call.body);
        let asked = || {
            let number = number.unwrap_or_else(RequestNumber::now_v7);
            let asked = Asked::read(&call.body, number.uuid().simple(), cx.created, vendor)?;
            Ok::<_, Error>(Box::new(asked))
        };
        Ok(Some(match pair {
            Pair::ChatToMessages => Self::ChatToMessages(cx),
            Pair::ChatToResponses => Self::ChatToResponses(cx, origin()),
            Pair::MessagesToChat => Self::MessagesToChat(cx, origin()),
            Pair::MessagesToResponses => Self::MessagesToResponses(cx, origin()),
            Pair::ResponsesToChat => Self::ResponsesToChat(asked()?),
            Pair::ResponsesToMessages => Self::ResponsesToMessages(asked()?),
        }))
    }

    /// Returns the format of the caller.
    pub(super) const fn caller(&self) -> Format {
        match self {
            Self::ChatToMessages(_) | Self::ChatToResponses(..) => Format::Chat,
            Self::MessagesToChat(..) | Self::MessagesToResponses(..) => Format::Messages,
            Self::ResponsesToChat(_) | Self::ResponsesToMessages(_) => Format::Responses,
        }
    }

    /// Translates a plain answer to the caller's format.
    pub(super) fn whole(self, body: &Bytes) -> Result<Bytes, Error> {
        match self {
            Self::ChatToMessages(cx) => chat::answer(body, &cx),
            Self::ChatToResponses(cx, origin) => responses::into_chat(body, &origin, &cx),
            Self::MessagesToChat(cx, origin) => messages::answer(body, &origin, &cx),
            Self::MessagesToResponses(cx, origin) => responses::into_messages(body, &origin, &cx),
            Self::ResponsesToChat(asked) => responses::chat_answer(body, *asked),
            Self::ResponsesToMessages(asked) => responses::messages_answer(body, *asked),
        }
    }

    /// Returns the translator of the stream's events and, if the caller uses the responses format, the position of the
    /// stream.
    pub(super) fn events(self) -> (Translator, Option<StreamProgress>) {
        match self {
            Self::ChatToMessages(cx) => (Translator::ChatToMessages(chat::Events::new(cx)), None),
            Self::ChatToResponses(cx, origin) => {
                let events = responses::IntoChat::new(origin, cx);
                (Translator::ChatToResponses(events), None)
            }
            Self::MessagesToChat(cx, origin) => {
                let events = messages::Events::new(origin, cx);
                (Translator::MessagesToChat(events), None)
            }
            Self::MessagesToResponses(cx, origin) => {
                let events = responses::IntoMessages::new(origin, cx);
                (Translator::MessagesToResponses(events), None)
            }
            Self::ResponsesToChat(asked) => {
                let events = responses::ChatEvents::new(*asked);
                let progress = events.progress();
                (Translator::ResponsesToChat(events), Some(progress))
            }
            Self::ResponsesToMessages(asked) => {
                let events = responses::MessagesEvents::new(*asked);
                let progress = events.progress();
                (Translator::ResponsesToMessages(events), Some(progress))
            }
        }
    }
}

/// Translates the events of a vendor's stream to the caller's format.
#[derive(Debug)]
pub(super) enum Translator {
    ChatToMessages(chat::Events),
    ChatToResponses(responses::IntoChat),
    MessagesToChat(messages::Events),
    MessagesToResponses(responses::IntoMessages),
    ResponsesToChat(responses::ChatEvents),
    ResponsesToMessages(responses::MessagesEvents),
}

impl Translator {
    pub(super) fn event(&mut self, event: &Event, out: &mut BytesMut) -> Result<(), Error> {
        match self {
            Self::ChatToMessages(events) => events.event(event, out),
            Self::ChatToResponses(events) => events.event(event, out),
            Self::MessagesToChat(events) => events.event(event, out),
            Self::MessagesToResponses(events) => events.event(event, out),
            Self::ResponsesToChat(events) => events.event(event, out),
            Self::ResponsesToMessages(events) => events.event(event, out),
        }
    }

    pub(super) fn end(&mut self, out: &mut BytesMut) -> Result<(), Error> {
        match self {
            Self::ChatToMessages(events) => events.end(out),
            Self::ChatToResponses(events) => events.end(out),
            Self::MessagesToChat(events) => events.end(out),
            Self::MessagesToResponses(events) => events.end(out),
            Self::ResponsesToChat(events) => events.end(out),
            Self::ResponsesToMessages(events) => events.end(out),
        }
    }
    /// Writes a keep-alive in the caller's format.
    pub(super) fn alive(&mut self, out: &mut BytesMut) -> Result<(), Error> {
        let vendor = match self {
            Self::MessagesToChat(_) | Self::ResponsesToChat(_) => Format::Chat,
            Self::ChatToMessages(_) | Self::ResponsesToMessages(_) => Format::Messages,
            Self::ChatToResponses(_) | Self::MessagesToResponses(_) => Format::Responses,
        };
        self.event(&Event::of(sign_of_life(vendor)), out)
    }
}
