//! Translates between the responses format and the two other formats. Either the caller uses the responses format and
//! the vendor chat or messages, or the caller uses chat or messages and the vendor the responses format.
//!
//! The functions only convert bytes. The page [translation-responses] lists the translation of each field.
//!
//! [translation-responses]: https://github.com/tollgate-rs/tollgate/blob/main/docs/translation-responses.md
//!
//! Nothing is stored between calls: `parse` has already refused requests that refer to stored state. A vendor's signed
//! reasoning is sent through the caller in a capsule, and only back to the same vendor.

mod asked;
mod body;
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

use super::capsule;

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
