//! Computes prices from base prices: `usdt × exchange rate × multiplier`, or `rubles × multiplier`, rounded up once.
//!
//! No other module multiplies a price. Conditional and customer-specific prices are computed here, too, with the
//! [`Markup`] that applies to them.

use std::sync::Arc;

use rust_decimal::{Decimal, RoundingStrategy, prelude::ToPrimitive};
use tollgate_layers::{
    money::{MICRO, MicroRub},
    price::{Condition, Currency, Price, PriceList, Rate, RouteCost},
};

use crate::config::{BaseRates, CustomerRule, ModelConfig, RouteCostConfig, Tariff};

/// The multipliers that turn base prices into the prices that customers pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Markup {
    /// The multipliers, one per currency of base prices.
    pub tariff: Tariff,
    /// The tariff version to which the multipliers belong.
    pub version: u64,
}

impl Markup {
    /// Returns all prices of a model in rubles at `exchange_rate`, each rate rounded up at the sixth decimal. `None` if
    /// a price exceeds what the money type can hold.
    #[must_use]
    pub fn rubles(&self, base: &BasePrices, exchange_rate: Decimal) -> Option<PriceList> {
        let (tariff, version) = (Tariff::AT_COST, self.version);
        let cost = Self { tariff, version };
        let costs = base.costs.iter().map(|route| {
            Some(RouteCost {
                vendor: route.vendor.clone(),
                model: route.model.clone(),
                prices: cost.list(&route.base, &route.rules, None, exchange_rate)?,
            })
        });
        let costs: Vec<_> = costs.collect::<Option<_>>()?;
        let rule = base.rule.as_ref();
        let prices = self.list(&base.usual, &base.rules, rule, exchange_rate)?;
        let call = self.rate(UNPRICED_CALL_USDT, Currency::Usdt, exchange_rate)?;
        Some(prices.costs(costs).unpriced_call(call))
    }

    fn list(
        &self,
        usual: &BaseRates,
        rules: &[(Condition, BaseRates)],
        customers_rule: Option<&Arc<str>>,
        exchange_rate: Decimal,
    ) -> Option<PriceList> {
        let usual = Price {
            rule: customers_rule.cloned(),
            ..self.price(usual, exchange_rate)?
        };
        let rules = rules.iter().map(|(condition, rates)| {
            Some(Price {
                condition: *condition,
                rule: customers_rule.cloned(),
                ..self.price(rates, exchange_rate)?
            })
        });
        let rules: Vec<_> = rules.collect::<Option<_>>()?;
        Some(PriceList::from(usual).rules(rules))
    }

    fn price(&self, base: &BaseRates, exchange_rate: Decimal) -> Option<Price> {
        let rubles = |rate| self.rate(rate, base.currency, exchange_rate);
        let classes = base.classes.iter();
        let classes = classes.map(|(class, rate)| Some((class, Some(rubles(rate?)?))));
        Some(Price {
            input: rubles(base.input)?,
            cached_input: rubles(base.cached_input)?,
            output: rubles(base.output)?,
            cache_write: rubles(base.cache_write)?,
            version: self.version,
            exchange_rate: exchange_rate.normalize().to_string(),
            currency: base.currency,
            classes: classes.collect::<Option<_>>()?,
            ..Price::default()
        })
    }

    fn rate(&self, base: Decimal, currency: Currency, exchange_rate: Decimal) -> Option<Rate> {
        let rubles = match currency {
            Currency::Usdt => base.checked_mul(exchange_rate)?,
            Currency::Rub => base,
        };
        rounded_up(rubles.checked_mul(self.tariff.multiplier(currency))?)
    }

