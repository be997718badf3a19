//! Tests of events that are sent by email and to Telegram chats. A fake mail server and a fake Bot API run on real
//! sockets.

use std::sync::Mutex;

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Response;
use http_body_util::Full;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, split},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::Instant,
};

use crate::{
    prelude::*,
    proxies::{Authority, Vendor},
};

/// A fake server, and the messages that it has received.
pub(crate) struct Fake<T> {
    pub(crate) port: u16,
    pub(crate) came: Arc<Mutex<Vec<T>>>,
    _tasks: JoinSet<()>,
}

impl<T: Clone + Send + 'static> Fake<T> {
    /// Starts a fake server. `serve` is called for each connection, and adds the received messages to the shared list.
    pub(crate) async fn start<F: Future<Output = ()> + Send + 'static>(
        serve: impl Fn(TcpStream, Arc<Mutex<Vec<T>>>) -> F + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let came = Arc::<Mutex<Vec<T>>>::default();
        let (to, mut tasks) = (Arc::clone(&came), JoinSet::new());
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                open.spawn(serve(stream, Arc::clone(&to)));
            }
        });
        Self {
            port,
            came,
            _tasks: tasks,
        }
    }

    pub(crate) async fn has(&self, count: usize) -> Vec<T> {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let came = self.came.lock().unwrap().clone();
            if came.len() >= count {
                return came;
            }
            assert!(Instant::now() < until, "{} of {count} came", came.len());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// The recipients and the lines of an email. The fake server rejects the first email.
pub(crate) type Mail = (Vec<String>, String);

pub(crate) async fn smtp<S>(stream: S, mails: Arc<Mutex<Vec<Mail>>>)
where
    S: AsyncRead + AsyncWrite + Send,
{
    let (from, mut to) = split(stream);
    let mut lines = BufReader::new(from).lines();
    to.write_all(b"220 mail.example\r\n").await.unwrap();
    let (mut recipients, mut text) = (Vec::new(), None::<String>);
    while let Ok(Some(line)) = lines.next_line().await {
        let answer = match &mut text {
            Some(mail) if line == "." => {
                let mail = (std::mem::take(&mut recipients), std::mem::take(mail));
                text = None;
                let mut mails = mails.lock().unwrap();
                mails.push(mail);
                if mails.len() == 1 {
                    "451 not now\r\n"
                } else {
                    "250 taken\r\n"
                }
            }
            Some(mail) => {
                mail.push_str(line.strip_prefix('.').unwrap_or(&line));
                mail.push('\n');
                continue;
            }
            None => match line.split([' ', ':']).next().unwrap_or_default() {
                "EHLO" => "250-mail.example\r\n250 8BITMIME\r\n",
                "MAIL" => "250 ok\r\n",
                "RCPT" => {
                    recipients.push(line);
                    "250 ok\r\n"
                }
                "DATA" => {
                    text = Some(String::new());
                    "354 go on\r\n"
                }
                "QUIT" => "221 bye\r\n",
                _ => "250 ok\r\n",
            },
        };
        if to.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// The path and the body of a request to the Bot API. The fake server refuses the first request as one that comes too
/// early.
type Message = (String, Value);

async fn bot_api(mut stream: TcpStream, messages: Arc<Mutex<Vec<Message>>>) {
    loop {
        let mut bytes = Vec::new();
        let (head, body) = loop {
            if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return;
            }
            let text = String::from_utf8_lossy(&bytes);
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                continue;
            };
            if let Ok(body) = serde_json::from_str::<Value>(body) {
                break (head.to_owned(), body);
            }
        };
        let path = head.split(' ').nth(1).unwrap().to_owned();
        let first = {
            let mut messages = messages.lock().unwrap();
            messages.push((path, body));
            messages.len() == 1
        };
        let (status, body) = match first {
            true => (
                "429 Too Many Requests",
                json!({ "ok": false, "error_code": 429, "description": "Too Many Requests: retry after 2", "parameters": { "retry_after": 2 } }),
            ),
            false => (
                "200 OK",
                json!({ "ok": true, "result": { "message_id": 1 } }),
            ),
        };
        let body = body.to_string();
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn world(sections: &str) -> World {
    let sections = format!("{sections}[ledger]");
    let world = Setup::default().edit("[ledger]", &sections).start().await;
    for account in ["acme", "beta"] {
        let body = json!({ "id": account, "name": account });
        world.admin_post("/admin/v1/accounts", body).await;
    }
    world
}

async fn pay(world: &World, account: &str, rubles: &str) {
    let body = json!({ "id": "first", "amount_rub": rubles });
    let path = format!("/admin/v1/accounts/{account}/topups");
    world.admin_post(&path, body).await.expect(200);
}

fn header<'a>(mail: &'a str, name: &str) -> &'a str {
    let line = mail
        .lines()
        .find(|line| line.to_lowercase().starts_with(name));
    line.unwrap_or_else(|| panic!("no {name} in {mail}"))
}

#[tokio::test]
async fn events_are_mailed_in_russian_and_retried_until_accepted() {
    let server = Fake::<Mail>::start(smtp).await;
    let section = format!(
        "[[mail]]\nname = \"acme-mail\"\nserver = \"smtp://127.0.0.1:{}\"\nfrom = \"Tollgate <noreply@example.com>\"\n\
         to = [\"buh@acme.example\", \"ceo@acme.example\"]\naccounts = [\"acme\"]\n",
        server.port
    );
    let world = world(&section).await;
    pay(&world, "beta", "1").await;
    pay(&world, "acme", "1234.5").await;
    let mails = server.has(2).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(server.came.lock().unwrap().len(), 2, "one account's alone");
    let (to, mail) = &mails[1];
    assert_eq!(to.len(), 2, "{to:?}");
    assert!(to[0].contains("buh@acme.example"), "{to:?}");
    assert_eq!(
        header(&mails[0].1, "message-id:"),
        header(mail, "message-id:")
    );
    assert!(header(mail, "content-type:").contains("utf-8"), "{mail}");
    let (_, body) = mail.split_once("\n\n").unwrap();
    let body = match header(mail, "content-transfer-encoding:") {
        line if line.ends_with("base64") => {
            let text: String = body.split_whitespace().collect();
            String::from_utf8(STANDARD.decode(text).unwrap()).unwrap()
        }
        _ => body.to_owned(),
    };
    for reported in [
        "Платёж зачислен: 1\u{a0}234,50\u{a0}₽",
        "Счёт: acme",
        "Номер платежа: first",
    ] {
        assert!(body.contains(reported), "{reported}: {body}");
    }
}

#[tokio::test]
async fn event_is_sent_to_a_telegram_chat_that_admits_the_bot() {
    let api = Fake::<Message>::start(bot_api).await;
    let section = format!(
        "[[telegram]]\nname = \"ops\"\ntoken = \"${{BOT_TOKEN}}\"\nchat = \"-100123\"\nurl = \"http://127.0.0.1:{}\"\n",
        api.port
    );
    let world = world(&section).await;
    let began = Instant::now();
    pay(&world, "acme", "1").await;
    let messages = api.has(2).await;
    assert!(
        began.elapsed() >= Duration::from_millis(1900),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(messages[0], messages[1]);
    let (path, body) = &messages[1];
    assert_eq!(*path, format!("/bot{BOT_TOKEN}/sendMessage"));
    assert_eq!(body["chat_id"], "-100123");
    let text = body["text"].as_str().unwrap();
    assert!(
        text.starts_with("Платёж зачислен: 1,00\u{a0}₽.\nСчёт: acme\n"),
        "{text}"
    );
    let shown = world.admin_get("/admin/v1/receivers").await.json();
    assert_eq!(shown["receivers"][0]["way"], "telegram", "{shown}");
}

/// Returns the error that the API shows for the first receiver while the receiver's next attempt is due.
async fn error_of(world: &World) -> Value {
    let shown = world.admin_get("/admin/v1/receivers").await;
    shown.json()["receivers"][0]["error"].clone()
}

#[tokio::test]
async fn mail_server_certificate_must_be_signed_by_the_ca_file() {
    let (authority, other) = (Authority::new(), Authority::new());
    let acceptor = authority.acceptor(&[]);
    let server = Fake::<Mail>::start(move |stream, mails| {
        let acceptor = acceptor.clone();
        async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                smtp(stream, mails).await;
            }
        }
    })
    .await;
    for (ca_file, trusted) in [
        (String::new(), false),
        (other.file(), false),
        (authority.file(), true),
    ] {
        let section = format!(
            "[[mail]]\nname = \"acme-mail\"\nserver = \"smtps://127.0.0.1:{}\"\nca_file = \"{ca_file}\"\n\
             from = \"Tollgate <noreply@example.com>\"\nto = [\"buh@acme.example\"]\naccounts = [\"acme\"]\n",
            server.port
        );
        let world = world(&section).await;
        pay(&world, "acme", "1").await;
        if trusted {
            // The mail server rejects the first email, and the gateway sends it again.
            assert_eq!(server.has(2).await.len(), 2);
        } else {
            certificate_is_refused(&world).await;
            assert!(server.came.lock().unwrap().is_empty(), "{ca_file}");
        }
    }
}

