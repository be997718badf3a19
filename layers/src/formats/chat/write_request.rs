//! Writes a request in the Chat Completions format.

use std::{borrow::Cow, collections::HashMap, mem};

use bytes::Bytes;
use serde::Serialize;
use serde_json::{json, value::RawValue};

use crate::{
    call::Format,
    error::{Error, Problem},
    formats::{
        chat::state::{Field, Reasoning, Returned},
        text::{Json, inner, joined, made, quoted, shortened, string},
        turn::request::{
            self, Called, Choice, File, Image, Instructor, Settings, Takes, Text, ToolResult,
            Voice, lines, no_parameters, result_text, short_user_id,
        },
        wire::{ObjectWriter, RequestCx},
    },
    model::{OutputField, SystemRole},
};

/// Collects the messages of a conversation. Tool results are put directly after the assistant's message with their tool
/// calls, as the format requires.
#[derive(Debug)]
pub(crate) struct RequestWriter<'a, 'c> {
    cx: &'c RequestCx<'a>,
    /// Whether consecutive pieces with the same role are one turn.
    turns: bool,
    reported: Vec<Turn<'a>>,
    /// The index of the assistant's last message.
    last_answer: Option<usize>,
    /// Whether the user's turn has begun after the assistant's last message.
    user_spoke: bool,
    /// The tool calls without a result: for the id of each call, the index of the message with the call. Not used if
    /// the caller's format has turns.
    open_calls: HashMap<Cow<'a, str>, usize>,
    /// Images and documents of tool results, which tool messages cannot contain; the user's next message begins with
    /// them.
    attached: Vec<Part<'a>>,
    /// State of the vendor that belongs to the tool calls that follow.
    returned: Returned<'a>,
}

#[derive(Debug)]
enum Turn<'a> {
    Said(Message<'a>),
    Answer(Answer<'a>),
}

/// A message of the assistant: its text, its tool calls and their results.
#[derive(Debug, Default)]
struct Answer<'a> {
    texts: Vec<Json<'a>>,
    reasoning: Reasoning<'a>,
    tool_calls: Vec<ToolCall<'a>>,
    /// The ids of the tool calls, as the caller gave them.
    ids: Vec<Cow<'a, str>>,
    results: Vec<Message<'a>>,
}

impl<'a, 'c> RequestWriter<'a, 'c> {
    pub(crate) fn new(cx: &'c RequestCx<'a>, turns: bool) -> Self {
        Self {
            cx,
            turns,
            reported: Vec::new(),
            last_answer: None,
            user_spoke: false,
            open_calls: HashMap::new(),
            attached: Vec::new(),
            returned: Returned::default(),
        }
    }

    fn push(&mut self, message: Message<'a>) {
        self.reported.push(Turn::Said(message));
    }

    /// Adds a message of the user with the images and documents of tool results, if there are any. Called before
    /// anything else is added after the results.
    fn say_attached(&mut self) {
        if !self.attached.is_empty() {
            self.say(Vec::new());
        }
    }

    fn say(&mut self, mut parts: Vec<Part<'a>>) {
        if !self.attached.is_empty() {
            let mut attached = mem::take(&mut self.attached);
            attached.append(&mut parts);
            parts = attached;
        }
        match self.reported.last_mut() {
            Some(Turn::Said(Message::User { content })) if self.turns => content.extend(parts),
            _ => self.push(Message::User {
                content: Content::of(parts),
            }),
        }
    }