    /// Returns base prices in dollars, multiplied by the markup. Prices in rubles are rounded to a millionth. `None` if
    /// a price exceeds the range of `Decimal`.
    #[must_use]
    pub fn dollars(&self, base: &BaseRates, exchange_rate: Decimal) -> Option<BaseRates> {
        let times = |rate: Decimal| {
            let extras = rate.checked_mul(self.tariff.multiplier(base.currency))?;
            let dollars = match base.currency {
                Currency::Usdt => extras,
                Currency::Rub => extras.checked_div(exchange_rate)?.round_dp(6),
            };
            Some(dollars.normalize())
        };
        let classes = base.classes.iter();
        let classes = classes.map(|(class, rate)| Some((class, Some(times(rate?)?))));
        Some(BaseRates {
            currency: Currency::Usdt,
            input: times(base.input)?,
            cached_input: times(base.cached_input)?,
            output: times(base.output)?,
            cache_write: times(base.cache_write)?,
            classes: classes.collect::<Option<_>>()?,
        })
    }
}

/// Base price of a web search that the caller did not request, for a model that has no price for web searches: 10 USD
/// per thousand. Both vendors that sell searches charge this price.
const UNPRICED_CALL_USDT: Decimal = Decimal::from_parts(1, 0, 0, false, 2);

/// All base prices of a model: unconditional and conditional.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BasePrices {
    /// The base prices without a condition.
    pub usual: BaseRates,
    /// The conditional base prices.
    pub rules: Vec<(Condition, BaseRates)>,
    /// The vendors' prices for the model, one price list per route.
    pub costs: Vec<RouteCostConfig>,
    /// The customers' price rule to which these base prices belong; `None` for the prices that apply to everybody.
    pub rule: Option<Arc<str>>,
}

impl BasePrices {
    /// Creates a model's base prices under a customers' price rule.
    #[must_use]
    pub fn by_rule(config: &ModelConfig, rule: &CustomerRule) -> Self {
        let mut base = Self::from(config);
        if let Some((usual, rules)) = &rule.base {
            base.usual = *usual;
            base.rules.clone_from(rules);
        }
        base.rule = Some(Arc::clone(&rule.name));
        base
    }
    /// Returns the base prices of the rule with exactly this condition; the unconditional ones if no rule has it.
    #[must_use]
    pub fn under(&self, condition: &Condition) -> &BaseRates {
        let rule = self.rules.iter().find(|(it, _)| it == condition);
        rule.map_or(&self.usual, |(_, rates)| rates)
    }
}

impl From<&ModelConfig> for BasePrices {
    fn from(config: &ModelConfig) -> Self {
        Self {
            usual: config.base,
            rules: config.price_rules.clone(),
            costs: config.route_costs.clone(),
            rule: None,
        }
    }
}

