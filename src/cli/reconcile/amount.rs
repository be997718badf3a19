//! Amounts on vendors' bills, and the tolerance of a comparison. Both are integers, because floats would add rounding
//! errors.

use std::{fmt, ops::AddAssign, str::FromStr};

use rust_decimal::{Decimal, prelude::ToPrimitive};

/// An amount on a vendor's bill, in billionths of a dollar, a USDT or a ruble. The unit is this small because vendors
/// bill fractions of a cent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Nano(i128);

impl Nano {
    pub(super) const ZERO: Self = Self(0);
    /// One cent or one kopeck. If two amounts differ by at most this, they count as equal, because vendors round each
    /// line of a bill.
    pub(super) const NEGLIGIBLE: Self = Self(10_000_000);

    const PER_UNIT: i64 = 1_000_000_000;

    pub(super) const fn nano(self) -> i128 {
        self.0
    }

    /// Converts a sum over calls to a cost. Each summand is a price, in billionths per million tokens, times the tokens
    /// of a call.
    pub(super) const fn from_nano_per_mtok(sum: i128) -> Self {
        Self((sum + 500_000).div_euclid(1_000_000))
    }

    /// Returns a hundredth of the amount, rounded. Converts an amount in cents to dollars.
    pub(super) const fn hundredth(self) -> Self {
        Self((self.0 + 50).div_euclid(100))
    }

    pub(super) const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// Parses a decimal amount. An exponent is accepted, because JSON numbers may have one. Digits beyond a billionth are
/// rounded.
impl FromStr for Nano {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let known =
            |byte: u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'+' | b'e' | b'E');
        if !text.bytes().all(known) {
            return Err(());
        }
        let decimal = match text.contains(['e', 'E']) {
            true => Decimal::from_scientific(text),
            false => Decimal::from_str(text),
        };
        let nano = decimal
            .ok()
            .and_then(|decimal| decimal.checked_mul(Decimal::from(Self::PER_UNIT)))
            .and_then(|nano| nano.round().to_i128());
        nano.map(Self).ok_or(())
    }
}

impl AddAssign for Nano {
    fn add_assign(&mut self, other: Self) {
        self.0 = self.0.saturating_add(other.0);
    }
}

/// Writes two to nine digits after the decimal point.
impl fmt::Display for Nano {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_unit = u128::from(Self::PER_UNIT.unsigned_abs());
        let (sign, nano) = (if self.0 < 0 { "-" } else { "" }, self.0.unsigned_abs());
        let fraction = format!("{:09}", nano % per_unit);
        let coarse = fraction.trim_end_matches('0');
        let fraction = &fraction[..coarse.len().max(2)];
        write!(f, "{sign}{}.{fraction}", nano / per_unit)
    }
}

/// The allowed difference between our number and the vendor's number. The unit is a ten-thousandth of a percent of the
/// vendor's number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tolerance(u32);

impl Tolerance {
    const PER_PERCENT: u32 = 10_000;
    const WHOLE: u128 = 1_000_000;

    pub(super) fn is_exceeded(self, ours: i128, vendors: i128) -> bool {
        let apart = ours.abs_diff(vendors);
        apart.saturating_mul(Self::WHOLE) > vendors.unsigned_abs().saturating_mul(self.0.into())
    }
}

impl FromStr for Tolerance {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.');
        let percent = Decimal::from_str(text).ok().filter(|_| plain);
        let parts = percent.and_then(|percent| percent.checked_mul(Self::PER_PERCENT.into()));
        let parts = parts
            .filter(Decimal::is_integer)
            .and_then(|parts| parts.to_u32());
        let parts = parts.filter(|parts| *parts <= 100 * Self::PER_PERCENT);
        let problem =
            "not a percentage from 0 to 100 with up to four digits after the point, like 0.5";
        parts.map(Self).ok_or_else(|| problem.into())
    }
}

/// Writes the tolerance in percent.
impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Decimal::new(self.0.into(), 4).normalize().fmt(f)
    }
}

/// Returns the difference between our number and the vendor's, in percent of the vendor's number; `None` if the
/// vendor's number is zero.
pub(super) fn percent_apart(ours: i128, vendors: i128) -> Option<String> {
    let hundredths = ours
        .abs_diff(vendors)
        .saturating_mul(10_000)
        .checked_div(vendors.unsigned_abs())?;
    Some(format!("{}.{:02}", hundredths / 100, hundredths % 100))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_parsed_in_every_notation_that_vendors_use() {
        for (text, nano, shown) in [
            ("0.06", 60_000_000, "0.06"),
            // OpenAI writes `amount.value` as text.
            ("0.8958740000000000", 895_874_000, "0.895874"),
            ("1e-7", 100, "0.0000001"),
            ("1.5E2", 150_000_000_000, "150.00"),
            ("-12", -12_000_000_000, "-12.00"),
            ("0.0000000004", 0, "0.00"),
        ] {
            let amount: Nano = text.parse().unwrap();
            assert_eq!(
                (amount.nano(), amount.to_string().as_str()),
                (nano, shown),
                "{text}"
            );
        }
        for text in ["", "1,5", "$1", "1_000", "NaN", "--1"] {
            assert_eq!(text.parse::<Nano>(), Err(()), "{text}");
        }
        // Anthropic writes cents: "38.2799".
        let cents: Nano = "38.2799".parse().unwrap();
        assert_eq!(cents.hundredth().to_string(), "0.382799");
    }

    #[test]
    fn tolerance_is_a_percentage_of_the_vendors_count() {
        for (percent, ours, vendors, exceeded) in [
            ("0", 100, 100, false),
            ("0", 101, 100, true),
            ("0.5", 1005, 1000, false),
            ("0.5", 1006, 1000, true),
            ("0.5", 994, 1000, true),
            // If the vendor's number is zero, every other number exceeds the tolerance.
            ("100", 1, 0, true),
            ("100", 0, 100, false),
            ("0.0001", 1_000_001, 1_000_000, false),
        ] {
            let tolerance: Tolerance = percent.parse().unwrap();
            assert_eq!(
                tolerance.is_exceeded(ours, vendors),
                exceeded,
                "{percent}: {ours} {vendors}"
            );
            assert_eq!(tolerance.to_string(), percent);
        }
        for text in ["", "-1", "100.1", "0.00001", "1%", "half"] {
            assert!(text.parse::<Tolerance>().is_err(), "{text}");
        }
        assert_eq!(percent_apart(994, 1000).as_deref(), Some("0.60"));
        assert_eq!(percent_apart(3, 0), None);
    }
}
