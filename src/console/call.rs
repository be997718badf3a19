//! The page of a call, for example for a dispute about its charge. It shows what was held and charged, how the charge
//! was computed, what the vendor reported, and the times. If the call has no receipt, the page shows this gateway's
//! record of the call.

use std::borrow::Borrow;

use askama::Template;
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use tollgate_layers::{
    money::MicroRub,
    price::{Class, Kind, Price, Rate},
    respond::Language,
    usage::Usage,
};

use super::{
    Answer, Visit,
    api::{Failed, Refused},
    calls::state_in_words,
    pages::{Frame, written},
    texts::english,
    views::{Chapter, story},
};
use crate::{
    admin::Refusal,
    text::language::{grouped, say},
};

/// The times of a call, in milliseconds since its request arrived.
#[derive(Deserialize)]
struct Timeline {
    held_ms: u32,
    attempts: Vec<Attempt>,
    first_byte_ms: Option<u32>,
    whole_ms: u32,
    status: Option<u16>,
    code: Option<String>,
}

#[derive(Deserialize)]
struct Attempt {
    vendor: String,
    at_ms: u32,
    took_ms: u32,
    status: u16,
    code: Option<String>,
}

impl Timeline {
    /// Returns the status and code that the caller received; `None` if the caller had disconnected.
    fn answer(&self) -> Option<String> {
        Some(match (self.status?, &self.code) {
            (status, Some(code)) => format!("{status} {code}"),
            (status, None) => status.to_string(),
        })
    }

    /// Returns a time of the call on a scale from 0 (the request's arrival) to 1000 (the call's end).
    fn place(&self, ms: impl Borrow<u32>) -> u64 {
        let whole = u64::from(self.whole_ms.max(1));
        (u64::from(*ms.borrow()) * 1000 / whole).min(1000)
    }

    /// Returns the width of a part of the call on the scale from 0 to 1000, at least wide enough to be visible.
    fn width(&self, ms: impl Borrow<u32>) -> u64 {
        self.place(ms).max(4)
    }

    /// Returns the time from the response's first byte to its end, in milliseconds.
    fn answer_ms(&self) -> u32 {
        let first = self.first_byte_ms.unwrap_or(self.whole_ms);
        self.whole_ms.saturating_sub(first)
    }
}

/// A call without a receipt, as the API returns it.
#[derive(Deserialize)]
struct Unbooked {
    at: String,
    state: String,
    account: Option<String>,
    key: Option<String>,
    model: Option<String>,
    vendor: Option<String>,
    status: Option<u16>,
    code: Option<String>,
    error: Option<String>,
    whole_ms: u32,
}

/// The fields of a receipt that the page explains.
#[derive(Deserialize)]
struct Booked {
    at: String,
    account: String,
    key: String,
    group: Option<String>,
    session: Option<String>,
    model: String,
    vendor: String,
    end: String,
    held_rub: MicroRub,
    held_max_rub: Option<MicroRub>,
    held_at_end_rub: Option<MicroRub>,
    stopped_by: Option<String>,
    cost_rub: MicroRub,
    charged_rub: MicroRub,
    loss_rub: MicroRub,
    bounded_loss_rub: Option<MicroRub>,
    vendor_cost_rub: Option<MicroRub>,
    margin_rub: Option<MicroRub>,
    price: Option<Price>,
    price_rule: Option<String>,
    estimated: bool,
    bounded: bool,
    #[serde(default)]
    unpriced: bool,
    usage: Usage,
    vendor_usage: Option<Usage>,
}

impl Booked {
    fn words(&self) -> &str {
        state_in_words(&self.end)
    }
}

/// A line of a charge's computation: `count` units at `rate`, which is the price of one unit or of a million units.
pub(crate) struct Line {
    pub(crate) label: &'static str,
    pub(crate) count: u64,
    pub(crate) rate: Rate,
    /// Whether `rate` is the price of one unit, not of a million.
    pub(crate) is_each: bool,
    /// The count that the vendor reported, if a lower count was charged.
    pub(crate) vendor: Option<u64>,
    /// The price of all units, in millionths of a micro-ruble.
    pub(crate) sum: u128,
}

