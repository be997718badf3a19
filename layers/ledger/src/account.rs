//! Accounts, keys and where they are found. The secret itself never gets here: a key is known by
//! its SHA-256 digest and shown by its public prefix.

use std::{fmt, future::Future, ops::Deref, str::FromStr, sync::Arc};

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::BoxError;

/// Why a text is no id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an id is 1 to 64 characters of a-z, A-Z, 0-9, '-', '_' and begins with a letter or digit")]
pub struct IdError;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
                let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
                if first && text.len() <= 64 && text.bytes().all(good) {
                    Ok(Self(text.into()))
                } else {
                    Err(IdError)
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }
    };
}

pub(crate) use id;

id! {
    /// A company's account, named by the operator.
    AccountId
}
id! {
    /// A key's id, named by us. Not a secret.
    KeyId
}
id! {
    /// The id of a group of an account's keys, named by the operator.
    GroupId
}

/// SHA-256 of a key: what is stored and looked up.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyDigest([u8; 32]);

impl KeyDigest {
    /// Wraps the 32 bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

/// 64 lower-case hexadecimal digits.
impl fmt::Display for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyDigest({self})")
    }
}

impl FromStr for KeyDigest {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return Err(IdError);
        }
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| IdError)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| IdError)?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for KeyDigest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for KeyDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

/// Whether a key may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum KeyStatus {
    /// It may.
    #[default]
    Active,
    /// Not until it is enabled again.
    Disabled,
    /// Never again; its books are kept.
    Deleted,
}

/// What is known of a key, money apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRecord {
    /// The key's id.
    pub id: KeyId,
    /// The account that pays.
    pub account: AccountId,
    /// SHA-256 of the secret.
    pub digest: KeyDigest,
    /// The first characters of the secret, for people: `tg-AbC123…`.
    pub prefix: String,
    /// The operator's name for it.
    pub name: String,
    /// Whether it may be used.
    pub status: KeyStatus,
    /// Catalog names that it may call; empty means all.
    #[serde(default)]
    pub models: Vec<String>,
    /// Addresses that it may be used from; empty means all.
    #[serde(default)]
    pub addresses: Vec<IpNet>,
    /// Requests per second, if limited.
    #[serde(default)]
    pub requests_per_second: Option<u32>,
    /// Requests per minute, if limited.
    #[serde(default)]
    pub requests_per_minute: Option<u32>,
    /// Tokens per minute, if limited.
    #[serde(default)]
    pub tokens_per_minute: Option<u32>,
    /// The group of keys that it spends with, if it is in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    /// How many of its calls may be open at once, over all gateways, if that is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Whether answers to calls with an idempotency key are kept, and repeated.
    #[serde(default)]
    pub idempotency: bool,
    /// Unix time in milliseconds from which the key is refused, if ever.
    #[serde(default)]
    pub expires_at_ms: Option<u64>,
    /// Unix time in milliseconds when it was made.
    #[serde(default)]
    pub created_at_ms: u64,
    /// Unix time in milliseconds of its last change; 0 if there was none.
    #[serde(default)]
    pub changed_at_ms: u64,
}

/// What stands among an owner key's models, in place of any: no model is called so. Gateways of versions that know no owner
/// keys let it call nothing.
pub const OWNER_MARK: &str = "=owner";

impl KeyRecord {
    /// Whether it looks after its account's keys, and calls nothing.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.models.iter().any(|model| model == OWNER_MARK)
    }

    /// Whether it may hold money: an owner key never does, in no store and for no gateway.
    #[must_use]
    pub fn may_hold(&self) -> bool {
        self.status == KeyStatus::Active && !self.is_owner()
    }

    /// Whether it was deleted, for good.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.status == KeyStatus::Deleted
    }

    /// The word for what it is there for.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self.is_owner() {
            true => "owner",
            false => "caller",
        }
    }

    /// The models that it may call as people are told of them; an owner key has none to tell.
    #[must_use]
    pub fn models_named(&self) -> &[String] {
        match self.is_owner() {
            true => &[],
            false => &self.models,
        }
    }

    /// Whether the key may call the model.
    #[must_use]
    pub fn allows_model(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|allowed| allowed == model)
    }
}

/// Where keys are found.
pub trait KeyStore: Send + Sync + 'static {
    /// The key of this digest, or `None` when there never was one.
    ///
    /// # Errors
    /// The store is out of reach: nobody can be let in now.
    fn find_key(
        &self,
        digest: &KeyDigest,
    ) -> impl Future<Output = Result<Option<Arc<KeyRecord>>, BoxError>> + Send;

    /// What [`KeyStore::find_key`] would say, if it can be said without waiting: then no future is made
    /// for it. `None`, which is always right: it has to be asked.
    fn find_key_now(
        &self,
        _digest: &KeyDigest,
    ) -> Option<Result<Option<Arc<KeyRecord>>, BoxError>> {
        None
    }
}

impl<S: KeyStore> KeyStore for Arc<S> {
    async fn find_key(&self, digest: &KeyDigest) -> Result<Option<Arc<KeyRecord>>, BoxError> {
        (**self).find_key(digest).await
    }

    fn find_key_now(&self, digest: &KeyDigest) -> Option<Result<Option<Arc<KeyRecord>>, BoxError>> {
        (**self).find_key_now(digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_key_holds_nothing_and_calls_nothing_in_versions_that_know_none_either() {
        let json = format!(
            r#"{{"id":"k1","account":"acme","digest":{:?},"prefix":"","name":"","status":"active","models":[{OWNER_MARK:?}]}}"#,
            "00".repeat(32)
        );
        let owner: KeyRecord = serde_json::from_str(&json).unwrap();
        assert!(owner.is_owner() && !owner.may_hold());
        assert_eq!((owner.kind(), owner.models_named()), ("owner", &[][..]));
        // What such a version asks.
        assert!(!owner.allows_model("gpt") && !owner.models.is_empty());
        let caller = KeyRecord {
            models: Vec::new(),
            ..owner
        };
        assert!(caller.may_hold() && caller.kind() == "caller");
    }

    #[test]
    fn ids_take_plain_characters_only() {
        for good in ["acme", "A-1_b", "7"] {
            assert!(good.parse::<AccountId>().is_ok(), "{good}");
        }
        for bad in ["", "-a", "a b", "a{b}", "ё", &"x".repeat(65)] {
            assert_eq!(bad.parse::<AccountId>(), Err(IdError), "{bad}");
        }
    }

    #[test]
    fn digests_round_trip_as_hex() {
        let digest = KeyDigest::new([0xa5; 32]);
        assert_eq!(digest.to_string().parse::<KeyDigest>(), Ok(digest));
        assert_eq!("zz".repeat(32).parse::<KeyDigest>(), Err(IdError));
    }
}
