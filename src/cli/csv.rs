//! Reads and writes CSV (RFC 4180). Each record carries its line number, because mistakes are reported by line.

pub(super) use crate::text::csv::{quoted, shown};

/// A record, with the number (from 1) of the line on which it begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) line: u64,
    /// The record's cells, without surrounding white space.
    pub(super) cells: Vec<String>,
}

/// Reads all records, and skips empty lines. Cells are separated by semicolons if the first line has a semicolon and no
/// comma, and otherwise by commas. Spreadsheets write semicolons if their decimal separator is the comma.
///
/// # Errors
/// If a quote is never closed or is in a wrong place: the line number of the quote, and the mistake.
pub(super) fn records(text: &str) -> Result<Vec<Record>, (u64, &'static str)> {
    let text = text.trim_start_matches('\u{feff}');
    let first = text.lines().next().unwrap_or_default();
    let delimiter = if !first.contains(',') && first.contains(';') {
        ';'
    } else {
        ','
    };
    let mut records = Vec::new();
    let mut letters = text.chars().peekable();
    let mut line = 1;
    while letters.peek().is_some() {
        let begun = line;
        let mut cells = Vec::new();
        loop {
            let (cell, end) = cell(&mut letters, &mut line, delimiter)?;
            cells.push(cell);
            if end != Some(delimiter) {
                break;
            }
        }
        line += 1;
        if cells.iter().any(|cell| !cell.is_empty()) {
            records.push(Record { line: begun, cells });
        }
    }
    Ok(records)
}

/// Reads one cell. Returns the cell, and what ended it: a delimiter, a line end, or `None` at the end of the text. Adds
/// line ends inside quotes to `line`, but not the line end of the record.
fn cell(
    letters: &mut std::iter::Peekable<std::str::Chars<'_>>,
    line: &mut u64,
    delimiter: char,
) -> Result<(String, Option<char>), (u64, &'static str)> {
    while letters.next_if(|letter| *letter == ' ').is_some() {}
    let mut cell = String::new();
    if letters.next_if_eq(&'"').is_some() {
        let begun = *line;
        loop {
            match letters.next() {
                None => return Err((begun, "a quote is opened but never closed")),
                Some('"') if letters.next_if_eq(&'"').is_some() => cell.push('"'),
                Some('"') => break,
                Some(letter) => {
                    *line += u64::from(letter == '\n');
                    cell.push(letter);
                }
            }
        }
        while letters
            .next_if(|letter| matches!(letter, ' ' | '\r'))
            .is_some()
        {}
        return match letters.next() {
            end if end.is_none() || end == Some('\n') || end == Some(delimiter) => Ok((cell, end)),
            _ => Err((*line, "there is text after a closing quote")),
        };
    }
    loop {
        match letters.next() {
            Some('"') => {
                return Err((
                    *line,
                    "an unquoted cell contains a quote: put the whole cell in quotes, and double the quotes inside",
                ));
            }
            Some(letter) if letter != '\n' && letter != delimiter => cell.push(letter),
            end => return Ok((cell.trim().to_owned(), end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(u64, Vec<String>)> {
        let records = records(text).unwrap().into_iter();
        records.map(|record| (record.line, record.cells)).collect()
    }

    fn cells(line: u64, cells: &[&str]) -> (u64, Vec<String>) {
        (line, cells.iter().map(|cell| (*cell).to_owned()).collect())
    }

    #[test]
    fn csv_records_keep_their_line_numbers() {
        let text = "\u{feff}a, b ,c\r\n\r\n1,\"x, \"\"y\"\"\nz\" ,\r\n,,\n 2,,3";
        assert_eq!(
            read(text),
            [
                cells(1, &["a", "b", "c"]),
                cells(3, &["1", "x, \"y\"\nz", ""]),
                cells(6, &["2", "", "3"]),
            ]
        );
        assert_eq!(
            read("a;b\n1,5;2\n"),
            [cells(1, &["a", "b"]), cells(2, &["1,5", "2"])]
        );
        assert!(read("").is_empty() && read("\n\n").is_empty());
    }

    #[test]
    fn invalid_csv_quotes_are_rejected_with_their_line_number() {
        for (text, line) in [("a\n\"b\nc", 2), ("a\n\"b\" c", 2), ("a\nb\"c\"", 2)] {
            assert_eq!(records(text).unwrap_err().0, line, "{text}");
        }
    }

    #[test]
    fn written_csv_cells_are_read_back() {
        for cell in ["plain", "a,b", "say \"hi\"", "two\nlines", "сборка"] {
            let text = format!("{},x\n", quoted(cell));
            assert_eq!(read(&text), [cells(1, &[cell, "x"])]);
        }
    }
}
