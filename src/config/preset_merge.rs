//! Merges presets into the operator's tables before the tables are deserialized. A preset supplies the value of each
//! field that the operator's table does not have.

use toml::{
    Spanned,
    de::{DeArray, DeString, DeTable, DeValue},
};

use super::presets::{ABOUT_LOGIN, ABOUT_MODEL, Preset, presets};
use crate::{
    config::error::{Errors, is_within},
    text::similar::hint,
};

/// The fields of the merged configuration that come from a preset, each with the preset's name.
#[derive(Default)]
pub(in crate::config) struct Origins(Vec<(String, &'static str)>);

impl Origins {
    /// Returns the preset from which a field comes. If a table comes from a preset, so do its fields.
    pub(in crate::config) fn preset_at(&self, path: &str) -> Option<&'static str> {
        let found = self.0.iter().find(|(taken, _)| is_within(path, taken));
        found.map(|(_, preset)| *preset)
    }

    /// Returns the presets from which the configuration takes values, each once, in the order of [`presets`].
    pub(in crate::config) fn presets(&self) -> Vec<&'static Preset> {
        let is_used = |preset: &&Preset| self.0.iter().any(|(_, name)| *name == preset.name);
        presets().iter().filter(is_used).collect()
    }
}

/// Pairs of fields. If the operator writes the first field of a pair, the second field is not taken from the preset,
/// because it is an alternative to the first one, or belongs to the value that the operator has replaced.
const REPLACES: [(&str, &str); 14] = [
    ("format", "formats"),
    ("formats", "format"),
    ("keys", "key"),
    ("key", "keys"),
    ("login", "key"),
    ("login", "keys"),
    ("rub_mtok", "usdt_mtok"),
    ("usdt_mtok", "rub_mtok"),
    ("usdt_mtok", "price_rules"),
    ("rub_mtok", "price_rules"),
    ("cost_rub_mtok", "cost_usdt_mtok"),
    ("cost_usdt_mtok", "cost_rub_mtok"),
    ("cost_usdt_mtok", "cost_rules"),
    ("cost_rub_mtok", "cost_rules"),
];

/// Merges each preset into the table that names it, and records a mistake for each unknown preset name.
pub(in crate::config) fn lay_under(root: &mut DeTable<'_>, errors: &mut Errors) -> Origins {
    let mut merge = Merge {
        errors,
        origins: Origins::default(),
    };
    let mut vendors = merge.vendors(root);
    merge.models(root, &mut vendors);
    merge.missing_values(&vendors);
    merge.origins
}

struct Merge<'a> {
    errors: &'a mut Errors,
    origins: Origins,
}

/// A vendor in the configuration that names a preset.
struct PresetVendor {
    path: String,
    name: String,
    preset: &'static Preset,
    values: Values,
}

/// A vendor's values for the placeholders of the vendor's preset.
#[derive(Default)]
struct Values {
    /// The name of each placeholder, with the operator's value if there is one.
    given: Vec<(&'static str, Option<String>)>,
    /// Names of placeholders in merged fields for which the operator has given no value.
    missing: Vec<&'static str>,
}

impl Values {
    /// Creates the values for all placeholders of a preset. `given` returns the operator's value for a placeholder's
    /// name.
    fn new(preset: &'static Preset, given: impl Fn(&str) -> Option<String>) -> Self {
        let names = preset.about.values.keys();
        Self {
            given: names.map(|name| (name.as_str(), given(name))).collect(),
            missing: Vec::new(),
        }
    }

