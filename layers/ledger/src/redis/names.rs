//! Names of the Redis keys. All Redis keys of an account share one hash tag.

use uuid::Uuid;

use crate::{
    account::{AccountId, KeyDigest, KeyId},
    number::RequestNumber,
};

pub(super) fn account_key(account: &AccountId, part: &str) -> String {
    let account: &str = account;
    ["tg:{", account, "}", part].concat()
}

/// Returns the name of a Redis key that belongs to one call of an account. `part` closes the hash tag and names the
/// kind of Redis key, for example `}:r:`.
pub(super) fn number_key(account: &AccountId, part: &str, number: RequestNumber) -> String {
    let account: &str = account;
    let mut buffer = Uuid::encode_buffer();
    ["tg:{", account, part, text_of(number, &mut buffer)].concat()
}

/// Returns the text form of a request number, written into a buffer from [`Uuid::encode_buffer`].
pub(super) fn text_of(number: RequestNumber, buffer: &mut [u8]) -> &str {
    number.uuid().as_hyphenated().encode_lower(buffer)
}

/// Returns the names of four Redis keys of the account. Every script that ends holds needs these Redis keys.
pub(super) fn hold_keys(account: &AccountId) -> [String; 4] {
    ["", ":x", ":e", ":ex"].map(|part| account_key(account, part))
}

/// Returns the names of the Redis keys that a script needs to end a call's hold; the last one is the call's tombstone.
pub(super) fn call_keys(account: &AccountId, number: RequestNumber) -> Vec<String> {
    let mut keys = Vec::with_capacity(9);
    keys.extend(hold_keys(account));
    keys.push(tombstone_key(account, number));
    keys
}

pub(super) fn tombstone_key(account: &AccountId, number: RequestNumber) -> String {
    number_key(account, "}:d:", number)
}

pub(super) fn receipt_key(account: &AccountId, number: RequestNumber) -> String {
    number_key(account, "}:r:", number)
}

/// Returns the name of the hash that lists the lease turns which charged calls as part of a batch. There is one hash
/// per 4 s, for the call numbers that were generated in these 4 s.
pub(super) fn turns_key(account: &AccountId, number: RequestNumber) -> String {
    let account: &str = account;
    format!("tg:{{{account}}}:n:{:09x}", begins(number))
}

/// Returns the name of the hash with the calls that lease turns charged individually, and the journal positions of
/// these turns. There is one hash per 65 s, for the call numbers that were generated in these 65 s.
pub(super) fn places_key(account: &AccountId, number: RequestNumber) -> String {
    let account: &str = account;
    format!("tg:{{{account}}}:n:{:08x}", begins(number) >> 4)
}

/// Returns the leading bits of a call number, which are equal for all numbers that were generated within the same 4 s.
pub(crate) const fn begins(number: RequestNumber) -> u64 {
    (number.uuid().as_u128() >> 92) as u64
}

/// Returns when the number was generated, in milliseconds since the beginning of its range of 4 s.
pub(super) const fn time_within(number: RequestNumber) -> u16 {
    (number.uuid().as_u128() >> 80) as u16 & 0xfff
}

/// The length of the last part of a call number, in bytes. Numbers that were generated within the same 65 s differ only
/// in this part.
pub(super) const NUMBER_BYTES: usize = 12;

/// Returns the last part of a call number, in which it differs from other numbers of the same 65 s.
pub(super) fn place_field(number: &RequestNumber) -> &[u8] {
    &number.uuid().as_bytes()[16 - NUMBER_BYTES..]
}

pub(super) fn digest_key(digest: &KeyDigest) -> String {
    format!("tg:k:{digest}")
}

/// Returns the name of the Redis key that stores the account of an API key.
pub(super) fn id_key(id: &KeyId) -> String {
    format!("tg:id:{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_redis_keys_of_an_account_share_one_hash_tag() {
        let (account, number): (AccountId, _) = ("acme".parse().unwrap(), RequestNumber::now_v7());
        let mut keys = call_keys(&account, number);
        keys.push(receipt_key(&account, number));
        keys.push(places_key(&account, number));
        keys.push(turns_key(&account, number));
        for key in keys {
            assert!(key.starts_with("tg:{acme}"), "{key}");
        }
        assert_eq!(
            tombstone_key(&account, number),
            format!("tg:{{acme}}:d:{number}")
        );
        assert_eq!(
            receipt_key(&account, number),
            format!("tg:{{acme}}:r:{number}")
        );
        let number: RequestNumber = "0190163d-8694-739b-aea5-966c26f8ad91".parse().unwrap();
        assert_eq!(places_key(&account, number), "tg:{acme}:n:0190163d");
        assert_eq!(turns_key(&account, number), "tg:{acme}:n:0190163d8");
        assert_eq!(time_within(number), 0x694);
        assert_eq!(place_field(&number)[..3], [0x86, 0x94, 0x73]);
        assert_eq!(place_field(&number).len(), 12);
    }
}
