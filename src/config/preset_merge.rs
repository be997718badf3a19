//! Merges presets into the operator's tables before the tables are read. A preset's value applies where the operator
//! gives none.

use toml::{
    Spanned,
    de::{DeArray, DeString, DeTable, DeValue},
};

use super::presets::{ABOUT_MODEL, FOLDER, Preset, presets};
use crate::{config::error::Errors, text::similar::hint};

/// The fields of the merged configuration that come from a preset, with the preset's name.
#[derive(Default)]
pub(in crate::config) struct Origins(Vec<(String, &'static str)>);

impl Origins {
    /// Returns the preset that a field, or a table that contains it, comes from.
    pub(in crate::config) fn preset_at(&self, path: &str) -> Option<&'static str> {
        let contains = |outer: &str| {
            let rest = path.strip_prefix(outer);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let found = self.0.iter().find(|(taken, _)| contains(taken));
        found.map(|(_, preset)| *preset)
    }

    /// Returns the presets in use, each once, in their own order.
    pub(in crate::config) fn presets(&self) -> Vec<&'static Preset> {
        let is_used = |preset: &&Preset| self.0.iter().any(|(_, name)| *name == preset.name);
        presets().iter().filter(is_used).collect()
    }
}

/// If the operator writes the first field of a pair, the second one is not taken from the preset: it states the same
/// thing in another way, or belongs to the value that the operator has replaced.
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

/// Merges each named preset into the table that names it, and records unknown names.
pub(in crate::config) fn lay_under(root: &mut DeTable<'_>, errors: &mut Errors) -> Origins {
    let mut merge = Merge {
        errors,
        origins: Origins::default(),
    };
    let vendors = merge.vendors(root);
    merge.models(root, &vendors);
    merge.origins
}

struct Merge<'a> {
    errors: &'a mut Errors,
    origins: Origins,
}

impl Merge<'_> {
    /// Returns the name and the preset of each vendor that has a preset.
    fn vendors(&mut self, root: &mut DeTable<'_>) -> Vec<(String, &'static str)> {
        let mut named = Vec::new();
        for (index, own) in tables(root, "vendor") {
            let path = format!("vendor[{index}]");
            let Some(name) = text(own, "preset") else {
                continue;
            };
            let Some(preset) = Preset::named(&name) else {
                let hint = hint(&name, presets().iter().map(|preset| preset.name));
                self.unknown(&path, &name, &hint, "tollgate preset list");
                continue;
            };
            let file = parsed(preset);
            let under = file.get("vendor").and_then(|it| it.get_ref().as_table());
            self.lay(own, under.unwrap_or(&DeTable::new()), &path, preset.name);
            named.extend(text(own, "name").map(|name| (name, preset.name)));
        }
        named
    }

    fn models(&mut self, root: &mut DeTable<'_>, vendors: &[(String, &'static str)]) {
        for (index, own) in tables(root, "model") {
            let path = format!("model[{index}]");
            if let Some((preset, model)) = self.model_preset(own, &path) {
                let mut under = model_table(preset, model);
                let route = route_table(&mut under, model);
                under.insert(key("id"), value(string(model)));
                let routes = vendors.iter().filter(|(_, of)| *of == preset.name);
                let mut routes: Vec<_> = routes.map(|(name, _)| name.as_str()).collect();
                if routes.is_empty() {
                    routes.push(preset.name);
                }
                let routes = routes.into_iter().map(|vendor| {
                    let mut route = route.clone();
                    route.insert(key("vendor"), value(string(vendor)));
                    value(DeValue::Table(route))
                });
                let routes: DeArray<'_> = routes.collect();
                if preset.about.folder.is_some() && !own.contains_key("routes") {
                    let name = preset.vendor_model(model).unwrap_or_default();
                    let problem = format!(
                        "the vendor's name of the model contains your folder: write routes = [{{ vendor = {0:?}, preset = \
                         {model:?}, model = {name:?} }}] with the folder in place of {FOLDER}",
                        preset.name
                    );
                    self.errors.add(format!("{path}.routes"), problem);
                }
                under.insert(key("routes"), value(DeValue::Array(routes)));
                self.lay(own, &under, &path, preset.name);
            }
            for (index, own) in tables(own, "routes") {
                let path = format!("{path}.routes[{index}]");
                if let Some((preset, model)) = self.model_preset(own, &path) {
                    let route = route_table(&mut model_table(preset, model), model);
                    self.lay(own, &route, &path, preset.name);
                }
            }
        }
    }

    /// Returns the preset that a model or a route names.
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
                    "several vendors have {name:?}: write {}",
                    names.join(" or ")
                );
                self.errors.add(format!("{path}.preset"), problem);
            }
        }
        None
    }

    fn unknown(&mut self, path: &str, name: &str, hint: &str, command: &str) {
        let problem = format!("{name:?} is not a preset{hint}; {command} lists them");
        self.errors.add(format!("{path}.preset"), problem);
    }

    /// Adds the preset's fields that `own` lacks. A table that both have is merged in the same way; a list is one
    /// value.
    fn lay(
        &mut self,
        own: &mut DeTable<'_>,
        under: &DeTable<'static>,
        path: &str,
        preset: &'static str,
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
                        self.lay(own, under, &path, preset);
                    }
                }
                None => {
                    own.insert(key(name), without_places(given.get_ref().clone()));
                    self.origins.0.push((path, preset));
                }
            }
        }
    }
}

fn parsed(preset: &Preset) -> DeTable<'static> {
    let root = DeTable::parse(preset.text).expect("a test reads every preset");
    root.into_inner()
}

/// Returns a model's table, with the fields that all models of the preset have.
fn model_table(preset: &Preset, model: &str) -> DeTable<'static> {
    let mut file = parsed(preset);
    let table = |value: Option<Spanned<DeValue<'static>>>| match value.map(Spanned::into_inner) {
        Some(DeValue::Table(table)) => table,
        _ => DeTable::new(),
    };
    let mut every = table(file.remove("every_model"));
    let mut models = table(file.remove("model"));
    every.extend(table(models.remove(model)));
    every
}

/// Returns the route of the preset's model to its vendor, with the model's prices as costs. Removes from the model's
/// table what is not a setting.
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

/// Returns the tables of a list, each with its index in the list.
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

/// Returns a value without a position: a position in the preset's text is not a position in the operator's file.
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
