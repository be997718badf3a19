//! Reads a request in the Messages format.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::{
    call::Format,
    error::{Error, Problem},
    format::BILLING_LINE,
    formats::{
        text::{Json, given, inner, literal, optional, quoted, shortened},
        turn::request::{
            AnswerFormat, Arguments, Called, Choice, Effort, File, Image, Instructor, LINE_FEED,
            Named, RequestWriter, Settings, Takes, Text, Tool, ToolResult, Vendor, Voice,
            check_names, is_object, lines, stop_sequences, string_field, whole_schema,
        },
        wire::{Object, Value},
    },
    path::Path,
};

/// Reads a request in the Messages format, and passes its conversation to the writer.
///
/// # Errors
/// [`Error::Invalid`], which names a field that has the wrong type or that the vendor's format cannot express.
pub(crate) fn read_request<'a, W: RequestWriter<'a>>(
    fields: &Object<'a, '_>,
    to: &Vendor<'_>,
    writer: &mut W,
) -> Result<Settings<'a>, Error> {
    check_names(fields, Format::Messages, Problem::NotTranslated)?;
    let mut conversation = Conversation { to, writer };
    if let Some(system) = fields.get("system")? {
        conversation.instruct(&system, Instructor::Request)?;
    }
    let turns = fields.need("messages")?;
    for turn in turns.elements()? {
        let turn = turn.object()?;
        let content = turn.need("content")?;
        match &*turn.need("role")?.string()? {
            "user" => conversation.user(&content)?,
            "assistant" => conversation.assistant(&content)?,
            // Instructions within the conversation stay in their place, because they apply to what follows them.
            "system" => conversation.instruct(&content, Instructor::Developer)?,
            _ => return Err(turn.refuse("role", Problem::NotOneOf("user, assistant"))),
        }
    }
    let (effort, thinks) = thinking(fields)?;
    let mut settings = Settings {
        effort,
        thinks,
        user_id: user_id(fields)?,
        format: format(fields, to)?,
        ..Settings::read(fields, "messages")?
    };
    if let Some(stops) = fields.get("stop_sequences")? {
        settings.stops = stop_sequences(&stops, W::STOPS_MAX)?;
    }
    tools(fields, &mut settings)?;
    Ok(settings)
}

/// Returns whether the request enables thinking and does not omit it from the response.
#[must_use]
pub fn thinking_asked(body: &[u8]) -> bool {
    let requested = || {
        let raw: &RawValue = serde_json::from_slice(body).ok()?;
        let path = Path::Root;
        let fields = Value { path, raw }.object().ok()?;
        let thinking = fields.object("thinking").ok()??;
        let kind = thinking.get("type").ok()??.string().ok()?;
        let display = match thinking.get("display").ok()? {
            Some(display) => display.string().ok()?,
            None => Cow::Borrowed(""),
        };
        Some(kind != "disabled" && display != "omitted")
    };
    requested().unwrap_or(false)
}

/// Reads the conversation of a request, and passes it to the writer.
struct Conversation<'w, 'v, W> {
    to: &'w Vendor<'v>,
    writer: &'w mut W,
}

impl<'a, W: RequestWriter<'a>> Conversation<'_, '_, W> {
    /// Passes instructions on as one text, because many vendors do not accept a list of parts as instructions.
    fn instruct(&mut self, content: &Value<'a, '_>, instructor: Instructor) -> Result<(), Error> {
        let mut texts = Vec::new();
        blocks(content, |block| match block {
            Block::Text(text) => {
                texts.extend(without_billing_line(text));
                Ok(())
            }
            Block::Other(_, block) => Err(block.refuse("type", Problem::NotOneOf("text"))),
        })?;
        if texts.is_empty() {
            return Ok(());
        }
        let (path, json) = (content.path, lines(texts));
        if let Some(text) = self.writer.text(Voice::Caller, Text { path, json })? {
            self.writer.instruct(instructor, vec![text]);
        }
        Ok(())
    }

    /// Passes a turn of the user on: first the tool results, which must follow their calls directly; then everything else
    /// as one message.
    fn user(&mut self, content: &Value<'a, '_>) -> Result<(), Error> {
        let (mut parts, mut has_results) = (Vec::new(), false);
        blocks(content, |block| match block {
            Block::Other("tool_result", block) => {
                has_results = true;
                self.result(block)
            }
            block => self.part(&block, &mut parts),
        })?;
        if !parts.is_empty() || !has_results {
            self.writer.user(parts);
        }
        Ok(())
    }

