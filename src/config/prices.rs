//! Checks of `[tariff]` and of base prices. A price is computed from these and the exchange rate.
//!
//! The fingerprint of a tariff contains prices under conditions and price rules for customers only if the file has
//! some. A file without them therefore keeps the tariff version that it had before these settings were introduced.

use rust_decimal::Decimal;
use sha2::{Digest, Sha256};
use tollgate_layers::price::{
    ByClass, CallTimes, Class, Condition, Currency, Hours, Label, Moment, Served, Weekdays,
    ambiguous,
};

use crate::text::{hex::hex, time::parse_rfc3339_ms};

use super::{
    LiveConfig, ModelConfig,
    check::{Check, TOKENS_MAX, maybe},
    raw::{RawModel, RawPriceRule, RawRates, RawTariff},
};

/// The section `[tariff]`: the multipliers by which prices are computed from base prices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tariff {
    /// Multiplier for base prices in USDT, above zero: price in rubles = base price × exchange rate × multiplier.
    pub sell_rate_multiplier: Decimal,
    /// Multiplier for base prices in rubles, above zero: price = base price × multiplier.
    pub sell_rub_multiplier: Decimal,
}

impl Tariff {
    /// The tariff that sells at base prices: both multipliers are 1.
    pub const AT_COST: Self = Self {
        sell_rate_multiplier: Decimal::ONE,
        sell_rub_multiplier: Decimal::ONE,
    };

    /// Returns the multiplier for base prices in this currency.
    #[must_use]
    pub const fn multiplier(&self, currency: Currency) -> Decimal {
        match currency {
            Currency::Usdt => self.sell_rate_multiplier,
            Currency::Rub => self.sell_rub_multiplier,
        }
    }
}

/// Returns the name of the setting with base prices in this currency.
pub(super) const fn field(currency: Currency) -> &'static str {
    match currency {
        Currency::Usdt => "usdt_mtok",
        Currency::Rub => "rub_mtok",
    }
}

/// Base prices in USDT or rubles per million tokens, by rate class. Each is above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseRates {
    /// Currency of all these prices.
    pub currency: Currency,
    /// Price of input that no other rate class covers.
    pub input: Decimal,
    /// Price of input that is read from the vendor's cache.
    pub cached_input: Decimal,
    /// Price of output, including reasoning without a separate price.
    pub output: Decimal,
    /// Price of input that is written to the vendor's cache.
    pub cache_write: Decimal,
    /// Prices of further rate classes. Prices of classes with [`Kind::Call`] are per call, for example per web search.
    ///
    /// [`Kind::Call`]: tollgate_layers::price::Kind::Call
    pub classes: ByClass<Option<Decimal>>,
}

impl LiveConfig {
    /// Returns a digest of everything that determines prices except the exchange rate: base prices, multipliers and
    /// price rules. A new digest is a new tariff version. The digest does not change if models are reordered, or if
    /// decimals are written with other trailing zeros.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let models = self.models.iter().map(ModelConfig::fingerprint_line);
        let mut lines: Vec<String> = models.chain(self.price_lists.fingerprint_lines()).collect();
        lines.sort();
        let Tariff {
            sell_rate_multiplier,
            sell_rub_multiplier,
        } = self.tariff;
        if sell_rub_multiplier != Decimal::ONE {
            let line = format!("sell_rub_multiplier {}", sell_rub_multiplier.normalize());
            lines.insert(0, line);
        }
        let line = format!("sell_rate_multiplier {}", sell_rate_multiplier.normalize());
        lines.insert(0, line);
        hex(&Sha256::digest(lines.join("\n")))
    }
}

impl ModelConfig {
    fn fingerprint_line(&self) -> String {
        let prices = fingerprint(&self.base, &self.price_rules);
        format!("{:?} {prices}", self.id)
    }
}

/// Returns the text that base prices and their price rules add to the fingerprint.
pub(super) fn fingerprint(usual: &BaseRates, rules: &[(Condition, BaseRates)]) -> String {
    let mut line = usual.fingerprint();
    let rule = |(condition, rates): &(Condition, BaseRates)| {
        format!(" [{condition}: {}]", rates.fingerprint())
    };
    let mut rules: Vec<_> = rules.iter().map(rule).collect();
    rules.sort();
    line.extend(rules);
    line
}

