//! Paths of the operator's listener.

use http::Method;

/// What a path and method ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route<'a> {
    /// Whether the process runs. No key needed.
    Live,
    /// Whether it takes calls. No key needed.
    Ready,
    /// What it counts. No key needed: no name of a customer is in it.
    Metrics,
    /// What all of it looks like. No key needed.
    OpenApi,
    /// Anything that needs the admin key.
    Call(Call<'a>),
}

/// A call of the admin API, with the ids of its path unchecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call<'a> {
    ListAccounts,
    CreateAccount,
    ShowAccount(&'a str),
    ChangeAccount(&'a str),
    TopUp(&'a str),
    Adjust(&'a str),
    ListKeys(&'a str),
    CreateKey(&'a str),
    ShowKey(&'a str),
    ChangeKey(&'a str),
    DeleteKey(&'a str),
    ShowReceipt(&'a str),
    ShowUsage,
    Export,
    ListVendors,
    ChangeVendor(&'a str),
    Audit,
}

/// Why nothing answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoute {
    /// 404.
    PathUnknown,
    /// 405.
    MethodNotAllowed {
        /// The `allow` header.
        allow: &'static str,
    },
}

/// Finds what answers. HEAD is answered like GET.
pub(super) fn route<'a>(method: &Method, path: &'a str) -> Result<Route<'a>, NoRoute> {
    use Call::*;

    let verb = if *method == Method::HEAD {
        "GET"
    } else {
        method.as_str()
    };
    let only = |allow| Err(NoRoute::MethodNotAllowed { allow });
    let segments: Vec<&str> = path
        .strip_prefix('/')
        .ok_or(NoRoute::PathUnknown)?
        .split('/')
        .collect();
    let call = match (segments.as_slice(), verb) {
        (["livez"], "GET") => return Ok(Route::Live),
        (["readyz"], "GET") => return Ok(Route::Ready),
        (["metrics"], "GET") => return Ok(Route::Metrics),
        (["openapi.yaml"], "GET") => return Ok(Route::OpenApi),
        (["livez" | "readyz" | "metrics" | "openapi.yaml"], _) => return only("GET, HEAD"),

        (["admin", "v1", "accounts"], "GET") => ListAccounts,
        (["admin", "v1", "accounts"], "POST") => CreateAccount,
        (["admin", "v1", "accounts"], _) => return only("GET, HEAD, POST"),

        (["admin", "v1", "accounts", id], "GET") => ShowAccount(id),
        (["admin", "v1", "accounts", id], "PATCH") => ChangeAccount(id),
        (["admin", "v1", "accounts", _], _) => return only("GET, HEAD, PATCH"),

        (["admin", "v1", "accounts", id, "topups"], "POST") => TopUp(id),
        (["admin", "v1", "accounts", id, "adjustments"], "POST") => Adjust(id),
        (["admin", "v1", "accounts", _, "topups" | "adjustments"], _) => return only("POST"),

        (["admin", "v1", "accounts", id, "keys"], "GET") => ListKeys(id),
        (["admin", "v1", "accounts", id, "keys"], "POST") => CreateKey(id),
        (["admin", "v1", "accounts", _, "keys"], _) => return only("GET, HEAD, POST"),

        (["admin", "v1", "keys", id], "GET") => ShowKey(id),
        (["admin", "v1", "keys", id], "PATCH") => ChangeKey(id),
        (["admin", "v1", "keys", id], "DELETE") => DeleteKey(id),
        (["admin", "v1", "keys", _], _) => return only("GET, HEAD, PATCH, DELETE"),

        (["admin", "v1", "receipts", number], "GET") => ShowReceipt(number),
        (["admin", "v1", "receipts", _], _) => return only("GET, HEAD"),

        (["admin", "v1", "usage"], "GET") => ShowUsage,
        (["admin", "v1", "export"], "GET") => Export,
        (["admin", "v1", "usage" | "export"], _) => return only("GET, HEAD"),
        (["admin", "v1", "vendors"], "GET") => ListVendors,
        (["admin", "v1", "vendors"], _) => return only("GET, HEAD"),

        (["admin", "v1", "vendors", name], "PATCH") => ChangeVendor(name),
        (["admin", "v1", "vendors", _], _) => return only("PATCH"),

        (["admin", "v1", "audit"], "POST") => Audit,
        (["admin", "v1", "audit"], _) => return only("POST"),

        _ => return Err(NoRoute::PathUnknown),
    };
    Ok(Route::Call(call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_has_its_path_and_method() {
        for (method, path, expected) in [
            ("GET", "/livez", Route::Live),
            ("HEAD", "/readyz", Route::Ready),
            ("GET", "/metrics", Route::Metrics),
            ("GET", "/openapi.yaml", Route::OpenApi),
            ("GET", "/admin/v1/accounts", Route::Call(Call::ListAccounts)),
            (
                "POST",
                "/admin/v1/accounts",
                Route::Call(Call::CreateAccount),
            ),
            (
                "GET",
                "/admin/v1/accounts/acme",
                Route::Call(Call::ShowAccount("acme")),
            ),
            (
                "PATCH",
                "/admin/v1/accounts/acme",
                Route::Call(Call::ChangeAccount("acme")),
            ),
            (
                "POST",
                "/admin/v1/accounts/acme/topups",
                Route::Call(Call::TopUp("acme")),
            ),
            (
                "POST",
                "/admin/v1/accounts/acme/adjustments",
                Route::Call(Call::Adjust("acme")),
            ),
            (
                "GET",
                "/admin/v1/accounts/acme/keys",
                Route::Call(Call::ListKeys("acme")),
            ),
            (
                "POST",
                "/admin/v1/accounts/acme/keys",
                Route::Call(Call::CreateKey("acme")),
            ),
            ("GET", "/admin/v1/keys/k1", Route::Call(Call::ShowKey("k1"))),
            (
                "HEAD",
                "/admin/v1/keys/k1",
                Route::Call(Call::ShowKey("k1")),
            ),
            (
                "PATCH",
                "/admin/v1/keys/k1",
                Route::Call(Call::ChangeKey("k1")),
            ),
            (
                "DELETE",
                "/admin/v1/keys/k1",
                Route::Call(Call::DeleteKey("k1")),
            ),
            (
                "GET",
                "/admin/v1/receipts/n",
                Route::Call(Call::ShowReceipt("n")),
            ),
            ("GET", "/admin/v1/usage", Route::Call(Call::ShowUsage)),
            ("GET", "/admin/v1/export", Route::Call(Call::Export)),
            ("GET", "/admin/v1/vendors", Route::Call(Call::ListVendors)),
            (
                "PATCH",
                "/admin/v1/vendors/a%20b",
                Route::Call(Call::ChangeVendor("a%20b")),
            ),
            ("POST", "/admin/v1/audit", Route::Call(Call::Audit)),
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(route(&method, path), Ok(expected), "{method} {path}");
        }
    }

    #[test]
    fn other_paths_are_unknown() {
        for path in [
            "/",
            "",
            "*",
            "/admin",
            "/admin/v1",
            "/admin/v1/accounts/",
            "/admin/v1/accounts/acme/",
            "/admin/v1/accounts/acme/other",
            "/admin/v1/keys",
            "/admin/v1/usage/acme",
            "/admin/v2/accounts",
            "/ADMIN/v1/accounts",
            "//livez",
            "/livez/",
            "/metrics/",
        ] {
            let got = route(&Method::GET, path);
            // A closing slash leaves an empty id, which no account has.
            let empty_id = got == Ok(Route::Call(Call::ShowAccount("")));
            assert!(
                got == Err(NoRoute::PathUnknown) || empty_id,
                "{path}: {got:?}"
            );
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
            ("POST", "/admin/v1/receipts/n", "GET, HEAD"),
            ("POST", "/admin/v1/usage", "GET, HEAD"),
            ("DELETE", "/admin/v1/export", "GET, HEAD"),
            ("POST", "/admin/v1/vendors", "GET, HEAD"),
            ("GET", "/admin/v1/vendors/a", "PATCH"),
            ("GET", "/admin/v1/audit", "POST"),
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(
                route(&method, path),
                Err(NoRoute::MethodNotAllowed { allow }),
                "{method} {path}"
            );
        }
    }
}
