//! The HTTP client with which commands call the admin API.

use std::{error::Error, fs, ops::ControlFlow, path::Path, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;

use super::{
    AdminArgs,
    failure::Failure,
    show::{self, Cell, rows, table},
};
pub(super) use crate::text::percent::encoded;

const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;
const ANSWER_SECONDS_MAX: u64 = 30;
/// Timeout (s) of `tollgate health`.
const READY_SECONDS_MAX: u64 = 5;
/// Timeout (s) of a request for which the gateway must read the whole ledger.
const LONG_ANSWER_SECONDS_MAX: u64 = 3600;
/// The admin API's address, if neither a flag nor the environment gives another.
const ADMIN_URL: &str = "http://127.0.0.1:8081";
/// Timeout (s) for the next piece of a streamed response.
const PIECE_SECONDS_MAX: u64 = 60;

/// A client of the admin API of one gateway.
pub(super) struct Client {
    /// The gateway's base URL, without a trailing slash.
    url: String,
    /// The flag that gave the URL; error texts name this flag.
    flag: &'static str,
    authorization: Option<HeaderValue>,
    http: HttpClient<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Client {
    /// Creates a client for the gateway that the flags or the environment name.
    pub(super) fn new(admin: &AdminArgs) -> Result<Self, Failure> {
        let mut client = Self::without_key(admin.admin_url.as_deref(), "--admin-url")?;
        let variable = std::env::var("TOLLGATE_ADMIN_KEY").ok();
        let key = admin_key(admin.admin_key_file.as_deref(), variable)?;
        let mut authorization = HeaderValue::try_from(format!("Bearer {key}")).map_err(|_| {
            Failure::Usage(
                "the admin key contains characters that an HTTP header cannot carry; check it for line breaks"
                    .into(),
            )
        })?;
        authorization.set_sensitive(true);
        client.authorization = Some(authorization);
        Ok(client)
    }

    /// Creates a client without an admin key, for the gateway that `flag` or the environment names.
    pub(super) fn without_key(given: Option<&str>, flag: &'static str) -> Result<Self, Failure> {
        let url = admin_url(given, std::env::var("TOLLGATE_ADMIN_URL").ok());
        let url = checked_url(&url, flag)?;
        let https = HttpsConnectorBuilder::new()
            .with_webpki_roots()
            .https_or_http()
            .enable_http1()
            .build();
        Ok(Self {
            url,
            flag,
            authorization: None,
            http: HttpClient::builder(TokioExecutor::new()).build(https),
        })
    }

    /// Sends a request and returns the response's JSON.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, Failure> {
        let then = if method == Method::GET {
            "try again"
        } else {
            "the command may have taken effect: check whether it did, and repeat a payment only with the same --id"
        };
        let exchange = self.exchange(method, path, body);
        self.answer_of(exchange, ANSWER_SECONDS_MAX, then).await
    }

    /// Gets a resource; `None` if the response has status 404.
    pub(super) async fn find(&self, path: &str) -> Result<Option<Value>, Failure> {
        let requested = async {
            let (status, body) = self.fetch(Method::GET, path, None).await?;
            match read_answer(status, &body, self.flag) {
                Err(Failure::Refused(_)) if status == StatusCode::NOT_FOUND => Ok(None),
                answer => answer.map(Some),
            }
        };
        self.answer_of(requested, ANSWER_SECONDS_MAX, "try again")
            .await
    }

    /// Checks whether the gateway is ready for calls. If not, the failure contains the reason.
    pub(super) async fn ready(&self) -> Result<(), Failure> {
        let requested = self.fetch(Method::GET, "/readyz", None);
        let (status, body) = within(READY_SECONDS_MAX, requested).await.ok_or_else(|| {
            Failure::OutOfReach(format!(
                "no answer from {} in {READY_SECONDS_MAX} s",
                self.url
            ))
        })??;
        readiness(status, &body, self.flag)
    }

    /// Sends a request whose response may take up to an hour, because the gateway reads the whole ledger for it.
    pub(super) async fn call_patiently(
        &self,
        method: Method,
        path: &str,
    ) -> Result<Value, Failure> {
        let exchange = self.exchange(method, path, None);
        self.answer_of(exchange, LONG_ANSWER_SECONDS_MAX, "request less")
            .await
    }

    /// Awaits `requested` for at most `seconds`. On a timeout, the error text ends with `then`, the advice for the
    /// user.
    async fn answer_of<T>(
        &self,
        requested: impl Future<Output = Result<T, Failure>>,
        seconds: u64,
        then: &str,
    ) -> Result<T, Failure> {
        within(seconds, requested).await.unwrap_or_else(|| {
            Err(Failure::OutOfReach(format!(
                "no answer from {} in {seconds} s; {then}",
                self.url
            )))
        })
    }

    /// Streams the body of a response: passes each piece to `take`, until `take` breaks or the body ends.
    pub(super) async fn read(
        &self,
        path: &str,
        mut take: impl FnMut(&[u8]) -> Result<ControlFlow<()>, Failure>,
    ) -> Result<ControlFlow<()>, Failure> {
        let silent = || {
            Failure::OutOfReach(format!(
                "no data from {} within {PIECE_SECONDS_MAX} s; try again",
                self.url
            ))
        };
        let sent = self.send(Method::GET, path, None);
        // The first piece of the response may arrive late, because the gateway lists all accounts before it sends any
        // piece.
        let res = within(PIECE_SECONDS_MAX, sent).await.ok_or_else(silent)??;
        if !res.status().is_success() {
            let read = self.whole(res);
            let (status, body) = within(PIECE_SECONDS_MAX, read).await.ok_or_else(silent)??;
            let answer = serde_json::from_slice(&body).unwrap_or_default();
            return Err(refusal(status, &answer, self.flag));
        }
        let mut body = res.into_body();
        loop {
            let frame = within(PIECE_SECONDS_MAX, body.frame())
                .await
                .ok_or_else(silent)?;
            let Some(frame) = frame else {
                return Ok(ControlFlow::Continue(()));
            };
            let frame = frame.map_err(|error| {
                let cause = root(&error);
                Failure::OutOfReach(format!(
                    "the answer was cut off: {cause}; see the gateway's log and try again"
                ))
            })?;
            if let Some(piece) = frame.data_ref()
                && take(piece)?.is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, Failure> {
        let (status, body) = self.fetch(method, path, body).await?;
        read_answer(status, &body, self.flag)
    }

    /// Sends a request and reads the whole response.
    async fn fetch(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let res = self.send(method, path, body).await?;
        self.whole(res).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Response<Incoming>, Failure> {
        let mut req = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header(header::ACCEPT, "application/json");
        if let Some(authorization) = &self.authorization {
            req = req.header(header::AUTHORIZATION, authorization.clone());
        }
        if body.is_some() {
            req = req.header(header::CONTENT_TYPE, "application/json");
        }
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let req = req
            .body(Full::new(body))
            .expect("address, id and headers are valid in a request");
        let sent = self.http.request(req).await;
        sent.map_err(|error| self.out_of_reach(&error))
    }

    /// Reads a whole response.
    async fn whole(&self, res: Response<Incoming>) -> Result<(StatusCode, Bytes), Failure> {
        let status = res.status();
        let body = Limited::new(res.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await;
        let body = body.map_err(|error| self.out_of_reach(&*error))?;
        Ok((status, body.to_bytes()))
    }

    fn out_of_reach(&self, error: &(dyn Error + 'static)) -> Failure {
        let cause = root(error);
        Failure::OutOfReach(format!(
            "no answer from {}: {cause}; is the gateway running, and is {} (TOLLGATE_ADMIN_URL) the address in its admin.listen?",
            self.url, self.flag
        ))
    }
}

impl AdminArgs {
    /// Sends a request and prints the response: as JSON, or as the text that `text` makes from the JSON.
    pub(super) async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        text: impl FnOnce(&Value) -> String,
    ) -> Result<(), Failure> {
        let answer = Client::new(self)?.call(method, path, body).await?;
        show::print(self.json, &answer, text)
    }

    /// Gets a list and prints it as JSON or as a table. If the list is empty, prints `none` instead of the table.
    pub(super) async fn list(
        &self,
        path: &str,
        field: &str,
        columns: &[Cell],
        none: &str,
    ) -> Result<(), Failure> {
        let text = |answer: &Value| match rows(answer, field) {
            [] => none.to_owned(),
            rows => table(columns, rows),
        };
        self.request(Method::GET, path, None, text).await
    }
}

/// Awaits `what` for at most `seconds`; `None` on a timeout.
async fn within<T>(seconds: u64, what: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(Duration::from_secs(seconds), what)
        .await
        .ok()
}

fn root<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause
}

/// Returns the path with those of the query parameters that have a value. The values are percent-encoded: all characters
/// except RFC 3986's unreserved ones.
pub(super) fn with_query<const N: usize>(
    path: &str,
    parameters: [(&str, Option<String>); N],
) -> String {
    let mut path = path.to_owned();
    for (name, value) in parameters {
        if let Some(value) = value {
            let mark = if path.contains('?') { '&' } else { '?' };
            path.push_str(&format!("{mark}{name}={}", encoded(&value)));
        }
    }
    path
}

/// Returns the admin API's address: from the flag if given, else from the environment, else the default. Clap does not
/// read the variable itself: it would treat the variable as a given option, and print its value in the usage line of
/// every error message.
fn admin_url(given: Option<&str>, environment: Option<String>) -> String {
    let given = given.map(str::to_owned);
    given.or(environment).unwrap_or_else(|| ADMIN_URL.into())
}

/// Checks that `url` is an http or https address and strips its trailing slash. An invalid address is not repeated in
/// the error: it may contain a secret.
fn checked_url(url: &str, flag: &str) -> Result<String, Failure> {
    let problem = |text: &str| Failure::Usage(format!("{flag} (TOLLGATE_ADMIN_URL): {text}"));
    let uri: Uri = url
        .parse()
        .map_err(|_| problem("not a URL; give one like http://127.0.0.1:8081"))?;
    let (Some("http" | "https"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(problem(
            "must begin with http:// or https://, like http://127.0.0.1:8081",
        ));
    };
    if authority.as_str().contains('@') {
        return Err(problem(
            "must contain no user name or password; put the admin key into TOLLGATE_ADMIN_KEY",
        ));
    }
    if uri.query().is_some() || url.contains('#') {
        return Err(problem("must not contain ? or #"));
    }
    Ok(url.trim_end_matches('/').to_owned())
}

/// Returns the admin key: from the file if one is given, else from the environment.
fn admin_key(file: Option<&Path>, environment: Option<String>) -> Result<String, Failure> {
    let key = match file {
        Some(path) => {
            let text = fs::read_to_string(path);
            text.map_err(|error| {
                Failure::Io(format!("--admin-key-file {}: {error}", path.display()))
            })?
        }
        None => environment.unwrap_or_default(),
    };
    match key.trim() {
        "" => Err(Failure::Usage(
            "no admin key: set TOLLGATE_ADMIN_KEY, or give a file that contains the key with --admin-key-file".into(),
        )),
        key => Ok(key.to_owned()),
    }
}

/// Returns the JSON of a successful response, or the gateway's refusal.
fn read_answer(status: StatusCode, body: &[u8], flag: &str) -> Result<Value, Failure> {
    match serde_json::from_slice(body) {
        Ok(answer) if status.is_success() => Ok(answer),
        answer => Err(refusal(status, &answer.unwrap_or_default(), flag)),
    }
}

/// Returns the failure for an answer that is not the JSON of a successful response.
fn refusal(status: StatusCode, answer: &Value, flag: &str) -> Failure {
    let error = &answer["error"];
    let Some(message) = error["message"].as_str() else {
        return not_the_admin_api(status, flag);
    };
    // Only the callers' listener sends these codes. The operators' listener, where the admin API is, sends no codes.
    if let Some("path_not_found" | "method_not_allowed") = error["code"].as_str() {
        return Failure::OutOfReach(format!(
            "this address is the listener for callers, not the one for operators; {flag} (TOLLGATE_ADMIN_URL) must be the \
             gateway's admin.listen, by default {ADMIN_URL}"
        ));
    }
    let message = message.replace(char::is_control, " ");
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Failure::Denied(
            "the gateway rejected this admin key; compare TOLLGATE_ADMIN_KEY (or --admin-key-file) with admin.key in \
             the gateway's configuration"
                .into(),
        ),
        StatusCode::SERVICE_UNAVAILABLE => Failure::OutOfReach(message),
        StatusCode::INTERNAL_SERVER_ERROR => Failure::Internal(message),
        _ => Failure::Refused(message),
    }
}

/// Returns an error with the reason, unless the gateway's response to `/readyz` means that it is ready.
fn readiness(status: StatusCode, body: &[u8], flag: &str) -> Result<(), Failure> {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    match (status, value["status"].as_str()) {
        (StatusCode::OK, Some("ready")) => Ok(()),
        (StatusCode::SERVICE_UNAVAILABLE, Some(_)) => {
            let reason = value["reason"].as_str().unwrap_or("no reason given");
            Err(Failure::OutOfReach(format!(
                "not ready: {}",
                reason.replace(char::is_control, " ")
            )))
        }
        _ => match read_answer(status, body, flag) {
            Err(failure @ Failure::OutOfReach(_)) => Err(failure),
            _ => Err(not_the_admin_api(status, flag)),
        },
    }
}

fn not_the_admin_api(status: StatusCode, flag: &str) -> Failure {
    Failure::OutOfReach(format!(
        "the answer ({status}) is not from the admin API; {flag} (TOLLGATE_ADMIN_URL) must be the gateway's \
         admin.listen, by default {ADMIN_URL}"
    ))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn admin_response_becomes_json_or_an_exit_code() {
        for (status, body, code, reported) in [
            (200, r#"{"id":"a"}"#, 0, ""),
            (
                404,
                r#"{"error":{"message":"no account a"}}"#,
                1,
                "no account a",
            ),
            (409, r#"{"error":{"message":"a\nb"}}"#, 1, "a b"),
            (
                503,
                r#"{"error":{"message":"the ledger is out of reach"}}"#,
                69,
                "out of reach",
            ),
            (500, r#"{"error":{"message":"our own"}}"#, 70, "our own"),
            (
                401,
                r#"{"error":{"message":"x"}}"#,
                77,
                "TOLLGATE_ADMIN_KEY",
            ),
            (
                404,
                r#"{"error":{"code":"path_not_found","message":"Такого адреса нет."}}"#,
                69,
                "the listener for callers",
            ),
            (404, "<html>", 69, "not from the admin API"),
            (200, "<html>", 69, "not from the admin API"),
            (301, "", 69, "not from the admin API"),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let answer = read_answer(status, body.as_bytes(), "--admin-url");
            match answer {
                Ok(value) => assert_eq!((value["id"].as_str(), code), (Some("a"), 0)),
                Err(failure) => assert!(
                    failure.code() == code && failure.text().contains(reported),
                    "{status} {body}: {failure:?}"
                ),
            }
        }
    }

    #[test]
    fn gateway_counts_as_ready_only_if_it_reports_ready() {
        for (status, body, says) in [
            (200, r#"{"status":"ready"}"#, None),
            (
                503,
                r#"{"status":"not ready","reason":"starting or draining"}"#,
                Some("not ready: starting or draining"),
            ),
            (200, "<html>", Some("not from the admin API")),
            (
                404,
                r#"{"error":{"code":"path_not_found","message":"x"}}"#,
                Some("listener for callers"),
            ),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let requested = readiness(status, body.as_bytes(), "--url");
            match (requested, says) {
                (Ok(()), None) => {}
                (Err(failure), Some(says)) => assert!(
                    failure.code() == 69
                        && failure.text().contains(says)
                        && !failure.text().contains("--admin-url"),
                    "{failure:?}"
                ),
                (requested, _) => panic!("{status} {body}: {requested:?}"),
            }
        }
    }

    #[test]
    fn query_parameters_are_percent_encoded() {
        for (value, text) in [
            ("gpt-5.1_x~", "gpt-5.1_x~"),
            ("a b&c=d", "a%20b%26c%3Dd"),
            ("м+%", "%D0%BC%2B%25"),
        ] {
            assert_eq!(encoded(value), text);
        }
    }

    #[test]
    fn invalid_admin_address_is_refused_without_being_printed() {
        for (url, checked) in [
            ("http://127.0.0.1:8081/", Some("http://127.0.0.1:8081")),
            (
                "https://ops.example/tollgate",
                Some("https://ops.example/tollgate"),
            ),
            ("127.0.0.1:8081", None),
            ("ftp://secret", None),
            ("http://admin:secret@host", None),
            ("http://host/?secret", None),
            ("", None),
        ] {
            match checked_url(url, "--url") {
                Ok(url) => assert_eq!(Some(url.as_str()), checked),
                Err(failure) => {
                    assert!(checked.is_none() && failure.code() == 64, "{url}");
                    assert!(failure.text().starts_with("--url (TOLLGATE_ADMIN_URL): "));
                    assert!(!format!("{failure:?}").contains("secret"), "{url}");
                }
            }
        }
    }

    #[test]
    fn admin_address_comes_from_the_flag_else_the_environment_else_the_default() {
        let environment = || Some("http://environment".to_owned());
        assert_eq!(admin_url(Some("http://flag"), environment()), "http://flag");
        assert_eq!(admin_url(None, environment()), "http://environment");
        assert_eq!(admin_url(None, None), ADMIN_URL);
    }

    #[test]
    fn admin_key_comes_from_the_file_or_the_environment() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"from file\n").unwrap();
        assert_eq!(
            admin_key(Some(file.path()), Some("from env".into())).unwrap(),
            "from file"
        );
        assert_eq!(
            admin_key(None, Some(" from env\n".into())).unwrap(),
            "from env"
        );
        for nothing in [None, Some(String::new()), Some("  ".into())] {
            assert_eq!(admin_key(None, nothing).unwrap_err().code(), 64);
        }
        assert_eq!(
            admin_key(Some(Path::new("no such file")), None)
                .unwrap_err()
                .code(),
            74
        );
    }
}
