use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, timeout};

use tollgate_ledger::settle::{AdjustedHold, Cut, Granted, QueuePermit, RunningEntry};

use super::{Bill, Ending, Settler, adjust::Adjuster, ledger::Hold};
use crate::{
    body::PolledFrame,
    error::{BoxError, Error},
    facts::{CallCost, EventStream},
    money::MicroRub,
    usage::{End, Meter},
};

/// How long the gateway waits for the vendor's usage if the client disconnects after the last text.
const USAGE_PATIENCE: Duration = Duration::from_secs(10);

/// The owner of a hold, created before the ledger is called. Dropping the owner settles or releases the hold, exactly
/// once.
#[derive(Debug)]
pub(super) struct Guard<T: Bill> {
    /// The place in the settler's queue, reserved in advance. `None` after the hold has ended.
    permit: Option<QueuePermit>,
    call: Arc<Granted<T>>,
    /// The call's entry in the list of in-flight calls; set after the ledger has granted the hold.
    entry: Option<RunningEntry>,
    /// Receives the cost of the call, if the call's response will be stored.
    reported: Option<CallCost>,
}

impl<T: Bill> Guard<T> {
    /// Returns `None` if the settler's queue is full. Then no hold may be made, because it could not be ended.
    pub(super) fn new(settler: &Settler, hold: Hold, meter: Meter, bill: T) -> Option<Self> {
        Some(Self {
            permit: Some(settler.permit()?),
            call: Arc::new(Granted {
                hold,
                held: None,
                held_at: None,
                adjusted: AdjustedHold::default(),
                meter,
                bill,
                cut: Cut::default(),
            }),
            entry: None,
            reported: None,
        })
    }

    /// Sets where the cost of the call is written when the call ends.
    pub(super) fn tell_cost_to(&mut self, reported: Option<CallCost>) {
        self.reported = reported;
    }

    /// Returns the call that this hold pays for.
    pub(super) const fn call(&self) -> &Arc<Granted<T>> {
        &self.call
    }

    /// Returns the hold as it is requested from the ledger.
    pub(super) fn hold(&self) -> &Hold {
        &self.call.hold
    }

    /// Records that the ledger granted `held`, and adds the call to the list of in-flight calls. `fit` limits the bill
    /// to the usage that `held` pays for.
    pub(super) fn granted(&mut self, settler: &Settler, held: MicroRub, fit: impl FnOnce(&mut T)) {
        let call = Arc::get_mut(&mut self.call);
        let call = call.expect("no other reference to the call exists yet");
        call.held = Some(held);
        call.held_at = Some(Instant::now());
        fit(&mut call.bill);
        self.entry = Some(settler.tend(Arc::clone(&self.call)));
    }

    /// Records that the ledger refused the hold, so no hold needs to be ended.
    pub(super) fn refused(&mut self) {
        self.permit = None;
    }

