//! Pages that change the configuration file: a vendor's page, a model's page, and the preview of a change.

use std::collections::BTreeMap;

use askama::Template;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value};
use tollgate_layers::price::Class;

use super::{
    Answer, Visit,
    api::{Failed, Refused, separate_faults},
    call::class_in_words,
    changes::words,
    form::Form,
    pages::{Frame, status_of, unknown, written},
    see,
    texts::english,
    views::{Configuration, Login, Preset, PresetValue, Vendor},
};
use crate::{
    admin::Refusal,
    config::described::{DescribedModel, DescribedVendor},
    text::{
        difference::Hunk,
        percent::{decoded, encoded},
    },
};

const API: &str = "/admin/v1/configuration";

#[derive(Deserialize)]
struct Change {
    hash: String,
    written: bool,
    applied: bool,
    writable: bool,
    problem: Option<String>,
    difference: Vec<Hunk>,
    notes: Vec<String>,
    key_file: Option<String>,
    key_field: Option<String>,
}

#[derive(Deserialize)]
struct Tested {
    calls: Vec<TestCall>,
}

#[derive(Deserialize)]
struct TestCall {
    model: String,
    call: String,
    result: String,
    ms: u64,
    #[serde(default)]
    answer: String,
    cost_usdt: Option<String>,
    #[serde(default)]
    problem: String,
    #[serde(default)]
    advice: String,
}

#[derive(Template)]
#[template(path = "vendor.html")]
struct VendorHtml<'a> {
    page: Frame<'a>,
    hash: String,
    settings: DescribedVendor,
    /// The state of the vendor; `None` if no model in force uses the vendor.
    vendor: Option<Vendor>,
    models: Vec<DescribedModel>,
    form: &'a Form,
    tested: Vec<TestCall>,
}

#[derive(Template)]
#[template(path = "model.html")]
struct ModelHtml<'a> {
    page: Frame<'a>,
    hash: String,
    model: DescribedModel,
    routes: Vec<ModelRoute>,
    currency: &'static str,
}

struct ModelRoute {
    vendor: String,
    model: String,
    state: String,
}

impl ModelHtml<'_> {
    /// For each price, returns the field, the label and the value. The basic rate classes are first.
    fn prices<'p>(&self, prices: &'p BTreeMap<String, String>) -> Vec<[&'p str; 3]> {
        let rows = prices.iter();
        let mut rows: Vec<_> = rows
            .map(|(class, price)| [&**class, label(class), price])
            .collect();
        let place = |class: &str| FIRST.iter().position(|first| *first == class);
        rows.sort_by_key(|[class, ..]| place(class).unwrap_or(FIRST.len()));
        rows
    }
}

/// The rate classes that each chat model has, in the order of the prices page.
const FIRST: [&str; 4] = ["input", "cached_input", "output", "cache_write"];

fn label(class: &str) -> &'static str {
    let known = Class::ALL.iter().find(|known| known.to_string() == class);
    match class {
        "input" => english("Input"),
        "cached_input" => english("Cached input"),
        "output" => english("Output"),
        "cache_write" => english("Cache write"),
        _ => known.map_or("", |known| class_in_words(*known)),
    }
}

#[derive(Template)]
#[template(path = "configuration.html")]
struct ConfigurationHtml<'a> {
    page: Frame<'a>,
    change: Change,
    /// The fields of the form that requested the change, so that they can be sent again.
    fields: Vec<(&'a str, &'a str)>,
    back: String,
}

impl ConfigurationHtml<'_> {
    /// Returns whether the key to enter is a service account's JSON, which has several lines.
    fn key_is_json(&self) -> bool {
        self.change.key_field.as_deref() == Some("key_file")
    }

    /// Returns the lines to copy into the configuration file.
    fn added(&self) -> String {
        let hunks = self.change.difference.iter();
        let lines = hunks
            .flat_map(|hunk| &hunk.added)
            .map(|line| format!("{line}\n"));
        lines.collect()
    }
}

