//! Measures images by their headers and documents by their pages.

use super::{base64::Base64, pdf::Pdf};
use crate::call::IMAGE_SHARES;

/// The content of a field for an image or a document, by its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    /// The content is not in the request, which has only its URL or the id of a stored file.
    Elsewhere,
    /// An image with this size in pixels.
    Image(Pixels),
    /// A PDF document.
    Pdf(Pdf),
    /// A ZIP archive, for example a document of a word processor. Its unpacked size is unknown.
    Archive,
    /// Sound or a video, by its declared media type, with its size in bytes.
    Foreign(u64),
    /// Any other file, with its size in bytes.
    Bytes(u64),
}

impl Media {
    /// Reads a URL, a `data:` URL such as `data:image/png;base64,…`, or plain base64.
    pub(crate) fn read(text: &str) -> Self {
        let Some((kind, text)) = inline(text) else {
            return Self::Elsewhere;
        };
        let is = |beginning: &str| {
            let kind = kind.get(..beginning.len());
            kind.is_some_and(|kind| kind.eq_ignore_ascii_case(beginning))
        };
        let bytes = Base64::unchecked(text);
        let is_pdf = bytes.bytes(0) == Some(*b"%PD");
        if is_pdf || is("application/pdf") {
            return Self::Pdf(Pdf::read(&bytes));
        }
        if let Some(pixels) = Pixels::read(&bytes) {
            return Self::Image(pixels);
        }
        let size = bytes.len() as u64;
        match bytes.bytes(0) {
            Some([b'P', b'K', 3, 4]) => Self::Archive,
            _ if is("video/") || is("audio/") => Self::Foreign(size),
            _ => Self::Bytes(size),
        }
    }
}

/// Returns the media type and the base64 text of a `data:` URL. `None` if the URL has no base64.
fn inline(text: &str) -> Option<(&str, &str)> {
    let is_data = text
        .get(..5)
        .is_some_and(|head| head.eq_ignore_ascii_case("data:"));
    if is_data {
        let (head, data) = text[5..].split_once(',')?;
        let (kind, coding) = head.rsplit_once(';')?;
        return coding
            .trim()
            .eq_ignore_ascii_case("base64")
            .then_some((kind, data));
    }
    // The first characters of a URL include some that are not in the base64 alphabet.
    let mut head = text.bytes().take(16);
    let is_base64 = head.all(|byte| byte.is_ascii_alphanumeric() || b"+/=\r\n".contains(&byte));
    is_base64.then_some(("", text))
}

/// The size of an image in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pixels {
    width: u64,
    height: u64,
}

/// The maximum number of segments of a JPEG file, or of blocks of a GIF file, in which the size is searched. Usually a
/// file has few.
const SEGMENTS_MAX: usize = 4096;

impl Pixels {
    fn read(bytes: &Base64<'_>) -> Option<Self> {
        let head = bytes.bytes::<12>(0)?;
        match &head {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n', ..] => {
                let size = |at| bytes.bytes(at).map(u32::from_be_bytes);
                Self::new(size(16)?, size(20)?)
            }
            [0xFF, 0xD8, 0xFF, ..] => jpeg(bytes),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => gif(bytes),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P'] => webp(bytes),
            _ => None,
        }
    }

    fn new(width: impl Into<u64>, height: impl Into<u64>) -> Option<Self> {
        let (width, height) = (width.into(), height.into());
        (width > 0 && height > 0).then_some(Self { width, height })
    }

    /// Returns the most tokens that the image can cost, in shares of a full-size image ([`IMAGE_SHARES`]).
    ///
    /// For images below full size, vendors count tiles of 512 ([OpenAI]) or 768 pixels ([Gemini]), or patches of 32, 28
    /// ([Anthropic]) or 16 pixels. Each vendor has a minimum, and narrow images have more tiles than other images of
    /// the same area. The result is higher than the count of each of these vendors.
    ///
    /// [OpenAI]: https://developers.openai.com/api/docs/guides/images-vision
    /// [Gemini]: https://ai.google.dev/gemini-api/docs/tokens
    /// [Anthropic]: https://platform.claude.com/docs/en/build-with-claude/vision
    pub(crate) fn shares(self) -> u64 {
        const LEAST: u64 = 1_500;
        const OF_A_PATCH: u64 = 4;
        let (long, short) = (self.width.max(self.height), self.width.min(self.height));
        let short = short.max(long / 4);
        let patches = long.div_ceil(32).saturating_mul(short.div_ceil(32));
        IMAGE_SHARES.min(LEAST.saturating_add(OF_A_PATCH.saturating_mul(patches)))
    }

    /// Returns the estimated tokens: one per patch of 28 pixels, up to the number of a full-size image, because vendors
    /// scale larger images down.
    pub(crate) fn tokens_usual(self) -> u64 {
        let (columns, rows) = (self.width.div_ceil(28), self.height.div_ceil(28));
        let patches = columns.saturating_mul(rows);
        patches.clamp(85, WHOLE_IMAGE_TOKENS_USUAL)
    }
}

