//! Checks `model.routes` and the dialects of models and routes.

use std::{collections::HashMap, sync::Arc};

use http::Uri;
use tollgate_layers::{
    call::Format,
    model::{CacheMarks, Dialect, ModelKind, OutputField, Route, SystemRole, Thinking, Vendor},
};

use super::{
    check::Check,
    raw::{RawDialect, RawRoute},
    vendor::{CHATS, EMBEDDINGS, MODEL, Vendors},
};
use crate::text::{percent::encoded, similar::nearest};

impl Check<'_> {
    pub(super) fn routes(
        &mut self,
        raw: Vec<RawRoute>,
        path: &str,
        id: Option<&str>,
        usual: (ModelKind, Dialect),
        vendors: &Vendors,
    ) -> Option<Vec<Arc<Route>>> {
        if raw.is_empty() {
            self.errors.missing(
                path,
                "give at least one, like [ { vendor = \"openai\", model = \"gpt-5-mini\" } ]",
            );
        }
        let mut places = HashMap::new();
        let routes = self.items(raw.into_iter().enumerate(), path, |check, (index, raw), path| {
            let model = raw.model.clone().filter(|model| !model.is_empty());
            let model = model.or_else(|| id.map(str::to_owned));
            let place = (raw.vendor.clone().unwrap_or_default(), model.clone());
            if let Some(first) = places.insert(place, index) {
                    let problem = format!(
                        "has the same vendor and model as routes[{first}]: remove one of the two, and give the other \
                         the sum of both weights"
                    );
                    return check.refuse(path, problem);
            }
            check.route(&raw, path, model, usual, vendors)
        });
        let mut routes = routes?;
        routes.sort_by_key(|route| route.priority);
        Some(routes)
    }

    fn route(
        &mut self,
        raw: &RawRoute,
        path: &str,
        model: Option<String>,
        (kind, dialect): (ModelKind, Dialect),
        vendors: &Vendors,
    ) -> Option<Arc<Route>> {
        let at = |field: &str| format!("{path}.{field}");
        let weight = self.whole(raw.weight, &at("weight"), 1, 1..=1_000_000);
        let priority = self.whole(raw.priority, &at("priority"), 0, 0..=1_000_000);
        let dialect = self.dialect(&raw.dialect(), dialect, &at);
        let advice = "give the name of a [[vendor]]";
        let name = self.required(raw.vendor.clone(), &at("vendor"), advice)?;
        let Some(vendor) = vendors.get(&name) else {
            let hint = match nearest(&name, vendors.keys().map(String::as_str)) {
                Some(near) => format!("did you mean {near:?}?"),
                None => "add this vendor, or correct the name".to_owned(),
            };
            return self.refuse(
                at("vendor"),
                format!("there is no [[vendor]] with the name {name:?}: {hint}"),
            );
        };
        let vendor = match (kind, vendor.as_ref()?) {
            (ModelKind::Embedding, vendor) => self.keep(embedding_vendor(vendor), &at("vendor"))?,
            (_, vendor) => Arc::clone(vendor),
        };
        let model = model?;
        let vendor = match with_model(&vendor, &model) {
            None => vendor,
            Some(vendor) => self.keep(vendor, &at("model"))?,
        };
        let route = Route::new(vendor, model)
            .weight(weight)
            .priority(priority)
            .dialect(dialect);
        Some(Arc::new(route))
    }

    pub(super) fn dialect(
        &mut self,
        raw: &RawDialect<'_>,
        usual: Dialect,
        at: &dyn Fn(&str) -> String,
    ) -> Dialect {
        let fields = [
            ("max_completion_tokens", OutputField::MaxCompletionTokens),
            ("max_tokens", OutputField::MaxTokens),
        ];
        let path = at("output_field");
        let output_field = self.choice_or(raw.output_field, usual.output_field, &path, fields);
        let roles = [
            ("system", Some(SystemRole::System)),
            ("developer", Some(SystemRole::Developer)),
        ];
        let path = at("system_role");
        let system_role = self.choice_or(raw.system_role, usual.system_role, &path, roles);
        let kinds = [
            ("effort", Thinking::Effort),
            ("budget", Thinking::Budget),
            ("none", Thinking::None),
        ];
        let thinking = self.choice_or(raw.thinking, usual.thinking, &at("thinking"), kinds);
        let marks = [("auto", CacheMarks::Auto), ("never", CacheMarks::Never)];
        let path = at("cache_marks");
        let cache_marks = self.choice_or(raw.cache_marks, usual.cache_marks, &path, marks);
        usual
            .output_field(output_field)
            .system_role(system_role)
            .reasoning_effort(raw.reasoning_effort.unwrap_or(usual.reasoning_effort))
            .sampling(raw.sampling.unwrap_or(usual.sampling))
            .thinking(thinking)
            .json_schema(raw.json_schema.unwrap_or(usual.json_schema))
            .verbosity(raw.verbosity.unwrap_or(usual.verbosity))
            .reasoning_summary(raw.reasoning_summary.unwrap_or(usual.reasoning_summary))
            .encrypted_reasoning(raw.encrypted_reasoning.unwrap_or(usual.encrypted_reasoning))
            .cache_marks(cache_marks)
            .functions(raw.functions.unwrap_or(usual.functions))
            .prompt_cache_key(raw.prompt_cache_key.or(usual.prompt_cache_key))
    }
}

/// Returns a copy of the vendor that has the embeddings endpoint of the Chat Completions format as its endpoint.
fn embedding_vendor(vendor: &Arc<Vendor>) -> Result<Arc<Vendor>, String> {
    let vendor = vendor.speaking(Format::Chat);
    let base = match vendor.format {
        Format::Chat => vendor.endpoint.path().strip_suffix(CHATS),
        _ => None,
    };
    let endpoint =
        base.and_then(|base| with_path(&vendor.endpoint, &format!("{base}{EMBEDDINGS}")));
    let Some(endpoint) = endpoint else {
        return Err(format!(
            "the vendor {:?} cannot serve embeddings: give a [[vendor]] with the format \"chat\"{}",
            vendor.name,
            match vendor.format {
                Format::Chat => " and a path that ends in /chat/completions",
                _ => "",
            }
        ));
    };
    let mut vendor = Vendor::clone(vendor);
    vendor.endpoint = endpoint;
    vendor.others = Vec::new();
    Ok(Arc::new(vendor))
}

/// Returns a copy of the vendor with the model's name in its path. `None` if the path has no placeholder for the model.
fn with_model(vendor: &Arc<Vendor>, model: &str) -> Option<Result<Arc<Vendor>, &'static str>> {
    let path = vendor.endpoint.path();
    if !path.contains(MODEL) {
        return None;
    }
    let endpoint = with_path(&vendor.endpoint, &path.replace(MODEL, &encoded(model)));
    let endpoint = endpoint.ok_or("makes the vendor's URL too long: shorten the name of the model");
    Some(endpoint.map(|endpoint| {
        let mut vendor = Vendor::clone(vendor);
        vendor.endpoint = endpoint;
        Arc::new(vendor)
    }))
}

/// Returns a URL with another path and the same query. `None` if the path is invalid.
fn with_path(address: &Uri, path: &str) -> Option<Uri> {
    let mut parts = address.clone().into_parts();
    let query = address
        .query()
        .map_or(String::new(), |query| format!("?{query}"));
    parts.path_and_query = Some(format!("{path}{query}").parse().ok()?);
    Uri::from_parts(parts).ok()
}
