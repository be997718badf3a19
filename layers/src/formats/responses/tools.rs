//! Reads the tools of a Responses request as one list with unique (flat) names, because the two other formats define
//! tools in this way. A tool with free text becomes a function with one string parameter. The name of a tool in a
//! namespace gets the namespace as its prefix.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use serde_json::value::RawValue;

use crate::{
    error::{Error, Problem},
    formats::{
        text::{Json, inner, joined, literal, made, optional, quoted, shortened, string},
        turn::request::{self, Choice, Named, Takes, whole_schema},
        wire::{Object, Value},
    },
    path::Path,
};

/// The schema of the function that replaces a tool with free text.
const FREE_TEXT: &str = r#"{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}"#;

/// The tools of a request that are sent to the vendor, and the request's choice among them.
#[derive(Debug, Default)]
pub(crate) struct Tools<'a> {
    list: Vec<Tool<'a>>,
    choice: Option<Choice<'a>>,
    /// Whether tool calls may be parallel; `None` if the request does not have this field.
    parallel: Option<bool>,
    /// The elements of the field `tools` that are sent to the vendor, as written in the request.
    pub(crate) echo: Vec<&'a RawValue>,
    /// The index of the last tool with each flat name.
    last: HashMap<String, usize>,
}

/// A tool of the request.
#[derive(Debug)]
pub(super) struct Tool<'a> {
    /// The flat name of the tool, which is sent to the vendor.
    pub(super) flat: Json<'a>,
    /// The caller's name for the tool. `namespace` is the tool's namespace, if it has one.
    pub(super) name: &'a RawValue,
    pub(super) namespace: Option<&'a RawValue>,
    /// The description of the tool. For the first tool of a namespace, it begins with the namespace's description.
    pub(super) description: Option<Json<'a>>,
    /// The description of the tool's namespace.
    about: Option<&'a RawValue>,
    pub(super) parameters: Json<'a>,
    pub(super) strict: bool,
    /// Whether the tool takes free text.
    pub(super) custom: bool,
}

/// The caller's names of a tool. They are stored if they differ from the flat name, or if the tool takes free text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// The name of the tool, as a JSON string. `namespace` is a JSON string too.
    pub(crate) name: String,
    pub(crate) namespace: Option<String>,
    pub(crate) custom: bool,
}

/// The caller's names of tools, by the flat name (JSON-escaped, without quotes).
pub(crate) type Names = HashMap<String, Known>;

impl<'a> Tools<'a> {
    /// Reads `tools`, the `additional_tools` of the input, `tool_choice` and `parallel_tool_calls`.
    pub(crate) fn read(body: &Object<'a, '_>) -> Result<Self, Error> {
        let mut tools = Self::default();
        let mut offered = None;
        if let Some(list) = body.get("tools")? {
            for (index, element) in list.elements()?.enumerate() {
                let tool = element.object()?;
                match &*tool.need("type")?.string()? {
                    kind if is_web_search(kind) => offered = offered.or(Some(index)),
                    // A tool search is left out, because the tools that it could find are not in the request.
                    "tool_search" => {}
                    _ => {
                        tools.add(&tool, None)?;
                        tools.echo.push(element.raw);
                    }
                }
            }
        }
        tools.add_from_input(body)?;
        tools.drop_overridden();
        let choice = body.get("tool_choice")?;
        if let Some(index) = offered {
            // A web search that is only offered next to tools that the caller runs is left out. If the response could
            // depend on the search, the request is refused.
            let requested = choice.map_or(Ok(false), |choice| asks_for_search(&choice))?;
            if requested || tools.list.is_empty() {
                let list = Path::Key(&body.path, "tools");
                let tool = Path::Index(&list, index);
                return Err(Path::Key(&tool, "type").refuse(Problem::Unsupported));
            }
        }
        if let Some(choice) = choice {
            tools.choose(&choice)?;
        }
        tools.introduce();
        if !tools.list.is_empty() {
            tools.parallel = body.flag("parallel_tool_calls")?;
        }
        Ok(tools)
    }

    /// Returns the caller's names of those tools whose names cannot be derived from the flat name alone.
    pub(crate) fn names(&self) -> Names {
        let known = self.list.iter().filter(|tool| {
            tool.custom || tool.namespace.is_some() || tool.flat.get() != tool.name.get()
        });
        known
            .map(|tool| {
                let flat = inner(&tool.flat).unwrap_or_default().to_owned();
                let known = Known {
                    name: tool.name.get().to_owned(),
                    namespace: tool.namespace.map(|name| name.get().to_owned()),
                    custom: tool.custom,
                };
                (flat, known)
            })
            .collect()
    }

    /// Returns the tools, the choice among them, and whether calls may be parallel, for the writer of a vendor's
    /// format.
    pub(super) fn neutral(self) -> (Vec<request::Tool<'a>>, Option<Choice<'a>>, Option<bool>) {
        let tools = self.list.into_iter().map(|tool| request::Tool {
            name: tool.flat,
            description: tool.description,
            takes: Takes::Arguments {
                schema: tool.parameters,
                typed: true,
                strict: tool.strict.then_some(true),
            },
            mark: None,
        });
        (tools.collect(), self.choice, self.parallel)
    }

