//! Delivery of the ledger's events: [`Tail`] reads events as they are emitted, and [`Dispatcher`] sends them to
//! receivers, with one task per receiver. No call waits for the delivery of events.

mod conditions;
mod delivery;
mod dispatcher;
mod event;
mod mail;
mod receiver;
mod state;
mod tail;
mod telegram;
mod watch;
mod webhook;
mod words;

pub(crate) use self::{
    dispatcher::{Dispatcher, Replayed},
    event::{Filter, Shown},
    mail::Mailer,
    receiver::Receiver,
    state::DeliveryState,
    tail::{Page, Tail},
    watch::Watcher,
};
