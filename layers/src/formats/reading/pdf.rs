//! Estimates how many pages a PDF has and how much of it may be text, in one pass over its bytes.
//!
//! Nothing is decompressed. Pages are counted by their objects and by the counts in the page tree. If compressed
//! objects may contain pages, the number of pages is unknown, and every byte outside images and fonts counts as text.

use memchr::memmem;

use super::base64::Base64;

/// The maximum number of tokens of a page. Vendors read a page as text, which has up to [3,000 tokens][pages] according
/// to Anthropic, and as an image, for which 5,000 tokens are held.
///
/// [pages]: https://platform.claude.com/docs/en/build-with-claude/pdf-support
const PAGE_TOKENS: u64 = 8_000;
/// The estimated tokens of an ordinary page, as text and as an image together.
const PAGE_TOKENS_USUAL: u64 = 3_000;
/// If the pages are counted, one token is assumed per this many bytes of compressed text and drawings. On most pages, a
/// token has about ten bytes.
const CONTENT_BYTES: u64 = 2;
/// If the pages cannot be counted, one token is estimated per this many bytes of compressed text and drawings.
const CONTENT_BYTES_USUAL: u64 = 4;
/// The number of bytes that are decoded from base64 in one step and appended to the block in memory.
const BLOCK_BYTES: usize = 64 << 10;
/// The number of evaluated bytes that stay in the block, because a stream's dictionary precedes its data.
const BEHIND_BYTES: usize = 2 << 10;
/// A keyword is evaluated when the block has at least this many bytes after it, or when the file has ended.
const AHEAD_BYTES: usize = 512;

/// The properties that were found in a PDF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pdf {
    /// The number of pages that were found. Further pages may be in compressed objects.
    pages: u64,
    /// The number of streams that are images.
    images: u64,
    /// The number of bytes outside images and fonts.
    content_bytes: u64,
    /// Whether there may be pages in compressed objects, which were not counted.
    hides_pages: bool,
}

impl Pdf {
    /// Reads a PDF that is encoded in base64.
    pub(crate) fn read(base64: &Base64<'_>) -> Self {
        let mut scan = Scan::default();
        let mut block = Vec::with_capacity(BEHIND_BYTES + AHEAD_BYTES + BLOCK_BYTES + 3);
        let (mut at, mut from) = (0, 0);
        loop {
            at = base64.decode_into(&mut block, at, BLOCK_BYTES);
            let is_last = at >= base64.letters();
            let until = if is_last {
                block.len()
            } else {
                block.len().saturating_sub(AHEAD_BYTES)
            };
            scan.block(&block, from, until);
            if is_last {
                scan.skipped += block.len() as u64;
                return scan.found();
            }
            let cut = until.saturating_sub(BEHIND_BYTES);
            block.drain(..cut);
            scan.skipped += cut as u64;
            from = until - cut;
        }
    }

    /// Returns the properties of a file of which only the size is known.
    pub(crate) const fn opaque(bytes: u64) -> Self {
        Self {
            pages: 0,
            images: 0,
            content_bytes: bytes,
            hides_pages: true,
        }
    }

    /// Returns the maximum number of tokens of an ordinary file with these properties.
    pub(crate) fn tokens_max(&self) -> u64 {
        if self.hides_pages {
            let pages = self.pages.saturating_add(self.images);
            return pages
                .saturating_mul(PAGE_TOKENS)
                .saturating_add(self.content_bytes);
        }
        let pages = self.pages.saturating_mul(PAGE_TOKENS);
        pages.max(self.content_bytes / CONTENT_BYTES)
    }

    /// Returns the estimated number of tokens of a file with these properties.
    pub(crate) fn tokens_usual(&self) -> u64 {
        if self.hides_pages {
            let pages = self.pages.max(self.images).max(1);
            return pages
                .saturating_mul(PAGE_TOKENS_USUAL)
                .max(self.content_bytes / CONTENT_BYTES_USUAL);
        }
        self.pages.saturating_mul(PAGE_TOKENS_USUAL)
    }
}

