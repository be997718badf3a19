//! The two forms of amounts in statements: whole kopecks, and micro-rubles as the ledger stores them.

use std::fmt;

use serde::{Serialize, Serializer};
use tollgate_layers::respond::Language;

/// An amount in whole kopecks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kopecks(pub(crate) i128);

/// An amount in micro-rubles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Micro(pub(super) i128);

/// Writes the amount for programs: `-1234.50`.
impl fmt::Display for Kopecks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&plain(self.0, 2))
    }
}

/// Writes the amount for programs: `-1234.500000`.
impl fmt::Display for Micro {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&plain(self.0, 6))
    }
}

impl Kopecks {
    pub(crate) fn for_people(self, language: Language) -> String {
        grouped(&self.to_string(), language)
    }
}

impl Micro {
    pub(super) fn for_people(self, language: Language) -> String {
        grouped(&self.to_string(), language)
    }
}

/// Formats a whole number for people.
pub(super) fn count(number: u64, language: Language) -> String {
    grouped(&number.to_string(), language)
}

fn plain(units: i128, digits: usize) -> String {
    let sign = if units < 0 { "-" } else { "" };
    let all = format!("{:0>width$}", units.unsigned_abs(), width = digits + 1);
    let (whole, fraction) = all.split_at(all.len() - digits);
    format!("{sign}{whole}.{fraction}")
}

/// Groups a number by thousands: `−1 234,50`, or `-1,234.50` in English.
fn grouped(plain: &str, language: Language) -> String {
    let (group, point, minus) = match language {
        Language::En => (',', ".", "-"),
        // Russian texts have no-break spaces between groups of digits, and the typographic minus.
        _ => ('\u{a0}', ",", "\u{2212}"),
    };
    let (sign, digits) = match plain.strip_prefix('-') {
        Some(digits) => (minus, digits),
        None => ("", plain),
    };
    let (whole, fraction) = match digits.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (digits, None),
    };
    let mut text = sign.to_owned();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) {
            text.push(group);
        }
        text.push(digit);
    }
    if let Some(fraction) = fraction {
        text.push_str(point);
        text.push_str(fraction);
    }
    text
}

impl Serialize for Kopecks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Micro {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_on_statements_are_formatted_for_programs_and_for_people() {
        for (kopecks, plain, ru, en) in [
            (0, "0.00", "0,00", "0.00"),
            (5, "0.05", "0,05", "0.05"),
            (-5, "-0.05", "\u{2212}0,05", "-0.05"),
            (99_999, "999.99", "999,99", "999.99"),
            (
                -123_456_789,
                "-1234567.89",
                "\u{2212}1\u{a0}234\u{a0}567,89",
                "-1,234,567.89",
            ),
        ] {
            let sum = Kopecks(kopecks);
            assert_eq!(sum.to_string(), plain);
            assert_eq!(sum.for_people(Language::Ru), ru);
            assert_eq!(sum.for_people(Language::En), en);
        }
        assert_eq!(Micro(1).to_string(), "0.000001");
        assert_eq!(Micro(-1_000_000).to_string(), "-1.000000");
        assert_eq!(count(1000, Language::Ru), "1\u{a0}000");
        assert_eq!(count(u64::MAX, Language::En), "18,446,744,073,709,551,615");
    }
}
