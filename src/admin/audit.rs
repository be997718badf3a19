//! The audit of the whole ledger.

use std::sync::Arc;

use tollgate_layers::reserve::ledger::LedgerAdmin;

use super::{
    Admin, Answer, Right,
    fields::Fields,
    ok,
    refusal::Refusal,
    routes::{Asked, Route},
};

pub(super) const ROUTES: &[Route] = &[Route::post("/admin/v1/audit", |admin, asked| {
    Box::pin(admin.audit(asked))
})
.needs(Right::Money)];

impl Admin {
    async fn audit(self: Arc<Self>, asked: Asked) -> Result<Answer, Refusal> {
        let who = asked.who();
        let body = asked.body().await?;
        if !body.trim_ascii().is_empty() {
            Fields::parse(&body, &[])?;
        }
        let audit = self
            .store
            .audit()
            .await
            .map_err(|error| Refusal::of_ledger(&error, "ledger"))?;
        for breach in &audit.breaches {
            tracing::error!(target: "audit", what = "breach", breach);
        }
        tracing::info!(target: "audit", who = who.name(), what = "audit", breaches = audit.breaches.len());
        ok(&audit)
    }
}
