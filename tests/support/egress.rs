//! Two proxies, CONNECT (RFC 9110) and SOCKS5 (RFC 1928, 1929), and a vendor with TLS and HTTP/1.1 or HTTP/2. All of
//! them use real sockets.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, Version};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

/// A host name that only the proxies resolve: no DNS resolver answers for `.invalid` (RFC 6761).
pub const VENDOR_NAME: &str = "vendor.invalid";
/// The credentials that the proxies require, as they are written in a URL. The password contains an `@`.
pub const USERINFO: &str = "operator:hunter%402";
/// A part of the password. It must not appear in any log or response.
pub const PASSWORD: &str = "hunter";
const BASIC: &str = "Basic b3BlcmF0b3I6aHVudGVyQDI=";
const USER_AND_PASSWORD: (&[u8], &[u8]) = (b"operator", b"hunter@2");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Connect,
    Socks5,
}

pub const KINDS: [Kind; 2] = [Kind::Connect, Kind::Socks5];

/// A running proxy that requires credentials. Dropping it closes all its connections.
pub struct Proxy {
    kind: Kind,
    address: SocketAddr,
    seen: Arc<Seen>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    refused: AtomicUsize,
    /// The destinations that clients have requested, exactly as the clients wrote them.
    targets: Mutex<Vec<String>>,
    /// The address to which the proxy resolves [`VENDOR_NAME`].
    vendor: Mutex<Option<SocketAddr>>,
}

impl Proxy {
    pub async fn start(kind: Kind) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_proxy(kind, listener, Arc::clone(&seen)));
        Self {
            kind,
            address,
            seen,
            _tasks: tasks,
        }
    }

    /// Returns the URL of the proxy with this user and password.
    pub fn url(&self, userinfo: &str) -> String {
        let scheme = match self.kind {
            Kind::Connect => "http",
            Kind::Socks5 => "socks5",
        };
        format!("{scheme}://{userinfo}@{}", self.address)
    }

    /// Sets the address to which the proxy resolves [`VENDOR_NAME`].
    pub fn knows(&self, vendor: SocketAddr) {
        *self.seen.vendor.lock().unwrap() = Some(vendor);
    }

    /// Returns the number of connections so far.
    pub fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }

    /// Returns the number of connections with wrong credentials so far.
    pub fn refused(&self) -> usize {
        self.seen.refused.load(Ordering::SeqCst)
    }

    /// Returns the requested destinations of all connections, as `name:port`.
    pub fn targets(&self) -> Vec<String> {
        self.seen.targets.lock().unwrap().clone()
    }
}

async fn serve_proxy(kind: Kind, listener: TcpListener, seen: Arc<Seen>) {
    let mut connections = JoinSet::new();
    while let Ok((mut socket, _)) = listener.accept().await {
        seen.connections.fetch_add(1, Ordering::SeqCst);
        let seen = Arc::clone(&seen);
        connections.spawn(async move {
            // If a client disconnects, this is not an error of the proxy.
            let _ = match kind {
                Kind::Connect => connect(&mut socket, &seen).await,
                Kind::Socks5 => socks5(&mut socket, &seen).await,
            };
        });
        while connections.try_join_next().is_some() {}
    }
}

impl Seen {
    async fn open(&self, name: &str, port: u16) -> io::Result<TcpStream> {
        self.targets.lock().unwrap().push(format!("{name}:{port}"));
        let vendor = *self.vendor.lock().unwrap();
        match vendor {
            Some(vendor) if name == VENDOR_NAME => TcpStream::connect(vendor).await,
            _ => TcpStream::connect((name, port)).await,
        }
    }

    fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::SeqCst);
    }
}

