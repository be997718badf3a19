//! What is asked for, and how long each answer takes to its last byte.

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::time::Instant;
use tollgate::Gateway;

use crate::{filled::Filled, fixtures::support::process::ADMIN_KEY};

pub(crate) struct Visitor {
    client: Client<HttpConnector, Full<Bytes>>,
    admin: String,
    public: String,
    cookie: String,
}

/// Something to ask for.
pub(crate) struct Page {
    pub(crate) path: String,
    origin: String,
    header: (header::HeaderName, String),
}

impl Visitor {
    pub(crate) async fn sign_in(gateway: &Gateway) -> anyhow::Result<Self> {
        let admin = gateway
            .admin_address()
            .context("it listens for operators")?;
        let mut visitor = Self {
            client: Client::builder(TokioExecutor::new()).build_http(),
            admin: format!("http://{admin}"),
            public: format!("http://{}", gateway.address()),
            cookie: String::new(),
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
        Ok(visitor)
    }

    /// Every page and route that has to do with receipts.
    pub(crate) fn pages(&self, filled: &Filled) -> Vec<Page> {
        let Filled {
            account,
            key,
            secret,
            number,
        } = filled;
        let session = "s-7";
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
            format!("/console/calls/{number}"),
            "/console/usage".into(),
            format!("/console/usage?account={account}"),
            "/console/vendors".into(),
            "/console/prices".into(),
        ];
        let own = [
            "/usage".to_owned(),
            "/v1/tollgate/key".into(),
            "/v1/tollgate/usage".into(),
            "/v1/tollgate/receipts?limit=25".into(),
            format!("/v1/tollgate/receipts/{number}"),
        ];
        let console = console.into_iter().map(|path| Page {
            path,
            origin: self.admin.clone(),
            header: (header::COOKIE, self.cookie.clone()),
        });
        let own = own.into_iter().map(|path| Page {
            path,
            origin: self.public.clone(),
            header: (header::AUTHORIZATION, format!("Bearer {secret}")),
        });
        console.chain(own).collect()
    }

    pub(crate) async fn time(&self, page: &Page) -> anyhow::Result<Duration> {
        let (name, value) = &page.header;
        let req = Request::builder()
            .method(Method::GET)
            .uri(format!("{}{}", page.origin, page.path))
            .header(name, value)
            .body(Full::default())?;
        let begun = Instant::now();
        let res = self.client.request(req).await?;
        let status = res.status();
        let body = res.into_body().collect().await?.to_bytes();
        let time = begun.elapsed();
        anyhow::ensure!(
            status == StatusCode::OK,
            "{}: {status}: {}",
            page.path,
            String::from_utf8_lossy(&body)
        );
        Ok(time)
    }
}
