//! Endpoint for invoices: documents by which a company tops up its account by bank transfer.

use std::sync::Arc;

use tollgate_layers::money::MicroRub;

use super::{
    Admin, Answer,
    accounts::{account_id, find_account},
    query::{Query, id, one_of},
    refusal::Refusal,
    route::{AdminRequest, Route, routes},
    statements::attachment,
};
use crate::{
    endpoints::page::HTML,
    statement::{Invoice, InvoiceError, Order},
    text::time::{now_ms, parse_rfc3339_ms},
};

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/accounts/{account}/invoice" => show_invoice .with_query();
};

impl Admin {
    async fn show_invoice(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let mut query = Query::parse(request.query(), &["amount_rub", "date", "format"])?;
        let amount = query.optional("amount_rub", id::<MicroRub>)?;
        let amount = amount.ok_or_else(|| Refusal::invalid("amount_rub", "required"))?;
        let date_ms = query.optional("date", date)?;
        let format = query.optional("format", one_of(&["json", "html", "pdf"]))?;
        let account = account_id(request.named())?;
        let view = find_account(&self.store, &account).await?;
        let snapshot = self.live.snapshot();
        let seller = snapshot.seller();
        let order = Order {
            account: &account,
            name: &view.name,
            seller,
            amount,
            date_ms: date_ms.unwrap_or_else(|| Invoice::now(seller, now_ms())),
        };
        let invoice = Invoice::new(&order).map_err(|error| refusal(&error))?;
        let number = invoice.number();
        tracing::info!(target: "audit", who = request.who().name(), what = "invoice", number);
        let format = format.unwrap_or("json");
        let (bytes, kind) = match format {
            "html" => (invoice.html().into_bytes(), HTML),
            "pdf" => (invoice.pdf(), "application/pdf"),
            _ => (invoice.json(), "application/json"),
        };
        Ok(attachment(bytes, kind, &format!("{number}.{format}")))
    }
}

fn date(text: &str) -> Result<u64, String> {
    let is_date = text.len() == "2026-01-31".len();
    let ms = parse_rfc3339_ms(text).filter(|_| is_date);
    ms.ok_or_else(|| "must be a date, for example 2026-01-31".into())
}

fn refusal(error: &InvoiceError) -> Refusal {
    match error {
        InvoiceError::NotKopecks => {
            Refusal::invalid("amount_rub", "must be in whole kopecks, above 0")
        }
        InvoiceError::Unset(settings) => Refusal::Conflict(format!(
            "invoices need these seller settings, which are not set: {}",
            settings.join(", ")
        )),
    }
}