    fn result(&mut self, block: &Object<'a, '_>) -> Result<(), Error> {
        let mut parts = Vec::new();
        if let Some(content) = block.get("content")? {
            blocks(&content, |block| match block {
                // The vendor gets all tools anyway, so only the name of the tool that a search found is sent.
                Block::Other("tool_reference", block) => {
                    let name = block.need("tool_name")?;
                    let (path, json) = (name.path, shortened(Cow::Borrowed(literal(&name)?)));
                    parts.extend(self.writer.text(Voice::Caller, Text { path, json })?);
                    Ok(())
                }
                block => self.part(&block, &mut parts),
            })?;
        }
        let result = ToolResult {
            parts,
            failed: block.flag("is_error")?.unwrap_or(false),
            plain: true,
        };
        self.writer
            .result(Text::read(&block.need("tool_use_id")?)?, result)
    }

    /// Passes a turn of the assistant on. Consecutive texts are one message. Thinking never becomes text.
    fn assistant(&mut self, content: &Value<'a, '_>) -> Result<(), Error> {
        let mut texts = Vec::new();
        blocks(content, |block| {
            match block {
                Block::Text(text) => {
                    let (path, json) = (content.path, Cow::Borrowed(text));
                    texts.extend(self.writer.text(Voice::Model, Text { path, json })?);
                }
                Block::Other("tool_use", block) => {
                    self.say(&mut texts);
                    self.call(block)?;
                }
                Block::Other("thinking", block) => {
                    let text = optional(block, "thinking")?.map(Cow::Borrowed);
                    let proof = block.get("signature")?;
                    self.reasoning(proof, text, &mut texts)?;
                }
                Block::Other("redacted_thinking", block) => {
                    self.reasoning(block.get("data")?, None, &mut texts)?;
                }
                Block::Other(_, block) => return Err(block.refuse("type", Problem::NotTranslated)),
            }
            Ok(())
        })?;
        self.say(&mut texts);
        Ok(())
    }

    fn say(&mut self, texts: &mut Vec<W::Part>) {
        if !texts.is_empty() {
            self.writer.assistant(std::mem::take(texts));
        }
    }

    fn reasoning(
        &mut self,
        proof: Option<Value<'a, '_>>,
        text: Option<Json<'a>>,
        texts: &mut Vec<W::Part>,
    ) -> Result<(), Error> {
        let proof = proof.map_or(Ok(Cow::Borrowed("")), |proof| proof.string())?;
        if let Some(state) = self.to.state(&proof) {
            if state.is_some() {
                self.say(texts);
            }
            self.writer.reasoning(state, text.into_iter().collect());
        }
        Ok(())
    }

    fn call(&mut self, block: &Object<'a, '_>) -> Result<(), Error> {
        let input = block.need("input")?;
        is_object(&input)?;
        self.writer.call(Called {
            id: Text::read(&block.need("id")?)?,
            name: block.need_literal("name")?,
            arguments: Arguments::Object(input.raw),
            mark: None,
        })
    }

    /// Translates a text, image or document of a user's message.
    fn part(&self, block: &Block<'a, '_>, parts: &mut Vec<W::Part>) -> Result<(), Error> {
        let path = Path::Root;
        let (kind, block) = match *block {
            Block::Text(text) => {
                let json = Cow::Borrowed(text);
                parts.extend(self.writer.text(Voice::Caller, Text { path, json })?);
                return Ok(());
            }
            Block::Other(kind, block) => (kind, block),
        };
        match kind {
            "image" => {
                let source = block.need_object("source")?;
                let (url, detail) = (image_url(&source)?, None);
                parts.push(self.writer.image(Image { url, detail })?);
            }
            "document" => self.document(block, parts)?,
            "search_result" => {
                let (path, json) = (block.path, search_result(block)?);
                parts.extend(self.writer.text(Voice::Caller, Text { path, json })?);
            }
            _ => return Err(block.refuse("type", Problem::NotTranslated)),
        }
        Ok(())
    }

    fn document(&self, block: &Object<'a, '_>, parts: &mut Vec<W::Part>) -> Result<(), Error> {
        let source = block.need_object("source")?;
        let (title, context) = (optional(block, "title")?, optional(block, "context")?);
        let texts = [title, context].into_iter().flatten();
        let mut heading: Vec<Json<'a>> = texts.map(Cow::Borrowed).collect();
        let say = |json: Json<'a>, parts: &mut Vec<W::Part>| {
            let path = block.path;
            parts.extend(self.writer.text(Voice::Caller, Text { path, json })?);
            Ok::<_, Error>(())
        };
        match &*source.need("type")?.string()? {
            "base64" => {
                let kind = source.need("media_type")?;
                if kind.string()? != "application/pdf" {
                    return Err(kind.refuse(Problem::NotOneOf("application/pdf")));
                }
                if let Some(context) = context {
                    say(Cow::Borrowed(context), parts)?;
                }
                parts.push(self.writer.file(File {
                    name: Some(file_name(title)),
                    data: data_url("application/pdf", &source)?,
                })?);
            }
            "text" => {
                heading.push(source.need_literal("data")?);
                say(lines(heading), parts)?;
            }
            "content" => {
                if !heading.is_empty() {
                    say(lines(heading), parts)?;
                }
                blocks(&source.need("content")?, |block| self.part(&block, parts))?;
            }
            _ => return Err(source.refuse("type", Problem::NotOneOf("base64, text, content"))),
        }
        Ok(())
    }
}

