//! Checks the section `[rate]`.

use bytes::Bytes;
use http::Method;
use rust_decimal::Decimal;

use super::{
    HttpSource, RateConfig, RateSource,
    check::{Check, web_address},
    raw::{RawRate, RawSource},
    secret::referred,
};
use crate::text::select_json::Selector;

impl Check<'_> {
    pub(super) fn rate(&mut self, raw: &RawRate) -> Option<RateConfig> {
        let age_max = self.seconds(raw.max_age_seconds, "rate.max_age_seconds", 600, 1);
        // With the default interval, the rate is requested twice within its maximum age. Models therefore keep their
        // prices if one response is lost.
        let often = (age_max.as_secs() / 2).clamp(1, 60);
        let refresh = self.seconds(raw.refresh_seconds, "rate.refresh_seconds", often, 1);
        if refresh > age_max {
            self.errors.add(
                "rate.refresh_seconds",
                "must be at most max_age_seconds: otherwise the rate expires, and models lose their prices, before the \
                 next request",
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
        let sources = self.items(&raw.source, "rate.source", Self::rate_source);
        Some(RateConfig {
            age_max,
            refresh,
            step_max_percent: step_max_percent?,
            sources: sources?,
        })
    }

    fn rate_source(&mut self, raw: &RawSource, path: &str) -> Option<RateSource> {
        match (&raw.fixed, &raw.url) {
            (Some(fixed), None) => self.fixed_rate(fixed, raw, path),
            (None, Some(url)) => self.http_source(url, raw, path),
            (Some(_), Some(_)) => {
                self.refuse(path, "has both fixed and url: remove one of the two, or move it to its own [[rate.source]]")
            }
            (None, None) => {
                // A field of a wrong type was removed, and its mistake was reported. The field must not be reported as
                // missing, too.
                let reported = |name: &str| self.errors.has_reported(&format!("{path}.{name}"));
                if !reported("fixed") && !reported("url") {
                    let advice = "give fixed = \"90.50\", or url and select";
                    self.errors.missing(path, advice);
                }
                None
            }
        }
    }

    fn fixed_rate(&mut self, fixed: &str, raw: &RawSource, path: &str) -> Option<RateSource> {
        let others = [
            ("select", &raw.select),
            ("method", &raw.method),
            ("body", &raw.body),
            ("min", &raw.min),
            ("max", &raw.max),
        ];
        for (name, _) in others.into_iter().filter(|(_, given)| given.is_some()) {
            let problem = "has no effect with fixed: remove it";
            self.errors.add(format!("{path}.{name}"), problem);
        }
        let fixed = self.rate_decimal(fixed, &format!("{path}.fixed"));
        fixed.map(RateSource::Fixed)
    }

    fn http_source(&mut self, url: &str, raw: &RawSource, path: &str) -> Option<RateSource> {
        let at = |field: &str| format!("{path}.{field}");
        // The URL may be a reference to a secret, because some sources expect their key in the query.
        let url = referred(url, self.env).unwrap_or_else(|| Ok(url.to_owned()));
        let url = self.keep(url.and_then(|url| web_address(&url)), &at("url"));
        let advice = "give the path of the exchange rate in the response, like /data/price";
        let select = self.required(raw.select.clone(), &at("select"), advice);
        let select = select.and_then(|text| self.keep(text.parse::<Selector>(), &at("select")));
        let methods = [("GET", Method::GET), ("POST", Method::POST)];
        let method = raw.method.as_deref();
        let method = self.choice_or(method, Method::GET, &at("method"), methods);
        let body = raw.body.clone().unwrap_or_default();
        if !body.is_empty() && method == Method::GET && !self.errors.has_reported(&at("method")) {
            self.errors.add(
                at("body"),
                "has no effect without method = \"POST\": set the method, or remove the body",
            );
        }
        let min = self.bound(raw.min.as_deref(), &at("min"));
        let max = self.bound(raw.max.as_deref(), &at("max"));
        if min.zip(max).is_some_and(|(min, max)| min > max) {
            self.errors.add(
                at("min"),
                "is above max, so every exchange rate would be rejected: lower min or raise max",
            );
        }
        Some(RateSource::Http(Box::new(HttpSource {
            url: url?,
            method,
            body: Bytes::from(body),
            select: select?,
            min,
            max,
        })))
    }

    fn bound(&mut self, given: Option<&str>, path: &str) -> Option<Decimal> {
        given.and_then(|text| self.rate_decimal(text, path))
    }

    fn rate_decimal(&mut self, text: &str, path: &str) -> Option<Decimal> {
        self.decimal(text, path, 6, 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use crate::config::testing::{assert_mistakes, changed, parse};

    #[test]
    fn error_about_a_zero_maximum_step_of_the_exchange_rate_does_not_mention_free_prices() {
        let text = changed("[admin]", "[rate]\nstep_max_percent = \"0\"\n[admin]");
        let errors = parse(&text).unwrap_err().to_string();
        assert!(
            errors.ends_with("rate.step_max_percent: must be above 0"),
            "{errors}"
        );
    }

    #[test]
    fn error_about_an_invalid_rate_source_names_the_setting() {
        assert_mistakes(
            r#"
             | [rate]\nstep_max_percent = "-1" | rate.step_max_percent | above 0
             | [rate]\nrefresh_seconds = 700 | rate.refresh_seconds | max_age_seconds
            fixed = "90.50" | fixed = "ninety" | rate.source[0].fixed | decimal
            fixed = "90.50" | fixed = "90"\nurl = "http://h" | rate.source[0] | one of the two
            fixed = "90.50" |  | rate.source[0] | fixed
            fixed = "90.50" | url = "http://h" | rate.source[0].select | missing
            fixed = "90.50" | url = "http://h"\nselect = "a" | rate.source[0].select | begin
            fixed = "90.50" | url = "ftp://h"\nselect = "/a" | rate.source[0].url | http
            fixed = "90.50" | url = "http://h"\nselect = "/a"\nmin = "9"\nmax = "1" | rate.source[0].min | max
        "#,
        );
    }
}
