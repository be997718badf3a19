//! Changes vendors, models and prices in the text of a configuration, and keeps its comments and its order.

use std::collections::BTreeMap;

use toml::de::DeTable;
use toml_edit::{
    Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, TableLike, Value, value,
};

use super::{
    document::Document,
    presets::Preset,
    price_diff::file::{Prices, string, tables},
    prices::field,
    sections::{Sections, Taken, VendorArgs},
};

/// A change to the text of a configuration.
pub(crate) enum Edit {
    /// Appends a vendor and its models.
    AddVendor {
        preset: &'static Preset,
        args: VendorArgs,
    },
    /// Sets the URL or the key of a vendor. An empty URL removes the setting, and the URL of the vendor's preset
    /// applies.
    SetVendor {
        vendor: String,
        url: Option<String>,
        key: Option<String>,
    },
    /// Removes a vendor, the routes to it, and the models that no other vendor serves.
    RemoveVendor {
        vendor: String,
    },
    /// Appends models of a vendor that the file already has.
    AddModels {
        vendor: String,
        args: VendorArgs,
    },
    RemoveModel {
        model: String,
    },
    /// Sets base prices of a model, by rate class. With `valid_from`, adds a price rule with these prices that comes
    /// into force at that time.
    SetPrice {
        model: String,
        prices: BTreeMap<String, String>,
        valid_from: Option<String>,
    },
}

/// The changed text, and notes for the operator about the change.
#[derive(Debug)]
pub(crate) struct Edited {
    pub(crate) text: String,
    pub(crate) notes: Vec<String>,
}

impl Edit {
    /// Applies the change to the text of a configuration. The caller must still check the resulting configuration.
    ///
    /// # Errors
    /// If the vendor or the model does not exist, or if the file is written in a form that this function cannot change.
    pub(crate) fn apply(&self, text: &str) -> Result<Edited, String> {
        let file = File::parse(text)?;
        match self {
            Self::AddVendor { preset, args } => file.append(|taken| {
                let sections = Sections::new(preset, args, &taken.models)?;
                if taken.vendors.contains(&sections.name) {
                    let name = &sections.name;
                    return Err(format!(
                        "the file already has a vendor {name:?}: give the new vendor another name"
                    ));
                }
                Ok((preset, sections))
            }),
            Self::AddModels { vendor, args } => {
                let preset = file.preset_of(vendor)?;
                file.append(|taken| {
                    let text = String::new();
                    let models = Sections::of_models(text, preset, vendor, args, &taken.models)?;
                    Ok((preset, models))
                })
            }
            Self::SetVendor { vendor, url, key } => {
                file.set_vendor(vendor, url.as_deref(), key.as_deref())
            }
            Self::RemoveVendor { vendor } => file.remove_vendor(vendor),
            Self::RemoveModel { model } => file.remove_model(model),
            Self::SetPrice {
                model,
                prices,
                valid_from: None,
            } => file.set_price(model, prices),
            Self::SetPrice {
                model,
                prices,
                valid_from: Some(time),
            } => file.set_dated_price(model, prices, time),
        }
    }

    /// Returns the name of the vendor or the model that the change concerns.
    pub(crate) fn subject(&self) -> &str {
        match self {
            Self::AddVendor { preset, args } => args.name.as_deref().unwrap_or(preset.name),
            Self::SetVendor { vendor, .. }
            | Self::RemoveVendor { vendor }
            | Self::AddModels { vendor, .. } => vendor,
            Self::RemoveModel { model } | Self::SetPrice { model, .. } => model,
        }
    }
}

/// The text of a configuration in two forms: parsed and completed by its presets, and in a form that can be edited.
struct File<'t> {
    text: &'t str,
    document: Document<'t>,
    edited: DocumentMut,
}

impl<'t> File<'t> {
    fn parse(text: &'t str) -> Result<Self, String> {
        let document = Document::open(text).map_err(|errors| errors.to_string())?;
        // The TOML parser's own message is not used, because it may quote a secret.
        let edited = text
            .parse()
            .map_err(|_| "the file is not valid TOML".to_owned())?;
        Ok(Self {
            text,
            document,
            edited,
        })
    }

