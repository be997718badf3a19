//! Streams that are cut anywhere: the events are the same however the bytes arrive, and no byte is lost.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tollgate_layers::sse::Splitter;

/// Returns the names and data of the events, and the bytes of all events. Events without data are ignored.
fn events<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<(Vec<u8>, Vec<u8>)>, Vec<u8>) {
    let (mut splitter, mut seen, mut raw) = (Splitter::default(), Vec::new(), Vec::new());
    let mut take = |event: tollgate_layers::sse::Event| {
        raw.extend_from_slice(event.raw());
        if let Some(data) = event.data() {
            seen.push((event.name().to_vec(), data.into_owned()));
        }
    };
    for piece in pieces {
        let piece = Bytes::copy_from_slice(piece);
        splitter.push(&piece, &mut take).expect("it is short");
    }
    if let Some(event) = splitter.finish() {
        take(event);
    }
    (seen, raw)
}

// The first byte of the input determines how long the pieces are into which the rest of the input is cut.
fuzz_target!(|data: &[u8]| {
    let Some((size, stream)) = data.split_first() else {
        return;
    };
    let whole = events(std::iter::once(stream));
    assert_eq!(whole.1, stream);
    let cut = events(stream.chunks(usize::from(*size % 16) + 1));
    assert_eq!(cut, whole);
});
