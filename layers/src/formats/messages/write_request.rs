//! Writes a request in the Messages format.

use std::{borrow::Cow, collections::HashSet, mem};

use bytes::Bytes;
use serde_json::{json, value::RawValue};

pub(crate) use super::request_body::{Block, Tool, Turn};
use super::request_body::{OutputConfig, OutputFormat, Role, Source, ThinkingField, ToolChoice};
use crate::{
    error::{Error, Problem},
    formats::{
        capsule,
        text::{Json, given},
        turn::request::{
            self, AnswerFormat, Arguments, Called, Choice, EFFORT_NAMES, File, Image, Instructor,
            Mark, SCHEMA_PROPERTIES, SCHEMA_TYPE, Settings, Takes, Text, ToolResult, Voice,
            no_parameters, with_members, wrapped,
        },
        wire::{ObjectWriter, RequestCx},
    },
    model::Thinking,
    path::Path,
};

const IMAGES: &str = "data:image/(jpeg|png|gif|webp);base64,…, https:…";
const FILES: &str = "data:application/pdf;base64,…";

/// For each value of `reasoning_effort`: the effort of the Messages format, and the thinking budget in tokens for
/// models that accept a budget instead.
const EFFORTS: &[(&str, &str, u64)] = &[
    ("minimal", "low", 1024),
    ("low", "low", 2048),
    ("medium", "medium", 8192),
    ("high", "high", 16_384),
    ("xhigh", "xhigh", 32_768),
    ("max", "max", u64::MAX),
];
/// The smallest thinking budget that vendors accept.
const BUDGET_MIN: u64 = 1024;

/// The instruction that replaces `response_format: json_object`, which the Messages format does not have.
pub(crate) const JSON_OBJECT: &str = "Answer with one JSON object and nothing else.";

/// Collects the turns of a conversation.
#[derive(Debug)]
pub(crate) struct RequestWriter<'a, 'c> {
    cx: &'c RequestCx<'a>,
    conversation: Conversation<'a>,
    /// Thinking that waits for the rest of its turn, because vendors reject a turn that ends with thinking.
    thoughts: Vec<Block<'a>>,
}

impl<'a, 'c> RequestWriter<'a, 'c> {
    pub(crate) fn new(cx: &'c RequestCx<'a>) -> Self {
        Self {
            cx,
            conversation: Conversation::default(),
            thoughts: Vec::new(),
        }
    }

    fn answered(
        &mut self,
        blocks: impl IntoIterator<Item = Block<'a>>,
        call: Option<Cow<'a, str>>,
    ) {
        let blocks = self.thoughts.drain(..).chain(blocks);
        self.conversation.answered(blocks, call);
    }

    /// Returns the reasoning that is requested of the vendor.
    fn effort(&self, settings: &Settings<'a>, max_tokens: u64) -> Result<Reasoning, Error> {
        let Some(effort) = &settings.effort else {
            return Ok(Reasoning::default());
        };
        let conversation = &self.conversation;
        let forced = settings.choice.as_ref().is_some_and(Choice::is_forced);
        let may_think = !forced && (!conversation.within_a_turn() || conversation.thought());
        let thinking = self.cx.dialect.thinking;
        Reasoning::of(&effort.word, thinking, max_tokens, may_think).ok_or_else(|| {
            Path::Key(&Path::Root, effort.field).refuse(Problem::NotOneOf(EFFORT_NAMES))
        })
    }
}

impl<'a> request::RequestWriter<'a> for RequestWriter<'a, '_> {
    const STOPS_MAX: usize = usize::MAX;
    const CUSTOM_TOOLS: bool = false;
    type Part = Block<'a>;

