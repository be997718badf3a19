//! Reads a chat request.

use std::{borrow::Cow, collections::HashSet};

use serde_json::value::RawValue;

use crate::{
    error::{Error, Problem},
    formats::{
        text::{Json, inner, literal, made, optional},
        turn::request::{
            AnswerFormat, Arguments, CacheSettings, Called, Choice, Effort, File, Image,
            Instructor, Mark, Named, RequestWriter, Settings, Takes, Text, Tool, ToolResult,
            Vendor, Voice, check_names, is_object, no_parameters, number, stop_sequences,
            string_field,
        },
        wire::{Object, Value},
    },
    path::Path,
};

/// Fields that are translated. Any field that is neither here nor in [`DROPPED`] is rejected, so that nothing is lost
/// silently.
const READ: &[&str] = &[
    "model",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "n",
    "stop",
    "stream",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "reasoning_effort",
    "verbosity",
    "user",
    "safety_identifier",
    "logprobs",
    "metadata",
    "modalities",
    "audio",
    "cache_control",
    "prompt_cache_key",
    "prompt_cache_options",
];

/// Fields without a counterpart that are left out, because the caller cannot notice their loss in the answer.
const DROPPED: &[&str] = &[
    "stream_options",
    "top_logprobs",
    "store",
    "seed",
    "logit_bias",
    "frequency_penalty",
    "presence_penalty",
    "prediction",
    "prompt_cache_retention",
    "moderation",
    // `parse` has already rejected these two, unless their value changes nothing.
    "service_tier",
    "speed",
    "web_search_options",
    "container",
    "mcp_servers",
    "previous_response_id",
    "thread",
];

const ROLES: &str = "system, developer, user, assistant, tool";

/// Reads a chat request, and passes its conversation to the writer.
///
/// # Errors
/// [`Error::Invalid`], which names a field that has the wrong type or that the vendor's format cannot express.
pub(crate) fn read_request<'a, W: RequestWriter<'a>>(
    fields: &Object<'a, '_>,
    to: &Vendor<'_>,
    writer: &mut W,
) -> Result<Settings<'a>, Error> {
    check_names(fields, &[READ, DROPPED], Problem::Unsupported)?;
    check_choices(fields)?;
    check_modalities(fields)?;
    let messages = fields.need("messages")?;
    for (index, fields) in messages.objects()?.into_iter().enumerate() {
        let path = Path::Index(&messages.path, index);
        message(&Object { path, fields }, writer)?;
    }
    let mut settings = Settings {
        output_tokens: output_tokens(fields)?,
        top_k: number(fields, "top_k")?,
        stops: stops(fields, W::STOPS_MAX)?,
        verbosity: string_field(fields, "verbosity")?,
        user: string_field(fields, "user")?,
        safety_identifier: string_field(fields, "safety_identifier")?,
        metadata: fields.get("metadata")?.map(|metadata| metadata.raw),
        cache: CacheSettings::read(fields)?,
        ..Settings::read(fields, "messages")?
    };
    if let Some(effort) = fields.get("reasoning_effort")? {
        let (field, word) = ("reasoning_effort", effort.string()?);
        settings.effort = Some(Effort { field, word });
    }
    if let Some(format) = fields.get("response_format")? {
        let (format, nested) = (format.object()?, Some("json_schema"));
        let refusal = Problem::Unsupported;
        settings.format = AnswerFormat::read(&format, nested, to.dialect, refusal)?;
    }
    tools(fields, W::CUSTOM_TOOLS, &mut settings)?;
    Ok(settings)
}

/// Refuses requests for several choices or for log probabilities, which the answer would not contain.
fn check_choices(fields: &Object<'_, '_>) -> Result<(), Error> {
    if let Some(n) = fields.get("n")?
        && n.count()? > 1
    {
        return Err(n.refuse(Problem::AboveMax(1)));
    }
    if let Some(logprobs) = fields.get("logprobs")?
        && logprobs.flag()?
    {
        return Err(logprobs.refuse(Problem::Unsupported));
    }
    Ok(())
}

/// Refuses requests for kinds of output other than text, because vendors of other formats answer only in text.
fn check_modalities(fields: &Object<'_, '_>) -> Result<(), Error> {
    if let Some(audio) = fields.get("audio")? {
        return Err(audio.refuse(Problem::Unsupported));
    }
    let Some(modalities) = fields.get("modalities")? else {
        return Ok(());
    };
    let words = match modalities.string() {
        Ok(word) => vec![word],
        Err(_) => serde_json::from_str(modalities.raw.get()).unwrap_or_else(|_| vec!["".into()]),
    };
    match words.iter().all(|word| word == "text") {
        true => Ok(()),
        false => Err(modalities.refuse(Problem::Unsupported)),
    }
}

