//! Parses arguments that are key ids.

use std::ffi::OsStr;

use clap::{
    Arg, Command, Error,
    builder::{StringValueParser, TypedValueParser},
    error::ErrorKind,
};
use tollgate_layers::key::KeyId;

/// Parses a key's id. Refuses a key's secret before it is sent: in a URL the secret would be written to logs. Clap's
/// own error message would print the secret.
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
            let text = "this is a key; give its id: `tollgate key list ACCOUNT` shows ids and the keys' prefixes\n";
            return Err(Error::raw(ErrorKind::ValueValidation, text));
        }
        StringValueParser::new()
            .try_map(|text| text.parse::<KeyId>())
            .parse_ref(command, arg, value)
    }
}
