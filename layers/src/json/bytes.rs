//! Where a string's next byte with a meaning stands, some words at a time.

use std::ops::Range;

use memchr::memchr2;

/// One in each byte of a word.
const ONES: u64 = u64::MAX / 255;
/// The highest bit of each byte of a word.
const HIGH: u64 = ONES << 7;
/// Most names and short values end within so many words: these are looked at where a string is read.
pub(super) const NEAR: usize = 2;
/// Most strings end within so many words, identifiers too; behind them a faster search is worth its start.
pub(super) const WORDS: usize = 6;
/// So many bytes are searched for control characters at a time, no more than words were looked at before.
const BLOCK: usize = 32;
const _: () = assert!(BLOCK <= 8 * WORDS);

/// Where the first byte from `at` on stands that means something in a string: a quote, a backslash, and, if
/// they are asked for, control characters. The end, if there is none.
// So many words are looked at in place. All of them would need more registers than there are, wherever a
// string is read.
#[inline(always)]
pub(super) fn special<const CONTROLS: bool, const IN_PLACE: usize>(
    json: &[u8],
    at: usize,
) -> usize {
    in_words::<CONTROLS>(json, at, 0..IN_PLACE)
        .unwrap_or_else(|| special_beyond::<CONTROLS>(json, at, IN_PLACE))
}

/// The same, where the first words have nothing, or the end is near.
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

/// Where the first such byte stands in some of the words from `at` on, if it does.
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

/// The highest bit of each byte of a word that means something in a string. The lowest bit that is set is
/// right; behind it a borrow may have set others.
#[inline]
const fn specials<const CONTROLS: bool>(word: u64) -> u64 {
    let backslashes = (word ^ (ONES * b'\\' as u64)).wrapping_sub(ONES);
    let others = if CONTROLS {
        // With this bit turned over a quote is a blank, a blank is a quote, and a control character is
        // another: below an exclamation mark is what is looked for, and no more.
        (word ^ (ONES * 2)).wrapping_sub(ONES * b'!' as u64)
    } else {
        (word ^ (ONES * b'"' as u64)).wrapping_sub(ONES)
    };
    (backslashes | others) & !word & HIGH
}

/// Where the first control character stands, in a text whose first [`BLOCK`] bytes are none.
fn first_control(text: &[u8]) -> Option<usize> {
    // The least of all bytes is found in whole vectors, and blocks from the end on leave over what is known.
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
