//! What only the words of a vendor's refusal tell.

/// Whether a vendor speaks of the operator's key or account. Some refuse an account that is empty, blocked or at its limit,
/// or a wrong key, as they refuse a faulty request: the words alone tell. Only those that a text begins with: further on it
/// may repeat the caller's, who could have the key put aside so. And none that a field of the caller's may be named by.
#[cfg(any(feature = "passthrough", feature = "upstream"))]
pub(crate) fn is_about_operator(text: &str) -> bool {
    const BEGINNINGS: [&str; 5] = [
        "your credit balance is too low",
        "this organization has been disabled",
        "you have reached your specified api usage limits",
        "incorrect api key provided",
        "api key not valid",
    ];
    // Begins with the name of a field that the vendor does not know.
    const OF_A_FIELD: &str = ": extra inputs are not permitted";
    let text = text.trim_start().to_ascii_lowercase();
    !text.contains(OF_A_FIELD) && BEGINNINGS.iter().any(|words| text.starts_with(words))
}

/// Whether a request has more tokens than its model reads. Clients that are told so by [`TOO_LONG`] leave out what came
/// first, or sum it up, and ask again. Of vendors some have that code, the others words of their own.
#[cfg(any(feature = "passthrough", feature = "upstream"))]
pub(crate) fn is_too_long(code: &str, text: &str) -> bool {
    const WORDS: [&str; 22] = [
        "prompt is too long",
        "input is too long",
        "exceed context limit",
        "maximum context length",
        "maximum context limit",
        "maximum prompt length",
        "exceeds the context window",
        "context window exceeds limit",
        "contextwindowexceedederror",
        "longer than the maximum model length",
        "longer than the model's context length",
        "exceeds the maximum number of tokens",
        "exceeds the available context size",
        "exceeded model token limit",
        "input token length too long",
        "input tokens exceed the configured limit",
        "tokens in request more than max tokens allowed",
        "model only supports up to",
        "reduce the length of the messages",
        "prompt exceeds max length",
        "range of input length should be",
        "`inputs` tokens + `max_new_tokens` must be",
    ];
    code == TOO_LONG || {
        let text = text.to_ascii_lowercase();
        WORDS.iter().any(|words| text.contains(words))
    }
}

/// The code of such a refusal in the chat and the responses format.
pub(crate) const TOO_LONG: &str = "context_length_exceeded";

#[cfg(all(test, any(feature = "passthrough", feature = "upstream")))]
mod tests {
    use super::*;

    #[test]
    fn too_many_tokens_are_told_by_the_code_or_the_words() {
        for (code, text) in [
            (TOO_LONG, ""),
            ("", "prompt is too long: 201234 tokens > 200000 maximum"),
            (
                "",
                "input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000",
            ),
            (
                "400",
                "This model's maximum context length is 65536 tokens. However, you requested 70000 tokens.",
            ),
            (
                "",
                "The input token count (1050000) exceeds the maximum number of tokens allowed (1048576).",
            ),
            (
                "invalid-argument",
                "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
            ),
            (
                "400",
                "request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it",
            ),
            (
                "invalid_request_error",
                "Your request exceeded model token limit: 131072 (requested: 140000)",
            ),
            (
                "InvalidParameter",
                "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]",
            ),
            (
                "",
                "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 512 `max_new_tokens`",
            ),
        ] {
            assert!(is_too_long(code, text), "{code}: {text}");
        }
        for text in ["max_tokens: 99 > 64", "messages: too long", ""] {
            assert!(!is_too_long("invalid_value", text), "{text}");
        }
    }
}
