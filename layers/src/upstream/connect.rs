use std::{
    hash::{BuildHasher, RandomState},
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{
    Uri,
    uri::{Authority, Scheme},
};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::{
    legacy::connect::{
        Connected, Connection, HttpConnector,
        proxy::{SocksV5, Tunnel},
    },
    proxy::matcher::{Intercept, Matcher},
};
use rustls::{
    RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, pem::PemObject},
};
use tokio::time::{Instant, timeout};
use tower_service::Service;

use crate::{
    error::BoxError,
    model::{Egress, Protocol, Proxy},
};

/// The age after which a connection accepts no more calls is random, between this and 1.5 times this. New connections
/// resolve the vendor's name again, so changes of the vendor's addresses take effect.
const AGE_MAX: Duration = Duration::from_secs(240);
/// The idle time after which TCP probes the peer, so that the loss of the peer is noticed.
const TCP_KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Opens connections: TCP, through a proxy if one is configured, and TLS inside. All of this together must take less
/// than the vendor's connect timeout.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    way: Way,
    timeout: Duration,
}

#[derive(Clone, Debug)]
enum Way {
    Direct(HttpsConnector<HttpConnector>),
    Tunnel(HttpsConnector<Tunnel<HttpConnector>>),
    Socks(HttpsConnector<SocksV5<HttpConnector>>),
}

/// The error of a connection that was not made within this timeout.
#[derive(Debug, thiserror::Error)]
#[error("no connection was made within {0:?}")]
pub(super) struct TooSlow(Duration);

impl Connector {
    /// # Errors
    /// An error if the egress has an invalid certificate or proxy.
    pub(super) fn new(egress: &Egress) -> Result<Self, BoxError> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(TCP_KEEP_ALIVE));
        let https = Https::new(egress)?;
        let way = match &egress.proxy {
            None => Way::Direct(https.over(tcp)),
            Some(proxy) => {
                let proxy = intercept(proxy).ok_or("the proxy's URL is invalid")?;
                through(&proxy, tcp, https)
            }
        };
        Ok(Self {
            way,
            timeout: egress.connect_timeout,
        })
    }
}

/// Checks that a PEM file is usable for the authorities of an [`Egress`].
///
/// # Errors
/// An error if the file contains no certificate, or an invalid certificate.
pub fn check_authorities(pem: &[u8]) -> Result<(), BoxError> {
    roots(pem).map(drop)
}

/// Reads the certificates of a PEM file as trusted roots.
fn roots(pem: &[u8]) -> Result<RootCertStore, BoxError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate?)?;
    }
    if roots.is_empty() {
        return Err("the PEM text has no certificate".into());
    }
    Ok(roots)
}

struct Https {
    tls: rustls::ClientConfig,
    protocol: Protocol,
}

impl Https {
    fn new(egress: &Egress) -> Result<Self, BoxError> {
        // The crypto provider is chosen explicitly, because rustls panics if a program contains several providers and
        // has installed none of them.
        let provider = CryptoProvider::get_default().map_or_else(
            || Arc::new(rustls::crypto::ring::default_provider()),
            Arc::clone,
        );
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?;
        let builder = match &egress.authorities {
            None => hyper_rustls::ConfigBuilderExt::with_webpki_roots(builder),
            Some(pem) => builder.with_root_certificates(roots(pem)?),
        };
        Ok(Self {
            tls: builder.with_no_client_auth(),
            protocol: egress.protocol,
        })
    }

    fn over<C>(self, connector: C) -> HttpsConnector<C> {
        let builder = HttpsConnectorBuilder::new()
            .with_tls_config(self.tls)
            .https_or_http()
            .enable_http1();
        match self.protocol {
            // HTTP/2 is offered only if the operator enables it. With HTTP/2, many streams of small frames share a
            // connection, and a peer that limits frames may close this connection.
            Protocol::Http1 => builder.wrap_connector(connector),
            Protocol::Http2Offered | Protocol::Http2 => {
                builder.enable_http2().wrap_connector(connector)
            }
        }
    }
}

fn through(proxy: &Intercept, tcp: HttpConnector, https: Https) -> Way {
    let address = proxy.uri().clone();
    if address.scheme() == Some(&Scheme::HTTP) {
        let tunnel = Tunnel::new(address, tcp);
        return Way::Tunnel(https.over(match proxy.basic_auth() {
            Some(credentials) => tunnel.with_auth(credentials.clone()),
            None => tunnel,
        }));
    }
    // The proxy resolves the vendor's name, because the vendor may have names that the gateway cannot resolve.
    let socks = SocksV5::new(address, tcp);
    Way::Socks(https.over(match proxy.raw_auth() {
        Some((user, password)) => socks.with_auth(user.to_owned(), password.to_owned()),
        None => socks,
    }))
}