    fn append(
        &self,
        sections: impl FnOnce(&Taken) -> Result<(&'static Preset, Sections), String>,
    ) -> Result<Edited, String> {
        let taken = Taken::read(self.text).map_err(|errors| errors.to_string())?;
        let (preset, sections) = sections(&taken)?;
        let mut notes = preset.about.notes.clone();
        if !sections.present.is_empty() {
            notes.push(format!(
                "These models are already in the file and were not added again: {}. Those without their own routes \
                 get a route to the vendor {:?}.",
                sections.present.join(", "),
                sections.name
            ));
        }
        Ok(Edited {
            text: format!("{}\n\n{}", self.text.trim_end(), sections.text.trim_start()),
            notes,
        })
    }

    fn index(&self, list: &str, field: &str, name: &str) -> Result<usize, String> {
        let tables = tables(self.document.merged(), list);
        let found = tables.iter().position(|it| string(it, field) == Some(name));
        found.ok_or_else(|| format!("the file has no {list} {name:?}"))
    }

    fn preset_of(&self, vendor: &str) -> Result<&'static Preset, String> {
        let index = self.index("vendor", "name", vendor)?;
        let name = string(tables(self.document.merged(), "vendor")[index], "preset");
        name.and_then(Preset::named).ok_or_else(|| {
            format!("the vendor {vendor:?} has no preset, so its models are unknown: write [[model]] sections into \
                 the file by hand")
        })
    }

    /// Returns the table of the vendor with this name, and the vendor's preset if it has one.
    fn vendor(&mut self, name: &str) -> Result<(&mut Table, Option<&'static Preset>), String> {
        let index = self.index("vendor", "name", name)?;
        let preset = self.preset_of(name).ok();
        Ok((table(&mut self.edited, "vendor", index)?, preset))
    }

    fn set_vendor(
        mut self,
        name: &str,
        url: Option<&str>,
        key: Option<&str>,
    ) -> Result<Edited, String> {
        let (table, preset) = self.vendor(name)?;
        match url {
            Some("") if preset.is_none() => {
                return Err("url: give a URL, because this vendor has no preset that \
                 supplies one"
                    .into());
            }
            Some("") => drop(table.remove("url")),
            Some(url) => set(table, "url", url),
            None => {}
        }
        if let Some(key) = key {
            let login = table.get("login").and_then(Item::as_table_like);
            let login = login.and_then(|it| it.get("preset")?.as_str());
            let setting = preset.and_then(|it| it.key_setting(login));
            match setting.as_deref().unwrap_or("key").split_once('.') {
                _ if table.contains_key("keys") => {
                    return Err(
                        "key: this vendor has a list of keys: change the list in the file by hand"
                            .into(),
                    );
                }
                None if table.contains_key("login") => {
                    return Err(
                        "key: this vendor has its own `login`: change it in the file by hand"
                            .into(),
                    );
                }
                None => set(table, "key", key),
                Some((login, field)) => {
                    let empty = || value(InlineTable::new());
                    let login = table.entry(login).or_insert_with(empty);
                    let login = login.as_table_like_mut();
                    set(login.ok_or("login: must be a table")?, field, key);
                }
            }
        }
        Ok(self.done(Vec::new()))
    }

