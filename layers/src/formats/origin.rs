//! The origin of a response: data about its vendor and its request that the translation of the response needs.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use super::text::{inner, shortened};
use crate::json::members;

/// The vendor of a response, and the tools that were renamed for that vendor.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The operator's name for the vendor. It is stored in capsules.
    pub(crate) vendor: Arc<str>,
    /// The caller's name of each renamed tool, by its name at the vendor. Both names are JSON-escaped and without
    /// quotes.
    names: HashMap<String, String>,
}

impl Origin {
    /// Creates the origin of the response to a Chat Completions or Messages request with this body.
    #[must_use]
    pub fn new(vendor: &Arc<str>, request: &[u8]) -> Self {
        Self {
            vendor: Arc::clone(vendor),
            names: shortened_names(request).unwrap_or_default(),
        }
    }

    /// Returns the caller's name of the tool that has this name at the vendor. Both names are JSON-escaped and without
    /// quotes.
    pub(crate) fn name<'n>(&'n self, name: &'n str) -> &'n str {
        self.names.get(name).map_or(name, String::as_str)
    }
}

raw_fields! {
    /// A tool in a request. In the Chat Completions format, its name is one level deeper than in the Messages format.
    struct Tool<'a> {
        name;
        #[serde(borrow)] function: Option<Named<'a>>,
        #[serde(borrow)] custom: Option<Named<'a>>,
    }
    struct Named<'a> { name }
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
