//! Parses a request of the Responses format. Because the gateway stores nothing between calls, references to stored
//! state are rejected.

use std::ops::Range;

use crate::{
    call::{Call, Format, ResponsesSpans},
    error::{Error, Problem},
    formats::reading::{
        common::Common,
        fields::{self, Of},
        json::{
            ArrayWith, At, Cx, Field, Object, Off, Once, OnlyDefault, OrNull, Shape, StringWith,
            Text, spanned_elements,
        },
    },
    json::{Reader, Str},
};

mod items;
mod tools;

use self::{
    items::{Input, InputSeen},
    tools::{Choice, ToolsSeen, tools},
};

/// The fields of the Responses format that may occur only once in a body.
const NAMES: &[&str] = &fields::names::<{ fields::count(Of::Responses) }>(Of::Responses);

/// The value of `include` that requests encrypted reasoning. Callers must send this reasoning back, because the gateway
/// stores nothing.
const ENCRYPTED: &str = "reasoning.encrypted_content";

pub(crate) fn call(body: &[u8], messages_max: u64) -> Result<Call, Error> {
    Cx::new(messages_max).read(body, Body(body))
}

struct Body<'b>(&'b [u8]);

/// The fields of a body that have been read so far. Some of them change how other fields are checked.
#[derive(Debug)]
struct Seen {
    common: Common,
    input: InputSeen,
    tools: ToolsSeen,
    choice: Choice,
    client_metadata: Option<Range<usize>>,
    own: ResponsesSpans,
}

impl Shape for Body<'_> {
    type Value = Call;
    const EXPECTED: &'static str = "object";

    fn object(self, at: At<'_>, mut object: Object<'_, '_>) -> Result<Call, Error> {
        let mut once = const { Once::new(NAMES) };
        let mut seen = Seen {
            common: Common::new(Of::Responses, object.offset()),
            input: InputSeen::default(),
            tools: ToolsSeen::default(),
            choice: Choice::default(),
            client_metadata: None,
            own: ResponsesSpans::default(),
        };
        while let Some(key) = once.next_key(at, &mut object)? {
            seen.field(&key, &mut object)?;
        }
        seen.call(at, self.0)
    }
}

impl Seen {
    fn field(&mut self, key: &str, object: &mut Object<'_, '_>) -> Result<(), Error> {
        let common = &mut self.common;
        match key {
            "input" => self.input = common.conversation(key, object, Input)?,
            "instructions" => {
                object.field(key, OrNull(StringWith(words)))?;
            }
            "max_output_tokens" => {
                (common.spans.max_tokens, common.output_tokens) = object.tokens_span(key)?;
            }
            "tools" => {
                let tools = object.field(key, OrNull(ArrayWith(tools)))?;
                self.tools = tools.unwrap_or_default();
            }
            "tool_choice" => self.choice = object.field(key, Choice::default())?,
            "include" => {
                let (span, value) = object.field_span(key, OrNull(ArrayWith(include)))?;
                self.own.include = Some(span);
                self.own.encrypted_reasoning_asked = value.unwrap_or(false);
            }
            "store" => {
                let place = Off(Problem::StoreUnsupported);
                let (span, ()) = object.field_span(key, place)?;
                self.own.store = Some(span);
            }
            "client_metadata" => {
                let start = object.offset();
                object.weigh_field(key)?;
                self.client_metadata = Some(start..object.offset());
            }
            // A `mode` of reasoning may cost more than the catalog's price. So only the standard mode is accepted.
            "reasoning" => {
                let mode = OnlyDefault::of(&["standard"]);
                let place = Field(const { Once::new(&["mode"]) }, mode);
                object.weigh_and_read(key, OrNull(place))?;
            }
            _ => common.field(key, object)?,
        }
        Ok(())
    }

    fn call(mut self, at: At<'_>, body: &[u8]) -> Result<Call, Error> {
        let mut call = self.common.call(at, Format::Responses, "input")?;
        let own = &mut self.own;
        own.tools_cut = self.tools.cut(&self.choice, self.input.has_functions)?;
        if own.tools_cut > 0 {
            own.cut.append(&mut self.tools.searches);
        }
        own.cut.extend(self.input.cut);
        if let Some(value) = self.client_metadata {
            own.cut.push(member(body, &value));
        }
        own.cut.sort_by_key(|cut| cut.start);
        call.spans.responses = Some(Box::new(self.own));
        Ok(call)
    }
}

/// Returns the range of a field of the body, including one comma next to it. `value` is the range of the field's value.
/// The body must have other fields too.
fn member(body: &[u8], value: &Range<usize>) -> Range<usize> {
    // The search for quotes is safe, because the names that this parser reads contain none.
    let end = memchr::memrchr(b'"', &body[..value.start]).unwrap_or(0);
    let start = memchr::memrchr(b'"', &body[..end]).unwrap_or(0);
    let blanks = |bytes: &[u8]| bytes.iter().take_while(|b| b.is_ascii_whitespace()).count();
    let behind = value.end + blanks(&body[value.end..]);
    if body.get(behind) == Some(&b',') {
        return start..behind + 1;
    }
    let comma = memchr::memrchr(b',', &body[..start]).unwrap_or(start);
    comma..value.end
}

/// Reads `instructions`, which is a text or null.
fn words(at: At<'_>, text: &Str<'_>) -> Result<(), Error> {
    at.weigh_text(text);
    Ok(())
}

/// Reads `include`. Returns whether it requests encrypted reasoning.
fn include(at: At<'_>, json: &mut Reader<'_>) -> Result<bool, Error> {
    let mut extras = false;
    let is_reasoning = || Text(|name: &str| name == ENCRYPTED);
    spanned_elements(at, json, is_reasoning, |_, here| extras |= here)?;
    Ok(extras)
}

#[cfg(test)]
mod tests;
