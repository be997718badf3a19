//! Parses the conversation of a responses request: a text, or items of many kinds.

use std::ops::Range;

use super::{
    super::{
        cache::{BREAKPOINT, MARK, Mark, Options},
        content::{Brought, Detail},
        json::{At, Cuts, Object, Once, OrNull, Refused, Shape, Text, elements, spanned_elements},
        media::Media,
    },
    tools::MoreTools,
};
use crate::{
    capsule,
    error::{Error, Problem},
    json::{Reader, Str},
};

/// The properties of the conversation that are needed to check other fields of the body.
#[derive(Debug, Default)]
pub(super) struct InputSeen {
    /// Whether an item lists a tool that the caller described.
    pub(super) has_functions: bool,
    /// Byte ranges of the items to cut out, because no vendor of this format can read them.
    pub(super) cut: Vec<Range<usize>>,
}

/// Reads the conversation, which must not be empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input;

impl Shape for Input {
    type Value = InputSeen;
    const EXPECTED: &'static str = "string or array";

    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<InputSeen, Error> {
        if text.decoded_len() == 0 {
            return Err(at.refuse(Problem::Empty));
        }
        at.weigh_text(text);
        at.cx.weigh(|size| size.messages += 1);
        Ok(InputSeen::default())
    }
    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<InputSeen, Error> {
        let (mut seen, mut cuts, mut stored) = (InputSeen::default(), Cuts::default(), 0);
        let count = spanned_elements(
            at,
            json,
            || Item,
            |span, item| {
                at.cx.turn(span.clone());
                seen.has_functions |= item == Read::TellsOfFunctions;
                cuts.element(span, item == Read::Unreadable);
                stored += u64::from(item != Read::Unreadable);
            },
        )?;
        if stored == 0 {
            return Err(at.refuse(Problem::Empty));
        }
        if count > at.cx.messages_max {
            return Err(at.refuse(Problem::AboveMax(at.cx.messages_max)));
        }
        at.cx.weigh(|size| size.messages += count);
        seen.cut = cuts.done();
        Ok(seen)
    }
}

/// The result of reading one item of the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    Usual,
    TellsOfFunctions,
    /// Reasoning that no vendor of the responses format can read. Either it has neither text nor an encrypted form,
    /// because only the vendor that stored it has them, or it is a capsule with the reasoning of another format.
    Unreadable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Message,
    Reasoning,
    /// Calls of tools that callers run, their outputs, and items that contain only text.
    Other,
    Reference,
    /// The item requests an action of the vendor other than an answer, for example to compact the conversation.
    Trigger,
    /// The item is a call of a tool that the vendor runs.
    Vendors,
    Unknown,
}

impl Kind {
    fn of(name: &str) -> Self {
        match name {
            "message" => Self::Message,
            "reasoning" => Self::Reasoning,
            "function_call"
            | "function_call_output"
            | "custom_tool_call"
            | "custom_tool_call_output"
            | "additional_tools"
            | "local_shell_call"
            | "local_shell_call_output"
            | "shell_call"
            | "shell_call_output"
            | "apply_patch_call"
            | "apply_patch_call_output"
            | "computer_call"
            | "computer_call_output"
            | "tool_search_call"
            | "tool_search_output"
            | "compaction" => Self::Other,
            "item_reference" => Self::Reference,
            "compaction_trigger" => Self::Trigger,
            "web_search_call"
            | "file_search_call"
            | "code_interpreter_call"
            | "image_generation_call"
            | "program"
            | "program_output" => Self::Vendors,
            _ if name.starts_with("mcp_") => Self::Vendors,
            _ => Self::Unknown,
        }
    }
}

const ROLES: &[&str] = &["user", "assistant", "system", "developer"];

/// The fields of an item that decide whether the item is allowed.
#[derive(Debug, Default)]
struct Fields {
    kind: Option<Kind>,
    /// Whether the item has an id. An item with only an id is a reference to a stored item.
    id: bool,
    /// Whether the role is one of the known roles; `None` if the item has no role.
    role: Option<bool>,
    content: Amount,
    encrypted: bool,
    capsule: bool,
    has_functions: bool,
}

#[derive(Clone, Copy, Debug)]
struct Item;

impl Shape for Item {
    type Value = Read;
    const EXPECTED: &'static str = "object";

    fn object(self, at: At<'_>, mut object: Object<'_, '_>) -> Result<Read, Error> {
        let mut once = const {
            Once::new(&[
                "type",
                "role",
                "id",
                "content",
                "output",
                "encrypted_content",
                "tools",
                "input",
                MARK,
            ])
        };
        let mut fields = Fields::default();
        while let Some(key) = object.next_key()? {
            once.check(at, &key)?;
            match &*key {
                "type" => fields.kind = at.field(&key, &mut object, OrNull(Text(Kind::of)))?,
                "role" => {
                    let known = |role: &str| ROLES.contains(&role);
                    fields.role = at.field(&key, &mut object, OrNull(Text(known)))?;
                }
                "id" => {
                    fields.id = at
                        .field(&key, &mut object, OrNull(Text(|_: &str| ())))?
                        .is_some()
                }
                "content" => fields.content = at.field(&key, &mut object, Content)?,
                "output" => at.field(&key, &mut object, Output)?,
                "encrypted_content" => {
                    let read = |text: &str| (text.len(), text.starts_with(capsule::PREFIX));
                    let read = at.field(&key, &mut object, OrNull(Text(read)))?;
                    let (bytes, capsule) = read.unwrap_or_default();
                    (fields.encrypted, fields.capsule) = (bytes > 0, capsule);
                    at.cx.weigh(|size| size.add_unsampled(bytes as u64));
                }
                // `input` has the free text that was passed to a custom tool.
                "input" => at.weigh_written(&key, &mut object)?,
                MARK => at.weigh_and_read(&key, &mut object, Mark)?,
                "tools" => fields.has_functions = at.field(&key, &mut object, MoreTools)?,
                _ => at.weigh_field(&key, &mut object)?,
            }
        }
        fields.read(at)
    }
}

