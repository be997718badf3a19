//! Checks the sections `[[model]]`, except prices and routes.

use std::collections::HashSet;

use tollgate_layers::{
    model::{Dialect, ModelKind},
    price::Currency,
};

use super::{
    ModelConfig,
    check::{Check, TOKENS_MAX},
    prices::field,
    raw::{RawModel, RawPriceRule, RawRates},
    vendor::Vendors,
};

const INPUT_ALONE: &str =
    "is not valid for an embedding model, which has only an input price: remove it";
const DISPLAY_NAME_CHARS_MAX: usize = 60;
/// Maximum length of `description` in characters. Claude Code shows 100 characters of a model's description, and the
/// price, which follows this text, must not be cut off.
const DESCRIPTION_CHARS_MAX: usize = 40;

/// The output limits of a model, which become fields of [`ModelConfig`].
struct OutputLimits {
    max: u64,
    min: u64,
    default: Option<u64>,
    per_second_max: Option<u64>,
    hold_grows: bool,
}

impl Check<'_> {
    pub(super) fn models(
        &mut self,
        raw: Vec<RawModel>,
        vendors: &Vendors,
    ) -> Option<Vec<ModelConfig>> {
        if raw.is_empty() {
            self.errors.missing(
                "model",
                "add at least one [[model]]: without models, the gateway has nothing to sell",
            );
            return None;
        }
        let mut ids = HashSet::new();
        self.items(raw, "model", |check, raw, path| {
            // The id is checked first: mistakes in other fields must not hide a duplicate id.
            if let Some(id) = raw.id.as_ref().filter(|id| !id.is_empty())
                && !ids.insert(id.clone())
            {
                let problem = format!(
                    "{id:?} is already the id of another model: give each model its own id"
                );
                check.errors.add(format!("{path}.id"), problem);
            }
            check.model(raw, path, vendors)
        })
    }

    fn model(&mut self, mut raw: RawModel, path: &str, vendors: &Vendors) -> Option<ModelConfig> {
        let at = |field: &str| format!("{path}.{field}");
        let kind = self.kind(raw.kind.as_deref(), &at("kind"));
        match kind {
            Some(ModelKind::Embedding) => self.input_alone(&mut raw, path, true),
            Some(_) => {}
            None => self.input_alone(&mut raw, path, false),
        }
        let dialect = self.dialect(&raw.dialect(), Dialect::default(), &at);
        let output = self.output_limits(&raw, kind, &at);
        let id = self.required(
            raw.id,
            &at("id"),
            "give the model an id, which callers write into the field `model`",
        );
        let advice = "give the model's family, like \"GPT-5\", which the catalog shows";
        let family = self.required(raw.family, &at("family"), advice);
        let name = raw.display_name;
        let display_name = self.line(name, &at("display_name"), DISPLAY_NAME_CHARS_MAX);
        let description = self.line(raw.description, &at("description"), DESCRIPTION_CHARS_MAX);
        let base = self.base_rates(raw.usdt_mtok.as_ref(), raw.rub_mtok.as_ref(), &at(""));
        let price_rules = self.price_rules(raw.price_rules, &at("price_rules"), base.as_ref());
        let route_costs = self.route_costs(&mut raw.routes, &at("routes"), id.as_deref());
        let window = raw.input_tokens_max;
        let window = self.optional(window, &at("input_tokens_max"), 1..=TOKENS_MAX);
        let priced_max = self.optional(
            raw.input_tokens_priced_max,
            &at("input_tokens_priced_max"),
            1..=window.unwrap_or(TOKENS_MAX),
        );
        let routes = self.routes(
            raw.routes,
            &at("routes"),
            id.as_deref(),
            (kind.unwrap_or_default(), dialect),
            vendors,
        );
        Some(ModelConfig {
            id: id?,
            family: family?,
            kind: kind?,
            display_name,
            description,
            base: base?,
            price_rules: price_rules?,
            route_costs: route_costs?,
            output_tokens_max: output.max,
            output_tokens_min: output.min,
            output_tokens_default: output.default,
            output_tokens_per_second_max: output.per_second_max,
            hold_grows: output.hold_grows,
            input_tokens_max: window,
            input_tokens_priced_max: priced_max,
            sticky: raw.sticky.unwrap_or(false),
            routes: routes?,
        })
    }

    /// Checks the output limits of a model. If the model's kind is invalid, mistakes that depend on the kind are not
    /// reported.
    fn output_limits(
        &mut self,
        raw: &RawModel,
        kind: Option<ModelKind>,
        at: &dyn Fn(&str) -> String,
    ) -> OutputLimits {
        let has_output = kind.is_some_and(|kind| kind != ModelKind::Embedding);
        let least = u64::from(has_output);
        if raw.output_tokens_max.is_none() && has_output {
            self.errors.missing(
                &at("output_tokens_max"),
                "give the maximum number of output tokens of the model",
            );
        }
        let usual = match kind {
            Some(ModelKind::Embedding) => 0,
            _ => TOKENS_MAX,
        };
        let (max, path) = (raw.output_tokens_max, at("output_tokens_max"));
        let max = self.optional(max, &path, least..=TOKENS_MAX);
        let max = max.unwrap_or(usual).max(least);
        let range = least..=max;
        let min = raw.output_tokens_min;
        let min = self.whole(min, &at("output_tokens_min"), 256_u64.min(max), range);
        let default = raw.output_tokens_default;
        let default = self.optional(default, &at("output_tokens_default"), min..=max);
        let (speed, path) = (
            raw.output_tokens_per_second_max,
            "output_tokens_per_second_max",
        );
        let per_second_max = self.optional(speed, &at(path), 1..=TOKENS_MAX);
        let holds = [("whole", false), ("growing", true)];
        let hold_grows = self.choice_or(raw.hold.as_deref(), false, &at("hold"), holds);
        if hold_grows && speed.is_none() {
            self.errors.add(
                at("hold"),
                "\"growing\" needs output_tokens_per_second_max: give the maximum output speed of the model at any of \
                 its vendors",
            );
        }
        OutputLimits {
            max,
            min,
            default,
            per_second_max,
            hold_grows,
        }
    }

    fn kind(&mut self, given: Option<&str>, path: &str) -> Option<ModelKind> {
        if self.errors.has_reported(path) {
            return None;
        }
        let kinds = [
            ("chat", ModelKind::Chat),
            ("embedding", ModelKind::Embedding),
        ];
        given.map_or(Some(ModelKind::Chat), |text| self.choice(text, path, kinds))
    }

    /// Records a mistake for each output setting if the model is known to be an embedding model (`is_known`). Copies
    /// the input price to all other rate classes, because no rate class may be free.
    fn input_alone(&mut self, raw: &mut RawModel, path: &str, is_known: bool) {
        let at = |field: &str| format!("{path}.{field}");
        for (name, given) in [
            ("output_tokens_max", &mut raw.output_tokens_max),
            ("output_tokens_min", &mut raw.output_tokens_min),
            ("output_tokens_default", &mut raw.output_tokens_default),
            (
                "output_tokens_per_second_max",
                &mut raw.output_tokens_per_second_max,
            ),
        ] {
            if is_known && given.take().is_some() {
                self.errors.add(format!("{path}.{name}"), INPUT_ALONE);
            }
        }
        let tables = [&mut raw.usdt_mtok, &mut raw.rub_mtok];
        self.rates_of_input(tables, &at(""), is_known);
        self.rules_of_input(&mut raw.price_rules, &at("price_rules"), is_known);
        for (index, route) in raw.routes.iter_mut().enumerate() {
            let at = |field: &str| format!("{path}.routes[{index}].cost_{field}");
            let tables = [&mut route.cost_usdt_mtok, &mut route.cost_rub_mtok];
            self.rates_of_input(tables, &at(""), is_known);
            self.rules_of_input(&mut route.cost_rules, &at("rules"), is_known);
        }
    }

    /// Checks the price rules of an embedding model in the same way as `input_alone` checks the model's base prices.
    pub(super) fn rules_of_input(
        &mut self,
        rules: &mut [RawPriceRule],
        path: &str,
        is_known: bool,
    ) {
        for (index, rule) in rules.iter_mut().enumerate() {
            let tables = [&mut rule.usdt_mtok, &mut rule.rub_mtok];
            self.rates_of_input(tables, &format!("{path}[{index}]."), is_known);
        }
    }

    /// Checks the price tables of an embedding model, one per currency. `prefix` is the path of the table that contains
    /// them.
    pub(super) fn rates_of_input(
        &mut self,
        tables: [&mut Option<RawRates>; 2],
        prefix: &str,
        is_known: bool,
    ) {
        for (currency, rates) in Currency::ALL.into_iter().zip(tables) {
            if let Some(rates) = rates {
                self.rate_of_input(rates, &format!("{prefix}{}", field(currency)), is_known);
            }
        }
    }

    fn rate_of_input(&mut self, rates: &mut RawRates, path: &str, is_known: bool) {
        for (name, given) in [
            ("cached_input", &mut rates.cached_input),
            ("output", &mut rates.output),
            ("cache_write", &mut rates.cache_write),
        ] {
            if is_known && given.take().is_some() {
                self.errors.add(format!("{path}.{name}"), INPUT_ALONE);
            }
            // A mistake in the input price is reported once, not once per class.
            let input = || rates.input.clone().unwrap_or_else(|| "1".to_owned());
            given.get_or_insert_with(input);
        }
    }

    /// Checks an optional short text that people read. Returns `None` if it is absent, and after a mistake.
    pub(super) fn line(
        &mut self,
        given: Option<String>,
        path: &str,
        chars_max: usize,
    ) -> Option<String> {
        let fits = given.as_ref().is_none_or(|text| {
            (1..=chars_max).contains(&text.chars().count())
                && text.trim() == text
                && !text.contains(char::is_control)
        });
        if !fits {
            self.errors.add(
                path,
                format!(
                    "must be 1 to {chars_max} characters in one line, without spaces at the beginning or the end"
                ),
            );
        }
        given.filter(|_| fits)
    }
}

