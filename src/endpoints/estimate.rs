//! `POST /v1/<service>/estimate`: returns the amount that a call would hold, without holding money and without sending
//! the call.
//!
//! The body is the body of a call in any format, or of an embeddings call. Like a call, the request passes through
//! `parse` and `select`, and is quoted by the tariff that `reserve` uses. An estimate is therefore refused if its call
//! would be refused before the hold. An estimate is free.

use std::sync::Arc;

use http::{Request, Response, Uri};
use serde::Serialize;
use tollgate_layers::{
    Error,
    body::AnswerBody,
    call::{Format, Operation, Priced},
    facts::Caller,
    key::{AccountId, KeyId},
    model::ModelKind,
    money::MicroRub,
    price::Price,
    reserve::{
        Tariff,
        ledger::{Ledger, LedgerAdmin, LedgerError, Refusal},
        refusal,
        tokens::ByTokens,
    },
};

use crate::{
    endpoints::{
        handler::Handler,
        key_info::{format_of, no_books},
        reply,
    },
    ledger::AnyLedger,
    text::{percent::decoded, time::now_ms},
};

/// Sets the operation for which the body is estimated: the query's `path` names it, otherwise the body's format
/// determines it. Paths that do not accept calls cannot be estimated.
pub fn as_call<B>(mut req: Request<B>) -> Request<B> {
    let query = req.uri().query().unwrap_or_default();
    let named = query.split('&').find_map(|pair| pair.strip_prefix("path="));
    *req.uri_mut() = Uri::from_static(match named {
        Some(path) => called(&decoded(path).unwrap_or_default()).unwrap_or("/"),
        None => match format_of(req.headers()) {
            Format::Chat | Format::Responses => Operation::CHAT_OR_RESPONSES,
            Format::Messages => "/v1/messages",
        },
    });
    req
}

/// Returns the path of the estimated call, if models can be called there.
fn called(path: &str) -> Option<&'static str> {
    let surfaces = [ModelKind::Chat, ModelKind::Embedding].map(ModelKind::surfaces);
    let mut all = surfaces.into_iter().flatten().copied();
    all.find(|surface| *surface == path)
}

/// Answers estimates. It takes the position in the stack that `reserve` has for calls.
#[derive(Clone, Debug)]
pub struct Estimate {
    /// The ledger with whose free money the quote is compared.
    pub(crate) store: AnyLedger,
    pub(crate) tariff: ByTokens,
}

impl Estimate {
    /// Returns the amount that the key can hold now. A key that may not hold anything gets the same error as for a
    /// call; a key whose money is used up gets zero.
    async fn free(
        &self,
        account: &AccountId,
        key: &KeyId,
        needs: MicroRub,
    ) -> Result<MicroRub, Error> {
        match self.store.probe(account, key).await {
            Ok(()) => {}
            Err(LedgerError::Refused(Refusal::AccountEmpty | Refusal::CeilingUsedUp(_))) => {
                return Ok(MicroRub::ZERO);
            }
            Err(error) => return Err(refusal(error, needs, true)),
        }
        let view = self.store.key(key).await.map_err(no_books)?;
        Ok(view.free_rub)
    }
}

impl Handler<Priced> for Estimate {
    async fn handle(self, mut req: Request<Priced>) -> Result<Response<AnswerBody>, Error> {
        let Caller(caller) = Caller::of(&req)?;
        let caller = caller.clone();
        let mut quote = self.tariff.quote(&req)?;
        let (least, bill) = (quote.least, &mut quote.bill);
        let free = self.free(&caller.account, &caller.id, least).await?;
        // The amount that the ledger would hold: at most the free money, but at least `least`. If the free money is
        // below `least`, the ledger would refuse the hold.
        let hold = quote.want.min(free).max(least);
        self.tariff.granted(&mut req, bill, hold);
        let Priced { model, prices, .. } = req.body();
        let price = prices.in_force(now_ms());
        let others = bill.prices_may_apply();
        let others = others.filter(|other| !Arc::ptr_eq(other, price));
        Ok(reply::json(&EstimateJson {
            model: &model.id,
            input_tokens_max: bill.input_tokens_max(),
            output_tokens_max: bill.output_tokens_max(),
            hold_rub: hold,
            hold_min_rub: bill.held_min(),
            free_rub: free,
            fits: hold <= free,
            price,
            price_rules: others.map(|price| &**price).collect(),
        }))
    }
}

#[derive(Serialize)]
struct EstimateJson<'a> {
    model: &'a str,
    input_tokens_max: u64,
    output_tokens_max: u64,
    hold_rub: MicroRub,
    /// The approximate amount to which the hold can fall while the call is in flight.
    hold_min_rub: MicroRub,
    free_rub: MicroRub,
    fits: bool,
    price: &'a Price,
    /// The conditional prices, which may apply instead of the unconditional ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    price_rules: Vec<&'a Price>,
}
