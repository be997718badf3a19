//! Checks the sections `[[vendor]]`.

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    sync::Arc,
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use secrecy::{ExposeSecret, SecretString};
use tollgate_layers::{
    call::Format,
    model::{Egress, OnDisconnect, Protocol, Vendor},
};

use super::{
    check::{Check, web_address, without_query},
    login::{NOT_PRINTABLE, VendorLogin},
    proxy::proxy,
    raw::RawVendor,
    secret::referred,
};
use crate::text::percent::encoded;

/// Vendors by name; the value is `None` for a vendor whose section has mistakes.
pub(super) type Vendors = BTreeMap<String, Option<Arc<Vendor>>>;

/// Path appended to the base URL of a vendor of the chat format.
pub(super) const CHATS: &str = "/chat/completions";
pub(super) const EMBEDDINGS: &str = "/embeddings";

/// Placeholder for the vendor's name of the model in a path.
pub(super) const MODEL: &str = "{model}";

/// Versions of the messages format that clouds take from the body.
const BODY_VERSIONS: [&str; 2] = ["vertex-2023-10-16", "bedrock-2023-05-31"];

const HEADERS_MAX: usize = 16;
/// Headers that carry a credential, which a vendor's `headers` must not set.
const KEY_HEADERS: [HeaderName; 2] = [header::AUTHORIZATION, HeaderName::from_static("x-api-key")];
/// Headers that describe the connection or the body, which a vendor's `headers` must not set.
const OWN_HEADERS: [HeaderName; 11] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::ACCEPT,
    header::ACCEPT_ENCODING,
];

const HOUR_SECONDS: u64 = 3600;
const KEYS_MAX: usize = 100;

/// Returns the maximum number of connections to all these vendors together.
pub(super) fn connections_of(vendors: &Vendors) -> usize {
    let each = vendors.values().flatten();
    each.map(|vendor| vendor.connections_max).sum()
}

