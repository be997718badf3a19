//! A chat caller in front of a messages vendor: every parsed request is translated or refused by name, every
//! translation is a valid messages request, and no answer or stream panics.
#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use tollgate_layers::{
    call::Operation,
    error::Error,
    model::Dialect,
    parse,
    sse::Splitter,
    translate::{
        chat,
        wire::{AnswerCx, CacheCx, RequestCx},
    },
};

fuzz_target!(|data: &[u8]| {
    let dialect = Dialect::default();
    let cx = RequestCx { model: "m", output_tokens: 100, dialect: &dialect, cache: CacheCx::default() };
    if parse::call(Operation::Chat, &Bytes::copy_from_slice(data), 1000).is_ok() {
        match chat::request(data, &cx) {
            Ok(body) => {
                let again = parse::call(Operation::Messages, &body, 100_000);
                assert!(again.is_ok(), "{again:?}\n{}", String::from_utf8_lossy(&body));
            }
            Err(Error::Invalid { field, .. }) => assert!(!field.is_empty()),
            Err(other) => panic!("{other:?}"),
        }
    }
    let cx = AnswerCx { created: 1, usage_asked: true, thinking_asked: true };
    if let Ok(answer) = chat::answer(data, &cx) {
        serde_json::from_slice::<serde_json::Value>(&answer).expect("an answer is JSON");
    }
    let (mut splitter, mut events, mut out) = (Splitter::default(), chat::Events::new(cx), BytesMut::new());
    let mut failed = false;
    let _ = splitter.push(&Bytes::copy_from_slice(data), |event| {
        failed = failed || events.event(&event, &mut out).is_err();
    });
    if !failed {
        let _ = events.end(&mut out);
    }
});
