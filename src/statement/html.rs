//! A statement as a page that is read, printed and mailed: it has all that it needs within itself.

use askama::Template;

use super::sheet::Sheet;

#[derive(Template)]
#[template(
    path = "statement.html",
    config = "src/statement/templates/askama.toml"
)]
struct Page<'a> {
    sheet: &'a Sheet,
}

pub(super) fn written(sheet: &Sheet) -> String {
    Page { sheet }
        .render()
        .expect("a String takes all, and nothing else can fail")
}
