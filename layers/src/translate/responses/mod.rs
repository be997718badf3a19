//! The responses format on either side of the two others: a responses caller in front of a chat or messages
//! vendor, and a chat or messages caller in front of a responses vendor.
//!
//! Pure: bytes in, bytes out. What each field becomes stands in `docs/translation-responses-pairs.md`.
//!
//! Nothing is kept between calls: what points at something remembered has been refused. A vendor's proof of
//! its reasoning travels through the caller in a capsule, and comes back to that vendor alone.

mod asked;
mod body;
mod capsule;
mod from_chat;
mod from_messages;
mod into_chat;
mod into_messages;
mod items;
mod of_chat;
mod of_messages;
mod reading;
mod to_chat;
mod to_messages;
mod tools;
mod usage;
mod wishes;
mod writer;

#[cfg(test)]
mod answer_tests;
#[cfg(test)]
mod request_tests;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tools_tests;
#[cfg(test)]
mod vendor_request_tests;
#[cfg(test)]
mod vendor_tests;

pub use self::{
    asked::Asked,
    from_chat::{ChatEvents, chat_answer},
    from_messages::{MessagesEvents, messages_answer},
    into_chat::{IntoChat, into_chat},
    into_messages::{IntoMessages, into_messages},
    of_chat::of_chat,
    of_messages::of_messages,
    to_chat::to_chat,
    to_messages::to_messages,
};
