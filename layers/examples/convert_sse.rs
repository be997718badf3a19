//! Translation without a gateway: translates a recorded stream to the other format.
//!
//! ```sh
//! cargo run -p tollgate-layers --features translate --example convert_sse -- FILE
//! ```

use std::io::Write;

use bytes::{Bytes, BytesMut};
use tollgate_layers::{
    call::Format,
    error::BoxError,
    sse::Splitter,
    translate::{Origin, Translator, wire::AnswerCx},
};

/// The settings that the translation needs and the recording does not contain.
const CX: AnswerCx = AnswerCx {
    created: 1_790_000_000,
    usage_asked: true,
    thinking_asked: true,
};

fn main() -> Result<(), BoxError> {
    let path = std::env::args()
        .nth(1)
        .ok_or("name a file with a model's answer as server-sent events: convert_sse FILE")?;
    let recorded = std::fs::read(&path).map_err(|error| format!("cannot read {path}: {error}"))?;

    let mut events = Vec::new();
    let mut splitter = Splitter::default();
    splitter.push(&Bytes::from(recorded), |event| events.push(event))?;
    events.extend(splitter.finish());

    // Events of a Messages stream have names; those of a Chat Completions stream do not.
    let origin = Origin::default();
    let mut translator = if events.iter().any(|event| !event.name().is_empty()) {
        Translator::to_chat(Format::Messages, origin, CX, false)
    } else {
        Translator::to_messages(Format::Chat, origin, CX, false)
    };
    let mut converted = BytesMut::new();
    for event in &events {
        translator.event(event, &mut converted)?;
    }
    translator.end(&mut converted)?;
    std::io::stdout().write_all(&converted)?;
    Ok(())
}
