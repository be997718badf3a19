//! The sessions of signed-in operators. A session exists only in this process. It ends at sign-out, after inactivity,
//! at its maximum age, or when the process ends.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::time::Instant;
use tollgate_layers::error::BoxError;

use crate::{operators::Role, text::hex::random};

/// The maximum number of sessions. A further session evicts the session that has been idle longest.
const SESSIONS_MAX: usize = 1000;
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
pub(crate) const AGE_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// Sessions by the digest of their token. Nobody can sign in with a digest that leaks from this map.
#[derive(Clone, Default)]
pub(crate) struct Sessions(Arc<Mutex<HashMap<[u8; 32], Session>>>);

/// The session of an operator who has signed in.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) name: Arc<str>,
    /// The digest of the password or key used at sign-in. If the operator's password or the key changes, the session
    /// ends.
    pub(crate) proof: [u8; 32],
    /// The role that the OpenID provider gave at sign-in; `None` for other sign-ins.
    pub(crate) role: Option<Role>,
    csrf: Arc<str>,
    begun: Instant,
    seen: Instant,
}

impl Session {
    /// Returns the token that forms on this session's pages must send back.
    pub(crate) fn csrf(&self) -> &str {
        &self.csrf
    }

    pub(crate) fn is_csrf(&self, given: &str) -> bool {
        bool::from(self.csrf.as_bytes().ct_eq(given.as_bytes()))
    }

    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.seen) > IDLE_MAX || now.duration_since(self.begun) > AGE_MAX
    }
}

impl Sessions {
    /// Begins a session and returns its new token. A token that the browser had before is never reused.
    ///
    /// # Errors
    /// An error if the system has no random bytes.
    pub(crate) fn begin(
        &self,
        name: &str,
        proof: [u8; 32],
        role: Option<Role>,
    ) -> Result<String, BoxError> {
        let (token, csrf) = (random()?, random()?);
        let now = Instant::now();
        let mut sessions = self.lock();
        sessions.retain(|_, session| !session.is_over(now));
        if sessions.len() >= SESSIONS_MAX {
            let longest = sessions.iter().min_by_key(|(_, session)| session.seen);
            if let Some(digest) = longest.map(|(digest, _)| *digest) {
                sessions.remove(&digest);
            }
        }
        let session = Session {
            name: name.into(),
            proof,
            role,
            csrf: csrf.into(),
            begun: now,
            seen: now,
        };
        sessions.insert(digest(token.as_bytes()), session);
        Ok(token)
    }

    /// Returns the session of a token; marks it as used now.
    pub(crate) fn find(&self, token: &str) -> Option<Session> {
        let now = Instant::now();
        let digest = digest(token.as_bytes());
        let mut sessions = self.lock();
        let session = sessions.get_mut(&digest)?;
        if session.is_over(now) {
            sessions.remove(&digest);
            return None;
        }
        session.seen = now;
        Some(session.clone())
    }

    /// Returns whether the session of a token is open, without marking it as used.
    pub(crate) fn is_open(&self, token: &str) -> bool {
        let sessions = self.lock();
        let session = sessions.get(&digest(token.as_bytes()));
        session.is_some_and(|session| !session.is_over(Instant::now()))
    }

    pub(crate) fn end(&self, token: &str) {
        self.lock().remove(&digest(token.as_bytes()));
    }

    /// Ends all sessions of an operator and returns their number.
    pub(crate) fn end_all(&self, name: &str) -> usize {
        let mut sessions = self.lock();
        let before = sessions.len();
        sessions.retain(|_, session| &*session.name != name);
        before - sessions.len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 32], Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn console_session_ends_only_when_it_is_idle_or_old() {
        let sessions = Sessions::default();
        let token = sessions.begin("anna", [0; 32], None).unwrap();
        for _ in 0..(AGE_MAX.as_secs() / IDLE_MAX.as_secs()) {
            assert!(sessions.find(&token).is_some());
            tokio::time::advance(IDLE_MAX).await;
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(sessions.find(&token).is_none(), "too old");
        let token = sessions.begin("anna", [0; 32], None).unwrap();
        tokio::time::advance(IDLE_MAX + Duration::from_secs(1)).await;
        assert!(sessions.find(&token).is_none(), "idle");
    }

    #[tokio::test(start_paused = true)]
    async fn all_sessions_of_one_operator_and_no_others_can_be_ended_at_once() {
        let sessions = Sessions::default();
        let [one, two, other] =
            ["anna", "anna", "boris"].map(|name| sessions.begin(name, [0; 32], None).unwrap());
        assert_ne!(one, two);
        assert_eq!(sessions.end_all("anna"), 2);
        assert!(sessions.find(&one).is_none() && sessions.find(&two).is_none());
        assert!(sessions.find(&other).is_some());
        sessions.end(&other);
        assert!(sessions.find(&other).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn oldest_sessions_are_evicted_at_the_limit() {
        let sessions = Sessions::default();
        let first = sessions.begin("anna", [0; 32], None).unwrap();
        for _ in 0..SESSIONS_MAX {
            tokio::time::advance(Duration::from_millis(1)).await;
            sessions.begin("boris", [0; 32], None).unwrap();
        }
        assert_eq!(sessions.lock().len(), SESSIONS_MAX);
        assert!(sessions.find(&first).is_none());
    }
}
