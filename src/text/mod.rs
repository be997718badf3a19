//! Small texts: times, cells, percent-encoding, causes of errors, and what a mistyped word was meant to be.

pub(crate) mod causes;
pub(crate) mod csv;
pub(crate) mod percent;
pub(crate) mod rubles;
pub(crate) mod similar;
pub(crate) mod time;
