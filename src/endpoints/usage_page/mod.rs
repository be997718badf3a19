//! A page with a key's spending, for its holder: `GET /usage`.
//!
//! The page itself contains no data. Its script, a separate file, calls the callers' endpoints with a key that the user
//! enters. The key stays in the script's memory: it is not written to the URL, a cookie, or the browser's storage.

use askama::Template;
use http::{
    HeaderMap, HeaderValue, Request, Response,
    header::{
        ACCEPT_LANGUAGE, CONTENT_SECURITY_POLICY, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
    },
};
use tollgate_layers::{Error, body::AnswerBody, respond::Language};

use crate::{
    api::ceilings::CEILINGS,
    catalog::{
        documents::{ByLanguage, Document, PublicUrls},
        snapshot::Live,
    },
    edge::routes::Matched,
    endpoints::{
        catalog::document,
        page::{HTML, say},
    },
};

/// Content security policy that allows only the page's own script, styles, endpoints and empty icon; forms cannot be
/// submitted.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The files of the page: name, type and content.
const FILES: [(&str, &str, &str); 2] = [
    (
        "page.js",
        "text/javascript; charset=utf-8",
        include_str!("page.js"),
    ),
    (
        "page.css",
        "text/css; charset=utf-8",
        concat!(include_str!("../design.css"), include_str!("page.css")),
    ),
];

/// Answers with the page in the browser's language, or with one of its files.
pub(crate) fn answer<B>(live: &Live, req: &Request<B>) -> Result<Response<AnswerBody>, Error> {
    let snapshot = live.snapshot();
    let Some(name) = Matched::from_request(req)?.parameter.as_deref() else {
        let pages = snapshot.usage_page();
        let language = asked_for(req.headers()).unwrap_or(snapshot.language());
        let page = match language {
            Language::En => &pages.en,
            _ => &pages.ru,
        };
        let mut res = document(page, HTML, true, req).map(for_its_reader)?;
        res.headers_mut()
            .insert(VARY, HeaderValue::from_static("accept-language"));
        return Ok(res);
    };
    let file = FILES.iter().find(|(file, ..)| *file == name);
    let (_, kind, text) = file.ok_or(Error::PathUnknown)?;
    document(&Document::new(text.as_bytes().into()), kind, true, req).map(for_its_reader)
}

/// Adds the headers that isolate the page from other sites.
fn for_its_reader(mut res: Response<AnswerBody>) -> Response<AnswerBody> {
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ] {
        res.headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    res
}

/// Renders the page in both languages.
pub(crate) fn render(urls: &PublicUrls) -> ByLanguage {
    let page = |language| {
        let page = UsageHtml {
            language,
            service: &urls.service,
            own_url: format!("{}/{}", urls.base_url, urls.service),
            pays: urls.pays,
        };
        Document::new(page.render().expect("only text is written").into())
    };
    ByLanguage {
        ru: page(Language::Ru),
        en: page(Language::En),
    }
}

#[derive(Template)]
#[template(path = "usage.html", config = "src/endpoints/templates/askama.toml")]
struct UsageHtml<'a> {
    language: Language,
    service: &'a str,
    /// The base URL of the key's own endpoints.
    own_url: String,
    /// Whether the page has a button for payments.
    pays: bool,
}

impl UsageHtml<'_> {
    /// Returns the label and name of the input of each ceiling, the shortest period first.
    fn ceilings(&self) -> Vec<(&'static str, &'static str)> {
        let ceilings = CEILINGS.iter().rev();
        ceilings
            .map(|ceiling| {
                let (ru, en) = ceiling.holder_label;
                (self.say(ru, en), ceiling.field())
            })
            .collect()
    }

    fn say(&self, ru: &'static str, en: &'static str) -> &'static str {
        say(self.language, ru, en)
    }
}

/// Returns the language that the browser prefers (RFC 9110, 12.5.4); the first one if two are equal.
fn asked_for(headers: &HeaderMap) -> Option<Language> {
    let lists = headers.get_all(ACCEPT_LANGUAGE).iter();
    let ranges = lists
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','));
    let mut best: Option<(u16, Language)> = None;
    for range in ranges {
        let mut parts = range.split(';').map(str::trim);
        let tag = parts.next().unwrap_or_default();
        let language = match tag.split('-').next().unwrap_or_default() {
            "ru" | "RU" | "Ru" => Language::Ru,
            "en" | "EN" | "En" => Language::En,
            _ => continue,
        };
        let weight = parts
            .find_map(|parameter| parameter.strip_prefix("q="))
            .map_or(1000, thousandths);
        if weight > 0 && best.is_none_or(|(most, _)| weight > most) {
            best = Some((weight, language));
        }
    }
    best.map(|(_, language)| language)
}

/// Returns a weight like `0.85` in thousandths; 0 if it is invalid.
fn thousandths(weight: &str) -> u16 {
    let (whole, fraction) = weight.split_once('.').unwrap_or((weight, ""));
    let digits = format!("{fraction:0<3}");
    match (whole, digits.get(..3).map(str::parse)) {
        ("0", Some(Ok(thousandths))) => thousandths,
        ("1", _) => 1000,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_page_is_in_the_browsers_preferred_language() {
        for (accept, language) in [
            ("ru-RU,ru;q=0.9,en-US;q=0.8,en;q=0.7", Some(Language::Ru)),
            ("en-GB, en;q=0.9, ru;q=0.8", Some(Language::En)),
            ("de, en;q=0.2, ru;q=0.85", Some(Language::Ru)),
            ("de-DE,de;q=0.9", None),
            ("ru;q=0, en;q=0.1", Some(Language::En)),
            ("en;q=x, ru;q=0.001", Some(Language::Ru)),
            ("*", None),
            ("", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_LANGUAGE, HeaderValue::from_static(accept));
            assert_eq!(asked_for(&headers), language, "{accept}");
        }
        assert_eq!(asked_for(&HeaderMap::new()), None);
    }
}