    /// Replaces the placeholders in all texts within a value from the preset.
    fn fill(&mut self, value: &mut DeValue<'static>) {
        match value {
            DeValue::Table(table) => {
                for (_, value) in table.iter_mut() {
                    self.fill(value.get_mut());
                }
            }
            DeValue::Array(items) => {
                for item in items.iter_mut() {
                    self.fill(item.get_mut());
                }
            }
            DeValue::String(text) => {
                for (name, given) in &self.given {
                    let placeholder = format!("{{{name}}}");
                    if text.contains(&placeholder) {
                        if given.is_none() && !self.missing.contains(name) {
                            self.missing.push(name);
                        }
                        // The placeholder of a missing value is replaced by the value's name: the text is then valid,
                        // and the missing value is reported only once.
                        *text = text
                            .replace(&placeholder, given.as_deref().unwrap_or(name))
                            .into();
                    }
                }
            }
            _ => {}
        }
    }
}

impl Merge<'_> {
    /// Merges the presets of all vendors into their tables, and returns the vendors that have a preset.
    fn vendors(&mut self, root: &mut DeTable<'_>) -> Vec<PresetVendor> {
        let mut named = Vec::new();
        for (index, own) in tables(root, "vendor") {
            let path = format!("vendor[{index}]");
            let Some(name) = text(own, "preset") else {
                if own.contains_key("values") {
                    let problem = "has no effect without preset, because values replace the placeholders of a preset: \
                         write preset, or remove values";
                    self.errors.add(format!("{path}.values"), problem);
                }
                continue;
            };
            let Some(preset) = Preset::named(&name) else {
                let hint = hint(&name, presets().iter().map(|preset| preset.name));
                self.unknown(&path, &name, &hint, "tollgate preset list");
                continue;
            };
            let under = self.vendor_table(preset, own, &path);
            let mut values = self.values_of(preset, own, &path);
            self.lay(own, &under, &path, preset.name, &mut values);
            named.extend(text(own, "name").map(|name| PresetVendor {
                path,
                name,
                preset,
                values,
            }));
        }
        named
    }

    /// Records a mistake for each placeholder in a merged field for which the operator has given no value.
    fn missing_values(&mut self, vendors: &[PresetVendor]) {
        for vendor in vendors {
            for name in &vendor.values.missing {
                let about = &vendor.preset.about.values[*name];
                let advice = format!(
                    "give the {}, like values = {{ {name} = {:?} }}. {}",
                    about.title, about.example, about.find
                );
                let path = format!("{}.values.{name}", vendor.path);
                self.errors.missing(&path, &advice);
            }
        }
    }