    /// Returns the assistant's last message if the next tool calls belong to it. Instructions may be put between two
    /// texts of the assistant, but not between tool calls and their results.
    fn going_on(&mut self) -> Option<&mut Answer<'a>> {
        let index = self.last_answer?;
        let is_last = index + 1 == self.reported.len();
        let Turn::Answer(answer) = &mut self.reported[index] else {
            return None;
        };
        let goes_on = if self.turns {
            !self.user_spoke && (is_last || !answer.tool_calls.is_empty())
        } else {
            is_last && answer.results.is_empty()
        };
        goes_on.then_some(answer)
    }

    /// Returns the message of the assistant to which a piece belongs: the last message if `goes_on` and the message can
    /// still be continued, otherwise a new one.
    fn answer(&mut self, goes_on: bool) -> (usize, &mut Answer<'a>) {
        self.say_attached();
        if !goes_on || self.going_on().is_none() {
            self.last_answer = Some(self.reported.len());
            self.user_spoke = false;
            self.reported.push(Turn::Answer(Answer::default()));
        }
        let index = self.last_answer.unwrap_or_default();
        match &mut self.reported[index] {
            Turn::Answer(answer) => (index, answer),
            Turn::Said(_) => unreachable!("the index is that of an answer"),
        }
    }

    /// Returns the tool message for a result.
    fn tool_message(&mut self, id: Json<'a>, result: ToolResult<Part<'a>>) -> Message<'a> {
        let (mut texts, before) = (Vec::new(), self.attached.len());
        for part in result.parts {
            match part {
                Part::Text { text } => texts.push(text),
                part => self.attached.push(part),
            }
        }
        let mut content = result_text(texts, result.failed);
        if inner(&content) == Some("") && self.attached.len() > before {
            content = quoted(&["See the next message."]);
        }
        Message::Tool {
            tool_call_id: shortened(id),
            content,
        }
    }
}

impl<'a> request::RequestWriter<'a> for RequestWriter<'a, '_> {
    /// The largest number of stop sequences that vendors of the Chat Completions format accept.
    const STOPS_MAX: usize = 4;
    /// Few vendors of the Chat Completions format have tools that take free text.
    const CUSTOM_TOOLS: bool = false;
    type Part = Part<'a>;

