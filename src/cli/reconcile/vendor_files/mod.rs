//! Reads vendors' exports of usage and costs into one common form.
//!
//! A file is either CSV, or contains JSON documents of the vendor's API: one document, several concatenated documents,
//! or an array of them, as users save the pages of a report. The kind of the file is detected from its content.

mod anthropic;
mod csv;
mod openai;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use serde_json::{Map, Value};
use tollgate_layers::calendar::{DAY_MS, day_begins_ms, day_of};

use super::amount::Nano;
use crate::text::similar::nearest;

/// The rate classes that vendors bill, under our names. `calls` is not one of them, because vendors do not bill calls.
pub(super) const CLASSES: &[&str] = &[
    "calls",
    "input",
    "cached_input",
    "cache_write",
    "cache_write_1h",
    "cache_write_12h",
    "output",
    "input_audio",
    "output_audio",
    "cached_input_audio",
    "cached_input_image",
    "output_reasoning",
    "request_call",
    "input_image",
    "output_image",
    "web_search_call",
    OTHER,
];

/// Word that is used in place of a rate class, for the row with the number of calls.
pub(super) const CALLS: &str = "calls";
/// Word that is used in place of a rate class, for billed items that belong to none of our rate classes.
const OTHER: &str = "other";

/// Word that is used in place of a rate class, for the row with the total cost of all rate classes. This row is
/// compared if receipts state only the cost of whole calls.
pub(super) const TOTAL: &str = "total";

/// Maximum number of rows in all files. It is enough for about a hundred models in three years.
const ROWS_MAX: usize = 1_000_000;

/// Key of a row: the day (counted from 1970-01-01), the vendor's name of the model, and one of [`CLASSES`].
pub(super) type Line = (u64, String, &'static str);

/// The count and the cost that the vendor reports for a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Billed {
    pub(super) count: u64,
    pub(super) cost: Nano,
}

/// Which cells are empty in those lines of a CSV file that have the same day, model and rate class.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Empty {
    /// Whether some line has a count but no cost.
    has_count_alone: bool,
    /// Whether some line has a cost but no count.
    has_cost_alone: bool,
}

impl Empty {
    /// Returns whether a cost has no known count: some line has a cost without a count, and no line has a count without
    /// a cost.
    pub(super) const fn is_count_unknown(self) -> bool {
        self.has_cost_alone && !self.has_count_alone
    }

    pub(super) const fn is_cost_unknown(self) -> bool {
        self.has_count_alone && !self.has_cost_alone
    }
}

/// The contents of all files of a vendor.
#[derive(Debug, Default)]
pub(super) struct VendorUsage {
    pub(super) lines: BTreeMap<Line, Billed>,
    /// The rows for which some line of a CSV file has no count or no cost.
    pub(super) empty: BTreeMap<Line, Empty>,
    /// Whether any file has counts (`has_counts`) or costs (`has_costs`). If not, the missing numbers do not mean zero.
    pub(super) has_counts: bool,
    pub(super) has_costs: bool,
    /// The rate classes for which the files have counts (`counted`) or costs (`costed`), zero included.
    pub(super) counted: BTreeSet<&'static str>,
    pub(super) costed: BTreeSet<&'static str>,
    /// The period that the files cover, in Unix milliseconds.
    pub(super) covered: Option<Range<u64>>,
    /// Fields that look like counts, but that this version does not know.
    pub(super) unknown: Vec<String>,
    /// The reports whose last read page announces a further page. The value is the place of the announcing page in its
    /// file.
    more: BTreeMap<Kind, String>,
}

/// The kind of report that a page belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    OpenAiUsage,
    OpenAiCosts,
    AnthropicUsage,
    AnthropicCosts,
}

impl VendorUsage {
    /// Reads one of the vendor's files.
    ///
    /// # Errors
    /// If the file is invalid: what is wrong, and the line number or the path of the field.
    pub(super) fn read(&mut self, file: &[u8]) -> Result<(), String> {
        match file.trim_ascii_start().first() {
            Some(b'{' | b'[') => self.json(file),
            Some(_) => {
                let text =
                    str::from_utf8(file).map_err(|_| "the file is not UTF-8 text".to_owned())?;
                csv::read(text, self)
            }
            None => Err("the file is empty".into()),
        }
    }