impl BaseRates {
    /// Returns the text that base prices add to the fingerprint. Only rate classes beyond the first four are written
    /// with their names. A model without such classes therefore has the same text as in earlier gateway versions, which
    /// had only four classes.
    fn fingerprint(&self) -> String {
        let Self {
            currency,
            input,
            cached_input,
            output,
            cache_write,
            classes,
        } = self;
        let [input, cached_input, output, cache_write] =
            [input, cached_input, output, cache_write].map(|rate| rate.normalize());
        let mut line = format!("{input} {cached_input} {output} {cache_write}");
        if *currency == Currency::Rub {
            line.insert_str(0, "rub ");
        }
        for (class, rate) in classes.iter() {
            if let Some(rate) = rate {
                line += &format!(" {class} {}", rate.normalize());
            }
        }
        line
    }

    /// Returns a rate class that has a price in only one of `self` and `other`, and whether that one is `self`.
    pub(super) fn class_apart(&self, other: &Self) -> Option<(Class, bool)> {
        Class::ALL.iter().copied().find_map(|class| {
            let here = self.classes.get(class).is_some();
            (here != other.classes.get(class).is_some()).then_some((class, here))
        })
    }
}

/// Returns the times of a call in each minute of the week that begins at `from_ms`.
pub(super) fn minutes_of_week(from_ms: u64) -> impl Iterator<Item = CallTimes> {
    const MINUTE_MS: u64 = 60_000;
    (0..7 * 24 * 60).map(move |minute| CallTimes::at(from_ms + minute * MINUTE_MS))
}

/// Largest valid multiplier of a tariff or a price rule.
pub(crate) const MULTIPLIER_MAX: u32 = 1_000;

