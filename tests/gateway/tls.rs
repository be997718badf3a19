//! Tests of TLS for callers: protocols, timeouts, and a certificate that is replaced while connections are open.

use std::{io, net::SocketAddr, path::Path};

use http::{Request, Version};
use http_body_util::Full;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, RootCertStore, SupportedProtocolVersion,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
    version::{TLS12, TLS13},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tollgate::{config::Config, demo::script::polite};

use crate::{
    edge::{Edge, read_to_close},
    half_closed::{call, understood},
    prelude::*,
    proxies::Authority,
};

/// The maximum time until a connection must have ended. The gateway's timeouts in these tests are one second, and a
/// busy machine adds some time.
const SOON: Duration = Duration::from_secs(15);
const BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];

/// Returns the section `[tls]` with these files.
fn section(certificate: &Path, key: &Path) -> String {
    format!(
        "[tls]\ncertificate_file = \"{}\"\nkey_file = \"{}\"\n",
        certificate.display(),
        key.display()
    )
}

fn of(authority: &Authority) -> String {
    section(&authority.path("vendor.pem"), &authority.path("vendor.key"))
}

fn over_tls(setup: Setup, authority: &Authority) -> Setup {
    setup.edit("[admin]", &format!("{}[admin]", of(authority)))
}

/// Connects with a TLS client that trusts this authority, and offers these protocols and TLS versions.
async fn connect(
    to: SocketAddr,
    trusted: &Authority,
    protocols: &[&str],
    versions: &[&'static SupportedProtocolVersion],
) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_file(trusted.path("ca.pem")).unwrap();
    roots.add(root).unwrap();
    let mut tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let socket = TcpStream::connect(to).await?;
    TlsConnector::from(Arc::new(tls))
        .connect(name, socket)
        .await
}

/// Returns the request in the form of HTTP/1.1: its target is only the path, and it has a `host` header.
fn of_path(req: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    let (mut parts, body) = req.into_parts();
    parts.uri = parts.uri.path().parse().unwrap();
    let host = "gateway.example".parse().unwrap();
    parts.headers.insert("host", host);
    Request::from_parts(parts, body)
}

/// Starts an HTTP/1.1 client on this connection. The task that polls the connection is added to `tasks`.
async fn speak_http1(
    stream: TlsStream<TcpStream>,
    tasks: &mut JoinSet<()>,
) -> http1::SendRequest<Full<Bytes>> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tasks.spawn(async move { drop(connection.await) });
    sender
}

async fn get_root(sender: &mut http1::SendRequest<Full<Bytes>>) -> u16 {
    let req = Request::get("/").body(Full::default()).unwrap();
    let answer = whole(sender.send_request(of_path(req)).await.unwrap()).await;
    answer.status.as_u16()
}

#[tokio::test]
async fn http1_and_h2_work_over_tls_1_2_and_1_3() {
    let authority = Authority::new();
    let (world, key) = over_tls(Setup::default(), &authority)
        .start_with_key()
        .await;
    let to = world.gateway.address();
    let mut tasks = JoinSet::new();
    let check = |what: &str, answer: &Answer, version: Version| {
        assert_eq!(answer.status, 200, "{what}: {answer:?}");
        assert!(answer.text().contains("[DONE]"), "{what} {version:?}");
    };
    let body = with(chat_body("Привет"), json!({ "stream": true }));
    for version in BOTH {
        for (protocols, agreed) in [
            (&["h2", "http/1.1"][..], Some("h2")),
            (&["http/1.1"], Some("http/1.1")),
            (&[], None),
        ] {
            let what = format!("{version:?} {protocols:?}");
            let stream = connect(to, &authority, protocols, &[version])
                .await
                .unwrap();
            let spoken = stream.get_ref().1;
            assert_eq!(spoken.protocol_version(), Some(version.version), "{what}");
            let alpn = spoken.alpn_protocol();
            assert_eq!(alpn, agreed.map(str::as_bytes), "{what}");
            let req = world.chat_request(&key, &body);
            if agreed == Some("h2") {
                let io = TokioIo::new(stream);
                let handshake = http2::handshake(TokioExecutor::new(), io).await;
                let (mut sender, connection) = handshake.unwrap();
                tasks.spawn(async move { drop(connection.await) });
                let answer = whole(sender.send_request(req).await.unwrap()).await;
                check(&what, &answer, Version::HTTP_2);
            } else {
                let mut sender = speak_http1(stream, &mut tasks).await;
                let answer = whole(sender.send_request(of_path(req)).await.unwrap()).await;
                check(&what, &answer, Version::HTTP_11);
            }
        }
    }
    // The client offers only a protocol that the gateway does not support, so the handshake fails.
    assert!(connect(to, &authority, &["gopher"], &BOTH).await.is_err());
}