#[cfg(test)]
mod tests {
    use tollgate_layers::model::ModelKind;

    use crate::config::testing::{SMALL, assert_mistakes, parse};

    #[test]
    fn error_about_an_invalid_model_setting_names_the_setting() {
        assert_mistakes(
            r#"
            id = "m" | id = "" | model[0].id | missing
            family = "M" |  | model[0].family | missing
            family = "M" | family = "M"\ndisplay_name = " " | model[0].display_name | 1 to 60 characters in one line
            family = "M" | family = "M"\ndescription = "two\u000Alines" | model[0].description | 1 to 40 characters in one line
            family = "M" | family = "M"\ndescription = "ровно сорок один знак, а можно лишь сорок" | model[0].description | 1 to 40 characters in one line
            output_tokens_max = 128000 |  | model[0].output_tokens_max | missing
            family = "M" | family = "M"\noutput_tokens_min = 200000 | model[0].output_tokens_min | 128000
            family = "M" | family = "M"\noutput_tokens_default = 128001 | model[0].output_tokens_default | 256 to 128000
            family = "M" | family = "M"\noutput_tokens_min = 500\noutput_tokens_default = 499 | model[0].output_tokens_default | 500 to 128000
            family = "M" | family = "M"\nhold = "growing" | model[0].hold | needs output_tokens_per_second_max
            family = "M" | family = "M"\nhold = "half" | model[0].hold | must be "whole" or "growing"
            family = "M" | family = "M"\ninput_tokens_max = 1000\ninput_tokens_priced_max = 1001 | model[0].input_tokens_priced_max | 1 to 1000
        "#,
        );
    }