async fn connect(socket: &mut TcpStream, seen: &Seen) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut lines = head.split("\r\n");
    let target = lines
        .next()
        .and_then(|line| line.strip_prefix("CONNECT ")?.strip_suffix(" HTTP/1.1"));
    let credentials = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("proxy-authorization"))
        .map(|(_, value)| value.trim());
    let Some((name, port)) = target.and_then(|target| target.rsplit_once(':')) else {
        return socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    };
    if credentials != Some(BASIC) {
        seen.refuse();
        let refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\n\
                        Proxy-Authenticate: Basic realm=\"proxy\"\r\nContent-Length: 0\r\n\r\n";
        return socket.write_all(refusal).await;
    }
    let Ok(mut vendor) = seen.open(name, port.parse().unwrap_or_default()).await else {
        return socket.write_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n").await;
    };
    socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    copy_bidirectional(socket, &mut vendor).await.map(drop)
}

async fn socks5(socket: &mut TcpStream, seen: &Seen) -> io::Result<()> {
    const VERSION: u8 = 5;
    const BY_PASSWORD: u8 = 2;
    const NO_METHOD: u8 = 0xff;
    let _version = socket.read_u8().await?;
    let methods = counted(socket).await?;
    if !methods.contains(&BY_PASSWORD) {
        seen.refuse();
        return socket.write_all(&[VERSION, NO_METHOD]).await;
    }
    socket.write_all(&[VERSION, BY_PASSWORD]).await?;

    let _version = socket.read_u8().await?;
    let (user, password) = (counted(socket).await?, counted(socket).await?);
    if (&*user, &*password) != USER_AND_PASSWORD {
        seen.refuse();
        return socket.write_all(&[1, 1]).await;
    }
    socket.write_all(&[1, 0]).await?;

    let mut head = [0; 4];
    socket.read_exact(&mut head).await?;
    let name = match head[3] {
        1 => std::net::Ipv4Addr::from(socket.read_u32().await?).to_string(),
        3 => String::from_utf8_lossy(&counted(socket).await?).into_owned(),
        _ => std::net::Ipv6Addr::from(socket.read_u128().await?).to_string(),
    };
    let port = socket.read_u16().await?;
    let opened = seen.open(&name, port).await;
    // The response contains 0.0.0.0:0 as the proxy's own address, because no client uses that address.
    let answer = |code: u8| [VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0];
    let Ok(mut vendor) = opened else {
        return socket.write_all(&answer(4)).await;
    };
    socket.write_all(&answer(0)).await?;
    copy_bidirectional(socket, &mut vendor).await.map(drop)
}

/// Reads a length of one byte, and returns this number of the following bytes.
async fn counted(socket: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::from(socket.read_u8().await?)];
    socket.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// A certificate authority for one test, and a certificate that it has issued to a vendor for [`VENDOR_NAME`] and
/// 127.0.0.1. `openssl` creates both, and they are valid for two days.
pub struct Authority {
    dir: tempfile::TempDir,
}

impl Authority {
    pub fn new() -> Self {
        let made = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        std::fs::write(
            made.path("vendor.ext"),
            format!(
                "subjectAltName=DNS:{VENDOR_NAME},IP:127.0.0.1\nextendedKeyUsage=serverAuth\n\
                 basicConstraints=CA:FALSE\n"
            ),
        )
        .unwrap();
        let key = [
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
        ];
        let ca = [
            "-keyout", "ca.key", "-out", "ca.pem", "-x509", "-days", "30",
        ];
        let constraints = [
            "-subj",
            "/CN=Test authority",
            "-addext",
            "basicConstraints=critical,CA:TRUE",
            "-addext",
            "keyUsage=critical,keyCertSign",
        ];
        let vendor = [
            "-keyout",
            "vendor.key",
            "-out",
            "vendor.csr",
            "-subj",
            "/CN=Vendor",
        ];
        made.openssl(&[&["req"][..], &key[..], &ca[..], &constraints[..]].concat());
        made.openssl(&[&["req"][..], &key[..], &vendor[..]].concat());
        made.openssl(&[
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
            "30",
            "-extfile",
            "vendor.ext",
            "-out",
            "vendor.pem",
        ]);
        made
    }

    /// Returns the path of the authority's certificate, for the configuration.
    pub fn file(&self) -> String {
        self.path("ca.pem").display().to_string()
    }

