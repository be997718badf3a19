//! Who is sent events: which of them, how, and for how long.

use std::time::Duration;

use tollgate_ledger::happening::Event;

use super::{
    Filter,
    mail::Mail,
    telegram::Telegram,
    webhook::{Sent, Webhook},
};
use crate::config::{ReceiverConfig, WayConfig};

/// Somebody who is sent events.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) name: String,
    pub(crate) filter: Filter,
    /// How long an event is tried.
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

    /// How it is reached, and where, in words that any log may hold.
    pub(crate) fn way(&self) -> (&'static str, &str) {
        match &self.way {
            Way::Webhook(hook) => ("webhook", hook.host()),
            Way::Mail(mail) => ("mail", mail.host()),
            Way::Telegram(chat) => ("telegram", chat.chat()),
        }
    }

    /// Sends an event, once. Takes no longer than a receiver may.
    pub(super) async fn send(&self, event: &Event) -> Sent {
        match &self.way {
            Way::Webhook(hook) => hook.send(event).await,
            Way::Mail(mail) => mail.send(event).await,
            Way::Telegram(chat) => chat.send(event).await,
        }
    }
}