    /// Runs `work` until it completes or the settler orders the call to end.
    pub(super) async fn unless_cut<R, E: Into<BoxError> + 'static>(
        &mut self,
        work: impl Future<Output = Result<R, E>>,
    ) -> Result<R, Error> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            if self.is_cut(cx) {
                return Poll::Ready(Err(Error::Draining));
            }
            work.as_mut().poll(cx).map_err(Error::from_below)
        })
        .await
    }

    /// Returns whether the settler has ordered the call to end. If so, ends the call.
    fn is_cut(&mut self, cx: &Context<'_>) -> bool {
        if self.permit.is_none() || !self.call.cut.is_ordered(cx) {
            return false;
        }
        self.call.meter.update(|reading| {
            reading.end.get_or_insert(End::GatewayStopped);
        });
        self.end();
        true
    }

    /// Returns the state of the call for the case that its client disconnects now.
    fn left_now(&self) -> Left {
        self.call.meter.look(|reading| {
            if self.permit.is_none() || reading.end.is_some() {
                Left::Ended
            } else if reading.usage_due {
                Left::UsageDue
            } else {
                Left::Running
            }
        })
    }

    /// Returns whether the response has ended normally.
    fn is_finished(&self) -> bool {
        self.call
            .meter
            .look(|reading| reading.end == Some(End::Finished))
    }

    /// Ends the hold if the whole response has arrived, even before the client has read it. Returns the cost; `None` if
    /// the response has not ended.
    pub(super) fn end_if_over(&mut self) -> Option<MicroRub> {
        self.call.meter.look(|reading| reading.end)?;
        self.end()
    }

    /// Returns whether the vendor's stream is read to its end if the client disconnects.
    fn outlives_client(&self) -> bool {
        self.call.meter.look(|reading| reading.outlives_client)
    }

    /// Ends the hold and returns the cost. `None` if the hold has already ended.
    fn end(&mut self) -> Option<MicroRub> {
        let permit = self.permit.take()?;
        self.entry = None;
        let Granted { hold, meter, .. } = &*self.call;
        let (cost, ending) = match self.call.ended(&meter.read()) {
            Some(settlement) => (settlement.cost, Ending::Settle(Arc::new(settlement))),
            // The hold is released: the ledger did not acknowledge it, or nothing was used.
            None => (
                MicroRub::ZERO,
                Ending::Release {
                    number: hold.number,
                    account: hold.account.clone(),
                    key: hold.key.clone(),
                },
            ),
        };
        if let Some(reported) = &self.reported {
            reported.set(cost);
        }
        permit.send(ending);
        Some(cost)
    }
}

/// The state of a call when its client disconnects. It decides how long the call continues.
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

/// A response body that ends the call's hold when the response ends, fails or is dropped.
///
/// If a call continues without its client, the settler reads the rest of the body. If a stream reports its cost, the
/// hold ends with the stream's last event. The cost is inserted before that event, because nothing may follow the last
/// event.
#[derive(Debug)]
pub struct ResponseBody<A, T>
where
    A: Body<Data = Bytes, Error: Into<BoxError> + 'static> + Send + Unpin + 'static,
    T: Bill,
{
    /// The vendor's body. `None` during the drop, and if the call was ordered to end.
    inner: Option<A>,
    /// The call's hold. `None` during the drop, and if the hold has already ended with the response's head.
    held: Option<Held<T>>,
    /// The format of the stream, if the stream must still report its cost. Its frames are complete events.
    tells_cost: Option<EventStream>,
    /// Whether the inner body is being polled. If the poll panics, the inner body must not be polled again.
    polling: bool,
}

/// The hold of a response that is being sent, and what is needed to end it.
#[derive(Debug)]
pub(super) struct Held<T: Bill> {
    pub(super) guard: Guard<T>,
    pub(super) settler: Settler,
    pub(super) finish_without_client: bool,
    /// Changes the hold while the response is sent. `None` if the response is not an event stream, or if the hold has
    /// ended.
    pub(super) adjuster: Option<Adjuster>,
}

impl<T: Bill> Held<T> {
    fn end(&mut self) -> Option<MicroRub> {
        // An adjustment that the ledger has not answered is cancelled, because the hold ends now.
        self.adjuster = None;
        self.guard.end()
    }
}

impl<A, T> ResponseBody<A, T>
where
    A: Body<Data = Bytes, Error: Into<BoxError> + 'static> + Send + Unpin + 'static,
    T: Bill,
{
    /// Creates the body of a call. `held` is `None` if the hold has already ended. The stream `tells_cost` reports its
    /// cost in a comment before its last event.
    pub(super) const fn new(
        inner: A,
        held: Option<Held<T>>,
        tells_cost: Option<EventStream>,
    ) -> Self {
        Self {
            inner: Some(inner),
            held,
            tells_cost,
            polling: false,
        }
    }

    /// If these events include the stream's last event, ends the hold, and returns the events with the cost inserted
    /// before the last event.
    fn reported(&mut self, events: &Bytes) -> Option<Bytes> {
        let stream = self.tells_cost?;
        let held = self.held.as_mut()?;
        if !held.guard.is_finished() {
            return None;
        }
        let (before, last) = events.split_at(stream.last_event_at(events)?);
        self.tells_cost = None;
        let comment = format!(": cost_rub {}\n\n", held.end()?);
        Some([before, comment.as_bytes(), last].concat().into())
    }
}