/// The state of the pass over a file. Only one decoded block of the file is in memory.
#[derive(Debug, Default)]
struct Scan {
    page_objects: u64,
    count_max: u64,
    hides_pages: bool,
    images: u64,
    /// The number of bytes in images and fonts.
    no_text_bytes: u64,
    /// The offset of the image or font stream whose end has not been found yet.
    open_at: Option<u64>,
    /// The offset of the current block in the decoded file.
    skipped: u64,
}

impl Scan {
    /// Evaluates the keywords that begin in `block[from..until]`.
    fn block(&mut self, block: &[u8], from: usize, until: usize) {
        let starts = |name: &'static [u8]| {
            memmem::find_iter(&block[from..], name)
                .map(move |at| from + at)
                .take_while(move |at| *at < until)
        };
        for at in starts(b"/Type") {
            let name = block[at + 5..].trim_ascii_start();
            if let Some(rest) = name.strip_prefix(b"/Page") {
                self.page_objects += u64::from(!is_name_byte(rest.first()));
            }
            // A name with `#` escapes may mean a page, so pages may be missing from the count.
            let mut after_slash = name.iter().skip(1);
            let end = after_slash.position(|byte| !is_name_byte(Some(byte)));
            self.hides_pages |= name[..end.map_or(0, |end| end + 1)].contains(&b'#');
        }
        self.hides_pages |= starts(b"/ObjStm").next().is_some();
        for at in starts(b"/Count") {
            let around = at.saturating_sub(AHEAD_BYTES)..block.len().min(at + AHEAD_BYTES);
            if memmem::find(&block[around], b"/Kids").is_some() {
                self.count_max = self.count_max.max(number(&block[at + 6..]));
            }
        }
        for at in starts(b"stream") {
            self.stream(block, at);
        }
    }

    /// Handles the keyword `stream` or `endstream`. The data of a stream is between these two keywords.
    fn stream(&mut self, block: &[u8], at: usize) {
        let place = self.skipped + at as u64;
        if block[..at].ends_with(b"end") {
            if let Some(start) = self.open_at.take() {
                self.no_text_bytes += place.saturating_sub(start);
            }
            return;
        }
        let before = block[at.saturating_sub(BEHIND_BYTES)..at].trim_ascii_end();
        if self.open_at.is_some() || !before.ends_with(b">>") {
            return;
        }
        let dictionary = memmem::rfind(before, b"obj").map_or(before, |obj| &before[obj..]);
        let names = |name: &[u8]| {
            memmem::find_iter(dictionary, name)
                .any(|at| !is_name_byte(dictionary.get(at + name.len())))
        };
        let is_image = names(b"/Image");
        let fonts: [&[u8]; 4] = [b"/Length1", b"/Type1C", b"/CIDFontType0C", b"/OpenType"];
        if is_image || fonts.into_iter().any(names) {
            self.images += u64::from(is_image);
            self.open_at = Some(place);
        }
    }

    fn found(&self) -> Pdf {
        let pages = self.page_objects.max(self.count_max);
        Pdf {
            pages,
            images: self.images,
            content_bytes: self.skipped.saturating_sub(self.no_text_bytes),
            hides_pages: self.hides_pages || pages == 0,
        }
    }
}

/// Returns whether the byte can be part of a PDF name.
fn is_name_byte(byte: Option<&u8>) -> bool {
    byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'#' | b'_' | b'-'))
}

