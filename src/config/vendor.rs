//! What `[[vendor]]` and `model.routes` mean.

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    sync::Arc,
    time::Duration,
};

use http::{HeaderValue, Uri};
use secrecy::{ExposeSecret, SecretString};
use tollgate_layers::{
    call::Format,
    model::{
        Dialect, Egress, ModelKind, OnDisconnect, OutputField, Protocol, Proxy, Route, SystemRole,
        Thinking, Vendor,
    },
};

use super::{
    check::{Check, web_address, without_query},
    raw::{RawDialect, RawRoute, RawVendor},
    secret::{Env, referred},
};
use crate::text::similar::nearest;

/// Vendors by name; `None` for one that has mistakes of its own.
pub(super) type Vendors = BTreeMap<String, Option<Arc<Vendor>>>;

/// Behind the address of a vendor of the chat format.
const CHATS: &str = "/chat/completions";
const EMBEDDINGS: &str = "/embeddings";

const HOUR_SECONDS: u64 = 3600;
const KEYS_MAX: usize = 100;
/// What SOCKS5 can carry (RFC 1929), and more than anybody needs in the other protocol.
const PROXY_WORD_MAX: usize = 255;

/// So many connections these vendors may have, all together.
pub(super) fn connections_of(vendors: &Vendors) -> usize {
    let each = vendors.values().flatten();
    each.map(|vendor| vendor.connections_max).sum()
}

