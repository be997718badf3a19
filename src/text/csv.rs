//! Writes cells of CSV (RFC 4180).

/// Returns a cell that is safe to open in a spreadsheet. A text that the spreadsheet would treat as a formula gets an
/// apostrophe in front of it; numbers are unchanged.
pub(crate) fn shown(cell: &str) -> String {
    let is_formula = cell.starts_with(['=', '+', '-', '@', '\t', '\r']);
    // A number may begin with a sign and is still not a formula.
    let is_number = |text: &str| {
        let mut bytes = text.bytes();
        bytes.all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b':'))
    };
    if is_formula && !cell.strip_prefix(['-', '+']).is_some_and(is_number) {
        return quoted(&format!("'{cell}"));
    }
    quoted(cell)
}

/// Writes the cell, in quotes if it needs them.
pub(crate) fn quoted(cell: &str) -> String {
    if cell.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreadsheet_formula_in_csv_is_shown_as_text() {
        for (cell, written) in [
            ("=1+1", "'=1+1"),
            (
                "=HYPERLINK(\"http://evil.example\",\"x\")",
                "\"'=HYPERLINK(\"\"http://evil.example\"\",\"\"x\"\")\"",
            ),
            ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
            ("-2+3", "'-2+3"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "'\t=1"),
            ("-1.50", "-1.50"),
            ("+03:00", "+03:00"),
            ("100.00", "100.00"),
            ("a=b", "a=b"),
            ("a,b", "\"a,b\""),
            ("", ""),
        ] {
            assert_eq!(shown(cell), written);
        }
    }
}
