//! Usage reports of vendors: none causes a panic, and values that were cut stay within their bounds.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tollgate_layers::{
    call::Format,
    passthrough::usage::{Reader, embeddings, plain},
    sse::Splitter,
    usage::{Meter, Usage},
};

fn bounded(usage: Usage) {
    for (input_max, output_max) in [(0, 0), (10, 5), (1_000_000, 128_000)] {
        let (clamped, _) = usage.clamped(input_max, output_max);
        let (input, output) = (clamped.input_total(), clamped.output_total());
        assert!(input <= input_max && output <= output_max, "{clamped:?}");
    }
}

fuzz_target!(|data: &[u8]| {
    let meter = Meter::default();
    let _ = embeddings(data, &meter);
    if let Some(usage) = meter.read().usage {
        bounded(usage);
    }
    for format in [Format::Chat, Format::Messages, Format::Responses] {
        let meter = Meter::default();
        let _ = plain(format, data, &meter);
        if let Some(usage) = meter.read().usage {
            bounded(usage);
        }
        let (mut reader, mut splitter) = (Reader::new(format), Splitter::default());
        let _ = splitter.push(&Bytes::copy_from_slice(data), |event| drop(reader.event(&event)));
        if let Some(event) = splitter.finish() {
            let _ = reader.event(&event);
        }
        let mut reading = meter.read();
        reader.note(&mut reading);
        let _ = (reading.suspect, reader.finished(), reader.may_end());
        if let Some(usage) = reader.usage() {
            bounded(usage);
        }
    }
});
