//! Finds the next significant byte of a string, several words at a time.

use std::ops::Range;

use memchr::memchr2;

/// A word whose bytes are all 1.
const ONES: u64 = u64::MAX / 255;
/// The highest bit of each byte of a word.
const HIGH: u64 = ONES << 7;
/// Words that are checked inline: most names and short values end within these.
pub(super) const NEAR: usize = 2;
/// Words that are checked before the vectorised search, which costs a start-up: most strings, including ids, end within
/// these.
pub(super) const WORDS: usize = 6;
/// Bytes per block of the search for control characters; at most the bytes that the word search covered.
const BLOCK: usize = 32;
const _: () = assert!(BLOCK <= 8 * WORDS);

/// Returns the index of the first byte from `at` on that is significant in a string: a quote, a backslash or, with
/// `CONTROLS`, a control character. The end of the text if there is none.
// Checks `IN_PLACE` words inline. More would need too many registers at every place that reads a string.
#[inline(always)]
pub(super) fn special<const CONTROLS: bool, const IN_PLACE: usize>(
    json: &[u8],
    at: usize,
) -> usize {
    in_words::<CONTROLS>(json, at, 0..IN_PLACE)
        .unwrap_or_else(|| special_beyond::<CONTROLS>(json, at, IN_PLACE))
}

/// Continues [`special`] after the inline words, or near the end of the text.
#[inline(never)]
fn special_beyond<const CONTROLS: bool>(json: &[u8], at: usize, words: usize) -> usize {
    if let Some(found) = in_words::<CONTROLS>(json, at, words..WORDS) {
        return found;
    }
    let Some(rest) = json.get(at..) else {
        return json.len();
    };
    let (words, last) = rest.as_chunks::<8>();
    if words.len() < WORDS {
        let found = last
            .iter()
            .position(|byte| matches!(byte, b'"' | b'\\') || CONTROLS && *byte < b' ');
        return json.len() - last.len() + found.unwrap_or(last.len());
    }
    let far = &rest[8 * WORDS..];
    let end = 8 * WORDS + memchr2(b'"', b'\\', far).unwrap_or(far.len());
    let control = CONTROLS.then(|| first_control(&rest[..end])).flatten();
    at + control.unwrap_or(end)
}

/// Returns the index of the first significant byte within these words from `at` on.
#[inline(always)]
fn in_words<const CONTROLS: bool>(json: &[u8], at: usize, words: Range<usize>) -> Option<usize> {
    let mut rest = json.get(at + 8 * words.start..)?;
    for index in words {
        let (word, behind) = rest.split_first_chunk::<8>()?;
        let found = specials::<CONTROLS>(u64::from_le_bytes(*word));
        if found != 0 {
            return Some(at + 8 * index + found.trailing_zeros() as usize / 8);
        }
        rest = behind;
    }
    None
}

/// Sets the highest bit of each significant byte of a word. Only the lowest set bit is exact: a borrow may set false
/// bits above it.
#[inline]
const fn specials<const CONTROLS: bool>(word: u64) -> u64 {
    let backslashes = (word ^ (ONES * b'\\' as u64)).wrapping_sub(ONES);
    let others = if CONTROLS {
        // Flipping this bit swaps quote and blank and maps control characters to control characters, so exactly the
        // significant bytes are below an exclamation mark.
        (word ^ (ONES * 2)).wrapping_sub(ONES * b'!' as u64)
    } else {
        (word ^ (ONES * b'"' as u64)).wrapping_sub(ONES)
    };
    (backslashes | others) & !word & HIGH
}

/// Returns the index of the first control character, in a text whose first [`BLOCK`] bytes have none.
fn first_control(text: &[u8]) -> Option<usize> {
    // The compiler vectorises the minimum of a block. Blocks are counted from the end, so the remainder is at the
    // front.
    let (_, blocks) = text.as_rchunks::<BLOCK>();
    let least = blocks
        .as_flattened()
        .iter()
        .fold(u8::MAX, |least, byte| least.min(*byte));
    if least >= b' ' {
        return None;
    }
    text.iter().position(|byte| *byte < b' ')
}