    /// Checks that no page is missing. Must be called after all files were read.
    ///
    /// # Errors
    /// If a page announces a next page that was not read: a text with the place of the announcing page.
    pub(super) fn whole(&self) -> Result<(), String> {
        match self.more.values().next() {
            Some(place) => Err(format!(
                "{place}has_more is true, but the next page is missing; request that page with page=, and save all pages \
                 one after the other in one file"
            )),
            None => Ok(()),
        }
    }

    fn json(&mut self, file: &[u8]) -> Result<(), String> {
        let mut page = 0;
        for document in serde_json::Deserializer::from_slice(file).into_iter::<Value>() {
            let document = document.map_err(|error| format!("not JSON: {error}"))?;
            let pages = match document {
                Value::Array(pages) => pages,
                page => vec![page],
            };
            for one in &pages {
                page += 1;
                let place = match (page, pages.len()) {
                    (1, 1) => String::new(),
                    _ => format!("page {page}: "),
                };
                self.page(one, &place)
                    .map_err(|problem| format!("{place}{problem}"))?;
            }
        }
        Ok(())
    }

    fn page(&mut self, page: &Value, place: &str) -> Result<(), String> {
        let page = Object::new(page, "")?;
        let buckets = page.list("data")?;
        let mut kind = None;
        for (index, bucket) in buckets.iter().enumerate() {
            let bucket = Object::new(bucket, &format!("data[{index}]"))?;
            let results = bucket.list("results")?;
            let openai = bucket.has("start_time");
            if !openai && !bucket.has("starting_at") {
                return Err(format!(
                    "{}: has neither start_time (OpenAI) nor starting_at (Anthropic){}",
                    bucket.place,
                    hint_of(&bucket, &["start_time", "starting_at"])
                ));
            }
            let time = match openai {
                true => openai::bucket(&bucket)?,
                false => anthropic::bucket(&bucket)?,
            };
            let day = self
                .cover(&time)
                .map_err(|problem| format!("{}: {problem}", bucket.place))?;
            for (index, result) in results.iter().enumerate() {
                let result = Object::new(result, &format!("{}.results[{index}]", bucket.place))?;
                kind = Some(match openai {
                    true => openai::result(&result, day, self)?,
                    false => anthropic::result(&result, day, self)?,
                });
            }
        }
        // A page without results does not show which report it belongs to. It is the last page of the report, or the
        // report is empty.
        if let Some(kind) = kind {
            match page.get("has_more") {
                Some(Value::Bool(true)) => self.more.insert(kind, place.to_owned()),
                _ => self.more.remove(&kind),
            };
        }
        Ok(())
    }

    /// Extends the covered period by the time of a bucket (a time slice of a vendor's report), and returns the bucket's
    /// day.
    fn cover(&mut self, time: &Range<u64>) -> Result<u64, String> {
        let day = day_of(time.start);
        if time.end <= time.start || time.end > day_begins_ms(day + 1) {
            return Err(
                "the bucket is not within one UTC day; request bucket_width=1d (or 1h, 1m)".into(),
            );
        }
        self.covered = Some(match self.covered.take() {
            None => time.clone(),
            Some(covered) => covered.start.min(time.start)..covered.end.max(time.end),
        });
        Ok(day)
    }

    fn cover_day(&mut self, day: u64) -> Result<u64, String> {
        self.cover(&(day_begins_ms(day)..day_begins_ms(day) + DAY_MS))
    }

    fn count(&mut self, line: Line, count: u64) -> Result<(), String> {
        self.has_counts = true;
        self.counted.insert(line.2);
        if count > 0 {
            let billed = self.billed(line)?;
            billed.count = billed.count.saturating_add(count);
        }
        Ok(())
    }

    fn cost(&mut self, line: Line, cost: Nano) -> Result<(), String> {
        self.has_costs = true;
        self.costed.insert(line.2);
        if cost != Nano::ZERO {
            self.billed(line)?.cost += cost;
        }
        Ok(())
    }

    /// Records that a line of a CSV file has a count, but an empty cost cell.
    fn count_alone(&mut self, line: Line) -> Result<(), String> {
        // The class is marked as listed, so that its unknown cost is not looked for in another class.
        self.costed.insert(line.2);
        self.empty_cell(line)?.has_count_alone = true;
        Ok(())
    }