    /// A text of only white space is left out, because vendors reject it.
    fn text(&self, voice: Voice, text: Text<'a, '_>) -> Result<Option<Block<'a>>, Error> {
        if voice == Voice::RefusalField {
            return Ok(None);
        }
        let block = Block::text(text.decoded()?);
        Ok(Some(block).filter(|block| !block.is_blank()))
    }

    fn image(&self, image: Image<'a, '_>) -> Result<Block<'a>, Error> {
        let source = image_source(&image.url)?;
        Ok(Block::Image {
            source,
            cache_control: None,
        })
    }

    fn file(&self, file: File<'a, '_>) -> Result<Block<'a>, Error> {
        let url = file.data.decoded()?;
        let data = data_url(&url).filter(|(media_type, _)| media_type == "application/pdf");
        let Some((_, start)) = data else {
            return Err(file.data.path.refuse(Problem::NotOneOf(FILES)));
        };
        let title = match file.name {
            None => None,
            Some(json) => {
                let path = file.data.path;
                Some(Text { path, json }.decoded()?).filter(|name| !name.trim().is_empty())
            }
        };
        Ok(Block::Document {
            source: base64_source("application/pdf", url, start, &file.data.path)?,
            title,
            cache_control: None,
        })
    }

    fn mark(&self, part: &mut Block<'a>, mark: Mark) {
        if let Some(place) = part.mark_mut() {
            *place = Some(mark);
        }
    }

    fn instruct(&mut self, _: Instructor, parts: Vec<Block<'a>>) {
        self.conversation.instruct(parts);
    }

    fn user(&mut self, parts: Vec<Block<'a>>) {
        self.thoughts.clear();
        self.conversation.user(parts);
    }

    fn assistant(&mut self, parts: Vec<Block<'a>>) {
        self.answered(parts, None);
    }

    /// The vendor's own thinking is sent back byte for byte.
    fn reasoning(&mut self, state: Option<String>, _: Vec<Json<'a>>) {
        let blocks = state.and_then(|json| serde_json::from_str::<Vec<Box<RawValue>>>(&json).ok());
        let thinking = blocks
            .unwrap_or_default()
            .into_iter()
            .filter(|block| capsule::is_of(block.get(), &["thinking", "redacted_thinking"]));
        self.thoughts.extend(thinking.map(Block::Raw));
    }

    fn call(&mut self, call: Called<'a, '_>) -> Result<(), Error> {
        let id = call.id.decoded()?;
        let path = call.id.path;
        let given = match call.arguments {
            Arguments::None => None,
            Arguments::Object(object) => Some(object.to_owned()),
            Arguments::Free(text) => RawValue::from_string(wrapped(&text)).ok(),
            Arguments::Encoded(arguments) => {
                let text = arguments.decoded()?;
                let blank = text.trim().is_empty();
                (!blank).then(|| input(&arguments.path, text)).transpose()?
            }
        };
        let json = call.name;
        let block = Block::ToolUse {
            id: vendor_id(id.clone()),
            name: Text { path, json }.decoded()?,
            input: given.unwrap_or_else(|| RawValue::from_string("{}".to_owned()).expect("JSON")),
            cache_control: call.mark,
        };
        self.answered([block], Some(id));
        Ok(())
    }

    fn result(&mut self, id: Text<'a, '_>, result: ToolResult<Block<'a>>) -> Result<(), Error> {
        self.thoughts.clear();
        self.conversation.result(id.decoded()?, result.parts);
        Ok(())
    }

    fn finish(mut self, mut settings: Settings<'a>, requested: usize) -> Result<Bytes, Error> {
        let (cx, dialect) = (self.cx, self.cx.dialect);
        settings.keep_allowed();
        self.conversation.finish();
        if self.conversation.turns.is_empty() {
            return Err(settings.refuse(Problem::NothingSaid));
        }
        let paid_for = cx.output_tokens;
        let wished = settings.output_tokens;
        let max_tokens = wished.map_or(paid_for, |wished| wished.min(paid_for));
        let reasoning = self.effort(&settings, max_tokens)?;
        let mut conversation = self.conversation;
        let format = match settings.format {
            Some(AnswerFormat::Schema { schema, .. }) => Some(OutputFormat::JsonSchema { schema }),
            Some(AnswerFormat::Object) => {
                conversation.system.push(Block::text(JSON_OBJECT));
                None
            }
            None => None,
        };
        let effort = reasoning.effort;
        let has_config = effort.is_some() || format.is_some();
        let output_config = has_config.then_some(OutputConfig { effort, format });
        check_temperature(&settings, dialect.sampling)?;
        // Vendors reject sampling parameters together with thinking, so thinking requests have none.
        let thinks = matches!(reasoning.thinking, Some(ThinkingField::Enabled { .. }));
        let sampling = |raw: Option<&'a RawValue>| raw.filter(|_| dialect.sampling && !thinks);
        let tool_choice = tool_choice(settings.choice, settings.parallel, &settings.tools);
        let mut tools: Vec<Tool<'a>> = settings.tools.into_iter().map(tool).collect();
        settings
            .cache
            .place(&mut tools, &mut conversation, requested, cx);
        let mut ids = [settings.safety_identifier, settings.user, settings.user_id]
            .into_iter()
            .flatten();
        let user_id = ids.find(|id| given(Some(id)).is_some());
        let metadata = user_id.map(|user_id| json!({ "user_id": user_id }));
        settings.stops.retain(|stop| !is_blank(stop));
        let mut body = ObjectWriter::new(requested + 256);
        body.field("model", &cx.model)
            .field("max_tokens", &max_tokens)
            .list("system", &conversation.system)
            .field("messages", &conversation.turns)
            .list("tools", &tools)
            .some("tool_choice", tool_choice)
            .list("stop_sequences", &settings.stops)
            .some("thinking", reasoning.thinking)
            .some("output_config", output_config)
            .some("temperature", sampling(settings.temperature))
            .some("top_p", sampling(settings.top_p))
            .some("top_k", sampling(settings.top_k))
            .some("metadata", metadata)
            .some("stream", settings.stream.then_some(true));
        Ok(body.end())
    }
}

