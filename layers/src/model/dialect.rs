//! How a model differs from others that speak the same wire format.

/// Differences between models that speak the same wire format. Operators set them in the config, per vendor format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dialect {
    /// Chat: the field in which the gateway sends the output-token ceiling if the caller set none, or speaks another
    /// format.
    pub output_field: OutputField,
    /// Chat, responses: the role of instructions. `None`: the role that the caller sent, or `system` if the caller's
    /// format has no role for instructions.
    pub system_role: Option<SystemRole>,
    /// Chat: whether the model accepts `reasoning_effort`; if not, the gateway removes the field.
    pub reasoning_effort: bool,
    /// Whether the model accepts `temperature`, `top_p` and `top_k`; if not, the gateway removes them.
    pub sampling: bool,
    /// The field with which reasoning is requested of a messages vendor.
    pub thinking: Thinking,
    /// Whether the model can restrict answers to a JSON schema; if not, a request for a schema is refused with 400.
    pub json_schema: bool,
    /// Chat: whether the model accepts `verbosity`; if not, the gateway removes the field.
    pub verbosity: bool,
    /// Responses: whether a reasoning summary is requested if a caller of another format wants to see reasoning.
    pub reasoning_summary: bool,
    /// Responses: whether the gateway requests encrypted reasoning from the vendor. The caller must then send it back,
    /// because the vendor stores nothing.
    pub encrypted_reasoning: bool,
    /// Messages: whether the gateway adds cache marks for callers whose format has none.
    pub cache_marks: CacheMarks,
    /// Chat: whether tools are sent as `functions`, with one call per message, as GigaChat requires.
    pub functions: bool,
    /// Chat and responses: whether the model accepts `prompt_cache_key`. `None`: the gateway forwards a caller's key,
    /// and derives a key from the session only for responses vendors.
    pub prompt_cache_key: Option<bool>,
}

impl Default for Dialect {
    fn default() -> Self {
        Self {
            output_field: OutputField::default(),
            system_role: None,
            reasoning_effort: true,
            sampling: true,
            thinking: Thinking::default(),
            json_schema: true,
            verbosity: false,
            reasoning_summary: true,
            encrypted_reasoning: true,
            cache_marks: CacheMarks::default(),
            functions: false,
            prompt_cache_key: None,
        }
    }
}

impl Dialect {
    with! {
        output_field: OutputField,
        system_role: Option<SystemRole>,
        reasoning_effort: bool,
        sampling: bool,
        thinking: Thinking,
        json_schema: bool,
        verbosity: bool,
        reasoning_summary: bool,
        encrypted_reasoning: bool,
        cache_marks: CacheMarks,
        functions: bool,
        prompt_cache_key: Option<bool>,
    }
}

/// Whether the gateway adds cache marks (`cache_control`) for messages vendors. Callers of other formats send none,
/// because vendors of those formats cache automatically.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CacheMarks {
    /// Adds marks after the tools, the instructions and the user's last turns, unless the caller has set marks itself.
    #[default]
    Auto,
    /// Forwards only marks that the caller has set.
    Never,
}

/// The chat format has two names for the output-token ceiling; each vendor accepts one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OutputField {
    /// `max_completion_tokens`, the field's current name.
    #[default]
    MaxCompletionTokens,
    /// `max_tokens`, the field's older name.
    MaxTokens,
}

impl OutputField {
    /// Returns the field's name in a request.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MaxCompletionTokens => "max_completion_tokens",
            Self::MaxTokens => "max_tokens",
        }
    }
}

/// The role that the chat format uses for instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SystemRole {
    /// `system`, which every vendor accepts.
    #[default]
    System,
    /// `developer`, which newer OpenAI models require.
    Developer,
}

/// The field with which reasoning is requested of a messages model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Thinking {
    /// Reasoning is requested by the field `output_config.effort`.
    #[default]
    Effort,
    /// Reasoning is requested by the field `thinking.budget_tokens`.
    Budget,
    /// The model does not reason.
    None,
}
