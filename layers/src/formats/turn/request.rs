//! The neutral form of a request: what the reader of a caller's format passes to the writer of a vendor's format.
//!
//! The conversation is passed piece by piece, so that it is not stored twice; the settings follow at its end. Texts,
//! numbers and schemas are spans of the caller's body, as they are written there. The reader decides what the caller's
//! format means; the writer decides what the vendor's format cannot carry.

use std::{borrow::Cow, collections::HashSet};

use bytes::Bytes;
use serde_json::value::RawValue;

pub(crate) use super::cache::{CacheSettings, Mark};
use crate::{
    call::Format,
    error::{Error, Problem},
    formats::{
        capsule,
        text::{Json, inner, joined, literal, made, optional},
        wire::{Fields, Object, RequestCx, Value},
        {chat, messages, responses},
    },
    model::Dialect,
    path::Path,
};

/// A line feed as an escape in a JSON string.
pub(crate) const LINE_FEED: &str = "\\n";

/// Translates the body of a request in the format `caller` to the body of a request in the format `vendor`, for the
/// vendor of this name.
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
        // In the messages format, consecutive messages of a role are one turn.
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

/// Reads a request in the format `caller`, and writes it.
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
    /// The operator's name for the vendor, which capsules contain.
    pub(crate) name: &'v str,
    pub(crate) dialect: &'v Dialect,
    /// Whether the caller's format has turns: consecutive pieces of a role belong together, and a result answers a call
    /// of the turn before it. If not, each piece is independent, and results find their calls by id.
    pub(crate) turns: bool,
    /// The length of the caller's request in bytes.
    pub(crate) requested: usize,
}

impl Vendor<'_> {
    /// Returns the state in the proof of reasoning. `None`: the proof is another vendor's, or no capsule, so that the
    /// reasoning is left out. Reasoning without a proof has no state, but is passed on.
    pub(crate) fn state(&self, proof: &str) -> Option<Option<String>> {
        if proof.is_empty() {
            return Some(None);
        }
        capsule::open(proof, self.name).map(Some)
    }
}

/// Writes a request in the format of a vendor.
pub(crate) trait RequestWriter<'a>: Sized {
    /// The most stop sequences that vendors of the format accept; 0: the format has none.
    const STOPS_MAX: usize;
    /// Whether the format has tools that take a free text.
    const CUSTOM_TOOLS: bool;
    /// A part of the content of a message.
    type Part;

    /// Translates a text to a part of a message; `None` if it is left out.
    fn text(&self, voice: Voice, text: Text<'a, '_>) -> Result<Option<Self::Part>, Error>;
    fn image(&self, image: Image<'a, '_>) -> Result<Self::Part, Error>;
    /// Translates a document that is attached to the request.
    fn file(&self, file: File<'a, '_>) -> Result<Self::Part, Error>;
    /// Marks the part up to which the vendor should cache the prompt, if the format has marks.
    fn mark(&self, _part: &mut Self::Part, _mark: Mark) {}

    /// Adds instructions, which are not empty.
    fn instruct(&mut self, instructor: Instructor, parts: Vec<Self::Part>);
    /// Adds content of the user, which may be empty.
    fn user(&mut self, parts: Vec<Self::Part>);
    /// Adds text of the model, which is not empty.
    fn assistant(&mut self, parts: Vec<Self::Part>);
    /// Adds reasoning of the model: the state that the vendor needs back, and what people can read of it.
    fn reasoning(&mut self, state: Option<String>, texts: Vec<Json<'a>>);
    /// Adds a tool call of the model.
    fn call(&mut self, call: Called<'a, '_>) -> Result<(), Error>;
    /// Adds the result of a tool call.
    fn result(&mut self, id: Text<'a, '_>, result: ToolResult<Self::Part>) -> Result<(), Error>;

    /// Returns the JSON of the request. `asked`: the length of the caller's request in bytes.
    fn finish(self, settings: Settings<'a>, requested: usize) -> Result<Bytes, Error>;
}

/// A JSON string of the request, with its path.
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

    /// Returns the decoded text.
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

/// The origin of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Voice {
    /// A text of the caller: instructions, content of the user, or a tool's result.
    Caller,
    Model,
    /// A refusal in the content of the model.
    Refusal,
    /// A refusal in a field of its own, next to the content.
    RefusalField,
}

/// The origin of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instructor {
    /// A field of the request.
    Request,
    /// A message of the role `system`.
    System,
    /// A message of the role `developer`.
    Developer,
}

/// An image: a `data:` URL, or the URL from which the vendor fetches it.
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

