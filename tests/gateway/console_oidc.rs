//! Tests of the console sign-in with an OpenID provider. The provider in these tests is a fake that signs any token.

use std::{
    collections::HashMap,
    sync::Mutex,
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use http::header::SET_COOKIE;
use ring::{
    digest::{SHA256, digest},
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{console::Browser, prelude::*};

/// A fake OpenID provider: the requests that it has received, and its next responses.
struct Provider {
    port: u16,
    state: Arc<Mutex<State>>,
    _tasks: JoinSet<()>,
}

struct State {
    issuer: String,
    pair: EcdsaKeyPair,
    kid: u32,
    /// The codes that the provider has issued, each with its PKCE challenge and the OpenID claims of its token.
    codes: HashMap<String, (String, Value)>,
    requested: Vec<String>,
    auth: &'static str,
}

fn pair() -> EcdsaKeyPair {
    let (how, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
    let document = EcdsaKeyPair::generate_pkcs8(how, &random).unwrap();
    EcdsaKeyPair::from_pkcs8(how, document.as_ref(), &random).unwrap()
}

impl Provider {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State {
            issuer: format!("http://127.0.0.1:{port}"),
            pair: pair(),
            kid: 1,
            codes: HashMap::new(),
            requested: Vec::new(),
            auth: "client_secret_basic",
        }));
        let mut tasks = JoinSet::new();
        let shared = Arc::clone(&state);
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                open.spawn(serve(stream, Arc::clone(&shared)));
            }
        });
        Self {
            port,
            state,
            _tasks: tasks,
        }
    }

    fn setup(&self) -> Setup {
        let port = self.port;
        let section = format!(
            "[admin.oidc]\nissuer = \"http://127.0.0.1:{port}\"\nclient_id = \"tollgate\"\n\
             client_secret = \"${{VENDOR_KEY}}\"\nredirect_url = \"http://127.0.0.1:8081/console/oidc/back\"\n\
             scopes = [\"email\", \"groups\"]\n[admin.oidc.roles]\nadmin = [\"ops\"]\nread = [\"all\"]\n[ledger]"
        );
        Setup::default().edit("[ledger]", &section)
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap())
    }

    /// Signs a person in at the provider's page. Returns the URL that the provider redirects the browser to.
    fn agrees(&self, to: &str, change: &Value) -> String {
        let requested = query(to);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let mut claims = json!({
            "iss": self.with(|state| state.issuer.clone()), "aud": requested["client_id"], "sub": "1",
            "exp": now.as_secs() + 60, "nonce": requested["nonce"], "email": "anna@example.com",
            "email_verified": true, "groups": ["all", "ops"],
        });
        for (name, value) in change.as_object().unwrap() {
            claims[name] = value.clone();
        }
        let code = format!("code-{}", self.with(|state| state.codes.len()));
        let challenge = requested["code_challenge"].clone();
        self.with(|state| state.codes.insert(code.clone(), (challenge, claims)));
        format!(
            "/console/oidc/back?code={code}&state={}",
            requested["state"]
        )
    }
}

impl State {
    fn answer(&mut self, method: &str, path: &str, head: &str, body: &str) -> (u16, Value) {
        self.requested.push(format!("{method} {path}"));
        let issuer = &self.issuer;
        match path {
            "/.well-known/openid-configuration" => {
                let document = json!({
                    "issuer": issuer, "authorization_endpoint": format!("{issuer}/authorize"),
                    "token_endpoint": format!("{issuer}/token"), "jwks_uri": format!("{issuer}/keys"),
                    "end_session_endpoint": format!("{issuer}/end"),
                    "token_endpoint_auth_methods_supported": [self.auth],
                });
                (200, document)
            }
            "/keys" => {
                let (x, y) = self.pair.public_key().as_ref()[1..].split_at(32);
                let [x, y] = [x, y].map(|part| URL_SAFE_NO_PAD.encode(part));
                let kid = self.kid.to_string();
                let key = json!({ "kty": "EC", "crv": "P-256", "kid": kid, "x": x, "y": y });
                (200, json!({ "keys": [key] }))
            }
            "/token" => self.token(head, body),
            _ => (404, json!({})),
        }
    }

