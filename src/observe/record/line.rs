//! Writes a log line with the message `call` for each request, under the target [`TARGET`].
//!
//! Fields with unknown values are left out. A field that also exists in receipts has the same name as there.

use std::time::Duration;

use tollgate_layers::respond::Severity;
use tollgate_ledger::{
    contract::{Settled, Settlement},
    money::MicroRub,
};
use tracing::Level;
use uuid::fmt::Hyphenated;

use super::facts::{EndedCall, Facts};

/// The target of the log lines about requests; `RUST_LOG` can select it.
pub const TARGET: &str = "call";

/// The event name of log lines with a charge. The log uses it to choose the queue of the line.
pub(crate) const CHARGE: &str = "charge";

/// Maximum length of a model name in the log. The limit is needed because a name that is not in the catalog can be any
/// text.
pub(super) const MODEL_CHARS_MAX: usize = 64;

/// Writes the complete log line. If its level is disabled, no field is computed.
macro_rules! event {
    ($level:ident, $booked:ident: $($fields:tt)*) => {
        match ($level, $booked.is_some()) {
            (Level::ERROR, true) => tracing::event!(name: CHARGE, target: TARGET, Level::ERROR, $($fields)*),
            (Level::WARN, true) => tracing::event!(name: CHARGE, target: TARGET, Level::WARN, $($fields)*),
            (_, true) => tracing::event!(name: CHARGE, target: TARGET, Level::INFO, $($fields)*),
            (Level::ERROR, false) => tracing::event!(target: TARGET, Level::ERROR, $($fields)*),
            (Level::WARN, false) => tracing::event!(target: TARGET, Level::WARN, $($fields)*),
            (Level::INFO, false) => tracing::event!(target: TARGET, Level::INFO, $($fields)*),
            _ => tracing::event!(target: TARGET, Level::DEBUG, $($fields)*),
        }
    };
}

/// Logs a request that has ended for its client and, if it held money, in the ledger.
///
/// Each field, including the message, is passed as a text or a number. A `Display` value would go through a slower
/// formatter.
pub(super) fn log(call: &EndedCall<'_>) {
    let (facts, answered, booked) = (call.facts, call.answered, call.booked);
    let level = level(call);
    let key = facts.key.as_deref();
    let failure = answered.failure.as_deref();
    let item = booked.map(|(settlement, _)| &settlement.item);
    let mut number = [0; Hyphenated::LENGTH];
    let [mut held, mut charged, mut loss] = [[0; MicroRub::TEXT_BYTES_MAX]; 3];
    event!(
        level, booked:
        message = "call",
        number = &*call.number.uuid().as_hyphenated().encode_lower(&mut number),
        account = key.map(|key| &*key.account),
        key = key.map(|key| key.prefix.as_str()),
        path = call.path,
        status = answered.status,
        code = failure.map(|failure| failure.code),
        session = facts.session.as_deref(),
        model = facts.model.as_deref().map(|model| shortened(model, MODEL_CHARS_MAX)),
        vendor = item.map(|item| item.vendor.as_str()).or(facts.vendor.as_deref()),
        streamed = facts.streamed,
        tools_cut = facts.tools_cut,
        input = item.map(|item| item.usage.input),
        cached_input = item.map(|item| item.usage.cached_input),
        cache_write = item.map(|item| item.usage.cache_write),
        output = item.map(|item| item.usage.output),
        estimated = item.map(|item| item.estimated),
        bounded = item.map(|item| item.bounded),
        held_rub = booked.map(|(settlement, _)| settlement.held.encode(&mut held)),
        charged_rub = booked.map(|(_, settled)| settled.charged.encode(&mut charged)),
        loss_rub = booked.map(|(_, settled)| settled.loss.encode(&mut loss)),
        booked = booked.map(|(_, settled)| settled.booked.as_str()),
        end = end(facts, item.map(|item| item.end.as_str())),
        first_byte_ms = answered.head.map(millis),
        whole_ms = millis(answered.whole),
        own_ms = facts.overhead.map(millis),
        error = failure.map(|failure| failure.text.as_str()),
        cause = failure.and_then(|failure| failure.cause.as_deref())
    );
}

/// Logs the settlement of a call that an earlier process left unsettled.
pub(super) fn log_earlier_process(settlement: &Settlement, settled: &Settled) {
    let item = &settlement.item;
    tracing::info!(
        name: CHARGE,
        target: TARGET,
        number = %settlement.number,
        account = %settlement.account,
        key_id = %settlement.key,
        session = item.session.as_deref(),
        model = item.model,
        vendor = item.vendor,
        input = item.usage.input,
        cached_input = item.usage.cached_input,
        cache_write = item.usage.cache_write,
        output = item.usage.output,
        estimated = item.estimated,
        bounded = item.bounded,
        held_rub = %settlement.held,
        charged_rub = %settled.charged,
        loss_rub = %settled.loss,
        booked = settled.booked.as_str(),
        end = item.end.as_str(),
        "call"
    );
}

/// Returns the log level for a request. Successful requests that call no model, such as catalog requests, are frequent,
/// so they have a lower level.
fn level(call: &EndedCall<'_>) -> Level {
    match &call.answered.failure {
        Some(failure) => match failure.severity {
            Severity::Error => Level::ERROR,
            Severity::Warn => Level::WARN,
            Severity::Info => Level::INFO,
        },
        None if call.facts.held || call.is_call => Level::INFO,
        None => Level::DEBUG,
    }
}

/// Returns how the call ended in the ledger; `None` if it held no money.
pub(super) fn end(facts: &Facts, settled: Option<&'static str>) -> Option<&'static str> {
    settled.or(facts.held.then_some("released"))
}

pub(super) fn shortened(text: &str, chars_max: usize) -> &str {
    let end = text.char_indices().nth(chars_max);
    end.map_or(text, |(end, _)| &text[..end])
}

/// Returns milliseconds with three decimals, because the gateway's own share of a call's time is less than one
/// millisecond.
fn millis(time: Duration) -> f64 {
    let micros = time.as_secs().saturating_mul(1_000_000);
    let micros = micros.saturating_add(u64::from(time.subsec_micros()));
    micros as f64 / 1000.0
}
