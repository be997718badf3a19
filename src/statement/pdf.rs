//! Writes a statement or an invoice as a PDF: A4 pages with embedded fonts.
//!
//! All pages are laid out (`Pages`) before any page is drawn, because the footer contains the number of pages. The same
//! statement yields the same bytes.

mod document;

use self::document::{Color, Document, Font};
use super::{
    payment_code::Code,
    sheet::{Column, Row, Sheet, Table},
};

/// The width and the height of an A4 page, in points of 1/72 inch.
const WIDTH: f32 = 595.0;
const HEIGHT: f32 = 842.0;
const LEFT: f32 = 48.0;
const RIGHT: f32 = WIDTH - 40.0;
const TOP: f32 = 44.0;
const BOTTOM: f32 = HEIGHT - 60.0;

/// Line height as a multiple of the font size.
const LEADING: f32 = 1.35;
/// The space around the text of a table cell, in points.
const PADDING: f32 = 3.0;
const LABELS_WIDTH: f32 = 150.0;
/// The side of a payment code, in points: about 5 cm.
const CODE_SIDE: f32 = 142.0;

const INK: Color = [0x1c, 0x1d, 0x1f];
const GRAY: Color = [0x5f, 0x63, 0x68];
const LINE: Color = [0xcc, 0xcc, 0xc6];
const WARNING: Color = [0x8a, 0x4b, 0x00];

/// The style in which a text is drawn.
#[derive(Clone, Copy, Debug)]
struct Style {
    size: f32,
    bold: bool,
    color: Color,
}

const TITLE: Style = Style::of(14.0, true, INK);
const HEADING: Style = Style::of(11.0, true, INK);
const BODY: Style = Style::of(8.5, false, INK);
const STRONG: Style = Style::of(8.5, true, INK);
const LABEL: Style = Style::of(8.5, false, GRAY);
const NOTE: Style = Style::of(7.5, false, GRAY);
const WARNED: Style = Style::of(9.0, true, WARNING);

impl Style {
    const fn of(size: f32, bold: bool, color: Color) -> Self {
        Self { size, bold, color }
    }

    fn leading(self) -> f32 {
        self.size * LEADING
    }
}

/// Returns the bytes of the PDF. `number` identifies the document on each page; `keywords` is a property of the file.
pub(super) fn written(sheet: &Sheet, number: &str, keywords: &str) -> Vec<u8> {
    let faces = Faces::new();
    let mut pages = Pages::new(&faces);
    pages.lines(LEFT, RIGHT, TITLE, &sheet.title);
    pages.skip(6.0);
    if let Some(warning) = &sheet.warning {
        pages.lines(LEFT, RIGHT, WARNED, warning);
        pages.skip(6.0);
    }
    for (label, text) in &sheet.facts {
        pages.fact(label, text);
    }
    for table in &sheet.tables {
        pages.table(table);
    }
    if let Some(code) = &sheet.code {
        pages.code(code);
    }
    pages.skip(14.0);
    for note in &sheet.notes {
        pages.lines(LEFT, RIGHT, NOTE, note);
    }
    let count = pages.done.len() + 1;
    let mut document = Document::new(WIDTH, HEIGHT, [&faces.regular, &faces.bold]);
    for (index, page) in (1..).zip(pages.finished()) {
        document.page();
        let position = format!("{index} / {count}");
        let right = RIGHT - faces.width(NOTE, &position);
        let footer = [(LEFT, number.to_owned()), (right, position)]
            .map(|(x, text)| Mark::Text(x, HEIGHT - 36.0, NOTE, text));
        for mark in page.iter().chain(&footer) {
            mark.draw(&mut document);
        }
    }
    document.finish(&sheet.title, sheet.lang(), keywords)
}

/// The fonts of a statement.
struct Faces {
    regular: Font,
    bold: Font,
}

impl Faces {
    fn new() -> Self {
        Self {
            regular: Font::new("DejaVuSans", dejavu::sans::regular()),
            bold: Font::new("DejaVuSans-Bold", dejavu::sans::bold()),
        }
    }

    fn width(&self, style: Style, text: &str) -> f32 {
        let font = match style.bold {
            true => &self.bold,
            false => &self.regular,
        };
        style.size * font.width(text)
    }