    fn remove_vendor(mut self, name: &str) -> Result<Edited, String> {
        let index = self.index("vendor", "name", name)?;
        let models = tables(self.document.merged(), "model");
        let only_here = |model: &DeTable<'_>| {
            let routes = tables(model, "routes");
            let is_here = |route: &&DeTable<'_>| string(route, "vendor") == Some(name);
            !routes.is_empty() && routes.iter().all(is_here)
        };
        let gone: Vec<usize> = (0..models.len())
            .filter(|it| only_here(models[*it]))
            .collect();
        let ids = gone.iter().filter_map(|it| string(models[*it], "id"));
        let ids: Vec<String> = ids.map(str::to_owned).collect();
        for index in 0..models.len() {
            let model = table(&mut self.edited, "model", index)?;
            let is_here = |vendor: Option<&Item>| vendor.and_then(Item::as_str) == Some(name);
            match model.get_mut("routes") {
                Some(Item::ArrayOfTables(routes)) => {
                    routes.retain(|route| !is_here(route.get("vendor")));
                }
                Some(Item::Value(Value::Array(routes))) => routes.retain(|route| {
                    let route = route.as_inline_table();
                    route.and_then(|it| it.get("vendor")?.as_str()) != Some(name)
                }),
                _ => {}
            }
        }
        for index in gone.into_iter().rev() {
            remove(&mut self.edited, "model", index)?;
        }
        remove(&mut self.edited, "vendor", index)?;
        let mut notes = Vec::new();
        if !ids.is_empty() {
            let ids = ids.join(", ");
            notes.push(format!(
                "These models are removed with the vendor, because no other vendor serves them: {ids}."
            ));
        }
        Ok(self.done(notes))
    }

    fn remove_model(mut self, id: &str) -> Result<Edited, String> {
        let index = self.index("model", "id", id)?;
        remove(&mut self.edited, "model", index)?;
        Ok(self.done(Vec::new()))
    }

    fn set_price(mut self, id: &str, prices: &BTreeMap<String, String>) -> Result<Edited, String> {
        let index = self.index("model", "id", id)?;
        let (currency, usual, is_preset_ruled) = {
            let model = tables(self.document.merged(), "model")[index];
            let known = known_prices(model, id)?;
            let usual = known.lists.first().map(|(_, rates)| rates);
            let usual = usual.into_iter().flatten();
            let usual = usual.map(|(class, rate)| ((*class).to_owned(), rate.value.to_string()));
            let usual: BTreeMap<String, String> = usual.collect();
            (field(known.currency), usual, known.lists.len() > 1)
        };
        let model = table(&mut self.edited, "model", index)?;
        let mut notes = Vec::new();
        let own = model.get_mut(currency).and_then(Item::as_table_like_mut);
        if let Some(own) = own {
            for (class, price) in prices {
                set(own, class, price);
            }
        } else {
            if is_preset_ruled && !model.contains_key("price_rules") {
                notes.push(
                    "The preset's price rules no longer apply to this model: all its calls are sold at this price.".into(),
                );
            }
            let mut all = usual;
            all.extend(prices.clone());
            model.insert(currency, value(inline(&all)));
        }
        Ok(self.done(notes))
    }

    fn set_dated_price(
        mut self,
        id: &str,
        prices: &BTreeMap<String, String>,
        time: &str,
    ) -> Result<Edited, String> {
        let index = self.index("model", "id", id)?;
        let (currency, has_rules) = {
            let model = tables(self.document.merged(), "model")[index];
            let known = known_prices(model, id)?;
            (field(known.currency), known.lists.len() > 1)
        };
        let model = table(&mut self.edited, "model", index)?;
        if has_rules && !model.contains_key("price_rules") {
            return Err(format!(
                "valid_from: a price with a date is written into price_rules, but the price_rules of {id:?} are in \
                 its preset: write price_rules into the file by hand"
            ));
        }
        let empty = || value(Array::new());
        let is_of_time =
            |rule: &dyn TableLike| rule.get("valid_from").and_then(Item::as_str) == Some(time);
        match model.entry("price_rules").or_insert_with(empty) {
            Item::ArrayOfTables(rules) => {
                rules.retain(|rule| !is_of_time(rule));
                let mut rule = Table::new();
                rule.insert("valid_from", value(time));
                rule.insert(currency, value(inline(prices)));
                rules.push(rule);
            }
            Item::Value(Value::Array(rules)) => {
                rules.retain(|rule| !rule.as_inline_table().is_some_and(|it| is_of_time(it)));
                let mut rule = InlineTable::new();
                rule.insert("valid_from", time.into());
                rule.insert(currency, inline(prices).into());
                rules.push(rule);
            }
            _ => return Err("price_rules: must be a list".into()),
        }
        Ok(self.done(Vec::new()))
    }

    fn done(&self, notes: Vec<String>) -> Edited {
        Edited {
            text: self.edited.to_string(),
            notes,
        }
    }
}

fn known_prices<'p>(model: &'p DeTable<'p>, id: &str) -> Result<Prices<'p>, String> {
    let known = Prices::read(model, "", "price_rules");
    known.ok_or_else(|| format!("the model {id:?} has no prices that can be changed"))
}