/// Removes the billing line with which Claude Code begins its instructions. The line is meant for the vendor of the
/// Messages format. It changes from call to call, so another vendor's cache could not be used for anything that follows
/// the line.
fn without_billing_line(text: &RawValue) -> Option<Json<'_>> {
    let Some(line) = inner(text).filter(|text| text.starts_with(BILLING_LINE)) else {
        return Some(Cow::Borrowed(text));
    };
    let (_, rest) = line.split_once(LINE_FEED)?;
    (!rest.is_empty()).then(|| quoted(&[rest]))
}

/// A content block of a turn.
#[derive(Debug)]
enum Block<'a, 'b> {
    /// A text, which is not empty.
    Text(&'a RawValue),
    /// A block of another type.
    Other(&'b str, &'b Object<'a, 'b>),
}

/// Passes each block to `each`. A content that is a string counts as one text block. Empty texts are left out.
fn blocks<'a>(
    content: &Value<'a, '_>,
    mut each: impl FnMut(Block<'a, '_>) -> Result<(), Error>,
) -> Result<(), Error> {
    match inner(content.raw) {
        Some("") => return Ok(()),
        Some(_) => return each(Block::Text(content.raw)),
        None => {}
    }
    let blocks = content.elements();
    for block in blocks.map_err(|_| content.wrong_type("string or array"))? {
        let block = block.object()?;
        let kind = block.need("type")?.string()?;
        if kind != "text" {
            each(Block::Other(&kind, &block))?;
            continue;
        }
        let text = literal(&block.need("text")?)?;
        if inner(text) != Some("") {
            each(Block::Text(text))?;
        }
    }
    Ok(())
}

fn image_url<'a, 's>(source: &'s Object<'a, '_>) -> Result<Text<'a, 's>, Error> {
    const KINDS: &str = "image/jpeg, image/png, image/gif, image/webp";
    match &*source.need("type")?.string()? {
        "base64" => {
            let kind = source.need("media_type")?;
            let text = kind.string()?;
            if KINDS.split(", ").all(|known| known != text) {
                return Err(kind.refuse(Problem::NotOneOf(KINDS)));
            }
            data_url(&text, source)
        }
        // The URL is forwarded: only the vendor fetches it.
        "url" => Text::read(&source.need("url")?),
        _ => Err(source.refuse("type", Problem::NotOneOf("base64, url"))),
    }
}

/// Returns a file name with an extension, from which vendors detect the type of the document.
fn file_name(title: Option<&RawValue>) -> Json<'_> {
    let name = given(title).unwrap_or("document");
    let ending = if name.to_ascii_lowercase().ends_with(".pdf") {
        ""
    } else {
        ".pdf"
    };
    quoted(&[name, ending])
}

fn search_result<'a>(block: &Object<'a, '_>) -> Result<Json<'a>, Error> {
    let heading = [optional(block, "title")?, optional(block, "source")?];
    let mut texts: Vec<Json<'a>> = heading.into_iter().flatten().map(Cow::Borrowed).collect();
    blocks(&block.need("content")?, |block| match block {
        Block::Text(text) => {
            texts.push(Cow::Borrowed(text));
            Ok(())
        }
        Block::Other(_, block) => Err(block.refuse("type", Problem::NotOneOf("text"))),
    })?;
    Ok(lines(texts))
}

fn data_url<'a, 's>(kind: &str, source: &'s Object<'a, '_>) -> Result<Text<'a, 's>, Error> {
    let data = source.need("data")?;
    let base64 = inner(data.raw).ok_or_else(|| data.wrong_type("string"))?;
    Ok(Text {
        path: data.path,
        json: quoted(&["data:", kind, ";base64,", base64]),
    })
}

