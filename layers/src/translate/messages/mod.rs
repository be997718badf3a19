//! Translates between a messages caller and a chat vendor: the request to the vendor, and its answer or stream back.
//!
//! Texts, numbers and schemas are copied as they are written. If the chat format cannot express a field, the request is
//! refused with 400, and the error names the field. Fields that are left out because they cannot change the answer are
//! listed in [translation-messages](https://github.com/tollgate-rs/tollgate/blob/main/docs/translation-messages.md).
//!
//! The translation of a stream stores at most 4 MiB: see [`Events`].

mod answer;
mod blocks;
pub(super) mod request;
mod stream;
pub(super) mod text;
pub(super) mod turns;
mod usage;

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod testing;

pub use self::{
    answer::answer,
    request::{request, thinking_asked},
    stream::Events,
};
pub(super) use self::{
    answer::{Answer as ChatAnswer, Kind, Said, Stop, model, stop, vendor_error},
    blocks::{Calls, put},
    stream::is_comment,
    usage::Tally,
};
use crate::call::Call;

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