fn list<'d>(file: &'d mut DocumentMut, name: &str) -> Result<&'d mut ArrayOfTables, String> {
    let list = file.get_mut(name).and_then(Item::as_array_of_tables_mut);
    list.ok_or_else(|| {
        format!("the file does not write {name} as [[{name}]] sections: change the file by hand")
    })
}

fn table<'d>(file: &'d mut DocumentMut, name: &str, index: usize) -> Result<&'d mut Table, String> {
    let table = list(file, name)?.get_mut(index);
    table.ok_or_else(|| format!("{name}: the list has no item with index {index}"))
}

/// Removes a table and the comment directly above it. A comment that is followed by an empty line is kept.
fn remove(file: &mut DocumentMut, name: &str, index: usize) -> Result<(), String> {
    let list = list(file, name)?;
    let above = comment(&list.remove(index));
    let Some((stored, _)) = above
        .rsplit_once("\n\n")
        .filter(|(stored, _)| stored.contains('#'))
    else {
        return Ok(());
    };
    if let Some(next) = list.get_mut(index) {
        let prefix = format!("{stored}\n{}", comment(next));
        next.decor_mut().set_prefix(prefix);
    } else {
        let rest = file.trailing().as_str().unwrap_or_default().to_owned();
        file.set_trailing(format!("{stored}\n{rest}"));
    }
    Ok(())
}

/// Returns the text above a table.
fn comment(table: &Table) -> String {
    let prefix = table.decor().prefix().and_then(|it| it.as_str());
    prefix.unwrap_or_default().to_owned()
}

/// Sets a field to a text, and keeps the comment after the old value.
fn set(table: &mut (impl TableLike + ?Sized), name: &str, text: &str) {
    let mut new = Value::from(text);
    if let Some(old) = table.get(name).and_then(Item::as_value) {
        new.decor_mut().clone_from(old.decor());
    }
    table.insert(name, new.into());
}

