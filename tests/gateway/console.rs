//! Tests of the operators' console: sign-in, the content and the forms of each page, and attacks.

use std::{path::Path, process::Command};

use http::header::SET_COOKIE;
use tollgate_layers::{
    money::MicroRub,
    reserve::ledger::{KeyChange, LedgerAdmin},
};

use crate::{ledger::folder, prelude::*, support::process::TOLLGATE};

const SIGN_IN: &str = "/console/sign-in";

/// The browser of an operator: its session cookie, and the CSRF token of its forms.
#[derive(Clone, Default)]
pub(crate) struct Browser {
    cookie: String,
    csrf: String,
}

fn url(world: &World, path: &str) -> String {
    format!("http://{}{path}", world.gateway.admin_address().unwrap())
}

/// Returns the name and value of the cookie that the response sets.
fn set_cookie(answer: &Answer) -> Option<String> {
    let header = answer.headers.get(SET_COOKIE)?.to_str().unwrap();
    Some(header.split(';').next().unwrap().to_owned())
}

/// Replaces each shortened amount and time in a page with the exact value, which is in an attribute of its tag.
fn exact(html: &str) -> String {
    let mut text = html.to_owned();
    for (begin, end) in [
        ("<span title=\"", "</span>"),
        ("<time datetime=\"", "</time>"),
    ] {
        let mut parts = text.split(begin);
        let mut whole = parts.next().unwrap().to_owned();
        for part in parts {
            let (value, after) = part.split_once('"').unwrap();
            let (_, after) = after.split_once(end).unwrap();
            whole.push_str(value);
            whole.push_str(after);
        }
        text = whole;
    }
    text
}

impl Browser {
    pub(crate) async fn get(&self, world: &World, path: &str) -> Answer {
        let headers = [("cookie", self.cookie.as_str())];
        let headers = if self.cookie.is_empty() {
            &[][..]
        } else {
            &headers[..]
        };
        world
            .ask(request(Method::GET, &url(world, path), headers, "".into()))
            .await
    }

    /// Loads a page that must exist. Returns it with exact amounts and times in place of the shortened ones.
    pub(crate) async fn page(&self, world: &World, path: &str) -> String {
        let answer = self.get(world, path).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        exact(&answer.text())
    }

    pub(crate) async fn post_with(
        &self,
        world: &World,
        path: &str,
        headers: &[(&str, &str)],
        pairs: &[(&str, &str)],
    ) -> Answer {
        let mut all = vec![("content-type", "application/x-www-form-urlencoded")];
        if !self.cookie.is_empty() {
            all.push(("cookie", &self.cookie));
        }
        all.extend_from_slice(headers);
        let body = form(pairs);
        world
            .ask(request(Method::POST, &url(world, path), &all, body.into()))
            .await
    }

    /// Posts a form with the CSRF token of this session.
    pub(crate) async fn post(&self, world: &World, path: &str, pairs: &[(&str, &str)]) -> Answer {
        let mut all = vec![("csrf", self.csrf.as_str())];
        all.extend_from_slice(pairs);
        self.post_with(world, path, &[], &all).await
    }

    /// Posts a form that the console must accept, and loads the page that the response redirects to.
    pub(crate) async fn done(&self, world: &World, path: &str, pairs: &[(&str, &str)]) -> String {
        let answer = self.post(world, path, pairs).await;
        assert_eq!(answer.status, 303, "{path}: {answer:?}");
        let to = answer.headers["location"].to_str().unwrap();
        self.page(world, to).await
    }

    async fn try_in(world: &World, name: &str, password: &str) -> Answer {
        let pairs = [("name", name), ("password", password)];
        let nobody = Self::default();
        nobody.post_with(world, SIGN_IN, &[], &pairs).await
    }

    pub(crate) async fn signed_in(world: &World, name: &str, password: &str) -> Self {
        let answer = Self::try_in(world, name, password).await;
        assert_eq!(answer.status, 303, "{name}: {answer:?}");
        let browser = Self::with_cookie(&set_cookie(&answer).unwrap());
        browser.in_session(world).await
    }

    pub(crate) fn with_cookie(cookie: &str) -> Self {
        Self {
            cookie: cookie.to_owned(),
            csrf: String::new(),
        }
    }

    /// Reads the CSRF token from a page of the session.
    pub(crate) async fn in_session(mut self, world: &World) -> Self {
        let html = self.page(world, "/").await;
        let (_, behind) = html.split_once("name=\"csrf\" value=\"").unwrap();
        self.csrf = behind.split('"').next().unwrap().to_owned();
        self
    }

    pub(crate) async fn admin(world: &World) -> Self {
        Self::signed_in(world, "", ADMIN_KEY).await
    }
}

fn operator(file: &Path, args: &[&str], password: &str) {
    use std::{io::Write as _, process::Stdio};
    let mut child = Command::new(TOLLGATE)
        .arg("operator")
        .args(args)
        .arg("--file")
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let _ = child.stdin.take().unwrap().write_all(password.as_bytes());
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{args:?}");
}

pub(crate) fn named(file: &Path, name: &str, role: &str) {
    let args = ["create", name, "--role", role, "--password-stdin"];
    operator(file, &args, &format!("{PASSWORD}\n"));
}

pub(crate) const PASSWORD: &str = "correct horse battery";

/// Returns the beginning of the section `[admin]`, which names this operators' file.
pub(crate) fn operators_file_section(file: &Path) -> String {
    let file = file.display().to_string();
    format!("[admin]\noperators_file = {file:?}\n")
}

fn with_operators(file: &Path) -> Setup {
    Setup::default().edit("[admin]\n", &operators_file_section(file))
}

/// Returns a setup whose chat route has a `cost`, the price that the vendor charges the seller.
fn with_cost() -> Setup {
    const COST: &str = "cost_usdt_mtok = { input = \"0.6\", cached_input = \"0.1\", output = \"0.9\", cache_write = \"0.5\" }";
    Setup::default().edit(
        "model = \"vendor-chat-1\" }",
        &format!("model = \"vendor-chat-1\", {COST} }}"),
    )
}

