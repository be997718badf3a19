//! Requests of all operations: what is taken says what a reader of JSON reads, and what is refused
//! names a field or says that it is no JSON.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;
use tollgate_layers::{call::Operation, error::Error, parse};

fuzz_target!(|data: &[u8]| {
    let body = Bytes::copy_from_slice(data);
    for operation in [
        Operation::Chat,
        Operation::Messages,
        Operation::CountTokens,
        Operation::Embeddings,
        Operation::Responses,
    ] {
        match parse::call(operation, &body, 1000) {
            Ok(call) => {
                assert_eq!(call.body, body);
                assert!(serde_json::from_slice::<&RawValue>(data).is_ok(), "what is taken is JSON");
                // Numbers that no float can hold pass through us, and not through this.
                let Ok(json) = serde_json::from_slice::<serde_json::Value>(data) else {
                    continue;
                };
                assert_eq!(json["model"], call.model, "the model that is charged is the one that is meant");
                if operation != Operation::CountTokens {
                    assert_eq!(json["stream"] == true, call.stream);
                }
            }
            Err(Error::Invalid { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
});
