//! Computes the bounds of a call's input, in tokens.

use super::{ByTokens, HoldMode, Known};
use crate::{
    call::{IMAGE_SHARES, InputSize},
    price::{Class, Counts},
};

/// Tokens that formats add around each message, around each tool ([`TOOL_TOKENS`]) and around the call
/// ([`CALL_TOKENS`]).
pub(super) const MESSAGE_TOKENS: u64 = 8;
const TOOL_TOKENS: u64 = 64;
pub(super) const CALL_TOKENS: u64 = 512;
/// Tokens that an embedding model adds to each input: its marks, and its own instructions.
pub(super) const INPUT_TOKENS: u64 = 32;
/// Assumed context window if the catalog has none; no model has a larger one.
pub(super) const CONTEXT_TOKENS_MAX: u64 = 10_000_000;

impl ByTokens {
    /// The bound of input tokens for the hold. `apart`: requested units that are billed separately.
    pub(super) fn input_bound(
        &self,
        input: &InputSize,
        apart: &Counts,
        context: Option<u64>,
    ) -> InputBound {
        let text = self.text_bound(input.text_bytes) + input.tokens;
        let parts = self.parts_bound(input, apart, context);
        // Each input may fill the window. Text that exceeds the window is not reduced to it: a model that accepts the
        // text has a larger window.
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
        // After each search the vendor reads everything again, with the results of all searches so far.
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

    /// The bound of a call that continues a known conversation. `parts`: the bound of everything but text, in the whole
    /// call: an address may return another image than before.
    ///
    /// The vendor's additions to a call are in its count. They are added again, because they may have changed.
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

    /// Returns the bound of everything except text.
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

    /// A document whose size is not visible can fill the window. So can any document made on purpose, because text in
    /// it may be compressed.
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

    /// The maximum that honest usage can reach. Text is at least one byte per token; other content may be anything up
    /// to the context window.
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

/// The most input tokens that a call can be billed for, as far as a hold covers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InputBound {
    /// Returns the input tokens over all steps of the call.
    pub(super) tokens: u64,
    /// Input tokens of its longest step, which the vendor's window and its prices of long calls apply to.
    pub(super) longest_step: u64,
}

/// Returns how often the vendor may read the input of one call: once, and again after each search.
const fn steps(apart: &Counts) -> u64 {
    apart.get(Class::WebSearchCall).saturating_add(1)
}

const fn overhead(input: &InputSize) -> u64 {
    if input.inputs > 0 {
        return input.inputs * INPUT_TOKENS;
    }
    CALL_TOKENS + input.messages * MESSAGE_TOKENS + input.tools * TOOL_TOKENS
}
