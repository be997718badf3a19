//! Collects the audit lines that a future logs, so that they can also be stored in the ledger.

use std::{cell::RefCell, collections::BTreeMap, fmt};

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::layer::{Context, Layer};

tokio::task_local! {
    static LINES: RefCell<Vec<AuditLine>>;
}

/// The fields of an audit line, as text.
pub(crate) type AuditLine = BTreeMap<&'static str, String>;

/// Runs a future. Returns its result, and the audit lines of level `INFO` that the future logged. The list of lines is
/// empty unless the log has an [`AuditedLayer`].
pub(crate) async fn audited<T>(future: impl Future<Output = T>) -> (T, Vec<AuditLine>) {
    let collected = LINES.scope(RefCell::default(), async {
        let result = future.await;
        (result, LINES.with(RefCell::take))
    });
    collected.await
}

/// A log layer that passes audit lines to the surrounding call of [`audited`].
pub(crate) struct AuditedLayer;

impl<S: Subscriber> Layer<S> for AuditedLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if metadata.target() != "audit" || *metadata.level() != Level::INFO {
            return;
        }
        // Outside of `audited`, nobody collects the line, so the error is ignored.
        let _ = LINES.try_with(|lines| {
            let mut fields = Fields::default();
            event.record(&mut fields);
            lines.borrow_mut().push(fields.0);
        });
    }
}

#[derive(Default)]
struct Fields(AuditLine);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::tests::Log;

    #[tokio::test]
    async fn only_audit_lines_of_the_given_future_are_collected() {
        let _log = Log::listen();
        tracing::info!(target: "audit", what = "before");
        let ((), lines) = audited(async {
            tracing::info!(target: "audit", who = "anna", what = "key.create", key = %"k1", lines = 2);
            tracing::warn!(target: "audit", what = "admin.refused");
            tracing::info!(what = "elsewhere");
            tokio::task::yield_now().await;
            tracing::info!(target: "audit", who = "anna", what = "key.delete");
        })
        .await;
        let shown: Vec<String> = lines.iter().map(|line| format!("{line:?}")).collect();
        assert_eq!(
            shown,
            [
                r#"{"key": "k1", "lines": "2", "what": "key.create", "who": "anna"}"#,
                r#"{"what": "key.delete", "who": "anna"}"#,
            ]
        );
    }
}
