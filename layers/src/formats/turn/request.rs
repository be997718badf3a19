//! The neutral form of a request, which the reader of a caller's format passes to the writer of a vendor's format.
//!
//! The conversation is passed piece by piece, so that it is not stored twice. The settings follow at its end. Texts,
//! numbers and schemas are slices of the caller's body, as written there. The reader decides what the caller's format
//! means. The writer decides what the vendor's format cannot carry.

use std::{borrow::Cow, collections::HashSet};

use bytes::Bytes;
use serde_json::value::RawValue;

pub(crate) use super::{
    answer_format::AnswerFormat,
    cache::{CacheSettings, Mark},
    fields::check_names,
};
use crate::{
    call::Format,
    error::{Error, Problem},
    formats::{
        capsule,
        text::{Json, inner, joined, literal, made, quoted, string},
        wire::{Fields, Object, RequestCx, Value, compact},
        {chat, messages, responses},
    },
    model::Dialect,
    path::Path,
};

/// A line feed, as written in a JSON string.
pub(crate) const LINE_FEED: &str = "\\n";

/// Translates the body of a request from the format `caller` to the format `vendor`, for the vendor with this name.
///
/// # Errors
/// [`Error::Invalid`], which names a field that has the wrong type or that the vendor's format cannot express.
pub fn translate(
    caller: Format,
    vendor: Format,
    body: &[u8],
    name: &str,
    cx: &RequestCx<'_>,
) -> Result<Bytes, Error> {
    let raw: &RawValue = serde_json::from_slice(body).map_err(|error| {
        let place = format!("{}:{}", error.line(), error.column());
        Error::invalid("", Problem::NotJson(place))
    })?;
    let path = Path::Root;
    let fields = Value { path, raw }.object()?;
    let to = Vendor {
        name,
        dialect: cx.dialect,
        // In the Messages format, consecutive messages of the same role are one turn.
        turns: caller == Format::Messages,
        requested: body.len(),
    };
    match vendor {
        Format::Chat => pass(caller, &fields, &to, chat::RequestWriter::new(cx, to.turns)),
        Format::Messages => pass(caller, &fields, &to, messages::RequestWriter::new(cx)),
        Format::Responses => {
            let writer = responses::RequestWriter::new(cx, to.turns);
            pass(caller, &fields, &to, writer)
        }
    }
}

/// Reads a request in the format `caller`, and passes it to the writer.
fn pass<'a, W: RequestWriter<'a>>(
    caller: Format,
    fields: &Object<'a, '_>,
    to: &Vendor<'_>,
    mut writer: W,
) -> Result<Bytes, Error> {
    let settings = match caller {
        Format::Chat => chat::read_request(fields, to, &mut writer)?,
        Format::Messages => messages::read_request(fields, to, &mut writer)?,
        Format::Responses => responses::read_request(fields, to, &mut writer)?,
    };
    writer.finish(settings, to.requested)
}

/// The vendor for which a request is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vendor<'v> {
    /// The operator's name for the vendor. Capsules contain it.
    pub(crate) name: &'v str,
    pub(crate) dialect: &'v Dialect,
    /// Whether the caller's format has turns. In such a format, consecutive pieces of one role belong together, and a
    /// tool result answers a tool call of the turn before. In other formats, each piece is independent, and tool
    /// results are matched to tool calls by their ids.
    pub(crate) turns: bool,
    /// The length of the caller's request in bytes.
    pub(crate) requested: usize,
}

impl Vendor<'_> {
    /// Returns the vendor's state in the proof of reasoning. `None` if the reasoning is left out, because the proof is
    /// not a capsule or belongs to another vendor. `Some(None)` if the reasoning has no proof: it is passed on without
    /// a state.
    pub(crate) fn state(&self, proof: &str) -> Option<Option<String>> {
        if proof.is_empty() {
            return Some(None);
        }
        capsule::open(proof, self.name).map(Some)
    }
}

