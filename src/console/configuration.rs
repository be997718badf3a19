//! Pages that change the configuration file: a vendor, a model, and what a change would write.

use std::collections::BTreeMap;

use askama::Template;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value};
use tollgate_layers::price::Class;

use super::{
    Answer, Visit,
    api::Refused,
    call::class_in_words,
    changes::words,
    pages::{Frame, status_of, unknown, written},
    see,
    texts::english,
    views::{Configuration, Vendor, Vendors},
};
use crate::{
    admin::Refusal,
    config::edit::{DescribedModel, DescribedVendor},
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
#[template(path = "vendor.html", config = "src/console/templates/askama.toml")]
struct VendorHtml<'a> {
    page: Frame<'a>,
    hash: String,
    settings: DescribedVendor,
    /// The state of the vendor; `None`: it has no model that is in force.
    vendor: Option<Vendor>,
    models: Vec<DescribedModel>,
    tested: Vec<TestCall>,
}

#[derive(Template)]
#[template(path = "model.html", config = "src/console/templates/askama.toml")]
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
    /// Returns the field, the label and the value of each price, in the usual order.
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

/// The classes that each chat model has, in the order of the page of prices.
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
#[template(
    path = "configuration.html",
    config = "src/console/templates/askama.toml"
)]
struct ConfigurationHtml<'a> {
    page: Frame<'a>,
    change: Change,
    /// The fields of the form, to send them again.
    fields: Vec<(&'a str, &'a str)>,
    back: String,
}

impl ConfigurationHtml<'_> {
    /// Returns the lines to copy into the file.
    fn added(&self) -> String {
        let hunks = self.change.difference.iter();
        let lines = hunks
            .flat_map(|hunk| &hunk.added)
            .map(|line| format!("{line}\n"));
        lines.collect()
    }
}

impl Visit {
    pub(super) async fn configuration(&self) -> Result<Result<Configuration, Refused>, Refusal> {
        self.api.get(API).await
    }

    /// Shows a vendor. `tested` has the answers of test calls that were just made.
    pub(super) async fn vendor(
        &self,
        segment: &str,
        problem: Option<&Refused>,
        tested: Option<Value>,
    ) -> Result<Result<Answer, Refused>, Refusal> {
        let Configuration {
            hash, described, ..
        } = match self.configuration().await? {
            Ok(configuration) => configuration,
            Err(refused) => return Ok(Err(refused)),
        };
        let name = decoded(segment).unwrap_or_default();
        let settings = described.vendors.into_iter().find(|it| it.name == name);
        let Some(settings) = settings else {
            return Ok(Err(unknown()));
        };
        let Vendors { vendors } = match self.api.get("/admin/v1/vendors").await? {
            Ok(vendors) => vendors,
            Err(refused) => return Ok(Err(refused)),
        };
        let is_here = |it: &DescribedModel| it.routes.iter().any(|route| route.vendor == name);
        let tested = tested.map(serde_json::from_value::<Tested>).transpose();
        let tested = tested.map_err(Refusal::fault)?;
        Ok(Ok(written(
            status_of(problem),
            &VendorHtml {
                page: self.frame(
                    self.fill(english("Vendor {0}"), &[&name]),
                    "Vendors",
                    problem,
                ),
                hash,
                vendor: vendors.into_iter().find(|it| it.name == name),
                models: described.models.into_iter().filter(is_here).collect(),
                tested: tested.map_or_else(Vec::new, |tested| tested.calls),
                settings,
            },
        )))
    }

    pub(super) async fn model(&self, segment: &str) -> Result<Result<Answer, Refused>, Refusal> {
        let Configuration {
            hash, described, ..
        } = match self.configuration().await? {
            Ok(configuration) => configuration,
            Err(refused) => return Ok(Err(refused)),
        };
        let id = decoded(segment).unwrap_or_default();
        let Some(model) = described.models.into_iter().find(|it| it.id == id) else {
            return Ok(Err(unknown()));
        };
        let vendors = self.api.get::<Vendors>("/admin/v1/vendors").await?;
        let vendors = vendors.map_or_else(|_| Vec::new(), |it| it.vendors);
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
            Some("rub_mtok") => english("Rubles per million tokens, before the multiplier"),
            _ => english("USDT per million tokens, before rate and multiplier"),
        };
        Ok(Ok(written(
            StatusCode::OK,
            &ModelHtml {
                page: self.frame(
                    self.fill(english("Model {0}"), &[&id]),
                    "Models and prices",
                    None,
                ),
                routes: routes.collect(),
                hash,
                model,
                currency,
            },
        )))
    }

    /// Shows what a posted change would write, or writes it.
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
            Err(refused) => return Ok(self.refused(english("Not done"), &refused)),
        };
        let problem = change.problem.clone().map(|text| Refused {
            status: StatusCode::CONFLICT,
            text,
        });
        let is_resent =
            |(name, _): &(&str, &str)| !["csrf", "step", "hash", "key_value"].contains(name);
        Ok(written(
            status_of(problem.as_ref()),
            &ConfigurationHtml {
                page: self.frame(english("Change of the configuration"), "", problem.as_ref()),
                fields: self.form.pairs().filter(is_resent).collect(),
                back: match self.form.get("model") {
                    "" => "/console/vendors".to_owned(),
                    model => format!("/console/models/{}", encoded(model)),
                },
                change,
            },
        ))
    }

    /// Returns the change that the form requests, as the API takes it.
    fn requested(&self, is_applied: bool) -> Value {
        let (mut body, mut prices) = (Map::new(), Map::new());
        for (name, _) in self.form.pairs() {
            let text = self.form.get(name);
            match (name, text) {
                ("csrf" | "step", _) => {}
                (_, "") => {}
                ("models", models) => drop(body.insert(name.into(), words(models).into())),
                ("key_in_file", _) => drop(body.insert(name.into(), true.into())),
                (name, text) => match name.strip_prefix("price_") {
                    Some(class) => drop(prices.insert(class.into(), self.form.rubles(name).into())),
                    None => drop(body.insert(name.into(), text.into())),
                },
            }
        }
        if !prices.is_empty() {
            body.insert("prices".into(), prices.into());
        }
        body.insert("preview".into(), (!is_applied).into());
        body.into()
    }

    /// Returns the page of what was changed.
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
            _ => "/console/vendors".to_owned(),
        }
    }
}