/// Makes a call in a session with the same name as the model. Returns its request number after it was charged.
async fn a_call(world: &World, key: &Key, op: Op) -> String {
    let mut req = op.request(world, key, &op.body("x"));
    let session = op.model().parse().unwrap();
    req.headers_mut().insert("x-session-id", session);
    let number = world.ask(req).await.number();
    world.receipt(&number).await;
    number
}

/// Returns the row of a table on the page, found by the name at the beginning of the row.
fn row<'a>(html: &'a str, name: &str) -> &'a str {
    let begin = format!("<tr><th scope=\"row\">{name}</th>");
    let behind = html.split_once(&begin);
    let (_, behind) = behind.unwrap_or_else(|| panic!("{name}: {html}"));
    behind.split("</tr>").next().unwrap()
}

/// Checks that every page shows exactly the margins that the API returns.
async fn margins_are_the_apis(world: &World, me: &Browser, numbers: &[String]) {
    let api = async |query: &str| {
        let path = format!("/admin/v1/usage{query}");
        world.admin_get(&path).await.json()
    };
    let all = api("").await;
    let total = all["total"]["margin_rub"].as_str().unwrap();
    let left = !total.starts_with('-') && total != "0.00";
    assert!(left, "something was left: {total}");
    // If the cost of some calls is unknown, the table cell contains further text after the margin. So only the
    // beginning of the cell is compared.
    let cell = |margin: &Value| {
        let margin = margin.as_str().unwrap_or("—");
        format!("<td data-label=\"Margin, ₽\">{margin}")
    };
    let overview = me.page(world, "/").await;
    for time in ["Today", "This month", "Last 12 months"] {
        let row = row(&overview, time);
        assert!(row.contains(&cell(&json!(total))), "{time} {total}: {row}");
    }
    for page in ["/console/usage", "/console/usage?account=acme"] {
        let usage = me.page(world, page).await;
        assert!(usage.contains(&format!("· margin {total} ₽")), "{usage}");
        for group in ["day", "model"] {
            let report = api(&format!("?group={group}")).await;
            for of in report["rows"].as_array().unwrap() {
                let row = row(&usage, of[group].as_str().unwrap());
                assert!(row.contains(&cell(&of["margin_rub"])), "{of}: {row}");
            }
        }
    }
    let prices = me.page(world, "/console/prices?days=7").await;
    let (_, sold) = prices.split_once("what-if-title").unwrap();
    let mut unknown = 0;
    for of in api("?group=model").await["rows"].as_array().unwrap() {
        let row = row(sold, of["model"].as_str().unwrap());
        assert!(row.contains(&cell(&of["margin_rub"])), "{of}: {row}");
        unknown += usize::from(of["margin_rub"].is_null());
    }
    assert_eq!(unknown, 1, "of one model no cost is known");
    let calls = me.page(world, "/console/calls").await;
    for number in numbers {
        let receipt = world.receipt(number).await;
        let link = format!("<a href=\"/console/calls/{number}\"");
        let (_, row) = calls.split_once(&link).unwrap();
        let row = row.split("</tr>").next().unwrap();
        let margin = cell(&receipt["margin_rub"]);
        assert!(row.contains(&margin), "{receipt}: {row}");
    }
}

/// Checks that each filter of the page shows the call that matches it, and no other call.
async fn filters_find_the_first_alone(world: &World, me: &Browser, numbers: &[String]) {
    let receipt = world.receipt(&numbers[0]).await;
    let vendor = receipt["vendor"].as_str().unwrap();
    let at = receipt["at"].as_str().unwrap();
    let other = world.receipt(&numbers[1]).await;
    assert_ne!(vendor, other["vendor"]);
    let day = &at[..10];
    for (filter, found) in [
        (format!("vendor={vendor}"), [true, false]),
        ("session=chat".into(), [true, false]),
        ("session=messages&model=messages".into(), [false, true]),
        ("session=chat&model=messages".into(), [false, false]),
        (format!("since={day}"), [true, true]),
        (format!("until={day}"), [false, false]),
        ("since=2020-01-01&until=2020-02-01".into(), [false, false]),
        (
            format!("account=acme&vendor={vendor}&session=chat&since={day}"),
            [true, false],
        ),
    ] {
        let html = me.page(world, &format!("/console/calls?{filter}")).await;
        let (_, table) = html.split_once("</form>\n").unwrap();
        for (number, found) in numbers.iter().zip(found) {
            assert_eq!(table.contains(number.as_str()), found, "{filter}: {html}");
        }
        // A search has a time limit. If it runs out, the page offers the older calls.
        let is_empty = ["No results", "No matching calls on this page"];
        let is_empty = is_empty.iter().any(|text| table.contains(text));
        assert_eq!(is_empty, found == [false; 2], "{filter}: {html}");
    }
}

