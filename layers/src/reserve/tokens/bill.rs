//! Charges a model call by its usage, within the bounds of its request.

use std::sync::{Arc, OnceLock};

use super::estimate::InputEstimator;
use crate::{
    endpoint::Endpoint,
    model::Model,
    money::MicroRub,
    price::{Bound, Class, Counts, Extras, PossibleTimes, Price, PriceList},
    reserve::{
        Bill,
        early::EarlyCounts,
        ledger::Item,
        prefixes::{Prefix, Prefixes},
    },
    session::SessionId,
    unix_time::unix_ms,
    usage::{Bounds, Counted, End, EstimateInput, Overcount, Reading, Usage},
};

/// The data of a model call from which its charge is computed.
#[derive(Debug)]
pub struct TokenBill {
    /// The amount that is held for the call.
    pub(super) held: MicroRub,
    pub(super) prices: PriceList,
    pub(super) bound: Bound,
    /// The service tier, speed and region that the request names, and the rate classes that the call may use.
    pub(super) extras: Extras,
    /// The times at which the call may end.
    pub(super) times: PossibleTimes,
    pub(super) model: Arc<Model>,
    pub(super) bounds: Bounds,
    pub(super) session: Option<SessionId>,
    /// Whether the response is a stream.
    pub(super) stream: bool,
    /// Estimates the input if the vendor does not report it, and remembers which share of the input was in the vendor's
    /// cache.
    pub(super) estimator: Option<Arc<InputEstimator>>,
    /// The call's conversation, and the memory in which the vendor's count of its input is stored.
    pub(super) prefix: Option<(Arc<Prefixes>, Prefix)>,
    pub(super) early: Arc<EarlyCounts>,
    /// The vendor's first count of the input, which arrived before the response.
    pub(super) stated: OnceLock<Usage>,
    pub(super) endpoint: Endpoint,
}

impl Bill for TokenBill {
    /// A call that finished costs the usage that the vendor reports, within the bounds of the request. A call that
    /// broke off, or whose client disconnected, costs its input and the output that arrived; usage that the vendor has
    /// not reported is estimated. If nothing was delivered or reported, the call is charged only if the client
    /// disconnected, and then only for its input.
    fn charge(&self, reading: &Reading) -> Option<(MicroRub, Item)> {
        self.charge_at(reading, unix_ms())
    }

    /// Returns the most that the call can still cost after the vendor has counted the input: the cost of this input and
    /// of the maximum output. `None` while the vendor may still add input, or if it is unknown whether this vendor's
    /// first counts are final.
    fn cost_max(&self, reading: &Reading) -> Option<MicroRub> {
        self.cost_counted(reading, self.bounds.output_covered())
    }

    /// Returns the most that the call can cost with this output. The input is the vendor's count if this count may be
    /// used, or else the bound of the input.
    fn cost_within(&self, reading: &Reading, output_tokens: u64) -> Option<MicroRub> {
        self.bounds.growing.as_ref()?;
        let counted = self.cost_counted(reading, output_tokens);
        Some(counted.unwrap_or_else(|| self.bound.cost(self.bounds.input_bound, output_tokens)))
    }
}

impl TokenBill {
    /// Returns the cost of the input that the vendor has counted, and of this output. `None` if the vendor's count
    /// cannot be used.
    fn cost_counted(&self, reading: &Reading, output: u64) -> Option<MicroRub> {
        let searches = |counts: &Counts| counts.get(Class::WebSearchCall);
        let reported = reading.usage?;
        let may_add = searches(&self.extras.classes) + searches(&reported.classes) > 0;
        if may_add || reading.suspect || reading.unknown || reported.input_total() == 0 {
            return None;
        }
        // This count arrived at the end of the response. So it does not show whether this vendor's first counts are
        // final.
        if reading.end.is_some() {
            return None;
        }
        let Counted {
            usage, overcount, ..
        } = self.bounds.count(reading);
        let input = usage.input_alone();
        if overcount.is_some() || input.input_total() > self.bounds.input_bound {
            return None;
        }
        let input = *self.stated.get_or_init(|| input);
        let vendor = reading.vendor.as_deref().unwrap_or_default();
        if !self.early.are_final(vendor, &self.model.id) {
            return None;
        }
        let served = reading.served.unusual();
        let extras = [self.extras.served, served].map(|served| Extras {
            served,
            ..self.extras
        });
        let most = extras.map(|extras| self.prices.bound_counted(&input, output, &extras));
        Some(most[0]?.max(most[1]?))
    }