/// Writes a request in the format of its vendor.
pub(crate) trait RequestWriter<'a>: Sized {
    /// The maximum number of stop sequences that vendors of the format accept. 0 if the format has none.
    const STOPS_MAX: usize;
    /// Whether the format has tools that take free text.
    const CUSTOM_TOOLS: bool;
    /// A part of a message's content, in the vendor's format.
    type Part;

    /// Translates a text to a part of a message. `None` if the text is left out.
    fn text(&self, voice: Voice, text: Text<'a, '_>) -> Result<Option<Self::Part>, Error>;
    fn image(&self, image: Image<'a, '_>) -> Result<Self::Part, Error>;
    /// Translates a document that is attached to the request.
    fn file(&self, file: File<'a, '_>) -> Result<Self::Part, Error>;
    /// Marks the part up to which the vendor should cache the prompt. Does nothing if the format has no marks.
    fn mark(&self, _part: &mut Self::Part, _mark: Mark) {}

    /// Marks the last of the parts, if there is one.
    fn mark_last(&self, parts: &mut [Self::Part], mark: Option<Mark>) {
        if let (Some(mark), Some(last)) = (mark, parts.last_mut()) {
            self.mark(last, mark);
        }
    }
    /// Translates a string to a part of a message. `None` if the string is empty or left out.
    fn string(&self, voice: Voice, value: &Value<'a, '_>) -> Result<Option<Self::Part>, Error> {
        match Text::read(value)? {
            text if text.is_empty() => Ok(None),
            text => self.text(voice, text),
        }
    }
    /// Adds instructions. `parts` is not empty.
    fn instruct(&mut self, instructor: Instructor, parts: Vec<Self::Part>);
    /// Adds content of the user. `parts` may be empty.
    fn user(&mut self, parts: Vec<Self::Part>);
    /// Adds text of the model. `parts` is not empty.
    fn assistant(&mut self, parts: Vec<Self::Part>);
    /// Adds reasoning of the model: the state that the vendor needs back, and the text that people can read.
    fn reasoning(&mut self, state: Option<String>, texts: Vec<Json<'a>>);
    /// Adds a tool call of the model.
    fn call(&mut self, call: Called<'a, '_>) -> Result<(), Error>;
    /// Adds the result of a tool call.
    fn result(&mut self, id: Text<'a, '_>, result: ToolResult<Self::Part>) -> Result<(), Error>;

    /// Returns the JSON of the request. `requested` is the length of the caller's request in bytes.
    fn finish(self, settings: Settings<'a>, requested: usize) -> Result<Bytes, Error>;
}

/// A JSON string in the request, with its path.
#[derive(Clone, Debug)]
pub(crate) struct Text<'a, 'p> {
    pub(crate) path: Path<'p>,
    pub(crate) json: Json<'a>,
}

impl<'a, 'p> Text<'a, 'p> {
    /// Reads a value, which must be a string.
    pub(crate) fn read(value: &Value<'a, 'p>) -> Result<Self, Error> {
        let (path, json) = (value.path, Cow::Borrowed(literal(value)?));
        Ok(Self { path, json })
    }

    pub(crate) fn is_empty(&self) -> bool {
        inner(&self.json) == Some("")
    }

    /// Returns the text with its JSON escapes decoded.
    pub(crate) fn decoded(&self) -> Result<Cow<'a, str>, Error> {
        let path = self.path;
        match &self.json {
            Cow::Borrowed(raw) => Value { path, raw }.string(),
            Cow::Owned(raw) => {
                let text = Value { path, raw }.string()?;
                Ok(Cow::Owned(text.into_owned()))
            }
        }
    }
}

/// The origin of a text in the conversation: the caller, or a refusal by the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Voice {
    /// The caller's text: instructions, content of the user, or the result of a tool.
    Caller,
    Model,
    /// A refusal by the model, within the message's content.
    Refusal,
    /// A refusal by the model, in a field next to the content.
    RefusalField,
}

/// The place of instructions in the request: a field, or a message with a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instructor {
    /// The instructions are in a field of the request.
    Request,
    /// The instructions are in a message with the role `system`.
    System,
    /// The instructions are in a message with the role `developer`.
    Developer,
}

/// The author of a message's content, in the Chat Completions and Responses formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaker {
    Instructor(Instructor),
    User,
    Assistant,
    Tool,
}

impl Speaker {
    /// Returns the origin of the texts in this author's content.
    pub(crate) const fn voice(self) -> Voice {
        match self {
            Self::Assistant => Voice::Model,
            Self::Instructor(_) | Self::User | Self::Tool => Voice::Caller,
        }
    }
}