    /// Responds as the token endpoint of the provider. Checks the client's secret and the PKCE verifier, and that the
    /// code is unused.
    fn token(&mut self, head: &str, body: &str) -> (u16, Value) {
        let fields = query(&format!("?{body}"));
        let basic = STANDARD.encode(format!("tollgate:{VENDOR_KEY}"));
        let known = match self.auth {
            "client_secret_basic" => head.contains(&format!("authorization: Basic {basic}\r\n")),
            _ => fields["client_id"] == "tollgate" && fields["client_secret"] == VENDOR_KEY,
        };
        if !known {
            return (401, json!({ "error": "invalid_client" }));
        }
        let Some((challenge, claims)) = self.codes.remove(&fields["code"]) else {
            return (400, json!({ "error": "invalid_grant" }));
        };
        let verifier = digest(&SHA256, fields["code_verifier"].as_bytes());
        if URL_SAFE_NO_PAD.encode(verifier) != challenge
            || fields["redirect_uri"] != "http://127.0.0.1:8081/console/oidc/back"
        {
            return (400, json!({ "error": "invalid_grant" }));
        }
        let header = json!({ "alg": "ES256", "kid": self.kid.to_string() });
        let [header, claims] =
            [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let message = format!("{header}.{claims}");
        let signed = self
            .pair
            .sign(&SystemRandom::new(), message.as_bytes())
            .unwrap();
        let token = format!("{message}.{}", URL_SAFE_NO_PAD.encode(signed));
        (
            200,
            json!({ "id_token": token, "access_token": "x", "token_type": "Bearer" }),
        )
    }
}

async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>) {
    let Some((head, body)) = read_request(&mut stream).await else {
        return;
    };
    let mut first = head.split(' ');
    let (method, path) = (first.next().unwrap(), first.next().unwrap());
    let (status, answer) = state.lock().unwrap().answer(method, path, &head, &body);
    let answer = answer.to_string();
    let text = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{answer}",
        answer.len()
    );
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// Returns the fields in the query of a URL. An absent field is returned as an empty text.
fn query(url: &str) -> Fields {
    let pairs = url.split_once('?').unwrap().1.split('&');
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap());
    Fields(
        pairs
            .map(|(name, value)| {
                let mut parts = value.split('%');
                let mut text = parts.next().unwrap().to_owned();
                for part in parts {
                    text.push(char::from(u8::from_str_radix(&part[..2], 16).unwrap()));
                    text.push_str(&part[2..]);
                }
                (name.to_owned(), text)
            })
            .collect(),
    )
}

struct Fields(HashMap<String, String>);

impl std::ops::Index<&str> for Fields {
    type Output = String;

    fn index(&self, name: &str) -> &String {
        static NONE: String = String::new();
        self.0.get(name).unwrap_or(&NONE)
    }
}

fn location(answer: &Answer) -> String {
    assert_eq!(answer.status, 303, "{answer:?}");
    answer.headers["location"].to_str().unwrap().to_owned()
}

fn cookies(answer: &Answer) -> HashMap<String, String> {
    let set = answer.headers.get_all(SET_COOKIE).iter();
    set.map(|cookie| {
        let pair = cookie.to_str().unwrap().split(';').next().unwrap();
        let (name, value) = pair.split_once('=').unwrap();
        (name.to_owned(), value.to_owned())
    })
    .collect()
}

/// Begins a sign-in. Returns the URL that the browser is redirected to, and the browser with its cookies.
async fn sent(world: &World) -> (String, Browser) {
    let answer = Browser::default().get(world, "/console/oidc").await;
    let cookie = answer.headers[SET_COOKIE].to_str().unwrap();
    for part in [
        "Path=/console/oidc",
        "HttpOnly",
        "SameSite=Lax",
        "Max-Age=600",
    ] {
        assert!(cookie.split("; ").any(|given| given == part), "{cookie}");
    }
    let browser = Browser::with_cookie(cookie.split(';').next().unwrap());
    (location(&answer), browser)
}

async fn comes_back(world: &World, provider: &Provider, change: &Value) -> Answer {
    let (to, browser) = sent(world).await;
    browser.get(world, &provider.agrees(&to, change)).await
}

fn session(answer: &Answer) -> Browser {
    let cookies = cookies(answer);
    assert_eq!(cookies["tollgate_console_oidc"], "", "the way is over");
    Browser::with_cookie(&format!("tollgate_console={}", cookies["tollgate_console"]))
}

#[tokio::test]
async fn openid_sign_in_gives_the_role_of_the_operators_groups() {
    let provider = Provider::start().await;
    let world = provider.setup().start().await;
    let form = Browser::default().get(&world, "/console/sign-in").await;
    has(&form.text(), "href=\"/console/oidc\"");
    assert!(
        provider.with(|state| state.requested.is_empty()),
        "nobody is asked before"
    );

    let (to, browser) = sent(&world).await;
    let requested = query(&to);
    assert!(to.starts_with(&format!("http://127.0.0.1:{}/authorize?", provider.port)));
    for (name, value) in [
        ("response_type", "code"),
        ("client_id", "tollgate"),
        ("redirect_uri", "http://127.0.0.1:8081/console/oidc/back"),
        ("scope", "openid email groups"),
        ("code_challenge_method", "S256"),
    ] {
        assert_eq!(requested[name], value, "{name}");
    }
    let back = provider.agrees(&to, &json!({}));
    let answer = browser.get(&world, &back).await.expect(200);
    // The gateway answers with a page that redirects. After a redirect response, the browser would not send a same-site
    // cookie, because the provider's site started the request.
    assert!(
        answer
            .text()
            .contains("http-equiv=\"refresh\" content=\"0; url=/\"")
    );
    let me = session(&answer).in_session(&world).await;
    let html = me.page(&world, "/console/accounts").await;
    has(&html, "oidc:anna@example.com <small>admin</small>");
    me.done(
        &world,
        "/console/accounts",
        &[("id", "acme"), ("name", "Acme")],
    )
    .await;

    let answer = comes_back(
        &world,
        &provider,
        &json!({ "groups": ["all"], "email": "boris@example.com" }),
    )
    .await;
    let reader = session(&answer).in_session(&world).await;
    reader
        .post(&world, "/console/accounts", &[("id", "beta")])
        .await
        .expect(403);

    // A code is accepted once, and only from the browser that began the sign-in.
    let again = browser.get(&world, &back).await;
    assert_eq!((again.status.as_u16(), cookies(&again).len()), (403, 0));
    let (to, _) = sent(&world).await;
    let (_, other) = sent(&world).await;
    let stolen = provider.agrees(&to, &json!({}));
    let tokens = provider.with(|state| state.requested.len());
    for browser in [&other, &Browser::default()] {
        let answer = browser.get(&world, &stolen).await;
        assert_eq!((answer.status.as_u16(), cookies(&answer).len()), (400, 0));
    }
    assert_eq!(
        provider.with(|state| state.requested.len()),
        tokens,
        "nothing is asked for them"
    );

    let left = me.post(&world, "/console/sign-out", &[]).await;
    assert_eq!(location(&left), "/console/sign-in?left=oidc");
    assert_eq!(me.get(&world, "/").await.status, 303);
    let html = me.page(&world, "/console/sign-in?left=oidc").await;
    assert!(html.contains("/console/oidc/out"), "{html}");
    let out = me.get(&world, "/console/oidc/out").await;
    let end = format!("http://127.0.0.1:{}/end?client_id=tollgate", provider.port);
    assert_eq!(location(&out), end);
}

