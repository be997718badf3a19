//! Hexadecimal digits.

use tollgate_layers::error::BoxError;

/// Returns two lowercase hexadecimal digits per byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns 256 random bits in hexadecimal digits.
///
/// # Errors
/// An error if the operating system returns no random bytes.
pub(crate) fn random() -> Result<String, BoxError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| error.to_string())?;
    Ok(hex(&bytes))
}
