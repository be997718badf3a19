//! Remembers which share of a conversation's last input was in the vendor's cache, to estimate the cost of the
//! conversation's next call.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{key::KeyId, price::Class, session::SessionId, usage::Usage};

/// The number of entries for conversations. Conversations whose hashes lead to the same entry replace each other.
const PLACES: usize = 4096;
/// The shortest time for which vendors cache a prompt. An older share is not used.
const LIFETIME: Duration = Duration::from_secs(5 * 60);

/// The cached share of the last call of each conversation. Contains no text.
#[derive(Debug)]
pub(super) struct CachedShares {
    places: Mutex<Vec<Option<Last>>>,
    hasher: RandomState,
}

/// The hash of a session, its key and its model, which together identify a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Conversation(u64);

#[derive(Clone, Copy, Debug)]
struct Last {
    conversation: Conversation,
    /// The number of input tokens that were read from the cache or written to it.
    cached: u64,
    /// The total number of input tokens.
    input: u64,
    at: Instant,
}

impl Default for CachedShares {
    fn default() -> Self {
        Self {
            places: Mutex::new(vec![None; PLACES]),
            hasher: RandomState::new(),
        }
    }
}

impl CachedShares {
    pub(super) fn conversation(
        &self,
        key: &KeyId,
        session: &SessionId,
        model: &str,
    ) -> Conversation {
        Conversation(self.hasher.hash_one((key, &**session, model)))
    }

    /// Records the usage that the vendor reported for a call.
    pub(super) fn remember(&self, conversation: Conversation, usage: &Usage) {
        let writes = [Class::CacheWrite1h, Class::CacheWrite12h];
        let written = writes.map(|class| usage.classes.get(class));
        let cached = [
            usage.cached_input,
            usage.cache_write,
            written[0],
            written[1],
        ];
        let last = Last {
            conversation,
            cached: cached.into_iter().fold(0, u64::saturating_add),
            input: usage.input_total(),
            at: Instant::now(),
        };
        self.place(conversation, |place| *place = Some(last));
    }

    /// Estimates how many of the next call's `input` tokens are in the vendor's cache: the same share as in the last
    /// call, but at most as many tokens as were cached then.
    pub(super) fn cached(&self, conversation: Conversation, input: u64) -> u64 {
        let last = self.place(conversation, |place| *place);
        let Some(last) = last.filter(|last| {
            last.conversation == conversation && last.at.elapsed() < LIFETIME && last.input > 0
        }) else {
            return 0;
        };
        let share = u128::from(input) * u128::from(last.cached) / u128::from(last.input);
        u64::try_from(share)
            .unwrap_or(u64::MAX)
            .min(last.cached)
            .min(input)
    }

    fn place<T>(&self, conversation: Conversation, look: impl FnOnce(&mut Option<Last>) -> T) -> T {
        // A panic cannot leave an entry half written, so the lock may be used after a panic.
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let index = conversation.0 % PLACES as u64;
        look(&mut places[index as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_of_cached_input_is_remembered_per_conversation() {
        let shares = CachedShares::default();
        let conversation = |key: &str, session: &str| {
            shares.conversation(&key.parse().unwrap(), &session.parse().unwrap(), "m")
        };
        let one = conversation("k", "s");
        let usage = Usage {
            input: 1_000,
            cached_input: 8_000,
            cache_write: 1_000,
            output: 5,
            ..Usage::default()
        };
        assert_eq!(shares.cached(one, 10_000), 0);
        shares.remember(one, &usage);
        for (input, cached) in [(10_000, 9_000), (5_000, 4_500), (20_000, 9_000), (0, 0)] {
            assert_eq!(shares.cached(one, input), cached, "{input}");
        }
        for other in [conversation("k", "t"), conversation("l", "s")] {
            assert_eq!(shares.cached(other, 10_000), 0);
        }
        shares.remember(one, &Usage::default());
        assert_eq!(shares.cached(one, 10_000), 0, "its last call counts");
    }
}
