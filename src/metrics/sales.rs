//! What was sold: calls by their ends, tokens and rubles. Counted where calls are settled, off the
//! callers' way.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use tollgate_layers::{
    money::MicroRub,
    reserve::ledger::{Settled, Settlement},
    usage::{End, Usage},
};

use super::parts::Rubles;
use crate::live::Snapshot;

/// The end of a call that was released: it cost nothing.
const RELEASED: &str = "released";
/// Nobody that the config names, or ever named in this process.
const NONE: &str = "none";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Call {
    model: Arc<str>,
    vendor: Arc<str>,
    end: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Class {
    model: Arc<str>,
    class: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Model {
    model: Arc<str>,
}

/// The counters of what was sold.
#[derive(Debug)]
pub(crate) struct Sales {
    names: RwLock<Names>,
    none: Arc<str>,
    calls: Family<Call, Counter>,
    tokens: Family<Class, Counter>,
    charged: Family<Model, Rubles>,
    loss: Rubles,
    overruns: Counter,
    estimated: Counter,
}

/// Labels of the names in the config, those of earlier ones too: calls may still run on them.
#[derive(Debug, Default)]
struct Names {
    models: HashMap<String, Arc<str>>,
    vendors: HashMap<String, Arc<str>>,
}

impl Sales {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let sales = Self {
            names: RwLock::default(),
            none: NONE.into(),
            calls: Family::default(),
            tokens: Family::default(),
            charged: Family::default(),
            loss: Rubles::default(),
            overruns: Counter::default(),
            estimated: Counter::default(),
        };
        registry.register(
            "tollgate_calls",
            "Calls that held money, by model, vendor and how they ended",
            sales.calls.clone(),
        );
        registry.register(
            "tollgate_tokens",
            "Tokens of calls that were settled, by class; no token is in two",
            sales.tokens.clone(),
        );
        registry.register(
            "tollgate_charged_rubles",
            "What calls were charged",
            sales.charged.clone(),
        );
        registry.register(
            "tollgate_loss_rubles",
            "What calls cost beyond what could be charged",
            sales.loss.clone(),
        );
        registry.register(
            "tollgate_overruns",
            "Calls that cost more than was held for them",
            sales.overruns.clone(),
        );
        registry.register(
            "tollgate_estimated_calls",
            "Calls whose usage was missing or absurd, and was estimated or bounded",
            sales.estimated.clone(),
        );
        sales
    }

    /// Makes the labels of the models in force, and their series. Those of earlier ones stay.
    pub(super) fn follow(&self, snapshot: &Snapshot) {
        for (model, _) in snapshot.models() {
            let label = {
                let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
                for route in &model.routes {
                    label(&mut names.vendors, &route.vendor.name);
                }
                label(&mut names.models, &model.id)
            };
            for (class, _) in classes(&Usage::default()) {
                drop(self.tokens(&label, class));
            }
            drop(self.charged(&label));
            for route in &model.routes {
                let vendor = self.vendor(Some(&route.vendor.name));
                drop(self.call(&label, vendor, End::Finished.as_str()));
            }
        }
    }

    /// A call was settled.
    pub(crate) fn settled(&self, settlement: &Settlement, settled: &Settled) {
        let item = &settlement.item;
        let model = self.model(Some(&item.model));
        self.call(&model, self.vendor(Some(&item.vendor)), item.end.as_str())
            .inc();
        for (class, tokens) in classes(&item.usage) {
            self.tokens(&model, class).inc_by(tokens);
        }
        self.charged(&model).inner().add(micro(settled.charged));
        self.loss.inner().add(micro(settled.loss));
        if settlement.cost > settlement.held {
            self.overruns.inc();
        }
        if item.estimated {
            self.estimated.inc();
        }
    }

    /// A call was released: it cost nothing.
    pub(crate) fn released(&self, model: Option<&str>, vendor: Option<&str>) {
        self.call(&self.model(model), self.vendor(vendor), RELEASED)
            .inc();
    }

    fn model(&self, name: Option<&str>) -> Arc<str> {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        let known = name.and_then(|name| names.models.get(name));
        Arc::clone(known.unwrap_or(&self.none))
    }

    fn vendor(&self, name: Option<&str>) -> Arc<str> {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        let known = name.and_then(|name| names.vendors.get(name));
        Arc::clone(known.unwrap_or(&self.none))
    }

    fn call(&self, model: &Arc<str>, vendor: Arc<str>, end: &'static str) -> Counter {
        let labels = Call {
            model: Arc::clone(model),
            vendor,
            end,
        };
        self.calls.get_or_create(&labels).clone()
    }

    fn tokens(&self, model: &Arc<str>, class: &'static str) -> Counter {
        let labels = Class {
            model: Arc::clone(model),
            class,
        };
        self.tokens.get_or_create(&labels).clone()
    }

    fn charged(&self, model: &Arc<str>) -> Rubles {
        let labels = Model {
            model: Arc::clone(model),
        };
        self.charged.get_or_create(&labels).clone()
    }
}

fn label(labels: &mut HashMap<String, Arc<str>>, name: &str) -> Arc<str> {
    let label = labels
        .entry(name.to_owned())
        .or_insert_with(|| Arc::from(name));
    Arc::clone(label)
}

const fn classes(usage: &Usage) -> [(&'static str, u64); 4] {
    [
        ("input", usage.input),
        ("cached_input", usage.cached_input),
        ("cache_write", usage.cache_write),
        ("output", usage.output),
    ]
}

/// A counter knows no less than nothing.
fn micro(amount: MicroRub) -> u64 {
    u64::try_from(amount.micro()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tollgate_layers::reserve::{
        ledger::Booked,
        testing::given::{micro as rubles, settlement},
    };

    use super::*;
    use crate::live::tests::live;

    #[test]
    fn only_names_of_the_config_are_labels() {
        let sales = Sales::register(&mut Registry::default());
        sales.follow(&live().snapshot());
        assert_eq!(&*sales.model(Some("z-first")), "z-first");
        assert_eq!(&*sales.vendor(Some("v")), "v");
        for unknown in [None, Some("Z-first"), Some("")] {
            assert_eq!(&*sales.model(unknown), "none", "{unknown:?}");
            assert_eq!(&*sales.vendor(unknown), "none", "{unknown:?}");
        }
    }

    #[test]
    fn a_settled_call_adds_its_tokens_and_its_rubles() {
        let sales = Sales::register(&mut Registry::default());
        let mut settlement = settlement(1, "k1", 100);
        settlement.item.model = "z-first".into();
        settlement.item.usage.output = 7;
        settlement.item.estimated = true;
        settlement.cost = rubles(130);
        settlement.held = rubles(100);
        let settled = Settled {
            booked: Booked::Held,
            charged: rubles(120),
            loss: rubles(10),
            repeated: false,
        };
        sales.follow(&live().snapshot());
        for _ in 0..2 {
            sales.settled(&settlement, &settled);
        }
        let model = sales.model(Some("z-first"));
        assert_eq!(sales.tokens(&model, "output").get(), 14);
        assert_eq!(sales.charged(&model).get().to_string(), "0.00024");
        assert_eq!(sales.loss.get().to_string(), "0.00002");
        assert_eq!((sales.overruns.get(), sales.estimated.get()), (2, 2));
    }
}
