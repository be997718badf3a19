//! Tests of the cabinet: sign-in by an emailed link, the pages and forms of each role, and attacks.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use http::header::SET_COOKIE;
use tollgate_ledger::contract::Documents;

use crate::{
    invoices::with_seller,
    messages_out::{Fake, Mail, smtp},
    prelude::*,
};

pub const ANNA: &str = "anna@acme.example";
pub const FINN: &str = "finn@acme.example";
pub const DAVE: &str = "dave@acme.example";
pub const EVIL: &str = "<img src=x onerror=alert(1)>";

/// A gateway with a cabinet, and the mail server that receives its emails.
pub struct Office {
    pub world: World,
    mails: Fake<Mail>,
}

impl Office {
    /// Starts a gateway with the account `acme`, which has one member of each role.
    pub async fn start() -> Self {
        let office = Self::empty(|setup| setup, "").await;
        office.staff().await;
        office
    }

    /// Starts a gateway without accounts. The section of its cabinet has these additional lines.
    async fn empty(change: impl FnOnce(Setup) -> Setup, more: &str) -> Self {
        let mails = Fake::<Mail>::start(smtp).await;
        let world = change(with_mail(mails.port, more)).start().await;
        Self { world, mails }
    }

    /// Creates the account `acme` with one member of each role.
    async fn staff(&self) {
        self.world.key().await;
        for (mail, role) in [(ANNA, "owner"), (FINN, "finance"), (DAVE, "developer")] {
            self.member("acme", mail, role).await;
        }
    }

    pub async fn member(&self, account: &str, mail: &str, role: &str) -> Value {
        let path = format!("/admin/v1/accounts/{account}/members");
        let body = json!({ "mail": mail, "role": role });
        let made = self.world.admin_post(&path, body).await.expect(200);
        made.json()
    }

    /// Requests a sign-in link, and returns the link's path from the email.
    async fn link(&self, browser: &mut Browser, mail: &str) -> String {
        let before = self.mails.came.lock().unwrap().len();
        browser.ask_link(&self.world, mail).await.expect(200);
        let mails = self.mails.has(before + 1).await;
        let (to, text) = mails.last().unwrap();
        assert!(to[0].contains(&mail.to_lowercase()), "{to:?}");
        link_in(text)
    }

    pub async fn signed_in(&self, mail: &str) -> Browser {
        let mut browser = Browser::default();
        let link = self.link(&mut browser, mail).await;
        let entered = browser.enter(&self.world, &link).await;
        assert_eq!(entered.status, 303, "{mail}: {entered:?}");
        browser.page(&self.world, "/cabinet").await;
        browser
    }
}

fn with_mail(port: u16, more: &str) -> Setup {
    let section = format!(
        "[cabinet]\nserver = \"smtp://127.0.0.1:{port}\"\nfrom = \"Tollgate <noreply@example.com>\"\n{more}\n[admin]\n"
    );
    Setup::default().edit("[admin]\n", &section)
}

/// Returns the path of the sign-in link in an email, whatever the encoding of the email's lines.
fn link_in(mail: &str) -> String {
    let (head, body) = mail.split_once("\n\n").unwrap();
    let text = match head.contains("base64") {
        true => {
            let bytes = STANDARD.decode(body.replace('\n', ""));
            String::from_utf8(bytes.unwrap()).unwrap()
        }
        false => body.replace("=\n", "").replace("=3D", "="),
    };
    let after = text.split_once("http://gateway.example");
    let (_, link) = after.unwrap_or_else(|| panic!("no link in {mail}"));
    link.split_whitespace().next().unwrap().to_owned()
}

/// The browser of a member: its cookies, and the CSRF token of its forms.
#[derive(Clone, Default)]
pub struct Browser {
    cookies: BTreeMap<String, String>,
    pub csrf: String,
    /// The client's address, which a trusted proxy reports.
    address: Option<String>,
}

impl Browser {
    /// Returns the value of the request header `cookie`.
    pub fn cookie(&self) -> String {
        let cookies = self.cookies.iter();
        let cookies: Vec<_> = cookies
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        cookies.join("; ")
    }

    async fn send(
        &mut self,
        world: &World,
        method: Method,
        path: &str,
        more: &[(&str, &str)],
        pairs: &[(&str, &str)],
    ) -> Answer {
        let cookies = self.cookie();
        let mut headers = vec![("accept-language", "en")];
        if !cookies.is_empty() {
            headers.push(("cookie", &cookies));
        }
        if let Some(address) = &self.address {
            headers.push(("x-forwarded-for", address));
        }
        headers.extend_from_slice(more);
        let (url, body) = (world.url(path), form(pairs).into());
        let answer = world.ask(request(method, &url, &headers, body)).await;
        for cookie in answer.headers.get_all(SET_COOKIE) {
            let cookie = cookie.to_str().unwrap();
            let (name, value) = cookie.split(';').next().unwrap().split_once('=').unwrap();
            match value {
                "" => self.cookies.remove(name),
                value => self.cookies.insert(name.to_owned(), value.to_owned()),
            };
        }
        answer
    }

