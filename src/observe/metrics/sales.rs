//! Counters of sales: calls by how they ended, tokens and rubles. They are incremented when calls are settled, without
//! delaying callers.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use foldhash::fast::FixedState;
use parking_lot::RwLock;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use tollgate_ledger::{
    contract::{Settled, Settlement},
    money::MicroRub,
    price,
    rollup::Counted,
    usage::{End, StoppedBy, Usage},
};

use super::{
    families::{NameLabels, WordLabel},
    parts::Rubles,
};
use crate::catalog::snapshot::Snapshot;

/// The label under which calls that cost nothing are counted: their holds were released.
const RELEASED: &str = "released";
/// Label of calls whose model or vendor no configuration of this process has named.
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

/// Counters of sales: calls, tokens, holds, charges and losses.
#[derive(Debug, Default)]
pub(crate) struct Sales {
    known: RwLock<Known>,
    none: Arc<str>,
    /// The series of all models that no configuration has named, created with the first call of such a model.
    of_none: OnceLock<OfModel>,
    calls: Family<Call, Counter>,
    tokens: Family<Class, Counter>,
    held: Family<NameLabels<1>, Rubles>,
    charged: Family<NameLabels<1>, Rubles>,
    loss: Rubles,
    overruns: Counter,
    estimated: Counter,
    bounded: Counter,
    unpriced: Counter,
    vendor_cost: Family<NameLabels<1>, Rubles>,
    /// The amounts charged for the calls whose cost is in `vendor_cost`. A margin can be computed only for these calls.
    charged_at_cost: Family<NameLabels<1>, Rubles>,
    unpriced_input: Counter,
    /// Streams that ended early because a larger hold was refused, by the reason on their receipt.
    stopped: Family<WordLabel, Counter>,
}

/// The names of models and vendors in the configuration in force and in earlier ones, because calls in flight may still
/// use an earlier configuration.
#[derive(Debug, Default)]
struct Known {
    models: HashMap<Arc<str>, OfModel, FixedState>,
    vendors: HashSet<Arc<str>, FixedState>,
}

/// The label of a model, and the series to which each call of this model adds.
#[derive(Debug)]
struct OfModel {
    label: Arc<str>,
    /// The token counters of the model, in the order of [`classes`].
    tokens: [Counter; 4],
    held: Rubles,
    charged: Rubles,
    /// The maximum input, in tokens, to which the model's price applies.
    input_tokens_priced_max: Option<u64>,
    /// Counters of finished calls by vendor, for each vendor that the model has or had.
    finished: Vec<(Arc<str>, Counter)>,
}

impl OfModel {
    fn finished(&self, vendor: &str) -> Option<&Counter> {
        let found = self.finished.iter().find(|(name, _)| **name == *vendor);
        found.map(|(_, calls)| calls)
    }
}

