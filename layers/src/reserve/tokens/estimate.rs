//! Estimates the input tokens of a call from samples of its texts.

use std::sync::{Arc, OnceLock};

use super::ByTokens;
use crate::{
    call::{IMAGE_SHARES, InputSize},
    reserve::cached_shares::{CachedShares, Conversation},
    text_sample::TextSample,
    usage::{EstimateInput, InputEstimate, Usage},
};

/// The number of tokens that vendors usually add to a message.
const MESSAGE_TOKENS: u64 = 4;

/// Estimates the input tokens of a call whose vendor does not report them. Computes the estimate at most once.
#[derive(Debug)]
pub(super) struct InputEstimator {
    texts: TextSample,
    /// Estimated tokens of the texts that have no sample, in thousandths of a token.
    unsampled_milli: u64,
    /// The estimated tokens of everything except text.
    others: u64,
    /// The part of `others` that is for sound.
    sound: u64,
    /// The maximum of the estimate: the number of tokens that the hold covers.
    tokens_max: u64,
    remembered: Option<(Conversation, Arc<CachedShares>)>,
    estimate: OnceLock<InputEstimate>,
}

impl InputEstimator {
    /// Creates the estimator of a call that contains `sound` tokens of sound and whose hold covers `tokens_max` input
    /// tokens.
    pub(super) fn new(
        tariff: &ByTokens,
        input: &InputSize,
        texts: TextSample,
        sound: u64,
        tokens_max: u64,
        conversation: Option<Conversation>,
    ) -> Self {
        // If the tariff holds more tokens for an image than usual, the estimate of each image is raised in proportion.
        let images = input.usual_images.saturating_mul(tariff.image_tokens) / IMAGE_SHARES;
        let others = (input.messages * MESSAGE_TOKENS + input.tokens + images)
            .saturating_add(input.usual_documents)
            .saturating_add(sound);
        Self {
            texts,
            unsampled_milli: input.unsampled_milli,
            others,
            sound: sound.min(tokens_max),
            tokens_max: tokens_max.max(1),
            remembered: conversation.map(|it| (it, Arc::clone(&tariff.cached_shares))),
            estimate: OnceLock::new(),
        }
    }

    /// Remembers for the next call of the conversation which share of the input was in the vendor's cache.
    pub(super) fn remember(&self, usage: &Usage) {
        if let Some((conversation, shares)) = &self.remembered {
            shares.remember(*conversation, usage);
        }
    }
}

impl EstimateInput for InputEstimator {
    fn estimate(&self) -> InputEstimate {
        *self.estimate.get_or_init(|| {
            let text = self.unsampled_milli.saturating_add(self.texts.milli()) / 1000;
            let tokens = text.saturating_add(self.others).clamp(1, self.tokens_max);
            let text = tokens.saturating_sub(self.sound);
            let cached = self
                .remembered
                .as_ref()
                .map_or(0, |(conversation, shares)| {
                    shares.cached(*conversation, text)
                });
            InputEstimate {
                tokens,
                sound: self.sound,
                cached,
            }
        })
    }
}