    #[test]
    fn embedding_model_has_only_an_input_price() {
        let output = "output_tokens_max = 128000";
        let small = SMALL.replace(output, "kind = \"embedding\"");
        let rates = |rates: &str| {
            let begin = small.find("usdt_mtok").unwrap();
            let end = begin + small[begin..].find('}').unwrap() + 1;
            format!(
                "{}usdt_mtok = {{ {rates} }}{}",
                &small[..begin],
                &small[end..]
            )
        };
        let config = parse(&rates("input = \"0.02\"")).unwrap();
        let model = &config.live.models[0];
        assert_eq!(model.kind, ModelKind::Embedding);
        assert_eq!((model.output_tokens_max, model.output_tokens_min), (0, 0));
        let endpoint = model.routes[0].vendor.endpoint.path();
        assert!(endpoint.ends_with("/embeddings"), "{endpoint}");
        // A vendor with several formats accepts embeddings if one of the formats is chat.
        let several = rates("input = \"0.02\"")
            .replace("format = \"chat\"", "formats = [\"responses\", \"chat\"]");
        let config = parse(&several).unwrap();
        let vendor = &config.live.models[0].routes[0].vendor;
        assert_eq!(vendor.endpoint.path(), "/v1/embeddings");

        for (text, paths) in [
            (
                rates("output = \"1\""),
                vec!["model[0].usdt_mtok.output", "model[0].usdt_mtok.input"],
            ),
            (
                rates("input = \"1\"").replace("kind =", "output_tokens_max = 5\nkind ="),
                vec!["model[0].output_tokens_max"],
            ),
            (
                rates("input = \"1\"").replace("\"chat\"", "\"messages\""),
                vec!["model[0].routes[0].vendor"],
            ),
        ] {
            let errors = parse(&text).unwrap_err();
            for path in paths {
                assert!(
                    errors.iter().any(|error| error.path == path),
                    "{path}: {errors}"
                );
            }
        }
    }

    #[test]
    fn unknown_kind_of_a_model_is_reported_once() {
        let output = "output_tokens_max = 128000";
        for kind in ["kind = \"embeddings\"", "kind = 5"] {
            for (rates, more) in [
                ("{ input = \"0.02\" }", ""),
                (
                    "{ input = \"0.02\", cached_input = \"0.01\", output = \"1\", cache_write = \"1\" }",
                    "output_tokens_max = 9",
                ),
            ] {
                let text = SMALL.replace(output, &format!("{kind}\n{more}"));
                let begin = text.find("usdt_mtok = {").unwrap();
                let end = begin + text[begin..].find('}').unwrap() + 1;
                let text = format!("{}usdt_mtok = {rates}{}", &text[..begin], &text[end..]);
                let errors = parse(&text).unwrap_err();
                let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
                assert_eq!(paths, ["model[0].kind"], "{errors}");
            }
        }
    }

    #[test]
    fn duplicate_models_and_vendors_are_refused() {
        let twice = format!("{SMALL}\n{}", &SMALL[SMALL.find("[[vendor]]").unwrap()..]);
        let errors = parse(&twice).unwrap_err();
        let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
        assert_eq!(paths, ["vendor[1].name", "model[1].id"], "{errors}");
        // Other mistakes in both models do not hide the duplicate id.
        let errors = parse(&twice.replace("family = \"M\"", "")).unwrap_err();
        for path in ["model[0].family", "model[1].family", "model[1].id"] {
            assert!(errors.iter().any(|error| error.path == path), "{errors}");
        }
    }
}