    fn text(&self, voice: Voice, text: Text<'a, '_>) -> Result<Option<Part<'a>>, Error> {
        let text = text.json;
        Ok((voice != Voice::RefusalField).then_some(Part::Text { text }))
    }

    fn image(&self, image: Image<'a, '_>) -> Result<Part<'a>, Error> {
        let detail = image.detail.map(|detail| match detail.get() {
            "\"original\"" => string("high"),
            _ => detail,
        });
        let url = image.url.json;
        Ok(Part::ImageUrl {
            image_url: Address { url, detail },
        })
    }

    fn file(&self, file: File<'a, '_>) -> Result<Part<'a>, Error> {
        Ok(Part::File {
            file: FileData {
                filename: file.name.unwrap_or_else(|| string("document.pdf")),
                file_data: file.data.json,
            },
        })
    }

    fn instruct(&mut self, _: Instructor, parts: Vec<Part<'a>>) {
        self.say_attached();
        // Instructions are sent as one string, and all with the same role, because many vendors of the Chat Completions
        // format accept neither a list of parts nor both roles (`system` and `developer`).
        let content = lines(texts_of(parts).collect());
        self.push(match self.cx.dialect.system_role.unwrap_or_default() {
            SystemRole::Developer => Message::Developer { content },
            SystemRole::System => Message::System { content },
        });
    }

    fn user(&mut self, parts: Vec<Part<'a>>) {
        // Reasoning that is followed by a message of the user was not followed by a tool call, so it is not sent.
        drop(self.returned.reasoning());
        self.user_spoke = true;
        self.say(parts);
    }

    fn assistant(&mut self, parts: Vec<Part<'a>>) {
        let turns = self.turns;
        let reasoning = if turns {
            self.returned.reasoning()
        } else {
            Reasoning::default()
        };
        let (_, answer) = self.answer(turns);
        answer.reasoning.append(reasoning);
        answer.texts.extend(texts_of(parts));
    }

    fn reasoning(&mut self, state: Option<String>, texts: Vec<Json<'a>>) {
        self.returned.take(state, texts);
        let goes_on = self.turns && self.going_on().is_some();
        let Some(Turn::Answer(answer)) = self.last_answer.map(|index| &mut self.reported[index])
        else {
            return;
        };
        if goes_on {
            answer.reasoning.append(self.returned.reasoning());
        }
        // The capsule with the signature of a tool call may come after the tool call.
        for (call, id) in answer.tool_calls.iter_mut().zip(&answer.ids) {
            if call.extra_content.is_none() {
                call.extra_content = self.returned.signature(id);
            }
        }
    }

    fn call(&mut self, call: Called<'a, '_>) -> Result<(), Error> {
        let id = call.id.decoded()?;
        let written = ToolCall {
            id: shortened(call.id.json),
            extra_content: self.returned.signature(&id),
            kind: "function",
            function: CalledFunction {
                name: shortened(call.name),
                arguments: call.arguments.encoded(),
            },
        };
        let reasoning = self.returned.reasoning();
        let (index, answer) = self.answer(true);
        answer.reasoning.append(reasoning);
        answer.tool_calls.push(written);
        answer.ids.push(id.clone());
        if !self.turns {
            self.open_calls.insert(id, index);
        }
        Ok(())
    }

    fn result(&mut self, id: Text<'a, '_>, result: ToolResult<Part<'a>>) -> Result<(), Error> {
        let index = if self.turns {
            drop(self.returned.reasoning());
            self.user_spoke = true;
            self.last_answer
        } else {
            let called = self.open_calls.remove(&*id.decoded()?);
            if called.is_none() {
                // Vendors reject a tool result without its tool call, so the result becomes a text of the user.
                self.user(result.parts);
                return Ok(());
            }
            called
        };
        let message = self.tool_message(id.json, result);
        match index.map(|index| &mut self.reported[index]) {
            Some(Turn::Answer(answer)) => answer.results.push(message),
            _ => self.push(message),
        }
        Ok(())
    }

    fn finish(mut self, mut settings: Settings<'a>, requested: usize) -> Result<Bytes, Error> {
        settings.keep_allowed();
        self.say_attached();
        if self.reported.is_empty() {
            return Err(settings.refuse(Problem::Empty));
        }
        let (cx, dialect) = (self.cx, self.cx.dialect);
        let tools: Vec<Tool<'a>> = settings.tools.into_iter().map(tool).collect();
        let effort = settings.effort.filter(|_| dialect.reasoning_effort);
        let user = settings.user.or_else(|| short_user_id(settings.user_id));
        let sampling = |raw: Option<&'a RawValue>| raw.filter(|_| dialect.sampling);
        let verbosity = settings.verbosity.filter(|_| dialect.verbosity);
        let format = settings.format.map(|format| format.written(true));
        let cache_key = cx.cache_key(settings.cache_key, Format::Chat);
        let newer_ceiling = cx.ceiling(OutputField::MaxCompletionTokens);
        let mut body = ObjectWriter::new(requested + requested / 8 + 256);
        body.field("model", &cx.model)
            .some("max_completion_tokens", newer_ceiling)
            .some("max_tokens", cx.ceiling(OutputField::MaxTokens))
            .field("messages", &messages(self.reported))
            .list("stop", &settings.stops)
            .some("temperature", sampling(settings.temperature))
            .some("top_p", sampling(settings.top_p))
            .list("tools", &tools)
            .some("tool_choice", settings.choice.map(choice))
            .some("parallel_tool_calls", settings.parallel)
            .some("reasoning_effort", effort.map(|effort| effort.word))
            .some("verbosity", verbosity)
            .some("response_format", format)
            .some("user", user)
            .some("safety_identifier", settings.safety_identifier)
            .some("prompt_cache_key", cache_key)
            .some("metadata", settings.metadata);
        if settings.stream {
            // The gateway charges a stream by the usage in it, so it always requests usage.
            let options = json!({ "include_usage": true });
            body.field("stream", &true)
                .field("stream_options", &options);
        }
        Ok(body.end())
    }
}

