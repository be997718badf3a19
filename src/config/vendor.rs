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
    check::{Check, all, web_address, without_query},
    login::{NOT_PRINTABLE, VendorLogin},
    proxy::proxy,
    raw::RawVendor,
    secret::referred,
};
use crate::text::percent::encoded;

/// Vendors by name. The value is `None` for a vendor whose section has mistakes.
pub(super) type Vendors = BTreeMap<String, Option<Arc<Vendor>>>;

/// Path appended to the base URL of a vendor that uses the Chat Completions format.
pub(super) const CHATS: &str = "/chat/completions";
pub(super) const EMBEDDINGS: &str = "/embeddings";

/// Placeholder in a path for the vendor's name of the model.
pub(super) const MODEL: &str = "{model}";

/// Versions of the Messages format that cloud vendors expect in the field `anthropic_version` of a request's body.
const BODY_VERSIONS: [&str; 2] = ["vertex-2023-10-16", "bedrock-2023-05-31"];

const DISCONNECTS: [(&str, OnDisconnect); 2] = [
    ("cancel", OnDisconnect::Cancel),
    ("drain", OnDisconnect::Drain),
];

const HEADERS_MAX: usize = 16;
/// Headers that carry credentials. A vendor's `headers` must not set them.
const KEY_HEADERS: [HeaderName; 2] = [header::AUTHORIZATION, HeaderName::from_static("x-api-key")];
/// Headers that describe the connection or the body. The gateway sets these headers, and a vendor's `headers` must not
/// set them.
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

/// Returns the sum of `connections_max` of all vendors.
pub(super) fn connections_of(vendors: &Vendors) -> usize {
    let each = vendors.values().flatten();
    each.map(|vendor| vendor.connections_max).sum()
}

