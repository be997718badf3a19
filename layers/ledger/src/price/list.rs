//! Price lists: all prices of a model. A list gives an upper bound of a call's cost before the call, and the charge
//! after it.

use std::sync::Arc;

use super::{
    Class, Condition, Counts, Kind, Price, Rate, Rates, Served, Within,
    sum::{micro_millionths, rounded_up},
    time::{CallTimes, PossibleTimes, week_from},
};
use crate::{money::MicroRub, usage::Usage};

/// The prices of a model at one time: the default price, and prices for calls that meet a condition. A call is charged
/// by the list that was in force when the call began.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PriceList {
    /// The default price: the price of a call that meets no condition.
    pub usual: Arc<Price>,
    /// Prices for calls that meet a condition; most models have no such price.
    rules: Option<Arc<[Arc<Price>]>>,
    /// The prices at which vendors bill the operator for the model, if they are configured.
    costs: Option<Arc<[RouteCost]>>,
    /// The charge for a tool call that the vendor made although the caller did not request it, if the list has no rate
    /// for such calls.
    unpriced_call: Rate,
}

/// A vendor's prices for a model, in rubles. They are computed with the same exchange rate as the customers' prices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteCost {
    /// The vendor's name.
    pub vendor: String,
    /// The vendor's name for the model.
    pub model: String,
    /// The vendor's prices.
    pub prices: PriceList,
}

/// The parts of a request that may cost extra: a particular service of the vendor, and usage in rate classes other than
/// ordinary tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// How the caller wants the request to be served; empty labels mean the vendor's default service.
    pub served: Served,
    /// The largest possible count per class. For a class of tokens, every number except zero has the same effect: the
    /// bound on all tokens of the request already limits the tokens of the class.
    pub classes: Counts,
    /// The times at which the call may run; `None` if it may run at any time.
    pub times: Option<PossibleTimes>,
}

/// The part of a request for which the list has no price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpriced {
    /// The request may use this rate class, which has no rate.
    Class(Class),
    /// The request names a service tier that no price of the list has as a condition.
    ServiceTier,
    /// The request names a speed that no price of the list has as a condition.
    Speed,
    /// The request names a region that no price of the list has as a condition.
    InferenceGeo,
}

/// The cost of a call, and how it was computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The cost of `usage` at `price`.
    pub cost: MicroRub,
    /// The price that was applied. It has a rate for each class in `usage`.
    pub price: Arc<Price>,
    /// The usage that is charged. If the price has no separate rate for a class, the usage of that class is counted in
    /// its ordinary class.
    pub usage: Usage,
    /// Whether the vendor reported usage that the list has no price for. Such usage is charged at the highest rate that
    /// could apply to it.
    pub unpriced: bool,
}

impl From<Arc<Price>> for PriceList {
    fn from(usual: Arc<Price>) -> Self {
        Self {
            usual,
            rules: None,
            costs: None,
            unpriced_call: Rate::default(),
        }
    }
}

impl From<Price> for PriceList {
    fn from(usual: Price) -> Self {
        Arc::new(usual).into()
    }
}

impl PriceList {
    /// Adds prices, each of which applies under its own condition. Check the conditions with [`ambiguous`] first: it
    /// finds two conditions that must not be in the same list.
    #[must_use]
    pub fn rules(mut self, rules: impl IntoIterator<Item = Price>) -> Self {
        let rules: Arc<[_]> = rules.into_iter().map(Arc::new).collect();
        self.rules = (!rules.is_empty()).then_some(rules);
        self
    }

    /// Adds the prices that vendors charge the operator.
    #[must_use]
    pub fn costs(mut self, costs: impl IntoIterator<Item = RouteCost>) -> Self {
        let costs: Arc<[_]> = costs.into_iter().collect();
        self.costs = (!costs.is_empty()).then_some(costs);
        self
    }

    /// Sets the charge for a tool call that the vendor made although the caller did not request it, if the list has no
    /// rate for such calls.
    #[must_use]
    pub const fn unpriced_call(mut self, rate: Rate) -> Self {
        self.unpriced_call = rate;
        self
    }

    /// Iterates over all prices, the default price first.
    pub fn prices(&self) -> impl Iterator<Item = &Arc<Price>> {
        std::iter::once(&self.usual).chain(self.rules.iter().flat_map(|rules| rules.iter()))
    }

    /// Returns the prices that vendors charge the operator; empty if they are not configured.
    pub fn route_costs(&self) -> &[RouteCost] {
        self.costs.as_deref().unwrap_or_default()
    }

    /// Returns the usage with two classes counted separately, if some price has a rate for them: reasoning tokens,
    /// which vendors count as output, and the call itself.
    #[must_use]
    pub fn distinguished(&self, mut usage: Usage, reasoning: u64) -> Usage {
        if self.bills(Class::OutputReasoning) {
            let reasoning = reasoning.min(usage.output);
            usage.output -= reasoning;
            *usage.classes.get_mut(Class::OutputReasoning) = reasoning;
        }
        if self.bills(Class::RequestCall) {
            *usage.classes.get_mut(Class::RequestCall) = 1;
        }
        usage
    }