/// The estimated tokens of a full-size image, and of an image of unknown size.
pub(crate) const WHOLE_IMAGE_TOKENS_USUAL: u64 = 1_600;

/// Returns the size that the first frame header of a JPEG file states.
fn jpeg(bytes: &Base64<'_>) -> Option<Pixels> {
    let mut at = 2;
    for _ in 0..SEGMENTS_MAX {
        let [0xFF, mark, high, low] = bytes.bytes(at)? else {
            return None;
        };
        match mark {
            // This 0xFF is padding between two segments.
            0xFF => at += 1,
            // These JPEG markers are not followed by a length.
            0x01 | 0xD0..=0xD8 => at += 2,
            0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF => {
                let size = |at| bytes.bytes(at).map(u16::from_be_bytes);
                return Pixels::new(size(at + 7)?, size(at + 5)?);
            }
            // The image data begins or the file ends before any frame header.
            0xD9 | 0xDA => return None,
            _ => at += 2 + usize::from(u16::from_be_bytes([high, low])),
        }
    }
    None
}

/// Returns the larger of a GIF file's screen and its first image, because some decoders use the one and some the other.
fn gif(bytes: &Base64<'_>) -> Option<Pixels> {
    let size = |at| bytes.bytes(at).map(u16::from_le_bytes);
    let (width, height) = (size(6)?, size(8)?);
    let table = |flags: u8| {
        if flags & 0x80 == 0 {
            0
        } else {
            3 << ((flags & 7) + 1)
        }
    };
    let mut at = 13 + table(bytes.byte(10)?);
    for _ in 0..SEGMENTS_MAX {
        match bytes.byte(at)? {
            0x2C => {
                let right = u64::from(size(at + 1)?) + u64::from(size(at + 5)?);
                let bottom = u64::from(size(at + 3)?) + u64::from(size(at + 7)?);
                return Pixels::new(right.max(width.into()), bottom.max(height.into()));
            }
            0x21 => at += 2,
            // This is a data block of an extension. A block of length 0 ends the extension.
            length => at += 1 + usize::from(length),
        }
    }
    None
}

fn webp(bytes: &Base64<'_>) -> Option<Pixels> {
    match &bytes.bytes(12)? {
        b"VP8X" => {
            let size = |at| {
                let [low, middle, high] = bytes.bytes(at)?;
                Some(u32::from_le_bytes([low, middle, high, 0]) + 1)
            };
            Pixels::new(size(24)?, size(27)?)
        }
        b"VP8L" => {
            let bits = u32::from_le_bytes(bytes.bytes(21)?);
            Pixels::new((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        }
        b"VP8 " => {
            let size = |at| Some(u16::from_le_bytes(bytes.bytes(at)?) & 0x3FFF);
            Pixels::new(size(26)?, size(28)?)
        }
        _ => None,
    }
}
