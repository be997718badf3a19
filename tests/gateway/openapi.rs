//! Tests that both listeners serve their OpenAPI documents as they are in `docs/`. Unit tests compare the paths in the
//! documents with the route tables. `tests/openapi` compares the described responses with those of the binary.

use std::collections::BTreeMap;

use crate::prelude::*;

const PUBLIC: &str = include_str!("../../docs/openapi-public.yaml");
const ADMIN: &str = include_str!("../../docs/openapi-admin.yaml");

/// Returns each path of a document with its methods, in the order of the document.
fn described(document: &str) -> BTreeMap<&str, Vec<String>> {
    let mut paths: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut path = "";
    let lines = document.lines().skip_while(|line| *line != "paths:");
    for line in lines.take_while(|line| *line != "components:") {
        let indent = line.len() - line.trim_start().len();
        match (indent, line.trim().strip_suffix(':')) {
            (2, Some(name)) => {
                path = name;
                paths.insert(path, Vec::new());
            }
            (4, Some(name)) if name != "parameters" => {
                paths.get_mut(path).unwrap().push(name.to_uppercase());
            }
            _ => {}
        }
    }
    paths.values_mut().for_each(|methods| methods.sort());
    paths
}

/// Returns the path with example values in place of its parameters.
fn filled(path: &str) -> String {
    let parts = path
        .split('/')
        .map(|part| if part.starts_with('{') { "x1" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

fn allowed(answer: &Answer) -> Vec<String> {
    let allow = answer.headers["allow"].to_str().unwrap();
    let mut methods: Vec<String> = allow.split(", ").map(str::to_owned).collect();
    methods.sort();
    methods
}

/// Sends a request with the method PURGE, which no path supports. The response lists the allowed methods.
async fn purge(world: &World, url: &str) -> Answer {
    let method = Method::from_bytes(b"PURGE").unwrap();
    let answer = world.ask(request(method, url, &[], Bytes::new())).await;
    assert_eq!(answer.status, 405, "{url}: {answer:?}");
    answer
}

#[tokio::test]
async fn callers_get_the_openapi_document_without_a_key() {
    let world = Setup::default()
        .edit("http://gateway.example/v1", "http://127.0.0.1:8080/v1")
        .start()
        .await;
    let got = world.get("/openapi.yaml", &[]).await.expect(200);
    assert_eq!(got.headers["content-type"], "application/yaml");
    assert_eq!(got.headers["access-control-allow-origin"], "*");
    assert_eq!(got.text(), PUBLIC);
    let tag = got.headers["etag"].to_str().unwrap();
    world
        .get("/openapi.yaml", &[("if-none-match", tag)])
        .await
        .expect(304);
}

#[tokio::test]
async fn openapi_document_has_the_configured_names_and_addresses() {
    let world = Setup::default()
        .edit("base_url = ", "service = \"gate\"\nbase_url = ")
        .start()
        .await;
    let document = world.get("/openapi.yaml", &[]).await.text();
    assert!(document.contains("\n  - url: \"http://gateway.example\"\n"));
    assert!(!document.contains("/v1/tollgate/"));
    let paths = described(&document);
    for path in ["/v1/gate/models", "/v1/gate/key", "/v1/gate/estimate"] {
        let answer = purge(&world, &world.url(path)).await;
        assert_eq!(allowed(&answer), paths[path], "{path}");
    }
}

#[tokio::test]
async fn openapi_document_for_operators_needs_no_admin_key() {
    let world = World::start().await;
    let url = format!(
        "http://{}/openapi.yaml",
        world.gateway.admin_address().unwrap()
    );
    let got = world
        .ask(request(Method::GET, &url, &[], Bytes::new()))
        .await
        .expect(200);
    assert_eq!(got.headers["content-type"], "application/yaml");
    assert_eq!(got.text(), ADMIN);
}

#[tokio::test]
async fn every_path_for_callers_is_in_openapi_and_has_its_own_metric_label() {
    let world = World::start().await;
    let paths = described(PUBLIC);
    for (path, methods) in &paths {
        let answer = purge(&world, &world.url(&filled(path))).await;
        assert_eq!(allowed(&answer), *methods, "{path}");
    }
    eventually("each path is counted under its name", async || {
        let scrape = world.admin_get("/metrics").await.text();
        let counted = |path: &str| {
            scrape.contains(&format!(
                "tollgate_requests_total{{path=\"{path}\",status=\"405\"}} 1"
            ))
        };
        paths.keys().all(|path| counted(path)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn every_path_for_operators_is_in_openapi_with_its_methods() {
    let world = World::start().await;
    let address = world.gateway.admin_address().unwrap();
    let paths = described(ADMIN);
    for (path, methods) in &paths {
        let answer = purge(&world, &format!("http://{address}{}", filled(path))).await;
        let mut allowed = allowed(&answer);
        // The document describes only GET. The gateway answers HEAD in the same way.
        allowed.retain(|method| method != "HEAD");
        assert_eq!(allowed, *methods, "{path}");
    }
}
