//! What receipts come to: one sum, whoever asks for it.

use serde::{Deserialize, Serialize};

use super::Latency;
use crate::{
    contract::{Booked, JournalLine, Receipt},
    usage::{End, Usage},
};

/// What calls used and cost. Money is in micro-rubles.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sums {
    /// Calls that were charged.
    #[serde(rename = "n", skip_serializing_if = "is_zero")]
    pub calls: u64,
    /// Of these, those whose answer the vendor cut or failed in.
    #[serde(rename = "f", skip_serializing_if = "is_zero")]
    pub failed_calls: u64,
    /// Of these, those whose usage is an estimate.
    #[serde(rename = "e", skip_serializing_if = "is_zero")]
    pub estimated_calls: u64,
    /// Tokens by class.
    #[serde(rename = "u", skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
    /// What was charged.
    #[serde(rename = "c", skip_serializing_if = "is_zero")]
    pub charged_micro: i128,
    /// What they cost beyond that.
    #[serde(rename = "l", skip_serializing_if = "is_zero")]
    pub loss_micro: i128,
    /// Of the calls, those of which it is known what the vendor takes. The next two are of these alone.
    #[serde(rename = "k", skip_serializing_if = "is_zero")]
    pub cost_known_calls: u64,
    /// What the vendors take.
    #[serde(rename = "v", skip_serializing_if = "is_zero")]
    pub vendor_cost_micro: i128,
    /// What was charged for the same calls, less that.
    #[serde(rename = "g", skip_serializing_if = "is_zero")]
    pub margin_micro: i128,
    /// From the request to the end: of the calls whose receipts say it. Sums that an earlier version made go without.
    #[serde(rename = "w", skip_serializing_if = "Latency::is_none")]
    pub whole: Latency,
    /// The same to the first byte of the answer.
    #[serde(rename = "b", skip_serializing_if = "Latency::is_none")]
    pub first_byte: Latency,
}

impl Sums {
    /// Of one call.
    #[must_use]
    pub fn of(receipt: &Receipt) -> Self {
        let item = &receipt.item;
        let charged = i128::from(receipt.charged_rub.micro());
        let vendor_cost = item.vendor_cost_rub.map(|cost| i128::from(cost.micro()));
        let timeline = item.timeline.as_ref();
        let whole = timeline.map(|times| Latency::of_ms(times.whole_ms));
        let first_byte = timeline.and_then(|times| times.first_byte_ms);
        Self {
            calls: 1,
            failed_calls: u64::from(is_failed(item.end)),
            estimated_calls: u64::from(item.estimated),
            usage: item.usage,
            charged_micro: charged,
            loss_micro: i128::from(receipt.loss_rub.micro()),
            cost_known_calls: u64::from(vendor_cost.is_some()),
            vendor_cost_micro: vendor_cost.unwrap_or_default(),
            margin_micro: vendor_cost.map_or(0, |cost| charged - cost),
            whole: whole.unwrap_or_default(),
            first_byte: first_byte.map(Latency::of_ms).unwrap_or_default(),
        }
    }

    /// Adds another sum.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.failed_calls += other.failed_calls;
        self.estimated_calls += other.estimated_calls;
        self.usage = self.usage.plus(&other.usage);
        self.charged_micro += other.charged_micro;
        self.loss_micro += other.loss_micro;
        self.cost_known_calls += other.cost_known_calls;
        self.vendor_cost_micro += other.vendor_cost_micro;
        self.margin_micro += other.margin_micro;
        self.whole.add(&other.whole);
        self.first_byte.add(&other.first_byte);
    }

    /// Whether these are the sums of what `receipts` come to: all but how long they took, which may be known of some of
    /// them only. A version that does not know of it writes sums without it.
    pub(super) fn agree_with(&self, receipts: &Self) -> bool {
        let timed = [&self.whole, &self.first_byte];
        let of = [&receipts.whole, &receipts.first_byte];
        timed.iter().zip(of).all(|(some, all)| some.is_within(all))
            && self.same_but_for_times(receipts)
    }

    /// The same of two sums that were made of the same receipts.
    pub(super) fn same_but_for_times(&self, other: &Self) -> bool {
        let Self {
            whole, first_byte, ..
        } = self;
        let other = Self {
            whole: whole.clone(),
            first_byte: first_byte.clone(),
            ..other.clone()
        };
        *self == other
    }
}

/// Whether an answer that ended so is among [`Sums::failed_calls`].
#[must_use]
pub const fn is_failed(end: End) -> bool {
    matches!(end, End::VendorCut | End::VendorError)
}

/// The receipt of a line, if it counts. A dispute moved nothing and may be of a call that was charged.
pub(crate) fn counted(line: &JournalLine) -> Option<&Receipt> {
    match line {
        JournalLine::Call(receipt) => (receipt.booked != Booked::Stale).then_some(receipt),
        JournalLine::Entry { .. } => None,
    }
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_written_without_what_it_has_none_of_and_read_back() {
        for (sums, json) in [
            (Sums::default(), "{}"),
            (
                Sums {
                    calls: 2,
                    charged_micro: 1 << 70,
                    margin_micro: -7,
                    ..Sums::default()
                },
                r#"{"n":2,"c":1180591620717411303424,"g":-7}"#,
            ),
            (
                Sums {
                    calls: 2,
                    whole: Latency::of_ms(7),
                    first_byte: Latency::of_ms(3),
                    ..Sums::default()
                },
                r#"{"n":2,"w":"7","b":"3"}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&sums).unwrap(), json);
            assert_eq!(serde_json::from_str::<Sums>(json).unwrap(), sums);
        }
    }
}
