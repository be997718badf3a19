//! The readers of the chat format: every parsed request is translated or refused by name, and no answer or stream
//! panics.
#![no_main]

mod support;

use libfuzzer_sys::fuzz_target;
use support::{CX, requested, is_json, request};
use tollgate_layers::{
    call::{Format, Operation},
    translate::{Origin, messages, responses},
};

fuzz_target!(|data: &[u8]| {
    let chat = (Format::Chat, Operation::Chat);
    request(data, chat, (Format::Messages, Operation::Messages));
    request(data, chat, (Format::Responses, Operation::Responses));
    is_json(messages::answer(data, &Origin::default(), &CX));
    is_json(responses::chat_answer(data, requested()));
    stream!(data, messages::Events::new(Origin::default(), CX));
    stream!(data, responses::ChatEvents::new(requested()));
});
