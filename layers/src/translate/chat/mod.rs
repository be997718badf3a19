//! Translates between a chat caller and a messages vendor: the request to the vendor, and its answer or stream back.
//!
//! The functions only convert bytes. The page [translation-chat] lists the translation of each field. Other layers do
//! the rest: a request was parsed before it is translated, and an answer was metered and is not an error.
//!
//! [translation-chat]: https://github.com/tollgate-rs/tollgate/blob/main/docs/translation.md

#[cfg(test)]
mod answer_tests;
#[cfg(test)]
mod request_tests;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod tests;

use bytes::Bytes;

use crate::{
    call::Format,
    error::Error,
    formats::{
        chat::Writer,
        origin::Origin,
        turn::{Translator, stream},
        wire::AnswerCx,
    },
};

/// Translates a messages answer to a chat answer.
///
/// # Errors
/// [`Error::VendorBroken`]: the body is not an answer of the messages format.
pub fn answer(body: &[u8], cx: &AnswerCx) -> Result<Bytes, Error> {
    translator(*cx, true).answer(body)
}

stream! {
    /// Translates messages events to chat chunks.
    ///
    /// A stream stores the beginning of its chunks, with the vendor's id of the answer and the model's name (at most 512
    /// bytes each), and counts: less than 1.5 KiB. Text and arguments are not stored.
    Events(cx: AnswerCx) => translator(cx, false)
}

fn translator(cx: AnswerCx, plain: bool) -> Translator {
    let writer = Writer::new(Origin::default(), cx, plain);
    Translator::new(Format::Messages, cx.created, writer)
}
