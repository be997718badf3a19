//! A messages caller in front of a chat vendor: requests down, answers and events up.
//!
//! Texts, numbers and schemas go over as they were written; what is not understood is not changed.
//! What the chat format cannot say is a 400 that names the field. What is dropped, because it cannot
//! change the answer, is listed in `docs/translation-messages.md`.
//!
//! A stream keeps at most 4 MiB: see [`Events`].

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
    answer::{Answer as ChatAnswer, Kind, Said, Stop, model, stop, tool_id, vendor_error},
    blocks::{Calls, put},
    stream::is_comment,
    usage::Tally,
};
use crate::call::InputSize;

/// What formats add around each message and each tool, as far as one can say from outside.
const MESSAGE_TOKENS: u64 = 4;
const TOOL_TOKENS: u64 = 16;
/// An image of full size, by the messages format's own table.
const IMAGE_TOKENS: u64 = 1_600;
/// A page of a document as text and as an image: nobody counts its pages here.
const DOCUMENT_TOKENS: u64 = 3_000;
/// Bytes of text for one token, where no vendor counts.
const BYTES_PER_TOKEN: u64 = 4;

/// How many tokens a request has, for `POST /v1/messages/count_tokens` toward a vendor whose format
/// has no such operation. An estimate for planning a prompt; no money hangs on it.
#[must_use]
pub const fn estimate_input_tokens(input: &InputSize) -> u64 {
    input.text_bytes.div_ceil(BYTES_PER_TOKEN)
        + input.messages * MESSAGE_TOKENS
        + input.tools * TOOL_TOKENS
        + input.images * IMAGE_TOKENS
        + input.documents * DOCUMENT_TOKENS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_counts_text_and_what_is_around_it() {
        let input = InputSize {
            text_bytes: 401,
            messages: 2,
            tools: 1,
            images: 1,
            ..InputSize::default()
        };
        assert_eq!(estimate_input_tokens(&input), 101 + 8 + 16 + 1_600);
    }
}