fn inline(prices: &BTreeMap<String, String>) -> InlineTable {
    let prices = prices.iter();
    prices
        .map(|(class, price)| (class.as_str(), price.as_str()))
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::text::difference::difference;

    pub(in crate::config) const FILE: &str = "# ours\n[admin]\nkey = \"${ADMIN}\"   # kept\n\n# the first vendor\n[[vendor]]\npreset = \"deepseek\"\n\
        \n# another\n[[vendor]]\nname = \"v\"\nformat = \"chat\"\nurl = \"https://v.example\" # EU\nkey = \"${V}\"\n\n\
        [[model]]\npreset = \"deepseek-flash\"\n\n# two routes\n[[model]]\nid = \"m\"\n\
        usdt_mtok = { input = \"1\", cached_input = \"1\", output = \"2\", cache_write = \"1\" } # sold\n\
        routes = [ { vendor = \"v\", model = \"m-1\" }, { vendor = \"deepseek\" } ]\n\n[[model]]\nid = \"n\"\n\
        usdt_mtok = { input = \"1\", cached_input = \"1\", output = \"2\", cache_write = \"1\" }\n\
        [[model.routes]]\nvendor = \"v\"\n\n# the end\n";

    /// Applies a change to the test file, and returns the lines that it removes (`-`) and adds (`+`).
    fn changed(edit: &Edit) -> Vec<String> {
        let edited = edit.apply(FILE).unwrap();
        let hunks = difference(FILE, &edited.text).into_iter();
        let lines = hunks.flat_map(|it| {
            let removed = it.removed.into_iter().map(|it| format!("-{it}"));
            let added = it.added.into_iter().map(|it| format!("+{it}"));
            removed.chain(added).collect::<Vec<_>>()
        });
        lines
            .chain(edited.notes)
            .filter(|it| it.len() > 1)
            .collect()
    }

    fn prices(all: &[(&str, &str)]) -> BTreeMap<String, String> {
        let all = all.iter();
        all.map(|(class, price)| ((*class).to_owned(), (*price).to_owned()))
            .collect()
    }

    fn priced(model: &str, all: &[(&str, &str)], from: Option<&str>) -> Edit {
        Edit::SetPrice {
            model: model.into(),
            prices: prices(all),
            valid_from: from.map(str::to_owned),
        }
    }

    #[test]
    fn changing_a_url_or_a_price_keeps_the_comment_on_its_line() {
        let edit = Edit::SetVendor {
            vendor: "v".into(),
            url: Some("https://w.example".into()),
            key: Some("file:/k".into()),
        };
        assert_eq!(
            changed(&edit),
            [
                "-url = \"https://v.example\" # EU",
                "-key = \"${V}\"",
                "+url = \"https://w.example\" # EU",
                "+key = \"file:/k\"",
            ]
        );
        let lines = changed(&priced("m", &[("output", "3")], None));
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(
            lines[1].ends_with("output = \"3\", cache_write = \"1\" } # sold"),
            "{lines:?}"
        );
    }

    #[test]
    fn price_set_for_a_preset_model_is_written_with_all_classes_and_a_note() {
        let lines = changed(&priced("deepseek-flash", &[("input", "0.20")], None));
        assert_eq!(
            lines,
            [
                "+usdt_mtok = { cache_write = \"0.15\", cached_input = \"0.003\", input = \"0.20\", output = \"0.6\" }",
                "The preset's price rules no longer apply to this model: all its calls are sold at this price.",
            ]
        );
    }

    #[test]
    fn dated_price_becomes_a_price_rule_and_replaces_the_rule_of_the_same_time() {
        let four = [
            ("input", "5"),
            ("cached_input", "5"),
            ("output", "6"),
            ("cache_write", "5"),
        ];
        let first = priced("m", &four, Some("2027-01-01")).apply(FILE).unwrap();
        let again = priced("m", &[("input", "7")], Some("2027-01-01"))
            .apply(&first.text)
            .unwrap();
        assert_eq!(
            again.text.matches("valid_from").count(),
            1,
            "{}",
            again.text
        );
        assert!(
            again.text.contains(
                "price_rules = [{ valid_from = \"2027-01-01\", usdt_mtok = { input = \"7\" } }]"
            ),
            "{}",
            again.text
        );
        let refused = priced("deepseek-flash", &four, Some("2027-01-01")).apply(FILE);
        assert!(refused.unwrap_err().starts_with("valid_from: "));
    }

    #[test]
    fn removing_a_vendor_removes_its_routes_and_models() {
        let edit = Edit::RemoveVendor { vendor: "v".into() };
        let lines = changed(&edit);
        assert!(lines.contains(&"-# another".to_owned()), "{lines:?}");
        assert!(lines.contains(&"-id = \"n\"".to_owned()), "{lines:?}");
        assert!(
            lines
                .last()
                .unwrap()
                .ends_with("no other vendor serves them: n."),
            "{lines:?}"
        );
        let text = edit.apply(FILE).unwrap().text;
        assert!(
            text.contains("{ vendor = \"deepseek\" }") && !text.contains("\"v\""),
            "{text}"
        );
        for stored in ["# ours", "# the first vendor", "# two routes", "# the end"] {
            assert!(text.contains(stored), "{stored}: {text}");
        }
    }

    #[test]
    fn comments_above_a_removed_section_are_kept_if_an_empty_line_follows() {
        let file =
            "[admin]\n# about the models\n\n# of m\n[[model]]\nid = \"m\"\n[[model]]\nid = \"n\"\n";
        let of = |model: &str| {
            Edit::RemoveModel {
                model: model.into(),
            }
            .apply(file)
            .unwrap()
            .text
        };
        assert_eq!(of("m").matches('#').count(), 1, "{}", of("m"));
        assert_eq!(of("n").matches('#').count(), 2, "{}", of("n"));
    }

    #[test]
    fn edit_of_an_unknown_vendor_or_model_is_refused() {
        for edit in [
            Edit::RemoveVendor { vendor: "x".into() },
            Edit::RemoveModel { model: "x".into() },
            priced("x", &[], None),
            Edit::AddModels {
                vendor: "v".into(),
                args: VendorArgs::default(),
            },
        ] {
            edit.apply(FILE).unwrap_err();
        }
    }
}