    /// Returns the path of one of the authority's files: `ca.pem`, `vendor.pem` or `vendor.key`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs `openssl` in the folder with the authority's files.
    pub fn openssl(&self, args: &[&str]) {
        let made = Command::new("openssl")
            .args(args)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .output()
            .expect("openssl is installed");
        let reported = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "openssl {args:?}: {reported}");
    }

    /// Returns a TLS server that has the vendor's certificate and offers these protocols.
    pub fn acceptor(&self, protocols: &[&str]) -> TlsAcceptor {
        let certificate = CertificateDer::from_pem_file(self.path("vendor.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(self.path("vendor.key")).unwrap();
        let mut tls = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        tls.alpn_protocols = protocols
            .iter()
            .map(|name| name.as_bytes().to_vec())
            .collect();
        TlsAcceptor::from(Arc::new(tls))
    }
}

/// A request that the vendor has received, and the number of the request's connection.
#[derive(Clone, Debug)]
pub struct Taken {
    pub version: Version,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

type Answering = Arc<dyn Fn(&Taken) -> Response<Full<Bytes>> + Send + Sync>;

/// A vendor with HTTP/1.1 or HTTP/2, with or without TLS.
pub struct Vendor {
    address: SocketAddr,
    log: Arc<Log>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Log {
    connections: AtomicUsize,
    taken: Mutex<Vec<Taken>>,
}

impl Vendor {
    /// Starts a vendor without TLS. It uses HTTP/2 if a client begins with HTTP/2.
    pub async fn plain(
        answer: impl Fn(&Taken) -> Response<Full<Bytes>> + Send + Sync + 'static,
    ) -> Self {
        Self::start(None, Arc::new(answer)).await
    }

    /// Starts a vendor with TLS that offers these protocols.
    pub async fn secure(
        authority: &Authority,
        protocols: &[&str],
        answer: impl Fn(&Taken) -> Response<Full<Bytes>> + Send + Sync + 'static,
    ) -> Self {
        Self::start(Some(authority.acceptor(protocols)), Arc::new(answer)).await
    }

    async fn start(tls: Option<TlsAcceptor>, answer: Answering) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::new(Log::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_vendor(listener, tls, answer, Arc::clone(&log)));
        Self {
            address,
            log,
            _tasks: tasks,
        }
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of connections so far, including failed TLS handshakes.
    pub fn connections(&self) -> usize {
        self.log.connections.load(Ordering::SeqCst)
    }

    pub fn taken(&self) -> Vec<Taken> {
        self.log.taken.lock().unwrap().clone()
    }
}

async fn serve_vendor(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    answer: Answering,
    log: Arc<Log>,
) {
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        log.connections.fetch_add(1, Ordering::SeqCst);
        let (tls, answer, log) = (tls.clone(), Arc::clone(&answer), Arc::clone(&log));
        connections.spawn(async move {
            match tls {
                None => serve_connection(socket, answer, log).await,
                Some(tls) => {
                    if let Ok(socket) = tls.accept(socket).await {
                        serve_connection(socket, answer, log).await;
                    }
                }
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve_connection<S>(socket: S, answer: Answering, log: Arc<Log>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |req: Request<Incoming>| {
        let (answer, log) = (Arc::clone(&answer), Arc::clone(&log));
        async move {
            let (parts, body) = req.into_parts();
            let body = body.collect().await.map(|body| body.to_bytes());
            let taken = Taken {
                version: parts.version,
                path: parts.uri.path().to_owned(),
                headers: parts.headers,
                body: body.unwrap_or_default(),
            };
            let res = answer(&taken);
            log.taken.lock().unwrap().push(taken);
            Ok::<_, Infallible>(res)
        }
    });
    let _ = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(socket), service)
        .await;
}

/// Writes a secret into a file. Returns the reference `file:…` for the configuration.
pub fn secret_file(dir: &Path, text: &str) -> String {
    let path = dir.join("secret");
    std::fs::write(&path, text).unwrap();
    format!("file:{}", path.display())
}
