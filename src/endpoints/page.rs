//! The price list for people: `GET /` from a browser. Other clients request `/` only to check whether the gateway is
//! reachable, and get an empty response.
//!
//! The page is rendered once per snapshot of prices. It contains no scripts and loads nothing from other hosts.

use std::{future::ready, ptr};

use askama::Template;
use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Request, Response,
    header::{ACCEPT, CONTENT_SECURITY_POLICY, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS},
};
use tollgate_layers::{
    Error,
    body::{AnswerBody, full},
    model::ModelKind,
    money::MicroRub,
    price::{Class, Condition, Currency, Kind, Moment, Price, Rate},
    respond::Language,
};
use tower::{Service, service_fn};

use crate::{
    catalog::{
        documents::{CatalogView, Document, ModelView},
        snapshot::Live,
    },
    edge::router::{BoxedService, PathBody, ResponseFuture, boxed, from_boxed},
    endpoints::catalog::document,
    text::{
        language::{grouped, say},
        time::{for_people, rfc3339},
    },
};

/// Content security policy that allows only the page's own styles and its empty icon.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'";

pub(crate) const HTML: &str = "text/html; charset=utf-8";

/// Serves the page of the current snapshot.
pub(crate) fn answer<B>(live: &Live, req: &Request<B>) -> Result<Response<AnswerBody>, Error> {
    let snapshot = live.snapshot();
    let shown = snapshot.documents();
    document(&shown.html, HTML, shown.priced, req).map(for_browsers)
}

/// Adds the headers that isolate a page without scripts from other sites.
pub(crate) fn for_browsers(res: Response<AnswerBody>) -> Response<AnswerBody> {
    varied(isolated(res, POLICY), "accept")
}

/// Adds the name of the request header on which the response depends, so that caches keep one response per value.
pub(super) fn varied(mut res: Response<AnswerBody>, header: &'static str) -> Response<AnswerBody> {
    let header = HeaderValue::from_static(header);
    res.headers_mut().insert(VARY, header);
    res
}

/// Adds the headers that isolate a page from other sites, with its content security policy.
pub(crate) fn isolated(
    mut res: Response<AnswerBody>,
    policy: &'static str,
) -> Response<AnswerBody> {
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, policy),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ] {
        let value = HeaderValue::from_static(value);
        res.headers_mut().insert(name, value);
    }
    res
}

/// Returns whether a browser sent the request: browsers name HTML in `accept`, and tools do not.
pub(crate) fn is_asked_for(headers: &HeaderMap) -> bool {
    headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','))
        .any(|range| {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            kind.eq_ignore_ascii_case("text/html") && !parts.any(is_zero_weight)
        })
}

/// Returns whether this is `q=0`, which means not acceptable (RFC 9110, 12.4.2).
fn is_zero_weight(parameter: &str) -> bool {
    parameter.split_once('=').is_some_and(|(name, weight)| {
        name.eq_ignore_ascii_case("q") && weight.bytes().all(|byte| matches!(byte, b'0' | b'.'))
    })
}

/// Returns the empty response to a client that only checks whether the gateway is reachable.
fn nothing() -> Response<AnswerBody> {
    varied(Response::new(full(Bytes::new())), "accept")
}

/// Refuses each request like a request for a path that does not exist. Used for pages that are not configured.
pub(crate) fn unknown<B: Send + 'static>() -> BoxedService<B, PathBody> {
    boxed(service_fn(|_: Request<B>| ready(Err(Error::PathUnknown))))
}

/// Answers browsers with `page`. Tools that only check whether the gateway is reachable get an empty response, which
/// needs no permit.
pub(crate) fn or_nothing<B: Send + 'static>(
    page: BoxedService<B, PathBody>,
) -> BoxedService<B, PathBody> {
    from_boxed(service_fn(
        move |req: Request<B>| -> ResponseFuture<PathBody, Error> {
            if is_asked_for(req.headers()) {
                return page.clone().call(req);
            }
            Box::pin(ready(Ok(nothing().map(PathBody::without_permit))))
        },
    ))
}

/// Answers `/api/hello`, which Claude Code requests to open its connection before the first call.
pub(crate) fn hello<B: Send + 'static>() -> BoxedService<B, PathBody> {
    boxed(service_fn(|_: Request<B>| {
        let nothing = Response::new(full(Bytes::new()));
        ready(Ok(nothing.map(PathBody::without_permit)))
    }))
}

/// Renders the price page.
pub(crate) fn render(view: &CatalogView<'_>) -> Document {
    Document::new(written(view).into())
}