/// Returns the maximum of output tokens, which has two names.
fn output_tokens(fields: &Object<'_, '_>) -> Result<Option<u64>, Error> {
    let count = |name| fields.get(name)?.map(|value| value.count()).transpose();
    let (old, new) = (count("max_tokens")?, count("max_completion_tokens")?);
    if let (Some(old), Some(new)) = (old, new)
        && old != new
    {
        return Err(fields.refuse("max_tokens", Problem::Contradicts("max_completion_tokens")));
    }
    Ok(new.or(old))
}

/// Reads `stop`: one string or several.
fn stops<'a>(fields: &Object<'a, '_>, max: usize) -> Result<Vec<&'a RawValue>, Error> {
    let Some(stop) = fields.get("stop")? else {
        return Ok(Vec::new());
    };
    if stop.raw.get().starts_with('[') {
        return stop_sequences(&stop, max);
    }
    match inner(stop.raw) {
        None => Err(stop.wrong_type("string or array of strings")),
        Some("") => Ok(Vec::new()),
        Some(_) if max == 0 => Err(stop.refuse(Problem::NotTranslated)),
        Some(_) => Ok(vec![stop.raw]),
    }
}

fn message<'a, W: RequestWriter<'a>>(
    message: &Object<'a, '_>,
    writer: &mut W,
) -> Result<(), Error> {
    let role = message.need("role")?;
    match &*role.string()? {
        "system" => instruct(message, Instructor::System, writer)?,
        "developer" => instruct(message, Instructor::Developer, writer)?,
        "user" => {
            let parts = content(message, Speaker::User, writer)?;
            writer.user(parts);
        }
        "assistant" => assistant(message, writer)?,
        "tool" => {
            let id = Text::read(&message.need("tool_call_id")?)?;
            let plain = match message.get("content")? {
                Some(content) => !content.raw.get().starts_with('['),
                None => true,
            };
            let parts = content(message, Speaker::Tool, writer)?;
            let result = ToolResult {
                parts,
                failed: false,
                plain,
            };
            writer.result(id, result)?;
        }
        _ => return Err(role.refuse(Problem::NotOneOf(ROLES))),
    }
    Ok(())
}

fn instruct<'a, W: RequestWriter<'a>>(
    message: &Object<'a, '_>,
    instructor: Instructor,
    writer: &mut W,
) -> Result<(), Error> {
    let parts = content(message, Speaker::Instructor, writer)?;
    if !parts.is_empty() {
        writer.instruct(instructor, parts);
    }
    Ok(())
}

fn assistant<'a, W: RequestWriter<'a>>(
    message: &Object<'a, '_>,
    writer: &mut W,
) -> Result<(), Error> {
    for name in ["function_call", "audio"] {
        if let Some(value) = message.get(name)? {
            return Err(value.refuse(Problem::Unsupported));
        }
    }
    let mut parts = parts(message, Speaker::Assistant, writer)?;
    if let Some(refusal) = optional(message, "refusal")? {
        let (path, json) = (Path::Key(&message.path, "refusal"), Cow::Borrowed(refusal));
        parts.extend(writer.text(Voice::RefusalField, Text { path, json })?);
    }
    // The mark of a message is at its end.
    let mark = Mark::read(message)?;
    let calls = message.get("tool_calls")?;
    let list = match &calls {
        Some(calls) => calls.objects()?,
        None => Vec::new(),
    };
    if list.is_empty() {
        mark_last(writer, &mut parts, mark);
    }
    if !parts.is_empty() {
        writer.assistant(parts);
    }
    let last = list.len().saturating_sub(1);
    for (index, fields) in list.into_iter().enumerate() {
        let list = Path::Key(&message.path, "tool_calls");
        let path = Path::Index(&list, index);
        call(
            &Object { path, fields },
            mark.filter(|_| index == last),
            writer,
        )?;
    }
    Ok(())
}

fn call<'a, W: RequestWriter<'a>>(
    call: &Object<'a, '_>,
    mark: Option<Mark>,
    writer: &mut W,
) -> Result<(), Error> {
    let custom = is_custom(call, W::CUSTOM_TOOLS)?;
    let id = Text::read(&call.need("id")?)?;
    if id.is_empty() {
        return Err(id.path.refuse(Problem::Empty));
    }
    let called = call.need(field(custom))?.object()?;
    let name = Cow::Borrowed(literal(&called.need("name")?)?);
    let arguments = if custom {
        Arguments::Free(Cow::Borrowed(literal(&called.need("input")?)?))
    } else {
        match called.get("arguments")?.map(|it| Text::read(&it)) {
            Some(text) => Some(text?).filter(|text| !text.is_empty()),
            None => None,
        }
        .map_or(Arguments::None, Arguments::Encoded)
    };
    let mark = match mark {
        None => Mark::read(call)?,
        mark => mark,
    };
    writer.call(Called {
        id,
        name,
        arguments,
        mark,
    })
}

