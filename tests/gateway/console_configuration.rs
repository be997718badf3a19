//! Tests of the console pages that change the configuration file, and of attacks on them.

use std::{fs, path::PathBuf};

use tempfile::TempDir;

use crate::{
    console::{Browser, PASSWORD, named, operators_file_section},
    ledger::folder,
    prelude::*,
};

const MARKUP: &str = "\"><script>alert(1)</script>";

/// Starts a gateway whose configuration is in a file. The files with its secrets are in the same folder.
async fn world(edits: &[(&str, &str)]) -> (World, PathBuf, TempDir) {
    let stored = folder();
    let dir = stored.path();
    let path = |name: &str| dir.join(name).display().to_string();
    fs::write(path("admin.key"), ADMIN_KEY).unwrap();
    fs::write(path("vendor.key"), VENDOR_KEY).unwrap();
    for (name, role) in [("anna", "finance"), ("boris", "support"), ("carl", "read")] {
        named(&dir.join("operators.toml"), name, role);
    }
    let mut setup = Setup::default()
        .edit(
            "[admin]\n",
            &operators_file_section(&dir.join("operators.toml")),
        )
        .edit("${ADMIN_KEY}", &format!("file:{}", path("admin.key")))
        .edit("${VENDOR_KEY}", &format!("file:{}", path("vendor.key")));
    for (from, to) in edits {
        setup = setup.edit(from, to);
    }
    let file = dir.join("tollgate.toml");
    (setup.in_file(&file).start().await, file, stored)
}

/// Returns the value of a hidden field of a form.
fn hidden(html: &str, name: &str) -> String {
    let (_, after) = html
        .split_once(&format!("name=\"{name}\" value=\""))
        .unwrap();
    after.split('"').next().unwrap().to_owned()
}