/// Refuses temperatures above 1: in the Messages format, they have another meaning, so they are neither forwarded nor
/// scaled.
fn check_temperature(settings: &Settings<'_>, sampling: bool) -> Result<(), Error> {
    let number = |raw: &RawValue| serde_json::from_str::<f64>(raw.get()).ok();
    let temperature = settings.temperature.filter(|_| sampling).and_then(number);
    match temperature {
        Some(temperature) if temperature > 1.0 => {
            Err(Path::Key(&Path::Root, "temperature").refuse(Problem::AboveMax(1)))
        }
        _ => Ok(()),
    }
}

/// Returns whether a stop sequence is only white space, which vendors reject.
fn is_blank(text: &RawValue) -> bool {
    serde_json::from_str::<Cow<'_, str>>(text.get()).is_ok_and(|text| text.trim().is_empty())
}

/// Returns whether an object has no members.
fn is_empty(object: &RawValue) -> bool {
    object.get()[1..].trim_start().starts_with('}')
}

fn tool(tool: request::Tool<'_>) -> Tool<'_> {
    let (input_schema, strict) = match tool.takes {
        Takes::Arguments {
            schema,
            typed: true,
            strict,
        } => (schema, strict),
        // A schema without members gets all members that vendors require.
        Takes::Arguments { schema, strict, .. } if is_empty(&schema) => (
            with_members(schema, &[SCHEMA_TYPE, SCHEMA_PROPERTIES]),
            strict,
        ),
        Takes::Arguments { schema, strict, .. } => (with_members(schema, &[SCHEMA_TYPE]), strict),
        Takes::Text(_) => (no_parameters(), None),
    };
    Tool {
        name: tool.name,
        description: tool.description,
        input_schema,
        strict: strict.unwrap_or(false),
        cache_control: tool.mark,
    }
}

fn tool_choice<'a>(
    choice: Option<Choice<'a>>,
    parallel: Option<bool>,
    tools: &[request::Tool<'_>],
) -> Option<ToolChoice<'a>> {
    let one_at_a_time = parallel == Some(false) && !tools.is_empty();
    let (kind, name) = match choice {
        None if one_at_a_time => ("auto", None),
        None => return None,
        Some(Choice::Auto) => ("auto", None),
        Some(Choice::None) => ("none", None),
        Some(Choice::Required | Choice::Allowed { .. }) => ("any", None),
        Some(Choice::Tool(tool)) => ("tool", Some(tool.name)),
    };
    Some(ToolChoice {
        kind,
        name,
        // Vendors reject this field if `tool_choice` forbids tool calls.
        disable_parallel_tool_use: one_at_a_time && kind != "none",
    })
}

/// How much reasoning the caller requests.
#[derive(Default)]
struct Reasoning {
    thinking: Option<ThinkingField>,
    effort: Option<&'static str>,
}

impl Reasoning {
    /// Returns the reasoning for the name of an effort; `None` if the name is unknown.
    fn of(name: &str, model: Thinking, max_tokens: u64, may_think: bool) -> Option<Self> {
        let known = EFFORTS.iter().find(|(effort, ..)| *effort == name);
        let Some(&(_, effort, budget)) = known else {
            return match (name, model) {
                ("none", Thinking::None) => Some(Self::default()),
                ("none", _) => Some(Self {
                    thinking: Some(ThinkingField::Disabled),
                    effort: None,
                }),
                _ => None,
            };
        };
        Some(match model {
            Thinking::None => Self::default(),
            Thinking::Effort => Self {
                thinking: None,
                effort: Some(effort),
            },
            Thinking::Budget => {
                // Leaves at least half of the output tokens for the response, unless the smallest budget is larger than
                // half.
                let budget_tokens = budget.min(max_tokens / 2).max(BUDGET_MIN);
                let room = may_think && budget_tokens < max_tokens;
                Self {
                    thinking: room.then_some(ThinkingField::Enabled { budget_tokens }),
                    effort: None,
                }
            }
        })
    }
}

