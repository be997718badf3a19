//! The data of a Responses request that is needed to write its response.

use serde_json::value::RawValue;
use uuid::fmt::Simple;

use crate::{
    error::Error,
    formats::{
        responses::tools::{Names, Tools},
        wire::{Object, Value},
    },
    path::Path,
};

/// The data of a Responses request from which its response is written: the fields that the response repeats, and the
/// caller's names of tools.
#[derive(Clone, Debug)]
pub struct RequestEcho {
    /// The request's number. The ids in the response are derived from it.
    pub(crate) number: Simple,
    /// The time of the response's `created_at`, in Unix seconds.
    pub(crate) created: u64,
    /// The request's fields that the response repeats, as members of a JSON object.
    pub(crate) echo: String,
    /// The caller's names of the tools that were renamed for the vendor.
    pub(crate) names: Names,
    /// Whether the caller gets a summary of the reasoning.
    pub(crate) summary: bool,
    /// Whether the caller gets encrypted reasoning.
    pub(crate) encrypted: bool,
    /// The operator's name of the vendor that answers.
    pub(crate) vendor: String,
}

/// The fields of a request that the response repeats, each with its default value.
const ECHOED: [(&str, &str); 9] = [
    ("tool_choice", "\"auto\""),
    ("parallel_tool_calls", "true"),
    ("text", r#"{"format":{"type":"text"}}"#),
    ("reasoning", r#"{"effort":null,"summary":null}"#),
    ("temperature", "null"),
    ("top_p", "null"),
    ("max_output_tokens", "null"),
    ("metadata", "{}"),
    ("truncation", "\"disabled\""),
];

impl RequestEcho {
    /// Reads the data from the body of the caller's request.
    ///
    /// # Errors
    /// The errors of [`request`](crate::translate::request).
    pub fn read(body: &[u8], number: Simple, created: u64, vendor: &str) -> Result<Self, Error> {
        let raw: &RawValue = serde_json::from_slice(body).map_err(|error| {
            Error::invalid("", crate::error::Problem::NotJson(error.to_string()))
        })?;
        let path = Path::Root;
        let fields = Value { path, raw }.object()?;
        let tools = Tools::read(&fields)?;
        Ok(Self {
            number,
            created,
            echo: echo(&fields, &tools)?,
            names: tools.names(),
            summary: summary_asked(&fields)?,
            encrypted: encrypted_asked(&fields)?,
            vendor: vendor.to_owned(),
        })
    }
}

fn echo(fields: &Object<'_, '_>, tools: &Tools<'_>) -> Result<String, Error> {
    let tools: Vec<&str> = tools.echo.iter().map(|tool| tool.get()).collect();
    let mut echo = format!(
        "\"instructions\":null,\"previous_response_id\":null,\"background\":false,\"store\":false,\
         \"tools\":[{}]",
        tools.join(",")
    );
    for (name, absent) in ECHOED {
        let value = fields.get(name)?.map_or(absent, |value| value.raw.get());
        echo.push_str(&format!(",\"{name}\":{value}"));
    }
    // A line end within the data of an event would end the line. It is replaced by a space, which JSON allows in the
    // same places.
    if echo.contains(['\n', '\r']) {
        echo = echo.replace(['\n', '\r'], " ");
    }
    Ok(echo)
}

fn summary_asked(fields: &Object<'_, '_>) -> Result<bool, Error> {
    let Some(reasoning) = fields.object("reasoning")? else {
        return Ok(false);
    };
    Ok(reasoning.get("summary")?.is_some() || reasoning.get("generate_summary")?.is_some())
}

fn encrypted_asked(fields: &Object<'_, '_>) -> Result<bool, Error> {
    let Some(include) = fields.get("include")? else {
        return Ok(false);
    };
    let mut requested = include.array()?.into_iter();
    Ok(requested.any(|one| one.get() == "\"reasoning.encrypted_content\""))
}
