//! Requests of all operations: the gateway reads an accepted request as a JSON parser does, and a refusal names a field
//! or reports invalid JSON.
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
                // Numbers beyond the range of floats pass through the gateway, but not through this parser.
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
