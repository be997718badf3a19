//! Ids of keys that the gateway makes.

use tollgate_layers::{error::BoxError, key::KeyId};

/// Returns an id of `k` and 15 random letters and digits: 89 bits, so that ids do not collide.
///
/// # Errors
/// If the operating system returns no random bytes.
pub(crate) fn new_key_id() -> Result<KeyId, BoxError> {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

    let mut id = String::from("k");
    while id.len() < 16 {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| error.to_string())?;
        // 248 = 4 × 62: larger bytes are dropped, because they would make some characters more likely.
        let letters = bytes
            .iter()
            .filter(|byte| **byte < 248)
            .map(|byte| char::from(LETTERS[usize::from(*byte % 62)]));
        id.extend(letters.take(16 - id.len()));
    }
    Ok(id.parse().expect("letters and digits are a valid id"))
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
