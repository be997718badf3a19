//! Invoices for companies that top up their account by bank transfer.

use http::StatusCode;
use tollgate_layers::{Error, error::Problem, money::MicroRub, reserve::ledger::LedgerAdmin};

use super::{Answer, Visit};
use crate::{
    console::{download, texts::english},
    endpoints::{key_info::no_books, page::HTML},
    statement::{Invoice, InvoiceError, Order},
    text::time::now_ms,
};

impl Visit {
    /// Returns whether the seller's settings are complete enough for invoices.
    pub(super) fn offers_invoices(&self) -> bool {
        let snapshot = self.cabinet.0.live.snapshot();
        Invoice::is_possible(snapshot.seller())
    }

    /// Returns an invoice for the session's account, dated today, as a file.
    pub(super) async fn invoice(&self) -> Result<Answer, Error> {
        let (inner, account) = (&self.cabinet.0, &self.who.session.account);
        let not_kopecks = || Error::invalid("amount_rub", Problem::NotKopecks);
        let amount = self.form.rubles("amount_rub").parse::<MicroRub>();
        let view = inner.store.account(account).await.map_err(no_books)?;
        let snapshot = inner.live.snapshot();
        let seller = snapshot.seller();
        let invoice = match Invoice::new(&Order {
            account,
            name: &view.name,
            seller,
            amount: amount.map_err(|_| not_kopecks())?,
            date_ms: Invoice::now(seller, now_ms()),
        }) {
            Ok(invoice) => invoice,
            Err(InvoiceError::NotKopecks) => return Err(not_kopecks()),
            Err(InvoiceError::Unset(_)) => {
                let text = english("The seller does not issue invoices in the cabinet.");
                return Ok(self.message_page(StatusCode::NOT_FOUND, text));
            }
        };
        let (who, number) = (self.who.mail.as_str(), invoice.number());
        tracing::info!(target: "audit", who, what = "invoice", number);
        Ok(match self.form.get("format") {
            "html" => download(HTML, invoice.html(), &format!("{number}.html")),
            _ => download("application/pdf", invoice.pdf(), &format!("{number}.pdf")),
        })
    }
}
