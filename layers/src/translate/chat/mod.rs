//! Tests of the translation between a caller of the Chat Completions format and a vendor of the Messages format.

mod answer_tests;
mod request_tests;
mod stream_tests;
mod tests;