    /// Records that a line of a CSV file has a cost, but an empty count cell.
    fn cost_alone(&mut self, line: Line) -> Result<(), String> {
        self.counted.insert(line.2);
        self.empty_cell(line)?.has_cost_alone = true;
        Ok(())
    }

    fn empty_cell(&mut self, line: Line) -> Result<&mut Empty, String> {
        self.billed(line.clone())?;
        Ok(self.empty.entry(line).or_default())
    }

    fn billed(&mut self, line: Line) -> Result<&mut Billed, String> {
        if self.lines.len() >= ROWS_MAX {
            return Err(format!(
                "more than {ROWS_MAX} rows, one for each day, model and class; give a shorter period"
            ));
        }
        Ok(self.lines.entry(line).or_default())
    }

    fn unknown(&mut self, field: &str) {
        if self.unknown.len() < 20 && !self.unknown.iter().any(|known| known == field) {
            self.unknown.push(field.to_owned());
        }
    }
}

/// An object of a vendor's JSON, with the path of the object for error texts.
struct Object<'a> {
    fields: &'a Map<String, Value>,
    place: String,
}

impl<'a> Object<'a> {
    fn new(value: &'a Value, place: &str) -> Result<Self, String> {
        match value {
            Value::Object(fields) => Ok(Self {
                fields,
                place: place.to_owned(),
            }),
            _ if place.is_empty() => {
                Err("must be a JSON object, as the vendor's API returns it".into())
            }
            _ => Err(format!("{place}: must be a JSON object")),
        }
    }

    fn path(&self, field: &str) -> String {
        match self.place.as_str() {
            "" => field.to_owned(),
            place => format!("{place}.{field}"),
        }
    }

    fn wrong(&self, field: &str, problem: impl std::fmt::Display) -> String {
        format!("{}: {problem}", self.path(field))
    }

    fn has(&self, field: &str) -> bool {
        self.get(field).is_some()
    }

    /// Returns the value of a field; `None` if the field is missing or null.
    fn get(&self, field: &str) -> Option<&'a Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    fn required(&self, field: &str) -> Result<&'a Value, String> {
        let problem = || format!("the field is missing{}", hint_of(self, &[field]));
        self.get(field).ok_or_else(|| self.wrong(field, problem()))
    }

    fn list(&self, field: &str) -> Result<&'a [Value], String> {
        match self.required(field)? {
            Value::Array(items) => Ok(items),
            _ => Err(self.wrong(field, "must be a list")),
        }
    }

    fn text(&self, field: &str) -> Result<Option<&'a str>, String> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(field, "must be text")),
        }
    }

    fn object(&self, field: &str) -> Result<Option<Self>, String> {
        self.get(field)
            .map(|value| Self::new(value, &self.path(field)))
            .transpose()
    }

    fn count(&self, field: &str) -> Result<Option<u64>, String> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        let problem = || format!("must be a whole number, at least 0, but is {value}");
        let count = value.as_u64();
        count.map(Some).ok_or_else(|| self.wrong(field, problem()))
    }

    fn required_count(&self, field: &str) -> Result<u64, String> {
        self.required(field)?;
        Ok(self.count(field)?.unwrap_or_default())
    }

    fn model(&self) -> Result<&'a str, String> {
        const MISSING: &str = "the field is missing; request the report with group_by=model";
        let model = self.text("model")?;
        model.ok_or_else(|| self.wrong("model", MISSING))
    }

    /// Parses an amount, which is a decimal text or a number.
    fn amount(&self, field: &str) -> Result<Nano, String> {
        let value = self.required(field)?;
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => String::new(),
        };
        text.parse()
            .map_err(|()| self.wrong(field, format!("must be a decimal number, but is {value}")))
    }

    fn dollars(&self, field: &str) -> Result<(), String> {
        match self.text(field)? {
            Some(currency) if currency.eq_ignore_ascii_case("usd") => Ok(()),
            Some(currency) => Err(self.wrong(field, format!("must be USD, but is {currency}"))),
            None => Err(self.wrong(field, "the field is missing")),
        }
    }

    /// Records the counts that this version does not know, so that they are reported. A newly billed class must not be
    /// ignored silently.
    fn report_unknown(&self, known: &[&str], vendor: &mut VendorUsage) {
        for (field, value) in self.fields {
            let counts = field.ends_with("_tokens") || field.ends_with("_requests");
            let is_used = value.as_u64() != Some(0) && !value.is_null();
            if counts && is_used && !known.contains(&field.as_str()) {
                vendor.unknown(field);
            }
        }
    }
}