    /// Returns whether a price of the list, or a vendor's price, has a rate for this class.
    fn bills(&self, class: Class) -> bool {
        let costs = self.route_costs().iter();
        let costs = costs.flat_map(|route| route.prices.prices());
        let mut prices = self.prices().chain(costs);
        prices.any(|price| price.classes.get(class).is_some())
    }

    /// Returns the first part of the request for which the list has no price; `None` if the list can price all of it.
    #[must_use]
    pub fn unpriced(&self, extras: &Extras) -> Option<Unpriced> {
        let mut classes = extras.classes.iter().map(|(class, _)| class);
        let class = classes
            .find(|class| class.within().is_none() && self.usual.classes.get(*class).is_none());
        if let Some(class) = class {
            return Some(Unpriced::Class(class));
        }
        self.unknown(&extras.served)
    }

    /// Returns the first field of `served` whose word is not in any condition of the list.
    fn unknown(&self, served: &Served) -> Option<Unpriced> {
        let fields = [
            Unpriced::ServiceTier,
            Unpriced::Speed,
            Unpriced::InferenceGeo,
        ];
        let rules = self.rules.as_deref().unwrap_or_default();
        let mut unpriced = std::iter::zip(fields, served.labels()).enumerate();
        let unpriced = unpriced.find(|(nth, (_, label))| {
            let has_label = |price: &Arc<Price>| price.condition.labels()[*nth] == *label;
            !label.is_empty() && !rules.iter().any(has_label)
        });
        unpriced.map(|(_, (field, _))| field)
    }

    /// Returns the prices that may apply to a request with at most `input_tokens` input tokens. Prices are left out if
    /// another price certainly applies instead, for example the default price in the hours of another price.
    pub fn may_apply<'a>(
        &'a self,
        input_tokens: u64,
        extras: &'a Extras,
    ) -> impl Iterator<Item = &'a Arc<Price>> {
        let Extras { served, times, .. } = extras;
        let times = times.as_ref();
        // At least the condition of the default price certainly applies, because it has no limits.
        let certain = self.prices().map(|price| &price.condition);
        let certain = certain.filter(move |condition| condition.must_hold(times));
        let least = certain.map(Condition::rank).max();
        self.prices().filter(move |price| {
            let condition = &price.condition;
            condition.can_hold(input_tokens, served, times) && Some(condition.rank()) >= least
        })
    }

    /// Returns rates that bound every possible charge of a request with at most `input_tokens` input tokens, however
    /// the vendor serves it.
    #[must_use]
    pub fn bound(&self, input_tokens: u64, extras: &Extras) -> Bound {
        let prices = self.may_apply(input_tokens, extras);
        let bounds = prices.map(|price| Bound::for_classes(price, &extras.classes));
        let bound = bounds.reduce(Bound::max);
        bound.unwrap_or_else(|| Bound::for_classes(&self.usual, &extras.classes))
    }

    /// Returns the price that an ordinary call at this time has: a call with a short input, on the vendor's default
    /// service.
    #[must_use]
    pub fn in_force(&self, at_ms: u64) -> &Arc<Price> {
        self.holding(0, &Served::default(), &CallTimes::at(at_ms))
    }

    /// Returns the Unix time in milliseconds after `after_ms` at which the price of ordinary calls changes next; `None`
    /// if it never changes.
    #[must_use]
    pub fn changes_at(&self, after_ms: u64) -> Option<u64> {
        if !self.prices().any(|price| price.condition.has_time()) {
            return None;
        }
        let now = self.in_force(after_ms);
        let dates = (self.prices()).filter_map(|price| price.condition.valid_from_ms);
        let dates = dates.filter(|from_ms| *from_ms > after_ms);
        // Each date may bring prices with other hours. Hours repeat weekly, so one week after each date is checked.
        let changes = std::iter::once(after_ms)
            .chain(dates)
            .filter_map(|from_ms| {
                let mut times = std::iter::once(from_ms).chain(week_from(from_ms));
                times.find(|at_ms| *at_ms >= from_ms && !Arc::ptr_eq(self.in_force(*at_ms), now))
            });
        changes.min()
    }

    /// Returns the most that a request can cost, however the vendor serves it. The input has been counted; the output
    /// has at most `output` tokens. `None` if the input has a class without a rate.
    #[must_use]
    pub fn bound_counted(&self, input: &Usage, output: u64, extras: &Extras) -> Option<MicroRub> {
        let prices = self.may_apply(input.input_total(), extras);
        let mut costs = prices.map(|price| {
            let (input, missing) = price.apart(*input);
            let output = Bound::for_classes(price, &extras.classes).cost(0, output);
            missing
                .is_none()
                .then(|| price.cost(&input).plus_or_max(output))
        });
        costs.try_fold(MicroRub::ZERO, |most, cost| Some(most.max(cost?)))
    }

    /// Returns the charge for `usage` of a call at these times that the vendor served as `served`.
    #[must_use]
    pub fn charge(&self, usage: Usage, served: &Served, times: &CallTimes) -> Charge {
        self.charge_at_least(usage, served, times, None)
    }

    /// Returns the charge of a call that this vendor served, and the vendor's cost if the vendor's prices are
    /// configured. Usage without a price is charged at no less than the vendor's rate.
    #[must_use]
    pub fn charge_of(
        &self,
        usage: Usage,
        served: &Served,
        times: &CallTimes,
        vendor: &str,
        model: &str,
    ) -> (Charge, Option<MicroRub>) {
        let of_route = |it: &&RouteCost| it.vendor == vendor && it.model == model;
        let Some(route) = self.route_costs().iter().find(of_route) else {
            return (self.charge(usage, served, times), None);
        };
        let taken = route.prices.charge(usage, served, times);
        let charge = self.charge_at_least(usage, served, times, Some(&taken.price));
        (charge, Some(taken.cost))
    }

    fn charge_at_least(
        &self,
        usage: Usage,
        served: &Served,
        times: &CallTimes,
        taken: Option<&Price>,
    ) -> Charge {
        let (mut price, mut unpriced) = self.met(usage.input_total(), served, times, taken);
        let usage = match usage.classes.is_empty() {
            true => usage,
            false => {
                let (usage, covered) = price.apart(usage);
                if let Some(classes) = covered {
                    price = Arc::new(self.covering(&price, classes, taken));
                    unpriced = true;
                }
                usage
            }
        };
        Charge {
            cost: price.cost(&usage),
            price,
            usage,
            unpriced,
        }
    }

    /// Returns the price with the most specific condition among the conditions that a call meets.
    fn holding(&self, input_tokens: u64, served: &Served, times: &CallTimes) -> &Arc<Price> {
        let holds = |price: &&Arc<Price>| price.condition.holds(input_tokens, served, times);
        let met = self.prices().filter(holds);
        let met = met.max_by_key(|price| price.condition.rank());
        met.unwrap_or(&self.usual)
    }

    /// Returns the price of a call with this number of input tokens that the vendor served in this way. If the list has
    /// no price for such a call, the returned flag is true and the returned price has the highest rate of each class.
    fn met(
        &self,
        input_tokens: u64,
        served: &Served,
        times: &CallTimes,
        taken: Option<&Price>,
    ) -> (Arc<Price>, bool) {
        if self.rules.is_none() && *served == Served::default() {
            return (Arc::clone(&self.usual), false);
        }
        let served = served.unusual();
        let unknown = self.unknown(&served).is_some();
        if !unknown {
            return (
                Arc::clone(self.holding(input_tokens, &served, times)),
                false,
            );
        }
        // The vendor reported an unknown tier or speed, but this model costs the same in every tier and at every speed.
        if self.rules.is_none() && !served.is_dearer() {
            return (Arc::clone(&self.usual), false);
        }
        let all = self.prices().map(|price| &**price).chain(taken);
        let dearest = all.fold(Price::clone(&self.usual), |dearest, price| {
            dearest.max(price)
        });
        (Arc::new(dearest), true)
    }

    /// Returns a copy of the price that also has a rate for each class in `classes`.
    fn covering(&self, price: &Price, classes: Counts, taken: Option<&Price>) -> Price {
        let mut price = price.clone();
        let (input, output) = (price.dearest(Kind::Input), price.dearest(Kind::Output));
        for (class, _) in classes.iter() {
            let covers = match class.kind() {
                Kind::Input => input,
                Kind::Output => output,
                Kind::Call => self.unpriced_call,
            };
            let taken = taken.and_then(|taken| taken.classes.get(class));
            *price.classes.get_mut(class) = Some(covers.max(taken.unwrap_or_default()));
        }
        price
    }
}