async fn certificate_is_refused(world: &World) {
    eventually("the certificate is refused", async || {
        let error = error_of(world).await;
        let why = error.as_str()?;
        why.contains("certificate").then_some(())
    })
    .await;
}

#[tokio::test]
async fn webhook_and_bot_api_certificates_must_be_signed_by_their_ca_files() {
    let (authority, other) = (Authority::new(), Authority::new());
    for telegram in [false, true] {
        let taker = Vendor::secure(&authority, &[], |_| {
            Response::new(Full::new(Bytes::from_static(br#"{"ok":true}"#)))
        })
        .await;
        for (ca_file, trusted) in [
            (String::new(), false),
            (other.file(), false),
            (authority.file(), true),
        ] {
            let url = format!("https://{}", taker.address());
            let section = match telegram {
                true => format!(
                    "[[telegram]]\nname = \"ops\"\ntoken = \"${{BOT_TOKEN}}\"\nchat = \"-1\"\nurl = \"{url}\"\n\
                     ca_file = \"{ca_file}\"\n"
                ),
                false => format!(
                    "[[webhook]]\nname = \"crm\"\nurl = \"{url}/hook\"\nsecrets = [\"${{WEBHOOK_SECRET}}\"]\n\
                     allow_private = true\nca_file = \"{ca_file}\"\n"
                ),
            };
            let world = world(&section).await;
            pay(&world, "acme", "1").await;
            if trusted {
                eventually("it is taken", async || {
                    (!taker.taken().is_empty()).then_some(())
                })
                .await;
            } else {
                certificate_is_refused(&world).await;
                assert!(taker.taken().is_empty(), "{section}");
            }
        }
    }
}
