//! One attempt, from the choice of its route to the end of its answer. Whatever ends it, its places are
//! given back and its route's health is told how it went: dropped at any await, it does both.

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
    error::Error,
    model::Route,
    usage::{End, Meter, Reading},
};

/// A vendor's wish to be left alone means something for a second at least.
const REST_MIN: Duration = Duration::from_secs(1);
/// How long a route rests after a 403.
const FORBIDDEN_REST: Duration = Duration::from_secs(30);

/// The places that an attempt holds.
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
    /// It tries a route that rests, and holds the one place of those that do.
    trying: bool,
}

/// What a call is content with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entry {
    /// A route that is open.
    Open,
    /// One that rests, too.
    Resting,
    /// Any.
    LastResort(LastResort),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No byte has come.
    Waiting,
    /// Nor has one yet, but the head went on.
    Silent,
    /// The answer is on its way.
    Answering,
    /// How it went has been told.
    Told,
}

impl Running {
    /// Takes a route's places, if they are free and the `entry` will do: somebody may have been faster than who
    /// looked. A route that rests is taken by one call at a time.
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

    /// The key, as its digest.
    fn key(&self) -> u64 {
        let key = self.route.vendor.credentials.get(self.credential);
        key.map(|key| self.health.digest(key)).unwrap_or_default()
    }

    /// The head is there, and with it all of a plain answer or, if the vendor has `spoken`, a stream's first event.
    pub(super) fn began(&mut self, spoken: bool) {
        let now = Instant::now();
        let mut inner = self.place.route.lock();
        inner.load.observe(now - self.since, now);
        drop(inner);
        if spoken {
            self.spoke();
        } else {
            // What went on is our own sign of life, which says nothing of the vendor.
            self.stage = Stage::Silent;
        }
    }

    /// The vendor's first word has come.
    fn spoke(&mut self) {
        self.place.route.lock().breaker.began(self.pass);
        self.stage = Stage::Answering;
        if self.trying {
            // It rested, and is awake.
            let key = self.key();
            self.place.route.wake(key);
            self.place.vendor.unpark(key);
            self.stop_trying();
        }
    }

    /// Whether all that went on is ours.
    fn is_silent(&self) -> bool {
        let nothing = |reading: &Reading| reading.text_bytes == 0 && reading.usage.is_none();
        self.stage == Stage::Silent && self.meter.look(nothing)
    }

    /// Whether all of the answer has come.
    pub(super) fn is_over(&self) -> bool {
        self.meter.look(|reading| reading.end.is_some())
    }

    /// The attempt ended with an error. Says what to do about it.
    pub(super) fn ended(&mut self, error: &Error) -> Class {
        self.note(error);
        let (now, class) = (Instant::now(), Class::of(error));
        match class {
            Class::Request => self.tell(Outcome::Succeeded),
            Class::Unfit | Class::Own => self.tell(Outcome::Unknown),
            Class::Failed(trouble, wish) => {
                self.waited(now);
                self.tell(Outcome::Failed(trouble));
                if let Some(wish) = wish {
                    self.rest(wish, Why::Down, now);
                }
            }
            // A limit is no sickness: the vendor is there, and says when to come back.
            Class::Limited(wish) => {
                self.tell(Outcome::Unknown);
                self.rest(wish, Why::Limited, now);
            }
            Class::ModelUnknown => self.tell(Outcome::Lacking),
            // This route alone rests a little.
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

    /// Keeps for operators what the vendor did, and not what a caller or we did wrong.
    fn note(&self, error: &Error) {
        if error.is_the_vendors() {
            self.place.route.lock().last_error = Some((Instant::now(), status_of(error)));
        }
    }

    fn rest(&self, wish: Duration, why: Why, now: Instant) {
        let wait = wish.max(REST_MIN);
        self.place.route.rest(self.key(), wait, why, now);
    }

    /// No first byte came in this time, which says one thing.
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
        // Its meter may be another vendor's next.
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
                // Its client did not wait any longer.
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
                    // What it says in the middle is as often about the request: one caller must not
                    // shut a route for the others by asking for too much.
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
    /// An answer's body that holds its route's places until it has ended, and then says how.
    #[derive(Debug)]
    pub struct ResponseBody<A> {
        #[pin]
        inner: A,
        running: Option<Box<Running>>,
    }
}

impl<A> ResponseBody<A> {
    pub(super) fn new(inner: A, running: Running) -> Self {
        // Of a plain answer everything has come, and nobody has to wait for the client to take it.
        let running = (!running.is_over()).then(|| Box::new(running));
        Self { inner, running }
    }
}

impl<A: Body<Data = Bytes, Error = Error>> Body for ResponseBody<A> {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let mut this = self.project();
        // Looked at where it lies: a frame is large.
        let polled = this.inner.as_mut().poll_frame(cx);
        if let (Poll::Ready(frame), Some(running)) = (&polled, &mut *this.running) {
            match frame {
                Some(Err(error)) if running.is_over() => running.note(error),
                // What was cut above the meter: it does not know.
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
