//! The end of a fault case: a drain, an audit, and a comparison of the vendor's log with the ledger. Also checks the
//! balances during the case.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{Method, StatusCode};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    process::GatewayProcess,
    vendor_log::Call,
    verdict::{BUSY, Facts, Line, Verdict, compare, micro},
    world::{AdminClient, World, ask_admin},
};

/// Metrics of a gateway's unfinished work: the number of calls that hold money, and the number of calls in its outbox.
const LEFT: [&str; 2] = ["tollgate_holds_open ", "tollgate_outbox_rows "];

impl World {
    /// Ends all faults, drains the gateways, runs the audits, and compares the vendor's log with the ledger.
    pub async fn verdict(mut self) -> Verdict {
        self.heal().await;
        for gateway in 0..self.gateways.len() {
            self.ready(gateway, self.plan.patience).await;
        }
        let late = self.machine.lock().unwrap().take();
        let late = late.map_or(Duration::ZERO, |machine| machine.late());
        let bound = self.bound.lock().unwrap().clone().on_a_machine(late);
        if late > BUSY {
            self.note(format!("this machine was {} ms late", late.as_millis()));
        }
        let mut problems = self.drained().await;
        let mut tally = compare(&self.facts().await, &bound);
        // A call whose hold has expired is settled late: its charge may arrive although nothing is held any more.
        let patience = Instant::now() + Duration::from_secs(3);
        while (tally.lost > 0 || !tally.problems.is_empty()) && Instant::now() < patience {
            sleep(Duration::from_millis(100)).await;
            tally = compare(&self.facts().await, &bound);
        }
        problems.append(&mut tally.problems);
        problems.extend(self.audited().await);
        problems.extend(self.balanced().await);

        let mut verdict = Verdict::new(tally, &bound);
        verdict.runs = self.rounds.load(Ordering::SeqCst).max(1);
        verdict.negative = self.negative.load(Ordering::SeqCst);
        if verdict.negative > 0 {
            problems.push("a balance was seen below zero".to_owned());
        }
        verdict.notes.append(&mut self.notes.lock().unwrap());
        if !problems.is_empty() {
            verdict.logs = self.logs();
        }
        verdict.problems = problems;
        self.judged = true;
        verdict
    }

