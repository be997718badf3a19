//! Creates ids of keys.

use tollgate_layers::{error::BoxError, key::KeyId};

/// Returns a new key id: `k`, and then 15 random letters and digits. These are 89 random bits, so ids do not collide.
///
/// # Errors
/// An error if the operating system returns no random bytes.
pub(crate) fn new_key_id() -> Result<KeyId, BoxError> {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

    let mut id = String::from("k");
    while id.len() < 16 {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| error.to_string())?;
        // 248 is the largest multiple of 62 that a byte can hold. Larger bytes are skipped, because they would make
        // some characters more likely than others.
        let letters = bytes
            .iter()
            .filter(|byte| **byte < 248)
            .map(|byte| char::from(LETTERS[usize::from(*byte % 62)]));
        id.extend(letters.take(16 - id.len()));
    }
    Ok(id.parse().expect("an id of letters and digits is valid"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_key_ids_are_valid_and_unique() {
        let (one, other) = (new_key_id().unwrap(), new_key_id().unwrap());
        assert!(one.len() == 16 && one.starts_with('k') && one != other);
    }
}
