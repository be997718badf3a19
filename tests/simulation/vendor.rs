//! A vendor that serves by a script, frame by frame, and keeps its own log of what it served. What is
//! sold are tokens, all at one price.

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
    world::{Life, Sim},
};

/// What a token costs.
const MICRO_A_TOKEN: u64 = 1_000;

/// What so many tokens cost.
pub(crate) fn cost(tokens: u64) -> MicroRub {
    MicroRub::new(i64::try_from(tokens * MICRO_A_TOKEN).unwrap_or(i64::MAX))
}

/// What a client asks for, and what it will get.
#[derive(Clone, Debug)]
pub(crate) struct OrderPlan {
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens_max: u64,
    /// Less than that is not worth while.
    pub(crate) output_tokens_min: u64,
    pub(crate) finish_without_client: bool,
    pub(crate) script: Script,
}

/// What the vendor does.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    /// How long it takes to begin.
    pub(crate) head_ms: Ms,
    /// Whether it says no instead, which costs nothing.
    pub(crate) refuses: bool,
    /// How long each frame takes, and its tokens.
    pub(crate) frames: Vec<(Ms, u64)>,
    pub(crate) finish: Finish,
}

/// How an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// After the last frame.
    Plain,
    /// With the last frame: nobody asks for another.
    WithLastFrame,
    /// All text is there, and the usage comes so much later.
    UsageLater(Ms),
    /// It breaks off.
    Cut,
    /// The usage is twice what was served.
    Overrun,
}

impl Script {
    /// How long the whole answer takes.
    pub(crate) fn lasts(&self) -> Ms {
        let frames: Ms = self.frames.iter().map(|(ms, _)| ms).sum();
        let usage = match self.finish {
            Finish::UsageLater(ms) => ms,
            _ => 0,
        };
        self.head_ms + frames + usage
    }
}

/// A call on its way to the vendor.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) plan: CallPlan,
    meter: Meter,
    /// Output that the hold pays for.
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

/// Sells tokens.
#[derive(Clone)]
pub(crate) struct ByTheToken {
    pub(crate) sim: Arc<Sim>,
}

impl Tariff<Order> for ByTheToken {
    type Bill = TokenBill;

    fn quote(&self, req: &Request<Order>) -> Result<Quote<TokenBill>, Error> {
        let Order { plan, meter, .. } = req.body();
        let input_tokens = plan.order.input_tokens;
        Ok(Quote {
            account: plan.account.clone(),
            key: plan.key.clone(),
            want: cost(input_tokens + plan.order.output_tokens_max),
            least: cost(input_tokens + plan.order.output_tokens_min),
            meter: meter.clone(),
            finish_without_client: plan.order.finish_without_client,
            tells_cost: false,
            has_output: true,
            bill: TokenBill { input_tokens },
        })
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

/// The charge of a call, by its meter.
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
        // Where nothing came, only a client that left pays.
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

/// The vendor as one process of a gateway reaches it.
#[derive(Clone)]
pub(crate) struct Vendor {
    pub(crate) sim: Arc<Sim>,
    pub(crate) life: Life,
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
            sim: Arc::clone(&self.sim),
            life: self.life.clone(),
            number: plan.number,
            input_tokens: plan.order.input_tokens,
            script: plan.order.script,
            meter,
            paid_tokens,
        };
        Box::pin(work.begin())
    }
}

/// A call at the vendor. It ends when this is dropped.
struct Work {
    sim: Arc<Sim>,
    life: Life,
    number: RequestNumber,
    input_tokens: u64,
    script: Script,
    meter: Meter,
    paid_tokens: u64,
}

impl Work {
    async fn begin(self) -> Result<Response<Answer>, Error> {
        self.meter.dispatched();
        self.sim.dispatched(self.number);
        sleep(Duration::from_millis(self.script.head_ms)).await;
        if self.script.refuses {
            self.meter.refused();
            self.sim.log(self.number, |call| call.vendor_refused = true);
            return Err(Error::VendorUnavailable("scripted".into()));
        }
        Ok(Response::new(Answer {
            work: self,
            next: 0,
            served: 0,
            timer: None,
            over: false,
        }))
    }

    /// So many tokens have gone out, all in all.
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
        // With its process, nobody sees it end.
        if self.life.lasts() {
            let now = self.sim.now();
            self.sim.log(self.number, |call| call.ended = Some(now));
            self.sim
                .note(|| format!("vendor   {} ends", Short(self.number)));
        }
    }
}

/// An answer's body.
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
        let paid = this.work.paid_tokens;
        if let Some(&(ms, tokens)) = this.work.script.frames.get(this.next)
            && this.served < paid
        {
            ready!(this.wait(cx, ms));
            this.next += 1;
            this.served = paid.min(this.served + tokens);
            let served = this.served;
            this.work
                .meter
                .update(|reading| reading.text_bytes = served);
            this.work.served(served);
            let last = this.next == this.work.script.frames.len() || served == paid;
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

/// A number as the trace shows it.
pub(crate) struct Short(pub(crate) RequestNumber);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "#{:06x}", crate::plan::bits_of(self.0) & 0x00FF_FFFF)
    }
}