/// An image: a `data:` URL, or a URL from which the vendor fetches the image.
#[derive(Debug)]
pub(crate) struct Image<'a, 'p> {
    pub(crate) url: Text<'a, 'p>,
    pub(crate) detail: Option<Json<'a>>,
}

/// An attached document, as a `data:` URL.
#[derive(Debug)]
pub(crate) struct File<'a, 'p> {
    pub(crate) name: Option<Json<'a>>,
    pub(crate) data: Text<'a, 'p>,
}

/// A tool call in the conversation.
#[derive(Debug)]
pub(crate) struct Called<'a, 'p> {
    pub(crate) id: Text<'a, 'p>,
    pub(crate) name: Json<'a>,
    pub(crate) arguments: Arguments<'a, 'p>,
    pub(crate) mark: Option<Mark>,
}

/// The arguments of a tool call.
#[derive(Debug)]
pub(crate) enum Arguments<'a, 'p> {
    None,
    /// The arguments are JSON that is encoded as a string.
    Encoded(Text<'a, 'p>),
    /// The arguments are a JSON object.
    Object(&'a RawValue),
    /// The argument is free text.
    Free(Json<'a>),
}

impl<'a> Arguments<'a, '_> {
    /// Returns the arguments as JSON that is encoded as a string.
    pub(crate) fn encoded(self) -> Json<'a> {
        match self {
            Self::None => string("{}"),
            Self::Encoded(text) => text.json,
            Self::Object(input) => string(&compact(input)),
            Self::Free(text) => string(&wrapped(&text)),
        }
    }
}

/// Returns the free text as the arguments of a function that takes one text: a JSON object.
pub(crate) fn wrapped(free: &RawValue) -> String {
    format!("{{\"input\":{}}}", free.get())
}

/// The result of a tool call in the conversation.
#[derive(Debug)]
pub(crate) struct ToolResult<P> {
    pub(crate) parts: Vec<P>,
    /// Whether the tool call has failed.
    pub(crate) failed: bool,
    /// Whether the texts of the result are one text instead of a list of parts.
    pub(crate) plain: bool,
}

/// Joins the texts of a tool's result to one text. It begins with `Error` if the tool has failed.
pub(crate) fn result_text(texts: Vec<Json<'_>>, failed: bool) -> Json<'_> {
    let text = lines(texts);
    let inner = inner(&text).unwrap_or_default();
    match (failed, inner.is_empty()) {
        (false, _) => text,
        (true, true) => string("Error"),
        (true, false) => quoted(&["Error: ", inner]),
    }
}

/// The settings of a request, that is, everything except the conversation. Numbers and literals are as written by the
/// caller.
#[derive(Debug, Default)]
pub(crate) struct Settings<'a> {
    /// The name of the field with the conversation, for error messages.
    pub(crate) conversation: &'static str,
    pub(crate) stream: bool,
    /// The limit of output tokens that the caller wants, if it may be lower than the limit that the hold pays for.
    pub(crate) output_tokens: Option<u64>,
    pub(crate) temperature: Option<&'a RawValue>,
    pub(crate) top_p: Option<&'a RawValue>,
    pub(crate) top_k: Option<&'a RawValue>,
    pub(crate) stops: Vec<&'a RawValue>,
    pub(crate) tools: Vec<Tool<'a>>,
    pub(crate) choice: Option<Choice<'a>>,
    /// Whether tool calls may be parallel.
    pub(crate) parallel: Option<bool>,
    pub(crate) effort: Option<Effort<'a>>,
    /// Whether the caller wants to see reasoning.
    pub(crate) thinks: bool,
    pub(crate) format: Option<AnswerFormat<'a>>,
    pub(crate) verbosity: Option<&'a RawValue>,
    pub(crate) user: Option<&'a RawValue>,
    pub(crate) safety_identifier: Option<&'a RawValue>,
    /// The id of the end user. The Messages format has only one field for it.
    pub(crate) user_id: Option<&'a RawValue>,
    pub(crate) metadata: Option<&'a RawValue>,
    pub(crate) cache_key: Option<&'a RawValue>,
    pub(crate) cache: CacheSettings,
}

