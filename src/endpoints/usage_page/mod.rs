//! The page on which a key's holder sees the key's spending: `GET /usage`.
//!
//! The page itself contains no data. Its script, a separate file, calls the callers' endpoints with a key that the user
//! enters. The key stays in the script's memory: it is not written to the URL, a cookie, or the browser's storage.

use askama::Template;
use http::{HeaderMap, Request, Response, header::ACCEPT_LANGUAGE};
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
        page::{HTML, isolated, rendered, varied},
    },
    text::language::say,
};

/// Content security policy that allows only the page's own script, styles, endpoints and empty icon; forms cannot be
/// submitted.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The files of the page: the name, the media type and the content of each.
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

/// Serves the page in the browser's language, and its files.
pub(crate) fn answer<B>(live: &Live, req: &Request<B>) -> Result<Response<AnswerBody>, Error> {
    let snapshot = live.snapshot();
    let Some(name) = Matched::from_request(req)?.parameter.as_deref() else {
        let pages = snapshot.usage_page();
        let language = preferred_language(req.headers()).unwrap_or(snapshot.language());
        let page = match language {
            Language::En => &pages.en,
            _ => &pages.ru,
        };
        let res = isolated(document(page, HTML, true, req)?, POLICY);
        return Ok(varied(res, "accept-language"));
    };
    let file = FILES.iter().find(|(file, ..)| *file == name);
    let (_, kind, text) = file.ok_or(Error::PathUnknown)?;
    let file = Document::new(text.as_bytes().into());
    Ok(isolated(document(&file, kind, true, req)?, POLICY))
}

/// Renders the page in both languages.
pub(crate) fn render(urls: &PublicUrls) -> ByLanguage {
    let page = |language| {
        let page = rendered(&UsageHtml {
            language,
            service: &urls.service,
            own_url: format!("{}/{}", urls.base_url, urls.service),
            pays: urls.pays,
        });
        Document::new(page.into())
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
    /// The base URL of the endpoints that the page's script calls.
    own_url: String,
    /// Whether the page has a form for payments.
    pays: bool,
}

impl UsageHtml<'_> {
    /// For each ceiling, returns the label and the name of its input field in the form, the shortest period first.
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

/// Returns the language that the browser prefers (RFC 9110, section 12.5.4). If two are preferred equally, returns the
/// first.
fn preferred_language(headers: &HeaderMap) -> Option<Language> {
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

/// Parses a weight such as `0.85` into thousandths; returns 0 if it is invalid.
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
    use http::HeaderValue;

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
            assert_eq!(preferred_language(&headers), language, "{accept}");
        }
        assert_eq!(preferred_language(&HeaderMap::new()), None);
    }
}
