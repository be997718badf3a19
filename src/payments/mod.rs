//! Payments that customers make at a provider: YooKassa, CloudPayments or Stripe.
//!
//! An intent records that a payment was requested; the provider decides the outcome. An intent is processed after a
//! notification, at an operator's request, or by a timer. In each case the payment is fetched from the provider and
//! booked in the same way (`settle`). So it does not matter how often, how late or in which order notifications arrive.
//! The ledger books each top-up once, because the top-up's id is derived from the provider's payment id. If a process
//! dies before it has finished, another process repeats the unfinished part, which still takes effect only once.

mod auto;
mod charging;
mod cloudpayments;
mod intent;
mod intent_store;
mod notified;
mod poll;
mod provider;
mod providers;
mod rules;
mod service;
mod settle;
mod stripe;
mod yookassa;

pub(crate) use self::notified::Notified;
pub use self::{
    auto::AutoShown,
    intent::{CardUse, Dispute, DisputeStatus, Intent, IntentId, Refund, RefundKind, State},
    provider::ProviderError,
    rules::NewAutoTopup,
    service::{NewPayment, PaymentError, Payments},
};
