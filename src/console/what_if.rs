//! What another multiplier would have brought: the charges of a time, by proportion.
//!
//! A price is the vendor's base price times the exchange rate times the multiplier, rounded up in its sixth digit, so a charge
//! moves with the multiplier. Customers with a multiplier of their own count as if theirs moved along.

use rust_decimal::Decimal;

use super::views::{UsageRow, micro};
use crate::text::rubles::Rubles;

/// A model's sales, and what they would have come to.
pub(super) struct WhatIf {
    pub(super) model: String,
    pub(super) calls: u64,
    pub(super) charged: String,
    /// Where it is known what the vendors took.
    pub(super) margin: Option<String>,
    pub(super) then_charged: String,
    pub(super) then_margin: Option<String>,
}

impl WhatIf {
    /// By the model, at the multiplier `to` in place of `from`; `None` where that is beyond what can be reckoned.
    pub(super) fn of(row: &UsageRow, from: Decimal, to: Decimal) -> Option<Self> {
        let sums = &row.sums;
        let charged = micro(&sums.charged_rub);
        let margin = sums.margin_rub.as_deref().map(micro);
        let cost = sums.vendor_cost_rub.as_deref().map(micro);
        let then_margin = match margin.zip(cost) {
            // Of the same calls: those of which the cost is known.
            Some((margin, cost)) => Some(moved(margin + cost, from, to)? - cost),
            None => None,
        };
        let text = |micro: i128| Rubles(micro).to_string();
        Some(Self {
            model: row.model.clone().unwrap_or_default(),
            calls: sums.calls,
            charged: text(charged),
            margin: margin.map(text),
            then_charged: text(moved(charged, from, to)?),
            then_margin: then_margin.map(text),
        })
    }
}

/// `micro × to / from`, rounded once.
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
            "margin_rub": null, "vendor_cost_rub": null,
        });
        if margin {
            // Of a part of the calls.
            row["margin_rub"] = "15.00".into();
            row["vendor_cost_rub"] = "77.00".into();
        }
        serde_json::from_value(row).unwrap()
    }

    #[test]
    fn charges_move_with_the_multiplier_and_costs_do_not() {
        let (from, to) = ("1.15".parse().unwrap(), "1.265".parse().unwrap());
        let then = WhatIf::of(&row(true), from, to).unwrap();
        assert_eq!(then.then_charged, "126.50");
        // 92 × 1.1 − 77
        assert_eq!(then.then_margin.as_deref(), Some("24.20"));
        assert_eq!(then.margin.as_deref(), Some("15.00"));
        let same = WhatIf::of(&row(true), from, from).unwrap();
        assert_eq!(
            (same.then_charged, same.then_margin),
            (same.charged, same.margin)
        );
        let unknown = WhatIf::of(&row(false), from, to).unwrap();
        assert_eq!((unknown.margin, unknown.then_margin), (None, None));
    }

    #[test]
    fn what_cannot_be_reckoned_is_not_shown() {
        assert!(WhatIf::of(&row(true), Decimal::ZERO, Decimal::ONE).is_none());
        assert!(WhatIf::of(&row(true), Decimal::ONE, Decimal::MAX).is_none());
    }
}