/// Finds two conditions that conflict: some calls meet both, neither condition is more specific than the other, and the
/// list has no condition that exactly these calls meet.
#[must_use]
pub fn ambiguous(conditions: &[Condition]) -> Option<(Condition, Condition)> {
    let pairs = conditions.iter().enumerate().flat_map(|(index, one)| {
        let others = conditions[index + 1..].iter();
        others.map(move |other| (*one, *other))
    });
    pairs
        .filter_map(|(one, other)| Some((one, other, one.and(&other)?)))
        .find(|(one, other, both)| one == other || !conditions.contains(both))
        .map(|(one, other, _)| (one, other))
}

/// Rates that bound every possible charge of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    input: Rate,
    output: Rate,
    /// The cost of all tool calls that the vendor may make on the caller's request, in millionths of a micro-ruble.
    calls: u128,
}

impl Bound {
    fn for_classes(price: &Price, classes: &Counts) -> Self {
        let mut bound = Self {
            input: price.input.max(price.cached_input).max(price.cache_write),
            output: price.output,
            calls: 0,
        };
        if price.classes.is_empty() {
            return bound;
        }
        for (class, rate) in price.classes.iter() {
            let (count, rate) = (class.possible(classes), rate.unwrap_or_default());
            match class.kind() {
                _ if count == 0 => {}
                Kind::Input => bound.input = bound.input.max(rate),
                Kind::Output => bound.output = bound.output.max(rate),
                Kind::Call => {
                    bound.calls = bound
                        .calls
                        .saturating_add(micro_millionths(class, count, rate));
                }
            }
        }
        bound
    }

    fn max(self, other: Self) -> Self {
        Self {
            input: self.input.max(other.input),
            output: self.output.max(other.output),
            calls: self.calls.max(other.calls),
        }
    }

    /// Returns the largest possible cost of this number of input and output tokens, including all requested tool calls.
    #[must_use]
    pub fn cost(&self, input: u64, output: u64) -> MicroRub {
        rounded_up(
            self.input_cost(input)
                .saturating_add(u128::from(output) * u128::from(self.output.micro())),
        )
    }

