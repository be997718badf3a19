//! A format that exists only in these tests, to show what a format needs. It is translated from and to all other
//! formats.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json, value::RawValue};

use super::{
    tests::read,
    turn::{
        Call, Counts, Emit, Event, Reader, Stop, Writer, put,
        request::{
            Arguments, Called, File, Image, Instructor, RequestWriter, Settings, Takes, Text, Tool,
            ToolResult, Voice,
        },
    },
};
use crate::{
    error::Error,
    formats::{
        text::Json,
        wire::{self, Object},
    },
    path::Path,
    sse,
};

/// Reads and writes responses. Each event is an array of its type and its fields. A plain response has the same events
/// as a stream.
#[derive(Debug, Default)]
pub(super) struct Toy;

const STOPS: [Stop; 4] = [Stop::EndTurn, Stop::MaxTokens, Stop::ToolUse, Stop::Refusal];

impl Reader for Toy {
    fn event(&mut self, event: &sse::Event, emit: Emit<'_>) -> Result<(), Error> {
        let data = event.data().expect("data");
        let fields: Value = serde_json::from_slice(&data).expect("JSON");
        let texts = fields.as_array().expect("an array")[1..].iter();
        let texts: Vec<String> = texts
            .map(|field| match field.to_string() {
                json if field.is_string() => json[1..json.len() - 1].to_owned(),
                json => json,
            })
            .collect();
        let number = |index: usize| texts[index].parse().unwrap_or(0);
        let (item, piece) = (number(0), &*texts[texts.len() - 1]);
        let (id, model, fault, implied) = ("\"toy\"", "\"toy\"", None, false);
        emit(match fields[0].as_str().expect("a type") {
            "begin" => Event::Begin { id, model },
            kind @ ("text" | "refusal") => Event::Text(item, kind == "refusal", piece),
            "reasoning" => Event::Reasoning(item, true, piece),
            "call" => {
                let (id, name, custom) = (&*texts[1], &*texts[2], false);
                let call = Call { id, name, custom };
                Event::Call { item, call }
            }
            "arguments" => Event::Arguments { item, piece, fault },
            "done" => Event::Done(item, implied),
            "stop" => Event::Stop(STOPS[item as usize]),
            _ => Event::End(Counts {
                fresh: number(0),
                written: number(1),
                cached: number(2),
                output: number(3),
                reasoning: Some(number(4)),
            }),
        })
    }

    fn end(&mut self, _: Emit<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn answer(&mut self, body: &[u8], emit: Emit<'_>) -> Result<(), Error> {
        read(self, body, body.len(), emit)
    }
}

impl Writer for Toy {
    fn write(&mut self, event: Event<'_>, out: &mut BytesMut) -> Result<(), Error> {
        let fields = match event {
            Event::Text(_, _, "") | Event::Proof(..) | Event::Alive => return Ok(()),
            Event::Begin { .. } => "\"begin\",0".to_owned(),
            Event::Text(item, refusal, piece) => {
                let kind = if refusal { "refusal" } else { "text" };
                format!("\"{kind}\",{item},\"{piece}\"")
            }
            Event::Reasoning(item, _, piece) => format!("\"reasoning\",{item},\"{piece}\""),
            Event::Call { item, call } => {
                format!("\"call\",{item},\"{}\",\"{}\"", call.id, call.name)
            }
            Event::Arguments { item, piece, .. } => format!("\"arguments\",{item},\"{piece}\""),
            Event::Done(item, _) => format!("\"done\",{item}"),
            Event::Stop(stop) => format!("\"stop\",{}", stop as u8),
            Event::End(counts) => format!(
                "\"end\",{},{},{},{},{}",
                counts.fresh,
                counts.written,
                counts.cached,
                counts.output,
                counts.reasoning.unwrap_or(0)
            ),
        };
        put(out, format_args!("data: [{fields}]\n\n"));
        Ok(())
    }
}

/// Writes requests. The list has an array of its type and its fields for each piece of the conversation.
#[derive(Debug, Default)]
pub(super) struct ToyRequest(Vec<Value>);

impl<'a> RequestWriter<'a> for ToyRequest {
    const STOPS_MAX: usize = 0;
    const CUSTOM_TOOLS: bool = false;
    type Part = String;

