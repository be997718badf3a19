//! The two forms of amounts in statements: whole kopecks, and micro-rubles as the ledger stores them.

use std::fmt;

use serde::{Serialize, Serializer};
use tollgate_layers::respond::Language;

use crate::text::language::thousands;

/// An amount in units of which `10^DIGITS` are a ruble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Units<const DIGITS: usize>(i128);

/// An amount in whole kopecks.
pub(crate) type Kopecks = Units<2>;

/// An amount in micro-rubles.
pub(super) type Micro = Units<6>;

/// Writes the amount for programs: kopecks as `-1234.50`, micro-rubles as `-1234.500000`.
impl<const DIGITS: usize> fmt::Display for Units<DIGITS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let width = DIGITS + 1;
        let all = format!("{:0>width$}", self.0.unsigned_abs());
        let (whole, fraction) = all.split_at(all.len() - DIGITS);
        write!(f, "{sign}{whole}.{fraction}")
    }
}

impl<const DIGITS: usize> Units<DIGITS> {
    pub(crate) const fn new(units: i128) -> Self {
        Self(units)
    }

    pub(crate) fn for_people(self, language: Language) -> String {
        grouped(&self.to_string(), language)
    }
}

/// Formats a whole number for people.
pub(super) fn count(number: u64, language: Language) -> String {
    grouped(&number.to_string(), language)
}

/// Groups a number by thousands: `−1 234,50`, or `-1,234.50` in English.
fn grouped(plain: &str, language: Language) -> String {
    let (group, point, minus) = match language {
        Language::En => (",", ".", "-"),
        // Russian texts have no-break spaces between groups of digits, and the typographic minus.
        _ => ("\u{a0}", ",", "\u{2212}"),
    };
    let (sign, digits) = match plain.strip_prefix('-') {
        Some(digits) => (minus, digits),
        None => ("", plain),
    };
    let (whole, fraction) = match digits.split_once('.') {
        Some((whole, fraction)) => (whole, format!("{point}{fraction}")),
        None => (digits, String::new()),
    };
    format!("{sign}{}{fraction}", thousands(whole, group))
}

impl<const DIGITS: usize> Serialize for Units<DIGITS> {
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
            let sum = Kopecks::new(kopecks);
            assert_eq!(sum.to_string(), plain);
            assert_eq!(sum.for_people(Language::Ru), ru);
            assert_eq!(sum.for_people(Language::En), en);
        }
        assert_eq!(Micro::new(1).to_string(), "0.000001");
        assert_eq!(Micro::new(-1_000_000).to_string(), "-1.000000");
        assert_eq!(count(1000, Language::Ru), "1\u{a0}000");
        assert_eq!(count(u64::MAX, Language::En), "18,446,744,073,709,551,615");
    }
}