impl Check<'_> {
    /// Checks the section `[tariff]`, and warns if the multiplier for the currency of a model is absent.
    pub(super) fn tariff(&mut self, raw: &RawTariff, models: &[RawModel]) -> Option<Tariff> {
        const USDT: &str = "tariff.sell_rate_multiplier";
        const RUB: &str = "tariff.sell_rub_multiplier";
        let has_rub = models.iter().any(|model| model.rub_mtok.is_some());
        let has_usdt = !has_rub || models.iter().any(|model| model.usdt_mtok.is_some());
        if raw.sell_rate_multiplier.is_none() && has_usdt {
            self.warnings.add(
                USDT,
                "is absent, so models priced in USDT are sold at cost (base price × exchange rate): give a \
                 multiplier, or \"1\" if this is intended",
            );
        }
        if raw.sell_rub_multiplier.is_none() && has_rub {
            self.warnings.add(
                RUB,
                "is absent, so models priced in rubles are sold at cost: give a multiplier, or \"1\" if this is \
                 intended",
            );
        }
        let mut multiplier = |given: &Option<String>, path: &str| {
            self.multiplier_at(given.as_deref().unwrap_or("1"), path)
        };
        let usdt = multiplier(&raw.sell_rate_multiplier, USDT);
        let rub = multiplier(&raw.sell_rub_multiplier, RUB);
        Some(Tariff {
            sell_rate_multiplier: usdt?,
            sell_rub_multiplier: rub?,
        })
    }

    pub(super) fn multiplier_at(&mut self, given: &str, path: &str) -> Option<Decimal> {
        let multiplier = self.decimal(given, path, 6, MULTIPLIER_MAX)?;
        if multiplier < Decimal::ONE {
            self.warnings.add(
                path,
                "is below 1: models are sold for less than their base prices",
            );
        } else if multiplier > Decimal::TEN {
            self.warnings.add(
                path,
                "is above 10: models are sold for more than ten times their base prices",
            );
        }
        Some(multiplier)
    }

    /// Checks base prices, which must be in exactly one of two tables. `prefix` is the path of the table that contains
    /// both.
    pub(super) fn base_rates(
        &mut self,
        usdt: Option<&RawRates>,
        rub: Option<&RawRates>,
        prefix: &str,
    ) -> Option<BaseRates> {
        let (currency, raw) = match (usdt, rub) {
            (Some(usdt), None) => (Currency::Usdt, usdt),
            (None, Some(rub)) => (Currency::Rub, rub),
            (Some(_), Some(_)) => {
                let problem = format!(
                    "prices must be in one currency: remove {prefix}rub_mtok or {prefix}usdt_mtok"
                );
                return self.refuse(format!("{prefix}rub_mtok"), problem);
            }
            (None, None) => {
                self.errors.missing(
                    &format!("{prefix}usdt_mtok"),
                    "a model without a full price cannot be called: give input, cached_input, output and cache_write \
                     here or in rub_mtok",
                );
                return None;
            }
        };
        self.rates(raw, currency, &format!("{prefix}{}", field(currency)))
    }

    fn rates(&mut self, raw: &RawRates, currency: Currency, path: &str) -> Option<BaseRates> {
        let [input, cached_input, output, cache_write] = [
            ("input", &raw.input),
            ("cached_input", &raw.cached_input),
            ("output", &raw.output),
            ("cache_write", &raw.cache_write),
        ]
        .map(|(name, given)| {
            let path = format!("{path}.{name}");
            let advice = format!(
                "a model without a full price cannot be called: give {currency} per million tokens, like \"0.25\""
            );
            let text = self.required(given.clone(), &path, &advice)?;
            self.decimal(&text, &path, 9, 1_000_000)
        });
        let mut classes = Some(ByClass::default());
        for (class, text) in raw.further() {
            let path = format!("{path}.{class}");
            let rate = self.decimal(text, &path, 9, 1_000_000);
            let is_write = matches!(class, Class::CacheWrite1h | Class::CacheWrite12h);
            let is_below = rate
                .zip(cache_write)
                .is_some_and(|(long, short)| long < short);
            if is_write && is_below {
                let problem = "is below cache_write, although a longer cache lifetime usually costs more: check both \
                     prices";
                self.warnings.add(path, problem);
            }
            classes = match rate {
                Some(_) => classes.map(|classes| classes.with(class, rate)),
                None => None,
            };
        }
        if cached_input
            .zip(input)
            .is_some_and(|(cached, input)| cached > input)
        {
            self.warnings.add(
                format!("{path}.cached_input"),
                "is above input, although input read from a cache usually costs less: check both prices",
            );
        }
        Some(BaseRates {
            currency,
            input: input?,
            cached_input: cached_input?,
            output: output?,
            cache_write: cache_write?,
            classes: classes?,
        })
    }

    pub(super) fn price_rules(
        &mut self,
        raw: Vec<RawPriceRule>,
        path: &str,
        usual: Option<&BaseRates>,
    ) -> Option<Vec<(Condition, BaseRates)>> {
        let check = |check: &mut Self, raw, path: &str| check.price_rule(raw, path, usual);
        let rules = self.items(raw, path, check)?;
        let conditions: Vec<_> = rules.iter().map(|(condition, _)| *condition).collect();
        let moments: Vec<_> = conditions.iter().filter(|it| it.has_hours()).collect();
        let mut pairs = moments.windows(2);
        if let Some(pair) = pairs.find(|it| it[0].hours_at != it[1].hours_at) {
            let [one, other] = [pair[0], pair[1]].map(|it| it.hours_at.as_str());
            let problem = format!(
                "have different hours_at, {one} and {other}: give all rules of this list the same hours_at"
            );
            return self.refuse(path, problem);
        }
        self.unlikely_hours(&conditions, path);
        if let Some((one, other)) = ambiguous(&conditions) {
            let problem = match one == other {
                true => format!("two rules have the same condition, {one}: remove one of them"),
                false => format!(
                    "a call may meet both {one} and {other}, and it is not clear which rule applies: add a rule with \
                     both conditions"
                ),
            };
            return self.refuse(path, problem);
        }
        Some(rules)
    }

    fn price_rule(
        &mut self,
        raw: RawPriceRule,
        path: &str,
        usual: Option<&BaseRates>,
    ) -> Option<(Condition, BaseRates)> {
        let tables = (raw.usdt_mtok.as_ref(), raw.rub_mtok.as_ref());
        let rates = self.base_rates(tables.0, tables.1, &format!("{path}."));
        let condition = self.condition(raw, path)?;
        let (rates, usual) = (rates?, usual?);
        let path_of_rates = format!("{path}.{}", field(rates.currency));
        if rates.currency != usual.currency {
            let problem = format!(
                "the base price is in {}: write this price in {0} too",
                field(usual.currency)
            );
            return self.refuse(path_of_rates, problem);
        }
        if let Some((class, is_surplus)) = rates.class_apart(usual) {
            let problem = match is_surplus {
                true => format!(
                    "the base price has no {class}: remove {class} here, or add it to the base price"
                ),
                false => format!("the base price has {class}: add {class} here too"),
            };
            return self.refuse(path_of_rates, problem);
        }
        Some((condition, rates))
    }

    fn condition(&mut self, raw: RawPriceRule, path: &str) -> Option<Condition> {
        let at = |field: &str| format!("{path}.{field}");
        let above = maybe(raw.above_input_tokens, |above| {
            self.optional(Some(above), &at("above_input_tokens"), 1..=TOKENS_MAX)
        });
        let [service_tier, speed, inference_geo] = [
            ("service_tier", raw.service_tier),
            ("speed", raw.speed),
            ("inference_geo", raw.inference_geo),
        ]
        .map(|(name, given)| self.word(given, &at(name)));
        let hours_utc = self.keep(Hours::from_spans(&raw.hours_utc), &at("hours_utc"));
        let weekdays = self.keep(Weekdays::from_names(&raw.weekdays), &at("weekdays"));
        let moments = [Moment::Request, Moment::FirstByte, Moment::End];
        let moments = moments.map(|moment| (moment.as_str(), moment));
        let hours_at = match raw.hours_at.as_deref() {
            None => Some(Moment::default()),
            Some(word) => self.choice(word, &at("hours_at"), moments),
        };
        let valid_from = maybe(raw.valid_from, |text| {
            let from = parse_rfc3339_ms(&text).filter(|_| text.contains(':'));
            let from = from.ok_or("not a time: write it like \"2027-01-01T00:00:00Z\"");
            self.keep(from, &at("valid_from"))
        });
        let condition = Condition {
            above_input_tokens: above?,
            service_tier: service_tier?.as_tier(),
            speed: speed?,
            inference_geo: inference_geo?,
            hours_utc: hours_utc?,
            weekdays: weekdays?,
            hours_at: hours_at?,
            valid_from_ms: valid_from?,
        };
        if condition.hours_at != Moment::Request && !condition.has_hours() {
            let problem = "has no effect, because hours_utc and weekdays are missing or contain every minute: give \
                 hours, or remove hours_at";
            return self.refuse(at("hours_at"), problem);
        }
        if condition.is_empty() {
            return self.refuse(
                path,
                "has no condition: give above_input_tokens, service_tier, speed, inference_geo, hours_utc, weekdays or \
                 valid_from",
            );
        }
        Some(condition)
    }

    /// Records a warning for each span of hours that ends at a time such as 03:59 or 03:29. The end is exclusive, so
    /// the operator probably meant 04:00 or 03:30. Also records a warning if rules cover every minute of the week.
    fn unlikely_hours(&mut self, conditions: &[Condition], path: &str) {
        for (index, condition) in conditions.iter().enumerate() {
            for span in condition.hours_utc.spans() {
                let (_, end) = span.split_once('-').unwrap_or_default();
                if end.ends_with(":59") || end.ends_with(":29") {
                    self.warnings.add(
                        format!("{path}[{index}].hours_utc"),
                        format!(
                            "the end of a span is exclusive: {span} does not include {end} itself. To include it, \
                             write the minute after it as the end"
                        ),
                    );
                }
            }
        }
        let is_certain = |condition: &&Condition| {
            let time = Condition {
                hours_utc: condition.hours_utc,
                weekdays: condition.weekdays,
                hours_at: condition.hours_at,
                ..Condition::default()
            };
            **condition == time
        };
        let timed: Vec<_> = conditions.iter().filter(is_certain).collect();
        let covers = |times| timed.iter().any(|it| it.holds_at(&times));
        if minutes_of_week(0).all(covers) {
            self.warnings.add(
                path,
                "cover every minute of the week, so the base price never applies: remove the hours in which the base \
                 price should apply",
            );
        }
    }

    /// Parses a service tier, speed or region that is billed separately. The result is empty if none is given.
    fn word(&mut self, given: Option<String>, path: &str) -> Option<Label> {
        let Some(word) = given else {
            return Some(Label::default());
        };
        let label = Label::new(&word);
        let served = Served {
            service_tier: label,
            ..Served::default()
        };
        if word.len() > Label::BYTES_MAX || !word.bytes().all(|byte| byte.is_ascii_graphic()) {
            let problem = format!(
                "must be 1 to {} printable ASCII characters without spaces",
                Label::BYTES_MAX
            );
            return self.refuse(path, problem);
        }
        if served.unusual() == Served::default() {
            let problem = format!(
                "{word:?} is the vendor's standard service, which has the base price: remove this condition"
            );
            return self.refuse(path, problem);
        }
        Some(label)
    }
}

