//! Computes what the sales of a period would have been with other tariff multipliers: one for USDT prices, one for
//! ruble prices.
//!
//! A price is the vendor's base price times the exchange rate times the multiplier, rounded up at its sixth decimal, so
//! a charge is proportional to the multiplier. Each interval is scaled from the multiplier that was in force in it. For
//! customers with their own multiplier, the computation assumes that this multiplier changes in proportion.

use std::{collections::BTreeMap, ops::Range};

use http::StatusCode;
use rust_decimal::Decimal;

use super::{
    api::Refused,
    pages::{DAY_MS, HOUR_MS},
    views::{UsageRow, micro},
};
use crate::{
    config::{MULTIPLIER_MAX, Tariff},
    text::rubles::Rubles,
};

/// A model's sales, and what they would have been at another multiplier.
pub(super) struct WhatIf {
    pub(super) model: String,
    pub(super) calls: u64,
    pub(super) charged: String,
    /// The margin of the sales; `None` if the vendors' costs are unknown.
    pub(super) margin: Option<String>,
    pub(super) then_charged: String,
    pub(super) then_margin: Option<String>,
}

/// Returns the multiplier that was entered in the form, or the multiplier in force if none was entered.
pub(super) fn asked_for(text: &str, now_has: Decimal) -> Result<Decimal, Refused> {
    if text.is_empty() {
        return Ok(now_has);
    }
    let multiplier = text.parse().ok();
    multiplier
        .filter(|it| *it > Decimal::ZERO && *it <= MULTIPLIER_MAX.into())
        .ok_or_else(|| Refused {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            text: format!(
                "Multiplier: enter a number above 0 and at most {MULTIPLIER_MAX}, for example 1.25."
            ),
        })
}

pub(super) fn beyond_reckoning() -> Refused {
    Refused {
        status: StatusCode::UNPROCESSABLE_ENTITY,
        text: "Multiplier: enter a smaller number, because the sums would be too large.".into(),
    }
}

/// An interval of the requested period, with the multipliers that were in force in it, in order of time. Most intervals
/// have only one multiplier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PricedInterval<M = Tariff>(Vec<(Range<u64>, M)>);

impl<M: Copy> PricedInterval<M> {
    pub(super) fn time(&self) -> Range<u64> {
        let (first, last) = (&self.0[0].0, &self.0[self.0.len() - 1].0);
        first.start..last.end
    }

    pub(super) fn parts(&self) -> &[(Range<u64>, M)] {
        &self.0
    }

    /// Returns the multipliers that were in force for the longest part of the interval.
    pub(super) fn mostly(&self) -> M {
        let longest = self.0.iter().max_by_key(|(part, _)| part.end - part.start);
        longest.expect("a priced interval has at least one part").1
    }
}

/// Splits a period into intervals by the multipliers in force. `changes` has each multiplier with the time at which it
/// came into force, earliest first; the first multiplier also applies to the time before it. A day or an hour in which
/// the multiplier changes becomes an interval of its own, so that all other intervals consist of whole days and hours.
pub(super) fn intervals<M: Copy + PartialEq>(
    time: Range<u64>,
    changes: &[(u64, M)],
) -> Vec<PricedInterval<M>> {
    let (mut ends, mut cuts) = (vec![time.start, time.end], Vec::new());
    for pair in changes.windows(2) {
        let at = pair[1].0;
        if pair[0].1 != pair[1].1 {
            for step in [DAY_MS, HOUR_MS] {
                ends.extend([at - at % step, at.next_multiple_of(step)]);
            }
            cuts.push(at);
        }
    }
    let in_force = |at: u64| {
        let begun = changes.iter().rev().find(|(since, _)| *since <= at);
        begun.or(changes.first()).map(|(_, multiplier)| *multiplier)
    };
    let parts = |interval: Range<u64>| {
        let within = cuts.iter().copied().filter(|at| interval.contains(at));
        let cuts = ordered(within.chain([interval.start, interval.end]), &interval);
        let pairs = cuts.windows(2);
        let parts = pairs.map(|pair| Some((pair[0]..pair[1], in_force(pair[0])?)));
        parts.collect::<Option<Vec<_>>>().map(PricedInterval)
    };
    let ends = ordered(ends, &time);
    let pairs = ends.windows(2);
    pairs.filter_map(|pair| parts(pair[0]..pair[1])).collect()
}

