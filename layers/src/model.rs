//! What the catalog sells: models, the routes that lead to a vendor, and where they are found.

use std::{sync::Arc, time::Duration};

use http::{HeaderValue, Uri};

use crate::{call::Format, price::Price};

/// A model of the catalog.
#[derive(Clone, Debug)]
pub struct Model {
    /// Name in the request field `model`.
    pub id: String,
    /// Family name, for people.
    pub family: String,
    /// Most output tokens that the model can be asked for.
    pub output_tokens_max: u64,
    /// Fewest output tokens worth a call when the client named no ceiling and funds are short.
    pub output_tokens_min: u64,
    /// The model's context window, if known: no input is counted beyond it.
    pub input_tokens_max: Option<u64>,
    /// What the model takes of its vendor's format.
    pub dialect: Dialect,
    /// Ways to a vendor, the best one first.
    pub routes: Vec<Arc<Route>>,
}

/// In what models of one format differ: switches of the config, by the vendor's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Chat: the field that a ceiling on output tokens is written into where the caller named none,
    /// or named it in the other format.
    pub output_field: OutputField,
    /// Chat: the role that instructions are given in.
    pub system_role: SystemRole,
    /// Chat: whether `reasoning_effort` is taken; it is dropped otherwise.
    pub reasoning_effort: bool,
    /// Both: whether `temperature`, `top_p` and `top_k` are taken; they are dropped otherwise.
    pub sampling: bool,
    /// Messages: how a wish for reasoning is written.
    pub thinking: Thinking,
    /// Both: whether answers can be held to a JSON schema; a wish for one is a 400 otherwise.
    pub json_schema: bool,
}

impl Default for Dialect {
    fn default() -> Self {
        Self {
            output_field: OutputField::default(),
            system_role: SystemRole::default(),
            reasoning_effort: true,
            sampling: true,
            thinking: Thinking::default(),
            json_schema: true,
        }
    }
}

/// The chat format has two names for the ceiling on output tokens; vendors take one or the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputField {
    /// Today's name.
    #[default]
    MaxCompletionTokens,
    /// The older name.
    MaxTokens,
}

impl OutputField {
    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MaxCompletionTokens => "max_completion_tokens",
            Self::MaxTokens => "max_tokens",
        }
    }
}

/// The chat format's role for instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SystemRole {
    /// What every vendor takes.
    #[default]
    System,
    /// What newer models of one vendor ask for.
    Developer,
}

/// How a model of the messages format is asked to think.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Thinking {
    /// By `output_config.effort`.
    #[default]
    Effort,
    /// By `thinking.budget_tokens`.
    Budget,
    /// It does not.
    None,
}

/// One way to a model.
#[derive(Clone, Debug)]
pub struct Route {
    /// Who answers.
    pub vendor: Arc<Vendor>,
    /// What the vendor calls the model.
    pub model: String,
    /// Share among routes of one priority.
    pub weight: u32,
    /// Lower is tried first.
    pub priority: u32,
}

/// A vendor: its format, address, key and patience.
#[derive(Clone, Debug)]
pub struct Vendor {
    /// The operator's name for it.
    pub name: String,
    /// What it speaks.
    pub format: Format,
    /// Where calls are posted.
    pub endpoint: Uri,
    /// The header that carries the key: `authorization` or `x-api-key`. Marked sensitive.
    pub credential: HeaderValue,
    /// Beginnings of the names of betas (messages format) that are not passed on: they change the price.
    pub betas_removed: Vec<String>,
    /// What to do with a stream whose client left.
    pub on_disconnect: OnDisconnect,
    /// Time for a connection.
    pub connect_timeout: Duration,
    /// Time from the request to the head of the answer.
    pub first_byte_timeout: Duration,
    /// Time between two frames.
    pub idle_timeout: Duration,
    /// Most connections at a time.
    pub connections_max: usize,
}

/// What to do with the vendor's stream when the client leaves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDisconnect {
    /// Close it at once; what was seen is charged.
    #[default]
    Cancel,
    /// Read it to its end; what was used is charged.
    Drain,
}

/// What a catalog knows under a name.
#[derive(Clone, Debug)]
pub enum Found {
    /// A model with a full price.
    Callable(Arc<Model>, Arc<Price>),
    /// A model without a price for now.
    Unpriced,
    /// Nothing.
    Unknown,
}

/// Where models are found. One look a call: what it returns is the call's snapshot to its end.
pub trait Models: Send + Sync + 'static {
    /// The model of this name and its price now.
    fn find_model(&self, id: &str) -> Found;
}

impl<M: Models> Models for Arc<M> {
    fn find_model(&self, id: &str) -> Found {
        (**self).find_model(id)
    }
}