    /// Returns how many output tokens `amount` pays for, after it has paid for `input` input tokens.
    #[must_use]
    pub fn output_tokens_for(&self, amount: MicroRub, input: u64) -> u64 {
        let micro = u128::try_from(amount.micro()).unwrap_or(0) * 1_000_000;
        match (
            micro.saturating_sub(self.input_cost(input)),
            self.output.micro(),
        ) {
            (_, 0) => u64::MAX,
            (left, rate) => u64::try_from(left / u128::from(rate)).unwrap_or(u64::MAX),
        }
    }

    fn input_cost(&self, input: u64) -> u128 {
        (u128::from(input) * u128::from(self.input.micro())).saturating_add(self.calls)
    }
}

impl Price {
    /// For each class without a rate in this price, counts the usage of the class in its ordinary class. Also returns
    /// the remaining counts: those of classes with neither a rate nor an ordinary class.
    fn apart(&self, mut usage: Usage) -> (Usage, Option<Counts>) {
        for class in Class::ALL {
            let (Some(within), None) = (class.within(), self.classes.get(class)) else {
                continue;
            };
            let count = std::mem::take(usage.classes.get_mut(class));
            let whole = match within {
                Within::Input => &mut usage.input,
                Within::CachedInput => &mut usage.cached_input,
                Within::Output => &mut usage.output,
                Within::Class(class) => usage.classes.get_mut(class),
                Within::Nothing => continue,
            };
            *whole = whole.saturating_add(count);
        }
        let missing = usage.classes.iter();
        let missing: Counts = missing
            .filter(|(class, _)| self.classes.get(*class).is_none())
            .collect();
        (usage, (!missing.is_empty()).then_some(missing))
    }

    fn dearest(&self, kind: Kind) -> Rate {
        let own = match kind {
            Kind::Input => self.input.max(self.cached_input).max(self.cache_write),
            Kind::Output => self.output,
            Kind::Call => Rate::default(),
        };
        let others = (self.classes.iter()).filter(|(class, _)| class.kind() == kind);
        others.filter_map(|(_, rate)| rate).fold(own, Rate::max)
    }

