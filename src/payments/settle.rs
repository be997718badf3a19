//! Updates the ledger and an intent to the state of the payment that the provider reports. If a process dies before it
//! has finished, the next process repeats the unfinished part. The repetition has no further effect on the ledger,
//! because the ids of ledger entries are derived from the provider's ids.

use tollgate_layers::{
    key::AccountId,
    money::MicroRub,
    reserve::ledger::{BookError, Entry, LedgerAdmin},
    respond::Language,
};
use tollgate_ledger::{
    contract::{EventStore, OnceEvent},
    happening::Happening,
};

use super::{
    intent::{CardUse, Dispute, DisputeStatus, Intent, IntentId, Refund, RefundKind, State},
    provider::{
        Amount, CardReport, ProviderDispute, ProviderPayment, ProviderRefund, ProviderStatus,
    },
    service::{Inner, PaymentError, Payments},
};
use crate::observe::metrics::payments::Outcome;

/// Maximum number of attempts to take free money off an account while new holds reduce it.
const TRIES_MAX: usize = 100;

impl Payments {
    /// Updates the ledger and the intent to the state of the payment that the provider reports.
    pub(super) async fn settle(
        &self,
        intent: Intent,
        remote: ProviderPayment,
    ) -> Result<Intent, PaymentError> {
        let id = intent.id;
        let mut intent = match &remote.provider_status {
            ProviderStatus::Pending => return Ok(intent),
            ProviderStatus::Canceled(why) if intent.state == State::Paid => {
                return self.reversed(intent, why).await;
            }
            ProviderStatus::Canceled(why) => return self.cancel(id, why).await,
            ProviderStatus::Succeeded if matches!(intent.state, State::Paid | State::Refused) => {
                intent
            }
            ProviderStatus::Succeeded => self.book(intent, &remote).await?,
        };
        if intent.state == State::Paid {
            match (intent.card, &remote.card) {
                (Some(CardUse::Save), CardReport::Saved(card)) => {
                    self.keep_card(&intent, Some(card)).await?;
                }
                (Some(CardUse::Save), CardReport::NotSaved) => {
                    self.keep_card(&intent, None).await?;
                }
                _ => {}
            }
            for refund in &remote.refunds {
                intent = self.refund(&intent, refund).await?;
            }
            for dispute in &remote.disputes {
                intent = self.dispute(&intent, dispute).await?;
            }
            // A process may have recorded a refund in the intent, and then died before it booked the refund. Not every
            // provider is polled again, so recorded refunds are booked here.
            intent = self.0.intents.find(id).await?.unwrap_or(intent);
            for refund in intent.refunds.clone() {
                if refund.failed {
                    intent = self.give_back(&intent, &refund.id).await?;
                } else if refund.taken_rub.is_empty() {
                    intent = self.take(&intent, &refund).await?;
                }
            }
        }
        self.0.intents.close(id).await?;
        Ok(intent)
    }

    /// Books the received money, if its amount equals the requested amount.
    async fn book(&self, intent: Intent, remote: &ProviderPayment) -> Result<Intent, PaymentError> {
        let Inner { store, intents, .. } = &*self.0;
        let known = remote.intent.as_deref() == Some(&intent.id.to_string());
        if !known || remote.amount.rubles() != Some(intent.amount_rub) {
            let (payment, requested) = (&remote.payment, intent.amount_rub);
            let why = format!(
                "payment {payment} is {}, but the request was for {requested} RUB",
                remote.amount
            );
            return self.refuse(&intent, &why).await;
        }
        let entry = Entry {
            id: format!("{}:{}", intent.provider, remote.payment),
            amount: intent.amount_rub,
            reason: None,
        };
        let view = match store.enter(&intent.account, &entry).await {
            Ok(view) => view,
            Err(error @ BookError::Unavailable(_)) => return Err(error.into()),
            Err(error) => {
                let why = format!("payment {} cannot be booked: {error}", remote.payment);
                return self.refuse(&intent, &why).await;
            }
        };
        tracing::info!(
            target: "audit", who = intent.provider, what = "payment.paid", account = %intent.account, intent = %intent.id,
            id = entry.id, amount_rub = %entry.amount, balance_rub = %view.balance_rub
        );
        self.0.counters.count(Outcome::Paid);
        let paid = intents.change(intent.id, |intent| {
            let entry = Some(entry.id.clone());
            let differs = intent.state != State::Paid || intent.entry != entry;
            (intent.state, intent.reason, intent.entry) = (State::Paid, None, entry);
            differs
        });
        Ok(paid.await?)
    }

