//! Money: whole micro-rubles, checked arithmetic, one named rounding. No floats.

#![warn(clippy::float_arithmetic)]

use std::{fmt, str::FromStr};

use rust_decimal::{Decimal, prelude::ToPrimitive};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Micro-rubles in one ruble.
pub const MICRO: i64 = 1_000_000;

/// An amount in micro-rubles (10⁻⁶ ₽). Text form: decimal rubles, `"12.50"`.
///
/// Every amount and balance is at most [`MicroRub::MAX`], the largest integer that a Lua number
/// (an IEEE double) holds exactly, so that all ledgers compute alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MicroRub(i64);

impl MicroRub {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// 2⁵³ − 1 micro-rubles: about nine billion rubles.
    pub const MAX: Self = Self(9_007_199_254_740_991);
    /// Bytes that the text of any amount fits in.
    pub const TEXT_BYTES_MAX: usize = "-9223372036854.775808".len();

    /// The amount of `micro` micro-rubles, held within ±[`MicroRub::MAX`].
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

    /// The amount of a sum in micro-rubles, held within ±[`MicroRub::MAX`].
    #[must_use]
    pub fn of_sum(sum: i128) -> Self {
        let max = i128::from(Self::MAX.0);
        Self(i64::try_from(sum.clamp(-max, max)).expect("it lies within ±2⁵³"))
    }

    /// Whole rubles.
    #[must_use]
    pub const fn rubles(rubles: i64) -> Self {
        Self::new(rubles.saturating_mul(MICRO))
    }

    /// The number of micro-rubles.
    #[must_use]
    pub const fn micro(self) -> i64 {
        self.0
    }

    /// The sum, or `None` past ±[`MicroRub::MAX`].
    #[must_use]
    pub fn checked_add(self, other: Self) -> Option<Self> {
        let sum = self.0.checked_add(other.0)?;
        (sum.abs() <= Self::MAX.0).then_some(Self(sum))
    }

    /// The difference, or `None` past ±[`MicroRub::MAX`].
    #[must_use]
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.checked_add(Self(-other.0))
    }

    /// The difference, never below zero.
    #[must_use]
    pub fn minus_or_zero(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0).max(0))
    }

    /// The sum, held at [`MicroRub::MAX`].
    #[must_use]
    pub const fn plus_or_max(self, other: Self) -> Self {
        Self::new(self.0.saturating_add(other.0))
    }

    /// The negated amount.
    #[must_use]
    pub const fn negated(self) -> Self {
        Self(-self.0)
    }

    /// The text form, for which `buffer` has room: what [`Display`](fmt::Display) shows, without a formatter.
    #[must_use]
    pub fn encode(self, buffer: &mut [u8; Self::TEXT_BYTES_MAX]) -> &str {
        // What calls cost beyond their holds, nearly always.
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
        // From its end: the last digits are found first.
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
        str::from_utf8(&buffer[begins..]).expect("digits are ASCII")
    }
}

/// Why a text is not an amount of rubles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AmountError {
    /// Not a decimal number.
    #[error("not a decimal number of rubles, like 100 or 0.50")]
    NotDecimal,
    /// More than six digits behind the point.
    #[error("more than six digits behind the point")]
    TooFine,
    /// Past [`MicroRub::MAX`].
    #[error("more than 9007199254.740991 rubles")]
    TooLarge,
}

impl FromStr for MicroRub {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, AmountError> {
        // The decimal parser also takes forms that people do not mean: `1_000`, `+5`, `.5`.
        let digits = text.strip_prefix('-').unwrap_or(text);
        let plain = digits
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.');
        if !plain || !digits.starts_with(|c: char| c.is_ascii_digit()) || digits.ends_with('.') {
            return Err(AmountError::NotDecimal);
        }
        let decimal = Decimal::from_str_exact(text).map_err(|_| AmountError::NotDecimal)?;
        let micro = decimal
            .checked_mul(Decimal::from(MICRO))
            .ok_or(AmountError::TooLarge)?;
        if !micro.is_integer() {
            return Err(AmountError::TooFine);
        }
        match micro.to_i64() {
            Some(micro) if micro.abs() <= Self::MAX.0 => Ok(Self(micro)),
            _ => Err(AmountError::TooLarge),
        }
    }
}

/// Decimal rubles with two to six digits behind the point.
impl fmt::Display for MicroRub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.encode(&mut [0; Self::TEXT_BYTES_MAX]))
    }
}

impl Serialize for MicroRub {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.encode(&mut [0; Self::TEXT_BYTES_MAX]))
    }
}

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
    fn text_and_amount_agree() {
        for (text, micro, shown) in [
            ("100", 100_000_000, "100.00"),
            ("0.5", 500_000, "0.50"),
            ("0.000001", 1, "0.000001"),
            ("-1.230", -1_230_000, "-1.23"),
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
    fn every_amount_has_its_text() {
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
    fn text_that_is_no_amount_is_refused() {
        for (text, error) in [
            ("", AmountError::NotDecimal),
            ("1,5", AmountError::NotDecimal),
            ("1e3", AmountError::NotDecimal),
            ("1_000", AmountError::NotDecimal),
            ("+5", AmountError::NotDecimal),
            (".5", AmountError::NotDecimal),
            ("5.", AmountError::NotDecimal),
            ("1.2.3", AmountError::NotDecimal),
            ("0.0000001", AmountError::TooFine),
            ("9007199254.740992", AmountError::TooLarge),
        ] {
            assert_eq!(text.parse::<MicroRub>(), Err(error), "{text}");
        }
    }

    #[test]
    fn sums_stop_at_the_cap() {
        assert_eq!(MicroRub::MAX.checked_add(MicroRub::new(1)), None);
        assert_eq!(MicroRub::MAX.plus_or_max(MicroRub::new(1)), MicroRub::MAX);
        assert_eq!(
            MicroRub::new(1).minus_or_zero(MicroRub::new(2)),
            MicroRub::ZERO
        );
    }
}
