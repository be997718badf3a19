//! Tests of paths that clients expect in addition to the three operations (docs/decisions.md, "Extra paths").

use tollgate::demo::script::polite;

use crate::prelude::*;

#[tokio::test]
async fn root_path_answers_reachability_checks_of_clients() {
    let world = World::start().await;
    for path in ["/", "/api/hello", "/api/hello?from=cli"] {
        for method in [Method::GET, Method::HEAD] {
            let answer = world
                .ask(request(method.clone(), &world.url(path), &[], "".into()))
                .await;
            assert_eq!(answer.status, 200, "{method} {path}");
            assert!(answer.text().is_empty(), "{method} {path}");
            let numbered = answer.headers.contains_key("x-request-id");
            assert!(numbered, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn models_are_listed_in_the_chat_format_by_default() {
    let (world, key) = World::start_with_key().await;
    let answer = world.get_by(&key, "/v1/models").await.expect(200);
    assert_eq!(answer.headers["content-type"], "application/json");
    let list = answer.json();
    assert_eq!(names(&list), ["data", "object"]);
    assert_eq!(list["object"], "list");
    let data = list["data"].as_array().unwrap();
    let ids: Vec<_> = data.iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, ["chat", "messages"]);
    for model in data {
        assert_eq!(
            names(model),
            [
                "created",
                "description",
                "display_name",
                "id",
                "kind",
                "object",
                "owned_by",
                "surfaces"
            ]
        );
        assert_eq!(model["object"], "model");
        assert!(model["created"].is_u64(), "{model}");
        assert!(model["owned_by"].is_string(), "{model}");
    }
}

/// If a model lacks a field that Codex requires, Codex ignores the complete list and shows no message.
#[tokio::test]
async fn model_list_has_every_field_that_codex_reads() {
    let vectors = "[[model]]\nid = \"vectors\"\nfamily = \"Test\"\nkind = \"embedding\"\n\
        usdt_mtok = { input = \"0.2\" }\nroutes = [ { vendor = \"chat-vendor\", model = \"vectors-1\" } ]\n[[model]]\nid = \"chat\"";
    let (world, key) = Setup::default()
        .edit("[[model]]\nid = \"chat\"", vectors)
        .edit(
            "id = \"messages\"\n",
            "id = \"messages\"\ndisplay_name = \"Большая\"\ninput_tokens_max = 200000\n",
        )
        .start_with_key()
        .await;
    let bearer = bearer(&key);
    let headers = [("authorization", bearer.as_str())];
    let path = "/v1/models?client_version=0.171.0";
    let list = world.get(path, &headers).await.json();
    assert_eq!(names(&list), ["data", "models", "object"]);
    let plain = world.get("/v1/models", &headers).await.json();
    assert_eq!(list["data"], plain["data"], "vectors included");
    let models = list["models"].as_array().unwrap();
    let reported: Vec<_> = models
        .iter()
        .map(|model| {
            [
                &model["slug"],
                &model["display_name"],
                &model["context_window"],
            ]
        })
        .collect();
    assert_eq!(
        json!(reported),
        json!([["chat", "chat", 128_000], ["messages", "Большая", 200_000]])
    );
    for (place, model) in models.iter().enumerate() {
        assert_eq!(model["priority"], place);
        assert!(
            model["base_instructions"]
                .as_str()
                .unwrap()
                .contains("apply_patch")
        );
        assert_eq!(model["apply_patch_tool_type"], "freeform");
        assert_eq!(
            model["description"],
            plain["data"][place + 1]["description"]
        );
    }

    let key = world.another_key("acme", json!({})).await;
    world.only_for(&key, &["messages"]).await;
    let headers = [("x-api-key", key.secret.as_str())];
    let list = world.get(path, &headers).await.json();
    assert_eq!(list["models"].as_array().unwrap().len(), 1);
    assert_eq!(list["models"][0]["slug"], "messages");
}

#[tokio::test]
async fn models_are_listed_in_the_messages_format_if_the_version_header_is_sent() {
    let (world, key) = World::start_with_key().await;
    let headers = [
        ("x-api-key", key.secret.as_str()),
        ("anthropic-version", "2023-06-01"),
    ];
    let answer = world.get("/v1/models", &headers).await.expect(200);
    let list = answer.json();
    assert_eq!(names(&list), ["data", "first_id", "has_more", "last_id"]);
    assert_eq!(list["has_more"], false);
    assert_eq!(list["first_id"], "chat");
    assert_eq!(list["last_id"], "messages");
    let data = list["data"].as_array().unwrap();
    assert_eq!(data.len(), 2);
    for model in data {
        assert_eq!(model["type"], "model");
        assert!(model["id"].is_string(), "{model}");
        assert!(model["display_name"].is_string(), "{model}");
        let moment = model["created_at"].as_str().unwrap();
        assert!(moment.contains('T') && moment.ends_with('Z'), "{moment}");
    }
}

/// Returns the text that clients show for a model, from the list of each format and from the single object.
async fn shown(world: &World, secret: &str, id: &str) -> (Value, Value) {
    let mut seen = Vec::new();
    for headers in [
        &[("x-api-key", secret)][..],
        &[("x-api-key", secret), ("anthropic-version", "2023-06-01")],
    ] {
        let list = world
            .get("/v1/models?limit=1000", headers)
            .await
            .expect(200);
        let list = list.json();
        let models = list["data"].as_array().unwrap();
        let model = models.iter().find(|model| model["id"] == id).unwrap();
        seen.push((model["display_name"].clone(), model["description"].clone()));
    }
    assert_eq!(seen[0], seen[1]);
    seen.remove(0)
}

#[tokio::test]
async fn model_list_has_prices_and_the_operators_descriptions() {
    let (world, key) = Setup::default()
        .edit(
            "id = \"messages\"\n",
            "id = \"messages\"\ndisplay_name = \"Большая\"\ndescription = \"Для кода\"\n",
        )
        .start_with_key()
        .await;
    assert_eq!(
        shown(&world, &key.secret, "chat").await,
        (
            json!("chat"),
            json!("Вход 100,00\u{a0}₽, выход 200,00\u{a0}₽ за 1 млн токенов")
        )
    );
    assert_eq!(
        shown(&world, &key.secret, "messages").await,
        (
            json!("Большая"),
            json!(
                "Для кода. Вход 1\u{202f}000,00\u{a0}₽, выход 2\u{202f}000,00\u{a0}₽ за 1 млн токенов"
            )
        )
    );
}

#[tokio::test]
async fn model_list_shows_prices_in_the_configured_language() {
    let (world, key) = Setup::default()
        .edit("base_url = ", "language = \"en\"\nbase_url = ")
        .edit(
            "id = \"messages\"\n",
            "id = \"messages\"\ndescription = \"Good at code!\"\n",
        )
        .start_with_key()
        .await;
    assert_eq!(
        shown(&world, &key.secret, "messages").await,
        (
            json!("messages"),
            json!("Good at code! Input 1,000.00\u{a0}₽, output 2,000.00\u{a0}₽ per 1M tokens")
        )
    );
}

#[tokio::test]
async fn models_are_listed_without_prices_while_there_is_no_exchange_rate() {
    let (world, key) = Setup::default()
        .edit(
            "id = \"messages\"\n",
            "id = \"messages\"\ndescription = \"Для кода\"\n",
        )
        .edit(
            "fixed = \"100\"",
            "url = \"http://127.0.0.1:1/rate\"\nselect = \"/price\"",
        )
        .start_with_key()
        .await;
    let none = Value::Null;
    assert_eq!(
        shown(&world, &key.secret, "chat").await,
        (json!("chat"), none)
    );
    assert_eq!(
        shown(&world, &key.secret, "messages").await,
        (json!("messages"), json!("Для кода"))
    );
}

#[tokio::test]
async fn keys_in_authorization_and_x_api_key_are_accepted_if_they_are_equal() {
    let world = World::start().await;
    let (key, other) = (
        world.key().await,
        world.another_key("acme", json!({})).await,
    );
    let bearer = bearer(&key);
    for (second, status) in [(&key, 200), (&other, 401)] {
        let headers = [
            ("authorization", bearer.as_str()),
            ("x-api-key", second.secret.as_str()),
            ("anthropic-version", "2023-06-01"),
        ];
        let answer = world.get("/v1/models?limit=1000", &headers).await;
        assert_eq!(answer.status, status);
    }
}

#[tokio::test]
async fn only_the_models_that_the_key_may_call_are_listed() {
    let world = World::start().await;
    world.key().await;
    for (allowed, listed) in [
        (&["messages"][..], json!(["messages"])),
        (&["messages", "chat"], json!(["chat", "messages"])),
        (&["of-yesterday"], json!([])),
    ] {
        let key = world.another_key("acme", json!({})).await;
        world.only_for(&key, allowed).await;
        let secret = key.secret.as_str();
        for headers in [
            &[("x-api-key", secret)][..],
            &[("x-api-key", secret), ("anthropic-version", "2023-06-01")],
        ] {
            let list = world.get("/v1/models", headers).await.json();
            let ids: Vec<_> = list["data"]
                .as_array()
                .unwrap()
                .iter()
                .map(|model| model["id"].clone())
                .collect();
            assert_eq!(json!(ids), listed, "{allowed:?}");
        }
    }
}

#[tokio::test]
async fn single_model_has_the_same_fields_as_in_the_model_list() {
    let (world, key) = World::start_with_key().await;
    let secret = key.secret.as_str();
    for headers in [
        &[("x-api-key", secret)][..],
        &[("x-api-key", secret), ("anthropic-version", "2023-06-01")],
    ] {
        let list = world.get("/v1/models", headers).await.json();
        for listed in list["data"].as_array().unwrap() {
            let path = format!("/v1/models/{}", listed["id"].as_str().unwrap());
            let answer = world.get(&path, headers).await;
            assert_eq!(answer.status, 200, "{path}");
            assert_eq!(answer.headers["content-type"], "application/json");
            assert_eq!(answer.headers["cache-control"], "no-store");
            assert_eq!(answer.json(), *listed, "{path}");
        }
    }
}

#[tokio::test]
async fn model_whose_name_has_slashes_is_found_however_the_name_is_encoded() {
    let (world, key) = Setup::default()
        .edit("id = \"chat\"", "id = \"acme/чат:1 a+b\"")
        .start_with_key()
        .await;
    for path in [
        "/v1/models/acme/%D1%87%D0%B0%D1%82:1%20a+b",
        "/v1/models/acme%2F%d1%87%d0%b0%d1%82%3A1%20a%2Bb",
        "/v1/models/%61cme%2f%D1%87%D0%B0%D1%82:1%20a+b?beta=true",
    ] {
        let answer = world.get_by(&key, path).await;
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.json()["id"], "acme/чат:1 a+b", "{path}");
    }
}

#[tokio::test]
async fn model_that_the_key_may_not_call_gets_404_whether_or_not_it_exists() {
    let (world, key) = World::start_with_key().await;
    world.only_for(&key, &["messages"]).await;
    let secret = key.secret.as_str();
    for headers in [
        &[("x-api-key", secret)][..],
        &[("x-api-key", secret), ("anthropic-version", "2023-06-01")],
    ] {
        for (path, name) in [
            ("chat", "chat"),
            ("none", "none"),
            ("MESSAGES", "MESSAGES"),
            ("messages/", "messages/"),
            ("acme%2Fchat", "acme/chat"),
            ("%zz", "%zz"),
            ("%ff", "%ff"),
        ] {
            let answer = world.get(&format!("/v1/models/{path}"), headers).await;
            let text = refused(path, &answer, 404, NOT_FOUND, "model_not_listed");
            assert!(text.contains(&format!("«{name}»")), "{text}");
        }
        world.get("/v1/models/messages", headers).await.expect(200);
    }
}

#[tokio::test]
async fn key_endpoint_shows_the_amounts_that_holds_are_checked_against() {
    let world = World::start().await;
    let ceiling = json!({ "ceiling_rub": "0.5", "name": "build server" });
    let key = world.key_with("acme", "1000", ceiling).await;
    let own = async || world.get_by(&key, "/v1/tollgate/key").await.json();
    let before = own().await;
    assert_eq!(before["name"], "build server");
    assert_eq!(before["ceiling_rub"], "0.50");
    assert_eq!(before["spent_rub"], "0.00");
    assert_eq!(before["held_rub"], "0.00");
    assert_eq!(before["free_rub"], "0.50");

    let running = Running::start(&world, Op::Chat, &key, &Op::Chat.body("x")).await;
    let during = own().await;
    assert_eq!(during["held_rub"], world.account(&key).await["held_rub"]);
    let free = decimal(&during["ceiling_rub"]) - decimal(&during["held_rub"]);
    assert_eq!(decimal(&during["free_rub"]), free);
    // The free amount covers a call exactly: 200 µ₽ for each output token, and the input.
    let input = micro(&during["held_rub"]) - 100 * 200;
    let fits = (micro(&during["free_rub"]) - input) / 200;
    let running_on = running.number.clone();
    for (tokens, status) in [(fits + 1, 403), (fits, 200)] {
        world.vendor.script(polite);
        let body = with(Op::Chat.body("x"), json!({ "max_tokens": tokens }));
        assert_eq!(world.chat(&key, &body).await.status, status, "{tokens}");
    }
    running.finish().await;
    let charged = micro(&world.receipt(&running_on).await["charged_rub"]);
    world.settled(&key).await;
    let after = own().await;
    assert!(micro(&after["spent_rub"]) > charged, "two calls: {after}");
    assert_eq!(after["held_rub"], "0.00");
    let free = decimal(&after["ceiling_rub"]) - decimal(&after["spent_rub"]);
    assert_eq!(decimal(&after["free_rub"]), free);
}

#[tokio::test]
async fn key_endpoint_shows_the_accounts_money_for_a_key_without_a_ceiling() {
    let world = World::start().await;
    let key = world.key_with("acme", "12.5", json!({})).await;
    let own = world.get_by(&key, "/v1/tollgate/key").await.json();
    assert_eq!(own["ceiling_rub"], json!(null));
    assert_eq!(own["free_rub"], "12.50");
    assert!(!own.to_string().contains(&key.secret), "{own}");
}

#[tokio::test]
async fn key_endpoint_requires_a_key() {
    let world = World::start().await;
    for path in ["/v1/models", "/v1/models/chat", "/v1/tollgate/key"] {
        let answer = world.get(path, &[]).await;
        refused(path, &answer, 401, AUTHENTICATION, "invalid_api_key");
    }
}

#[tokio::test]
async fn path_of_the_key_endpoint_contains_the_service_name() {
    let (world, key) = top("service = \"acme-ai\"").start_with_key().await;
    for (path, status) in [("/v1/acme-ai/key", 200), ("/v1/tollgate/key", 404)] {
        assert_eq!(world.get_by(&key, path).await.status, status, "{path}");
    }
    for op in BOTH {
        assert_eq!(op.call(&world, &key, &op.body("x")).await.status, 200);
    }
}
