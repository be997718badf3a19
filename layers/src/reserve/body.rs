use std::{
    future::poll_fn,
    mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::timeout;

use super::{
    Bill, Ending,
    ledger::Hold,
    running::{Cut, Entry, Granted},
    settler::{Place, Settler},
};
use crate::{
    error::Error,
    money::MicroRub,
    usage::{End, Meter},
};

/// How long the usage of a stream is waited for whose client left behind the last text.
const USAGE_PATIENCE: Duration = Duration::from_secs(10);

/// The owner of a hold, from before it is made. Dropped, it settles or releases, once.
#[derive(Debug)]
pub(super) struct Guard<T: Bill> {
    /// The place in the settler's queue; gone when the hold has ended.
    place: Option<Place>,
    call: Arc<Granted<T>>,
    /// The place among the running calls, from the grant on.
    entry: Option<Entry>,
}

impl<T: Bill> Guard<T> {
    /// `None` when the settler's queue is full: no hold may be made that could not be ended.
    pub(super) fn new(settler: &Settler, hold: Hold, meter: Meter, bill: T) -> Option<Self> {
        Some(Self {
            place: Some(settler.place()?),
            call: Arc::new(Granted {
                hold,
                held: None,
                meter,
                bill,
                cut: Cut::default(),
            }),
            entry: None,
        })
    }

    /// What the ledger is to hold.
    pub(super) fn hold(&self) -> &Hold {
        &self.call.hold
    }

    /// The ledger holds so much: from here on the call is tended. `fit` writes into the bill what
    /// that pays for.
    pub(super) fn granted(&mut self, settler: &Settler, held: MicroRub, fit: impl FnOnce(&mut T)) {
        let call = Arc::get_mut(&mut self.call);
        let call = call.expect("nobody else has the call before it is tended");
        call.held = Some(held);
        fit(&mut call.bill);
        self.entry = Some(settler.tend(Arc::clone(&self.call)));
    }

    /// The ledger said no: there is nothing to end.
    pub(super) fn refused(&mut self) {
        self.place = None;
    }

    /// Goes on with `work` until the call is told to end.
    pub(super) async fn unless_cut<R>(
        &mut self,
        work: impl Future<Output = Result<R, Error>>,
    ) -> Result<R, Error> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            if self.is_cut(cx) {
                return Poll::Ready(Err(Error::Draining));
            }
            work.as_mut().poll(cx)
        })
        .await
    }

    /// Whether the call is told to end, which it then has.
    fn is_cut(&mut self, cx: &Context<'_>) -> bool {
        if self.place.is_none() || !self.call.cut.is_told(cx) {
            return false;
        }
        self.call.meter.update(|reading| {
            reading.end.get_or_insert(End::GatewayStopped);
        });
        self.end();
        true
    }

    /// How far the call is, should its client leave now.
    fn left_now(&self) -> Left {
        self.call.meter.look(|reading| {
            if self.place.is_none() || reading.end.is_some() {
                Left::Ended
            } else if reading.usage_due {
                Left::UsageDue
            } else {
                Left::Running
            }
        })
    }

    /// Ends a call of which everything has come: nobody has to wait for the client to take it. Says what
    /// it cost.
    pub(super) fn end_if_over(&mut self) -> Option<MicroRub> {
        self.call.meter.look(|reading| reading.end)?;
        self.end()
    }

    /// Whether the vendor that answers is read to its end without the client.
    fn outlives_client(&self) -> bool {
        self.call.meter.look(|reading| reading.outlives_client)
    }

    /// Ends the hold, and says what the call cost; `None` when it has ended before.
    fn end(&mut self) -> Option<MicroRub> {
        let place = self.place.take()?;
        self.entry = None;
        let Granted { hold, meter, .. } = &*self.call;
        let (cost, ending) = match self.call.ended(&meter.read()) {
            Some(settlement) => (settlement.cost, Ending::Settle(Arc::new(settlement))),
            // The reserve's answer was lost, or nothing was used.
            None => (
                MicroRub::ZERO,
                Ending::Release {
                    number: hold.number,
                    account: hold.account.clone(),
                    key: hold.key.clone(),
                },
            ),
        };
        place.send(ending);
        Some(cost)
    }
}

