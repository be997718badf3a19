//! Receipts of a key's calls, with the computation of each cost. `GET /v1/<service>/receipts/<number>` returns one
//! receipt, and `GET /v1/<service>/receipts` returns the latest receipts.

use http::{Request, Response};
use serde::Serialize;
use tollgate_layers::{
    Error,
    body::AnswerBody,
    endpoint::Endpoint,
    error::Problem,
    facts::{Caller, RequestNumber},
    key::{KeyId, KeyRecord},
    money::MicroRub,
    price::Price,
    reserve::ledger::{BookError, LedgerAdmin, Receipt},
    session::SessionId,
    usage::{End, StoppedBy, Usage},
};
use tollgate_ledger::rollup::Sought;

use crate::{
    edge::routes::Matched,
    endpoints::{
        error::EndpointError,
        handler::Handler,
        key_info::no_books,
        params::Params,
        reply,
        spending::{known, sees},
    },
    ledger::{
        AnyLedger,
        latest::{LOOK_AGAIN_MS, ReceiptsPage, ReceiptsPart, receipt_soon},
    },
    text::time::rfc3339,
};

/// Default and maximum number of receipts in a response.
const RECEIPTS: u64 = 50;
const RECEIPTS_MAX: u64 = 200;

/// Serves receipts to the keys that were charged. Must be below `auth`, which identifies the key.
#[derive(Clone, Debug)]
pub struct Receipts(pub(crate) AnyLedger);

impl Receipts {
    /// Finds the receipt of a call. For another key's call, the error is the same as for an unknown call.
    async fn find(&self, number: RequestNumber, key: &KeyRecord) -> Result<Receipt, Error> {
        let look = async || match self.0.receipt_of(&key.account, number).await {
            Ok(receipt) if !sees(key, None, &receipt.key) => Err(BookError::NotFound),
            found => found,
        };
        match receipt_soon(number, LOOK_AGAIN_MS, look).await {
            Err(BookError::NotFound) => Err(Error::custom(EndpointError::ReceiptUnknown)),
            found => found.map_err(no_books),
        }
    }

    /// Returns the latest receipts of this key that match the query.
    async fn latest(&self, key: &KeyRecord, query: Option<&str>) -> Result<ReceiptsPage, Error> {
        const KNOWN: &[&str] = &[
            "model", "session", "since", "until", "after", "limit", "key",
        ];
        let own = &KNOWN[..KNOWN.len() - 1];
        let params = Params::parse(query, known(key, own, KNOWN))?;
        let of: Option<KeyId> = params.optional("key", "id", |text| text.parse().ok())?;
        let limit = params.number("limit", RECEIPTS_MAX)?.unwrap_or(RECEIPTS);
        let model = params.optional("model", "string", |text| Some(text.to_owned()))?;
        let session: Option<SessionId> =
            params.optional("session", "id", |text| text.parse().ok())?;
        let part = ReceiptsPart {
            since_ms: params.time("since")?.unwrap_or(0),
            until_ms: params.time("until")?.unwrap_or(u64::MAX),
            after: params.optional("after", "cursor", |text| text.parse().ok())?,
            limit: usize::try_from(limit).expect("the maximum number of receipts fits in a usize"),
        };
        let sought = Sought {
            key: of.as_ref().or_else(|| (!key.is_owner()).then_some(&key.id)),
            model: model.as_deref(),
            ..Sought::default()
        };
        let asks_for = |receipt: &Receipt| {
            let item = &receipt.item;
            sees(key, of.as_ref(), &receipt.key)
                && model.as_ref().is_none_or(|model| *model == item.model)
                && (session.is_none() || session == item.session)
        };
        let account = std::slice::from_ref(&key.account);
        let page = ReceiptsPage::read(&self.0, account, &part, sought, asks_for).await;
        page.map_err(no_books)
    }
}

impl<B: Send + 'static> Handler<B> for Receipts {
    async fn handle(self, req: Request<B>) -> Result<Response<AnswerBody>, Error> {
        let Caller(key) = Caller::of(&req)?;
        let Some(number) = &Matched::from_request(&req)?.parameter else {
            let page = self.latest(key, req.uri().query()).await?;
            return Ok(reply::json(&ReceiptsJson::from(&page)));
        };
        let number: RequestNumber =
            (number.parse()).map_err(|_| Error::invalid("number", Problem::WrongType("UUID")))?;
        let receipt = self.find(number, key).await?;
        Ok(reply::json(&ReceiptJson::from(&receipt)))
    }
}

#[derive(Serialize)]
struct ReceiptsJson<'a> {
    receipts: Vec<ReceiptJson<'a>>,
    /// The cursor of the next page, for the parameter `after`; null on the last page.
    next: Option<String>,
    /// The time since which all receipts have been searched, by this request and the requests for earlier pages. Absent
    /// on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    searched_since: Option<String>,
}

impl<'a> From<&'a ReceiptsPage> for ReceiptsJson<'a> {
    fn from(page: &'a ReceiptsPage) -> Self {
        Self {
            receipts: page.receipts.iter().map(ReceiptJson::from).collect(),
            next: page.next.map(|next| next.to_string()),
            searched_since: page.searched_since_ms().map(rfc3339),
        }
    }
}

/// A receipt, as callers see it. The fields have the same names as in the operators' receipt, but the vendor is
/// omitted.
#[derive(Serialize)]
struct ReceiptJson<'a> {
    number: RequestNumber,
    /// The charged key. The holder of an owner key needs this field, because an owner key sees the calls of all keys of
    /// its account.
    key: &'a KeyId,
    model: &'a str,
    /// The time at which the call arrived.
    started_at: String,
    /// The time at which the call was booked.
    at: String,
    end: End,
    usage: Usage,
    estimated: bool,
    bounded: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unpriced: bool,
    price: Option<&'a Price>,
    #[serde(skip_serializing_if = "Option::is_none")]
    price_rule: Option<&'a str>,
    held_rub: MicroRub,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_max_rub: Option<MicroRub>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_at_end_rub: Option<MicroRub>,
    /// Why the gateway stopped the call; absent if the gateway did not stop it.
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped_by: Option<StoppedBy>,
    cost_rub: MicroRub,
    charged_rub: MicroRub,
    loss_rub: MicroRub,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a SessionId>,
    /// The endpoint of the call; absent if it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<Endpoint>,
}

impl<'a> From<&'a Receipt> for ReceiptJson<'a> {
    fn from(receipt: &'a Receipt) -> Self {
        let item = &receipt.item;
        Self {
            number: receipt.number,
            key: &receipt.key,
            model: &item.model,
            started_at: rfc3339(receipt.number.unix_ms()),
            at: rfc3339(receipt.at_ms),
            end: item.end,
            usage: item.usage,
            estimated: item.estimated,
            bounded: item.bounded,
            unpriced: item.unpriced,
            price: item.price.as_deref(),
            price_rule: item.price.as_ref().and_then(|price| price.rule.as_deref()),
            held_rub: receipt.held_rub,
            held_max_rub: item.held_max_rub,
            held_at_end_rub: item.held_at_end_rub,
            stopped_by: item.stopped_by,
            cost_rub: receipt.cost_rub,
            charged_rub: receipt.charged_rub,
            loss_rub: receipt.loss_rub,
            session: item.session.as_ref(),
            endpoint: item.endpoint,
        }
    }
}
