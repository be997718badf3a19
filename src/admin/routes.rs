//! Paths and methods of the operators' listener. Each module declares the routes that it serves.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
    task::{Context, Poll},
};

use http::{Method, Request};
use tower::Service;

use super::{
    Admin, Answer, Operator, accounts, alerts, audit, auto_topups, calls, codes, configuration,
    events, export, groups, invoices, keys, leases, members, past_changes, payments, people,
    probes,
    query::Query,
    receipts, receivers,
    refusal::Refusal,
    route::{Access, AdminRequest, Answering, Route},
    statements, tariffs, usage, vendors,
};
use crate::{edge::body_limit::UnreadBody, observe::log::audited};

const ROOMS: &[&[Route]] = &[
    probes::ROUTES,
    accounts::ROUTES,
    payments::ROUTES,
    auto_topups::ROUTES,
    keys::ROUTES,
    groups::ROUTES,
    members::ROUTES,
    codes::ROUTES,
    leases::ROUTES,
    receipts::ROUTES,
    calls::ROUTES,
    usage::ROUTES,
    statements::ROUTES,
    invoices::ROUTES,
    export::ROUTES,
    vendors::ROUTES,
    configuration::ROUTES,
    people::ROUTES,
    tariffs::ROUTES,
    audit::ROUTES,
    past_changes::ROUTES,
    events::ROUTES,
    alerts::ROUTES,
    receivers::ROUTES,
];

/// Returns whether a request needs the admin key. A request whose path is not a route needs no key and gets a 404.
pub(crate) fn needs_key<B>(req: &Request<B>) -> bool {
    find(req.method(), req.uri().path()).is_ok_and(|(route, _)| route.access != Access::Open)
}

/// The routes of each path, one per method.
static TABLE: LazyLock<matchit::Router<Vec<&'static Route>>> = LazyLock::new(|| {
    let mut paths = BTreeMap::<&str, Vec<&'static Route>>::new();
    for route in ROOMS.iter().copied().flatten() {
        paths.entry(route.path).or_default().push(route);
        // A path without its last segment gets an empty name, and no account or key has an empty name.
        let begin = route.path.strip_suffix('}');
        if let Some((path, _)) = begin.and_then(|path| path.rsplit_once('{')) {
            paths.entry(path).or_default().push(route);
        }
    }
    let mut table = matchit::Router::new();
    for (path, routes) in paths {
        (table.insert(path, routes)).expect("no two routes have the same path and method");
    }
    table
});

/// Finds the route and its matched segments. HEAD uses the route of GET.
fn find<'p>(method: &Method, path: &'p str) -> Result<(&'static Route, [&'p str; 2]), Refusal> {
    let found = TABLE.at(path).map_err(|_| Refusal::PathUnknown)?;
    let verb = match method.as_str() {
        "HEAD" => "GET",
        verb => verb,
    };
    let mut routes = found.value.iter().copied();
    if let Some(route) = routes.find(|route| route.method == verb) {
        let mut segments = found.params.iter().map(|(_, segment)| segment);
        let named = [(); 2].map(|()| segments.next().unwrap_or_default());
        return Ok((route, named));
    }
    let allow = found.value.iter().map(|route| match route.method {
        "GET" => "GET, HEAD",
        method => method,
    });
    let allow = allow.collect::<Vec<_>>().join(", ");
    Err(Refusal::MethodNotAllowed { allow })
}

/// Serves requests by their routes. A layer above checks the admin key.
#[derive(Clone, Debug)]
pub struct Routes {
    admin: Arc<Admin>,
}

impl Routes {
    /// Creates the routes to `admin`.
    #[must_use]
    pub fn new(admin: Admin) -> Self {
        let admin = Arc::new(admin);
        Self { admin }
    }
}