/// Returns those of the interval ends that are within the period or at its end, sorted and without duplicates.
fn ordered(ends: impl IntoIterator<Item = u64>, time: &Range<u64>) -> Vec<u64> {
    let ends = ends.into_iter();
    let mut ends: Vec<u64> = ends
        .filter(|end| time.contains(end) || *end == time.end)
        .collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// The sales by model, and what they would have been at another multiplier.
#[derive(Default)]
pub(super) struct Reckoning {
    by_model: BTreeMap<String, Sums>,
}

#[derive(Default)]
struct Sums {
    calls: u64,
    charged: i128,
    margin: Option<i128>,
    then_charged: i128,
    then_margin: Option<i128>,
}

impl Reckoning {
    /// Adds a model's sales that were made at the multiplier `from`. Returns `None` if their value at the multiplier
    /// `to` is too large to compute.
    pub(super) fn add(&mut self, row: &UsageRow, from: Decimal, to: Decimal) -> Option<()> {
        let charged = micro(&row.sums.charged_rub);
        let margin = row.sums.margin_rub.as_deref().map(micro);
        let cost = row.sums.vendor_cost_rub.as_deref().map(micro);
        let then_charged = moved(charged, from, to)?;
        let then_margin = match margin.zip(cost) {
            // Margin and cost cover the same calls: those whose vendor cost is known.
            Some((margin, cost)) => Some(moved(margin + cost, from, to)? - cost),
            None => None,
        };
        let model = row.model.clone().unwrap_or_default();
        let sums = self.by_model.entry(model).or_default();
        sums.calls += row.sums.calls;
        sums.charged += charged;
        sums.then_charged += then_charged;
        let known = [
            (&mut sums.margin, margin),
            (&mut sums.then_margin, then_margin),
        ];
        for (sum, part) in known {
            if let Some(part) = part {
                *sum.get_or_insert(0) += part;
            }
        }
        Some(())
    }

    pub(super) fn rows(self) -> Vec<WhatIf> {
        let text = |micro: i128| Rubles(micro).to_string();
        let rows = self.by_model.into_iter().map(|(model, sums)| WhatIf {
            model,
            calls: sums.calls,
            charged: text(sums.charged),
            margin: sums.margin.map(text),
            then_charged: text(sums.then_charged),
            then_margin: sums.then_margin.map(text),
        });
        rows.collect()
    }
}

/// Computes `micro × to / from`, rounded once.
fn moved(micro: i128, from: Decimal, to: Decimal) -> Option<i128> {
    let moved = Decimal::try_from_i128_with_scale(micro, 0)
        .ok()?
        .checked_mul(to)?
        .checked_div(from)?;
    i128::try_from(moved.round()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(margin: bool) -> UsageRow {
        let mut row = json!({
            "model": "m", "calls": 3, "failed_calls": 0, "charged_rub": "115.00",
            "usage": {"input": 1, "cached_input": 0, "cache_write": 0, "output": 2},
            "cost_known_calls": 0, "margin_rub": null, "vendor_cost_rub": null,
        });
        if margin {
            // The cost is known only for some of the calls.
            row["margin_rub"] = "15.00".into();
            row["cost_known_calls"] = 1.into();
            row["vendor_cost_rub"] = "77.00".into();
        }
        serde_json::from_value(row).unwrap()
    }

    fn reckoned(parts: &[(UsageRow, &str)], to: &str) -> Option<WhatIf> {
        let mut sold = Reckoning::default();
        for (row, from) in parts {
            sold.add(row, from.parse().unwrap(), to.parse().unwrap())?;
        }
        sold.rows().pop()
    }

    #[test]
    fn changed_multiplier_scales_charges_but_not_costs() {
        let then = reckoned(&[(row(true), "1.15")], "1.265").unwrap();
        assert_eq!(then.then_charged, "126.50");
        // The expected margin is 92 × 1.1 − 77.
        assert_eq!(then.then_margin.as_deref(), Some("24.20"));
        assert_eq!(then.margin.as_deref(), Some("15.00"));
        let same = reckoned(&[(row(true), "1.15")], "1.15").unwrap();
        assert_eq!(
            (same.then_charged, same.then_margin),
            (same.charged, same.margin)
        );
        let unknown = reckoned(&[(row(false), "1.15")], "1.265").unwrap();
        assert_eq!((unknown.margin, unknown.then_margin), (None, None));
    }

    #[test]
    fn charges_of_an_interval_are_scaled_from_the_multiplier_that_was_then_in_force() {
        let parts = [(row(true), "1.15"), (row(true), "2.30"), (row(false), "1")];
        let then = reckoned(&parts, "2.30").unwrap();
        assert_eq!((then.calls, &*then.charged), (9, "345.00"));
        // The expected charge is 230 + 115 + 264.50.
        assert_eq!(then.then_charged, "609.50");
        assert_eq!(then.margin.as_deref(), Some("30.00"));
        // The expected margins are 184 − 77, and 92 − 77.
        assert_eq!(then.then_margin.as_deref(), Some("122.00"));
    }

    #[test]
    fn period_is_split_where_the_day_and_the_hour_of_a_multiplier_change_begin_and_end() {
        let [one, two] = [Decimal::ONE, Decimal::TWO];
        let noon = 10 * DAY_MS + DAY_MS / 2;
        let past_noon = noon + HOUR_MS / 4;
        let days = |days: Range<u64>| days.start * DAY_MS..days.end * DAY_MS;
        let whole = |time, multiplier| PricedInterval(vec![(time, multiplier)]);
        // Each row has changes of the multiplier, and the intervals into which these changes split the period of ten
        // days (5 to 14).
        for (changes, found) in [
            (vec![], vec![]),
            (vec![(noon, one)], vec![whole(days(5..15), one)]),
            (vec![(0, one)], vec![whole(days(5..15), one)]),
            // The new version of the tariff has other prices, but the same multiplier.
            (vec![(0, two), (noon, two)], vec![whole(days(5..15), two)]),
            (
                vec![(0, one), (noon, two)],
                vec![
                    whole(days(5..10), one),
                    whole(10 * DAY_MS..noon, one),
                    whole(noon..11 * DAY_MS, two),
                    whole(days(11..15), two),
                ],
            ),
            (
                vec![(0, one), (past_noon, two)],
                vec![
                    whole(days(5..10), one),
                    whole(10 * DAY_MS..noon, one),
                    PricedInterval(vec![
                        (noon..past_noon, one),
                        (past_noon..noon + HOUR_MS, two),
                    ]),
                    whole(noon + HOUR_MS..11 * DAY_MS, two),
                    whole(days(11..15), two),
                ],
            ),
            // The multiplier changed at a midnight, which splits no day, and once long before these days.
            (
                vec![(0, one), (DAY_MS, two), (10 * DAY_MS, one)],
                vec![whole(days(5..10), two), whole(days(10..15), one)],
            ),
        ] {
            assert_eq!(intervals(days(5..15), &changes), found, "{changes:?}");
        }
    }

    #[test]
    fn interval_with_several_multipliers_uses_the_one_that_was_in_force_longest() {
        let [one, two] = [Decimal::ONE, Decimal::TWO];
        for (until, mostly) in [(10, two), (90, one)] {
            let interval = PricedInterval(vec![(0..until, one), (until..100, two)]);
            assert_eq!((interval.mostly(), interval.time()), (mostly, 0..100));
        }
    }

    #[test]
    fn price_at_another_multiplier_is_not_shown_if_it_cannot_be_computed() {
        assert!(reckoned(&[(row(true), "0")], "1").is_none());
        let max = Decimal::MAX.to_string();
        assert!(reckoned(&[(row(true), "1")], &max).is_none());
    }
}
