//! Reads the tools of a responses request as one list with unique (flat) names, because the two other formats define
//! tools in this way. A tool with free text becomes a function with one string, and the name of a tool in a namespace
//! gets the namespace as a prefix.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use serde_json::value::RawValue;

use crate::{
    error::{Error, Problem},
    formats::{
        text::{Json, inner, joined, literal, made, optional, quoted, shortened, string},
        turn::request::{self, Choice, Named, Takes, flag, whole_schema},
        wire::{Object, Value},
    },
    path::Path,
};

/// The parameters of the function that replaces a tool with free text.
const FREE_TEXT: &str = r#"{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}"#;

/// The tools of a request that are sent to the vendor, and the choice of the tools that may be called.
#[derive(Debug, Default)]
pub(crate) struct Tools<'a> {
    list: Vec<Tool<'a>>,
    choice: Option<Choice<'a>>,
    /// Whether calls may be parallel, if the request has this field.
    parallel: Option<bool>,
    /// Those elements of the field `tools` that are sent to the vendor, as they are written.
    pub(crate) echo: Vec<&'a RawValue>,
    /// For each flat name, the index of the last tool with this name.
    last: HashMap<String, usize>,
}

/// A tool of the request.
#[derive(Debug)]
pub(super) struct Tool<'a> {
    /// The flat name, which is sent to the vendor.
    pub(super) flat: Json<'a>,
    /// The caller's name for the tool. `namespace` is the tool's namespace, if it has one.
    pub(super) name: &'a RawValue,
    pub(super) namespace: Option<&'a RawValue>,
    /// The description. For the first tool of a namespace, it begins with the description of the namespace.
    pub(super) description: Option<Json<'a>>,
    /// The description of the tool's namespace.
    about: Option<&'a RawValue>,
    pub(super) parameters: Json<'a>,
    pub(super) strict: bool,
    /// Whether the tool takes free text.
    pub(super) custom: bool,
}

/// The caller's names of a tool, if its flat name differs from them or if it takes free text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// The name, as a JSON string; `namespace` is one, too.
    pub(crate) name: String,
    pub(crate) namespace: Option<String>,
    pub(crate) custom: bool,
}

/// The caller's names of tools, by flat name (JSON-escaped, without quotes).
pub(crate) type Names = HashMap<String, Known>;

impl<'a> Tools<'a> {
    /// Reads `tools`, the `additional_tools` of the input, `tool_choice` and `parallel_tool_calls`.
    pub(crate) fn read(body: &Object<'a, '_>) -> Result<Self, Error> {
        let mut tools = Self::default();
        let mut offered = None;
        if let Some(list) = body.get("tools")? {
            for (index, raw) in list.array()?.into_iter().enumerate() {
                let path = Path::Index(&list.path, index);
                let tool = Value { path, raw }.object()?;
                match &*tool.need("type")?.string()? {
                    kind if is_web_search(kind) => offered = offered.or(Some(index)),
                    // A tool search is left out, because the tools that it would find are not in the request.
                    "tool_search" => {}
                    _ => {
                        tools.add(&tool, None)?;
                        tools.echo.push(raw);
                    }
                }
            }
        }
        tools.add_from_input(body)?;
        tools.drop_overridden();
        let choice = body.get("tool_choice")?;
        if let Some(index) = offered {
            // A web search that is only offered, together with tools that the caller runs, is left out. Otherwise the
            // answer would need it, so the request is refused.
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
        tools.parallel = match body.get("parallel_tool_calls")? {
            Some(flag) if !tools.list.is_empty() => Some(flag.flag()?),
            _ => None,
        };
        Ok(tools)
    }

    /// Returns the caller's names of those tools for which the flat name alone does not determine them.
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

    /// Returns the tools, the choice and whether calls may be parallel, for the writer of a vendor's format.
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
        for (index, raw) in input.array()?.into_iter().enumerate() {
            // A text search first, because most items have no tools, and parsing every item twice would cost more.
            if !raw.get().contains("additional_tools") {
                continue;
            }
            let path = Path::Index(&input.path, index);
            let item = Value { path, raw }.object()?;
            if item
                .get("type")?
                .is_none_or(|kind| kind.raw.get() != "\"additional_tools\"")
            {
                continue;
            }
            let Some(list) = item.get("tools")? else {
                continue;
            };
            for (index, raw) in list.array()?.into_iter().enumerate() {
                let path = Path::Index(&list.path, index);
                let tool = Value { path, raw }.object()?;
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
                for (index, raw) in list.array()?.into_iter().enumerate() {
                    let path = Path::Index(&list.path, index);
                    self.add(&Value { path, raw }.object()?, Some(&space))?;
                }
                return Ok(());
            }
            _ => return Err(kind.refuse(Problem::NotTranslated)),
        };
        let before = self
            .last
            .insert(read.flat.get().to_owned(), self.list.len());
        // Two tools with different names have the same flat name, so a call of the vendor could mean either.
        if before.is_some_and(|before| !self.list[before].has_names_of(&read)) {
            return Err(tool.refuse("name", Problem::Duplicate));
        }
        self.list.push(read);
        Ok(())
    }

