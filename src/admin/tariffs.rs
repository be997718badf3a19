//! Endpoint for tariff versions and when they came into force.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;

use super::{
    Admin, Answer, ok,
    refusal::{OrRefuse as _, Refusal},
    route::{AdminRequest, Route, routes},
};
use crate::{
    catalog::tariffs::{self, Tariff},
    text::time::rfc3339,
};

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/tariffs" => list_tariffs;
};

/// The maximum number of tariff versions in a response, newest first.
const SHOWN_MAX: usize = 50;

#[derive(Serialize)]
struct TariffAnswer<'a> {
    version: u64,
    since: String,
    #[serde(flatten)]
    tariff: &'a Tariff,
}

impl Admin {
    async fn list_tariffs(self: Arc<Self>, _: AdminRequest) -> Result<Answer, Refusal> {
        let stored = tariffs::stored(&self.store).await.or_refuse("tariffs")?;
        let tariffs = stored.iter().take(SHOWN_MAX);
        let tariffs = tariffs.map(|(version, tariff)| TariffAnswer {
            version: *version,
            since: rfc3339(tariff.since_ms),
            tariff,
        });
        let tariffs: Vec<_> = tariffs.collect();
        ok(&BTreeMap::from([("tariffs", tariffs)]))
    }
}
