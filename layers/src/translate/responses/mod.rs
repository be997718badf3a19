//! Tests of the translation between the Responses format and the two other formats.

mod answer_tests;
mod request_tests;
mod stream_tests;
mod testing;
mod tools_tests;
mod vendor_request_tests;
mod vendor_tests;
