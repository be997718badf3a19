//! Paths and methods of the operators' listener: each room has the routes of what it answers.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, Request};
use tollgate_layers::Error;
use tower::Service;

use super::{
    Admin, Answer, Operator, Right, accounts, alerts, audit, auto_topups, body_limit::UnreadBody,
    calls, events, export, groups, keys, leases, payments, probes, query::Query, receipts,
    receivers, refusal::Refusal, statements, tariffs, usage, vendors,
};

const ROOMS: &[&[Route]] = &[
    probes::ROUTES,
    accounts::ROUTES,
    payments::ROUTES,
    auto_topups::ROUTES,
    keys::ROUTES,
    groups::ROUTES,
    leases::ROUTES,
    receipts::ROUTES,
    calls::ROUTES,
    usage::ROUTES,
    statements::ROUTES,
    export::ROUTES,
    vendors::ROUTES,
    tariffs::ROUTES,
    audit::ROUTES,
    events::ROUTES,
    alerts::ROUTES,
    receivers::ROUTES,
];

/// A path and a method, and what answers them.
pub(super) struct Route {
    method: &'static str,
    /// A segment in braces stands for any one; there are two at most.
    path: &'static str,
    access: Access,
    right: Right,
    answer: fn(Arc<Admin>, Asked) -> Answering,
}

pub(super) type Answering = BoxFuture<'static, Result<Answer, Refusal>>;

/// What a request must show, and may bring.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Nothing: there is nothing in the answer that a stranger may not know, and nothing else is looked at.
    Open,
    /// The admin key.
    WithKey,
    /// The admin key; and parameters, which whoever answers reads. All others refuse them.
    WithKeyAndQuery,
}

impl Route {
    pub(super) const fn get(
        path: &'static str,
        answer: fn(Arc<Admin>, Asked) -> Answering,
    ) -> Self {
        Self::new("GET", path, answer).needs(Right::Read)
    }

    pub(super) const fn post(
        path: &'static str,
        answer: fn(Arc<Admin>, Asked) -> Answering,
    ) -> Self {
        Self::new("POST", path, answer)
    }

    pub(super) const fn put(
        path: &'static str,
        answer: fn(Arc<Admin>, Asked) -> Answering,
    ) -> Self {
        Self::new("PUT", path, answer)
    }

    pub(super) const fn patch(
        path: &'static str,
        answer: fn(Arc<Admin>, Asked) -> Answering,
    ) -> Self {
        Self::new("PATCH", path, answer)
    }

    pub(super) const fn delete(
        path: &'static str,
        answer: fn(Arc<Admin>, Asked) -> Answering,
    ) -> Self {
        Self::new("DELETE", path, answer)
    }

    /// Whoever calls it needs this right. Until it is said, what changes something needs all of them.
    pub(super) const fn needs(self, right: Right) -> Self {
        Self { right, ..self }
    }

    /// Needs no key.
    pub(super) const fn open(self) -> Self {
        Self {
            access: Access::Open,
            ..self
        }
    }

    /// Takes parameters.
    pub(super) const fn with_query(self) -> Self {
        Self {
            access: Access::WithKeyAndQuery,
            ..self
        }
    }

    const fn new(
        method: &'static str,
        path: &'static str,
        answer: fn(Arc<Admin>, Asked) -> Answering,
    ) -> Self {
        Self {
            method,
            path,
            access: Access::WithKey,
            right: Right::Everything,
            answer,
        }
    }

    /// What stands in `path` for the segments in braces, or nothing where there is none. `None`: it is another path.
    fn matches<'p>(&self, path: &'p str) -> Option<[&'p str; 2]> {
        let (mut wanted, mut given) = (self.path.split('/'), path.split('/'));
        let (mut named, mut count) = ([""; 2], 0);
        loop {
            match (wanted.next(), given.next()) {
                (None, None) => return Some(named),
                (Some(any), Some(segment)) if any.starts_with('{') => {
                    *named.get_mut(count)? = segment;
                    count += 1;
                }
                (Some(wanted), Some(segment)) if wanted == segment => {}
                _ => return None,
            }
        }
    }
}