    /// Returns the charge of the call if it ends at `now_ms`.
    pub(super) fn charge_at(&self, reading: &Reading, now_ms: u64) -> Option<(MicroRub, Item)> {
        if !reading.dispatched {
            return None;
        }
        let end = reading.end.unwrap_or(End::ClientLeft);
        let delivered = reading.text_bytes > 0 || end == End::Finished || reading.answered;
        let left = end == End::ClientLeft || reading.client_gone;
        let nothing_counted = reading.usage.is_none_or(|usage| usage.is_zero());
        if nothing_counted && !delivered && !left {
            return None;
        }
        let Counted {
            usage,
            estimated,
            overcount,
        } = self.bounds.count(reading);
        if usage.is_zero() {
            return None;
        }
        if !estimated {
            self.remember(&usage, reading);
        }
        let vendor = reading.vendor.as_deref().unwrap_or_default();
        let vendor_model = reading.vendor_model.as_deref().unwrap_or_default();
        let served = match reading.translated {
            // Translation sends neither the service tier nor the speed nor the region to a vendor of another format.
            true => reading.served,
            false => reading.served.or_asked(self.extras.served),
        };
        let times = self.times.narrowed(reading.first_byte_at_ms, now_ms);
        let price = |usage| {
            let usage = self.prices.distinguished(usage, reading.reasoning);
            (self.prices).charge_of(usage, &served, &times, vendor, vendor_model)
        };
        let paid_for = self.with_searches_paid_for(usage, |usage| price(usage).0.cost);
        let overcount = overcount.or((paid_for != usage).then_some(Overcount {
            reported: usage,
            billable: usage,
        }));
        let (charge, mut vendor_cost_rub) = price(paid_for);
        let bounded_loss_rub = overcount.map(|overcount| {
            let (billable, vendor_cost) = price(overcount.billable);
            // The vendor bills the tokens that it has counted, even if the caller is charged less.
            vendor_cost_rub = vendor_cost;
            billable.cost.minus_or_zero(charge.cost)
        });
        let item = Item {
            model: self.model.id.clone(),
            vendor: vendor.to_owned(),
            usage: charge.usage,
            price: Some(charge.price),
            estimated,
            bounded: overcount.is_some(),
            unpriced: charge.unpriced || reading.unknown,
            vendor_cost_rub,
            vendor_usage: overcount.map(|overcount| overcount.reported),
            bounded_loss_rub,
            // The settler adds the amounts of the hold to the receipt.
            held_max_rub: None,
            held_at_end_rub: None,
            stopped_by: reading.stopped_by,
            end,
            session: self.session.clone(),
            endpoint: Some(self.endpoint),
            // The settler adds the times of the call to the receipt.
            timeline: None,
        };
        Some((charge.cost, item))
    }

    /// Records what the vendor's usage of this call shows about later calls.
    fn remember(&self, usage: &Usage, reading: &Reading) {
        if let Some(estimator) = &self.estimator {
            estimator.remember(usage);
        }
        if reading.end != Some(End::Finished) || reading.stopped_by.is_some() {
            return;
        }
        if let Some((prefixes, prefix)) = self.prefix.as_ref().filter(|_| !reading.translated) {
            prefixes.remember(*prefix, usage.input_total());
        }
        if let Some(stated) = self.stated.get() {
            let cost = |usage: &Usage| self.prices.usual.cost(usage);
            let input = usage.input_alone();
            let is_within =
                input.input_total() <= stated.input_total() && cost(&input) <= cost(stated);
            let vendor = reading.vendor.as_deref().unwrap_or_default();
            self.early.record(vendor, &self.model.id, is_within);
        }
    }

    /// If the request offers no web search, no money was held for searches. Then the number of searches is reduced to
    /// the number that the hold pays for.
    fn with_searches_paid_for(&self, usage: Usage, cost: impl Fn(Usage) -> MicroRub) -> Usage {
        let searches = usage.classes.get(Class::WebSearchCall);
        if searches == 0 || self.bounds.calls_max.is_some() {
            return usage;
        }
        let with = |searches| Usage {
            classes: usage.classes.with(Class::WebSearchCall, searches),
            ..usage
        };
        let mut fewer = (0..=searches).rev().map(with);
        let paid_for = fewer.find(|usage| cost(*usage) <= self.held);
        paid_for.unwrap_or_else(|| with(0))
    }

    /// Estimates the lowest amount to which the hold can be reduced while the call runs: that amount suffices if all
    /// input is in the vendor's cache, and the vendor counts the input before the response. Returns the hold if it will
    /// not be reduced.
    #[must_use]
    pub fn held_min(&self) -> MicroRub {
        let may_lower = self.stream && self.extras.classes.get(Class::WebSearchCall) == 0;
        let mut routes = self.model.routes.iter();
        let is_lowered = may_lower
            && routes.any(|route| self.early.are_final(&route.vendor.name, &self.model.id));
        let (Some(estimator), true) = (&self.estimator, is_lowered) else {
            return self.held;
        };
        let tokens = estimator.estimate().tokens;
        let price = self.prices.in_force(self.times.request_ms);
        let cheapest = Price {
            input: price.input.min(price.cached_input).min(price.cache_write),
            ..Price::default()
        };
        let input = cheapest.cost(&Usage {
            input: tokens,
            ..Usage::default()
        });
        let output = self.bound.cost(0, self.bounds.output_covered());
        input.plus_or_max(output).min(self.held)
    }

    /// Returns all prices that may apply to the call.
    pub fn prices_may_apply(&self) -> impl Iterator<Item = &Arc<Price>> {
        self.prices.may_apply(self.bounds.input_bound, &self.extras)
    }

    /// Returns the number of input tokens that the hold pays for, in all rate classes together.
    #[must_use]
    pub const fn input_tokens_max(&self) -> u64 {
        self.bounds.input_bound
    }

    /// Returns the number of output tokens that the hold pays for after it has grown, in all choices together.
    #[must_use]
    pub const fn output_tokens_max(&self) -> u64 {
        self.bounds.output_bound
    }
}
