//! A chat caller in front of a messages vendor: the request there, the answer and its stream back.
//!
//! Pure: bytes in, bytes out. What each field becomes stands in `docs/translation-chat.md`. The
//! layers around see to the rest: what is checked here has been parsed, and an answer that comes here has
//! been metered and is no error.

pub(super) mod answer;
pub(super) mod request;
pub(super) mod stream;
#[cfg(test)]
mod tests;
mod tools;
pub(super) mod turns;
pub(super) mod usage;

pub use self::{answer::answer, request::request, stream::Events};

/// The chat format's word for why an answer ended.
///
/// A reason that is not known yet is an end like any other: the answer is whole. So is a tool's use where no tool was
/// called: agents would go on with nothing, for ever.
fn finish_reason(stop_reason: &str, called: bool) -> &'static str {
    match stop_reason {
        "max_tokens" | "model_context_window_exceeded" => "length",
        "tool_use" if called => "tool_calls",
        "refusal" => "content_filter",
        // end_turn, stop_sequence, pause_turn
        _ => "stop",
    }
}
