//! Keys issued by another service. Only callers have these keys; the gateway stores only the digests of the keys.

use std::ops::RangeInclusive;

use super::secret::{self, PREFIX, digest};
use crate::{error::Error, key::KeyDigest};

/// Allowed lengths of a key of another service, in bytes. A shorter value must be a mistake. A longer value is refused
/// before its digest is computed.
const LENGTHS: RangeInclusive<usize> = 8..=512;

/// Returns the digest by which a presented key is looked up. A key of this gateway must have a valid checksum, so that
/// typos are detected without a look-up. If `is_known` returns true for the key's digest, the checksum is not verified,
/// because verifying it would take as long as computing the digest. A key of another service must consist of visible
/// ASCII characters.
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
    fn checksum_is_required_unless_the_key_was_imported() {
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
