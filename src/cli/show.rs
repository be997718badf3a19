//! Formats JSON responses as text for people: several objects as a table, one object as a list of facts.

use std::io::{self, ErrorKind, Write};

use serde_json::Value;

use super::failure::Failure;

/// A value to print: its label, its JSON pointer in the response, and the text that is printed instead of null or an
/// empty list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    label: &'static str,
    pub(super) pointer: &'static str,
    none: &'static str,
    right: bool,
    unit: &'static str,
}

impl Cell {
    /// Creates a cell with text, aligned to the left. A missing value is printed as `-`.
    pub(super) const fn text(label: &'static str, pointer: &'static str) -> Self {
        Self {
            label,
            pointer,
            none: "-",
            right: false,
            unit: "",
        }
    }

    /// Creates a cell with a number, aligned to the right.
    pub(super) const fn number(label: &'static str, pointer: &'static str) -> Self {
        Self {
            right: true,
            ..Self::text(label, pointer)
        }
    }

    /// Creates a cell with an amount in rubles.
    pub(super) const fn rubles(label: &'static str, pointer: &'static str) -> Self {
        Self {
            unit: " ₽",
            ..Self::number(label, pointer)
        }
    }

    /// Sets the text that is printed if the value is missing.
    pub(super) const fn or(self, none: &'static str) -> Self {
        Self { none, ..self }
    }

    /// Returns the value in the form for programs: unchanged, or an empty string if it is missing.
    pub(super) fn raw(&self, value: &Value) -> String {
        match value.pointer(self.pointer) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        }
    }

    /// Returns the label as the column's heading: in capitals, with the unit.
    fn heading(&self) -> String {
        match self.unit.trim() {
            "" => self.label.to_uppercase(),
            unit => format!("{}, {unit}", self.label.to_uppercase()),
        }
    }

    fn show(&self, value: &Value) -> String {
        match value.pointer(self.pointer) {
            None | Some(Value::Null) => self.none.into(),
            Some(Value::String(text)) if text.is_empty() => self.none.into(),
            Some(Value::Array(items)) if items.is_empty() => self.none.into(),
            Some(Value::Array(items)) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
            Some(value) => plain(value),
        }
    }
}

/// Returns a table: headings in capitals with units, columns aligned.
pub(super) fn table(columns: &[Cell], rows: &[Value]) -> String {
    let mut lines = vec![columns.iter().map(Cell::heading).collect::<Vec<_>>()];
    lines.extend(
        rows.iter()
            .map(|row| columns.iter().map(|column| column.show(row)).collect()),
    );
    let width = |index: usize| lines.iter().map(|line| line[index].chars().count()).max();
    let widths: Vec<usize> = (0..columns.len()).filter_map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(columns).zip(&widths);
        let cells = cells.map(|((cell, column), &width)| match column.right {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Returns one line per fact, with the values aligned. A fact is left out if the response does not have it.
pub(super) fn facts(cells: &[Cell], value: &Value) -> String {
    let cells = cells.iter();
    let cells = cells.filter(|cell| value.pointer(cell.pointer).is_some());
    let labels = cells.clone().map(|cell| cell.label.chars().count());
    let width = labels.max().unwrap_or(0);
    let line = |cell: &Cell| {
        let shown = cell.show(value);
        let unit = if shown == cell.none { "" } else { cell.unit };
        format!("{:<width$}  {shown}{unit}\n", cell.label)
    };
    cells.map(line).collect()
}

/// Returns a count with its noun, for example `1 key` or `2 keys`.
pub(super) fn counted(count: u64, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {what}{s}")
}

/// Prints a response as JSON, or as the text that `text` makes from the JSON.
pub(super) fn print(
    json: bool,
    value: &Value,
    text: impl FnOnce(&Value) -> String,
) -> Result<(), Failure> {
    if json {
        write(&format!("{value:#}\n"))
    } else {
        write(&text(value))
    }
}

/// Writes a text to standard output. A pipe whose reader has closed it is not an error.
pub(super) fn write(text: &str) -> Result<(), Failure> {
    write_bytes(text.as_bytes())
}

/// Writes bytes, which need not be text, to standard output, like [`write`].
pub(super) fn write_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::Io(format!(
            "done, but the answer could not be printed: {error}"
        ))),
        _ => Ok(()),
    }
}

/// Returns a value as text without control characters, because a name must not control the terminal.
pub(super) fn plain(value: &Value) -> String {
    let text = value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned);
    text.replace(char::is_control, "\u{fffd}")
}

/// Returns the list in the field `field` of a response; empty if the response has no such list.
pub(super) fn rows<'a>(answer: &'a Value, field: &str) -> &'a [Value] {
    answer[field].as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CELLS: &[Cell] = &[
        Cell::text("id", "/id"),
        Cell::text("name", "/name"),
        Cell::rubles("ceiling", "/ceiling_rub").or("none"),
        Cell::text("models", "/models").or("any"),
        Cell::number("input", "/usage/input"),
    ];

    #[test]
    fn table_columns_are_aligned_and_amounts_are_right_aligned() {
        let rows = [
            json!({"id": "k1", "name": "сборка", "ceiling_rub": "100.00", "models": [], "usage": {"input": 7}}),
            json!({"id": "k22", "name": "", "ceiling_rub": null, "models": ["a", "b"], "usage": {"input": 12}}),
        ];
        assert_eq!(
            table(CELLS, &rows),
            "ID   NAME    CEILING, ₽  MODELS  INPUT\n\
             k1   сборка      100.00  any         7\n\
             k22  -             none  a, b       12\n"
        );
        assert_eq!(table(CELLS, &[]), "ID  NAME  CEILING, ₽  MODELS  INPUT\n");
    }

    #[test]
    fn details_are_shown_with_units_and_absent_fields_are_left_out() {
        let value = json!({"id": "k1", "ceiling_rub": "0.50", "models": null});
        assert_eq!(
            facts(CELLS, &value),
            "id       k1\nceiling  0.50 ₽\nmodels   any\n"
        );
        assert_eq!(
            facts(CELLS, &json!({"ceiling_rub": null})),
            "ceiling  none\n"
        );
    }

    #[test]
    fn control_characters_in_names_do_not_reach_the_terminal() {
        let shown = facts(
            &[Cell::text("name", "/name")],
            &json!({"name": "a\u{1b}[2Jb\nc"}),
        );
        assert_eq!(shown, "name  a\u{fffd}[2Jb\u{fffd}c\n");
    }
}
