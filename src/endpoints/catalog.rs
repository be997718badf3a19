//! The public price list (sections 2.6 and 4.3 of the specification in `docs/decisions.md`).

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_NONE_MATCH},
};
use serde::Serialize;
use tollgate_layers::{
    Error,
    body::{self, AnswerBody},
    model::ModelKind,
    price::{Class, Condition, Currency, PriceList, Rate, Rates},
};

use crate::{
    catalog::{
        documents::{CatalogView, Document, ModelView},
        snapshot::Live,
    },
    text::time::rfc3339,
};

/// Cache lifetime of documents with prices. It is far below the five minutes that the specification
/// (`docs/decisions.md`) allows, because prices follow the exchange rate.
const PRICED: &str = "public, max-age=60";
/// Cache lifetime of documents without prices. It is short, so that clients soon see prices that are available again.
const UNPRICED: &str = "public, max-age=5";

/// Returns a document of the current snapshot.
pub(crate) type Answer<B> = fn(&Live, &Request<B>) -> Result<Response<AnswerBody>, Error>;

/// Returns the catalog of the current snapshot.
pub(crate) fn answer<B>(live: &Live, req: &Request<B>) -> Result<Response<AnswerBody>, Error> {
    let snapshot = live.snapshot();
    let shown = snapshot.documents();
    document(&shown.json, "application/json", shown.priced, req)
}

/// Returns a document that may be cached while its prices are valid. Uses only the request's method and
/// `if-none-match`.
pub(crate) fn document<B>(
    document: &Document,
    content_type: &'static str,
    priced: bool,
    req: &Request<B>,
) -> Result<Response<AnswerBody>, Error> {
    let method = req.method();
    if method != Method::GET && method != Method::HEAD {
        return Err(Error::MethodNotAllowed { allow: "GET, HEAD" });
    }
    let unchanged = is_known(req.headers(), &document.etag);
    let bytes = match unchanged || method == Method::HEAD {
        true => Bytes::new(),
        false => document.bytes.clone(),
    };
    let mut res = Response::new(body::full(bytes));
    let headers = res.headers_mut();
    headers.insert(ETAG, document.etag.clone());
    let lifetime = if priced { PRICED } else { UNPRICED };
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(lifetime));
    if unchanged {
        *res.status_mut() = StatusCode::NOT_MODIFIED;
        return Ok(res);
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if method == Method::HEAD {
        // The length is set here, because the server sees an empty body for HEAD and would send 0.
        headers.insert(CONTENT_LENGTH, document.bytes.len().into());
    }
    Ok(res)
}

/// Returns whether the client's `if-none-match` already names these bytes (RFC 9110, section 13.1.2: weak comparison, a
/// list, or `*`).
fn is_known(headers: &HeaderMap, etag: &HeaderValue) -> bool {
    headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','))
        .map(str::trim)
        .any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
}

/// Renders the catalog as JSON, as in section 2.6 of the specification in `docs/decisions.md`.
pub(crate) fn render(view: &CatalogView<'_>) -> Document {
    let shown = |currency| view.tariff.multiplier(currency).normalize().to_string();
    let mut currencies = view.models.iter().map(currency);
    let has_rub = currencies.any(|currency| currency == Currency::Rub);
    let catalog = CatalogJson {
        base_url: &view.urls.base_url,
        priced: view.priced,
        price_version: VersionJson {
            id: view.version.id,
            effective_from: rfc3339(view.version.effective_from_ms),
        },
        sell_rate_multiplier: shown(Currency::Usdt),
        sell_rub_multiplier: has_rub.then(|| shown(Currency::Rub)),
        models: view.models.iter().map(ModelJson::new).collect(),
    };
    let json =
        serde_json::to_vec(&catalog).expect("serializing texts and numbers to JSON cannot fail");
    Document::new(json.into())
}

#[derive(Serialize)]
struct CatalogJson<'a> {
    base_url: &'a str,
    priced: bool,
    price_version: VersionJson,
    sell_rate_multiplier: String,
    /// The multiplier for ruble prices; absent if no model is priced in rubles.
    #[serde(skip_serializing_if = "Option::is_none")]
    sell_rub_multiplier: Option<String>,
    models: Vec<ModelJson<'a>>,
}

#[derive(Serialize)]
struct VersionJson {
    id: u64,
    effective_from: String,
}

