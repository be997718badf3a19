//! Carries the state of a Chat Completions vendor through callers of other formats. The state is the vendor's reasoning
//! and the signatures of tool calls (`extra_content`). The vendor needs it back together with the tool calls that
//! followed it.
//!
//! [`Kept`] collects the state from a response. A capsule then carries it through the caller: as the signature of a
//! thinking block, as the data of a redacted thinking block, or as the `encrypted_content` of a reasoning item.
//! [`Returned`] reads the state from the caller's next request, and puts it into the assistant's message, under the
//! vendor's own field names. The state is sent only to the vendor that the capsule names.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, value::RawValue};

use crate::formats::{
    capsule,
    text::{Json as Literal, given, inner, made, quoted},
    wire::{Fields, ObjectWriter, compact},
};

/// The maximum size of the state in one capsule, in bytes before encoding. Of a larger state, only the name of the
/// reasoning field is kept.
const STATE_BYTES_MAX: usize = 256 << 10;
/// The value of the field `type` in the capsule's JSON.
const KIND: &str = "chat_state";

/// The field in which a vendor sends the text of its reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Field {
    /// `reasoning_content`, which most vendors use. It is also used for thinking that a caller sends back without a
    /// capsule.
    #[default]
    ReasoningContent,
    /// `reasoning`, the field that some vendors use.
    Reasoning,
}

/// The state of a response that has not been put into a capsule yet.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    field: Option<Field>,
    /// Reasoning that is hidden from the caller, JSON-escaped and without quotes.
    hidden: String,
    details: Vec<Map<String, Json>>,
    /// The signatures of tool calls: pairs of a call's id (JSON-escaped, without quotes) and the call's signature.
    signed: Vec<(String, String)>,
    bytes: usize,
}

impl Kept {
    /// Adds the state in the fields of a message, or of a piece of a message. The text of the reasoning is not added.
    pub(crate) fn fields(&mut self, field: Option<Field>, details: Option<&RawValue>) {
        self.field = field.or(self.field);
        let Some(details) = details else { return };
        let list = serde_json::from_str::<Vec<Map<String, Json>>>(details.get());
        for detail in list.unwrap_or_default() {
            self.bytes += details.get().len();
            if self.fits() {
                merge(&mut self.details, detail);
            }
        }
    }

    /// Adds a piece of reasoning that is hidden from the caller. It is kept only if the vendor has a field in which it
    /// can be sent back.
    pub(crate) fn hide(&mut self, piece: &str) {
        if self.field.is_none() {
            return;
        }
        self.bytes += piece.len();
        if self.fits() {
            self.hidden.push_str(piece);
        }
    }

    /// Adds the signature of the tool call with this id.
    pub(crate) fn sign(&mut self, id: &str, signature: &RawValue) {
        self.bytes += id.len() + signature.get().len();
        if self.fits() {
            let signature = compact(signature).into_owned();
            self.signed.push((id.to_owned(), signature));
        }
    }

    fn fits(&self) -> bool {
        self.bytes <= STATE_BYTES_MAX
    }

    /// Returns whether there is state that would be lost if only the visible text came back, in the field
    /// `reasoning_content`.
    pub(crate) fn is_more_than_text(&self) -> bool {
        self.needs_block() || self.field == Some(Field::Reasoning)
    }

    /// Returns whether there is state that must be carried by a block or an item of its own.
    pub(crate) fn needs_block(&self) -> bool {
        let some = !self.hidden.is_empty() || !self.signed.is_empty() || self.keeps_details();
        some && self.fits()
    }

    /// Returns whether `reasoning_details` must be kept. Details without a signature only repeat the text in the
    /// message's reasoning field, if the message has such a field.
    fn keeps_details(&self) -> bool {
        let proves = |detail: &Map<String, Json>| {
            ["signature", "data"].iter().any(|name| {
                let text = detail.get(*name).and_then(Json::as_str);
                text.is_some_and(|text| !text.is_empty())
            })
        };
        self.details
            .iter()
            .any(|it| self.field.is_none() || proves(it))
    }

    /// Moves the state into a capsule for the vendor with this name. The state is empty afterwards.
    pub(crate) fn seal(&mut self, vendor: &str) -> String {
        let kept = std::mem::take(self).bounded();
        let calls = kept.signed.iter();
        let calls = calls.map(|(id, signature)| format!("\"{id}\":{signature}"));
        let calls = calls.collect::<Vec<_>>().join(",");
        let text = (!kept.hidden.is_empty()).then(|| quoted(&[&kept.hidden]));
        let mut json = ObjectWriter::new(kept.bytes + 64);
        json.field("type", &KIND)
            .some("field", kept.field)
            .some("text", text)
            .list("details", &kept.details)
            .some(
                "calls",
                (!calls.is_empty()).then(|| made(format!("{{{calls}}}"))),
            );
        capsule::seal(vendor, &String::from_utf8_lossy(&json.end()))
    }

