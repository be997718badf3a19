//! Writes the PDF file: pages of texts and lines, and the embedded fonts, each reduced to the glyphs in use.
//!
//! The file contains no creation time, so the same pages yield the same bytes.

use std::{collections::BTreeMap, io::Write as _};

use flate2::{Compression, write::ZlibEncoder};
use pdf_writer::{
    Content, Filter, Finish as _, Name, Pdf, Rect, Ref, Str, TextStr,
    types::{CidFontType, FontFlags, SystemInfo, UnicodeCmap},
};
use subsetter::GlyphRemapper;
use ttf_parser::GlyphId;

/// A color: red, green and blue.
pub(super) type Color = [u8; 3];

const IDENTITY: SystemInfo<'static> = SystemInfo {
    registry: Str(b"Adobe"),
    ordering: Str(b"Identity"),
    supplement: 0,
};

/// A TrueType font that is compiled into the binary.
pub(super) struct Font {
    bytes: &'static [u8],
    face: ttf_parser::Face<'static>,
    name: &'static str,
}

impl Font {
    /// Parses a font. `name` is the font's name in the file, without spaces.
    pub(super) fn new(name: &'static str, bytes: &'static [u8]) -> Self {
        let face = ttf_parser::Face::parse(bytes, 0).expect("the embedded font is valid");
        Self { bytes, face, name }
    }

    /// Returns the glyph of a character, or the font's replacement box if the font has no glyph for the character.
    fn glyph(&self, char: char) -> GlyphId {
        self.face.glyph_index(char).unwrap_or_default()
    }

    /// Returns whether the font has a glyph of its own for a character.
    #[cfg(test)]
    pub(super) fn has(&self, char: char) -> bool {
        self.face.glyph_index(char).is_some()
    }

    /// Returns the width of a text at font size 1.
    pub(super) fn width(&self, text: &str) -> f32 {
        let units = text.chars().map(|char| self.advance(self.glyph(char)));
        units.sum::<f32>() / f32::from(self.face.units_per_em())
    }

    /// Returns the width of a glyph in the font's units.
    fn advance(&self, glyph: GlyphId) -> f32 {
        self.face.glyph_hor_advance(glyph).map_or(0.0, f32::from)
    }

    /// Returns a length in font units as thousandths of the font size, the unit of PDF.
    fn thousandths(&self, units: impl Into<f32>) -> f32 {
        units.into() * 1000.0 / f32::from(self.face.units_per_em())
    }
}

/// A font of a document, with the glyphs that the pages use.
struct Used<'f> {
    font: &'f Font,
    glyphs: GlyphRemapper,
    /// The characters by the number of their glyph in the font's subset. PDF readers need them to copy text.
    chars: BTreeMap<u16, char>,
}

impl Used<'_> {
    /// Returns the glyphs of a text as a PDF encodes them: two bytes each.
    fn encoded(&mut self, text: &str) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(2 * text.len());
        for char in text.chars() {
            let glyph = self.glyphs.remap(self.font.glyph(char).0);
            self.chars.entry(glyph).or_insert(char);
            bytes.extend_from_slice(&glyph.to_be_bytes());
        }
        bytes
    }
}

/// A document under construction. Sizes and positions are in points of 1/72 inch, from the upper left corner.
pub(super) struct Document<'f> {
    width: f32,
    height: f32,
    fonts: Vec<Used<'f>>,
    pages: Vec<Content>,
}

impl<'f> Document<'f> {
    pub(super) fn new(width: f32, height: f32, fonts: impl IntoIterator<Item = &'f Font>) -> Self {
        let used = fonts.into_iter().map(|font| Used {
            font,
            glyphs: GlyphRemapper::new(),
            chars: BTreeMap::new(),
        });
        Self {
            width,
            height,
            fonts: used.collect(),
            pages: Vec::new(),
        }
    }

    /// Begins a page. All later texts and boxes are drawn on it.
    pub(super) fn page(&mut self) {
        self.pages.push(Content::new());
    }

    /// Draws a text on the baseline `y`, in the font with this index.
    pub(super) fn text(
        &mut self,
        font: usize,
        size: f32,
        color: Color,
        x: f32,
        y: f32,
        text: &str,
    ) {
        let glyphs = self.fonts[font].encoded(text);
        let y = self.height - y;
        let Some(content) = self.pages.last_mut() else {
            return;
        };
        fill(content, color);
        content.begin_text();
        content.set_font(Name(font_name(font).as_bytes()), size);
        content.next_line(x, y);
        content.show(Str(&glyphs));
        content.end_text();
    }

    /// Fills a box whose upper left corner is at `x`, `y`.
    pub(super) fn fill_box(&mut self, color: Color, x: f32, y: f32, width: f32, height: f32) {
        let y = self.height - y - height;
        let Some(content) = self.pages.last_mut() else {
            return;
        };
        fill(content, color);
        content.rect(x, y, width, height);
        content.fill_nonzero();
    }