/// Returns whether a tool or a call of one takes free text. One without a type is a function.
fn is_custom(object: &Object<'_, '_>, allowed: bool) -> Result<bool, Error> {
    let Some(kind) = object.get("type")? else {
        return Ok(false);
    };
    match &*kind.string()? {
        "function" => Ok(false),
        "custom" if allowed => Ok(true),
        _ => Err(kind.refuse(Problem::Unsupported)),
    }
}

/// Returns the field with the function, or with the tool that takes free text.
const fn field(custom: bool) -> &'static str {
    if custom { "custom" } else { "function" }
}

/// The author of a message's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaker {
    Instructor,
    User,
    Assistant,
    Tool,
}

/// Returns the parts of a message. The mark of the message is put on the last of them.
fn content<'a, W: RequestWriter<'a>>(
    message: &Object<'a, '_>,
    speaker: Speaker,
    writer: &W,
) -> Result<Vec<W::Part>, Error> {
    let mut parts = parts(message, speaker, writer)?;
    mark_last(writer, &mut parts, Mark::read(message)?);
    Ok(parts)
}

fn mark_last<'a, W: RequestWriter<'a>>(writer: &W, parts: &mut [W::Part], mark: Option<Mark>) {
    if let (Some(mark), Some(last)) = (mark, parts.last_mut()) {
        writer.mark(last, mark);
    }
}

/// Returns the parts of a content. Empty texts are left out.
fn parts<'a, W: RequestWriter<'a>>(
    message: &Object<'a, '_>,
    speaker: Speaker,
    writer: &W,
) -> Result<Vec<W::Part>, Error> {
    let mut parts = Vec::new();
    let Some(content) = message.get("content")? else {
        return Ok(parts);
    };
    let voice = match speaker {
        Speaker::Assistant => Voice::Model,
        _ => Voice::Caller,
    };
    let text = |voice, value: &Value<'a, '_>| match Text::read(value)? {
        text if text.is_empty() => Ok(None),
        text => writer.text(voice, text),
    };
    if !content.raw.get().starts_with('[') {
        if inner(content.raw).is_none() {
            return Err(content.wrong_type("string or array"));
        }
        parts.extend(text(voice, &content)?);
        return Ok(parts);
    }
    for (index, fields) in content.objects()?.into_iter().enumerate() {
        let path = Path::Index(&content.path, index);
        let part = Object { path, fields };
        let kind = part.need("type")?;
        let read = match (&*kind.string()?, speaker) {
            ("text", _) => text(voice, &part.need("text")?)?,
            ("refusal", Speaker::Assistant) => text(Voice::Refusal, &part.need("refusal")?)?,
            ("image_url", Speaker::User | Speaker::Tool) => Some(image(&part, writer)?),
            ("file", Speaker::User | Speaker::Tool) => Some(file(&part, writer)?),
            _ => return Err(kind.refuse(Problem::Unsupported)),
        };
        parts.extend(read);
        mark_last(writer, &mut parts, Mark::read(&part)?);
    }
    Ok(parts)
}

fn image<'a, W: RequestWriter<'a>>(part: &Object<'a, '_>, writer: &W) -> Result<W::Part, Error> {
    let image = part.need("image_url")?;
    // Some clients send the URL instead of the object that contains it.
    if image.raw.get().starts_with('"') {
        let (url, detail) = (Text::read(&image)?, None);
        return writer.image(Image { url, detail });
    }
    let image = image.object()?;
    writer.image(Image {
        url: Text::read(&image.need("url")?)?,
        detail: optional(&image, "detail")?.map(Cow::Borrowed),
    })
}

fn file<'a, W: RequestWriter<'a>>(part: &Object<'a, '_>, writer: &W) -> Result<W::Part, Error> {
    let file = part.need("file")?.object()?;
    if let Some(id) = file.get("file_id")? {
        return Err(id.refuse(Problem::Unsupported));
    }
    writer.file(File {
        name: optional(&file, "filename")?.map(Cow::Borrowed),
        data: Text::read(&file.need("file_data")?)?,
    })
}

