//! Receipts: what a call cost.

use std::sync::Arc;

use tollgate_layers::{
    facts::RequestNumber,
    reserve::ledger::{BookError, LedgerAdmin},
};

use super::{
    Admin, Answer, NOT_A_NUMBER,
    answer::ReceiptAnswer,
    ok,
    refusal::Refusal,
    routes::{Asked, Route},
};

pub(super) const ROUTES: &[Route] = &[Route::get("/admin/v1/receipts/{number}", |admin, asked| {
    Box::pin(admin.show_receipt(asked))
})];

impl Admin {
    async fn show_receipt(self: Arc<Self>, asked: Asked) -> Result<Answer, Refusal> {
        let number: RequestNumber = asked
            .named()
            .parse()
            .map_err(|_| Refusal::NotFound(format!("no receipt: {NOT_A_NUMBER}")))?;
        let receipt = self.store.receipt(number).await.map_err(|error| match error {
            BookError::NotFound => Refusal::NotFound(format!(
                "no receipt {number}: the call was refused, failed or still runs, or the number is wrong"
            )),
            error => Refusal::of_ledger(&error, &format!("receipt {number}")),
        })?;
        ok(&ReceiptAnswer::from(&receipt))
    }
}