    /// If a name occurs twice, the later tool replaces the earlier one.
    fn drop_overridden(&mut self) {
        let (last, mut index) = (&self.last, 0);
        self.list.retain(|tool| {
            let is_last = last.get(tool.flat.get()) == Some(&index);
            index += 1;
            is_last
        });
    }

    /// Adds the description of a namespace to the first of its tools that is left, and only to that: the hold has
    /// counted the description once, and repeating it for each tool could make the request many times longer.
    fn introduce(&mut self) {
        // The tools of a namespace are next to each other in the list.
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
            let chosen = match &*choice.string()? {
                "auto" => Choice::Auto,
                "none" => Choice::None,
                "required" => Choice::Required,
                _ => return Err(choice.refuse(Problem::NotOneOf("none, auto, required"))),
            };
            return self.set(chosen, choice);
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

    /// Keeps only the allowed tools: the other formats have no separate list of them.
    fn allow(&mut self, allowed: &Object<'a, '_>, choice: &Value<'a, '_>) -> Result<(), Error> {
        let mode = allowed.need("mode")?;
        let chosen = match &*mode.string()? {
            "auto" => Choice::Auto,
            "required" => Choice::Required,
            _ => return Err(mode.refuse(Problem::NotOneOf("auto, required"))),
        };
        let (list, mut flats) = (allowed.need("tools")?, HashSet::new());
        let index_of_all = Index::of(&self.list);
        for (index, fields) in list.objects()?.into_iter().enumerate() {
            let path = Path::Index(&list.path, index);
            flats.insert(index_of_all.find(&Object { path, fields })?);
        }
        self.list
            .retain(|tool| inner(&tool.flat).is_some_and(|flat| flats.contains(flat)));
        self.set(chosen, choice)
    }
}

/// Finds tools by name quickly, because a request may name as many tools as it has.
struct Index<'t, 'a> {
    list: &'t [Tool<'a>],
    /// By the caller's name, with and without the namespace. If several tools match, the first is used.
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
            None => Err(value.refuse(Problem::NotOneOf("the names in tools"))),
        }
    }
}

/// Returns whether this type of tool is a web search that the vendor runs, of any version.
pub(super) fn is_web_search(kind: &str) -> bool {
    kind.starts_with("web_search")
}

/// Returns whether the model may have to search the web: the choice requires a tool, names a search, or lists one.
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
    for (index, fields) in list.objects()?.into_iter().enumerate() {
        let path = Path::Index(&list.path, index);
        let tool = Object { path, fields };
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
            strict: flag(tool, "strict")?,
            ..Self::named(tool, space, Vec::new())?
        })
    }

    fn custom(tool: &Object<'a, '_>, space: Option<&Space<'a>>) -> Result<Self, Error> {
        let mut notes = vec![string("Input is free text.")];
        if let Some(format) = tool.get("format")? {
            let format = format.object()?;
            if let Some(definition) = optional(&format, "definition")? {
                let syntax = optional(&format, "syntax")?;
                let syntax = syntax.and_then(inner).unwrap_or_default();
                notes.push(made(format!("\"It must match this {syntax} grammar:\"")));
                notes.push(Cow::Borrowed(definition));
            }
        }
        Ok(Self {
            custom: true,
            ..Self::named(tool, space, notes)?
        })
    }

    /// Returns whether both tools have the same name and namespace.
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

/// Returns the flat name of a tool: the namespace as a prefix, then the name, in at most 64 characters.
pub(super) fn flat_name<'a>(namespace: Option<&RawValue>, name: &'a RawValue) -> Json<'a> {
    shortened(match namespace.and_then(inner) {
        None | Some("") => Cow::Borrowed(name),
        Some(space) => quoted(&[space, "__", inner(name).unwrap_or_default()]),
    })
}
