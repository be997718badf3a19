//! The readers of the responses format: every parsed request is translated or refused by name, and no answer or stream
//! panics.
#![no_main]

mod support;

use libfuzzer_sys::fuzz_target;
use support::{CX, is_json, request};
use tollgate_layers::{
    call::{Format, Operation},
    facts::RequestNumber,
    translate::{
        Origin,
        responses::{self, RequestEcho},
    },
};

fuzz_target!(|data: &[u8]| {
    let responses = (Format::Responses, Operation::Responses);
    request(data, responses, (Format::Chat, Operation::Chat));
    request(data, responses, (Format::Messages, Operation::Messages));
    let _ = RequestEcho::read(data, RequestNumber::now_v7().uuid().simple(), 1, "v");
    is_json(responses::into_chat(data, &Origin::default(), &CX));
    is_json(responses::into_messages(data, &Origin::default(), &CX));
    stream!(data, responses::IntoChat::new(Origin::default(), CX));
    stream!(data, responses::IntoMessages::new(Origin::default(), CX));
});
