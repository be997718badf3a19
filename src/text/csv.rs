//! Cells of CSV (RFC 4180), as they are written.

/// A cell as it is written.
pub(crate) fn quoted(cell: &str) -> String {
    if cell.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}
