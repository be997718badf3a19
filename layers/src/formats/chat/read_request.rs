//! Reads a request in the Chat Completions format.

use std::{borrow::Cow, collections::HashSet};

use serde_json::value::RawValue;

use crate::{
    call::Format,
    error::{Error, Problem},
    formats::{
        text::{Json, inner, literal, made, optional},
        turn::request::{
            AnswerFormat, Arguments, Called, Choice, Effort, File, Image, Instructor, Mark, Named,
            RequestWriter, Settings, Speaker, Takes, Text, Tool, ToolResult, Vendor, Voice,
            check_names, is_object, no_parameters, number, stop_sequences, string_field,
        },
        wire::{Object, Value},
    },
    path::Path,
};

const ROLES: &str = "system, developer, user, assistant, tool";

/// Reads a request in the Chat Completions format, and passes its conversation to the writer.
///
/// # Errors
/// [`Error::Invalid`], which names a field that has the wrong type or that the vendor's format cannot express.
pub(crate) fn read_request<'a, W: RequestWriter<'a>>(
    fields: &Object<'a, '_>,
    to: &Vendor<'_>,
    writer: &mut W,
) -> Result<Settings<'a>, Error> {
    check_names(fields, Format::Chat, Problem::Unsupported)?;
    check_choices(fields)?;
    check_modalities(fields)?;
    let messages = fields.need("messages")?;
    for message in messages.objects()? {
        Messages { writer }.message(&message)?;
    }
    let mut settings = Settings {
        output_tokens: output_tokens(fields)?,
        top_k: number(fields, "top_k")?,
        stops: stops(fields, W::STOPS_MAX)?,
        verbosity: string_field(fields, "verbosity")?,
        ..Settings::read_openai(fields, "messages")?
    };
    if let Some(effort) = fields.get("reasoning_effort")? {
        let (field, word) = ("reasoning_effort", effort.string()?);
        settings.effort = Some(Effort { field, word });
    }
    if let Some(format) = fields.object("response_format")? {
        let nested = Some("json_schema");
        let refusal = Problem::Unsupported;
        settings.format = AnswerFormat::read(&format, nested, to.dialect, refusal)?;
    }
    tools(fields, W::CUSTOM_TOOLS, &mut settings)?;
    Ok(settings)
}

/// Refuses requests for several choices or for log probabilities, which the response would not contain.
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

/// Returns the limit of output tokens, for which the format has two fields. Refuses a request in which the two fields
/// differ.
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

/// Reads the messages of a request, and passes them to the writer.
struct Messages<'w, W> {
    writer: &'w mut W,
}