/// A conversation in the Messages format.
///
/// Consecutive turns of the same role are merged. Their blocks keep their order, except that tool results come first.
/// If the request begins with a turn of the assistant, the conversation does, too: no turn is inserted before it.
#[derive(Debug, Default)]
pub(crate) struct Conversation<'a> {
    /// The instructions before the first turn.
    pub(crate) system: Vec<Block<'a>>,
    /// The turns of the conversation, in order.
    turns: Vec<Turn<'a>>,
    /// The ids of tool calls in the assistant's last turn that have no result yet.
    open_calls: HashSet<Cow<'a, str>>,
    /// Later instructions, which will be added to the user's next turn.
    late: Vec<Block<'a>>,
}

impl<'a> Conversation<'a> {
    /// Puts the blocks of each turn in order.
    fn finish(&mut self) {
        self.say_late();
        for turn in &mut self.turns {
            turn.has_results = !turn.results.is_empty();
            turn.results.append(&mut turn.content);
            mem::swap(&mut turn.results, &mut turn.content);
        }
    }

    /// Returns whether the last turn of the assistant begins with thinking that the vendor wrote.
    fn thought(&self) -> bool {
        let mut turns = self.turns.iter().rev();
        let last = turns.find(|turn| turn.role == Role::Assistant);
        last.is_some_and(|turn| matches!(turn.content.first(), Some(Block::Raw(_))))
    }

    /// Iterates over all blocks, in the order in which the vendor reads them.
    pub(super) fn blocks_mut(&mut self) -> impl Iterator<Item = &mut Block<'a>> {
        let turns = self.turns.iter_mut().flat_map(|turn| &mut turn.content);
        self.system.iter_mut().chain(turns)
    }

    /// Returns whether the conversation has a turn of the assistant.
    pub(super) fn is_answered(&self) -> bool {
        let mut turns = self.turns.iter();
        turns.any(|turn| turn.role == Role::Assistant)
    }

    /// Sets this mark at the end of each of the user's last `most` turns, unless the turn's end already has a mark.
    pub(super) fn mark_users_turns(&mut self, most: usize, mark: Mark) {
        let turns = self.turns.iter_mut().rev();
        let users = turns.filter(|turn| turn.role == Role::User).take(most);
        for place in users.filter_map(|turn| turn.content.last_mut()?.mark_mut()) {
            place.get_or_insert(mark);
        }
    }

    /// Adds instructions. Before the first turn, they become the request's instructions. Later ones stay in their place
    /// as a text of the user: moving them to the front would change the beginning of the prompt, which the vendor has
    /// cached.
    fn instruct(&mut self, blocks: Vec<Block<'a>>) {
        let Some(last) = self.turns.last() else {
            return self.system.extend(blocks);
        };
        let goes_on = last.role == Role::User;
        self.late.extend(blocks.into_iter().map(Block::reminder));
        if goes_on {
            self.say_late();
        }
    }

    /// Adds blocks to a turn of the assistant. `call`: the id of the tool call among them.
    fn answered(&mut self, blocks: impl Iterator<Item = Block<'a>>, call: Option<Cow<'a, str>>) {
        // Instructions must not be put between tool calls and their results, so they wait if a result is missing.
        if self.open_calls.is_empty() {
            self.say_late();
        }
        let last = self.turns.last();
        if last.is_none_or(|turn| turn.role != Role::Assistant) {
            self.open_calls.clear();
        }
        self.open_calls.extend(call);
        self.turn(Role::Assistant).content.extend(blocks);
    }

    /// Returns whether the response will continue a turn of the assistant: after a tool result, or after a text that
    /// the caller wrote for the model. Vendors reject thinking in such a response if the turn began without thinking.
    /// The Chat Completions format cannot carry thinking, so all turns of its callers begin without it.
    fn within_a_turn(&self) -> bool {
        let last = self.turns.last();
        last.is_some_and(|turn| turn.role == Role::Assistant || turn.has_results)
    }

    /// Adds a tool result. If the turn before the result lacks its tool call, the result becomes a text of the user,
    /// because vendors reject a result without its tool call; see the test of case 14.
    fn result(&mut self, id: Cow<'a, str>, mut content: Vec<Block<'a>>) {
        if self.open_calls.remove(&*id) {
            // Vendors accept a mark only on the whole tool result, not within it.
            let marks = content.iter_mut().rev();
            let marks: Vec<Mark> = marks.filter_map(|block| block.mark_mut()?.take()).collect();
            self.turn(Role::User).results.push(Block::ToolResult {
                tool_use_id: vendor_id(id),
                content,
                cache_control: marks.first().copied(),
            });
            self.say_late();
        } else {
            self.user(content);
        }
    }

    fn user(&mut self, mut blocks: Vec<Block<'a>>) {
        self.say_late();
        if !blocks.is_empty() {
            self.turn(Role::User).content.append(&mut blocks);
        }
    }

    fn say_late(&mut self) {
        if !self.late.is_empty() {
            let mut late = mem::take(&mut self.late);
            self.turn(Role::User).content.append(&mut late);
        }
    }

    /// Returns the current turn if it has this role; otherwise begins a new turn.
    fn turn(&mut self, role: Role) -> &mut Turn<'a> {
        if self.turns.last().is_none_or(|turn| turn.role != role) {
            self.turns.push(Turn {
                role,
                content: Vec::new(),
                results: Vec::new(),
                has_results: false,
            });
        }
        let last = self.turns.last_mut();
        last.expect("the conversation has at least one turn")
    }
}