#[derive(Serialize)]
struct ModelJson<'a> {
    id: &'a str,
    family: &'a str,
    #[serde(skip_serializing_if = "is_chat")]
    kind: ModelKind,
    /// The currency of the base price; absent if the price follows the exchange rate of USDT.
    #[serde(skip_serializing_if = "Currency::is_default")]
    price_currency: Currency,
    input_rub_mtok: Option<Rate>,
    cached_input_rub_mtok: Option<Rate>,
    output_rub_mtok: Option<Rate>,
    cache_write_rub_mtok: Option<Rate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_write_1h_rub_mtok: Option<Rate>,
    /// The condition of the model's rates; absent if the rates are the unconditional ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    price_condition: Option<&'a Condition>,
    /// The time at which the model's rates change; absent if they do not depend on the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    price_changes_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    price_rules: Option<PriceRules<'a>>,
}

/// A model's prices in addition to its four basic rates: the prices of further rate classes, and the prices of all rate
/// classes under each condition.
#[derive(Serialize)]
struct PriceRules<'a> {
    #[serde(skip_serializing_if = "Rates::is_empty")]
    usual: &'a Rates,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rules: Vec<PriceRule<'a>>,
}

#[derive(Serialize)]
struct PriceRule<'a> {
    condition: &'a Condition,
    input_rub_mtok: Rate,
    cached_input_rub_mtok: Rate,
    output_rub_mtok: Rate,
    cache_write_rub_mtok: Rate,
    #[serde(skip_serializing_if = "Rates::is_empty")]
    classes: &'a Rates,
}

impl<'a> PriceRules<'a> {
    /// Returns `None` if the four basic rates and the rate of one-hour cache writes describe the model's prices
    /// completely.
    fn new(prices: &'a PriceList) -> Option<Self> {
        // If prices depend on the time, the unconditional price is listed, too, because the basic rates in the catalog
        // may be those of a conditional price.
        let has_time = prices.prices().any(|price| price.condition.has_time());
        let rules: Vec<_> = prices
            .prices()
            .skip(usize::from(!has_time))
            .map(|price| PriceRule {
                condition: &price.condition,
                input_rub_mtok: price.input,
                cached_input_rub_mtok: price.cached_input,
                output_rub_mtok: price.output,
                cache_write_rub_mtok: price.cache_write,
                classes: &price.classes,
            })
            .collect();
        let usual = &prices.usual.classes;
        let shown = usual.with(Class::CacheWrite1h, None).is_empty() && rules.is_empty();
        (!shown).then_some(Self { usual, rules })
    }
}

impl<'a> ModelJson<'a> {
    fn new(view: &ModelView<'a>) -> Self {
        let kind = view.model.kind;
        let price = view.in_force;
        let condition = price.map(|price| &price.condition);
        // Only the input of an embedding model has a price.
        let more = price.filter(|_| is_chat(&kind));
        Self {
            kind,
            id: &view.model.id,
            family: &view.model.family,
            price_currency: currency(view),
            input_rub_mtok: price.map(|price| price.input),
            cached_input_rub_mtok: more.map(|price| price.cached_input),
            output_rub_mtok: more.map(|price| price.output),
            cache_write_rub_mtok: more.map(|price| price.cache_write),
            cache_write_1h_rub_mtok: price.and_then(|price| price.classes.get(Class::CacheWrite1h)),
            price_condition: condition.filter(|condition| !condition.is_empty()),
            price_changes_at: view.changes_at_ms.map(rfc3339),
            price_rules: view.prices.and_then(PriceRules::new),
        }
    }
}

/// Returns the currency of the model's unconditional price.
fn currency(view: &ModelView<'_>) -> Currency {
    let currency = view.prices.map(|prices| prices.usual.currency);
    currency.unwrap_or_default()
}

