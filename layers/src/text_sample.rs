//! Samples of a request's texts. If a vendor does not report the number of input tokens, the gateway estimates it from
//! these samples.
//!
//! The parser copies the samples; [`TextSample::milli`] counts their tokens. Vendors report the input of nearly all
//! calls, so most samples are never read.

use std::sync::Arc;

use crate::text_size::TextSize;

/// The number of bytes at the beginning of a request's texts that are sampled without gaps.
const WHOLE_BYTES: usize = 2 << 10;
/// After the first `WHOLE_BYTES`, 1/32 of the bytes is sampled, in pieces of at least [`PIECE_BYTES`].
const PART: usize = 32;
const PIECE_BYTES: usize = 128;
/// A text with fewer bytes than this is too short to estimate other texts from its sample.
const REPRESENTATIVE_BYTES: usize = 16;

/// Samples of the texts of a request, which may contain JSON escapes. Clones share the samples.
///
/// ```
/// use tollgate_layers::text_sample::{Sampler, TextSample};
///
/// let mut sampler = Sampler::default();
/// sampler.push("Добрый день, Марина Сергеевна!");
/// assert_eq!(TextSample::from(sampler).milli().div_ceil(1000), 8);
/// ```
#[derive(Clone, Debug, Default)]
pub struct TextSample(Arc<Sampler>);

impl TextSample {
    /// Returns the estimated tokens of all texts, in thousandths.
    #[must_use]
    pub fn milli(&self) -> u64 {
        let mut rest = &*self.0.copied;
        let milli = self.0.texts.iter().map(|text| {
            let (copied, behind) = rest.split_at(text.copied);
            rest = behind;
            let mut size = TextSize::default();
            size.push_json(copied);
            let milli = u128::from(size.milli()) * u128::from(text.bytes);
            u64::try_from(milli / (copied.len().max(1) as u128)).unwrap_or(u64::MAX)
        });
        milli.fold(0, u64::saturating_add)
    }
}

impl From<Sampler> for TextSample {
    fn from(sampler: Sampler) -> Self {
        Self(Arc::new(sampler))
    }
}

/// Takes samples of texts, one text after another.
#[derive(Clone, Debug, Default)]
pub struct Sampler {
    /// The samples of all texts, one after another.
    copied: Vec<u8>,
    texts: Vec<Sampled>,
    /// How many of the first [`WHOLE_BYTES`] bytes have been sampled so far.
    whole: usize,
    /// The number of bytes that may still be sampled.
    allowance: usize,
}

/// The sample of one text.
#[derive(Clone, Copy, Debug)]
struct Sampled {
    /// The number of bytes in the sample.
    copied: usize,
    /// The size of the text, plus the size of the unsampled texts whose tokens are estimated from this sample.
    bytes: u64,
}

impl Sampler {
    /// Creates a sampler for a request body of this length. Its memory suffices unless the body has many texts.
    #[must_use]
    pub fn for_body(bytes: usize) -> Self {
        Self {
            copied: Vec::with_capacity(bytes.min(WHOLE_BYTES + bytes / PART)),
            texts: Vec::with_capacity(16),
            ..Self::default()
        }
    }

    /// Adds the contents of a JSON string, or other JSON, and samples a part of it.
    pub fn push(&mut self, text: &str) {
        let bytes_max = if self.whole < WHOLE_BYTES {
            let left = WHOLE_BYTES - self.whole;
            self.whole += text.len().min(left);
            left
        } else {
            self.allowance += text.len().div_ceil(PART);
            if self.allowance < PIECE_BYTES
                && let Some(last) = self.last_representative()
            {
                last.bytes += text.len() as u64;
                return;
            }
            std::mem::take(&mut self.allowance)
        };
        self.sample(text.as_bytes(), bytes_max);
    }

    /// Adds the text of a document, of which at most 4 KiB are sampled.
    pub fn push_document(&mut self, text: &str) {
        self.sample(text.as_bytes(), 2 * WHOLE_BYTES);
    }

    /// Adds the samples of another sampler.
    pub fn append(&mut self, mut other: Self) {
        self.copied.append(&mut other.copied);
        self.texts.append(&mut other.texts);
    }

    fn last_representative(&mut self) -> Option<&mut Sampled> {
        let mut texts = self.texts.iter_mut().rev();
        texts.find(|text| text.copied >= REPRESENTATIVE_BYTES)
    }

    fn sample(&mut self, text: &[u8], bytes_max: usize) {
        let before = self.copied.len();
        if text.len() <= bytes_max.max(PIECE_BYTES) {
            self.copied.extend_from_slice(text);
        } else {
            let step = text.len() / (bytes_max / PIECE_BYTES).max(1);
            for piece in text.chunks(step) {
                self.copied
                    .extend_from_slice(&piece[..piece.len().min(PIECE_BYTES)]);
            }
        }
        self.texts.push(Sampled {
            copied: self.copied.len() - before,
            bytes: text.len() as u64,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn milli(texts: &[&str]) -> u64 {
        let mut sampler = Sampler::default();
        texts.iter().for_each(|text| sampler.push(text));
        TextSample::from(sampler).milli()
    }

    #[test]
    fn short_texts_are_sampled_completely() {
        for texts in [&["Добрый день"][..], &["a", "", "\\u0436\\n"], &[]] {
            let exact = texts.iter().map(|text| {
                let mut size = TextSize::default();
                size.push_json(text.as_bytes());
                size.milli()
            });
            assert_eq!(milli(texts), exact.sum::<u64>(), "{texts:?}");
        }
    }

    #[test]
    fn sample_of_many_texts_gives_the_right_token_estimate_for_all() {
        let (english, russian) = (
            "the quick brown fox jumps over the lazy dog ",
            "съешь ещё этих мягких французских булок ",
        );
        for (one, bytes) in [
            (english, 50),
            (russian, 90),
            (english, 5_000),
            (russian, 400_000),
        ] {
            let text = one.repeat(bytes / one.len() + 1);
            let texts = vec![&*text; 2_000_000 / text.len()];
            let exact = TextSize::of(&text).milli() * texts.len() as u64;
            let estimate = milli(&texts);
            let off = (estimate as i64 - exact as i64).abs() * 100 / exact as i64;
            assert!(off <= 15, "{bytes}: {estimate} of {exact}");
            let mut sampler = Sampler::default();
            texts.iter().for_each(|text| sampler.push(text));
            assert!(sampler.copied.len() <= WHOLE_BYTES + 2_000_000 / PART * 2);
        }
    }
}