fn messages(turns: Vec<Turn<'_>>) -> Vec<Message<'_>> {
    let mut messages = Vec::with_capacity(turns.len());
    for turn in turns {
        match turn {
            Turn::Said(message) => messages.push(message),
            Turn::Answer(answer) => {
                // Several texts of one turn were one text in the response, interrupted by other blocks, so they are
                // joined.
                let content = (!answer.texts.is_empty()).then(|| joined(answer.texts, ""));
                // Vendors need reasoning back only together with the tool calls that followed it.
                let reasoning = match answer.tool_calls.is_empty() {
                    true => Reasoning::default(),
                    false => answer.reasoning,
                };
                messages.push(Message::Assistant {
                    content,
                    reasoning_content: reasoning.text(Field::ReasoningContent),
                    reasoning: reasoning.text(Field::Reasoning),
                    reasoning_details: reasoning.details,
                    tool_calls: answer.tool_calls,
                });
                messages.extend(answer.results);
            }
        }
    }
    messages
}

fn tool(tool: request::Tool<'_>) -> Tool<'_> {
    let (parameters, strict) = match tool.takes {
        Takes::Arguments { schema, strict, .. } => (schema, strict),
        Takes::Text(_) => (no_parameters(), None),
    };
    Tool::Function {
        function: Function {
            name: shortened(tool.name),
            description: tool.description,
            parameters,
            strict,
        },
    }
}

fn choice(choice: Choice<'_>) -> Json<'_> {
    match choice {
        Choice::Auto => string("auto"),
        Choice::None => string("none"),
        Choice::Required | Choice::Allowed { .. } => string("required"),
        Choice::Tool(tool) => choose(&shortened(tool.name)),
    }
}

fn texts_of<'a>(parts: Vec<Part<'a>>) -> impl Iterator<Item = Json<'a>> {
    parts.into_iter().filter_map(|part| match part {
        Part::Text { text } => Some(text),
        Part::ImageUrl { .. } | Part::File { .. } => None,
    })
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum Tool<'a> {
    Function { function: Function<'a> },
}

#[derive(Debug, Serialize)]
pub(crate) struct Function<'a> {
    pub(crate) name: Json<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) description: Option<Json<'a>>,
    pub(crate) parameters: Json<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) strict: Option<bool>,
}

/// Returns the value of `tool_choice` that requires the tool of this name. The name is a JSON string.
pub(crate) fn choose(name: &RawValue) -> Json<'static> {
    let name = name.get();
    made(format!(
        "{{\"type\":\"function\",\"function\":{{\"name\":{name}}}}}"
    ))
}

/// A message of a Chat Completions request.
#[derive(Debug, Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub(crate) enum Message<'a> {
    System {
        content: Json<'a>,
    },
    Developer {
        content: Json<'a>,
    },
    User {
        content: Content<'a>,
    },
    Assistant {
        /// The content of the message. Null if the message consists of tool calls.
        content: Option<Json<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning_content: Option<Json<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning: Option<Json<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        reasoning_details: Vec<Box<RawValue>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall<'a>>,
    },
    Tool {
        tool_call_id: Json<'a>,
        content: Json<'a>,
    },
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Content<'a> {
    Text(Json<'a>),
    Parts(Vec<Part<'a>>),
}

impl<'a> Content<'a> {
    /// Returns a single text as a string, which every vendor accepts. Returns any other content as a list of parts.
    pub(crate) fn of(parts: Vec<Part<'a>>) -> Self {
        match <[Part<'a>; 1]>::try_from(parts) {
            Ok([Part::Text { text }]) => Self::Text(text),
            Ok([part]) => Self::Parts(vec![part]),
            Err(parts) if parts.is_empty() => Self::Text(quoted(&[])),
            Err(parts) => Self::Parts(parts),
        }
    }

    /// Appends more parts to this content.
    pub(crate) fn extend(&mut self, more: Vec<Part<'a>>) {
        let mut parts = match mem::replace(self, Self::Parts(Vec::new())) {
            Self::Text(text) if inner(&text) == Some("") => Vec::new(),
            Self::Text(text) => vec![Part::Text { text }],
            Self::Parts(parts) => parts,
        };
        parts.extend(more);
        *self = Self::of(parts);
    }
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Part<'a> {
    Text { text: Json<'a> },
    ImageUrl { image_url: Address<'a> },
    File { file: FileData<'a> },
}

#[derive(Debug, Serialize)]
pub(crate) struct Address<'a> {
    pub(crate) url: Json<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<Json<'a>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct FileData<'a> {
    pub(crate) filename: Json<'a>,
    pub(crate) file_data: Json<'a>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ToolCall<'a> {
    pub(crate) id: Json<'a>,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) function: CalledFunction<'a>,
    /// The signature of the tool call, as the vendor wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) extra_content: Option<Box<RawValue>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct CalledFunction<'a> {
    pub(crate) name: Json<'a>,
    pub(crate) arguments: Json<'a>,
}
