//! Reads a responses request.

use std::{borrow::Cow, cell::OnceCell, collections::HashSet};

use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use super::tools::{Tools, flat_name};
use crate::{
    error::{Error, Problem},
    formats::{
        text::{Json, literal, optional},
        turn::request::{
            AnswerFormat, Arguments, CacheSettings, Called, EFFORT_NAMES, Effort, File, Image,
            Instructor, Mark, RequestWriter, Settings, Text, ToolResult, Vendor, Voice,
            check_names, string_field,
        },
        wire::{Object, Value},
    },
    path::Path,
};

/// Fields that are translated. Any field that is neither here nor in [`DROPPED`] is refused, so that nothing is lost
/// silently.
const READ: &[&str] = &[
    "model",
    "input",
    "instructions",
    "max_output_tokens",
    "stream",
    "temperature",
    "top_p",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "text",
    "reasoning",
    "include",
    "top_logprobs",
    "user",
    "safety_identifier",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "cache_control",
    "max_tool_calls",
    "truncation",
];

/// Fields without a counterpart that are left out, because the caller cannot notice their loss in the answer. `parse`
/// has already refused values that store something or raise the price.
const DROPPED: &[&str] = &[
    "stream_options",
    "image",
    "access_programs",
    "client_metadata",
    "prompt_cache_retention",
    "moderation",
    "service_tier",
    "store",
    "background",
    "previous_response_id",
    "conversation",
    "prompt",
    "context_management",
    "prewarm",
];

const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Reads a responses request, and passes its conversation to the writer.
///
/// # Errors
/// [`Error::Invalid`], which names a field that has the wrong type or that the vendor's format cannot express.
pub(crate) fn read_request<'a, W: RequestWriter<'a>>(
    fields: &Object<'a, '_>,
    to: &Vendor<'_>,
    writer: &mut W,
) -> Result<Settings<'a>, Error> {
    check_names(fields, &[READ, DROPPED], Problem::NotTranslated)?;
    check_logprobs(fields)?;
    let tools = Tools::read(fields)?;
    conversation(fields, to, writer)?;
    let text = fields.get("text")?.map(Value::object).transpose()?;
    let (mut format, mut verbosity) = (None, None);
    if let Some(text) = &text {
        verbosity = string_field(text, "verbosity")?;
        if let Some(wanted) = text.get("format")? {
            let refusal = Problem::NotTranslated;
            format = AnswerFormat::read(&wanted.object()?, None, to.dialect, refusal)?;
        }
    }
    let (tools, choice, parallel) = tools.neutral();
    Ok(Settings {
        tools,
        choice,
        parallel,
        effort: effort(fields)?,
        format,
        verbosity,
        user: string_field(fields, "user")?,
        safety_identifier: string_field(fields, "safety_identifier")?,
        metadata: fields.get("metadata")?.map(|metadata| metadata.raw),
        cache: CacheSettings::read(fields)?,
        ..Settings::read(fields, "input")?
    })
}

/// Refuses a request for log probabilities, which the answer would not contain.
fn check_logprobs(fields: &Object<'_, '_>) -> Result<(), Error> {
    if let Some(top) = fields.get("top_logprobs")?
        && top.count()? > 0
    {
        return Err(top.refuse(Problem::NotTranslated));
    }
    if let Some(include) = fields.get("include")? {
        for (index, raw) in include.array()?.into_iter().enumerate() {
            if raw.get() == "\"message.output_text.logprobs\"" {
                let path = Path::Index(&include.path, index);
                return Err(path.refuse(Problem::NotTranslated));
            }
        }
    }
    Ok(())
}

/// Returns `reasoning.effort`, if its value is a known one.
fn effort<'a>(fields: &Object<'a, '_>) -> Result<Option<Effort<'a>>, Error> {
    let Some(reasoning) = fields.get("reasoning")? else {
        return Ok(None);
    };
    let reasoning = reasoning.object()?;
    let Some(effort) = reasoning.get("effort")? else {
        return Ok(None);
    };
    let (field, word) = ("reasoning.effort", effort.string()?);
    match EFFORTS.contains(&&*word) {
        true => Ok(Some(Effort { field, word })),
        false => Err(effort.refuse(Problem::NotOneOf(EFFORT_NAMES))),
    }
}

/// Reads the fields `instructions` and `input`.
fn conversation<'a, W: RequestWriter<'a>>(
    body: &Object<'a, '_>,
    to: &Vendor<'_>,
    writer: &mut W,
) -> Result<(), Error> {
    if let Some(instructions) = body.get("instructions")? {
        let text = Text::read(&instructions)?;
        if !text.is_empty() {
            let text = writer.text(Voice::Caller, text)?;
            let parts: Vec<_> = text.into_iter().collect();
            if !parts.is_empty() {
                writer.instruct(Instructor::Request, parts);
            }
        }
    }
    let input = body.need("input")?;
    if input.raw.get().starts_with('"') {
        let text = writer.text(Voice::Caller, Text::read(&input)?)?;
        writer.user(text.into_iter().collect());
        return Ok(());
    }
    let items = input
        .array()
        .map_err(|_| input.wrong_type("string or array"))?;
    let outputs = Outputs::of(&items);
    for (index, raw) in items.iter().enumerate() {
        let path = Path::Index(&input.path, index);
        item(&Value { path, raw }.object()?, &outputs, to, writer)?;
    }
    Ok(())
}

