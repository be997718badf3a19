//! Reads one number from a JSON text digit by digit: the number never becomes a float.
//!
//! ```text
//! /tether/rub                              the field `rub` of the field `tether`
//! /data[symbol=USDT/RUB]/askPrice          the first element whose `symbol` is `USDT/RUB`
//! /result/items[]/price                    the median of all elements' `price`
//! /rates[0]                                the first element
//! ```

use std::{collections::HashMap, fmt, str::FromStr};

use rust_decimal::Decimal;
use serde_json::value::RawValue;

/// A path to a number in a JSON text.
#[derive(Clone, PartialEq, Eq)]
pub struct Selector {
    text: String,
    steps: Vec<Step>,
}

impl Selector {
    /// Returns the number at the end of the path: a JSON number, or a string that contains a number.
    ///
    /// # Errors
    /// [`SelectError`] if the text is not JSON, or if there is no number at the end of the path.
    pub fn select(&self, json: &[u8]) -> Result<Decimal, SelectError> {
        let root: &RawValue = serde_json::from_slice(json).map_err(|_| SelectError::NotJson)?;
        let mut found = Vec::new();
        walk(root, &self.steps, &mut found)?;
        median(found).ok_or(SelectError::OutOfRange)
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let mut steps = Vec::new();
        let mut rest = text;
        while !rest.is_empty() || steps.is_empty() {
            let segment = rest.strip_prefix('/').ok_or(SelectorError(
                "each step of the selector must begin with '/', for example /data/price",
            ))?;
            let (name, mut tail) =
                segment.split_at(segment.find(['/', '[']).unwrap_or(segment.len()));
            match (name, tail.starts_with('[')) {
                ("", false) => {
                    return Err(SelectorError(
                        "the selector has an empty step after a '/': name a field there",
                    ));
                }
                ("", true) => {}
                (name, _) => steps.push(Step::Field(name.to_owned())),
            }
            while let Some(inside) = tail.strip_prefix('[') {
                let (inside, behind) = inside.split_once(']').ok_or(SelectorError(
                    "the selector has a '[' without a closing ']'",
                ))?;
                steps.push(in_brackets(inside)?);
                tail = behind;
            }
            rest = tail;
        }
        Ok(Self {
            text: text.to_owned(),
            steps,
        })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Selector({:?})", self.text)
    }
}

/// The reason why a text is not a valid selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(&'static str);

/// The reason why no number was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// The text is not JSON.
    #[error("the response is not JSON")]
    NotJson,
    /// A step of the selector found no value, or a value of the wrong kind.
    #[error("the response has no value for the selector's step {step}")]
    Nothing {
        /// The failed step of the selector, as written in the configuration.
        step: String,
    },
    /// The value at the end of the path is not a number.
    #[error("the value at the end of the selector is not a number")]
    NotNumber,
    /// The numbers are too large to compute their median.
    #[error("the numbers in the response are too large for a median")]
    OutOfRange,
}

#[derive(Clone, PartialEq, Eq)]
enum Step {
    Field(String),
    First { key: String, value: String },
    Each,
    Index(usize),
}

impl Step {
    /// Returns the value to which the step leads; `None` if there is none, or if the step leads to several values.
    fn select<'v>(&self, value: &'v RawValue) -> Option<&'v RawValue> {
        match self {
            Self::Field(name) => field(value, name),
            Self::Index(index) => items(value)?.get(*index).copied(),
            Self::First { key, value: wanted } => items(value)?
                .into_iter()
                .find(|item| field(item, key).is_some_and(|value| text(value) == *wanted)),
            Self::Each => None,
        }
    }

    fn nothing(&self) -> SelectError {
        let step = match self {
            Self::Field(name) => format!("/{name}"),
            Self::First { key, value } => format!("[{key}={value}]"),
            Self::Each => "[]".to_owned(),
            Self::Index(index) => format!("[{index}]"),
        };
        SelectError::Nothing { step }
    }
}

fn in_brackets(inside: &str) -> Result<Step, SelectorError> {
    if inside.is_empty() {
        return Ok(Step::Each);
    }
    if let Ok(index) = inside.parse() {
        return Ok(Step::Index(index));
    }
    match inside.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok(Step::First {
            key: key.to_owned(),
            value: value.to_owned(),
        }),
        _ => Err(SelectorError(
            "the selector may have only the brackets [], [0] and [key=value]",
        )),
    }
}

fn walk(value: &RawValue, steps: &[Step], found: &mut Vec<Decimal>) -> Result<(), SelectError> {
    let Some((step, rest)) = steps.split_first() else {
        found.push(number(value).ok_or(SelectError::NotNumber)?);
        return Ok(());
    };
    match step {
        Step::Each => {
            // Elements without a number are skipped if at least one element has a number.
            let before = found.len();
            let mut failure = step.nothing();
            for item in items(value).ok_or_else(|| step.nothing())? {
                if let Err(error) = walk(item, rest, found) {
                    failure = error;
                }
            }
            if found.len() > before {
                Ok(())
            } else {
                Err(failure)
            }
        }
        _ => walk(
            step.select(value).ok_or_else(|| step.nothing())?,
            rest,
            found,
        ),
    }
}

