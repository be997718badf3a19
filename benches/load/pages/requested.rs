//! Requests pages, and measures the time from each request to the last byte of its response.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;
use tokio::{net::TcpListener, time::Instant};
use tollgate::Gateway;
use tollgate_layers::calendar::date_of_day;

use crate::{
    filled::Filled,
    fixtures::support::process::ADMIN_KEY,
    portal::{self, MEMBER},
};

const HALF_AN_HOUR_MS: u128 = 1_800_000;
const DAY_MS: u128 = 86_400_000;

pub(crate) type HttpClient = Client<HttpConnector, Full<Bytes>>;

pub(crate) struct Visitor {
    client: HttpClient,
    admin: String,
    public: String,
    /// The cookie of the console's session.
    cookie: String,
    /// The cookies of an account owner's session in the customers' portal.
    portal: String,
    /// An owner key of the account with the most receipts. An owner key can read the receipts of all keys of its
    /// account.
    owner: String,
    /// The request number of the last call of the account with the most receipts.
    number: String,
}

/// A request for a page of the console, or for a route of an API.
pub(crate) struct Page {
    pub(crate) path: String,
    origin: String,
    header: (header::HeaderName, String),
}

impl Page {
    fn new(path: String, origin: &str, header: header::HeaderName, value: &str) -> Self {
        Self {
            path,
            origin: origin.to_owned(),
            header: (header, value.to_owned()),
        }
    }
}

impl Visitor {
    pub(crate) async fn sign_in(
        gateway: &Gateway,
        filled: &Filled,
        mails: &TcpListener,
    ) -> anyhow::Result<Self> {
        let admin = gateway
            .admin_address()
            .context("it listens for operators")?;
        let mut visitor = Self {
            client: Client::builder(TokioExecutor::new()).build_http(),
            admin: format!("http://{admin}"),
            public: format!("http://{}", gateway.address()),
            cookie: String::new(),
            portal: String::new(),
            owner: String::new(),
            number: String::new(),
        };
        let req = Request::post(format!("{}/console/sign-in", visitor.admin))
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::from(format!("name=&password={ADMIN_KEY}")))?;
        let res = visitor.client.request(req).await?;
        let cookie = res.headers().get(header::SET_COOKIE);
        let cookie = cookie
            .context("the admin key opens the console")?
            .to_str()?;
        cookie
            .split(';')
            .next()
            .unwrap_or_default()
            .clone_into(&mut visitor.cookie);
        let account = &filled.account;
        let body = r#"{"kind":"owner","name":"bench"}"#.to_owned();
        let made = visitor.create(&format!("{account}/keys"), body).await?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        visitor.owner = text(&made["key"]).context("an owner key is made")?;
        let body = format!(r#"{{"mail":"{MEMBER}","role":"owner"}}"#);
        visitor.create(&format!("{account}/members"), body).await?;
        visitor.portal = portal::sign_in(&visitor.client, &visitor.public, mails).await?;
        let path = format!("/admin/v1/receipts?account={account}&limit=1");
        let latest = visitor.admin(&path).await?;
        let number = text(&latest["receipts"][0]["number"]);
        visitor.number = number.context("the account has calls")?;
        Ok(visitor)
    }