    /// Takes a refund off the account, once. If the account has already spent some of the money, that part remains as a
    /// debt.
    pub(super) async fn refund(
        &self,
        intent: &Intent,
        remote: &ProviderRefund,
    ) -> Result<Intent, PaymentError> {
        let known = intent.refund(&remote.id);
        match (remote.failed, known) {
            (true, None) => return Ok(intent.clone()),
            (true, Some(_)) => return self.give_back(intent, &remote.id).await,
            (false, Some(known)) if !known.taken_rub.is_empty() => return Ok(intent.clone()),
            (false, _) => {}
        }
        let Some(amount) = in_rubles(intent, &remote.id, &remote.amount) else {
            return Ok(intent.clone());
        };
        let kind = RefundKind::Refund;
        self.take_for(intent, &remote.id, kind, amount).await
    }

    /// Emits an event for each state of a dispute. If the bank holds the disputed amount back, this amount is taken off
    /// the account like a refund, and credited again if the dispute is won.
    async fn dispute(
        &self,
        intent: &Intent,
        remote: &ProviderDispute,
    ) -> Result<Intent, PaymentError> {
        let Some(amount_rub) = in_rubles(intent, &remote.id, &remote.amount) else {
            return Ok(intent.clone());
        };
        let reported = intent.disputes.iter().find(|known| known.id == remote.id);
        let mut intent = intent.clone();
        if reported.is_none_or(|reported| reported.status != remote.status) {
            // The event is emitted before the dispute's state is recorded. If this process dies in between, the next
            // process emits the event again. Both have the same id, so the ledger stores the event once.
            self.tell_dispute(&intent, remote, amount_rub).await?;
            let noted = self.0.intents.change(intent.id, |intent| {
                intent.disputes.retain(|known| known.id != remote.id);
                intent.disputes.push(Dispute {
                    id: remote.id.clone(),
                    amount_rub,
                    status: remote.status,
                });
                true
            });
            intent = noted.await?;
        }
        let known = intent.refund(&remote.id);
        match remote.status {
            DisputeStatus::Won if known.is_some() => self.give_back(&intent, &remote.id).await,
            DisputeStatus::Open | DisputeStatus::Lost if remote.is_held && known.is_none() => {
                let kind = RefundKind::Dispute;
                self.take_for(&intent, &remote.id, kind, amount_rub).await
            }
            _ => Ok(intent),
        }
    }

    /// Records a refund or a disputed amount in the intent, and takes it off the account.
    async fn take_for(
        &self,
        intent: &Intent,
        id: &str,
        kind: RefundKind,
        amount_rub: MicroRub,
    ) -> Result<Intent, PaymentError> {
        let intents = &self.0.intents;
        // The intent is listed as open again, so that its payment is polled until the refund is complete.
        intents.add_open(intent, usize::MAX).await?;
        let noted = intents.change(intent.id, |intent| {
            let is_new = intent.refund(id).is_none();
            if is_new {
                intent.refunds.push(Refund {
                    id: id.to_owned(),
                    kind,
                    amount_rub,
                    taken_rub: Vec::new(),
                    failed: false,
                    returned: 0,
                });
            }
            is_new
        });
        let noted = noted.await?;
        match noted.refund(id) {
            Some(refund) if refund.taken_rub.is_empty() && !refund.failed => {
                self.take(&noted, refund).await
            }
            _ => Ok(noted),
        }
    }

