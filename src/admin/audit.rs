//! Endpoint that audits the whole ledger.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use tollgate_layers::reserve::ledger::LedgerAdmin;
use tollgate_ledger::{
    contract::{EventStore, OnceEvent},
    happening::Happening,
    rollup,
};

use super::{
    Admin, Answer, Right,
    fields::Fields,
    ok,
    refusal::{OrRefuse as _, Refusal},
    route::{AdminRequest, Route, routes},
};

pub(super) const ROUTES: &[Route] = routes! {
    post "/admin/v1/audit" => audit .needs(Right::Money);
};

impl Admin {
    async fn audit(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let who = request.who();
        let body = request.body().await?;
        if !body.trim_ascii().is_empty() {
            Fields::parse(&body, &[])?;
        }
        let mut audit = self.store.audit().await.or_refuse("ledger")?;
        let sums = rollup::check(&self.store).await.or_refuse("ledger")?;
        audit.breaches.extend(sums);
        for breach in &audit.breaches {
            tracing::error!(target: "audit", what = "breach", breach);
        }
        self.tell_breaches(&audit.breaches).await;
        tracing::info!(target: "audit", who = who.name(), what = "audit", breaches = audit.breaches.len());
        ok(&audit)
    }

    /// Emits one event for all breaches of an audit. The event's id is derived from the breaches, so repeated audits
    /// with the same result emit one event.
    async fn tell_breaches(&self, breaches: &[String]) {
        let Some(first) = breaches.first() else {
            return;
        };
        let digest = Sha256::digest(breaches.join("\n"));
        let event = OnceEvent {
            once: format!("audit_breach:{:x?}", &digest[..16]),
            account: None,
            key: None,
            what: Happening::AuditBreach {
                breaches: breaches.len() as u64,
                first: first.clone(),
            },
        };
        if let Err(error) = self.store.emit_once(&event).await {
            tracing::warn!(%error, "the audit found breaches, but their event could not be emitted");
        }
    }
}
