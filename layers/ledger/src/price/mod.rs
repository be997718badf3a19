//! Prices: rubles per million tokens in four rate classes, and rates of further classes that some vendors bill. The
//! cost of a call is computed here, and rounded once.
//!
//! A [`Price`] has a rate for each class. A [`PriceList`] has all prices of a model: its default price, and prices
//! under conditions such as a long input, a service tier, a speed, a region or hours of the week. A call keeps the list
//! that was in force when it began. [`PriceList::bound`] returns the most that may be charged, which the gateway holds;
//! [`PriceList::charge`] returns the actual charge.

#![warn(clippy::float_arithmetic)]

mod class;
mod condition;
mod list;
mod time;

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use self::{
    class::{ByClass, Class, Counts, Kind, Rates, Within},
    condition::{Condition, Label, Served},
    list::{Bound, Charge, Extras, PriceList, RouteCost, Unpriced, ambiguous},
    time::{CallTimes, Hours, Moment, PossibleTimes, TimeError, Weekdays},
};
use crate::{
    money::{AmountError, MicroRub},
    usage::Usage,
};

/// A rate in micro-rubles per million tokens, never negative. The text form is decimal rubles per million tokens, with
/// at most six digits after the decimal point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

impl Rate {
    /// Creates a rate of `micro` micro-rubles per million tokens.
    #[must_use]
    pub const fn new(micro: u64) -> Self {
        Self(micro)
    }

    /// Returns the rate in micro-rubles per million tokens.
    #[must_use]
    pub const fn micro(self) -> u64 {
        self.0
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

/// The currency in which an operator configures a price. Customers always pay rubles.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Currency {
    /// USDT: the price in rubles follows the exchange rate of USDT.
    #[default]
    Usdt,
    /// Rubles: the price does not depend on an exchange rate.
    Rub,
}

impl Currency {
    /// All currencies.
    pub const ALL: [Self; 2] = [Self::Usdt, Self::Rub];

    /// Returns whether the currency is the default, which is omitted when a price is stored.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Writes the unit that follows an amount in this currency.
impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Usdt => "USDT",
            Self::Rub => "₽",
        })
    }
}

/// The rates of a model under one condition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Price {
    /// The rate of ordinary input, per million tokens.
    pub input: Rate,
    /// The rate of input that the vendor reads from its cache, per million tokens.
    pub cached_input: Rate,
    /// The rate of output including reasoning, per million tokens.
    pub output: Rate,
    /// The rate of input that the vendor writes to its cache, per million tokens.
    pub cache_write: Rate,
    /// The number of the tariff version that contains this price: `price_version.id` in the catalog.
    pub version: u64,
    /// The exchange rate at which the price was computed: rubles per USDT, as decimal text. It is recorded for prices
    /// in rubles too, since the vendor's cost may depend on it.
    pub exchange_rate: String,
    /// The currency of the configured base price from which this price was computed.
    #[serde(default, skip_serializing_if = "Currency::is_default")]
    pub currency: Currency,
    /// The rates of further classes. A rate of a class with [`Kind::Call`] is per use, not per million tokens.
    #[serde(default, skip_serializing_if = "Rates::is_empty")]
    pub classes: Rates,
    /// The condition under which the price applies.
    #[serde(default, skip_serializing_if = "Condition::is_empty")]
    pub condition: Condition,
    /// The name of the customer price rule that set this price; `None` for the price that every customer pays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Arc<str>>,
}

impl Price {
    /// Returns the cost of `usage`: `ceil(Σ count × rate)`, rounded up once, at most [`MicroRub::MAX`]. A class without
    /// a rate adds nothing, so [`PriceList::charge`] adds the missing rates first.
    #[must_use]
    pub fn cost(&self, usage: &Usage) -> MicroRub {
        let tokens = [
            (usage.input, self.input),
            (usage.cached_input, self.cached_input),
            (usage.cache_write, self.cache_write),
            (usage.output, self.output),
        ];
        // Each product is below 2¹²⁸, but the sum may be larger; it then saturates, far above the largest amount.
        let mut sum = tokens.iter().fold(0u128, |sum, (tokens, rate)| {
            sum.saturating_add(u128::from(*tokens) * u128::from(rate.0))
        });
        if !usage.classes.is_empty() {
            for (class, count) in usage.classes.iter() {
                let rate = self.classes.get(class).unwrap_or_default();
                sum = sum.saturating_add(sum::micro_millionths(class, count, rate));
            }
        }
        sum::rounded_up(sum)
    }
}

