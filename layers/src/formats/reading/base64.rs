//! Reads base64 without decoding all of it, because most of a file's bytes are not needed.

/// A base64 text whose decoded bytes are read by their index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Base64<'a>(&'a [u8]);

impl<'a> Base64<'a> {
    /// Accepts only a text of base64 letters. If the text had other characters, decoders that skip them would read
    /// other bytes than this decoder.
    pub(crate) fn new(text: &'a str) -> Option<Self> {
        let text = Self::unchecked(text);
        let plain = text.0.iter().all(|letter| sextet(*letter).is_some());
        plain.then_some(text)
    }

    /// Accepts any text without checking its letters. [`Base64::byte`] returns `None` for invalid letters.
    pub(crate) fn unchecked(text: &'a str) -> Self {
        let text = text.as_bytes();
        let text = text.strip_suffix(b"=").unwrap_or(text);
        Self(text.strip_suffix(b"=").unwrap_or(text))
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len() / 4 * 3 + (self.0.len() % 4) * 3 / 4
    }

    pub(crate) fn byte(&self, at: usize) -> Option<u8> {
        if at >= self.len() {
            return None;
        }
        let (index, offset) = (at / 3 * 4 + at % 3, at % 3 * 2);
        let high = u16::from(sextet(*self.0.get(index)?)?);
        let low = u16::from(sextet(*self.0.get(index + 1)?)?);
        Some((((high << 6 | low) >> (4 - offset)) & 0xFF) as u8)
    }

    pub(crate) fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        for (offset, byte) in bytes.iter_mut().enumerate() {
            *byte = self.byte(at.checked_add(offset)?)?;
        }
        Some(bytes)
    }

    /// Decodes about `bytes` bytes, beginning at the letter with the index `at`. Returns the index of the next letter.
    /// Skips characters outside the base64 alphabet, as lenient decoders do.
    pub(crate) fn decode_into(&self, decoded: &mut Vec<u8>, at: usize, bytes: usize) -> usize {
        let until = self.0.len().min(at.saturating_add(bytes / 3 * 4));
        let (mut word, mut count) = (0_u32, 0);
        let mut end = at;
        for (index, letter) in self.0.iter().enumerate().skip(at) {
            // Decoding stops only after a complete group of four letters, so that the next call starts with a complete
            // group.
            if index >= until && count == 0 {
                break;
            }
            end = index + 1;
            let Some(six) = sextet(*letter) else {
                continue;
            };
            word = word << 6 | u32::from(six);
            count += 1;
            if count == 4 {
                decoded.extend_from_slice(&word.to_be_bytes()[1..]);
                (word, count) = (0, 0);
            }
        }
        if end == self.0.len() && count > 1 {
            let rest = (word << (6 * (4 - count))).to_be_bytes();
            decoded.extend_from_slice(&rest[1..count]);
        }
        end
    }

    /// Returns the number of letters of the text.
    pub(crate) const fn letters(&self) -> usize {
        self.0.len()
    }
}

const fn sextet(letter: u8) -> Option<u8> {
    Some(match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

#[cfg(test)]
pub(crate) fn encode(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let letters = bytes.chunks(3).flat_map(|chunk| {
        let at = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let word = at(0) << 16 | at(1) << 8 | at(2);
        (0..4).map(move |index| match index <= chunk.len() {
            true => char::from(LETTERS[(word >> (18 - 6 * index) & 63) as usize]),
            false => '=',
        })
    });
    letters.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_decoder_gives_the_same_bytes_for_any_block_size() {
        for length in 0..=40 {
            let bytes: Vec<u8> = (0..length)
                .map(|index: u8| 0xF7 ^ index.wrapping_mul(37))
                .collect();
            let text = encode(&bytes);
            let read = Base64::new(&text).unwrap();
            let all: Vec<_> = (0..usize::from(length) + 2)
                .map_while(|at| read.byte(at))
                .collect();
            assert_eq!((&all, read.len()), (&bytes, usize::from(length)), "{text}");
            // Base64 in emails is wrapped into lines. Lenient decoders skip the line ends.
            let lines = text
                .as_bytes()
                .chunks(7)
                .map(|line| String::from_utf8_lossy(line))
                .collect::<Vec<_>>()
                .join("\r\n");
            for text in [&text, &lines] {
                let read = Base64::unchecked(text);
                let (mut decoded, mut at) = (Vec::new(), 0);
                while at < read.letters() {
                    at = read.decode_into(&mut decoded, at, 6);
                }
                assert_eq!(decoded, bytes, "{text}");
            }
        }
    }
}