    /// Reverses, once, each entry of a refund that failed or of a dispute that was won. Another process may be adding
    /// an entry at the same time. That process then finds that the refund has failed, and reverses the entry itself.
    async fn give_back(&self, intent: &Intent, id: &str) -> Result<Intent, PaymentError> {
        let Inner { store, intents, .. } = &*self.0;
        // The intent is listed as open again, so that its payment is polled until all entries are reversed.
        intents.add_open(intent, usize::MAX).await?;
        let set = |intent: &mut Intent, change: &dyn Fn(&mut Refund) -> bool| {
            let mut refunds = intent.refunds.iter_mut();
            refunds.find(|known| known.id == id).is_some_and(change)
        };
        let failed = intents.change(intent.id, |intent| {
            set(intent, &|refund| {
                !std::mem::replace(&mut refund.failed, true)
            })
        });
        let failed = failed.await?;
        let Some(refund) = failed.refund(id) else {
            return Ok(failed);
        };
        let mut returned = refund.returned;
        let booked_before = returned;
        loop {
            let correction = failed.correction(refund, returned);
            // The journal may contain an entry that the intent does not record yet.
            let taken = match refund.taken_rub.get(returned) {
                Some(taken) => *taken,
                None => match store.entry(&failed.account, &correction).await? {
                    Some(entry) => entry.amount.negated(),
                    None => break,
                },
            };
            if taken > MicroRub::ZERO {
                self.book_back(&failed, refund, &correction, taken).await?;
            }
            returned += 1;
        }
        let noted = intents.change(failed.id, |intent| {
            set(intent, &|refund| {
                let is_more = refund.returned < returned;
                refund.returned = refund.returned.max(returned);
                is_more
            })
        });
        let noted = noted.await?;
        if noted.debt() == MicroRub::ZERO {
            intents.owe_no_more(&noted).await?;
        }
        if returned > booked_before {
            self.0.counters.count(Outcome::Returned);
        }
        Ok(noted)
    }

    async fn book_back(
        &self,
        intent: &Intent,
        refund: &Refund,
        correction: &str,
        taken: MicroRub,
    ) -> Result<(), PaymentError> {
        let payment = intent.entry.as_deref().unwrap_or_default();
        let id = &refund.id;
        let reason = match (self.0.language, refund.kind) {
            (Language::En, RefundKind::Refund) => {
                format!("Refund {id} of payment {payment} failed")
            }
            (Language::En, RefundKind::Dispute) => {
                format!("Dispute {id} of payment {payment} was won")
            }
            (_, RefundKind::Refund) => format!("Возврат {id} по платежу {payment} не прошёл"),
            (_, RefundKind::Dispute) => {
                format!("Спор {id} по платежу {payment} закрыт в вашу пользу")
            }
        };
        let entry = Entry {
            id: format!("{correction}:back"),
            amount: taken,
            reason: Some(reason),
        };
        let view = self.0.store.enter(&intent.account, &entry).await?;
        tracing::info!(
            target: "audit", who = intent.provider, what = "payment.returned", account = %intent.account,
            intent = %intent.id, id = entry.id, amount_rub = %taken, balance_rub = %view.balance_rub
        );
        Ok(())
    }

    async fn tell_dispute(
        &self,
        intent: &Intent,
        remote: &ProviderDispute,
        amount_rub: MicroRub,
    ) -> Result<(), BookError> {
        let entry = intent.entry.clone().unwrap_or_default();
        let status = remote.status.as_str();
        let once = format!("dispute:{}:{}:{status}", intent.provider, remote.id);
        let what = Happening::PaymentDisputed {
            provider: intent.provider.clone(),
            entry: entry.clone(),
            dispute: remote.id.clone(),
            amount_rub,
            status: status.to_owned(),
        };
        if self.emit_once(once, &intent.account, what).await? {
            tracing::warn!(
                provider = intent.provider, intent = %intent.id, account = %intent.account, entry,
                dispute = remote.id, amount_rub = %amount_rub, status, "a payment is disputed"
            );
            self.0.counters.count(Outcome::Disputed);
        }
        Ok(())
    }