    fn text(&self, _: Voice, text: Text<'a, '_>) -> Result<Option<String>, Error> {
        Ok(Some(text.decoded()?.into_owned()))
    }
    fn image(&self, image: Image<'a, '_>) -> Result<String, Error> {
        Ok(image.url.decoded()?.into_owned())
    }
    fn file(&self, file: File<'a, '_>) -> Result<String, Error> {
        Ok(file.data.decoded()?.into_owned())
    }
    fn instruct(&mut self, _: Instructor, parts: Vec<String>) {
        self.0.push(json!(["instruct", parts.concat()]));
    }
    fn user(&mut self, parts: Vec<String>) {
        self.0.push(json!(["user", parts.concat()]));
    }
    fn assistant(&mut self, parts: Vec<String>) {
        self.0.push(json!(["assistant", parts.concat()]));
    }
    fn reasoning(&mut self, _: Option<String>, _: Vec<Json<'a>>) {}
    fn call(&mut self, call: Called<'a, '_>) -> Result<(), Error> {
        let input = match &call.arguments {
            Arguments::Encoded(text) => serde_json::from_str(&text.decoded()?).expect("JSON"),
            Arguments::Object(object) => json!(object),
            Arguments::None | Arguments::Free(_) => json!({}),
        };
        self.0.push(json!(["call", call.id.json, call.name, input]));
        Ok(())
    }
    fn result(&mut self, id: Text<'a, '_>, result: ToolResult<String>) -> Result<(), Error> {
        self.0
            .push(json!(["result", id.json, result.parts.concat()]));
        Ok(())
    }
    fn finish(self, settings: Settings<'a>, _: usize) -> Result<Bytes, Error> {
        let tool = |tool: &Tool<'a>| match &tool.takes {
            Takes::Arguments { schema, .. } => json!([tool.name, schema]),
            Takes::Text(_) => json!([tool.name, null]),
        };
        let tools: Vec<_> = settings.tools.iter().map(tool).collect();
        let request = json!({"pieces": self.0, "tools": tools, "stream": settings.stream});
        Ok(request.to_string().into())
    }
}

/// Reads a request in the toy format.
pub(super) fn read_request<'a, W: RequestWriter<'a>>(
    fields: &Object<'a, '_>,
    writer: &mut W,
) -> Result<Settings<'a>, Error> {
    let path = Path::Root;
    let list = |raw: &'a RawValue| wire::Value { path, raw }.array().expect("an array");
    let text = |raw: &'a RawValue| {
        let json = Cow::Borrowed(raw);
        Text { path, json }
    };
    for piece in fields.need("pieces")?.array()?.into_iter().map(list) {
        let last = *piece.last().expect("fields");
        let parts = match piece[0].get() {
            "\"call\"" => None,
            "\"assistant\"" => writer.text(Voice::Model, text(last))?,
            _ => writer.text(Voice::Caller, text(last))?,
        };
        let parts = parts.into_iter().collect();
        match piece[0].get() {
            "\"instruct\"" => writer.instruct(Instructor::System, parts),
            "\"user\"" => writer.user(parts),
            "\"assistant\"" => writer.assistant(parts),
            "\"result\"" => {
                let result = ToolResult {
                    parts,
                    failed: false,
                    plain: true,
                };
                writer.result(text(piece[1]), result)?;
            }
            _ => writer.call(Called {
                id: text(piece[1]),
                name: Cow::Borrowed(piece[2]),
                arguments: Arguments::Object(last),
                mark: None,
            })?,
        }
    }
    let tools = fields.need("tools")?.array()?.into_iter().map(list);
    let tool = |fields: Vec<&'a RawValue>| Tool {
        name: Cow::Borrowed(fields[0]),
        description: None,
        takes: Takes::Arguments {
            schema: Cow::Borrowed(fields[1]),
            typed: true,
            strict: None,
        },
        mark: None,
    };
    Ok(Settings {
        tools: tools.map(tool).collect(),
        ..Settings::read(fields, "pieces")?
    })
}
