//! Handles the settler's events: counts and logs them, counts used tokens against the key's limit, and passes the
//! events to the program that embeds the gateway.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tollgate_layers::reserve::{Event, ledger::Booked};

use crate::{observe::record::Calls, state::rates::KeyTokens};

/// Returns a handler that counts and logs each event of the settler and passes it to `report`. If `report` panics, the
/// panic is caught and logged.
pub(super) fn reporting(
    calls: Calls,
    report: impl Fn(&Event<'_>) + Send + Sync + 'static,
) -> impl Fn(&Event<'_>) + Send + Sync + 'static {
    move |event: &Event<'_>| {
        calls.event(event);
        if catch_unwind(AssertUnwindSafe(|| report(event))).is_err() {
            tracing::error!("the handler that reports a call's events panicked");
        }
    }
}

/// Counts the tokens that a settled call has used against its key's limit of tokens per minute.
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

/// Logs those events of the settler that an operator should notice and that the call's own log line does not show.
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
            tracing::warn!(%cause, "the settler could not update checkpoints or extend holds of running calls; it will try again");
        }
        Event::Unavailable { number, cause } => {
            tracing::warn!(
                %number,
                %cause,
                "a call is not settled yet: the ledger did not accept its charge or release"
            );
        }
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
