//! What `[[model]]` means, but for its prices and its routes.

use std::collections::HashSet;

use tollgate_layers::model::Dialect;

use super::{
    ModelConfig,
    check::{Check, TOKENS_MAX},
    raw::RawModel,
    vendor::Vendors,
};

const DISPLAY_NAME_CHARS_MAX: usize = 60;
/// Claude Code shows 100 of what a model says of itself: the price stands behind this, and is not to be cut.
const DESCRIPTION_CHARS_MAX: usize = 40;

impl Check<'_> {
    pub(super) fn models(
        &mut self,
        raw: Vec<RawModel>,
        vendors: &Vendors,
    ) -> Option<Vec<ModelConfig>> {
        if raw.is_empty() {
            self.errors
                .missing("model", "add a [[model]], or there is nothing to sell");
            return None;
        }
        let mut ids = HashSet::new();
        let models: Vec<_> = raw
            .into_iter()
            .enumerate()
            .map(|(index, raw)| {
                let path = format!("model[{index}]");
                // Before the rest, whose mistakes must not hide this one.
                if let Some(id) = raw.id.as_ref().filter(|id| !id.is_empty())
                    && !ids.insert(id.clone())
                {
                    self.errors.add(
                        format!("{path}.id"),
                        format!("{id:?} is there already: one model each id"),
                    );
                }
                self.model(raw, &path, vendors)
            })
            .collect();
        models.into_iter().collect()
    }

    fn model(&mut self, raw: RawModel, path: &str, vendors: &Vendors) -> Option<ModelConfig> {
        let at = |field: &str| format!("{path}.{field}");
        let dialect = self.dialect(&raw.dialect(), Dialect::default(), &at);
        let id = self.required(raw.id, &at("id"), "callers name it in the field `model`");
        let family = self.required(
            raw.family,
            &at("family"),
            "the catalog shows it, like \"GPT-5\"",
        );
        let display_name = self.line(
            raw.display_name,
            &at("display_name"),
            DISPLAY_NAME_CHARS_MAX,
        );
        let description = self.line(raw.description, &at("description"), DESCRIPTION_CHARS_MAX);
        let usdt_mtok = self.usdt_rates(raw.usdt_mtok, &at("usdt_mtok"));
        let price_rules = self.price_rules(raw.price_rules, &at("price_rules"), usdt_mtok.as_ref());
        let route_costs = self.route_costs(
            &raw.routes,
            &at("routes"),
            id.as_deref(),
            usdt_mtok.as_ref(),
        );
        if raw.output_tokens_max.is_none() {
            self.errors.missing(
                &at("output_tokens_max"),
                "give the most output tokens that the model can write",
            );
        }
        let max = self.whole(
            raw.output_tokens_max,
            &at("output_tokens_max"),
            TOKENS_MAX,
            1..=TOKENS_MAX,
        );
        let min_range = 1..=max.unwrap_or(TOKENS_MAX);
        let min = self.whole(
            raw.output_tokens_min,
            &at("output_tokens_min"),
            256_u64.min(*min_range.end()),
            min_range,
        );
        let default = self.optional(
            raw.output_tokens_default,
            &at("output_tokens_default"),
            min.unwrap_or(1)..=max.unwrap_or(TOKENS_MAX),
        );
        let input_tokens_max = self.optional(
            raw.input_tokens_max,
            &at("input_tokens_max"),
            1..=TOKENS_MAX,
        );
        let window = input_tokens_max.flatten().unwrap_or(TOKENS_MAX);
        let input_tokens_priced_max = self.optional(
            raw.input_tokens_priced_max,
            &at("input_tokens_priced_max"),
            1..=window,
        );
        let usual = dialect.unwrap_or_default();
        let routes = self.routes(raw.routes, &at("routes"), id.as_deref(), usual, vendors);
        Some(ModelConfig {
            id: id?,
            family: family?,
            display_name: display_name?,
            description: description?,
            usdt_mtok: usdt_mtok?,
            price_rules: price_rules?,
            route_costs: route_costs?,
            output_tokens_max: max?,
            output_tokens_min: min?,
            output_tokens_default: default?,
            input_tokens_max: input_tokens_max?,
            input_tokens_priced_max: input_tokens_priced_max?,
            sticky: raw.sticky.unwrap_or(false),
            routes: dialect.and(routes)?,
        })
    }

    /// A short text for people, if there is one.
    fn line(
        &mut self,
        given: Option<String>,
        path: &str,
        chars_max: usize,
    ) -> Option<Option<String>> {
        let fits = given.as_ref().is_none_or(|text| {
            (1..=chars_max).contains(&text.chars().count())
                && text.trim() == text
                && !text.contains(char::is_control)
        });
        if !fits {
            self.errors.add(
                path,
                format!(
                    "must be 1 to {chars_max} characters in one line, without blanks around them"
                ),
            );
        }
        fits.then_some(given)
    }
}

#[cfg(test)]
mod tests {
    use crate::config::testing::{SMALL, assert_mistakes, parse};

    #[test]
    fn mistakes_of_models_are_named() {
        assert_mistakes(&[
            ("id = \"m\"", "id = \"\"", "model[0].id", "missing"),
            ("family = \"M\"", "", "model[0].family", "missing"),
            (
                "family = \"M\"",
                "family = \"M\"\ndisplay_name = \" \"",
                "model[0].display_name",
                "1 to 60 characters in one line",
            ),
            (
                "family = \"M\"",
                "family = \"M\"\ndescription = \"two\\nlines\"",
                "model[0].description",
                "1 to 40 characters in one line",
            ),
            (
                "family = \"M\"",
                "family = \"M\"\ndescription = \"ровно сорок один знак, а можно лишь сорок\"",
                "model[0].description",
                "1 to 40 characters in one line",
            ),
            (
                "output_tokens_max = 128000",
                "",
                "model[0].output_tokens_max",
                "missing",
            ),
            (
                "family = \"M\"",
                "family = \"M\"\noutput_tokens_min = 200000",
                "model[0].output_tokens_min",
                "128000",
            ),
            (
                "family = \"M\"",
                "family = \"M\"\noutput_tokens_default = 128001",
                "model[0].output_tokens_default",
                "256 to 128000",
            ),
            (
                "family = \"M\"",
                "family = \"M\"\noutput_tokens_min = 500\noutput_tokens_default = 499",
                "model[0].output_tokens_default",
                "500 to 128000",
            ),
            (
                "family = \"M\"",
                "family = \"M\"\ninput_tokens_max = 1000\ninput_tokens_priced_max = 1001",
                "model[0].input_tokens_priced_max",
                "1 to 1000",
            ),
        ]);
    }

    #[test]
    fn duplicate_models_and_vendors_are_refused() {
        let twice = format!("{SMALL}\n{}", &SMALL[SMALL.find("[[vendor]]").unwrap()..]);
        let errors = parse(&twice).unwrap_err();
        let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
        assert_eq!(paths, ["vendor[1].name", "model[1].id"], "{errors}");
        // Other mistakes in both do not hide it.
        let errors = parse(&twice.replace("family = \"M\"", "")).unwrap_err();
        for path in ["model[0].family", "model[1].family", "model[1].id"] {
            assert!(errors.iter().any(|error| error.path == path), "{errors}");
        }
    }
}
