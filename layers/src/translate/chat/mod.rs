//! Translates between a chat caller and a messages vendor: the request there, the answer and its stream back.
//!
//! Pure: bytes in, bytes out. The page [translation-chat] lists what each field becomes. The surrounding layers do the
//! rest: a request that arrives here has been parsed, and an answer that arrives here has been metered and is not an
//! error.
//!
//! [translation-chat]: https://github.com/tollgate-rs/tollgate/blob/main/docs/translation-chat.md

pub(super) mod answer;
pub(super) mod marks;
pub(super) mod request;
pub(super) mod stream;
#[cfg(test)]
mod tests;
mod tools;
pub(super) mod turns;
pub(super) mod usage;

pub use self::{answer::answer, request::request, stream::Events};

/// Returns the `finish_reason` of the chat format.
///
/// An unknown stop reason becomes `stop`: the answer is complete. So does `tool_use` without a tool call, on which
/// agents would loop for ever.
fn finish_reason(stop_reason: &str, called: bool) -> &'static str {
    match stop_reason {
        "max_tokens" | "model_context_window_exceeded" => "length",
        "tool_use" if called => "tool_calls",
        "refusal" => "content_filter",
        // The others are `end_turn`, `stop_sequence` and `pause_turn`.
        _ => "stop",
    }
}