    pub async fn get(&mut self, world: &World, path: &str) -> Answer {
        self.send(world, Method::GET, path, &[], &[]).await
    }

    /// Loads a page that must exist, and stores the CSRF token of its forms.
    pub async fn page(&mut self, world: &World, path: &str) -> String {
        let answer = self.get(world, path).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        let html = answer.text();
        if let Some((_, after)) = html.split_once("name=\"csrf\" value=\"") {
            after.split('"').next().unwrap().clone_into(&mut self.csrf);
        }
        html
    }

    /// Posts a form with the CSRF token of the session.
    pub async fn post(&mut self, world: &World, path: &str, pairs: &[(&str, &str)]) -> Answer {
        let csrf = self.csrf.clone();
        let mut all = vec![("csrf", csrf.as_str())];
        all.extend_from_slice(pairs);
        self.send(world, Method::POST, path, &[], &all).await
    }

    /// Posts a form that must be accepted, and loads the page that the response redirects to.
    pub async fn done(&mut self, world: &World, path: &str, pairs: &[(&str, &str)]) -> String {
        let answer = self.post(world, path, pairs).await;
        assert_eq!(answer.status, 303, "{path} {pairs:?}: {answer:?}");
        let to = answer.headers["location"].to_str().unwrap().to_owned();
        self.page(world, &to).await
    }

    async fn ask_link(&mut self, world: &World, mail: &str) -> Answer {
        self.page(world, "/cabinet/sign-in").await;
        self.send_form(world, "/cabinet/sign-in", &[("mail", mail)])
            .await
    }

    /// Posts a form without the CSRF token of the session.
    async fn send_form(&mut self, world: &World, path: &str, pairs: &[(&str, &str)]) -> Answer {
        self.send(world, Method::POST, path, &[], pairs).await
    }

    /// Opens a sign-in link and presses the button on its page.
    async fn enter(&mut self, world: &World, link: &str) -> Answer {
        let opened = self.get(world, link).await;
        if opened.status != 200 {
            return opened;
        }
        let (path, token) = link.split_once("?token=").unwrap();
        self.send_form(world, path, &[("token", token)]).await
    }
}