impl Line {
    fn new(
        label: &'static str,
        count: u64,
        rate: Rate,
        is_each: bool,
        vendor: Option<u64>,
    ) -> Self {
        let micro = u128::from(count) * u128::from(rate.micro());
        let sum = match is_each {
            true => micro.saturating_mul(1_000_000),
            false => micro,
        };
        Self {
            label,
            count,
            rate,
            is_each,
            vendor,
            sum,
        }
    }

    pub(crate) fn rubles(&self, language: impl Borrow<Language>) -> String {
        exact(self.sum, *language.borrow())
    }
}

/// A function that reads the number of tokens of one rate class from a usage.
type Count = fn(&Usage) -> u64;

/// Returns the lines of a charge and their exact sum. The call's cost is this sum, rounded up to a micro-ruble.
pub(crate) fn computation(
    price: &Price,
    usage: &Usage,
    vendor: Option<&Usage>,
) -> (Vec<Line>, u128) {
    let usual: [(&str, Count, Rate); 4] = [
        (english("Input tokens"), |it| it.input, price.input),
        (
            english("Input tokens from the cache"),
            |it| it.cached_input,
            price.cached_input,
        ),
        (
            english("Input tokens written to the cache"),
            |it| it.cache_write,
            price.cache_write,
        ),
        (english("Output tokens"), |it| it.output, price.output),
    ];
    let usual = usual
        .into_iter()
        .map(|(label, count, rate)| Line::new(label, count(usage), rate, false, vendor.map(count)));
    let classes = Class::ALL.into_iter().map(|class| {
        let rate = price.classes.get(class).unwrap_or_default();
        let vendor = vendor.map(|usage| usage.classes.get(class));
        let is_each = class.kind() == Kind::Call;
        let label = class_in_words(class);
        Line::new(label, usage.classes.get(class), rate, is_each, vendor)
    });
    let lines = usual.chain(classes);
    let lines = lines.filter(|it| it.count > 0 || it.vendor.is_some_and(|count| count > 0));
    let lines: Vec<Line> = lines.collect();
    let sum = lines
        .iter()
        .fold(0, |sum: u128, line| sum.saturating_add(line.sum));
    (lines, sum)
}

pub(super) fn class_in_words(class: Class) -> &'static str {
    match class {
        Class::CacheWrite1h => english("Input tokens written to the cache for an hour"),
        Class::CacheWrite12h => english("Input tokens written to the cache for 12 hours"),
        Class::CachedInputAudio => english("Audio input tokens from the cache"),
        Class::CachedInputImage => english("Image input tokens from the cache"),
        Class::OutputReasoning => english("Reasoning tokens"),
        Class::RequestCall => english("Fee per call"),
        Class::InputAudio => english("Audio input tokens"),
        Class::InputImage => english("Image input tokens"),
        Class::OutputAudio => english("Audio output tokens"),
        Class::OutputImage => english("Image output tokens"),
        Class::WebSearchCall => english("Web searches"),
        other => other.name(),
    }
}

/// Writes a sum in millionths of a micro-ruble as rubles with all of its decimals, at least two.
pub(crate) fn exact(sum: u128, language: Language) -> String {
    let (whole, fraction) = (sum / 1_000_000_000_000, sum % 1_000_000_000_000);
    let fraction = format!("{fraction:012}");
    let coarse = fraction.trim_end_matches('0');
    let fraction = &fraction[..coarse.len().max(2)];
    let point = say(language, ",", ".");
    format!("{}{point}{fraction}", grouped(&whole.to_string(), language))
}

#[derive(Template)]
#[template(path = "call.html")]
struct CallHtml<'a> {
    page: Frame<'a>,
    receipt: Booked,
    lines: Vec<Line>,
    /// The exact sum of the charge's lines.
    sum: String,
    /// Attempts and durations; absent on receipts of earlier versions.
    timeline: Option<Timeline>,
    chapters: Vec<Chapter>,
}

#[derive(Template)]
#[template(path = "call_without.html")]
struct CallWithoutHtml<'a> {
    page: Frame<'a>,
    call: Unbooked,
    chapters: Vec<Chapter>,
}