/// How far a call is whose client leaves.
enum Left {
    Ended,
    UsageDue,
    Running,
}

impl<T: Bill> Drop for Guard<T> {
    fn drop(&mut self) {
        self.end();
    }
}

/// An answer's body that ends the call's hold when it ends, fails or is dropped.
///
/// Of a call that goes on without its client, the rest is read by the settler. A stream that tells what it
/// cost does so behind its last event, where it came to its end.
#[derive(Debug)]
pub struct ResponseBody<A, T>
where
    A: Body<Data = Bytes, Error = Error> + Send + Unpin + 'static,
    T: Bill,
{
    /// There until the drop.
    inner: Option<A>,
    /// There until the drop, unless the hold had ended before.
    held: Option<Held<T>>,
    cost: CostComment,
    /// The inner body is being polled; if it panics in that, it must not be polled again.
    polling: bool,
}

/// A hold that ends with the answer.
#[derive(Debug)]
struct Held<T: Bill> {
    guard: Guard<T>,
    settler: Settler,
    finish_without_client: bool,
}

/// With so many line feeds an event ends.
const BETWEEN_EVENTS: usize = 2;

/// The comment at the end of a stream.
#[derive(Debug, Default)]
enum CostComment {
    #[default]
    None,
    /// The stream still runs, and what has come of it ends with so many line feeds.
    Awaited {
        line_feeds: usize,
    },
    Ready(Bytes),
}

impl<A, T> ResponseBody<A, T>
where
    A: Body<Data = Bytes, Error = Error> + Send + Unpin + 'static,
    T: Bill,
{
    pub(super) fn new(inner: A, guard: Guard<T>, settler: Settler) -> Self {
        let mut body = Self::ended(inner);
        body.held = Some(Held {
            guard,
            settler,
            finish_without_client: false,
        });
        body
    }

    /// Of a call whose hold has ended.
    pub(super) fn ended(inner: A) -> Self {
        Self {
            inner: Some(inner),
            held: None,
            cost: CostComment::None,
            polling: false,
        }
    }

    /// Whether the call goes on to its end when its client leaves.
    pub(super) fn finish_without_client(mut self, finish: bool) -> Self {
        if let Some(held) = &mut self.held {
            held.finish_without_client = finish;
        }
        self
    }

    /// Whether a comment behind the last event says what the call cost.
    pub(super) fn tell_cost(mut self, tell: bool) -> Self {
        if tell {
            self.cost = CostComment::Awaited {
                line_feeds: BETWEEN_EVENTS,
            };
        }
        self
    }

    /// The hold has ended, at `cost`: what is to be sent behind the last frame.
    fn told(&mut self, cost: Option<MicroRub>) -> Option<Bytes> {
        let CostComment::Awaited { line_feeds } = mem::take(&mut self.cost) else {
            return None;
        };
        // Some vendors leave out the blank line behind the last event.
        let gap = if line_feeds < BETWEEN_EVENTS {
            "\n\n"
        } else {
            ""
        };
        cost.map(|cost| format!("{gap}: cost_rub {cost}\n\n").into())
    }
}

/// How many line feeds a stream ends with that ended with `before` of them and goes on with `data`.
fn line_feeds_at_end(before: usize, data: &[u8]) -> usize {
    let text = data.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r'));
    let end = &data[text.map_or(0, |at| at + 1)..];
    let count = end.iter().filter(|byte| **byte == b'\n').count();
    match text {
        Some(_) => count,
        None => before.saturating_add(count),
    }
}

