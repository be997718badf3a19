//! A simulated vendor that serves a scripted response, frame by frame, and logs what it has served. All its tokens have
//! the same price.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use tokio::time::{Sleep, sleep};
use tollgate_layers::{
    error::Error,
    facts::RequestNumber,
    money::MicroRub,
    reserve::{Bill, Quote, Tariff, ledger::Item},
    usage::{End, Meter, Reading, Usage},
};
use tower::Service;

use crate::{
    plan::{CallPlan, Ms},
    slices::{GatewayLedger, Slices},
    world::{Life, Sim},
};

/// The price of a token, in micro-rubles.
const MICRO_A_TOKEN: u64 = 1_000;

/// Returns the cost of this number of tokens.
pub(crate) fn cost(tokens: u64) -> MicroRub {
    MicroRub::new(i64::try_from(tokens * MICRO_A_TOKEN).unwrap_or(i64::MAX))
}

/// The request of a client, and the response that it will get.
#[derive(Clone, Debug)]
pub(crate) struct OrderPlan {
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens_max: u64,
    /// The call is made if the account's money covers at least this number of output tokens.
    pub(crate) output_tokens_min: u64,
    pub(crate) finish_without_client: bool,
    /// The number of output tokens that the hold covers at a time; `None` if the hold is not changed.
    pub(crate) slice_tokens: Option<u64>,
    pub(crate) script: Script,
}

/// The script of a vendor's response: its frames, and how it ends.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    /// The time before the response begins, in milliseconds.
    pub(crate) head_ms: Ms,
    /// Whether the vendor refuses the call. A refused call costs nothing.
    pub(crate) refuses: bool,
    /// The frames of the response. Each consists of the time before it, and its tokens.
    pub(crate) frames: Vec<(Ms, u64)>,
    pub(crate) finish: Finish,
}

/// How the vendor ends its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The end of the response follows after its last frame, as a separate step.
    Plain,
    /// The last frame of the response is marked as the last, so the gateway polls for no further frame.
    WithLastFrame,
    /// The usage follows this long after the last frame of the response.
    UsageLater(Ms),
    /// The connection to the vendor breaks before the response is complete.
    Cut,
    /// The vendor reports twice the usage that it has served.
    Overrun,
}

impl Script {
    /// Returns the duration of the complete response.
    pub(crate) fn lasts(&self) -> Ms {
        let frames: Ms = self.frames.iter().map(|(ms, _)| ms).sum();
        let usage = match self.finish {
            Finish::UsageLater(ms) => ms,
            _ => 0,
        };
        self.head_ms + frames + usage
    }
}

/// A call that the gateway is sending to the vendor.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) plan: CallPlan,
    meter: Meter,
    /// The number of output tokens that the hold covers.
    paid_tokens: u64,
}

impl Order {
    pub(crate) fn new(plan: CallPlan) -> Self {
        Self {
            meter: Meter::default(),
            paid_tokens: plan.order.output_tokens_max,
            plan,
        }
    }
}

/// A tariff with one price for all tokens.
#[derive(Clone)]
pub(crate) struct ByTheToken {
    pub(crate) sim: Arc<Sim>,
}

impl Tariff<Order> for ByTheToken {
    type Bill = TokenBill;

    fn quote(&self, req: &Request<Order>) -> Result<Quote<TokenBill>, Error> {
        let Order { plan, meter, .. } = req.body();
        let input_tokens = plan.order.input_tokens;
        let want = cost(input_tokens + plan.order.output_tokens_max);
        let (account, key) = (plan.account.clone(), plan.key.clone());
        let mut quote = Quote::new(account, key, want, TokenBill { input_tokens });
        quote.least = cost(input_tokens + plan.order.output_tokens_min);
        quote.meter = meter.clone();
        quote.finish_without_client = plan.order.finish_without_client;
        quote.has_output = true;
        Ok(quote)
    }

    fn granted(&self, req: &mut Request<Order>, bill: &mut TokenBill, held: MicroRub) {
        let order = req.body_mut();
        let tokens = u64::try_from(held.micro()).unwrap_or(0) / MICRO_A_TOKEN;
        order.paid_tokens = order
            .paid_tokens
            .min(tokens.saturating_sub(bill.input_tokens));
        self.sim.log(order.plan.number, |call| call.held = held);
    }
}

/// Computes what a call is charged, from its meter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBill {
    input_tokens: u64,
}

impl Bill for TokenBill {
    fn charge(&self, reading: &Reading) -> Option<(MicroRub, Item)> {
        let end = reading.end.unwrap_or(End::ClientLeft);
        let output = reading
            .usage
            .map_or(reading.text_bytes, |usage| usage.output);
        // A call without delivered output is charged only if its client has disconnected.
        if !reading.dispatched || (output == 0 && end != End::ClientLeft) {
            return None;
        }
        let item = Item {
            usage: Usage {
                input: self.input_tokens,
                output,
                ..Usage::default()
            },
            ..Item::new("model", "vendor", end)
        };
        Some((cost(self.input_tokens + output), item))
    }
}