#[tokio::test]
async fn rotated_openid_key_is_fetched_and_the_client_secret_may_be_sent_in_the_body() {
    let provider = Provider::start().await;
    provider.with(|state| state.auth = "client_secret_post");
    let world = provider.setup().start().await;
    assert_eq!(comes_back(&world, &provider, &json!({})).await.status, 200);
    provider.with(|state| {
        state.pair = pair();
        state.kid = 2;
    });
    assert_eq!(comes_back(&world, &provider, &json!({})).await.status, 200);
    let keys = provider.with(|state| {
        state
            .requested
            .iter()
            .filter(|path| *path == "GET /keys")
            .count()
    });
    assert_eq!(keys, 2, "once, and once more for the new key");
    // The token names the provider's key but was signed with an unknown key, so it is refused.
    provider.with(|state| state.pair = pair());
    let answer = comes_back(&world, &provider, &json!({})).await;
    assert_eq!((answer.status.as_u16(), cookies(&answer).len()), (403, 0));
}

#[tokio::test]
async fn refusal_of_an_openid_sign_in_with_faulty_tokens_names_the_setting_to_check() {
    let provider = Provider::start().await;
    let world = provider.setup().start().await;
    for (change, status, says) in [
        (json!({ "nonce": "other" }), 403, "admin.oidc.issuer"),
        (json!({ "aud": "other" }), 403, "admin.oidc.issuer"),
        (json!({ "exp": 1 }), 403, "admin.oidc.issuer"),
        (json!({ "groups": ["guests"] }), 403, "admin.oidc.roles"),
    ] {
        let answer = comes_back(&world, &provider, &change).await;
        assert_eq!(answer.status.as_u16(), status, "{change}");
        assert_eq!(cookies(&answer).len(), 0, "{change}");
        assert!(answer.text().contains(says), "{change}: {}", answer.text());
    }
}

/// Any web page can make an operator's browser send this request. So the request must not count as one of the guesses
/// that the operator may make.
#[tokio::test]
async fn unsolicited_openid_callback_does_not_count_as_an_admin_key_guess() {
    let provider = Provider::start().await;
    let world = provider.setup().start().await;
    for _ in 0..30 {
        Browser::default()
            .get(&world, "/console/oidc/back?state=x&code=y")
            .await
            .expect(400);
    }
    Browser::admin(&world).await;
}

#[tokio::test]
async fn error_names_an_openid_provider_that_is_unreachable_or_has_another_issuer() {
    let provider = Provider::start().await;
    let issuer =
        provider.with(|state| std::mem::replace(&mut state.issuer, "http://evil.example".into()));
    let world = provider.setup().start().await;
    let answer = Browser::default()
        .get(&world, "/console/oidc")
        .await
        .expect(502);
    has(&answer.text(), "admin.oidc.issuer");
    provider.with(|state| state.issuer = issuer);
    sent(&world).await;
    drop(provider);
    let admin = Browser::admin(&world).await;
    assert_eq!(
        admin.get(&world, "/").await.status,
        200,
        "the admin key still opens"
    );
}

#[tokio::test]
async fn openid_page_is_404_without_a_configured_provider() {
    let world = World::start().await;
    let html = Browser::default()
        .get(&world, "/console/sign-in")
        .await
        .text();
    assert!(!html.contains("oidc"), "{html}");
    let url = format!(
        "http://{}/console/oidc",
        world.gateway.admin_address().unwrap()
    );
    let answer = world.ask(request(Method::GET, &url, &[], "".into())).await;
    assert_eq!(location(&answer), "/console/sign-in");
}