impl<'a> Settings<'a> {
    /// Reads the settings that have the same name in all formats. `conversation` is the name of the field with the
    /// conversation.
    pub(crate) fn read(fields: &Object<'a, '_>, conversation: &'static str) -> Result<Self, Error> {
        Ok(Self {
            conversation,
            stream: fields.flag("stream")?.unwrap_or(false),
            temperature: number(fields, "temperature")?,
            top_p: number(fields, "top_p")?,
            cache_key: string_field(fields, "prompt_cache_key")?,
            ..Self::default()
        })
    }

    /// Reads the settings that have the same name in the Chat Completions and Responses formats.
    pub(crate) fn read_openai(
        fields: &Object<'a, '_>,
        conversation: &'static str,
    ) -> Result<Self, Error> {
        Ok(Self {
            user: string_field(fields, "user")?,
            safety_identifier: string_field(fields, "safety_identifier")?,
            metadata: fields.get("metadata")?.map(|metadata| metadata.raw),
            cache: CacheSettings::read(fields)?,
            ..Self::read(fields, conversation)?
        })
    }

    /// Removes the tools that must not be called, for formats without a separate list of allowed tools.
    pub(crate) fn keep_allowed(&mut self) {
        let Some(Choice::Allowed { required, tools }) = &self.choice else {
            return;
        };
        let choice = Choice::of_mode(*required);
        let names: HashSet<&str> = tools.iter().map(|tool| tool.name.get()).collect();
        self.tools.retain(|tool| names.contains(tool.name.get()));
        self.choice = (!self.tools.is_empty()).then_some(choice);
    }

    /// Creates a 400 error that names the field with the conversation.
    pub(crate) fn refuse(&self, problem: Problem) -> Error {
        Error::invalid(self.conversation, problem)
    }
}

/// A tool of the request that the caller runs.
#[derive(Debug)]
pub(crate) struct Tool<'a> {
    pub(crate) name: Json<'a>,
    pub(crate) description: Option<Json<'a>>,
    pub(crate) takes: Takes<'a>,
    pub(crate) mark: Option<Mark>,
}

/// The kind of a tool's input.
#[derive(Debug)]
pub(crate) enum Takes<'a> {
    /// The tool takes arguments that match this JSON schema.
    Arguments {
        schema: Json<'a>,
        /// Whether the schema is known to have a field `type`.
        typed: bool,
        strict: Option<bool>,
    },
    /// The tool takes free text, in this format.
    Text(Option<Json<'a>>),
}

/// Returns the schema of a tool that has no parameters.
pub(crate) fn no_parameters() -> Json<'static> {
    made(r#"{"type":"object","properties":{}}"#.to_owned())
}

/// Returns the schema of a tool as written. If it lacks one of these members, the member is inserted at its beginning,
/// because vendors require it. All existing members are kept, because the root of the schema may have `oneOf` or
/// similar fields. If the name of a member cannot be decoded, because it has a lone surrogate, nothing is inserted.
pub(crate) fn with_members<'a>(schema: Json<'a>, required: &[(&str, &str)]) -> Json<'a> {
    let Ok(Fields(fields)) = serde_json::from_str(schema.get()) else {
        return schema;
    };
    let has = |name: &str| fields.iter().any(|(field, _)| field == name);
    let missing = required.iter().filter(|member| !has(member.0));
    let missing: Vec<&str> = missing.map(|member| member.1).collect();
    if missing.is_empty() {
        return schema;
    }
    let comma = if fields.is_empty() { "" } else { "," };
    made(format!(
        "{{{}{comma}{}",
        missing.join(","),
        &schema.get()[1..]
    ))
}

