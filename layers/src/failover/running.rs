//! One attempt, from the choice of its route to the end of its response. When the attempt ends, it releases its slots
//! and records the result in the route's health, even if its future is dropped at an await.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::Instant;

use super::{
    breaker::{Pass, Trouble},
    class::{Class, status_of},
    health::{Health, LastResort, RouteHandle, Why},
};
use crate::{
    body::PolledFrame,
    error::{BoxError, Error},
    model::Route,
    usage::{End, Meter, Reading},
};

/// The shortest time for which a route is paused after a limit, even if the vendor requests less.
const REST_MIN: Duration = Duration::from_secs(1);
/// The time for which a route is paused after a 403.
const FORBIDDEN_REST: Duration = Duration::from_secs(30);

/// An attempt: the slots for calls in flight that it takes at its route and vendor, and the state of its response.
#[derive(Debug)]
pub(super) struct Running {
    place: RouteHandle,
    pass: Pass,
    health: Health,
    route: Arc<Route>,
    credential: usize,
    meter: Meter,
    since: Instant,
    random: u8,
    stage: Stage,
    /// Whether this attempt tries a paused route. If so, it has the route's only permit for that.
    trying: bool,
}

/// The kinds of routes on which an attempt may start.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entry {
    /// The attempt may start only on an available route: the breaker admits the call, and at least one API key may be
    /// used.
    Open,
    /// The attempt may also start on a paused route, that is, a route none of whose API keys may be used yet.
    Resting,
    /// The attempt may also start on a route with an open breaker, because the call has no other route.
    LastResort(LastResort),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No byte of the response has arrived.
    Waiting,
    /// The head of a stream has arrived and was forwarded, but no event of the stream has arrived.
    Silent,
    /// The first byte of the vendor's response has arrived.
    Answering,
    /// The result has been recorded in the route's health.
    Told,
}

impl Running {
    /// Takes the slots of a route and its vendor for a call, if `entry` permits this kind of route. Fails if another
    /// call has taken the last slot since this call chose the route. Only one call at a time tries a paused route.
    pub(super) fn start(
        health: &Health,
        place: &RouteHandle,
        route: &Arc<Route>,
        entry: Entry,
        caller: u64,
        meter: &Meter,
        now: Instant,
    ) -> Option<Self> {
        let (credential, resting) = place.key(health, &route.vendor, now);
        let (rests, last_resort) = match entry {
            Entry::Open if resting.is_some() => return None,
            Entry::Open => (false, None),
            Entry::Resting => (true, None),
            Entry::LastResort(how) => (resting.is_some(), Some(how)),
        };
        if place.vendor.is_disabled() {
            return None;
        }
        if !place.vendor.enter(route.vendor.connections_max) {
            return None;
        }
        if rests && !place.route.start_trying() {
            place.vendor.leave();
            return None;
        }
        let Some(pass) = place.route.pass(caller, last_resort, meter, now) else {
            if rests {
                place.route.stop_trying();
            }
            place.vendor.leave();
            return None;
        };
        place.vendor.take_turn(credential);
        Some(Self {
            place: place.clone(),
            pass,
            health: health.clone(),
            route: Arc::clone(route),
            credential,
            meter: meter.clone(),
            since: now,
            random: health.draw().next().to_be_bytes()[0],
            stage: Stage::Waiting,
            trying: rests,
        })
    }

    pub(super) const fn credential(&self) -> usize {
        self.credential
    }

    /// Returns the digest of the API key that this attempt uses.
    fn key(&self) -> u64 {
        let key = self.route.vendor.credentials.get(self.credential);
        key.map(|key| self.health.digest(key)).unwrap_or_default()
    }

    /// Records that the head of the response was received. If the vendor has `spoken`, a stream's first event or all of
    /// a plain response has arrived too.
    pub(super) fn began(&mut self, spoken: bool) {
        let now = Instant::now();
        let mut inner = self.place.route.lock();
        inner.load.observe(now - self.since, now);
        drop(inner);
        if spoken {
            self.spoke();
        } else {
            // The gateway has forwarded only the head and a keep-alive of its own, which does not show that the vendor
            // works.
            self.stage = Stage::Silent;
        }
    }

    /// Records that the vendor's first byte arrived.
    fn spoke(&mut self) {
        self.place.route.lock().breaker.began(self.pass);
        self.stage = Stage::Answering;
        if self.trying {
            // The route was paused. Its vendor has now responded, so the API key of this attempt can be used again.
            let key = self.key();
            self.place.route.wake(key);
            self.place.vendor.unpark(key);
            self.stop_trying();
        }
    }

    /// Returns whether only keep-alives of the gateway have been sent so far.
    fn is_silent(&self) -> bool {
        let nothing = |reading: &Reading| reading.text_bytes == 0 && reading.usage.is_none();
        self.stage == Stage::Silent && self.meter.look(nothing)
    }

    /// Returns whether the whole response has arrived.
    pub(super) fn is_over(&self) -> bool {
        self.meter.look(|reading| reading.end.is_some())
    }

