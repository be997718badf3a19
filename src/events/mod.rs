//! Delivers the ledger's events. [`Tail`] reads events as they are emitted; [`Dispatcher`] sends them to receivers,
//! with one task for each receiver. No call waits for the delivery of an event.

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