fn cookies(answer: &Answer) -> Vec<String> {
    let cookies = answer.headers.get_all(SET_COOKIE).iter();
    cookies
        .map(|cookie| cookie.to_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn cabinet_is_off_by_default() {
    let world = World::start().await;
    for path in ["/cabinet", "/cabinet/sign-in", "/cabinet/style.css"] {
        assert_eq!(world.get(path, &[]).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn member_signs_in_by_an_emailed_link_and_can_end_all_sessions_at_once() {
    let office = Office::start().await;
    let world = &office.world;
    let mut anna = Browser::default();
    for path in ["/cabinet", "/cabinet/keys", "/cabinet/no-such-page"] {
        let answer = anna.get(world, path).await;
        assert_eq!(answer.status, 303, "{path}");
        assert_eq!(answer.headers["location"], "/cabinet/sign-in");
    }
    let link = office.link(&mut anna, "Anna@ACME.example").await;
    let entered = anna.enter(world, &link).await;
    assert_eq!(entered.headers["location"], "/cabinet");
    let set = cookies(&entered);
    assert!(set[0].starts_with("tollgate_cabinet=member-"), "{set:?}");
    let attributes = "; Path=/cabinet; Max-Age=43200; HttpOnly; SameSite=Lax";
    assert!(set[0].ends_with(attributes), "{set:?}");
    let page = anna.get(world, "/cabinet").await;
    for (name, value) in [
        ("cache-control", "no-store"),
        ("x-frame-options", "DENY"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "same-origin"),
    ] {
        assert_eq!(page.headers[name], value);
    }
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("script-src"));
    assert!(!page.text().contains("<script"), "{page:?}");
    assert!(page.text().contains("1,000.00 ₽"), "{page:?}");

    let mut elsewhere = office.signed_in(ANNA).await;
    anna.page(world, "/cabinet").await;
    let everywhere = [("everywhere", "1")];
    let left = anna.post(world, "/cabinet/sign-out", &everywhere).await;
    assert_eq!(left.headers["location"], "/cabinet/sign-in");
    assert_eq!(elsewhere.get(world, "/cabinet").await.status, 303);
}

#[tokio::test]
async fn session_cookie_set_over_tls_is_sent_over_tls_only() {
    let office = Office::start().await;
    let mut anna = Browser::default();
    let https = [("x-forwarded-proto", "https")];
    let page = anna.send(&office.world, Method::GET, "/cabinet/sign-in", &https, &[]);
    let page = page.await;
    assert!(cookies(&page)[0].ends_with("; Secure"), "{page:?}");
}

#[tokio::test]
async fn sign_in_link_works_once_and_only_in_the_browser_that_requested_it() {
    let office = Office::start().await;
    let world = &office.world;
    let mut anna = Browser::default();
    let link = office.link(&mut anna, ANNA).await;
    // The mail provider's link scanner opens the link without a cookie, and a thief opens it in a browser with another
    // cookie. Neither signs in.
    let mut thief = Browser::default();
    assert_eq!(thief.enter(world, &link).await.status, 403);
    thief.page(world, "/cabinet/sign-in").await;
    assert_eq!(thief.enter(world, &link).await.status, 403);
    let (_, token) = link.split_once("token=").unwrap();
    let pairs = [("token", token)];
    let enter = "/cabinet/enter";
    thief.send_form(world, enter, &pairs).await.expect(403);
    let foreign = [("origin", "https://evil.example")];
    let mut anna_elsewhere = anna.clone();
    let answer = anna_elsewhere.send(world, Method::POST, enter, &foreign, &pairs);
    answer.await.expect(403);

    let mut replay = anna.clone();
    assert_eq!(anna.get(world, &link).await.status, 200);
    assert_eq!(anna.enter(world, &link).await.status, 303);
    assert_eq!(replay.enter(world, &link).await.status, 403);
    for token in ["", "x", "member-.x", "member-000000000000000000000000.0"] {
        let path = format!("/cabinet/enter?token={token}");
        assert_eq!(replay.enter(world, &path).await.status, 403, "{token}");
    }
}

#[tokio::test]
async fn session_cookie_planted_before_sign_in_is_replaced_at_sign_in() {
    let office = Office::start().await;
    let world = &office.world;
    let mut anna = office.signed_in(ANNA).await;
    let before = anna.cookies["tollgate_cabinet"].clone();
    let link = office.link(&mut anna, ANNA).await;
    assert_eq!(anna.enter(world, &link).await.status, 303);
    assert_ne!(anna.cookies["tollgate_cabinet"], before);
    for planted in [&*before, "member-000000000000000000000000.planted", "x"] {
        let mut thief = Browser::default();
        let name = "tollgate_cabinet".to_owned();
        thief.cookies.insert(name, planted.to_owned());
        assert_eq!(thief.get(world, "/cabinet").await.status, 303, "{planted}");
    }
    // If the browser's cookie was not set by the gateway, the gateway replaces it.
    let mut planted = Browser::default();
    let name = "tollgate_cabinet_browser".to_owned();
    planted.cookies.insert(name, "planted".to_owned());
    let mail = [("mail", ANNA)];
    let answer = planted.send_form(world, "/cabinet/sign-in", &mail).await;
    answer.expect(403);
}

#[tokio::test]
async fn sign_in_answer_does_not_reveal_whether_an_email_address_is_known() {
    // The mail server accepts connections and sends nothing. If the response waited for the mail server, it would never
    // arrive.
    let silent = Fake::<Mail>::start(async |stream, _| {
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    let world = with_mail(silent.port, "").start().await;
    world.key().await;
    let body = json!({ "mail": ANNA, "role": "owner" });
    let path = "/admin/v1/accounts/acme/members";
    world.admin_post(path, body).await;
    let mut answers = Vec::new();
    for mail in [ANNA, "eve@evil.example"] {
        let answer = Browser::default().ask_link(&world, mail).await;
        let mut names: Vec<_> = answer.headers.keys().map(ToString::to_string).collect();
        names.sort();
        let text = answer.text().replace(mail, "MAIL");
        answers.push((answer.status, names, text));
    }
    assert_eq!(answers[0], answers[1]);
    let documents = world.gateway.store().documents("person/").await.unwrap();
    assert_eq!(documents.len(), 1, "nothing is stored about a stranger");
}

#[tokio::test]
async fn sign_in_requests_send_at_most_three_emails_and_none_to_strangers() {
    let proxies = "trusted_proxies = [\"127.0.0.1\"]\nbase_url =";
    let office = Office::empty(|setup| setup.edit("base_url =", proxies), "").await;
    office.world.key().await;
    office.member("acme", ANNA, "owner").await;
    let browser = |number: usize| Browser {
        address: Some(format!("192.0.2.{number}")),
        ..Browser::default()
    };
    // Requests from many client addresses name the same email address.
    for number in 0..30 {
        for mail in [ANNA, "eve@evil.example"] {
            let answer = browser(number).ask_link(&office.world, mail).await;
            answer.expect(200);
        }
    }
    office.mails.has(3).await;
    // Requests from one client address name many email addresses.
    let mut last = None;
    for number in 0..11 {
        let mail = format!("user{number}@acme.example");
        last = Some(browser(99).ask_link(&office.world, &mail).await);
    }
    let last = last.unwrap();
    assert_eq!(last.status, 429, "{last:?}");
    assert!(last.headers.contains_key("retry-after"));
    // The email to this member is the last one, so all earlier requests were processed before it.
    office.member("acme", FINN, "finance").await;
    office.link(&mut browser(100), FINN).await;
    assert_eq!(office.mails.came.lock().unwrap().len(), 4);
}

#[tokio::test]
async fn cabinet_form_from_another_origin_or_without_the_csrf_token_is_refused() {
    let office = Office::start().await;
    let world = &office.world;
    let mut anna = office.signed_in(ANNA).await;
    let keys = world.admin_get("/admin/v1/accounts/acme/keys").await.json();
    let key = format!("/cabinet/keys/{}", keys["keys"][0]["id"].as_str().unwrap());
    let member = office.member("acme", DAVE, "developer").await;
    let member = member["id"].as_str().unwrap();
    let put = [
        ("do", "put"),
        ("mail", "eve@evil.example"),
        ("role", "owner"),
    ];
    let remove = [("do", "remove"), ("member", member), ("sure", "1")];
    let forms: [(&str, &[(&str, &str)]); 9] = [
        ("/cabinet/keys", &[("name", "forged")]),
        (&key, &[("do", "disable")]),
        (&key, &[("do", "delete"), ("sure", "1")]),
        (&key, &[("do", "limits"), ("ceiling_rub", "1")]),
        ("/cabinet/members", &put),
        ("/cabinet/members", &remove),
        ("/cabinet/payments", &[("do", "pay"), ("amount_rub", "100")]),
        ("/cabinet/account", &[("account", "acme")]),
        ("/cabinet/sign-out", &[("everywhere", "1")]),
    ];
    let csrf = anna.csrf.clone();
    let wrong = "0".repeat(csrf.len());
    for (path, pairs) in forms {
        for (headers, token) in [
            (&[][..], ""),
            (&[], &*wrong),
            (&[("origin", "https://evil.example")], &*csrf),
            (&[("origin", "null")], &*csrf),
            (&[("sec-fetch-site", "cross-site")], &*csrf),
            (&[("sec-fetch-site", "same-site")], &*csrf),
        ] {
            let mut all = vec![("csrf", token)];
            all.extend_from_slice(pairs);
            let answer = anna.send(world, Method::POST, path, headers, &all).await;
            assert_eq!(answer.status, 403, "{path} {headers:?} {answer:?}");
        }
        // A GET request with the fields of the form changes nothing.
        let query = format!("{path}?csrf={csrf}&{}", form(pairs));
        anna.get(world, &query).await;
    }
    let after = world.admin_get("/admin/v1/accounts/acme/keys").await;
    assert_eq!(after.json(), keys);
    let members = world.admin_get("/admin/v1/accounts/acme/members").await;
    assert_eq!(members.json()["members"].as_array().unwrap().len(), 3);
    anna.page(world, "/cabinet").await;
}

#[tokio::test]
async fn cabinet_enforces_the_members_role_on_every_page_and_form() {
    let office = Office::start().await;
    let world = &office.world;
    let mut anna = office.signed_in(ANNA).await;
    let mut finn = office.signed_in(FINN).await;
    let mut dave = office.signed_in(DAVE).await;
    for (path, statuses) in [
        ("/cabinet", [200, 200, 200]),
        ("/cabinet/spending", [200, 200, 200]),
        ("/cabinet/calls", [200, 200, 200]),
        ("/cabinet/keys", [200, 200, 200]),
        ("/cabinet/payments", [200, 200, 403]),
        ("/cabinet/statements", [200, 200, 403]),
        ("/cabinet/members", [200, 403, 403]),
        ("/cabinet/account", [404, 404, 404]),
        ("/cabinet/no-such-page", [404, 404, 404]),
    ] {
        for (browser, status) in [&mut anna, &mut finn, &mut dave].into_iter().zip(statuses) {
            assert_eq!(browser.get(world, path).await.status, status, "{path}");
        }
    }
    let month = &finn.page(world, "/cabinet/statements").await;
    let (_, month) = month.split_once("/cabinet/statements/20").unwrap();
    let month = format!("/cabinet/statements/20{}", &month[..5]);
    for file in ["pdf", "csv"] {
        let path = format!("{month}.{file}");
        let got = finn.get(world, &path).await.expect(200);
        let disposition = got.headers["content-disposition"].to_str().unwrap();
        assert!(disposition.contains(&format!(".{file}\"")), "{disposition}");
        assert_eq!(dave.get(world, &path).await.status, 403);
    }
    let key = [("name", "mine"), ("do", "")];
    let payment = [("do", "pay"), ("amount_rub", "100")];
    let member = [("do", "put"), ("mail", "e@x.example")];
    let account = [("account", "other"), ("do", "")];
    for (browser, path, pairs, status) in [
        (&finn, "/cabinet/keys", key, 403),
        (&dave, "/cabinet/keys", key, 200),
        (&dave, "/cabinet/payments", payment, 403),
        (&dave, "/cabinet/members", member, 403),
        (&finn, "/cabinet/members", member, 403),
        (&finn, "/cabinet/account", account, 403),
    ] {
        let answer = browser.clone().post(world, path, &pairs).await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
    }
    // The member's role is read at each request, so a changed role applies to open sessions.
    office.member("acme", FINN, "developer").await;
    assert_eq!(finn.get(world, "/cabinet/payments").await.status, 403);
    let member = office.member("acme", DAVE, "developer").await;
    let id = member["id"].as_str().unwrap();
    let gone = format!("/admin/v1/accounts/acme/members/{id}");
    assert_eq!(world.admin(Method::DELETE, &gone, None).await.status, 200);
    assert_eq!(dave.get(world, "/cabinet").await.status, 303);
}

#[tokio::test]
async fn owner_manages_members_and_the_last_owner_cannot_be_removed() {
    let office = Office::start().await;
    let world = &office.world;
    let mut anna = office.signed_in(ANNA).await;
    let put =
        |mail: &'static str, role: &'static str| [("do", "put"), ("mail", mail), ("role", role)];
    for (mail, role) in [
        ("not an address", "owner"),
        ("x@acme.example", "root"),
        (EVIL, "owner"),
        (ANNA, "finance"),
    ] {
        let refused = anna.post(world, "/cabinet/members", &put(mail, role)).await;
        assert_eq!(refused.status, 422, "{mail}: {refused:?}");
        assert!(!refused.text().contains("<img"), "{refused:?}");
    }
    let members = "/cabinet/members";
    let zoe = put("zoe@acme.example", "owner");
    let html = anna.done(world, members, &zoe).await;
    has(&html, "zoe@acme.example");
    has(&html, "Saved.");
    let id = office.member("acme", ANNA, "owner").await["id"].clone();
    let id = id.as_str().unwrap();
    let remove = [("do", "remove"), ("member", id)];
    anna.post(world, members, &remove).await.expect(422);
    let remove = [("do", "remove"), ("member", id), ("sure", "1")];
    anna.post(world, members, &remove).await.expect(303);
    assert_eq!(anna.get(world, "/cabinet").await.status, 303, "signed out");
}

#[tokio::test]
async fn member_cannot_access_the_keys_or_the_calls_or_the_money_of_another_account() {
    let office = Office::start().await;
    let world = &office.world;
    let named = json!({ "name": "theirs" });
    let theirs = world.key_with("beta", "777", named).await;
    let secret = chat_body("a secret of beta");
    let number = world.chat(&theirs, &secret).await.number();
    world.receipt(&number).await;
    let unknown = json!({ "model": "no-such-model-of-beta", "messages": [] });
    world.chat(&theirs, &unknown).await;
    let mut anna = office.signed_in(ANNA).await;
    let key = format!("/cabinet/keys/{}", theirs.id);
    assert_eq!(anna.get(world, &key).await.status, 404);
    for pairs in [
        &[("do", "disable")][..],
        &[("do", "delete"), ("sure", "1")],
        &[("do", "limits"), ("ceiling_rub", "1")],
    ] {
        assert_eq!(anna.post(world, &key, pairs).await.status, 404, "{pairs:?}");
    }
    let call = format!("/cabinet/calls/{number}");
    assert_eq!(anna.get(world, &call).await.status, 404);
    let pairs = [("account", "beta")];
    let answer = anna.post(world, "/cabinet/account", &pairs).await;
    answer.expect(403);
    for page in [
        "",
        "/spending",
        "/calls",
        "/keys",
        "/payments",
        "/statements",
    ] {
        let query = format!("/cabinet{page}?account=beta&key={}", theirs.id);
        let html = anna.page(world, &query).await;
        for text in [&*theirs.id, "777", "of-beta"] {
            assert!(!html.contains(text), "{page}: {text} in {html}");
        }
    }
    assert_eq!(world.chat(&theirs, &chat_body("x")).await.status, 200);

    // A member of two accounts sees each account after choosing it.
    office.member("beta", ANNA, "developer").await;
    let html = anna.done(world, "/cabinet/account", &pairs).await;
    has(&html, "Developer, beta");
    assert!(html.contains("777") || html.contains("776"), "{html}");
    assert_eq!(anna.get(world, "/cabinet/payments").await.status, 403);
    assert_eq!(anna.get(world, &call).await.status, 200);
}

#[tokio::test]
async fn cabinet_escapes_html_in_names_and_values() {
    let office = Office::start().await;
    let world = &office.world;
    let rename = json!({ "name": EVIL });
    world.admin_patch("/admin/v1/accounts/acme", rename).await;
    let key = world.another_key("acme", json!({ "name": EVIL })).await;
    let mut bad = chat_body("x");
    bad["model"] = EVIL.into();
    world.chat(&key, &bad).await;
    let mut anna = office.signed_in(ANNA).await;
    let evil = encoded(EVIL);
    let mut pages = Vec::new();
    for path in [
        "/cabinet".to_owned(),
        format!("/cabinet/keys?done={evil}"),
        format!("/cabinet/keys/{}", key.id),
        format!("/cabinet/spending?days={evil}"),
        format!("/cabinet/members?mail={evil}"),
        "/cabinet/calls".to_owned(),
        format!("/cabinet/calls?after={evil}"),
        format!("/cabinet/calls/{evil}"),
        format!("/cabinet/keys/{evil}"),
        format!("/cabinet/statements?month={evil}"),
        format!("/cabinet/statements/{evil}.pdf"),
        format!("/cabinet/enter?token={evil}"),
        format!("/cabinet/sign-in?mail={evil}&language={evil}"),
        format!("/cabinet/{evil}"),
    ] {
        pages.push(anna.get(world, &path).await);
    }
    for pairs in [
        [("name", EVIL), ("models", EVIL)],
        [("name", EVIL), ("ceiling_rub", EVIL)],
    ] {
        pages.push(anna.post(world, "/cabinet/keys", &pairs).await);
    }
    let mail = [("mail", EVIL)];
    let sign_in = "/cabinet/sign-in";
    pages.push(anna.send_form(world, sign_in, &mail).await);
    let pay = [("do", "pay"), ("amount_rub", EVIL), ("email", EVIL)];
    pages.push(anna.post(world, "/cabinet/payments", &pay).await);
    let mut shown = 0;
    for page in pages {
        let html = page.text();
        assert!(!html.contains("<img"), "{html}");
        assert!(page.status.as_u16() < 500, "{page:?}");
        shown += usize::from(html.contains("img src=x"));
    }
    assert!(shown >= 4, "{shown} pages show the name as text");
}

/// Members with the role owner or finance get invoices of their own account. Fields that name another account or date
/// change nothing.
#[tokio::test]
async fn owner_and_finance_members_get_invoices_for_their_own_account_only() {
    let office = Office::empty(with_seller, "").await;
    let world = &office.world;
    office.staff().await;
    let other = json!({ "id": "other", "name": "Other" });
    world.admin_post("/admin/v1/accounts", other).await;
    let path = "/cabinet/payments/invoice?amount_rub=1%C2%A0000,50";
    for mail in [ANNA, FINN] {
        let mut browser = office.signed_in(mail).await;
        let page = browser.page(world, "/cabinet/payments").await;
        has(&page, "action=\"/cabinet/payments/invoice\"");
        let attack = format!("{path}&format=html&account=other&date=2020-01-01");
        let invoice = browser.get(world, &attack).await;
        let html = invoice.text();
        has(&html, "acme-20");
        has(&html, "-100050");
        assert!(!html.contains("other") && !html.contains("2020"), "{html}");
        let pdf = browser.get(world, path).await;
        assert!(pdf.body.starts_with(b"%PDF-1."), "{pdf:?}");
        for amount in ["", "0", "-1", "0.001", "1,000", "%3Cb%3E"] {
            let bad = format!("/cabinet/payments/invoice?amount_rub={amount}");
            let refused = browser.get(world, &bad).await;
            assert_eq!(refused.status, 400, "{amount}: {refused:?}");
            assert!(!refused.text().contains("<b>"), "{refused:?}");
        }
        let elsewhere = "/cabinet/payments/invoice/other?amount_rub=1";
        assert_eq!(browser.get(world, elsewhere).await.status, 404);
    }
    let mut dave = office.signed_in(DAVE).await;
    assert_eq!(dave.get(world, path).await.status, 403);
    assert_eq!(Browser::default().get(world, path).await.status, 303);

    let without = Office::start().await;
    let mut anna = without.signed_in(ANNA).await;
    let page = anna.page(&without.world, "/cabinet/payments").await;
    assert!(!page.contains("/cabinet/payments/invoice"), "{page}");
    assert_eq!(anna.get(&without.world, path).await.status, 404);
}

#[tokio::test]
async fn cabinet_never_redirects_to_another_site() {
    let office = Office::start().await;
    let world = &office.world;
    let evil = "https://evil.example/";
    let mut anna = Browser::default();
    let mut all = Vec::new();
    let query = format!("?next={0}&to={0}&return={0}&url={0}", encoded(evil));
    for path in ["/cabinet", "/cabinet/keys", "/cabinet//evil.example"] {
        all.push(anna.get(world, &format!("{path}{query}")).await);
    }
    let link = office.link(&mut anna, ANNA).await;
    all.push(anna.enter(world, &link).await);
    anna.page(world, "/cabinet").await;
    let disable = [("do", "disable"), ("next", evil)];
    for (path, pairs) in [
        ("/cabinet/account", [("account", "acme"), ("next", evil)]),
        ("/cabinet/keys//evil.example", disable),
        ("/cabinet/sign-out", [("to", evil), ("next", evil)]),
    ] {
        all.push(anna.post(world, &format!("{path}{query}"), &pairs).await);
    }
    let mut redirects = 0;
    for answer in all {
        let Some(to) = answer.headers.get("location") else {
            continue;
        };
        redirects += 1;
        let to = to.to_str().unwrap();
        assert!(to.starts_with("/cabinet") && !to.contains("evil"), "{to}");
    }
    assert!(redirects >= 5, "{redirects}");
}

#[tokio::test]
async fn member_can_create_and_restrict_and_delete_keys_and_see_the_cost_of_calls() {
    let office = Office::start().await;
    let world = &office.world;
    let mut dave = office.signed_in(DAVE).await;
    let wrong = [("name", "ci"), ("models", "no-such-model")];
    let refused = dave.post(world, "/cabinet/keys", &wrong).await.expect(404);
    has(&refused.text(), "value=\"ci\""); // the form keeps what was typed
    let new = [
        ("name", "ci"),
        ("ceiling_rub", "1 000,50"),
        ("models", "chat"),
    ];
    let made = dave.post(world, "/cabinet/keys", &new).await.expect(200);
    let html = made.text();
    let text = |begin: &str| {
        let (_, after) = html.split_once(begin).unwrap();
        after.split(['<', '"']).next().unwrap().to_owned()
    };
    let key = Key {
        secret: text("<code id=\"secret\">"),
        id: text("href=\"/cabinet/keys/"),
        account: "acme".into(),
    };
    let prompt = chat_body("a secret prompt");
    let answer = world.chat(&key, &prompt).await.expect(200);
    let receipt = world.receipt(&answer.number()).await;
    let path = format!("/cabinet/keys/{}", key.id);
    let page = dave.page(world, &path).await;
    assert!(!page.contains(&key.secret), "{page}");
    has(&page, "value=\"1000.50\"");

    let call_page = format!("/cabinet/calls/{}", answer.number());
    let call = dave.page(world, &call_page).await;
    let input = receipt["usage"]["input"].as_u64().unwrap();
    has(&call, &format!("{input} × 100.00 ₽/million + "));
    let name = receipt["vendor"].as_str().unwrap();
    let shown = call.contains(name);
    assert!(!shown, "the vendor {name} is not shown: {call}");
    let calls = dave.page(world, "/cabinet/calls").await;
    has(&calls, &call_page);
    let spending = dave.page(world, "/cabinet/spending?days=7").await;
    has(&spending, &format!("<a href=\"{path}\">ci</a>"));

    let limits = [
        ("do", "limits"),
        ("name", "ci"),
        ("ceiling_rub", "0,000001"),
    ];
    let saved = dave.done(world, &path, &limits).await;
    assert!(saved.contains("Saved."), "{saved}");
    assert_eq!(world.chat(&key, &chat_body("x")).await.status, 401);
    let cause = eventually("the refusal is listed", async || {
        let html = dave.clone().page(world, "/cabinet/calls").await;
        html.contains("ceiling_used_up").then_some(html)
    })
    .await;
    has(&cause, "The key’s spending limit was used up.");

    dave.done(world, &path, &[("do", "disable")]).await;
    assert_eq!(world.chat(&key, &chat_body("x")).await.status, 401);
    dave.done(world, &path, &[("do", "enable")]).await;
    let unsure = [("do", "delete")];
    dave.post(world, &path, &unsure).await.expect(400);
    let gone = [("do", "delete"), ("sure", "1")];
    let keys = dave.done(world, &path, &gone).await;
    assert!(!keys.contains(&key.id), "{keys}");

    // Neither the pages nor the ledger's documents contain the prompt.
    for html in [call, calls, spending, cause] {
        assert!(!html.contains("a secret prompt"), "{html}");
    }
    for document in world.gateway.store().documents("").await.unwrap() {
        assert!(!document.text.contains("a secret prompt"), "{document:?}");
    }
}

#[tokio::test]
async fn cabinet_of_an_empty_account_shows_the_next_step() {
    let office = Office::start().await;
    let world = &office.world;
    let body = json!({ "id": "poor", "name": "Poor" });
    world.admin_post("/admin/v1/accounts", body).await;
    for (role, says) in [
        ("owner", "Pay the seller and state the account ID poor"),
        ("developer", "Ask an account owner to top up the balance"),
    ] {
        let mail = format!("{role}@poor.example");
        office.member("poor", &mail, role).await;
        let mut browser = office.signed_in(&mail).await;
        let html = browser.page(world, "/cabinet").await;
        has(&html, says);
        has(&html, "Create a key");
    }
    let mut russian = Browser::default();
    let html = russian.page(world, "/cabinet/sign-in?language=ru").await;
    has(&html, "Отправить ссылку");
    has(&html, "lang=\"ru\"");
}

async fn code(world: &World, fields: Value) -> String {
    let made = world.admin_post("/admin/v1/codes", fields).await;
    made.expect(200).json()["code"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn stranger_can_open_an_account_only_with_an_invitation() {
    let terms = "terms_url = \"https://shop.example/terms\"";
    let office = Office::empty(|setup| setup, terms).await;
    let world = &office.world;
    let fields = json!({ "amount_rub": "100", "opens_account": true });
    let invitation = code(world, fields).await;
    let mut zoe = Browser::default();
    let page = zoe.page(world, "/cabinet/sign-up").await;
    assert!(page.contains("https://shop.example/terms"), "{page}");
    let form = |mail: &'static str, code: &str, terms: &'static str| {
        let name = format!("{EVIL} & Co");
        [
            ("mail", mail.to_owned()),
            ("name", name),
            ("code", code.to_owned()),
            ("terms", terms.to_owned()),
        ]
    };
    let send = async |browser: &mut Browser, fields: &[(&str, String); 4]| {
        let pairs: Vec<_> = fields.iter().map(|(name, text)| (*name, &**text)).collect();
        let path = "/cabinet/sign-up";
        browser.send_form(world, path, &pairs).await
    };
    for (mail, typed, terms) in [
        ("zoe", &*invitation, "1"),
        ("zoe@new.example", "", "1"),
        ("zoe@new.example", &*invitation, ""),
    ] {
        let refused = send(&mut zoe, &form(mail, typed, terms)).await.expect(422);
        assert!(!refused.text().contains("<img"), "{refused:?}");
    }
    // The response to a valid invitation is the same as the response to a guessed one, so it reveals nothing.
    let guess = send(&mut zoe, &form("zoe@new.example", "AAAAA-AAAAA", "1")).await;
    let sent = send(&mut zoe, &form("zoe@new.example", &invitation, "1")).await;
    assert_eq!((sent.status, sent.text()), (guess.status, guess.text()));
    let mails = office.mails.has(1).await;
    assert_eq!(mails.len(), 1);
    let link = link_in(&mails[0].1);
    assert!(link.starts_with("/cabinet/welcome?token="), "{link}");

    let mut thief = Browser::default();
    thief.page(world, "/cabinet/sign-in").await;
    assert_eq!(thief.enter(world, &link).await.status, 403);
    let mut replay = zoe.clone();
    assert_eq!(zoe.enter(world, &link).await.status, 303);
    assert_eq!(replay.enter(world, &link).await.status, 403);
    let html = zoe.page(world, "/cabinet").await;
    has(&html, "100.00 ₽");
    has(&html, "Create a key");
    assert!(!html.contains("<img"), "{html}");
    let accounts = world.admin_get("/admin/v1/accounts").await;
    assert_eq!(accounts.json()["accounts"].as_array().unwrap().len(), 1);

    // An account that uses the promo code twice is credited once.
    let promo = code(world, json!({ "amount_rub": "50" })).await;
    let spend = |typed: &str| [("do", "code".to_owned()), ("code", typed.to_owned())];
    for (typed, status, says) in [
        (&*promo, 303, ""),
        (&promo, 422, "has already used the promo code"),
        ("guess", 422, "not valid"),
        (&invitation, 422, "not valid"),
    ] {
        let pairs = spend(typed);
        let pairs: Vec<_> = pairs.iter().map(|(name, text)| (*name, &**text)).collect();
        let answer = zoe.post(world, "/cabinet/payments", &pairs).await;
        assert_eq!(answer.status, status, "{typed}: {answer:?}");
        assert!(answer.text().contains(says), "{typed}: {answer:?}");
    }
    let html = zoe.page(world, "/cabinet").await;
    assert!(html.contains("150.00 ₽"), "{html}");
}

#[tokio::test]
async fn sign_up_is_off_unless_the_operator_configures_terms() {
    let office = Office::start().await;
    let world = &office.world;
    let page = office.world.get("/cabinet/sign-in", &[]).await;
    assert!(!page.text().contains("sign-up"), "{page:?}");
    let mut eve = Browser::default();
    eve.page(world, "/cabinet/sign-in").await;
    assert_eq!(eve.get(world, "/cabinet/sign-up").await.status, 404);
    for path in ["/cabinet/sign-up", "/cabinet/welcome"] {
        let pairs = [("token", "000000000000000000000000.x"), ("terms", "1")];
        let answer = eve.send_form(world, path, &pairs).await;
        assert!([403, 404].contains(&answer.status.as_u16()), "{answer:?}");
    }
}
