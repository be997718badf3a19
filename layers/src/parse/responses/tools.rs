//! Parses the tools that a model may call. A tool that the caller runs counts as input. A tool that the vendor runs has
//! no price, so it is rejected, except web search. If the request only offers web search to the model, it is cut out of
//! the request, because one widely used client offers it in every request.

use std::ops::Range;

use super::super::{
    cache::{MARK, Mark},
    content::is_vendors_tool,
    json::{At, Cuts, Object, Once, Refused, Shape, Text, spanned_elements},
};
use crate::{
    error::{Error, Problem},
    json::{Reader, Str},
};

/// The bytes of instructions that a vendor adds to the input for a tool that its models were trained to use.
const TYPED_BYTES: u64 = 3000;

/// The properties of the tools that are needed to check other fields of the body.
#[derive(Debug, Default)]
pub(super) struct ToolsSeen {
    /// Whether there is a tool that the caller described.
    pub(super) has_functions: bool,
    /// Byte ranges to cut out of the body to remove the offered web searches.
    pub(super) searches: Vec<Range<usize>>,
    /// The number of offered web searches, and the index of the first one in `tools`.
    search_count: u64,
    first_search: usize,
}

impl ToolsSeen {
    /// Returns how many offered web searches to cut out.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the request is invalid without web search: `tool_choice` requires it, or there are no
    /// other tools.
    pub(super) fn cut(&self, choice: &Choice, functions_elsewhere: bool) -> Result<u64, Error> {
        if self.search_count == 0 {
            return Ok(0);
        }
        if choice.is_free() && (self.has_functions || functions_elsewhere) {
            return Ok(self.search_count);
        }
        let field = format!("tools[{}].type", self.first_search);
        Err(Error::invalid(field, Problem::SearchUnsupported))
    }
}

/// Reads the field `tools` of a request, which may offer a web search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tools;

impl Shape for Tools {
    type Value = ToolsSeen;
    const EXPECTED: &'static str = "array";

    fn null(self, _: At<'_>) -> Result<ToolsSeen, Error> {
        Ok(ToolsSeen::default())
    }
    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<ToolsSeen, Error> {
        let (mut seen, mut cuts) = (ToolsSeen::default(), Cuts::default());
        let mut index = 0;
        let each = || Tool { of_request: true };
        let count = spanned_elements(at, json, each, |span, kind| {
            let is_search = kind == Kind::Search;
            seen.has_functions |= kind == Kind::Function;
            if is_search && seen.search_count == 0 {
                seen.first_search = index;
            }
            seen.search_count += u64::from(is_search);
            cuts.element(span, is_search);
            index += 1;
        })?;
        at.cx.weigh(|size| size.tools += count);
        seen.searches = cuts.done();
        Ok(seen)
    }
}

/// Reads tools elsewhere in the body: in the conversation, or in a group of tools. Returns whether the caller described
/// one of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct MoreTools;

impl Shape for MoreTools {
    type Value = bool;
    const EXPECTED: &'static str = "array";

    fn null(self, _: At<'_>) -> Result<bool, Error> {
        Ok(false)
    }
    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<bool, Error> {
        let mut has_functions = false;
        let each = || Tool { of_request: false };
        let count = spanned_elements(at, json, each, |_, kind| {
            has_functions |= kind == Kind::Function;
        })?;
        at.cx.weigh(|size| size.tools += count);
        Ok(has_functions)
    }
}

/// The kind of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The caller describes and runs the tool.
    Function,
    /// The vendor defines the tool, and the caller runs it.
    Typed,
    /// A group of tools that the caller described.
    Group,
    /// The tool is a web search that the vendor runs.
    Search,
    /// A tool that the vendor runs, other than a web search.
    Vendors,
    Unknown,
}

impl Kind {
    fn of(name: &str) -> Self {
        match name {
            "function" | "custom" => Self::Function,
            "namespace" => Self::Group,
            "tool_search"
            | "local_shell"
            | "shell"
            | "apply_patch"
            | "computer"
            | "computer_use_preview" => Self::Typed,
            "file_search"
            | "code_interpreter"
            | "image_generation"
            | "mcp"
            | "programmatic_tool_calling" => Self::Vendors,
            _ if is_search(name) => Self::Search,
            _ => Self::Unknown,
        }
    }
}

fn is_search(kind: &str) -> bool {
    kind.starts_with("web_search")
}

#[derive(Clone, Copy, Debug)]
struct Tool {
    /// Whether the tool is in the field `tools` of the request itself, where a web search may be cut out.
    of_request: bool,
}

impl Shape for Tool {
    type Value = Kind;
    const EXPECTED: &'static str = "object";

