//! Further functions for callers of the Messages format: an estimate of the input tokens, and whether a request enables
//! thinking.

#[cfg(test)]
mod answer_tests;
#[cfg(test)]
mod recorded_tests;
#[cfg(test)]
mod request_tests;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod testing;

use crate::call::Call;
pub use crate::formats::messages::thinking_asked;

/// The estimated tokens that vendors add around each message and each tool.
const MESSAGE_TOKENS: u64 = 4;
const TOOL_TOKENS: u64 = 16;

/// Estimates the input tokens of a request. `POST /v1/messages/count_tokens` returns this estimate if the model's
/// vendor has no such operation. Callers use it to plan prompts; it is not used for charges.
#[must_use]
pub fn estimate_input_tokens(call: &Call) -> u64 {
    let input = &call.input;
    let text = call.text_milli().div_ceil(1000);
    let around = input.messages * MESSAGE_TOKENS + input.tools * TOOL_TOKENS;
    (text + around + input.usual_images).saturating_add(input.usual_documents)
}

#[cfg(feature = "parse")]
#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{call::Operation, parse};

    #[test]
    fn input_token_estimate_counts_text_images_and_the_overhead_of_messages() {
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