fn item<'a, W: RequestWriter<'a>>(
    item: &Object<'a, '_>,
    outputs: &Outputs<'a, '_>,
    to: &Vendor<'_>,
    writer: &mut W,
) -> Result<(), Error> {
    let kind = match item.get("type")? {
        Some(kind) => kind.string()?,
        None if item.get("role")?.is_some() => Cow::Borrowed("message"),
        None => Cow::Borrowed("item_reference"),
    };
    match &*kind {
        "message" => message(item, writer),
        "reasoning" => {
            let encrypted = item.get("encrypted_content")?;
            let encrypted = encrypted.map_or(Ok(Cow::Borrowed("")), |it| it.string())?;
            let Some(state) = to.state(&encrypted) else {
                return Ok(());
            };
            writer.reasoning(state, reasoning_texts(item)?);
            Ok(())
        }
        // A truncated call is left out. If it has an output, the output becomes a text of the user.
        "function_call" | "custom_tool_call" if outputs.lack(item)? => Ok(()),
        "function_call" => {
            let arguments = item.get("arguments")?.map(|it| Text::read(&it));
            let arguments = arguments.transpose()?;
            let arguments = arguments.map_or(Arguments::None, Arguments::Encoded);
            call(item, arguments, writer)
        }
        "custom_tool_call" => {
            let input = Cow::Borrowed(literal(&item.need("input")?)?);
            call(item, Arguments::Free(input), writer)
        }
        "function_call_output" | "custom_tool_call_output" => {
            let output = item.need("output")?;
            let parts = parts(&output, Speaker::Tool, writer)?;
            let (failed, plain) = (false, !output.raw.get().starts_with('['));
            let result = ToolResult {
                parts,
                failed,
                plain,
            };
            writer.result(call_id(item)?, result)
        }
        // `tools` reads these items.
        "additional_tools" => Ok(()),
        _ => Err(item.refuse("type", Problem::NotTranslated)),
    }
}

/// Returns the reasoning that people can read and that was not summarized.
fn reasoning_texts<'a>(item: &Object<'a, '_>) -> Result<Vec<Json<'a>>, Error> {
    let mut texts = Vec::new();
    if let Some(content) = item.get("content")? {
        for (index, fields) in content.objects()?.into_iter().enumerate() {
            let path = Path::Index(&content.path, index);
            texts.extend(optional(&Object { path, fields }, "text")?.map(Cow::Borrowed));
        }
    }
    Ok(texts)
}

fn call<'a, W: RequestWriter<'a>>(
    item: &Object<'a, '_>,
    arguments: Arguments<'a, '_>,
    writer: &mut W,
) -> Result<(), Error> {
    let name = literal(&item.need("name")?)?;
    writer.call(Called {
        id: call_id(item)?,
        name: flat_name(optional(item, "namespace")?, name),
        arguments,
        mark: None,
    })
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
        Ok(!whole || !ids.contains(&call_id(call)?.decoded()?))
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

fn message<'a, W: RequestWriter<'a>>(item: &Object<'a, '_>, writer: &mut W) -> Result<(), Error> {
    let role = item.need("role")?;
    let role = match &*role.string()? {
        "system" => Speaker::Instructor(Instructor::System),
        "developer" => Speaker::Instructor(Instructor::Developer),
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
    let parts = parts(&content, role, writer)?;
    match role {
        Speaker::User | Speaker::Tool => writer.user(parts),
        _ if parts.is_empty() => {}
        Speaker::Instructor(instructor) => writer.instruct(instructor, parts),
        Speaker::Assistant => writer.assistant(parts),
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaker {
    Instructor(Instructor),
    User,
    Assistant,
    Tool,
}

/// Reads the parts of a content: texts that are not empty, images and documents.
fn parts<'a, W: RequestWriter<'a>>(
    content: &Value<'a, '_>,
    speaker: Speaker,
    writer: &W,
) -> Result<Vec<W::Part>, Error> {
    let mut parts = Vec::new();
    let voice = match speaker {
        Speaker::Assistant => Voice::Model,
        _ => Voice::Caller,
    };
    let text = |voice, value: &Value<'a, '_>| match Text::read(value)? {
        text if text.is_empty() => Ok(None),
        text => writer.text(voice, text),
    };
    if content.raw.get().starts_with('"') {
        parts.extend(text(voice, content)?);
        return Ok(parts);
    }
    let list = content
        .array()
        .map_err(|_| content.wrong_type("string or array"))?;
    for (index, raw) in list.into_iter().enumerate() {
        let path = Path::Index(&content.path, index);
        let part = Value { path, raw }.object()?;
        let kind = part.need("type")?;
        let read = match (&*kind.string()?, speaker) {
            ("input_text" | "output_text" | "text", _) => text(voice, &part.need("text")?)?,
            ("refusal", Speaker::Assistant) => text(Voice::Refusal, &part.need("refusal")?)?,
            ("input_image", Speaker::User | Speaker::Tool) => {
                nothing_remembered(&part)?;
                Some(writer.image(Image {
                    url: Text::read(&part.need("image_url")?)?,
                    detail: optional(&part, "detail")?.map(Cow::Borrowed),
                })?)
            }
            ("input_file", Speaker::User | Speaker::Tool) => {
                nothing_remembered(&part)?;
                Some(writer.file(File {
                    name: optional(&part, "filename")?.map(Cow::Borrowed),
                    data: Text::read(&part.need("file_data")?)?,
                })?)
            }
            _ => return Err(kind.refuse(Problem::NotTranslated)),
        };
        parts.extend(read);
        if let Some(mark) = Mark::breakpoint(&part)?
            && let Some(last) = parts.last_mut()
        {
            writer.mark(last, mark);
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

fn call_id<'a, 'o>(item: &'o Object<'a, '_>) -> Result<Text<'a, 'o>, Error> {
    match Text::read(&item.need("call_id")?)? {
        id if id.is_empty() => Err(id.path.refuse(Problem::Empty)),
        id => Ok(id),
    }
}
