//! Parses the conversation of a Responses request, which is a text or a list of items of many kinds.

use std::ops::Range;

use super::tools::more_tools;
use crate::{
    capsule,
    error::{Error, Problem},
    formats::reading::{
        cache::{BREAKPOINT, CACHE_MARK, CACHE_OPTIONS, MARK},
        content::{Brought, check_message, detail},
        json::{
            ArrayWith, At, Cuts, Object, ObjectWith, Once, OrNull, Refused, Shape, StringWith,
            Text, elements, spanned_elements,
        },
        media::Media,
    },
    json::{Reader, Str},
};

/// The properties of the conversation by which other fields of the body are checked.
#[derive(Debug, Default)]
pub(crate) struct InputSeen {
    /// Whether an item of the conversation lists a tool that the caller described.
    pub(crate) has_functions: bool,
    /// The byte ranges of the items to cut out, because no Responses vendor can read them.
    pub(crate) cut: Vec<Range<usize>>,
}

/// Reads the conversation, which must not be empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input;

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
            || ObjectWith(item),
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
    /// Reasoning that no Responses vendor can read: a capsule with the reasoning of another format, or reasoning with
    /// neither text nor an encrypted form, which only the vendor that stored it could read.
    Unreadable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Message,
    Reasoning,
    /// A call of a tool that the caller runs, the output of such a call, or an item that contains only text.
    Other,
    Reference,
    /// The item requests an action of the vendor that is not a response, for example to compact the conversation.
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

/// The fields of an item that decide whether it is allowed.
#[derive(Debug, Default)]
struct Fields {
    kind: Option<Kind>,
    /// Whether the item has an id. An item with only an id refers to a stored item.
    id: bool,
    /// Whether the role is a known role. `None` if the item has no role.
    role: Option<bool>,
    /// Whether the content is not empty; the inner `None` if it is null.
    content: Option<Option<bool>>,
    encrypted: bool,
    capsule: bool,
    has_functions: bool,
}

fn item(at: At<'_>, mut object: Object<'_, '_>) -> Result<Read, Error> {
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
    while let Some(key) = once.next_key(at, &mut object)? {
        match &*key {
            "type" => fields.kind = object.field(&key, OrNull(Text(Kind::of)))?,
            "role" => {
                let known = |role: &str| ROLES.contains(&role);
                fields.role = object.field(&key, OrNull(Text(known)))?;
            }
            "id" => fields.id = object.field(&key, OrNull(Text(|_: &str| ())))?.is_some(),
            "content" => fields.content = Some(object.field(&key, OrNull(Content))?),
            "output" => object.field(&key, Output)?,
            "encrypted_content" => {
                let read = |text: &str| (text.len(), text.starts_with(capsule::PREFIX));
                let read = object.field(&key, OrNull(Text(read)))?;
                let (bytes, capsule) = read.unwrap_or_default();
                (fields.encrypted, fields.capsule) = (bytes > 0, capsule);
                at.cx.weigh(|size| size.add_unsampled(bytes as u64));
            }
            // `input` contains the free text that was passed to a custom tool.
            "input" => object.weigh_written(&key)?,
            MARK => object.weigh_and_read(&key, CACHE_MARK)?,
            "tools" => {
                let has_functions = object.field(&key, OrNull(ArrayWith(more_tools)))?;
                fields.has_functions = has_functions.unwrap_or(false);
            }
            _ => object.weigh_field(&key)?,
        }
    }
    fields.read(at)
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
            Kind::Reasoning if !self.encrypted && self.content.flatten() != Some(true) => {
                Ok(Read::Unreadable)
            }
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
        let roles = "system, developer, user, assistant";
        let content = self.content.map(|content| content.is_some());
        check_message(at, self.role, roles, content).map(|()| Read::Usual)
    }
}

/// Reads the content of a message or of reasoning: a string or an array of parts. Returns whether it is not empty.
struct Content;

impl Shape for Content {
    type Value = bool;
    const EXPECTED: &'static str = "string or array";

    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<bool, Error> {
        at.weigh_text(text);
        Ok(text.decoded_len() > 0)
    }
    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<bool, Error> {
        elements(at, json, || Part { typed: true }).map(|count| count > 0)
    }
}

/// Reads the output of a tool call: a string, an array of parts, or a single part.
struct Output;

impl Shape for Output {
    type Value = ();
    const EXPECTED: &'static str = "string or array";
    const NULL: Option<Self::Value> = Some(());

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

/// Reads a part of a message's content or of a tool call's output. Parts of an output may lack a type.
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
        while let Some(key) = once.next_key(at, &mut object)? {
            match &*key {
                "type" => known = Some(object.field(&key, Text(Self::is_known))?),
                "image_url" => {
                    let media = object.field(&key, OrNull(Text(Media::read)))?;
                    if let Some(media) = media {
                        Brought::Media(media).weigh_as_image(at, &key);
                    }
                }
                "detail" => object.field(&key, OrNull(StringWith(detail))).map(drop)?,
                "file_data" => {
                    let media = object.field(&key, OrNull(Text(Media::read)))?;
                    if let Some(media) = media {
                        Brought::Media(media).weigh_as_file(at, &key);
                    }
                }
                "file_id" | "file_url" => {
                    object.field(&key, Refused(Problem::SizeUnseen))?;
                }
                "input_audio" => return Err(at.refuse_field(&key, Problem::Unsupported)),
                MARK => object.weigh_and_read(&key, CACHE_MARK)?,
                BREAKPOINT => object.weigh_and_read(&key, CACHE_OPTIONS)?,
                _ => object.weigh_field(&key)?,
            }
        }
        match known {
            None if self.typed => Err(at.refuse_field("type", Problem::Missing)),
            Some(false) => Err(at.refuse_field("type", Problem::Unsupported)),
            _ => Ok(()),
        }
    }
}
