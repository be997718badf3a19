use std::{fmt, str::FromStr};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::{
    error::Error,
    facts::AnswerKey,
    key::{AccountId, KeyDigest, KeyId, KeyRecord},
};

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// The prefix of every key that this gateway creates.
pub(super) const PREFIX: &str = "tg-";
/// The number of random base62 digits of a key. They hold 256 bits, because 62⁴³ > 2²⁵⁶.
const RANDOM_DIGITS: usize = 43;
const CHECK_DIGITS: usize = 5;
const SHOWN: usize = PREFIX.len() + 6;

/// A caller's key: `tg-`, 256 random bits in base62, and a checksum of five digits, which detects typos without a
/// look-up. Only [`SecretKey::expose`] returns the key as text.
#[derive(Clone)]
pub struct SecretKey(String);

impl SecretKey {
    /// Creates a key from the operating system's random generator.
    ///
    /// # Panics
    /// If the operating system provides no random numbers, because a key without them would not be safe.
    #[must_use]
    pub fn generate() -> Self {
        let mut random = [0; 32];
        getrandom::fill(&mut random).expect("the operating system must provide random numbers");
        let mut text = String::with_capacity(PREFIX.len() + RANDOM_DIGITS + CHECK_DIGITS);
        text.push_str(PREFIX);
        push_base62(&mut text, &random, RANDOM_DIGITS);
        let check = check_digits(&text);
        text.extend(check.map(char::from));
        Self(text)
    }

    /// Returns the SHA-256 of the whole key. Key stores have this digest instead of the key.
    #[must_use]
    pub fn digest(&self) -> KeyDigest {
        digest(self.0.as_bytes())
    }

    /// Returns the record of a new key: active, unrestricted, usable from any address, without expiry.
    #[must_use]
    pub fn record(&self, id: KeyId, account: AccountId) -> KeyRecord {
        let name = id.to_string();
        let mut record = KeyRecord::new(id, account, self.digest());
        record.name = name;
        record.prefix = self.prefix();
        record.created_at_ms = super::unix_ms();
        record
    }

    /// Returns the beginning of the key, which may be displayed, for example `tg-AbC123…`.
    #[must_use]
    pub fn prefix(&self) -> String {
        format!("{}…", &self.0[..SHOWN])
    }

    /// Returns the whole key, which must not be logged.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl FromStr for SecretKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        check(text)?;
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey({})", self.prefix())
    }
}

/// Derives the key that encrypts the responses stored for the holder of `secret`. The derivation is the first step of
/// HKDF-SHA256 (RFC 5869, section 2.2).
pub(super) fn answer_key(secret: &[u8]) -> AnswerKey {
    let mut extract = Hmac::<Sha256>::new_from_slice(b"tollgate answers 1")
        .expect("HMAC accepts keys of any length");
    extract.update(secret);
    AnswerKey(extract.finalize().into_bytes().into())
}

/// Checks the form of a key of this gateway, but not its checksum.
pub(super) fn check_form(text: &str) -> Result<(), Error> {
    let digits = text.strip_prefix(PREFIX).ok_or(Error::KeyMalformed)?;
    if digits.len() != RANDOM_DIGITS + CHECK_DIGITS
        || !digits.bytes().all(|digit| digit.is_ascii_alphanumeric())
    {
        return Err(Error::KeyMalformed);
    }
    Ok(())
}

/// Checks the form and the checksum of a key of this gateway.
pub(super) fn check(text: &str) -> Result<(), Error> {
    check_form(text)?;
    let (signed, given) = text.split_at(text.len() - CHECK_DIGITS);
    if *given.as_bytes() == check_digits(signed) {
        Ok(())
    } else {
        Err(Error::KeyMalformed)
    }
}

/// Returns the SHA-256 of a secret of any form. Do not use it for passwords, because a password can be guessed from its
/// digest.
#[must_use]
pub fn digest(secret: &[u8]) -> KeyDigest {
    KeyDigest::new(Sha256::digest(secret).into())
}

/// Appends the last `digits` base62 digits of a big-endian number.
fn push_base62(text: &mut String, number: &[u8], digits: usize) {
    let mut number = number.to_vec();
    let mut reversed = Vec::with_capacity(digits);
    for _ in 0..digits {
        let mut remainder = 0u16;
        for byte in &mut number {
            let value = remainder << 8 | u16::from(*byte);
            *byte = u8::try_from(value / 62)
                .expect("the quotient is below 256, because the remainder is below 62");
            remainder = value % 62;
        }
        reversed.push(ALPHABET[usize::from(remainder)]);
    }
    text.extend(reversed.iter().rev().map(|digit| char::from(*digit)));
}

/// Returns the checksum of a key: the last base62 digits of the first 32 bits of the text's SHA-256.
fn check_digits(text: &str) -> [u8; CHECK_DIGITS] {
    let digest = Sha256::digest(text.as_bytes());
    let mut number = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
    let mut digits = [0; CHECK_DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit = ALPHABET[(number % 62) as usize];
        number /= 62;
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_key_parses_and_its_debug_output_hides_the_secret() {
        let key = SecretKey::generate();
        assert_eq!(key.expose().len(), 51);
        assert_eq!(
            key.expose().parse::<SecretKey>().unwrap().digest(),
            key.digest()
        );
        let shown = format!("{key:?} {}", key.prefix());
        assert!(!shown.contains(&key.expose()[SHOWN..SHOWN + 8]), "{shown}");
    }

    #[test]
    fn key_with_a_single_typo_fails_the_checksum() {
        let key = SecretKey::generate().expose().to_owned();
        for at in 0..key.len() {
            let mut typo = key.clone().into_bytes();
            typo[at] = if typo[at] == b'x' { b'y' } else { b'x' };
            assert!(
                String::from_utf8(typo)
                    .unwrap()
                    .parse::<SecretKey>()
                    .is_err(),
                "at {at}"
            );
        }
        assert!(key[..key.len() - 1].parse::<SecretKey>().is_err());
    }

    #[test]
    fn bytes_become_a_base62_number_of_fixed_length() {
        let mut text = String::new();
        push_base62(&mut text, &[1, 0], 3);
        assert_eq!(text, "048", "256 = 4 × 62 + 8");
    }
}
