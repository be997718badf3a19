//! What becomes of the settler's events: counted, logged, taken off a key's tokens, told to whoever asked for them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tollgate_layers::reserve::{Event, ledger::Booked};

use super::rates::KeyTokens;
use crate::observe::record::Calls;

/// What is done with an event of the settler's: it is counted, logged and told to `report`, which may
/// panic for itself alone.
pub(super) fn reporting(
    calls: Calls,
    report: impl Fn(&Event<'_>) + Send + Sync + 'static,
) -> impl Fn(&Event<'_>) + Send + Sync + 'static {
    move |event: &Event<'_>| {
        calls.event(event);
        if catch_unwind(AssertUnwindSafe(|| report(event))).is_err() {
            tracing::error!("the report of a call panicked");
        }
    }
}

/// Counts the tokens of a call towards its key's limit.
pub(super) fn take_tokens(tokens: &KeyTokens, event: &Event<'_>) {
    if let Event::Settled {
        settlement,
        settled,
    } = event
        && settled.moved()
    {
        let usage = settlement.item.usage;
        let total = usage.input_total().saturating_add(usage.output_total());
        tokens.take(&settlement.key, total);
    }
}

/// What an operator should know of an event beside the call's own line.
pub fn log_event(event: &Event<'_>) {
    match event {
        Event::Settled {
            settlement,
            settled,
        } if matches!(
            settled.booked,
            Booked::Stale | Booked::NoAccount | Booked::Released
        ) =>
        {
            tracing::error!(
                number = %settlement.number,
                account = %settlement.account,
                cost_rub = %settlement.cost,
                booked = settled.booked.as_str(),
                "a call was not charged: look into it"
            );
        }
        Event::Released { number } => tracing::debug!(%number, "released"),
        Event::Untended { cause } => {
            tracing::warn!(%cause, "running calls could not be noted or extended yet");
        }
        Event::Unavailable { number, cause } => tracing::warn!(%number, %cause, "not settled yet"),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate_layers::facts::RequestNumber;

    use super::*;
    use crate::observe::metrics::Metrics;

    #[test]
    fn a_report_that_panics_is_caught() {
        let calls = Calls::new(Arc::new(Metrics::new("tollgate")));
        let report = reporting(calls, |_| panic!("a panic of the test's"));
        let number = RequestNumber::now_v7();
        report(&Event::Released { number });
    }
}
