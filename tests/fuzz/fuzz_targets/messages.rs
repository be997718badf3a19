//! The readers of the Messages format: every parsed request is translated, or refused with the name of a field, and no
//! response or stream panics.
#![no_main]

mod support;

use libfuzzer_sys::fuzz_target;
use support::{CX, requested, is_json, request};
use tollgate_layers::{
    call::{Format, Operation},
    translate::{Origin, Translator},
};

fuzz_target!(|data: &[u8]| {
    let messages = (Format::Messages, Operation::Messages);
    request(data, messages, (Format::Chat, Operation::Chat));
    request(data, messages, (Format::Responses, Operation::Responses));
    is_json(Translator::to_chat(Format::Messages, Origin::default(), CX, true).answer(data));
    is_json(Translator::to_responses(Format::Messages, requested(), true).answer(data));
    stream!(data, Translator::to_chat(Format::Messages, Origin::default(), CX, false));
    stream!(data, Translator::to_responses(Format::Messages, requested(), false));
});
