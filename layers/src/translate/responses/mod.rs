//! Translates between the responses format and the two other formats. Either the caller uses the responses format and
//! the vendor chat or messages, or the caller uses chat or messages and the vendor the responses format.
//!
//! The functions only convert bytes. The page [translation-responses] lists the translation of each field.
//!
//! [translation-responses]: https://github.com/tollgate-rs/tollgate/blob/main/docs/translation.md
//!
//! Nothing is stored between calls: `parse` has already refused requests that refer to stored state. A vendor's signed
//! reasoning is sent through the caller in a capsule, and only back to the same vendor.

#[cfg(test)]
mod answer_tests;
#[cfg(test)]
mod request_tests;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tools_tests;
#[cfg(test)]
mod vendor_request_tests;
#[cfg(test)]
mod vendor_tests;

use bytes::Bytes;

#[cfg(test)]
use crate::formats::capsule;

pub use crate::formats::responses::requested::RequestEcho;
use crate::{
    call::Format,
    error::Error,
    formats::{
        chat, messages,
        origin::Origin,
        responses,
        turn::{Translator, stream},
        wire::AnswerCx,
    },
};

/// Translates a chat answer to a responses answer.
///
/// # Errors
/// [`Error::VendorBroken`] if the body is not a chat answer; [`Error::VendorUnavailable`] if it is an error.
pub fn chat_answer(body: &[u8], requested: RequestEcho) -> Result<Bytes, Error> {
    for_request(Format::Chat, requested, true).answer(body)
}

/// Translates a messages answer to a responses answer.
///
/// # Errors
/// [`Error::VendorBroken`] if the body is not an answer of the messages format.
pub fn messages_answer(body: &[u8], requested: RequestEcho) -> Result<Bytes, Error> {
    for_request(Format::Messages, requested, true).answer(body)
}

/// Translates a responses answer to a chat answer.
///
/// # Errors
/// [`Error::VendorBroken`] if the body is not a complete answer; [`Error::VendorUnavailable`] if it is an error.
pub fn into_chat(body: &[u8], origin: &Origin, cx: &AnswerCx) -> Result<Bytes, Error> {
    for_chat(origin.clone(), *cx, true).answer(body)
}

/// Translates a responses answer to a messages answer. Reasoning that only the vendor can read is sent to the caller in
/// a capsule.
///
/// # Errors
/// [`Error::VendorBroken`] if the body is not a complete answer; [`Error::VendorUnavailable`] if it is an error.
pub fn into_messages(body: &[u8], origin: &Origin, cx: &AnswerCx) -> Result<Bytes, Error> {
    for_messages(origin.clone(), *cx, true).answer(body)
}

stream! {
    /// Translates each event of a chat stream as it arrives. Several items may be open at once, so no item waits for
    /// another. Only two things are delayed: a tool call until its name arrives, and the input of a tool with free text
    /// until its arguments, which contain the text, are complete.
    ///
    /// The last events repeat the whole answer, so a stream stores it, at most 4 MiB. A stream that would need more
    /// fails.
    ChatEvents(requested: RequestEcho) => for_request(Format::Chat, requested, false)
}

stream! {
    /// Translates each event of a messages stream as it arrives, except for the end of a block: only the event after it
    /// shows whether the block was truncated.
    ///
    /// The last events repeat the whole answer, so a stream stores it, at most 4 MiB. A stream that would need more
    /// fails.
    MessagesEvents(requested: RequestEcho) => for_request(Format::Messages, requested, false)
}

stream! {
    /// Translates each event of a responses stream as it arrives. No event is delayed, and no text is stored. `origin`
    /// has the vendor's name and the names of tools.
    IntoChat(origin: Origin, cx: AnswerCx) => for_chat(origin, cx, false)
}

stream! {
    /// Translates each event of a responses stream as it arrives, unless items interleave: the messages format has one
    /// open block at a time, so an item waits until the item before it has ended. At most 4 MiB may wait. `origin` has
    /// the vendor's name and the names of tools.
    IntoMessages(origin: Origin, cx: AnswerCx) => for_messages(origin, cx, false)
}

fn for_request(vendor: Format, requested: RequestEcho, plain: bool) -> Translator {
    let created = requested.created;
    Translator::new(vendor, created, responses::Writer::new(requested, plain))
}

fn for_chat(origin: Origin, cx: AnswerCx, plain: bool) -> Translator {
    let writer = chat::Writer::new(origin, cx, plain);
    Translator::new(Format::Responses, cx.created, writer)
}

fn for_messages(origin: Origin, cx: AnswerCx, plain: bool) -> Translator {
    let writer = messages::Writer::new(origin, cx, plain);
    Translator::new(Format::Responses, cx.created, writer)
}