    /// Handles a payment that the provider cancels after reporting its success. Nothing is booked, because an operator
    /// must decide.
    async fn reversed(&self, intent: Intent, why: &str) -> Result<Intent, PaymentError> {
        let entry = intent.entry.clone().unwrap_or_default();
        let once = format!("payment_reversed:{entry}");
        let what = Happening::PaymentReversed {
            provider: intent.provider.clone(),
            entry: entry.clone(),
            amount_rub: intent.amount_rub,
            reason: why.to_owned(),
        };
        if self.emit_once(once, &intent.account, what).await? {
            tracing::error!(
                provider = intent.provider, intent = %intent.id, account = %intent.account, entry, why,
                "a booked payment was canceled: nothing was taken off the account"
            );
            self.0.counters.count(Outcome::Reversed);
        }
        self.0.intents.close(intent.id).await?;
        Ok(intent)
    }

    /// Takes free money off the account for a refund, as the refund's next ledger entry. The first entry is written
    /// even if its amount is zero. A repeated attempt finds the entry by its id, and uses the entry's amount.
    pub(super) async fn take(
        &self,
        intent: &Intent,
        refund: &Refund,
    ) -> Result<Intent, PaymentError> {
        let intents = &self.0.intents;
        let before = refund.taken_rub.len();
        let id = intent.correction(refund, before);
        let Some(taken) = self.enter_refund(intent, refund, &id).await? else {
            return Ok(intent.clone());
        };
        let debt_rub = refund.debt().minus_or_zero(taken);
        if debt_rub > MicroRub::ZERO {
            // The event is emitted before the refund is recorded. If this process dies in between, the next process
            // emits the event again. Both have the same id, so the ledger stores the event once.
            if before == 0 {
                let (once, entry) = (format!("debt:{id}"), id.clone());
                let what = Happening::Debt { entry, debt_rub };
                self.emit_once(once, &intent.account, what).await?;
            }
            intents.owe(intent).await?;
        }
        let noted = intents.change(intent.id, |intent| {
            let mut refunds = intent.refunds.iter_mut();
            let refund = refunds.find(|known| known.id == refund.id);
            let refund = refund.filter(|known| known.taken_rub.len() == before);
            refund.map(|refund| refund.taken_rub.push(taken)).is_some()
        });
        let noted = noted.await?;
        if noted.debt() > MicroRub::ZERO {
            intents.owe(&noted).await?;
        } else if before > 0 {
            intents.owe_no_more(&noted).await?;
        }
        self.0.counters.count(match noted.debt() {
            MicroRub::ZERO => Outcome::Refunded,
            _ => Outcome::Owed,
        });
        tracing::info!(
            target: "audit", who = intent.provider, what = "payment.refunded", account = %intent.account,
            intent = %intent.id, id, amount_rub = %taken.negated(), refund_rub = %refund.amount_rub, debt_rub = %noted.debt()
        );
        // The refund failed while the entry was being written, so the entry is reversed.
        if noted.refund(&refund.id).is_some_and(|refund| refund.failed) {
            return self.give_back(&noted, &refund.id).await;
        }
        Ok(noted)
    }

    /// Writes an entry that takes the refund off the account, or as much of the refund as the account has. Returns the
    /// amount. Returns `None`, and writes nothing, if the amount is zero and the refund already has an entry.
    async fn enter_refund(
        &self,
        intent: &Intent,
        refund: &Refund,
        id: &str,
    ) -> Result<Option<MicroRub>, PaymentError> {
        let store = &self.0.store;
        for attempt in 0..TRIES_MAX {
            let view = store.account(&intent.account).await?;
            // For the first attempt, the ledger recalls the leases of the account, so the money that is leased to
            // gateways can be taken as well. If calls hold some of it, the later attempts take only free money.
            let most = match attempt {
                0 => view.balance_rub,
                _ => view.free_rub,
            };
            let amount = refund.debt().min(most.max(MicroRub::ZERO));
            if !refund.taken_rub.is_empty() && amount == MicroRub::ZERO {
                return Ok(None);
            }
            let entry = Entry {
                id: id.to_owned(),
                amount: amount.negated(),
                reason: Some(self.reason(intent, refund)),
            };
            return match store.enter(&intent.account, &entry).await {
                Ok(_) => Ok(Some(amount)),
                // Calls hold a part of the amount, so the next attempt takes only the free money.
                Err(BookError::BelowHeld) => continue,
                // The entry was written earlier with another amount, because the account had another amount of free
                // money then. So the amount is read from the ledger.
                Err(BookError::Exists) => Ok(Some(self.booked(intent, id).await?)),
                Err(error) => Err(error.into()),
            };
        }
        let problem = "new holds take the free money before the refund can take it";
        Err(BookError::Unavailable(problem.into()).into())
    }