impl Visit {
    pub(super) async fn call(&self, number: &str) -> Result<Answer, Failed> {
        let path = format!("/admin/v1/receipts/{number}");
        let mut receipt = match self.api.get::<Value>(&path).await? {
            Ok(receipt) => receipt,
            Err(refused) if refused.status == StatusCode::NOT_FOUND => {
                return self.unbooked(number, refused).await;
            }
            Err(refused) => return Err(refused.into()),
        };
        let timeline = receipt.as_object_mut();
        let timeline = timeline.and_then(|fields| fields.remove("timeline"));
        let booked = Booked::deserialize(&receipt).map_err(Refusal::fault)?;
        let (lines, sum) = match &booked.price {
            Some(price) => computation(price, &booked.usage, booked.vendor_usage.as_ref()),
            None => (Vec::new(), 0),
        };
        let page = self.frame(self.fill(english("Call {0}"), &[number]), "Calls", None);
        let html = CallHtml {
            sum: exact(sum, page.language),
            page,
            chapters: story(&receipt),
            timeline: timeline.and_then(|it| serde_json::from_value(it).ok()),
            receipt: booked,
            lines,
        };
        Ok(written(StatusCode::OK, &html))
    }

    /// Shows a call that has no receipt in the ledger, because it was refused, cost nothing, or is in flight.
    async fn unbooked(&self, number: &str, no_receipt: Refused) -> Result<Answer, Failed> {
        let path = format!("/admin/v1/calls/{number}");
        let answer = match self.api.get::<Value>(&path).await? {
            Ok(call) => call,
            // The page shows both refusals: the ledger has no receipt of the call, and this gateway has no record of
            // it.
            Err(refused) => {
                let text = format!("{}. {}", no_receipt.text, refused.text);
                return Err(Refused { text, ..no_receipt }.into());
            }
        };
        let html = CallWithoutHtml {
            page: self.frame(self.fill(english("Call {0}"), &[number]), "Calls", None),
            chapters: story(&answer),
            call: Unbooked::deserialize(&answer).map_err(Refusal::fault)?,
        };
        Ok(written(StatusCode::OK, &html))
    }
}

#[cfg(test)]
mod tests {
    use tollgate_layers::price::{Counts, Rates};

    use super::*;

    #[test]
    fn lines_of_a_cost_computation_add_up_to_the_cost() {
        let price = Price {
            input: Rate::new(28_280_000),
            cached_input: Rate::new(2_828_000),
            cache_write: Rate::new(35_350_001),
            output: Rate::new(226_250_000),
            classes: Rates::default()
                .with(Class::CacheWrite1h, Some(Rate::new(56_560_000)))
                .with(Class::WebSearchCall, Some(Rate::new(900_000))),
            ..Price::default()
        };
        let usage = Usage {
            input: 282,
            cached_input: 7,
            cache_write: 3,
            output: 40,
            classes: Counts::default()
                .with(Class::CacheWrite1h, 11)
                .with(Class::WebSearchCall, 2),
        };
        let (lines, sum) = computation(&price, &usage, None);
        let shown: Vec<String> = lines.iter().map(|line| line.rubles(Language::En)).collect();
        assert_eq!(
            shown,
            [
                "0.00797496",
                "0.000019796",
                "0.000106050003",
                "0.00905",
                "0.00062216",
                "1.80"
            ]
        );
        let rounded = i64::try_from(sum.div_ceil(1_000_000)).unwrap();
        assert_eq!(MicroRub::new(rounded), price.cost(&usage));
        assert_eq!(
            exact(1_234_500_000_000_000, Language::Ru),
            "1\u{202f}234,50"
        );

        // A count that was cut to zero is shown next to the vendor's count.
        let vendor = Usage {
            output: 9,
            ..Usage::default()
        };
        let (lines, sum) = computation(&price, &Usage::default(), Some(&vendor));
        assert_eq!(
            (lines.len(), lines[0].count, lines[0].vendor, sum),
            (1, 0, Some(9), 0)
        );
    }
}
