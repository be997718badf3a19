//! From base prices to prices: `usdt × exchange rate × multiplier`, rounded up once.
//!
//! The only place that multiplies a price. A price under a condition, or of a list for some customers, is computed
//! here too, by the [`Markup`] that holds for it.

use rust_decimal::Decimal;
use tollgate_layers::price::{Class, Price, PriceList, Rate, Rates};

use crate::config::UsdtRates;

/// What stands between base prices and what is asked for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Markup {
    /// `tariff.sell_rate_multiplier`.
    pub multiplier: Decimal,
    /// The tariff version that it is of.
    pub version: u64,
}

impl Markup {
    /// In rubles at `exchange_rate`, rounded up at the sixth digit. `None` past what money can be.
    #[must_use]
    pub fn rubles(&self, usdt: &UsdtRates, exchange_rate: Decimal) -> Option<PriceList> {
        let rubles = |usdt: Decimal| {
            let product = usdt
                .checked_mul(exchange_rate)?
                .checked_mul(self.multiplier)?;
            Rate::from_decimal_rounded_up(product)
        };
        let hour = match usdt.cache_write_1h {
            None => None,
            Some(usdt) => Some(rubles(usdt)?),
        };
        Some(PriceList::from(Price {
            input: rubles(usdt.input)?,
            cached_input: rubles(usdt.cached_input)?,
            output: rubles(usdt.output)?,
            cache_write: rubles(usdt.cache_write)?,
            version: self.version,
            exchange_rate: exchange_rate.normalize().to_string(),
            classes: Rates::default().with(Class::CacheWrite1h, hour),
            ..Price::default()
        }))
    }

    /// In dollars. `None` past what a decimal can be.
    #[must_use]
    pub fn dollars(&self, usdt: &UsdtRates) -> Option<UsdtRates> {
        let times = |usdt: Decimal| Some(usdt.checked_mul(self.multiplier)?.normalize());
        Some(UsdtRates {
            input: times(usdt.input)?,
            cached_input: times(usdt.cached_input)?,
            output: times(usdt.output)?,
            cache_write: times(usdt.cache_write)?,
            cache_write_1h: match usdt.cache_write_1h {
                None => None,
                Some(usdt) => Some(times(usdt)?),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usdt(cache_write_1h: Option<&str>) -> UsdtRates {
        let decimal = |text: &str| text.parse().unwrap();
        UsdtRates {
            input: decimal("0.25"),
            cached_input: decimal("0.000000001"),
            output: decimal("2.00"),
            cache_write: decimal("0.3125"),
            cache_write_1h: cache_write_1h.map(decimal),
        }
    }

    fn markup(multiplier: &str) -> Markup {
        Markup {
            multiplier: multiplier.parse().unwrap(),
            version: 7,
        }
    }

    #[test]
    fn each_class_is_rounded_up_by_itself_and_only_once() {
        let rate = "90.50".parse().unwrap();
        let prices = markup("1.150").rubles(&usdt(Some("0.5")), rate).unwrap();
        let price = &prices.usual;
        let rates = [
            price.input,
            price.cached_input,
            price.output,
            price.cache_write,
        ];
        let shown = rates.map(|rate| rate.to_string());
        assert_eq!(shown, ["26.01875", "0.000001", "208.15", "32.523438"]);
        assert_eq!((price.version, &*price.exchange_rate), (7, "90.5"));
        let of_an_hour = price.classes.get(Class::CacheWrite1h).unwrap();
        assert_eq!(of_an_hour.to_string(), "52.0375");
        let four = markup("1.150").rubles(&usdt(None), rate).unwrap();
        assert!(four.usual.classes.is_empty());
    }

    #[test]
    fn dollars_are_exact_and_without_needless_zeros() {
        let asked = markup("1.150").dollars(&usdt(Some("0.5"))).unwrap();
        assert_eq!(asked.input.to_string(), "0.2875");
        assert_eq!(asked.output.to_string(), "2.3");
        assert_eq!(asked.cache_write_1h.unwrap().to_string(), "0.575");
        assert_eq!(
            markup("1").dollars(&usdt(None)).unwrap().cache_write_1h,
            None
        );
    }

    #[test]
    fn past_what_money_can_be_there_is_no_price() {
        let rate = "100000000000".parse().unwrap();
        assert!(markup("1").rubles(&usdt(None), rate).is_none());
        // One class out of range takes the model's price away: what has no price is never free.
        let dear = usdt(Some("1000000"));
        let rate = "100000000".parse().unwrap();
        assert!(markup("1000").rubles(&usdt(None), Decimal::ONE).is_some());
        assert!(markup("1000").rubles(&dear, rate).is_none());
    }
}
