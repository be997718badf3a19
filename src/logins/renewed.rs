//! A credential that expires. All calls share it; one task renews it before it expires, and after a refusal.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use futures_util::future::BoxFuture;
use hyper::rt::Executor;
use hyper_util::rt::TokioExecutor;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep_until, timeout},
};

use super::LoginError;

/// The maximum time for one request for a credential.
const FETCH_TIME_MAX: Duration = Duration::from_secs(20);
/// A credential is renewed when a fifth of its life is left, but no earlier than this time before its end.
const RENEW_BEFORE_MAX: Duration = Duration::from_secs(300);
/// A credential is not used in the last tenth of its life, but this time is at most ten seconds. The reason is that a
/// request takes time to arrive.
const UNUSED_MAX: Duration = Duration::from_secs(10);
/// If a credential is refused within this time after it was issued, it is not renewed: a new one would be refused, too.
const YOUNG: Duration = Duration::from_secs(1);
/// Wait after a failure; doubles with each further failure in a row, up to `WAIT_MAX`.
const WAIT_MIN: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(30);

/// A source of credentials, such as a token endpoint or a command.
pub(super) trait Source: Send + Sync + 'static {
    type Credential: Send + Sync + 'static;

    fn fetch(&self) -> BoxFuture<'_, Result<Fetched<Self::Credential>, LoginError>>;
}

/// A credential that was just issued, with its life.
pub(super) struct Fetched<T> {
    pub(super) credential: T,
    pub(super) life: Life,
}

/// How long a credential may be used.
#[derive(Clone, Copy, Debug)]
pub(super) enum Life {
    /// The credential ends after this time.
    Ends(Duration),
    /// The credential's end is not known; it is renewed after this time.
    Unknown(Duration),
}

/// State of a renewed credential, for metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CredentialState {
    /// Time since the credential was issued; `None`: there is none.
    pub(crate) age: Option<Duration>,
    /// Time until the credential is used no more; `None`: there is none, or its end is not known.
    pub(crate) left: Option<Duration>,
    /// Failed requests for a credential since the last one that succeeded.
    pub(crate) failures: u32,
}

/// The shared credential of a source.
pub(super) struct Renewed<S: Source>(Arc<Shared<S>>);

struct Shared<S: Source> {
    /// The vendor's name, for the log.
    vendor: String,
    source: S,
    held: ArcSwapOption<Held<S::Credential>>,
    /// Whether a task renews the credential.
    is_renewing: AtomicBool,
    /// Locked while the credential is requested, so that there is one request at a time.
    failures: Mutex<Failures>,
    /// The count in `failures`, which can be read without the lock.
    failed: AtomicU32,
}

struct Held<T> {
    credential: Arc<T>,
    since: Instant,
    renew_at: Instant,
    /// When the credential ends; `None`: not known.
    end: Option<Instant>,
}

/// The failures since a credential was last obtained.
#[derive(Default)]
struct Failures {
    count: u32,
    last: Option<(LoginError, Instant)>,
}

impl<S: Source> Renewed<S> {
    pub(super) fn new(vendor: &str, source: S) -> Self {
        Self(Arc::new(Shared {
            vendor: vendor.to_owned(),
            source,
            held: ArcSwapOption::empty(),
            is_renewing: AtomicBool::new(false),
            failures: Mutex::default(),
            failed: AtomicU32::new(0),
        }))
    }

    pub(super) fn state(&self) -> CredentialState {
        let (held, now) = (self.0.held.load_full(), Instant::now());
        let end = held.as_ref().and_then(|held| held.end);
        CredentialState {
            age: held.map(|held| now.saturating_duration_since(held.since)),
            left: end.map(|end| end.saturating_duration_since(now)),
            failures: self.0.failed.load(Ordering::Relaxed),
        }
    }

    /// Returns the credential in force. Waits only if there is none.
    ///
    /// # Errors
    /// If there is no credential and none can be obtained. Shortly after a failure the same error is returned without a
    /// request.
    pub(super) async fn get(&self) -> Result<Arc<S::Credential>, LoginError> {
        let shared = &self.0;
        let now = Instant::now();
        let held = shared.held.load_full();
        if let Some(held) = held.filter(|held| held.is_usable(now)) {
            if now >= held.renew_at {
                self.renew_in_background(&held);
            }
            return Ok(Arc::clone(&held.credential));
        }
        let held = shared.renew(None).await?;
        Ok(Arc::clone(&held.credential))
    }