/// A client that closes its sending side with `close_notify` gets its response. Without `close_notify`, an attacker may
/// have cut off the request.
#[tokio::test]
async fn tls_client_that_closes_its_sending_side_gets_its_answer() {
    let authority = Authority::new();
    let world = over_tls(Setup::default(), &authority).start().await;
    world
        .vendor
        .script(|received| polite(received).with_step(0, Step::Wait(Duration::from_millis(500))));
    let (key, to) = (world.key().await, world.gateway.address());
    for version in BOTH {
        for stream in [false, true] {
            let mut socket = connect(to, &authority, &["http/1.1"], &[version])
                .await
                .unwrap();
            let bytes = call(Op::Chat, &key, stream);
            socket.write_all(bytes.as_bytes()).await.unwrap();
            socket.shutdown().await.unwrap();
            let mut read = Vec::new();
            let ended = timeout(SOON, socket.read_to_end(&mut read)).await;
            ended.expect("the connection ends").unwrap();
            let answer = understood(&read).await;
            assert_eq!(answer.status, 200, "{version:?} {answer:?}");
            assert!(!answer.failed, "{version:?} {answer:?}");
            assert!(!stream || answer.text().contains("[DONE]"), "{answer:?}");
        }
    }
    assert_eq!(world.settled(&key).await["spent_rub"], "0.006");
}

