//! Tests of the details that operators and callers can see after a call. A receipt contains the vendors that were
//! tried, and the durations. A call without a receipt is shown with its cause.

use crate::{
    console::Browser,
    fleet::Fleet,
    ledger::folder,
    prelude::*,
    usage_report::{complained, tollgate},
};

const UNKNOWN: &str = "01a1f9e6-bc69-7767-a285-af3e6bb9c9ef";

async fn pair(setup: Setup) -> Fleet {
    let priority = |n| format!("priority = {}", 1 - n);
    Fleet::start(setup, 2, priority, |_| String::new()).await
}

/// Makes a call whose first vendor fails. Returns its request number.
async fn second_answers(fleet: &Fleet, op: Op, key: &Key, stream: bool) -> String {
    fleet.vendor(1).script(|_| refusal(500, "x"));
    let body = with(op.body("x"), json!({ "stream": stream }));
    let answer = op.call(&fleet.world, key, &body).await.expect(200);
    answer.number()
}

fn ms(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

async fn a_receipt_tells_the_whole_story(setup: Setup) {
    let fleet = pair(setup).await;
    let world = &fleet.world;
    let key = world.key().await;
    let me = Browser::admin(world).await;
    for op in BOTH {
        for stream in [false, true] {
            let number = second_answers(&fleet, op, &key, stream).await;
            let receipt = world.receipt(&number).await;
            let line = &receipt["timeline"];
            let [first, second] = line["attempts"].as_array().unwrap().as_slice() else {
                panic!("{receipt}");
            };
            let (one, two) = (Fleet::name(op, 1), Fleet::name(op, 0));
            assert_eq!(first["vendor"], json!(one));
            assert_eq!(second["vendor"], json!(two));
            assert!(first["code"].is_string(), "{line}");
            assert!(first["status"] == 503, "{line}");
            assert_eq!(second["code"], Value::Null);
            assert_eq!(second["status"], 200);
            assert_eq!(line["status"], 200);
            assert_eq!(line["code"], Value::Null);
            // The times are in ascending order. They are rounded to milliseconds, so a sum of durations may exceed the
            // next time by one or two milliseconds.
            let moments = [
                ms(&line["held_ms"]),
                ms(&first["at_ms"]),
                ms(&first["at_ms"]) + ms(&first["took_ms"]),
                ms(&second["at_ms"]) + 1,
                ms(&line["first_byte_ms"]) + 1,
                ms(&line["whole_ms"]) + 2,
            ];
            assert!(moments.is_sorted(), "{line}");
            assert_eq!(
                ms(&second["at_ms"]) + ms(&second["took_ms"]),
                ms(&line["first_byte_ms"])
            );

            let html = me.page(world, &format!("/console/calls/{number}")).await;
            for fact in [
                format!("<th scope=\"row\">{one}</th>"),
                format!("503 {}", first["code"].as_str().unwrap()),
                "answered 200".to_owned(),
                format!("<dd>{} ms</dd>", line["whole_ms"]),
            ] {
                assert!(html.contains(&fact), "{fact}: {html}");
            }
            // Only operators see the names of the vendors.
            let own = format!("/v1/tollgate/receipts/{number}");
            let own = world.get(&own, &[("authorization", &bearer(&key))]).await;
            assert!(!own.text().contains("-vendor"), "{}", own.text());
            assert!(own.json().get("timeline").is_none());
        }
    }
    // The ledger stores the timeline of a call in a short form. An export contains this form.
    let plain = Op::Chat.call(world, &key, &Op::Chat.body("x")).await;
    world.receipt(&plain.number()).await;
    let exported = world.admin_get("/admin/v1/export").await;
    let exported = exported.text();
    let of_call = exported.lines().find(|line| line.contains(&plain.number()));
    let (_, times) = of_call.unwrap().split_once("\"times\":\"").unwrap();
    let times = times.split('"').next().unwrap();
    // The part of the timeline before the first `|` has the times of the response. After it, there is one part for each
    // failed attempt.
    let times = times.split('|').next().unwrap();
    assert!(times.ends_with(" 200") && times.len() <= 24, "{times}");
    let audited = world
        .admin(Method::POST, "/admin/v1/audit", None)
        .await
        .json();
    assert_eq!(audited["breaches"], json!([]), "{audited}");
}

#[tokio::test]
async fn receipt_in_a_memory_ledger_has_every_attempt_and_duration() {
    a_receipt_tells_the_whole_story(Setup::default()).await;
}

#[tokio::test]
async fn receipt_in_a_sqlite_ledger_has_every_attempt_and_duration() {
    let folder = folder();
    let url = format!("sqlite:{}", folder.path().join("books.db").display());
    a_receipt_tells_the_whole_story(Setup::default().ledger(&url)).await;
}

#[tokio::test]
async fn receipt_in_a_redis_ledger_has_every_attempt_and_duration() {
    let server = RedisServer::start().await;
    a_receipt_tells_the_whole_story(Setup::default().ledger(&server.url())).await;
}

/// A call whose money is held by a lease sends no hold to Redis. Its timeline must be complete, too.
#[tokio::test]
async fn receipt_of_a_call_whose_hold_is_from_a_lease_has_every_attempt_and_duration() {
    let server = RedisServer::start().await;
    let leases = Setup::default().edit("[ledger]\n", "[ledger]\nlease_ms_max = 2000\n");
    a_receipt_tells_the_whole_story(leases.ledger(&server.url())).await;
}

/// The list of calls contains charged, refused and free calls, each with its cause. The console pages, the filters and
/// the CSV file show the same calls.
#[tokio::test]
async fn list_of_calls_shows_charged_calls_and_the_causes_of_refused_or_free_calls() {
    let (world, key) = World::start_with_key().await;
    let me = Browser::admin(&world).await;
    let stranger = Key {
        secret: format!("{}x", key.secret),
        ..key.clone()
    };
    let unknown = with(Op::Chat.body("x"), json!({ "model": "=<b>none" }));
    let (mut charged, mut refused) = (Vec::new(), Vec::new());
    for round in 0..3 {
        let answer = Op::Chat.call(&world, &key, &Op::Chat.body("x")).await;
        assert_eq!(answer.status, 200, "{round}: {answer:?}");
        world.receipt(&answer.number()).await;
        charged.push(answer.number());
        for (key, body, status) in [
            (&stranger, Op::Chat.body("x"), 401),
            (&key, unknown.clone(), 503),
        ] {
            let answer = Op::Chat.call(&world, key, &body).await;
            assert_eq!(answer.status, status, "{round}: {answer:?}");
            unbooked(&world, &answer.number()).await;
            refused.push(answer.number());
        }
    }
    world.vendor_sends(refusal(400, "no <i>such</i> thing"));
    let free = Op::Chat.call(&world, &key, &Op::Chat.body("x")).await;
    unbooked(&world, &free.number()).await;

    let list = async |query: &str| me.page(&world, &format!("/console/calls{query}")).await;
    // The order of calls of the same millisecond is undefined.
    let sorted = |numbers: &[String]| {
        let mut numbers = numbers.to_vec();
        numbers.sort();
        numbers
    };
    let number_of = |line: &str| line.split(',').next().unwrap().to_owned();
    let csv = async |query: &str| {
        let answer = me
            .get(&world, &format!("/console/calls.csv{query}"))
            .await
            .expect(200);
        assert_eq!(
            answer.headers["content-disposition"],
            "attachment; filename=\"calls.csv\""
        );
        let text = answer.text();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        assert!(
            lines[0].starts_with("number,at,account,key,model,"),
            "{text}"
        );
        lines[1..].to_vec()
    };
    let number = |numbers: &[&String]| numbers.iter().map(|it| (*it).clone()).collect::<Vec<_>>();
    let free = free.number();
    let of_strangers = number(&[&refused[4], &refused[2], &refused[0]]);
    let of_none = number(&[&refused[5], &refused[3], &refused[1]]);
    let all = number(&[
        &free,
        &refused[5],
        &refused[4],
        &charged[2],
        &refused[3],
        &refused[2],
        &charged[1],
        &refused[1],
        &refused[0],
        &charged[0],
    ]);
    let latest_first = number(&[&charged[2], &charged[1], &charged[0]]);
    for (query, found) in [
        ("", &all),
        ("?end=finished", &latest_first),
        ("?end=refused&account=acme", &of_none),
        ("?end=released", &vec![free.clone()]),
        ("?end=running", &Vec::new()),
        ("?code=invalid_api_key", &of_strangers),
        ("?code=model_not_found&model=%3D%3Cb%3Enone", &of_none),
        ("?until=2020-01-01", &Vec::new()),
    ] {
        let html = list(query).await;
        for number in &all {
            let is_in = html.contains(&format!("href=\"/console/calls/{number}\""));
            assert_eq!(is_in, found.contains(number), "{query} {number}: {html}");
        }
        assert!(!html.contains("<b>none"), "{html}");
        assert!(!html.contains("<i>such"), "{html}");
        let lines = csv(query).await;
        let numbers: Vec<String> = lines.iter().map(|line| number_of(line)).collect();
        let of_receipts = numbers.iter().filter(|number| charged.contains(number));
        assert!(
            of_receipts.is_sorted_by(|later, earlier| later > earlier),
            "{lines:?}"
        );
        assert_eq!(sorted(&numbers), sorted(found), "{query}: {lines:?}");
    }
    let html = list("").await;
    for says in [
        "invalid_api_key",
        "model_not_found",
        "cost nothing",
        "unknown key",
        "finished",
    ] {
        assert!(html.contains(says), "{says}: {html}");
    }
    let of_none = csv("?code=model_not_found").await.join("\n");
    assert!(of_none.contains(",'=<b>none,"), "no formula: {of_none}");

    // The pages of the API list each call without a receipt exactly once.
    let (mut after, mut numbers) = (String::new(), Vec::new());
    loop {
        let path = format!("/admin/v1/calls?limit=2{after}");
        let page = world.admin_get(&path).await.json();
        let calls = page["calls"].as_array().unwrap();
        numbers.extend(
            calls
                .iter()
                .map(|call| call["number"].as_str().unwrap().to_owned()),
        );
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    let without: Vec<String> = all
        .iter()
        .filter(|it| !charged.contains(it))
        .cloned()
        .collect();
    assert!(numbers.is_sorted_by(|later, earlier| later > earlier));
    assert_eq!(sorted(&numbers), sorted(&without));
    for query in ["state=other", "after=1", "limit=0", "end=finished"] {
        let answer = world.admin_get(&format!("/admin/v1/calls?{query}")).await;
        assert_eq!(answer.status, 400, "{query}: {answer:?}");
    }
}

/// The console page of a call shows how its charge was computed: each count multiplied by its price, and the sum.
#[tokio::test]
async fn console_page_of_a_call_shows_how_its_charge_was_computed() {
    let (world, key) = World::start_with_key().await;
    let me = Browser::admin(&world).await;
    let answer = Op::Chat.call(&world, &key, &Op::Chat.body("x")).await;
    let receipt = world.receipt(&answer.number()).await;
    let html = me
        .page(&world, &format!("/console/calls/{}", answer.number()))
        .await;
    let (_, table) = html.split_once("How the charge was computed").unwrap();
    let table = table.split("</table>").next().unwrap();
    for (label, class) in [("Input tokens", "input"), ("Output tokens", "output")] {
        let (_, row) = table
            .split_once(&format!("<th scope=\"row\">{label}</th>"))
            .unwrap();
        let row = row.split("</tr>").next().unwrap();
        let count = receipt["usage"][class].as_u64().unwrap();
        assert!(row.contains(&format!(">{count}</td>")), "{receipt}: {row}");
        let rate = receipt["price"][class].as_str().unwrap();
        assert!(row.contains(&format!(">{rate}</td>")), "{receipt}: {row}");
    }
    for field in ["cost_rub", "charged_rub"] {
        let amount = receipt[field].as_str().unwrap();
        assert!(
            table.contains(&format!("\">{amount}</td>")),
            "{field} {receipt}: {table}"
        );
    }
    for says in [
        "The vendor reported these token counts.".to_owned(),
        format!("{} ₽", receipt["held_rub"].as_str().unwrap()),
    ] {
        assert!(html.contains(&says), "{says}: {html}");
    }
}

async fn unbooked(world: &World, number: &str) -> Value {
    eventually("the gateway knows the call", async || {
        let path = format!("/admin/v1/calls/{number}");
        let answer = world.admin_get(&path).await;
        (answer.status == 200).then(|| answer.json())
    })
    .await
}

/// The receipt is requested immediately after the response, before the call is settled, which takes some milliseconds.
#[tokio::test]
async fn receipt_is_found_as_soon_as_the_answer_has_ended() {
    let (server, folder) = (RedisServer::start().await, folder());
    let file = format!("sqlite:{}", folder.path().join("books.db").display());
    for ledger in ["memory:", &file, &server.url()] {
        let (world, key) = Setup::default().ledger(ledger).start_with_key().await;
        for _ in 0..5 {
            let answer = world.chat(&key, &Op::Chat.body("x")).await;
            let number = answer.number();
            let path = format!("/v1/tollgate/receipts/{number}");
            let own = world.get(&path, &[("authorization", &bearer(&key))]).await;
            assert_eq!(own.status, 200, "{ledger}: {own:?}");

            let answer = world.chat(&key, &Op::Chat.body("x")).await;
            let path = format!("/admin/v1/receipts/{}", answer.number());
            let found = world.admin_get(&path).await;
            assert_eq!(found.status, 200, "{ledger}: {found:?}");
        }
    }
}

#[tokio::test]
async fn refused_or_failed_call_without_a_receipt_is_shown_with_its_cause() {
    let (world, key) = World::start_with_key().await;
    let me = Browser::admin(&world).await;
    let stranger = Key {
        secret: format!("{}x", key.secret),
        ..key.clone()
    };
    let unknown = with(Op::Chat.body("x"), json!({ "model": "<b>none" }));
    world.vendor_sends(refusal(400, "no <i>such</i> thing"));
    for (what, key, body, state, status) in [
        ("a stranger", &stranger, Op::Chat.body("x"), "refused", 401),
        ("no such model", &key, unknown, "refused", 503),
        (
            "the vendor refuses",
            &key,
            Op::Chat.body("x"),
            "released",
            400,
        ),
    ] {
        let answer = Op::Chat.call(&world, key, &body).await;
        assert_eq!(answer.status, status, "{what}: {answer:?}");
        let call = unbooked(&world, &answer.number()).await;
        assert_eq!(call["state"], json!(state), "{what}");
        assert_eq!(call["status"], json!(status), "{what}");
        let reported = answer.json();
        let code = &reported["error"]["code"];
        assert!(
            code.is_null() || code == "" || *code == call["code"],
            "{what}: {call} {reported}"
        );
        assert_eq!(call["path"], "/v1/chat/completions");
        let printed = tollgate(&world, &["receipt", &answer.number()], "").await;
        let printed = complained(&printed, 1);
        assert!(printed.contains("no receipt"), "{what}: {printed}");
        for (label, value) in [("status", json!(status)), ("model", call["model"].clone())] {
            let Some(value) = value
                .as_str()
                .map(str::to_owned)
                .or(value.as_u64().map(|n| n.to_string()))
            else {
                continue;
            };
            let line = ["error:", label, &value];
            let has = printed.lines().any(|is| is.split_whitespace().eq(line));
            assert!(has, "{what}: {printed}");
        }
        let page = format!("/console/calls/{}", answer.number());
        let html = me.page(&world, &page).await;
        assert!(html.contains("no receipt"), "{what}: {html}");
        assert!(html.contains(state), "{what}: {html}");
        assert!(
            html.contains(&format!("<dt>status</dt><dd>{status}</dd>")),
            "{what}: {html}"
        );
        assert!(!html.contains("<b>none"), "{html}");
        assert!(!html.contains("<i>such"), "{html}");
    }

    let running = Running::start(&world, Op::Chat, &key, &Op::Chat.body("x")).await;
    let call = unbooked(&world, &running.number).await;
    assert_eq!(call["state"], "running");
    assert_eq!(call["account"], "acme");
    let page = format!("/console/calls/{}", running.number);
    assert!(
        me.page(&world, &page)
            .await
            .contains("Its receipt will be written when the call ends")
    );
    let number = running.number.clone();
    running.finish().await;
    world.receipt(&number).await;
    let gone = world.admin_get(&format!("/admin/v1/calls/{number}")).await;
    assert_eq!(gone.status, 404, "it has a receipt now: {gone:?}");

    let printed = tollgate(&world, &["receipt", UNKNOWN], "").await;
    let printed = complained(&printed, 1);
    has(
        &printed,
        "at most 100000 calls without a receipt are stored, for 30 days",
    );

    let nobodys = me
        .get(&world, &format!("/console/calls/{UNKNOWN}"))
        .await
        .expect(404);
    for says in [
        "no record of call",
        "the latest 2000 calls with unknown keys since its start",
    ] {
        assert!(nobodys.text().contains(says), "{}", nobodys.text());
    }
}
