//! Writes a responses request for a vendor.

use std::{borrow::Cow, collections::HashMap};

use bytes::{Bytes, BytesMut};
use serde_json::value::RawValue;

use super::request_body::{
    Body, Content, ENCRYPTED_REASONING, Format, Item, Output, Reasoning, Tool, WishedText,
};
use crate::{
    call::Format as WireFormat,
    error::{Error, Problem},
    formats::{
        capsule,
        text::{Json, inner, made, quoted, shortened, string},
        turn::request::{
            self, AnswerFormat, Arguments, Called, Choice, File, Image, Instructor, Named,
            Settings, Takes, Text, ToolResult, Voice, lines, short_user_id,
        },
        wire::{RequestCx, compact, write_json},
    },
    model::SystemRole,
    path::Path,
};

/// Collects the items of a conversation.
#[derive(Debug)]
pub(crate) struct RequestWriter<'a, 'c> {
    cx: &'c RequestCx<'a>,
    /// Whether results belong to the calls before them. If not, they find their calls by id.
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
        let arguments = match call.arguments {
            Arguments::None => string("{}"),
            Arguments::Encoded(text) => text.json,
            Arguments::Object(input) => string(&compact(input)),
            Arguments::Free(input) => {
                self.items.push(Item::CustomToolCall {
                    call_id,
                    name,
                    input,
                });
                return Ok(());
            }
        };
        self.items.push(Item::FunctionCall {
            call_id,
            name,
            arguments,
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
            // Vendors reject a result without its call, so it becomes a text of the user.
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
            format: settings.format.map(format),
            verbosity: settings.verbosity,
        };
        let responses = Body {
            model: cx.model,
            instructions: self.instructions,
            input: self.items,
            max_output_tokens: cx
                .output_tokens
                .max(WireFormat::Responses.output_tokens_min()),
            temperature: settings.temperature.filter(|_| dialect.sampling),
            top_p: settings.top_p.filter(|_| dialect.sampling),
            tools: settings.tools.into_iter().map(tool).collect(),
            tool_choice: settings.choice.map(choice),
            parallel_tool_calls: settings.parallel,
            text: (text.format.is_some() || text.verbosity.is_some()).then_some(text),
            reasoning: (reasoning.effort.is_some() || reasoning.summary.is_some())
                .then_some(reasoning),
            include: (settings.thinks && dialect.encrypted_reasoning)
                .then_some([ENCRYPTED_REASONING]),
            store: false,
            user: settings.user,
            safety_identifier: settings
                .safety_identifier
                .or_else(|| short_user_id(settings.user_id)),
            prompt_cache_key: cx.cache_key(settings.cache_key, WireFormat::Responses),
            metadata: settings.metadata,
            stream: settings.stream.then_some(true),
        };
        let mut out = BytesMut::with_capacity(requested + requested / 8 + 256);
        write_json(&mut out, &responses);
        Ok(out.freeze())
    }
}

/// Returns the output of a tool call: one text, or parts.
fn output<'a>(result: ToolResult<Content<'a>>) -> Output<'a> {
    let ToolResult {
        mut parts, failed, ..
    } = result;
    let is_text = |part: &Content<'_>| matches!(part, Content::InputText { .. });
    if parts.is_empty() || (result.plain && parts.iter().all(is_text)) {
        let text = lines(parts.into_iter().filter_map(Content::into_text).collect());
        let reported = inner(&text).unwrap_or_default();
        return Output::Text(match (failed, reported.is_empty()) {
            (false, _) => text,
            (true, true) => string("Error"),
            (true, false) => quoted(&["Error: ", reported]),
        });
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

fn format(format: AnswerFormat<'_>) -> Format<'_> {
    match format {
        AnswerFormat::Object => Format::JsonObject,
        AnswerFormat::Schema {
            name,
            description,
            schema,
            strict,
        } => Format::JsonSchema {
            name: name.map_or_else(|| string("answer"), Cow::Borrowed),
            description,
            schema,
            strict,
        },
    }
}
