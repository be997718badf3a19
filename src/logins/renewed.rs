//! A credential that expires and that all calls to a vendor share. One task at a time renews it: before it expires, and
//! after a vendor has refused it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use hyper::rt::Executor;
use hyper_util::rt::TokioExecutor;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep_until, timeout},
};

use super::LoginError;

/// Maximum time that one request for a credential may take.
const FETCH_TIME_MAX: Duration = Duration::from_secs(20);
/// A credential is renewed when a fifth of its lifetime is left, but at most this long before its expiry.
const RENEW_BEFORE_MAX: Duration = Duration::from_secs(300);
/// A credential is not used in the last tenth of its lifetime, because a request takes time to arrive. This is the
/// maximum length of that part: ten seconds.
const UNUSED_MAX: Duration = Duration::from_secs(10);
/// If a vendor refuses a credential within this time after it was issued, the credential is not renewed, because the
/// vendor would refuse a new one as well.
const YOUNG: Duration = Duration::from_secs(1);
/// The wait after a first failure. It doubles with each further failure in a row, up to `WAIT_MAX`.
const WAIT_MIN: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Where credentials are fetched from, for example a token endpoint or a command.
pub(super) trait Source: Send + Sync + 'static {
    type Credential: Send + Sync + 'static;

    fn fetch(&self) -> impl Future<Output = Result<Fetched<Self::Credential>, LoginError>> + Send;
}

/// A credential that a source has just issued, with its lifetime.
pub(super) struct Fetched<T> {
    pub(super) credential: T,
    pub(super) life: Life,
}

/// How long a credential can be used.
#[derive(Clone, Copy, Debug)]
pub(super) enum Life {
    /// The credential expires after this time.
    Ends(Duration),
    /// It is not known when the credential expires. It is renewed after this time.
    Unknown(Duration),
}

/// The state of a credential that is renewed, for metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CredentialState {
    /// The time since the credential was issued; `None` if there is no credential.
    pub(crate) age: Option<Duration>,
    /// The time until the credential is no longer used; `None` if there is no credential, or its expiry is not known.
    pub(crate) left: Option<Duration>,
    /// The number of failed requests for a credential since the last successful one.
    pub(crate) failures: u32,
}

/// The credential of a source, shared by all calls.
pub(super) struct Renewed<S: Source>(Arc<Shared<S>>);

struct Shared<S: Source> {
    /// The name of the vendor, for log lines.
    vendor: String,
    source: S,
    held: ArcSwapOption<Held<S::Credential>>,
    /// Whether a task is renewing the credential now.
    is_renewing: AtomicBool,
    /// Locked while a credential is requested, so that there is only one request at a time.
    failures: Mutex<Failures>,
    /// The number of failures in `failures`. It can be read without the lock.
    failed: AtomicU32,
}

struct Held<T> {
    credential: Arc<T>,
    since: Instant,
    renew_at: Instant,
    /// When the credential expires; `None` if this is not known.
    end: Option<Instant>,
}

/// The failed requests since the last successful one.
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

    /// Returns the credential in force. If there is none, waits until one has been fetched.
    ///
    /// # Errors
    /// If there is no credential and none can be fetched. For some time after a failure, the same error is returned
    /// without another request.
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

    /// Discards the credential that a vendor has refused, so that the next call fetches a new one. Returns whether a
    /// call with a new credential can succeed.
    pub(super) fn refuse(&self, is_refused: impl Fn(&S::Credential) -> bool) -> bool {
        let held = self.0.held.load_full();
        // Another call may have discarded or renewed this credential already.
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
    /// Fetches a new credential, unless another task has replaced `old` already.
    async fn renew(
        &self,
        old: Option<&Arc<Held<S::Credential>>>,
    ) -> Result<Arc<Held<S::Credential>>, LoginError> {
        let mut failures = self.failures.lock().await;
        let now = Instant::now();
        let is_old = |held: &Arc<_>| old.is_some_and(|old| Arc::ptr_eq(old, held));
        let held = self.held.load_full();
        if let Some(newer) = held.filter(|held| held.is_usable(now) && !is_old(held)) {
            return Ok(newer);
        }
        if let Some((error, until)) = &failures.last
            && now < *until
        {
            return Err(error.clone());
        }
        let fetched = timeout(FETCH_TIME_MAX, self.source.fetch()).await;
        match fetched.unwrap_or_else(|_| Err(LoginError::new("no answer in time"))) {
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
                // The jitter keeps many gateways that were started together from renewing their credentials at the same
                // time.
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

    /// Returns the time from which the next request is allowed.
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

    /// A source whose credentials are numbers that are valid for `life_s` seconds. It fails while `down_from <= time <
    /// down_to`.
    struct Endpoint {
        began: Instant,
        life_s: u64,
        down: std::ops::Range<u64>,
        fetches: Arc<AtomicUsize>,
        issued: AtomicU64,
    }

    impl Source for Endpoint {
        type Credential = (u64, Instant);

        async fn fetch(&self) -> Result<Fetched<(u64, Instant)>, LoginError> {
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
        // The outages begin around the first renewal, which is due at 1350 to 1500 s.
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
        // This credential is new. The vendor would refuse another new one as well, so the call is not repeated.
        assert!(!renewed.refuse(|it| it.0 == first));
        advance(Duration::from_secs(60)).await;
        assert!(renewed.refuse(|it| it.0 == first));
        let (second, _) = *renewed.get().await.unwrap();
        assert_ne!(first, second);
        // A late refusal of the first credential does not discard the second one.
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

            async fn fetch(&self) -> Result<Fetched<()>, LoginError> {
                let is_first = !self.0.swap(true, Ordering::Relaxed);
                let life = Life::Unknown(Duration::from_secs(60));
                is_first
                    .then_some(Fetched {
                        credential: (),
                        life,
                    })
                    .ok_or(LoginError::new("exit status: 1"))
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
