//! What the provider says is brought to the ledger, and to the intent. Each step may be the last of its process, and is
//! made again by the next one: what it books has an id that is made of the provider's.

use tollgate_layers::{
    money::MicroRub,
    reserve::ledger::{BookError, Entry, LedgerAdmin},
    respond::Language,
};
use tollgate_ledger::{
    contract::{Feed, Telling},
    happening::Happening,
};

use super::{
    Inner, PaymentError, Payments,
    intent::{CardUse, Intent, IntentId, Refund, State},
    provider::{Seen, SeenCard, SeenRefund, Standing},
    shelf::NotOpened,
};
use crate::observe::metrics::payments::Outcome;

/// How often what is free is looked at anew while calls take it.
const TRIES_MAX: usize = 100;

impl Payments {
    /// Brings the ledger and the intent to what the provider says.
    pub(super) async fn settle(&self, intent: Intent, seen: Seen) -> Result<Intent, PaymentError> {
        let id = intent.id;
        let mut intent = match &seen.standing {
            Standing::Pending => return Ok(intent),
            Standing::Canceled(why) => return self.cancel(id, why).await,
            Standing::Succeeded if matches!(intent.state, State::Paid | State::Refused) => intent,
            Standing::Succeeded => self.book(intent, &seen).await?,
        };
        if intent.state == State::Paid {
            match (intent.card, &seen.card) {
                (Some(CardUse::Save), SeenCard::Saved(card)) => {
                    self.keep_card(&intent, Some(card)).await?;
                }
                (Some(CardUse::Save), SeenCard::NotSaved) => {
                    self.keep_card(&intent, None).await?;
                }
                _ => {}
            }
            for refund in &seen.refunds {
                intent = self.refund(&intent, refund).await?;
            }
            // A process that noted one may have ended before it took it off, and not every provider is asked again.
            intent = self.0.shelf.find(id).await?.unwrap_or(intent);
            let noted = intent.refunds.iter();
            let untaken = noted.filter(|refund| refund.taken_rub.is_empty());
            for refund in untaken.cloned().collect::<Vec<_>>() {
                intent = self.take(&intent, &refund).await?;
            }
        }
        self.0.shelf.close(id).await?;
        Ok(intent)
    }

    /// Books the money that came, if it is what was asked for.
    async fn book(&self, intent: Intent, seen: &Seen) -> Result<Intent, PaymentError> {
        let Inner { store, shelf, .. } = &*self.0;
        let known = seen.intent.as_deref() == Some(&intent.id.to_string());
        if !known || seen.amount.rubles() != Some(intent.amount_rub) {
            let (payment, asked) = (&seen.payment, intent.amount_rub);
            let why = format!(
                "payment {payment} is of {}, {asked} RUB was asked for",
                seen.amount
            );
            return self.refuse(&intent, &why).await;
        }
        let entry = Entry {
            id: format!("{}:{}", intent.provider, seen.payment),
            amount: intent.amount_rub,
            reason: None,
        };
        let view = match store.enter(&intent.account, &entry).await {
            Ok(view) => view,
            Err(error @ BookError::Unavailable(_)) => return Err(error.into()),
            Err(error) => {
                let why = format!("payment {} cannot be booked: {error}", seen.payment);
                return self.refuse(&intent, &why).await;
            }
        };
        tracing::info!(
            target: "audit", who = intent.provider, what = "payment.paid", account = %intent.account, intent = %intent.id,
            id = entry.id, amount_rub = %entry.amount, balance_rub = %view.balance_rub
        );
        self.0.counters.count(Outcome::Paid);
        let paid = shelf.change(intent.id, |intent| {
            let entry = Some(entry.id.clone());
            let differs = intent.state != State::Paid || intent.entry != entry;
            (intent.state, intent.reason, intent.entry) = (State::Paid, None, entry);
            differs
        });
        Ok(paid.await?)
    }

    /// Takes a refund off the account, once; what the account has spent is left as a debt.
    pub(super) async fn refund(
        &self,
        intent: &Intent,
        seen: &SeenRefund,
    ) -> Result<Intent, PaymentError> {
        let shelf = &self.0.shelf;
        let known = intent.refunds.iter().find(|refund| refund.id == seen.id);
        if known.is_some_and(|refund| !refund.taken_rub.is_empty()) {
            return Ok(intent.clone());
        }
        let Some(amount) = seen
            .amount
            .rubles()
            .filter(|amount| *amount > MicroRub::ZERO)
        else {
            tracing::error!(
                intent = %intent.id, refund = seen.id, amount = %seen.amount,
                "a refund is of no rubles: nothing was taken off for it"
            );
            return Ok(intent.clone());
        };
        // Until it is done, it is looked after.
        let opened = shelf.add_open(intent, usize::MAX).await;
        if let Err(NotOpened::Ledger(error)) = opened {
            return Err(error.into());
        }
        let noted = shelf.change(intent.id, |intent| {
            let is_new = intent.refunds.iter().all(|refund| refund.id != seen.id);
            if is_new {
                intent.refunds.push(Refund {
                    id: seen.id.clone(),
                    amount_rub: amount,
                    taken_rub: Vec::new(),
                });
            }
            is_new
        });
        let noted = noted.await?;
        match noted.refunds.iter().find(|refund| refund.id == seen.id) {
            Some(refund) if refund.taken_rub.is_empty() => self.take(&noted, refund).await,
            _ => Ok(noted),
        }
    }

