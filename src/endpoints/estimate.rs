//! `POST /v1/<service>/estimate`: what a call would hold, without holding it and without sending it.
//!
//! The body is that of a call, of either format, and it goes the same way through `parse` and `select`; what
//! is quoted comes from the tariff that `reserve` asks. So an estimate is refused where its call would be, up
//! to the hold, and free.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response, Uri};
use serde::Serialize;
use tollgate_layers::{
    Error,
    body::AnswerBody,
    call::{Format, Priced},
    facts::Caller,
    key::{AccountId, KeyId},
    money::MicroRub,
    price::Price,
    reserve::{
        Quote, Tariff,
        ledger::{Ledger, LedgerAdmin, LedgerError, Refusal},
        refusal,
        tokens::ByTokens,
    },
};
use tower::Service;

use crate::{
    endpoints::{
        key_info::{format_of, no_books},
        reply,
    },
    ledger::AnyLedger,
};

/// Names the operation whose body an estimate brings, which its path does not.
pub fn as_call<B>(mut req: Request<B>) -> Request<B> {
    *req.uri_mut() = Uri::from_static(match format_of(req.headers()) {
        Format::Chat => "/v1/chat/completions",
        Format::Messages => "/v1/messages",
    });
    req
}

/// Answers estimates, where `reserve` stands for calls.
#[derive(Clone, Debug)]
pub struct Estimate {
    store: AnyLedger,
    tariff: ByTokens,
}

impl Estimate {
    /// Quotes by `tariff`, and looks into the books of `store` whether that fits.
    #[must_use]
    pub const fn new(store: AnyLedger, tariff: ByTokens) -> Self {
        Self { store, tariff }
    }

    async fn estimate(&self, mut req: Request<Priced>) -> Result<Response<AnswerBody>, Error> {
        let Caller(caller) = Caller::of(&req)?;
        let caller = caller.clone();
        let Quote {
            want,
            least,
            mut bill,
            ..
        } = self.tariff.quote(&req)?;
        let free = self.free(&caller.account, &caller.id, least).await?;
        // What the ledger would hold, or what it would ask for in vain.
        let hold = want.min(free).max(least);
        self.tariff.granted(&mut req, &mut bill, hold);
        let Priced { model, prices, .. } = req.body();
        Ok(reply::json(&EstimateJson {
            model: &model.id,
            input_tokens_max: bill.input_tokens_max(),
            output_tokens_max: bill.output_tokens_max(),
            hold_rub: hold,
            free_rub: free,
            fits: hold <= free,
            price: &prices.usual,
        }))
    }

    /// What the key can hold now. Who may not hold anything is told so as a call would be; who has nothing
    /// left has nothing free.
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
            Err(error) => return Err(refusal(error, needs)),
        }
        let view = self.store.key(key).await.map_err(no_books)?;
        Ok(view.free_rub)
    }
}

impl Service<Request<Priced>> for Estimate {
    type Response = Response<AnswerBody>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Request<Priced>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { this.estimate(req).await })
    }
}

#[derive(Serialize)]
struct EstimateJson<'a> {
    model: &'a str,
    input_tokens_max: u64,
    output_tokens_max: u64,
    hold_rub: MicroRub,
    free_rub: MicroRub,
    fits: bool,
    price: &'a Price,
}