/// How the cost in a receipt contradicts the receipt's usage and rates.
#[cfg(feature = "settle")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misfit {
    /// The receipt has usage of this class but no rate for it, so the usage would be free.
    NoRate(Class),
    /// The cost that the receipt should have according to its usage and rates.
    Cost(MicroRub),
}

#[cfg(feature = "settle")]
impl Price {
    /// Checks that `usage` costs `cost` at this price, and that each class in `usage` has a rate.
    pub(crate) fn comes_to(&self, cost: MicroRub, usage: &Usage) -> Result<(), Misfit> {
        let mut classes = usage.classes.iter();
        if let Some((class, _)) = classes.find(|(class, _)| self.classes.get(*class).is_none()) {
            return Err(Misfit::NoRate(class));
        }
        let computed = self.cost(usage);
        match computed == cost {
            true => Ok(()),
            false => Err(Misfit::Cost(computed)),
        }
    }
}

/// Exact sums in millionths of a micro-ruble. Only the final sum is rounded.
mod sum {
    use super::{Class, Kind, Rate};
    use crate::money::MicroRub;

    /// Computes the cost of `count` units of a class.
    pub(super) fn micro_millionths(class: Class, count: u64, rate: Rate) -> u128 {
        let product = u128::from(count) * u128::from(rate.0);
        match class.kind() {
            Kind::Input | Kind::Output => product,
            Kind::Call => product.saturating_mul(1_000_000),
        }
    }

    pub(super) fn rounded_up(sum: u128) -> MicroRub {
        MicroRub::new(i64::try_from(sum.div_ceil(1_000_000)).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(input: u64, cached_input: u64, output: u64, cache_write: u64) -> Price {
        Price {
            input: Rate(input),
            cached_input: Rate(cached_input),
            output: Rate(output),
            cache_write: Rate(cache_write),
            version: 1,
            exchange_rate: "90".into(),
            ..Price::default()
        }
    }

    #[test]
    fn cost_is_rounded_up_once() {
        // One token of each class at 0.4 µ₽ per token costs 1.6 µ₽: 2 µ₽ after one rounding, not 4 µ₽ after four.
        let price = price(400_000, 400_000, 400_000, 400_000);
        let usage = Usage {
            input: 1,
            cached_input: 1,
            cache_write: 1,
            output: 1,
            ..Usage::default()
        };
        assert_eq!(price.cost(&usage), MicroRub::new(2));
        assert_eq!(price.cost(&Usage::default()), MicroRub::ZERO);
    }

    #[test]
    fn json_of_a_price_with_only_the_four_basic_rates_has_no_other_fields() {
        let json = r#"{"input":"0.00001","cached_input":"0.000001","output":"0.00005","cache_write":"0.000012","version":1,"exchange_rate":"90"}"#;
        let price = price(10, 1, 50, 12);
        assert_eq!(serde_json::to_string(&price).unwrap(), json);
        assert_eq!(serde_json::from_str::<Price>(json).unwrap(), price);
        let more = Price {
            classes: Rates::default().with(Class::CacheWrite1h, Some(Rate(20))),
            condition: Condition {
                above_input_tokens: Some(5),
                ..Condition::default()
            },
            rule: Some("acme".into()),
            ..price
        };
        let json = serde_json::to_string(&more).unwrap();
        assert!(
            json.ends_with(r#""classes":{"cache_write_1h":"0.00002"},"condition":{"above_input_tokens":5},"rule":"acme"}"#),
            "{json}"
        );
        assert_eq!(serde_json::from_str::<Price>(&json).unwrap(), more);
    }

    #[test]
    fn tool_call_is_charged_its_rate_per_use_and_not_per_million() {
        let price = Price {
            classes: Rates::default().with(Class::WebSearchCall, Some(Rate(900_000))),
            ..price(1, 1, 1, 1)
        };
        let usage = Usage {
            input: 1,
            classes: Counts::default().with(Class::WebSearchCall, 2),
            ..Usage::default()
        };
        // Two calls at 0.90 ₽, and one token, whose fraction of a micro-ruble is rounded up.
        assert_eq!(price.cost(&usage), MicroRub::new(1_800_001));
    }
}