    /// Returns a price without a condition that has, for each class, the higher one of the two rates.
    fn max(self, other: &Self) -> Self {
        let classes = Class::ALL
            .into_iter()
            .map(|class| (class, self.classes.get(class).max(other.classes.get(class))));
        let classes: Rates = classes.collect();
        Self {
            input: self.input.max(other.input),
            cached_input: self.cached_input.max(other.cached_input),
            output: self.output.max(other.output),
            cache_write: self.cache_write.max(other.cache_write),
            classes,
            condition: Condition::default(),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::price::{Hours, Moment, Weekdays};

    const TIERS: [&str; 5] = ["", "flex", "priority", "default", "on_demand"];
    const SPEEDS: [&str; 3] = ["", "fast", "standard"];

    fn price(rates: [u64; 4]) -> Price {
        let [input, cached_input, output, cache_write] = rates.map(Rate::new);
        Price {
            input,
            cached_input,
            output,
            cache_write,
            ..Price::default()
        }
    }

    fn under(condition: Condition, rates: [u64; 4]) -> Price {
        Price {
            condition,
            ..price(rates)
        }
    }

    fn above(tokens: u64) -> Condition {
        Condition {
            above_input_tokens: Some(tokens),
            ..Condition::default()
        }
    }

    fn tier(word: &str) -> Condition {
        Condition {
            service_tier: word.into(),
            ..Condition::default()
        }
    }

    fn served(service_tier: &str, speed: &str) -> Served {
        Served {
            service_tier: service_tier.into(),
            speed: speed.into(),
            ..Served::default()
        }
    }

    fn input(tokens: u64) -> Usage {
        Usage {
            input: tokens,
            ..Usage::default()
        }
    }

    const M: u64 = 1_000_000;
    const NOW: CallTimes = CallTimes::at(1_795_996_800_000);

    #[test]
    fn call_has_the_price_of_the_most_specific_condition_that_it_meets() {
        let prices = PriceList::from(price([M, 0, M, M])).rules([
            under(above(200), [2 * M, 0, M, M]),
            under(above(500), [3 * M, 0, M, M]),
            under(tier("flex"), [M / 2, 0, M, M]),
            under(tier("flex").and(&above(200)).unwrap(), [M * 5, 0, M, M]),
        ]);
        for (tokens, how, cost) in [
            (200, "", 200),
            (201, "default", 402),
            (501, "", 1503),
            (100, "flex", 50),
            (300, "flex", 1500),
        ] {
            let charge = prices.charge(input(tokens), &served(how, ""), &NOW);
            assert_eq!(
                (charge.cost.micro(), charge.unpriced),
                (cost, false),
                "{tokens} {how}"
            );
        }
        assert_eq!(
            prices
                .charge(input(501), &Served::default(), &NOW)
                .price
                .condition,
            above(500)
        );
    }

    #[test]
    fn unpriced_usage_is_charged_at_the_highest_rate_that_could_apply() {
        let prices = PriceList::from(Price {
            classes: Rates::default().with(Class::InputAudio, Some(Rate::new(4 * M))),
            ..price([M, 0, 2 * M, 3 * M])
        })
        .rules([Price {
            classes: Rates::default().with(Class::InputAudio, Some(Rate::new(2 * M))),
            ..under(tier("flex"), [M / 2, 0, M, 8 * M])
        }])
        .unpriced_call(Rate::new(7));
        let dearest = prices.charge(input(10), &served("priority", ""), &NOW);
        assert_eq!((dearest.cost.micro(), dearest.unpriced), (10, true));
        assert_eq!(dearest.price.cache_write, Rate::new(8 * M));
        for (class, cost) in [
            (Class::CacheWrite1h, 40),
            (Class::CacheWrite12h, 40),
            (Class::InputAudio, 40),
            (Class::InputImage, 10),
            (Class::OutputAudio, 20),
            (Class::OutputImage, 20),
            (Class::WebSearchCall, 70),
            (Class::CachedInputAudio, 40),
            (Class::CachedInputImage, 0),
            (Class::OutputReasoning, 20),
            (Class::RequestCall, 0),
        ] {
            let usage = Usage {
                classes: Counts::default().with(class, 10),
                ..Usage::default()
            };
            let charge = prices.charge(usage, &Served::default(), &NOW);
            let priced = class == Class::InputAudio || class.within().is_some();
            assert_eq!(
                (charge.cost.micro(), charge.unpriced),
                (cost, !priced),
                "{class}"
            );
            assert_eq!(charge.price.cost(&charge.usage), charge.cost, "{class}");
        }
    }

    #[test]
    fn unknown_tier_is_charged_at_the_default_price_if_the_list_has_no_tiers() {
        let prices = PriceList::from(price([M, 0, M, M]));
        for (word, unpriced) in [
            ("", false),
            ("on_demand", false),
            ("performance", false),
            ("priority", true),
        ] {
            let charge = prices.charge(input(10), &served(word, ""), &NOW);
            assert_eq!(
                (charge.cost.micro(), charge.unpriced),
                (10, unpriced),
                "{word}"
            );
        }
    }

    #[test]
    fn unpriced_usage_is_charged_at_least_what_the_vendor_charges() {
        let dear =
            PriceList::from(price([M, 0, M, M])).rules([under(tier("priority"), [9 * M, 0, M, M])]);
        let prices = PriceList::from(price([2 * M, 0, M, M])).costs([RouteCost {
            vendor: "v".into(),
            model: "m".into(),
            prices: dear,
        }]);
        let (charge, taken) = prices.charge_of(input(10), &served("priority", ""), &NOW, "v", "m");
        assert_eq!((charge.cost.micro(), charge.unpriced), (90, true));
        assert_eq!(taken.map(MicroRub::micro), Some(90));
        let (charge, taken) = prices.charge_of(input(10), &Served::default(), &NOW, "v", "m");
        assert_eq!(
            (charge.cost.micro(), taken.map(MicroRub::micro)),
            (20, Some(10))
        );
        let (_, taken) = prices.charge_of(input(10), &Served::default(), &NOW, "v", "other");
        assert_eq!(taken, None);
    }

    #[test]
    fn refusal_names_the_part_of_the_request_that_has_no_price() {
        let prices = PriceList::from(Price {
            classes: Rates::default().with(Class::CacheWrite1h, Some(Rate::new(M))),
            ..price([M; 4])
        })
        .rules([under(tier("flex"), [M; 4])]);
        let extras = |class: Option<Class>, service_tier, speed| Extras {
            served: served(service_tier, speed),
            classes: class.map(|class| (class, 1)).into_iter().collect(),
            times: None,
        };
        for (extras, unpriced) in [
            (extras(None, "flex", ""), None),
            (extras(Some(Class::CacheWrite1h), "", ""), None),
            (extras(Some(Class::InputImage), "", ""), None),
            (
                extras(Some(Class::WebSearchCall), "", ""),
                Some(Unpriced::Class(Class::WebSearchCall)),
            ),
            (extras(None, "priority", ""), Some(Unpriced::ServiceTier)),
            (extras(None, "flex", "fast"), Some(Unpriced::Speed)),
        ] {
            assert_eq!(prices.unpriced(&extras), unpriced, "{extras:?}");
        }
    }

    #[test]
    fn overlapping_price_conditions_need_a_price_for_calls_that_meet_both() {
        let both = tier("flex").and(&above(5)).unwrap();
        assert_eq!(
            ambiguous(&[above(5), above(9), tier("flex")]),
            Some((above(5), tier("flex")))
        );
        assert_eq!(ambiguous(&[above(5), tier("flex"), both]), None);
        assert_eq!(ambiguous(&[tier("flex"), tier("priority")]), None);
        assert_eq!(ambiguous(&[above(5), above(5)]), Some((above(5), above(5))));
    }

    /// DeepSeek's prices: on weekdays, some hours cost twice the default price.
    fn with_peak(hours_at: Moment) -> PriceList {
        let peak = Condition {
            hours_utc: Hours::from_spans(&["01:00-04:00", "06:00-10:00"]).unwrap(),
            weekdays: Weekdays::from_names(&["mon", "tue", "wed", "thu", "fri"]).unwrap(),
            hours_at,
            ..Condition::default()
        };
        PriceList::from(price([M, 0, M, M])).rules([under(peak, [2 * M, 0, 2 * M, M])])
    }

    /// Compares, for every minute of a week, the charge, the hold, the price in the catalog and its next change with an
    /// independent calculation.
    #[test]
    fn price_of_every_minute_of_a_week_agrees_with_an_independent_calculation() {
        const MINUTES: u64 = 7 * 24 * 60;
        let is_peak = |minute: u64| {
            let (day, hour) = (minute / 1440 % 7, minute / 60 % 24);
            day < 5 && [1, 2, 3, 6, 7, 8, 9].contains(&hour)
        };
        let ms = |minute: u64| NOW.request_ms + minute * 60_000;
        let prices = with_peak(Moment::Request);
        let mut cost = 0;
        for minute in 0..MINUTES {
            let rate = if is_peak(minute) { 2 } else { 1 };
            let charge = prices.charge(input(10), &Served::default(), &CallTimes::at(ms(minute)));
            assert_eq!(charge.cost.micro(), 10 * rate, "{minute}");
            assert_eq!(charge.price.condition.has_time(), is_peak(minute));
            let extras = Extras {
                times: Some(PossibleTimes {
                    request_ms: ms(minute),
                    end_max_ms: ms(minute + 60),
                }),
                ..Extras::default()
            };
            // The time of the request decides the price, and this time is known, so the hold is exact.
            assert_eq!(prices.bound(10, &extras).cost(10, 0), charge.cost);
            assert_eq!(*prices.in_force(ms(minute)), charge.price);
            if minute % 61 == 0 {
                let next = (minute..).find(|next| is_peak(*next) != is_peak(minute));
                assert_eq!(prices.changes_at(ms(minute) + 59_999), next.map(ms));
            }
            cost += charge.cost.micro();
        }
        assert_eq!(cost, 10 * (10_080 + 35 * 60));
    }

    #[test]
    fn price_with_a_date_comes_into_force_at_the_exact_millisecond() {
        let from_ms = NOW.request_ms + 31 * 86_400_000;
        let dated = Condition {
            valid_from_ms: Some(from_ms),
            ..Condition::default()
        };
        let long = above(100);
        let prices = PriceList::from(price([3 * M, 0, M, M])).rules([
            under(dated, [2 * M, 0, M, M]),
            under(long, [5 * M, 0, M, M]),
            under(dated.and(&long).unwrap(), [4 * M, 0, M, M]),
        ]);
        assert_eq!(prices.changes_at(NOW.request_ms), Some(from_ms));
        assert_eq!(prices.changes_at(from_ms), None);
        for (request_ms, rates) in [(from_ms - 1, [3, 5]), (from_ms, [2, 4])] {
            // A call that was admitted before the change keeps its price, however late it ends.
            let times = CallTimes {
                end_ms: from_ms + 900_000,
                ..CallTimes::at(request_ms)
            };
            let extras = Extras {
                times: Some(PossibleTimes {
                    request_ms,
                    end_max_ms: from_ms + 900_000,
                }),
                ..Extras::default()
            };
            for (tokens, rate) in std::iter::zip([100, 101], rates) {
                let charge = prices.charge(input(tokens), &Served::default(), &times);
                let cost = i64::try_from(tokens).unwrap() * rate;
                assert_eq!(charge.cost.micro(), cost);
                // The hold is computed from neither the old price nor a future price.
                assert_eq!(prices.bound(tokens, &extras).cost(tokens, 0), charge.cost);
                let condition = charge.price.condition;
                assert_eq!(condition.valid_from_ms.is_some(), request_ms == from_ms);
                let json = serde_json::to_string(&condition).unwrap();
                assert_eq!(serde_json::from_str::<Condition>(&json).unwrap(), condition);
            }
        }
    }

    #[test]
    fn setting_decides_which_moment_of_a_call_across_a_peak_hour_boundary_sets_its_price() {
        // `NOW` is Monday, 30 November 2026, 00:00 UTC.
        let at = |hour: u64, minute: u64| NOW.request_ms + (hour * 60 + minute) * 60_000;
        // The columns are: the minutes of the request, the first byte and the end; the cost of a token if the first,
        // the second or the third of these moments decides; the hold if a call may take ten minutes.
        for (times, costs, hold) in [
            // The first byte or the end comes exactly at the minute in which the hours begin (01:00, 06:00) or end
            // (04:00, 10:00).
            ([at(0, 55), at(0, 59), at(1, 0)], [1, 1, 2], 2),
            ([at(0, 55), at(1, 0), at(1, 1)], [1, 2, 2], 2),
            ([at(3, 55), at(3, 59), at(4, 0)], [2, 2, 1], 2),
            ([at(3, 55), at(4, 0), at(4, 1)], [2, 1, 1], 2),
            ([at(5, 59), at(5, 59), at(6, 0)], [1, 1, 2], 2),
            ([at(9, 59), at(10, 0), at(10, 0)], [2, 1, 1], 2),
            // It is certain that the call ends outside the hours only if its latest possible end is outside them.
            ([at(0, 45), at(0, 46), at(0, 47)], [1, 1, 1], 1),
            ([at(1, 0), at(1, 1), at(1, 2)], [2, 2, 2], 2),
            ([at(10, 0), at(10, 1), at(10, 2)], [1, 1, 1], 1),
            // The hours apply on a Friday and on a Monday, but not on a Saturday.
            ([at(96, 59), at(97, 0), at(97, 1)], [1, 2, 2], 2),
            ([at(121, 0), at(121, 1), at(121, 2)], [1, 1, 1], 1),
            ([at(168, 59), at(168, 59), at(169, 0)], [1, 1, 2], 2),
        ] {
            let [request_ms, first_byte_ms, end_ms] = times;
            let possible = PossibleTimes {
                request_ms,
                end_max_ms: request_ms + 10 * 60_000,
            };
            let extras = Extras {
                times: Some(possible),
                ..Extras::default()
            };
            let moments = [Moment::Request, Moment::FirstByte, Moment::End];
            for (moment, cost) in std::iter::zip(moments, costs) {
                let prices = with_peak(moment);
                let times = possible.narrowed(Some(first_byte_ms), end_ms);
                let charge = prices.charge(input(1), &Served::default(), &times);
                assert_eq!(charge.cost.micro(), cost, "{times:?} {moment:?}");
                let held = prices.bound(1, &extras).cost(1, 0).micro();
                let hold = if moment == Moment::Request {
                    cost
                } else {
                    hold
                };
                assert_eq!(held, hold, "{times:?} {moment:?}");
            }
        }
    }

    fn rates() -> impl Strategy<Value = [u64; 4]> {
        prop::array::uniform4(0u64..10_000_000_000)
    }

    /// Generates a condition with hours and weekdays; sometimes with every weekday, sometimes with all hours.
    fn hours() -> impl Strategy<Value = Condition> {
        let minute = || 0u16..1440;
        let spans = prop::collection::vec((minute(), 1u16..1440), 0..3);
        let days =
            prop::sample::subsequence(vec!["mon", "tue", "wed", "thu", "fri", "sat", "sun"], 0..=7);
        (spans, days).prop_map(|(spans, days)| {
            let span = |(first, length): (u16, u16)| {
                let end = (first + length) % 1440;
                format!(
                    "{:02}:{:02}-{:02}:{:02}",
                    first / 60,
                    first % 60,
                    end / 60,
                    end % 60
                )
            };
            let spans: Vec<_> = spans.into_iter().map(span).collect();
            Condition {
                hours_utc: Hours::from_spans(&spans).unwrap(),
                weekdays: Weekdays::from_names(&days).unwrap(),
                ..Condition::default()
            }
        })
    }

    /// Generates a condition with a date in the two weeks in which the generated calls begin; sometimes without a date.
    fn dated() -> impl Strategy<Value = Condition> {
        prop::option::of(0u64..20_160 * 60_000).prop_map(|ms| Condition {
            valid_from_ms: ms.map(|ms| NOW.request_ms + ms),
            ..Condition::default()
        })
    }

    fn moment() -> impl Strategy<Value = Moment> {
        prop::sample::select(vec![Moment::Request, Moment::FirstByte, Moment::End])
    }

    /// Generates a price list. It has a price for each combination of two words in two label fields, one token
    /// threshold and two sets of hours.
    fn list() -> impl Strategy<Value = PriceList> {
        let price = || (rates(), prop::array::uniform11(0u64..10_000_000_000));
        let words = prop::sample::subsequence(vec!["flex", "priority"], 0..=2);
        (
            price(),
            words,
            any::<bool>(),
            any::<bool>(),
            prop::collection::vec(price(), 144),
            1u64..2000,
            (hours(), hours(), moment(), dated(), dated()),
        )
            .prop_map(
                |(
                    usual,
                    words,
                    fast,
                    long,
                    rest,
                    threshold,
                    (one, other, moment, first, second),
                )| {
                    let make = |condition, (rates, classes): ([u64; 4], [u64; 11])| Price {
                        classes: std::iter::zip(Class::ALL, classes)
                            .map(|(class, rate)| (class, Some(Rate::new(rate))))
                            .collect(),
                        ..under(condition, rates)
                    };
                    let with_moment = |mut hours: Condition| {
                        if hours.has_hours() {
                            hours.hours_at = moment;
                        }
                        hours
                    };
                    let [one, other] = [one, other].map(with_moment);
                    let times = [
                        Some(Condition::default()),
                        Some(one),
                        Some(other),
                        one.and(&other),
                    ];
                    let speeds = if fast { vec!["", "fast"] } else { vec![""] };
                    let mut words = words;
                    words.push("");
                    let mut conditions = Vec::new();
                    for word in &words {
                        for speed in &speeds {
                            for above_input_tokens in [None, long.then_some(threshold)] {
                                let served = Condition {
                                    above_input_tokens,
                                    service_tier: (*word).into(),
                                    speed: (*speed).into(),
                                    ..Condition::default()
                                };
                                let dates = [Condition::default(), first, second];
                                let times = times.into_iter().flatten();
                                let times =
                                    times.flat_map(|time| dates.map(|date| time.and(&date)));
                                for time in times {
                                    let condition = time.unwrap().and(&served).unwrap();
                                    if !condition.is_empty() && !conditions.contains(&condition) {
                                        conditions.push(condition);
                                    }
                                }
                            }
                        }
                    }
                    assert_eq!(ambiguous(&conditions), None);
                    let rules = conditions
                        .into_iter()
                        .zip(rest)
                        .map(|(condition, it)| make(condition, it));
                    PriceList::from(make(Condition::default(), usual)).rules(rules)
                },
            )
    }

    proptest! {
        /// Checks that the hold covers the charge, whatever the vendor responds to the request.
        #[test]
        fn hold_is_never_less_than_the_charge(
            prices in list(),
            asked_tier in prop::sample::select(&TIERS[..]), asked_speed in prop::sample::select(&SPEEDS[..]),
            same in any::<(bool, bool)>(),
            asked_classes in prop::array::uniform11(0u64..3),
            parts in prop::array::uniform11(0u64..1000), output in 0u64..1000, spare in (0u64..50, 0u64..50),
            // `request` is a minute within two weeks. The others are in minutes after the request: `longest` is the
            // latest allowed end; `answer` is the first byte and the end, both of which may be later than `longest`.
            request in 0u64..20_160, longest in 0u64..12_000, answer in (0u64..200, 0u64..20_000), known in any::<bool>(),
        ) {
            let minute = |minute: u64| NOW.request_ms + minute * 60_000;
            let possible = PossibleTimes { request_ms: minute(request), end_max_ms: minute(request + longest) };
            let end_ms = minute(request + answer.1);
            let times = possible.narrowed((answer.0 < answer.1).then(|| minute(request + answer.0)), end_ms);
            let extras = Extras {
                served: served(asked_tier, asked_speed).unusual(),
                classes: std::iter::zip(Class::ALL, asked_classes).collect(),
                times: known.then_some(possible),
            };
            prop_assume!(prices.unpriced(&extras).is_none());
            // The vendor serves the call either with the requested tier and speed or with its default ones.
            let how = served(if same.0 { asked_tier } else { "default" }, if same.1 { asked_speed } else { "" });
            let mut usage = Usage { input: parts[0], cached_input: parts[1], cache_write: parts[2], output, ..Usage::default() };
            for ((class, most), count) in std::iter::zip(Class::ALL, asked_classes).zip(parts) {
                *usage.classes.get_mut(class) = match class.kind() {
                    Kind::Call => count.min(most),
                    _ if most > 0 || class == Class::InputImage || class == Class::OutputReasoning => count,
                    _ => 0,
                };
            }
            // A request that uses images or cached audio declares them. Each call counts as one use of the class
            // `request_call`.
            usage.classes = usage.classes.with(Class::RequestCall, 1);
            let extras = Extras { classes: extras.classes.with(Class::InputImage, 1).with(Class::InputAudio, 1), ..extras };
            let (most_input, most_output) = (usage.input_total() + spare.0, usage.output_total() + spare.1);
            let bound = prices.bound(most_input, &extras);
            let charge = prices.charge(usage, &how, &times);
            prop_assert!(!charge.unpriced);
            prop_assert!(charge.cost <= bound.cost(most_input, most_output), "{charge:?} {bound:?}");
            prop_assert_eq!(charge.price.cost(&charge.usage), charge.cost);
            prop_assert!(prices.may_apply(most_input, &extras).any(|price| price.condition == charge.price.condition));
            // The condition in the receipt holds at the times in the receipt, so an audit can check it.
            prop_assert!(charge.price.condition.holds(charge.usage.input_total(), &how.unusual(), &times));
        }

        #[test]
        fn prices_change_at_the_time_that_the_catalog_announces(prices in list(), from in 0u64..10_080) {
            let from = NOW.request_ms + from * 60_000 + 1;
            let price = prices.in_force(from);
            let mut minute = from - 1;
            // Four weeks: two weeks contain all dates, and the weekly hours repeat in the two weeks after them.
            let expected = (0..=40_320).find_map(|_| {
                let is_other = prices.in_force(minute) != price;
                minute += 60_000;
                is_other.then(|| minute - 60_000)
            });
            // A date need not fall on a full minute.
            let change = prices.changes_at(from);
            prop_assert_eq!(change.map(|ms| ms.next_multiple_of(60_000)), expected);
            if let Some(ms) = change {
                prop_assert!(prices.in_force(ms) != price && prices.in_force(ms - 1) == price);
            }
        }

        #[test]
        fn usage_of_each_class_adds_to_the_charge(prices in list(), counts in prop::array::uniform11(0u64..5), word in prop::sample::select(&TIERS[..])) {
            let usage = Usage { classes: std::iter::zip(Class::ALL, counts).collect(), ..Usage::default() };
            let least = prices.prices().flat_map(|price| {
                [price.input].into_iter().chain(price.classes.iter().map(|(_, rate)| rate.unwrap()))
            }).min().unwrap();
            let charge = prices.charge(usage, &served(word, ""), &NOW);
            prop_assert!(charge.cost.micro() as u128 * 1_000_000 >= counts.iter().map(|it| u128::from(*it)).sum::<u128>() * u128::from(least.micro()));
        }

        #[test]
        fn output_tokens_computed_for_an_amount_cost_at_most_this_amount(
            rates in prop::array::uniform4(1u64..10_000_000_000),
            amount in 0i64..10_000_000_000, input in 0u64..1_000_000,
        ) {
            let bound = PriceList::from(price(rates)).bound(input, &Extras::default());
            let amount = MicroRub::new(amount);
            let output = bound.output_tokens_for(amount, input);
            if bound.cost(input, 0) <= amount {
                prop_assert!(bound.cost(input, output) <= amount);
                prop_assert!(bound.cost(input, output + 1) >= amount);
            }
        }
    }
}