/// The vendor as one process of a gateway sees it.
#[derive(Clone)]
pub(crate) struct Vendor {
    pub(crate) sim: Arc<Sim>,
    pub(crate) life: Life,
    /// The ledger of the gateway, in which calls in flight change their holds.
    pub(crate) ledger: GatewayLedger,
}

impl Service<Request<Order>> for Vendor {
    type Response = Response<Answer>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answer>, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Request<Order>) -> Self::Future {
        let Order {
            plan,
            meter,
            paid_tokens,
        } = req.into_body();
        let work = Work {
            slices: Slices::new(&self.sim, &self.ledger, &plan, paid_tokens),
            sim: Arc::clone(&self.sim),
            life: self.life.clone(),
            number: plan.number,
            input_tokens: plan.order.input_tokens,
            script: plan.order.script,
            meter,
        };
        Box::pin(work.begin())
    }
}

/// The work of the vendor on a call. Dropping it ends the work.
struct Work {
    sim: Arc<Sim>,
    life: Life,
    number: RequestNumber,
    input_tokens: u64,
    script: Script,
    meter: Meter,
    slices: Slices,
}

impl Work {
    async fn begin(mut self) -> Result<Response<Answer>, Error> {
        self.meter.dispatched();
        self.sim.dispatched(self.number);
        sleep(Duration::from_millis(self.script.head_ms)).await;
        if self.script.refuses {
            self.meter.refused();
            self.sim.log(self.number, |call| call.vendor_refused = true);
            return Err(Error::VendorUnavailable("scripted".into()));
        }
        self.slices.begin();
        Ok(Response::new(Answer {
            work: self,
            next: 0,
            served: 0,
            timer: None,
            over: false,
        }))
    }

    /// Records the number of output tokens that were sent so far.
    fn served(&self, output: u64) {
        let tokens = self.input_tokens + output;
        let now = self.sim.now();
        self.sim.log(self.number, |call| {
            call.output = output;
            call.marks.push((now, tokens));
        });
    }

    fn finish(&self, served: u64) {
        let output = match self.script.finish {
            Finish::Overrun => 2 * served,
            _ => served,
        };
        self.meter.update(|reading| {
            reading.usage = Some(Usage {
                input: self.input_tokens,
                output,
                ..Usage::default()
            });
            reading.output_counted = true;
            reading.usage_due = false;
            reading.end = Some(End::Finished);
        });
        self.served(output);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // A process that has died has not seen the end of the call, so the end is not logged.
        if self.life.lasts() {
            let now = self.sim.now();
            self.sim.log(self.number, |call| call.ended = Some(now));
            self.sim
                .note(|| format!("vendor   {} ends", Short(self.number)));
        }
    }
}

/// The body of the vendor's response, which the gateway reads.
pub(crate) struct Answer {
    work: Work,
    next: usize,
    served: u64,
    timer: Option<Pin<Box<Sleep>>>,
    over: bool,
}

impl Answer {
    fn wait(&mut self, cx: &mut Context<'_>, ms: Ms) -> Poll<()> {
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep(Duration::from_millis(ms))));
        ready!(timer.as_mut().poll(cx));
        self.timer = None;
        Poll::Ready(())
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        if this.over {
            return Poll::Ready(None);
        }
        let covered = match this.next < this.work.script.frames.len() {
            true => ready!(this.work.slices.poll_covered(cx, this.served)),
            false => this.served,
        };
        if let Some(&(ms, tokens)) = this.work.script.frames.get(this.next)
            && this.served < covered
        {
            ready!(this.wait(cx, ms));
            this.next += 1;
            this.served = covered.min(this.served + tokens);
            let served = this.served;
            this.work
                .meter
                .update(|reading| reading.text_bytes = served);
            this.work.served(served);
            let last =
                this.next == this.work.script.frames.len() || served == this.work.slices.most();
            if last && this.work.script.finish == Finish::WithLastFrame {
                this.work.finish(served);
                this.over = true;
            }
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"text")))));
        }
        let end = match this.work.script.finish {
            Finish::Cut => {
                this.work
                    .meter
                    .update(|reading| reading.end = Some(End::VendorCut));
                Some(Err(Error::VendorBroken("scripted".into())))
            }
            Finish::UsageLater(ms) => {
                this.work.meter.update(|reading| reading.usage_due = true);
                ready!(this.wait(cx, ms));
                this.work.finish(this.served);
                None
            }
            Finish::Plain | Finish::WithLastFrame | Finish::Overrun => {
                this.work.finish(this.served);
                None
            }
        };
        this.over = true;
        Poll::Ready(end)
    }

    fn is_end_stream(&self) -> bool {
        self.over
    }
}

/// Displays a short form of a request number in the log of a run.
pub(crate) struct Short(pub(crate) RequestNumber);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "#{:06x}", crate::plan::bits_of(self.0) & 0x00FF_FFFF)
    }
}
