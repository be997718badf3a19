//! What `[tariff]` and `model.usdt_mtok` mean: all that a price is computed from but the exchange rate.
//!
//! Prices under conditions and price lists by customer belong here, and into the fingerprint, with a name of their own
//! where they are given: a file without them keeps the tariff version that it has.

use rust_decimal::Decimal;
use sha2::{Digest, Sha256};

use super::{LiveConfig, ModelConfig, check::Check, raw::RawUsdt};

/// `[tariff]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tariff {
    /// Price = base price × exchange rate × this. Above zero.
    pub sell_rate_multiplier: Decimal,
}

/// Base prices: USDT per million tokens, each above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsdtRates {
    /// Ordinary input.
    pub input: Decimal,
    /// Input read from the vendor's cache.
    pub cached_input: Decimal,
    /// Output, reasoning included.
    pub output: Decimal,
    /// Input written to the vendor's cache.
    pub cache_write: Decimal,
    /// The same where it is kept for an hour; `None`: not sold.
    pub cache_write_1h: Option<Decimal>,
}

impl LiveConfig {
    /// A digest of what a tariff version covers: base prices and the multiplier. It stays the same
    /// when models are only reordered, or written with other zeros.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let mut lines: Vec<String> = self
            .models
            .iter()
            .map(ModelConfig::fingerprint_line)
            .collect();
        lines.sort();
        lines.insert(
            0,
            format!(
                "sell_rate_multiplier {}",
                self.tariff.sell_rate_multiplier.normalize()
            ),
        );
        let digest = Sha256::digest(lines.join("\n"));
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl ModelConfig {
    fn fingerprint_line(&self) -> String {
        let UsdtRates {
            input,
            cached_input,
            output,
            cache_write,
            cache_write_1h,
        } = self.usdt_mtok;
        let [input, cached_input, output, cache_write] =
            [input, cached_input, output, cache_write].map(|rate| rate.normalize());
        let mut line = format!(
            "{:?} {input} {cached_input} {output} {cache_write}",
            self.id
        );
        // With its name: a model without it has the line of a version that knew four rates.
        if let Some(rate) = cache_write_1h {
            line += &format!(" cache_write_1h {}", rate.normalize());
        }
        line
    }
}

impl Check<'_> {
    pub(super) fn multiplier(&mut self, given: Option<&str>) -> Option<Decimal> {
        const PATH: &str = "tariff.sell_rate_multiplier";
        if given.is_none() {
            self.warnings.add(
                PATH,
                "is absent: models are sold at cost, the base price × the exchange rate; if that is meant, write \"1\"",
            );
        }
        let multiplier = self.decimal(given.unwrap_or("1"), PATH, 6, 1_000)?;
        if multiplier < Decimal::ONE {
            self.warnings.add(
                PATH,
                "is below 1: models are sold for less than their base prices",
            );
        } else if multiplier > Decimal::TEN {
            self.warnings.add(
                PATH,
                "is above 10: models are sold for more than ten times their base prices",
            );
        }
        Some(multiplier)
    }

    pub(super) fn usdt_rates(&mut self, raw: Option<RawUsdt>, path: &str) -> Option<UsdtRates> {
        let Some(raw) = raw else {
            self.errors.missing(
                path,
                "a model without a full price cannot be called: give input, cached_input, output and cache_write",
            );
            return None;
        };
        let [input, cached_input, output, cache_write] = [
            ("input", raw.input),
            ("cached_input", raw.cached_input),
            ("output", raw.output),
            ("cache_write", raw.cache_write),
        ]
        .map(|(name, given)| {
            let path = format!("{path}.{name}");
            let advice = "a model without a full price cannot be called: give USDT per million tokens, like \"0.25\"";
            let text = self.required(given, &path, advice)?;
            self.decimal(&text, &path, 9, 1_000_000)
        });
        let cache_write_1h = match raw.cache_write_1h {
            None => Some(None),
            Some(text) => {
                let path = format!("{path}.cache_write_1h");
                let rate = self.decimal(&text, &path, 9, 1_000_000);
                if rate
                    .zip(cache_write)
                    .is_some_and(|(long, short)| long < short)
                {
                    let problem = "is below cache_write: what is kept for longer costs more";
                    self.warnings.add(path, problem);
                }
                rate.map(Some)
            }
        };
        if cached_input
            .zip(input)
            .is_some_and(|(cached, input)| cached > input)
        {
            self.warnings.add(
                format!("{path}.cached_input"),
                "is above input: what is read from a cache costs less",
            );
        }
        Some(UsdtRates {
            input: input?,
            cached_input: cached_input?,
            output: output?,
            cache_write: cache_write?,
            cache_write_1h: cache_write_1h?,
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::config::testing::{SMALL, assert_mistakes, changed, parse};

    #[test]
    fn mistakes_of_prices_are_named() {
        assert_mistakes(&[
            (
                "[admin]",
                "[tariff]\nsell_rate_multiplier = \"0\"\n[admin]",
                "tariff.sell_rate_multiplier",
                "above 0",
            ),
            (
                ", cache_write = \"0.25\"",
                "",
                "model[0].usdt_mtok.cache_write",
                "without a full price",
            ),
            (
                "cache_write = \"0.25\"",
                "cache_write = \"0\"",
                "model[0].usdt_mtok.cache_write",
                "above 0",
            ),
            (
                "cache_write = \"0.25\"",
                "cache_write = \"0.25\", cache_write_1h = \"0\"",
                "model[0].usdt_mtok.cache_write_1h",
                "above 0",
            ),
        ]);
    }

    #[test]
    fn the_fingerprint_follows_prices_and_nothing_else() {
        let fingerprint = |text: &str| parse(text).unwrap().live.fingerprint();
        let first = fingerprint(SMALL);
        // Of a version that knew four rates: an upgrade is no new tariff.
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
        for (from, to) in [
            ("output = \"2.00\"", "output = \"2.01\""),
            (
                "cache_write = \"0.25\"",
                "cache_write = \"0.25\", cache_write_1h = \"0.4\"",
            ),
            ("id = \"m\"", "id = \"m2\""),
            (
                "[admin]",
                "[tariff]\nsell_rate_multiplier = \"1.15\"\n[admin]",
            ),
        ] {
            assert_ne!(fingerprint(&changed(from, to)), first, "{to}");
        }
    }
}
