//! The callers' layers without the gateway: what of its cost is theirs, and what they cost a service of somebody's own. In
//! the gateway's order, over hyper's server, with the ledger in memory; nothing is logged, counted or routed.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::Request;
use hyper::body::Incoming;
use tokio::{runtime, task::JoinSet};
use tollgate_layers::{
    auth::AuthLayer,
    facts::ClientAddr,
    failover::{FailoverLayer, FailoverSettings, Health},
    in_flight::InFlightLayer,
    parse::{ParseLayer, ParseLimits},
    passthrough::PassthroughLayer,
    rate_limit::{Gcra, RateLimitLayer},
    request_number::RequestNumberLayer,
    reserve::{
        HoldMode, ReserveLayer, Settler, SettlerSettings, memory::MemoryLedger, tokens::ByTokens,
    },
    respond::{Language, RespondLayer},
    select::SelectLayer,
    translate::TranslateLayer,
    upstream::Upstream,
};
use tower::{ServiceBuilder, ServiceExt};

use crate::{
    fixtures::{
        Rich, by_address, funded_key, priced,
        vendor::{listen, serve},
    },
    gateway::is_charge,
    role,
};

/// Longer than any call takes.
const HOLD_TTL: Duration = Duration::from_secs(960);
const CALL_TIME_MAX: Duration = Duration::from_secs(900);
const ANSWER_BYTES_MAX: usize = 32 << 20;

/// Runs them before `vendor`, and says at the end how many calls they have charged.
pub(crate) fn play(vendor: SocketAddr) -> anyhow::Result<()> {
    role::play(&mut runtime::Builder::new_multi_thread(), async {
        let ledger = MemoryLedger::new();
        let key = funded_key(&ledger, "bench").await?;
        let charged = Arc::new(AtomicU64::new(0));
        let (settler, settling) = {
            let charged = Arc::clone(&charged);
            Settler::new(ledger.clone(), SettlerSettings::default(), move |event| {
                if is_charge(event) {
                    charged.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let mut settles = JoinSet::new();
        settles.spawn(settling.run());
        let service = ServiceBuilder::new()
            .layer(RequestNumberLayer::new())
            .layer(RespondLayer::new(Language::Ru))
            .layer(InFlightLayer::new(50_000))
            .layer(RateLimitLayer::new(Gcra::new(100_000), by_address))
            .layer(AuthLayer::new(ledger.clone()))
            .layer(ParseLayer::new(ParseLimits::default()))
            .layer(SelectLayer::new(Arc::new(priced(vendor)), Rich))
            .layer(ReserveLayer::new(
                ledger,
                ByTokens::new(HoldMode::Usual, 5_000, 50_000),
                settler,
                HOLD_TTL,
            ))
            .layer(FailoverLayer::new(
                Health::new(),
                FailoverSettings::default(),
            ))
            .layer(TranslateLayer::new())
            .layer(PassthroughLayer::new(ANSWER_BYTES_MAX))
            .service(Upstream::new(CALL_TIME_MAX));

        let (listener, address) = listen().await?;
        role::say("address", &address);
        role::say("key", &key.expose());
        role::ready();
        let client = ClientAddr(IpAddr::from([127, 0, 0, 1]));
        let answer = move |mut req: Request<Incoming>| {
            req.extensions_mut().insert(client);
            service.clone().oneshot(req)
        };
        tokio::select! {
            served = serve(listener, answer) => served?,
            () = role::until_told_to_stop() => {}
        }
        // Whoever has held the settler is gone with the connections: it ends when it has settled all.
        settles.join_all().await;
        role::say("charged", &charged.load(Ordering::Relaxed));
        Ok(())
    })
}
