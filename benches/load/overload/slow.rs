//! Two thousand slow connections: heads that come by a byte a second, silence, HTTP/2 without a request. What
//! the gateway closes is opened again. Its limits are the default ones.

use std::{net::SocketAddr, time::Duration};

use anyhow::ensure;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpSocket, TcpStream},
    runtime,
    task::JoinSet,
    time::sleep,
};

use crate::{
    child::Child,
    client::load,
    gateway::Gateway,
    options::{Options, RoleName},
    report::{self, Bounds, millis, quantile},
    role,
};

/// Processes, and connections of each: some systems let no process have two thousand.
const CLIENTS: u16 = 4;
const OF_EACH: u16 = 500;
/// Fewer than the gateway allows to one.
const OF_AN_ADDRESS: u16 = 200;
/// The well-behaved client's calls.
const PER_SECOND: u32 = 200;
/// The machine's own noise is in every round: the best one counts.
const ROUNDS: u32 = 3;
const GROWTH_KIB_MAX: u64 = 256 * 1024;

pub(crate) async fn run(options: &Options, bounds: &mut Bounds) -> anyhow::Result<()> {
    let vendor = Child::start(RoleName::Vendor, &[("--vendor-ms", "0")])?;
    let gateway = Gateway::start(vendor.address()?, "").await?;
    println!("slow: {PER_SECOND} calls a second, alone and among 2000 slow connections\n");
    report::head();
    load(&gateway, PER_SECOND, Duration::from_secs(2)).await?;
    let (mut best, mut grown, mut missed) = (f64::INFINITY, 0, 0);
    for round in 0..ROUNDS {
        let alone = load(&gateway, PER_SECOND, options.length()).await?;
        report::line("alone", &alone);
        let slow = (0..CLIENTS)
            .map(|client| start(gateway.address, client))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let among = load(&gateway, PER_SECOND, options.length()).await?;
        drop(slow);
        report::line("among slow ones", &among);
        let times = millis(quantile(&among.served, 0.99)) / millis(quantile(&alone.served, 0.99));
        best = best.min(times);
        missed += among.refused.len() + among.others.len();
        // Later rounds begin with what the first one has left.
        if round == 0 {
            grown = among.rss_kib.saturating_sub(alone.rss_kib);
        }
    }
    gateway.settled().await?;
    println!();
    bounds.at_most("among slow connections: not served", missed as f64, 0.0);
    bounds.at_most("served p99, by what it is alone", best, 2.0);
    bounds.at_most(
        "memory for the slow connections, KiB",
        grown as f64,
        GROWTH_KIB_MAX as f64,
    );
    Ok(())
}

/// A process with some of the slow connections.
fn start(to: SocketAddr, client: u16) -> anyhow::Result<Child> {
    let from = (1 + client * (OF_EACH.div_ceil(OF_AN_ADDRESS))).to_string();
    let to = to.to_string();
    let child = Child::start(
        RoleName::Slow,
        &[("--to", to.as_str()), ("--from", from.as_str())],
    )?;
    let open: u16 = child.said("open")?.parse()?;
    ensure!(open == OF_EACH, "only {open} of {OF_EACH} could be opened");
    Ok(child)
}

/// Keeps the connections, from some addresses that begin with the `from`th.
pub(crate) fn play(to: SocketAddr, from: u16) -> anyhow::Result<()> {
    role::play(&mut runtime::Builder::new_current_thread(), async {
        let mut connections = JoinSet::new();
        let mut open = 0;
        for n in 0..OF_EACH {
            let address = from + n / OF_AN_ADDRESS;
            let Ok(socket) = connect(address, to).await else {
                break;
            };
            open += 1;
            connections.spawn(async move {
                let mut socket = socket;
                loop {
                    drip(&mut socket, n).await;
                    // Closed: once more.
                    socket = loop {
                        sleep(Duration::from_secs(1)).await;
                        if let Ok(socket) = connect(address, to).await {
                            break socket;
                        }
                    };
                }
            });
        }
        role::say("open", &open);
        role::ready();
        role::until_told_to_stop().await;
        Ok(())
    })
}

/// A connection from an address of this machine: to the gateway each of them is another client.
async fn connect(address: u16, to: SocketAddr) -> std::io::Result<TcpStream> {
    let [high, low] = address.to_be_bytes();
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([127, 1, high, low], 0)))?;
    socket.connect(to).await
}

/// Says little and slowly, until the gateway closes.
async fn drip(socket: &mut TcpStream, n: u16) {
    let (said, more): (&[u8], &[u8]) = match n % 4 {
        0 | 1 => (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway.example\r\nx: ",
            b"x",
        ),
        2 => (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", b""),
        _ => (b"", b""),
    };
    if socket.write_all(said).await.is_err() {
        return;
    }
    let mut buffer = [0; 512];
    loop {
        sleep(Duration::from_secs(1)).await;
        if socket.write_all(more).await.is_err() {
            return;
        }
        // What it says to that is of no interest; that it has closed is.
        match socket.try_read(&mut buffer) {
            Ok(0) => return,
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return,
            _ => {}
        }
    }
}