#[tokio::test]
async fn silent_or_plaintext_client_of_a_tls_port_is_disconnected_soon() {
    let authority = Authority::new();
    let setup = over_tls(Setup::default(), &authority)
        .edit("[tariff]", "[limits]\nfirst_byte_seconds = 1\n[tariff]");
    let world: World = setup.start().await;
    let to = world.gateway.address();
    for (what, reported, waits) in [
        ("silent", &b""[..], true),
        ("half a hello", b"\x16\x03\x01\x02\x00\x01", true),
        ("plain HTTP", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", false),
        ("plain h2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", false),
    ] {
        let begun = Instant::now();
        let mut socket = TcpStream::connect(to).await.unwrap();
        socket.write_all(reported).await.unwrap();
        let returned = read_to_close(&mut socket, SOON).await;
        let returned = returned.unwrap_or_else(|| panic!("{what}: it is open"));
        assert!(!returned.starts_with(b"HTTP/"), "{what}: {returned:?}");
        if waits {
            let at_least = Duration::from_millis(900);
            assert!(begun.elapsed() > at_least, "{what}: {:?}", begun.elapsed());
        }
    }
    let mut tasks = JoinSet::new();
    let stream = connect(to, &authority, &["http/1.1"], &BOTH).await.unwrap();
    let mut sender = speak_http1(stream, &mut tasks).await;
    assert_eq!(get_root(&mut sender).await, 200);
}

#[tokio::test]
async fn silent_and_idle_tls_connections_are_closed_cleanly() {
    let authority = Authority::new();
    let limits = "[limits]\nfirst_byte_seconds = 1\nidle_seconds = 1\n[tariff]";
    let world = over_tls(Setup::default(), &authority)
        .edit("[tariff]", limits)
        .start()
        .await;
    let to = world.gateway.address();
    let protocols = ["http/1.1"];
    let mut silent = connect(to, &authority, &protocols, &BOTH).await.unwrap();
    let closed = tokio::time::timeout(SOON, silent.read(&mut [0])).await;
    assert!(matches!(closed, Ok(Ok(0) | Err(_))), "{closed:?}");

    let mut idle = connect(to, &authority, &protocols, &BOTH).await.unwrap();
    let requested = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    idle.write_all(requested).await.unwrap();
    let mut answer = Vec::new();
    let closed = tokio::time::timeout(SOON, idle.read_to_end(&mut answer)).await;
    // The gateway ends the connection with `close_notify`. The client would report any other end as an error.
    closed.expect("it is closed").unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"));
}

#[tokio::test]
async fn certificate_is_renewed_without_closing_connections() {
    let (first, second) = (Authority::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = (dir.path().join("tls.pem"), dir.path().join("tls.key"));
    let install = |authority: &Authority, from: &str, to: &Path| {
        std::fs::copy(authority.path(from), to).unwrap();
    };
    install(&first, "vendor.pem", &certificate);
    install(&first, "vendor.key", &key);
    let files = section(&certificate, &key);
    let edge = Edge::start_with(|text| {
        let text = text.replace("[admin]", &format!("{files}[admin]"));
        format!("reload_poll_seconds = 1\n{text}")
    })
    .await;
    let mut tasks = JoinSet::new();
    let stream = connect(edge.address, &first, &["http/1.1"], &BOTH)
        .await
        .unwrap();
    let mut open = speak_http1(stream, &mut tasks).await;
    assert_eq!(get_root(&mut open).await, 200);
    assert!(connect(edge.address, &second, &[], &BOTH).await.is_err());

    // The key of the new certificate is written later than the certificate. Until then the two files do not match, and
    // the gateway uses the old ones.
    install(&second, "vendor.pem", &certificate);
    edge.says("configuration not reloaded: ", 1).await;
    assert!(
        edge.log()
            .contains("is not the private key of the certificate")
    );
    assert!(connect(edge.address, &first, &[], &BOTH).await.is_ok());
    install(&second, "vendor.key", &key);
    edge.says("reloaded", 1).await;
    assert!(connect(edge.address, &second, &[], &BOTH).await.is_ok());
    assert!(connect(edge.address, &first, &[], &BOTH).await.is_err());
    assert_eq!(get_root(&mut open).await, 200);
}

/// Returns the errors or warnings that `check` reports for a section `[tls]`, each with its field.
fn returned(tls: &str, base_url: &str) -> Vec<(String, String)> {
    let vendor = SocketAddr::from(([127, 0, 0, 1], 9));
    let text = crate::harness::config_text(vendor, "memory:", "outbox.db")
        .replace("http://gateway.example/v1", base_url)
        .replace("[admin]", &format!("{tls}[admin]"));
    let returned = match Config::parse(&text, &|_| Some(VENDOR_KEY.to_owned())) {
        Ok(config) => config.warnings,
        Err(errors) => errors.iter().cloned().collect(),
    };
    returned
        .into_iter()
        .map(|error| (error.path, error.problem))
        .collect()
}

#[test]
fn error_about_a_certificate_names_the_mistake() {
    let (one, other) = (Authority::new(), Authority::new());
    let path = |name: &str| one.path(name);
    let good = "https://127.0.0.1/v1";
    assert_eq!(returned(&of(&one), good), []);
    one.openssl(&[
        "x509",
        "-req",
        "-in",
        "vendor.csr",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-days",
        "0",
        "-extfile",
        "vendor.ext",
        "-out",
        "expired.pem",
    ]);
    let (certificate, key) = (path("vendor.pem"), path("vendor.key"));
    for (tls, base_url, field, word) in [
        (
            section(&certificate, &other.path("vendor.key")),
            good,
            "tls.key_file",
            "not the private key",
        ),
        (
            section(&certificate, &certificate),
            good,
            "tls.key_file",
            "no private key",
        ),
        (
            section(&key, &key),
            good,
            "tls.certificate_file",
            "no certificate",
        ),
        (
            section(&certificate, &path("missing")),
            good,
            "tls.key_file",
            "cannot read",
        ),
        (
            section(&path("expired.pem"), &key),
            good,
            "tls.certificate_file",
            "expired at 20",
        ),
        (
            of(&one),
            "https://gateway.example/v1",
            "tls.certificate_file",
            "gateway.example",
        ),
        (of(&one), "http://127.0.0.1/v1", "base_url", "https"),
    ] {
        let returned = returned(&tls, base_url);
        let [(path, problem)] = returned.as_slice() else {
            panic!("{tls}: {returned:?}");
        };
        assert_eq!(path, field, "{problem}");
        assert!(problem.contains(word), "{problem}");
    }
}
