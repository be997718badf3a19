//! One attempt, from the choice of its route to the end of its answer. When it ends, it releases its slots and records
//! the result in the route's health, even if its future is dropped at an await.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::Instant;

use super::{
    breaker::{Pass, Trouble},
    class::{Class, status_of},
    health::{Health, LastResort, RouteHandle, Why},
};
use crate::{
    error::{BoxError, Error},
    model::Route,
    usage::{End, Meter, Reading},
};

/// The shortest time for which a route rests (is skipped) after a limit, even if the vendor requests less.
const REST_MIN: Duration = Duration::from_secs(1);
/// The time for which a route rests (is skipped) after a 403.
const FORBIDDEN_REST: Duration = Duration::from_secs(30);

/// An attempt: the slots that it occupies at its route and vendor, and the state of its answer.
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
    /// Whether this attempt tries a resting route. If so, it has the only permit for such attempts.
    trying: bool,
}

/// The kinds of routes on which an attempt may start.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entry {
    /// Only available routes: the breaker admits the call, and at least one API key may be used.
    Open,
    /// Also routes that rest: none of their API keys may be used yet.
    Resting,
    /// Also routes with an open breaker, because the call has no other route.
    LastResort(LastResort),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No byte of the answer has arrived.
    Waiting,
    /// No byte of the answer has arrived, but the gateway has forwarded the head of a stream.
    Silent,
    /// The vendor's first byte has arrived.
    Answering,
    /// The result has been recorded in the route's health.
    Told,
}

impl Running {
    /// Takes the slots of a route and its vendor for a call, if `entry` permits this kind of route. Another call may
    /// have taken these slots since this call chose the route. Only one call at a time tries a resting route.
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

    /// Records that the head of the answer arrived. If the vendor has `spoken`, a stream's first event or all of a
    /// plain answer arrived, too.
    pub(super) fn began(&mut self, spoken: bool) {
        let now = Instant::now();
        let mut inner = self.place.route.lock();
        inner.load.observe(now - self.since, now);
        drop(inner);
        if spoken {
            self.spoke();
        } else {
            // The gateway has forwarded only the head and a keep-alive of its own, so it does not follow that the
            // vendor works.
            self.stage = Stage::Silent;
        }
    }

    /// Records that the vendor's first byte arrived.
    fn spoke(&mut self) {
        self.place.route.lock().breaker.began(self.pass);
        self.stage = Stage::Answering;
        if self.trying {
            // The route was resting. Since there is an answer, the API key of this attempt can be used again.
            let key = self.key();
            self.place.route.wake(key);
            self.place.vendor.unpark(key);
            self.stop_trying();
        }
    }

    /// Returns whether the answer has only keep-alives of the gateway so far.
    fn is_silent(&self) -> bool {
        let nothing = |reading: &Reading| reading.text_bytes == 0 && reading.usage.is_none();
        self.stage == Stage::Silent && self.meter.look(nothing)
    }

    /// Returns whether the whole answer has arrived.
    pub(super) fn is_over(&self) -> bool {
        self.meter.look(|reading| reading.end.is_some())
    }

    /// Records that the attempt ended with an error, and returns its class.
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
            // A rate limit is not a failure: the vendor works, and stated when to retry.
            Class::Limited(wanted) => {
                self.tell(Outcome::Unknown);
                self.rest(wanted, Why::Limited, now);
            }
            Class::ModelUnknown => self.tell(Outcome::Lacking),
            // Only this route rests: the key may still be valid for other models.
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

    /// Records that the attempt waited until now for a first byte, which is a lower bound of the route's time to the
    /// first byte.
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
        // The meter belongs to the call. The call's next attempt may use it for another vendor.
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
                // The attempt was dropped before its first byte: the client disconnected.
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
                    // An error in the middle of a stream may be caused by the request, so it opens no breaker: one
                    // caller's requests must not take the route from others.
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
    /// An answer body that occupies its route's slots until it ends, and then records the result in the route's health.
    #[derive(Debug)]
    pub struct ResponseBody<A> {
        #[pin]
        inner: A,
        running: Option<Box<Running>>,
    }
}

impl<A> ResponseBody<A> {
    pub(super) fn new(inner: A, running: Running) -> Self {
        // A plain answer has arrived completely, so its slots are free before the client has read it.
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

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let mut this = self.project();
        // Matched by reference, because moving a frame costs time.
        let polled = this.inner.as_mut().poll_frame(cx);
        let polled = polled.map(|frame| frame.map(|frame| frame.map_err(Error::from_below)));
        if let (Poll::Ready(frame), Some(running)) = (&polled, &mut *this.running) {
            match frame {
                Some(Err(error)) if running.is_over() => running.note(error),
                // A layer above the meter cut the answer, so the meter has not recorded an end.
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