    /// Drops the credential that a vendor refused, so that the next call gets a new one. Returns whether a call with
    /// another credential can succeed.
    pub(super) fn refuse(&self, is_refused: impl Fn(&S::Credential) -> bool) -> bool {
        let held = self.0.held.load_full();
        // Another call may have dropped or renewed the credential already.
        let Some(held) = held.filter(|held| is_refused(&held.credential)) else {
            return true;
        };
        if held.since.elapsed() < YOUNG {
            return false;
        }
        self.0.held.compare_and_swap(&held, None);
        true
    }

    fn renew_in_background(&self, held: &Arc<Held<S::Credential>>) {
        if self.0.is_renewing.swap(true, Ordering::AcqRel) {
            return;
        }
        let (shared, held) = (Arc::clone(&self.0), Arc::clone(held));
        TokioExecutor::new().execute(async move {
            while shared.renew(Some(&held)).await.is_err() && held.is_usable(Instant::now()) {
                let next = shared.failures.lock().await.next();
                sleep_until(next).await;
            }
            shared.is_renewing.store(false, Ordering::Release);
        });
    }
}

impl<S: Source> Shared<S> {
    /// Gets a new credential, unless another task has replaced `old` already.
    async fn renew(
        &self,
        old: Option<&Arc<Held<S::Credential>>>,
    ) -> Result<Arc<Held<S::Credential>>, LoginError> {
        let mut failures = self.failures.lock().await;
        let now = Instant::now();
        let newer = self
            .held
            .load_full()
            .filter(|held| held.is_usable(now) && old.is_none_or(|old| !Arc::ptr_eq(old, held)));
        if let Some(newer) = newer {
            return Ok(newer);
        }
        if let Some((error, until)) = &failures.last
            && now < *until
        {
            return Err(error.clone());
        }
        let fetched = match timeout(FETCH_TIME_MAX, self.source.fetch()).await {
            Ok(fetched) => fetched,
            Err(_) => Err(LoginError::new("no answer in time")),
        };
        match fetched {
            Ok(fetched) => {
                *failures = Failures::default();
                self.failed.store(0, Ordering::Relaxed);
                let held = Arc::new(Held::new(fetched, Instant::now()));
                self.held.store(Some(Arc::clone(&held)));
                Ok(held)
            }
            Err(error) => {
                tracing::warn!(vendor = %self.vendor, %error, failures = failures.count + 1, "login failed");
                failures.add(error.clone(), Instant::now());
                self.failed.store(failures.count, Ordering::Relaxed);
                Err(error)
            }
        }
    }
}

impl<T> Held<T> {
    fn new(fetched: Fetched<T>, now: Instant) -> Self {
        let (renew_after, end) = match fetched.life {
            Life::Unknown(renew_after) => (renew_after, None),
            Life::Ends(life) => {
                let before = (life / 5).min(RENEW_BEFORE_MAX);
                // The jitter keeps many gateways that started together from renewing together.
                let jitter = before * (getrandom::u32().unwrap_or(50) % 100) / 200;
                let usable = life.saturating_sub((life / 10).min(UNUSED_MAX));
                let renew_after = life.saturating_sub(before + jitter);
                (renew_after, Some(now + usable))
            }
        };
        Self {
            credential: Arc::new(fetched.credential),
            since: now,
            renew_at: now + renew_after,
            end,
        }
    }

    fn is_usable(&self, now: Instant) -> bool {
        self.end.is_none_or(|end| now < end)
    }
}

impl Failures {
    fn add(&mut self, error: LoginError, now: Instant) {
        let wait = WAIT_MIN * 2_u32.saturating_pow(self.count.min(10));
        let wait = wait.min(WAIT_MAX) * (75 + getrandom::u32().unwrap_or(25) % 50) / 100;
        self.count += 1;
        self.last = Some((error, now + wait));
    }

    /// Returns when the next attempt is allowed.
    fn next(&self) -> Instant {
        let last = self.last.as_ref();
        last.map_or_else(Instant::now, |(_, until)| *until)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, AtomicUsize};

    use tokio::time::{advance, sleep};

    use super::*;

    /// Issues numbers as credentials that are valid for `life_s` seconds. Fails while `down_from <= time < down_to`.
    struct Endpoint {
        began: Instant,
        life_s: u64,
        down: std::ops::Range<u64>,
        fetches: Arc<AtomicUsize>,
        issued: AtomicU64,
    }

    impl Source for Endpoint {
        type Credential = (u64, Instant);

