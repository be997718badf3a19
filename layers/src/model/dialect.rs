//! Differences between models that use the same wire format.

/// Differences between models that use the same wire format. Operators set them in the configuration, per vendor
/// format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dialect {
    /// Chat Completions: the field in which the gateway sends the output limit if the caller set none, or uses another
    /// format.
    pub output_field: OutputField,
    /// Chat Completions and Responses: the role of messages with instructions. If `None`, the caller's role is kept, or
    /// is `system` if the caller's format has no role for instructions.
    pub system_role: Option<SystemRole>,
    /// Chat Completions: whether the model accepts `reasoning_effort`. If not, the gateway removes the field.
    pub reasoning_effort: bool,
    /// Whether the model accepts `temperature`, `top_p` and `top_k`. If not, the gateway removes these fields.
    pub sampling: bool,
    /// Messages: the field in which a request turns on reasoning.
    pub thinking: Thinking,
    /// Whether the model can restrict responses to a JSON schema. If not, a request with a schema is refused with 400.
    pub json_schema: bool,
    /// Chat Completions: whether the model accepts `verbosity`. If not, the gateway removes the field.
    pub verbosity: bool,
    /// Responses: whether the gateway requests a reasoning summary if a caller of another format wants to see
    /// reasoning.
    pub reasoning_summary: bool,
    /// Responses: whether the gateway requests encrypted reasoning from the vendor. The caller must then return it in
    /// the next request, because the vendor stores nothing.
    pub encrypted_reasoning: bool,
    /// Messages: whether the gateway adds cache marks for callers whose format has no cache marks.
    pub cache_marks: CacheMarks,
    /// Chat Completions: whether tools are sent as `functions`, with one call per message, as GigaChat requires.
    pub functions: bool,
    /// Chat Completions and Responses: whether the model accepts `prompt_cache_key`. If `None`, the gateway forwards a
    /// caller's key, and derives a key from the session only for Responses vendors.
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

/// Whether the gateway adds cache marks (`cache_control`) for Messages vendors. Callers of other formats send no marks,
/// because vendors of those formats cache automatically.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CacheMarks {
    /// The gateway adds marks after the tools, the instructions and the user's last turns, unless the caller has set
    /// marks.
    #[default]
    Auto,
    /// The gateway forwards only the marks that the caller has set.
    Never,
}

/// The field that limits the output tokens in the Chat Completions format. The format has two names for it, and each
/// vendor accepts one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OutputField {
    /// `max_completion_tokens`, the current name of the field.
    #[default]
    MaxCompletionTokens,
    /// `max_tokens`, the older name of the field.
    MaxTokens,
}

impl OutputField {
    /// Returns the name of the request's field.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MaxCompletionTokens => "max_completion_tokens",
            Self::MaxTokens => "max_tokens",
        }
    }
}

/// The role that the Chat Completions format uses for instructions.
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

/// The field in which a request to a Messages model turns on reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Thinking {
    /// The field `output_config.effort` requests reasoning.
    #[default]
    Effort,
    /// The field `thinking.budget_tokens` requests reasoning.
    Budget,
    /// The model does not reason, so no field requests reasoning.
    None,
}
