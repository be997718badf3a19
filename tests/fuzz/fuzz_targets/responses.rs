//! The readers of the Responses format: every parsed request is translated, or refused with the name of a field, and no
//! response or stream panics.
#![no_main]

mod support;

use libfuzzer_sys::fuzz_target;
use support::{CX, is_json, request};
use tollgate_layers::{
    call::{Format, Operation},
    facts::RequestNumber,
    translate::{Origin, RequestEcho, Translator},
};

fuzz_target!(|data: &[u8]| {
    let responses = (Format::Responses, Operation::Responses);
    request(data, responses, (Format::Chat, Operation::Chat));
    request(data, responses, (Format::Messages, Operation::Messages));
    let _ = RequestEcho::read(data, RequestNumber::now_v7().uuid().simple(), 1, "v");
    is_json(Translator::to_chat(Format::Responses, Origin::default(), CX, true).answer(data));
    is_json(Translator::to_messages(Format::Responses, Origin::default(), CX, true).answer(data));
    stream!(data, Translator::to_chat(Format::Responses, Origin::default(), CX, false));
    stream!(data, Translator::to_messages(Format::Responses, Origin::default(), CX, false));
});