#[cfg(test)]
mod tests {
    use tollgate_layers::price::Currency;

    use crate::config::testing::{SMALL, assert_mistakes, changed, parse, rows};

    #[test]
    fn error_about_an_invalid_price_names_the_setting() {
        assert_mistakes(
            r#"
             | [tariff]\nsell_rate_multiplier = "0" | tariff.sell_rate_multiplier | above 0
            , cache_write = "0.25" |  | model[0].usdt_mtok.cache_write | without a full price
            cache_write = "0.25" | cache_write = "0" | model[0].usdt_mtok.cache_write | above 0
            cache_write = "0.25" | cache_write = "0.25", cache_write_1h = "0" | model[0].usdt_mtok.cache_write_1h | above 0
        "#,
        );
    }

    fn rule(condition: &str, more: &str) -> String {
        format!(
            "[[model.price_rules]]\n{condition}\nusdt_mtok = {{ input = \"1\", cached_input = \"1\", output = \"1\", \
             cache_write = \"1\"{more} }}\n"
        )
    }

    #[test]
    fn price_rule_has_conditions_and_a_price_per_class() {
        let long = rule("above_input_tokens = 100", "");
        let flex = rule("service_tier = \"flex\"", "");
        let both = rule("service_tier = \"flex\"\nabove_input_tokens = 100", "");
        let text = |rules: &[&str]| format!("{SMALL}\n{}", rules.concat());
        let config = parse(&text(&[&long, &flex, &both])).unwrap();
        let model = &config.live.models[0];
        assert_eq!(model.price_rules.len(), 3);
        assert_eq!(model.price_rules[0].0.above_input_tokens, Some(100));
        for (rules, field, problem) in [
            (
                &[&long, &flex][..],
                "model[0].price_rules",
                "a rule with both conditions",
            ),
            (
                &[&long, &long],
                "model[0].price_rules",
                "remove one of them",
            ),
            (&[&rule("", "")], "model[0].price_rules[0]", "no condition"),
            (
                &[&rule("speed = \"standard\"", "")],
                "model[0].price_rules[0].speed",
                "is the vendor's standard service",
            ),
            (
                &[&rule("speed = \"fast\"", ", cache_write_1h = \"2\"")],
                "model[0].price_rules[0].usdt_mtok",
                "the base price has no cache_write_1h: remove cache_write_1h here, or add it to the base price",
            ),
        ] {
            let rules: Vec<&str> = rules.iter().map(|rule| rule.as_str()).collect();
            let errors = parse(&text(&rules)).unwrap_err().to_string();
            assert!(
                errors.contains(&format!("{field}:")) && errors.contains(problem),
                "{errors}"
            );
        }
    }