/// A tool call of the conversation.
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
    /// JSON that is encoded as a string.
    Encoded(Text<'a, 'p>),
    /// A JSON object.
    Object(&'a RawValue),
    /// A free text.
    Free(Json<'a>),
}

/// Returns the arguments of a function that takes one text: a JSON object with the free text.
pub(crate) fn wrapped(free: &RawValue) -> String {
    format!("{{\"input\":{}}}", free.get())
}

/// The result of a tool call.
#[derive(Debug)]
pub(crate) struct ToolResult<P> {
    pub(crate) parts: Vec<P>,
    /// Whether the tool has failed.
    pub(crate) failed: bool,
    /// Whether texts of the result are one text, and not a list of parts.
    pub(crate) plain: bool,
}

/// The settings of a request: everything except the conversation. Numbers and literals are as the caller has written
/// them.
#[derive(Debug)]
pub(crate) struct Settings<'a> {
    /// The field with the conversation, for error messages.
    pub(crate) conversation: &'static str,
    pub(crate) stream: bool,
    /// The ceiling of output tokens that the caller wants, if it may be below the one that the hold pays for.
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
    /// The id of the end user, for which the messages format has only one field.
    pub(crate) user_id: Option<&'a RawValue>,
    pub(crate) metadata: Option<&'a RawValue>,
    pub(crate) cache_key: Option<&'a RawValue>,
    pub(crate) cache: CacheSettings,
}

impl<'a> Settings<'a> {
    /// Reads the settings that have the same name in all formats. `conversation`: the field with the conversation.
    pub(crate) fn read(fields: &Object<'a, '_>, conversation: &'static str) -> Result<Self, Error> {
        Ok(Self {
            conversation,
            stream: flag(fields, "stream")?,
            output_tokens: None,
            temperature: number(fields, "temperature")?,
            top_p: number(fields, "top_p")?,
            top_k: None,
            stops: Vec::new(),
            tools: Vec::new(),
            choice: None,
            parallel: None,
            effort: None,
            thinks: false,
            format: None,
            verbosity: None,
            user: None,
            safety_identifier: None,
            user_id: None,
            metadata: None,
            cache_key: string_field(fields, "prompt_cache_key")?,
            cache: CacheSettings::default(),
        })
    }

    /// Leaves out the tools that must not be called, for formats without a separate list of these.
    pub(crate) fn keep_allowed(&mut self) {
        let Some(Choice::Allowed { required, tools }) = &self.choice else {
            return;
        };
        let required = *required;
        let names: HashSet<&str> = tools.iter().map(|tool| tool.name.get()).collect();
        self.tools.retain(|tool| names.contains(tool.name.get()));
        let choice = if required {
            Choice::Required
        } else {
            Choice::Auto
        };
        self.choice = (!self.tools.is_empty()).then_some(choice);
    }

    /// Refuses the conversation.
    pub(crate) fn refuse(&self, problem: Problem) -> Error {
        Error::invalid(self.conversation, problem)
    }
}

/// A tool that the caller runs.
#[derive(Debug)]
pub(crate) struct Tool<'a> {
    pub(crate) name: Json<'a>,
    pub(crate) description: Option<Json<'a>>,
    pub(crate) takes: Takes<'a>,
    pub(crate) mark: Option<Mark>,
}

/// The input of a tool.
#[derive(Debug)]
pub(crate) enum Takes<'a> {
    /// Arguments of this JSON schema.
    Arguments {
        schema: Json<'a>,
        /// Whether the schema is known to have a `type`.
        typed: bool,
        strict: Option<bool>,
    },
    /// A free text of this format.
    Text(Option<Json<'a>>),
}

/// A tool without parameters.
pub(crate) fn no_parameters() -> Json<'static> {
    made(r#"{"type":"object","properties":{}}"#.to_owned())
}

/// Returns the schema of a tool as it is written, with these members at its beginning if it has none of their name.
/// Vendors require them. The root of the schema may have `oneOf` or similar fields, so members are only added.
pub(crate) fn with_members<'a>(schema: Json<'a>, required: &[(&str, &str)]) -> Json<'a> {
    let fields = serde_json::from_str::<Fields<'_>>(schema.get());
    let fields = fields.unwrap_or_default().0;
    let has = |name: &str| fields.iter().any(|(field, _)| field == name);
    let missing: Vec<&str> = required
        .iter()
        .filter(|member| !has(member.0))
        .map(|member| member.1)
        .collect();
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

/// The members of a schema that vendors require.
pub(crate) const SCHEMA_TYPE: (&str, &str) = ("type", r#""type":"object""#);
pub(crate) const SCHEMA_PROPERTIES: (&str, &str) = ("properties", r#""properties":{}"#);

/// Returns the schema of a tool in this field, with all that vendors require.
pub(crate) fn whole_schema<'a>(tool: &Object<'a, '_>, field: &str) -> Result<Json<'a>, Error> {
    let Some(schema) = tool.get(field)? else {
        return Ok(no_parameters());
    };
    let schema = is_object(&schema)?;
    Ok(with_members(schema, &[SCHEMA_TYPE, SCHEMA_PROPERTIES]))
}

/// Returns a value, which must be an object.
pub(crate) fn is_object<'a>(value: &Value<'a, '_>) -> Result<Json<'a>, Error> {
    match value.raw.get().starts_with('{') {
        true => Ok(Cow::Borrowed(value.raw)),
        false => Err(value.wrong_type("object")),
    }
}

/// Which tools the model may or must call.
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
    /// Returns whether the model must call a tool.
    pub(crate) const fn is_forced(&self) -> bool {
        matches!(
            self,
            Self::Required | Self::Tool(_) | Self::Allowed { required: true, .. }
        )
    }
}

/// The name of a tool.
#[derive(Debug)]
pub(crate) struct Named<'a> {
    pub(crate) name: Json<'a>,
    pub(crate) custom: bool,
}

