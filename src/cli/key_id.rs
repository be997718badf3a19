//! How commands take a key's id.

use std::ffi::OsStr;

use clap::{
    Arg, Command, Error,
    builder::{StringValueParser, TypedValueParser},
    error::ErrorKind,
};
use tollgate_layers::key::KeyId;

/// Takes an id and refuses a key itself, here: in the gateway's address it would stand in logs, and the usual refusal of
/// a value repeats it.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdNotKey;

impl TypedValueParser for IdNotKey {
    type Value = KeyId;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<KeyId, Error> {
        if value.as_encoded_bytes().starts_with(b"tg-") {
            let text = "this is a key, and its id is asked for: `tollgate key list ACCOUNT` shows ids, and how keys begin\n";
            return Err(Error::raw(ErrorKind::ValueValidation, text));
        }
        StringValueParser::new()
            .try_map(|text| text.parse::<KeyId>())
            .parse_ref(command, arg, value)
    }
}
