//! Handles the settler's events: counts and logs them, subtracts tokens from the key's limit, and passes them to the
//! embedding program.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tollgate_layers::reserve::{Event, ledger::Booked};

use crate::{observe::record::Calls, state::rates::KeyTokens};

/// Returns a handler that counts and logs an event of the settler and passes it to `report`. A panic of `report` is
/// caught.
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

/// Counts the tokens of a call against its key's limit.
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

/// Logs an event that an operator should notice, if the call's own log line does not contain it.
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
                "a call was not charged: investigate it"
            );
        }
        Event::Released { number } => tracing::debug!(%number, "released"),
        Event::Untended { cause } => {
            tracing::warn!(%cause, "checkpoints or holds of running calls could not be updated yet");
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
    fn panic_in_an_event_report_is_caught() {
        let calls = Calls::new(Arc::new(Metrics::new("tollgate")));
        let report = reporting(calls, |_| panic!("panicked on purpose"));
        let number = RequestNumber::now_v7();
        report(&Event::Released { number });
    }
}
