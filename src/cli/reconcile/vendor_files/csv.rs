//! A CSV file with the columns `day,model,class,count,cost`, for vendors without a usage API. An operator can copy the
//! numbers by hand from the vendor's web console into such a file.

use tollgate_layers::calendar::day_of;

use super::{CLASSES, VendorUsage};
use crate::{
    cli::csv::{Record, records},
    text::{similar::hint, time::parse_rfc3339_ms},
};

const COLUMNS: &[&str] = &["day", "model", "class", "count", "cost"];

pub(super) fn read(text: &str, vendor: &mut VendorUsage) -> Result<(), String> {
    let records = records(text).map_err(|(line, problem)| at(line, problem))?;
    let mut records = records.iter();
    let names = records.next().ok_or("the file is empty")?;
    let columns = columns(names).map_err(|problem| at(names.line, problem))?;
    for record in records {
        line(record, &columns, vendor).map_err(|problem| at(record.line, problem))?;
    }
    Ok(())
}

fn at(line: u64, problem: impl std::fmt::Display) -> String {
    format!("line {line}: {problem}")
}

/// Returns the position in the file of each of [`COLUMNS`]; `None` for a column that the file does not have.
fn columns(names: &Record) -> Result<Vec<Option<usize>>, String> {
    for (index, name) in names.cells.iter().enumerate() {
        if !COLUMNS.contains(&name.as_str()) {
            return Err(format!(
                "{name}: unknown column; the columns are {}{}",
                COLUMNS.join(", "),
                hint(name, COLUMNS.iter().copied())
            ));
        }
        if names.cells[..index].contains(name) {
            return Err(format!("{name}: the column occurs twice"));
        }
    }
    let columns: Vec<Option<usize>> = COLUMNS
        .iter()
        .map(|column| names.cells.iter().position(|name| name == column))
        .collect();
    for (column, there) in COLUMNS.iter().zip(&columns).take(3) {
        if there.is_none() {
            return Err(format!("{column}: the column is missing"));
        }
    }
    if columns[3].is_none() && columns[4].is_none() {
        return Err("count, cost: at least one of these two columns is required".into());
    }
    Ok(columns)
}

fn day(text: &str) -> Result<u64, String> {
    parse_rfc3339_ms(text)
        .filter(|_| text.len() == "2026-11-20".len())
        .map(day_of)
        .ok_or_else(|| format!("day: must be a date in UTC like 2026-11-20, but is {text:?}"))
}

fn class(text: &str) -> Result<&'static str, String> {
    let known = CLASSES.iter().find(|class| **class == text);
    known.copied().ok_or_else(|| {
        let classes = CLASSES.join(", ");
        let hint = hint(text, CLASSES.iter().copied());
        format!("class: must be one of {classes}, but is {text:?}{hint}")
    })
}

fn line(
    record: &Record,
    columns: &[Option<usize>],
    vendor: &mut VendorUsage,
) -> Result<(), String> {
    if record.cells.len() > columns.iter().flatten().count() {
        return Err("the line has more cells than the header has columns".into());
    }
    let cell = |column: usize| record.cells.get(columns[column]?);
    let text = |column: usize| cell(column).map_or("", String::as_str);
    let day = day(text(0))?;
    let model = Some(text(1)).filter(|model| !model.is_empty());
    let model = model.ok_or("model: the cell is empty")?;
    let class = class(text(2))?;
    let row = || (day, model.to_owned(), class);
    vendor.cover_day(day)?;
    let (count, cost) = (text(3), text(4));
    if count.is_empty() && cost.is_empty() {
        return Err("count, cost: both cells are empty; give at least one".into());
    }
    // An empty cell is recorded only if the file has its column: a file may have counts only, or costs only.
    let (has_counts, has_costs) = (columns[3].is_some(), columns[4].is_some());
    if count.is_empty() && has_counts {
        vendor.cost_alone(row())?;
    }
    if cost.is_empty() && has_costs {
        vendor.count_alone(row())?;
    }
    if !count.is_empty() {
        let count = count
            .parse()
            .map_err(|_| format!("count: must be a whole number, at least 0, but is {count:?}"))?;
        vendor.count(row(), count)?;
    }
    if !cost.is_empty() {
        let cost = cost
            .parse()
            .map_err(|()| format!("cost: must be a decimal number, but is {cost:?}"))?;
        vendor.cost(row(), cost)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{read, reported};
    use crate::config::testing::rows;

    /// The day 2026-11-20, in days since 1970.
    const DAY: u64 = 20_777;

    #[test]
    fn csv_table_is_read_with_columns_in_any_order() {
        let file = "model,class,day,cost,count\n\
                    m,input,2026-11-20,0.5,10\n\
                    m,input,2026-11-20,,5\n\
                    m,output,2026-11-20,1.25,\n\
                    m,output,2026-11-21,,3\n";
        let vendor = read(file).unwrap();
        assert_eq!(
            reported(&vendor, DAY, "m"),
            [
                ("input", 15, "0.50".to_owned()),
                ("output", 0, "1.25".to_owned())
            ]
        );
        assert_eq!(
            reported(&vendor, DAY + 1, "m"),
            [("output", 3, "0.00".to_owned())]
        );
        assert!(vendor.has_counts && vendor.has_costs);
        let covered = vendor.covered.unwrap();
        assert_eq!(covered, DAY * 86_400_000..(DAY + 2) * 86_400_000);
        // Spreadsheets write semicolons between cells if their decimal separator is the comma.
        let vendor = read("day;model;class;count\n2026-11-20;m;input;7\n").unwrap();
        assert_eq!(
            reported(&vendor, DAY, "m"),
            [("input", 7, "0.00".to_owned())]
        );
    }

    #[test]
    fn error_in_a_csv_file_names_the_line_and_column_at_fault() {
        for [file, says] in rows(
            r#"
            day,model,clas,count\n | line 1: clas: unknown column; the columns are day, model
            day,model,count\n | line 1: class: the column is missing
            day,model,class\n | line 1: count, cost: at least one of these
            day,day,model,class,count\n | line 1: day: the column occurs twice
            day,model,class,count\n\n2026-11-31,m,input,1\n | line 3: day: must be a date
            day,model,class,count\n2026-11-20T10:00:00Z,m,input,1\n | line 2: day: must be a date
            day,model,class,count\n2026-11-20,,input,1\n | line 2: model: the cell is empty
            day,model,class,count\n2026-11-20,m,inputs,1\n | line 2: class: must be one of calls, input
            day,model,class,count\n2026-11-20,m,input,1.5\n | line 2: count: must be a whole number
            day,model,class,count\n2026-11-20,m,input,\n | line 2: count, cost: both cells are empty
            day,model,class,count\n2026-11-20,m,input,1,2\n | line 2: the line has more cells
            day,model,class,cost\n2026-11-20,m,input,$1\n | line 2: cost: must be a decimal number
            day,model,class,count\n2026-11-20,"m,input,1\n | line 2: a quote is opened
        "#,
        ) {
            let error = read(file).unwrap_err();
            assert!(error.starts_with(says), "{file}: {error}");
        }
    }
}