    const RUB: &str = "rub_mtok = { input = \"25\", cached_input = \"2\", output = \"200\", cache_write = \"25\" }";

    /// Returns the file `SMALL` with a price in rubles, and with additional lines in its model.
    fn in_rubles(more: &str) -> String {
        let usual = "usdt_mtok = { input = \"0.25\", cached_input = \"0.025\", output = \"2.00\", cache_write = \"0.25\" }";
        assert!(SMALL.contains(usual));
        SMALL.replace(usual, RUB) + "\n" + more
    }

    #[test]
    fn base_price_and_price_rules_must_have_one_currency() {
        let config = parse(&in_rubles("")).unwrap();
        let base = &config.live.models[0].base;
        assert_eq!(
            (base.currency, base.input.to_string()),
            (Currency::Rub, "25".into())
        );
        let ruled =
            |table: &str| in_rubles(&rule("speed = \"fast\"", "").replace("usdt_mtok", table));
        assert!(parse(&ruled("rub_mtok")).is_ok());
        let both = SMALL.replace("family = \"M\"", &format!("family = \"M\"\n{RUB}"));
        for (text, field, problem) in [
            (
                both,
                "model[0].rub_mtok",
                "prices must be in one currency: remove model[0].rub_mtok or model[0].usdt_mtok",
            ),
            (
                ruled("usdt_mtok"),
                "model[0].price_rules[0].usdt_mtok",
                "the base price is in rub_mtok: write this price in rub_mtok too",
            ),
            (
                SMALL
                    .replace("usdt_mtok", "rub_mtok")
                    .replace("\"0.25\"", "\"0\""),
                "model[0].rub_mtok.input",
                "above 0",
            ),
        ] {
            let errors = parse(&text).unwrap_err().to_string();
            assert!(
                errors.contains(&format!("{field}:")) && errors.contains(problem),
                "{errors}"
            );
        }
    }

