//! Translates between a messages caller and a chat vendor: the request to the vendor, and its answer or stream back.
//!
//! Texts, numbers and schemas are copied as they are written. If the chat format cannot express a field, the request is
//! refused with 400, and the error names the field. Fields that are left out because they cannot change the answer are
//! listed in [translation-messages](https://github.com/tollgate-rs/tollgate/blob/main/docs/translation.md).
//!
//! The translation of a stream stores at most 4 MiB: see [`Events`].

#[cfg(test)]
mod answer_tests;
#[cfg(test)]
mod recorded;
#[cfg(test)]
mod request_tests;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod testing;

use bytes::Bytes;

pub use crate::formats::messages::thinking_asked;
use crate::{
    call::{Call, Format},
    error::Error,
    formats::{
        messages::Writer,
        origin::Origin,
        turn::{Translator, stream},
        wire::AnswerCx,
    },
};

/// Translates a chat answer to a messages answer. The state that the vendor needs back is added in capsules.
///
/// # Errors
/// [`Error::VendorBroken`] if the body is not a chat answer; [`Error::VendorUnavailable`] if it is an error.
pub fn answer(body: &[u8], origin: &Origin, cx: &AnswerCx) -> Result<Bytes, Error> {
    translator(origin.clone(), *cx, true).answer(body)
}

stream! {
    /// Translates each event of a chat stream as it arrives. `origin` has the vendor's name and the names of tools.
    ///
    /// Only three things are delayed. A block after an incomplete tool call, because the messages format never
    /// interleaves blocks; a tool call until its name arrives; and the stop reason until the usage, which arrives last.
    /// A stream stores at most 4 MiB, and at most 1 024 tool calls of a few hundred bytes each in addition to their ids
    /// and names; a stream that would need more fails. An ordinary stream stores a few hundred bytes.
    Events(origin: Origin, cx: AnswerCx) => translator(origin, cx, false)
}

fn translator(origin: Origin, cx: AnswerCx, plain: bool) -> Translator {
    let writer = Writer::new(origin, cx, plain);
    Translator::new(Format::Chat, cx.created, writer)
}

/// The estimated tokens that vendors add around each message and each tool.
const MESSAGE_TOKENS: u64 = 4;
const TOOL_TOKENS: u64 = 16;

/// Estimates the input tokens of a request, for `POST /v1/messages/count_tokens` if the model's vendor has no such
/// operation. Callers plan prompts with it; it is not used for charges.
#[must_use]
pub fn estimate_input_tokens(call: &Call) -> u64 {
    let input = &call.input;
    let text = call.text_milli().div_ceil(1000);
    let around = input.messages * MESSAGE_TOKENS + input.tools * TOOL_TOKENS;
    (text + around + input.usual_images).saturating_add(input.usual_documents)
}

#[cfg(test)]
#[cfg(feature = "parse")]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{call::Operation, parse};

    #[test]
    fn an_estimate_counts_text_and_the_tokens_around_messages() {
        const BODY: &str = r#"{"model":"m","max_tokens":1,"tools":[{"name":"f","input_schema":{}}],
            "messages":[{"role":"user","content":"Почему небо синее?"},{"role":"assistant","content":"Рассеяние."}]}"#;
        let body = Bytes::from_static(BODY.as_bytes());
        let mut call = parse::call(Operation::Messages, &body, 9).unwrap();
        let text = call.text_milli().div_ceil(1000);
        assert!((8..20).contains(&text), "{text}");
        call.input.add_image(5_000, 1_600);
        assert_eq!(estimate_input_tokens(&call), text + 8 + 16 + 1_600);
    }
}
