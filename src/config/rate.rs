//! Checks the section `[rate]`.

use bytes::Bytes;
use http::Method;
use rust_decimal::Decimal;

use super::{
    HttpSource, RateConfig, RateSource,
    check::{Check, maybe, web_address},
    raw::{RawRate, RawSource},
    secret::referred,
};
use crate::text::select_json::Selector;

impl Check<'_> {
    pub(super) fn rate(&mut self, raw: RawRate) -> Option<RateConfig> {
        let age_max = self.seconds(raw.max_age_seconds, "rate.max_age_seconds", 600, 1);
        // The default allows two requests within the maximum age, so that one lost answer does not leave models
        // without prices.
        let often = age_max.map_or(60, |age| (age.as_secs() / 2).clamp(1, 60));
        let refresh = self.seconds(raw.refresh_seconds, "rate.refresh_seconds", often, 1);
        if let (Some(age_max), Some(refresh)) = (age_max, refresh)
            && refresh > age_max
        {
            self.errors.add(
                "rate.refresh_seconds",
                "must be less than max_age_seconds, or prices disappear between two requests",
            );
        }
        let step = raw.step_max_percent.as_deref().unwrap_or("20");
        let step_max_percent = self.percent(step, "rate.step_max_percent", 6, 1_000_000);
        if raw.source.is_empty() {
            self.errors.missing(
                "rate.source",
                "add [[rate.source]] with fixed = \"90.50\", or with url and select",
            );
        }
        let sources: Vec<_> = raw
            .source
            .into_iter()
            .enumerate()
            .map(|(index, source)| self.rate_source(source, &format!("rate.source[{index}]")))
            .collect();
        Some(RateConfig {
            age_max: age_max?,
            refresh: refresh?,
            step_max_percent: step_max_percent?,
            sources: sources.into_iter().collect::<Option<_>>()?,
        })
    }

    fn rate_source(&mut self, raw: RawSource, path: &str) -> Option<RateSource> {
        let url = match (raw.fixed, raw.url) {
            (Some(fixed), None) => {
                let others = [
                    ("select", raw.select.is_some()),
                    ("method", raw.method.is_some()),
                    ("body", raw.body.is_some()),
                    ("min", raw.min.is_some()),
                    ("max", raw.max.is_some()),
                ];
                for (name, _) in others.into_iter().filter(|(_, given)| *given) {
                    let problem = "has no effect with fixed: remove it";
                    self.errors.add(format!("{path}.{name}"), problem);
                }
                let fixed = self.rate_decimal(&fixed, &format!("{path}.fixed"));
                return fixed.map(RateSource::Fixed);
            }
            (None, Some(url)) => url,
            (Some(_), Some(_)) => {
                self.errors
                    .add(path, "has fixed and url: keep one of them, and give the other its own [[rate.source]]");
                return None;
            }
            (None, None) => {
                // A field of a wrong shape was removed and already reported, so it is not reported as missing.
                let reported = |name: &str| self.errors.has_reported(&format!("{path}.{name}"));
                if !reported("fixed") && !reported("url") {
                    self.errors
                        .missing(path, "give fixed = \"90.50\", or url and select");
                }
                return None;
            }
        };
        // The URL may be a reference to a secret, because some sources expect their key in the query.
        let url = referred(&url, self.env)
            .unwrap_or(Ok(url))
            .and_then(|url| web_address(&url));
        let url = self.keep(url, &format!("{path}.url"));
        let select = self.required(
            raw.select,
            &format!("{path}.select"),
            "give the location of the number, like /data/price",
        );
        let select =
            select.and_then(|text| self.keep(text.parse::<Selector>(), &format!("{path}.select")));
        let method = match raw.method.as_deref() {
            None => Some(Method::GET),
            Some(text) => self.choice(
                text,
                &format!("{path}.method"),
                [("GET", Method::GET), ("POST", Method::POST)],
            ),
        };
        let body = raw.body.unwrap_or_default();
        if !body.is_empty() && method == Some(Method::GET) {
            self.errors.add(
                format!("{path}.body"),
                "is only sent with method = \"POST\"",
            );
        }
        let min = self.bound(raw.min.as_deref(), &format!("{path}.min"));
        let max = self.bound(raw.max.as_deref(), &format!("{path}.max"));
        if let (Some(Some(min)), Some(Some(max))) = (min, max)
            && min > max
        {
            self.errors.add(
                format!("{path}.min"),
                "is above max: every rate would be refused",
            );
        }
        Some(RateSource::Http(Box::new(HttpSource {
            url: url?,
            method: method?,
            body: Bytes::from(body),
            select: select?,
            min: min?,
            max: max?,
        })))
    }

    fn bound(&mut self, given: Option<&str>, path: &str) -> Option<Option<Decimal>> {
        maybe(given, |text| self.rate_decimal(text, path))
    }

    fn rate_decimal(&mut self, text: &str, path: &str) -> Option<Decimal> {
        self.decimal(text, path, 6, 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use crate::config::testing::{assert_mistakes, changed, parse};

    #[test]
    fn error_about_a_zero_rate_step_does_not_mention_free_prices() {
        let text = changed("[admin]", "[rate]\nstep_max_percent = \"0\"\n[admin]");
        let errors = parse(&text).unwrap_err().to_string();
        assert!(
            errors.ends_with("rate.step_max_percent: must be above 0"),
            "{errors}"
        );
    }

    #[test]
    fn invalid_rate_source_is_refused_by_name() {
        assert_mistakes(&[
            (
                "[admin]",
                "[rate]\nstep_max_percent = \"-1\"\n[admin]",
                "rate.step_max_percent",
                "above 0",
            ),
            (
                "[admin]",
                "[rate]\nrefresh_seconds = 700\n[admin]",
                "rate.refresh_seconds",
                "max_age_seconds",
            ),
            (
                "fixed = \"90.50\"",
                "fixed = \"ninety\"",
                "rate.source[0].fixed",
                "decimal",
            ),
            (
                "fixed = \"90.50\"",
                "fixed = \"90\"\nurl = \"http://h\"",
                "rate.source[0]",
                "one of them",
            ),
            ("fixed = \"90.50\"", "", "rate.source[0]", "fixed"),
            (
                "fixed = \"90.50\"",
                "url = \"http://h\"",
                "rate.source[0].select",
                "missing",
            ),
            (
                "fixed = \"90.50\"",
                "url = \"http://h\"\nselect = \"a\"",
                "rate.source[0].select",
                "begin",
            ),
            (
                "fixed = \"90.50\"",
                "url = \"ftp://h\"\nselect = \"/a\"",
                "rate.source[0].url",
                "http",
            ),
            (
                "fixed = \"90.50\"",
                "url = \"http://h\"\nselect = \"/a\"\nmin = \"9\"\nmax = \"1\"",
                "rate.source[0].min",
                "max",
            ),
        ]);
    }
}