impl Sales {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let sales = Self {
            none: NONE.into(),
            ..Self::default()
        };
        for why in StoppedBy::ALL {
            drop(sales.stopped(why));
        }
        series! { registry, sales:
            calls "tollgate_calls" "Calls that held money, by model, by vendor and by how they ended";
            tokens "tollgate_tokens" "Tokens of settled calls by class; each token counts in one class";
            held "tollgate_held_rubles" "Amounts that charged calls held at their start";
            charged "tollgate_charged_rubles" "Amounts charged for calls";
            loss "tollgate_loss_rubles" "Parts of call costs that could not be charged, including the costs of vendor counts that were cut";
            overruns "tollgate_overruns" "Calls that cost more than their hold";
            estimated "tollgate_estimated_calls" "Calls whose usage was missing or implausible, and was estimated or bounded";
            bounded "tollgate_bounded_calls" "Calls whose token counts from the vendor were reduced, because they exceeded what the request allows";
            unpriced "tollgate_unpriced_calls" "Calls whose vendor reported usage for which the model has no price";
            vendor_cost "tollgate_vendor_cost_rubles" "Vendor costs of calls whose vendor price is in the configuration";
            charged_at_cost "tollgate_charged_at_known_cost_rubles" "Amounts charged for calls whose vendor price is in the configuration";
            unpriced_input "tollgate_unpriced_input_calls" "Calls with more input tokens than input_tokens_priced_max, the most that their hold covered";
            stopped "tollgate_stopped_calls" "Streams with a growing hold that were stopped, because a larger hold was refused";
        }
        sales
    }

    fn stopped(&self, why: StoppedBy) -> Counter {
        self.stopped
            .get_or_create_owned(&[("stopped_by", why.as_str())])
    }

    /// Creates the labels and series of all models in the snapshot. Series of earlier configurations are kept.
    pub(super) fn follow(&self, snapshot: &Snapshot) {
        let mut known = self.known.write();
        let Known { models, vendors } = &mut *known;
        for model in snapshot.models_with_costs() {
            self.cost(&Arc::from(model.id.as_str()));
        }
        for (model, _) in snapshot.models() {
            let series = models
                .entry(Arc::from(model.id.as_str()))
                .or_insert_with_key(|label| self.of_model(label));
            series.input_tokens_priced_max = model.input_tokens_priced_max;

            for route in &model.routes {
                let vendor = &route.vendor.name;
                vendors.insert(Arc::clone(vendor));
                if series.finished(vendor).is_none() {
                    let calls = self.call(&series.label, vendor, End::Finished.as_str());
                    series.finished.push((Arc::clone(vendor), calls));
                }
            }
        }
    }

    /// Counts a settled call: its tokens, its charge and how it ended.
    pub(crate) fn settled(&self, settlement: &Settlement, settled: &Settled) {
        let item = &settlement.item;
        let known = self.known.read();
        let of_none = || self.of_none.get_or_init(|| self.of_model(&self.none));
        let model = known.models.get(item.model.as_str());
        let model = model.unwrap_or_else(of_none);
        let finished = model.finished(&item.vendor);
        match finished.filter(|_| item.end == End::Finished) {
            Some(calls) => calls.inc(),
            None => {
                let vendor = self.vendor(&known, Some(&item.vendor));
                self.call(&model.label, vendor, item.end.as_str()).inc()
            }
        };
        for (series, (_, tokens)) in model.tokens.iter().zip(classes(&item.usage)) {
            series.inc_by(tokens);
        }
        // Few models use these further classes, so their series are created with the first call that uses them.
        for (class, count) in item.usage.classes.iter() {
            self.tokens(&model.label, class.name()).inc_by(count);
        }
        if let Some(cost) = item.vendor_cost_rub {
            let (vendor_cost, charged) = self.cost(&model.label);
            vendor_cost.inner().add(micro(cost));
            charged.inner().add(micro(settled.charged));
        }
        model.held.inner().add(micro(settlement.held));
        model.charged.inner().add(micro(settled.charged));
        let loss = Counted::loss(settled.loss, item.bounded_loss_rub);
        self.loss.inner().add(micro(loss));
        for (counter, counts) in [
            (&self.overruns, settlement.cost > settlement.held_at_end()),
            (&self.estimated, item.estimated),
            (&self.bounded, item.bounded),
            (&self.unpriced, item.unpriced),
        ] {
            counter.inc_by(counts.into());
        }
        if let Some(why) = item.stopped_by {
            self.stopped(why).inc();
        }
        // A call can have at most `input_tokens_priced_max` tokens of input per step, and each web search adds a step.
        let searches = item.usage.classes.get(price::Class::WebSearchCall);
        let steps = searches.saturating_add(1);
        let is_unpriced = |max: u64| item.usage.input_total() > max.saturating_mul(steps);
        if model.input_tokens_priced_max.is_some_and(is_unpriced) {
            self.unpriced_input.inc();
        }
    }

    /// Counts a call that was released because it cost nothing.
    pub(crate) fn released(&self, model: Option<&str>, vendor: Option<&str>) {
        let known = self.known.read();
        let (model, vendor) = (self.model(&known, model), self.vendor(&known, vendor));
        self.call(model, vendor, RELEASED).inc();
    }

    fn model<'a>(&'a self, known: &'a Known, name: Option<&str>) -> &'a Arc<str> {
        let model = name.and_then(|name| known.models.get(name));
        model.map_or(&self.none, |model| &model.label)
    }

    fn vendor<'a>(&'a self, known: &'a Known, name: Option<&str>) -> &'a Arc<str> {
        let vendor = name.and_then(|name| known.vendors.get(name));
        vendor.unwrap_or(&self.none)
    }

    fn of_model(&self, label: &Arc<str>) -> OfModel {
        OfModel {
            label: Arc::clone(label),
            tokens: classes(&Usage::default()).map(|(class, _)| self.tokens(label, class)),
            held: self.rubles(&self.held, label),
            charged: self.rubles(&self.charged, label),
            input_tokens_priced_max: None,
            finished: Vec::new(),
        }
    }

    fn call(&self, model: &Arc<str>, vendor: &Arc<str>, end: &'static str) -> Counter {
        let labels = Call {
            model: Arc::clone(model),
            vendor: Arc::clone(vendor),
            end,
        };
        self.calls.get_or_create_owned(&labels)
    }

    fn tokens(&self, model: &Arc<str>, class: &'static str) -> Counter {
        let labels = Class {
            model: Arc::clone(model),
            class,
        };
        self.tokens.get_or_create_owned(&labels)
    }

    /// Returns two counters of a model: the vendor cost of its calls, and the amounts charged for the same calls.
    fn cost(&self, model: &Arc<str>) -> (Rubles, Rubles) {
        let families = [&self.vendor_cost, &self.charged_at_cost];
        families.map(|family| self.rubles(family, model)).into()
    }

    fn rubles(&self, family: &Family<NameLabels<1>, Rubles>, model: &Arc<str>) -> Rubles {
        family.get_or_create_owned(&[("model", Arc::clone(model))])
    }
}

