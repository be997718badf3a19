//! Writes a statement as an HTML page to read, print or email. The page needs no other file.

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
    let text = Page { sheet }.render();
    text.expect("writing to a String cannot fail")
}