    /// Adds the tools that items of the conversation list.
    fn add_from_input(&mut self, body: &Object<'a, '_>) -> Result<(), Error> {
        let Some(input) = body
            .get("input")?
            .filter(|input| input.raw.get().starts_with('['))
        else {
            return Ok(());
        };
        for item in input.elements()? {
            // A text search comes first, because most items have no tools, and parsing every item twice would cost
            // more.
            if !item.raw.get().contains("additional_tools") {
                continue;
            }
            let item = item.object()?;
            let kind = item.get("type")?;
            if kind.is_none_or(|kind| kind.raw.get() != "\"additional_tools\"") {
                continue;
            }
            let Some(list) = item.get("tools")? else {
                continue;
            };
            for tool in list.elements()? {
                let tool = tool.object()?;
                let kind = tool.need("type")?.string()?;
                if !is_web_search(&kind) && kind != "tool_search" {
                    self.add(&tool, None)?;
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, tool: &Object<'a, '_>, space: Option<&Space<'a>>) -> Result<(), Error> {
        let kind = tool.need("type")?;
        let read = match (&*kind.string()?, space) {
            ("function", _) => Tool::function(tool, space)?,
            ("custom", _) => Tool::custom(tool, space)?,
            ("namespace", None) => {
                let space = Space {
                    name: literal(&tool.need("name")?)?,
                    description: optional(tool, "description")?,
                };
                let list = tool.need("tools")?;
                for tool in list.elements()? {
                    self.add(&tool.object()?, Some(&space))?;
                }
                return Ok(());
            }
            _ => return Err(kind.refuse(Problem::NotTranslated)),
        };
        let before = self
            .last
            .insert(read.flat.get().to_owned(), self.list.len());
        // Two tools with different names have the same flat name. A call by the vendor could mean either of them.
        if before.is_some_and(|before| !self.list[before].has_names_of(&read)) {
            return Err(tool.refuse("name", Problem::Duplicate));
        }
        self.list.push(read);
        Ok(())
    }

    /// If several tools have the same name, the last of them replaces the others.
    fn drop_overridden(&mut self) {
        let (last, mut index) = (&self.last, 0);
        self.list.retain(|tool| {
            let is_last = last.get(tool.flat.get()) == Some(&index);
            index += 1;
            is_last
        });
    }

    /// Adds the description of a namespace to the first of its remaining tools, and to no other tool. The hold has
    /// counted the description once, and a repetition for each tool could make the request many times longer.
    fn introduce(&mut self) {
        // The tools of a namespace are adjacent in the list.
        let mut reported: Option<&RawValue> = None;
        for tool in &mut self.list {
            let Some(about) = tool.about else { continue };
            if reported.is_some_and(|reported| std::ptr::eq(reported, about)) {
                continue;
            }
            reported = Some(about);
            let texts = [Some(Cow::Borrowed(about)), tool.description.take()];
            tool.description = Some(joined(texts.into_iter().flatten().collect(), "\\n"));
        }
    }

    fn choose(&mut self, choice: &Value<'a, '_>) -> Result<(), Error> {
        if choice.raw.get().starts_with('"') {
            return self.set(Choice::read_word(choice)?, choice);
        }
        let named = choice.object()?;
        let kind = named.need("type")?;
        match &*kind.string()? {
            "function" | "custom" => {
                let name = quoted(&[&Index::of(&self.list).find(&named)?]);
                let custom = false;
                self.set(Choice::Tool(Named { name, custom }), choice)
            }
            "allowed_tools" => self.allow(&named, choice),
            _ => Err(kind.refuse(Problem::NotTranslated)),
        }
    }

    fn set(&mut self, chosen: Choice<'a>, choice: &Value<'a, '_>) -> Result<(), Error> {
        if !self.list.is_empty() {
            self.choice = Some(chosen);
            return Ok(());
        }
        match chosen.is_forced() {
            false => Ok(()),
            true => Err(choice.refuse(Problem::Contradicts("tools"))),
        }
    }

    /// Keeps only the allowed tools, because other formats have no separate list of allowed tools.
    fn allow(&mut self, allowed: &Object<'a, '_>, choice: &Value<'a, '_>) -> Result<(), Error> {
        let chosen = Choice::of_mode(Choice::read_mode(allowed)?);
        let (list, mut flats) = (allowed.need("tools")?, HashSet::new());
        let index_of_all = Index::of(&self.list);
        for tool in list.objects()? {
            flats.insert(index_of_all.find(&tool)?);
        }
        self.list
            .retain(|tool| inner(&tool.flat).is_some_and(|flat| flats.contains(flat)));
        self.set(chosen, choice)
    }
}

/// An index that finds tools by name, because a request may name as many tools as it has.
struct Index<'t, 'a> {
    list: &'t [Tool<'a>],
    /// The tools' indices by the caller's name, with and without the namespace. If several tools match, the first is
    /// used.
    by_name: HashMap<(&'t str, Option<&'t str>), usize>,
    by_flat: HashMap<&'t str, usize>,
}

impl<'t, 'a> Index<'t, 'a> {
    fn of(list: &'t [Tool<'a>]) -> Self {
        let (mut by_name, mut by_flat) = (HashMap::new(), HashMap::new());
        for (index, tool) in list.iter().enumerate() {
            let (name, namespace) = (tool.name.get(), tool.namespace.map(RawValue::get));
            by_name.entry((name, namespace)).or_insert(index);
            by_name.entry((name, None)).or_insert(index);
            by_flat.entry(tool.flat.get()).or_insert(index);
        }
        Self {
            list,
            by_name,
            by_flat,
        }
    }

    /// Returns the flat name of the tool that the request names here.
    fn find<'n>(&self, named: &Object<'n, '_>) -> Result<Cow<'n, str>, Error> {
        let value = named.need("name")?;
        let name = literal(&value)?;
        let namespace = optional(named, "namespace")?;
        let by_name = self
            .by_name
            .get(&(name.get(), namespace.map(RawValue::get)));
        let by_flat = self.by_flat.get(name.get());
        let first = by_name.into_iter().chain(by_flat).min();
        match first.map(|first| &self.list[*first]) {
            Some(tool) => Ok(Cow::Owned(inner(&tool.flat).unwrap_or_default().to_owned())),
            None if self.list.is_empty() => Ok(Cow::Borrowed(inner(name).unwrap_or_default())),
            None => Err(value.refuse(Problem::NotOneOf("the tool names in 'tools'"))),
        }
    }
}

/// Returns whether a tool of this type is a web search that the vendor runs, in any version.
pub(super) fn is_web_search(kind: &str) -> bool {
    kind.starts_with("web_search")
}

/// Returns whether the model may have to search the web, because the choice requires a tool, or names or lists a web
/// search.
fn asks_for_search(choice: &Value<'_, '_>) -> Result<bool, Error> {
    if choice.raw.get().starts_with('"') {
        return Ok(choice.string()? == "required");
    }
    let choice = choice.object()?;
    if is_web_search(&choice.need("type")?.string()?) {
        return Ok(true);
    }
    let Some(list) = choice.get("tools")? else {
        return Ok(false);
    };
    for tool in list.objects()? {
        if let Some(kind) = tool.get("type")?
            && is_web_search(&kind.string()?)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

#[derive(Debug)]
struct Space<'a> {
    name: &'a RawValue,
    description: Option<&'a RawValue>,
}

impl<'a> Tool<'a> {
    fn function(tool: &Object<'a, '_>, space: Option<&Space<'a>>) -> Result<Self, Error> {
        Ok(Self {
            parameters: whole_schema(tool, "parameters")?,
            strict: tool.flag("strict")?.unwrap_or(false),
            ..Self::named(tool, space, Vec::new())?
        })
    }

    fn custom(tool: &Object<'a, '_>, space: Option<&Space<'a>>) -> Result<Self, Error> {
        let mut notes = vec![string("Input is free text.")];
        if let Some(format) = tool.object("format")?
            && let Some(definition) = optional(&format, "definition")?
        {
            let syntax = optional(&format, "syntax")?;
            let syntax = syntax.and_then(inner).unwrap_or_default();
            notes.push(made(format!("\"It must match this {syntax} grammar:\"")));
            notes.push(Cow::Borrowed(definition));
        }
        Ok(Self {
            custom: true,
            ..Self::named(tool, space, notes)?
        })
    }

    /// Returns whether both tools have the same name and the same namespace.
    fn has_names_of(&self, other: &Self) -> bool {
        let names = |tool: &Self| (tool.name.get(), tool.namespace.map(RawValue::get));
        names(self) == names(other)
    }

    /// Creates a tool with its names and its description.
    fn named(
        tool: &Object<'a, '_>,
        space: Option<&Space<'a>>,
        notes: Vec<Json<'a>>,
    ) -> Result<Self, Error> {
        let value = tool.need("name")?;
        let name = literal(&value)?;
        let namespace = space.map(|space| space.name);
        let mut texts: Vec<Json<'a>> = Vec::new();
        texts.extend(optional(tool, "description")?.map(Cow::Borrowed));
        texts.extend(notes);
        Ok(Self {
            flat: flat_name(namespace, name),
            name,
            namespace,
            description: (!texts.is_empty()).then(|| joined(texts, "\\n")),
            about: space.and_then(|space| space.description),
            parameters: made(FREE_TEXT.to_owned()),
            strict: false,
            custom: false,
        })
    }
}

/// Returns the flat name of a tool: the name with the namespace as its prefix, in at most 64 characters.
pub(super) fn flat_name<'a>(namespace: Option<&RawValue>, name: &'a RawValue) -> Json<'a> {
    shortened(match namespace.and_then(inner) {
        None | Some("") => Cow::Borrowed(name),
        Some(space) => quoted(&[space, "__", inner(name).unwrap_or_default()]),
    })
}
