//! Amounts of money: whole micro-rubles with checked arithmetic. There are no floats; sums are exact and never rounded.

#![warn(clippy::float_arithmetic)]

use std::{fmt, str::FromStr};

#[cfg(feature = "serde")]
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The number of micro-rubles in one ruble.
pub const MICRO: i64 = 1_000_000;

/// An amount in micro-rubles (10⁻⁶ ₽). The text form is decimal rubles, for example `"12.50"`.
///
/// No amount and no balance exceeds [`MicroRub::MAX`]. This is the largest integer that a Lua number (an IEEE double)
/// represents exactly, so that all ledgers compute the same results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MicroRub(i64);

impl MicroRub {
    /// The amount of zero rubles.
    pub const ZERO: Self = Self(0);
    /// The largest amount: 2⁵³ − 1 micro-rubles, about nine billion rubles.
    pub const MAX: Self = Self(9_007_199_254_740_991);
    /// The largest length of an amount's text, in bytes.
    pub const TEXT_BYTES_MAX: usize = "-9223372036854.775808".len();

    /// Creates an amount of `micro` micro-rubles, clamped to ±[`MicroRub::MAX`].
    #[must_use]
    pub const fn new(micro: i64) -> Self {
        if micro > Self::MAX.0 {
            Self::MAX
        } else if micro < -Self::MAX.0 {
            Self(-Self::MAX.0)
        } else {
            Self(micro)
        }
    }

    /// Creates an amount from a sum in micro-rubles, clamped to ±[`MicroRub::MAX`].
    #[must_use]
    pub fn of_sum(sum: i128) -> Self {
        let max = i128::from(Self::MAX.0);
        Self(i64::try_from(sum.clamp(-max, max)).expect("clamped to ±2⁵³"))
    }

    /// Creates an amount of `rubles` rubles, clamped to ±[`MicroRub::MAX`].
    #[must_use]
    pub const fn rubles(rubles: i64) -> Self {
        Self::new(rubles.saturating_mul(MICRO))
    }

    /// Returns the amount in micro-rubles.
    #[must_use]
    pub const fn micro(self) -> i64 {
        self.0
    }

    /// Returns the sum; `None` if it exceeds ±[`MicroRub::MAX`].
    #[must_use]
    pub fn checked_add(self, other: Self) -> Option<Self> {
        let sum = self.0.checked_add(other.0)?;
        (sum.abs() <= Self::MAX.0).then_some(Self(sum))
    }

    /// Returns the difference; `None` if it exceeds ±[`MicroRub::MAX`].
    #[must_use]
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.checked_add(Self(-other.0))
    }

    /// Returns the difference, or zero if it is negative.
    #[must_use]
    pub fn minus_or_zero(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0).max(0))
    }

    /// Returns the sum, clamped to [`MicroRub::MAX`].
    #[must_use]
    pub const fn plus_or_max(self, other: Self) -> Self {
        Self::new(self.0.saturating_add(other.0))
    }

    /// Returns the negated amount.
    #[must_use]
    pub const fn negated(self) -> Self {
        Self(-self.0)
    }

    /// Writes the text form to `buffer` and returns it. The text equals that of [`Display`](fmt::Display), but it is
    /// written without a formatter.
    #[must_use]
    pub fn encode(self, buffer: &mut [u8; Self::TEXT_BYTES_MAX]) -> &str {
        // Fast path: most calls have a loss of zero.
        if self == Self::ZERO {
            return "0.00";
        }
        let micro = self.0.unsigned_abs();
        let (mut whole, mut fraction) = (micro / 1_000_000, micro % 1_000_000);
        let mut digits = 6;
        while digits > 2 && fraction.is_multiple_of(10) {
            fraction /= 10;
            digits -= 1;
        }
        // Digits are written from the last to the first, because division yields them in this order.
        let mut begins = buffer.len();
        let mut push = |byte: u8| {
            begins -= 1;
            buffer[begins] = byte;
        };
        for _ in 0..digits {
            push(b'0' + (fraction % 10) as u8);
            fraction /= 10;
        }
        push(b'.');
        loop {
            push(b'0' + (whole % 10) as u8);
            whole /= 10;
            if whole == 0 {
                break;
            }
        }
        if self.0 < 0 {
            push(b'-');
        }
        str::from_utf8(&buffer[begins..]).expect("decimal digits are ASCII characters")
    }
}

