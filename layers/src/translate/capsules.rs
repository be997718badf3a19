//! Removes capsules from a Messages call that is sent to a Messages vendor. Capsules carry the reasoning of vendors of
//! other formats. In requests of the Responses format, the parser already removes them.

use std::{borrow::Cow, ops::Range};

use memchr::memmem;
use serde_json::value::RawValue;

use crate::{
    capsule,
    json::{members, within},
};

/// Returns the range of `messages` in the body, and its replacement without capsules. `None` if the body has no
/// capsule.
pub(super) fn left_out(body: &[u8]) -> Option<(Range<usize>, Cow<'static, str>)> {
    // Few calls with thinking contain a capsule. A search for the prefix of capsules avoids parsing the other bodies
    // again, which may be large.
    memmem::find(body, capsule::PREFIX.as_bytes())?;
    let body = std::str::from_utf8(body).ok()?;
    let [messages] = members(body, &["messages"]).ok()?;
    let messages = messages?;
    let all: Vec<&RawValue> = serde_json::from_str(messages).ok()?;
    let left: Vec<Cow<'_, str>> = all.iter().filter_map(|one| message(one.get())).collect();
    let is_whole = |one: &Cow<'_, str>| matches!(one, Cow::Borrowed(_));
    if left.len() == all.len() && left.iter().all(is_whole) {
        return None;
    }
    let left = format!("[{}]", left.join(","));
    Some((within(body.as_bytes(), messages), left.into()))
}

/// Returns the message without its capsules. `None` if no other content remains, because vendors reject an empty
/// message.
fn message(message: &str) -> Option<Cow<'_, str>> {
    let blocks = |content| serde_json::from_str::<Vec<&RawValue>>(content).ok();
    let content = members(message, &["content"]).ok().and_then(|[it]| it);
    let Some((content, all)) = content.and_then(|it| Some((it, blocks(it)?))) else {
        return Some(message.into());
    };
    let blocks = all.iter().map(|block| block.get());
    let left: Vec<&str> = blocks.filter(|block| !is_capsule(block)).collect();
    if left.len() == all.len() {
        return Some(message.into());
    }
    if left.is_empty() {
        return None;
    }
    let Range { start, end } = within(message.as_bytes(), content);
    let (before, behind) = (&message[..start], &message[end..]);
    Some(format!("{before}[{}]{behind}", left.join(",")).into())
}

fn is_capsule(block: &str) -> bool {
    let Ok([kind, signature, data]) = members(block, &["type", "signature", "data"]) else {
        return false;
    };
    let proof = match kind {
        Some("\"thinking\"") => signature,
        Some("\"redacted_thinking\"") => data,
        _ => None,
    };
    let text = proof.and_then(|proof| proof.strip_prefix('"'));
    text.is_some_and(|text| text.starts_with(capsule::PREFIX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(messages: &str) -> Option<String> {
        let body = format!(r#"{{"model":"m" , "messages": {messages},"x":"tg1."}}"#);
        let (span, text) = left_out(body.as_bytes())?;
        let (before, behind) = (&body[..span.start], &body[span.end..]);
        assert_eq!(before, r#"{"model":"m" , "messages": "#);
        assert_eq!(behind, r#","x":"tg1."}"#);
        Some(text.into_owned())
    }

    #[test]
    fn thinking_in_a_capsule_is_removed_and_every_other_byte_stays() {
        let user = r#"{"role":"user", "content":"tg1."}"#;
        let capsule = r#"{"type":"thinking","thinking":"t","signature":"tg1.YQ.W10"}"#;
        let redacted = r#"{"data": "tg1.YQ.W10" ,"type":"redacted_thinking"}"#;
        let signed = r#"{"type":"thinking","thinking":"t","signature":"EqQB"}"#;
        let call =
            r#"{"type": "tool_use","id":"t","name":"f","input":{"n":1e400,"signature":"tg1."}}"#;
        let assistant =
            |content: &str| format!(r#"{{"role":"assistant","content":[{content}] , "y":1}}"#);
        for (messages, left) in [
            (
                format!("[{user}, {} ]", assistant(&format!(" {capsule}, {call}"))),
                format!("[{user},{}]", assistant(call)),
            ),
            (
                format!(
                    "[{user},{}]",
                    assistant(&format!("{signed},{redacted},{call}"))
                ),
                format!("[{user},{}]", assistant(&format!("{signed},{call}"))),
            ),
            // A message that contains only capsules is removed completely.
            (
                format!(
                    "[{user},{},{user}]",
                    assistant(&format!("{capsule},{redacted}"))
                ),
                format!("[{user},{user}]"),
            ),
        ] {
            assert_eq!(sent(&messages), Some(left), "{messages}");
        }
        for whole in [
            format!("[{user},{}]", assistant(&format!("{signed},{call}"))),
            format!("[{}]", assistant("")),
            "7".to_owned(),
        ] {
            assert_eq!(sent(&whole), None, "{whole}");
        }
    }
}
