//! What the chat and the messages format write alike enough to read in one way: contents, their parts, and tools.

use super::{
    cache::{BREAKPOINT, MARK, Mark, Marked, Options},
    json::{At, Count, Object, Once, OrNull, Refused, Shape, Text, elements},
    sound,
};
use crate::{
    call::Ask,
    error::{Error, Problem},
    json::{Reader, Str},
    price::Class,
};

/// A conversation of at least one turn.
#[derive(Debug)]
pub(super) struct Turns<M>(pub(super) fn() -> M);

impl<M: Shape> Shape for Turns<M> {
    type Value = ();
    const EXPECTED: &'static str = "array";

    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<(), Error> {
        match elements(at, json, self.0)? {
            0 => Err(at.refuse(Problem::Empty)),
            count if count > at.cx.messages_max => {
                Err(at.refuse(Problem::AboveMax(at.cx.messages_max)))
            }
            count => {
                at.cx.weigh(|size| size.messages += count);
                Ok(())
            }
        }
    }
}

/// A turn's content: a string, an array of parts, or null. Says whether there was any.
#[derive(Clone, Copy, Debug)]
pub(super) struct Content;

impl Shape for Content {
    type Value = bool;
    const EXPECTED: &'static str = "string or array";

    fn null(self, _: At<'_>) -> Result<bool, Error> {
        Ok(false)
    }
    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<bool, Error> {
        at.cx.weigh(|size| size.text_bytes += text.decoded_len());
        Ok(true)
    }
    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<bool, Error> {
        elements(at, json, || Part).map(|_| true)
    }
}

/// A part's own content: that of a tool result or a document is text or parts, that of what a tool brought that the vendor
/// runs may be one part.
#[derive(Clone, Copy, Debug)]
struct Inner;

impl Shape for Inner {
    type Value = ();
    const EXPECTED: &'static str = "string, array or object";

    fn null(self, _: At<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<(), Error> {
        Content.string(at, text).map(drop)
    }
    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<(), Error> {
        Content.array(at, json).map(drop)
    }
    fn object(self, at: At<'_>, object: Object<'_, '_>) -> Result<(), Error> {
        Part.object(at, object)
    }
}

/// One part of a content.
#[derive(Clone, Copy, Debug)]
struct Part;

impl Part {
    /// Says `None` of kinds of which it is not known how much input they bring: videos, stored files and the like
    /// can bring any amount.
    fn kind(name: &str) -> Option<Kind> {
        const KINDS: &[&str] = &[
            "text",
            "refusal",
            "image_url",
            "file",
            "input_audio",
            "image",
            "document",
            "thinking",
            "redacted_thinking",
            "tool_use",
            "server_tool_use",
            "tool_reference",
            "tool_addition",
            "compaction",
        ];
        // What a tool of the vendor's brought is told under its own name, as is that it failed.
        let brought = name.ends_with("_result") || name.ends_with("_tool_result_error");
        let weighs = KINDS.contains(&name) || brought;
        weighs.then_some(match name {
            "image" => Kind::Image,
            "search_result" => Kind::SearchResult,
            "thinking" | "redacted_thinking" => Kind::Thinking,
            _ => Kind::Other,
        })
    }
}

/// What the source of a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Image,
    /// Text.
    SearchResult,
    Thinking,
    /// A document, if there is one.
    Other,
}

impl Shape for Part {
    type Value = ();
    const EXPECTED: &'static str = "object";

