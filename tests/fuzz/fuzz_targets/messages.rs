//! The readers of the messages format: every parsed request is translated or refused by name, and no answer or stream
//! panics.
#![no_main]

mod support;

use libfuzzer_sys::fuzz_target;
use support::{CX, requested, is_json, request};
use tollgate_layers::{
    call::{Format, Operation},
    translate::{chat, responses},
};

fuzz_target!(|data: &[u8]| {
    let messages = (Format::Messages, Operation::Messages);
    request(data, messages, (Format::Chat, Operation::Chat));
    request(data, messages, (Format::Responses, Operation::Responses));
    is_json(chat::answer(data, &CX));
    is_json(responses::messages_answer(data, requested()));
    stream!(data, chat::Events::new(CX));
    stream!(data, responses::MessagesEvents::new(requested()));
});
