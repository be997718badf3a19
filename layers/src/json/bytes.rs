//! Finds the next quote, backslash or control character in a JSON string, eight bytes at a time.

use std::ops::Range;

use memchr::memchr2;

/// A 64-bit word whose bytes are all 1.
const ONES: u64 = u64::MAX / 255;
/// A 64-bit word in which the highest bit of each byte is set.
const HIGH: u64 = ONES << 7;
/// The number of eight-byte words that are checked inline. Most names and short values end within them.
pub(super) const NEAR: usize = 2;
/// The number of eight-byte words that are checked before the vectorised search, which is slow to start. Most strings,
/// including ids, end within them.
pub(super) const WORDS: usize = 6;
/// Bytes per block of the search for control characters. It must not exceed the number of bytes that the search by
/// words covers.
const BLOCK: usize = 32;
const _: () = assert!(BLOCK <= 8 * WORDS);

/// Returns the index of the first quote, backslash or (with `CONTROLS`) control character from the position `at` on.
/// Returns the length of the text if there is no such byte.
// `IN_PLACE` is the number of words that are checked inline. With more words, every caller would need too many
// registers.
#[inline(always)]
pub(super) fn special<const CONTROLS: bool, const IN_PLACE: usize>(
    json: &[u8],
    at: usize,
) -> usize {
    in_words::<CONTROLS>(json, at, 0..IN_PLACE)
        .unwrap_or_else(|| special_beyond::<CONTROLS>(json, at, IN_PLACE))
}

/// Continues [`special`] after the words that were checked inline, or near the end of the text.
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

/// Returns the index of the first byte for which [`special`] searches within this range of words, which are counted
/// from `at`.
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

/// Sets the highest bit (0x80) of each byte of the word for which [`special`] searches, and clears all other bits. Only
/// the lowest bit that is set is certainly correct, because a borrow of the subtraction may wrongly set bits above it.
#[inline]
const fn specials<const CONTROLS: bool>(word: u64) -> u64 {
    let backslashes = (word ^ (ONES * b'\\' as u64)).wrapping_sub(ONES);
    let others = if CONTROLS {
        // Flipping bit 1 (0x02) swaps the quote (0x22) and the space (0x20), and maps control characters to control
        // characters. After that, exactly the quotes and the control characters are below an exclamation mark (0x21).
        (word ^ (ONES * 2)).wrapping_sub(ONES * b'!' as u64)
    } else {
        (word ^ (ONES * b'"' as u64)).wrapping_sub(ONES)
    };
    (backslashes | others) & !word & HIGH
}

/// Returns the index of the first control character in a text whose first [`BLOCK`] bytes contain none.
fn first_control(text: &[u8]) -> Option<usize> {
    // The compiler vectorises the minimum of a block. Blocks are counted from the end of the text, so any bytes that
    // fill no block are at the front, which was already searched.
    let (_, blocks) = text.as_rchunks::<BLOCK>();
    let bytes = blocks.as_flattened().iter();
    let least = bytes.fold(u8::MAX, |least, byte| least.min(*byte));
    if least >= b' ' {
        return None;
    }
    text.iter().position(|byte| *byte < b' ')
}
