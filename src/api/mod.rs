//! Parsers and names of fields that the admin API, the endpoints for owner keys, the console and the commands share.

pub(crate) mod ceilings;
pub(crate) mod fields;
mod key_id;

pub(crate) use self::key_id::new_key_id;