    #[test]
    fn absent_ruble_multiplier_causes_a_warning_only_if_a_price_is_in_rubles() {
        let noted = |text: &str| {
            let config = parse(text).unwrap();
            let noted = config
                .warnings
                .iter()
                .filter(|it| it.path.starts_with("tariff"));
            noted.map(|it| it.path.clone()).collect::<Vec<_>>()
        };
        assert_eq!(noted(SMALL), ["tariff.sell_rate_multiplier"]);
        assert_eq!(noted(&in_rubles("")), ["tariff.sell_rub_multiplier"]);
        let given = in_rubles("").replace(
            "[admin]",
            "[tariff]\nsell_rub_multiplier = \"1.2\"\n[admin]",
        );
        assert_eq!(noted(&given), [""; 0]);
        let tariff = parse(&given).unwrap().live.tariff;
        assert_eq!(tariff.multiplier(Currency::Rub).to_string(), "1.2");
        assert_eq!(tariff.multiplier(Currency::Usdt).to_string(), "1");
    }

    #[test]
    fn hours_of_a_price_rule_are_checked_and_mistakes_in_them_are_named() {
        let text = |rules: &[&str]| format!("{SMALL}\n{}", rules.concat());
        let peak = "hours_utc = [\"06:00-10:00\", \"01:00-04:00\"]\nweekdays = [\"fri\", \"mon\"]\nhours_at = \"end\"";
        let config = parse(&text(&[&rule(peak, "")])).unwrap();
        let (condition, _) = &config.live.models[0].price_rules[0];
        assert_eq!(
            condition.to_string(),
            "hours_utc 01:00-04:00 06:00-10:00, weekdays mon fri, hours_at end"
        );
        for (conditions, field, problem) in [
            (
                &["hours_utc = [\"1-4\"]"][..],
                "model[0].price_rules[0].hours_utc",
                "write for example \"01:00-04:00\"",
            ),
            (
                &["weekdays = [\"Monday\"]"],
                "model[0].price_rules[0].weekdays",
                "not a weekday",
            ),
            (
                &["hours_utc = [\"01:00-04:00\"]\nhours_at = \"start\""],
                "model[0].price_rules[0].hours_at",
                "\"first_byte\"",
            ),
            (
                &["speed = \"fast\"\nhours_at = \"end\""],
                "model[0].price_rules[0].hours_at",
                "hours_utc and weekdays are missing",
            ),
            (
                &["hours_utc = [\"00:00-24:00\"]"],
                "model[0].price_rules[0]",
                "no condition",
            ),
            (
                &[
                    "hours_utc = [\"01:00-04:00\"]",
                    "weekdays = [\"sat\"]\nhours_at = \"end\"",
                ],
                "model[0].price_rules",
                "different hours_at, request and end",
            ),
            (
                &[
                    "hours_utc = [\"01:00-04:00\"]",
                    "hours_utc = [\"03:00-05:00\"]",
                ],
                "model[0].price_rules",
                "both hours_utc 01:00-04:00 and hours_utc 03:00-05:00",
            ),
            (
                &["hours_utc = [\"01:00-04:00\"]", "speed = \"fast\""],
                "model[0].price_rules",
                "a rule with both conditions",
            ),
        ] {
            let rules: Vec<_> = conditions.iter().map(|it| rule(it, "")).collect();
            let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
            let errors = parse(&text(&rules)).unwrap_err().to_string();
            assert!(
                errors.contains(&format!("{field}:")) && errors.contains(problem),
                "{errors}"
            );
        }
    }