/// Returns whether the models' prices follow the exchange rate; `None` if only some of them do.
fn follows_rate(models: &[ModelView<'_>]) -> Option<bool> {
    let prices = models.iter().filter_map(|view| view.prices);
    let mut followed = prices.map(|prices| prices.usual.currency == Currency::Usdt);
    let first = followed.next().unwrap_or(true);
    followed.all(|it| it == first).then_some(first)
}

fn written(view: &CatalogView<'_>) -> String {
    let (urls, version) = (view.urls, view.version);
    let language = urls.language;
    let classes = [
        say(language, "Вход", "Input"),
        say(language, "Вход из кэша", "Cached input"),
        say(language, "Выход", "Output"),
        say(language, "Запись в кэш", "Cache write"),
    ];
    let families = families(&view.models, classes, language);
    let page = PageHtml {
        language,
        service: &urls.service,
        base_url: &urls.base_url,
        root_url: urls.root_url(),
        catalog_path: format!("/v1/{}/models", urls.service),
        connect_path: format!("/v1/{}/connect", urls.service),
        version: version.id,
        since: rfc3339(version.effective_from_ms),
        since_shown: day(version.effective_from_ms, language),
        follows_rate: follows_rate(&view.models),
        priced: view.priced,
        classes,
        example: (view.models.iter())
            .find(|view| view.model.kind == ModelKind::Chat)
            .map_or("…", |view| view.model.id.as_str()),
        embeddings: (view.models.iter()).any(|view| view.model.kind == ModelKind::Embedding),
        families,
        hello: say(language, "Привет", "Hello"),
    };
    rendered(&page)
}

pub(super) fn rendered(template: &impl Template) -> String {
    let text = template.render();
    text.expect("rendering a template to a String cannot fail")
}

#[derive(Template)]
#[template(path = "page.html", config = "src/endpoints/templates/askama.toml")]
struct PageHtml<'a> {
    language: Language,
    service: &'a str,
    base_url: &'a str,
    /// The base URL for clients that append `/v1` themselves.
    root_url: &'a str,
    catalog_path: String,
    connect_path: String,
    version: u64,
    since: String,
    since_shown: String,
    priced: bool,
    /// Whether prices follow the exchange rate: all of them, some, or none.
    follows_rate: Option<bool>,
    classes: [&'static str; 4],
    families: Vec<Family<'a>>,
    /// The model that the examples use.
    example: &'a str,
    /// Whether an embedding model is sold.
    embeddings: bool,
    hello: &'static str,
}

impl PageHtml<'_> {
    /// Returns the text in the page's language. The template has both texts next to each other.
    fn say(&self, ru: &'static str, en: &'static str) -> &'static str {
        say(self.language, ru, en)
    }
}

/// The models of one family.
struct Family<'a> {
    name: &'a str,
    models: Vec<Row<'a>>,
}

struct Row<'a> {
    id: &'a str,
    /// The kind of the model; empty for chat models.
    kind: &'static str,
    /// The condition of these prices in words; empty for the unconditional prices.
    rule: String,
    /// Until when this row's price is in force; empty if prices do not depend on the time, or if another row's price is
    /// in force.
    now: String,
    cells: [Cell; 4],
    /// The prices that apply per call, not per token.
    calls: Vec<Cell>,
}

/// A price; empty if the model has no price at the moment.
struct Cell {
    class: &'static str,
    exact: String,
    shown: String,
    /// Prices of rate classes that are billed separately, for example one-hour cache writes.
    parts: Vec<Self>,
}

impl Cell {
    fn new(class: &'static str, rate: Option<Rate>, language: Language) -> Self {
        Self {
            class,
            exact: rate.map_or_else(String::new, |rate| rate.to_string()),
            shown: rate.map_or_else(String::new, |rate| shown(rate, language)),
            parts: Vec::new(),
        }
    }
}

