//! The table of the callers' paths. The router, the CORS layer and the request counters look up the [`Route`] of a
//! request in it.

use http::{Method, Request};
use tollgate_layers::Error;

/// Declares the routes. A row contains the route's name, its methods as in an `Allow` header, and the pattern of its
/// path.
macro_rules! routes {
    ($($name:ident $methods:literal $pattern:literal)*) => {
        /// A route of the callers' listener.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Route {
            $($name),*
        }

        impl Route {
            /// All routes, in the order of their indexes.
            pub(crate) const ALL: [Self; [$($pattern),*].len()] = [$(Self::$name),*];

            /// Returns the methods that the route accepts, separated by commas as in an `Allow` header.
            pub(crate) const fn methods(self) -> &'static str {
                match self {
                    $(Self::$name => $methods),*
                }
            }

            const fn pattern(self) -> &'static str {
                match self {
                    $(Self::$name => $pattern),*
                }
            }
        }
    };
}

// `{service}` is the configured service name. `{*model}` also matches slashes, because a model's name may contain them.
routes! {
    Chat          "POST"               "/v1/chat/completions"
    Messages      "POST"               "/v1/messages"
    Responses     "POST"               "/v1/responses"
    Embeddings    "POST"               "/v1/embeddings"
    CountTokens   "POST"               "/v1/messages/count_tokens"
    Models        "GET"                "/v1/models"
    Model         "GET"                "/v1/models/{*model}"
    Catalog       "GET, HEAD"          "/v1/{service}/models"
    Connect       "GET, HEAD"          "/v1/{service}/connect"
    ConnectClient "GET, HEAD"          "/v1/{service}/connect/{client}"
    Key           "GET"                "/v1/{service}/key"
    Estimate      "POST"               "/v1/{service}/estimate"
    Receipts      "GET"                "/v1/{service}/receipts"
    Receipt       "GET"                "/v1/{service}/receipts/{number}"
    Spending      "GET"                "/v1/{service}/usage"
    Payments      "GET, POST"          "/v1/{service}/payments"
    AutoTopup     "GET, PUT, DELETE"   "/v1/{service}/payments/auto"
    OwnKeys       "GET, POST"          "/v1/{service}/keys"
    OwnKey        "GET, PATCH, DELETE" "/v1/{service}/keys/{key}"
    Notification  "POST"               "/payments/{provider}"
    UsagePage     "GET, HEAD"          "/usage"
    UsagePageFile "GET, HEAD"          "/usage/{file}"
    Cabinet       "GET, HEAD, POST"    "/cabinet"
    CabinetPage   "GET, HEAD, POST"    "/cabinet/{*page}"
    PlayCall      "POST"               "/cabinet/playground/call"
    PlayEstimate  "POST"               "/cabinet/playground/estimate"
    Page          "GET, HEAD"          "/"
    Hello         "GET, HEAD"          "/api/hello"
    OpenApi       "GET, HEAD"          "/openapi.yaml"
}

impl Route {
    /// Returns the pattern of the path for documents and logs, for example `/v1/tollgate/receipts/{number}`.
    pub(crate) fn path(self, service: &str) -> String {
        self.pattern()
            .replace("{service}", service)
            .replace('*', "")
    }

    /// Returns whether web pages of any origin may read the responses of this route.
    pub(crate) const fn is_public(self) -> bool {
        matches!(
            self,
            Self::Catalog | Self::Connect | Self::ConnectClient | Self::OpenApi
        )
    }

    /// Returns whether requests to this route are answered by a model.
    pub(crate) const fn is_of_inference(self) -> bool {
        matches!(
            self,
            Self::Chat | Self::Messages | Self::Responses | Self::Embeddings | Self::PlayCall
        )
    }

    /// Returns whether requests to this route count as calls: requests that a model answers, and requests to count
    /// tokens.
    pub(crate) const fn is_of_calls(self) -> bool {
        self.is_of_inference() || matches!(self, Self::CountTokens)
    }

    /// Returns whether the route accepts this method.
    pub(super) fn takes(self, method: &Method) -> bool {
        self.methods().split(", ").any(|known| method == known)
    }
}

/// The table that finds the route of a path.
#[derive(Clone, Debug)]
pub(crate) struct Routes(matchit::Router<Route>);

impl Routes {
    /// Creates the table. `service` is the service name in the paths.
    pub(crate) fn new(service: &str) -> Self {
        let mut routes = matchit::Router::new();
        for route in Route::ALL {
            let path = route.pattern().replace("{service}", service);
            (routes.insert(path, route)).expect("no two routes have the same path");
        }
        Self(routes)
    }

    /// Returns the route of a path; `None` if the path is unknown.
    pub(crate) fn find(&self, path: &str) -> Option<Route> {
        Some(*self.0.at(path).ok()?.value)
    }

    /// Returns the route of a path, with the part of the path that the braces in the route's pattern match.
    pub(super) fn matched(&self, path: &str) -> Option<Matched> {
        let found = self.0.at(path).ok()?;
        Some(Matched {
            route: *found.value,
            parameter: found.params.iter().next().map(|(_, text)| text.into()),
        })
    }
}

/// Request extension with the route that the router found. Requests that call a model do not carry it.
#[derive(Clone, Debug)]
pub(crate) struct Matched {
    pub(crate) route: Route,
    /// The part of the path that the braces in the route's pattern match, as it was received. It is not empty.
    pub(crate) parameter: Option<Box<str>>,
}