/// Returns the hint `; did you mean x?`, if a similar field exists.
fn hint_of(object: &Object<'_>, wanted: &[&str]) -> String {
    let there = || object.fields.keys().map(String::as_str);
    wanted
        .iter()
        .find_map(|field| nearest(field, there()))
        .map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The day 2026-11-20, as days since 1970.
    const DAY: u64 = 20_777;

    pub(super) fn read(file: &str) -> Result<VendorUsage, String> {
        let mut vendor = VendorUsage::default();
        vendor.read(file.as_bytes())?;
        vendor.whole()?;
        Ok(vendor)
    }

    /// Returns the rate class, count and cost of all rows for a day and a model.
    pub(super) fn reported(
        vendor: &VendorUsage,
        day: u64,
        model: &str,
    ) -> Vec<(&'static str, u64, String)> {
        let lines = vendor.lines.iter();
        let mut reported: Vec<_> = lines
            .filter(|((of_day, of_model, _), _)| (*of_day, of_model.as_str()) == (day, model))
            .map(|((_, _, class), billed)| (*class, billed.count, billed.cost.to_string()))
            .collect();
        reported.sort_by_key(|(class, _, _)| CLASSES.iter().position(|known| known == class));
        reported
    }

    fn page(model: &str, has_more: bool) -> Value {
        json!({
            "object": "page", "has_more": has_more, "next_page": null,
            "data": [{
                "object": "bucket", "start_time": DAY * 86_400, "end_time": (DAY + 1) * 86_400,
                "results": [{
                    "object": "organization.usage.completions.result", "input_tokens": 5, "output_tokens": 1,
                    "num_model_requests": 1, "model": model,
                }],
            }],
        })
    }

    #[test]
    fn pages_of_a_vendor_file_may_be_concatenated_or_in_an_array_but_none_may_be_missing() {
        let (first, last) = (page("a", true), page("b", false));
        for file in [
            format!("{first}\n{last}\n"),
            format!("{first}{last}"),
            json!([first, last]).to_string(),
        ] {
            let vendor = read(&file).unwrap();
            let models: Vec<_> = vendor
                .lines
                .keys()
                .map(|(_, model, _)| model.as_str())
                .collect();
            assert_eq!(models, ["a", "a", "a", "b", "b", "b"], "{file}");
            assert_eq!(vendor.covered, Some(DAY * DAY_MS..(DAY + 1) * DAY_MS));
        }
        let error = read(&first.to_string()).unwrap_err();
        assert!(error.starts_with("has_more is true"), "{error}");
        let error = read(&json!([last, first]).to_string()).unwrap_err();
        assert!(error.starts_with("page 2: has_more is true"), "{error}");
    }

    #[test]
    fn invalid_vendor_file_is_rejected_with_the_position_of_the_error() {
        let mut no_time = page("a", false);
        let bucket = no_time["data"][0].as_object_mut().unwrap();
        let start = bucket.remove("start_time").unwrap();
        bucket.insert("start_tim".into(), start);
        let mut long = page("a", false);
        long["data"][0]["end_time"] = json!((DAY + 7) * 86_400);
        let mut broken = page("a", false).to_string();
        broken.truncate(80);
        for (file, says) in [
            (String::new(), "the file is empty"),
            (
                "{\"data\":\n [}".into(),
                "not JSON: expected value at line 2 column 3",
            ),
            (broken, "not JSON: EOF while parsing"),
            (
                "{\"date\": []}".into(),
                "data: the field is missing; did you mean date?",
            ),
            ("[1]".into(), "must be a JSON object"),
            ("{\"data\": [7]}".into(), "data[0]: must be a JSON object"),
            (
                no_time.to_string(),
                "data[0]: has neither start_time (OpenAI) nor starting_at (Anthropic)",
            ),
            (
                long.to_string(),
                "data[0]: the bucket is not within one UTC day",
            ),
        ] {
            let error = read(&file).unwrap_err();
            assert!(error.starts_with(says), "{file}: {error}");
        }
    }
}