fn field<'v>(value: &'v RawValue, name: &str) -> Option<&'v RawValue> {
    let fields: HashMap<String, &RawValue> = serde_json::from_str(value.get()).ok()?;
    fields.get(name).copied()
}

fn items(value: &RawValue) -> Option<Vec<&RawValue>> {
    serde_json::from_str(value.get()).ok()
}

/// Returns a string without its quotes; any other value as written.
fn text(value: &RawValue) -> String {
    serde_json::from_str(value.get()).unwrap_or_else(|_| value.get().to_owned())
}

fn number(value: &RawValue) -> Option<Decimal> {
    let text = text(value);
    let text = text.trim();
    let plain =
        |byte: u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'+' | b'e' | b'E');
    if !text.bytes().all(plain) {
        return None;
    }
    if text.contains(['e', 'E']) {
        Decimal::from_scientific(text).ok()
    } else {
        text.parse().ok()
    }
}

/// Returns the median. If the count is even, this is the mean of the two numbers in the middle.
fn median(mut numbers: Vec<Decimal>) -> Option<Decimal> {
    numbers.sort();
    let upper = *numbers.get(numbers.len() / 2)?;
    if numbers.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *numbers.get(numbers.len() / 2 - 1)?;
    lower.checked_add(upper)?.checked_div(Decimal::TWO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(selector: &str, json: &str) -> Result<String, SelectError> {
        let selector: Selector = selector
            .parse()
            .unwrap_or_else(|error| panic!("{selector}: {error}"));
        selector
            .select(json.as_bytes())
            .map(|number| number.to_string())
    }

    #[test]
    fn selected_json_numbers_keep_their_digits() {
        let market = r#" {"data":[{"symbol":"BTC/RUB","askPrice":1},{"symbol":"USDT/RUB","askPrice":81.430000000000001}]} "#;
        let offers =
            r#"{"result":{"items":[{"price":"92.10"},{"price":"90"},{"no":1},{"price":"91.5"}]}}"#;
        for (selector, json, number) in [
            ("/tether/rub", r#"{"tether":{"rub":79.35}}"#, "79.35"),
            (
                "/data[symbol=USDT/RUB]/askPrice",
                market,
                "81.430000000000001",
            ),
            ("/data[1]/askPrice", market, "81.430000000000001"),
            ("/result/items[]/price", offers, "91.5"),
            ("/[]/p", r#"[{"p":1},{"p":2}]"#, "1.50"),
            ("/[0]", "[7, 8]", "7"),
            ("/a[0][1]", r#"{"a":[[1,2],[3]]}"#, "2"),
            ("/a[][]", r#"{"a":[[1,2],[30]]}"#, "2"),
            (
                "/a[id=7]/x",
                r#"{"a":[{"id":6,"x":1},{"id":7,"x":2}]}"#,
                "2",
            ),
            ("/a[k=b=c]/x", r#"{"a":[{"k":"b=c","x":2}]}"#, "2"),
            ("/a[k=]/x", r#"{"a":[{"k":"","x":2}]}"#, "2"),
            ("/курс", r#"{"\u043aурс":"8.5e1"}"#, "85"),
            ("/e", r#"{"e":9.05E+1}"#, "90.5"),
            ("/e", r#"{"e":9050e-2}"#, "90.50"),
        ] {
            assert_eq!(
                select(selector, json).as_deref(),
                Ok(number),
                "{selector} in {json}"
            );
        }
    }

    #[test]
    fn selected_value_that_is_missing_or_not_a_number_is_an_error() {
        let nothing = |step: &str| SelectError::Nothing {
            step: step.to_owned(),
        };
        for (selector, json, error) in [
            ("/a", "<html>", SelectError::NotJson),
            ("/a", r#"{"a":1"#, SelectError::NotJson),
            ("/a", r#"{"b":1}"#, nothing("/a")),
            ("/a", "[1]", nothing("/a")),
            ("/a[0]", r#"{"a":{"0":1}}"#, nothing("[0]")),
            ("/a[3]", r#"{"a":[1]}"#, nothing("[3]")),
            ("/a[k=v]", r#"{"a":[{"k":"w"},5]}"#, nothing("[k=v]")),
            ("/a[]", r#"{"a":[]}"#, nothing("[]")),
            ("/a[]/x", r#"{"a":[{"y":1}]}"#, nothing("/x")),
            ("/a", r#"{"a":null}"#, SelectError::NotNumber),
            ("/a", r#"{"a":"92,5"}"#, SelectError::NotNumber),
            ("/a", r#"{"a":"9_2"}"#, SelectError::NotNumber),
            ("/a", r#"{"a":""}"#, SelectError::NotNumber),
            ("/a", r#"{"a":{"b":1}}"#, SelectError::NotNumber),
            ("/a", r#"{"a":1e400}"#, SelectError::NotNumber),
        ] {
            assert_eq!(select(selector, json), Err(error), "{selector} in {json}");
        }
    }

    #[test]
    fn invalid_json_selector_is_refused() {
        for text in [
            "", "a", "/", "//a", "/a/", "/a[0", "/a[x]", "/a[=x]", "/a[0]b", "/a[-1]",
        ] {
            assert!(text.parse::<Selector>().is_err(), "{text}");
        }
    }
}
