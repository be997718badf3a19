//! Values and names that more than one of these uses: the admin API, keys that owners make themselves, the console, and
//! commands.

pub(crate) mod ceilings;
pub(crate) mod fields;
mod key_id;

pub(crate) use self::key_id::new_key_id;