impl Check<'_> {
    /// No call takes longer than `call_time_max`: so long a plain answer may let itself be waited for.
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
                    format!("{:?} is there already: name each vendor once", taken.key()),
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
        // The long context of one vendor costs double.
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
        let keys = self.keys(&raw, &at);

        let (formats, url, keys) = (formats?, url?, keys?);
        let root = messages_root(&url, formats.len()).to_owned();
        let surfaces = formats.into_iter().map(|format| {
            let url = match format {
                Format::Messages => &root,
                Format::Chat | Format::Responses => &url,
            };
            self.surface(format, url, &keys, &at("url"))
        });
        let mut surfaces = surfaces.collect::<Option<Vec<_>>>()?.into_iter();
        let (format, endpoint, credentials) = surfaces.next()?;
        let mut credentials = credentials.into_iter();
        let vendor = Vendor::new(raw.name?, format, endpoint, credentials.next()?)
            .on_disconnect(on_disconnect?)
            .betas_removed(betas_removed)
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

    /// What a vendor speaks, the first of it first. Never empty.
    fn formats(&mut self, raw: &RawVendor, at: &dyn Fn(&str) -> String) -> Option<Vec<Format>> {
        const CHOICES: [(&str, Format); 3] = [
            ("chat", Format::Chat),
            ("messages", Format::Messages),
            ("responses", Format::Responses),
        ];
        const ADVICE: &str = "give \"chat\", \"messages\" or \"responses\"";
        let Some(given) = &raw.formats else {
            // Formats that were wrong are not there any more, and have been told.
            if raw.format.is_none() && self.errors.told(&at("formats")) {
                return None;
            }
            let format = self.required(raw.format.clone(), &at("format"), ADVICE)?;
            let format = self.choice(&format, &at("format"), CHOICES)?;
            return Some(vec![format]);
        };
        if raw.format.is_some() {
            self.errors.add(
                at("formats"),
                "stands beside format: keep one of them, all formats fit into formats",
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
                let problem = format!("{text:?} is there already: name each format once");
                self.errors.add(path, problem);
                return None;
            }
            formats.push(format);
        }
        Some(formats)
    }

    /// Where a vendor takes calls of a format, and what its keys look like there.
    fn surface(
        &mut self,
        format: Format,
        url: &str,
        keys: &[(String, SecretString)],
        path: &str,
    ) -> Option<(Format, Uri, Vec<HeaderValue>)> {
        let endpoint = match format {
            Format::Chat => format!("{url}{CHATS}"),
            Format::Messages => format!("{url}/v1/messages"),
            Format::Responses => format!("{url}/responses"),
        };
        let endpoint = endpoint
            .parse::<Uri>()
            .map_err(|_| "is too long".to_owned());
        let endpoint = self.keep(endpoint, path);
        let credentials: Vec<_> = keys
            .iter()
            .map(|(path, key)| self.keep(credential(format, key), path))
            .collect();
        let credentials = credentials.into_iter().collect::<Option<Vec<_>>>()?;
        Some((format, endpoint?, credentials))
    }

    /// Notes an address that is the endpoint already, or the half of it.
    fn endpoint_in_url(&mut self, format: Format, formats: usize, url: &str, path: &str) {
        let ends: &[&str] = match format {
            Format::Chat => &[CHATS, EMBEDDINGS],
            Format::Messages => &["/v1/messages", "/messages"],
            Format::Responses => &["/responses"],
        };
        if let Some(end) = ends.iter().find(|end| url.ends_with(**end)) {
            let problem = format!("ends in {end}: take that away, it is put behind it");
            self.errors.add(path, problem);
        } else if format == Format::Messages && messages_root(url, formats).ends_with("/v1") {
            self.warnings.add(
                path,
                "ends in /v1, and calls of the messages format go to …/v1/v1/messages: if that is not meant, take it away",
            );
        }
    }

    /// Our keys at the vendor, each with the path of its field. Never empty.
    fn keys(
        &mut self,
        raw: &RawVendor,
        at: &dyn Fn(&str) -> String,
    ) -> Option<Vec<(String, SecretString)>> {
        const ADVICE: &str = "give our key at the vendor as \"${NAME}\" or \"file:/path\"";
        let Some(keys) = &raw.keys else {
            // Keys that were wrong are not there any more, and have been told.
            if raw.key.is_none() && self.errors.told(&at("keys")) {
                return None;
            }
            let key = self.secret(raw.key.clone(), &at("key"), ADVICE)?;
            return Some(vec![(at("key"), key)]);
        };
        if raw.key.is_some() {
            self.errors.add(
                at("keys"),
                "stands beside key: keep one of them, all keys fit into keys",
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
        // Vendors and what stands in front of them close idle connections after 60 seconds and more.
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

    /// A model's routes, by priority.
    pub(super) fn routes(
        &mut self,
        raw: Vec<RawRoute>,
        path: &str,
        id: Option<&str>,
        usual: (ModelKind, Dialect),
        vendors: &Vendors,
    ) -> Option<Vec<Arc<Route>>> {
        if raw.is_empty() {
            self.errors.missing(
                path,
                "give at least one, like [ { vendor = \"openai\", model = \"gpt-5-mini\" } ]",
            );
        }
        let mut places = HashMap::new();
        let routes: Vec<_> = raw
            .into_iter()
            .enumerate()
            .map(|(index, raw)| {
                let path = format!("{path}[{index}]");
                let model = raw
                    .model
                    .clone()
                    .filter(|model| !model.is_empty())
                    .or_else(|| id.map(str::to_owned));
                let place = (raw.vendor.clone().unwrap_or_default(), model.clone());
                if let Some(first) = places.insert(place, index) {
                    let problem = format!(
                        "leads to the same model of the same vendor as routes[{first}]: keep one of \
                         them, with the weight of both"
                    );
                    self.errors.add(&path, problem);
                    return None;
                }
                self.route(&raw, &path, model, usual, vendors)
            })
            .collect();
        let mut routes = routes.into_iter().collect::<Option<Vec<_>>>()?;
        routes.sort_by_key(|route| route.priority);
        Some(routes)
    }

    fn route(
        &mut self,
        raw: &RawRoute,
        path: &str,
        model: Option<String>,
        (kind, dialect): (ModelKind, Dialect),
        vendors: &Vendors,
    ) -> Option<Arc<Route>> {
        let at = |field: &str| format!("{path}.{field}");
        let weight = self.whole(raw.weight, &at("weight"), 1, 1..=1_000_000);
        let priority = self.whole(raw.priority, &at("priority"), 0, 0..=1_000_000);
        let dialect = self.dialect(&raw.dialect(), dialect, &at);
        let name = self.required(
            raw.vendor.clone(),
            &at("vendor"),
            "name one of the [[vendor]]s",
        )?;
        let Some(vendor) = vendors.get(&name) else {
            let hint = match nearest(&name, vendors.keys().map(String::as_str)) {
                Some(near) => format!("did you mean {near:?}?"),
                None => "add it or mend the name".to_owned(),
            };
            self.errors.add(
                at("vendor"),
                format!("there is no [[vendor]] with the name {name:?}: {hint}"),
            );
            return None;
        };
        let vendor = match (kind, vendor.as_ref()?) {
            (ModelKind::Embedding, vendor) => self.keep(embedding_vendor(vendor), &at("vendor"))?,
            (_, vendor) => Arc::clone(vendor),
        };
        let route = Route::new(vendor, model?)
            .weight(weight?)
            .priority(priority?)
            .dialect(dialect?);
        Some(Arc::new(route))
    }

    pub(super) fn dialect(
        &mut self,
        raw: &RawDialect<'_>,
        usual: Dialect,
        at: &dyn Fn(&str) -> String,
    ) -> Option<Dialect> {
        let output_field = self.choice_or(
            raw.output_field,
            usual.output_field,
            &at("output_field"),
            [
                ("max_completion_tokens", OutputField::MaxCompletionTokens),
                ("max_tokens", OutputField::MaxTokens),
            ],
        );
        let system_role = self.choice_or(
            raw.system_role,
            usual.system_role,
            &at("system_role"),
            [
                ("system", SystemRole::System),
                ("developer", SystemRole::Developer),
            ],
        );
        let thinking = self.choice_or(
            raw.thinking,
            usual.thinking,
            &at("thinking"),
            [
                ("effort", Thinking::Effort),
                ("budget", Thinking::Budget),
                ("none", Thinking::None),
            ],
        );
        let dialect = usual
            .output_field(output_field?)
            .system_role(system_role?)
            .reasoning_effort(raw.reasoning_effort.unwrap_or(usual.reasoning_effort))
            .sampling(raw.sampling.unwrap_or(usual.sampling))
            .thinking(thinking?)
            .json_schema(raw.json_schema.unwrap_or(usual.json_schema))
            .verbosity(raw.verbosity.unwrap_or(usual.verbosity))
            .reasoning_summary(raw.reasoning_summary.unwrap_or(usual.reasoning_summary))
            .encrypted_reasoning(raw.encrypted_reasoning.unwrap_or(usual.encrypted_reasoning));
        Some(dialect)
    }

    fn choice_or<T: Copy, const N: usize>(
        &mut self,
        given: Option<&str>,
        usual: T,
        path: &str,
        choices: [(&'static str, T); N],
    ) -> Option<T> {
        given.map_or(Some(usual), |text| self.choice(text, path, choices))
    }
}

/// The same vendor where it takes embeddings: those are of the chat format's family.
fn embedding_vendor(vendor: &Arc<Vendor>) -> Result<Arc<Vendor>, String> {
    let vendor = vendor.speaking(Format::Chat);
    let chats = vendor.endpoint.to_string();
    let base = match vendor.format {
        Format::Chat => chats.strip_suffix(CHATS),
        _ => None,
    };
    let endpoint = base.and_then(|base| format!("{base}{EMBEDDINGS}").parse().ok());
    let Some(endpoint) = endpoint else {
        return Err(format!(
            "{:?} takes no embeddings: name a [[vendor]] of the format \"chat\"",
            vendor.name
        ));
    };
    let mut vendor = Vendor::clone(vendor);
    vendor.endpoint = endpoint;
    vendor.others = Vec::new();
    Ok(Arc::new(vendor))
}

fn credential(format: Format, key: &SecretString) -> Result<HeaderValue, String> {
    format
        .credential(key.expose_secret())
        .map_err(|_| "must be plain ASCII on one line, it is sent in a header".to_owned())
}

/// The address of a proxy. What is said about a mistake never repeats the text.
fn proxy(text: &str, env: Env<'_>) -> Result<Proxy, String> {
    const ADVICE: &str = "must be an address like http://host:port or socks5://host:port";
    let reference = referred(text, env);
    let literal = reference.is_none();
    let address = reference.unwrap_or_else(|| Ok(text.to_owned()))?;
    let advice = || format!("{ADVICE}; percent-encode a password");
    let uri: Uri = address.parse().map_err(|_| advice())?;
    let scheme = match uri.scheme_str() {
        Some("http") => "http",
        // The names are looked up by the proxy either way.
        Some("socks5" | "socks5h") => "socks5",
        Some("https") => {
            return Err(format!("{ADVICE}: TLS to the proxy itself is not spoken"));
        }
        _ => return Err(advice()),
    };
    let Some(authority) = uri.authority().filter(|it| !it.host().is_empty()) else {
        return Err(advice());
    };
    let Some(port) = authority.port_u16().filter(|port| *port != 0) else {
        return Err(format!("{ADVICE}: its port is missing"));
    };
    if !uri.path().trim_matches('/').is_empty() || uri.query().is_some() {
        return Err(format!("{ADVICE}, and nothing behind the port"));
    }
    let user = match authority.as_str().rsplit_once('@') {
        None => String::new(),
        Some(_) if literal => {
            return Err(
                "has a password in it: put the whole address into the environment and write \
                 \"${NAME}\" here, or \"file:/path\""
                    .to_owned(),
            );
        }
        Some((user, _)) => {
            if user.split(':').any(|word| word.len() > PROXY_WORD_MAX) {
                return Err(format!(
                    "has a user or a password of more than {PROXY_WORD_MAX} characters"
                ));
            }
            format!("{user}@")
        }
    };
    Ok(Proxy::new(format!(
        "{scheme}://{user}{}:{port}",
        authority.host()
    )))
}

/// What `/v1/messages` is put behind. The other formats have `/v1` in their address: beside them it is not put there
/// again.
fn messages_root(url: &str, formats: usize) -> &str {
    match formats {
        1 => url,
        _ => url.strip_suffix("/v1").unwrap_or(url),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        secret::with_variables,
        testing::{assert_mistakes, changed, parse},
    };

    fn of(text: &str) -> Result<Proxy, String> {
        let variable = |name: &str| {
            Some(match name {
                "PROXY" => "socks5h://user:hunter2@proxy.example:1080/".to_owned(),
                "LONG" => format!("http://user:hunter2{}@proxy.example:1", "x".repeat(255)),
                _ => return None,
            })
        };
        with_variables(&variable, |env| proxy(text, env))
    }

    #[test]
    fn a_proxy_has_a_scheme_a_host_and_a_port() {
        for (text, address) in [
            ("http://10.0.0.1:3128", "http://10.0.0.1:3128"),
            ("http://10.0.0.1:3128/", "http://10.0.0.1:3128"),
            ("socks5://[::1]:1080", "socks5://[::1]:1080"),
            ("socks5h://proxy:1080", "socks5://proxy:1080"),
            ("${PROXY}", "socks5://user:hunter2@proxy.example:1080"),
        ] {
            assert_eq!(of(text).unwrap().expose(), address, "{text}");
        }
        for (text, word) in [
            ("proxy", "like http://"),
            ("ftp://proxy:21", "like http://"),
            ("socks4://proxy:1080", "like http://"),
            ("https://proxy:443", "TLS"),
            ("http://proxy", "port"),
            ("http://proxy:0", "port"),
            ("http://proxy:1/x", "behind the port"),
            ("http://user:hunter2@proxy:1", "${NAME}"),
            ("${NONE}", "NONE"),
            ("${LONG}", "255"),
        ] {
            let problem = of(text).unwrap_err();
            assert!(problem.contains(word), "{text}: {problem}");
            assert!(!problem.contains("hunter2"), "{problem}");
        }
    }

    #[test]
    fn mistakes_of_vendors_and_routes_are_named() {
        assert_mistakes(&[
            ("name = \"v\"", "", "vendor[0].name", "missing"),
            (
                "format = \"chat\"",
                "format = \"grpc\"",
                "vendor[0].format",
                "\"messages\"",
            ),
            ("format = \"chat\"", "", "vendor[0].format", "missing"),
            (
                "format = \"chat\"",
                "formats = []",
                "vendor[0].formats",
                "at least one",
            ),
            (
                "format = \"chat\"",
                "formats = \"chat\"",
                "vendor[0].formats",
                "must be a list",
            ),
            (
                "format = \"chat\"",
                "formats = [\"chat\", \"grpc\"]",
                "vendor[0].formats[1]",
                "\"responses\"",
            ),
            (
                "format = \"chat\"",
                "formats = [\"chat\", \"messages\", \"chat\"]",
                "vendor[0].formats[2]",
                "\"chat\" is there already",
            ),
            (
                "format = \"chat\"",
                "format = \"chat\"\nformats = [\"chat\"]",
                "vendor[0].formats",
                "keep one of them",
            ),
            (
                "format = \"chat\"\n        url = \"http://127.0.0.1:9/v1/\"",
                "formats = [\"chat\", \"responses\"]\nurl = \"https://h/v1/responses\"",
                "vendor[0].url",
                "ends in /responses",
            ),
            (
                "http://127.0.0.1:9/v1/",
                "http://user:hunter2@h/v1",
                "vendor[0].url",
                "key",
            ),
            (
                "http://127.0.0.1:9/v1/",
                "http://h/v1?a=b",
                "vendor[0].url",
                "?",
            ),
            (
                "name = \"v\"",
                "name = \"v\"\nproxy = \"http://user:hunter2@p:1\"",
                "vendor[0].proxy",
                "${NAME}",
            ),
            (
                "name = \"v\"",
                "name = \"v\"\nproxy = \"p:1\"",
                "vendor[0].proxy",
                "socks5://",
            ),
            (
                "name = \"v\"",
                "name = \"v\"\nca_file = \"ca.pem\"",
                "vendor[0].ca_file",
                "https",
            ),
            (
                "name = \"v\"\n        format = \"chat\"\n        url = \"http://127.0.0.1:9/v1/\"",
                "name = \"v\"\nformat = \"chat\"\nurl = \"https://h\"\nca_file = \"/no/such/ca.pem\"",
                "vendor[0].ca_file",
                "cannot read /no/such/ca.pem",
            ),
            (
                "name = \"v\"\n        format = \"chat\"\n        url = \"http://127.0.0.1:9/v1/\"",
                "name = \"v\"\nformat = \"chat\"\nurl = \"https://h\"\nca_file = \"Cargo.toml\"",
                "vendor[0].ca_file",
                "no certificate",
            ),
            (
                "name = \"v\"",
                "name = \"v\"\nidle_connection_seconds = 0",
                "vendor[0].idle_connection_seconds",
                "1 to 3600",
            ),
            (
                "key = \"${VENDOR_KEY}\"",
                "key = \"${VENDOR_KEY}\"\nkeys = [\"${VENDOR_KEY}\"]",
                "vendor[0].keys",
                "keep one of them",
            ),
            (
                "key = \"${VENDOR_KEY}\"",
                "keys = []",
                "vendor[0].keys",
                "1 to",
            ),
            (
                "key = \"${VENDOR_KEY}\"",
                "keys = [\"${VENDOR_KEY}\", \"0123456789abcdef\"]",
                "vendor[0].keys[1]",
                "${NAME}",
            ),
            (
                "key = \"${VENDOR_KEY}\"",
                "keys = [\"${VENDOR_KEY}\", \"${ADMIN_KEY}\", \"${VENDOR_KEY}\"]",
                "vendor[0].keys[2]",
                "keys[0]",
            ),
            (
                "name = \"v\"",
                "name = \"v\"\non_disconnect = \"hold\"",
                "vendor[0].on_disconnect",
                "\"drain\"",
            ),
            (
                "vendor = \"v\"",
                "vendor = \"w\"",
                "model[0].routes[0].vendor",
                "\"w\": add it or mend the name",
            ),
            (
                "vendor = \"v\"",
                "vendor = \"anthropic\"",
                "model[0].routes[0].vendor",
                "add it",
            ),
            (
                "model = \"m-1\" }",
                "model = \"m-1\" }, { vendor = \"v\", model = \"m-1\", weight = 2 }",
                "model[0].routes[1]",
                "routes[0]",
            ),
            (
                "model = \"m-1\" }",
                "model = \"m-1\", thinking = \"hard\" }",
                "model[0].routes[0].thinking",
                "\"budget\"",
            ),
            (
                "model = \"m-1\"",
                "model = \"m-1\", weight = 0",
                "model[0].routes[0].weight",
                "1 to",
            ),
            (
                "[ { vendor = \"v\", model = \"m-1\" } ]",
                "[]",
                "model[0].routes",
                "missing",
            ),
            (
                "http://127.0.0.1:9/v1/",
                "http://127.0.0.1:9/v1/chat/completions/",
                "vendor[0].url",
                "it is put behind it",
            ),
            (
                "format = \"chat\"\n        url = \"http://127.0.0.1:9/v1/\"",
                "format = \"messages\"\nurl = \"https://h/v1/messages\"",
                "vendor[0].url",
                "ends in /v1/messages",
            ),
        ]);
    }

    #[test]
    fn a_plain_answer_may_take_as_long_as_a_call_may() {
        let patience = |text: &str| {
            let config = parse(text).unwrap();
            config.live.models[0].routes[0]
                .vendor
                .plain_timeout
                .as_secs()
        };
        let long = changed("[admin]", "[limits]\ncall_seconds = 3600\n[admin]");
        assert_eq!(patience(&long), 3600);
        let given = long.replace("name = \"v\"", "name = \"v\"\nplain_seconds = 60");
        assert_eq!(patience(&given), 60);
    }

    #[test]
    fn a_route_leads_to_the_vendors_endpoint_with_its_key() {
        for (format, url, endpoint, credential) in [
            (
                "chat",
                "http://127.0.0.1:9/v1/",
                "http://127.0.0.1:9/v1/chat/completions",
                "Bearer sk-vendor-secret",
            ),
            (
                "messages",
                "https://api.example",
                "https://api.example/v1/messages",
                "sk-vendor-secret",
            ),
        ] {
            let text = changed("format = \"chat\"", &format!("format = \"{format}\""));
            let config = parse(&text.replacen("http://127.0.0.1:9/v1/", url, 1)).unwrap();
            let model = &config.live.models[0];
            assert_eq!(
                (model.output_tokens_max, model.output_tokens_min),
                (128_000, 256)
            );
            let route = &model.routes[0];
            assert_eq!(
                (route.model.as_str(), route.weight, route.priority),
                ("m-1", 1, 0)
            );
            let vendor = &route.vendor;
            assert_eq!(vendor.format == Format::Chat, format == "chat");
            assert_eq!(vendor.endpoint.to_string(), endpoint);
            assert_eq!(vendor.credentials, [credential]);
            assert!(vendor.credentials[0].is_sensitive());
            assert_eq!(vendor.on_disconnect, OnDisconnect::Cancel);
            let seconds = [
                vendor.egress.connect_timeout,
                vendor.first_byte_timeout,
                vendor.plain_timeout,
                vendor.head_timeout,
                vendor.idle_timeout,
                vendor.egress.idle_connection_timeout,
            ]
            .map(|time| time.as_secs());
            assert_eq!(seconds, [3, 120, 900, 30, 120, 50]);
            assert_eq!(vendor.egress.protocol, Protocol::Http1);
            assert!(vendor.egress.proxy.is_none() && vendor.egress.authorities.is_none());
            assert!(!model.sticky);
        }
    }

    #[test]
    fn a_vendor_may_speak_several_formats_under_one_url_with_the_same_keys() {
        let text = changed("format = \"chat\"", "formats = [\"messages\", \"chat\"]");
        let text = text.replacen("http://127.0.0.1:9/v1/", "http://h/api/", 1);
        let text = text.replacen("name = \"v\"", "name = \"v\"\nconnections_max = 7", 1);
        let config = parse(&text).unwrap_or_else(|errors| panic!("{errors}"));
        let route = &config.live.models[0].routes[0];
        let (chat, messages) = (Format::Chat, Format::Messages);
        for (caller, spoken, endpoint, credential) in [
            (
                chat,
                chat,
                "http://h/api/chat/completions",
                "Bearer sk-vendor-secret",
            ),
            (
                messages,
                messages,
                "http://h/api/v1/messages",
                "sk-vendor-secret",
            ),
            (
                Format::Responses,
                messages,
                "http://h/api/v1/messages",
                "sk-vendor-secret",
            ),
        ] {
            let vendor = &route.speaking(caller).vendor;
            assert_eq!((vendor.format, vendor.connections_max), (spoken, 7));
            assert_eq!(vendor.endpoint.to_string(), endpoint);
            assert_eq!(vendor.credentials, [credential]);
            assert!(vendor.credentials[0].is_sensitive());
        }
        // Beside another format, whose address has it, /v1 stands once.
        for (formats, url, endpoint) in [
            (
                "[\"messages\", \"chat\"]",
                "http://h/v1/",
                "http://h/v1/messages",
            ),
            (
                "[\"messages\", \"chat\"]",
                "http://h/v1/x",
                "http://h/v1/x/v1/messages",
            ),
            ("[\"messages\"]", "http://h/v1", "http://h/v1/v1/messages"),
        ] {
            let text = changed("format = \"chat\"", &format!("formats = {formats}"));
            let config = parse(&text.replacen("http://127.0.0.1:9/v1/", url, 1));
            let config = config.unwrap_or_else(|errors| panic!("{errors}"));
            let route = &config.live.models[0].routes[0];
            let vendor = &route.speaking(messages).vendor;
            assert_eq!(vendor.endpoint.to_string(), endpoint, "{formats} {url}");
        }
        // What is wrong with the list is told once.
        let bad = changed("format = \"chat\"", "formats = 1");
        assert_eq!(parse(&bad).unwrap_err().iter().count(), 1);
    }

    #[test]
    fn routes_stand_by_priority_and_a_route_differs_from_its_model_where_it_says_so() {
        let text = changed(
            "routes = [ { vendor = \"v\", model = \"m-1\" } ]",
            r#"sticky = true
            output_field = "max_tokens"
            sampling = false
            routes = [
                { vendor = "v", model = "last", priority = 2, output_field = "max_completion_tokens", thinking = "budget" },
                { vendor = "w", model = "m-1", weight = 7 },
                { vendor = "v", model = "m-1" },
            ]"#,
        );
        let text = format!(
            "{text}\n[[vendor]]\nname = \"w\"\nformat = \"messages\"\nurl = \"http://h\"\nkey = \"${{VENDOR_KEY}}\"\n"
        );
        let config = parse(&text).unwrap_or_else(|errors| panic!("{errors}"));
        let model = &config.live.models[0];
        assert!(model.sticky);
        let places: Vec<_> = model
            .routes
            .iter()
            .map(|route| (&*route.vendor.name, route.model.as_str(), route.weight))
            .collect();
        assert_eq!(places, [("w", "m-1", 7), ("v", "m-1", 1), ("v", "last", 1)]);
        let usual = Dialect::default()
            .output_field(OutputField::MaxTokens)
            .sampling(false);
        let other = usual
            .output_field(OutputField::MaxCompletionTokens)
            .thinking(Thinking::Budget);
        let dialects: Vec<_> = model.routes.iter().map(|route| route.dialect).collect();
        assert_eq!(dialects, [usual, usual, other]);
    }

    #[test]
    fn a_vendor_may_have_several_keys() {
        let keys = "keys = [\"${VENDOR_KEY}\", \"${ADMIN_KEY}\"]";
        let config = parse(&changed("key = \"${VENDOR_KEY}\"", keys)).unwrap();
        let vendor = &config.live.models[0].routes[0].vendor;
        assert_eq!(
            vendor.credentials,
            ["Bearer sk-vendor-secret", "Bearer admin-secret-0123456789"]
        );
        assert!(
            vendor
                .credentials
                .iter()
                .all(http::HeaderValue::is_sensitive)
        );
    }

    #[test]
    fn how_connections_are_made_is_the_vendors() {
        let of = |lines: &str, url: &str| {
            let text = changed("name = \"v\"", &format!("name = \"v\"\n{lines}"));
            let config = parse(&text.replacen("http://127.0.0.1:9/v1/", url, 1));
            let config = config.unwrap_or_else(|errors| panic!("{errors}"));
            Arc::clone(&config.live.models[0].routes[0].vendor.egress)
        };
        let (http, https) = ("http://h/v1", "https://h/v1");
        let proxy = of("proxy = \"${PROXY_URL}\"", https).proxy.clone();
        assert_eq!(proxy.unwrap().expose(), "http://user:hunter2@proxy:3128");
        assert_eq!(of("http2 = true", https).protocol, Protocol::Http2Offered);
        assert_eq!(of("http2 = true", http).protocol, Protocol::Http2);
        assert_eq!(of("proxy = \"\"\nca_file = \"\"", http), of("", http));
        assert_ne!(of("connect_seconds = 4", http), of("", http));
    }
}
