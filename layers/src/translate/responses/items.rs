//! Reads the conversation of a responses request, and passes its items to code that writes the vendor's format.

use std::{borrow::Cow, cell::OnceCell, collections::HashSet};

use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use super::tools::flat_name;
use crate::{
    error::{Error, Problem},
    path::Path,
    translate::{
        messages::text::{Json, literal, optional},
        wire::{Object, Value},
    },
};

/// Builds the conversation in the vendor's format.
pub(super) trait Target<'a> {
    /// The vendor format's type for a part of a message's content.
    type Part;

    /// Translates a text to a part of a message.
    fn text(&self, text: &Value<'a, '_>) -> Result<Self::Part, Error>;
    /// Translates an image to a part of a message; `part` is the part of the request.
    fn image(&self, part: &Object<'a, '_>) -> Result<Self::Part, Error>;
    /// Translates a document that is attached to the request.
    fn file(&self, part: &Object<'a, '_>) -> Result<Self::Part, Error>;
    /// Marks the part up to which the vendor should cache the prompt, if the vendor's format has marks.
    fn mark(&self, _part: &mut Self::Part) {}

    /// Adds instructions to the conversation.
    fn instruct(&mut self, texts: Vec<Self::Part>);
    /// Adds content of the user.
    fn user(&mut self, parts: Vec<Self::Part>);
    /// Adds text of the model.
    fn assistant(&mut self, texts: Vec<Self::Part>);
    /// Adds reasoning of the model. `encrypted` is the part that only the vendor can read; it may be empty.
    fn reasoning(&mut self, encrypted: &str, item: &Object<'a, '_>) -> Result<(), Error>;
    /// Adds a tool call of the model.
    fn call(&mut self, call: &Called<'a, '_>) -> Result<(), Error>;
    /// Adds the output of a tool call.
    fn result(&mut self, id: &Value<'a, '_>, parts: Vec<Self::Part>) -> Result<(), Error>;
}

/// A tool call of the conversation.
#[derive(Debug)]
pub(super) struct Called<'a, 'v> {
    pub(super) id: Value<'a, 'v>,
    /// The name of the tool that is sent to the vendor, which may differ from the caller's name.
    pub(super) name: Json<'a>,
    pub(super) arguments: Arguments<'a, 'v>,
}

/// The arguments of a tool call.
#[derive(Debug)]
pub(super) enum Arguments<'a, 'v> {
    /// The arguments are JSON, encoded as a string.
    Json(Option<Value<'a, 'v>>),
    /// The arguments are a free text, given as a JSON string.
    Free(&'a RawValue),
}

impl Arguments<'_, '_> {
    /// Returns the arguments of a function that takes one text: a JSON object with the free text.
    pub(super) fn wrapped(free: &RawValue) -> String {
        format!("{{\"input\":{}}}", free.get())
    }
}

/// Reads the fields `instructions` and `input`.
pub(super) fn read<'a>(body: &Object<'a, '_>, target: &mut impl Target<'a>) -> Result<(), Error> {
    if let Some(instructions) = body.get("instructions")? {
        literal(&instructions)?;
        if instructions.raw.get() != "\"\"" {
            let text = target.text(&instructions)?;
            target.instruct(vec![text]);
        }
    }
    let input = body.need("input")?;
    if input.raw.get().starts_with('"') {
        let text = target.text(&input)?;
        target.user(vec![text]);
        return Ok(());
    }
    let items = input
        .array()
        .map_err(|_| input.wrong_type("string or array"))?;
    let outputs = Outputs::of(&items);
    for (index, raw) in items.iter().enumerate() {
        let path = Path::Index(&input.path, index);
        item(&Value { path, raw }.object()?, &outputs, target)?;
    }
    Ok(())
}

fn item<'a>(
    item: &Object<'a, '_>,
    outputs: &Outputs<'a, '_>,
    target: &mut impl Target<'a>,
) -> Result<(), Error> {
    let kind = match item.get("type")? {
        Some(kind) => kind.string()?,
        None if item.get("role")?.is_some() => Cow::Borrowed("message"),
        None => Cow::Borrowed("item_reference"),
    };
    match &*kind {
        "message" => message(item, target),
        "reasoning" => {
            let encrypted = item.get("encrypted_content")?;
            let encrypted = encrypted.map_or(Ok(Cow::Borrowed("")), |it| it.string())?;
            target.reasoning(&encrypted, item)
        }
        // A truncated call is left out. If it has an output, the output becomes a text of the user.
        "function_call" | "custom_tool_call" if outputs.lack(item)? => Ok(()),
        "function_call" => target.call(&Called {
            id: call_id(item)?,
            name: name(item)?,
            arguments: Arguments::Json(item.get("arguments")?),
        }),
        "custom_tool_call" => target.call(&Called {
            id: call_id(item)?,
            name: name(item)?,
            arguments: Arguments::Free(literal(&item.need("input")?)?),
        }),
        "function_call_output" | "custom_tool_call_output" => {
            let output = item.need("output")?;
            let parts = parts(&output, Speaker::Tool, target)?;
            target.result(&call_id(item)?, parts)
        }
        // `tools` reads these items.
        "additional_tools" => Ok(()),
        _ => Err(item.refuse("type", Problem::NotTranslated)),
    }
}

