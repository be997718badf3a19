//! Writes a request in the Responses format.

use std::{borrow::Cow, collections::HashMap};

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    call::Format as WireFormat,
    error::{Error, Problem},
    formats::{
        capsule,
        text::{Json, made, shortened, string},
        turn::request::{
            self, Arguments, Called, Choice, File, Image, Instructor, Named, Settings, Takes, Text,
            ToolResult, Voice, lines, result_text, short_user_id,
        },
        wire::{ObjectWriter, RequestCx},
    },
    model::SystemRole,
    path::Path,
};

/// Collects the items of a conversation.
#[derive(Debug)]
pub(crate) struct RequestWriter<'a, 'c> {
    cx: &'c RequestCx<'a>,
    /// Whether tool results belong to the tool calls directly before them. If not, they are matched to tool calls by
    /// their ids.
    turns: bool,
    instructions: Option<Json<'a>>,
    items: Vec<Item<'a>>,
    /// Tool calls that have no result yet: by id, whether the tool takes free text.
    calls: HashMap<Cow<'a, str>, bool>,
}

impl<'a, 'c> RequestWriter<'a, 'c> {
    pub(crate) fn new(cx: &'c RequestCx<'a>, turns: bool) -> Self {
        Self {
            cx,
            turns,
            instructions: None,
            items: Vec::new(),
            calls: HashMap::new(),
        }
    }

    fn say(&mut self, role: &'static str, content: Vec<Content<'a>>) {
        if !content.is_empty() {
            self.items.push(Item::Message { role, content });
        }
    }
}

impl<'a> request::RequestWriter<'a> for RequestWriter<'a, '_> {
    const STOPS_MAX: usize = 0;
    const CUSTOM_TOOLS: bool = true;
    type Part = Content<'a>;

    fn text(&self, voice: Voice, text: Text<'a, '_>) -> Result<Option<Content<'a>>, Error> {
        let text = text.json;
        Ok(Some(match voice {
            Voice::Caller => Content::InputText { text },
            Voice::Model => Content::OutputText { text },
            Voice::Refusal | Voice::RefusalField => Content::Refusal { refusal: text },
        }))
    }

    fn image(&self, image: Image<'a, '_>) -> Result<Content<'a>, Error> {
        Ok(Content::InputImage {
            image_url: image.url.json,
            detail: image.detail,
        })
    }

    fn file(&self, file: File<'a, '_>) -> Result<Content<'a>, Error> {
        Ok(Content::InputFile {
            filename: file.name.unwrap_or_else(|| string("document.pdf")),
            file_data: file.data.json,
        })
    }

    fn instruct(&mut self, instructor: Instructor, parts: Vec<Content<'a>>) {
        let written = match instructor {
            Instructor::Request => {
                let texts = parts.into_iter().filter_map(Content::into_text);
                self.instructions = Some(lines(texts.collect()));
                return;
            }
            Instructor::System => SystemRole::System,
            Instructor::Developer => SystemRole::Developer,
        };
        // The role that the vendor accepts, or else the caller's.
        let role = match self.cx.dialect.system_role.unwrap_or(written) {
            SystemRole::System => "system",
            SystemRole::Developer => "developer",
        };
        self.say(role, parts);
    }

    fn user(&mut self, parts: Vec<Content<'a>>) {
        self.say("user", parts);
    }

    fn assistant(&mut self, parts: Vec<Content<'a>>) {
        self.say("assistant", parts);
    }

    /// The vendor's own item is sent back byte for byte.
    fn reasoning(&mut self, state: Option<String>, _: Vec<Json<'a>>) {
        let item = state.filter(|json| capsule::is_of(json, &["reasoning"]));
        let raw = item.and_then(|json| RawValue::from_string(json).ok());
        self.items.extend(raw.map(Item::Raw));
    }

    fn call(&mut self, call: Called<'a, '_>) -> Result<(), Error> {
        if !self.turns {
            let custom = matches!(call.arguments, Arguments::Free(_));
            self.calls.insert(call.id.decoded()?, custom);
        }
        let (call_id, name) = (shortened(call.id.json), shortened(call.name));
        self.items.push(match call.arguments {
            Arguments::Free(input) => Item::CustomToolCall {
                call_id,
                name,
                input,
            },
            arguments => Item::FunctionCall {
                call_id,
                name,
                arguments: arguments.encoded(),
            },
        });
        Ok(())
    }

    fn result(&mut self, id: Text<'a, '_>, result: ToolResult<Content<'a>>) -> Result<(), Error> {
        let custom = if self.turns {
            Some(false)
        } else {
            self.calls.remove(&*id.decoded()?)
        };
        let Some(custom) = custom else {
            // Vendors reject a tool result without its tool call, so the result becomes a text of the user.
            self.user(result.parts);
            return Ok(());
        };
        let (call_id, output) = (shortened(id.json), output(result));
        self.items.push(if custom {
            Item::CustomToolCallOutput { call_id, output }
        } else {
            Item::FunctionCallOutput { call_id, output }
        });
        Ok(())
    }

    fn finish(self, settings: Settings<'a>, requested: usize) -> Result<Bytes, Error> {
        if self.items.is_empty() {
            return Err(settings.refuse(Problem::Empty));
        }
        if settings.top_k.is_some() {
            return Err(Path::Key(&Path::Root, "top_k").refuse(Problem::NotTranslated));
        }
        let (cx, dialect) = (self.cx, self.cx.dialect);
        let effort = settings.effort.filter(|_| dialect.reasoning_effort);
        let reasoning = Reasoning {
            effort: effort.map(|effort| effort.word),
            summary: (settings.thinks && dialect.reasoning_summary).then_some("auto"),
        };
        let text = WishedText {
            format: settings.format.map(|format| format.written(false)),
            verbosity: settings.verbosity,
        };
        let has_text = text.format.is_some() || text.verbosity.is_some();
        let reasons = reasoning.effort.is_some() || reasoning.summary.is_some();
        let least = WireFormat::Responses.output_tokens_min();
        let tools: Vec<Tool<'a>> = settings.tools.into_iter().map(tool).collect();
        let encrypted = settings.thinks && dialect.encrypted_reasoning;
        let safety_identifier = settings
            .safety_identifier
            .or_else(|| short_user_id(settings.user_id));
        let cache_key = cx.cache_key(settings.cache_key, WireFormat::Responses);
        let sampling = |raw: Option<&'a RawValue>| raw.filter(|_| dialect.sampling);
        let mut body = ObjectWriter::new(requested + requested / 8 + 256);
        body.field("model", &cx.model)
            .some("instructions", self.instructions)
            .field("input", &self.items)
            .field("max_output_tokens", &cx.output_tokens.max(least))
            .some("temperature", sampling(settings.temperature))
            .some("top_p", sampling(settings.top_p))
            .list("tools", &tools)
            .some("tool_choice", settings.choice.map(choice))
            .some("parallel_tool_calls", settings.parallel)
            .some("text", has_text.then_some(text))
            .some("reasoning", reasons.then_some(reasoning))
            .some("include", encrypted.then_some([ENCRYPTED_REASONING]))
            // If the vendor stored the response, a request of another caller could refer to it.
            .field("store", &false)
            .some("user", settings.user)
            .some("safety_identifier", safety_identifier)
            .some("prompt_cache_key", cache_key)
            .some("metadata", settings.metadata)
            .some("stream", settings.stream.then_some(true));
        Ok(body.end())
    }
}