impl<A, T> Body for ResponseBody<A, T>
where
    A: Body<Data = Bytes, Error = Error> + Send + Unpin + 'static,
    T: Bill,
{
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        if let CostComment::Ready(comment) = &mut this.cost {
            let comment = mem::take(comment);
            this.cost = CostComment::None;
            return Poll::Ready(Some(Ok(Frame::data(comment))));
        }
        let Some(inner) = this.inner.as_mut().filter(|_| !this.polling) else {
            return Poll::Ready(None);
        };
        let held = this.held.as_mut();
        if held.is_some_and(|held| held.guard.is_cut(cx)) {
            this.inner = None;
            return Poll::Ready(Some(Err(Error::Draining)));
        }
        this.polling = true;
        // Looked at where it lies: a frame is large.
        let polled = Pin::new(&mut *inner).poll_frame(cx);
        this.polling = false;
        let Poll::Ready(frame) = &polled else {
            return polled;
        };
        // hyper does not poll again after trailers or once the body says that it has ended.
        let ended = !matches!(frame, Some(Ok(frame)) if frame.is_data()) || inner.is_end_stream();
        if let CostComment::Awaited { line_feeds } = &mut this.cost
            && let Some(Ok(frame)) = frame
            && let Some(data) = frame.data_ref()
        {
            *line_feeds = line_feeds_at_end(*line_feeds, data);
        }
        if ended && let Some(held) = &mut this.held {
            let cost = held.guard.end();
            match (this.told(cost), frame) {
                (Some(comment), None) => {
                    this.inner = None;
                    return Poll::Ready(Some(Ok(Frame::data(comment))));
                }
                (Some(comment), Some(Ok(frame))) if frame.is_data() => {
                    this.cost = CostComment::Ready(comment);
                }
                // Nothing comes behind an error or trailers.
                _ => {}
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.cost, CostComment::None)
            && (self.polling || self.inner.as_ref().is_none_or(Body::is_end_stream))
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.cost, &self.inner) {
            (CostComment::None, Some(inner)) => inner.size_hint(),
            // The comment comes on top.
            _ => SizeHint::default(),
        }
    }
}

impl<A, T> Drop for ResponseBody<A, T>
where
    A: Body<Data = Bytes, Error = Error> + Send + Unpin + 'static,
    T: Bill,
{
    fn drop(&mut self) {
        let Some(held) = self.held.take() else {
            return;
        };
        let Some(mut inner) = self.inner.take() else {
            return;
        };
        let Held {
            mut guard,
            settler,
            finish_without_client,
        } = held;
        if self.polling {
            return;
        }
        let patience = match guard.left_now() {
            Left::Ended => return,
            // All was delivered: what it used is told in the next moment, or never.
            Left::UsageDue => USAGE_PATIENCE,
            Left::Running if finish_without_client || guard.outlives_client() => Duration::MAX,
            Left::Running => return,
        };
        settler.finish_without_client(Box::pin(async move {
            let rest = async {
                let mut next = async || {
                    let next = poll_fn(|cx| Pin::new(&mut inner).poll_frame(cx).map(Ok));
                    guard.unless_cut(next).await
                };
                while let Ok(Some(Ok(_))) = next().await {}
            };
            let _ = timeout(patience, rest).await;
            drop(guard);
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_events_end_is_seen_however_it_is_cut() {
        for (pieces, expected) in [
            (&["data: [DONE]\n\n"][..], 2),
            (&["data: [DONE]\r\n\r\n"][..], 2),
            (&["data: [DONE]\n", "\n"][..], 2),
            (&["data: [DONE]\r\n", "\r", "\n", ""][..], 2),
            (&["\n\n", "data: [DONE]"][..], 0),
            (&["data: [DONE]\n"][..], 1),
            (&[][..], BETWEEN_EVENTS),
        ] {
            let feeds = pieces.iter().fold(BETWEEN_EVENTS, |feeds, piece| {
                line_feeds_at_end(feeds, piece.as_bytes())
            });
            assert_eq!(feeds, expected, "{pieces:?}");
        }
    }
}
