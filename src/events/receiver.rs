//! A receiver of events: which events it gets, how they are sent, and for how long an event is retried.

use std::time::Duration;

use tollgate_ledger::happening::Event;

use super::{
    event::Filter,
    mail::Mail,
    telegram::Telegram,
    webhook::{Sent, Webhook},
};
use crate::config::{ReceiverConfig, WayConfig};

/// A receiver of events, with its delivery method.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) name: String,
    pub(crate) filter: Filter,
    /// The time for which an event is retried.
    pub(super) retry_max: Duration,
    way: Way,
}

#[derive(Debug)]
enum Way {
    Webhook(Webhook),
    Mail(Mail),
    Telegram(Telegram),
}

impl Receiver {
    pub(super) fn new(config: &ReceiverConfig) -> Self {
        Self {
            name: config.name.clone(),
            filter: Filter {
                accounts: config.accounts.clone(),
                kinds: config.kinds.clone(),
            },
            retry_max: config.retry_max,
            way: match &config.way {
                WayConfig::Webhook(hook) => Way::Webhook(Webhook::new(hook)),
                WayConfig::Mail(mail) => Way::Mail(Mail::new(mail)),
                WayConfig::Telegram(chat) => Way::Telegram(Telegram::new(chat)),
            },
        }
    }

    /// Returns the kind of receiver and its host or chat, without secrets, so that logs may contain both.
    pub(crate) fn way(&self) -> (&'static str, &str) {
        match &self.way {
            Way::Webhook(hook) => ("webhook", hook.host()),
            Way::Mail(mail) => ("mail", mail.host()),
            Way::Telegram(chat) => ("telegram", chat.chat()),
        }
    }

    /// Sends an event once, without retries, within the receiver's time limit.
    pub(super) async fn send(&self, event: &Event) -> Sent {
        match &self.way {
            Way::Webhook(hook) => hook.send(event).await,
            Way::Mail(mail) => mail.send(event).await,
            Way::Telegram(chat) => chat.send(event).await,
        }
    }
}