        fn fetch(&self) -> BoxFuture<'_, Result<Fetched<(u64, Instant)>, LoginError>> {
            Box::pin(async move {
                self.fetches.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(300)).await;
                if self.down.contains(&self.began.elapsed().as_secs()) {
                    return Err(LoginError::new("connection refused"));
                }
                let number = self.issued.fetch_add(1, Ordering::Relaxed);
                let life = Duration::from_secs(self.life_s);
                Ok(Fetched {
                    credential: (number, Instant::now() + life),
                    life: Life::Ends(life),
                })
            })
        }
    }

    fn endpoint(life_s: u64, down: std::ops::Range<u64>) -> (Renewed<Endpoint>, Arc<AtomicUsize>) {
        let fetches = Arc::new(AtomicUsize::new(0));
        let source = Endpoint {
            began: Instant::now(),
            life_s,
            down,
            fetches: Arc::clone(&fetches),
            issued: AtomicU64::new(0),
        };
        (Renewed::new("v", source), fetches)
    }

    #[tokio::test(start_paused = true)]
    async fn no_call_fails_or_waits_during_fifty_token_renewals() {
        let (renewed, fetches) = endpoint(1800, 0..0);
        renewed.get().await.unwrap();
        let step = Duration::from_millis(800);
        for call in 0..100_000 {
            sleep(step).await;
            let before = Instant::now();
            let credential = renewed.get().await.unwrap();
            assert!(
                before.elapsed() < step && credential.1 > Instant::now(),
                "{call}"
            );
        }
        let fetches = fetches.load(Ordering::Relaxed);
        assert!((50..70).contains(&fetches), "{fetches}");
    }

    #[tokio::test(start_paused = true)]
    async fn calls_continue_while_the_login_endpoint_is_down_for_two_minutes() {
        // The endpoint is down from before the first renewal.
        for begin in [1400, 1500, 1600] {
            let (renewed, fetches) = endpoint(1800, begin..begin + 120);
            renewed.get().await.unwrap();
            for call in 0..4000 {
                sleep(Duration::from_secs(1)).await;
                let credential = renewed.get().await;
                assert!(
                    credential.is_ok_and(|it| it.1 > Instant::now()),
                    "{begin} {call}"
                );
            }
            let fetches = fetches.load(Ordering::Relaxed);
            assert!((3..20).contains(&fetches), "{begin}: {fetches}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn simultaneous_calls_share_one_login_request_and_its_failure() {
        let (renewed, fetches) = endpoint(1800, 0..10);
        let calls = std::iter::repeat_with(|| renewed.get()).take(100);
        let answers = futures_util::future::join_all(calls).await;
        let error = LoginError::new("connection refused");
        assert!(
            answers
                .iter()
                .all(|answer| answer.as_ref().is_err_and(|it| *it == error))
        );
        assert_eq!(fetches.load(Ordering::Relaxed), 1);
        advance(Duration::from_secs(30)).await;
        let calls = std::iter::repeat_with(|| renewed.get()).take(100);
        let answers = futures_util::future::join_all(calls).await;
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(fetches.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn refused_credential_is_discarded_once() {
        let (renewed, fetches) = endpoint(1800, 0..0);
        let (first, _) = *renewed.get().await.unwrap();
        // The vendor would refuse the next credential, too, so the call is not repeated.
        assert!(!renewed.refuse(|it| it.0 == first));
        advance(Duration::from_secs(60)).await;
        assert!(renewed.refuse(|it| it.0 == first));
        let (second, _) = *renewed.get().await.unwrap();
        assert_ne!(first, second);
        // A late refusal of the first credential leaves the second one in use.
        assert!(renewed.refuse(|it| it.0 == first));
        assert_eq!(renewed.get().await.unwrap().0, second);
        assert_eq!(fetches.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn login_request_of_a_dropped_call_is_continued_by_the_next_call() {
        let (renewed, _) = endpoint(1800, 0..0);
        let early = timeout(Duration::from_millis(100), renewed.get()).await;
        assert!(early.is_err());
        renewed.get().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn credential_of_unknown_expiry_is_used_while_renewals_fail() {
        struct Command(AtomicBool);

        impl Source for Command {
            type Credential = ();

            fn fetch(&self) -> BoxFuture<'_, Result<Fetched<()>, LoginError>> {
                let is_first = !self.0.swap(true, Ordering::Relaxed);
                Box::pin(async move {
                    let life = Life::Unknown(Duration::from_secs(60));
                    is_first
                        .then_some(Fetched {
                            credential: (),
                            life,
                        })
                        .ok_or(LoginError::new("exit status: 1"))
                })
            }
        }

        let renewed = Renewed::new("v", Command(AtomicBool::new(false)));
        for _ in 0..1000 {
            renewed.get().await.unwrap();
            sleep(Duration::from_secs(1)).await;
        }
        assert!(renewed.refuse(|()| true));
        assert_eq!(
            renewed.get().await.unwrap_err().to_string(),
            "exit status: 1"
        );
    }
}