    fn object(self, at: At<'_>, mut object: Object<'_, '_>) -> Result<(), Error> {
        let mut once = const {
            Once::new(&[
                "type",
                "text",
                "image_url",
                "file",
                "source",
                "content",
                "input_audio",
                "input",
                MARK,
                BREAKPOINT,
            ])
        };
        let (mut kind, mut image, mut document) = (None, false, false);
        let mut sourced = false;
        while let Some(key) = object.next_key()? {
            once.check(at, &key)?;
            match &*key {
                "type" => kind = Some(at.field(&key, &mut object, Text(Self::kind))?),
                "image_url" => image = at.field(&key, &mut object, OrNull(Binary))?.is_some(),
                "file" => document = at.field(&key, &mut object, OrNull(Binary))?.is_some(),
                "source" => sourced = at.field(&key, &mut object, OrNull(Source))?.is_some(),
                "content" => at.field(&key, &mut object, Inner)?,
                MARK => at.weigh_and_read(&key, &mut object, Mark)?,
                BREAKPOINT => at.weigh_and_read(&key, &mut object, Options)?,
                "input_audio" => {
                    at.field(&key, &mut object, OrNull(Sound))?;
                }
                // Arguments of a call.
                "input" => at.weigh_written(&key, &mut object)?,
                _ => at.weigh_field(&key, &mut object)?,
            }
        }
        let Some(kind) = kind else {
            return Err(at.refuse_field("type", Problem::Missing));
        };
        let Some(kind) = kind else {
            return Err(at.refuse_field("type", Problem::Unsupported));
        };
        if kind == Kind::Thinking {
            at.cx.thought();
        }
        image |= sourced && kind == Kind::Image;
        document |= sourced && matches!(kind, Kind::Other | Kind::Thinking);
        at.cx.weigh(|size| {
            size.images += u64::from(image);
            size.documents += u64::from(document);
        });
        Ok(())
    }
}

/// Where an image or a document is, or what a search result was found in: that is text.
#[derive(Clone, Copy, Debug)]
struct Source;

impl Shape for Source {
    type Value = ();
    const EXPECTED: &'static str = "object";

    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<(), Error> {
        at.cx.weigh(|size| size.text_bytes += text.decoded_len());
        Ok(())
    }
    fn object(self, at: At<'_>, object: Object<'_, '_>) -> Result<(), Error> {
        Binary.object(at, object)
    }
}

/// An image or a document: an address, inline bytes, or a document's text.
#[derive(Clone, Copy, Debug)]
struct Binary;

impl Shape for Binary {
    type Value = ();
    const EXPECTED: &'static str = "object";

    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<(), Error> {
        at.cx.weigh(|size| size.binary_bytes += text.decoded_len());
        Ok(())
    }
    fn object(self, at: At<'_>, mut object: Object<'_, '_>) -> Result<(), Error> {
        let mut once = const {
            Once::new(&[
                "type",
                "data",
                "url",
                "file_data",
                "file_id",
                "content",
                "detail",
            ])
        };
        let (mut is_text, mut bytes) = (false, 0);
        while let Some(key) = object.next_key()? {
            once.check(at, &key)?;
            match &*key {
                "type" => {
                    is_text = at.field(&key, &mut object, Text(|kind: &str| kind == "text"))?
                }
                "data" | "url" => {
                    let length = at.field(&key, &mut object, OrNull(Text(str::len)))?;
                    bytes += length.unwrap_or(0) as u64;
                }
                "file_data" => {
                    let file = at.field(&key, &mut object, OrNull(Text(InlineFile::of)))?;
                    let file = file.unwrap_or_default();
                    bytes += file.bytes;
                    at.cx.weigh(|size| size.text_bytes += file.text_bytes);
                }
                "detail" => at.field(&key, &mut object, Detail)?,
                // A stored file's size is not known here.
                "file_id" => at.field(&key, &mut object, Refused(Problem::Unsupported))?,
                "content" => {
                    at.field(&key, &mut object, Content)?;
                }
                _ => at.weigh_field(&key, &mut object)?,
            }
        }
        at.cx.weigh(|size| {
            if is_text {
                size.text_bytes += bytes
            } else {
                size.binary_bytes += bytes
            }
        });
        Ok(())
    }
}

/// A file, inline.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InlineFile {
    /// As it was sent.
    pub(super) bytes: u64,
    /// Of the text that it may be: of all but a PDF each byte is seen, and may be a token.
    pub(super) text_bytes: u64,
}

impl InlineFile {
    /// Of its address, `data:text/plain;base64,…`, or its base64 alone.
    pub(super) fn of(data: &str) -> Self {
        const PDF: &str = "data:application/pdf";
        // `%PDF` in base64.
        const PDF_BEGINS: &str = "JVBER";
        let is_pdf = data.starts_with(PDF_BEGINS)
            || data
                .get(..PDF.len())
                .is_some_and(|head| head.eq_ignore_ascii_case(PDF));
        let content = data.split_once(',').map_or(data, |(_, content)| content);
        let bytes = data.len() as u64;
        let text_bytes = if is_pdf {
            0
        } else {
            content.len() as u64 / 4 * 3
        };
        Self { bytes, text_bytes }
    }
}