    /// Reduces the state to what fits into a capsule.
    fn bounded(mut self) -> Self {
        if !self.fits() {
            return Self {
                field: self.field,
                ..Self::default()
            };
        }
        if !self.keeps_details() {
            self.details.clear();
        }
        self
    }
}

/// Adds a detail. If it continues the last detail (same type and index), it is appended to that detail.
fn merge(details: &mut Vec<Map<String, Json>>, piece: Map<String, Json>) {
    let same = |known: &&mut Map<String, Json>| {
        let same = |name| known.get(name) == piece.get(name);
        same("type") && same("index") && !known.contains_key("data")
    };
    let Some(known) = details.last_mut().filter(same) else {
        details.push(piece);
        return;
    };
    for (name, value) in piece {
        match (name.as_str(), known.get_mut(&name), value) {
            ("text" | "summary", Some(Json::String(text)), Json::String(more)) => {
                text.push_str(&more);
            }
            (_, Some(_), Json::Null) => {}
            (_, Some(Json::String(_)), Json::String(empty)) if empty.is_empty() => {}
            (_, _, value) => {
                known.insert(name, value);
            }
        }
    }
}

/// The state that a request returns. It is collected for the assistant's message that is being translated.
#[derive(Debug, Default)]
pub(crate) struct Returned<'a> {
    reasoning: Reasoning<'a>,
    /// The signatures of tool calls, by the calls' ids.
    signed: HashMap<String, Box<RawValue>>,
}

/// The reasoning of a message, to be sent in the vendor's own fields.
#[derive(Debug, Default)]
pub(crate) struct Reasoning<'a> {
    texts: [Vec<Literal<'a>>; 2],
    /// The elements of `reasoning_details`.
    pub(crate) details: Vec<Box<RawValue>>,
}

raw_fields! {
    /// The state that a capsule contains, as a JSON object.
    struct State<'a> {
        text;
        field: Option<Field>,
        #[serde(borrow)] details: Option<Vec<&'a RawValue>>,
        #[serde(borrow)] calls: Option<Fields<'a>>,
    }
}

impl<'a> Returned<'a> {
    /// Adds reasoning with its state, if it has one, and its visible texts. Reasoning whose state is not that of a Chat
    /// Completions vendor is left out. Reasoning without a state is sent to any vendor of the format.
    pub(crate) fn take(&mut self, state: Option<String>, texts: Vec<Literal<'a>>) {
        let Some(json) = state else {
            self.reasoning.say(Field::default(), texts);
            return;
        };
        if !capsule::is_of(&json, &[KIND]) {
            return;
        }
        let Ok(state) = serde_json::from_str::<State<'_>>(&json) else {
            return;
        };
        if let Some(field) = state.field {
            let hidden = given(state.text).map(|text| quoted(&[text]));
            let shown = texts.into_iter().filter(|_| hidden.is_none());
            let texts = shown.chain(hidden.clone()).collect();
            self.reasoning.say(field, texts);
        }
        let objects = |raw: &&RawValue| raw.get().starts_with('{');
        let details = state.details.unwrap_or_default().into_iter();
        let details = details.filter(objects).map(ToOwned::to_owned);
        self.reasoning.details.extend(details);
        let signed = state.calls.unwrap_or_default().0.into_iter();
        let signed = signed.filter(|(_, raw)| objects(raw));
        self.signed
            .extend(signed.map(|(id, raw)| (id.into_owned(), raw.to_owned())));
    }

    /// Removes and returns the signature of the tool call with this id.
    pub(crate) fn signature(&mut self, id: &str) -> Option<Box<RawValue>> {
        self.signed.remove(id)
    }

    /// Removes and returns the reasoning that was added so far. It belongs to the message with the tool calls that
    /// followed it.
    pub(crate) fn reasoning(&mut self) -> Reasoning<'a> {
        std::mem::take(&mut self.reasoning)
    }
}

impl<'a> Reasoning<'a> {
    fn say(&mut self, field: Field, texts: Vec<Literal<'a>>) {
        self.texts[field as usize].extend(texts);
    }

    /// Appends further reasoning of the same message.
    pub(crate) fn append(&mut self, mut more: Self) {
        for (all, more) in self.texts.iter_mut().zip(&mut more.texts) {
            all.append(more);
        }
        self.details.append(&mut more.details);
    }

    /// Returns the reasoning's text for this field. `None` if the message has no such field.
    pub(crate) fn text(&self, field: Field) -> Option<Literal<'a>> {
        let texts = self.texts[field as usize].iter();
        let pieces: Vec<&str> = texts.filter_map(|text| inner(text)).collect();
        let text = quoted(&pieces);
        (inner(&text) != Some("")).then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn raw(json: &Json) -> Box<RawValue> {
        RawValue::from_string(json.to_string()).unwrap()
    }