/// Reads `tools`, `tool_choice` and `parallel_tool_calls`. If there are no tools, the other two fields have no effect
/// and are left out.
fn tools<'a>(
    fields: &Object<'a, '_>,
    custom_tools: bool,
    settings: &mut Settings<'a>,
) -> Result<(), Error> {
    if let Some(list) = fields.get("tools")? {
        for (index, fields) in list.objects()?.into_iter().enumerate() {
            let path = Path::Index(&list.path, index);
            let tool = tool(&Object { path, fields }, custom_tools)?;
            settings.tools.push(tool);
        }
    }
    if settings.tools.is_empty() {
        return Ok(());
    }
    if let Some(choice) = fields.get("tool_choice")? {
        settings.choice = Some(choose(&choice, custom_tools, &settings.tools)?);
    }
    let parallel = fields.get("parallel_tool_calls")?;
    settings.parallel = parallel.map(|flag| flag.flag()).transpose()?;
    Ok(())
}

fn tool<'a>(tool: &Object<'a, '_>, custom_tools: bool) -> Result<Tool<'a>, Error> {
    let custom = is_custom(tool, custom_tools)?;
    let of = tool.need(field(custom))?.object()?;
    let takes = if custom {
        Takes::Text(custom_format(&of)?)
    } else {
        let schema = of.get("parameters")?;
        Takes::Arguments {
            typed: schema.is_none(),
            schema: match schema {
                None => no_parameters(),
                Some(schema) => is_object(&schema)?,
            },
            strict: of.get("strict")?.map(|flag| flag.flag()).transpose()?,
        }
    };
    Ok(Tool {
        name: Cow::Borrowed(literal(&of.need("name")?)?),
        description: optional(&of, "description")?.map(Cow::Borrowed),
        takes,
        mark: Mark::read(tool)?.or(Mark::read(&of)?),
    })
}

/// Returns the format of a custom tool's input, as the responses format has it: there a grammar is one level higher.
fn custom_format<'a>(custom: &Object<'a, '_>) -> Result<Option<Json<'a>>, Error> {
    let Some(format) = custom.get("format")? else {
        return Ok(None);
    };
    let raw = format.raw;
    let format = format.object()?;
    let Some(grammar) = format.get("grammar")? else {
        return Ok(Some(Cow::Borrowed(raw)));
    };
    let grammar = grammar.object()?;
    let (syntax, definition) = (
        literal(&grammar.need("syntax")?)?,
        literal(&grammar.need("definition")?)?,
    );
    Ok(Some(made(format!(
        "{{\"type\":\"grammar\",\"syntax\":{},\"definition\":{}}}",
        syntax.get(),
        definition.get()
    ))))
}

fn choose<'a>(
    choice: &Value<'a, '_>,
    custom_tools: bool,
    tools: &[Tool<'a>],
) -> Result<Choice<'a>, Error> {
    if choice.raw.get().starts_with('"') {
        return match &*choice.string()? {
            "auto" => Ok(Choice::Auto),
            "none" => Ok(Choice::None),
            "required" => Ok(Choice::Required),
            _ => Err(choice.refuse(Problem::NotOneOf("none, auto, required"))),
        };
    }
    let choice = choice.object()?;
    if choice.need("type")?.string()? != "allowed_tools" {
        return Ok(Choice::Tool(named(&choice, custom_tools, None)?));
    }
    let allowed = choice.need("allowed_tools")?.object()?;
    let mode = allowed.need("mode")?;
    let required = match &*mode.string()? {
        "auto" => false,
        "required" => true,
        _ => return Err(mode.refuse(Problem::NotOneOf("auto, required"))),
    };
    let (list, mut allowed) = (allowed.need("tools")?, Vec::new());
    let known: HashSet<&str> = tools.iter().map(|tool| tool.name.get()).collect();
    for (index, fields) in list.objects()?.into_iter().enumerate() {
        let path = Path::Index(&list.path, index);
        allowed.push(named(&Object { path, fields }, custom_tools, Some(&known))?);
    }
    Ok(Choice::Allowed {
        required,
        tools: allowed,
    })
}

/// Returns the name of a tool. Refuses a name that is not among the `known` ones.
fn named<'a>(
    tool: &Object<'a, '_>,
    custom_tools: bool,
    known: Option<&HashSet<&str>>,
) -> Result<Named<'a>, Error> {
    let custom = is_custom(tool, custom_tools)?;
    let of = tool.need(field(custom))?.object()?;
    let value = of.need("name")?;
    let name = literal(&value)?;
    if known.is_some_and(|known| !known.contains(name.get())) {
        return Err(value.refuse(Problem::NotOneOf("the names in tools")));
    }
    let name = Cow::Borrowed(name);
    Ok(Named { name, custom })
}
