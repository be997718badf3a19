//! Compares the vendor's log with the ledger. Finds charges that are lost, repeated or wrong.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use serde_json::Value;
use tokio::time::Instant;
use tollgate_layers::money::MicroRub;

use crate::vendor_log::{Call, Served, id_of};

/// The maximum loss that a fault may cause, as the documentation states it and the case asserts it.
#[derive(Clone, Debug)]
pub struct Bound {
    /// The bound in words, for the table.
    pub stated: String,
    /// A call may be lost if its usage was reported at most this long before the death of its gateway.
    pub ends: Duration,
    /// The text of a call in flight may stay uncharged if it is at most this old when the gateway dies.
    pub text: Duration,
    /// The number of calls that may be lost, whenever they ended.
    pub lost_max: usize,
}

/// The maximum age of a settlement that a kill may lose: settlements wait for this long to share a commit.
const ENDS: Duration = Duration::from_millis(10);
/// The maximum age of output that a kill may leave uncharged: checkpoints of calls in flight are recorded once a
/// second.
const TEXT: Duration = Duration::from_secs(1);
/// The delay with which a process may run if all processes of a case share two slow cores. A debug build was measured
/// to record settlements up to 120 ms late while 24 callers kept both cores busy.
pub(crate) const BUSY: Duration = Duration::from_millis(160);
const BUSY_TIMER: Duration = Duration::from_millis(500);

impl Bound {
    /// Returns the bound if no fault may lose a charge: everything that the vendor has reported is charged.
    pub fn nothing_lost() -> Self {
        Self {
            stated: "nothing".to_owned(),
            ends: Duration::ZERO,
            text: Duration::ZERO,
            lost_max: 0,
        }
    }

    /// Returns the bound if a gateway is killed: calls that ended in the gateway's last 10 ms may be lost, and the text
    /// of calls in flight since their last checkpoint may stay uncharged.
    pub fn killed() -> Self {
        Self {
            stated: "ends of the last 10 ms, text of the last 1 s".to_owned(),
            ends: ENDS + BUSY,
            text: TEXT + BUSY_TIMER,
            lost_max: 0,
        }
    }

    /// Returns the bound if a gateway is killed and all calls that had ended before the kill must be charged.
    pub fn running_text() -> Self {
        Self {
            stated: "text of the last 1 s".to_owned(),
            text: TEXT + BUSY_TIMER,
            ..Self::nothing_lost()
        }
    }

    /// Returns whether the bound contains a time.
    pub fn is_of_time(&self) -> bool {
        self.ends + self.text > Duration::ZERO
    }

    /// Returns the bound for a machine on which processes were measured to run this late. The delay counts twice,
    /// because a process that waits for the disk first waits for earlier work, and then for its own.
    pub fn on_a_machine(mut self, late: Duration) -> Self {
        let more = (2 * late).saturating_sub(BUSY);
        for bound in [&mut self.ends, &mut self.text] {
            if *bound > Duration::ZERO {
                *bound += more;
            }
        }
        self
    }

    /// Returns the bound that at most `max` calls may be lost, with the reason.
    pub fn lost(max: usize, stated: &str) -> Self {
        Self {
            stated: stated.to_owned(),
            lost_max: max,
            ..Self::nothing_lost()
        }
    }
}

/// The charge that a call must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// Everything that the vendor has reported is charged.
    Full,
    /// The input is charged, and this number of output tokens.
    Tokens(u64),
    Nothing,
    /// Any amount may be charged, up to the cost of everything that the vendor has reported.
    Any,
}

/// A line of the ledger's export that is about a call.
#[derive(Clone, Debug)]
pub struct Line {
    pub number: String,
    pub account: String,
    pub booked: String,
    pub end: String,
    pub model: String,
    /// Whether the gateway estimated the usage because the vendor had not reported it.
    pub estimated: bool,
    pub input: u64,
    pub output: u64,
    /// The cost of the call, in micro-rubles.
    pub cost: i64,
    pub charged: i64,
    pub loss: i64,
}

impl Line {
    pub fn read(line: &Value) -> Self {
        let text = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
        Self {
            number: text("number"),
            account: text("account"),
            booked: text("booked"),
            end: text("end"),
            model: text("model"),
            estimated: line["estimated"] == true,
            input: line["usage"]["input"].as_u64().unwrap_or_default(),
            output: line["usage"]["output"].as_u64().unwrap_or_default(),
            cost: micro(&line["cost_rub"]),
            charged: micro(&line["charged_rub"]),
            loss: micro(&line["loss_rub"]),
        }
    }

