//! Endpoints for receipts: the receipt of one call, and the latest receipts of an account or of all accounts.

use std::sync::Arc;

use serde::Serialize;
use tollgate_layers::{
    facts::RequestNumber,
    key::{AccountId, KeyId},
    reserve::ledger::{BookError, LedgerAdmin, Receipt},
    session::SessionId,
    usage::End,
};
use tollgate_ledger::{
    rollup::{self, Rollup, Sought},
    unbooked::UnbookedState,
};

use super::{
    Admin, Answer, NOT_A_NUMBER,
    answer::ReceiptAnswer,
    keys::find_key,
    ok,
    query::{self, Query},
    refusal::{OrRefuse as _, Refusal},
    route::{AdminRequest, Route, routes},
};
use crate::{
    ledger::latest::{LOOK_IN_ALL_AGAIN_MS, ReceiptsPage, ReceiptsPart, receipt_soon},
    text::time::rfc3339,
};

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/receipts" => list_receipts .with_query();
    get "/admin/v1/receipts/{number}" => show_receipt;
};

/// Default and maximum number of receipts in a response.
pub(super) const RECEIPTS: usize = 50;
pub(super) const RECEIPTS_MAX: usize = 500;

/// A page of receipts, latest first.
#[derive(Serialize)]
struct ReceiptsAnswer<'a> {
    receipts: Vec<ReceiptAnswer<'a>>,
    /// The cursor of the next page, for the parameter `after`; null on the last page.
    next: Option<String>,
    /// The time since which all receipts have been searched, by this request and the requests for earlier pages. Absent
    /// on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    searched_since: Option<String>,
}

/// The receipts to read: of all accounts, of one account or of one key.
#[derive(Debug)]
struct ReceiptsQuery {
    account: Option<AccountId>,
    key: Option<KeyId>,
    model: Option<String>,
    vendor: Option<String>,
    session: Option<SessionId>,
    end: Option<End>,
    part: ReceiptsPart,
}

impl ReceiptsQuery {
    fn parse(query: Option<&str>) -> Result<Self, Refusal> {
        const KNOWN: &[&str] = &[
            "account", "key", "model", "vendor", "session", "end", "since", "until", "after",
            "limit",
        ];
        let text = |text: &str| Ok(text.to_owned());
        let mut query = Query::parse(query, KNOWN)?;
        Ok(Self {
            account: query.optional("account", query::id)?,
            key: query.optional("key", query::id)?,
            model: query.optional("model", text)?,
            vendor: query.optional("vendor", text)?,
            session: query.optional("session", query::id)?,
            end: query.optional("end", end)?,
            part: ReceiptsPart {
                since_ms: query.optional("since", query::time)?.unwrap_or(0),
                until_ms: query.optional("until", query::time)?.unwrap_or(u64::MAX),
                after: query.optional("after", query::id)?,
                limit: query
                    .optional("limit", query::up_to(RECEIPTS_MAX))?
                    .unwrap_or(RECEIPTS),
            },
        })
    }

    /// Returns the filters for which the roll-up's sums can show where matching receipts may be.
    fn sought(&self) -> Sought<'_> {
        Sought {
            key: self.key.as_ref(),
            model: self.model.as_deref(),
            vendor: self.vendor.as_deref(),
            failed: self.end.map(rollup::is_failed),
        }
    }

    fn asks_for(&self, receipt: &Receipt) -> bool {
        let item = &receipt.item;
        self.key.as_ref().is_none_or(|key| *key == receipt.key)
            && self.model.as_ref().is_none_or(|model| *model == item.model)
            && (self.vendor.as_ref()).is_none_or(|vendor| *vendor == item.vendor)
            && (self.session.is_none() || self.session == item.session)
            && self.end.is_none_or(|end| end == item.end)
    }
}

fn end(text: &str) -> Result<End, String> {
    serde_json::from_value(text.into()).map_err(|_| {
        "must be finished, client_left, vendor_cut, vendor_error or gateway_stopped".into()
    })
}

impl Admin {
    /// Lists receipts. If an account is named, only that account's journal is read.
    async fn list_receipts(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let query = ReceiptsQuery::parse(request.query())?;
        let accounts = match (&query.account, &query.key) {
            (None, None) => {
                let ids = Rollup::account_ids(&self.store).await;
                ids.or_refuse("accounts")?
            }
            (Some(account), None) => vec![account.clone()],
            (account, Some(key)) => {
                let owner = find_key(&self.store, key).await?.record.account;
                if account.as_ref().is_some_and(|account| *account != owner) {
                    return Err(Refusal::invalid("key", "belongs to another account"));
                }
                vec![owner]
            }
        };
        let (part, sought) = (&query.part, query.sought());
        let asks_for = |receipt: &Receipt| query.asks_for(receipt);
        let page = ReceiptsPage::read(&self.store, &accounts, part, sought, asks_for).await;
        let page = match accounts.as_slice() {
            [account] => page.or_refuse(format_args!("account {account}"))?,
            _ => page.or_refuse("accounts")?,
        };
        ok(&ReceiptsAnswer {
            receipts: page.receipts.iter().map(ReceiptAnswer::from).collect(),
            next: page.next.map(|next| next.to_string()),
            searched_since: page.searched_since_ms().map(rfc3339),
        })
    }

    async fn show_receipt(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let number = call_number(&request)?;
        // If the record of the call cannot be read, the search for a receipt is repeated, although the call may have no
        // receipt.
        let unbooked = self.scrape.calls().unbooked(number).await;
        let look_again_ms = match unbooked.ok().flatten().map(|call| call.state) {
            Some(UnbookedState::Refused | UnbookedState::Released) => &[],
            Some(UnbookedState::Running) | None => LOOK_IN_ALL_AGAIN_MS,
        };
        let found = receipt_soon(number, look_again_ms, || self.store.receipt(number)).await;
        let receipt = found.map_err(|error| match error {
            BookError::NotFound => Refusal::NotFound(format!(
                "no receipt {number}: the call was refused, failed or is still running, or the number is wrong. \
                 GET /admin/v1/calls/{number} returns the cause of a refusal"
            )),
            error => Refusal::of_ledger(&error, &format!("receipt {number}")),
        })?;
        ok(&ReceiptAnswer::from(&receipt))
    }
}

/// Returns the call number that the path of a request names.
pub(super) fn call_number(request: &AdminRequest) -> Result<RequestNumber, Refusal> {
    let number = request.named().parse();
    number.map_err(|_| Refusal::NotFound(format!("not a call number: {NOT_A_NUMBER}")))
}
