//! A client for whom we ask beside vendors: sources of exchange rates, collectors of traces.

use std::sync::Arc;

use bytes::Bytes;
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

pub(crate) type HttpsClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// HTTP/1.1, plain or over TLS, by Mozilla's list of authorities.
pub(crate) fn client() -> HttpsClient {
    client_trusting(None)
}

/// The same by these authorities, where there are some; see [`tls`].
pub(crate) fn client_trusting(authorities: Option<&Bytes>) -> HttpsClient {
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls(authorities))
        .https_or_http()
        .enable_http1()
        .build();
    Client::builder(TokioExecutor::new()).build(connector)
}

/// TLS that trusts these authorities and no others, PEM that was checked with the configuration; without them those of
/// Mozilla's list.
pub(crate) fn tls(authorities: Option<&Bytes>) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring speaks the TLS versions that rustls holds safe");
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