impl<A, T> Body for ResponseBody<A, T>
where
    A: Body<Data = Bytes, Error: Into<BoxError> + 'static> + Send + Unpin + 'static,
    T: Bill,
{
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let this = &mut *self;
        let Some(inner) = this.inner.as_mut().filter(|_| !this.polling) else {
            return Poll::Ready(None);
        };
        let held = this.held.as_mut();
        if held.is_some_and(|held| held.guard.is_cut(cx)) {
            this.inner = None;
            return Poll::Ready(Some(Err(Error::Draining)));
        }
        // If the hold cannot be raised, the adjuster records this in the meter, and `passthrough` ends the stream as if
        // the output limit was reached.
        if let Some(held) = &mut this.held
            && let Some(adjuster) = &mut held.adjuster
            && adjuster.grow(held.guard.call(), cx).is_pending()
        {
            return Poll::Pending;
        }
        this.polling = true;
        // The result is matched by reference, because moving a frame costs time.
        let polled = Pin::new(&mut *inner).poll_frame(cx);
        this.polling = false;
        if let Some(held) = &mut this.held
            && let Some(adjuster) = &mut held.adjuster
        {
            adjuster.poll(held.guard.call(), cx);
        }
        let Poll::Ready(frame) = &polled else {
            return Poll::Pending;
        };
        // hyper does not poll the body again after trailers, or after the body has reported its end. So the hold ends
        // now.
        let ended = !matches!(frame, Some(Ok(frame)) if frame.is_data()) || inner.is_end_stream();
        let data = frame
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref());
        let reported = data.and_then(|data| this.reported(data));
        if ended && let Some(held) = &mut this.held {
            held.end();
        }
        match reported {
            Some(events) => Poll::Ready(Some(Ok(Frame::data(events)))),
            None => polled.map_err(Error::from_below),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.polling || self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match (self.tells_cost, &self.inner) {
            (None, Some(inner)) => inner.size_hint(),
            // The comment with the cost makes the body longer than the inner body's size hint.
            _ => SizeHint::default(),
        }
    }
}