#[derive(Template)]
#[template(path = "new_vendor.html")]
struct NewVendorHtml<'a> {
    page: Frame<'a>,
    hash: String,
    form: &'a Form,
    preset: &'a Preset,
    login: &'a Login,
}

impl NewVendorHtml<'_> {
    /// Returns the text that was typed for a value of the preset.
    fn typed(&self, value: &PresetValue) -> &str {
        self.form.get(&format!("value_{}", value.name))
    }

    /// Returns a text with its first letter in upper case.
    fn begun(&self, text: &str) -> String {
        let mut letters = text.chars();
        let first = letters.next().into_iter().flat_map(char::to_uppercase);
        first.chain(letters).collect()
    }
}

impl Visit {
    pub(super) async fn configuration(&self) -> Result<Result<Configuration, Refused>, Refusal> {
        self.api.get(API).await
    }

    /// Shows a vendor's page. `tested` has the results of test calls that were just made.
    pub(super) async fn vendor(
        &self,
        segment: &str,
        problem: Option<&Refused>,
        tested: Option<Value>,
    ) -> Result<Answer, Failed> {
        let Configuration {
            hash, described, ..
        } = self.configuration().await??;
        let name = decoded(segment).unwrap_or_default();
        let settings = described.vendors.into_iter().find(|it| it.name == name);
        let Some(settings) = settings else {
            return Err(unknown().into());
        };
        let vendors: Vec<Vendor> = self.api.list("/admin/v1/vendors").await??;
        let is_here = |it: &DescribedModel| it.routes.iter().any(|route| route.vendor == name);
        let tested = tested.map(serde_json::from_value::<Tested>).transpose();
        let tested = tested.map_err(Refusal::fault)?;
        let html = VendorHtml {
            page: self.frame(
                self.fill(english("Vendor {0}"), &[&name]),
                "Vendors",
                problem,
            ),
            hash,
            vendor: vendors.into_iter().find(|it| it.name == name),
            models: described.models.into_iter().filter(is_here).collect(),
            form: &self.form,
            tested: tested.map_or_else(Vec::new, |tested| tested.calls),
            settings,
        };
        Ok(written(status_of(problem), &html))
    }

    /// Shows the form for a new vendor. It has the fields that the chosen preset and login need, filled with what was
    /// typed before.
    pub(super) async fn new_vendor(&self, problem: Option<&Refused>) -> Result<Answer, Failed> {
        let configuration = self.configuration().await??;
        let (preset, login) = (self.form.get("preset"), self.form.get("login"));
        let preset = configuration.presets.iter().find(|it| it.name == preset);
        let login = preset.and_then(|it| it.logins.iter().find(|it| it.word() == login));
        let Some((preset, login)) = preset.zip(login) else {
            return Err(unknown().into());
        };
        let title = self.fill(english("New vendor: {0}"), &[&preset.title]);
        let mut page = self.frame(title, "Vendors", problem);
        page.kept_query = self.form.query(&["preset", "login"]) + "&";
        let html = NewVendorHtml {
            page,
            hash: configuration.hash,
            form: &self.form,
            preset,
            login,
        };
        Ok(written(status_of(problem), &html))
    }

    pub(super) async fn model(&self, segment: &str) -> Result<Answer, Failed> {
        let Configuration {
            hash, described, ..
        } = self.configuration().await??;
        let id = decoded(segment).unwrap_or_default();
        let Some(model) = described.models.into_iter().find(|it| it.id == id) else {
            return Err(unknown().into());
        };
        let vendors = self.api.list("/admin/v1/vendors").await?;
        let vendors: Vec<Vendor> = vendors.unwrap_or_default();
        let routes = model.routes.iter().map(|route| {
            let vendor = vendors.iter().find(|it| it.name == route.vendor);
            let mut states = vendor.into_iter().flat_map(|it| &it.routes);
            let state = states.find(|it| it.model == route.model);
            ModelRoute {
                vendor: route.vendor.clone(),
                model: route.model.clone(),
                state: state.map_or_else(String::new, |it| it.state.clone()),
            }
        });
        let currency = match model.currency.as_deref() {
            Some("rub_mtok") => {
                english("Rubles per million tokens, before the multiplier is applied")
            }
            _ => english(
                "USDT per million tokens, before the exchange rate and the multiplier are applied",
            ),
        };
        let html = ModelHtml {
            page: self.frame(
                self.fill(english("Model {0}"), &[&id]),
                "Models and prices",
                None,
            ),
            routes: routes.collect(),
            hash,
            model,
            currency,
        };
        Ok(written(StatusCode::OK, &html))
    }

