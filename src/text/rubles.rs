//! Sums over many accounts. Such a sum may exceed the maximum amount of one account.

use std::fmt;

use serde::{Serialize, Serializer};

/// An amount in micro-rubles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rubles(pub(crate) i128);

/// Writes an amount with two to six digits after the point.
impl fmt::Display for Rubles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, micro) = (if self.0 < 0 { "-" } else { "" }, self.0.unsigned_abs());
        let fraction = format!("{:06}", micro % 1_000_000);
        let coarse = fraction.trim_end_matches('0');
        let fraction = &fraction[..coarse.len().max(2)];
        write!(f, "{sign}{}.{fraction}", micro / 1_000_000)
    }
}

impl Serialize for Rubles {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use tollgate_layers::money::MicroRub;

    use super::*;

    #[test]
    fn sums_of_amounts_are_formatted_like_single_amounts() {
        for micro in [
            0,
            1,
            10,
            100_000,
            1_230_000,
            -1_500_000,
            MicroRub::MAX.micro(),
        ] {
            assert_eq!(
                Rubles(i128::from(micro)).to_string(),
                MicroRub::new(micro).to_string()
            );
        }
        let max = i128::from(MicroRub::MAX.micro());
        assert_eq!(Rubles(3 * max).to_string(), "27021597764.222973");
    }
}
