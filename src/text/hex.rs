//! Hexadecimal digits.

/// Returns two lowercase hexadecimal digits per byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