impl<'a, W: RequestWriter<'a>> Messages<'_, W> {
    fn message(&mut self, message: &Object<'a, '_>) -> Result<(), Error> {
        let role = message.need("role")?;
        match &*role.string()? {
            "system" => self.instruct(message, Instructor::System)?,
            "developer" => self.instruct(message, Instructor::Developer)?,
            "user" => {
                let parts = self.content(message, Speaker::User)?;
                self.writer.user(parts);
            }
            "assistant" => self.assistant(message)?,
            "tool" => {
                let id = Text::read(&message.need("tool_call_id")?)?;
                let plain = match message.get("content")? {
                    Some(content) => !content.raw.get().starts_with('['),
                    None => true,
                };
                let parts = self.content(message, Speaker::Tool)?;
                let result = ToolResult {
                    parts,
                    failed: false,
                    plain,
                };
                self.writer.result(id, result)?;
            }
            _ => return Err(role.refuse(Problem::NotOneOf(ROLES))),
        }
        Ok(())
    }

    fn instruct(&mut self, message: &Object<'a, '_>, instructor: Instructor) -> Result<(), Error> {
        let parts = self.content(message, Speaker::Instructor(instructor))?;
        if !parts.is_empty() {
            self.writer.instruct(instructor, parts);
        }
        Ok(())
    }

    fn assistant(&mut self, message: &Object<'a, '_>) -> Result<(), Error> {
        for name in ["function_call", "audio"] {
            if let Some(value) = message.get(name)? {
                return Err(value.refuse(Problem::Unsupported));
            }
        }
        let mut parts = self.parts(message, Speaker::Assistant)?;
        if let Some(refusal) = optional(message, "refusal")? {
            let (path, json) = (Path::Key(&message.path, "refusal"), Cow::Borrowed(refusal));
            parts.extend(self.writer.text(Voice::RefusalField, Text { path, json })?);
        }
        // A message's cache mark applies to the end of the message: its last tool call or part.
        let mark = Mark::read(message)?;
        let calls = message.get("tool_calls")?;
        let calls = calls.as_ref().map(Value::objects).transpose()?;
        let list: Vec<Object<'_, '_>> = calls.into_iter().flatten().collect();
        if list.is_empty() {
            self.writer.mark_last(&mut parts, mark);
        }
        if !parts.is_empty() {
            self.writer.assistant(parts);
        }
        let last = list.len().saturating_sub(1);
        for (index, object) in list.iter().enumerate() {
            self.call(object, mark.filter(|_| index == last))?;
        }
        Ok(())
    }

    fn call(&mut self, call: &Object<'a, '_>, mark: Option<Mark>) -> Result<(), Error> {
        let custom = is_custom(call, W::CUSTOM_TOOLS)?;
        let id = Text::read(&call.need("id")?)?;
        if id.is_empty() {
            return Err(id.path.refuse(Problem::Empty));
        }
        let called = call.need_object(field(custom))?;
        let name = called.need_literal("name")?;
        let arguments = if custom {
            Arguments::Free(called.need_literal("input")?)
        } else {
            let text = called.get("arguments")?.map(|it| Text::read(&it));
            let text = text.transpose()?.filter(|text| !text.is_empty());
            text.map_or(Arguments::None, Arguments::Encoded)
        };
        let mark = match mark {
            None => Mark::read(call)?,
            mark => mark,
        };
        self.writer.call(Called {
            id,
            name,
            arguments,
            mark,
        })
    }

    /// Returns the parts of a message. The cache mark of the message is put on its last part.
    fn content(&self, message: &Object<'a, '_>, speaker: Speaker) -> Result<Vec<W::Part>, Error> {
        let mut parts = self.parts(message, speaker)?;
        self.writer.mark_last(&mut parts, Mark::read(message)?);
        Ok(parts)
    }

    /// Returns the parts of a content. Empty texts are left out.
    fn parts(&self, message: &Object<'a, '_>, speaker: Speaker) -> Result<Vec<W::Part>, Error> {
        let mut parts = Vec::new();
        let Some(content) = message.get("content")? else {
            return Ok(parts);
        };
        let voice = speaker.voice();
        if !content.raw.get().starts_with('[') {
            if inner(content.raw).is_none() {
                return Err(content.wrong_type("string or array"));
            }
            parts.extend(self.writer.string(voice, &content)?);
            return Ok(parts);
        }
        for part in content.objects()? {
            let kind = part.need("type")?;
            let read = match (&*kind.string()?, speaker) {
                ("text", _) => self.writer.string(voice, &part.need("text")?)?,
                ("refusal", Speaker::Assistant) => {
                    self.writer.string(Voice::Refusal, &part.need("refusal")?)?
                }
                ("image_url", Speaker::User | Speaker::Tool) => Some(self.image(&part)?),
                ("file", Speaker::User | Speaker::Tool) => Some(self.file(&part)?),
                _ => return Err(kind.refuse(Problem::Unsupported)),
            };
            parts.extend(read);
            self.writer.mark_last(&mut parts, Mark::read(&part)?);
        }
        Ok(parts)
    }

    fn image(&self, part: &Object<'a, '_>) -> Result<W::Part, Error> {
        let image = part.need("image_url")?;
        // Some clients send the URL instead of the object that contains it.
        if image.raw.get().starts_with('"') {
            let (url, detail) = (Text::read(&image)?, None);
            return self.writer.image(Image { url, detail });
        }
        let image = image.object()?;
        self.writer.image(Image {
            url: Text::read(&image.need("url")?)?,
            detail: optional(&image, "detail")?.map(Cow::Borrowed),
        })
    }

    fn file(&self, part: &Object<'a, '_>) -> Result<W::Part, Error> {
        let file = part.need_object("file")?;
        if let Some(id) = file.get("file_id")? {
            return Err(id.refuse(Problem::Unsupported));
        }
        self.writer.file(File {
            name: optional(&file, "filename")?.map(Cow::Borrowed),
            data: Text::read(&file.need("file_data")?)?,
        })
    }
}