/// Does the work of an operator's first day in the console, and checks the content of every page.
async fn first_day(world: &World) {
    let me = Browser::admin(world).await;
    let account = [("id", "acme"), ("name", "Acme & Co")];
    let made = me.done(world, "/console/accounts", &account).await;
    has(&made, "The account was created.");
    has(&made, "Acme &#38; Co");
    // The page proposes a new id for the payment and another one for the correction.
    let mut ids = made.split("value=\"console-").skip(1).map(|id| &id[..16]);
    assert_ne!(ids.next().unwrap(), ids.next().unwrap());
    let page = "/console/accounts/acme";
    let topup = [("do", "topup"), ("id", "p-1"), ("amount_rub", "100")];
    for says in ["The payment is booked.", "nothing was booked this time"] {
        let paid = me.done(world, page, &topup).await;
        assert!(paid.contains("100.00 ₽") && paid.contains(says), "{paid}");
    }
    let correction = [
        ("do", "adjust"),
        ("id", "c-1"),
        ("amount_rub", "-1"),
        ("reason", "x"),
    ];
    assert!(me.done(world, page, &correction).await.contains("99.00 ₽"));
    let create = [("do", "create-key"), ("name", "ci"), ("ceiling_rub", "50")];
    let created = me.post(world, page, &create).await.expect(200);
    let text = created.text();
    let (_, secret) = text.split_once("<code id=\"secret\">").unwrap();
    let secret = secret.split('<').next().unwrap().to_owned();
    let keys = world.admin_get("/admin/v1/accounts/acme/keys").await.json();
    let id = keys["keys"][0]["id"].as_str().unwrap().to_owned();
    let key = Key {
        secret: secret.clone(),
        id: id.clone(),
        account: "acme".into(),
    };

    let mut numbers = Vec::new();
    for op in BOTH {
        numbers.push(a_call(world, &key, op).await);
    }
    let calls = me.page(world, "/console/calls?account=acme").await;
    let [first, last] = &numbers[..] else {
        panic!("{numbers:?}")
    };
    let places = [first, last].map(|number| calls.find(number).expect("it is listed"));
    assert!(places[0] > places[1], "latest first: {calls}");
    let of_all = me.page(world, "/console/calls").await;
    has(&of_all, first);
    has(&of_all, last);
    let query = format!("/console/calls?key={id}&model=chat&end=finished");
    let by_model = me.page(world, &query).await;
    has(&by_model, first);
    assert!(!by_model.contains(last), "{by_model}");
    let receipt = world.receipt(first).await;
    let path = format!("/console/calls/{first}");
    let story = me.page(world, &path).await;
    for field in ["held_rub", "charged_rub", "vendor", "model", "end"] {
        let value = receipt[field].as_str().unwrap();
        has(&story, &format!("<dt>{field}</dt><dd>{value}</dd>"));
    }
    let query = format!("/console/calls?number={first}");
    let direct = me.get(world, &query).await;
    assert_eq!(direct.headers["location"], path.as_str());

    // The usage page and the usage API return the same sum.
    let usage = me.page(world, "/console/usage?account=acme").await;
    let api = world.admin_get("/admin/v1/usage?account=acme").await.json();
    let charged = api["total"]["charged_rub"].as_str().unwrap();
    assert!(usage.contains(&format!("{charged} ₽ · 2 calls")), "{usage}");
    // When a table is sorted by a column, it has the same rows as before, and the heading of this column is marked.
    let path = "/console/usage?account=acme&sort=charged";
    let sorted = me.page(world, path).await;
    assert!(sorted.contains("aria-sort=\"descending\""), "{sorted}");
    let rows = |html: &str| html.matches("<th scope=\"row\">").count();
    assert_eq!(rows(&sorted), rows(&usage));
    for by in ["By day", "By model", "By vendor", "By key"] {
        assert!(usage.contains(&format!(">{by}</a>")), "{by}: {usage}");
    }
    let of_all = me.page(world, "/console/usage").await;
    has(&of_all, &format!("{charged} ₽ · 2 calls"));
    let prices = me.page(world, "/console/prices?days=7&multiplier=2").await;
    let usage = world.admin_get("/admin/v1/usage?group=model").await.json();
    for row in usage["rows"].as_array().unwrap() {
        let charged = row["charged_rub"].as_str().unwrap();
        let twice = MicroRub::new(2 * charged.parse::<MicroRub>().unwrap().micro());
        for cell in [
            format!("<td data-label=\"Charged, ₽\">{charged}</td>"),
            format!("<td data-label=\"Charged at multiplier 2, ₽\">{twice}</td>"),
        ] {
            assert!(prices.contains(&cell), "{cell}: {prices}");
        }
    }
    margins_are_the_apis(world, &me, &numbers).await;
    filters_find_the_first_alone(world, &me, &numbers).await;
    let overview = me.page(world, "/").await;
    assert!(overview.contains(&format!("{charged} ₽")), "{overview}");
    for time in ["Today", "This month", "Last 12 months"] {
        let row = format!(
            "<th scope=\"row\">{time}</th><td data-label=\"Calls\">2</td><td data-label=\"Cut off or failed\">0</td>\
             <td data-label=\"Charged, ₽\">{charged}</td>"
        );
        assert!(overview.contains(&row), "{row}: {overview}");
    }
    // The calls were made just now. So each table has one row, unless a new hour, day or month has begun meanwhile.
    let cells = format!(
        "<td data-label=\"Calls\">2</td><td data-label=\"Cut off or failed\">0</td><td data-label=\"Charged, ₽\">{charged}</td>\
         <td data-label=\"Previous period, ₽\">—</td><td data-label=\"First byte p50, ms\">"
    );
    assert!(overview.matches(&cells).count() >= 2, "{overview}");
    for by in [
        "hour, last 24 hours",
        "day, last 30 days",
        "month, last 12 months",
    ] {
        has(
            &overview,
            &format!("aria-label=\"Call latency per {by}, ms;"),
        );
    }

    let group = json!({ "id": "team", "name": "Team & Co", "ceiling_month_rub": "40" });
    let groups = "/admin/v1/accounts/acme/groups";
    world.admin_post(groups, group).await.expect(200);
    let limits = [
        ("do", "limits"),
        ("name", "ci"),
        ("ceiling_day_rub", "5"),
        ("models", "chat"),
        ("requests_per_minute", "7"),
        ("concurrency", "3"),
        ("group", "team"),
        ("idempotency", "1"),
    ];
    let key_page = format!("/console/keys/{id}");
    let shown = me.done(world, &key_page, &limits).await;
    for part in [
        "name=\"concurrency\" value=\"3\"",
        "<option value=\"team\" selected>Team &#38; Co</option>",
        "name=\"idempotency\" value=\"1\" checked",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let account = me.page(world, page).await;
    let team = row(&account, "team");
    for cell in [
        "<td class=\"text\" data-label=\"Name\">Team &#38; Co</td>",
        "<td data-label=\"Monthly ceiling, ₽\">40.00</td>",
        "<td data-label=\"Daily ceiling, ₽\">—</td>",
    ] {
        assert!(team.contains(cell), "{cell}: {team}");
    }
    for (path, of) in [
        (&*key_page, &*format!("keys/{id}")),
        (page, "accounts/acme"),
    ] {
        let alerts = [("do", "alerts"), ("levels_rub", "2, 10.50")];
        let shown = me.done(world, path, &alerts).await;
        has(&shown, "name=\"levels_rub\" value=\"10.50 2.00\"");
        let of = format!("/admin/v1/{of}/alerts");
        let set = world.admin_get(&of).await;
        assert_eq!(set.json()["levels_rub"], json!(["10.50", "2.00"]));
        let none = [("do", "alerts"), ("levels_rub", "")];
        me.done(world, path, &none).await;
        let set = world.admin_get(&of).await;
        assert_eq!(set.json()["levels_rub"], json!([]));
    }

    // The console finds a key by its id, by the beginning of its secret, and by the beginning of its id.
    let direct = me.get(world, &format!("/console/accounts?key={id}")).await;
    assert_eq!(direct.headers["location"], key_page.as_str());
    let link = format!("<a href=\"/console/keys/{id}\">{id}</a>");
    for (begins, found) in [
        (&secret[..6], true),
        (&secret[..16], true),
        (&id[..8], true),
        ("tg-!", false),
    ] {
        let path = format!("/console/accounts?key={begins}");
        let html = me.page(world, &path).await;
        assert_eq!(html.contains(&link), found, "{begins}: {html}");
        let none = html.contains("No matching keys.");
        assert_eq!(none, !found, "{begins}: {html}");
        assert!(!html.contains(&secret));
    }
    let of_key = format!("/admin/v1/keys/{id}");
    let changed = world.admin_get(&of_key).await.json();
    for (field, value) in [
        ("ceiling_day_rub", json!("5.00")),
        ("ceiling_rub", Value::Null),
        ("models", json!(["chat"])),
        ("concurrency", json!(3)),
        ("group", json!("team")),
        ("idempotency", json!(true)),
    ] {
        assert_eq!(changed[field], value, "{field}");
    }
    for (path, action, says) in [
        (&*key_page, "disable", "disabled"),
        (&key_page, "enable", "active"),
        (&key_page, "delete", "deleted"),
        (page, "suspend", "suspended"),
        (page, "resume", "active again"),
    ] {
        if action == "delete" {
            let hasty = me.post(world, path, &[("do", action)]).await;
            assert_eq!(hasty.status, 422, "not confirmed: {hasty:?}");
            let key = world.admin_get(&of_key).await;
            assert_eq!(key.json()["status"], "active", "{hasty:?}");
        }
        let sure = [("do", action), ("sure", "1")];
        let shown = me.done(world, path, &sure).await;
        assert!(shown.contains(says), "{action}: {shown}");
        assert!(!shown.contains(&secret));
    }
    let audited = me.post(world, "/console/audit", &[]).await;
    has(&audited.text(), "The audit found no violations.");
    let found = me.page(world, "/console/accounts?q=CO").await;
    assert!(found.contains("/console/accounts/acme"), "{found}");
    let found = me.page(world, "/console/accounts?q=nobody").await;
    has(&found, "No account");
}

#[tokio::test]
async fn operator_can_do_a_first_days_work_in_the_console_with_a_memory_ledger() {
    first_day(&with_cost().start().await).await;
}

#[tokio::test]
async fn operator_can_do_a_first_days_work_in_the_console_with_a_sqlite_ledger() {
    let folder = folder();
    let url = format!("sqlite:{}", folder.path().join("books.db").display());
    first_day(&with_cost().ledger(&url).start().await).await;
}

#[tokio::test]
async fn operator_can_do_a_first_days_work_in_the_console_with_a_redis_ledger() {
    let server = RedisServer::start().await;
    first_day(&with_cost().ledger(&server.url()).start().await).await;
}

#[tokio::test]
async fn console_disables_and_enables_vendors_and_shows_prices() {
    let world = World::start().await;
    let me = Browser::admin(&world).await;
    let vendors = world.admin_get("/admin/v1/vendors").await.json();
    let name = vendors["vendors"][0]["name"].as_str().unwrap();
    let page = "/console/vendors";
    let disable = [("do", "disable"), ("vendor", name)];
    let out = me.done(&world, page, &disable).await;
    assert!(out.contains(&format!("Enable {name}")), "{out}");
    assert!(me.page(&world, "/").await.contains("disabled"));
    let enable = [("do", "enable"), ("vendor", name)];
    let back = me.done(&world, page, &enable).await;
    assert!(back.contains(&format!("Disable {name}")), "{back}");
    let catalog = world.get("/v1/tollgate/models", &[]).await.json();
    // The page separates thousands with commas, and the API does not.
    let prices = me.page(&world, "/console/prices").await.replace(',', "");
    for model in catalog["models"].as_array().unwrap() {
        for field in ["id", "input_rub_mtok", "output_rub_mtok"] {
            has(&prices, model[field].as_str().unwrap());
        }
    }
}

#[tokio::test]
async fn console_shows_the_refusal_of_a_change_and_changes_nothing() {
    let (world, key) = World::start_with_key().await;
    let me = Browser::admin(&world).await;
    let topup = |rubles| vec![("do", "topup"), ("id", "x"), ("amount_rub", rubles)];
    let mut adjust = topup("-5000");
    adjust[0] = ("do", "adjust");
    adjust.push(("reason", "x"));
    let exists = vec![("id", "acme"), ("name", "other")];
    for (path, pairs, status, says) in [
        ("", vec![("id", "a b")], 400, "id: "),
        ("", exists, 409, "exists already"),
        ("/acme", topup("ten"), 400, "amount_rub: "),
        ("/acme", adjust, 409, "below zero"),
        ("/nobody", topup("1"), 404, "no account nobody"),
        ("/acme", vec![("do", "drop")], 404, "Page not found"),
    ] {
        let path = format!("/console/accounts{path}");
        let answer = me.post(&world, &path, &pairs).await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        assert!(answer.text().contains(says), "{says}: {}", answer.text());
        // The response reports an error, but the entry may have been made. So the form offers to send it again under
        // the same id.
        let booking = pairs.contains(&("id", "x")) && status != 404;
        let shown = answer.text().contains(r#"name="id" required value="x""#);
        assert_eq!(shown, booking, "{}", answer.text());
    }
    let page = format!("/console/keys/{}", key.id);
    let many = [("do", "limits"), ("tokens_per_minute", "many")];
    let answer = me.post(&world, &page, &many).await.expect(400);
    has(&answer.text(), "tokens_per_minute: ");
    assert_eq!(world.account(&key).await["balance_rub"], "1000.00");
    for path in [
        "/console/accounts/nobody",
        "/console/keys/k0",
        "/console/calls/1",
        "/console/other",
    ] {
        assert_eq!(me.get(&world, path).await.status, 404, "{path}");
    }
    for path in ["/console", "/console/"] {
        let answer = me.get(&world, path).await;
        assert_eq!(answer.status, 303, "{path}");
        assert_eq!(answer.headers["location"], "/", "{path}");
    }
    let path = "/console/calls?account=acme&end=other";
    me.get(&world, path).await.expect(400);
}

/// Loads a page as an operator whose language cookie is `chosen` and whose browser prefers the language `accepted`.
async fn preferring(
    world: &World,
    me: &Browser,
    path: &str,
    chosen: &str,
    accepted: &str,
) -> Answer {
    let cookie = format!("{}; tollgate_language={chosen}", me.cookie);
    let headers = [("cookie", cookie.as_str()), ("accept-language", accepted)];
    world
        .ask(request(Method::GET, &url(world, path), &headers, "".into()))
        .await
}

#[tokio::test]
async fn console_uses_the_chosen_language_or_else_the_language_of_the_browser() {
    let (world, key) = World::start_with_key().await;
    let me = Browser::admin(&world).await;
    let account = format!("/console/accounts/{}", key.account);
    for (path, ru, en) in [
        ("/", "Обзор", "Overview"),
        ("/console/calls", "Запросы", "Calls"),
        (&account, "Счёт acme", "Account acme"),
        ("/console/sign-in", "Войти", "Sign in"),
        ("/console/calls/1", "Не найдено", "Not found"),
    ] {
        for (chosen, accepted, title) in [
            ("", "ru-RU,en;q=0.5", ru),
            ("", "en-GB,ru;q=0.5", en),
            ("en", "ru", en),
            ("ru", "en", ru),
            ("<b>", "", en),
        ] {
            let answer = preferring(&world, &me, path, chosen, accepted).await;
            assert!(answer.headers.get(SET_COOKIE).is_none());
            let html = answer.text();
            let titled = html.contains(&format!("<h1>{title}</h1>"));
            assert!(titled, "{chosen} {accepted}: {html}");
        }
    }
    // A language in the URL is stored in the cookie. An unknown language is not stored.
    let chosen = preferring(&world, &me, "/console/calls?language=ru", "en", "en").await;
    assert!(chosen.text().contains("<html lang=\"ru\">"), "{chosen:?}");
    assert_eq!(set_cookie(&chosen).unwrap(), "tollgate_language=ru");
    let odd = preferring(&world, &me, "/console/calls?language=%0D%0Ax", "en", "en").await;
    assert!(odd.headers.get(SET_COOKIE).is_none(), "{odd:?}");
}

#[tokio::test]
async fn every_console_page_requires_sign_in() {
    let (world, key) = World::start_with_key().await;
    let account = format!("/console/accounts/{}", key.account);
    let pages =
        "accounts calls calls.csv usage vendors new-vendor prices events changes audit other";
    let pages = pages.split(' ').map(|page| format!("/console/{page}"));
    let topup = [("do", "topup"), ("id", "x"), ("amount_rub", "1")];
    for path in pages.chain(["/".to_owned(), account]) {
        let forged = Browser::with_cookie("tollgate_console=0");
        for browser in [Browser::default(), forged] {
            let answer = browser.get(&world, &path).await;
            assert_eq!(answer.status, 303, "{path}");
            assert!(answer.body.is_empty(), "{path}");
            assert_eq!(answer.headers["location"], SIGN_IN);
            let answer = browser.post(&world, &path, &topup).await;
            assert_eq!(answer.status, 303, "{path}");
        }
    }
    assert_eq!(world.account(&key).await["balance_rub"], "1000.00");
    // The admin API accepts only an operator's key. It does not accept a session of the console.
    let me = Browser::admin(&world).await;
    assert_eq!(me.get(&world, "/admin/v1/accounts").await.status, 401);
}

#[tokio::test]
async fn admin_key_guesses_at_sign_in_are_limited_per_address() {
    let world = World::start().await;
    let mut statuses = Vec::new();
    for guess in 0..9 {
        let answer = Browser::try_in(&world, "", &format!("guess-{guess}-0123456789")).await;
        assert!(answer.headers.get(SET_COOKIE).is_none());
        statuses.push(answer.status.as_u16());
    }
    assert_eq!(statuses[..5], [401; 5]);
    assert_eq!(statuses[7..], [429; 2], "{statuses:?}");
    let right = Browser::try_in(&world, "", ADMIN_KEY).await;
    assert_eq!(right.status, 429, "the right one waits as well");
    assert!(right.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn console_sign_in_creates_a_new_session_id_and_ignores_the_browsers_old_one() {
    let world = World::start().await;
    let fixed = format!("tollgate_console={}", "0".repeat(64));
    let pairs = [("name", ""), ("password", ADMIN_KEY)];
    let victim = Browser::with_cookie(&fixed);
    let answer = victim
        .post_with(&world, SIGN_IN, &[], &pairs)
        .await
        .expect(303);
    let given = set_cookie(&answer).unwrap();
    assert_ne!(given, fixed);
    // The session id that was set before opens nothing.
    let attacker = Browser::with_cookie(&fixed);
    attacker.get(&world, "/").await.expect(303);
    // A second sign-in creates a new session, and ends the earlier one.
    let again = Browser::with_cookie(&given);
    let answer = again.post_with(&world, SIGN_IN, &[], &pairs).await;
    assert_ne!(set_cookie(&answer).unwrap(), given);
    assert_eq!(again.get(&world, "/").await.status, 303);
    // A browser that sends two cookies of the same name is refused, because an attacker on a neighbouring host may have
    // set one of them.
    let mine = Browser::admin(&world).await;
    let two = Browser::with_cookie(&format!("{}; tollgate_console=0", mine.cookie));
    assert_eq!(two.get(&world, "/").await.status, 303);
    assert_eq!(mine.get(&world, "/").await.status, 200);
}

#[tokio::test]
async fn session_cookie_is_limited_to_its_origin_and_hidden_from_scripts() {
    let world = World::start().await;
    let pairs = [("name", ""), ("password", ADMIN_KEY)];
    for (headers, secure) in [(&[][..], false), (&[("x-forwarded-proto", "https")], true)] {
        let nobody = Browser::default();
        let answer = nobody.post_with(&world, SIGN_IN, headers, &pairs).await;
        let cookie = answer.headers[SET_COOKIE].to_str().unwrap();
        let parts: Vec<_> = cookie.split("; ").collect();
        for part in ["Path=/", "HttpOnly", "SameSite=Strict"] {
            assert!(parts.contains(&part), "{cookie}");
        }
        assert_eq!(parts.contains(&"Secure"), secure, "{cookie}");
        assert!(!cookie.contains(ADMIN_KEY) && !cookie.contains("Domain"));
    }
}

#[tokio::test]
async fn form_sent_from_another_site_changes_nothing() {
    let (world, key) = World::start_with_key().await;
    let me = Browser::admin(&world).await;
    let page = format!("/console/accounts/{}", key.account);
    let pairs = [("do", "topup"), ("id", "evil"), ("amount_rub", "1")];
    let other = Browser::admin(&world).await;
    for csrf in ["", "0", &other.csrf, &me.csrf[1..]] {
        let mut forged = vec![("csrf", csrf)];
        forged.extend_from_slice(&pairs);
        let answer = me.post_with(&world, &page, &[], &forged).await;
        assert_eq!(answer.status, 403, "{csrf}");
    }
    let mut good = vec![("csrf", me.csrf.as_str())];
    good.extend_from_slice(&pairs);
    for foreign in [
        ("origin", "http://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        let answer = me.post_with(&world, &page, &[foreign], &good).await;
        assert_eq!(answer.status, 403, "{foreign:?}");
        let pairs = [("name", ""), ("password", ADMIN_KEY)];
        let nobody = Browser::default();
        let answer = nobody.post_with(&world, SIGN_IN, &[foreign], &pairs).await;
        assert_eq!(answer.status, 403, "nor is anybody signed in by one");
    }
    // A GET request with the fields of a form changes nothing: a change needs a POST request with the CSRF token of the
    // form.
    let query = format!("{page}?{}", form(&good));
    me.get(&world, &query).await.expect(200);
    assert_eq!(world.account(&key).await["balance_rub"], "1000.00");
    let origin = format!("http://{}", world.gateway.admin_address().unwrap());
    let own = [("origin", &*origin), ("sec-fetch-site", "same-origin")];
    let answer = me.post_with(&world, &page, &own, &good).await;
    answer.expect(303);
    assert_eq!(world.account(&key).await["balance_rub"], "1001.00");
}

#[tokio::test]
async fn console_pages_cannot_be_framed_or_cached_and_run_only_their_own_script() {
    let world = World::start().await;
    world.key().await;
    let me = Browser::admin(&world).await;
    for path in [
        "/",
        "/console/accounts/acme",
        "/console/calls",
        "/console/sign-in",
        "/console/style.css",
        "/console/other",
    ] {
        let answer = me.get(&world, path).await;
        let policy = answer.headers["content-security-policy"].to_str().unwrap();
        for rule in [
            "default-src 'none'",
            "style-src 'self'",
            "script-src 'self'",
            "connect-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        ] {
            let is_set = policy.split("; ").any(|given| given == rule);
            assert!(is_set, "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        let html = answer.text();
        let scripts: Vec<&str> = html.split("<script").skip(1).collect();
        let own = " src=\"/console/live.js\" defer></script>";
        assert!(scripts.iter().all(|tag| tag.starts_with(own)), "{html}");
        assert_eq!(scripts.len(), usize::from(path == "/"), "{path}");
        for (name, value) in [
            ("x-frame-options", "DENY"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "same-origin"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(answer.headers[name], value, "{path}");
        }
        let html = answer.text();
        for outside in [
            "<style", " style=", "http://", "https://", "<iframe", "<img",
        ] {
            assert!(!html.contains(outside), "{path}: {outside}");
        }
    }
}

/// Names that callers, vendors and operators can choose are escaped: accounts, keys, models, vendors and typed text.
#[tokio::test]
async fn names_are_escaped_on_every_console_page() {
    const EVIL: &str = "<img src=x onerror=alert(1)>\"'&";
    let quoted = "<img src=x onerror=alert(1)>\\\"'&";
    let world = Setup::default()
        .edit("id = \"chat\"\n", &format!("id = \"{quoted}\"\n"))
        .start()
        .await;
    let key = world.key_with("acme", "10", json!({ "name": EVIL })).await;
    let rename = json!({ "name": EVIL });
    world.admin_patch("/admin/v1/accounts/acme", rename).await;
    let adjustment = json!({ "id": "c", "amount_rub": "1", "reason": EVIL });
    for (what, body) in [
        ("groups", json!({ "id": "g", "name": EVIL })),
        ("topups", json!({ "id": EVIL, "amount_rub": "1" })),
        ("adjustments", adjustment),
    ] {
        let path = format!("/admin/v1/accounts/acme/{what}");
        let made = world.admin_post(&path, body).await;
        assert_eq!(made.status, 200, "{what}: {made:?}");
    }
    let mut body = Op::Chat.body("x");
    body["model"] = EVIL.into();
    let number = world.chat(&key, &body).await.number();
    world.receipt(&number).await;
    let me = Browser::admin(&world).await;
    let evil = form(&[("q", EVIL)]);
    let filter = form(&[("account", "acme"), ("model", EVIL)]);
    let mut seen = 0;
    for path in [
        "/".to_owned(),
        "/console/accounts".into(),
        format!("/console/accounts?{evil}"),
        "/console/accounts/acme".into(),
        format!("/console/keys/{}", key.id),
        format!("/console/calls?{filter}"),
        format!("/console/calls/{number}"),
        "/console/usage?account=acme".into(),
        format!("/console/usage?account=acme&sort={}", &evil[2..]),
        "/console/vendors".into(),
        "/console/prices".into(),
        "/console/events".into(),
        format!("/console/events?account={}", &evil[2..]),
        format!("/console/events?kind={}", &evil[2..]),
        format!("/console/calls?account={}", &evil[2..]),
        "/console/accounts?key=tg-".into(),
        format!("/console/accounts?key={}", &evil[2..]),
    ] {
        let html = me.get(&world, &path).await.text();
        assert!(!html.contains("<img"), "{path}: {html}");
        let is_shown = html.contains("img src=x");
        if path == "/console/events" {
            assert!(is_shown, "{path}: {html}");
        }
        seen += usize::from(is_shown);
    }
    assert!(seen >= 12, "it is shown: {seen}");
    let answer = Browser::try_in(&world, EVIL, "x").await;
    assert!(!answer.text().contains("<img"));
    let answer = me.post(&world, "/console/accounts", &[("id", EVIL)]).await;
    assert!(!answer.text().contains("<img"), "{}", answer.text());
}

#[tokio::test]
async fn operator_can_do_only_what_the_role_permits() {
    let folder = folder();
    let file = folder.path().join("operators.toml");
    for role in ["read", "finance", "support", "admin"] {
        named(&file, &format!("{role}-1"), role);
    }
    let (world, key) = with_operators(&file).start_with_key().await;
    let vendors = world.admin_get("/admin/v1/vendors").await.json();
    let vendor = vendors["vendors"][0]["name"].as_str().unwrap();
    let account = format!("/console/accounts/{}", key.account);
    let key_page = format!("/console/keys/{}", key.id);
    for (role, may) in [
        ("read", [false, false, false, false, false]),
        ("finance", [true, false, false, true, false]),
        ("support", [false, true, false, false, true]),
        ("admin", [true, true, true, true, true]),
    ] {
        let me = Browser::signed_in(&world, &format!("{role}-1"), PASSWORD).await;
        let topup = [("do", "topup"), ("id", role), ("amount_rub", "1")];
        let limits = [("do", "limits"), ("name", role)];
        let switch = [("do", "enable"), ("vendor", vendor)];
        let group = [("do", "create-group"), ("id", role)];
        let answers = [
            me.post(&world, &account, &topup).await,
            me.post(&world, &key_page, &limits).await,
            me.post(&world, "/console/vendors", &switch).await,
            me.post(&world, "/console/audit", &[]).await,
            me.post(&world, &account, &group).await,
        ];
        for (at, (answer, may)) in answers.iter().zip(may).enumerate() {
            let forbidden = answer.status == 403;
            assert_eq!(forbidden, !may, "{role} {at}: {answer:?}");
            assert!(may || answer.text().contains(&format!("the role {role} may not")));
        }
        let html = me.page(&world, &account).await;
        assert_eq!(html.contains("Book the payment"), may[0], "{role}");
        has(&html, &format!("{role}-1 <small>{role}</small>"));
    }
}

/// The page of an account's month lists its payments, and offers the statement as files. The page and the files require
/// a session.
#[tokio::test]
async fn console_shows_a_month_of_an_account_with_its_payments_and_statement_files() {
    let (world, key) = World::start_with_key().await;
    let me = Browser::admin(&world).await;
    let account = format!("/console/accounts/{}", key.account);
    let topup = [
        ("do", "topup"),
        ("id", "invoice-17"),
        ("amount_rub", "1\u{a0}234,5"),
    ];
    let paid = me.done(&world, &account, &topup).await;
    assert!(paid.contains("The payment is booked."), "{paid}");
    for ambiguous in ["1,000", "1,000.50", "1.000,50"] {
        let topup = [("do", "topup"), ("id", "odd"), ("amount_rub", ambiguous)];
        let refused = me.post(&world, &account, &topup).await;
        assert_eq!(refused.status, 400, "{ambiguous}: {refused:?}");
    }
    let correction = [
        ("do", "adjust"),
        ("id", "c-1"),
        ("amount_rub", "-1"),
        ("reason", "<b>fee"),
    ];
    me.done(&world, &account, &correction).await;
    let page = format!("{account}/statements");
    let html = me.page(&world, &page).await;
    for says in [
        "invoice-17",
        ">1,234.50</td>",
        "c-1",
        "&#60;b&#62;fee",
        "not closed yet",
    ] {
        assert!(html.contains(says), "{says}: {html}");
    }
    let (link, _) = html.split_once(".pdf\"").unwrap();
    let link = format!("{}.pdf", link.rsplit('"').next().unwrap());
    let pdf = me.get(&world, &link).await.expect(200);
    assert_eq!(pdf.headers["content-type"], "application/pdf");
    assert!(pdf.body.starts_with(b"%PDF"), "{link}");
    let csv = me.get(&world, &link.replace(".pdf", ".csv")).await;
    assert!(csv.text().contains("invoice-17"), "{csv:?}");
    let disposition = csv.headers["content-disposition"].to_str().unwrap();
    assert!(disposition.starts_with("attachment;"));
    for (path, status) in [
        (format!("{page}?month=2999-01"), 400),
        (format!("{page}?month=%3Cb%3E"), 400),
        (format!("{page}/2026-01.exe"), 404),
        ("/console/accounts/nobody/statements".to_owned(), 404),
    ] {
        let answer = me.get(&world, &path).await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        assert!(!answer.text().contains("<b>"), "{answer:?}");
    }
    for path in [page, link] {
        let stranger = Browser::default().get(&world, &path).await;
        assert_eq!(stranger.status, 303, "{path}");
        assert!(stranger.body.is_empty(), "{path}");
    }
}

#[tokio::test]
async fn console_group_forms_require_the_csrf_token_of_the_session() {
    let (world, key) = World::start_with_key().await;
    let me = Browser::admin(&world).await;
    let account = format!("/console/accounts/{}", key.account);
    let groups = async || {
        let path = format!("/admin/v1/accounts/{}/groups", key.account);
        world.admin_get(&path).await.json()["groups"].clone()
    };
    let create = [
        ("do", "create-group"),
        ("id", "team"),
        ("name", "<b>Team"),
        ("ceiling_month_rub", "500,50"),
    ];
    let forged = [("csrf", "0"), create[0], create[1]];
    let answer = me.post_with(&world, &account, &[], &forged).await;
    assert_eq!((answer.status.as_u16(), groups().await), (403, json!([])));
    let html = me.done(&world, &account, &create).await;
    has(&html, "&#60;b&#62;Team");
    assert!(!html.contains("<b>Team"), "{html}");
    assert_eq!(groups().await[0]["ceiling_month_rub"], "500.50");
    let remove = [("do", "remove-group"), ("group", "team")];
    me.post(&world, &account, &remove).await.expect(422);
    assert_eq!(groups().await[0]["status"], "active");
    let sure = [remove[0], remove[1], ("sure", "1")];
    me.done(&world, &account, &sure).await;
    assert_eq!(groups().await[0]["status"], "removed");
}

/// The form of a key can change an expired key, and a key that allows a removed model. The form overwrites only those
/// fields that the operator has edited, so concurrent changes of other fields are kept.
#[tokio::test]
async fn console_key_form_changes_only_the_edited_fields() {
    let (world, key) = World::start_with_key().await;
    let me = Browser::admin(&world).await;
    let page = format!("/console/keys/{}", key.id);
    let path = format!("/admin/v1/keys/{}", key.id);
    let change = async |body: Value| world.admin_patch(&path, body).await;
    let ceiling = json!({ "ceiling_day_rub": "1000" });
    change(ceiling).await.expect(200);
    // The expiry time of the key is long past.
    let over = KeyChange {
        expires_at_ms: Some(Some(1_000)),
        ..KeyChange::default()
    };
    let id = key.id.parse().unwrap();
    world.gateway.store().change_key(&id, &over).await.unwrap();
    let html = me.page(&world, &page).await;
    let shown = html.split("name=\"shown\" value=\"").nth(1).unwrap();
    let shown = shown.split('"').next().unwrap().replace("&#38;", "&");
    assert_eq!(change(json!({ "ceiling_day_rub": "10" })).await.status, 200);
    let typed = [
        ("do", "limits"),
        ("shown", &*shown),
        ("name", "renamed"),
        ("ceiling_day_rub", "1000.00"),
        ("expires_at", "1970-01-01T00:00:01Z"),
    ];
    me.done(&world, &page, &typed).await;
    let now = world.admin_get(&path).await.json();
    assert_eq!(now["name"], "renamed");
    assert_eq!(now["ceiling_day_rub"], "10.00");
    assert_eq!(now["expires_at"], "1970-01-01T00:00:01Z");
}

#[tokio::test]
async fn console_sessions_end_at_sign_out_and_password_change() {
    let folder = folder();
    let file = folder.path().join("operators.toml");
    named(&file, "anna", "finance");
    named(&file, "boris", "read");
    let world = with_operators(&file).start().await;
    let is_in =
        async |browser: &Browser| browser.get(&world, "/console/prices").await.status == 200;
    let [one, two, three] = [
        Browser::signed_in(&world, "anna", PASSWORD).await,
        Browser::signed_in(&world, "anna", PASSWORD).await,
        Browser::signed_in(&world, "anna", PASSWORD).await,
    ];
    let boris = Browser::signed_in(&world, "boris", PASSWORD).await;
    let left = one.post(&world, "/console/sign-out", &[]).await;
    has(left.headers[SET_COOKIE].to_str().unwrap(), "Max-Age=0");
    assert!(!is_in(&one).await && is_in(&two).await);
    let everywhere = [("everywhere", "1")];
    two.post(&world, "/console/sign-out", &everywhere).await;
    assert!(!is_in(&two).await && !is_in(&three).await && is_in(&boris).await);

    let anna = Browser::signed_in(&world, "anna", PASSWORD).await;
    named(&file, "anna", "finance");
    // The same password with another digest is another one.
    assert!(!is_in(&anna).await);
    operator(&file, &["delete", "boris"], "");
    assert!(!is_in(&boris).await);
    for (name, password) in [
        ("boris", PASSWORD),
        ("anna", "wrong"),
        ("nobody", PASSWORD),
        ("admin", PASSWORD),
    ] {
        let answer = Browser::try_in(&world, name, password).await;
        assert_eq!(answer.status, 401, "{name}");
    }
}
