//! Parses the body of a vendor's refusal: the code, the message, and reasons that only the message states.

use serde_json::Value;

use crate::error::TOO_LONG;

/// The maximum number of characters that are kept of a vendor's message.
const TEXT_CHARS_MAX: usize = 1000;
/// The maximum nesting of objects, arrays and JSON in strings in which a message is searched.
const DEPTH_MAX: usize = 8;
/// The maximum number of messages that are kept from a list of faults.
const FAULTS_MAX: usize = 8;

/// The codes and the message of a vendor's refusal. Vendors send them in different forms.
#[derive(Debug, Default)]
pub(crate) struct Words {
    /// The codes of the objects that contain the message, outermost first. An object without a code is represented by
    /// its type.
    codes: Vec<String>,
    /// The vendor's message; empty if the refusal has none.
    text: String,
}

impl Words {
    /// Reads the body of a refusal, in JSON or plain text. An HTML page is ignored, because it is not meant for
    /// callers.
    pub(crate) fn read(body: &[u8]) -> Self {
        let mut words = Self::default();
        let found = match serde_json::from_slice::<Value>(body) {
            Ok(json) => words.find(&json, 0),
            Err(_) => std::str::from_utf8(body).ok().and_then(plain),
        };
        words.text = found.unwrap_or_default();
        words
    }

    /// Returns the outermost code of the refusal; empty if it has none.
    #[cfg(any(feature = "passthrough", test))]
    pub(crate) fn code(&self) -> &str {
        self.codes.first().map_or("", String::as_str)
    }

    /// Returns the message of the refusal; empty if it has none.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether the refusal means that the request exceeds the model's context window.
    pub(crate) fn is_too_long(&self) -> bool {
        self.codes.iter().any(|code| is_too_long(code, "")) || is_too_long("", &self.text)
    }

    /// Returns whether the refusal is about the operator's key or account.
    pub(crate) fn is_about_operator(&self) -> bool {
        is_about_operator(&self.text)
    }

    /// Returns whether the vendor objects to the request's content, and not to the operator's key or account.
    pub(crate) fn is_flagged(&self) -> bool {
        self.codes.iter().any(|code| is_flagged_code(code)) || is_flagged(&self.text)
    }

