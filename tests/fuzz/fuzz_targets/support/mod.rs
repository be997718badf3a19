//! Code that the fuzz targets of the Chat Completions, Messages and Responses readers share.

use bytes::{Bytes, BytesMut};
use tollgate_layers::{
    call::{Format, Operation},
    error::Error,
    facts::RequestNumber,
    model::Dialect,
    parse,
    sse::{Event, Splitter},
    translate::{
        self,
        RequestEcho,
        wire::{AnswerCx, CacheCx, RequestCx},
    },
};

pub const CX: AnswerCx = AnswerCx { created: 1, usage_asked: true, thinking_asked: true };

/// Reads a request, and writes it in another format. Either it is refused with the name of a field, or the translation
/// is a valid request.
pub fn request(data: &[u8], from: (Format, Operation), to: (Format, Operation)) {
    if parse::call(from.1, &Bytes::copy_from_slice(data), 1000).is_err() {
        return;
    }
    let dialect = Dialect::default();
    let cx = RequestCx { model: "m", output_tokens: 100, dialect: &dialect, cache: CacheCx::default() };
    match translate::request(from.0, to.0, data, "v", &cx) {
        Ok(body) => {
            let again = parse::call(to.1, &body, 100_000);
            assert!(again.is_ok(), "{again:?}\n{}", String::from_utf8_lossy(&body));
        }
        Err(Error::Invalid { field, .. }) => assert!(!field.is_empty()),
        Err(other) => panic!("{other:?}"),
    }
}

/// Translates a complete stream.
pub fn stream(data: &[u8], mut each: impl FnMut(Option<&Event>, &mut BytesMut) -> Result<(), Error>) {
    let (mut splitter, mut out, mut failed) = (Splitter::default(), BytesMut::new(), false);
    let _ = splitter.push(&Bytes::copy_from_slice(data), |event| {
        failed = failed || each(Some(&event), &mut out).is_err();
    });
    if !failed {
        let _ = each(None, &mut out);
    }
}

/// Translates a complete stream with a translator from the module `translate`.
#[macro_export]
macro_rules! stream {
    ($data:expr, $events:expr) => {{
        let mut events = $events;
        support::stream($data, |event, out| match event {
            Some(event) => events.event(event, out),
            None => events.end(out),
        });
    }};
}

/// The escape of a lone surrogate is forwarded unchanged, and `serde_json::Value` would refuse it.
pub fn is_json(answer: Result<Bytes, Error>) {
    if let Ok(answer) = answer {
        let text = std::str::from_utf8(&answer).expect("an answer is UTF-8");
        serde_json::from_str::<&serde_json::value::RawValue>(text).expect("an answer is JSON");
    }
}

/// The data that a Responses response repeats from its request, here from a request for all reasoning.
#[allow(dead_code, reason = "a target may not need it")]
pub fn requested() -> RequestEcho {
    let body = br#"{"model":"m","input":"x","reasoning":{"summary":"auto"},"tools":[{"type":"custom","name":"f"}],
        "include":["reasoning.encrypted_content"]}"#;
    RequestEcho::read(body, RequestNumber::now_v7().uuid().simple(), 1, "v").expect("it is a request")
}