/// A request, for whoever answers it.
pub(super) struct Asked {
    named: [String; 2],
    query: Option<String>,
    headers: HeaderMap,
    operator: Operator,
    body: UnreadBody,
}

impl Asked {
    /// Who asks, for the audit.
    pub(super) fn who(&self) -> Operator {
        self.operator.clone()
    }

    /// What the path names, unchecked.
    pub(super) fn named(&self) -> &str {
        &self.named[0]
    }

    /// What it names behind that.
    pub(super) fn second_named(&self) -> &str {
        &self.named[1]
    }

    pub(super) fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    pub(super) const fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The whole body, within its limits.
    pub(super) async fn body(self) -> Result<Bytes, Refusal> {
        self.body.whole().await
    }
}

/// Whether only the holder of the admin key is answered. What is no route at all is for everybody not found.
pub(crate) fn needs_key<B>(req: &Request<B>) -> bool {
    find(req.method(), req.uri().path()).is_ok_and(|(route, _)| route.access != Access::Open)
}

/// Finds what answers, and what its path names. HEAD is answered like GET.
fn find<'p>(method: &Method, path: &'p str) -> Result<(&'static Route, [&'p str; 2]), Refusal> {
    let verb = match method.as_str() {
        "HEAD" => "GET",
        verb => verb,
    };
    let mut allow = Vec::new();
    for route in ROOMS.iter().copied().flatten() {
        let Some(named) = route.matches(path) else {
            continue;
        };
        if route.method == verb {
            return Ok((route, named));
        }
        allow.push(match route.method {
            "GET" => "GET, HEAD",
            method => method,
        });
    }
    if allow.is_empty() {
        return Err(Refusal::PathUnknown);
    }
    let allow = allow.join(", ");
    Err(Refusal::MethodNotAllowed { allow })
}

/// Answers whatever has a route. The admin key is asked for above.
#[derive(Clone, Debug)]
pub struct Routes {
    admin: Arc<Admin>,
}

impl Routes {
    /// The routes to `admin`.
    #[must_use]
    pub fn new(admin: Admin) -> Self {
        Self {
            admin: Arc::new(admin),
        }
    }
}

