//! Writes one log line per request, `call`, under the target [`TARGET`].
//!
//! Unknown fields are omitted. Fields that receipts also have use the same names.

use std::time::Duration;

use tollgate_layers::respond::Severity;
use tollgate_ledger::{
    contract::{Settled, Settlement},
    money::MicroRub,
};
use tracing::Level;
use uuid::fmt::Hyphenated;

use super::{Answered, CallRecord, Facts};

/// The target of the lines, for `RUST_LOG`.
pub const TARGET: &str = "call";

/// The name of the event of a line with a charge, by which the log selects its queue.
pub(crate) const CHARGE: &str = "charge";

/// The maximum length of a logged model name: a name that is not in the catalog may be any text.
const MODEL_CHARS_MAX: usize = 64;

/// Writes the whole log line. Fields are not computed if the level is disabled.
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

/// Logs a request that has ended; `booked` is its settlement, if it was settled.
///
/// Every field, including the message, is already a text or a number, because `Display` values would go through a
/// formatter.
pub(super) fn of_a_call(
    record: &CallRecord,
    facts: &Facts,
    answered: &Answered,
    booked: Option<(&Settlement, &Settled)>,
) {
    let level = level(record, facts, answered);
    let key = facts.key.as_deref();
    let failure = answered.failure.as_deref();
    let item = booked.map(|(settlement, _)| &settlement.item);
    let mut number = [0; Hyphenated::LENGTH];
    let [mut held, mut charged, mut loss] = [[0; MicroRub::TEXT_BYTES_MAX]; 3];
    event!(
        level, booked:
        message = "call",
        number = &*record.0.number.uuid().as_hyphenated().encode_lower(&mut number),
        account = key.map(|key| &*key.account),
        key = key.map(|key| key.prefix.as_str()),
        path = record.metrics().requests.path(record.0.path),
        status = answered.status,
        code = failure.map(|failure| failure.code),
        session = facts.session.as_deref(),
        model = facts.model.as_deref().map(shortened),
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

/// Logs a call that an earlier process left unsettled.
pub(super) fn of_an_earlier_process(settlement: &Settlement, settled: &Settled) {
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

/// Returns the level of a request's line. Successful requests that are not calls, such as requests for the catalog, are
/// frequent and have a lower level.
fn level(record: &CallRecord, facts: &Facts, answered: &Answered) -> Level {
    match &answered.failure {
        Some(failure) => match failure.severity {
            Severity::Error => Level::ERROR,
            Severity::Warn => Level::WARN,
            Severity::Info => Level::INFO,
        },
        None if facts.held || record.is_of_calls() => Level::INFO,
        None => Level::DEBUG,
    }
}

/// Returns how the call ended in the ledger, if it held money.
pub(super) fn end(facts: &Facts, settled: Option<&'static str>) -> Option<&'static str> {
    settled.or(facts.held.then_some("released"))
}

pub(super) fn shortened(model: &str) -> &str {
    let end = model.char_indices().nth(MODEL_CHARS_MAX);
    end.map_or(model, |(end, _)| &model[..end])
}

/// Returns milliseconds with three decimals, because the gateway's own part is less than one.
fn millis(time: Duration) -> f64 {
    let micros = time.as_secs().saturating_mul(1_000_000);
    let micros = micros.saturating_add(u64::from(time.subsec_micros()));
    micros as f64 / 1000.0
}