    /// Shows a preview of a posted change, or writes the change to the file.
    pub(super) async fn configure(&self) -> Result<Answer, Refusal> {
        let is_applied = self.form.get("step") == "apply";
        let body = self.requested(is_applied);
        let path = format!("{API}/changes");
        let change = self
            .api
            .change::<Change>(Method::POST, &path, Some(&body))
            .await?;
        let change = match change {
            Ok(change) if change.written => {
                let done = match change.applied {
                    true => "configured",
                    false => "configured-later",
                };
                return Ok(see(&format!("{}?done={done}", self.changed_page())));
            }
            Ok(change) => change,
            Err(refused) if self.form.get("change") == "add_vendor" => {
                let form = separate_faults(self.new_vendor(Some(&refused)).await)?;
                return Ok(form.unwrap_or_else(|_| self.refused(english("Not done"), &refused)));
            }
            Err(refused) => return Ok(self.refused(english("Not done"), &refused)),
        };
        let problem = change.problem.clone().map(|text| Refused {
            status: StatusCode::CONFLICT,
            text,
        });
        let is_resent =
            |(name, _): &(&str, &str)| !["csrf", "step", "hash", "key_value"].contains(name);
        let html = ConfigurationHtml {
            page: self.frame(english("Configuration change"), "", problem.as_ref()),
            fields: self.form.pairs().filter(is_resent).collect(),
            back: match self.form.get("model") {
                "" if self.form.get("change") == "restore" => "/console/changes".to_owned(),
                "" => "/console/vendors".to_owned(),
                model => format!("/console/models/{}", encoded(model)),
            },
            change,
        };
        Ok(written(status_of(problem.as_ref()), &html))
    }

    /// Returns the change that the posted form requests, as the JSON that the API accepts.
    fn requested(&self, is_applied: bool) -> Value {
        let (mut body, mut prices, mut values) = (Map::new(), Map::new(), Map::new());
        for (name, _) in self.form.pairs() {
            let text = self.form.get(name);
            match (name, text) {
                ("csrf" | "step", _) => {}
                (_, "") => {}
                ("models", models) => drop(body.insert(name.into(), words(models).into())),
                ("key_in_file", _) => drop(body.insert(name.into(), true.into())),
                (name, text) => drop(match name.split_once('_') {
                    Some(("price", class)) => {
                        prices.insert(class.into(), self.form.rubles(name).into())
                    }
                    Some(("value", value)) => values.insert(value.into(), text.into()),
                    _ => body.insert(name.into(), text.into()),
                }),
            }
        }
        for (name, texts) in [("prices", prices), ("values", values)] {
            if !texts.is_empty() {
                body.insert(name.into(), texts.into());
            }
        }
        body.insert("preview".into(), (!is_applied).into());
        body.into()
    }

    /// Returns the path of the page to show after the change: the page of the changed vendor or model, or a list page.
    fn changed_page(&self) -> String {
        let text = |name: &str| encoded(self.form.get(name));
        let name = match self.form.get("name") {
            "" => text("preset"),
            name => encoded(name),
        };
        match self.form.get("change") {
            "add_vendor" => format!("/console/vendors/{name}"),
            "change_vendor" | "add_models" => format!("/console/vendors/{}", text("vendor")),
            "change_price" => format!("/console/models/{}", text("model")),
            "remove_model" => "/console/prices".to_owned(),
            "restore" => "/console/changes".to_owned(),
            _ => "/console/vendors".to_owned(),
        }
    }
}
