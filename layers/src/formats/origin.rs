//! The origin of an answer: data of its vendor and of the request that the translation of the answer needs.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::text::{inner, shortened};
use crate::json::members;

/// The vendor of an answer, and the tools whose names were changed for that vendor.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The operator's name for the vendor, stored in capsules.
    pub(crate) vendor: Arc<str>,
    /// For each tool whose name was changed for the vendor: the caller's name, by the vendor's name. Both are
    /// JSON-escaped and without quotes.
    names: HashMap<String, String>,
}

impl Origin {
    /// Creates the origin of the answer to this body of a chat or messages request.
    #[must_use]
    pub fn new(vendor: &Arc<str>, request: &[u8]) -> Self {
        Self {
            vendor: Arc::clone(vendor),
            names: shortened_names(request).unwrap_or_default(),
        }
    }

    /// Returns the caller's name of a tool for the vendor's name. Both are JSON-escaped and without quotes.
    pub(crate) fn name<'n>(&'n self, name: &'n str) -> &'n str {
        self.names.get(name).map_or(name, String::as_str)
    }
}

/// A tool of a request. In the chat format, its name is one level deeper than in the messages format.
#[derive(Deserialize)]
struct Tool<'a> {
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    function: Option<Named<'a>>,
    #[serde(borrow)]
    custom: Option<Named<'a>>,
}

#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    name: Option<&'a RawValue>,
}

fn shortened_names(request: &[u8]) -> Option<HashMap<String, String>> {
    let [tools] = members(std::str::from_utf8(request).ok()?, &["tools"]).ok()?;
    let tools: Vec<Tool<'_>> = serde_json::from_str(tools?).ok()?;
    let names = tools.into_iter().filter_map(|tool| {
        let nested = tool.function.or(tool.custom);
        let name = tool.name.or_else(|| nested?.name)?;
        let short = shortened(Cow::Borrowed(name));
        let (short, name) = (inner(&short)?, inner(name)?);
        (short != name).then(|| (short.to_owned(), name.to_owned()))
    });
    Some(names.collect())
}