    /// Replaces the estimated input by the real input of the call, and changes the cost accordingly. Does nothing if
    /// the cost is not that of the estimate.
    fn set_input(&mut self, call: &Call) {
        let (output, rate) = (self.output, call.cost_of_input(1));
        let cost = call.cost(output) - call.cost_of_input(call.input());
        if self.cost != cost + call.cost_of_input(self.input) {
            return;
        }
        let more = (call.input().cast_signed() - self.input.cast_signed()) * rate;
        self.input = call.input();
        self.cost += more;
        self.charged += more;
    }

    /// Returns whether the line moved money. A dispute moves none; it is only recorded.
    const fn moved(&self) -> bool {
        self.charged + self.loss > 0
    }
}

/// Converts rubles to micro-rubles.
pub fn micro(rubles: &Value) -> i64 {
    let text = rubles
        .as_str()
        .unwrap_or_else(|| panic!("no amount: {rubles}"));
    text.parse::<MicroRub>().unwrap().micro()
}

/// The data that is compared.
#[derive(Default)]
pub struct Facts {
    pub served: Vec<Served>,
    pub lines: Vec<Line>,
    /// The times at which each gateway died.
    pub deaths: Vec<Vec<Instant>>,
    /// The times at which a server that every gateway needs died.
    pub faults: Vec<Instant>,
    pub expected: BTreeMap<u64, Charge>,
}

/// The result of the comparison: how many charges are lost or repeated, and other problems.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// The number of calls that reached a vendor.
    pub calls: usize,
    /// Calls whose usage the vendor has reported, but which are neither charged nor recorded as a loss.
    pub lost: usize,
    /// The number of ledger lines of calls in addition to the first line of each call.
    pub double: usize,
    /// How long before the death of its gateway the earliest lost call ended.
    pub oldest_end: Option<Duration>,
    /// How old the oldest uncharged text was when its gateway died.
    pub oldest_text: Option<Duration>,
    pub problems: Vec<String>,
}

/// Compares what was served in each call with what the ledger has charged for it.
pub fn compare(facts: &Facts, bound: &Bound) -> Tally {
    let mut tally = Tally::default();
    let mut by_id: BTreeMap<u64, Vec<Line>> = BTreeMap::new();
    let (estimated, counted): (Vec<_>, Vec<_>) =
        facts.lines.iter().cloned().partition(|line| line.estimated);
    for line in counted {
        let known = |id: &u64| facts.served.iter().any(|served| served.call.id == *id);
        match id_of(line.input).filter(known) {
            Some(id) => by_id.entry(id).or_default().push(line),
            None => tally.problems.push(format!("booked, of no call: {line:?}")),
        }
    }
    for mut line in estimated {
        let calls = facts.served.iter().map(|served| &served.call);
        let fits = calls.filter(|call| call.model() == line.model && call.may_be(line.input));
        // If a call already has another line with the request number of this line, this line charges the call a second
        // time. If the call's lines have other numbers, this line belongs to another call.
        let nearest = fits.min_by_key(|call| {
            let lines = by_id.get(&call.id).map_or(&[][..], Vec::as_slice);
            let is_same = lines.iter().any(|other| other.number == line.number);
            (
                !is_same,
                !lines.is_empty(),
                call.input().abs_diff(line.input),
            )
        });
        match nearest {
            Some(call) => {
                line.set_input(call);
                by_id.entry(call.id).or_default().push(line);
            }
            None => tally.problems.push(format!("booked, of no call: {line:?}")),
        }
    }
    let mut beyond_bound = Vec::new();
    for served in &facts.served {
        let lines = by_id.remove(&served.call.id).unwrap_or_default();
        let lines: Vec<&Line> = lines.iter().collect();
        one(facts, bound, served, &lines, &mut tally, &mut beyond_bound);
    }
    if beyond_bound.len() > bound.lost_max {
        tally.problems.push(format!(
            "lost, of which {} may be: {}",
            bound.lost_max,
            beyond_bound.join("; ")
        ));
    }
    tally
}