/// Returns the output of a tool call: one text, or parts.
fn output<'a>(result: ToolResult<Content<'a>>) -> Output<'a> {
    let ToolResult {
        mut parts, failed, ..
    } = result;
    let is_text = |part: &Content<'_>| matches!(part, Content::InputText { .. });
    if parts.is_empty() || (result.plain && parts.iter().all(is_text)) {
        let texts = parts.into_iter().filter_map(Content::into_text);
        return Output::Text(result_text(texts.collect(), failed));
    }
    if failed {
        let text = string("Error:");
        parts.insert(0, Content::InputText { text });
    }
    Output::Parts(parts)
}

fn tool(tool: request::Tool<'_>) -> Tool<'_> {
    let (name, description) = (shortened(tool.name), tool.description);
    match tool.takes {
        Takes::Arguments { schema, strict, .. } => Tool::Function {
            name,
            description,
            parameters: schema,
            strict: strict.unwrap_or(false),
        },
        Takes::Text(format) => Tool::Custom {
            name,
            description,
            format,
        },
    }
}

fn choice(choice: Choice<'_>) -> Json<'static> {
    match choice {
        Choice::Auto => string("auto"),
        Choice::None => string("none"),
        Choice::Required => string("required"),
        Choice::Tool(tool) => made(named(tool)),
        Choice::Allowed { required, tools } => {
            let mode = if required { "required" } else { "auto" };
            let tools: Vec<String> = tools.into_iter().map(named).collect();
            made(format!(
                "{{\"type\":\"allowed_tools\",\"mode\":\"{mode}\",\"tools\":[{}]}}",
                tools.join(",")
            ))
        }
    }
}

fn named(tool: Named<'_>) -> String {
    let kind = if tool.custom { "custom" } else { "function" };
    let name = shortened(tool.name);
    format!("{{\"type\":\"{kind}\",\"name\":{name}}}")
}

/// The value of `include` that requests encrypted reasoning. The caller must send this reasoning back if the vendor
/// stores nothing.
pub(crate) const ENCRYPTED_REASONING: &str = "reasoning.encrypted_content";

/// An item of the field `input`.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Item<'a> {
    Message {
        role: &'static str,
        content: Vec<Content<'a>>,
    },
    FunctionCall {
        call_id: Json<'a>,
        name: Json<'a>,
        arguments: Json<'a>,
    },
    CustomToolCall {
        call_id: Json<'a>,
        name: Json<'a>,
        input: Json<'a>,
    },
    FunctionCallOutput {
        call_id: Json<'a>,
        output: Output<'a>,
    },
    CustomToolCallOutput {
        call_id: Json<'a>,
        output: Output<'a>,
    },
    /// A reasoning item, exactly as the vendor wrote it.
    #[serde(untagged)]
    Raw(Box<RawValue>),
}

/// The output of a tool call: a text, or parts.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Output<'a> {
    Text(Json<'a>),
    Parts(Vec<Content<'a>>),
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Content<'a> {
    InputText {
        text: Json<'a>,
    },
    OutputText {
        text: Json<'a>,
    },
    Refusal {
        refusal: Json<'a>,
    },
    InputImage {
        image_url: Json<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        detail: Option<Json<'a>>,
    },
    InputFile {
        filename: Json<'a>,
        file_data: Json<'a>,
    },
}

impl<'a> Content<'a> {
    pub(crate) fn into_text(self) -> Option<Json<'a>> {
        match self {
            Self::InputText { text } | Self::OutputText { text } => Some(text),
            _ => None,
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Tool<'a> {
    Function {
        name: Json<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        description: Option<Json<'a>>,
        parameters: Json<'a>,
        /// The value is always sent, because the default is true in this format and false in the other formats.
        strict: bool,
    },
    Custom {
        name: Json<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        description: Option<Json<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        format: Option<Json<'a>>,
    },
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct WishedText<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) format: Option<Json<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verbosity: Option<&'a RawValue>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Reasoning<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) effort: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) summary: Option<&'static str>,
}