#[tokio::test]
async fn configuration_form_requires_the_csrf_token_of_its_session() {
    let (world, file, _kept) = world(&[]).await;
    let before = fs::read_to_string(&file).unwrap();
    let me = Browser::admin(&world).await;
    let hash = hidden(&me.page(&world, "/console/models/chat").await, "hash");
    let form = [
        ("hash", &*hash),
        ("step", "apply"),
        ("change", "remove_model"),
        ("model", "chat"),
    ];
    let test = [("do", "test")];
    for (path, pairs) in [
        ("/console/configuration", &form[..]),
        ("/console/vendors/chat-vendor", &test),
    ] {
        let forged = [&[("csrf", "AAAA")], pairs].concat();
        for pairs in [pairs, &forged] {
            let answer = me.post_with(&world, path, &[], pairs).await;
            assert_eq!(answer.status, 403, "{path}: {answer:?}");
        }
        let foreign = [("sec-fetch-site", "cross-site")];
        let answer = me.post_with(&world, path, &foreign, pairs).await;
        assert_eq!(answer.status, 403, "{path}: {answer:?}");
        let nobody = Browser::default().post(&world, path, pairs).await;
        assert_eq!(nobody.status, 303, "to the sign-in: {nobody:?}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    assert_eq!(world.vendor.received().len(), 0);
}

#[tokio::test]
async fn roles_below_admin_can_read_but_not_change_the_configuration() {
    let (world, file, _kept) = world(&[]).await;
    let before = fs::read_to_string(&file).unwrap();
    let admin = Browser::admin(&world).await;
    let hash = hidden(&admin.page(&world, "/console/models/chat").await, "hash");
    for name in ["anna", "boris", "carl"] {
        let me = Browser::signed_in(&world, name, PASSWORD).await;
        for page in ["vendors", "vendors/chat-vendor", "models/chat"] {
            let html = me.page(&world, &format!("/console/{page}")).await;
            assert!(
                !html.contains("action=\"/console/configuration\""),
                "{name}: {html}"
            );
            assert!(!html.contains("value=\"test\""), "{name}: {html}");
        }
        for step in ["", "apply"] {
            let form = [
                ("hash", &*hash),
                ("step", step),
                ("change", "remove_model"),
                ("model", "chat"),
            ];
            let answer = me.post(&world, "/console/configuration", &form).await;
            assert_eq!(answer.status, 403, "{name}: {answer:?}");
        }
        let test = me
            .post(&world, "/console/vendors/chat-vendor", &[("do", "test")])
            .await;
        assert_eq!(test.status, 403, "{name}: {test:?}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    assert_eq!(world.vendor.received().len(), 0);
}

#[tokio::test]
async fn markup_in_vendor_names_or_in_values_or_in_errors_is_shown_as_text_in_the_console() {
    let quoted = MARKUP.replace('"', "\\\"");
    let (world, _file, _kept) = world(&[
        ("chat-vendor", &format!("chat-{quoted}")),
        ("id = \"chat\"", &format!("id = \"chat{quoted}\"")),
    ])
    .await;
    let me = Browser::admin(&world).await;
    let name = "chat-%22%3E%3Cscript%3Ealert%281%29%3C%2Fscript%3E";
    let model = name.replacen("chat-", "chat", 1);
    let pages = [
        "vendors".to_owned(),
        "prices".to_owned(),
        format!("vendors/{name}"),
        format!("models/{model}"),
        "new-vendor?preset=azure&value_resource=%22%3E%3Cscript%3Ealert%281%29%3C%2Fscript%3E"
            .into(),
    ];
    let mut shown = Vec::new();
    for page in &pages {
        shown.push(me.page(&world, &format!("/console/{page}")).await);
    }
    let hash = hidden(&shown[3], "hash");
    world.vendor_sends(Reply::json(
        400,
        &json!({ "error": { "message": MARKUP, "type": "x" } }),
    ));
    let tested = me
        .post(
            &world,
            &format!("/console/vendors/{name}"),
            &[("do", "test")],
        )
        .await
        .expect(200);
    world.vendor.script(|_| {
        let message = json!({ "role": "assistant", "content": MARKUP });
        Reply::json(
            200,
            &json!({
                "id": "c", "object": "chat.completion", "created": 0, "model": "m",
                "choices": [{ "index": 0, "message": message, "finish_reason": "stop" }],
                "usage": { "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2 },
            }),
        )
    });
    let answered = me
        .post(
            &world,
            &format!("/console/vendors/{name}"),
            &[("do", "test")],
        )
        .await;
    assert!(
        answered.text().contains("&lt;script&gt;") || answered.text().contains("&#60;script&#62;")
    );
    let vendor = format!("chat-{MARKUP}");
    for (change, field, text) in [
        (
            "change_vendor",
            "url",
            "https://x.example/<script>alert(1)</script>",
        ),
        ("change_vendor", "url", "https://x.example/a"),
        ("remove_vendor", "name", ""),
        ("add_vendor", "preset", MARKUP),
        (MARKUP, "vendor", "x"),
    ] {
        let form = [
            ("hash", &*hash),
            ("vendor", &*vendor),
            ("change", change),
            (field, text),
        ];
        shown.push(
            me.post(&world, "/console/configuration", &form)
                .await
                .text(),
        );
    }
    shown.extend([tested.text(), answered.text()]);
    for html in &shown {
        assert!(!html.contains("<script>alert"), "{html}");
        assert!(!html.contains("\"><script"), "{html}");
    }
}

#[tokio::test]
async fn configuration_form_based_on_an_older_file_changes_nothing() {
    let (world, file, _kept) = world(&[]).await;
    let me = Browser::admin(&world).await;
    let hash = hidden(&me.page(&world, "/console/models/chat").await, "hash");
    let form = |step: &'static str| {
        [
            ("hash", hash.clone()),
            ("step", step.to_owned()),
            ("change", "change_price".to_owned()),
            ("model", "chat".to_owned()),
            ("price_output", "3".to_owned()),
        ]
    };
    let post = async |step| {
        let form = form(step);
        let pairs: Vec<_> = form.iter().map(|(name, value)| (*name, &**value)).collect();
        me.post(&world, "/console/configuration", &pairs).await
    };
    let preview = post("").await.expect(200);
    assert_eq!(hidden(&preview.text(), "hash"), hash);
    let text = fs::read_to_string(&file).unwrap() + "# of somebody else\n";
    fs::write(&file, &text).unwrap();
    for step in ["", "apply"] {
        let refused = post(step).await.expect(409);
        has(&refused.text(), "the file has changed");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}

#[tokio::test]
async fn configuration_page_never_reads_or_writes_a_file_outside_its_folder() {
    let (world, file, _kept) = world(&[]).await;
    let before = fs::read_to_string(&file).unwrap();
    let me = Browser::admin(&world).await;
    for page in [
        "vendors/..%2F..%2Fetc%2Fpasswd",
        "vendors/..",
        "models/..%2Fadmin.key",
        "models/%00",
    ] {
        let answer = me.get(&world, &format!("/console/{page}")).await;
        assert_eq!(answer.status, 404, "{page}: {answer:?}");
    }
    let hash = hidden(&me.page(&world, "/console/models/chat").await, "hash");
    let add = [
        ("hash", &*hash),
        ("change", "add_vendor"),
        ("preset", "deepseek"),
    ];
    let named = [("name", "../../../tmp/x"), ("key_in_file", "1")];
    let preview = me
        .post(
            &world,
            "/console/configuration",
            &[&add[..], &named].concat(),
        )
        .await
        .expect(200);
    let folder = fs::canonicalize(file.parent().unwrap()).unwrap();
    let key = folder.join("_________tmp_x.key").display().to_string();
    assert!(preview.text().contains(&key), "{preview:?}");
    let beside = |name: &str| format!("file:{}", folder.join(name).display());
    for key in [
        "file:/etc/passwd".to_owned(),
        beside("../x"),
        beside("admin.key"),
        beside("operators.toml/../admin.key"),
        "${ADMIN_KEY".to_owned(),
    ] {
        let form = [&add[..], &[("key", &*key)]].concat();
        let refused = me.post(&world, "/console/configuration", &form).await;
        assert_eq!(refused.status, 400, "{key}: {refused:?}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
}
