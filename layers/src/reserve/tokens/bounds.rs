//! Computes upper bounds of the input of a call, in tokens.

use super::{ByTokens, HoldMode, Known};
use crate::{
    call::{IMAGE_SHARES, InputSize},
    price::{Class, Counts},
};

/// The most tokens that a vendor adds to each message. [`TOOL_TOKENS`] is the most that it adds to each tool, and
/// [`CALL_TOKENS`] the most that it adds to the call as a whole.
pub(super) const MESSAGE_TOKENS: u64 = 8;
const TOOL_TOKENS: u64 = 64;
pub(super) const CALL_TOKENS: u64 = 512;
/// The most tokens that an embeddings model adds to each input: marks, and the model's own instructions.
pub(super) const INPUT_TOKENS: u64 = 32;
/// The context window that is assumed if the catalog does not state the model's window. No model has a larger one.
pub(super) const CONTEXT_TOKENS_MAX: u64 = 10_000_000;

impl ByTokens {
    /// Returns the number of input tokens that the hold must cover. `apart` counts the separately billed features that
    /// the request may use.
    pub(super) fn input_bound(
        &self,
        input: &InputSize,
        apart: &Counts,
        context: Option<u64>,
    ) -> InputBound {
        let text = self.text_bound(input.text_bytes) + input.tokens;
        let parts = self.parts_bound(input, apart, context);
        // Each input may fill the window. If the text alone has more tokens than the window, the window is not used as
        // a bound, because a model that accepts the text must have a larger window.
        let window = context.map_or(u64::MAX, |tokens| {
            tokens.saturating_mul(input.inputs.max(1)).max(text)
        });
        let first = (text + overhead(input)).saturating_add(parts);
        let searches = apart.get(Class::WebSearchCall);
        if searches == 0 {
            let tokens = first.min(window);
            return InputBound {
                tokens,
                longest_step: tokens,
            };
        }
        // After each search, the vendor reads the whole input again, together with the results of all searches so far.
        let steps = steps(apart);
        let found = |times: u64| times.saturating_mul(self.search_tokens);
        let all_steps = first.saturating_mul(steps);
        InputBound {
            tokens: all_steps
                .saturating_add(found(searches.saturating_mul(steps) / 2))
                .min(window.saturating_mul(steps)),
            longest_step: first.saturating_add(found(searches)).min(window),
        }
    }

    /// Returns the bound for a call that continues a known conversation. `parts` is the bound of everything except text
    /// in the whole call. This bound includes the known turns, because a URL may return another image than before.
    ///
    /// The known count includes the tokens that the vendor added to the earlier call as a whole. [`CALL_TOKENS`] is
    /// added nevertheless, because the vendor may add more of them to this call.
    pub(super) fn continued_bound(&self, known: Known, parts: u64) -> u64 {
        let added = self.text_bound(known.text_bytes) + known.turns * MESSAGE_TOKENS;
        let all = known.tokens.saturating_add(added + CALL_TOKENS);
        all.saturating_add(parts)
    }

    fn text_bound(&self, bytes: u64) -> u64 {
        match self.mode {
            HoldMode::Usual => bytes.saturating_mul(2).div_ceil(3),
            HoldMode::Strict => bytes,
        }
    }

    /// Returns the bound of everything except text: images, documents and sound.
    pub(super) fn parts_bound(
        &self,
        input: &InputSize,
        apart: &Counts,
        context: Option<u64>,
    ) -> u64 {
        self.image_bound(input)
            .saturating_add(self.document_bound(input, context))
            .saturating_add(apart.get(Class::InputAudio))
    }

    fn image_bound(&self, input: &InputSize) -> u64 {
        let shares = input.image_shares.saturating_mul(self.image_tokens);
        shares.div_ceil(IMAGE_SHARES)
    }

    /// Returns the bound of the documents. A document of unknown size can fill the context window. In strict mode, this
    /// is assumed of any document, because a malicious document may contain much compressed text.
    fn document_bound(&self, input: &InputSize, context: Option<u64>) -> u64 {
        let is_unbounded = match self.mode {
            HoldMode::Usual => input.documents_unseen > 0,
            HoldMode::Strict => input.documents > 0,
        };
        if is_unbounded {
            return context.unwrap_or(CONTEXT_TOKENS_MAX);
        }
        let least = input.documents.saturating_mul(self.document_tokens);
        least
            .saturating_add(input.document_tokens_beyond)
            .max(input.document_tokens)
    }

    /// Returns the largest input that a vendor can honestly count. Text has at most one token per byte, and other
    /// content can fill the context window.
    pub(super) fn input_limit(
        &self,
        input: &InputSize,
        apart: &Counts,
        context: Option<u64>,
    ) -> u64 {
        let text = input.text_bytes + input.tokens + overhead(input);
        let steps = steps(apart);
        if input.images + input.documents == 0 && apart.get(Class::InputAudio) == 0 && steps == 1 {
            return text;
        }
        let context = context.unwrap_or(CONTEXT_TOKENS_MAX);
        text.max(context.saturating_mul(steps))
    }
}

/// The input tokens that the hold of a call covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InputBound {
    /// The input tokens of all steps of the call together: the first reading of the input, and one more per search.
    pub(super) tokens: u64,
    /// The input tokens of the longest step. The context window and the prices of long calls apply to each step
    /// separately.
    pub(super) longest_step: u64,
}

/// Returns how many times the vendor may read the input of a call: once, and again after each search.
const fn steps(apart: &Counts) -> u64 {
    apart.get(Class::WebSearchCall).saturating_add(1)
}

const fn overhead(input: &InputSize) -> u64 {
    if input.inputs > 0 {
        return input.inputs * INPUT_TOKENS;
    }
    CALL_TOKENS + input.messages * MESSAGE_TOKENS + input.tools * TOOL_TOKENS
}