/// Parses the URL of a proxy, including its user and password.
fn intercept(proxy: &Proxy) -> Option<Intercept> {
    let anywhere = Uri::from_static("https://vendor.example");
    Matcher::builder()
        .all(proxy.expose())
        .build()
        .intercept(&anywhere)
}

/// Adds the port to the vendor's URL if it is missing. Otherwise the proxy would use the port of https even for http.
fn with_port(address: Uri) -> Uri {
    let (None, Some(host)) = (address.port(), address.host()) else {
        return address;
    };
    let port = if address.scheme() == Some(&Scheme::HTTP) {
        80
    } else {
        443
    };
    let Ok(authority) = format!("{host}:{port}").parse::<Authority>() else {
        return address;
    };
    let mut parts = address.clone().into_parts();
    parts.authority = Some(authority);
    Uri::from_parts(parts).unwrap_or(address)
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match &mut self.way {
            Way::Direct(inner) => inner.poll_ready(cx),
            Way::Tunnel(inner) => inner.poll_ready(cx),
            Way::Socks(inner) => inner.poll_ready(cx),
        }
    }

    fn call(&mut self, address: Uri) -> Self::Future {
        let connecting = match &mut self.way {
            Way::Direct(inner) => inner.call(address),
            Way::Tunnel(inner) => inner.call(with_port(address)),
            Way::Socks(inner) => inner.call(with_port(address)),
        };
        let limit = self.timeout;
        Box::pin(async move {
            let inner = timeout(limit, connecting)
                .await
                .map_err(|_| TooSlow(limit))??;
            Ok(Stream {
                inner: match inner {
                    MaybeHttpsStream::Http(tcp) => Box::new(tcp),
                    tls => Box::new(tls),
                },
                retires: Retires(Instant::now() + age_max()),
            })
        })
    }
}

/// Returns the age at which a connection accepts no more calls. It is random, so that connections that were opened
/// together are not closed together.
fn age_max() -> Duration {
    let chance = RandomState::new().hash_one(()) % 1000;
    AGE_MAX + AGE_MAX * u32::try_from(chance).unwrap_or_default() / 2000
}

/// The time after which a connection accepts no more calls. It is an extension of every response from the connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retires(pub(super) Instant);

/// A connection to a vendor, with the time until which it accepts calls.
pub(super) struct Stream {
    /// The stream is boxed, because TLS state is larger than the rest of a connection, and a connection without TLS
    /// does not need it.
    inner: Box<dyn Carrier>,
    retires: Retires,
}

/// A stream of bytes that hyper can use as a connection.
trait Carrier: Read + Write + Connection + Send + Sync + Unpin {}

impl<T: Read + Write + Connection + Send + Sync + Unpin> Carrier for T {}

impl Stream {
    pub(super) const fn retires(&self) -> Instant {
        self.retires.0
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        self.inner.connected().extra(self.retires)
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendor_url_sent_to_a_proxy_has_a_port() {
        for (address, reported) in [
            ("http://vendor", "http://vendor:80/"),
            ("https://vendor", "https://vendor:443/"),
            ("https://vendor:8443", "https://vendor:8443/"),
            ("https://[::1]", "https://[::1]:443/"),
        ] {
            let uri = with_port(address.parse().unwrap());
            assert_eq!(uri.to_string(), reported);
        }
    }

    #[test]
    fn proxy_address_is_parsed() {
        let of = |address: &str| intercept(&Proxy::new(address.to_owned())).unwrap();
        let http = of("http://Aladdin:open%40sesame@p:8080");
        assert_eq!(http.uri().to_string(), "http://p:8080/");
        let basic = http.basic_auth().unwrap();
        assert_eq!(basic, "Basic QWxhZGRpbjpvcGVuQHNlc2FtZQ==");
        assert!(basic.is_sensitive());
        let socks = of("socks5://u:p%3Aw@[::1]:1080");
        assert_eq!(socks.raw_auth(), Some(("u", "p:w")));
        assert_eq!(socks.uri().host(), Some("[::1]"));
        assert!(of("http://p:8080").basic_auth().is_none());
    }

    #[test]
    fn connection_is_used_for_four_to_six_minutes() {
        for _ in 0..100 {
            let age = age_max().as_secs();
            assert!((240..=360).contains(&age), "{age}");
        }
    }

    #[test]
    fn pem_file_without_a_valid_certificate_is_refused() {
        for pem in [
            "",
            "hello",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            assert!(check_authorities(pem.as_bytes()).is_err(), "{pem:?}");
        }
    }
}
