//! The list of models for Codex. Codex reads it from its provider's `model_catalog_url` and sends its own version in
//! the query. For a model that is not in the list, Codex prints a warning and does not offer `apply_patch`.

use http::Uri;
use serde_json::{Value, json};

use super::connect::context_window;
use crate::catalog::snapshot::Listed;

/// The instructions for the model that Codex uses in place of its built-in ones.
const INSTRUCTIONS: &str = include_str!("templates/codex.md");

/// The maximum number of tokens of a tool's output that Codex sends to the model. This is the value that Codex uses for
/// its built-in models.
const TOOL_OUTPUT_TOKENS_MAX: u64 = 10_000;

/// Returns whether the client is Codex, which sends `client_version` in the query and expects the list of models in the
/// field `models`.
pub(super) fn asks(uri: &Uri) -> bool {
    let mut fields = uri.query().unwrap_or_default().split('&');
    fields.any(|field| field.starts_with("client_version="))
}

/// Returns a chat model as Codex's list describes it, with its position in the list.
pub(super) fn model(model: &Listed<'_>, description: Option<&str>, place: usize) -> Value {
    let context = context_window(model.input_tokens_max, model.output_tokens_max);
    json!({
        "slug": model.id,
        "display_name": model.display_name,
        "description": description,
        "base_instructions": INSTRUCTIONS,
        "context_window": context,
        "priority": place,
        "visibility": "list",
        "supported_in_api": true,
        "shell_type": "shell_command",
        "apply_patch_tool_type": "freeform",
        "supports_parallel_tool_calls": true,
        "experimental_supported_tools": [],
        "input_modalities": ["text", "image"],
        "truncation_policy": { "mode": "tokens", "limit": TOOL_OUTPUT_TOKENS_MAX },
        // No reasoning levels are listed, because the effect of a level depends on the vendor.
        "supported_reasoning_levels": [],
        "supports_reasoning_summaries": false,
        "support_verbosity": false,
        "default_verbosity": null,
        "availability_nux": null,
        "upgrade": null,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codex_is_recognized_by_the_version_in_its_query() {
        for (uri, requested) in [
            ("/v1/models?client_version=0.171.0", true),
            ("/v1/models?limit=5&client_version=0.171.0", true),
            ("/v1/models?client_versions=1", false),
            ("/v1/models?limit=1000", false),
            ("/v1/models", false),
        ] {
            assert_eq!(asks(&uri.parse().unwrap()), requested, "{uri}");
        }
    }
}