    /// Waits until nothing is held and no gateway has unacknowledged work. Without the second condition, a gateway
    /// might still repeat a charge because the ledger's response to it was late or lost.
    pub async fn settled(&self) {
        self.nothing_is_held().await;
        let until = Instant::now() + self.plan.patience;
        for gateway in 0..self.gateways.len() {
            while let Some(left) = self.left_to_tell(gateway).await {
                assert!(Instant::now() < until, "gateway {gateway}: {left}");
                sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Waits until the ledger holds no money.
    pub async fn nothing_is_held(&self) {
        let held = self.drained().await;
        assert!(held.is_empty(), "{held:?}");
    }

    /// Returns a description of a gateway's unacknowledged work, or `None` if it has none. If the gateway does not
    /// report its work, returns the reason.
    async fn left_to_tell(&self, gateway: usize) -> Option<String> {
        let Some(address) = self.gateways[gateway].admin_address() else {
            return Some("it does not run".to_owned());
        };
        let requested = ask_admin(&self.admin, address, Method::GET, "/metrics", None).await;
        let text = match &requested {
            Ok((StatusCode::OK, body)) => String::from_utf8_lossy(body),
            other => return Some(format!("{other:?}")),
        };
        let left: Vec<&str> = text
            .lines()
            .filter(|line| LEFT.iter().any(|name| line.starts_with(name)))
            .collect();
        let none = left.len() == LEFT.len() && left.iter().all(|line| line.ends_with(" 0"));
        (!none).then(|| left.join(", "))
    }

    /// Waits until the ledger has a line about a call. Returns this line.
    pub async fn line_of(&self, call: &Call) -> Line {
        let until = Instant::now() + self.plan.patience;
        loop {
            let facts = self.facts().await;
            let line = facts.lines.iter().find(|line| line.input == call.input());
            if let Some(line) = line {
                return line.clone();
            }
            assert!(Instant::now() < until, "nothing is booked for {call:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until no money is held. Returns the holds that are left when the time limit has passed.
    async fn drained(&self) -> Vec<String> {
        let until = Instant::now() + self.plan.patience;
        loop {
            let held: Vec<String> = match self.accounts(0).await {
                Ok(accounts) => accounts
                    .iter()
                    .filter(|account| micro(&account["held_rub"]) != 0)
                    .map(|account| format!("still held: {account}"))
                    .collect(),
                Err(error) => vec![error],
            };
            if held.is_empty() || Instant::now() > until {
                return held;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn facts(&self) -> Facts {
        let lines = self.exported().await;
        let calls = lines.iter().filter(|line| line["kind"] == "call");
        Facts {
            served: self.vendor.all(),
            lines: calls.map(Line::read).collect(),
            deaths: self.gateways.iter().map(|it| it.deaths()).collect(),
            faults: self.faults.lock().unwrap().clone(),
            expected: self.expected.lock().unwrap().clone(),
        }
    }

    /// Returns all lines of the ledger's export.
    pub async fn exported(&self) -> Vec<Value> {
        let until = Instant::now() + self.plan.patience;
        loop {
            let problem = match self.export().await {
                Ok(lines) if lines.last().is_some_and(|line| line["kind"] == "end") => {
                    return lines;
                }
                Ok(lines) => format!("it has no end: {:?}", lines.last()),
                Err(error) => error,
            };
            // Immediately after a restart of the ledger, an export may be cut off, so it is repeated.
            assert!(Instant::now() < until, "export: {problem}");
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn export(&self) -> Result<Vec<Value>, String> {
        let address = self.gateways[0].admin_address().ok_or("it does not run")?;
        let path = "/admin/v1/export";
        let (status, body) = ask_admin(&self.admin, address, Method::GET, path, None).await?;
        if status != StatusCode::OK {
            return Err(format!("{status} {body:?}"));
        }
        let lines = body.split(|byte| *byte == b'\n');
        lines
            .filter(|line| !line.trim_ascii().is_empty())
            .map(|line| serde_json::from_slice(line).map_err(|error| error.to_string()))
            .collect()
    }

    /// Returns the breaches that audits by the gateways find.
    async fn audited(&self) -> Vec<String> {
        let mut breaches = Vec::new();
        for gateway in 0..self.gateways.len() {
            let audit = self
                .admin(gateway, Method::POST, "/admin/v1/audit", None)
                .await;
            match audit {
                Ok((StatusCode::OK, audit)) if audit["breaches"].is_array() => {
                    let found = audit["breaches"].as_array().into_iter().flatten();
                    breaches.extend(found.map(|breach| format!("audit: {breach}")));
                }
                other => breaches.push(format!("audit: {other:?}")),
            }
        }
        breaches
    }

    /// Returns the accounts whose balance is not equal to their payments minus their charges.
    async fn balanced(&self) -> Vec<String> {
        let mut sums: BTreeMap<String, (i64, i64)> = BTreeMap::new();
        for line in self.exported().await {
            let account = line["account"].as_str().unwrap_or_default().to_owned();
            let (balance, loss) = sums.entry(account).or_default();
            if line["kind"] == "entry" {
                *balance += micro(&line["amount_rub"]);
            } else if line["kind"] == "call" {
                *balance -= micro(&line["charged_rub"]);
                *loss += micro(&line["loss_rub"]);
            }
        }
        let accounts = match self.accounts(0).await {
            Ok(accounts) => accounts,
            Err(error) => return vec![error],
        };
        let mut problems = Vec::new();
        for account in accounts {
            let id = account["id"].as_str().unwrap_or_default();
            let of_lines = sums.get(id).copied().unwrap_or_default();
            let of_account = (micro(&account["balance_rub"]), micro(&account["loss_rub"]));
            if of_lines != of_account {
                problems.push(format!(
                    "account {id}: (balance, loss) is {of_account:?} and its lines say {of_lines:?}"
                ));
            }
        }
        problems
    }
}

/// Counts balances below zero while at least one gateway answers.
pub(crate) async fn watch(
    gateways: Vec<Arc<GatewayProcess>>,
    negative: Arc<AtomicUsize>,
    admin: AdminClient,
) {
    loop {
        for gateway in &gateways {
            let Some(address) = gateway.admin_address() else {
                continue;
            };
            let requested = ask_admin(&admin, address, Method::GET, "/admin/v1/accounts", None);
            let Ok(Ok((StatusCode::OK, body))) = timeout(Duration::from_secs(1), requested).await
            else {
                continue;
            };
            let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
            for account in answer["accounts"].as_array().into_iter().flatten() {
                let below = |field: &str| {
                    let text = account[field].as_str();
                    text.is_some_and(|text| text.starts_with('-'))
                };
                let found = ["balance_rub", "free_rub", "held_rub"].map(below);
                let count = found.iter().filter(|below| **below).count();
                negative.fetch_add(count, Ordering::SeqCst);
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
}