    fn object(self, at: At<'_>, mut object: Object<'_, '_>) -> Result<Kind, Error> {
        let mut once = const { Once::new(&["type", "tools", "environment", MARK]) };
        let (mut kind, mut groups) = (None, false);
        while let Some(key) = object.next_key()? {
            once.check(at, &key)?;
            at.weigh_name(&key);
            match &*key {
                "type" => kind = Some(at.field(&key, &mut object, Text(Kind::of))?),
                "tools" => groups = at.field(&key, &mut object, MoreTools)?,
                MARK => at.weigh_and_read(&key, &mut object, Mark)?,
                "environment" => at.weigh_and_read(&key, &mut object, Environment)?,
                key if is_vendors_tool(key) => {
                    at.field(key, &mut object, Refused(Problem::ToolUnsupported))?;
                }
                _ => at.weigh_field(&key, &mut object)?,
            }
        }
        let refuse = |problem| Err(at.refuse_field("type", problem));
        match kind {
            None => refuse(Problem::Missing),
            Some(Kind::Unknown) => refuse(Problem::Unsupported),
            Some(Kind::Vendors) => refuse(Problem::ToolUnsupported),
            Some(Kind::Search) if !self.of_request => refuse(Problem::SearchUnsupported),
            Some(Kind::Group) if groups => Ok(Kind::Function),
            Some(Kind::Typed) => {
                at.cx.weigh(|size| size.add_unsampled(TYPED_BYTES));
                Ok(Kind::Typed)
            }
            Some(kind) => Ok(kind),
        }
    }
}

/// Reads the environment of a shell: the caller's machine, or a container of the vendor, which is refused because it is
/// billed separately.
struct Environment;

impl Shape for Environment {
    type Value = ();
    const EXPECTED: &'static str = "object";

    fn null(self, _: At<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn object(self, at: At<'_>, mut object: Object<'_, '_>) -> Result<(), Error> {
        let mut once = const { Once::new(&["type"]) };
        let mut is_local = false;
        while let Some(key) = object.next_key()? {
            once.check(at, &key)?;
            match &*key {
                "type" => {
                    is_local = at.field(&key, &mut object, Text(|kind: &str| kind == "local"))?;
                }
                _ => at.weigh_field(&key, &mut object)?,
            }
        }
        match is_local {
            true => Ok(()),
            false => Err(at.refuse(Problem::ToolUnsupported)),
        }
    }
}

/// Reads `tool_choice`, as far as it requires or allows a web search.
#[derive(Debug, Default)]
pub(super) struct Choice {
    required: bool,
    names_search: bool,
}

impl Choice {
    /// Returns whether the model may answer without a web search.
    const fn is_free(&self) -> bool {
        !self.required && !self.names_search
    }
}

impl Shape for Choice {
    type Value = Self;
    const EXPECTED: &'static str = "string or object";

    fn null(self, _: At<'_>) -> Result<Self, Error> {
        Ok(self)
    }
    fn string(mut self, at: At<'_>, text: &Str<'_>) -> Result<Self, Error> {
        at.weigh_text(text);
        self.required = text.decoded() == "required";
        Ok(self)
    }
    fn object(mut self, at: At<'_>, mut object: Object<'_, '_>) -> Result<Self, Error> {
        let mut once = const { Once::new(&["type", "tools"]) };
        while let Some(key) = object.next_key()? {
            once.check(at, &key)?;
            match &*key {
                "type" => self.names_search |= at.field(&key, &mut object, Text(is_search))?,
                "tools" => self.names_search |= at.field(&key, &mut object, Named)?,
                _ => at.weigh_field(&key, &mut object)?,
            }
        }
        Ok(self)
    }
}

/// Reads the list of tools that `tool_choice` allows; returns whether a web search is among them.
struct Named;

impl Shape for Named {
    type Value = bool;
    const EXPECTED: &'static str = "array";

    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<bool, Error> {
        let mut search = false;
        spanned_elements(at, json, || NamedTool, |_, here| search |= here)?;
        Ok(search)
    }
}

struct NamedTool;

impl Shape for NamedTool {
    type Value = bool;
    const EXPECTED: &'static str = "object";

    fn object(self, at: At<'_>, mut object: Object<'_, '_>) -> Result<bool, Error> {
        let mut once = const { Once::new(&["type"]) };
        let mut search = false;
        while let Some(key) = object.next_key()? {
            once.check(at, &key)?;
            match &*key {
                "type" => search = at.field(&key, &mut object, Text(is_search))?,
                _ => at.weigh_field(&key, &mut object)?,
            }
        }
        Ok(search)
    }
}
