//! Small functions for texts: times, cells of CSV, percent-encoding, hexadecimal digits, error causes, a value selected
//! from JSON, enumerations with fixed texts, texts in two languages, and suggestions for mistyped words.

pub(crate) mod causes;
pub(crate) mod csv;
pub(crate) mod difference;
pub(crate) mod hex;
pub(crate) mod language;
pub(crate) mod percent;
pub(crate) mod rubles;
pub mod select_json;
pub(crate) mod similar;
pub(crate) mod time;
pub(crate) mod words;