/// Returns whether a tool, or a tool call, takes free text. A tool without a type is a function.
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

/// Returns the name of the field that describes the tool: a tool that takes free text if `custom`, otherwise a
/// function.
const fn field(custom: bool) -> &'static str {
    if custom { "custom" } else { "function" }
}

/// Reads `tools`, `tool_choice` and `parallel_tool_calls`. If there are no tools, the other two fields have no effect
/// and are left out.
fn tools<'a>(
    fields: &Object<'a, '_>,
    custom_tools: bool,
    settings: &mut Settings<'a>,
) -> Result<(), Error> {
    if let Some(list) = fields.get("tools")? {
        for object in list.objects()? {
            settings.tools.push(tool(&object, custom_tools)?);
        }
    }
    if settings.tools.is_empty() {
        return Ok(());
    }
    if let Some(choice) = fields.get("tool_choice")? {
        settings.choice = Some(choose(&choice, custom_tools, &settings.tools)?);
    }
    settings.parallel = fields.flag("parallel_tool_calls")?;
    Ok(())
}

fn tool<'a>(tool: &Object<'a, '_>, custom_tools: bool) -> Result<Tool<'a>, Error> {
    let custom = is_custom(tool, custom_tools)?;
    let of = tool.need_object(field(custom))?;
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
            strict: of.flag("strict")?,
        }
    };
    Ok(Tool {
        name: of.need_literal("name")?,
        description: optional(&of, "description")?.map(Cow::Borrowed),
        takes,
        mark: Mark::read(tool)?.or(Mark::read(&of)?),
    })
}

/// Returns the `format` of a custom tool's input in the form of the Responses format, in which a grammar is one level
/// higher.
fn custom_format<'a>(custom: &Object<'a, '_>) -> Result<Option<Json<'a>>, Error> {
    let Some(format) = custom.get("format")? else {
        return Ok(None);
    };
    let raw = format.raw;
    let format = format.object()?;
    let Some(grammar) = format.object("grammar")? else {
        return Ok(Some(Cow::Borrowed(raw)));
    };
    let (syntax, definition) = (
        grammar.need_literal("syntax")?,
        grammar.need_literal("definition")?,
    );
    Ok(Some(made(format!(
        "{{\"type\":\"grammar\",\"syntax\":{syntax},\"definition\":{definition}}}"
    ))))
}

fn choose<'a>(
    choice: &Value<'a, '_>,
    custom_tools: bool,
    tools: &[Tool<'a>],
) -> Result<Choice<'a>, Error> {
    if choice.raw.get().starts_with('"') {
        return Choice::read_word(choice);
    }
    let choice = choice.object()?;
    if choice.need("type")?.string()? != "allowed_tools" {
        return Ok(Choice::Tool(named(&choice, custom_tools, None)?));
    }
    let allowed = choice.need_object("allowed_tools")?;
    let required = Choice::read_mode(&allowed)?;
    let known: HashSet<&str> = tools.iter().map(|tool| tool.name.get()).collect();
    let list = allowed.need("tools")?;
    let tools = list
        .objects()?
        .map(|tool| named(&tool, custom_tools, Some(&known)));
    let tools = tools.collect::<Result<_, _>>()?;
    Ok(Choice::Allowed { required, tools })
}

/// Returns the name of a tool. Refuses a name that is not in `known`.
fn named<'a>(
    tool: &Object<'a, '_>,
    custom_tools: bool,
    known: Option<&HashSet<&str>>,
) -> Result<Named<'a>, Error> {
    let custom = is_custom(tool, custom_tools)?;
    let of = tool.need_object(field(custom))?;
    let value = of.need("name")?;
    let name = literal(&value)?;
    if known.is_some_and(|known| !known.contains(name.get())) {
        return Err(value.refuse(Problem::NotOneOf("the tool names in 'tools'")));
    }
    let name = Cow::Borrowed(name);
    Ok(Named { name, custom })
}
