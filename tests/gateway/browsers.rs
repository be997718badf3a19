//! Tests of web pages that call the gateway from a browser: which origins may use a key, and which responses a page may
//! read (docs/callers.md).

use crate::prelude::*;

const PAGE: (&str, &str) = ("origin", "https://app.example");
const OTHER: (&str, &str) = ("origin", "https://other.example");
const ALLOWED: &str = "cors_origins = [\"https://app.example\"]";

async fn preflight(world: &World, path: &str, origin: (&str, &str)) -> Answer {
    let headers = [
        origin,
        ("access-control-request-method", "POST"),
        (
            "access-control-request-headers",
            "authorization,content-type,x-stainless-lang",
        ),
    ];
    let url = world.url(path);
    world
        .ask(request(Method::OPTIONS, &url, &headers, Bytes::new()))
        .await
}

/// Returns the origin whose pages may read the response, from the header `access-control-allow-origin`.
fn readable(answer: &Answer) -> Option<&str> {
    let origin = answer.headers.get("access-control-allow-origin");
    origin.map(|origin| origin.to_str().unwrap())
}

#[tokio::test]
async fn web_page_can_use_a_key_only_from_an_allowed_origin() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        let refused = preflight(&world, op.path(), PAGE).await;
        assert_eq!((refused.status.as_u16(), readable(&refused)), (405, None));
        let headers = [("authorization", &*bearer(&key)), PAGE];
        let answer = op.post(&world, &headers, op.body("x").to_string()).await;
        assert_eq!((answer.status.as_u16(), readable(&answer)), (200, None));
    }
    let world = top(ALLOWED).start().await;
    let refused = preflight(&world, Op::Chat.path(), OTHER).await;
    assert_eq!((refused.status.as_u16(), readable(&refused)), (405, None));
}

#[tokio::test]
async fn page_of_an_allowed_origin_can_read_answers_refusals_and_their_headers() {
    let (world, key) = top(ALLOWED).start_with_key().await;
    for (path, methods) in [
        ("/v1/chat/completions", "POST"),
        ("/v1/messages", "POST"),
        ("/v1/messages/count_tokens", "POST"),
        ("/v1/responses", "POST"),
        ("/v1/embeddings", "POST"),
        ("/v1/models", "GET"),
        ("/v1/tollgate/key", "GET"),
    ] {
        let answer = preflight(&world, path, PAGE).await;
        assert_eq!(answer.status.as_u16(), 204, "{path}");
        assert_eq!(readable(&answer), Some(PAGE.1), "{path}");
        let header = |name: &str| answer.headers[name].to_str().unwrap();
        assert_eq!(header("access-control-allow-methods"), methods, "{path}");
        assert_eq!(
            header("access-control-allow-headers"),
            "authorization,content-type,x-stainless-lang"
        );
        assert!(
            answer.body.is_empty()
                && !answer
                    .headers
                    .contains_key("access-control-allow-credentials")
        );
    }
    assert_eq!(preflight(&world, "/v1/nothing", PAGE).await.status, 404);
    for op in BOTH {
        let unknown = ("authorization", "Bearer tg-nonsense");
        for (key, status) in [(("authorization", &*bearer(&key)), 200), (unknown, 401)] {
            let answer = op
                .post(&world, &[key, PAGE], op.body("x").to_string())
                .await;
            assert_eq!(answer.status.as_u16(), status);
            assert_eq!(readable(&answer), Some(PAGE.1));
            let exposed = answer.headers["access-control-expose-headers"]
                .to_str()
                .unwrap();
            for name in ["x-request-id", "x-cost-rub", "retry-after"] {
                assert!(exposed.contains(name), "{exposed}");
            }
            assert!(
                answer
                    .headers
                    .get_all("vary")
                    .iter()
                    .any(|name| name == "origin")
            );
        }
    }
}

/// A page must be able to read the refusal. If it could not, the browser would report only a failed connection.
#[tokio::test]
async fn refusal_because_a_vendor_is_unreachable_is_readable_across_origins() {
    let (world, key) = vendors_at("127.0.0.1:1", "")
        .edit("base_url =", "cors_origins = [\"*\"]\nbase_url =")
        .start_with_key()
        .await;
    let headers = [("authorization", &*bearer(&key)), OTHER];
    let answer = Op::Chat
        .post(&world, &headers, Op::Chat.body("x").to_string())
        .await;
    assert_eq!(answer.status.as_u16(), 503);
    assert_eq!(readable(&answer), Some("*"));
    assert_eq!(answer.json()["error"]["type"], API);
    assert!(answer.headers.contains_key("retry-after"));
}
