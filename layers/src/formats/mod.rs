//! The wire formats. Everything about a format is in its folder: the reader and the writer of requests and of
//! responses, the usage object, the errors, and which fields of a response contain text.
//!
//! Readers and writers translate to and from the neutral form in [`turn`]. So a reader does not depend on the format
//! that is written, nor a writer on the format that is read.

/// Defines structs for JSON objects with optional fields. The fields before the semicolon are not parsed; the fields
/// after it have a type.
#[cfg(any(feature = "passthrough", feature = "translate"))]
macro_rules! raw_fields {
    ($(
        $(#[$docs:meta])*
        $vis:vis struct $name:ident<$life:lifetime> {
            $($raw:ident),* $(; $($(#[$attribute:meta])* $field:ident: $type:ty),+)? $(,)?
        }
    )+) => {$(
        $(#[$docs])*
        #[derive(Debug, Default, serde::Deserialize)]
        $vis struct $name<$life> {
            $(#[serde(borrow)] $vis $raw: Option<&$life serde_json::value::RawValue>,)*
            $($($(#[$attribute])* $vis $field: $type,)+)?
        }
    )+};
}

#[cfg(feature = "translate")]
pub(crate) mod arguments;
#[cfg(feature = "translate")]
pub(crate) mod capsule;
pub(crate) mod chat;
#[cfg(any(feature = "passthrough", feature = "translate"))]
pub(crate) mod counts;
#[cfg(any(feature = "passthrough", feature = "respond", feature = "translate"))]
pub(crate) mod errors;
pub(crate) mod messages;
#[cfg(feature = "passthrough")]
pub(crate) mod metering;
#[cfg(feature = "translate")]
pub(crate) mod origin;
#[cfg(feature = "parse")]
pub(crate) mod reading;
#[cfg(test)]
#[cfg(feature = "translate")]
mod request_tests;
pub(crate) mod responses;
#[cfg(feature = "passthrough")]
pub(crate) mod scan;
#[cfg(test)]
#[cfg(feature = "translate")]
mod tests;
#[cfg(feature = "translate")]
pub(crate) mod text;
#[cfg(test)]
#[cfg(feature = "translate")]
mod toy_tests;
#[cfg(feature = "translate")]
pub(crate) mod turn;
#[cfg(feature = "translate")]
pub(crate) mod wire;