    /// Records that the attempt ended with an error, and returns the class of the error.
    pub(super) fn ended(&mut self, error: &Error) -> Class {
        self.note(error);
        let (now, class) = (Instant::now(), Class::of(error));
        match class {
            Class::Request => self.tell(Outcome::Succeeded),
            Class::Unfit | Class::Own => self.tell(Outcome::Unknown),
            Class::Failed(trouble, wanted) => {
                self.waited(now);
                self.tell(Outcome::Failed(trouble));
                if let Some(wanted) = wanted {
                    self.rest(wanted, Why::Down, now);
                }
            }
            // A rate limit is not a failure, because the vendor works and stated when to retry.
            Class::Limited(wanted) => {
                self.tell(Outcome::Unknown);
                self.rest(wanted, Why::Limited, now);
            }
            Class::ModelUnknown => self.tell(Outcome::Lacking),
            // Only this route is paused, because the key may still be valid for other models.
            Class::Forbidden => {
                self.tell(Outcome::Unknown);
                self.rest(FORBIDDEN_REST, Why::Refused, now);
            }
            Class::KeyRefused(_) => {
                self.tell(Outcome::Failed(Trouble::Answered));
                self.place.vendor.park(self.key(), now);
            }
        }
        class
    }

    /// Stores the error for operators, if the vendor caused it.
    fn note(&self, error: &Error) {
        if error.is_the_vendors() {
            self.place.route.lock().last_error = Some((Instant::now(), status_of(error)));
        }
    }

    fn rest(&self, wanted: Duration, why: Why, now: Instant) {
        let wait = wanted.max(REST_MIN);
        self.place.route.rest(self.key(), wait, why, now);
    }

    /// Records how long the attempt has waited for a first byte, as a lower bound of the route's time to the first
    /// byte.
    fn waited(&self, now: Instant) {
        if self.stage == Stage::Waiting {
            let waited = now - self.since;
            self.place.route.lock().load.at_least(waited, now);
        }
    }

    fn tell(&mut self, outcome: Outcome) {
        if self.stage == Stage::Told {
            return;
        }
        self.stage = Stage::Told;
        let mut inner = self.place.route.lock();
        let now = Instant::now();
        // The meter belongs to the call, whose next attempt may use it for another vendor.
        inner.tried = None;
        match outcome {
            Outcome::Succeeded => inner.breaker.succeeded(self.pass),
            Outcome::Failed(trouble) => {
                inner.breaker.failed(self.pass, trouble, now, self.random);
            }
            Outcome::Lacking => inner.breaker.lacks(self.pass, now),
            Outcome::Unknown => inner.breaker.abandoned(self.pass, now),
        }
    }

    fn stop_trying(&mut self) {
        if std::mem::take(&mut self.trying) {
            self.place.route.stop_trying();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        match self.stage {
            Stage::Waiting => {
                // The attempt was dropped before its first byte, because the client disconnected.
                self.waited(Instant::now());
                self.tell(Outcome::Unknown);
            }
            Stage::Silent | Stage::Answering => {
                let silent = self.is_silent();
                let outcome = match self.meter.look(|reading| reading.end) {
                    Some(End::Finished) => {
                        if self.stage == Stage::Silent {
                            self.spoke();
                        }
                        Outcome::Succeeded
                    }
                    Some(End::VendorCut) if silent => Outcome::Failed(Trouble::Silent),
                    Some(End::VendorCut) => Outcome::Failed(Trouble::Answered),
                    // The request may cause an error in the middle of a stream. Such an error opens no breaker, so that
                    // one caller's requests cannot take the route from others.
                    Some(End::VendorError | End::ClientLeft | End::GatewayStopped) | None => {
                        Outcome::Unknown
                    }
                };
                self.tell(outcome);
            }
            Stage::Told => {}
        }
        self.stop_trying();
        self.place.route.leave();
        self.place.vendor.leave();
    }
}

#[derive(Clone, Copy, Debug)]
enum Outcome {
    Succeeded,
    Failed(Trouble),
    Lacking,
    Unknown,
}

pin_project! {
    /// A response body that keeps its route's slots until it ends, and then records the result in the route's health.
    #[derive(Debug)]
    pub struct ResponseBody<A> {
        #[pin]
        inner: A,
        running: Option<Box<Running>>,
    }
}

impl<A> ResponseBody<A> {
    pub(super) fn new(inner: A, running: Running) -> Self {
        // A plain response has arrived completely, so its slots are freed before the client reads it.
        let running = (!running.is_over()).then(|| Box::new(running));
        Self { inner, running }
    }
}

impl<A> Body for ResponseBody<A>
where
    A: Body<Data = Bytes, Error: Into<BoxError> + 'static>,
{
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let mut this = self.project();
        // The result is matched by reference, because moving a frame costs time.
        let polled = this.inner.as_mut().poll_frame(cx);
        let polled = polled.map(|frame| frame.map(|frame| frame.map_err(Error::from_below)));
        if let (Poll::Ready(frame), Some(running)) = (&polled, &mut *this.running) {
            match frame {
                Some(Err(error)) if running.is_over() => running.note(error),
                // A layer above the meter cut the response, so the meter has not recorded an end of the response.
                Some(Err(error)) => drop(running.ended(error)),
                Some(Ok(_)) if running.stage == Stage::Silent && !running.is_silent() => {
                    running.spoke();
                }
                _ => {}
            }
            if !matches!(frame, Some(Ok(_))) || this.inner.is_end_stream() {
                *this.running = None;
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
