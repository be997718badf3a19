//! The public price list: specification 2.6 and 4.3.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode,
    header::{
        ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG,
        IF_NONE_MATCH,
    },
};
use tollgate_layers::{
    Error,
    body::{self, AnswerBody},
};

use crate::catalog::snapshot::{Document, Live};

/// Far within the five minutes that the specification allows, since prices follow the rate.
const PRICED: &str = "public, max-age=60";
/// Short, so that prices are seen soon after they come back.
const UNPRICED: &str = "public, max-age=5";

/// Answers with a document of the snapshot in force.
pub(crate) type Answer<B> = fn(&Live, &Request<B>) -> Result<Response<AnswerBody>, Error>;

/// Answers the catalog of the snapshot in force.
pub(crate) fn answer<B>(live: &Live, req: &Request<B>) -> Result<Response<AnswerBody>, Error> {
    let snapshot = live.snapshot();
    let page = snapshot.page();
    document(&page.json, "application/json", page.priced, req).map(for_anybody)
}

/// Lets pages of any origin read an answer.
pub(crate) fn for_anybody(mut res: Response<AnswerBody>) -> Response<AnswerBody> {
    let anybody = HeaderValue::from_static("*");
    res.headers_mut()
        .insert(ACCESS_CONTROL_ALLOW_ORIGIN, anybody);
    res
}

/// Answers with a document, which may be kept as long as its prices last. It reads nothing of a request but its
/// method and `if-none-match`.
pub(crate) fn document<B>(
    document: &Document,
    content_type: &'static str,
    priced: bool,
    req: &Request<B>,
) -> Result<Response<AnswerBody>, Error> {
    let method = req.method();
    if method != Method::GET && method != Method::HEAD {
        return Err(Error::MethodNotAllowed { allow: "GET, HEAD" });
    }
    let unchanged = is_known(req.headers(), &document.etag);
    let bytes = if unchanged || method == Method::HEAD {
        Bytes::new()
    } else {
        document.bytes.clone()
    };
    let mut res = Response::new(body::full(bytes));
    let headers = res.headers_mut();
    headers.insert(ETAG, document.etag.clone());
    headers.insert(
        CACHE_CONTROL,
        HeaderValue::from_static(if priced { PRICED } else { UNPRICED }),
    );
    if unchanged {
        *res.status_mut() = StatusCode::NOT_MODIFIED;
        return Ok(res);
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if method == Method::HEAD {
        // The server sees an empty body and would say 0.
        headers.insert(CONTENT_LENGTH, document.bytes.len().into());
    }
    Ok(res)
}

/// Whether the client has these very bytes (RFC 9110, 13.1.2: weak comparison, a list, or `*`).
fn is_known(headers: &HeaderMap, etag: &HeaderValue) -> bool {
    headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','))
        .map(str::trim)
        .any(|tag| {
            tag == "*" || tag.strip_prefix("W/").unwrap_or(tag).as_bytes() == etag.as_bytes()
        })
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;
    use crate::catalog::snapshot::{
        RateReading,
        tests::{decimal, live},
    };

    async fn ask(
        live: &Live,
        method: &str,
        if_none_match: Option<&str>,
    ) -> Result<(Response<()>, Bytes), Error> {
        let mut req = Request::builder().method(method).uri("/v1/tollgate/models");
        if let Some(tag) = if_none_match {
            req = req.header(IF_NONE_MATCH, tag);
        }
        let res = answer(live, &req.body(()).unwrap())?;
        let (parts, body) = res.into_parts();
        Ok((
            Response::from_parts(parts, ()),
            body.collect().await?.to_bytes(),
        ))
    }

    fn priced() -> Live {
        let live = live();
        live.set_rate(RateReading::fixed(decimal("90.5")));
        live
    }

    #[tokio::test]
    async fn the_catalog_is_json_that_may_be_cached_and_read_from_anywhere() {
        for (live, max_age) in [
            (priced(), "public, max-age=60"),
            (live(), "public, max-age=5"),
        ] {
            let (res, body) = ask(&live, "GET", None).await.unwrap();
            assert_eq!(res.status(), StatusCode::OK);
            assert_eq!(res.headers()[CONTENT_TYPE], "application/json");
            assert_eq!(res.headers()[CACHE_CONTROL], max_age);
            assert_eq!(res.headers()[ACCESS_CONTROL_ALLOW_ORIGIN], "*");
            let tag = res.headers()[ETAG].to_str().unwrap();
            assert!(
                tag.starts_with('"') && tag.ends_with('"') && tag.len() > 2,
                "{tag}"
            );
            let catalog: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(catalog["priced"], max_age.ends_with("60"));
        }
    }

    #[tokio::test]
    async fn a_catalog_that_the_client_has_is_not_sent_again() {
        let live = priced();
        let (res, _) = ask(&live, "GET", None).await.unwrap();
        let tag = res.headers()[ETAG].to_str().unwrap().to_owned();
        for (known, status) in [
            (tag.clone(), 304),
            (format!("W/{tag}"), 304),
            (format!("\"other\", {tag}"), 304),
            ("*".to_owned(), 304),
            ("\"other\"".to_owned(), 200),
        ] {
            let (res, body) = ask(&live, "GET", Some(&known)).await.unwrap();
            assert_eq!(res.status(), status, "{known}");
            assert_eq!(body.is_empty(), status == 304, "{known}");
            assert_eq!(res.headers()[ETAG], tag, "{known}");
        }
        live.set_rate(RateReading::fixed(decimal("91")));
        assert_eq!(ask(&live, "GET", Some(&tag)).await.unwrap().0.status(), 200);
    }

    #[tokio::test]
    async fn head_is_get_without_the_body() {
        let live = priced();
        let (get, body) = ask(&live, "GET", None).await.unwrap();
        let (head, empty) = ask(&live, "HEAD", None).await.unwrap();
        assert_eq!(head.status(), StatusCode::OK);
        assert!(empty.is_empty());
        assert_eq!(head.headers()[ETAG], get.headers()[ETAG]);
        assert_eq!(head.headers()[CONTENT_LENGTH], body.len().to_string());
    }

    #[tokio::test]
    async fn other_methods_are_refused() {
        let refused = ask(&priced(), "POST", None).await;
        assert!(
            matches!(refused, Err(Error::MethodNotAllowed { allow: "GET, HEAD" })),
            "{refused:?}"
        );
    }
}
