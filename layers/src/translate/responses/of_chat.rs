//! Translates a chat request to a responses request.

use std::{borrow::Cow, collections::HashMap};

use bytes::{Bytes, BytesMut};
use serde_json::value::RawValue;

use super::{
    body::{Body, Content, Format, Item, Output, Reasoning, Text, Tool},
    tools::NO_PARAMETERS,
    wishes,
};
use crate::{
    error::{Error, Problem},
    model::SystemRole,
    path::Path,
    translate::{
        chat::request::{CACHE, DROPPED, check_choices},
        messages::{
            text::{Json, literal, made, optional, shortened, string},
            turns::tool_id,
        },
        wire::{Object, RequestCx, Value, write_json},
    },
};

/// Fields that are translated. Any other field is refused, unless it is one of those that are left out.
const READ: [&str; 20] = [
    "model",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
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
    "prompt_cache_key",
    "metadata",
];

/// Translates the body of a chat request to the body of a responses request.
///
/// # Errors
/// [`Error::Invalid`], which names a field that has the wrong type or that the responses format cannot express.
pub fn of_chat(body: &[u8], cx: &RequestCx<'_>) -> Result<Bytes, Error> {
    let raw: &RawValue = serde_json::from_slice(body)
        .map_err(|error| Error::invalid("", Problem::NotJson(error.to_string())))?;
    let path = Path::Root;
    let fields = Value { path, raw }.object()?;
    check(&fields)?;
    let dialect = cx.dialect;
    let tools = tools(&fields)?;
    let (mut tool_choice, mut parallel) = (None, None);
    if !tools.is_empty() {
        tool_choice = choice(&fields)?;
        parallel = fields
            .get("parallel_tool_calls")?
            .map(|flag| flag.flag())
            .transpose()?;
    }
    let text = Text {
        format: format(&fields, dialect.json_schema)?,
        verbosity: wishes::text(&fields, "verbosity")?,
    };
    let effort = wishes::text(&fields, "reasoning_effort")?.filter(|_| dialect.reasoning_effort);
    let responses = Body {
        model: cx.model,
        instructions: None,
        input: conversation(&fields.need("messages")?, dialect.system_role)?,
        max_output_tokens: cx
            .output_tokens
            .max(crate::call::Format::Responses.output_tokens_min()),
        temperature: cx.sampling(&fields, "temperature")?,
        top_p: cx.sampling(&fields, "top_p")?,
        tools,
        tool_choice,
        parallel_tool_calls: parallel,
        text: (text.format.is_some() || text.verbosity.is_some()).then_some(text),
        reasoning: effort.map(|effort| Reasoning {
            effort: Some(Cow::Borrowed(effort)),
            summary: None,
        }),
        include: None,
        store: false,
        user: wishes::text(&fields, "user")?,
        safety_identifier: wishes::text(&fields, "safety_identifier")?,
        prompt_cache_key: cx.cache_key(&fields, crate::call::Format::Responses)?,
        metadata: fields.get("metadata")?.map(|metadata| metadata.raw),
        stream: wishes::stream(&fields)?.then_some(true),
    };
    let mut out = BytesMut::with_capacity(body.len() + body.len() / 8 + 256);
    write_json(&mut out, &responses);
    Ok(out.freeze())
}

fn check(fields: &Object<'_, '_>) -> Result<(), Error> {
    for (name, value) in &fields.fields.0 {
        let known = [READ.as_slice(), CACHE, DROPPED]
            .iter()
            .any(|list| list.contains(&&**name));
        if !known && value.get() != "null" {
            return Err(fields.refuse(name, Problem::NotTranslated));
        }
    }
    check_choices(fields)?;
    // The format has no stop sequences, and the answer would not stop where the caller expects it to.
    match fields.get("stop")? {
        Some(stop) if stop.raw.get() != "\"\"" && !is_empty_array(stop.raw) => {
            Err(stop.refuse(Problem::NotTranslated))
        }
        _ => Ok(()),
    }
}

