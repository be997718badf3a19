//! Prices: rubles per million tokens in four rate classes, and the one rounding.

#![warn(clippy::float_arithmetic)]

use std::{fmt, str::FromStr, sync::Arc};

use rust_decimal::{Decimal, RoundingStrategy, prelude::ToPrimitive};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{
    money::{AmountError, MicroRub},
    usage::Usage,
};

/// A rate in micro-rubles per million tokens, never negative. Text form: decimal rubles per million
/// tokens with at most six digits behind the point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

impl Rate {
    /// The rate of `micro` micro-rubles per million tokens.
    #[must_use]
    pub const fn new(micro: u64) -> Self {
        Self(micro)
    }

    /// Micro-rubles per million tokens.
    #[must_use]
    pub const fn micro(self) -> u64 {
        self.0
    }

    /// `rubles` per million tokens, rounded up at the sixth digit; `None` when negative or past
    /// [`MicroRub::MAX`].
    #[must_use]
    pub fn from_decimal_rounded_up(rubles: Decimal) -> Option<Self> {
        let micro = rubles.checked_mul(Decimal::from(crate::money::MICRO))?;
        let micro = micro
            .round_dp_with_strategy(0, RoundingStrategy::ToPositiveInfinity)
            .to_i64()?;
        (0..=MicroRub::MAX.micro())
            .contains(&micro)
            .then(|| Self(micro.unsigned_abs()))
    }
}

impl FromStr for Rate {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, AmountError> {
        let amount: MicroRub = text.parse()?;
        u64::try_from(amount.micro())
            .map(Self)
            .map_err(|_| AmountError::NotDecimal)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        MicroRub::new(i64::try_from(self.0).unwrap_or(i64::MAX)).fmt(f)
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// The four rates of a model (specification 2.6) and the tariff version that they belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Price {
    /// Ordinary input.
    pub input: Rate,
    /// Input read from the vendor's cache.
    pub cached_input: Rate,
    /// Output, reasoning included.
    pub output: Rate,
    /// Input written to the vendor's cache.
    pub cache_write: Rate,
    /// `price_version.id` of the tariff.
    pub version: u64,
    /// Rubles for one USDT that the rates were computed with, as decimal text.
    pub exchange_rate: String,
}

impl Price {
    /// What `usage` costs: `ceil(Σ tokens × rate)`, rounded once, up, and held at [`MicroRub::MAX`].
    #[must_use]
    pub fn cost(&self, usage: &Usage) -> MicroRub {
        rounded_up_once([
            (usage.input, self.input),
            (usage.cached_input, self.cached_input),
            (usage.cache_write, self.cache_write),
            (usage.output, self.output),
        ])
    }

    /// The most that `input` tokens of any class and `output` tokens can cost.
    #[must_use]
    pub fn cost_bound(&self, input: u64, output: u64) -> MicroRub {
        rounded_up_once([(input, self.dearest_input()), (output, self.output)])
    }

    /// How many output tokens `amount` pays for beside `input` tokens of the dearest class.
    #[must_use]
    pub fn output_tokens_for(&self, amount: MicroRub, input: u64) -> u64 {
        let micro = u128::try_from(amount.micro()).unwrap_or(0) * 1_000_000;
        let input = u128::from(input) * u128::from(self.dearest_input().0);
        match (micro.saturating_sub(input), self.output.0) {
            (_, 0) => u64::MAX,
            (left, rate) => u64::try_from(left / u128::from(rate)).unwrap_or(u64::MAX),
        }
    }

    fn dearest_input(&self) -> Rate {
        self.input.max(self.cached_input).max(self.cache_write)
    }
}

/// What a model costs now: the price of the usual call, and that of each other kind that is sold. A call is charged by
/// one of them to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PriceList {
    /// Of a call that asks for nothing that is priced apart.
    pub usual: Arc<Price>,
    /// Of a call whose cache writes are kept for an hour: its `cache_write` is their rate. `None`: that is not sold.
    pub cache_write_1h: Option<Arc<Price>>,
}

