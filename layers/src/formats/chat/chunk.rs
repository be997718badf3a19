//! A chunk or a response whose choices are not parsed, so that its other fields can be read even if the choices are
//! invalid.

use serde_json::value::RawValue;

raw_fields! {
    /// The fields of a chunk that are read.
    pub(super) struct Chunk<'a> {
        usage, error, x_groq;
        #[cfg(feature = "translate")] #[serde(borrow)] id: Option<&'a RawValue>,
        #[cfg(feature = "translate")] #[serde(borrow)] model: Option<&'a RawValue>,
        #[cfg(feature = "passthrough")] #[serde(borrow)] service_tier: Option<&'a RawValue>,
    }
}

/// Returns the usage in the field `x_groq`, which one vendor uses.
pub(super) fn groq_usage(x_groq: &RawValue) -> Option<&RawValue> {
    raw_fields! { struct Groq<'a> { usage } }
    serde_json::from_str::<Groq<'_>>(x_groq.get()).ok()?.usage
}