fn one(
    facts: &Facts,
    bound: &Bound,
    served: &Served,
    lines: &[&Line],
    tally: &mut Tally,
    beyond_bound: &mut Vec<String>,
) {
    let call = &served.call;
    let name = format!(
        "call {} ({:?}{})",
        call.id,
        call.format,
        if call.stream { "" } else { ", plain" }
    );
    let reported = served.reported.is_some();
    tally.calls += usize::from(served.requested > 0);

    let moved: Vec<&&Line> = lines.iter().filter(|line| line.moved()).collect();
    if moved.len() > 1 {
        tally.double += moved.len() - 1;
        tally
            .problems
            .push(format!("{name} is booked {} times: {moved:?}", moved.len()));
    }
    for line in &moved {
        if line.charged + line.loss != line.cost {
            tally.problems.push(format!(
                "{name}: charge and loss are not the cost: {line:?}"
            ));
        }
    }
    let booked = moved.first();
    let cost = booked.map_or(0, |line| line.cost);
    let death = facts.deaths.get(call.gateway).into_iter().flatten();
    let death = death
        .chain(&facts.faults)
        .filter(|at| **at >= served.sent)
        .min();
    // If the usage was reported after the gateway had died, the age of the usage is zero.
    let age = |at: Instant| death.map(|death| death.saturating_duration_since(at));
    let ended_before = served.reported.and_then(age);
    let excused = bound.ends > Duration::ZERO && ended_before.is_some_and(|age| age <= bound.ends);

    let expected = facts.expected.get(&call.id).copied();
    if reported && booked.is_none() {
        tally.lost += 1;
        tally.oldest_end = tally.oldest_end.max(ended_before);
        if !excused {
            beyond_bound.push(match ended_before {
                Some(age) => format!("{name}, {age:?} before the end of its gateway"),
                None => name.clone(),
            });
        }
    }
    let want = match expected {
        Some(Charge::Full) => Some(call.full_cost()),
        Some(Charge::Tokens(output)) => Some(call.cost(output)),
        Some(Charge::Nothing) => Some(0),
        Some(Charge::Any) | None => None,
    };
    if let Some(want) = want {
        if cost != want {
            tally.problems.push(format!(
                "{name} cost {cost} and should cost {want} micro-rubles: {lines:?}"
            ));
        }
        return;
    }

    let most = match served.requested {
        // The client disconnected while its request was being sent, so the vendor may or may not have received the
        // input.
        0 if lines.iter().all(|line| line.end == "client_left") => call.cost(0),
        0 => 0,
        _ if reported => call.full_cost(),
        // A Messages stream begins with the vendor's estimate of one output token, which may be charged.
        _ => call.cost((served.tokens.len() as u64).max(1)),
    };
    if cost > most {
        tally.problems.push(format!(
            "{name} cost {cost}, and {most} micro-rubles' worth was served: {lines:?}"
        ));
    }
    if expected.is_some() {
        return;
    }
    if reported && booked.is_some() && cost < call.full_cost() && !excused {
        tally.problems.push(format!(
            "{name} cost {cost} instead of {} micro-rubles, {ended_before:?} before the end of its gateway: {lines:?}",
            call.full_cost()
        ));
    }
    // If the gateway has settled the call itself, it has charged all the output that it had received.
    let left_running = booked.is_none_or(|line| line.end == "gateway_stopped");
    if bound.text > Duration::ZERO && !reported && left_running {
        let paid = booked.map_or(0, |line| line.output);
        let unpaid = served.tokens.get(usize::try_from(paid).unwrap());
        let age = unpaid.copied().and_then(age);
        tally.oldest_text = tally.oldest_text.max(age);
        if age.is_some_and(|age| age > bound.text) {
            tally.problems.push(format!(
                "{name}: {paid} of {} tokens are paid, and the next was {age:?} old when its gateway died",
                served.tokens.len()
            ));
        }
    }
}

/// The result of a case, which is shown as one line of the table.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    pub runs: usize,
    pub calls: usize,
    pub lost: usize,
    pub double: usize,
    /// How many times a balance, or the free part of a balance, was negative.
    pub negative: usize,
    /// The bound that the case has stated.
    pub bound: String,
    /// Measured values and other notes, for the table.
    pub notes: Vec<String>,
    pub problems: Vec<String>,
    /// The last output of the processes, if there are problems.
    pub logs: String,
}

impl Verdict {
    /// Creates a verdict from a tally and its bound.
    pub fn new(tally: Tally, bound: &Bound) -> Self {
        let mut notes = Vec::new();
        if let Some(age) = tally.oldest_end {
            notes.push(format!("lost ended {} ms before", tenths(age)));
        }
        if let Some(age) = tally.oldest_text {
            notes.push(format!("text uncharged {} ms", age.as_millis()));
        }
        Self {
            runs: 1,
            calls: tally.calls,
            lost: tally.lost,
            double: tally.double,
            negative: 0,
            bound: bound.stated.clone(),
            notes,
            problems: tally.problems,
            logs: String::new(),
        }
    }