    /// Finds the first message in `json`, and collects the codes of the objects that contain it.
    fn find(&mut self, json: &Value, depth: usize) -> Option<String> {
        if depth > DEPTH_MAX {
            return None;
        }
        match json {
            Value::String(text) => self.of_string(text, depth),
            Value::Array(items) => {
                let faults = items.iter().filter_map(|item| self.find(item, depth + 1));
                let faults: Vec<String> = faults.take(FAULTS_MAX).collect();
                (!faults.is_empty()).then(|| cut(&faults.join("; ")))
            }
            Value::Object(fields) => {
                let code = [fields.get("code"), fields.get("type")];
                self.codes.extend(code.into_iter().flatten().find_map(word));
                // A reseller puts the message of its own vendor here. In that case, the reseller's own message is only
                // generic.
                let raw = fields.get("metadata").and_then(|more| more.get("raw"));
                let error = fields.get("error");
                let places = [
                    raw,
                    error.filter(|error| !error.is_string()),
                    fields.get("message"),
                    fields.get("detail"),
                    fields.get("errors"),
                    error,
                ];
                let mut places = places.into_iter().flatten();
                places
                    .find_map(|place| self.find(place, depth + 1))
                    .or_else(|| fault(json))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => None,
        }
    }

    /// Returns the message in a string. The string may itself contain JSON.
    fn of_string(&mut self, text: &str, depth: usize) -> Option<String> {
        let text = text.trim();
        let quoted = text
            .starts_with(['{', '['])
            .then(|| serde_json::from_str(text));
        if let Some(Ok(json)) = quoted
            && let Some(words) = self.find(&json, depth + 1)
        {
            return Some(words);
        }
        (!text.is_empty()).then(|| cut(text))
    }
}

/// Returns the message of a plain-text body.
fn plain(body: &str) -> Option<String> {
    let text = body.trim();
    let is_words = !text.is_empty() && !text.starts_with(['<', '{', '[']);
    is_words.then(|| cut(text))
}

/// Returns the message of one element of a list of faults: the faulty field, and what is wrong with it.
fn fault(json: &Value) -> Option<String> {
    let wrong = json.get("msg")?.as_str()?.trim();
    let path = json.get("loc").and_then(Value::as_array);
    let path = path.into_iter().flatten().filter_map(word);
    let path: Vec<String> = path.skip_while(|step| step == "body").collect();
    (!wrong.is_empty()).then(|| match path.is_empty() {
        true => cut(wrong),
        false => cut(&format!("{}: {wrong}", path.join("."))),
    })
}

/// Reads a string or a number as text.
fn word(json: &Value) -> Option<String> {
    match json {
        Value::String(text) if !text.is_empty() => Some(cut(text)),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn cut(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

fn is_flagged_code(code: &str) -> bool {
    const CODES: [&str; 9] = [
        "content_policy_violation",
        "image_content_policy_violation",
        "content_filter",
        "content_filtered",
        "content_moderation",
        "moderation_blocked",
        "data_inspection_failed",
        "datainspectionfailed",
        "responsibleaipolicyviolation",
    ];
    CODES.iter().any(|known| code.eq_ignore_ascii_case(known))
}

/// Returns whether the message is about the request's content. Some vendors refuse content with the status of a refused
/// key. The phrase that comes first in the message decides, because after a phrase about the input, some messages also
/// mention the operator's key or account.
fn is_flagged(text: &str) -> bool {
    const INPUT: [&str; 10] = [
        "flagged",
        "moderation",
        "content policy",
        "content management policy",
        "content filter",
        "content violates",
        "usage guidelines",
        "usage policies",
        "inappropriate content",
        "safety system",
    ];
    const OPERATOR: [&str; 12] = [
        "account",
        "organization",
        "organisation",
        "api key",
        "api-key",
        "subscription",
        "credit",
        "billing",
        "project",
        "your access",
        "permission",
        "you have been",
    ];
    let text = text.to_ascii_lowercase();
    let first = |words: &[&str]| words.iter().filter_map(|words| text.find(words)).min();
    match (first(&INPUT), first(&OPERATOR)) {
        (Some(input), Some(operator)) => input < operator,
        (input, _) => input.is_some(),
    }
}

/// Returns whether the refusal is about the operator's key or account. If the account is empty, blocked or limited, or
/// the key is wrong, some vendors answer with the status of a faulty request, so the message decides. Only the
/// message's beginning is examined: its end may quote the caller, who could otherwise cause the operator's key to be
/// disabled. Phrases that could be the name of a caller's field do not count.
fn is_about_operator(text: &str) -> bool {
    const BEGINNINGS: [&str; 5] = [
        "your credit balance is too low",
        "this organization has been disabled",
        "you have reached your specified api usage limits",
        "incorrect api key provided",
        "api key not valid",
    ];
    // The words before this phrase are the name of a field that the vendor does not know.
    const OF_A_FIELD: &str = ": extra inputs are not permitted";
    let text = text.trim_start().to_ascii_lowercase();
    !text.contains(OF_A_FIELD) && BEGINNINGS.iter().any(|words| text.starts_with(words))
}

/// Returns whether the vendor refused a request because it exceeds the model's context window. Some vendors send the
/// code [`TOO_LONG`], on which clients drop or summarise the beginning of the conversation and retry. Others only send
/// a message.
fn is_too_long(code: &str, text: &str) -> bool {
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
    code == TOO_LONG || code == "exceed_context_size_error" || {
        let text = text.to_ascii_lowercase();
        WORDS.iter().any(|words| text.contains(words))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn request_with_too_many_tokens_is_recognised_by_the_vendors_code_or_message() {
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

    #[test]
    fn refusal_message_is_found_in_every_vendors_shape() {
        const LONG: &str = "prompt is too long: 9 tokens > 8 maximum";
        let raw = json!({"error": {"message": LONG}}).to_string();
        for (body, code, text) in [
            (
                json!({"error": {"message": "bad", "code": "c", "type": "t"}}),
                "c",
                "bad",
            ),
            (
                json!({"type": "error", "error": {"type": "t", "message": "bad"}}),
                "error",
                "bad",
            ),
            (json!({"error": "bad"}), "", "bad"),
            (
                json!({"error": {"message": " \n"}, "message": "bad"}),
                "",
                "bad",
            ),
            (
                json!([{"error": {"code": 400, "message": "bad"}}]),
                "400",
                "bad",
            ),
            // `error` is only the name of the status, and `message` is the vendor's message.
            (
                json!({"statusCode": 400, "error": "Bad Request", "message": "bad"}),
                "",
                "bad",
            ),
            (
                json!({"code": "InvalidParameter", "message": "bad"}),
                "InvalidParameter",
                "bad",
            ),
            (json!({"detail": "bad"}), "", "bad"),
            (json!({"detail": [{"msg": "bad"}]}), "", "bad"),
            (
                json!({"detail": [{"loc": ["body", "messages", 0], "msg": "bad"}, {"loc": ["body"], "msg": "worse"}]}),
                "",
                "messages.0: bad; worse",
            ),
            (
                json!({"object": "error", "type": "invalid_request_error", "message": {"detail": [
                    {"type": "extra_forbidden", "loc": ["body", "n"], "msg": "Extra inputs are not permitted"},
                ]}}),
                "invalid_request_error",
                "n: Extra inputs are not permitted",
            ),
            (
                json!({"success": false, "errors": [{"code": 7003, "message": "bad"}]}),
                "7003",
                "bad",
            ),
            (
                json!({"error": {"code": 400, "message": "Provider returned error", "metadata": {"raw": raw}}}),
                "400",
                LONG,
            ),
            (
                json!({"error": {"code": 400, "message": "Provider returned error", "metadata": {"raw": LONG}}}),
                "400",
                LONG,
            ),
            (json!({"error": {"message": raw}}), "", LONG),
            (json!("bad"), "", "bad"),
            (json!({"error": {"message": "{no JSON"}}), "", "{no JSON"),
        ] {
            let words = Words::read(body.to_string().as_bytes());
            assert_eq!((words.code(), words.text()), (code, text), "{body}");
            assert_eq!(words.is_too_long(), text == LONG, "{body}");
        }
        for (body, text) in [
            ("Request too large\n", "Request too large"),
            ("<html>bad gateway</html>", ""),
            ("", ""),
            ("{\"error\":", ""),
        ] {
            assert_eq!(Words::read(body.as_bytes()).text(), text, "{body}");
        }
        let deep = format!("{}\"bad\"{}", "[".repeat(100), "]".repeat(100));
        assert_eq!(Words::read(deep.as_bytes()).text(), "");
        let long = json!({"detail": "x".repeat(5000)}).to_string();
        assert_eq!(Words::read(long.as_bytes()).text().len(), TEXT_CHARS_MAX);
    }

    #[test]
    fn flagged_input_is_distinguished_from_a_refused_account() {
        for (code, text, flagged) in [
            ("403", "the input was flagged by moderation", true),
            (
                "403",
                "Content violates usage guidelines. Team: t, API key ID: k, Failed check: SAFETY_CHECK_TYPE_BIO",
                true,
            ),
            ("content_policy_violation", "no", true),
            ("DataInspectionFailed", "no", true),
            (
                "403",
                "Your account was flagged for violating our usage policies",
                false,
            ),
            ("403", "You do not have permission to use this model", false),
            (
                "403",
                "This API key may not call the moderation endpoint",
                false,
            ),
            ("403", "Forbidden", false),
            ("", "", false),
        ] {
            let body = json!({"error": {"code": code, "message": text}}).to_string();
            assert_eq!(Words::read(body.as_bytes()).is_flagged(), flagged, "{body}");
        }
    }
}