const fn classes(usage: &Usage) -> [(&'static str, u64); 4] {
    [
        ("input", usage.input),
        ("cached_input", usage.cached_input),
        ("cache_write", usage.cache_write),
        ("output", usage.output),
    ]
}

/// Returns an amount in micro-rubles for a counter. A negative amount counts as zero, because counters cannot decrease.
fn micro(amount: MicroRub) -> u64 {
    u64::try_from(amount.micro()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tollgate_ledger::{
        contract::Booked,
        testing::given::{micro as rubles, settlement},
    };

    use super::*;
    use crate::catalog::snapshot::tests::live;

    #[test]
    fn only_configured_names_are_metric_labels() {
        let sales = Sales::register(&mut Registry::default());
        sales.follow(&live().snapshot());
        let known = sales.known.read();
        assert_eq!(&**sales.model(&known, Some("z-first")), "z-first");
        assert_eq!(&**sales.vendor(&known, Some("v")), "v");
        for unknown in [None, Some("Z-first"), Some("")] {
            assert_eq!(&**sales.model(&known, unknown), "none", "{unknown:?}");
            assert_eq!(&**sales.vendor(&known, unknown), "none", "{unknown:?}");
        }
    }

    #[test]
    fn settled_call_adds_its_tokens_and_rubles_to_the_metrics() {
        let sales = Sales::register(&mut Registry::default());
        let mut settlement = settlement(1, "k1", 100);
        settlement.item.model = "z-first".into();
        settlement.item.usage.output = 7;
        settlement.item.estimated = true;
        settlement.item.stopped_by = Some(StoppedBy::Ceiling);
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
        let model = Arc::from("z-first");
        assert_eq!(sales.tokens(&model, "output").get(), 14);
        assert_eq!(
            sales.rubles(&sales.charged, &model).get().to_string(),
            "0.00024"
        );
        // Each of the two settlements loses 10 µ₽ that could not be charged, and 19 µ₽ that were cut from the vendor's
        // counts.
        assert_eq!(sales.loss.get().to_string(), "0.000058");
        assert_eq!((sales.overruns.get(), sales.estimated.get()), (2, 2));
        let stopped = StoppedBy::ALL.map(|why| sales.stopped(why).get());
        assert_eq!(stopped, [0, 2, 0, 0, 0]);
    }

    #[test]
    fn settled_call_is_counted_under_its_model_and_its_vendor_and_its_end_reason() {
        let sales = Sales::register(&mut Registry::default());
        sales.follow(&live().snapshot());
        let mut settlement = settlement(1, "k1", 100);
        let settled = Settled {
            booked: Booked::Held,
            charged: rubles(100),
            loss: rubles(0),
            repeated: false,
        };
        for (model, vendor, end, labels) in [
            ("z-first", "v", End::Finished, ["z-first", "v"]),
            ("z-first", "v", End::ClientLeft, ["z-first", "v"]),
            ("z-first", "gone", End::Finished, ["z-first", "none"]),
            ("gone", "v", End::Finished, ["none", "v"]),
        ] {
            // A reload of the configuration removes no series.
            sales.follow(&live().snapshot());
            settlement.item.model = model.into();
            settlement.item.vendor = vendor.into();
            settlement.item.end = end;
            sales.settled(&settlement, &settled);
            let [model, vendor] = labels.map(Arc::<str>::from);
            let calls = sales.call(&model, &vendor, end.as_str());
            assert_eq!(calls.get(), 1, "{labels:?} {end:?}");
        }
        let tokens = |model: &str| sales.tokens(&Arc::from(model), "output").get();
        assert_eq!((tokens("z-first"), tokens("none")), (42, 14));
    }
}