    /// Wraps a text into lines of at most `width`. Lines break at spaces, and inside a word only if the word alone is
    /// wider than `width`.
    fn wrapped(&self, style: Style, text: &str, width: f32) -> Vec<String> {
        let mut lines = Vec::new();
        let mut line = String::new();
        let fits =
            |line: &str, more: &str| self.width(style, line) + self.width(style, more) <= width;
        let words = text.split([' ', '\n', '\r', '\t']);
        for word in words.filter(|word| !word.is_empty()) {
            let spaced = match line.is_empty() {
                true => word.to_owned(),
                false => format!(" {word}"),
            };
            if fits(&line, &spaced) {
                line.push_str(&spaced);
                continue;
            }
            if !line.is_empty() {
                lines.push(std::mem::take(&mut line));
            }
            for char in word.chars() {
                if !line.is_empty() && !fits(&line, char.encode_utf8(&mut [0; 4])) {
                    lines.push(std::mem::take(&mut line));
                }
                line.push(char);
            }
        }
        lines.push(line);
        lines
    }
}

/// An element that is drawn on a page: a text, a line or a box.
#[derive(Debug)]
enum Mark {
    /// A text that begins at x, on the baseline y.
    Text(f32, f32, Style, String),
    /// A horizontal line from the left margin to the right one, at y.
    Rule(f32),
    /// A dark box whose upper left corner is at x and y, with its width and height.
    Box([f32; 4]),
}

impl Mark {
    fn draw(&self, document: &mut Document<'_>) {
        match self {
            Self::Text(x, y, style, text) => {
                // The index of the font in the document's list of fonts.
                let font = usize::from(style.bold);
                document.text(font, style.size, style.color, *x, *y, text);
            }
            Self::Rule(y) => document.fill_box(LINE, LEFT, *y, RIGHT - LEFT, 0.5),
            Self::Box([x, y, width, height]) => document.fill_box(INK, *x, *y, *width, *height),
        }
    }
}

/// The texts and lines of all pages, laid out from the top down.
struct Pages<'a> {
    faces: &'a Faces,
    done: Vec<Vec<Mark>>,
    page: Vec<Mark>,
    /// The vertical position at which the next text or line is drawn, in points.
    y: f32,
}

impl<'a> Pages<'a> {
    const fn new(faces: &'a Faces) -> Self {
        Self {
            faces,
            done: Vec::new(),
            page: Vec::new(),
            y: TOP,
        }
    }

    fn finished(mut self) -> Vec<Vec<Mark>> {
        self.done.push(self.page);
        self.done
    }

    fn skip(&mut self, height: f32) {
        self.y += height;
    }

    /// Returns whether an element of `height` fits on the current page. An empty page counts as large enough for any
    /// element.
    fn has_room(&self, height: f32) -> bool {
        self.y + height <= BOTTOM || self.y <= TOP
    }

    fn next_page(&mut self) {
        self.done.push(std::mem::take(&mut self.page));
        self.y = TOP;
    }

    /// Lays out a text between two margins, line by line.
    fn lines(&mut self, left: f32, right: f32, style: Style, text: &str) {
        for line in self.faces.wrapped(style, text, right - left) {
            if !self.has_room(style.leading()) {
                self.next_page();
            }
            let baseline = self.y + style.size;
            self.page.push(Mark::Text(left, baseline, style, line));
            self.skip(style.leading());
        }
    }

    fn fact(&mut self, label: &str, text: &str) {
        if !self.has_room(BODY.leading()) {
            self.next_page();
        }
        let baseline = self.y + LABEL.size;
        let label = Mark::Text(LEFT, baseline, LABEL, label.to_owned());
        self.page.push(label);
        self.lines(LEFT + LABELS_WIDTH, RIGHT, BODY, text);
        self.skip(1.0);
    }

    /// Lays out a payment code, with its caption to the right.
    fn code(&mut self, code: &Code) {
        self.skip(16.0);
        if !self.has_room(CODE_SIDE) {
            self.next_page();
        }
        let (top, module) = (self.y, CODE_SIDE / f32::from(code.side));
        let bars = code.bars.iter().map(|bar| {
            let [x, y, width] = [bar.x, bar.y, bar.width].map(|it| f32::from(it) * module);
            Mark::Box([LEFT + x, top + y, width, module])
        });
        self.page.extend(bars);
        self.lines(LEFT + LABELS_WIDTH + 8.0, RIGHT, NOTE, code.caption);
        self.y = self.y.max(top + CODE_SIDE);
    }