/// The effort of reasoning that the caller wants, as a word, and its field.
#[derive(Debug)]
pub(crate) struct Effort<'a> {
    pub(crate) field: &'static str,
    pub(crate) word: Cow<'a, str>,
}

/// The words for an effort in all formats.
pub(crate) const EFFORT_NAMES: &str = "none, minimal, low, medium, high, xhigh, max";

/// The format that the answer must have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AnswerFormat<'a> {
    /// Any JSON object.
    Object,
    Schema {
        name: Option<&'a RawValue>,
        description: Option<&'a RawValue>,
        schema: &'a RawValue,
        strict: bool,
    },
}

impl<'a> AnswerFormat<'a> {
    /// Reads the format whose type is in `format`, and whose schema is in the field `nested` of it or in it itself.
    /// `refusal`: if the model cannot follow schemas.
    pub(crate) fn read(
        format: &Object<'a, '_>,
        nested: Option<&str>,
        dialect: &Dialect,
        refusal: Problem,
    ) -> Result<Option<Self>, Error> {
        let kind = format.need("type")?;
        match &*kind.string()? {
            "text" => Ok(None),
            "json_object" => Ok(Some(Self::Object)),
            "json_schema" if !dialect.json_schema => Err(kind.refuse(refusal)),
            "json_schema" => match nested {
                None => Self::schema(format),
                Some(nested) => Self::schema(&format.need(nested)?.object()?),
            },
            _ => Err(kind.refuse(Problem::NotOneOf("text, json_object, json_schema"))),
        }
    }

    fn schema(named: &Object<'a, '_>) -> Result<Option<Self>, Error> {
        let schema = named.need("schema")?;
        is_object(&schema)?;
        Ok(Some(Self::Schema {
            name: optional(named, "name")?,
            description: optional(named, "description")?,
            schema: schema.raw,
            strict: flag(named, "strict")?,
        }))
    }
}

/// Refuses a field that is in none of these lists: leaving one out silently could change the answer.
pub(crate) fn check_names(
    fields: &Object<'_, '_>,
    known: &[&[&str]],
    problem: Problem,
) -> Result<(), Error> {
    let is_known = |name: &str| known.iter().any(|list| list.contains(&name));
    for (name, value) in &fields.fields.0 {
        if value.get() != "null" && !is_known(name) {
            return Err(fields.refuse(name, problem));
        }
    }
    Ok(())
}

/// Reads stop sequences, of which the vendor's format has at most `max`. If it has none, the answer would not stop
/// where the caller expects it to.
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
    for (index, raw) in list.iter().copied().enumerate() {
        let path = Path::Index(&stops.path, index);
        literal(&Value { path, raw })?;
    }
    Ok(list)
}

/// Returns a boolean field; false if it is absent.
pub(crate) fn flag(object: &Object<'_, '_>, name: &str) -> Result<bool, Error> {
    object.get(name)?.map_or(Ok(false), |flag| flag.flag())
}

/// Returns a number, as it is written.
pub(crate) fn number<'a>(
    fields: &Object<'a, '_>,
    name: &str,
) -> Result<Option<&'a RawValue>, Error> {
    let Some(value) = fields.get(name)? else {
        return Ok(None);
    };
    value.number()?;
    Ok(Some(value.raw))
}

/// Returns a string, as it is written.
pub(crate) fn string_field<'a>(
    fields: &Object<'a, '_>,
    name: &str,
) -> Result<Option<&'a RawValue>, Error> {
    let value = fields.get(name)?;
    value.map(|value| literal(&value)).transpose()
}

/// The strictest limit on the length of a user's id among vendors of the chat and the responses format.
const USER_CHARS_MAX: usize = 64;

/// Returns the id of the end user. If it is longer than vendors accept, it is left out, because a truncated id could be
/// that of another user.
pub(crate) fn short_user_id(id: Option<&RawValue>) -> Option<&RawValue> {
    id.filter(|id| {
        let text = serde_json::from_str::<Cow<'_, str>>(id.get());
        text.is_ok_and(|text| (1..=USER_CHARS_MAX).contains(&text.chars().count()))
    })
}

/// Joins texts by line feeds.
pub(crate) fn lines(texts: Vec<Json<'_>>) -> Json<'_> {
    joined(texts, LINE_FEED)
}
