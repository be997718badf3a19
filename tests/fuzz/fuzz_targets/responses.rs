//! The responses format on either side of the others: every parsed request is translated or refused by name, every
//! translation is valid, and no answer or stream panics.
#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use tollgate_layers::{
    call::Operation,
    error::Error,
    facts::RequestNumber,
    model::Dialect,
    parse,
    sse::{Event, Splitter},
    translate::{
        Origin,
        responses::{self, Asked, ChatEvents, IntoChat, IntoMessages, MessagesEvents},
        wire::{AnswerCx, CacheCx, RequestCx},
    },
};

/// Translates a request from one format to another.
fn request(
    data: &[u8],
    from: Operation,
    to: Operation,
    translate: impl Fn(&RequestCx<'_>) -> Result<Bytes, Error>,
) {
    if parse::call(from, &Bytes::copy_from_slice(data), 1000).is_err() {
        return;
    }
    let dialect = Dialect::default();
    let cx = RequestCx { model: "m", output_tokens: 100, dialect: &dialect, cache: CacheCx::default() };
    match translate(&cx) {
        Ok(body) => {
            let again = parse::call(to, &body, 100_000);
            assert!(again.is_ok(), "{again:?}\n{}", String::from_utf8_lossy(&body));
        }
        Err(Error::Invalid { field, .. }) => assert!(!field.is_empty()),
        Err(other) => panic!("{other:?}"),
    }
}

/// Translates a complete stream.
fn stream(data: &[u8], mut each: impl FnMut(Option<&Event>, &mut BytesMut) -> Result<(), Error>) {
    let (mut splitter, mut out, mut failed) = (Splitter::default(), BytesMut::new(), false);
    let _ = splitter.push(&Bytes::copy_from_slice(data), |event| {
        failed = failed || each(Some(&event), &mut out).is_err();
    });
    if !failed {
        let _ = each(None, &mut out);
    }
}

fn is_json(answer: Result<Bytes, Error>) {
    if let Ok(answer) = answer {
        serde_json::from_slice::<serde_json::Value>(&answer).expect("an answer is JSON");
    }
}

fuzz_target!(|data: &[u8]| {
    let responses = Operation::Responses;
    request(data, responses, Operation::Chat, |cx| responses::to_chat(data, "v", cx));
    request(data, responses, Operation::Messages, |cx| responses::to_messages(data, "v", cx));
    request(data, Operation::Chat, responses, |cx| responses::of_chat(data, cx));
    request(data, Operation::Messages, responses, |cx| responses::of_messages(data, "v", cx));
    let number = RequestNumber::now_v7().uuid().simple();
    let asked = |body: &[u8]| Asked::read(body, number, 1, "v");
    let _ = asked(data);
    let body = br#"{"model":"m","input":"x","reasoning":{"summary":"auto"},"tools":[{"type":"custom","name":"f"}],
        "include":["reasoning.encrypted_content"]}"#;
    let asked = || asked(body).expect("it is a request");
    let cx = AnswerCx { created: 1, usage_asked: true, thinking_asked: true };
    is_json(responses::chat_answer(data, asked()));
    is_json(responses::messages_answer(data, asked()));
    is_json(responses::into_chat(data, &Origin::default(), &cx));
    is_json(responses::into_messages(data, &Origin::default(), &cx));
    let mut events = ChatEvents::new(asked());
    stream(data, |event, out| match event {
        Some(event) => events.event(event, out),
        None => events.end(out),
    });
    let mut events = MessagesEvents::new(asked());
    stream(data, |event, out| match event {
        Some(event) => events.event(event, out),
        None => events.end(out),
    });
    let mut events = IntoChat::new(Origin::default(), cx);
    stream(data, |event, out| match event {
        Some(event) => events.event(event, out),
        None => events.end(out),
    });
    let mut events = IntoMessages::new(Origin::default(), cx);
    stream(data, |event, out| match event {
        Some(event) => events.event(event, out),
        None => events.end(out),
    });
});
