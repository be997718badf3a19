//! Signs a member in to the customers' portal by an emailed link.

use std::collections::BTreeMap;

use anyhow::Context as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Full};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpListener,
};

use crate::requested::HttpClient;

/// The email address of the member.
pub(crate) const MEMBER: &str = "member@bench.example";

/// Requests a sign-in link, opens it, and returns the value of the header `cookie`. `origin` is the gateway's address
/// for callers, `mails` receives the gateway's emails.
pub(crate) async fn sign_in(
    client: &HttpClient,
    origin: &str,
    mails: &TcpListener,
) -> anyhow::Result<String> {
    let mut browser = Browser {
        client,
        origin,
        cookies: BTreeMap::new(),
    };
    browser.get("/cabinet/sign-in").await?;
    let body = format!("mail={MEMBER}");
    let (sent, mail) = tokio::join!(browser.post("/cabinet/sign-in", body), received(mails));
    sent?;
    let link = link_in(&mail?)?;
    let (path, token) = link.split_once("?token=").context("the link has a token")?;
    browser.get(&link).await?;
    browser.post(path, format!("token={token}")).await?;
    Ok(browser.cookie())
}

struct Browser<'a> {
    client: &'a HttpClient,
    origin: &'a str,
    cookies: BTreeMap<String, String>,
}

impl Browser<'_> {
    async fn get(&mut self, path: &str) -> anyhow::Result<()> {
        self.send(
            Request::get(format!("{}{path}", self.origin)),
            String::new(),
        )
        .await
    }

    async fn post(&mut self, path: &str, body: String) -> anyhow::Result<()> {
        let form = "application/x-www-form-urlencoded";
        let req =
            Request::post(format!("{}{path}", self.origin)).header(header::CONTENT_TYPE, form);
        self.send(req, body).await
    }

    async fn send(&mut self, req: http::request::Builder, body: String) -> anyhow::Result<()> {
        let req = req.header(header::COOKIE, self.cookie());
        let res = self.client.request(req.body(Full::from(body))?).await?;
        let status = res.status();
        anyhow::ensure!(
            !status.is_client_error() && !status.is_server_error(),
            "{status}"
        );
        for cookie in res.headers().get_all(header::SET_COOKIE) {
            let cookie = cookie.to_str()?.split(';').next().unwrap_or_default();
            let (name, value) = cookie.split_once('=').context("a cookie has a name")?;
            self.cookies.insert(name.to_owned(), value.to_owned());
        }
        let _: Bytes = res.into_body().collect().await?.to_bytes();
        Ok(())
    }

    fn cookie(&self) -> String {
        let cookies = self.cookies.iter().filter(|(_, value)| !value.is_empty());
        let cookies: Vec<String> = cookies
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        cookies.join("; ")
    }
}

/// Receives one email by SMTP (RFC 5321), and returns its lines.
async fn received(mails: &TcpListener) -> anyhow::Result<String> {
    let (mut stream, _) = mails.accept().await?;
    let (from, mut to) = stream.split();
    let mut lines = BufReader::new(from).lines();
    to.write_all(b"220 bench\r\n").await?;
    let mut mail = String::new();
    let mut in_data = false;
    while let Some(line) = lines.next_line().await? {
        let reply: &[u8] = match (in_data, &*line) {
            (true, ".") => {
                to.write_all(b"250 taken\r\n").await?;
                return Ok(mail);
            }
            (true, line) => {
                mail.push_str(line);
                mail.push('\n');
                continue;
            }
            (false, "DATA") => {
                in_data = true;
                b"354 go on\r\n"
            }
            (false, _) => b"250 ok\r\n",
        };
        to.write_all(reply).await?;
    }
    anyhow::bail!("the gateway closed the connection before it sent an email")
}

/// Returns the path of the sign-in link in an email. The email is in base64 or quoted-printable (RFC 2045).
fn link_in(mail: &str) -> anyhow::Result<String> {
    let (head, body) = mail.split_once("\n\n").context("the email has a body")?;
    let text = match head.contains("base64") {
        true => String::from_utf8(STANDARD.decode(body.replace('\n', ""))?)?,
        false => body.replace("=\n", "").replace("=3D", "="),
    };
    let begin = text.find("/cabinet/").context("the email has a link")?;
    let link = text[begin..].split_whitespace().next();
    Ok(link.unwrap_or_default().to_owned())
}