/// Returns whether the value is an empty array.
pub(super) fn is_empty_array(raw: &RawValue) -> bool {
    serde_json::from_str::<[&RawValue; 0]>(raw.get()).is_ok()
}

fn conversation<'a>(
    messages: &Value<'a, '_>,
    asked: Option<SystemRole>,
) -> Result<Vec<Item<'a>>, Error> {
    let (mut items, mut calls) = (Vec::new(), HashMap::new());
    for (index, fields) in messages.objects()?.into_iter().enumerate() {
        let path = Path::Index(&messages.path, index);
        let message = Object { path, fields };
        let role = message.need("role")?;
        match &*role.string()? {
            "system" => say(instructor(asked, "system"), &message, &mut items)?,
            "developer" => say(instructor(asked, "developer"), &message, &mut items)?,
            "user" => say("user", &message, &mut items)?,
            "assistant" => {
                say("assistant", &message, &mut items)?;
                call(&message, &mut items, &mut calls)?;
            }
            "tool" => result(&message, &mut items, &mut calls)?,
            _ => {
                let roles = "system, developer, user, assistant, tool";
                return Err(role.refuse(Problem::NotOneOf(roles)));
            }
        }
    }
    if items.is_empty() {
        return Err(messages.refuse(Problem::Empty));
    }
    Ok(items)
}

/// Returns the role of instructions: the role that the vendor accepts, or else the caller's.
fn instructor(asked: Option<SystemRole>, written: &'static str) -> &'static str {
    match asked {
        None => written,
        Some(SystemRole::System) => "system",
        Some(SystemRole::Developer) => "developer",
    }
}

fn say<'a>(
    role: &'static str,
    message: &Object<'a, '_>,
    items: &mut Vec<Item<'a>>,
) -> Result<(), Error> {
    for name in ["function_call", "audio"] {
        if let Some(value) = message.get(name)? {
            return Err(value.refuse(Problem::NotTranslated));
        }
    }
    let mut content = content(message, role)?;
    if role == "assistant"
        && let Some(refusal) = optional(message, "refusal")?
    {
        let refusal = Cow::Borrowed(refusal);
        content.push(Content::Refusal { refusal });
    }
    if !content.is_empty() {
        items.push(Item::Message { role, content });
    }
    Ok(())
}

/// Returns the parts of a message. Empty texts are left out.
fn content<'a>(message: &Object<'a, '_>, role: &str) -> Result<Vec<Content<'a>>, Error> {
    let (mut list, assistant) = (Vec::new(), role == "assistant");
    let Some(content) = message.get("content")? else {
        return Ok(list);
    };
    let text = |text: &Value<'a, '_>, list: &mut Vec<Content<'a>>| {
        let text = Cow::Borrowed(literal(text)?);
        if text.get() != "\"\"" {
            list.push(if assistant {
                Content::OutputText { text }
            } else {
                Content::InputText { text }
            });
        }
        Ok::<_, Error>(())
    };
    if content.raw.get().starts_with('"') {
        text(&content, &mut list)?;
        return Ok(list);
    }
    let parts = content
        .array()
        .map_err(|_| content.wrong_type("string or array"))?;
    for (index, raw) in parts.into_iter().enumerate() {
        let path = Path::Index(&content.path, index);
        let part = Value { path, raw }.object()?;
        let kind = part.need("type")?;
        match (&*kind.string()?, role) {
            ("text", _) => text(&part.need("text")?, &mut list)?,
            ("refusal", "assistant") => {
                let refusal = Cow::Borrowed(literal(&part.need("refusal")?)?);
                list.push(Content::Refusal { refusal });
            }
            ("image_url", "user" | "tool") => list.push(image(&part)?),
            ("file", "user" | "tool") => list.push(file(&part)?),
            _ => return Err(kind.refuse(Problem::NotTranslated)),
        }
    }
    Ok(list)
}