    /// Creates something that belongs to an account, as an operator.
    async fn create(&self, path: &str, body: String) -> anyhow::Result<Value> {
        let req = Request::post(format!("{}/admin/v1/accounts/{path}", self.admin))
            .header(header::AUTHORIZATION, format!("Bearer {ADMIN_KEY}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::from(body))?;
        let res = self.client.request(req).await?;
        anyhow::ensure!(
            res.status() == StatusCode::OK || res.status() == StatusCode::CREATED,
            "{path}: {}",
            res.status()
        );
        Ok(serde_json::from_slice(
            &res.into_body().collect().await?.to_bytes(),
        )?)
    }

    /// Returns a request for every page and every route that reads receipts.
    pub(crate) fn pages(&self, filled: &Filled) -> Vec<Page> {
        let Filled {
            account,
            key,
            days,
            refused,
            ..
        } = filled;
        let number = &self.number;
        let session = "s-7";
        // Positions in the journal, in the format of the field `next` of a response. One position is in the middle of
        // the busy last hour, the other in the middle of all days.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ms = since_epoch.map_or(0, |since| since.as_millis());
        let [busy, old] = [HALF_AN_HOUR_MS, u128::from(*days) * DAY_MS / 2]
            .map(|ago_ms| format!("{}-0", now_ms - ago_ms));
        let console = [
            "/".to_owned(),
            "/console/accounts".into(),
            format!("/console/accounts/{account}"),
            format!("/console/keys/{key}"),
            "/console/calls".into(),
            "/console/calls?model=model-3&end=finished".into(),
            "/console/calls?model=none".into(),
            format!("/console/calls?account={account}"),
            format!("/console/calls?account={account}&session={session}"),
            format!("/console/calls?after={busy}"),
            format!("/console/calls?after={old}"),
            format!("/console/calls?account={account}&after={busy}"),
            format!("/console/calls?account={account}&after={old}"),
            format!("/console/calls?account={account}&model=none"),
            format!("/console/calls?account={account}&end=vendor_error"),
            format!("/console/calls/{number}"),
            "/console/usage".into(),
            format!("/console/usage?account={account}"),
            "/console/payments".into(),
            "/console/events".into(),
            "/console/changes".into(),
            "/console/operators".into(),
            "/console/vendors".into(),
            "/console/prices".into(),
            "/console/prices?days=366&multiplier=1.5".into(),
        ];
        let refused = refused.map(|number| format!("/console/calls/{number}"));
        let lists = [
            "",
            "&code=account_empty",
            "&code=address_not_allowed",
            "&model=none",
        ];
        let lists = lists.iter().flat_map(|filter| {
            [
                String::new(),
                format!("&account={account}"),
                format!("&key={key}"),
                format!(
                    "&until={}",
                    date_of(now_ms - u128::from(*days) * DAY_MS / 2)
                ),
            ]
            .map(|of| format!("/console/calls?end=refused{filter}{of}"))
        });
        let console = console.into_iter().chain(refused).chain(lists);
        let own = [
            "/usage".to_owned(),
            "/v1/tollgate/key".into(),
            "/v1/tollgate/usage".into(),
            "/v1/tollgate/receipts?limit=25".into(),
            format!("/v1/tollgate/receipts?limit=25&after={busy}"),
            "/v1/tollgate/receipts?limit=25&model=none".into(),
            "/v1/tollgate/receipts?limit=25&session=none".into(),
            format!("/v1/tollgate/receipts/{number}"),
        ];
        let console =
            console.map(|path| Page::new(path, &self.admin, header::COOKIE, &self.cookie));
        let owner = format!("Bearer {}", self.owner);
        let own = own.map(|path| Page::new(path, &self.public, header::AUTHORIZATION, &owner));
        // The statement of the previous month takes the longest: it is computed backwards from the current balance, so it
        // reads all later calls too.
        let day = i64::try_from(now_ms / DAY_MS).unwrap_or_default();
        let (year, month, _) = date_of_day(day);
        let (year, month) = if month == 1 {
            (year - 1, 12)
        } else {
            (year, month - 1)
        };
        let path = format!("/admin/v1/accounts/{account}/statements/{year:04}-{month:02}");
        let statement = self.admin_page(path);
        let portal = [
            String::new(),
            "/spending".into(),
            "/calls".into(),
            "/calls?model=none".into(),
            format!("/calls?after={old}"),
            format!("/calls/{number}"),
            "/keys".into(),
            format!("/keys/{key}"),
            "/payments".into(),
            "/statements".into(),
            format!("/statements/{year:04}-{month:02}.csv"),
            "/members".into(),
            "/playground".into(),
        ];
        let portal = portal.map(|path| {
            let path = format!("/cabinet{path}");
            Page::new(path, &self.public, header::COOKIE, &self.portal)
        });
        console
            .chain(own)
            .chain(portal)
            .chain([statement])
            .collect()
    }

    pub(crate) async fn time(&self, page: &Page) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        self.get(page).await?;
        Ok(begun.elapsed())
    }

    async fn get(&self, page: &Page) -> anyhow::Result<Bytes> {
        let (name, value) = &page.header;
        let req = Request::builder()
            .method(Method::GET)
            .uri(format!("{}{}", page.origin, page.path))
            .header(name, value)
            .body(Full::default())?;
        let res = self.client.request(req).await?;
        let status = res.status();
        let body = res.into_body().collect().await?.to_bytes();
        anyhow::ensure!(
            status == StatusCode::OK,
            "{}: {status}: {}",
            page.path,
            String::from_utf8_lossy(&body)
        );
        Ok(body)
    }

    fn admin_page(&self, path: String) -> Page {
        let key = format!("Bearer {ADMIN_KEY}");
        Page::new(path, &self.admin, header::AUTHORIZATION, &key)
    }

    async fn admin(&self, path: &str) -> anyhow::Result<Value> {
        let page = self.admin_page(path.to_owned());
        Ok(serde_json::from_slice(&self.get(&page).await?)?)
    }

    /// Checks that the sums on pages are equal to the written receipts and to the accounts' books. Returns the number
    /// of calls.
    pub(crate) async fn check(&self, receipts: Option<u64>) -> anyhow::Result<u64> {
        let accounts = self.admin("/admin/v1/accounts").await?;
        let (mut spent, mut counted) = (0, 0);
        for account in accounts["accounts"].as_array().context("accounts")? {
            spent += micro(&account["spent_rub"])?;
        }
        for group in ["day", "hour", "model"] {
            let usage = self
                .admin(&format!("/admin/v1/usage?group={group}"))
                .await?;
            let (total, mut calls, mut charged) = (&usage["total"], 0, 0);
            for row in usage["rows"].as_array().context("rows")? {
                calls += row["calls"].as_u64().context("calls")?;
                charged += micro(&row["charged_rub"])?;
            }
            anyhow::ensure!(
                total["calls"] == calls && receipts.is_none_or(|receipts| receipts == calls),
                "{calls} calls by {group}, {receipts:?} receipts: {total}"
            );
            counted = calls;
            anyhow::ensure!(
                micro(&total["charged_rub"])? == spent && charged == spent,
                "{charged} charged by {group}, {spent} spent: {total}"
            );
        }
        Ok(counted)
    }
}

/// Returns the date of a time in Unix milliseconds, as text.
fn date_of(ms: u128) -> String {
    let (year, month, day) = date_of_day(i64::try_from(ms / DAY_MS).unwrap_or_default());
    format!("{year:04}-{month:02}-{day:02}")
}

/// Converts rubles to micro-rubles.
fn micro(rubles: &Value) -> anyhow::Result<i128> {
    let text = rubles.as_str().context("rubles")?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    Ok(format!("{whole}{fraction:0<6}").parse()?)
}