    #[test]
    fn dated_price_is_a_price_rule_that_applies_from_a_given_time() {
        let from =
            |text: &str| format!("{SMALL}\n{}", rule(&format!("valid_from = \"{text}\""), ""));
        let config = parse(&from("2027-01-01T03:00:00+03:00")).unwrap();
        let (condition, _) = &config.live.models[0].price_rules[0];
        assert_eq!(condition.to_string(), "valid_from 2027-01-01T00:00:00Z");
        // A date without a time is refused: it would mean midnight in UTC, which not every operator expects.
        for wrong in [
            "2027-01-01",
            "2027-13-01T00:00:00Z",
            "tomorrow",
            "2027-01-01T00:00:00",
        ] {
            let errors = parse(&from(wrong)).unwrap_err().to_string();
            assert!(
                errors.contains("model[0].price_rules[0].valid_from: not a time"),
                "{errors}"
            );
        }
        // A file with the dated price has another fingerprint, so it starts a new tariff version.
        let old = parse(SMALL).unwrap().live.fingerprint();
        assert_ne!(config.live.fingerprint(), old);
    }

    #[test]
    fn price_rule_hours_that_omit_a_last_minute_or_cover_the_whole_week_cause_a_warning() {
        for (conditions, problems) in [
            (&["hours_utc = [\"01:00-04:00\"]"][..], &[][..]),
            (
                &["hours_utc = [\"01:00-03:59\"]"],
                &["does not include 03:59 itself"],
            ),
            (
                &[
                    "hours_utc = [\"01:00-04:00\"]",
                    "hours_utc = [\"04:00-01:00\"]",
                ],
                &["the base price never applies"],
            ),
            (
                &[
                    "hours_utc = [\"01:00-04:00\"]\nweekdays = [\"mon\"]",
                    "hours_utc = [\"04:00-01:00\"]",
                ],
                &[],
            ),
        ] {
            let rules: Vec<_> = conditions.iter().map(|it| rule(it, "")).collect();
            let config = parse(&format!("{SMALL}\n{}", rules.concat())).unwrap();
            let noted = config.warnings.iter().map(ToString::to_string);
            let noted: Vec<_> = noted.filter(|it| it.contains("price_rules")).collect();
            assert_eq!(noted.len(), problems.len(), "{noted:?}");
            for (note, problem) in noted.iter().zip(problems) {
                assert!(note.contains(problem), "{note}");
            }
        }
    }

    #[test]
    fn tariff_fingerprint_depends_only_on_prices() {
        let fingerprint = |text: &str| parse(text).unwrap().live.fingerprint();
        let first = fingerprint(SMALL);
        // This is the fingerprint from a gateway version with four rates. An upgrade must not start a new tariff
        // version.
        let four = "21ed2289c364728c369072a5b703e08d6251a10c985c67e65a34b7f85e98c3fe";
        assert_eq!(first, four);
        for (from, to) in [
            ("output = \"2.00\"", "output = \"2\""),
            ("fixed = \"90.50\"", "fixed = \"91\""),
            ("family = \"M\"", "family = \"N\""),
            ("model = \"m-1\"", "model = \"m-2\""),
            (
                "family = \"M\"",
                "family = \"M\"\noutput_tokens_default = 512\ninput_tokens_priced_max = 7",
            ),
        ] {
            assert_eq!(fingerprint(&changed(from, to)), first, "{to}");
        }
        for [from, to] in rows(
            r#"
            output = "2.00" | output = "2.01"
            cache_write = "0.25" | cache_write = "0.25", cache_write_1h = "0.4"
            id = "m" | id = "m2"
            [admin] | [tariff]\nsell_rate_multiplier = "1.15"\n[admin]
            usdt_mtok | rub_mtok
            [admin] | [tariff]\nsell_rub_multiplier = "1.15"\n[admin]
        "#,
        ) {
            assert_ne!(fingerprint(&changed(from, to)), first, "{to}");
        }
    }
}