fn image_source<'a>(image: &Text<'a, '_>) -> Result<Source<'a>, Error> {
    let url = image.decoded()?;
    if let Some((media_type, start)) = data_url(&url) {
        let media_type = match media_type.as_str() {
            "image/jpeg" | "image/jpg" => "image/jpeg",
            "image/png" => "image/png",
            "image/gif" => "image/gif",
            "image/webp" => "image/webp",
            _ => return Err(image.path.refuse(Problem::NotOneOf(IMAGES))),
        };
        return base64_source(media_type, url, start, &image.path);
    }
    if starts_with(&url, "https://") || starts_with(&url, "http://") {
        return Ok(Source::Url { url });
    }
    Err(image.path.refuse(Problem::NotOneOf(IMAGES)))
}

/// Reads the beginning of a base64 `data:` URL (RFC 2397). Returns the media type, in lower case and without
/// parameters, and the offset at which the data begins.
fn data_url(url: &str) -> Option<(String, usize)> {
    let comma = url.find(',').filter(|_| starts_with(url, "data:"))?;
    let head = url["data:".len()..comma].to_ascii_lowercase();
    let kind = head.strip_suffix(";base64")?;
    let media_type = kind.split(';').next().unwrap_or_default().trim().to_owned();
    Some((media_type, comma + 1))
}

/// Returns the data that begins at the offset `start` of the URL at this path.
fn base64_source<'a>(
    media_type: &'static str,
    url: Cow<'a, str>,
    start: usize,
    path: &Path<'_>,
) -> Result<Source<'a>, Error> {
    let data = match url {
        Cow::Borrowed(url) => Cow::Borrowed(&url[start..]),
        Cow::Owned(mut url) => {
            url.drain(..start);
            Cow::Owned(url)
        }
    };
    match data.is_empty() {
        true => Err(path.refuse(Problem::Empty)),
        false => Ok(Source::Base64 { media_type, data }),
    }
}

fn starts_with(text: &str, scheme: &str) -> bool {
    text.get(..scheme.len())
        .is_some_and(|head| head.eq_ignore_ascii_case(scheme))
}

/// Takes the JSON out of a string without parsing its values, because no numeric type holds every number in it.
fn input(path: &Path<'_>, arguments: Cow<'_, str>) -> Result<Box<RawValue>, Error> {
    match RawValue::from_string(arguments.into_owned()) {
        Ok(json) if json.get().trim_start().starts_with('{') => Ok(json),
        Ok(_) => Err(path.refuse(Problem::WrongType("string with a JSON object in it"))),
        Err(error) => {
            let place = format!("{}:{}", error.line(), error.column());
            Err(path.refuse(Problem::NotJson(place)))
        }
    }
}

/// Returns an id that vendors of the Messages format accept: with letters, digits, `_` and `-`. If the conversation
/// began at another vendor, ids may have other bytes; these are replaced by hex codes, in the same way in a tool call
/// and in its result.
fn vendor_id(id: Cow<'_, str>) -> Cow<'_, str> {
    let taken = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if id.bytes().all(taken) {
        return id;
    }
    let mut written = String::with_capacity(id.len() + 8);
    for byte in id.bytes() {
        if taken(byte) {
            written.push(char::from(byte));
        } else {
            written.push_str(&format!("_{byte:02x}"));
        }
    }
    Cow::Owned(written)
}
