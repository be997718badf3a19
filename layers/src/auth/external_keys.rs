//! Keys issued by another service: callers keep them, and the gateway stores only their digest.

use std::ops::RangeInclusive;

use super::secret::{self, PREFIX, digest};
use crate::{error::Error, key::KeyDigest};

/// Shorter values are mistakes, longer ones are not worth hashing.
const LENGTHS: RangeInclusive<usize> = 8..=512;

/// Returns the digest to look up a presented key. A key of this gateway is checked for typos by its checksum, without
/// a look-up; any other key only has to be visible ASCII. If `is_known` accepts a key of this gateway, its checksum is
/// not computed, which takes as long as the digest.
pub(super) fn digest_of(
    shown: &str,
    is_known: impl FnOnce(&KeyDigest) -> bool,
) -> Result<KeyDigest, Error> {
    if shown.starts_with(PREFIX) {
        secret::check_form(shown)?;
        let digest = digest(shown.as_bytes());
        if !is_known(&digest) {
            secret::check(shown)?;
        }
        return Ok(digest);
    }
    if LENGTHS.contains(&shown.len()) && shown.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(digest(shown.as_bytes()))
    } else {
        Err(Error::KeyMalformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::SecretKey;

    #[test]
    fn gateways_keys_need_a_checksum_and_imported_keys_do_not() {
        let ours = SecretKey::generate();
        for is_known in [true, false] {
            let digest = digest_of(ours.expose(), |_| is_known).unwrap();
            assert_eq!(digest, ours.digest());
        }
        for foreign in ["sk-abcdefgh", "12345678", "!\"#$%&'(~", &"x".repeat(512)] {
            let taken = digest_of(foreign, |_| false).unwrap();
            assert_eq!(taken, digest(foreign.as_bytes()));
        }
        let typo = format!("{}x", ours.expose());
        for none in [
            "",
            "sk-1234",
            "tg-0000000",
            &typo,
            "two words",
            "ключ-ключ",
            &"x".repeat(513),
        ] {
            assert!(
                matches!(digest_of(none, |_| false), Err(Error::KeyMalformed)),
                "{none}"
            );
        }
    }
}