impl Check<'_> {
    /// Checks the vendors. `call_time_max` bounds every call, and is the default timeout for a plain answer.
    pub(super) fn vendors(&mut self, raw: Vec<RawVendor>, call_time_max: Duration) -> Vendors {
        let mut vendors = Vendors::new();
        for (index, raw) in raw.into_iter().enumerate() {
            let path = format!("vendor[{index}]");
            let name = self.required(
                raw.name.clone(),
                &format!("{path}.name"),
                "routes refer to it",
            );
            let vendor = self.vendor(raw, &path, call_time_max);
            let Some(name) = name else { continue };
            match vendors.entry(name) {
                Entry::Vacant(free) => {
                    free.insert(vendor);
                }
                Entry::Occupied(taken) => self.errors.add(
                    format!("{path}.name"),
                    format!("{:?} is used already: name each vendor once", taken.key()),
                ),
            }
        }
        vendors
    }

    fn vendor(
        &mut self,
        raw: RawVendor,
        path: &str,
        call_time_max: Duration,
    ) -> Option<Arc<Vendor>> {
        let at = |field: &str| format!("{path}.{field}");
        let formats = self.formats(&raw, &at);
        let url = self.required(
            raw.url.clone(),
            &at("url"),
            "give the vendor's base address, like https://api.openai.com/v1",
        );
        let url = url.and_then(|url| {
            let base = web_address(&url)
                .and_then(without_query)
                .map(|_| url.trim_end_matches('/').to_owned());
            self.keep(base, &at("url"))
        });
        if let (Some(formats), Some(url)) = (&formats, &url) {
            for format in formats {
                self.endpoint_in_url(*format, formats.len(), url, &at("url"));
            }
        }
        // One vendor charges double for its long context, so the beta that enables it is removed by default.
        let betas_removed = raw
            .betas_removed
            .clone()
            .unwrap_or_else(|| vec!["context-1m".to_owned()]);
        let on_disconnect = self.choice_or(
            raw.on_disconnect.as_deref(),
            OnDisconnect::Cancel,
            &at("on_disconnect"),
            [
                ("cancel", OnDisconnect::Cancel),
                ("drain", OnDisconnect::Drain),
            ],
        );
        let anthropic_version = self.choice_or(
            raw.anthropic_version.as_deref(),
            None,
            &at("anthropic_version"),
            BODY_VERSIONS.map(|version| (version, Some(version))),
        );
        let connections_max = self.whole(
            raw.connections_max,
            &at("connections_max"),
            1_024,
            1..=1_000_000,
        );
        let first_byte_timeout =
            self.seconds(raw.first_byte_seconds, &at("first_byte_seconds"), 120, 1);
        let plain_timeout = self.seconds(
            raw.plain_seconds,
            &at("plain_seconds"),
            call_time_max.as_secs(),
            1,
        );
        let head_timeout = self.seconds(raw.head_seconds, &at("head_seconds"), 30, 0);
        let idle_timeout = self.seconds(raw.idle_seconds, &at("idle_seconds"), 120, 1);
        let egress = self.egress(&raw, url.as_deref(), &at);
        let login = self.vendor_login(&raw, egress.as_ref(), &at);
        let headers = self.vendor_headers(&raw, &at);
        let suffix = self.suffix(&raw, formats.as_deref(), &at);

        let (formats, url, login, suffix) = (formats?, url?, login?, suffix?);
        let root = messages_root(&url, formats.len()).to_owned();
        let surfaces = formats.into_iter().map(|format| {
            let url = match format {
                Format::Messages => &root,
                Format::Chat | Format::Responses => &url,
            };
            self.surface(format, (url, &suffix), &login, &at("url"))
        });
        let mut surfaces = surfaces.collect::<Option<Vec<_>>>()?.into_iter();
        let (format, endpoint, credentials) = surfaces.next()?;
        let mut credentials = credentials.into_iter();
        let vendor = Vendor::new(raw.name?, format, endpoint, credentials.next()?)
            .authentication(login.authentication())
            .headers(headers?)
            .on_disconnect(on_disconnect?)
            .betas_removed(betas_removed)
            .anthropic_version(anthropic_version?)
            .egress(egress?)
            .first_byte_timeout(first_byte_timeout?)
            .plain_timeout(plain_timeout?)
            .head_timeout(head_timeout?)
            .idle_timeout(idle_timeout?)
            .connections_max(connections_max?);
        let vendor = credentials.fold(vendor, Vendor::credential);
        let also = |vendor: Vendor, (format, endpoint, credentials)| {
            Vendor::also(vendor, format, endpoint, credentials)
        };
        Some(Arc::new(surfaces.fold(vendor, also)))
    }

    /// Returns the formats of a vendor, the preferred one first. Never empty.
    fn formats(&mut self, raw: &RawVendor, at: &dyn Fn(&str) -> String) -> Option<Vec<Format>> {
        const CHOICES: [(&str, Format); 3] = [
            ("chat", Format::Chat),
            ("messages", Format::Messages),
            ("responses", Format::Responses),
        ];
        const ADVICE: &str = "give \"chat\", \"messages\" or \"responses\"";
        let Some(given) = &raw.formats else {
            // Invalid formats were removed and already reported, so they are not reported as missing.
            if raw.format.is_none() && self.errors.has_reported(&at("formats")) {
                return None;
            }
            let format = self.required(raw.format.clone(), &at("format"), ADVICE)?;
            let format = self.choice(&format, &at("format"), CHOICES)?;
            return Some(vec![format]);
        };
        if raw.format.is_some() {
            self.errors.add(
                at("formats"),
                "is set together with format: keep one of them; formats may list all",
            );
            return None;
        }
        if given.is_empty() {
            let problem = "must name at least one, like [\"chat\", \"responses\"]";
            self.errors.add(at("formats"), problem);
            return None;
        }
        let mut formats = Vec::new();
        for (index, text) in given.iter().enumerate() {
            let path = at(&format!("formats[{index}]"));
            let format = self.choice(text, &path, CHOICES)?;
            if formats.contains(&format) {
                let problem = format!("{text:?} is listed already: name each format once");
                self.errors.add(path, problem);
                return None;
            }
            formats.push(format);
        }
        Some(formats)
    }

    /// Returns the address and the key header of a vendor for one format.
    fn surface(
        &mut self,
        format: Format,
        (url, suffix): (&str, &Suffix),
        login: &VendorLogin,
        at: &str,
    ) -> Option<(Format, Uri, Vec<HeaderValue>)> {
        let path = suffix.path.as_deref().unwrap_or(match format {
            Format::Chat => CHATS,
            Format::Messages => "/v1/messages",
            Format::Responses => "/responses",
        });
        let endpoint = format!("{url}{path}{}", suffix.query)
            .parse::<Uri>()
            .map_err(|_| "is too long".to_owned());
        let endpoint = self.keep(endpoint, at);
        let credentials = match login {
            VendorLogin::Keys { keys, header } => {
                let credential = |key| match header {
                    None => format.credential(key),
                    Some(header) => header.value(key),
                };
                let values: Vec<_> = keys
                    .iter()
                    .map(|(path, key)| {
                        let value = credential(key.expose_secret()).map_err(|_| NOT_PRINTABLE);
                        self.keep(value, path)
                    })
                    .collect();
                values.into_iter().collect::<Option<Vec<_>>>()?
            }
            VendorLogin::Login(_, identity) => vec![identity.clone()],
            VendorLogin::None => vec![HeaderValue::from_static("none")],
        };
        Some((format, endpoint?, credentials))
    }

    /// Returns the headers that a vendor requires in every call.
    fn vendor_headers(
        &mut self,
        raw: &RawVendor,
        at: &dyn Fn(&str) -> String,
    ) -> Option<HeaderMap> {
        let mut headers = Some(HeaderMap::new());
        for (name, text) in &raw.headers {
            let path = at(&format!("headers.{name}"));
            let header = self.vendor_header(name, text, &path);
            headers = headers.zip(header).map(|(mut headers, (name, value))| {
                headers.insert(name, value);
                headers
            });
        }
        if raw.headers.len() > HEADERS_MAX {
            let problem = format!("must have at most {HEADERS_MAX} headers");
            self.errors.add(at("headers"), problem);
            return None;
        }
        headers
    }

    fn vendor_header(
        &mut self,
        name: &str,
        text: &str,
        path: &str,
    ) -> Option<(HeaderName, HeaderValue)> {
        let name = self.header_name(name, path)?;
        if KEY_HEADERS.contains(&name) {
            let problem = "carries the key: write key, and login = { header = \"…\" } if it is another header";
            self.errors.add(path, problem);
            return None;
        }
        if OWN_HEADERS.contains(&name) {
            self.errors.add(path, "is set by the gateway: remove it");
            return None;
        }
        let secret = referred(text, self.env);
        let is_secret = secret.is_some();
        let value = secret.unwrap_or_else(|| Ok(text.to_owned()));
        let value = self.keep(value, path)?;
        let value = HeaderValue::from_str(&value).map_err(|_| NOT_PRINTABLE);
        let mut value = self.keep(value, path)?;
        value.set_sensitive(is_secret);
        Some((name, value))
    }

    /// Returns the path and query after the base URL.
    fn suffix(
        &mut self,
        raw: &RawVendor,
        formats: Option<&[Format]>,
        at: &dyn Fn(&str) -> String,
    ) -> Option<Suffix> {
        let mut is_valid = true;
        let mut problem = |field: &str, problem: &str| {
            self.errors.add(at(field), problem);
            is_valid = false;
        };
        if let Some(path) = &raw.path {
            let is_path = path.starts_with('/')
                && !path.contains(['?', '#', ' '])
                && !path.replace(MODEL, "").contains(['{', '}'])
                && path.replace(MODEL, "m").parse::<Uri>().is_ok();
            if !is_path {
                problem(
                    "path",
                    "must be a path like \"/deployments/{model}/chat/completions\", with no other braces and no query",
                );
            }
            if formats.is_some_and(|formats| formats.len() > 1) {
                problem(
                    "path",
                    "is for one format: give each format a [[vendor]] of its own",
                );
            }
        }
        for (name, value) in &raw.query {
            if value.starts_with("${") || value.starts_with("file:") {
                problem(
                    &format!("query.{name}"),
                    "must not be a secret, addresses are shown: use login = { header = \"…\" }",
                );
            }
        }
        let pairs = raw.query.iter();
        let pairs = pairs.map(|(name, value)| format!("{}={}", encoded(name), encoded(value)));
        let query = pairs.collect::<Vec<_>>().join("&");
        let mark = if query.is_empty() { "" } else { "?" };
        is_valid.then(|| Suffix {
            path: raw.path.clone(),
            query: format!("{mark}{query}"),
        })
    }

    /// Reports a base URL that already contains the endpoint's path or a part of it.
    fn endpoint_in_url(&mut self, format: Format, formats: usize, url: &str, path: &str) {
        let ends: &[&str] = match format {
            Format::Chat => &[CHATS, EMBEDDINGS],
            Format::Messages => &["/v1/messages", "/messages"],
            Format::Responses => &["/responses"],
        };
        if let Some(end) = ends.iter().find(|end| url.ends_with(**end)) {
            let problem = format!("ends in {end}: remove that, because it is appended");
            self.errors.add(path, problem);
        } else if format == Format::Messages && messages_root(url, formats).ends_with("/v1") {
            self.warnings.add(
                path,
                "ends in /v1, and calls of the messages format go to …/v1/v1/messages: if that is not intended, remove it",
            );
        }
    }

    /// Returns the keys at the vendor, each with the path of its setting. Never empty.
    pub(super) fn keys(
        &mut self,
        raw: &RawVendor,
        at: &dyn Fn(&str) -> String,
    ) -> Option<Vec<(String, SecretString)>> {
        const ADVICE: &str = "give our key at the vendor as \"${NAME}\" or \"file:/path\"";
        let Some(keys) = &raw.keys else {
            // Invalid keys were removed and already reported, so they are not reported as missing.
            if raw.key.is_none() && self.errors.has_reported(&at("keys")) {
                return None;
            }
            let key = self.secret(raw.key.clone(), &at("key"), ADVICE)?;
            return Some(vec![(at("key"), key)]);
        };
        if raw.key.is_some() {
            self.errors.add(
                at("keys"),
                "is set together with key: keep one of them; keys may list all",
            );
            return None;
        }
        if keys.is_empty() || keys.len() > KEYS_MAX {
            self.errors.add(
                at("keys"),
                format!("must have 1 to {KEYS_MAX} keys, like [\"${{ONE}}\", \"${{TWO}}\"]"),
            );
            return None;
        }
        let keys: Vec<_> = keys
            .iter()
            .enumerate()
            .map(|(index, key)| {
                let path = at(&format!("keys[{index}]"));
                let key = self.secret(Some(key.clone()), &path, ADVICE)?;
                Some((path, key))
            })
            .collect();
        let keys: Vec<_> = keys.into_iter().collect::<Option<_>>()?;
        let mut seen = HashMap::new();
        for (index, (path, key)) in keys.iter().enumerate() {
            if let Some(first) = seen.insert(key.expose_secret(), index) {
                let problem = format!("is the same key as keys[{first}]: name each key once");
                self.errors.add(path, problem);
                return None;
            }
        }
        Some(keys)
    }

    fn egress(
        &mut self,
        raw: &RawVendor,
        url: Option<&str>,
        at: &dyn Fn(&str) -> String,
    ) -> Option<Egress> {
        let connect_timeout = self.seconds(raw.connect_seconds, &at("connect_seconds"), 3, 1);
        // The default is below 60 seconds, after which vendors and the proxies before them may close connections.
        let idle_connection_timeout = self.whole(
            raw.idle_connection_seconds,
            &at("idle_connection_seconds"),
            50,
            1..=HOUR_SECONDS,
        );
        let proxy = match raw.proxy.as_deref().filter(|proxy| !proxy.is_empty()) {
            None => Some(None),
            Some(text) => self.keep(proxy(text, self.env), &at("proxy")).map(Some),
        };
        let plain = url.is_some_and(|url| url.starts_with("http:"));
        let authorities = self.authorities(raw.ca_file.as_deref(), plain, &at("ca_file"));
        let protocol = match (raw.http2.unwrap_or(false), plain) {
            (false, _) => Protocol::Http1,
            (true, false) => Protocol::Http2Offered,
            (true, true) => Protocol::Http2,
        };
        let mut egress = Egress::default()
            .connect_timeout(connect_timeout?)
            .protocol(protocol)
            .idle_connection_timeout(Duration::from_secs(idle_connection_timeout?));
        egress.proxy = proxy?;
        egress.authorities = authorities?;
        Some(egress)
    }

    pub(super) fn choice_or<T: Copy, const N: usize>(
        &mut self,
        given: Option<&str>,
        usual: T,
        path: &str,
        choices: [(&'static str, T); N],
    ) -> Option<T> {
        given.map_or(Some(usual), |text| self.choice(text, path, choices))
    }
}

/// Path and query after the base URL of a vendor.
struct Suffix {
    /// The path; `None`: the path of the format.
    path: Option<String>,
    /// The query, from its `?`; may be empty.
    query: String,
}

/// Returns the base for `/v1/messages`. With several formats, the shared base URL already ends in `/v1`, which is
/// removed so that it is not repeated.
fn messages_root(url: &str, formats: usize) -> &str {
    match formats {
        1 => url,
        _ => url.strip_suffix("/v1").unwrap_or(url),
    }
}

#[cfg(test)]
mod tests;
