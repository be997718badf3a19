//! Translates tools, and the choice of the tools that the model may or must call.

use std::{borrow::Cow, collections::HashSet};

use serde::Serialize;
use serde_json::value::RawValue;

use super::marks::{Mark, Markable};
use crate::{
    error::{Error, Problem},
    path::Path,
    translate::wire::{Object, Value},
};

/// The tools of a messages request, and which of them may be called.
#[derive(Debug, Default)]
pub(in crate::translate) struct Tools<'a> {
    pub(in crate::translate) list: Vec<Tool<'a>>,
    pub(in crate::translate) choice: Option<Choice<'a>>,
}

/// A tool that the client runs, with the fields of the messages format.
#[derive(Debug, Serialize)]
pub(in crate::translate) struct Tool<'a> {
    name: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<Cow<'a, str>>,
    input_schema: Cow<'a, RawValue>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    strict: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<Mark>,
}

/// The field `tool_choice` of the messages format.
#[derive(Debug, Serialize)]
pub(in crate::translate) struct Choice<'a> {
    #[serde(rename = "type")]
    kind: Kind,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    disable_parallel_tool_use: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Auto,
    Any,
    Tool,
    None,
}

impl<'a> Tools<'a> {
    /// Reads `tools`, `tool_choice` and `parallel_tool_calls`. If there are no tools, the other two fields have no
    /// effect and are left out.
    pub(in crate::translate) fn read(body: &Object<'a, '_>) -> Result<Self, Error> {
        let mut tools = Self::default();
        if let Some(list) = body.get("tools")? {
            for (index, fields) in list.objects()?.into_iter().enumerate() {
                let path = Path::Index(&list.path, index);
                tools.list.push(Tool::read(&Object { path, fields })?);
            }
        }
        if tools.list.is_empty() {
            return Ok(tools);
        }
        if let Some(choice) = body.get("tool_choice")? {
            tools.choose(&choice)?;
        }
        let one_by_one = match body.get("parallel_tool_calls")? {
            None => false,
            Some(parallel) => !parallel.flag()?,
        };
        if one_by_one && !tools.list.is_empty() {
            let choice = tools.choice.get_or_insert(Choice::of(Kind::Auto));
            // Vendors reject this field if `tool_choice` forbids tool calls.
            choice.disable_parallel_tool_use = choice.kind != Kind::None;
        }
        Ok(tools)
    }

    /// Returns whether the model must call a tool.
    pub(in crate::translate) fn forced(&self) -> bool {
        self.choice
            .as_ref()
            .is_some_and(|choice| matches!(choice.kind, Kind::Any | Kind::Tool))
    }

    fn choose(&mut self, choice: &Value<'a, '_>) -> Result<(), Error> {
        if choice.raw.get().starts_with('"') {
            self.choice = Some(Choice::of(match &*choice.string()? {
                "auto" => Kind::Auto,
                "none" => Kind::None,
                "required" => Kind::Any,
                _ => return Err(choice.refuse(Problem::NotOneOf("none, auto, required"))),
            }));
            return Ok(());
        }
        let choice = choice.object()?;
        let kind = choice.need("type")?;
        match &*kind.string()? {
            "function" => {
                let name = choice.need("function")?.object()?.need("name")?.string()?;
                self.choice = Some(Choice {
                    name: Some(name),
                    ..Choice::of(Kind::Tool)
                });
                Ok(())
            }
            "allowed_tools" => self.allow(&choice.need("allowed_tools")?.object()?),
            _ => Err(kind.refuse(Problem::Unsupported)),
        }
    }

    /// Keeps only the allowed tools: the messages format has no separate list of them.
    fn allow(&mut self, allowed: &Object<'a, '_>) -> Result<(), Error> {
        let mode = allowed.need("mode")?;
        let kind = match &*mode.string()? {
            "auto" => Kind::Auto,
            "required" => Kind::Any,
            _ => return Err(mode.refuse(Problem::NotOneOf("auto, required"))),
        };
        let list = allowed.need("tools")?;
        let mut names = HashSet::new();
        for (index, fields) in list.objects()?.into_iter().enumerate() {
            let path = Path::Index(&list.path, index);
            let tool = Object { path, fields };
            let function = tool.need("function")?.object()?;
            let name = function.need("name")?;
            let text = name.string()?;
            if self.list.iter().all(|tool| tool.name != text) {
                return Err(name.refuse(Problem::NotOneOf("the names in tools")));
            }
            names.insert(text);
        }
        self.list.retain(|tool| names.contains(&tool.name));
        self.choice = (!self.list.is_empty()).then(|| Choice::of(kind));
        Ok(())
    }
}

impl Choice<'_> {
    const fn of(kind: Kind) -> Self {
        Self {
            kind,
            name: None,
            disable_parallel_tool_use: false,
        }
    }
}

impl<'a> Tool<'a> {
    fn read(tool: &Object<'a, '_>) -> Result<Self, Error> {
        if let Some(kind) = tool.get("type")?
            && kind.string()? != "function"
        {
            return Err(kind.refuse(Problem::Unsupported));
        }
        let function = tool.need("function")?.object()?;
        let description = function.get("description")?;
        let strict = function.get("strict")?;
        Ok(Self {
            name: function.need("name")?.string()?,
            description: description.map(|text| text.string()).transpose()?,
            input_schema: input_schema(&function)?,
            strict: strict.map_or(Ok(false), |strict| strict.flag())?,
            cache_control: Mark::read(tool)?.or(Mark::read(&function)?),
        })
    }
}

impl Markable for Tool<'_> {
    fn mark(&self) -> Option<Mark> {
        self.cache_control
    }

    fn set_mark(&mut self, mark: Option<Mark>) {
        self.cache_control = mark;
    }
}

/// Returns the schema as it is written, with a `type` if it has none, because messages vendors require one.
fn input_schema<'a>(function: &Object<'a, '_>) -> Result<Cow<'a, RawValue>, Error> {
    let Some(parameters) = function.get("parameters")? else {
        return Ok(schema(r#"{"type":"object","properties":{}}"#.to_owned()));
    };
    let fields = parameters.object()?.fields.0;
    if fields.is_empty() {
        return Ok(schema(r#"{"type":"object","properties":{}}"#.to_owned()));
    }
    if fields.iter().any(|(name, _)| name == "type") {
        return Ok(Cow::Borrowed(parameters.raw));
    }
    // The root of the schema may have `oneOf` or similar fields, so the type is added before the existing fields.
    let written = &parameters.raw.get()[1..];
    Ok(schema(format!("{{\"type\":\"object\",{written}")))
}

fn schema(json: String) -> Cow<'static, RawValue> {
    Cow::Owned(RawValue::from_string(json).expect("an object with an added member is JSON"))
}