    /// Returns the vendor's fields from the preset. If the operator's table names another login of the preset, the
    /// fields contain that login.
    fn vendor_table(
        &mut self,
        preset: &'static Preset,
        own: &DeTable<'_>,
        path: &str,
    ) -> DeTable<'static> {
        let mut file = parsed(preset);
        let mut under = table(file.remove("vendor"));
        let login = own.get("login").and_then(|it| it.get_ref().as_table());
        let Some(name) = login.and_then(|login| text(login, "preset")) else {
            return under;
        };
        match table(file.remove("logins")).remove(name.as_str()) {
            Some(mut login) => {
                if let DeValue::Table(fields) = login.get_mut() {
                    for name in ABOUT_LOGIN {
                        fields.remove(name);
                    }
                }
                under.insert(key("login"), login);
            }
            None => {
                let logins = preset.about.logins.keys().map(String::as_str);
                let hint = hint(&name, logins);
                let command = format!("tollgate preset show {}", preset.name);
                self.unknown(&format!("{path}.login"), &name, &hint, &command);
            }
        }
        under
    }

    /// Returns the operator's values for the placeholders of a preset, and records a mistake for each invalid value.
    fn values_of(&mut self, preset: &'static Preset, own: &DeTable<'_>, path: &str) -> Values {
        let written = own.get("values").and_then(|it| it.get_ref().as_table());
        let known = &preset.about.values;
        for (name, value) in written.into_iter().flatten() {
            let (name, value) = (name.get_ref(), value.get_ref().as_str());
            let path = format!("{path}.values.{name}");
            if !known.contains_key(name.as_ref()) {
                let hint = hint(name, known.keys().map(String::as_str));
                let problem = format!(
                    "the preset {:?} has no placeholder of this name{hint}",
                    preset.name
                );
                self.errors.add(path, problem);
            } else if value.is_some_and(|value| !is_plain(value)) {
                let problem = "must contain only letters, digits, '-', '_' and '.'";
                self.errors.add(path, problem);
            }
        }
        Values::new(preset, |name| {
            let value = written.and_then(|written| text(written, name));
            value.filter(|value| !value.is_empty())
        })
    }

    fn models(&mut self, root: &mut DeTable<'_>, vendors: &mut [PresetVendor]) {
        for (index, own) in tables(root, "model") {
            let path = format!("model[{index}]");
            if let Some((preset, model)) = self.model_preset(own, &path) {
                let mut under = model_table(preset, model);
                let route = route_table(&mut under, model);
                under.insert(key("id"), value(string(model)));
                let route_to = |vendor: &str| {
                    let mut route = route.clone();
                    route.insert(key("vendor"), value(string(vendor)));
                    value(DeValue::Table(route))
                };
                let is_laid = !own.contains_key("routes");
                let of_preset = vendors
                    .iter_mut()
                    .filter(|it| it.preset.name == preset.name);
                let routes = of_preset.map(|vendor| {
                    let mut route = route_to(&vendor.name);
                    if is_laid {
                        vendor.values.fill(route.get_mut());
                    }
                    route
                });
                let mut routes: DeArray<'_> = routes.collect();
                if routes.is_empty() {
                    routes.push(route_to(preset.name));
                }
                under.insert(key("routes"), value(DeValue::Array(routes)));
                self.lay(own, &under, &path, preset.name, &mut Values::default());
            }
            for (index, own) in tables(own, "routes") {
                let path = format!("{path}.routes[{index}]");
                if let Some((preset, model)) = self.model_preset(own, &path) {
                    let route = route_table(&mut model_table(preset, model), model);
                    let vendor = text(own, "vendor");
                    let vendor = vendors.iter_mut().find(|it| {
                        it.preset.name == preset.name && Some(&it.name) == vendor.as_ref()
                    });
                    let mut unknown = Values::new(preset, |_| None);
                    let values = vendor.map_or(&mut unknown, |vendor| &mut vendor.values);
                    self.lay(own, &route, &path, preset.name, values);
                    if !unknown.missing.is_empty() {
                        let advice = format!(
                            "write the vendor's name for the model here: the name in the preset contains \
                             placeholders, which only a vendor with preset {:?} can fill",
                            preset.name
                        );
                        self.errors.missing(&format!("{path}.model"), &advice);
                    }
                }
            }
        }
    }

    /// Returns the preset that a model or a route names, and the model's name in this preset.
    fn model_preset(
        &mut self,
        own: &DeTable<'_>,
        path: &str,
    ) -> Option<(&'static Preset, &'static str)> {
        let name = text(own, "preset")?;
        match Preset::of_model(&name)[..] {
            [found] => return Some(found),
            [] => {
                let models = presets().iter().flat_map(|it| it.about.models.keys());
                let hint = hint(&name, models.map(String::as_str));
                self.unknown(path, &name, &hint, "tollgate preset show VENDOR");
            }
            ref several => {
                let names = several
                    .iter()
                    .map(|(preset, model)| format!("{}/{model}", preset.name));
                let names: Vec<_> = names.collect();
                let problem = format!(
                    "the presets of several vendors contain the model {name:?}: write {}",
                    names.join(" or ")
                );
                self.errors.add(format!("{path}.preset"), problem);
            }
        }
        None
    }

    fn unknown(&mut self, path: &str, name: &str, hint: &str, command: &str) {
        let problem = format!("{name:?} is not a preset{hint}; `{command}` lists the valid names");
        self.errors.add(format!("{path}.preset"), problem);
    }

    /// Adds to the operator's table `own` the preset's fields that it does not have, and replaces their placeholders by
    /// `values`. If both have a table under the same name, these tables are merged in the same way. Lists are not
    /// merged.
    fn lay(
        &mut self,
        own: &mut DeTable<'_>,
        under: &DeTable<'static>,
        path: &str,
        preset: &'static str,
        values: &mut Values,
    ) {
        let written: Vec<String> = own.keys().map(|key| key.get_ref().to_string()).collect();
        for (name, given) in under {
            let name = name.get_ref().as_ref();
            let is_replaced = REPLACES
                .iter()
                .any(|(first, second)| *second == name && written.iter().any(|it| it == first));
            let path = format!("{path}.{name}");
            match own.get_mut(name) {
                _ if is_replaced => {}
                Some(own) => {
                    if let (DeValue::Table(own), DeValue::Table(under)) =
                        (own.get_mut(), given.get_ref())
                    {
                        self.lay(own, under, &path, preset, values);
                    }
                }
                None => {
                    let mut value = without_places(given.get_ref().clone());
                    values.fill(value.get_mut());
                    own.insert(key(name), value);
                    self.origins.0.push((path, preset));
                }
            }
        }
    }
}

