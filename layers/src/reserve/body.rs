use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::timeout;

use super::{
    Bill,
    ledger::Hold,
    settler::{Place, Resolution, Settler},
};
use crate::{error::Error, money::MicroRub, usage::Meter};

/// How long the usage of a stream is waited for whose client left behind the last text.
const USAGE_PATIENCE: Duration = Duration::from_secs(10);

/// The owner of a hold, from before it is made. Dropped, it settles or releases, once.
#[derive(Debug)]
pub(super) struct Guard<T: Bill> {
    /// The place in the settler's queue; gone when the hold has ended.
    place: Option<Place>,
    hold: Hold,
    held: Option<MicroRub>,
    meter: Meter,
    bill: T,
}

impl<T: Bill> Guard<T> {
    /// `None` when the settler's queue is full: no hold may be made that could not be ended.
    pub(super) fn new(settler: &Settler, hold: &Hold, meter: Meter, bill: T) -> Option<Self> {
        Some(Self {
            place: Some(settler.place()?),
            hold: hold.clone(),
            held: None,
            meter,
            bill,
        })
    }

    pub(super) fn granted(&mut self, held: MicroRub) {
        self.held = Some(held);
    }

    /// The ledger said no: there is nothing to end.
    pub(super) fn refused(&mut self) {
        self.place = None;
    }

    pub(super) const fn bill_mut(&mut self) -> &mut T {
        &mut self.bill
    }

    /// How far the call is, should its client leave now.
    fn left_now(&self) -> Left {
        let reading = self.meter.read();
        if self.place.is_none() || reading.end.is_some() {
            Left::Ended
        } else if reading.usage_due {
            Left::UsageDue
        } else {
            Left::Running
        }
    }

    /// Whether the vendor that answers is read to its end without the client.
    fn outlives_client(&self) -> bool {
        self.meter.read().outlives_client
    }

    fn end(&mut self) {
        let Some(place) = self.place.take() else {
            return;
        };
        let reading = self.meter.read();
        let Hold {
            number,
            account,
            key,
            ..
        } = self.hold.clone();
        place.send(
            match self
                .held
                .and_then(|held| Some((held, self.bill.charge(&reading)?)))
            {
                Some((held, (cost, item))) => {
                    Resolution::settle(number, account, key, held, cost, item)
                }
                // The reserve's answer was lost, or nothing was used.
                None => Resolution::Release {
                    number,
                    account,
                    key,
                },
            },
        );
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
/// Of a call that goes on without its client, the rest is read by the settler.
#[derive(Debug)]
pub struct ResponseBody<A, T>
where
    A: Body<Data = Bytes, Error = Error> + Send + Unpin + 'static,
    T: Bill,
{
    /// Both are there until the drop.
    inner: Option<A>,
    guard: Option<Guard<T>>,
    settler: Settler,
    finish_without_client: bool,
}

impl<A, T> ResponseBody<A, T>
where
    A: Body<Data = Bytes, Error = Error> + Send + Unpin + 'static,
    T: Bill,
{
    pub(super) fn new(
        inner: A,
        guard: Guard<T>,
        settler: Settler,
        finish_without_client: bool,
    ) -> Self {
        Self {
            inner: Some(inner),
            guard: Some(guard),
            settler,
            finish_without_client,
        }
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
        // Taken out while it is polled: a body that panics must not be polled again by the drop.
        let Some(mut inner) = self.inner.take() else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(&mut inner).poll_frame(cx);
        let inner = self.inner.insert(inner);
        let frame = ready!(polled);
        // hyper does not poll again after trailers or once the body says that it has ended.
        let ended = !matches!(&frame, Some(Ok(frame)) if frame.is_data()) || inner.is_end_stream();
        if ended && let Some(guard) = &mut self.guard {
            guard.end();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl<A, T> Drop for ResponseBody<A, T>
where
    A: Body<Data = Bytes, Error = Error> + Send + Unpin + 'static,
    T: Bill,
{
    fn drop(&mut self) {
        let (Some(mut inner), Some(guard)) = (self.inner.take(), self.guard.take()) else {
            return;
        };
        let patience = match guard.left_now() {
            Left::Ended => return,
            // All was delivered: what it used is told in the next moment, or never.
            Left::UsageDue => USAGE_PATIENCE,
            Left::Running if self.finish_without_client || guard.outlives_client() => {
                Duration::MAX
            }
            Left::Running => return,
        };
        self.settler.finish_without_client(Box::pin(async move {
            let rest = async {
                while let Some(Ok(_)) = poll_fn(|cx| Pin::new(&mut inner).poll_frame(cx)).await {}
            };
            let _ = timeout(patience, rest).await;
            drop(guard);
        }));
    }
}