impl Fields {
    fn read(&self, at: At<'_>) -> Result<Read, Error> {
        let of_type = |problem| Err(at.refuse_field("type", problem));
        let kind = match (self.kind, self.role, self.id) {
            (Some(kind), ..) => kind,
            (None, Some(_), _) => Kind::Message,
            (None, None, true) => Kind::Reference,
            (None, None, false) => return of_type(Problem::Missing),
        };
        match kind {
            Kind::Message => self.message(at),
            Kind::Reasoning if self.capsule => Ok(Read::Unreadable),
            Kind::Reasoning if !self.encrypted && self.content.is_nothing() => Ok(Read::Unreadable),
            Kind::Reasoning => Ok(Read::Usual),
            Kind::Other if self.has_functions => Ok(Read::TellsOfFunctions),
            Kind::Other => Ok(Read::Usual),
            Kind::Reference => of_type(Problem::ReferenceUnsupported),
            Kind::Trigger => of_type(Problem::StateUnsupported),
            Kind::Vendors => of_type(Problem::ToolUnsupported),
            Kind::Unknown => of_type(Problem::Unsupported),
        }
    }

    fn message(&self, at: At<'_>) -> Result<Read, Error> {
        match (self.role, self.content) {
            (None, _) => Err(at.refuse_field("role", Problem::Missing)),
            (Some(false), _) => Err(at.refuse_field(
                "role",
                Problem::NotOneOf("system, developer, user, assistant"),
            )),
            (_, Amount::Absent) => Err(at.refuse_field("content", Problem::Missing)),
            (_, Amount::Null) => {
                Err(at.refuse_field("content", Problem::WrongType(Content::EXPECTED)))
            }
            (Some(true), Amount::Empty | Amount::Some) => Ok(Read::Usual),
        }
    }
}

/// How much content a message or reasoning has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Amount {
    #[default]
    Absent,
    Null,
    Empty,
    Some,
}

impl Amount {
    const fn of(count: u64) -> Self {
        match count {
            0 => Self::Empty,
            _ => Self::Some,
        }
    }

    const fn is_nothing(self) -> bool {
        !matches!(self, Self::Some)
    }
}

/// Reads the content of a message or of reasoning: a string, an array of parts, or null.
struct Content;

impl Shape for Content {
    type Value = Amount;
    const EXPECTED: &'static str = "string or array";

    fn null(self, _: At<'_>) -> Result<Amount, Error> {
        Ok(Amount::Null)
    }
    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<Amount, Error> {
        at.weigh_text(text);
        Ok(Amount::of(text.decoded_len()))
    }
    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<Amount, Error> {
        elements(at, json, || Part { typed: true }).map(Amount::of)
    }
}

/// Reads the output of a tool call: a string, an array of parts, or a single part.
struct Output;

impl Shape for Output {
    type Value = ();
    const EXPECTED: &'static str = "string or array";

    fn null(self, _: At<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<(), Error> {
        at.weigh_text(text);
        Ok(())
    }
    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<(), Error> {
        elements(at, json, || Part { typed: false }).map(drop)
    }
    fn object(self, at: At<'_>, object: Object<'_, '_>) -> Result<(), Error> {
        Part { typed: false }.object(at, object)
    }
}

/// Reads a part of a message's content or of a tool call's output. Parts of an output need no type.
#[derive(Clone, Copy, Debug)]
struct Part {
    typed: bool,
}

impl Part {
    fn is_known(name: &str) -> bool {
        matches!(
            name,
            "input_text"
                | "input_image"
                | "input_file"
                | "output_text"
                | "refusal"
                | "reasoning_text"
                | "summary_text"
                | "text"
                | "computer_screenshot"
        )
    }
}

impl Shape for Part {
    type Value = ();
    const EXPECTED: &'static str = "object";

    fn object(self, at: At<'_>, mut object: Object<'_, '_>) -> Result<(), Error> {
        let mut once = const {
            Once::new(&[
                "type",
                "image_url",
                "detail",
                "file_data",
                "file_id",
                "file_url",
                "input_audio",
                BREAKPOINT,
                MARK,
            ])
        };
        let mut known = None;
        while let Some(key) = object.next_key()? {
            once.check(at, &key)?;
            match &*key {
                "type" => known = Some(at.field(&key, &mut object, Text(Self::is_known))?),
                "image_url" => {
                    let media = at.field(&key, &mut object, OrNull(Text(Media::read)))?;
                    if let Some(media) = media {
                        Brought::Media(media).weigh_as_image(at, &key);
                    }
                }
                "detail" => at.field(&key, &mut object, Detail)?,
                "file_data" => {
                    let media = at.field(&key, &mut object, OrNull(Text(Media::read)))?;
                    if let Some(media) = media {
                        Brought::Media(media).weigh_as_file(at, &key);
                    }
                }
                "file_id" | "file_url" => {
                    at.field(&key, &mut object, Refused(Problem::SizeUnseen))?;
                }
                "input_audio" => return Err(at.refuse_field(&key, Problem::Unsupported)),
                MARK => at.weigh_and_read(&key, &mut object, Mark)?,
                BREAKPOINT => at.weigh_and_read(&key, &mut object, Options)?,
                _ => at.weigh_field(&key, &mut object)?,
            }
        }
        match known {
            None if self.typed => Err(at.refuse_field("type", Problem::Missing)),
            Some(false) => Err(at.refuse_field("type", Problem::Unsupported)),
            _ => Ok(()),
        }
    }
}
