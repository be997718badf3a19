//! Translates between a chat caller and a messages vendor: the request to the vendor, and its answer or stream back.
//!
//! The functions only convert bytes. The page [translation-chat] lists the translation of each field. Other layers do
//! the rest: a request was parsed before it is translated, and an answer was metered and is not an error.
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

/// Returns the chat format's `finish_reason` for this stop reason.
///
/// An unknown stop reason becomes `stop`, because the answer is complete. So does `tool_use` without a tool call,
/// because it would make agents wait for ever for a call.
fn finish_reason(stop_reason: &str, called: bool) -> &'static str {
    match stop_reason {
        "max_tokens" | "model_context_window_exceeded" => "length",
        "tool_use" if called => "tool_calls",
        "refusal" => "content_filter",
        // `end_turn`, `stop_sequence`, `pause_turn`, and unknown reasons.
        _ => "stop",
    }
}
