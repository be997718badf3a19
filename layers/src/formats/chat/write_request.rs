//! Writes a chat request for a vendor.

use std::{borrow::Cow, collections::HashMap, mem};

use bytes::Bytes;

use super::request_body::{
    Address, Body, CalledFunction, Content, FileData, Function, Message, Part, ResponseFormat,
    Tool, ToolCall, choose,
};
use crate::{
    call::Format,
    error::{Error, Problem},
    formats::{
        chat::state::{Reasoning, Returned},
        text::{Json, inner, joined, quoted, shortened, string},
        turn::request::{
            self, AnswerFormat, Arguments, Called, Choice, File, Image, Instructor, Settings,
            Takes, Text, ToolResult, Voice, lines, no_parameters, short_user_id, wrapped,
        },
        wire::{RequestCx, compact},
    },
    model::SystemRole,
};

/// Collects the messages of a conversation. Results are put directly after the assistant's message with their calls, as
/// the format requires.
#[derive(Debug)]
pub(crate) struct RequestWriter<'a, 'c> {
    cx: &'c RequestCx<'a>,
    /// Whether consecutive pieces of a role are one turn.
    turns: bool,
    reported: Vec<Turn<'a>>,
    /// The index of the assistant's last message.
    last_answer: Option<usize>,
    /// Whether the user's turn has begun after that message.
    user_spoke: bool,
    /// Unless the caller's format has turns: tool calls that have no result yet. By id, the index of the message with
    /// the call.
    open_calls: HashMap<Cow<'a, str>, usize>,
    /// Images and documents of tool results, which tool messages cannot contain; the user's next message begins with
    /// them.
    attached: Vec<Part<'a>>,
    /// State for the calls that follow.
    returned: Returned<'a>,
}

#[derive(Debug)]
enum Turn<'a> {
    Said(Message<'a>),
    Answer(Answer<'a>),
}

/// A message of the assistant: its text, its calls and their results.
#[derive(Debug, Default)]
struct Answer<'a> {
    texts: Vec<Json<'a>>,
    reasoning: Reasoning<'a>,
    tool_calls: Vec<ToolCall<'a>>,
    /// The ids of the calls, as the caller gave them.
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
    /// anything else that follows the results.
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

    /// Returns the assistant's last message, if calls that follow belong to it. Instructions may be put between two
    /// texts of the assistant, but not between calls and their results.
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

    /// Returns the message of the assistant to which a piece belongs: the last one, if it `goes_on`, or a new one.
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
            Turn::Said(_) => unreachable!("it is the index of an answer"),
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
        let text = lines(texts);
        let reported = inner(&text).unwrap_or_default();
        let content = match (reported.is_empty(), result.failed) {
            (false, true) => quoted(&["Error: ", reported]),
            (true, true) => quoted(&["Error"]),
            (true, false) if self.attached.len() > before => quoted(&["See the next message."]),
            (_, false) => text,
        };
        Message::Tool {
            tool_call_id: shortened(id),
            content,
        }
    }
}

impl<'a> request::RequestWriter<'a> for RequestWriter<'a, '_> {
    /// The largest number of stop sequences that chat vendors accept.
    const STOPS_MAX: usize = 4;
    /// Few chat vendors have tools that take free text.
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
        // Sent as one string and with one role, because many chat vendors accept neither a list of parts nor two roles
        // here.
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
        // The capsule with the signature of a call may come after the call.
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
                arguments: match call.arguments {
                    Arguments::None => string("{}"),
                    Arguments::Encoded(text) => text.json,
                    Arguments::Object(input) => string(&compact(input)),
                    Arguments::Free(text) => string(&wrapped(&text)),
                },
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
                // Vendors reject a result without its call, so it becomes a text of the user.
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
        let dialect = self.cx.dialect;
        let chat = Body {
            stop: settings.stops,
            temperature: settings.temperature.filter(|_| dialect.sampling),
            top_p: settings.top_p.filter(|_| dialect.sampling),
            tools: settings.tools.into_iter().map(tool).collect(),
            tool_choice: settings.choice.map(choice),
            parallel_tool_calls: settings.parallel,
            reasoning_effort: settings
                .effort
                .filter(|_| dialect.reasoning_effort)
                .map(|effort| effort.word),
            verbosity: settings.verbosity.filter(|_| dialect.verbosity),
            response_format: settings.format.map(|format| match format {
                AnswerFormat::Object => ResponseFormat::JsonObject,
                AnswerFormat::Schema {
                    name,
                    description,
                    schema,
                    strict,
                } => ResponseFormat::schema(name, description, schema, strict),
            }),
            user: settings.user.or_else(|| short_user_id(settings.user_id)),
            safety_identifier: settings.safety_identifier,
            prompt_cache_key: self.cx.cache_key(settings.cache_key, Format::Chat),
            metadata: settings.metadata,
            ..Body::new(self.cx, messages(self.reported), settings.stream)
        };
        Ok(chat.json(requested))
    }
}

fn messages(turns: Vec<Turn<'_>>) -> Vec<Message<'_>> {
    let mut messages = Vec::with_capacity(turns.len());
    for turn in turns {
        match turn {
            Turn::Said(message) => messages.push(message),
            Turn::Answer(answer) => {
                // Several texts of one turn were one text in the answer, interrupted by other blocks.
                let content = (!answer.texts.is_empty()).then(|| joined(answer.texts, ""));
                let (calls, reasoning) = (answer.tool_calls, answer.reasoning);
                messages.push(Message::assistant(content, calls, reasoning));
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
