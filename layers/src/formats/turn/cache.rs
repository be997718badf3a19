//! Settings for the vendor's prompt cache, in the neutral form of a request.

use serde::Serialize;

use crate::{error::Error, formats::wire::Object};

const HOUR: &str = "1h";

/// A mark up to which the vendor should cache the prompt: `cache_control` of the Messages format. Without a `ttl`, the
/// cache entry lives for five minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "ephemeral")]
pub(crate) struct Mark {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttl: Option<&'static str>,
    /// Whether the mark is the translation of a `prompt_cache_breakpoint`. Vendors of OpenAI's formats cache
    /// automatically in addition to such breakpoints.
    #[serde(skip)]
    pub(crate) breakpoint: bool,
}

impl Mark {
    /// Reads the `prompt_cache_breakpoint` of an object. Its lifetimes have no counterpart in the Messages format.
    pub(crate) fn breakpoint(object: &Object<'_, '_>) -> Result<Option<Self>, Error> {
        let breakpoint = object.get("prompt_cache_breakpoint")?;
        Ok(breakpoint.map(|_| Self {
            ttl: None,
            breakpoint: true,
        }))
    }

    /// Reads the cache mark of an object in a Chat Completions request.
    pub(crate) fn read(object: &Object<'_, '_>) -> Result<Option<Self>, Error> {
        let Some(mark) = object.object("cache_control")? else {
            return Self::breakpoint(object);
        };
        let ttl = mark.get("ttl")?.map(|ttl| ttl.string()).transpose()?;
        Ok(Some(Self {
            ttl: ttl.filter(|ttl| ttl == HOUR).map(|_| HOUR),
            breakpoint: false,
        }))
    }
}

/// The settings of a request for the prompt cache, except the marks on parts of the request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CacheSettings {
    /// `cache_control` of the request itself, which marks the end of the prompt.
    pub(crate) end: Option<Mark>,
    /// Whether `prompt_cache_options.mode` is `explicit`. Then the gateway must not add marks.
    pub(crate) explicit: bool,
}

impl CacheSettings {
    pub(crate) fn read(fields: &Object<'_, '_>) -> Result<Self, Error> {
        let mut explicit = false;
        if let Some(options) = fields.object("prompt_cache_options")? {
            let mode = options.get("mode")?;
            explicit = mode.is_some_and(|mode| mode.raw.get() == "\"explicit\"");
        }
        Ok(Self {
            end: Mark::read(fields)?,
            explicit,
        })
    }
}