/// Returns the rate in rubles, rounded up at the sixth decimal. `None` if it is negative or exceeds what the money type
/// can hold.
fn rounded_up(rubles: Decimal) -> Option<Rate> {
    let micro = rubles.checked_mul(Decimal::from(MICRO))?;
    let micro = micro.round_dp_with_strategy(0, RoundingStrategy::ToPositiveInfinity);
    let micro = micro.to_u64()?;
    (micro <= MicroRub::MAX.micro().unsigned_abs()).then(|| Rate::new(micro))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tollgate_layers::{
        price::{ByClass, Class, Extras, Hours, Moment, PossibleTimes, Served},
        usage::Usage,
    };

    use super::*;

    fn usdt(cache_write_1h: Option<&str>) -> BasePrices {
        let decimal = |text: &str| text.parse().unwrap();
        let usual = BaseRates {
            currency: Currency::Usdt,
            input: decimal("0.25"),
            cached_input: decimal("0.000000001"),
            output: decimal("2.00"),
            cache_write: decimal("0.3125"),
            classes: ByClass::default().with(Class::CacheWrite1h, cache_write_1h.map(decimal)),
        };
        BasePrices {
            usual,
            rules: Vec::new(),
            costs: Vec::new(),
            rule: None,
        }
    }

    fn markup(multiplier: &str) -> Markup {
        let multiplier = multiplier.parse().unwrap();
        Markup {
            tariff: Tariff {
                sell_rate_multiplier: multiplier,
                sell_rub_multiplier: multiplier,
            },
            version: 7,
        }
    }

    #[test]
    fn prices_are_rounded_up_to_six_decimal_places() {
        let rate = |text: &str| rounded_up(text.parse().unwrap());
        assert_eq!(rate("26.01875001"), Some(Rate::new(26_018_751)));
        assert_eq!(
            rate("9007199254.740991"),
            Some(Rate::new(9_007_199_254_740_991))
        );
        for none in ["-1", "9007199254.7409911"] {
            assert_eq!(rate(none), None, "{none}");
        }
    }

    #[test]
    fn price_of_each_class_is_rounded_up_separately_and_only_once() {
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
    fn dollar_prices_are_exact_and_have_no_trailing_zeros() {
        let extras = markup("1.150")
            .dollars(&usdt(Some("0.5")).usual, Decimal::ONE)
            .unwrap();
        assert_eq!(extras.input.to_string(), "0.2875");
        assert_eq!(extras.output.to_string(), "2.3");
        assert_eq!(
            extras.classes.get(Class::CacheWrite1h).unwrap().to_string(),
            "0.575"
        );
        assert_eq!(
            markup("1")
                .dollars(&usdt(None).usual, Decimal::ONE)
                .unwrap()
                .classes,
            ByClass::default()
        );
    }

    #[test]
    fn price_in_rubles_uses_only_the_multiplier_of_rubles() {
        let mut base = usdt(Some("0.5"));
        base.usual.currency = Currency::Rub;
        let tariff = Tariff {
            sell_rate_multiplier: Decimal::TEN,
            sell_rub_multiplier: "1.15".parse().unwrap(),
        };
        let markup = Markup { tariff, version: 7 };
        let at = |rate: &str| markup.rubles(&base, rate.parse().unwrap()).unwrap();
        let [low, high] = ["1", "90.50"].map(|rate| Arc::unwrap_or_clone(at(rate).usual));
        assert_eq!(low.input.to_string(), "0.2875");
        assert_eq!(low.cached_input.to_string(), "0.000001");
        assert_eq!(
            (low.currency, &*high.exchange_rate),
            (Currency::Rub, "90.5")
        );
        assert_eq!(
            Price {
                exchange_rate: "1".into(),
                ..high
            },
            low
        );
        let dollars = markup.dollars(&base.usual, Decimal::TWO).unwrap();
        assert_eq!(
            (dollars.input.to_string(), dollars.output.to_string()),
            ("0.14375".into(), "1.15".into())
        );
    }

    #[test]
    fn model_has_no_price_if_one_of_its_prices_is_out_of_range() {
        let rate = "100000000000".parse().unwrap();
        assert!(markup("1").rubles(&usdt(None), rate).is_none());
        // If the price of one token class is out of range, the model has no price at all: a class without a price must
        // never be free.
        let dear = usdt(Some("1000000"));
        let rate = "100000000".parse().unwrap();
        assert!(markup("1000").rubles(&usdt(None), Decimal::ONE).is_some());
        assert!(markup("1000").rubles(&dear, rate).is_none());
    }

    /// Prices that vendors publish, each with its source.
    const PUBLISHED: &str = include_str!("../../layers/src/vendor_usage/prices.json");

    /// Parses a decimal text to billionths.
    fn billionths(text: &str) -> u128 {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        assert!(fraction.len() <= 9, "{text}");
        format!("{whole}{fraction:0<9}").parse().unwrap()
    }

    /// Returns the expected price in micro-rubles: the exact product of three decimal texts, rounded up once.
    fn reckoned(usd: &str, exchange_rate: &str, multiplier: &str) -> u64 {
        let product = [usd, exchange_rate, multiplier].map(billionths);
        let exact: u128 = product.iter().product();
        // Products are in units of 10⁻²⁷ rubles; a micro-ruble has 10²¹ of them.
        u64::try_from(exact.div_ceil(10_u128.pow(21))).unwrap()
    }

    fn base(list: &serde_json::Value, rates: &serde_json::Value) -> BaseRates {
        let of = |class: &str| {
            Some(
                rates
                    .get(class)?
                    .as_str()
                    .unwrap()
                    .parse::<Decimal>()
                    .unwrap(),
            )
        };
        let input = of("input").unwrap();
        let currency = list.get("currency").cloned().unwrap_or("usdt".into());
        BaseRates {
            currency: serde_json::from_value(currency).unwrap(),
            input,
            cached_input: of("cached_input").unwrap_or(input),
            output: of("output").unwrap_or(input),
            cache_write: of("cache_write").unwrap_or(input),
            classes: Class::ALL
                .into_iter()
                .map(|class| (class, of(class.name())))
                .collect(),
        }
    }

    #[test]
    fn sales_price_is_the_exact_product_of_published_price_exchange_rate_and_multiplier() {
        let lists: serde_json::Value = serde_json::from_str(PUBLISHED).unwrap();
        let mut seen = 0;
        for (name, list) in lists.as_object().unwrap() {
            let rules = list["rules"].as_array().unwrap();
            let usdt = BasePrices {
                usual: base(list, &list["usual"]),
                rules: rules
                    .iter()
                    .map(|rule| {
                        let when = serde_json::from_value(rule["when"].clone()).unwrap();
                        (when, base(list, &rule["rates"]))
                    })
                    .collect(),
                costs: Vec::new(),
                rule: None,
            };
            for (exchange_rate, multiplier) in [
                ("90.50", "1.15"),
                ("78.9", "1.0731"),
                ("90.000001", "1.000001"),
                ("100", "1"),
            ] {
                let prices = markup(multiplier)
                    .rubles(&usdt, exchange_rate.parse().unwrap())
                    .unwrap();
                let published =
                    std::iter::once(&list["usual"]).chain(rules.iter().map(|rule| &rule["rates"]));
                for (price, published) in prices.prices().zip(published) {
                    let price = serde_json::to_value(&**price).unwrap();
                    for (class, usd) in published.as_object().unwrap() {
                        let shown = price.get(class).unwrap_or(&price["classes"][class]);
                        let shown =
                            u64::try_from(billionths(shown.as_str().unwrap()) / 1000).unwrap();
                        let exchange_rate = match list["currency"].as_str() {
                            Some("rub") => "1",
                            _ => exchange_rate,
                        };
                        let expected = reckoned(usd.as_str().unwrap(), exchange_rate, multiplier);
                        assert_eq!(
                            shown, expected,
                            "{name}, {class}: {usd} {exchange_rate} {multiplier}"
                        );
                        seen += 1;
                    }
                }
            }
        }
        assert!(seen > 400, "{seen}");
    }

    /// Rates in millionths: the four basic rates, the reasoning rate, and the fee per call.
    type Millionths = [u32; 6];

    fn millionths() -> impl Strategy<Value = Millionths> {
        prop::array::uniform6(1u32..1_000_000_000)
    }

    fn rates(currency: Currency, rates: Millionths) -> BaseRates {
        let [input, cached_input, output, cache_write, reasoning, fee] =
            rates.map(|rate| Decimal::new(rate.into(), 6));
        BaseRates {
            currency,
            input,
            cached_input,
            output,
            cache_write,
            classes: ByClass::default()
                .with(Class::OutputReasoning, Some(reasoning))
                .with(Class::RequestCall, Some(fee)),
        }
    }

    fn currency() -> impl Strategy<Value = Currency> {
        prop::sample::select(Currency::ALL.to_vec())
    }

    proptest! {
        /// Tests prices and costs in either currency, with conditions on hours and a date, and with a fee per call. The
        /// hold covers the charge, the charge can be recomputed from the receipt, and the vendor's cost equals the cost
        /// computed in integers at the exchange rate of the call.
        #[test]
        fn hold_covers_the_charge_and_costs_are_exact_in_either_currency(
            sold_in in currency(), taken_in in currency(),
            sold in prop::array::uniform4(millionths()), taken in millionths(),
            multipliers in (1u32..5_000_000, 1u32..5_000_000), exchange_rate in 1u32..200_000_000,
            hours in (0u16..1440, 1u16..1440), moment in prop::sample::select(vec![Moment::Request, Moment::FirstByte, Moment::End]),
            date in 0u64..10_080, request in 0u64..10_080, answer in (0u64..30, 0u64..120), longest in 0u64..120,
            counts in prop::array::uniform4(0u64..1_000_000), reasoning in 0u64..1_000_000, spare in 0u64..50,
        ) {
            const BEGIN: u64 = 1_795_996_800_000;
            let minute = |minute: u64| BEGIN + minute * 60_000;
            let end = (hours.0 + hours.1) % 1440;
            let clock = |minute: u16| format!("{:02}:{:02}", minute / 60, minute % 60);
            let spans = [format!("{}-{}", clock(hours.0), clock(end))];
            let in_hours = Condition {
                hours_utc: Hours::from_spans(&spans).unwrap(),
                hours_at: moment,
                ..Condition::default()
            };
            let dated = Condition { valid_from_ms: Some(minute(date)), ..Condition::default() };
            let both = in_hours.and(&dated).unwrap();
            let [usual, rest @ ..] = sold.map(|it| rates(sold_in, it));
            let base = BasePrices {
                usual,
                rules: std::iter::zip([in_hours, dated, both], rest).collect(),
                costs: vec![RouteCostConfig {
                    route: 0,
                    vendor: "v".into(),
                    model: "m".into(),
                    base: rates(taken_in, taken),
                    rules: Vec::new(),
                }],
                rule: None,
            };
            let [sell_rate_multiplier, sell_rub_multiplier] =
                [multipliers.0, multipliers.1].map(|it| Decimal::new(it.into(), 6));
            let markup = Markup { tariff: Tariff { sell_rate_multiplier, sell_rub_multiplier }, version: 1 };
            let prices = markup.rubles(&base, Decimal::new(exchange_rate.into(), 6)).unwrap();

            let [input, cached_input, cache_write, output] = counts;
            let usage = Usage { input, cached_input, cache_write, output, ..Usage::default() };
            let possible = PossibleTimes { request_ms: minute(request), end_max_ms: minute(request + longest) };
            let times = possible.narrowed(Some(minute(request + answer.0)), minute(request + answer.1));
            let extras = Extras { times: Some(possible), ..Extras::default() };
            let most = usage.input_total() + spare;
            let hold = prices.bound(most, &extras).cost(most, output + spare);
            let reported = prices.distinguished(usage, reasoning);
            let (charge, cost) = prices.charge_of(reported, &Served::default(), &times, "v", "m");
            prop_assert!(!charge.unpriced && charge.cost <= hold, "{charge:?} {hold:?}");
            prop_assert_eq!(charge.price.cost(&charge.usage), charge.cost);
            prop_assert_eq!(charge.price.currency, sold_in);

            let reasoning = reasoning.min(output);
            let used = [input, cached_input, output - reasoning, cache_write, reasoning, 1_000_000];
            let sum: u128 = std::iter::zip(used, taken).map(|(count, rate)| {
                let rate = match taken_in {
                    Currency::Usdt => (u128::from(rate) * u128::from(exchange_rate)).div_ceil(1_000_000),
                    Currency::Rub => rate.into(),
                };
                u128::from(count) * rate
            }).sum();
            prop_assert_eq!(cost.unwrap().micro().unsigned_abs(), u64::try_from(sum.div_ceil(1_000_000)).unwrap());
        }
    }
}
