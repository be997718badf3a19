//! Parses the tools that a model may call. A tool that the caller runs counts as input. A tool that the vendor runs has
//! no price and is rejected, with one exception: a web search that the request only offers to the model is cut out of
//! the request, because one widely used client offers it in every request.

use std::ops::Range;

use crate::{
    error::{Error, Problem},
    formats::reading::{
        cache::{CACHE_MARK, MARK},
        content::is_vendors_tool,
        json::{
            ArrayWith, At, Cuts, Field, Object, ObjectWith, Once, OrNull, Refused, Shape, Text,
            spanned_elements,
        },
    },
    json::{Reader, Str},
};

/// The number of bytes of instructions that a vendor adds to the input for a tool that its models were trained to use.
const TYPED_BYTES: u64 = 3000;

/// The properties of the tools by which other fields of the body are checked.
#[derive(Debug, Default)]
pub(crate) struct ToolsSeen {
    /// Whether the caller described any of the tools.
    pub(crate) has_functions: bool,
    /// The byte ranges to cut out of the body to remove the offered web searches.
    pub(crate) searches: Vec<Range<usize>>,
    /// The number of offered web searches, and the index of the first of them in `tools`.
    search_count: u64,
    first_search: usize,
}

impl ToolsSeen {
    /// Returns how many offered web searches are to be cut out.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the request is invalid without web search, because `tool_choice` requires it or there are
    /// no other tools.
    pub(crate) fn cut(&self, choice: &Choice, functions_elsewhere: bool) -> Result<u64, Error> {
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
pub(crate) fn tools(at: At<'_>, json: &mut Reader<'_>) -> Result<ToolsSeen, Error> {
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

/// Reads tools in other places than the field `tools`: in the conversation, or in a group of tools. Returns whether the
/// caller described any of them.
pub(crate) fn more_tools(at: At<'_>, json: &mut Reader<'_>) -> Result<bool, Error> {
    let mut has_functions = false;
    let each = || Tool { of_request: false };
    let count = spanned_elements(at, json, each, |_, kind| {
        has_functions |= kind == Kind::Function;
    })?;
    at.cx.weigh(|size| size.tools += count);
    Ok(has_functions)
}

/// The kind of a tool, by who defines and runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The caller describes and runs the tool.
    Function,
    /// The vendor has defined the tool, and the caller runs it.
    Typed,
    /// A group of tools that the caller described.
    Group,
    /// The tool is a web search that the vendor runs.
    Search,
    /// A tool other than web search that the vendor runs.
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
    /// Whether the tool is in the field `tools` of the request itself. There, a web search may be cut out.
    of_request: bool,
}

impl Shape for Tool {
    type Value = Kind;
    const EXPECTED: &'static str = "object";

    fn object(self, at: At<'_>, mut object: Object<'_, '_>) -> Result<Kind, Error> {
        let mut once = const { Once::new(&["type", "tools", "environment", MARK]) };
        let (mut kind, mut groups) = (None, false);
        while let Some(key) = once.next_key(at, &mut object)? {
            at.weigh_name(&key);
            match &*key {
                "type" => kind = Some(object.field(&key, Text(Kind::of))?),
                "tools" => {
                    let found = object.field(&key, OrNull(ArrayWith(more_tools)))?;
                    groups = found.unwrap_or(false);
                }
                MARK => object.weigh_and_read(&key, CACHE_MARK)?,
                "environment" => object.weigh_and_read(&key, OrNull(ObjectWith(environment)))?,
                key if is_vendors_tool(key) => {
                    object.field(key, Refused(Problem::ToolUnsupported))?;
                }
                _ => object.weigh_field(&key)?,
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

/// Reads the environment of a shell: the caller's machine, or a container of the vendor. The container is refused,
/// because it is billed separately.
fn environment(at: At<'_>, object: Object<'_, '_>) -> Result<(), Error> {
    let is_local = Text(|kind: &str| kind == "local");
    match Field(const { Once::new(&["type"]) }, is_local).object(at, object)? {
        Some((_, true)) => Ok(()),
        _ => Err(at.refuse(Problem::ToolUnsupported)),
    }
}

/// Reads `tool_choice`, and records whether it requires or allows a web search.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    required: bool,
    names_search: bool,
}

impl Choice {
    /// Returns whether the model may respond without a web search.
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
        while let Some(key) = once.next_key(at, &mut object)? {
            match &*key {
                "type" => self.names_search |= object.field(&key, Text(is_search))?,
                "tools" => self.names_search |= object.field(&key, ArrayWith(named))?,
                _ => object.weigh_field(&key)?,
            }
        }
        Ok(self)
    }
}

/// Reads the list of tools that `tool_choice` allows. Returns whether it contains a web search.
fn named(at: At<'_>, json: &mut Reader<'_>) -> Result<bool, Error> {
    let mut search = false;
    let tool = || Field(const { Once::new(&["type"]) }, Text(is_search));
    spanned_elements(at, json, tool, |_, found| {
        search |= matches!(found, Some((_, true)))
    })?;
    Ok(search)
}
