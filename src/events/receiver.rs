//! A receiver of events: which events it gets, how they are sent to it, and how long they are retried.

use std::time::Duration;

use tollgate_ledger::happening::Event;

use super::{
    event::Filter,
    mail::Mail,
    telegram::Telegram,
    webhook::{Sent, Webhook},
};
use crate::config::{ReceiverConfig, WayConfig};

/// A receiver of events, and the way in which events are sent to it.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) name: String,
    pub(crate) filter: Filter,
    /// How long an event is retried before it becomes a dead letter.
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

    /// Returns how the receiver gets events, and the receiver's host or chat. Neither is secret, so both can be logged.
    pub(crate) fn way(&self) -> (&'static str, &str) {
        match &self.way {
            Way::Webhook(hook) => ("webhook", hook.host()),
            Way::Mail(mail) => ("mail", mail.host()),
            Way::Telegram(chat) => ("telegram", &chat.chat),
        }
    }

    /// Sends an event once, without retries and within a time limit.
    pub(super) async fn send(&self, event: &Event) -> Sent {
        match &self.way {
            Way::Webhook(hook) => hook.send(event).await,
            Way::Mail(mail) => mail.send(event).await,
            Way::Telegram(chat) => chat.send(event).await,
        }
    }
}
