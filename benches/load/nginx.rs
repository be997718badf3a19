//! nginx as a reverse proxy before the vendor: what others who do nothing else cost.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use tokio::time::Instant;

/// How long it may take to listen.
const PATIENCE: Duration = Duration::from_secs(5);

/// Stopped when dropped.
pub(crate) struct Nginx {
    process: Child,
    pub(crate) address: SocketAddr,
}

impl Nginx {
    pub(crate) fn is_installed() -> bool {
        let asked = Command::new("nginx")
            .arg("-v")
            .stderr(Stdio::null())
            .status();
        asked.is_ok_and(|status| status.success())
    }

    /// Starts it with its files in a folder, and waits until it listens.
    pub(crate) fn start(folder: &Path, vendor: SocketAddr) -> anyhow::Result<Self> {
        // Free a moment ago; nothing else takes ports here.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let file = folder.join("nginx.conf");
        fs::write(&file, config(vendor, address))?;
        let process = Command::new("nginx")
            .arg("-p")
            .arg(folder)
            .arg("-c")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start nginx")?;
        let mut nginx = Self { process, address };
        let began = Instant::now();
        // It listens before it has a worker.
        let workers = thread::available_parallelism()?.get();
        while TcpStream::connect(address).is_err() || nginx.pids()?.len() <= workers {
            ensure!(
                nginx.process.try_wait()?.is_none() && began.elapsed() < PATIENCE,
                "nginx does not listen: see error.log in {}",
                folder.display()
            );
            thread::sleep(Duration::from_millis(5));
        }
        Ok(nginx)
    }

    /// Its master and its workers.
    pub(crate) fn pids(&self) -> anyhow::Result<Vec<u32>> {
        let master = self.process.id();
        let children = fs::read_to_string(format!("/proc/{master}/task/{master}/children"))?;
        let workers: Result<Vec<u32>, _> = children.split_whitespace().map(str::parse).collect();
        Ok([vec![master], workers?].concat())
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Killed, its workers would live on: told to stop, it takes them along.
        let pid = self.process.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let _ = self.process.wait();
    }
}

/// As many workers as cores, connections kept at both ends, answers passed on as they come, no log.
fn config(vendor: SocketAddr, address: SocketAddr) -> String {
    format!(
        "daemon off;\nworker_processes auto;\nerror_log error.log;\npid nginx.pid;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n\
         access_log off;\n\
         client_body_temp_path body;\nproxy_temp_path proxy;\nfastcgi_temp_path f;\nuwsgi_temp_path u;\n\
         scgi_temp_path s;\n\
         upstream vendor {{ server {vendor}; keepalive 256; keepalive_requests 1000000000; }}\n\
         server {{\n\
         listen {address};\n\
         keepalive_requests 1000000000;\n\
         client_max_body_size 0;\nclient_body_buffer_size 128k;\n\
         location / {{\n\
         proxy_pass http://vendor;\nproxy_http_version 1.1;\nproxy_set_header Connection \"\";\n\
         proxy_buffering off;\n\
         }}\n}}\n}}\n"
    )
}
