//! Reads a request in the Responses format.

use std::{borrow::Cow, cell::OnceCell, collections::HashSet};

use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::tools::{Tools, flat_name};
use crate::{
    call::Format,
    error::{Error, Problem},
    formats::{
        text::{Json, literal, optional},
        turn::request::{
            AnswerFormat, Arguments, Called, EFFORT_NAMES, Effort, File, Image, Instructor, Mark,
            RequestWriter, Settings, Speaker, Text, ToolResult, Vendor, Voice, check_names,
            string_field,
        },
        wire::{Object, Value},
    },
    path::Path,
};

/// Reads a request in the Responses format, and passes its conversation to the writer.
///
/// # Errors
/// [`Error::Invalid`], which names a field that has the wrong type or that the vendor's format cannot express.
pub(crate) fn read_request<'a, W: RequestWriter<'a>>(
    fields: &Object<'a, '_>,
    to: &Vendor<'_>,
    writer: &mut W,
) -> Result<Settings<'a>, Error> {
    check_names(fields, Format::Responses, Problem::NotTranslated)?;
    check_logprobs(fields)?;
    let tools = Tools::read(fields)?;
    Conversation { to, writer }.read(fields)?;
    let text = fields.object("text")?;
    let (mut format, mut verbosity) = (None, None);
    if let Some(text) = &text {
        verbosity = string_field(text, "verbosity")?;
        if let Some(wanted) = text.object("format")? {
            format = AnswerFormat::read(&wanted, None, to.dialect, Problem::NotTranslated)?;
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
        ..Settings::read_openai(fields, "input")?
    })
}

/// Refuses a request for log probabilities, which the response would not contain.
fn check_logprobs(fields: &Object<'_, '_>) -> Result<(), Error> {
    if let Some(top) = fields.get("top_logprobs")?
        && top.count()? > 0
    {
        return Err(top.refuse(Problem::NotTranslated));
    }
    if let Some(include) = fields.get("include")? {
        for included in include.elements()? {
            if included.raw.get() == "\"message.output_text.logprobs\"" {
                return Err(included.refuse(Problem::NotTranslated));
            }
        }
    }
    Ok(())
}

/// Returns `reasoning.effort`, if its value is a known one.
fn effort<'a>(fields: &Object<'a, '_>) -> Result<Option<Effort<'a>>, Error> {
    let Some(reasoning) = fields.object("reasoning")? else {
        return Ok(None);
    };
    let Some(effort) = reasoning.get("effort")? else {
        return Ok(None);
    };
    let (field, word) = ("reasoning.effort", effort.string()?);
    match EFFORT_NAMES.split(", ").any(|known| known == word) {
        true => Ok(Some(Effort { field, word })),
        false => Err(effort.refuse(Problem::NotOneOf(EFFORT_NAMES))),
    }
}

/// Reads the conversation of a request, and passes it to the writer.
struct Conversation<'w, 'v, W> {
    to: &'w Vendor<'v>,
    writer: &'w mut W,
}

impl<'a, W: RequestWriter<'a>> Conversation<'_, '_, W> {
    /// Reads the fields `instructions` and `input`.
    fn read(&mut self, body: &Object<'a, '_>) -> Result<(), Error> {
        if let Some(instructions) = body.get("instructions")? {
            let text = self.writer.string(Voice::Caller, &instructions)?;
            if let Some(text) = text {
                self.writer.instruct(Instructor::Request, vec![text]);
            }
        }
        let input = body.need("input")?;
        if input.raw.get().starts_with('"') {
            let text = self.writer.text(Voice::Caller, Text::read(&input)?)?;
            self.writer.user(text.into_iter().collect());
            return Ok(());
        }
        let items = input
            .array()
            .map_err(|_| input.wrong_type("string or array"))?;
        let outputs = Outputs::of(&items);
        for (index, raw) in items.iter().enumerate() {
            let path = Path::Index(&input.path, index);
            self.item(&Value { path, raw }.object()?, &outputs)?;
        }
        Ok(())
    }

    fn item(&mut self, item: &Object<'a, '_>, outputs: &Outputs<'a, '_>) -> Result<(), Error> {
        let kind = match item.get("type")? {
            Some(kind) => kind.string()?,
            None if item.get("role")?.is_some() => Cow::Borrowed("message"),
            None => Cow::Borrowed("item_reference"),
        };
        match &*kind {
            "message" => self.message(item),
            "reasoning" => {
                let encrypted = item.get("encrypted_content")?;
                let encrypted = encrypted.map_or(Ok(Cow::Borrowed("")), |it| it.string())?;
                let Some(state) = self.to.state(&encrypted) else {
                    return Ok(());
                };
                self.writer.reasoning(state, reasoning_texts(item)?);
                Ok(())
            }
            // A truncated tool call is left out. If it has an output, the output becomes a text of the user.
            "function_call" | "custom_tool_call" if outputs.lack(item)? => Ok(()),
            "function_call" => {
                let arguments = item.get("arguments")?.map(|it| Text::read(&it));
                let arguments = arguments.transpose()?;
                let arguments = arguments.map_or(Arguments::None, Arguments::Encoded);
                self.call(item, arguments)
            }
            "custom_tool_call" => self.call(item, Arguments::Free(item.need_literal("input")?)),
            "function_call_output" | "custom_tool_call_output" => {
                let output = item.need("output")?;
                let parts = self.parts(&output, Speaker::Tool)?;
                let (failed, plain) = (false, !output.raw.get().starts_with('['));
                let result = ToolResult {
                    parts,
                    failed,
                    plain,
                };
                self.writer.result(call_id(item)?, result)
            }
            // `Tools::read` has already read the tools in these items.
            "additional_tools" => Ok(()),
            _ => Err(item.refuse("type", Problem::NotTranslated)),
        }
    }

