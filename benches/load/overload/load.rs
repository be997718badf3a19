//! Three times the load that is served without a refusal.
//!
//! What bounds a node is `limits.in_flight_max`: here it is reached before the machine's cores are, as it
//! should be set, so that the calls of that load do not wait for each other.

use std::time::Duration;

use anyhow::ensure;

use crate::{
    child::Child,
    client::{Seen, load},
    gateway::Gateway,
    options::{Options, RoleName},
    report::{self, Bounds, millis, quantile},
};

/// Before anything counts.
const WARM_UP: Duration = Duration::from_secs(2);
/// How long each step of the search goes on.
const STEP: Duration = Duration::from_secs(2);
/// From one step to the next.
const STEP_PERCENT: u32 = 5;
const STEPS_MAX: u32 = 60;

/// A refusal is there after this.
const REFUSAL_MAX: Duration = Duration::from_millis(10);
/// What the overload may cost in memory.
const GROWTH_KIB_MAX: u64 = 64 * 1024;
/// A client that is further behind its pace measures itself.
const BEHIND_MAX: Duration = Duration::from_millis(100);

pub(crate) async fn run(options: &Options, bounds: &mut Bounds) -> anyhow::Result<()> {
    let vendor_ms = options.vendor_ms.max(1);
    let time = vendor_ms.to_string();
    let vendor = Child::start(RoleName::Vendor, &[("--vendor-ms", time.as_str())])?;
    // All calls come from one address; the catalog's and the keys' rates are not in question.
    let limits = format!(
        "in_flight_max = {}\nconnections_max = 3000\nconnections_per_address_max = 3000",
        options.in_flight
    );
    let gateway = Gateway::start(vendor.address()?, &limits).await?;
    // By Little's law, if nothing else took time.
    let most = u64::from(options.in_flight) * 1000 / vendor_ms;
    let most = u32::try_from(most).unwrap_or(u32::MAX).max(10);
    println!(
        "load: in_flight_max {}, a vendor that takes {vendor_ms} ms: {most} calls a second at most\n",
        options.in_flight
    );

    report::head();
    load(&gateway, most / 10, WARM_UP).await?;
    let unloaded = load(&gateway, most / 10, options.length()).await?;
    report::line("unloaded", &unloaded);
    ensure!(
        unloaded.refused.is_empty() && unloaded.others.is_empty(),
        "not even {} calls a second are served: {:?}",
        most / 10,
        unloaded.others.first()
    );
    let p99_max = 2 * quantile(&unloaded.served, 0.99);

    let mut sustained = None;
    let mut rate = most / 2;
    for _ in 0..STEPS_MAX {
        let step = load(&gateway, rate, STEP).await?;
        if !is_sustained(&step, p99_max) {
            break;
        }
        report::line("search", &step);
        sustained = Some(rate);
        rate += (rate * STEP_PERCENT / 100).max(1);
    }
    let Some(sustained) = sustained else {
        anyhow::bail!("half of the most is too much already: choose a smaller --in-flight");
    };
    gateway.settled().await?;

    let over = load(&gateway, 3 * sustained, options.length()).await?;
    report::line("three times", &over);
    gateway.settled().await?;
    let after = load(&gateway, most / 10, options.length()).await?;
    report::line("afterwards", &after);
    gateway.settled().await?;
    println!();

    let p99 = |times: &[Duration]| quantile(times, 0.99);
    bounds.at_most(
        "served p99, three times the load: twice the unloaded",
        millis(p99(&over.served)),
        millis(p99_max),
    );
    bounds.at_most(
        "refusals p99, from the call to the 503",
        millis(p99(&over.refused)),
        millis(REFUSAL_MAX),
    );
    bounds.at_most(
        "neither served nor refused with retry-after",
        over.others.len() as f64,
        0.0,
    );
    // Refusing takes little from serving.
    bounds.at_least(
        "served a second, three times the load",
        over.each_second(over.served.len()),
        f64::from(sustained) * 0.8,
    );
    bounds.at_least(
        "refused a second, three times the load",
        over.each_second(over.refused.len()),
        f64::from(sustained),
    );
    bounds.at_most(
        "memory above the unloaded, KiB",
        over.rss_kib.saturating_sub(unloaded.rss_kib) as f64,
        GROWTH_KIB_MAX as f64,
    );
    bounds.at_most(
        "afterwards: not served",
        (after.refused.len() + after.others.len()) as f64,
        0.0,
    );
    bounds.at_most(
        "afterwards: served p99",
        millis(p99(&after.served)),
        millis(p99_max),
    );
    bounds.at_most(
        "the client, ms behind its pace",
        millis(over.behind),
        millis(BEHIND_MAX),
    );
    if let Some(other) = over.others.first() {
        println!("one of the others: {other}");
    }
    Ok(())
}

/// All but one in a thousand are served, and soon enough.
fn is_sustained(seen: &Seen, p99_max: Duration) -> bool {
    let missed = seen.refused.len() + seen.others.len();
    missed * 1000 <= seen.served.len()
        && quantile(&seen.served, 0.99) <= p99_max
        && seen.behind <= BEHIND_MAX
}
