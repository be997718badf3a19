//! The prices page: current and earlier prices, and what the sales would have been with another multiplier.

use std::ops::Range;

use askama::Template;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use tollgate_layers::price::{Currency, Price, Rate};

use super::{
    Answer, Visit,
    api::Failed,
    history::{Former, Numbered, former_prices, multipliers, priced_in_rubles},
    pages::{DAY_MS, DAYS_BACK_MAX, Frame, status_of, written},
    texts::english,
    views::{UsageRow, Usages},
    what_if::{PricedInterval, Reckoning, WhatIf, asked_for, beyond_reckoning, intervals},
};
use crate::{
    catalog::snapshot::Snapshot,
    config::Tariff,
    text::time::{now_ms, rfc3339},
};

/// The default number of days for which the page computes sales with another multiplier.
const DAYS_BACK: u64 = 30;
/// The maximum number of reports that the page requests from the ledger concurrently.
const REPORTS_AT_ONCE: usize = 4;
/// The maximum number of receipts that are summed up for an hour in which the multiplier changed.
const RECEIPTS_SUMMED_MAX: u64 = 2_000;

#[derive(Template)]
#[template(path = "prices.html")]
struct PricesHtml<'a> {
    page: Frame<'a>,
    days: u64,
    days_max: u64,
    now_has: String,
    then_has: String,
    /// The multiplier for ruble prices; `None` if no model is priced in rubles.
    then_has_rub: Option<String>,
    sold: Vec<WhatIf>,
    version: u64,
    since: String,
    rate: Option<String>,
    rows: Vec<PriceRow>,
    former: Vec<Former>,
    /// Whether the gateway has a configuration file, so that models have pages.
    has_file: bool,
}

struct PriceRow {
    model: String,
    rates: [(&'static str, String); 4],
    vendors: String,
}

/// Sales by model, with the multipliers at which they were made.
type SoldAt = (Vec<UsageRow>, Tariff);

impl Visit {
    /// Shows the prices page, with what the sales of the last days would have been at another multiplier.
    pub(super) async fn prices(&self) -> Result<Answer, Failed> {
        let form = &self.form;
        let snapshot = self.live.snapshot();
        let days = form.get("days").parse().ok();
        let days = days.filter(|days| (1..=DAYS_BACK_MAX).contains(days));
        let days = days.unwrap_or(DAYS_BACK);
        let now_has = snapshot.tariff();
        let requested = |field, now_has| asked_for(form.get(field), now_has);
        let usdt = requested("multiplier", now_has.sell_rate_multiplier);
        let rub = requested("rub_multiplier", now_has.sell_rub_multiplier);
        let (then, problem) = match (usdt, rub) {
            (Ok(sell_rate_multiplier), Ok(sell_rub_multiplier)) => {
                let then = Tariff {
                    sell_rate_multiplier,
                    sell_rub_multiplier,
                };
                (then, None)
            }
            (Err(refused), _) | (_, Err(refused)) => (now_has, Some(refused)),
        };
        let tariffs: Vec<Numbered> = self.api.list("/admin/v1/tariffs").await??;
        let sold = self.sold_at(days, then, now_has, &tariffs).await?;
        let version = snapshot.version();
        let has_rub = !priced_in_rubles(&tariffs).is_empty();
        let html = PricesHtml {
            page: self.frame("Models and prices", "Models and prices", problem.as_ref()),
            days,
            days_max: DAYS_BACK_MAX,
            now_has: now_has.sell_rate_multiplier.to_string(),
            then_has: then.sell_rate_multiplier.to_string(),
            then_has_rub: has_rub.then(|| then.sell_rub_multiplier.to_string()),
            sold,
            version: version.id,
            since: rfc3339(version.effective_from_ms),
            rate: snapshot.rate().map(|reading| reading.rate.to_string()),
            rows: price_rows(&snapshot),
            former: former_prices(&tariffs),
            has_file: self.configuration().await?.is_ok(),
        };
        Ok(written(status_of(problem.as_ref()), &html))
    }

    /// Returns the sales of the last days, and what they would have been with the multipliers `then`.
    async fn sold_at(
        &self,
        days: u64,
        then: Tariff,
        now_has: Tariff,
        tariffs: &[Numbered],
    ) -> Result<Vec<WhatIf>, Failed> {
        let now = now_ms();
        let today = now - now % DAY_MS;
        let time = today.saturating_sub((days - 1) * DAY_MS)..today + DAY_MS;
        let mut changes = multipliers(tariffs);
        if changes.is_empty() {
            changes.push((0, now_has));
        }
        let in_rubles = priced_in_rubles(tariffs);
        let intervals = intervals(time, &changes);
        let requested = stream::iter(intervals).map(|interval| self.sold_in(interval));
        let mut requested = requested.buffered(REPORTS_AT_ONCE);
        let mut sold = Reckoning::default();
        while let Some(parts) = requested.try_next().await? {
            for (rows, from) in &parts {
                for row in rows {
                    let model = row.model.as_deref().unwrap_or_default();
                    let currency = match in_rubles.contains(model) {
                        true => Currency::Rub,
                        false => Currency::Usdt,
                    };
                    let [from, to] = [*from, then].map(|it| it.multiplier(currency));
                    if sold.add(row, from, to).is_none() {
                        return Err(beyond_reckoning().into());
                    }
                }
            }
        }
        Ok(sold.rows())
    }

    /// Returns the sales of an interval by model, with the multipliers in force.
    async fn sold_in(&self, interval: PricedInterval) -> Result<Vec<SoldAt>, Failed> {
        let whole = self.usage_by_model(&interval.time()).await?;
        let calls: u64 = whole.iter().map(|row| row.sums.calls).sum();
        // A part of an hour can be summed only from its receipts, and there may be a million of them.
        if interval.parts().len() == 1 || calls > RECEIPTS_SUMMED_MAX {
            return Ok(vec![(whole, interval.mostly())]);
        }
        let mut sold = Vec::new();
        for (part, from) in interval.parts() {
            sold.push((self.usage_by_model(part).await?, *from));
        }
        Ok(sold)
    }

    async fn usage_by_model(&self, time: &Range<u64>) -> Result<Vec<UsageRow>, Failed> {
        let (since, until) = (rfc3339(time.start), rfc3339(time.end));
        let path = format!("/admin/v1/usage?group=model&since={since}&until={until}");
        Ok(self.api.get::<Usages>(&path).await??.rows)
    }
}

/// Returns the prices in force of each model.
fn price_rows(snapshot: &Snapshot) -> Vec<PriceRow> {
    let now = now_ms();
    let rows = snapshot.models().map(|(model, prices)| {
        let price = prices.map(|prices| prices.in_force(now));
        let shown = |rate: fn(&Price) -> Rate| {
            price.map_or_else(|| "—".to_owned(), |price| rate(price).to_string())
        };
        let vendors = model.routes.iter().map(|route| &*route.vendor.name);
        PriceRow {
            model: model.id.clone(),
            rates: [
                (english("Input"), shown(|price| price.input)),
                (english("Cached input"), shown(|price| price.cached_input)),
                (english("Output"), shown(|price| price.output)),
                (english("Cache write"), shown(|price| price.cache_write)),
            ],
            vendors: vendors.collect::<Vec<_>>().join(", "),
        }
    });
    rows.collect()
}