/// The ids of the calls that have an output. Computed only if a call is marked as truncated: clients send the items of
/// an answer back unchanged, with that mark.
struct Outputs<'a, 'i> {
    items: &'i [&'a RawValue],
    ids: OnceCell<HashSet<Cow<'a, str>>>,
}

impl<'a, 'i> Outputs<'a, 'i> {
    const fn of(items: &'i [&'a RawValue]) -> Self {
        Self {
            items,
            ids: OnceCell::new(),
        }
    }

    /// Returns whether this call was truncated and must be left out: vendors reject incomplete arguments, and calls
    /// without an output.
    fn lack(&self, call: &Object<'a, '_>) -> Result<bool, Error> {
        let status = call.get("status")?;
        if status.is_none_or(|status| status.raw.get() != "\"incomplete\"") {
            return Ok(false);
        }
        let whole = match call.get("arguments")? {
            Some(arguments) => is_object_or_blank(&arguments.string()?),
            None => true,
        };
        let ids = self.ids.get_or_init(|| self.ids());
        Ok(!whole || !ids.contains(&call_id(call)?.string()?))
    }

    fn ids(&self) -> HashSet<Cow<'a, str>> {
        let outputs = self
            .items
            .iter()
            .filter_map(|raw| serde_json::from_str::<Output<'a>>(raw.get()).ok());
        outputs
            .filter(|item| item.kind.ends_with("_call_output"))
            .map(|item| item.call_id)
            .collect()
    }
}

#[derive(Deserialize)]
struct Output<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    call_id: Cow<'a, str>,
}

fn is_object_or_blank(arguments: &str) -> bool {
    let json = arguments.trim_start();
    json.is_empty() || (json.starts_with('{') && serde_json::from_str::<IgnoredAny>(json).is_ok())
}

fn message<'a>(item: &Object<'a, '_>, target: &mut impl Target<'a>) -> Result<(), Error> {
    let role = item.need("role")?;
    let speaker = match &*role.string()? {
        "system" | "developer" => Speaker::Instructor,
        "user" => Speaker::User,
        "assistant" => Speaker::Assistant,
        _ => {
            let roles = "user, system, developer, assistant";
            return Err(role.refuse(Problem::NotOneOf(roles)));
        }
    };
    let Some(content) = item.get("content")? else {
        return Ok(());
    };
    let parts = parts(&content, speaker, target)?;
    match speaker {
        Speaker::Instructor => target.instruct(parts),
        Speaker::Assistant => target.assistant(parts),
        Speaker::User | Speaker::Tool => target.user(parts),
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaker {
    Instructor,
    User,
    Assistant,
    Tool,
}

/// Reads the parts of a content: texts that are not empty, images and documents.
fn parts<'a, T: Target<'a>>(
    content: &Value<'a, '_>,
    speaker: Speaker,
    target: &T,
) -> Result<Vec<T::Part>, Error> {
    let mut parts = Vec::new();
    let text = |value: &Value<'a, '_>, parts: &mut Vec<T::Part>| {
        if literal(value)?.get() != "\"\"" {
            parts.push(target.text(value)?);
        }
        Ok::<_, Error>(())
    };
    if content.raw.get().starts_with('"') {
        text(content, &mut parts)?;
        return Ok(parts);
    }
    let list = content
        .array()
        .map_err(|_| content.wrong_type("string or array"))?;
    for (index, raw) in list.into_iter().enumerate() {
        let path = Path::Index(&content.path, index);
        let part = Value { path, raw }.object()?;
        let kind = part.need("type")?;
        match (&*kind.string()?, speaker) {
            ("input_text" | "output_text" | "text", _) => {
                text(&part.need("text")?, &mut parts)?;
            }
            ("refusal", Speaker::Assistant) => {
                text(&part.need("refusal")?, &mut parts)?;
            }
            ("input_image", Speaker::User | Speaker::Tool) => {
                nothing_remembered(&part)?;
                parts.push(target.image(&part)?);
            }
            ("input_file", Speaker::User | Speaker::Tool) => {
                nothing_remembered(&part)?;
                parts.push(target.file(&part)?);
            }
            _ => return Err(kind.refuse(Problem::NotTranslated)),
        }
        if part.get("prompt_cache_breakpoint")?.is_some()
            && let Some(last) = parts.last_mut()
        {
            target.mark(last);
        }
    }
    Ok(parts)
}

/// Refuses references to files. The gateway stores no files, so an id cannot refer to one, and the size of a file at a
/// URL was not counted for the hold.
fn nothing_remembered(part: &Object<'_, '_>) -> Result<(), Error> {
    for name in ["file_id", "file_url"] {
        if part.get(name)?.is_some() {
            return Err(part.refuse(name, Problem::Unsupported));
        }
    }
    Ok(())
}

fn call_id<'a, 'o>(item: &'o Object<'a, '_>) -> Result<Value<'a, 'o>, Error> {
    let id = item.need("call_id")?;
    if literal(&id)?.get() == "\"\"" {
        return Err(id.refuse(Problem::Empty));
    }
    Ok(id)
}

fn name<'a>(item: &Object<'a, '_>) -> Result<Json<'a>, Error> {
    let name = literal(&item.need("name")?)?;
    Ok(flat_name(optional(item, "namespace")?, name))
}