    /// Takes what is free off the account for a refund, as its next entry. The first is made even of nothing: under its
    /// id it says once and for all how much that was.
    pub(super) async fn take(
        &self,
        intent: &Intent,
        refund: &Refund,
    ) -> Result<Intent, PaymentError> {
        let Inner { store, shelf, .. } = &*self.0;
        let before = refund.taken_rub.len();
        let id = intent.correction(&refund.id, before);
        let entry = intent.entry.as_deref().unwrap_or_default();
        let reason = match self.0.language {
            Language::En => format!("Refund {} of payment {entry}", refund.id),
            _ => format!("Возврат {} по платежу {entry}", refund.id),
        };
        let mut taken = None;
        for attempt in 0..TRIES_MAX {
            let view = store.account(&intent.account).await?;
            // What gateways hold ahead of need is free, too: the ledger calls it back for an entry that needs it. Only
            // what is left then is held by calls.
            let most = match attempt {
                0 => view.balance_rub,
                _ => view.free_rub,
            };
            let amount = refund.debt().min(most.max(MicroRub::ZERO));
            if before > 0 && amount == MicroRub::ZERO {
                return Ok(intent.clone());
            }
            let entry = Entry {
                id: id.clone(),
                amount: amount.negated(),
                reason: Some(reason.clone()),
            };
            match store.enter(&intent.account, &entry).await {
                Ok(_) => taken = Some(amount),
                // Calls hold some of it.
                Err(BookError::BelowHeld) => continue,
                // It was made before, when another amount was free.
                Err(BookError::Exists) => taken = Some(self.booked(intent, &id).await?),
                Err(error) => return Err(error.into()),
            }
            break;
        }
        let taken = taken.ok_or_else(|| {
            BookError::Unavailable("what is free changes faster than it can be taken".into())
        })?;
        let debt_rub = refund.debt().minus_or_zero(taken);
        if debt_rub > MicroRub::ZERO {
            // Before it is noted: whoever does it again tells it again, and it is told once.
            if before == 0 {
                self.tell_debt(intent, &id, debt_rub).await?;
            }
            shelf.owe(intent).await?;
        }
        let noted = shelf.change(intent.id, |intent| {
            let refund = intent
                .refunds
                .iter_mut()
                .find(|known| known.id == refund.id);
            let Some(refund) = refund.filter(|known| known.taken_rub.len() == before) else {
                return false;
            };
            refund.taken_rub.push(taken);
            true
        });
        let noted = noted.await?;
        if noted.debt() > MicroRub::ZERO {
            shelf.owe(&noted).await?;
        } else if before > 0 {
            shelf.owe_no_more(&noted).await?;
        }
        self.0.counters.count(if noted.debt() == MicroRub::ZERO {
            Outcome::Refunded
        } else {
            Outcome::Owed
        });
        tracing::info!(
            target: "audit", who = intent.provider, what = "payment.refunded", account = %intent.account,
            intent = %intent.id, id, amount_rub = %taken.negated(), refund_rub = %refund.amount_rub, debt_rub = %noted.debt()
        );
        Ok(noted)
    }

    async fn tell_debt(
        &self,
        intent: &Intent,
        entry: &str,
        debt_rub: MicroRub,
    ) -> Result<(), BookError> {
        let telling = Telling {
            once: format!("debt:{entry}"),
            account: Some(intent.account.clone()),
            key: None,
            what: Happening::Debt {
                entry: entry.to_owned(),
                debt_rub,
            },
        };
        self.0.store.tell(&telling).await.map(drop)
    }

    /// What was taken off under an id.
    async fn booked(&self, intent: &Intent, id: &str) -> Result<MicroRub, BookError> {
        if let Some(entry) = self.0.store.entry(&intent.account, id).await? {
            return Ok(entry.amount.negated());
        }
        Err(BookError::Unavailable(
            format!("{id} is booked, and the journal does not say how much").into(),
        ))
    }

    /// There will be no money; what came already stays.
    pub(super) async fn cancel(&self, id: IntentId, why: &str) -> Result<Intent, PaymentError> {
        let Inner {
            shelf, counters, ..
        } = &*self.0;
        counters.count(Outcome::Canceled);
        let canceled = shelf.change(id, |intent| {
            let is_open = intent.state.is_open();
            if is_open {
                (intent.state, intent.reason) = (State::Canceled, Some(why.to_owned()));
            }
            is_open
        });
        let canceled = canceled.await?;
        shelf.close(id).await?;
        Ok(canceled)
    }

    /// Money came that is not what was asked for: an operator has to look.
    pub(super) async fn refuse(&self, intent: &Intent, why: &str) -> Result<Intent, PaymentError> {
        tracing::error!(
            provider = intent.provider, intent = %intent.id, account = %intent.account, why,
            "money came that was not asked for: nothing was booked"
        );
        self.0.counters.count(Outcome::Refused);
        let refused = self.0.shelf.change(intent.id, |intent| {
            let differs = !matches!(intent.state, State::Paid | State::Refused);
            if differs {
                (intent.state, intent.reason) = (State::Refused, Some(why.to_owned()));
            }
            differs
        });
        Ok(refused.await?)
    }
}
