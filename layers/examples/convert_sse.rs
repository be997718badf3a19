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
    sse::{Event, Splitter},
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
    let converted = if events.iter().any(|event| !event.name().is_empty()) {
        to_chat(&events)?
    } else {
        to_messages(&events)?
    };
    std::io::stdout().write_all(&converted)?;
    Ok(())
}

fn to_chat(recorded: &[Event]) -> Result<BytesMut, BoxError> {
    let (mut events, mut out) = (
        Translator::to_chat(Format::Messages, Origin::default(), CX, false),
        BytesMut::new(),
    );
    for event in recorded {
        events.event(event, &mut out)?;
    }
    events.end(&mut out)?;
    Ok(out)
}

fn to_messages(recorded: &[Event]) -> Result<BytesMut, BoxError> {
    let (mut events, mut out) = (
        Translator::to_messages(Format::Chat, Origin::default(), CX, false),
        BytesMut::new(),
    );
    for event in recorded {
        events.event(event, &mut out)?;
    }
    events.end(&mut out)?;
    Ok(out)
}