    /// Returns the bytes of the file.
    pub(super) fn finish(self, title: &str, language: &str, keywords: &str) -> Vec<u8> {
        let mut refs = (1..).map(Ref::new);
        let too_many = "a PDF document has fewer than 2³¹ objects";
        let mut next = || refs.next().expect(too_many);
        let (catalog, tree, info) = (next(), next(), next());
        let mut pdf = Pdf::new();
        pdf.document_info(info)
            .title(TextStr(title))
            .keywords(TextStr(keywords));
        pdf.catalog(catalog).pages(tree).lang(TextStr(language));

        let fonts: Vec<Ref> = self.fonts.iter().map(|_| next()).collect();
        for (used, id) in self.fonts.iter().zip(&fonts) {
            write_font(&mut pdf, used, *id, [next(), next(), next(), next()]);
        }
        let pages: Vec<(Ref, Ref)> = self.pages.iter().map(|_| (next(), next())).collect();
        pdf.pages(tree)
            .kids(pages.iter().map(|(page, _)| *page))
            .count(i32::try_from(pages.len()).unwrap_or(i32::MAX));
        for ((page, stream), content) in pages.iter().zip(self.pages) {
            let mut dictionary = pdf.page(*page);
            dictionary
                .parent(tree)
                .media_box(Rect::new(0.0, 0.0, self.width, self.height))
                .contents(*stream);
            let mut resources = dictionary.resources();
            let mut named = resources.fonts();
            for (index, font) in fonts.iter().enumerate() {
                named.pair(Name(font_name(index).as_bytes()), *font);
            }
            named.finish();
            resources.finish();
            dictionary.finish();
            let content = compressed(content.finish().as_slice());
            pdf.stream(*stream, &content).filter(Filter::FlateDecode);
        }
        pdf.finish()
    }
}

fn font_name(index: usize) -> String {
    format!("F{index}")
}

fn fill(content: &mut Content, color: Color) {
    let [red, green, blue] = color.map(|part| f32::from(part) / 255.0);
    content.set_fill_rgb(red, green, blue);
}

/// Embeds a font with only the glyphs in use (ISO 32000-1, section 9.7). Texts are written as glyph numbers, and a
/// table maps these numbers to characters.
fn write_font(
    pdf: &mut Pdf,
    used: &Used<'_>,
    id: Ref,
    [cid, descriptor, to_unicode, data]: [Ref; 4],
) {
    let font = used.font;
    let face = &font.face;
    let subset =
        subsetter::subset(font.bytes, 0, &used.glyphs).expect("the embedded font is valid");
    // The name of a subset has a prefix of six letters.
    let name = format!("SUBSET+{}", font.name);
    let name = Name(name.as_bytes());
    pdf.type0_font(id)
        .base_font(name)
        .encoding_predefined(Name(b"Identity-H"))
        .descendant_font(cid)
        .to_unicode(to_unicode);
    let mut cid_font = pdf.cid_font(cid);
    cid_font
        .subtype(CidFontType::Type2)
        .base_font(name)
        .system_info(IDENTITY)
        .font_descriptor(descriptor)
        .cid_to_gid_map_predefined(Name(b"Identity"));
    let glyphs = used.glyphs.remapped_gids();
    let widths = glyphs.map(|glyph| font.thousandths(font.advance(GlyphId(glyph))));
    cid_font.widths().consecutive(0, widths);
    cid_font.finish();

    let bounds = face.global_bounding_box();
    let bounds =
        [bounds.x_min, bounds.y_min, bounds.x_max, bounds.y_max].map(|at| font.thousandths(at));
    pdf.font_descriptor(descriptor)
        .name(name)
        .flags(FontFlags::SYMBOLIC)
        .bbox(Rect::new(bounds[0], bounds[1], bounds[2], bounds[3]))
        .italic_angle(0.0)
        .ascent(font.thousandths(face.ascender()))
        .descent(font.thousandths(face.descender()))
        .cap_height(font.thousandths(face.capital_height().unwrap_or_else(|| face.ascender())))
        .stem_v(80.0)
        .font_file2(data);

    let mut cmap = UnicodeCmap::new(Name(b"Custom"), IDENTITY);
    for (glyph, char) in &used.chars {
        cmap.pair(*glyph, *char);
    }
    pdf.cmap(to_unicode, cmap.finish().as_slice());
    let packed = compressed(&subset);
    let length = i32::try_from(subset.len()).unwrap_or(i32::MAX);
    let mut stream = pdf.stream(data, &packed);
    stream
        .filter(Filter::FlateDecode)
        .pair(Name(b"Length1"), length);
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    let written = encoder.write_all(bytes).and_then(|()| encoder.finish());
    written.expect("writing to a vector cannot fail")
}