/// Returns whether the kind is chat, which is the default and therefore omitted.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls this function with a reference"
)]
fn is_chat(kind: &ModelKind) -> bool {
    *kind == ModelKind::Chat
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::{Value, json};
    use tollgate_layers::model::{Found, Models};

    use super::*;
    use crate::{
        catalog::snapshot::{
            RateReading,
            tests::{decimal, live_with},
        },
        endpoints::RENDERERS,
    };

    fn live() -> Live {
        live_with(RENDERERS)
    }

    fn catalog(live: &Live) -> Value {
        serde_json::from_slice(&live.snapshot().documents().json.bytes).unwrap()
    }

    async fn ask(
        live: &Live,
        method: &str,
        if_none_match: Option<&str>,
    ) -> Result<(Response<()>, Bytes), Error> {
        let mut req = Request::builder().method(method).uri("/v1/tollgate/models");
        if let Some(tag) = if_none_match {
            req = req.header(IF_NONE_MATCH, tag);
        }
        let res = answer(live, &req.body(()).unwrap())?;
        let (parts, body) = res.into_parts();
        Ok((
            Response::from_parts(parts, ()),
            body.collect().await?.to_bytes(),
        ))
    }

    fn priced() -> Live {
        let live = live();
        live.set_rate(RateReading::fixed(decimal("90.5")));
        live
    }

    #[tokio::test(start_paused = true)]
    async fn catalog_follows_the_specification_and_shows_the_prices_that_callers_pay() {
        let live = live();
        live.set_rate(RateReading::measured(decimal("90.50")));
        assert_eq!(
            catalog(&live),
            json!({
                "base_url": "https://api.example/v1",
                "priced": true,
                "price_version": {"id": 7, "effective_from": "2026-01-02T03:04:05.678Z"},
                "sell_rate_multiplier": "1.15",
                "models": [
                    {
                        "id": "z-first",
                        "family": "Z",
                        "input_rub_mtok": "26.01875",
                        "cached_input_rub_mtok": "2.601875",
                        "output_rub_mtok": "208.15",
                        "cache_write_rub_mtok": "26.01875",
                    },
                    {
                        "id": "a-second",
                        "family": "A",
                        "input_rub_mtok": "0.000001",
                        "cached_input_rub_mtok": "104.075",
                        "output_rub_mtok": "104.075",
                        "cache_write_rub_mtok": "104.075",
                    },
                ],
            })
        );
        let Found::Callable(_, prices) = live.find_model("z-first") else {
            panic!("z-first has no price");
        };
        let price = prices.usual;
        assert_eq!(price.input.to_string(), "26.01875");
        assert_eq!((price.version, price.exchange_rate.as_str()), (7, "90.5"));
    }

    #[tokio::test(start_paused = true)]
    async fn catalog_prices_are_null_without_an_exchange_rate() {
        let live = live();
        let catalog = catalog(&live);
        assert_eq!(catalog["priced"], false);
        assert_eq!(catalog["price_version"]["id"], 7);
        for model in catalog["models"].as_array().unwrap() {
            for field in [
                "input_rub_mtok",
                "cached_input_rub_mtok",
                "output_rub_mtok",
                "cache_write_rub_mtok",
            ] {
                assert_eq!(model[field], Value::Null);
            }
        }
        live.set_rate(RateReading::measured(decimal("100000000000")));
        let catalog = self::catalog(&live);
        assert_eq!(catalog["priced"], true);
        let past_what_money_can_be = &catalog["models"][0]["input_rub_mtok"];
        assert_eq!(*past_what_money_can_be, Value::Null);
    }

    #[tokio::test]
    async fn catalog_is_json_with_cache_headers() {
        for (live, max_age) in [
            (priced(), "public, max-age=60"),
            (live(), "public, max-age=5"),
        ] {
            let (res, body) = ask(&live, "GET", None).await.unwrap();
            assert_eq!(res.status(), StatusCode::OK);
            assert_eq!(res.headers()[CONTENT_TYPE], "application/json");
            assert_eq!(res.headers()[CACHE_CONTROL], max_age);
            let tag = res.headers()[ETAG].to_str().unwrap();
            assert!(
                tag.starts_with('"') && tag.ends_with('"') && tag.len() > 2,
                "{tag}"
            );
            let catalog: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(catalog["priced"], max_age.ends_with("60"));
        }
    }

    #[tokio::test]
    async fn catalog_is_not_sent_to_a_client_that_has_the_current_etag() {
        let live = priced();
        let (res, _) = ask(&live, "GET", None).await.unwrap();
        let tag = res.headers()[ETAG].to_str().unwrap().to_owned();
        for (known, status) in [
            (tag.clone(), 304),
            (format!("W/{tag}"), 304),
            (format!("\"other\", {tag}"), 304),
            ("*".to_owned(), 304),
            ("\"other\"".to_owned(), 200),
        ] {
            let (res, body) = ask(&live, "GET", Some(&known)).await.unwrap();
            assert_eq!(res.status(), status, "{known}");
            assert_eq!(body.is_empty(), status == 304, "{known}");
            assert_eq!(res.headers()[ETAG], tag, "{known}");
        }
        live.set_rate(RateReading::fixed(decimal("91")));
        assert_eq!(ask(&live, "GET", Some(&tag)).await.unwrap().0.status(), 200);
    }

    #[tokio::test]
    async fn head_request_is_answered_like_get_without_the_body() {
        let live = priced();
        let (get, body) = ask(&live, "GET", None).await.unwrap();
        let (head, empty) = ask(&live, "HEAD", None).await.unwrap();
        assert_eq!(head.status(), StatusCode::OK);
        assert!(empty.is_empty());
        assert_eq!(head.headers()[ETAG], get.headers()[ETAG]);
        assert_eq!(head.headers()[CONTENT_LENGTH], body.len().to_string());
    }

    #[tokio::test]
    async fn catalog_refuses_methods_except_get_and_head() {
        let refused = ask(&priced(), "POST", None).await;
        assert!(
            matches!(refused, Err(Error::MethodNotAllowed { allow: "GET, HEAD" })),
            "{refused:?}"
        );
    }
}