    fn call(&mut self, item: &Object<'a, '_>, arguments: Arguments<'a, '_>) -> Result<(), Error> {
        let name = literal(&item.need("name")?)?;
        self.writer.call(Called {
            id: call_id(item)?,
            name: flat_name(optional(item, "namespace")?, name),
            arguments,
            mark: None,
        })
    }

    fn message(&mut self, item: &Object<'a, '_>) -> Result<(), Error> {
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
        let parts = self.parts(&content, role)?;
        match role {
            Speaker::User | Speaker::Tool => self.writer.user(parts),
            _ if parts.is_empty() => {}
            Speaker::Instructor(instructor) => self.writer.instruct(instructor, parts),
            Speaker::Assistant => self.writer.assistant(parts),
        }
        Ok(())
    }

    /// Reads the parts of a content: texts that are not empty, images and documents.
    fn parts(&self, content: &Value<'a, '_>, speaker: Speaker) -> Result<Vec<W::Part>, Error> {
        let mut parts = Vec::new();
        let voice = speaker.voice();
        if content.raw.get().starts_with('"') {
            parts.extend(self.writer.string(voice, content)?);
            return Ok(parts);
        }
        let list = content.elements();
        for part in list.map_err(|_| content.wrong_type("string or array"))? {
            let part = part.object()?;
            let kind = part.need("type")?;
            let read = match (&*kind.string()?, speaker) {
                ("input_text" | "output_text" | "text", _) => {
                    self.writer.string(voice, &part.need("text")?)?
                }
                ("refusal", Speaker::Assistant) => {
                    self.writer.string(Voice::Refusal, &part.need("refusal")?)?
                }
                ("input_image", Speaker::User | Speaker::Tool) => {
                    nothing_remembered(&part)?;
                    Some(self.writer.image(Image {
                        url: Text::read(&part.need("image_url")?)?,
                        detail: optional(&part, "detail")?.map(Cow::Borrowed),
                    })?)
                }
                ("input_file", Speaker::User | Speaker::Tool) => {
                    nothing_remembered(&part)?;
                    Some(self.writer.file(File {
                        name: optional(&part, "filename")?.map(Cow::Borrowed),
                        data: Text::read(&part.need("file_data")?)?,
                    })?)
                }
                _ => return Err(kind.refuse(Problem::NotTranslated)),
            };
            parts.extend(read);
            self.writer.mark_last(&mut parts, Mark::breakpoint(&part)?);
        }
        Ok(parts)
    }
}

/// Returns the reasoning that people can read and that was not summarized.
fn reasoning_texts<'a>(item: &Object<'a, '_>) -> Result<Vec<Json<'a>>, Error> {
    let mut texts = Vec::new();
    if let Some(content) = item.get("content")? {
        for part in content.objects()? {
            texts.extend(optional(&part, "text")?.map(Cow::Borrowed));
        }
    }
    Ok(texts)
}

/// The ids of the tool calls that have an output. Computed only if a tool call is marked as truncated: clients send the
/// items of a response back unchanged, with that mark.
struct Outputs<'a, 'i> {
    items: &'i [&'a RawValue],
    ids: OnceCell<HashSet<Cow<'a, str>>>,
}

impl<'a, 'i> Outputs<'a, 'i> {
    const fn of(items: &'i [&'a RawValue]) -> Self {
        let ids = OnceCell::new();
        Self { items, ids }
    }

    /// Returns whether this tool call was truncated and must be left out: vendors reject incomplete arguments, and tool
    /// calls without an output.
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
        let items = self.items.iter();
        let outputs = items.filter_map(|raw| serde_json::from_str::<Output<'a>>(raw.get()).ok());
        let outputs = outputs.filter(|item| item.kind.ends_with("_call_output"));
        outputs.map(|item| item.call_id).collect()
    }
}

raw_fields! {
    struct Output<'a> {
        ;
        #[serde(borrow, rename = "type")] kind: Cow<'a, str>,
        #[serde(borrow)] call_id: Cow<'a, str>,
    }
}

fn is_object_or_blank(arguments: &str) -> bool {
    let json = arguments.trim_start();
    json.is_empty() || (json.starts_with('{') && serde_json::from_str::<IgnoredAny>(json).is_ok())
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
