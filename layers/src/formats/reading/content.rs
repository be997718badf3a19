//! Parses what the Chat Completions and Messages formats have in common: the contents of turns, their parts, and tools.

use super::{
    cache::{BREAKPOINT, CACHE_MARK, CACHE_OPTIONS, MARK, Marked},
    json::{
        At, Count, Object, ObjectWith, Once, OrNull, Refused, Shape, StringWith, Text, elements,
        spanned_elements,
    },
    media::{Media, WHOLE_IMAGE_TOKENS_USUAL},
    pdf::Pdf,
    sound,
};
use crate::{
    call::{Ask, IMAGE_SHARES, InputSize},
    error::{Error, Problem},
    json::{Reader, Str},
    price::Class,
    text_sample::Sampler,
};

/// Reads the array of the turns of a conversation, which must not be empty.
#[derive(Debug)]
pub(crate) struct Turns<M>(pub(crate) fn() -> M);

impl<M: Shape> Shape for Turns<M> {
    type Value = ();
    const EXPECTED: &'static str = "array";

    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<(), Error> {
        match spanned_elements(at, json, self.0, |span, _| at.cx.turn(span))? {
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

/// Reads a turn's content: a string, an array of parts, or null. Returns false for null.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content;

impl Shape for Content {
    type Value = bool;
    const EXPECTED: &'static str = "string or array";
    const NULL: Option<Self::Value> = Some(false);

    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<bool, Error> {
        at.weigh_text(text);
        Ok(true)
    }
    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<bool, Error> {
        elements(at, json, || ObjectWith(part)).map(|_| true)
    }
}

/// Checks a message. `known` is whether its role is one of `roles`, and `content` whether its content is not null.
pub(crate) fn check_message(
    at: At<'_>,
    known: Option<bool>,
    roles: &'static str,
    content: Option<bool>,
) -> Result<(), Error> {
    match (known, content) {
        (None, _) => Err(at.refuse_field("role", Problem::Missing)),
        (Some(false), _) => Err(at.refuse_field("role", Problem::NotOneOf(roles))),
        (_, None) => Err(at.refuse_field("content", Problem::Missing)),
        (_, Some(false)) => Err(at.refuse_field("content", Problem::WrongType(Content::EXPECTED))),
        (Some(true), Some(true)) => Ok(()),
    }
}

/// Reads the content of a part. In a tool result or a document, it is a text or an array of parts. In the result of a
/// tool that the vendor runs, it may also be a single part.
#[derive(Clone, Copy, Debug)]
struct Inner;

impl Shape for Inner {
    type Value = ();
    const EXPECTED: &'static str = "string, array or object";
    const NULL: Option<Self::Value> = Some(());

    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<(), Error> {
        Content.string(at, text).map(drop)
    }
    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<(), Error> {
        Content.array(at, json).map(drop)
    }
    fn object(self, at: At<'_>, object: Object<'_, '_>) -> Result<(), Error> {
        part(at, object)
    }
}

/// Returns `None` for kinds of parts that the gateway refuses because the size of their input is unknown: videos
/// and stored files.
fn part_kind(name: &str) -> Option<Kind> {
    const OTHERS: &[&str] = &[
        "text",
        "refusal",
        "image_url",
        "file",
        "input_audio",
        "document",
        "tool_use",
        "server_tool_use",
        "tool_reference",
        "tool_addition",
        "compaction",
    ];
    match name {
        "image" => Some(Kind::Image),
        "search_result" => Some(Kind::SearchResult),
        "thinking" | "redacted_thinking" => Some(Kind::Thinking),
        // Each tool of a vendor has its own type of results and errors. So only the end of the type's name is compared.
        _ if name.ends_with("_result") || name.ends_with("_tool_result_error") => Some(Kind::Other),
        _ => OTHERS.contains(&name).then_some(Kind::Other),
    }
}

/// The kind of a part. It decides the meaning of the part's field `source`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Image,
    /// A search result, whose `source` is a text that was already counted.
    SearchResult,
    Thinking,
    /// Any other part. If it has a `source`, the source is a document.
    Other,
}

/// Reads one part of a content, for example a text or an image.
fn part(at: At<'_>, mut object: Object<'_, '_>) -> Result<(), Error> {
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
    let (mut kind, mut source) = (None, None);
    while let Some(key) = once.next_key(at, &mut object)? {
        match &*key {
            "type" => kind = Some(object.field(&key, Text(part_kind))?),
            "image_url" => {
                if let Some(brought) = object.field(&key, OrNull(Binary))? {
                    brought.weigh_as_image(at, &key);
                }
            }
            "file" => {
                if let Some(brought) = object.field(&key, OrNull(Binary))? {
                    brought.weigh_as_file(at, &key);
                }
            }
            "source" => source = object.field(&key, OrNull(Source))?,
            "content" => object.field(&key, Inner)?,
            MARK => object.weigh_and_read(&key, CACHE_MARK)?,
            BREAKPOINT => object.weigh_and_read(&key, CACHE_OPTIONS)?,
            "input_audio" => {
                object.field(&key, OrNull(ObjectWith(read_sound)))?;
            }
            // `input` has the arguments of a tool call.
            "input" => object.weigh_written(&key)?,
            // `signature` is the vendor's proof of a thinking block. The hold counts it as input, and the estimate
            // does not.
            "signature" => {
                object.weigh_proof(&key)?;
            }
            _ => object.weigh_field(&key)?,
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
    match (source, kind) {
        (None, _) | (_, Kind::SearchResult) => {}
        (Some(brought), Kind::Image) => brought.weigh_as_image(at, "source"),
        (Some(brought), Kind::Other | Kind::Thinking) => {
            brought.weigh_as_document(at, "source");
        }
    }
    Ok(())
}

/// Reads the `source` of an image, a document or a search result. In a search result, it is a string.
#[derive(Clone, Copy, Debug)]
struct Source;

impl Shape for Source {
    type Value = Brought;
    const EXPECTED: &'static str = "object";

    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<Brought, Error> {
        at.weigh_text(text);
        Ok(Brought::SeenAlready)
    }
    fn object(self, at: At<'_>, object: Object<'_, '_>) -> Result<Brought, Error> {
        Binary.object(at, object)
    }
}

/// Reads an image or a document, which is a URL, inline bytes, or a document's text.
#[derive(Clone, Copy, Debug)]
struct Binary;

impl Shape for Binary {
    type Value = Brought;
    const EXPECTED: &'static str = "object";

    fn string(self, _: At<'_>, text: &Str<'_>) -> Result<Brought, Error> {
        Ok(Brought::Media(Media::read(&text.decoded())))
    }
    fn object(self, at: At<'_>, mut object: Object<'_, '_>) -> Result<Brought, Error> {
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
        let (mut is_text, mut has_content) = (false, false);
        let (mut data, mut media) = (None, None);
        while let Some(key) = once.next_key(at, &mut object)? {
            match &*key {
                "type" => is_text = object.field(&key, Text(|kind: &str| kind == "text"))?,
                "data" => {
                    let read = |data: &str| {
                        let mut sampler = Sampler::default();
                        sampler.push_document(data);
                        (data.len() as u64, sampler, Media::read(data))
                    };
                    data = object.field(&key, OrNull(Text(read)))?;
                }
                "url" | "file_data" => {
                    let read = object.field(&key, OrNull(Text(Media::read)))?;
                    media = read.or(media);
                }
                "detail" => object.field(&key, OrNull(StringWith(detail))).map(drop)?,
                // The size of a stored file is unknown, so no hold can cover it.
                "file_id" => object.field(&key, Refused(Problem::Unsupported))?,
                "content" => has_content = object.field(&key, Content)?,
                _ => object.weigh_field(&key)?,
            }
        }
        Ok(match (media, data) {
            (Some(media), _) => Brought::Media(media),
            (None, Some((bytes, sampler, _))) if is_text => {
                at.cx.add_document_text(bytes, sampler);
                Brought::SeenAlready
            }
            (None, Some((.., media))) => Brought::Media(media),
            (None, None) if has_content => Brought::SeenAlready,
            (None, None) => Brought::Media(Media::Bytes(0)),
        })
    }
}

/// The content of an image or a document in a part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Brought {
    Media(Media),
    /// The content was text or parts, which were already counted when they were read.
    SeenAlready,
}

impl Brought {
    pub(crate) fn weigh_as_image(self, at: At<'_>, field: &str) {
        let Self::Media(media) = self else {
            return;
        };
        let (shares, usual) = match media {
            Media::Image(pixels) => (pixels.shares(), pixels.tokens_usual()),
            Media::Elsewhere | Media::Archive | Media::Bytes(_) => {
                (IMAGE_SHARES, WHOLE_IMAGE_TOKENS_USUAL)
            }
            // Some vendors accept a document or a video in place of an image. So the file is counted by its real type.
            Media::Pdf(_) => return self.weigh_as_document(at, field),
            Media::Foreign(_) => return weigh_unseen(at, field),
        };
        at.cx.weigh(|size| size.add_image(shares, usual));
    }

    pub(crate) fn weigh_as_document(self, at: At<'_>, field: &str) {
        let Self::Media(media) = self else {
            return;
        };
        let pages = match media {
            Media::Pdf(pages) => pages,
            Media::Bytes(bytes) | Media::Foreign(bytes) => Pdf::opaque(bytes),
            Media::Image(_) => Pdf::opaque(0),
            Media::Elsewhere | Media::Archive => return weigh_unseen(at, field),
        };
        at.cx
            .weigh(|size| size.add_document(pages.tokens_max(), pages.tokens_usual()));
    }

    /// Counts a file that may be text. Unless the file is a PDF, the vendor may read every byte, and each byte may be a
    /// token.
    pub(crate) fn weigh_as_file(self, at: At<'_>, field: &str) {
        let Self::Media(Media::Bytes(bytes) | Media::Foreign(bytes)) = self else {
            return self.weigh_as_document(at, field);
        };
        at.cx.weigh(|size| {
            size.add_unsampled(bytes);
            size.add_document(0, 0);
        });
    }
}

fn weigh_unseen(at: At<'_>, field: &str) {
    at.cx.weigh(InputSize::add_unseen_document);
    at.ask_field(field, Ask::UnseenDocument);
}

/// Reads `detail`, the resolution at which the vendor reads an image.
pub(crate) fn detail(at: At<'_>, text: &Str<'_>) -> Result<(), Error> {
    // At its original size, an image has at most twice as many tokens as at any other resolution. So it counts as
    // two images.
    if text.decoded() == "original" {
        at.cx.weigh(|size| size.add_image(IMAGE_SHARES, 0));
    }
    at.weigh_text(text);
    Ok(())
}

/// Reads sound whose data is in a part, and bounds its tokens by its duration.
fn read_sound(at: At<'_>, mut object: Object<'_, '_>) -> Result<(), Error> {
    let mut once = const { Once::new(&["data", "format"]) };
    let (mut measured, mut format) = (None, None);
    while let Some(key) = once.next_key(at, &mut object)? {
        match &*key {
            "data" => measured = object.field(&key, Text(sound::measure))?,
            "format" => format = object.field(&key, Text(sound::Kind::named))?,
            _ => object.weigh_field(&key)?,
        }
    }
    match measured {
        // The declared format must equal the measured format. Otherwise a vendor that relies on the declared format
        // would decode the bytes as sound of another length.
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

/// Reads the tools that a model may call.
pub(crate) fn tools(at: At<'_>, json: &mut Reader<'_>) -> Result<(), Error> {
    let count = elements(at, json, || ObjectWith(tool))?;
    at.cx.weigh(|size| size.tools += count);
    Ok(())
}

/// Returns where a tool of this type runs, and how it is priced.
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

/// Returns whether a field of a tool is the name of a tool that the vendor runs. Case and underscores are ignored.
pub(crate) fn is_vendors_tool(field: &str) -> bool {
    const NAMES: [&str; 11] = [
        "googlesearch",
        "googlesearchretrieval",
        "googlemaps",
        "codeexecution",
        "codeinterpreter",
        "enterprisewebsearch",
        "filesearch",
        "imagegeneration",
        "urlcontext",
        "websearch",
        "websearchpreview",
    ];
    let is_one = |name: &&str| {
        let letters = field.chars().filter(|letter| *letter != '_');
        letters
            .map(|letter| letter.to_ascii_lowercase())
            .eq(name.chars())
    };
    field.len() >= 9 && NAMES.iter().any(is_one)
}

/// Where a tool runs, and how it is priced.
#[derive(Clone, Copy, Debug)]
enum Runs {
    /// The caller runs the tool. The vendor adds this many bytes of instructions to the input.
    Caller(u64),
    /// The vendor runs the tool and bills each web search. The catalog has a rate class for web searches.
    Search,
    /// The vendor runs the tool and bills it at rates that the catalog does not have. So the tool is refused.
    Unpriced,
}

/// The number of bytes of instructions that a vendor adds to the input if the request offers web search.
const SEARCH_BYTES: u64 = 3000;

fn tool(at: At<'_>, mut object: Object<'_, '_>) -> Result<(), Error> {
    let mut once = const { Once::new(&["type", "function", "max_uses", MARK]) };
    let (mut search, mut max_uses, mut is_described) = (false, None, false);
    while let Some(key) = once.next_key(at, &mut object)? {
        at.weigh_name(&key);
        is_described |= matches!(&*key, "name" | "function");
        match &*key {
            "type" => match object.field(&key, OrNull(Text(runs)))? {
                Some(Runs::Unpriced) => {
                    return Err(at.refuse_field(&key, Problem::Unsupported));
                }
                Some(Runs::Caller(bytes)) => {
                    is_described = true;
                    at.cx.weigh(|size| size.add_unsampled(bytes));
                }
                Some(Runs::Search) => (search, is_described) = (true, true),
                None => {}
            },
            "max_uses" => max_uses = object.field(&key, Count { max: 1000 })?,
            MARK => object.weigh_and_read(&key, CACHE_MARK)?,
            "function" => object.weigh_and_read_if_it_names(MARK, &key, Marked)?,
            key if is_vendors_tool(key) => {
                object.field(key, Refused(Problem::ToolUnsupported))?;
            }
            _ => object.weigh_field(&key)?,
        }
    }
    // Some vendors identify their own tools by a field that the gateway does not know. Such a tool has no price, so it
    // is refused.
    if !is_described {
        return Err(at.refuse_field("type", Problem::Missing));
    }
    if search {
        at.cx.weigh(|size| size.add_unsampled(SEARCH_BYTES));
        let most = max_uses.unwrap_or(Ask::WITHOUT_END);
        at.ask_field("type", Ask::Class(Class::WebSearchCall, most));
    }
    Ok(())
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

    /// SDKs send these parts back after a response in which the vendor ran tools.
    #[test]
    fn results_of_tools_that_the_vendor_runs_are_accepted_and_counted_as_input() {
        let error = "web_search_tool_result_error";
        let pdf = json!({"type": "document", "source": {"type": "url", "url": "https://x"}});
        // Columns: the content block, the minimum of text bytes that are counted, the number of documents that are
        // counted.
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
            let reported = json!([{"type": "text", "text": ""}, block]);
            let body = json!({"model": "m", "max_tokens": 1, "messages": [
                {"role": "user", "content": ""}, {"role": "assistant", "content": reported},
            ]});
            let read = parse::call(Operation::Messages, &Bytes::from(body.to_string()), 10);
            let input = read
                .unwrap_or_else(|error| panic!("{body}: {error:?}"))
                .input;
            assert!(input.text_bytes >= bytes, "{body}: {input:?}");
            assert_eq!(input.documents, documents, "{body}");
        }
    }

    /// Some vendors show the model the whole definition of a tool, including fields that they do not know.
    #[test]
    fn field_names_in_a_tool_definition_count_as_input() {
        for operation in [Operation::Chat, Operation::Responses] {
            let tool = json!({"type": "function", "name": "f", "function": {"name": "f"}, "x".repeat(1000): null});
            let body = json!({"model": "m", "messages": [{"role": "user", "content": "x"}], "input": "x", "tools": [tool]});
            let read = parse::call(operation, &Bytes::from(body.to_string()), 10).unwrap();
            assert!(read.input.text_bytes >= 1000, "{operation:?}");
        }
    }

    /// Parses a call with this part in a user's turn.
    fn sized(operation: Operation, part: &Value) -> crate::call::Call {
        let turns = json!([{"role": "user", "content": [part]}]);
        let body = match operation {
            Operation::Responses => json!({"model": "m", "input": turns}),
            _ => json!({"model": "m", "max_tokens": 1, "messages": turns}),
        };
        parse::call(operation, &Bytes::from(body.to_string()), 10)
            .unwrap_or_else(|error| panic!("{body}: {error}"))
    }

    #[test]
    fn image_counts_by_its_pixels_or_as_full_size_if_its_size_is_unknown() {
        let of_png = |width: u32, height: u32| {
            let mut file = b"\x89PNG\r\n\x1A\n\0\0\0\rIHDR".to_vec();
            file.extend(width.to_be_bytes());
            file.extend(height.to_be_bytes());
            file
        };
        let jpeg = b"\xFF\xD8\xFF\xE1\0\x08\xFF\xC0\0\x01\0\x01\xFF\xC0\0\x0B\x08\x01\0\x02\0\x01\x01\x11\0";
        let gif =
            b"GIF89a\x10\0\x10\0\x80\0\0abcdef\x21\xF9\x04\0\0\0\0\0\x2C\0\0\0\0\0\x02\0\x01\0";
        let webp = b"RIFF\0\0\0\0WEBPVP8X\x0A\0\0\0\0\0\0\0\xFF\x01\0\xFF\0\0";
        // Columns: the image file, its shares of a full-size image, its estimated tokens.
        for (file, shares, usual) in [
            (of_png(1, 1), 1_504, 85),
            (of_png(512, 256), 2_012, 190),
            (of_png(4000, 3000), 5_000, 1_600),
            (of_png(2048, 1), 5_000, 85),
            (jpeg.to_vec(), 2_012, 190),
            (gif.to_vec(), 2_012, 190),
            (webp.to_vec(), 2_012, 190),
            (b"BM------------------".to_vec(), 5_000, 1_600),
        ] {
            let data = parse::encode(&file);
            let url = format!("data:image/png;base64,{data}");
            for (operation, part) in [
                (
                    Operation::Chat,
                    json!({"type": "image_url", "image_url": {"url": url}}),
                ),
                (
                    Operation::Messages,
                    json!({"type": "image", "source": {"type": "base64", "data": data}}),
                ),
                (
                    Operation::Messages,
                    json!({"type": "tool_result", "content": [
                        {"type": "image", "source": {"type": "base64", "data": data}},
                    ]}),
                ),
                (
                    Operation::Responses,
                    json!({"type": "input_image", "image_url": url}),
                ),
            ] {
                let input = sized(operation, &part).input;
                assert_eq!(
                    (input.images, input.image_shares, input.usual_images),
                    (1, shares, usual),
                    "{part}"
                );
            }
        }
    }

    #[test]
    fn attached_document_of_unknown_size_is_recorded_with_its_field() {
        let zip = format!(
            "data:application/zip;base64,{}",
            parse::encode(b"PK\x03\x04------")
        );
        let film = "data:video/mp4;base64,AAAA";
        let pdf = "https://files.example/1.pdf";
        let source = |source: Value| json!({"type": "document", "source": source});
        for (operation, part, field) in [
            (
                Operation::Messages,
                source(json!({"type": "url", "url": pdf})),
                "source",
            ),
            (
                Operation::Messages,
                source(json!({"type": "base64", "data": pdf})),
                "source",
            ),
            (
                Operation::Messages,
                json!({"type": "image", "source": {"url": film}}),
                "source",
            ),
            (
                Operation::Chat,
                json!({"type": "file", "file": {"file_data": pdf}}),
                "file",
            ),
            (
                Operation::Chat,
                json!({"type": "file", "file": {"file_data": zip}}),
                "file",
            ),
            (
                Operation::Chat,
                json!({"type": "image_url", "image_url": {"url": film}}),
                "image_url",
            ),
            (
                Operation::Responses,
                json!({"type": "input_file", "file_data": pdf}),
                "file_data",
            ),
            (
                Operation::Responses,
                json!({"type": "input_image", "image_url": film}),
                "image_url",
            ),
        ] {
            let call = sized(operation, &part);
            assert_eq!(call.input.documents_unseen, 1, "{part}");
            let asks = call.asks.unwrap();
            let named = asks.unseen().unwrap();
            assert!(named.ends_with(&format!("content[0].{field}")), "{named}");
        }
        // A PDF in place of an image is counted as a PDF.
        let data = parse::encode(b"%PDF-1.7 << /Type /Page >>".repeat(100).as_slice());
        let part = json!({"type": "image_url", "image_url": {"url": format!("data:application/pdf;base64,{data}")}});
        let input = sized(Operation::Chat, &part).input;
        assert_eq!((input.images, input.document_tokens), (0, 800_000));
    }

    #[test]
    fn null_field_of_a_content_part_or_tool_counts_as_absent() {
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
