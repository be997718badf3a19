//! The origin of an answer: what its translation needs besides the caller's settings.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::messages::text::{inner, shortened};
use crate::json::members;

/// The vendor of an answer, and the tools that were renamed for it.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The operator's name for the vendor, stored in capsules.
    pub(super) vendor: Arc<str>,
    /// The caller's names of tools by the vendor's names, as written between quotes.
    names: HashMap<String, String>,
}

impl Origin {
    /// The origin of the vendor's answer to a chat or messages request with this body.
    #[must_use]
    pub fn new(vendor: &Arc<str>, request: &[u8]) -> Self {
        Self {
            vendor: Arc::clone(vendor),
            names: shortened_names(request).unwrap_or_default(),
        }
    }

    /// Returns the caller's name of a tool; both are as written between quotes.
    pub(super) fn name<'n>(&'n self, name: &'n str) -> &'n str {
        self.names.get(name).map_or(name, String::as_str)
    }
}

/// A tool, whose name is one level deeper in the chat format.
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
