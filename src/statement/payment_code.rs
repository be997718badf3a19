//! Payment codes according to ГОСТ Р 56042-2014: a bank's app reads the QR code and fills in the bank transfer.

use qrcodegen::{QrCode, QrCodeEcc};

/// The beginning of a code's text: the format `ST`, the version 0001, and the encoding UTF-8 (2).
const HEAD: &str = "ST00012";
/// The character that separates the fields. The standard has no escape for it, so a field's text must not contain it.
const SEPARATOR: char = '|';
/// The number of light modules on each side of a code, which the QR standard requires.
const MARGIN: u16 = 4;

/// Returns the text of a payment code: `ST00012|Name=…|…`. Each field is given by its name, its text, and the maximum
/// number of characters that the standard allows. Longer texts are cut.
pub(super) fn text<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str, usize)>) -> String {
    let mut code = HEAD.to_owned();
    for (name, text, chars_max) in fields {
        let text = text.replace(SEPARATOR, " ");
        let cut: String = text.chars().take(chars_max).collect();
        code += &format!("{SEPARATOR}{name}={}", cut.trim());
    }
    code
}

/// A QR code as bars of dark modules, for SVG and PDF.
#[derive(Debug)]
pub(super) struct Code {
    pub(super) caption: &'static str,
    /// The number of modules on a side, including the margins.
    pub(super) side: u16,
    pub(super) bars: Vec<Bar>,
}

/// A run of adjacent dark modules in a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bar {
    pub(super) x: u16,
    pub(super) y: u16,
    pub(super) width: u16,
}

impl Code {
    /// Encodes the bytes of a text as a QR code. A scanner can read the code if at most 15 % of it is damaged. A text
    /// of more than 2331 bytes does not fit.
    pub(super) fn new(text: &str, caption: &'static str) -> Option<Self> {
        let code = QrCode::encode_binary(text.as_bytes(), QrCodeEcc::Medium).ok()?;
        let modules = u16::try_from(code.size()).ok()?;
        let is_dark = |x: u16, y: u16| code.get_module(x.into(), y.into());
        let mut bars = Vec::new();
        for y in 0..modules {
            let mut x = 0;
            while x < modules {
                let end = (x..modules).find(|x| !is_dark(*x, y)).unwrap_or(modules);
                if end > x {
                    bars.push(Bar {
                        x: x + MARGIN,
                        y: y + MARGIN,
                        width: end - x,
                    });
                }
                x = end + 1;
            }
        }
        let side = modules + 2 * MARGIN;
        Some(Self {
            caption,
            side,
            bars,
        })
    }

    /// Returns the dark modules as the path of an SVG image.
    pub(super) fn path(&self) -> String {
        let bars = self.bars.iter();
        let bars = bars.map(|Bar { x, y, width }| format!("M{x} {y}h{width}v1h-{width}z"));
        bars.collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Decodes a picture of a QR code with another library. `is_dark` returns whether a pixel is dark.
    pub(in crate::statement) fn decoded(
        side: usize,
        is_dark: impl Fn(usize, usize) -> bool,
    ) -> String {
        let shade = |x, y| if is_dark(x, y) { 0 } else { 255 };
        let mut picture = rqrr::PreparedImage::prepare_from_greyscale(side, side, shade);
        let grids = picture.detect_grids();
        assert_eq!(grids.len(), 1);
        grids[0].decode().unwrap().1
    }

    #[test]
    fn field_of_a_payment_code_is_cut_to_its_maximum_length_and_cannot_add_another_field() {
        let fields = [
            ("Name", "ООО «А»|PersonalAcc=40702810900000000666", 160),
            ("BankName", "Банк с очень длинным названием", 10),
            ("Sum", "100050", 18),
        ];
        assert_eq!(
            text(fields),
            "ST00012|Name=ООО «А» PersonalAcc=40702810900000000666|BankName=Банк с оче|Sum=100050"
        );
    }

    #[test]
    fn payment_code_is_read_by_another_qr_library() {
        let long = "ё".repeat(1100);
        for text in ["ST00012|Name=ООО «Ромашка»|Sum=1", &long] {
            let code = Code::new(text, "").unwrap();
            let side = usize::from(code.side);
            let mut dark = vec![false; side * side];
            for bar in &code.bars {
                let begin = usize::from(bar.y) * side + usize::from(bar.x);
                dark[begin..begin + usize::from(bar.width)].fill(true);
            }
            // Each module is three pixels wide.
            let read = decoded(3 * side, |x, y| dark[y / 3 * side + x / 3]);
            assert_eq!(read, text);
        }
        assert!(Code::new(&"x".repeat(2332), "").is_none());
    }
}