impl Check<'_> {
    /// Checks the sections `[[vendor]]`. `call_time_max` bounds every call, and is the default timeout for a response
    /// that is not streamed.
    pub(super) fn vendors(&mut self, raw: Vec<RawVendor>, call_time_max: Duration) -> Vendors {
        let mut vendors = Vendors::new();
        for (index, raw) in raw.into_iter().enumerate() {
            let path = format!("vendor[{index}]");
            let advice = "give the vendor a name, by which routes refer to it";
            let name = self.required(raw.name.clone(), &format!("{path}.name"), advice);
            let vendor = self.vendor(raw, &path, call_time_max);
            let Some(name) = name else { continue };
            match vendors.entry(name) {
                Entry::Vacant(free) => {
                    free.insert(vendor);
                }
                Entry::Occupied(taken) => {
                    let problem =
                        "is already the name of another vendor: give each vendor its own name";
                    let problem = format!("{:?} {problem}", taken.key());
                    self.errors.add(format!("{path}.name"), problem);
                }
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
        let url = self.vendor_url(raw.url.clone(), formats.as_deref(), &at("url"));
        // One vendor charges twice as much for long context. The beta name that enables long context is therefore
        // removed by default.
        let betas = raw.betas_removed.clone();
        let betas = betas.unwrap_or_else(|| vec!["context-1m".to_owned()]);
        let (usual, path) = (OnDisconnect::Cancel, at("on_disconnect"));
        let given = raw.on_disconnect.as_deref();
        let on_disconnect = self.choice_or(given, usual, &path, DISCONNECTS);
        let versions = BODY_VERSIONS.map(|version| (version, Some(version)));
        let version = raw.anthropic_version.as_deref();
        let version = self.choice_or(version, None, &at("anthropic_version"), versions);
        let (connections, path) = (raw.connections_max, at("connections_max"));
        let connections_max = self.whole(connections, &path, 1_024, 1..=1_000_000);
        let call = call_time_max.as_secs();
        let [first_byte, plain, head, idle] = [
            ("first_byte_seconds", raw.first_byte_seconds, 120, 1),
            ("plain_seconds", raw.plain_seconds, call, 1),
            ("head_seconds", raw.head_seconds, 30, 0),
            ("idle_seconds", raw.idle_seconds, 120, 1),
        ]
        .map(|(field, given, default, min)| self.seconds(given, &at(field), default, min));
        let egress = self.egress(&raw, url.as_deref(), &at);
        let login = self.vendor_login(&raw, &egress, &at);
        let headers = self.vendor_headers(&raw, &at);
        let suffix = self.suffix(&raw, formats.as_deref(), &at);

        let surfaces = self.surfaces(&formats?, &url?, &suffix?, login.as_ref()?, &at("url"))?;
        let mut surfaces = surfaces.into_iter();
        let (format, endpoint, credentials) = surfaces.next()?;
        let mut credentials = credentials.into_iter();
        let vendor = Vendor::new(raw.name?, format, endpoint, credentials.next()?)
            .authentication(login?.authentication())
            .headers(headers?)
            .on_disconnect(on_disconnect)
            .betas_removed(betas)
            .anthropic_version(version)
            .egress(egress)
            .first_byte_timeout(first_byte)
            .plain_timeout(plain)
            .head_timeout(head)
            .idle_timeout(idle)
            .connections_max(connections_max);
        let vendor = credentials.fold(vendor, Vendor::credential);
        let also = |vendor: Vendor, (format, endpoint, credentials)| {
            Vendor::also(vendor, format, endpoint, credentials)
        };
        Some(Arc::new(surfaces.fold(vendor, also)))
    }

    /// Returns the base URL of a vendor, without a slash at the end.
    fn vendor_url(
        &mut self,
        given: Option<String>,
        formats: Option<&[Format]>,
        path: &str,
    ) -> Option<String> {
        let advice = "give the base URL of the vendor's API, like https://api.openai.com/v1";
        let url = self.required(given, path, advice)?;
        let is_valid = web_address(&url).and_then(without_query);
        self.keep(is_valid, path)?;
        let url = url.trim_end_matches('/').to_owned();
        for format in formats.unwrap_or_default() {
            let formats = formats.map_or(0, <[_]>::len);
            self.endpoint_in_url(*format, formats, &url, path);
        }
        Some(url)
    }

    /// Returns the formats of a vendor, at least one, with the preferred format first.
    fn formats(&mut self, raw: &RawVendor, at: &dyn Fn(&str) -> String) -> Option<Vec<Format>> {
        const CHOICES: [(&str, Format); 3] = [
            ("chat", Format::Chat),
            ("messages", Format::Messages),
            ("responses", Format::Responses),
        ];
        const ADVICE: &str = "give \"chat\", \"messages\" or \"responses\"";
        let Some(given) = &raw.formats else {
            // Invalid formats were removed, and their mistakes were reported. The formats must not be reported as
            // missing, too.
            if raw.format.is_none() && self.errors.has_reported(&at("formats")) {
                return None;
            }
            let format = self.required(raw.format.clone(), &at("format"), ADVICE)?;
            let format = self.choice(&format, &at("format"), CHOICES)?;
            return Some(vec![format]);
        };
        if raw.format.is_some() {
            return self.refuse(
                at("formats"),
                "is set together with format: remove format, and list all formats in formats",
            );
        }
        if given.is_empty() {
            let problem = "must list at least one format, like [\"chat\", \"responses\"]";
            return self.refuse(at("formats"), problem);
        }
        let mut formats = Vec::new();
        for (index, text) in given.iter().enumerate() {
            let path = at(&format!("formats[{index}]"));
            let format = self.choice(text, &path, CHOICES)?;
            if formats.contains(&format) {
                let problem = format!("{text:?} is listed twice: remove one");
                return self.refuse(path, problem);
            }
            formats.push(format);
        }
        Some(formats)
    }

    /// Returns each format of a vendor, with the URL of its endpoint and the values of the header that carries the key.
    fn surfaces(
        &mut self,
        formats: &[Format],
        url: &str,
        suffix: &Suffix,
        login: &VendorLogin,
        at: &str,
    ) -> Option<Vec<(Format, Uri, Vec<HeaderValue>)>> {
        let surfaces = formats.iter().map(|format| {
            let (base, path) = match format {
                Format::Chat => (url, CHATS),
                Format::Messages => (messages_root(url, formats.len()), "/v1/messages"),
                Format::Responses => (url, "/responses"),
            };
            let path = suffix.path.as_deref().unwrap_or(path);
            let endpoint = format!("{base}{path}{}", suffix.query).parse::<Uri>();
            let problem =
                "is too long: together with the path of the format, it is not a valid URL";
            let endpoint = self.keep(endpoint.map_err(|_| problem), at);
            let credentials = self.credentials(*format, login);
            Some((*format, endpoint?, credentials?))
        });
        surfaces.collect()
    }

    fn credentials(&mut self, format: Format, login: &VendorLogin) -> Option<Vec<HeaderValue>> {
        let (keys, header) = match login {
            VendorLogin::Keys { keys, header } => (keys, header),
            VendorLogin::Login(_, identity) => return Some(vec![identity.clone()]),
            VendorLogin::None => return Some(vec![HeaderValue::from_static("none")]),
        };
        let values = keys.iter().map(|(path, key)| {
            let key = key.expose_secret();
            let value = match header {
                None => format.credential(key),
                Some(header) => header.value(key),
            };
            self.keep(value.map_err(|_| NOT_PRINTABLE), path)
        });
        all(values)
    }

    fn vendor_headers(
        &mut self,
        raw: &RawVendor,
        at: &dyn Fn(&str) -> String,
    ) -> Option<HeaderMap> {
        let headers = raw.headers.iter().map(|(name, text)| {
            let path = at(&format!("headers.{name}"));
            self.vendor_header(name, text, &path)
        });
        let headers = all(headers);
        if raw.headers.len() > HEADERS_MAX {
            let problem = format!("must have at most {HEADERS_MAX} headers");
            return self.refuse(at("headers"), problem);
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
            let problem = "is the header for the key: write the key into the setting key, and add login = { header = \
                 \"…\" } if the vendor expects another header";
            return self.refuse(path, problem);
        }
        if OWN_HEADERS.contains(&name) {
            return self.refuse(path, "is set by the gateway: remove it");
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
                    "must be a path like \"/deployments/{model}/chat/completions\", without other braces and without \
                     a query",
                );
            }
            if formats.is_some_and(|formats| formats.len() > 1) {
                problem(
                    "path",
                    "is valid for one format only: write a separate [[vendor]] for each format",
                );
            }
        }
        for (name, value) in &raw.query {
            if value.starts_with("${") || value.starts_with("file:") {
                problem(
                    &format!("query.{name}"),
                    "must not be a secret, because logs and the console show URLs: use login = { header = \"…\" }",
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

    /// Reports a base URL that already contains the endpoint's path, or the beginning of this path.
    fn endpoint_in_url(&mut self, format: Format, formats: usize, url: &str, path: &str) {
        let ends: &[&str] = match format {
            Format::Chat => &[CHATS, EMBEDDINGS],
            Format::Messages => &["/v1/messages", "/messages"],
            Format::Responses => &["/responses"],
        };
        if let Some(end) = ends.iter().find(|end| url.ends_with(**end)) {
            let problem = format!("ends in {end}: remove {end}, because the gateway appends it");
            self.errors.add(path, problem);
        } else if format == Format::Messages && messages_root(url, formats).ends_with("/v1") {
            self.warnings.add(
                path,
                "ends in /v1, so calls in the Messages format go to …/v1/v1/messages: remove /v1 if this is not \
                 intended",
            );
        }
    }

    /// Returns the gateway's keys at the vendor, at least one, each with the path of its setting.
    pub(super) fn keys(
        &mut self,
        raw: &RawVendor,
        at: &dyn Fn(&str) -> String,
    ) -> Option<Vec<(String, SecretString)>> {
        const ADVICE: &str =
            "give the gateway's key at the vendor as \"${NAME}\" or \"file:/path\"";
        let Some(keys) = &raw.keys else {
            // Invalid keys were removed, and their mistakes were reported. The keys must not be reported as missing,
            // too.
            if raw.key.is_none() && self.errors.has_reported(&at("keys")) {
                return None;
            }
            let key = self.secret(raw.key.clone(), &at("key"), ADVICE)?;
            return Some(vec![(at("key"), key)]);
        };
        if raw.key.is_some() {
            return self.refuse(
                at("keys"),
                "is set together with key: remove key, and list all keys in keys",
            );
        }
        if keys.is_empty() || keys.len() > KEYS_MAX {
            return self.refuse(
                at("keys"),
                format!("must have 1 to {KEYS_MAX} keys, like [\"${{ONE}}\", \"${{TWO}}\"]"),
            );
        }
        let keys = self.items(keys, &at("keys"), |check, key, path| {
            let key = check.secret(Some(key.clone()), path, ADVICE)?;
            Some((path.to_owned(), key))
        })?;
        let mut seen = HashMap::new();
        for (index, (path, key)) in keys.iter().enumerate() {
            if let Some(first) = seen.insert(key.expose_secret(), index) {
                let problem = format!("is the same key as keys[{first}]: remove one of the two");
                return self.refuse(path, problem);
            }
        }
        Some(keys)
    }

    fn egress(
        &mut self,
        raw: &RawVendor,
        url: Option<&str>,
        at: &dyn Fn(&str) -> String,
    ) -> Egress {
        let connect_timeout = self.seconds(raw.connect_seconds, &at("connect_seconds"), 3, 1);
        // The default is below 60 seconds, because vendors and the proxies in front of them may close connections after
        // 60 seconds.
        let idle = raw.idle_connection_seconds;
        let idle = self.whole(idle, &at("idle_connection_seconds"), 50, 1..=HOUR_SECONDS);
        let proxy_url = raw.proxy.as_deref().filter(|proxy| !proxy.is_empty());
        let plain = url.is_some_and(|url| url.starts_with("http:"));
        let protocol = match (raw.http2.unwrap_or(false), plain) {
            (false, _) => Protocol::Http1,
            (true, false) => Protocol::Http2Offered,
            (true, true) => Protocol::Http2,
        };
        let mut egress = Egress::default()
            .connect_timeout(connect_timeout)
            .protocol(protocol)
            .idle_connection_timeout(Duration::from_secs(idle));
        egress.proxy = proxy_url.and_then(|text| self.keep(proxy(text, self.env), &at("proxy")));
        egress.authorities = self.authorities(raw.ca_file.as_deref(), plain, &at("ca_file"));
        egress
    }
}

/// The path and the query that are appended to a vendor's base URL.
struct Suffix {
    /// The path. `None`: the standard path of the format.
    path: Option<String>,
    /// The query, beginning with `?`. It may be empty.
    query: String,
}

/// Returns the URL to which `/v1/messages` is appended. If a vendor has several formats, their common base URL already
/// ends in `/v1`, which is removed here.
fn messages_root(url: &str, formats: usize) -> &str {
    match formats {
        1 => url,
        _ => url.strip_suffix("/v1").unwrap_or(url),
    }
}

#[cfg(test)]
mod tests;