/// Reads `tools` and `tool_choice`. A choice without tools is left out, because other formats do not allow it.
fn tools<'a>(fields: &Object<'a, '_>, settings: &mut Settings<'a>) -> Result<(), Error> {
    if let Some(tools) = fields.get("tools")? {
        for object in tools.elements()? {
            settings.tools.push(tool(&object.object()?)?);
        }
    }
    let Some(choice) = fields.get("tool_choice")? else {
        return Ok(());
    };
    let (chosen, parallel) = choose(&choice.object()?)?;
    if !settings.tools.is_empty() {
        (settings.choice, settings.parallel) = (Some(chosen), parallel);
    } else if chosen.is_forced() {
        return Err(choice.refuse(Problem::Contradicts("tools")));
    }
    Ok(())
}

fn tool<'a>(tool: &Object<'a, '_>) -> Result<Tool<'a>, Error> {
    // Typed tools (`bash_…`, `computer_…`) are refused, because only models of the Messages format were trained on
    // these tools and their arguments.
    if let Some(kind) = tool.get("type")?
        && kind.string()? != "custom"
    {
        return Err(kind.refuse(Problem::NotTranslated));
    }
    Ok(Tool {
        name: tool.need_literal("name")?,
        description: optional(tool, "description")?.map(Cow::Borrowed),
        takes: Takes::Arguments {
            schema: whole_schema(tool, "input_schema")?,
            typed: true,
            strict: tool.flag("strict")?,
        },
        mark: None,
    })
}

/// Returns which tool must be called, and whether calls may be parallel.
fn choose<'a>(choice: &Object<'a, '_>) -> Result<(Choice<'a>, Option<bool>), Error> {
    let chosen = match &*choice.need("type")?.string()? {
        "auto" => Choice::Auto,
        "none" => Choice::None,
        "any" => Choice::Required,
        "tool" => Choice::Tool(Named {
            name: choice.need_literal("name")?,
            custom: false,
        }),
        _ => return Err(choice.refuse("type", Problem::NotOneOf("auto, any, tool, none"))),
    };
    let one_at_a_time = choice.flag("disable_parallel_tool_use")?;
    Ok((chosen, (one_at_a_time == Some(true)).then_some(false)))
}

/// Returns the effort of reasoning, which is the requested one or derived from the thinking budget, and whether the
/// request enables thinking.
fn thinking<'a>(fields: &Object<'a, '_>) -> Result<(Option<Effort<'a>>, bool), Error> {
    const EFFORTS: &str = "low, medium, high, xhigh, max";
    let effort = |word| {
        Some(Effort {
            field: "output_config.effort",
            word: Cow::Borrowed(word),
        })
    };
    let mut requested = None;
    if let Some(config) = fields.object("output_config")?
        && let Some(effort) = config.get("effort")?
    {
        let text = effort.string()?;
        requested = EFFORTS.split(", ").find(|known| *known == text);
        if requested.is_none() {
            return Err(effort.refuse(Problem::NotOneOf(EFFORTS)));
        }
    }
    let Some(thinking) = fields.object("thinking")? else {
        return Ok((requested.and_then(effort), false));
    };
    let kind = thinking.need("type")?;
    match &*kind.string()? {
        "enabled" if requested.is_none() => {
            let word = match thinking.need("budget_tokens")?.count()? {
                0..4_096 => "low",
                4_096..16_384 => "medium",
                _ => "high",
            };
            Ok((effort(word), true))
        }
        "enabled" | "adaptive" | "between_tools" => Ok((requested.and_then(effort), true)),
        // Few models of other formats accept the effort `none`, so it is left out.
        "disabled" => Ok((None, false)),
        _ => Err(kind.refuse(Problem::NotOneOf("enabled, adaptive, disabled"))),
    }
}

/// Returns the schema that the response must follow, if the request has one.
fn format<'a>(fields: &Object<'a, '_>, to: &Vendor<'_>) -> Result<Option<AnswerFormat<'a>>, Error> {
    let config = fields.object("output_config")?;
    let format = match &config {
        Some(config) => config.get("format")?,
        None => None,
    };
    let format = match format {
        // During the beta of structured outputs, the field had this name.
        None => fields.get("output_format")?,
        format => format,
    };
    let Some(format) = format else {
        return Ok(None);
    };
    if !to.dialect.json_schema {
        return Err(format.refuse(Problem::Unsupported));
    }
    let format = format.object()?;
    let kind = format.need("type")?;
    if kind.string()? != "json_schema" {
        return Err(kind.refuse(Problem::NotOneOf("json_schema")));
    }
    let schema = format.need("schema")?;
    is_object(&schema)?;
    Ok(Some(AnswerFormat::Schema {
        name: None,
        description: None,
        schema: schema.raw,
        strict: true,
    }))
}

/// Returns the id of the end user.
fn user_id<'a>(fields: &Object<'a, '_>) -> Result<Option<&'a RawValue>, Error> {
    match fields.object("metadata")? {
        Some(metadata) => string_field(&metadata, "user_id"),
        None => Ok(None),
    }
}