    fn reason(&self, intent: &Intent, Refund { id, kind, .. }: &Refund) -> String {
        let entry = intent.entry.as_deref().unwrap_or_default();
        match (self.0.language, kind) {
            (Language::En, RefundKind::Refund) => format!("Refund {id} of payment {entry}"),
            (Language::En, RefundKind::Dispute) => format!("Dispute {id} of payment {entry}"),
            (_, RefundKind::Refund) => format!("Возврат {id} по платежу {entry}"),
            (_, RefundKind::Dispute) => format!("Спор {id} по платежу {entry}"),
        }
    }

    /// Emits an event about an account, unless an event with this `once` was emitted before. Returns whether the event
    /// was emitted.
    pub(super) async fn emit_once(
        &self,
        once: String,
        account: &AccountId,
        what: Happening,
    ) -> Result<bool, BookError> {
        let event = OnceEvent {
            once,
            account: Some(account.clone()),
            key: None,
            what,
        };
        self.0.store.emit_once(&event).await
    }

    /// Returns the amount of the ledger entry with this id.
    async fn booked(&self, intent: &Intent, id: &str) -> Result<MicroRub, BookError> {
        if let Some(entry) = self.0.store.entry(&intent.account, id).await? {
            return Ok(entry.amount.negated());
        }
        Err(BookError::Unavailable(
            format!("entry {id} is booked, but the journal does not contain its amount").into(),
        ))
    }

    /// Cancels an intent for which no money was received. If money was booked already, nothing is changed in the
    /// ledger.
    pub(super) async fn cancel(&self, id: IntentId, why: &str) -> Result<Intent, PaymentError> {
        self.0.counters.count(Outcome::Canceled);
        let canceled = self.0.intents.change(id, |intent| {
            let is_open = intent.state.is_open();
            if is_open {
                (intent.state, intent.reason) = (State::Canceled, Some(why.to_owned()));
            }
            is_open
        });
        let canceled = canceled.await?;
        self.0.intents.close(id).await?;
        Ok(canceled)
    }

    /// Refuses an intent because the received money differs from the requested amount. An operator must decide what to
    /// do.
    pub(super) async fn refuse(&self, intent: &Intent, why: &str) -> Result<Intent, PaymentError> {
        tracing::error!(
            provider = intent.provider, intent = %intent.id, account = %intent.account, why,
            "a received payment was not booked: an operator must decide"
        );
        self.0.counters.count(Outcome::Refused);
        let refused = self.0.intents.change(intent.id, |intent| {
            let differs = !matches!(intent.state, State::Paid | State::Refused);
            if differs {
                (intent.state, intent.reason) = (State::Refused, Some(why.to_owned()));
            }
            differs
        });
        Ok(refused.await?)
    }
}

/// Returns the amount of a refund or dispute; `None` if it is not in rubles.
fn in_rubles(intent: &Intent, id: &str, amount: &Amount) -> Option<MicroRub> {
    let rubles = amount.rubles().filter(|rubles| *rubles > MicroRub::ZERO);
    if rubles.is_none() {
        tracing::error!(
            intent = %intent.id, refund = id, %amount,
            "a refund or a dispute is not in rubles: nothing was taken off the account"
        );
    }
    rubles
}
