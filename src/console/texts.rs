//! The texts of the pages. Templates and code have them in English; in code, [`english`] marks them. The tables in
//! `russian.rs` and `russian_cabinet.rs` have the Russian texts.

use std::{collections::HashMap, fmt, sync::LazyLock, time::Duration};

use http::{HeaderMap, Response, header};
use tollgate_layers::respond::Language;

use super::{cookie::Cookie, russian::RUSSIAN, russian_cabinet};
use crate::text::language::say;

/// The cookie that stores the chosen language.
const COOKIE: Cookie = Cookie {
    name: "tollgate_language",
    path: "/",
    same_site: "Lax",
};
const COOKIE_AGE: Duration = Duration::from_secs(365 * 24 * 3600);

static TABLE: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
    let all = RUSSIAN.iter().chain(russian_cabinet::RUSSIAN);
    all.copied().collect()
});

tokio::task_local! {
    /// The language of the request that this task serves.
    pub(crate) static LANGUAGE: Language;
}

/// Marks an English text that a page translates later.
pub(crate) const fn english(text: &'static str) -> &'static str {
    text
}

/// Returns a text in a language; a text that is not in the table is returned unchanged.
pub(crate) fn translated(text: &str, language: Language) -> &str {
    match language {
        Language::Ru => TABLE.get(text).copied().unwrap_or(text),
        _ => text,
    }
}

/// Returns the language of the request that this task serves.
pub(crate) fn chosen() -> Language {
    LANGUAGE
        .try_with(|language| *language)
        .unwrap_or(Language::En)
}

/// Returns the language with this code, `ru` or `en`; `None` for any other text.
pub(crate) fn named(code: &str) -> Option<Language> {
    match code {
        "ru" => Some(Language::Ru),
        "en" => Some(Language::En),
        _ => None,
    }
}

/// Returns the language that the browser's cookie names, or else the language that the browser prefers. Returns English
/// if the request names no language.
pub(crate) fn of_browser(headers: &HeaderMap) -> Language {
    let cookie = COOKIE.values(headers).find_map(named);
    let accepted = headers.get(header::ACCEPT_LANGUAGE);
    let accepted = accepted.and_then(|value| value.to_str().ok());
    let mut accepted = accepted.unwrap_or_default().split(',');
    let accepted = || {
        accepted.find_map(|range| {
            let tag = range.split([';', '-']).next()?;
            named(&tag.trim().to_ascii_lowercase())
        })
    };
    cookie.or_else(accepted).unwrap_or(Language::En)
}

/// Sets a cookie that stores the chosen language for a year.
pub(super) fn with_cookie<B>(res: Response<B>, language: Language) -> Response<B> {
    COOKIE.set(res, say(language, "ru", "en"), COOKIE_AGE, false)
}

/// Translates a text and replaces `{0}` and `{1}` by the values.
pub(crate) fn filled(text: &str, language: Language, values: &[&dyn fmt::Display]) -> String {
    let mut filled = String::new();
    let mut rest = translated(text, language);
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let Some((place, after)) = after.split_once('}') else {
            filled.push('{');
            rest = after;
            continue;
        };
        let value = place
            .parse()
            .ok()
            .and_then(|place: usize| values.get(place));
        if let Some(value) = value {
            filled.push_str(&value.to_string());
        }
        rest = after;
    }
    filled.push_str(rest);
    filled
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use http::HeaderValue;

    use super::*;

    /// Returns the string literals that follow one of `begins` in all files of a folder with this extension.
    fn literals(folder: &str, extension: &str, begins: &[&str]) -> BTreeSet<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let mut found = BTreeSet::new();
        for file in fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_none_or(|it| it != extension) || path.ends_with("texts.rs") {
                continue;
            }
            let code = fs::read_to_string(&path).unwrap();
            for begin in begins {
                for after in code.split(begin).skip(1) {
                    // The literal may be on the line after `begin`.
                    if let Some(literal) = after.trim_start().strip_prefix('"') {
                        let end = literal.find('"').unwrap();
                        assert!(!literal[..end].contains('\\'), "{}", &literal[..end]);
                        found.insert(literal[..end].to_owned());
                    }
                }
            }
        }
        found
    }

    fn places(text: &str) -> BTreeSet<String> {
        text.split('{')
            .skip(1)
            .map(|it| it[..it.find('}').unwrap()].to_owned())
            .collect()
    }

    #[test]
    fn every_console_text_has_a_russian_translation_and_no_translation_is_unused() {
        let mut texts = BTreeSet::new();
        for folder in ["src/console", "src/cabinet"] {
            let templates = format!("{folder}/templates");
            let calls = ["page.t(", "page.fill(", "page.fill2("];
            texts.extend(literals(&templates, "html", &calls));
            texts.extend(literals(folder, "rs", &["english("]));
        }
        texts.extend(words_of_the_api());
        assert!(texts.len() > 100, "{texts:?}");
        let all = || RUSSIAN.iter().chain(russian_cabinet::RUSSIAN);
        let table: BTreeSet<String> = all().map(|(english, _)| (*english).to_owned()).collect();
        assert_eq!(table.len(), all().count(), "a text occurs twice");
        let missing: Vec<_> = texts.difference(&table).collect();
        let unused: Vec<_> = table.difference(&texts).collect();
        assert!(
            missing.is_empty() && unused.is_empty(),
            "missing {missing:#?}, unused {unused:#?}"
        );
        for (english, russian) in all() {
            assert_eq!(places(english), places(russian), "{english}");
            assert!(!russian.is_empty());
        }
    }

    /// Returns texts that the pages show but that the API or other modules define.
    fn words_of_the_api() -> Vec<String> {
        let states = [
            "active",
            "disabled",
            "deleted",
            "removed",
            "stopped",
            "answering",
            "untried",
            "failing",
            "shut",
            "trying",
            "resting",
            "on",
            "off",
            "waiting",
            "new",
            "gone",
            "admin",
            "finance",
            "support",
            "read",
            "invited",
            "plain",
            "stream",
            "embedding",
            "expired",
        ];
        let ceilings = crate::api::ceilings::CEILINGS.iter();
        let labels = ceilings.flat_map(|it| [it.labels.0, it.labels.1, it.labels.2]);
        let presets = crate::config::presets().iter().map(|it| &it.about);
        let of_presets = presets.flat_map(|about| {
            let values = about.values.values();
            let values = values.flat_map(|it| [&*it.title, &*it.find]);
            values.chain(about.logins.values().map(|it| &*it.title))
        });
        let all = labels.chain(states).chain(of_presets);
        all.map(str::to_owned).collect()
    }

    #[test]
    fn console_language_is_the_chosen_one_or_else_the_language_of_the_browser() {
        for (cookie, accepted, language) in [
            ("", "ru-RU,ru;q=0.9,en;q=0.8", Language::Ru),
            ("", "de, en-GB;q=0.8, ru;q=0.5", Language::En),
            ("", "de", Language::En),
            ("a=b; tollgate_language=ru", "en", Language::Ru),
            ("tollgate_language=en", "ru", Language::En),
            ("tollgate_language=xx", "ru", Language::Ru),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::COOKIE, HeaderValue::from_static(cookie));
            headers.insert(header::ACCEPT_LANGUAGE, HeaderValue::from_static(accepted));
            assert_eq!(of_browser(&headers), language, "{cookie} {accepted}");
        }
        let res = with_cookie(Response::new(()), Language::Ru);
        assert_eq!(
            res.headers()[header::SET_COOKIE],
            "tollgate_language=ru; Path=/; Max-Age=31536000; HttpOnly; SameSite=Lax"
        );
    }

    #[test]
    fn placeholders_in_inserted_values_are_not_replaced() {
        let filled = |english| filled(english, Language::En, &[&"{1}", &2]);
        assert_eq!(filled("{1} of {0}, {1}"), "2 of {1}, 2");
        assert_eq!(filled("none"), "none");
    }
}