impl PriceList {
    /// With cache writes that are kept for an hour sold at this rate.
    #[must_use]
    pub fn cache_write_1h(mut self, rate: Rate) -> Self {
        self.cache_write_1h = Some(Arc::new(Price {
            cache_write: rate,
            ..Price::clone(&self.usual)
        }));
        self
    }
}

/// One price, and nothing else is sold.
impl From<Arc<Price>> for PriceList {
    fn from(usual: Arc<Price>) -> Self {
        Self {
            usual,
            cache_write_1h: None,
        }
    }
}

fn rounded_up_once<const N: usize>(classes: [(u64, Rate); N]) -> MicroRub {
    // One product is below 2¹²⁸, their sum may not be: it saturates, far above MicroRub::MAX.
    let sum = classes.iter().fold(0u128, |sum, (tokens, rate)| {
        sum.saturating_add(u128::from(*tokens) * u128::from(rate.0))
    });
    MicroRub::new(i64::try_from(sum.div_ceil(1_000_000)).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn price(input: u64, cached_input: u64, output: u64, cache_write: u64) -> Price {
        Price {
            input: Rate(input),
            cached_input: Rate(cached_input),
            output: Rate(output),
            cache_write: Rate(cache_write),
            version: 1,
            exchange_rate: "90".into(),
        }
    }

    #[test]
    fn cost_is_rounded_up_once() {
        // 1 token each at 0.4 µ₽ a token: 1.6 µ₽ in all, 2 µ₽ after the one rounding, not 4.
        let price = price(400_000, 400_000, 400_000, 400_000);
        let usage = Usage {
            input: 1,
            cached_input: 1,
            cache_write: 1,
            output: 1,
        };
        assert_eq!(price.cost(&usage), MicroRub::new(2));
        assert_eq!(price.cost(&Usage::default()), MicroRub::ZERO);
    }

    #[test]
    fn rates_round_up_at_the_sixth_digit() {
        let rate = Rate::from_decimal_rounded_up("26.01875001".parse().unwrap()).unwrap();
        assert_eq!(rate.to_string(), "26.018751");
        assert_eq!(Rate::from_decimal_rounded_up("-1".parse().unwrap()), None);
    }

    #[test]
    fn a_price_of_an_hour_differs_in_cache_writes_alone() {
        let usual = Arc::new(price(10, 1, 50, 12));
        let none = PriceList::from(Arc::clone(&usual));
        assert_eq!(none.cache_write_1h, None);
        let prices = none.cache_write_1h(Rate(20));
        assert_eq!(prices.usual, usual);
        let of_an_hour = prices.cache_write_1h.unwrap();
        assert_eq!(*of_an_hour, price(10, 1, 50, 20));
        assert_eq!(of_an_hour.cost_bound(3, 0), usual.cost_bound(5, 0));
    }

    proptest! {
        #[test]
        fn no_usage_within_the_bound_costs_more_than_the_bound(
            rates in prop::array::uniform4(0u64..10_000_000_000),
            a in 0u64..1_000_000, b in 0u64..1_000_000, c in 0u64..1_000_000, output in 0u64..1_000_000,
        ) {
            let price = price(rates[0], rates[1], rates[2], rates[3]);
            let usage = Usage { input: a, cached_input: b, cache_write: c, output };
            prop_assert!(price.cost(&usage) <= price.cost_bound(a + b + c, output));
        }

        #[test]
        fn output_that_an_amount_pays_for_fits_in_it(
            rates in prop::array::uniform4(1u64..10_000_000_000),
            amount in 0i64..10_000_000_000, input in 0u64..1_000_000,
        ) {
            let price = price(rates[0], rates[1], rates[2], rates[3]);
            let output = price.output_tokens_for(MicroRub::new(amount), input);
            if price.cost_bound(input, 0) <= MicroRub::new(amount) {
                prop_assert!(price.cost_bound(input, output) <= MicroRub::new(amount));
                prop_assert!(price.cost_bound(input, output + 1) >= MicroRub::new(amount));
            }
        }
    }
}