fn image<'a>(part: &Object<'a, '_>) -> Result<Content<'a>, Error> {
    let image = part.need("image_url")?;
    // Some clients send the URL instead of the object that contains it.
    if image.raw.get().starts_with('"') {
        let image_url = Cow::Borrowed(literal(&image)?);
        return Ok(Content::InputImage {
            image_url,
            detail: None,
        });
    }
    let image = image.object()?;
    Ok(Content::InputImage {
        image_url: Cow::Borrowed(literal(&image.need("url")?)?),
        detail: optional(&image, "detail")?.map(Cow::Borrowed),
    })
}

fn file<'a>(part: &Object<'a, '_>) -> Result<Content<'a>, Error> {
    let file = part.need("file")?.object()?;
    if file.get("file_id")?.is_some() {
        return Err(file.refuse("file_id", Problem::NotTranslated));
    }
    let filename = optional(&file, "filename")?;
    Ok(Content::InputFile {
        filename: filename.map_or_else(|| string("document.pdf"), Cow::Borrowed),
        file_data: Cow::Borrowed(literal(&file.need("file_data")?)?),
    })
}

/// Tool calls that have no result yet: by id, whether the tool takes free text.
type Calls = HashMap<String, bool>;

fn call<'a>(
    message: &Object<'a, '_>,
    items: &mut Vec<Item<'a>>,
    calls: &mut Calls,
) -> Result<(), Error> {
    let Some(list) = message.get("tool_calls")? else {
        return Ok(());
    };
    for (index, fields) in list.objects()?.into_iter().enumerate() {
        let path = Path::Index(&list.path, index);
        let call = Object { path, fields };
        let kind = call.get("type")?;
        let kind = kind.map_or(Ok(Cow::Borrowed("function")), |kind| kind.string())?;
        let id = call.need("id")?;
        let call_id = tool_id(&id)?;
        let custom = match &*kind {
            "function" => false,
            "custom" => true,
            _ => return Err(call.refuse("type", Problem::NotTranslated)),
        };
        let called = call.need(&kind)?.object()?;
        let name = shortened(Cow::Borrowed(literal(&called.need("name")?)?));
        items.push(if custom {
            let input = Cow::Borrowed(literal(&called.need("input")?)?);
            Item::CustomToolCall {
                call_id,
                name,
                input,
            }
        } else {
            let arguments = optional(&called, "arguments")?;
            Item::FunctionCall {
                call_id,
                name,
                arguments: arguments.map_or_else(|| string("{}"), Cow::Borrowed),
            }
        });
        calls.insert(id.string()?.into_owned(), custom);
    }
    Ok(())
}

fn result<'a>(
    message: &Object<'a, '_>,
    items: &mut Vec<Item<'a>>,
    calls: &mut Calls,
) -> Result<(), Error> {
    let id = message.need("tool_call_id")?;
    let found = calls.remove(&*id.string()?);
    let Some(custom) = found else {
        // Vendors reject a result without its call, so it becomes a text of the user.
        let content = content(message, "tool")?;
        if !content.is_empty() {
            let role = "user";
            items.push(Item::Message { role, content });
        }
        return Ok(());
    };
    let whole = message
        .get("content")?
        .filter(|content| content.raw.get().starts_with('"'));
    let output = match whole {
        Some(text) => Output::Text(Cow::Borrowed(literal(&text)?)),
        None => Output::Parts(content(message, "tool")?),
    };
    let output = match output {
        Output::Parts(parts) if parts.is_empty() => Output::Text(string("")),
        output => output,
    };
    let call_id = tool_id(&id)?;
    items.push(if custom {
        Item::CustomToolCallOutput { call_id, output }
    } else {
        Item::FunctionCallOutput { call_id, output }
    });
    Ok(())
}