    /// Joins two verdicts into one line of the table.
    pub fn and(mut self, other: Self) -> Self {
        self.runs += other.runs;
        self.calls += other.calls;
        self.lost += other.lost;
        self.double += other.double;
        self.negative += other.negative;
        if self.bound.is_empty() {
            self.bound = other.bound;
        }
        self.notes.extend(other.notes);
        self.problems.extend(other.problems);
        self.logs.push_str(&other.logs);
        self
    }

    /// Returns the problems in words. The text is empty if there are none.
    pub fn complaint(&self) -> String {
        let mut text = String::new();
        for problem in self.problems.iter().take(12) {
            let _ = writeln!(text, "  - {problem}");
        }
        if self.problems.len() > 12 {
            let _ = writeln!(text, "  - and {} more", self.problems.len() - 12);
        }
        if !text.is_empty() {
            text.push_str(&self.logs);
        }
        text
    }
}

fn tenths(time: Duration) -> String {
    let tenths = time.as_micros() / 100;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// Tests the verdict itself: it must find every fault in invented ledgers.
pub async fn proves_itself() -> Verdict {
    use tollgate_layers::call::Format;

    let log = crate::vendor_log::VendorLog::start().await;
    let call = log.call(0, Format::Chat);
    log.register(&call);
    let mut served = log.of(&call).unwrap();
    served.requested = 1;
    let now = Instant::now();
    let dies = now + Duration::from_secs(10);
    let line = |output: u64| Line {
        number: "n".to_owned(),
        account: "acme".to_owned(),
        booked: "held".to_owned(),
        end: "gateway_stopped".to_owned(),
        model: call.model().to_owned(),
        estimated: true,
        input: call.input(),
        output,
        cost: call.cost(output),
        charged: call.cost(output),
        loss: 0,
    };
    let ago = |ms: u64| dies - Duration::from_millis(ms);
    let (full, part) = (vec![line(10)], vec![line(4)]);
    let torn = vec![Line {
        loss: 1,
        ..line(10)
    }];
    let stray = vec![Line {
        input: 1,
        ..line(10)
    }];
    let (none, killed) = (Bound::nothing_lost(), Bound::killed());
    let expect = Some(Charge::Tokens(3));
    let (twice, nothing) = ([full.clone(), full.clone()].concat(), Vec::new());
    // The columns are: the name, the age of the usage in ms when the gateway dies, the age in ms of each of the 10 tokens
    // (`None` if it was not sent), the ledger's lines, the bound, the expected charge, and whether the verdict must be
    // without a fault.
    for (name, reported, tokens, lines, bound, expected, right) in [
        ("whole", Some(9), Some(9), &full, &none, None, true),
        ("lost", Some(9), Some(9), &nothing, &none, None, false),
        (
            "lost just so",
            Some(9),
            Some(9),
            &nothing,
            &killed,
            None,
            true,
        ),
        (
            "lost too early",
            Some(900),
            Some(900),
            &nothing,
            &killed,
            None,
            false,
        ),
        ("twice", Some(9), Some(9), &twice, &killed, None, false),
        (
            "too little",
            Some(900),
            Some(900),
            &part,
            &killed,
            None,
            false,
        ),
        ("too much", None, None, &full, &killed, None, false),
        ("torn", Some(9), Some(9), &torn, &none, None, false),
        ("of no call", None, None, &stray, &none, None, false),
        ("late text", None, Some(3000), &part, &killed, None, false),
        ("last text", None, Some(300), &part, &killed, None, true),
        (
            "not as expected",
            None,
            Some(300),
            &part,
            &killed,
            expect,
            false,
        ),
    ] {
        served.reported = reported.map(ago);
        served.tokens = tokens.map_or(Vec::new(), |age| vec![ago(age); 10]);
        let facts = Facts {
            served: vec![served.clone()],
            lines: lines.clone(),
            deaths: vec![vec![dies]],
            faults: Vec::new(),
            expected: expected
                .map(|charge| (call.id, charge))
                .into_iter()
                .collect(),
        };
        let problems = compare(&facts, bound).problems;
        assert_eq!(problems.is_empty(), right, "{name}: {problems:?}");
    }
    Verdict {
        runs: 1,
        bound: none.stated,
        ..Verdict::default()
    }
}