/// The members that vendors require in the schema of a tool.
pub(crate) const SCHEMA_TYPE: (&str, &str) = ("type", r#""type":"object""#);
pub(crate) const SCHEMA_PROPERTIES: (&str, &str) = ("properties", r#""properties":{}"#);

/// Returns the schema of a tool in this field, with all members that vendors require.
pub(crate) fn whole_schema<'a>(tool: &Object<'a, '_>, field: &str) -> Result<Json<'a>, Error> {
    let Some(schema) = tool.get(field)? else {
        return Ok(no_parameters());
    };
    let schema = is_object(&schema)?;
    Ok(with_members(schema, &[SCHEMA_TYPE, SCHEMA_PROPERTIES]))
}

/// Returns the value. Refuses it if it is not an object.
pub(crate) fn is_object<'a>(value: &Value<'a, '_>) -> Result<Json<'a>, Error> {
    match value.raw.get().starts_with('{') {
        true => Ok(Cow::Borrowed(value.raw)),
        false => Err(value.wrong_type("object")),
    }
}

/// Which tools the model may call, or must call.
#[derive(Debug)]
pub(crate) enum Choice<'a> {
    Auto,
    None,
    Required,
    /// The model must call this tool.
    Tool(Named<'a>),
    /// The model may call only these tools, and must call one of them if `required`.
    Allowed {
        required: bool,
        tools: Vec<Named<'a>>,
    },
}

impl Choice<'_> {
    /// Reads a choice that is a word in the Chat Completions and Responses formats.
    pub(crate) fn read_word(choice: &Value<'_, '_>) -> Result<Self, Error> {
        match &*choice.string()? {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            "required" => Ok(Self::Required),
            _ => Err(choice.refuse(Problem::NotOneOf("none, auto, required"))),
        }
    }

    /// Reads the `mode` of a list of allowed tools. Returns whether the model must call one of them.
    pub(crate) fn read_mode(allowed: &Object<'_, '_>) -> Result<bool, Error> {
        let mode = allowed.need("mode")?;
        match &*mode.string()? {
            "auto" => Ok(false),
            "required" => Ok(true),
            _ => Err(mode.refuse(Problem::NotOneOf("auto, required"))),
        }
    }

    pub(crate) const fn of_mode(required: bool) -> Self {
        if required { Self::Required } else { Self::Auto }
    }

    /// Returns whether the model must call a tool.
    pub(crate) const fn is_forced(&self) -> bool {
        matches!(
            self,
            Self::Required | Self::Tool(_) | Self::Allowed { required: true, .. }
        )
    }
}

/// The name of a tool in the request.
#[derive(Debug)]
pub(crate) struct Named<'a> {
    pub(crate) name: Json<'a>,
    pub(crate) custom: bool,
}

/// The reasoning effort that the caller wants, as a word, with the field that contains it.
#[derive(Debug)]
pub(crate) struct Effort<'a> {
    pub(crate) field: &'static str,
    pub(crate) word: Cow<'a, str>,
}

/// The words for the reasoning effort, in all formats.
pub(crate) const EFFORT_NAMES: &str = "none, minimal, low, medium, high, xhigh, max";

/// Reads stop sequences, of which the vendor's format accepts at most `max`. If the format accepts none, they are
/// refused, because the response would not stop where the caller expects it to.
pub(crate) fn stop_sequences<'a>(
    stops: &Value<'a, '_>,
    max: usize,
) -> Result<Vec<&'a RawValue>, Error> {
    let list = stops.array()?;
    if !list.is_empty() && max == 0 {
        return Err(stops.refuse(Problem::NotTranslated));
    }
    if list.len() > max {
        return Err(stops.refuse(Problem::AboveMax(max as u64)));
    }
    for stop in stops.elements()? {
        literal(&stop)?;
    }
    Ok(list)
}

/// Returns a number as written in the request.
pub(crate) fn number<'a>(
    fields: &Object<'a, '_>,
    name: &str,
) -> Result<Option<&'a RawValue>, Error> {
    let value = fields.get(name)?;
    value
        .map(|value| value.number().map(|_| value.raw))
        .transpose()
}

/// Returns a string as written in the request.
pub(crate) fn string_field<'a>(
    fields: &Object<'a, '_>,
    name: &str,
) -> Result<Option<&'a RawValue>, Error> {
    let value = fields.get(name)?;
    value.map(|value| literal(&value)).transpose()
}

/// The lowest maximum length of a user's id among vendors of the Chat Completions and Responses formats.
const USER_CHARS_MAX: usize = 64;

/// Returns the id of the end user. An id that is longer than vendors accept is left out, because a truncated id could
/// be that of another user.
pub(crate) fn short_user_id(id: Option<&RawValue>) -> Option<&RawValue> {
    id.filter(|id| {
        let text = serde_json::from_str::<Cow<'_, str>>(id.get());
        text.is_ok_and(|text| (1..=USER_CHARS_MAX).contains(&text.chars().count()))
    })
}

/// Joins texts with line feeds between them.
pub(crate) fn lines(texts: Vec<Json<'_>>) -> Json<'_> {
    joined(texts, LINE_FEED)
}