/// Returns the number at the beginning of the text; 0 if there is no number.
fn number(text: &[u8]) -> u64 {
    let digits = text.trim_ascii_start().iter();
    digits
        .take_while(|byte| byte.is_ascii_digit())
        .fold(0_u64, |number, digit| {
            number
                .saturating_mul(10)
                .saturating_add(u64::from(digit - b'0'))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::reading::base64::encode;

    /// Returns a PDF with this number of pages. Each page has text and an image of these sizes.
    fn pdf(pages: usize, text_bytes: usize, image_bytes: usize) -> Vec<u8> {
        let mut file = b"%PDF-1.7\n".to_vec();
        let stream = |file: &mut Vec<u8>, dictionary: &str, bytes: usize| {
            file.extend(format!("9 0 obj\n<< {dictionary} /Length {bytes} >>\nstream\n").bytes());
            file.extend((0..bytes).map(|at| (at * at % 251) as u8 | 0x80));
            file.extend(b"\nendstream\nendobj\n");
        };
        for _ in 0..pages {
            file.extend(b"3 0 obj\n<< /Type /Page /Parent 2 0 R /Contents 4 0 R >>\nendobj\n");
            stream(&mut file, "/Filter /FlateDecode", text_bytes);
            stream(
                &mut file,
                "/Type /XObject /Subtype /Image /Filter /DCTDecode",
                image_bytes,
            );
        }
        let kids = "3 0 R ".repeat(pages.min(40));
        let tree = format!("2 0 obj\n<< /Type /Pages /Kids [{kids}] /Count {pages} >>\nendobj\n");
        file.extend(tree.bytes());
        file.extend(b"trailer << /Root 1 0 R >>\n%%EOF\n");
        file
    }

    fn read(file: &[u8]) -> Pdf {
        Pdf::read(&Base64::unchecked(&encode(file)))
    }

    #[test]
    fn pdf_pages_are_counted_wherever_the_decoded_blocks_begin() {
        for (pages, text, image) in [
            (1, 300, 0),
            (3, 1000, 100_000),
            (100, 2000, 1000),
            (7, 70_001, 65_535),
        ] {
            let found = read(&pdf(pages, text, image));
            assert_eq!(
                (found.pages, found.images, found.hides_pages),
                (pages as u64, pages as u64, false)
            );
            let content = (pages * text) as u64;
            let around = 400 * pages as u64 + 600;
            assert!(
                (content..content + around).contains(&found.content_bytes),
                "{found:?}"
            );
        }
    }

    #[test]
    fn pdf_pages_that_cannot_be_counted_are_estimated_from_the_size() {
        let plain = pdf(2, 5000, 0);
        let replaced = |from: &str, to: &str| {
            let mut file = plain.clone();
            while let Some(at) = memmem::find(&file, from.as_bytes()) {
                file.splice(at..at + from.len(), to.bytes());
            }
            read(&file)
        };
        for found in [
            replaced("/Type /Page", "/Typ_ /Page"),
            replaced("/Type /Page ", "/Type /#50age "),
            replaced("/Filter /FlateDecode", "/Type /ObjStm"),
            read(&vec![0; 8 << 20]),
        ] {
            assert!(found.tokens_max() >= found.content_bytes, "{found:?}");
            assert!(found.hides_pages || found.pages == 2, "{found:?}");
        }
        // If pages have no type, the count in the page tree is used.
        let counted = replaced("/Type /Page ", "/T ");
        assert_eq!((counted.pages, counted.hides_pages), (2, false));
    }

    #[test]
    fn hold_for_a_pdf_covers_its_pages_and_its_possible_text() {
        let most = |pages, text, image| read(&pdf(pages, text, image)).tokens_max();
        assert_eq!(most(1, 2000, 500_000), 8_000, "a scan");
        assert_eq!(most(90, 2000, 0), 720_000);
        assert!(most(1, 8 << 20, 0) >= 4 << 20, "no page is that short");
        assert_eq!(read(&pdf(10, 2000, 0)).tokens_usual(), 30_000);
        // A compressed object is appended to a scanned document, so that pages may be hidden.
        let mut scan = pdf(20, 100, 50_000);
        scan.extend(b"5 0 obj\n<< /Type /ObjStm /N 3 >>\nstream\nxx\nendstream\n");
        let found = read(&scan);
        assert!(found.tokens_max() >= 20 * 8_000, "{found:?}");
        assert!(found.tokens_max() < 500_000, "{found:?}");
    }

    #[test]
    fn pdf_pages_after_an_unterminated_stream_are_counted() {
        let mut file = b"%PDF-1.7 << /Subtype /Image >>\nstream\n".to_vec();
        file.extend(pdf(4, 3000, 0).iter().filter(|byte| **byte != b'd'));
        let found = read(&file);
        assert_eq!(found.pages, 4);
        assert!(found.content_bytes >= 12_000, "{found:?}");
    }
}
