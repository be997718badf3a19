use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::timeout;

use super::{
    Bill,
    ledger::Hold,
    running::{Cut, Entry, Granted},
    settler::{Place, Resolution, Settler},
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
    pub(super) fn new(settler: &Settler, hold: &Hold, meter: Meter, bill: T) -> Option<Self> {
        Some(Self {
            place: Some(settler.place()?),
            call: Arc::new(Granted {
                hold: hold.clone(),
                held: None,
                meter,
                bill,
                cut: Cut::default(),
            }),
            entry: None,
        })
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
        let reading = self.call.meter.read();
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
        self.call.meter.read().outlives_client
    }

    fn end(&mut self) {
        let Some(place) = self.place.take() else {
            return;
        };
        self.entry = None;
        let Granted {
            hold,
            held,
            meter,
            bill,
            ..
        } = &*self.call;
        let Hold {
            number,
            account,
            key,
            ..
        } = hold.clone();
        let reading = meter.read();
        place.send(
            match held.and_then(|held| Some((held, bill.charge(&reading)?))) {
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
        if self.guard.as_mut().is_some_and(|guard| guard.is_cut(cx)) {
            return Poll::Ready(Some(Err(Error::Draining)));
        }
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
        let (Some(mut inner), Some(mut guard)) = (self.inner.take(), self.guard.take()) else {
            return;
        };
        let patience = match guard.left_now() {
            Left::Ended => return,
            // All was delivered: what it used is told in the next moment, or never.
            Left::UsageDue => USAGE_PATIENCE,
            Left::Running if self.finish_without_client || guard.outlives_client() => Duration::MAX,
            Left::Running => return,
        };
        self.settler.finish_without_client(Box::pin(async move {
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
