//! Sends a request to a vendor that requires a login. Signs the request, and if the vendor refuses the credential,
//! signs and sends it once more.

use http::{Request, Response, Uri};
use tokio::time::{Instant, timeout_at};

use super::{
    body::VendorBody,
    clients::VendorClient,
    request::{BoxRequest, copy},
};
use crate::{
    error::{BoxError, VendorUnreached},
    login::{Login, Unsigned},
};

/// Signs the request, and then sends it like [`VendorClient::send`].
///
/// # Errors
/// The client's error if the request cannot be sent; the login's error if the login has no credential.
pub(super) async fn send(
    login: &dyn Login,
    client: &VendorClient,
    address: &Uri,
    mut req: BoxRequest,
    now: Instant,
    until: Instant,
) -> Result<Option<Response<VendorBody>>, BoxError> {
    let mut spare = Some(copy(&req));
    loop {
        match timeout_at(until, sign(login, address, &mut req)).await {
            Ok(signed) => signed?,
            Err(_) => return Ok(None),
        }
        let sent = spare.is_some().then(|| req.headers().clone());
        let Some(res) = client.send(address, req, now, until).await? else {
            return Ok(None);
        };
        let is_renewed = sent.is_some_and(|sent| {
            res.status().is_client_error()
                && login.is_renewed_after(&sent, res.status(), res.headers())
        });
        match spare.take() {
            Some(again) if is_renewed => req = again,
            _ => return Ok(Some(res)),
        }
    }
}

async fn sign(login: &dyn Login, address: &Uri, req: &mut BoxRequest) -> Result<(), BoxError> {
    let body = req.body().segments();
    let method = req.method().clone();
    let unsigned = Unsigned::new(&method, address, Request::headers_mut(req), &body);
    let signed = login.sign(unsigned).await;
    signed.map_err(|error| VendorUnreached(format!("login: {error}")).into())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpListener,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        thread,
        time::Duration,
    };

    use http::{HeaderMap, HeaderValue, StatusCode, header::AUTHORIZATION};
    use tower::ServiceExt;

    use super::*;
    use crate::{
        call::{Format, Outbound},
        error::Error,
        login::LoginFuture,
        model::{Authentication, ModelKind, Route, Vendor},
        upstream::Upstream,
        usage::Meter,
    };

    /// A login that signs requests with increasing numbers, and that fails after `signed_max` signatures.
    #[derive(Debug)]
    struct Counted {
        signed: AtomicUsize,
        signed_max: usize,
    }

    impl Login for Counted {
        fn sign<'a>(&'a self, request: Unsigned<'a>) -> LoginFuture<'a, Result<(), BoxError>> {
            let number = self.signed.fetch_add(1, Ordering::SeqCst);
            assert_eq!(request.body.concat(), b"{}");
            let token = HeaderValue::from_str(&format!("Bearer {number}")).unwrap();
            request.headers.insert(AUTHORIZATION, token);
            let is_signed = number < self.signed_max;
            Box::pin(async move { is_signed.then_some(()).ok_or("no token".into()) })
        }

        fn is_renewed_after(&self, sent: &HeaderMap, status: StatusCode, _: &HeaderMap) -> bool {
            assert!(sent.contains_key(AUTHORIZATION));
            status == StatusCode::UNAUTHORIZED
        }
    }

    /// Sends a call to a vendor that refuses signatures below `first_accepted` with this status line. Returns the
    /// result of the call, and the number of requests that the vendor got.
    async fn call(
        refusal: &'static str,
        first_accepted: u8,
        signed_max: usize,
    ) -> (Result<(), Error>, usize) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let (mut seen, mut buffer) = (Vec::new(), [0; 1024]);
                while !seen.ends_with(b"{}") {
                    let count = stream.read(&mut buffer).unwrap();
                    seen.extend_from_slice(&buffer[..count]);
                }
                counted.fetch_add(1, Ordering::SeqCst);
                let seen = String::from_utf8(seen).unwrap();
                let (_, token) = seen.split_once("authorization: Bearer ").unwrap();
                let is_accepted = token.as_bytes()[0] - b'0' >= first_accepted;
                let status = if is_accepted { "200 OK" } else { refusal };
                let answer = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}"
                );
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let login = Counted {
            signed: AtomicUsize::new(0),
            signed_max,
        };
        let endpoint = format!("http://{address}/v1/chat/completions")
            .parse()
            .unwrap();
        let vendor = Vendor::new(
            "v",
            Format::Chat,
            endpoint,
            HeaderValue::from_static("login"),
        )
        .authentication(Authentication::Login(Arc::new(login)));
        let outbound = Outbound {
            route: Arc::new(Route::new(vendor, "m")),
            credential: 0,
            body: "{}".into(),
            stream: false,
            choices: 1,
            kind: ModelKind::Chat,
            strip_usage: false,
            meter: Meter::default(),
        };
        let upstream = Upstream::new(Duration::from_secs(20));
        let answer = upstream.oneshot(Request::new(outbound)).await;
        (answer.map(drop), requests.load(Ordering::SeqCst))
    }

    #[tokio::test]
    async fn refused_credential_is_renewed_once() {
        let (answer, requests) = call("401 Unauthorized", 0, 9).await;
        assert!(answer.is_ok() && requests == 1);
        let (answer, requests) = call("401 Unauthorized", 1, 9).await;
        assert!(answer.is_ok() && requests == 2, "{answer:?}");
        let (answer, requests) = call("401 Unauthorized", 2, 9).await;
        assert!(
            matches!(answer, Err(Error::VendorKeyRefused { .. })),
            "{answer:?}"
        );
        assert_eq!(requests, 2);
        // Other refusals are not about the credential, so the request is sent only once.
        let (answer, requests) = call("400 Bad Request", 1, 9).await;
        assert!(matches!(answer, Err(Error::VendorRefused { .. })) && requests == 1);
    }

    #[tokio::test]
    async fn call_without_a_credential_is_not_sent() {
        let (answer, requests) = call("401 Unauthorized", 0, 0).await;
        let Err(Error::VendorUnavailable(cause)) = answer else {
            panic!("{answer:?}");
        };
        assert!(cause.is::<VendorUnreached>() && cause.to_string().contains("no token"));
        assert_eq!(requests, 0);
    }
}