fn parsed(preset: &Preset) -> DeTable<'static> {
    let root = DeTable::parse(preset.text).expect("the tests parse every preset");
    root.into_inner()
}

fn table(value: Option<Spanned<DeValue<'static>>>) -> DeTable<'static> {
    match value.map(Spanned::into_inner) {
        Some(DeValue::Table(table)) => table,
        _ => DeTable::new(),
    }
}

/// Returns whether a placeholder's value is safe within a host name, a path and a JSON string.
fn is_plain(value: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    value.bytes().all(is_plain)
}

/// Returns the table of a preset's model, including the fields that all models of the preset have.
fn model_table(preset: &Preset, model: &str) -> DeTable<'static> {
    let mut file = parsed(preset);
    let mut every = table(file.remove("every_model"));
    let mut models = table(file.remove("model"));
    every.extend(table(models.remove(model)));
    every
}

/// Returns the route of a preset's model, with the model's prices as costs. Removes from the model's table the keys
/// that are not settings.
fn route_table(model: &mut DeTable<'static>, preset: &str) -> DeTable<'static> {
    let mut route = DeTable::new();
    let [_, _, name] = ABOUT_MODEL.map(|name| model.remove(name));
    let name = name.unwrap_or_else(|| value(string(preset)));
    route.insert(key("model"), name);
    for (price, cost) in [
        ("usdt_mtok", "cost_usdt_mtok"),
        ("rub_mtok", "cost_rub_mtok"),
        ("price_rules", "cost_rules"),
    ] {
        if let Some(rates) = model.get(price) {
            route.insert(key(cost), rates.clone());
        }
    }
    route
}

/// Returns the tables in a list, each with its index in the list.
fn tables<'t, 'i>(
    own: &'t mut DeTable<'i>,
    name: &str,
) -> impl Iterator<Item = (usize, &'t mut DeTable<'i>)> + use<'t, 'i> {
    let items = match own.get_mut(name).map(Spanned::get_mut) {
        Some(DeValue::Array(items)) => Some(items.iter_mut()),
        _ => None,
    };
    let items = items.into_iter().flatten().enumerate();
    items.filter_map(|(index, item)| match item.get_mut() {
        DeValue::Table(table) => Some((index, table)),
        _ => None,
    })
}

fn text(table: &DeTable<'_>, name: &str) -> Option<String> {
    Some(table.get(name)?.get_ref().as_str()?.to_owned())
}

/// Returns a value with an empty span, because a span in the preset's text would point to a wrong place in the
/// operator's file.
fn value(value: DeValue<'static>) -> Spanned<DeValue<'static>> {
    Spanned::new(0..0, value)
}

fn key(name: &str) -> Spanned<DeString<'static>> {
    Spanned::new(0..0, name.to_owned().into())
}

fn string(text: &str) -> DeValue<'static> {
    DeValue::String(text.to_owned().into())
}

fn without_places(given: DeValue<'static>) -> Spanned<DeValue<'static>> {
    value(match given {
        DeValue::Table(table) => {
            let entries = table.into_iter();
            let entries =
                entries.map(|(name, it)| (key(name.get_ref()), without_places(it.into_inner())));
            DeValue::Table(entries.collect())
        }
        DeValue::Array(items) => {
            let items = items.into_iter();
            DeValue::Array(items.map(|it| without_places(it.into_inner())).collect())
        }
        scalar => scalar,
    })
}
