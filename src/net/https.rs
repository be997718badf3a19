//! An HTTPS client for servers that are not vendors, such as sources of exchange rates and collectors of traces.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;
use http_body_util::Full;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};

/// The name and version of this program, for the header `user-agent`.
pub(crate) const USER_AGENT: HeaderValue =
    HeaderValue::from_static(concat!("tollgate/", env!("CARGO_PKG_VERSION")));

pub(crate) type HttpsClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Returns an HTTP/1.1 client for `http` and `https` URLs that trusts Mozilla's certificate authorities.
pub(crate) fn client() -> HttpsClient {
    client_trusting(None)
}

/// Returns an HTTP/1.1 client that trusts the given `authorities`, or Mozilla's if none are given; see [`tls`].
pub(crate) fn client_trusting(authorities: Option<&Bytes>) -> HttpsClient {
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls(authorities))
        .https_or_http()
        .enable_http1()
        .build();
    Client::builder(TokioExecutor::new()).build(connector)
}

/// Returns a TLS configuration that trusts only the given authorities, or Mozilla's list if none are given. The
/// authorities are PEM, which was checked when the configuration was read.
pub(crate) fn tls(authorities: Option<&Bytes>) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default TLS versions of rustls");
    let builder = match authorities {
        None => builder.with_webpki_roots(),
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).flatten());
            builder.with_root_certificates(roots)
        }
    };
    builder.with_no_client_auth()
}