fn tools<'a>(fields: &Object<'a, '_>) -> Result<Vec<Tool<'a>>, Error> {
    let Some(list) = fields.get("tools")? else {
        return Ok(Vec::new());
    };
    let mut tools = Vec::new();
    for (index, fields) in list.objects()?.into_iter().enumerate() {
        let path = Path::Index(&list.path, index);
        let tool = Object { path, fields };
        // A tool without a type is a function, as in the tool calls of the chat format.
        let custom = match tool.get("type")? {
            None => false,
            Some(kind) => match &*kind.string()? {
                "function" => false,
                "custom" => true,
                _ => return Err(kind.refuse(Problem::NotTranslated)),
            },
        };
        let of = tool
            .need(if custom { "custom" } else { "function" })?
            .object()?;
        let name = shortened(Cow::Borrowed(literal(&of.need("name")?)?));
        let description = optional(&of, "description")?.map(Cow::Borrowed);
        tools.push(if custom {
            Tool::Custom {
                name,
                description,
                format: custom_format(&of)?,
            }
        } else {
            let parameters = of.get("parameters")?;
            Tool::Function {
                name,
                description,
                parameters: match parameters {
                    None => made(NO_PARAMETERS.to_owned()),
                    Some(schema) if schema.raw.get().starts_with('{') => Cow::Borrowed(schema.raw),
                    Some(schema) => return Err(schema.wrong_type("object")),
                },
                strict: of.get("strict")?.map_or(Ok(false), |flag| flag.flag())?,
            }
        });
    }
    Ok(tools)
}

/// Returns the format of a custom tool's input. In the chat format, a grammar is one level deeper.
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

fn choice<'a>(fields: &Object<'a, '_>) -> Result<Option<Json<'a>>, Error> {
    let Some(choice) = fields.get("tool_choice")? else {
        return Ok(None);
    };
    if choice.raw.get().starts_with('"') {
        return match &*choice.string()? {
            "auto" | "none" | "required" => Ok(Some(Cow::Borrowed(choice.raw))),
            _ => Err(choice.refuse(Problem::NotOneOf("none, auto, required"))),
        };
    }
    let choice = choice.object()?;
    if choice.need("type")?.string()? != "allowed_tools" {
        return named(&choice).map(|json| Some(made(json)));
    }
    let allowed = choice.need("allowed_tools")?.object()?;
    let (mode, list) = (literal(&allowed.need("mode")?)?, allowed.need("tools")?);
    let mut tools = Vec::new();
    for (index, fields) in list.objects()?.into_iter().enumerate() {
        let path = Path::Index(&list.path, index);
        tools.push(named(&Object { path, fields })?);
    }
    Ok(Some(made(format!(
        "{{\"type\":\"allowed_tools\",\"mode\":{},\"tools\":[{}]}}",
        mode.get(),
        tools.join(",")
    ))))
}

/// Returns the choice of a tool by its name, which is one level deeper in the chat format.
fn named(tool: &Object<'_, '_>) -> Result<String, Error> {
    let kind = tool.need("type")?;
    let word = kind.string()?;
    if !matches!(&*word, "function" | "custom") {
        return Err(kind.refuse(Problem::NotTranslated));
    }
    let of = tool.need(&word)?.object()?;
    let name = of.need("name")?;
    Ok(format!(
        "{{\"type\":\"{word}\",\"name\":{}}}",
        shortened(Cow::Borrowed(literal(&name)?))
    ))
}

fn format<'a>(fields: &Object<'a, '_>, schemas: bool) -> Result<Option<Format<'a>>, Error> {
    let Some(format) = fields.get("response_format")? else {
        return Ok(None);
    };
    let format = format.object()?;
    let kind = format.need("type")?;
    match &*kind.string()? {
        "text" => Ok(None),
        "json_object" => Ok(Some(Format::JsonObject)),
        "json_schema" if schemas => {
            let named = format.need("json_schema")?.object()?;
            let schema = named.need("schema")?;
            if !schema.raw.get().starts_with('{') {
                return Err(schema.wrong_type("object"));
            }
            let name = optional(&named, "name")?;
            Ok(Some(Format::JsonSchema {
                name: name.map_or_else(|| string("answer"), Cow::Borrowed),
                description: optional(&named, "description")?,
                schema: schema.raw,
                strict: named.get("strict")?.map_or(Ok(false), |flag| flag.flag())?,
            }))
        }
        "json_schema" => Err(kind.refuse(Problem::NotTranslated)),
        _ => Err(kind.refuse(Problem::NotOneOf("text, json_object, json_schema"))),
    }
}
