//! The models as Codex lists them: what it sends its version for is `model_catalog_url` of its provider. Of a model
//! that stands nowhere it warns, and offers it no `apply_patch`.

use http::Uri;
use serde_json::{Value, json};

use super::connect::context_window;
use crate::catalog::snapshot::Listed;

/// What a model is told of its work: that of the list takes the place of the client's own.
const INSTRUCTIONS: &str = include_str!("templates/codex.md");

/// The most of a tool's output that goes back to the model, which is what Codex does for models of its own.
const TOOL_OUTPUT_TOKENS_MAX: u64 = 10_000;

/// Whether the list is asked for by a client that reads `models` of it.
pub(super) fn asks(uri: &Uri) -> bool {
    let mut fields = uri.query().unwrap_or_default().split('&');
    fields.any(|field| field.starts_with("client_version="))
}

/// A model for chats, at its place in the list.
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
        // What the model does with a wish for any of these is for its vendor to say.
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
    fn a_client_that_says_its_version_reads_models() {
        for (uri, asked) in [
            ("/v1/models?client_version=0.169.0", true),
            ("/v1/models?limit=5&client_version=0.169.0", true),
            ("/v1/models?client_versions=1", false),
            ("/v1/models?limit=1000", false),
            ("/v1/models", false),
        ] {
            assert_eq!(asks(&uri.parse().unwrap()), asked, "{uri}");
        }
    }
}