impl<'a> Row<'a> {
    fn new(
        (id, kind): (&'a str, ModelKind),
        classes: [&'static str; 4],
        price: Option<&Price>,
        language: Language,
    ) -> Self {
        let cell = |at: usize, rate: fn(&Price) -> Rate| {
            // Only the input of an embedding model has a price, which is in the first column.
            let price = price.filter(|_| at == 0 || kind != ModelKind::Embedding);
            Cell::new(classes[at], price.map(rate), language)
        };
        let mut row = Self {
            id,
            kind: match kind {
                ModelKind::Embedding => say(language, "эмбеддинги", "embeddings"),
                _ => "",
            },
            rule: price.map_or_else(String::new, |price| when(&price.condition, language)),
            now: String::new(),
            cells: [
                cell(0, |price| price.input),
                cell(1, |price| price.cached_input),
                cell(2, |price| price.output),
                cell(3, |price| price.cache_write),
            ],
            calls: Vec::new(),
        };
        for (class, rate) in price.iter().flat_map(|price| price.classes.iter()) {
            let (column, name) = place(class, language);
            let cell = Cell::new(name, rate, language);
            match column {
                Some(column) => row.cells[column].parts.push(cell),
                None => row.calls.push(cell),
            }
        }
        row
    }
}

/// Returns the column in which prices of this rate class are shown, if there is such a column, and the label of the
/// class in that column.
fn place(class: Class, language: Language) -> (Option<usize>, &'static str) {
    let image = say(language, "изображения", "images");
    let audio = say(language, "звук", "audio");
    match class {
        Class::CachedInputImage => (Some(1), image),
        Class::CachedInputAudio => (Some(1), audio),
        Class::OutputReasoning => (Some(2), say(language, "рассуждения", "reasoning")),
        Class::RequestCall => (None, say(language, "каждый запрос", "each request")),
        Class::InputImage => (Some(0), image),
        Class::InputAudio => (Some(0), audio),
        Class::OutputImage => (Some(2), image),
        Class::OutputAudio => (Some(2), audio),
        Class::CacheWrite1h => (Some(3), say(language, "на час", "for an hour")),
        Class::CacheWrite12h => (Some(3), say(language, "на 12 часов", "for 12 hours")),
        Class::WebSearchCall => (None, say(language, "поиск в интернете", "web search")),
        other => match other.kind() {
            Kind::Input => (Some(0), other.name()),
            Kind::Output => (Some(2), other.name()),
            Kind::Call => (None, other.name()),
        },
    }
}

/// Describes a price's condition in words.
fn when(condition: &Condition, language: Language) -> String {
    let above = condition.above_input_tokens.map(|tokens| {
        let tokens = grouped(&tokens.to_string(), language);
        match language {
            Language::En => format!("above {tokens} input tokens"),
            _ => format!("свыше {tokens} токенов входа"),
        }
    });
    let tier = say(language, "уровень обслуживания", "service tier");
    let words = [
        (condition.service_tier, tier),
        (condition.speed, say(language, "скорость", "speed")),
        (condition.inference_geo, say(language, "регион", "region")),
    ];
    let words = words.iter().filter(|(word, _)| !word.is_empty());
    let words = words.map(|(word, name)| format!("{name} {word}"));
    let hours = condition.hours_utc.spans().join(", ").replace('-', "–");
    let hours = (!hours.is_empty()).then(|| format!("{hours} UTC"));
    let days = condition.weekdays.names().into_iter();
    let days: Vec<_> = days.map(|day| weekday(day, language)).collect();
    let days = (!days.is_empty()).then(|| days.join(" "));
    let by = match condition.hours_at {
        Moment::Request => None,
        Moment::FirstByte => {
            let english = "by the time at which the response begins";
            Some(say(language, "по времени начала ответа", english))
        }
        Moment::End => {
            let english = "by the time at which the response ends";
            Some(say(language, "по времени конца ответа", english))
        }
    };
    let from = condition.valid_from_ms.map(|ms| {
        let from = say(language, "с", "from");
        format!("{from} {}", for_people(ms, 0))
    });
    from.into_iter()
        .chain(above)
        .chain(words)
        .chain(hours)
        .chain(days)
        .chain(by.map(str::to_owned))
        .collect::<Vec<_>>()
        .join(", ")
}

fn weekday(day: &'static str, language: Language) -> &'static str {
    let russian = match day {
        "mon" => "пн",
        "tue" => "вт",
        "wed" => "ср",
        "thu" => "чт",
        "fri" => "пт",
        "sat" => "сб",
        _ => "вс",
    };
    say(language, russian, day)
}

/// Groups models by family. Families, and the models of a family, are in the order of the catalog.
fn families<'a>(
    models: &[ModelView<'a>],
    classes: [&'static str; 4],
    language: Language,
) -> Vec<Family<'a>> {
    let mut families: Vec<Family<'a>> = Vec::new();
    for &ModelView {
        model,
        prices,
        in_force,
        changes_at_ms,
        ..
    } in models
    {
        let row = |price: Option<&Price>| {
            let both = price.zip(in_force);
            let is_in_force = both.is_some_and(|(it, now)| ptr::eq(it, now));
            let until = changes_at_ms.filter(|_| is_in_force);
            Row {
                now: until.map_or_else(String::new, |ms| {
                    let now = say(language, "действует сейчас, до", "in force now, until");
                    format!("{now} {}", for_people(ms, 0))
                }),
                ..Row::new((&model.id, model.kind), classes, price, language)
            }
        };
        let rows = match prices {
            None => vec![row(None)],
            Some(prices) => prices.prices().map(|price| row(Some(&**price))).collect(),
        };
        let mut known = families.iter_mut();
        match known.find(|family| family.name == model.family) {
            Some(family) => family.models.extend(rows),
            None => families.push(Family {
                name: &model.family,
                models: rows,
            }),
        }
    }
    families
}

/// Returns a price for people: in kopecks, rounded up. A price for which kopecks are too coarse gets two significant
/// digits.
pub(crate) fn shown(rate: Rate, language: Language) -> String {
    const KOPECK: u64 = 10_000;
    let micro = rate.micro();
    let step = match micro.checked_ilog10() {
        Some(digits) if micro < 10 * KOPECK => 10u64.pow(digits.saturating_sub(1)),
        _ => KOPECK,
    };
    let rounded = micro.div_ceil(step).saturating_mul(step);
    let amount = MicroRub::new(i64::try_from(rounded).unwrap_or(i64::MAX)).to_string();
    let (whole, fraction) = amount.split_once('.').unwrap_or((&amount, "00"));
    let point = say(language, ",", ".");
    format!("{}{point}{fraction}\u{a0}₽", grouped(whole, language))
}

/// Writes the UTC day of a time.
fn day(ms: u64, language: Language) -> String {
    const RU: &str =
        "января февраля марта апреля мая июня июля августа сентября октября ноября декабря";
    const EN: &str =
        "January February March April May June July August September October November December";
    let text = rfc3339(ms);
    let (year, day) = (&text[..4], text[8..10].trim_start_matches('0'));
    let month: usize = text[5..7].parse().expect("two digits");
    let mut names = say(language, RU, EN).split(' ');
    let name = names.nth(month - 1).expect("twelve months");
    format!("{day}\u{a0}{name} {year}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate_layers::{
        model::Model,
        price::{Price, PriceList, Rates},
        reserve::ledger::TariffVersion,
    };

    use super::*;
    use crate::catalog::documents::PublicUrls;

    #[test]
    fn price_is_rounded_up_to_kopecks_or_to_two_significant_digits() {
        for (rate, ru, en) in [
            ("26.01875", "26,02", "26.02"),
            ("208.15", "208,15", "208.15"),
            ("2.601875", "2,61", "2.61"),
            ("0.1", "0,10", "0.10"),
            ("0.100001", "0,11", "0.11"),
            ("0.099999", "0,10", "0.10"),
            ("0.0125", "0,013", "0.013"),
            ("0.002602", "0,0027", "0.0027"),
            ("0.000012", "0,000012", "0.000012"),
            ("0.000001", "0,000001", "0.000001"),
            ("0", "0,00", "0.00"),
            ("1040.75", "1\u{202f}040,75", "1,040.75"),
            ("1234567.891", "1\u{202f}234\u{202f}567,90", "1,234,567.90"),
            ("999.999", "1\u{202f}000,00", "1,000.00"),
        ] {
            let rate: Rate = rate.parse().unwrap();
            assert_eq!(shown(rate, Language::Ru), format!("{ru}\u{a0}₽"));
            assert_eq!(shown(rate, Language::En), format!("{en}\u{a0}₽"));
        }
    }

    #[test]
    fn date_is_written_in_the_readers_language() {
        let ms = 1_767_323_045_678;
        assert_eq!(day(ms, Language::Ru), "2\u{a0}января 2026");
        assert_eq!(day(ms, Language::En), "2\u{a0}January 2026");
    }

    #[test]
    fn browser_is_recognised_by_its_accept_header() {
        for (accept, requested) in [
            (
                "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
                true,
            ),
            ("application/json, Text/HTML ; level=1; q=0.1", true),
            ("*/*", false),
            ("application/json", false),
            ("text/html;q=0", false),
            ("text/html; Q=0.00, */*", false),
            ("text/htmlx", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(is_asked_for(&headers), requested, "{accept}");
        }
        assert!(!is_asked_for(&HeaderMap::new()));
    }

    fn page(models: &[Model], prices: Option<&PriceList>) -> String {
        let urls = PublicUrls {
            pays: false,
            service: "tollgate".into(),
            base_url: "https://ai.example/v1".into(),
            language: Language::Ru,
        };
        let version = TariffVersion {
            id: 7,
            effective_from_ms: 1_767_323_045_678,
        };
        let views = models.iter().map(|model| ModelView {
            model,
            prices,
            in_force: None,
            changes_at_ms: None,
            usd_mtok: None,
        });
        written(&CatalogView {
            urls: &urls,
            version,
            tariff: crate::config::Tariff::AT_COST,
            priced: prices.is_some(),
            models: views.collect(),
        })
    }

    fn model(id: &str, family: &str) -> Model {
        Model::new(id, 100).family(family)
    }

    fn price() -> PriceList {
        let rate = Rate::new(26_018_750);
        PriceList::from(Arc::new(Price {
            input: rate,
            cached_input: rate,
            output: rate,
            cache_write: rate,
            version: 7,
            exchange_rate: "90".into(),
            ..Price::default()
        }))
    }

    #[test]
    fn model_families_are_in_the_order_of_the_catalog() {
        let models = [model("b-1", "B"), model("a-1", "A"), model("b-2", "B")];
        let page = page(&models, Some(&price()));
        let at = |text: &str| {
            page.find(text)
                .unwrap_or_else(|| panic!("no {text}: {page}"))
        };
        let order = [">B<", ">b-1<", ">b-2<", ">A<", ">a-1<"].map(at);
        assert!(order.is_sorted(), "{order:?}");
        assert_eq!(page.matches(">B<").count(), 1);
        assert_eq!(page.matches("value=\"26.01875\">26,02").count(), 12);
        assert!(!page.contains("временно недоступны"));
    }

    #[test]
    fn conditional_prices_are_described_after_the_unconditional_one() {
        let rates = |input: u64| {
            let rate = Rate::new(input);
            Price {
                input: rate,
                cached_input: rate,
                output: rate,
                cache_write: rate,
                classes: Rates::default()
                    .with(Class::WebSearchCall, Some(Rate::new(1_000_000)))
                    .with(Class::InputImage, Some(Rate::new(77_000_000)))
                    .with(Class::CacheWrite12h, Some(Rate::new(88_000_000))),
                ..Price::default()
            }
        };
        let under = |condition, input| Price {
            condition,
            ..rates(input)
        };
        let long = Condition {
            above_input_tokens: Some(272_000),
            ..Condition::default()
        };
        let flex_in_us = Condition {
            service_tier: "flex".into(),
            inference_geo: "us".into(),
            ..Condition::default()
        };
        let prices = PriceList::from(rates(1_250_000_000))
            .rules([under(long, 2_500_000_000), under(flex_in_us, 625_000_000)]);
        let page = page(&[model("m-1", "M")], Some(&prices));
        let rows: Vec<&str> = page.split("<tr class=\"").skip(1).collect();
        let rows: Vec<&str> = rows
            .into_iter()
            .filter(|row| !row.starts_with("family"))
            .collect();
        assert_eq!(rows.len(), 3, "{page}");
        for (row, parts) in rows.iter().zip([
            [
                "model\"><th scope=\"row\"><code>m-1</code>",
                "1\u{202f}250,00",
            ],
            ["свыше 272\u{202f}000 токенов входа", "2\u{202f}500,00"],
            ["уровень обслуживания flex, регион us", ">625,00"],
        ]) {
            let others = [
                "поиск в интернете: <data value=\"1.00\">1,00",
                "изображения: <data value=\"77.00\">77,00",
                "на 12 часов: <data value=\"88.00\">88,00",
            ];
            for part in parts.iter().chain(&others) {
                assert!(row.contains(part), "{part}: {row}");
            }
        }
        assert_eq!(when(&long, Language::En), "above 272,000 input tokens");
    }

    #[test]
    fn price_page_names_the_paths_of_responses_and_embeddings() {
        let chat = page(&[model("m-1", "M")], Some(&price()));
        assert!(chat.contains(">POST https://ai.example/v1/responses<"));
        assert!(chat.contains("в каждом из трёх форматов"));
        assert!(!chat.contains("/v1/embeddings"), "{chat}");
        let vectors = model("e-1", "M").kind(ModelKind::Embedding);
        let models = [model("m-1", "M"), vectors];
        let both = page(&models, Some(&price()));
        assert!(both.contains(">POST https://ai.example/v1/embeddings<"));
    }

    #[test]
    fn names_on_the_price_page_are_escaped() {
        let evil = "<script>alert('x')</script>\"&";
        let page = page(&[model(evil, evil)], Some(&price()));
        assert!(!page.contains("<script") && !page.contains("'x'"), "{page}");
        assert!(page.contains("script"), "{page}");
    }

    #[test]
    fn price_page_without_an_exchange_rate_states_that_prices_are_unavailable() {
        let page = page(&[model("m-1", "M")], None);
        assert!(page.contains("Цены временно недоступны"));
        assert!(page.contains(">m-1<") && !page.contains("<data"));
    }
}