/// The reason why a text is not a valid amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AmountError {
    /// The text is not a decimal number.
    #[error("not a decimal number of rubles, for example 100 or 0.50")]
    NotDecimal,
    /// The text has more than six digits after the decimal point.
    #[error("more than six digits after the decimal point")]
    TooFine,
    /// The amount is larger than [`MicroRub::MAX`].
    #[error("more than 9007199254.740991 rubles")]
    TooLarge,
}

impl FromStr for MicroRub {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, AmountError> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !is_number(whole) || !is_number(fraction) {
            return Err(AmountError::NotDecimal);
        }
        let fraction = fraction.trim_end_matches('0');
        if fraction.len() > 6 {
            return Err(AmountError::TooFine);
        }
        let zeros = std::iter::repeat_n(b'0', 6 - fraction.len());
        let micro = whole
            .bytes()
            .chain(fraction.bytes())
            .chain(zeros)
            .try_fold(0_i64, |sum, digit| {
                sum.checked_mul(10)?.checked_add(i64::from(digit - b'0'))
            });
        match micro {
            Some(micro) if micro <= Self::MAX.0 && digits.len() < text.len() => Ok(Self(-micro)),
            Some(micro) if micro <= Self::MAX.0 => Ok(Self(micro)),
            _ => Err(AmountError::TooLarge),
        }
    }
}

/// Writes decimal rubles with two to six digits after the decimal point.
impl fmt::Display for MicroRub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.encode(&mut [0; Self::TEXT_BYTES_MAX]))
    }
}

#[cfg(feature = "serde")]
impl Serialize for MicroRub {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.encode(&mut [0; Self::TEXT_BYTES_MAX]))
    }
}

#[cfg(feature = "serde")]
impl<'de> Deserialize<'de> for MicroRub {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amount_round_trips_as_text() {
        for (text, micro, shown) in [
            ("100", 100_000_000, "100.00"),
            ("0.5", 500_000, "0.50"),
            ("0.000001", 1, "0.000001"),
            ("-1.230", -1_230_000, "-1.23"),
            ("007.5000000", 7_500_000, "7.50"),
            ("-0", 0, "0.00"),
            (
                "9007199254.740991",
                MicroRub::MAX.micro(),
                "9007199254.740991",
            ),
        ] {
            let amount: MicroRub = text.parse().unwrap();
            assert_eq!(amount.micro(), micro, "{text}");
            assert_eq!(amount.to_string(), shown);
        }
    }

    #[test]
    fn every_amount_can_be_written_and_parsed() {
        for (micro, shown) in [
            (0, "0.00"),
            (1_000_000, "1.00"),
            (10, "0.00001"),
            (-10_000, "-0.01"),
            (1_050_000, "1.05"),
            (12_345_678, "12.345678"),
            (i64::MIN, "-9223372036854.775808"),
            (i64::MAX, "9223372036854.775807"),
        ] {
            assert_eq!(MicroRub(micro).to_string(), shown);
        }
    }

    #[test]
    fn invalid_text_of_an_amount_is_refused() {
        for (text, error) in [
            ("", AmountError::NotDecimal),
            ("1,5", AmountError::NotDecimal),
            ("1e3", AmountError::NotDecimal),
            ("1_000", AmountError::NotDecimal),
            ("+5", AmountError::NotDecimal),
            (".5", AmountError::NotDecimal),
            ("5.", AmountError::NotDecimal),
            ("1.2.3", AmountError::NotDecimal),
            ("--1", AmountError::NotDecimal),
            ("-", AmountError::NotDecimal),
            ("١", AmountError::NotDecimal),
            ("0.0000001", AmountError::TooFine),
            ("9007199254.740992", AmountError::TooLarge),
            ("-9007199254.740992", AmountError::TooLarge),
            ("99999999999999999999999999999", AmountError::TooLarge),
        ] {
            assert_eq!(text.parse::<MicroRub>(), Err(error), "{text}");
        }
    }

    #[test]
    fn sum_of_amounts_never_exceeds_the_maximum_and_their_difference_is_never_negative() {
        assert_eq!(MicroRub::MAX.checked_add(MicroRub::new(1)), None);
        assert_eq!(MicroRub::MAX.plus_or_max(MicroRub::new(1)), MicroRub::MAX);
        assert_eq!(
            MicroRub::new(1).minus_or_zero(MicroRub::new(2)),
            MicroRub::ZERO
        );
    }
}