impl<A, T> Drop for ResponseBody<A, T>
where
    A: Body<Data = Bytes, Error: Into<BoxError> + 'static> + Send + Unpin + 'static,
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
            adjuster: _,
        } = held;
        if self.polling {
            return;
        }
        let patience = match guard.left_now() {
            Left::Ended => return,
            // All text was delivered, so the usage arrives soon or never.
            Left::UsageDue => USAGE_PATIENCE,
            Left::Running if finish_without_client || guard.outlives_client() => Duration::MAX,
            Left::Running => return,
        };
        settler.finish_without_client(Box::pin(async move {
            let rest = async {
                let mut next = async || {
                    let next =
                        poll_fn(|cx| Pin::new(&mut inner).poll_frame(cx).map(Ok::<_, Error>));
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
    use std::sync::Mutex;

    use futures_util::StreamExt;
    use http::{Request, Response};
    use http_body_util::{BodyExt, Full, StreamBody};
    use tower::{Layer, ServiceExt};

    use super::*;
    use crate::{
        auth::SecretKey,
        call::Format,
        ceiling::Ceilings,
        key::{AccountId, KeyId},
        reserve::{
            Event, Quote, ReserveLayer, SettlerSettings, Tariff,
            ledger::{Item, LedgerAdmin},
            memory::MemoryLedger,
        },
        usage::{Reading, Usage},
    };

    const COST: MicroRub = MicroRub::new(859);
    const TOLD: &str = ": cost_rub 0.000859\n\n";

    /// A tariff with a fixed fee for each response of which at least a part has arrived.
    #[derive(Clone)]
    struct Fee {
        payer: (AccountId, KeyId),
        meter: Meter,
        tells_cost: bool,
    }

    impl Tariff<()> for Fee {
        type Bill = Ticket;

        fn quote(&self, _: &Request<()>) -> Result<Quote<Ticket>, Error> {
            Ok(Quote {
                account: self.payer.0.clone(),
                key: self.payer.1.clone(),
                want: COST,
                least: COST,
                meter: self.meter.clone(),
                finish_without_client: false,
                tells_cost: self.tells_cost,
                has_output: false,
                bill: Ticket,
            })
        }

        fn granted(&self, _: &mut Request<()>, _: &mut Ticket, _: MicroRub) {}
    }

    struct Ticket;

    impl Bill for Ticket {
        fn charge(&self, reading: &Reading) -> Option<(MicroRub, Item)> {
            let item = Item {
                model: "m".into(),
                vendor: "v".into(),
                usage: Usage::default(),
                price: None,
                estimated: false,
                bounded: false,
                session: None,
                end: reading.end.unwrap_or(End::ClientLeft),
                unpriced: false,
                vendor_cost_rub: None,
                vendor_usage: None,
                bounded_loss_rub: None,
                held_max_rub: None,
                held_at_end_rub: None,
                stopped_by: None,
                endpoint: None,
                timeline: None,
            };
            Some((COST, item))
        }
    }

    /// The frames of the vendor's response. Each has the end that the meter records before the frame is forwarded.
    type Frames = Vec<(&'static str, Option<End>)>;

    /// Makes a call whose vendor sends these frames, and reads at most `taken` frames. Returns the frames that the
    /// client gets, and the cost and end of each hold.
    async fn answer(
        format: Format,
        tells_cost: bool,
        frames: Frames,
        taken: usize,
    ) -> (Vec<Bytes>, Vec<(MicroRub, End)>) {
        let ledger = MemoryLedger::new();
        let payer: (AccountId, KeyId) = ("acme".parse().unwrap(), "web".parse().unwrap());
        ledger.create_account(&payer.0, "Acme").await.unwrap();
        let payment = crate::reserve::ledger::Entry {
            id: "1".into(),
            amount: MicroRub::rubles(1),
            reason: None,
        };
        ledger.enter(&payer.0, &payment).await.unwrap();
        let key = SecretKey::generate().record(payer.1.clone(), payer.0.clone());
        ledger.create_key(&key, Ceilings::NONE).await.unwrap();

        let ends = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&ends);
        let (settler, settling) =
            Settler::new(ledger.clone(), SettlerSettings::default(), move |event| {
                let Event::Settled { settlement, .. } = event else {
                    panic!("{event:?}");
                };
                let end = (settlement.cost, settlement.item.end);
                seen.lock().unwrap().push(end);
            });
        let meter = Meter::default();
        let fee = Fee {
            payer,
            meter: meter.clone(),
            tells_cost,
        };
        let layer = ReserveLayer::new(ledger, fee, settler, Duration::from_secs(60));
        let service = layer.layer(tower::service_fn(move |_| {
            let (meter, frames) = (meter.clone(), frames.clone());
            let frames = futures_util::stream::iter(frames).map(move |(frame, end)| {
                meter.update(|reading| reading.end = end);
                match end {
                    None | Some(End::Finished) => Ok(Frame::data(Bytes::from(frame))),
                    Some(_) => Err(Error::VendorBroken(frame.into())),
                }
            });
            let mut res = Response::new(StreamBody::new(Box::pin(frames)));
            res.extensions_mut().insert(EventStream(format));
            async { Ok::<_, Error>(res) }
        }));
        let mut body = service.oneshot(Request::new(())).await.unwrap().into_body();
        let mut out = Vec::new();
        while out.len() < taken
            && let Some(Ok(frame)) = body.frame().await
        {
            out.push(frame.into_data().unwrap());
        }
        // The settler's task ends after the last handle of the settler is dropped.
        drop((body, layer));
        settling.run().await;
        let ends = ends.lock().unwrap().clone();
        (out, ends)
    }

    const CHUNK: &str = "data: {}\n\n";
    const DONE: &str = "data: [DONE]\n\n";
    const PING: &str = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
    const STOP: &str = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

    /// Complete streams: each has its format, its frames, the text before its last event, and the text from its last
    /// event on.
    fn finished() -> Vec<(Format, Frames, String, String)> {
        let over = Some(End::Finished);
        vec![
            (
                Format::Chat,
                vec![(CHUNK, None), (DONE, over)],
                CHUNK.to_owned(),
                DONE.to_owned(),
            ),
            (
                Format::Chat,
                vec![
                    (CHUNK, None),
                    ("data: {\"usage\":{}}\n\ndata: [DONE]\r\n\r\n", over),
                ],
                [CHUNK, "data: {\"usage\":{}}\n\n"].concat(),
                "data: [DONE]\r\n\r\n".to_owned(),
            ),
            (
                Format::Chat,
                vec![("data: [DONE]\n\n: bye\n\n", over)],
                String::new(),
                [DONE, ": bye\n\n"].concat(),
            ),
            (
                Format::Messages,
                vec![(PING, None), (STOP, over)],
                PING.to_owned(),
                STOP.to_owned(),
            ),
        ]
    }

    #[tokio::test]
    async fn cost_comment_precedes_the_last_event() {
        for (format, frames, before, last) in finished() {
            for (tells_cost, reported) in [(true, TOLD), (false, "")] {
                let (out, ends) = answer(format, tells_cost, frames.clone(), usize::MAX).await;
                assert_eq!(out.concat(), [&before, reported, &last].concat().as_bytes());
                assert_eq!(out.len(), frames.len(), "in no frame of its own");
                assert_eq!(ends, [(COST, End::Finished)], "once");
            }
        }
    }

    #[tokio::test]
    async fn client_that_receives_the_last_event_gets_the_cost_of_the_call_exactly_once() {
        for (format, frames, ..) in finished() {
            for taken in 0..=frames.len() {
                let (out, ends) = answer(format, true, frames.clone(), taken).await;
                let reported = String::from_utf8(out.concat()).unwrap().contains(TOLD);
                let end = match taken == frames.len() {
                    true => End::Finished,
                    false => End::ClientLeft,
                };
                assert_eq!((reported, ends), (end == End::Finished, vec![(COST, end)]));
            }
        }
    }

    #[tokio::test]
    async fn stream_that_does_not_finish_reports_no_cost() {
        for frames in [
            vec![(CHUNK, None), ("cut", Some(End::VendorCut))],
            // In this case `[DONE]` does not end the stream, because the meter has not recorded that the response
            // ended.
            vec![(DONE, None), ("cut", Some(End::VendorCut))],
            // The meter has recorded that the response ended, but a layer above it loses the last frame.
            vec![
                (CHUNK, Some(End::Finished)),
                ("cut", Some(End::VendorError)),
            ],
        ] {
            let (out, ends) = answer(Format::Chat, true, frames.clone(), usize::MAX).await;
            assert_eq!(out.concat(), frames[0].0.as_bytes());
            assert_eq!(ends, [(COST, frames[1].1.unwrap())]);
        }
    }

    #[tokio::test]
    async fn response_body_that_will_report_its_cost_has_no_exact_length() {
        let settings = SettlerSettings::default();
        let (settler, _settling) = Settler::new(MemoryLedger::new(), settings, |_| {});
        let number = crate::facts::RequestNumber::now_v7();
        let (account, key) = ("acme".parse().unwrap(), "web".parse().unwrap());
        let hold = Hold::new(number, account, key, COST, Duration::from_secs(60));
        let meter = Meter::default();
        let mut guard = Guard::new(&settler, hold, meter.clone(), Ticket).unwrap();
        guard.granted(&settler, COST, |_| {});
        meter.update(|reading| reading.end = Some(End::Finished));
        let whole = Full::new(Bytes::from(DONE)).map_err(|never| match never {});
        let held = Held {
            guard,
            settler,
            finish_without_client: false,
            adjuster: None,
        };
        let stream = Some(EventStream(Format::Chat));
        let mut body = ResponseBody::new(whole, Some(held), stream);
        assert_eq!(body.size_hint().exact(), None);
        assert!(!body.is_end_stream());
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(frame, [TOLD, DONE].concat());
        assert!(body.is_end_stream());
        assert_eq!(body.size_hint().exact(), Some(0));
    }
}
