//! Simulates the disks of the gateways' outboxes. A line of an outbox is first in the memory of the process, then in
//! the cache of the system, then on the disk. A crash of the process keeps the lines in the cache; a power cut keeps
//! only the lines on the disk. A line is either complete or lost.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::sleep;
use tollgate_layers::{
    error::BoxError,
    facts::RequestNumber,
    reserve::outbox::{CallStep, Log, Pending, log::pending},
};

use crate::{
    plan::{Ms, bits_of},
    random::Random,
    vendor::Short,
    world::{Sim, lock},
};

/// The disk of the machine on which one gateway runs.
#[derive(Debug, Default)]
pub(crate) struct Disk(Mutex<Platter>);

#[derive(Debug, Default)]
struct Platter {
    /// The number of the process that may write now. Earlier processes are dead, and their writes are ignored.
    process: u32,
    lines: Vec<Stored>,
    /// The number of lines on the disk. These lines survive a power cut.
    synced: usize,
    /// The outbox has allowed the disk to delete calls that were acknowledged before this time, in Unix milliseconds.
    forgotten_ms: u64,
    syncs: u64,
}

#[derive(Debug)]
struct Stored {
    line: CallStep,
    /// The time at which the line reaches the cache of the system.
    written: Ms,
}

impl Disk {
    /// Kills the process at `now`. The next process reads the lines that remain.
    pub(crate) fn crash(&self, now: Ms, power: bool, fate: &mut Random) {
        let mut platter = lock(&self.0);
        let written = platter
            .lines
            .iter()
            .take_while(|stored| stored.written <= now)
            .count();
        let stored = if power {
            let synced = platter.synced.min(written);
            synced + fate.index(written - synced + 1)
        } else {
            written
        };
        platter.lines.truncate(stored);
        platter.synced = if power {
            stored
        } else {
            platter.synced.min(stored)
        };
        platter.process += 1;
    }

    /// Returns the number of the process that may write now.
    pub(crate) fn process(&self) -> u32 {
        lock(&self.0).process
    }
}

/// The log of an outbox, which is on the disk of the gateway's machine.
pub(crate) struct SimLog {
    pub(crate) sim: Arc<Sim>,
    pub(crate) gateway: usize,
    pub(crate) process: u32,
}

impl SimLog {
    fn disk(&self) -> &Disk {
        &self.sim.disks[self.gateway]
    }

    /// Returns the time until a line reaches the cache of the system.
    fn delay(&self, line: &CallStep) -> Ms {
        let (slowest, kind) = match line {
            CallStep::Intent { .. } => (self.sim.plan.disk.write_ms_max, 0),
            CallStep::Checkpoint(_) => (self.sim.plan.disk.write_ms_max, 1),
            CallStep::Settle(..) | CallStep::Release { .. } => {
                (self.sim.plan.disk.ending_ms_max, 2)
            }
            CallStep::Done { .. } => (self.sim.plan.disk.write_ms_max, 3),
        };
        let number = bits_of(number_of(line));
        Random::of(self.sim.plan.seed, &[4, kind, number]).between(0, slowest)
    }
}

impl Log for SimLog {
    fn append(&self, line: CallStep) {
        if self.fault().is_some() {
            return;
        }
        let written = self.sim.now() + self.delay(&line);
        self.sim.note(|| {
            let (gateway, number) = (self.gateway, Short(number_of(&line)));
            let word = match &line {
                CallStep::Intent { .. } => "intent".to_owned(),
                CallStep::Checkpoint(settlement) => format!("checkpoint {}", settlement.cost),
                CallStep::Settle(settlement, _) => format!("settle {}", settlement.cost),
                CallStep::Release { .. } => "release".to_owned(),
                CallStep::Done { .. } => "done".to_owned(),
            };
            format!("disk{gateway}    {number} {word}")
        });
        let mut platter = lock(&self.disk().0);
        if platter.process != self.process {
            return;
        }
        // A line cannot reach the cache of the system before an earlier line does.
        let before = platter.lines.last().map_or(0, |stored| stored.written);
        platter.lines.push(Stored {
            line,
            written: written.max(before),
        });
    }

    async fn sync(&self) -> Result<(), BoxError> {
        if let Some(fault) = self.fault() {
            return Err(fault.into());
        }
        let (lines, last, times) = {
            let mut platter = lock(&self.disk().0);
            platter.syncs += 1;
            let last = platter.lines.last().map_or(0, |stored| stored.written);
            (platter.lines.len(), last, platter.syncs)
        };
        let slowest = self.sim.plan.disk.sync_ms_max;
        let fate = &mut Random::of(self.sim.plan.seed, &[5, self.gateway as u64, times]);
        let wait = last.saturating_sub(self.sim.now()) + fate.between(1, slowest);
        sleep(Duration::from_millis(wait)).await;
        let mut platter = lock(&self.disk().0);
        if platter.process == self.process {
            platter.synced = platter.synced.max(lines);
        }
        Ok(())
    }

    async fn load(&self) -> Result<Vec<Pending>, BoxError> {
        let platter = lock(&self.disk().0);
        let forgotten = platter.forgotten_ms;
        let done_long_ago = platter
            .lines
            .iter()
            .filter_map(|stored| match &stored.line {
                CallStep::Done { number, at_ms } if *at_ms <= forgotten => Some(*number),
                _ => None,
            });
        let gone: Vec<RequestNumber> = done_long_ago.collect();
        let lines = platter
            .lines
            .iter()
            .map(|stored| &stored.line)
            .filter(|line| !gone.contains(&number_of(line)))
            .cloned();
        Ok(pending(lines))
    }

    fn fault(&self) -> Option<String> {
        self.sim
            .disk_is_broken(self.gateway)
            .then(|| "no space left on device".into())
    }

    fn forget(&self, until_ms: u64) {
        let mut platter = lock(&self.disk().0);
        if platter.process == self.process {
            platter.forgotten_ms = platter.forgotten_ms.max(until_ms);
        }
    }
}

fn number_of(line: &CallStep) -> RequestNumber {
    match line {
        CallStep::Intent { number, .. }
        | CallStep::Release { number, .. }
        | CallStep::Done { number, .. } => *number,
        CallStep::Checkpoint(settlement) | CallStep::Settle(settlement, _) => settlement.number,
    }
}