impl Service<Request<UnreadBody>> for Routes {
    type Response = Answer;
    type Error = Refusal;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Refusal>> {
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
                return Err(Refusal::RoleRefused(operator.role()));
            }
            let request = AdminRequest {
                named: named.map(str::to_owned),
                query: head.uri.query().map(str::to_owned),
                headers: head.headers,
                operator,
                body,
            };
            let answer = (route.answer)(Arc::clone(&admin), request);
            if route.method == "GET" {
                return answer.await;
            }
            let (answer, lines) = audited(answer).await;
            admin.store_changes(lines).await;
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{edge::routes::tests::described, operators::Right};

    const KEY: Access = Access::WithKey;
    const QUERY: Access = Access::WithKeyAndQuery;

    #[test]
    fn each_admin_route_is_found_by_its_path_and_method() {
        for (method, path, route, named, access) in [
            ("GET", "/livez", "/livez", "", Access::Open),
            ("HEAD", "/readyz", "/readyz", "", Access::Open),
            ("GET", "/metrics", "/metrics", "", Access::Open),
            ("GET", "/openapi.yaml", "/openapi.yaml", "", Access::Open),
            ("GET", "accounts", "accounts", "", KEY),
            ("POST", "accounts", "accounts", "", KEY),
            ("GET", "accounts/acme", "accounts/{account}", "acme", KEY),
            ("PATCH", "accounts/acme", "accounts/{account}", "acme", KEY),
            // A trailing slash in the path leaves an empty id, which belongs to no account.
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
            ("GET", "calls", "calls", "", QUERY),
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
    fn path_pattern_may_have_two_parameters() {
        let path = "/admin/v1/accounts/acme/statements/2026-11";
        let (route, named) = find(&Method::GET, path).ok().unwrap();
        assert_eq!(named, ["acme", "2026-11"]);
        assert!(route.access == QUERY);
        let refused = find(&Method::POST, path).err();
        let allow = "GET, HEAD".to_owned();
        assert_eq!(refused, Some(Refusal::MethodNotAllowed { allow }));
    }

    #[test]
    fn openapi_document_for_operators_has_exactly_the_paths_of_the_route_table() {
        let mut table = BTreeMap::<String, BTreeSet<String>>::new();
        for route in ROOMS.iter().copied().flatten() {
            let methods = table.entry(route.path.to_owned()).or_default();
            methods.insert(route.method.to_owned());
        }
        let document = include_str!("../../docs/openapi-admin.yaml");
        assert_eq!(described(document), table);
    }

    #[test]
    fn only_public_routes_need_no_admin_key() {
        let open = ROOMS.iter().copied().flatten();
        let open: Vec<&str> = open
            .filter(|route| route.access == Access::Open)
            .map(|route| route.path)
            .collect();
        assert_eq!(open, ["/livez", "/readyz", "/metrics", "/openapi.yaml"]);
    }

    /// Every route that makes a change names the right that it requires. A route that named none would require all
    /// rights.
    #[test]
    fn every_admin_route_that_changes_something_names_the_required_right() {
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
                ("POST", &*format!("{account}/members"), Right::Support),
                (
                    "DELETE",
                    &*format!("{account}/members/{{member}}"),
                    Right::Support
                ),
                ("POST", "/admin/v1/codes", Right::Money),
                ("DELETE", "/admin/v1/codes/{code}", Right::Money),
                ("POST", "/admin/v1/usage/rebuild", Right::Everything),
                ("PATCH", "/admin/v1/vendors/{vendor}", Right::Everything),
                ("POST", "/admin/v1/configuration/changes", Right::Everything),
                (
                    "POST",
                    "/admin/v1/configuration/vendors/{vendor}/test",
                    Right::Everything
                ),
                ("POST", "/admin/v1/operators", Right::Everything),
                (
                    "DELETE",
                    "/admin/v1/operators/{operator}",
                    Right::Everything
                ),
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
    fn request_to_an_unknown_admin_path_gets_404() {
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
    fn wrong_admin_method_is_refused_with_the_allowed_methods() {
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