impl Matched {
    /// Returns the route that the router found for this request.
    ///
    /// # Errors
    /// [`Error::PathUnknown`] if the request has not passed through the router.
    pub(crate) fn from_request<B>(req: &Request<B>) -> Result<&Self, Error> {
        req.extensions().get().ok_or(Error::PathUnknown)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// The methods of each path.
    type Paths = BTreeMap<String, BTreeSet<String>>;

    /// Returns the paths in an OpenAPI document, with their methods.
    pub(crate) fn described(document: &str) -> Paths {
        let mut paths = Paths::new();
        let mut path = String::new();
        for line in document.lines().skip_while(|line| *line != "paths:") {
            let name = line.trim().trim_end_matches(':');
            match line.len() - line.trim_start().len() {
                2 if name.starts_with('/') => name.clone_into(&mut path),
                4 if ["get", "head", "post", "put", "patch", "delete"].contains(&name) => {
                    let methods = paths.entry(path.clone()).or_default();
                    methods.insert(name.to_uppercase());
                }
                _ => {}
            }
        }
        paths
    }

    #[test]
    fn openapi_document_for_callers_has_exactly_the_paths_of_the_route_table() {
        let table = Route::ALL.map(|route| {
            let methods = route.methods().split(", ").map(str::to_owned);
            (route.path("tollgate"), methods.collect())
        });
        let document = include_str!("../../docs/openapi-public.yaml");
        assert_eq!(described(document), Paths::from(table));
    }

    #[test]
    fn architecture_diagram_contains_every_path_of_the_route_table() {
        let page = include_str!("../../docs/architecture.md");
        for route in Route::ALL {
            let path = route.path("<service>");
            assert!(
                page.contains(&format!("{path} ")) || page.contains(&format!("{path}\n")),
                "docs/architecture.md draws no {path}"
            );
        }
    }

    #[test]
    fn each_route_pattern_matches_only_its_own_path() {
        let routes = Routes::new("tollgate");
        for route in Route::ALL {
            assert_eq!(routes.find(&route.path("tollgate")), Some(route));
        }
        for unknown in ["", "/v1/other/models", "/v1/tollgate/", "/v1/messages/"] {
            assert_eq!(routes.find(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn service_name_may_equal_other_segments_of_the_path() {
        let routes = Routes::new("connect");
        let found = routes.matched("/v1/connect/connect/connect").unwrap();
        assert_eq!(found.route, Route::ConnectClient);
        assert_eq!(found.parameter.as_deref(), Some("connect"));
        let list = routes.matched("/v1/connect/connect").unwrap();
        assert_eq!((list.route, list.parameter), (Route::Connect, None));
    }

    #[test]
    fn request_path_must_match_a_route_pattern_exactly() {
        let routes = Routes::new("tollgate");
        let found = |method: Method, path: &str| match routes.find(path) {
            None => "unknown".to_owned(),
            Some(route) if route.takes(&method) => format!("{route:?}"),
            Some(route) => route.methods().to_owned(),
        };
        for case in [
            "GET /v1/embeddings POST",
            "GET /v1/messages POST",
            "HEAD /v1/tollgate/models Catalog",
            "POST /v1/tollgate/models GET, HEAD",
            "GET /v1/models/m Model",
            "GET /v1/models/a/b%2Fc Model",
            "HEAD /v1/models/m GET",
            "GET /v1/models/ unknown",
            "GET /v1/modelsm unknown",
            "GET /v1/tollgate/estimate POST",
            "GET /v1/tollgate/receipts/n Receipt",
            "POST /v1/tollgate/receipts/n GET",
            "GET /v1/tollgate/usage/ unknown",
            "HEAD /v1/tollgate/payments GET, POST",
            "POST /v1/tollgate/payments/auto GET, PUT, DELETE",
            "GET /v1/tollgate/payments/x unknown",
            "POST /payments/yookassa Notification",
            "GET /payments/yookassa POST",
            "POST /payments/ unknown",
            "POST /payments/yookassa/x unknown",
            "DELETE /v1/tollgate/keys GET, POST",
            "PATCH /v1/tollgate/keys/k OwnKey",
            "POST /v1/tollgate/keys/k GET, PATCH, DELETE",
            "GET /v1/tollgate/keys/k/k unknown",
            "HEAD /usage/page.js UsagePageFile",
            "POST /usage GET, HEAD",
            "GET /usage/ unknown",
            "GET /usage/page.js/x unknown",
            "POST /cabinet/keys/k CabinetPage",
            "PUT /cabinet/keys GET, HEAD, POST",
            "GET /cabinet/playground CabinetPage",
            "POST /cabinet/playground/call PlayCall",
            "GET /cabinet/playground/estimate POST",
            "GET /cabinet/ unknown",
            "GET /v1/tollgate/receipts/ unknown",
            "GET /v1/tollgate/receipts/n/n unknown",
            "HEAD /v1/tollgate/connect/zed ConnectClient",
            "POST /v1/tollgate/connect/zed GET, HEAD",
            "GET /v1/tollgate/connect/ unknown",
            "GET /v1/tollgate/connect/zed/ unknown",
            "GET /v1/tollgate/connected unknown",
            "HEAD / Page",
            "HEAD /api/hello Hello",
            "POST /api/hello GET, HEAD",
            "GET /api/hello/ unknown",
            "POST /openapi.yaml GET, HEAD",
            "POST /v1/messages/ unknown",
            "POST /V1/messages unknown",
            "POST //v1/messages unknown",
            "GET /v1/other/models unknown",
        ] {
            let mut words = case.splitn(3, ' ');
            let method = words.next().unwrap().parse().unwrap();
            let (path, place) = (words.next().unwrap(), words.next().unwrap());
            assert_eq!(found(method, path), place, "{case}");
        }
    }
}