/// How closely an image is looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Detail;

impl Shape for Detail {
    type Value = ();
    const EXPECTED: &'static str = "string";

    fn null(self, _: At<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<(), Error> {
        // In its own size it has twice the tokens that any other has at most.
        let more = u64::from(text.decoded() == "original");
        at.cx.weigh(|size| {
            size.text_bytes += text.decoded_len();
            size.images += more;
        });
        Ok(())
    }
}

/// A sound, inline.
#[derive(Clone, Copy, Debug)]
struct Sound;

impl Shape for Sound {
    type Value = ();
    const EXPECTED: &'static str = "object";

    fn object(self, at: At<'_>, mut object: Object<'_, '_>) -> Result<(), Error> {
        let mut once = const { Once::new(&["data", "format"]) };
        let (mut measured, mut format) = (None, None);
        while let Some(key) = object.next_key()? {
            once.check(at, &key)?;
            match &*key {
                "data" => measured = at.field(&key, &mut object, Text(sound::measure))?,
                "format" => format = at.field(&key, &mut object, Text(sound::Kind::named))?,
                _ => at.weigh_field(&key, &mut object)?,
            }
        }
        match measured {
            // A vendor that believes the name reads other bytes as other sound.
            Some((kind, tokens)) if format == Some(kind) => {
                at.ask(Ask::Class(Class::InputAudio, tokens));
            }
            measured => {
                at.ask(Ask::Class(Class::InputAudio, 1));
                let field = if measured.is_some() { "format" } else { "data" };
                at.ask_field(field, Ask::UnmeasuredSound);
            }
        }
        Ok(())
    }
}

/// The tools that a model may call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tools;

impl Shape for Tools {
    type Value = ();
    const EXPECTED: &'static str = "array";

