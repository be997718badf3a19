use std::fmt::Write as _;

use super::*;
use crate::catalog::documents::ConnectDocuments;

use tollgate_layers::price::Price;

const CONFIG: &str = r#"
        base_url = "https://api.example/v1"
        [rate]
        max_age_seconds = 600
        [[rate.source]]
        fixed = "90.50"
        [tariff]
        sell_rate_multiplier = "1.150"
        [[vendor]]
        name = "v"
        format = "chat"
        url = "http://127.0.0.1:9/v1"
        key = "${KEY}"
        [[model]]
        id = "z-first"
        family = "Z"
        usdt_mtok = { input = "0.25", cached_input = "0.025", output = "2.00", cache_write = "0.25" }
        output_tokens_max = 128000
        routes = [ { vendor = "v", model = "m-1" } ]
        [[model]]
        id = "a-second"
        family = "A"
        usdt_mtok = { input = "0.000000001", cached_input = "1", output = "1", cache_write = "1" }
        output_tokens_max = 100
        routes = [ { vendor = "v" } ]
    "#;

/// Renderers that write only plain prices. The endpoints' own renderers are tested with the endpoints.
const BARE: Renderers = Renderers {
    openapi: |_| Document::new("".into()),
    usage_page: |_| ByLanguage {
        ru: Document::new("".into()),
        en: Document::new("".into()),
    },
    prices: |view| {
        let mut text = String::new();
        for ModelView {
            model, in_force, ..
        } in &view.models
        {
            let input = in_force.map(|price| price.input);
            writeln!(text, "{} {input:?}", model.id).unwrap();
        }
        let document = Document::new(text.into());
        PriceDocuments {
            json: document.clone(),
            html: document.clone(),
            connect: Arc::new(ConnectDocuments {
                index: document.clone(),
                html: document,
                clients: Vec::new(),
            }),
            priced: view.priced,
        }
    },
};

pub(crate) fn live() -> Live {
    live_with(BARE)
}

/// Builds a snapshot from the test configuration, extended by the lines in `more`.
pub(crate) fn live_of(more: &str) -> Live {
    live_over(&format!("{CONFIG}{more}"), BARE)
}

/// Builds a snapshot from the test configuration with documents that `renderers` render.
pub(crate) fn live_with(renderers: Renderers) -> Live {
    live_over(CONFIG, renderers)
}

fn live_over(text: &str, renderers: Renderers) -> Live {
    let config = Config::parse(text, &|_| Some("sk-secret".to_owned())).unwrap();
    let version = TariffVersion {
        id: 7,
        effective_from_ms: 1_767_323_045_678,
    };
    Live::new(&config, version, renderers)
}

pub(crate) fn decimal(text: &str) -> Decimal {
    text.parse().unwrap()
}

fn priced(live: &Live) -> bool {
    live.snapshot().documents().priced
}

fn price(live: &Live, id: &str) -> Option<Arc<Price>> {
    match live.find_model(id) {
        Found::Callable(model, prices) => {
            assert_eq!(model.id, id);
            Some(prices.usual)
        }
        Found::Unpriced => None,
        Found::Unknown => panic!("{id} is unknown"),
    }
}

#[tokio::test(start_paused = true)]
async fn no_model_has_a_price_without_an_exchange_rate() {
    let live = live();
    assert!(!priced(&live));
    assert_eq!(live.snapshot().version().id, 7);
    assert_eq!(price(&live, "z-first"), None);
    assert!(matches!(live.find_model("Z-first"), Found::Unknown));
}

#[tokio::test(start_paused = true)]
async fn prices_disappear_when_the_exchange_rate_is_too_old() {
    let live = live();
    live.set_rate(RateReading::measured(decimal("90")));
    tokio::time::advance(Duration::from_secs(599)).await;
    assert!(price(&live, "z-first").is_some());
    assert!(!live.expire_rate());
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(price(&live, "z-first"), None);
    assert!(!priced(&live));
    assert!(live.snapshot().models().all(|(_, price)| price.is_none()));
    assert!(live.expire_rate(), "the first call removes the prices");
    assert!(!live.expire_rate());
    live.set_rate(RateReading::measured(decimal("90")));
    assert!(price(&live, "z-first").is_some());
    assert!(priced(&live));
}

#[tokio::test(start_paused = true)]
async fn fixed_exchange_rate_never_expires() {
    let live = live();
    live.set_rate(RateReading::fixed(decimal("90")));
    tokio::time::advance(Duration::from_secs(1_000_000)).await;
    assert!(!live.expire_rate());
    assert!(price(&live, "z-first").is_some());
}

#[tokio::test(start_paused = true)]
async fn exchange_rate_that_is_no_longer_fixed_becomes_stale() {
    let live = live();
    live.set_rate(RateReading::fixed(decimal("90")));
    live.unfix_rate();
    assert!(price(&live, "z-first").is_some());
    tokio::time::advance(Duration::from_secs(601)).await;
    assert_eq!(price(&live, "z-first"), None);
}

#[tokio::test(start_paused = true)]
async fn unchanged_price_keeps_its_object_and_etag() {
    let live = live();
    live.set_rate(RateReading::measured(decimal("90.5")));
    let (first, tag) = (
        price(&live, "z-first").unwrap(),
        live.snapshot().documents().json.etag.clone(),
    );
    live.set_rate(RateReading::measured(decimal("90.50")));
    assert!(Arc::ptr_eq(&first, &price(&live, "z-first").unwrap()));
    assert_eq!(live.snapshot().documents().json.etag, tag);
    live.set_rate(RateReading::measured(decimal("90.51")));
    assert!(!Arc::ptr_eq(&first, &price(&live, "z-first").unwrap()));
    assert_ne!(live.snapshot().documents().json.etag, tag);
    assert_eq!(
        first.input.to_string(),
        "26.01875",
        "a call keeps the price that it was admitted with"
    );
}

#[tokio::test(start_paused = true)]
async fn catalog_documents_show_the_price_in_force_at_every_time() {
    let minute = |minute: u64| 1_795_996_800_000 + minute * 60_000;
    let live = live_of(
        "[[model.price_rules]]\nhours_utc = [\"01:00-04:00\"]\nusdt_mtok = { input = \"2\", cached_input = \"2\", \
         output = \"2\", cache_write = \"2\" }\n",
    );
    live.set_rate(RateReading::fixed(decimal("90")));
    let snapshot = live.snapshot();
    let tag = |snapshot: &Snapshot| snapshot.documents().json.etag.clone();
    let mut tags = Vec::new();
    for (at, changes_at) in [(0, 60), (59, 60), (60, 240), (239, 240), (240, 1500)] {
        let rendered = Snapshot::clone(&snapshot).rendered(minute(at));
        assert_eq!(rendered.changes_at_ms, Some(minute(changes_at)), "{at}");
        tags.push(tag(&rendered));
    }
    assert!(tags[0] == tags[1] && tags[1] == tags[4] && tags[2] == tags[3] && tags[0] != tags[2]);
    // Documents that were rendered before the last change are rendered again when they are read.
    let old = Snapshot::clone(&snapshot).rendered(minute(0));
    live.snapshot.store(Arc::new(old));
    assert!(live.snapshot().changes_at_ms > Some(now_ms()));
}

#[tokio::test(start_paused = true)]
async fn price_out_of_range_makes_the_model_uncallable() {
    let live = live();
    live.set_rate(RateReading::measured(decimal("100000000000")));
    assert_eq!(price(&live, "z-first"), None);
    assert!(live.snapshot().models().next().unwrap().1.is_none());
}
