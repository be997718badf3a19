//! The table that decides what the translation of a request does with each field, in the neutral form of a request.

use crate::{
    call::Format,
    error::{Error, Problem},
    formats::wire::Object,
};

/// The treatment of a field by the reader of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The field is translated, or read to refuse values that have no counterpart.
    Read,
    /// The field has no counterpart and is left out: the caller cannot notice its loss in the response, or it affects
    /// only how a vendor of the same format works, bills or caches. `parse` has already refused values that store
    /// something, raise the price or change the call.
    Dropped,
    /// The field is rejected, so that nothing is lost silently.
    Refused,
}

use Fate::{Dropped, Read, Refused};

/// The fields, each with its treatment in Chat Completions, Messages and Responses requests. A field that is not in the
/// table is rejected.
const FIELDS: &[(&str, [Fate; 3])] = &[
    ("model", [Read; 3]),
    ("messages", [Read, Read, Refused]),
    ("max_tokens", [Read, Read, Refused]),
    ("max_completion_tokens", [Read, Refused, Refused]),
    ("temperature", [Read; 3]),
    ("top_p", [Read; 3]),
    ("top_k", [Read, Dropped, Refused]),
    ("n", [Read, Refused, Refused]),
    ("stop", [Read, Refused, Refused]),
    ("stream", [Read; 3]),
    ("tools", [Read; 3]),
    ("tool_choice", [Read; 3]),
    ("parallel_tool_calls", [Read, Refused, Read]),
    ("response_format", [Read, Refused, Refused]),
    ("reasoning_effort", [Read, Refused, Refused]),
    ("verbosity", [Read, Refused, Refused]),
    ("user", [Read, Refused, Read]),
    ("safety_identifier", [Read, Refused, Read]),
    ("logprobs", [Read, Refused, Refused]),
    ("metadata", [Read; 3]),
    ("modalities", [Read, Refused, Refused]),
    ("audio", [Read, Refused, Refused]),
    ("cache_control", [Read, Dropped, Read]),
    ("prompt_cache_key", [Read, Refused, Read]),
    ("prompt_cache_options", [Read, Refused, Read]),
    ("stream_options", [Dropped, Refused, Dropped]),
    ("top_logprobs", [Dropped, Refused, Read]),
    ("store", [Dropped, Refused, Dropped]),
    ("seed", [Dropped, Refused, Refused]),
    ("logit_bias", [Dropped, Refused, Refused]),
    ("frequency_penalty", [Dropped, Refused, Refused]),
    ("presence_penalty", [Dropped, Refused, Refused]),
    ("prediction", [Dropped, Refused, Refused]),
    ("prompt_cache_retention", [Dropped, Refused, Dropped]),
    ("moderation", [Dropped, Refused, Dropped]),
    ("service_tier", [Dropped; 3]),
    ("speed", [Dropped, Dropped, Refused]),
    ("web_search_options", [Dropped, Refused, Refused]),
    ("container", [Dropped, Dropped, Refused]),
    ("mcp_servers", [Dropped, Dropped, Refused]),
    ("previous_response_id", [Dropped, Refused, Dropped]),
    ("thread", [Dropped, Dropped, Refused]),
    ("system", [Refused, Read, Refused]),
    ("stop_sequences", [Refused, Read, Refused]),
    ("thinking", [Refused, Read, Refused]),
    ("output_config", [Refused, Read, Refused]),
    ("output_format", [Refused, Read, Refused]),
    ("context_management", [Refused, Dropped, Dropped]),
    ("compaction", [Refused, Dropped, Refused]),
    ("inference_geo", [Refused, Dropped, Refused]),
    ("diagnostics", [Refused, Dropped, Refused]),
    ("user_profile_id", [Refused, Dropped, Refused]),
    ("fallback_credit_token", [Refused, Dropped, Refused]),
    ("fallbacks", [Refused, Dropped, Refused]),
    ("previous_message_id", [Refused, Dropped, Refused]),
    ("input", [Refused, Refused, Read]),
    ("instructions", [Refused, Refused, Read]),
    ("max_output_tokens", [Refused, Refused, Read]),
    ("text", [Refused, Refused, Read]),
    ("reasoning", [Refused, Refused, Read]),
    ("include", [Refused, Refused, Read]),
    ("max_tool_calls", [Refused, Refused, Read]),
    ("truncation", [Refused, Refused, Read]),
    ("image", [Refused, Refused, Dropped]),
    ("access_programs", [Refused, Refused, Dropped]),
    ("client_metadata", [Refused, Refused, Dropped]),
    ("background", [Refused, Refused, Dropped]),
    ("conversation", [Refused, Refused, Dropped]),
    ("prompt", [Refused, Refused, Dropped]),
    ("prewarm", [Refused, Refused, Dropped]),
];

/// Refuses a field that the table rejects for requests of this format.
pub(crate) fn check_names(
    fields: &Object<'_, '_>,
    format: Format,
    problem: Problem,
) -> Result<(), Error> {
    // A new format does not compile until it has a column.
    let column = match format {
        Format::Chat => 0,
        Format::Messages => 1,
        Format::Responses => 2,
    };
    for (name, value) in &fields.fields.0 {
        let row = FIELDS.iter().find(|(known, _)| known == name);
        let fate = row.map_or(Refused, |(_, fates)| fates[column]);
        if fate == Refused && value.get() != "null" {
            return Err(fields.refuse(name, problem));
        }
    }
    Ok(())
}