    fn null(self, _: At<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<(), Error> {
        let count = elements(at, json, || Tool)?;
        at.cx.weigh(|size| size.tools += count);
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
struct Tool;

impl Tool {
    /// Who runs a tool of this kind.
    fn runs(kind: &str) -> Runs {
        const TYPED: [&str; 5] = [
            "bash_",
            "text_editor_",
            "computer_",
            "memory_",
            "tool_search_",
        ];
        match kind {
            "function" | "custom" => Runs::Caller(0),
            _ if TYPED.iter().any(|prefix| kind.starts_with(prefix)) => Runs::Caller(3000),
            _ if kind.starts_with("web_search_") => Runs::Search,
            _ => Runs::Unpriced,
        }
    }
}

/// Who runs a tool.
#[derive(Clone, Copy, Debug)]
enum Runs {
    /// The caller. The vendor adds so many bytes of instructions for it.
    Caller(u64),
    /// The vendor, which bills each search of the web.
    Search,
    /// The vendor, by rates that no model has here.
    Unpriced,
}

/// Bytes of instructions that a vendor adds for the search of the web.
const SEARCH_BYTES: u64 = 3000;

impl Shape for Tool {
    type Value = ();
    const EXPECTED: &'static str = "object";

    fn object(self, at: At<'_>, mut object: Object<'_, '_>) -> Result<(), Error> {
        let mut once = const { Once::new(&["type", "function", "max_uses", MARK]) };
        let (mut search, mut max_uses) = (false, None);
        while let Some(key) = object.next_key()? {
            once.check(at, &key)?;
            at.weigh_name(&key);
            match &*key {
                "type" => match at.field(&key, &mut object, OrNull(Text(Self::runs)))? {
                    Some(Runs::Unpriced) => {
                        return Err(at.refuse_field(&key, Problem::Unsupported));
                    }
                    Some(Runs::Caller(bytes)) => at.cx.weigh(|size| size.text_bytes += bytes),
                    Some(Runs::Search) => search = true,
                    None => {}
                },
                "max_uses" => max_uses = at.field(&key, &mut object, Count { max: 1000 })?,
                MARK => at.weigh_and_read(&key, &mut object, Mark)?,
                "function" => at.weigh_and_read_if_it_names(MARK, &key, &mut object, Marked)?,
                _ => at.weigh_field(&key, &mut object)?,
            }
        }
        if search {
            at.cx.weigh(|size| size.text_bytes += SEARCH_BYTES);
            let most = max_uses.unwrap_or(Ask::WITHOUT_END);
            at.ask_field("type", Ask::Class(Class::WebSearchCall, most));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::{Value, json};

    use crate::{call::Operation, parse};

    fn reads(operation: Operation, fields: &Value) {
        let mut body =
            json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]});
        let fields = fields.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(fields);
        let read = parse::call(operation, &Bytes::from(body.to_string()), 10);
        assert!(read.is_ok(), "{body}: {read:?}");
    }

    /// What SDKs send back of an answer whose vendor ran tools.
    #[test]
    fn what_tools_of_the_vendor_brought_is_taken_and_weighs() {
        let error = "web_search_tool_result_error";
        let pdf = json!({"type": "document", "source": {"type": "url", "url": "https://x"}});
        // block, bytes of text at least, documents
        for (block, bytes, documents) in [
            (
                json!({"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{
                    "type": "web_search_result", "url": "https://x", "title": "X", "encrypted_content": "A".repeat(500),
                    "page_age": null,
                }]}),
                500,
                0,
            ),
            (
                json!({"type": "web_search_tool_result", "content": {"type": error, "error_code": "unavailable"}}),
                11,
                0,
            ),
            (
                json!({"type": "tool_search_tool_result", "content": {
                    "type": "tool_search_tool_search_result",
                    "tool_references": [{"type": "tool_reference", "tool_name": "f".repeat(100)}],
                }}),
                100,
                0,
            ),
            (
                json!({"type": "web_fetch_tool_result", "content": {
                    "type": "web_fetch_result", "url": "https://x", "content": pdf,
                }}),
                9,
                1,
            ),
        ] {
            let said = json!([{"type": "text", "text": ""}, block]);
            let body = json!({"model": "m", "max_tokens": 1, "messages": [
                {"role": "user", "content": ""}, {"role": "assistant", "content": said},
            ]});
            let read = parse::call(Operation::Messages, &Bytes::from(body.to_string()), 10);
            let input = read
                .unwrap_or_else(|error| panic!("{body}: {error:?}"))
                .input;
            assert!(input.text_bytes >= bytes, "{body}: {input:?}");
            assert_eq!(input.documents, documents, "{body}");
        }
    }

    /// Some vendors put the whole of a tool in front of the model.
    #[test]
    fn names_of_a_tools_fields_weigh() {
        for operation in [Operation::Chat, Operation::Responses] {
            let tool = json!({"type": "function", "name": "f", "function": {"name": "f"}, "x".repeat(1000): null});
            let body = json!({"model": "m", "messages": [{"role": "user", "content": "x"}], "input": "x", "tools": [tool]});
            let read = parse::call(operation, &Bytes::from(body.to_string()), 10).unwrap();
            assert!(read.input.text_bytes >= 1000, "{operation:?}");
        }
    }

    #[test]
    fn null_is_as_good_as_absent_in_parts_and_tools() {
        let part = |part: Value| json!({"messages": [{"role": "user", "content": [part]}]});
        let pdf = "data:application/pdf;base64,AA==";
        for fields in [
            json!({"tools": [{"type": null, "function": {"name": "f"}}]}),
            part(json!({"type": "file", "file": {"file_data": pdf, "file_id": null}})),
            part(
                json!({"type": "text", "text": "x", "image_url": null, "file": null, "input_audio": null}),
            ),
        ] {
            reads(Operation::Chat, &fields);
        }
        for fields in [
            json!({"tools": [{"type": null, "name": "f", "input_schema": {}}]}),
            part(
                json!({"type": "image", "source": {"type": "url", "url": "https://x", "data": null, "file_id": null}}),
            ),
            part(json!({"type": "text", "text": "x", "source": null})),
        ] {
            reads(Operation::Messages, &fields);
        }
    }
}