    /// Lays out a table. Its header is repeated on each page.
    fn table(&mut self, table: &Table) {
        let widths = widths(self.faces, table);
        let head = Placed::head(self.faces, table, &widths);
        let rows = table.rows.iter();
        let rows = rows.map(|row| Placed::row(self.faces, table, row, &widths));
        let rows: Vec<Placed> = rows.collect();
        let first = rows.first().map_or(0.0, Placed::height);
        self.skip(16.0);
        if !self.has_room(HEADING.leading() + head.height() + first) {
            self.next_page();
        }
        self.lines(LEFT, RIGHT, HEADING, table.title);
        self.place(&head, &widths);
        for row in rows {
            if !self.has_room(row.height()) {
                self.next_page();
                self.place(&head, &widths);
            }
            self.place(&row, &widths);
        }
    }

    fn place(&mut self, row: &Placed, widths: &[f32]) {
        let mut x = LEFT;
        for (cell, width) in row.cells.iter().zip(widths) {
            let mut baseline = self.y + PADDING + row.style.size;
            for line in &cell.lines {
                let at = match cell.right {
                    true => x + width - PADDING - self.faces.width(row.style, line),
                    false => x + PADDING,
                };
                let text = Mark::Text(at, baseline, row.style, line.clone());
                self.page.push(text);
                baseline += row.style.leading();
            }
            x += width;
        }
        self.skip(row.height());
        self.page.push(Mark::Rule(self.y));
    }
}

/// A row of a table, wrapped into lines.
struct Placed {
    style: Style,
    cells: Vec<Cell>,
}

struct Cell {
    right: bool,
    lines: Vec<String>,
}

impl Placed {
    fn head(faces: &Faces, table: &Table, widths: &[f32]) -> Self {
        let headings = table.columns.iter().map(|column| column.heading);
        Self::new(faces, LABEL, headings, &table.columns, widths)
    }

    fn row(faces: &Faces, table: &Table, row: &Row, widths: &[f32]) -> Self {
        let cells = row.cells.iter().map(String::as_str);
        Self::new(faces, style(row), cells, &table.columns, widths)
    }

    fn new<'t>(
        faces: &Faces,
        style: Style,
        texts: impl Iterator<Item = &'t str>,
        columns: &[Column],
        widths: &[f32],
    ) -> Self {
        let cells = texts.zip(columns).zip(widths);
        let cells = cells.map(|((text, column), width)| Cell {
            right: column.right,
            lines: faces.wrapped(style, text, width - 2.0 * PADDING),
        });
        Self {
            style,
            cells: cells.collect(),
        }
    }

    fn height(&self) -> f32 {
        let lines = self.cells.iter().map(|cell| cell.lines.len()).max();
        let lines = f32::from(u16::try_from(lines.unwrap_or(1)).unwrap_or(u16::MAX));
        lines * self.style.leading() + 2.0 * PADDING
    }
}

const fn style(row: &Row) -> Style {
    if row.strong { STRONG } else { BODY }
}

/// Returns the widths of a table's columns. Columns of numbers are as wide as their numbers, unless less than a quarter
/// of the table's width would remain for the columns of texts. These share the remaining width.
fn widths(faces: &Faces, table: &Table) -> Vec<f32> {
    let all = RIGHT - LEFT;
    let wanted = |index: usize, column: &Column| {
        let cells = table.rows.iter().filter_map(|row| {
            let text = row.cells.get(index)?;
            Some(faces.width(style(row), text))
        });
        let widest = cells.fold(faces.width(LABEL, column.heading), f32::max);
        // The column is slightly wider than the text, so that float rounding does not wrap a line.
        widest + 2.0 * PADDING + 1.0
    };
    let columns = (0..).zip(&table.columns);
    let mut widths: Vec<f32> = columns
        .map(|(index, column)| wanted(index, column))
        .collect();
    let of = |right: bool, widths: &[f32]| -> f32 {
        let columns = table.columns.iter().zip(widths);
        let some = columns.filter(|(column, _)| column.right == right);
        some.map(|(_, width)| width).sum()
    };
    let (numbers, texts) = (of(true, &widths), of(false, &widths));
    // Columns of texts get at least a quarter of the width. So numbers are wrapped only if their columns need more than
    // three quarters.
    let left = (all - numbers).max(all / 4.0);
    for (column, width) in table.columns.iter().zip(&mut widths) {
        *width *= match column.right {
            true => ((all - left) / numbers).min(1.0),
            false => left / texts,
        };
    }
    widths
}