    /// Returns the state that this vendor gets back from a capsule: the text of either field, the details, and the
    /// signature of the tool call `c1`.
    fn back(sealed: &str, vendor: &str, shown: &[&str]) -> Json {
        let mut returned = Returned::default();
        let shown = shown.iter().map(|text| quoted(&[text])).collect();
        let state = Some(sealed).filter(|sealed| !sealed.is_empty());
        let opened = state.map(|sealed| capsule::open(sealed, vendor));
        if opened != Some(None) {
            returned.take(opened.flatten(), shown);
        }
        let reasoning = returned.reasoning();
        json!([
            reasoning.text(Field::ReasoningContent),
            reasoning.text(Field::Reasoning),
            reasoning.details,
            returned.signature("c1"),
        ])
    }

    #[test]
    fn reasoning_state_returns_only_to_its_vendor_under_its_field_names() {
        let signature = json!({"google": {"thought_signature": "a+/="}});
        let mut stored = Kept::default();
        stored.fields(Some(Field::Reasoning), None);
        stored.hide("h\\u0436");
        stored.hide("m");
        stored.sign("c1", &raw(&signature));
        assert!(stored.needs_block());
        let sealed = stored.seal("deep");
        assert!(!stored.needs_block(), "it is in one capsule");
        assert_eq!(
            back(&sealed, "deep", &[]),
            json!([null, "hжm", [], signature])
        );
        let nothing = json!([null, null, [], null]);
        assert_eq!(back(&sealed, "other", &["hm"]), nothing);
        assert_eq!(back("EqQB", "deep", &["hm"]), nothing);
        // Text that the caller sees is not in the capsule. Text without a capsule is sent back as `reasoning_content`.
        stored.fields(Some(Field::Reasoning), None);
        let sealed = stored.seal("deep");
        assert_eq!(
            back(&sealed, "deep", &["h", "m"]),
            json!([null, "hm", [], null])
        );
        assert_eq!(back("", "deep", &["h", "m"]), json!(["hm", null, [], null]));
    }

    #[test]
    fn reasoning_details_sent_in_pieces_are_returned_whole() {
        let mut stored = Kept::default();
        for piece in [
            json!([]),
            json!([{"type": "reasoning.text", "text": "", "signature": "", "index": 0}]),
            json!([{"type": "reasoning.text", "text": "h", "format": "f", "index": 0}]),
            json!([{"type": "reasoning.text", "text": "m", "signature": null, "index": 0}]),
            json!([{"type": "reasoning.text", "signature": "s", "index": 0}, {"type": "reasoning.encrypted", "data": "x", "index": 1}]),
            json!([{"type": "reasoning.encrypted", "data": "y", "index": 1}]),
        ] {
            stored.fields(Some(Field::Reasoning), Some(&raw(&piece)));
        }
        let whole = json!([
            {"type": "reasoning.text", "text": "hm", "signature": "s", "format": "f", "index": 0},
            {"type": "reasoning.encrypted", "data": "x", "index": 1},
            {"type": "reasoning.encrypted", "data": "y", "index": 1},
        ]);
        let sealed = stored.seal("v");
        assert_eq!(
            back(&sealed, "v", &["hm"]),
            json!([null, "hm", whole, null])
        );
        // Details without a signature are kept only if the vendor has no field with the same text.
        let unsigned = json!([{"type": "reasoning.text", "text": "hm"}]);
        stored.fields(Some(Field::Reasoning), Some(&raw(&unsigned)));
        assert!(!stored.needs_block());
        let sealed = stored.seal("v");
        assert_eq!(back(&sealed, "v", &["hm"]), json!([null, "hm", [], null]));
        stored.fields(None, Some(&raw(&unsigned)));
        assert!(stored.needs_block());
        let sealed = stored.seal("v");
        assert_eq!(
            back(&sealed, "v", &["hm"]),
            json!([null, null, unsigned, null])
        );
    }

    #[test]
    fn reasoning_state_that_is_too_large_is_stored_only_as_the_name_of_its_field() {
        let piece = "x".repeat(STATE_BYTES_MAX / 2);
        let mut stored = Kept::default();
        stored.fields(Some(Field::Reasoning), None);
        stored.hide(&piece);
        stored.hide(&piece);
        assert!(stored.needs_block());
        stored.hide("x");
        assert!(!stored.needs_block());
        let sealed = stored.seal("v");
        assert!(sealed.len() < 100, "{}", sealed.len());
        assert_eq!(back(&sealed, "v", &["hm"]), json!([null, "hm", [], null]));
    }

    #[test]
    fn capsule_with_a_forged_state_is_ignored() {
        let sealed = |json: &str| capsule::seal("v", json);
        let nothing = json!([null, null, [], null]);
        for json in [
            r#"{"type":"chat_state","type":"reasoning","calls":{"c1":{}}}"#,
            r#"{"type":"reasoning","field":"reasoning"}"#,
            r#"{"type":"chat_state","field":"content"}"#,
            r#"{"type":"chat_state","details":{"x":1}}"#,
            r#"{"type":"chat_state","details":["x"],"calls":{"c1":"x"}}"#,
        ] {
            assert_eq!(back(&sealed(json), "v", &["hm"]), nothing, "{json}");
        }
    }
}
