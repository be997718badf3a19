//! Parses the responses request. The gateway stores nothing between calls, so references to stored state are rejected.

use std::ops::Range;

use bytes::Bytes;

use super::{
    cache::{MARK, Mark},
    fields::{self, Of},
    json::{
        At, Count, Cx, Flag, Object, Off, Once, OnlyDefault, Shape, Text, Word, spanned_elements,
    },
};
use crate::{
    call::{Ask, Call, Format, ResponsesSpans, Spans},
    error::{Error, Problem},
    json::{Reader, Str},
    model::ModelKind,
};

mod items;
mod tools;

use self::{
    items::{Input, InputSeen},
    tools::{Choice, Tools, ToolsSeen},
};

/// The fields of the responses format that may occur only once in a body.
const NAMES: &[&str] = &fields::names::<{ fields::count(Of::Responses) }>(Of::Responses);

/// The value of `include` that requests encrypted reasoning, which callers must send back because the gateway stores
/// nothing.
const ENCRYPTED: &str = "reasoning.encrypted_content";

pub(super) fn call(body: &[u8], messages_max: u64) -> Result<Call, Error> {
    Cx::new(messages_max).read(body, Body(body))
}

struct Body<'b>(&'b [u8]);

/// The fields of a body that were read so far. Some of them change how other fields are checked.
#[derive(Debug, Default)]
struct Seen {
    model: Option<String>,
    stream: bool,
    output_tokens: Option<u64>,
    input: Option<InputSeen>,
    tools: ToolsSeen,
    choice: Choice,
    client_metadata: Option<Range<usize>>,
    spans: Spans,
    own: ResponsesSpans,
}

impl Shape for Body<'_> {
    type Value = Call;
    const EXPECTED: &'static str = "object";

    fn object(self, at: At<'_>, mut object: Object<'_, '_>) -> Result<Call, Error> {
        let mut once = const { Once::new(NAMES) };
        let mut seen = Seen::default();
        seen.spans.start = object.at();
        while let Some(key) = object.next_key()? {
            once.check(at, &key)?;
            seen.field(at, &key, &mut object)?;
        }
        seen.call(at, self.0)
    }
}

impl Seen {
    fn field(&mut self, at: At<'_>, key: &str, object: &mut Object<'_, '_>) -> Result<(), Error> {
        match key {
            "model" => {
                let (span, value) = at.field_span(key, object, Text(str::to_owned))?;
                self.spans.model = span;
                self.model = Some(value);
            }
            "input" => {
                let (span, value) = at.field_span(key, object, Input)?;
                self.spans.turns.all = span;
                self.input = Some(value);
            }
            "instructions" => at.field(key, object, Words)?,
            "max_output_tokens" => {
                let (span, value) = at.field_span(key, object, Count::TOKENS)?;
                self.spans.max_tokens = Some(span);
                self.output_tokens = value;
            }
            "stream" => self.stream = at.field(key, object, Flag)?,
            "tools" => self.tools = at.field(key, object, Tools)?,
            "tool_choice" => self.choice = at.field(key, object, Choice::default())?,
            "include" => {
                let (span, value) = at.field_span(key, object, Include)?;
                self.own.include = Some(span);
                self.own.encrypted_reasoning_asked = value;
            }
            "store" => {
                let place = Off(Problem::StoreUnsupported);
                let (span, ()) = at.field_span(key, object, place)?;
                self.own.store = Some(span);
            }
            "client_metadata" => {
                let start = object.at();
                at.weigh_field(key, object)?;
                self.client_metadata = Some(start..object.at());
            }
            "reasoning" => at.weigh_and_read(key, object, Reasoning)?,
            "service_tier" => {
                let usual = &["auto", "default"];
                let ask = Ask::ServiceTier;
                at.field(key, object, Word { usual, ask })?;
            }
            MARK => at.weigh_and_read(key, object, Mark)?,
            _ => fields::read(Of::Responses, at, key, object)?,
        }
        Ok(())
    }

    fn call(mut self, at: At<'_>, body: &[u8]) -> Result<Call, Error> {
        let Some(model) = self.model else {
            return Err(at.refuse_field("model", Problem::Missing));
        };
        let Some(input) = self.input else {
            return Err(at.refuse_field("input", Problem::Missing));
        };
        let own = &mut self.own;
        own.tools_cut = self.tools.cut(&self.choice, input.has_functions)?;
        if own.tools_cut > 0 {
            own.cut.append(&mut self.tools.searches);
        }
        own.cut.extend(input.cut);
        if let Some(value) = self.client_metadata {
            own.cut.push(member(body, &value));
        }
        own.cut.sort_by_key(|cut| cut.start);
        self.spans.responses = Some(Box::new(self.own));
        self.spans.turns = at.cx.turns(self.spans.turns.all);
        Ok(Call {
            format: Format::Responses,
            kind: ModelKind::Chat,
            body: Bytes::new(),
            model,
            stream: self.stream,
            output_tokens: self.output_tokens,
            choices: 1,
            usage_asked: true,
            input: at.cx.size(),
            texts: at.cx.texts(),
            asks: at.cx.asks(),
            spans: self.spans,
            session: None,
        })
    }
}

/// Returns the range of a field of the body, with one comma next to it; `value` is the range of the field's value. The
/// body must have other fields.
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

/// Reads `instructions`: a text, or null.
struct Words;

impl Shape for Words {
    type Value = ();
    const EXPECTED: &'static str = "string";

    fn null(self, _: At<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<(), Error> {
        at.weigh_text(text);
        Ok(())
    }
}

/// Reads `include`; returns whether it requests encrypted reasoning.
struct Include;

impl Shape for Include {
    type Value = bool;
    const EXPECTED: &'static str = "array";

    fn null(self, _: At<'_>) -> Result<bool, Error> {
        Ok(false)
    }
    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<bool, Error> {
        let mut extras = false;
        let is_reasoning = || Text(|name: &str| name == ENCRYPTED);
        spanned_elements(at, json, is_reasoning, |_, here| extras |= here)?;
        Ok(extras)
    }
}

/// Reads `reasoning`. Its `mode` may cost more than the catalog's price, so only the standard mode is accepted.
struct Reasoning;

impl Shape for Reasoning {
    type Value = ();
    const EXPECTED: &'static str = "object";

    fn null(self, _: At<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn object(self, at: At<'_>, mut object: Object<'_, '_>) -> Result<(), Error> {
        let mut once = const { Once::new(&["mode"]) };
        while let Some(key) = object.next_key()? {
            once.check(at, &key)?;
            match &*key {
                "mode" => at.field(&key, &mut object, OnlyDefault::of(&["standard"]))?,
                _ => at.weigh_field(&key, &mut object)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