#[cfg(test)]
mod tests {
    use tollgate_layers::respond::Language;

    use super::*;

    fn faces() -> Faces {
        Faces::new()
    }

    #[test]
    fn pdf_text_is_wrapped_at_spaces_within_the_line_width() {
        let faces = faces();
        let texts = [
            "",
            "слово",
            "Остатки, оплаты и корректировки округлены до копейки",
            "неразрывный\u{a0}пробел",
            "Донаудампфшиффартсгезельшафтскапитен и ещё слово",
            "b6f9a1b2c3d4e5f60718293a4b5c6d7e8f9012a3b4c5d6e7f8091a2b3c4d5e6f",
            " a  b\nc ",
        ];
        for text in texts {
            for width in [20.0, 60.0, 500.0] {
                let lines = faces.wrapped(BODY, text, width);
                for line in &lines {
                    assert!(faces.width(BODY, line) <= width + 0.01, "{width}: {line:?}");
                    assert_eq!(line.trim_matches(' '), line);
                }
                let without = |text: &str| text.replace([' ', '\n'], "");
                assert_eq!(without(&lines.concat()), without(text));
            }
        }
        assert_eq!(faces.wrapped(BODY, "a  b c", 500.0), ["a b c"]);
    }

    #[test]
    fn pdf_font_has_a_glyph_for_every_letter_of_both_languages() {
        let letters = ('а'..='я')
            .chain('А'..='Я')
            .chain('a'..='z')
            .chain('0'..='9');
        for char in letters.chain("ёЁ№₽«»–−—…%\u{a0}\u{2009}".chars()) {
            for face in [faces().regular, faces().bold] {
                assert!(face.has(char), "{char:?}");
            }
        }
    }

    #[test]
    fn long_pdf_table_repeats_its_header_on_each_page() {
        let faces = faces();
        let name = "очень-длинное-имя-модели/".repeat(9);
        let row = |index: usize| Row {
            cells: vec![
                format!("{name}{index}"),
                "1 234 567,89".into(),
                "1 234 567,89".into(),
            ],
            strong: index.is_multiple_of(7),
        };
        let column = |heading, right| Column { heading, right };
        let table = Table {
            title: "Списания по моделям",
            columns: vec![
                column("Модель", false),
                column("Точно", true),
                column("Сумма", true),
            ],
            rows: (0..200).map(row).collect(),
        };
        let mut pages = Pages::new(&faces);
        pages.table(&table);
        let pages = pages.finished();
        assert!(pages.len() > 5, "{}", pages.len());
        let mut last_cells = 0;
        for page in &pages {
            let texts: Vec<_> = page
                .iter()
                .filter_map(|mark| match mark {
                    Mark::Text(x, y, style, text) => Some((*x, *y, *style, text)),
                    Mark::Rule(_) | Mark::Box(_) => None,
                })
                .collect();
            assert!(
                texts.iter().any(|(.., text)| *text == "Модель"),
                "{texts:?}"
            );
            for (x, y, style, text) in texts {
                assert!(x >= LEFT && x + faces.width(style, text) <= RIGHT, "{text}");
                assert!((TOP..=BOTTOM).contains(&y), "{text}");
                last_cells += usize::from(text == "1 234 567,89");
            }
        }
        assert_eq!(last_cells, 400);
    }

    #[test]
    fn pdf_of_a_statement_has_the_same_bytes_each_time_and_contains_the_statements_hash() {
        let document = super::super::tests::closed();
        let pdf = document.pdf(Language::Ru);
        assert!(pdf.starts_with(b"%PDF-1."));
        assert_eq!(pdf, document.pdf(Language::Ru));
        assert_ne!(pdf, document.pdf(Language::En));
        assert!(memchr::memmem::find(&pdf, document.sha256().as_bytes()).is_some());
        assert!(pdf.len() < 100_000, "{}", pdf.len());
    }
}
