//! Checks the section `[traces]`.

use http::{HeaderName, HeaderValue};
use rust_decimal::{Decimal, prelude::ToPrimitive};
use secrecy::ExposeSecret;

use super::{
    TracesConfig,
    check::{Check, all, web_address},
    raw::RawTraces,
    secret::secret,
};

impl Check<'_> {
    pub(super) fn traces(&mut self, raw: RawTraces) -> Option<TracesConfig> {
        let advice = "give the collector's OTLP URL, like http://127.0.0.1:4318/v1/traces";
        let url = self.required(raw.url, "traces.url", advice);
        let url = url.and_then(|url| self.keep(web_address(&url), "traces.url"));
        let sample = raw.sample.as_deref().unwrap_or("1");
        let calls_per_million = self.keep(per_million(sample), "traces.sample");
        let headers = all(raw
            .headers
            .iter()
            .map(|(name, text)| self.header(name, text)));
        Some(TracesConfig {
            url: url?,
            headers: headers?,
            calls_per_million: calls_per_million?,
        })
    }

    fn header(&mut self, name: &str, text: &str) -> Option<(HeaderName, HeaderValue)> {
        let path = format!("traces.headers.{name}");
        let value = secret(text, self.env);
        let value = self.keep(value, &path).and_then(|value| {
            let value = HeaderValue::from_str(value.expose_secret());
            self.keep(value.map_err(|_| "must be plain ASCII"), &path)
        });
        let name = name
            .parse::<HeaderName>()
            .map_err(|_| "is not a valid header name");
        let (name, mut value) = self.keep(name, &path).zip(value)?;
        value.set_sensitive(true);
        Some((name, value))
    }
}

fn per_million(share: &str) -> Result<u32, &'static str> {
    let share = Decimal::from_str_exact(share).ok();
    let share = share.filter(|share| *share > Decimal::ZERO && *share <= Decimal::ONE);
    let calls = share.map(|share| share * Decimal::from(1_000_000));
    calls
        .filter(Decimal::is_integer)
        .and_then(|calls| calls.to_u32())
        .ok_or("must be a number in quotes, above 0 and at most 1, with at most 6 digits after the point, like \
             \"0.05\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        Config, ConfigErrors,
        testing::{SMALL, parse},
    };

    #[test]
    fn share_of_traced_calls_is_parsed_exactly() {
        for (text, calls) in [
            ("1", 1_000_000),
            ("1.0", 1_000_000),
            ("0.05", 50_000),
            ("0.0000010", 1),
        ] {
            assert_eq!(per_million(text), Ok(calls), "{text}");
        }
        for text in [
            "",
            "0",
            "-0.5",
            "1.000001",
            "0.0000001",
            "5%",
            "79228162514264337593543950335",
        ] {
            assert!(per_million(text).is_err(), "{text}");
        }
    }

    /// Returns `SMALL` with a section `[traces]`.
    fn with_traces(lines: &str) -> Result<Config, ConfigErrors> {
        parse(&format!("[traces]\n{lines}\n{SMALL}"))
    }

    #[test]
    fn traces_are_sent_to_the_configured_url() {
        let config = with_traces(
            "url = \"http://127.0.0.1:4318/v1/traces\"\nsample = \"0.05\"\n\
         headers = { Authorization = \"${VENDOR_KEY}\" }",
        );
        let traces = config.unwrap().traces.unwrap();
        assert_eq!(traces.url, "http://127.0.0.1:4318/v1/traces");
        assert_eq!(traces.calls_per_million, 50_000);
        assert_eq!(traces.headers["authorization"], "sk-vendor-secret");
        let shown = format!("{traces:?}");
        assert!(!shown.contains("sk-vendor-secret"), "{shown}");

        assert!(parse(SMALL).unwrap().traces.is_none());
        let errors = with_traces("sample = \"2\"\nheaders = { \"a b\" = \"sk-literal\" }");
        let errors = errors.unwrap_err().to_string();
        for field in ["traces.url", "traces.sample", "traces.headers.a b"] {
            assert!(errors.contains(field), "{field}: {errors}");
        }
        assert!(!errors.contains("sk-literal"), "{errors}");
    }
}