impl Service<Request<UnreadBody>> for Routes {
    type Response = Answer;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Answer, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Request<UnreadBody>) -> Self::Future {
        let admin = Arc::clone(&self.admin);
        Box::pin(async move {
            let (head, body) = req.into_parts();
            let (route, named) = find(&head.method, head.uri.path())?;
            if route.access == Access::WithKey {
                Query::parse(head.uri.query(), &[])?;
            }
            let operator = head.extensions.get::<Operator>().cloned();
            let operator = operator.unwrap_or_default();
            if !operator.role().may(route.right) {
                tracing::warn!(
                    target: "audit", who = operator.name(), what = "admin.refused",
                    method = %head.method, path = head.uri.path()
                );
                return Err(Refusal::RoleRefused(operator.role()).into());
            }
            let asked = Asked {
                named: named.map(str::to_owned),
                query: head.uri.query().map(str::to_owned),
                headers: head.headers,
                operator,
                body,
            };
            Ok((route.answer)(admin, asked).await?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Access = Access::WithKey;
    const QUERY: Access = Access::WithKeyAndQuery;

    #[test]
    fn each_call_has_its_path_and_method() {
        for (method, path, route, named, access) in [
            ("GET", "/livez", "/livez", "", Access::Open),
            ("HEAD", "/readyz", "/readyz", "", Access::Open),
            ("GET", "/metrics", "/metrics", "", Access::Open),
            ("GET", "/openapi.yaml", "/openapi.yaml", "", Access::Open),
            ("GET", "accounts", "accounts", "", KEY),
            ("POST", "accounts", "accounts", "", KEY),
            ("GET", "accounts/acme", "accounts/{account}", "acme", KEY),
            ("PATCH", "accounts/acme", "accounts/{account}", "acme", KEY),
            // A closing slash leaves an empty id, which no account has.
            ("GET", "accounts/", "accounts/{account}", "", KEY),
            (
                "POST",
                "accounts/acme/topups",
                "accounts/{account}/topups",
                "acme",
                KEY,
            ),
            (
                "POST",
                "accounts/acme/adjustments",
                "accounts/{account}/adjustments",
                "acme",
                KEY,
            ),
            (
                "GET",
                "accounts/acme/keys",
                "accounts/{account}/keys",
                "acme",
                KEY,
            ),
            (
                "POST",
                "accounts/acme/keys",
                "accounts/{account}/keys",
                "acme",
                KEY,
            ),
            ("GET", "keys/k1", "keys/{key}", "k1", KEY),
            ("HEAD", "keys/k1", "keys/{key}", "k1", KEY),
            ("PATCH", "keys/k1", "keys/{key}", "k1", KEY),
            ("DELETE", "keys/k1", "keys/{key}", "k1", KEY),
            ("GET", "leases", "leases", "", QUERY),
            ("GET", "receipts", "receipts", "", QUERY),
            ("GET", "receipts/n", "receipts/{number}", "n", KEY),
            ("GET", "calls/n", "calls/{number}", "n", KEY),
            ("GET", "usage", "usage", "", QUERY),
            ("GET", "export", "export", "", QUERY),
            ("GET", "payments", "payments", "", QUERY),
            ("GET", "payments/p", "payments/{payment}", "p", KEY),
            (
                "POST",
                "payments/p/check",
                "payments/{payment}/check",
                "p",
                KEY,
            ),
            ("GET", "vendors", "vendors", "", KEY),
            ("PATCH", "vendors/a%20b", "vendors/{vendor}", "a%20b", KEY),
            ("POST", "audit", "audit", "", KEY),
            ("GET", "tariffs", "tariffs", "", KEY),
            ("GET", "events", "events", "", QUERY),
            ("PUT", "keys/k1/alerts", "keys/{key}/alerts", "k1", KEY),
        ] {
            let whole = |path: &str| match path.strip_prefix('/') {
                Some(_) => path.to_owned(),
                None => format!("/admin/v1/{path}"),
            };
            let (path, wanted) = (whole(path), whole(route));
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let Ok((route, got)) = find(&method, &path) else {
                panic!("{method} {path}");
            };
            let verb = if method == Method::HEAD {
                "GET"
            } else {
                method.as_str()
            };
            assert_eq!((route.method, route.path), (verb, &*wanted), "{path}");
            assert_eq!(got, [named, ""], "{method} {path}");
            assert!(route.access == access, "{method} {path}");
        }
    }

    #[test]
    fn a_path_may_name_two_things() {
        let path = "/admin/v1/accounts/acme/statements/2026-11";
        let (route, named) = find(&Method::GET, path).ok().unwrap();
        assert_eq!(named, ["acme", "2026-11"]);
        assert!(route.access == QUERY);
        let refused = find(&Method::POST, path).err();
        let allow = "GET, HEAD".to_owned();
        assert_eq!(refused, Some(Refusal::MethodNotAllowed { allow }));
    }

    #[test]
    fn nothing_is_open_but_what_a_stranger_may_know() {
        let open = ROOMS.iter().copied().flatten();
        let open: Vec<&str> = open
            .filter(|route| route.access == Access::Open)
            .map(|route| route.path)
            .collect();
        assert_eq!(open, ["/livez", "/readyz", "/metrics", "/openapi.yaml"]);
    }

    /// A new route that nobody thought of needs all rights.
    #[test]
    fn what_changes_something_needs_a_right_of_its_own() {
        let changing = ROOMS.iter().copied().flatten();
        let changing = changing.filter(|route| route.method != "GET");
        let rights: Vec<_> = changing
            .map(|route| (route.method, route.path, route.right))
            .collect();
        let account = "/admin/v1/accounts/{account}";
        assert_eq!(
            rights,
            [
                ("POST", "/admin/v1/accounts", Right::Support),
                ("PATCH", account, Right::Support),
                ("POST", &*format!("{account}/topups"), Right::Money),
                ("POST", &*format!("{account}/adjustments"), Right::Money),
                ("POST", "/admin/v1/payments", Right::Money),
                ("POST", "/admin/v1/payments/{payment}/check", Right::Money),
                ("PUT", &*format!("{account}/auto_topup"), Right::Money),
                ("DELETE", &*format!("{account}/auto_topup"), Right::Money),
                (
                    "POST",
                    &*format!("{account}/auto_topup/resume"),
                    Right::Money
                ),
                ("POST", &*format!("{account}/keys"), Right::Support),
                ("PATCH", "/admin/v1/keys/{key}", Right::Support),
                ("DELETE", "/admin/v1/keys/{key}", Right::Support),
                ("POST", &*format!("{account}/groups"), Right::Support),
                (
                    "PATCH",
                    &*format!("{account}/groups/{{group}}"),
                    Right::Support
                ),
                (
                    "DELETE",
                    &*format!("{account}/groups/{{group}}"),
                    Right::Support
                ),
                ("POST", "/admin/v1/usage/rebuild", Right::Everything),
                ("PATCH", "/admin/v1/vendors/{vendor}", Right::Everything),
                ("POST", "/admin/v1/audit", Right::Money),
                ("PUT", &*format!("{account}/alerts"), Right::Support),
                ("PUT", "/admin/v1/keys/{key}/alerts", Right::Support),
                (
                    "PUT",
                    &*format!("{account}/groups/{{group}}/alerts"),
                    Right::Support
                ),
                ("PATCH", "/admin/v1/receivers/{receiver}", Right::Everything),
                (
                    "POST",
                    "/admin/v1/receivers/{receiver}/replays",
                    Right::Support
                ),
            ]
        );
        let reading = ROOMS.iter().copied().flatten();
        let mut reading = reading.filter(|route| route.method == "GET");
        assert!(reading.all(|route| route.right == Right::Read));
    }

    #[test]
    fn other_paths_are_unknown() {
        for path in [
            "/",
            "",
            "*",
            "livez",
            "/admin",
            "/admin/v1",
            "/admin/v1/accounts/acme/",
            "/admin/v1/accounts/acme/other",
            "/admin/v1/keys",
            "/admin/v1/usage/acme",
            "/admin/v2/accounts",
            "/ADMIN/v1/accounts",
            "//livez",
            "/livez/",
            "/metrics/",
            "/admin/v1/{account}",
        ] {
            let refused = find(&Method::GET, path).err();
            assert_eq!(refused, Some(Refusal::PathUnknown), "{path}");
        }
    }

    #[test]
    fn other_methods_are_told_which_are_allowed() {
        for (method, path, allow) in [
            ("POST", "/livez", "GET, HEAD"),
            ("POST", "/metrics", "GET, HEAD"),
            ("POST", "/openapi.yaml", "GET, HEAD"),
            ("DELETE", "/admin/v1/accounts", "GET, HEAD, POST"),
            ("DELETE", "/admin/v1/accounts/acme", "GET, HEAD, PATCH"),
            ("GET", "/admin/v1/accounts/acme/topups", "POST"),
            ("PUT", "/admin/v1/accounts/acme/adjustments", "POST"),
            ("PATCH", "/admin/v1/accounts/acme/keys", "GET, HEAD, POST"),
            ("POST", "/admin/v1/keys/k1", "GET, HEAD, PATCH, DELETE"),
            ("DELETE", "/admin/v1/leases", "GET, HEAD"),
            ("POST", "/admin/v1/receipts/n", "GET, HEAD"),
            ("POST", "/admin/v1/usage", "GET, HEAD"),
            ("DELETE", "/admin/v1/export", "GET, HEAD"),
            ("POST", "/admin/v1/vendors", "GET, HEAD"),
            ("GET", "/admin/v1/vendors/a", "PATCH"),
            ("GET", "/admin/v1/audit", "POST"),
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let allow = allow.to_owned();
            let refused = find(&method, path).err();
            let expected = Some(Refusal::MethodNotAllowed { allow });
            assert_eq!(refused, expected, "{method} {path}");
        }
    }
}
