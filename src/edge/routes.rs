//! The table of the callers' paths. The router, CORS and the counters of requests find a request's [`Route`] in it.

use http::{Method, Request};
use tollgate_layers::Error;

/// Declares the routes: a name, the methods as an `Allow` header lists them, and the pattern.
macro_rules! routes {
    ($($name:ident $methods:literal $pattern:literal)*) => {
        /// A path of the callers' listener.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Route {
            $($name),*
        }

        impl Route {
            /// The routes, each at its own index.
            pub(crate) const ALL: [Self; [$($pattern),*].len()] = [$(Self::$name),*];

            /// Methods that the path takes, as an `Allow` header lists them.
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

// `{service}` is the configured name; `{*model}` matches slashes, too, because a model's name may contain them.
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
    Page          "GET, HEAD"          "/"
    Hello         "GET, HEAD"          "/api/hello"
    OpenApi       "GET, HEAD"          "/openapi.yaml"
}

impl Route {
    /// Returns the path's pattern for people: `/v1/tollgate/receipts/{number}`.
    pub(crate) fn path(self, service: &str) -> String {
        self.pattern()
            .replace("{service}", service)
            .replace('*', "")
    }

    /// Returns whether web pages of any origin may read the route's answers.
    pub(crate) const fn is_public(self) -> bool {
        matches!(
            self,
            Self::Catalog | Self::Connect | Self::ConnectClient | Self::OpenApi
        )
    }

    /// Returns whether a model answers requests to this route.
    pub(crate) const fn is_of_inference(self) -> bool {
        matches!(
            self,
            Self::Chat | Self::Messages | Self::Responses | Self::Embeddings
        )
    }

    /// Returns whether requests to this route are calls of models.
    pub(crate) const fn is_of_calls(self) -> bool {
        self.is_of_inference() || matches!(self, Self::CountTokens)
    }

    /// Returns whether the path takes this method.
    pub(super) fn takes(self, method: &Method) -> bool {
        self.methods().split(", ").any(|known| method == known)
    }
}

/// Finds the route of a path.
#[derive(Clone, Debug)]
pub(crate) struct Routes(matchit::Router<Route>);

impl Routes {
    /// Creates the routes, with the service's name in their paths.
    pub(crate) fn new(service: &str) -> Self {
        let mut routes = matchit::Router::new();
        for route in Route::ALL {
            let path = route.pattern().replace("{service}", service);
            (routes.insert(path, route)).expect("no two routes have the same path");
        }
        Self(routes)
    }

    /// Returns the route of a path.
    pub(crate) fn find(&self, path: &str) -> Option<Route> {
        Some(*self.0.at(path).ok()?.value)
    }

    /// Returns the route of a path, with the text that the braces of its pattern match.
    pub(super) fn matched(&self, path: &str) -> Option<Matched> {
        let found = self.0.at(path).ok()?;
        Some(Matched {
            route: *found.value,
            parameter: found.params.iter().next().map(|(_, text)| text.into()),
        })
    }
}

/// Request extension with the route that the router found. Requests that call models do not have it.
#[derive(Clone, Debug)]
pub(crate) struct Matched {
    pub(crate) route: Route,
    /// The text that the braces of the pattern match, as it was received; it is not empty.
    pub(crate) parameter: Option<Box<str>>,
}

impl Matched {
    /// Returns the route of a request.
    ///
    /// # Errors
    /// [`Error::PathUnknown`] if no router has seen the request.
    pub(crate) fn from_request<B>(req: &Request<B>) -> Result<&Self, Error> {
        req.extensions().get().ok_or(Error::PathUnknown)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// The paths, with their methods.
    type Paths = BTreeMap<String, BTreeSet<String>>;

    /// Returns the paths of an OpenAPI document.
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
    fn drawing_in_the_architecture_page_has_each_path_of_the_route_table() {
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
    fn service_name_may_equal_a_segment_of_its_paths() {
        let routes = Routes::new("connect");
        let found = routes.matched("/v1/connect/connect/connect").unwrap();
        assert_eq!(found.route, Route::ConnectClient);
        assert_eq!(found.parameter.as_deref(), Some("connect"));
        let list = routes.matched("/v1/connect/connect").unwrap();
        assert_eq!((list.route, list.parameter), (Route::Connect, None));
    }

    #[test]
    fn route_paths_match_exactly() {
        let routes = Routes::new("tollgate");
        let found = |method: Method, path: &str| match routes.find(path) {
            None => "unknown".to_owned(),
            Some(route) if route.takes(&method) => format!("{route:?}"),
            Some(route) => route.methods().to_owned(),
        };
        for (method, path, place) in [
            (Method::POST, "/v1/chat/completions", "Chat"),
            (Method::POST, "/v1/messages", "Messages"),
            (Method::POST, "/v1/embeddings", "Embeddings"),
            (Method::GET, "/v1/embeddings", "POST"),
            (Method::POST, "/v1/messages/count_tokens", "CountTokens"),
            (Method::GET, "/v1/messages", "POST"),
            (Method::GET, "/v1/tollgate/models", "Catalog"),
            (Method::HEAD, "/v1/tollgate/models", "Catalog"),
            (Method::POST, "/v1/tollgate/models", "GET, HEAD"),
            (Method::GET, "/v1/models", "Models"),
            (Method::GET, "/v1/models/m", "Model"),
            (Method::GET, "/v1/models/a/b%2Fc", "Model"),
            (Method::HEAD, "/v1/models/m", "GET"),
            (Method::GET, "/v1/models/", "unknown"),
            (Method::GET, "/v1/modelsm", "unknown"),
            (Method::GET, "/v1/tollgate/key", "Key"),
            (Method::POST, "/v1/tollgate/estimate", "Estimate"),
            (Method::GET, "/v1/tollgate/estimate", "POST"),
            (Method::GET, "/v1/tollgate/receipts/n", "Receipt"),
            (Method::POST, "/v1/tollgate/receipts/n", "GET"),
            (Method::GET, "/v1/tollgate/receipts", "Receipts"),
            (Method::GET, "/v1/tollgate/usage", "Spending"),
            (Method::GET, "/v1/tollgate/usage/", "unknown"),
            (Method::GET, "/v1/tollgate/payments", "Payments"),
            (Method::POST, "/v1/tollgate/payments", "Payments"),
            (Method::HEAD, "/v1/tollgate/payments", "GET, POST"),
            (Method::PUT, "/v1/tollgate/payments/auto", "AutoTopup"),
            (
                Method::POST,
                "/v1/tollgate/payments/auto",
                "GET, PUT, DELETE",
            ),
            (Method::GET, "/v1/tollgate/payments/x", "unknown"),
            (Method::POST, "/payments/yookassa", "Notification"),
            (Method::GET, "/payments/yookassa", "POST"),
            (Method::POST, "/payments/", "unknown"),
            (Method::POST, "/payments/yookassa/x", "unknown"),
            (Method::POST, "/v1/tollgate/keys", "OwnKeys"),
            (Method::DELETE, "/v1/tollgate/keys", "GET, POST"),
            (Method::PATCH, "/v1/tollgate/keys/k", "OwnKey"),
            (Method::POST, "/v1/tollgate/keys/k", "GET, PATCH, DELETE"),
            (Method::GET, "/v1/tollgate/keys/k/k", "unknown"),
            (Method::GET, "/usage", "UsagePage"),
            (Method::HEAD, "/usage/page.js", "UsagePageFile"),
            (Method::POST, "/usage", "GET, HEAD"),
            (Method::GET, "/usage/", "unknown"),
            (Method::GET, "/usage/page.js/x", "unknown"),
            (Method::GET, "/cabinet", "Cabinet"),
            (Method::POST, "/cabinet/keys/k", "CabinetPage"),
            (Method::PUT, "/cabinet/keys", "GET, HEAD, POST"),
            (Method::GET, "/cabinet/", "unknown"),
            (Method::GET, "/v1/tollgate/receipts/", "unknown"),
            (Method::GET, "/v1/tollgate/receipts/n/n", "unknown"),
            (Method::GET, "/v1/tollgate/connect", "Connect"),
            (Method::HEAD, "/v1/tollgate/connect/zed", "ConnectClient"),
            (Method::POST, "/v1/tollgate/connect/zed", "GET, HEAD"),
            (Method::GET, "/v1/tollgate/connect/", "unknown"),
            (Method::GET, "/v1/tollgate/connect/zed/", "unknown"),
            (Method::GET, "/v1/tollgate/connected", "unknown"),
            (Method::HEAD, "/", "Page"),
            (Method::HEAD, "/api/hello", "Hello"),
            (Method::GET, "/api/hello", "Hello"),
            (Method::POST, "/api/hello", "GET, HEAD"),
            (Method::GET, "/api/hello/", "unknown"),
            (Method::GET, "/openapi.yaml", "OpenApi"),
            (Method::POST, "/openapi.yaml", "GET, HEAD"),
            (Method::POST, "/v1/messages/", "unknown"),
            (Method::POST, "/V1/messages", "unknown"),
            (Method::POST, "//v1/messages", "unknown"),
            (Method::GET, "/v1/other/models", "unknown"),
        ] {
            assert_eq!(found(method.clone(), path), place, "{method} {path}");
        }
    }
}
