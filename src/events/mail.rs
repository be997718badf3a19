//! An event as a mail.

use std::{fmt, time::Duration};

use http::uri::Authority;
use lettre::{
    AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor,
    message::{Mailbox, header::ContentType},
    transport::smtp::client::{Certificate, CertificateStore, Tls, TlsParameters},
};
use tollgate_ledger::happening::Event;

use super::{
    webhook::{Sent, failed, id},
    words,
};
use crate::{
    config::{MailConfig, MailTls},
    text::causes::chain,
};

/// For all of a mail, from the connection on.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends mails by a server.
pub(super) struct Mail {
    server: AsyncSmtpTransport<Tokio1Executor>,
    host: String,
    from: Mailbox,
    to: Vec<Mailbox>,
}

impl Mail {
    pub(super) fn new(config: &MailConfig) -> Self {
        let server = AsyncSmtpTransport::<Tokio1Executor>::from_url(&config.server);
        let mut server = server.expect("an address that was checked");
        if let Some(tls) = tls(config) {
            server = server.tls(tls);
        }
        Self {
            server: server.timeout(Some(PATIENCE)).build(),
            host: config.host.clone(),
            from: config.from.clone(),
            to: config.to.clone(),
        }
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) async fn send(&self, event: &Event) -> Sent {
        let message = match self.message(event) {
            Ok(message) => message,
            Err(error) => return failed(format!("no mail can be made of it: {error}")),
        };
        let sent = tokio::time::timeout(PATIENCE, self.server.send(message));
        match sent.await {
            Ok(Ok(_)) => Sent::Taken,
            Ok(Err(error)) => failed(chain(&error)),
            Err(_) => failed(format!("no answer within {} s", PATIENCE.as_secs())),
        }
    }

    /// With the same id whenever it is sent, by which mailboxes know a repeat.
    fn message(&self, event: &Event) -> Result<Message, lettre::error::Error> {
        let domain = self.from.email.domain();
        let mut message = Message::builder()
            .from(self.from.clone())
            .subject(words::subject(event))
            .message_id(Some(format!("<{}@{domain}>", id(event))))
            .header(ContentType::TEXT_PLAIN);
        for to in &self.to {
            message = message.to(to.clone());
        }
        message.body(words::text(event))
    }
}

/// TLS by the authorities that the configuration names; `None` where it names none, or there is no TLS.
fn tls(config: &MailConfig) -> Option<Tls> {
    let certificate = Certificate::from_pem(config.authorities.as_ref()?);
    let host = config.host.parse::<Authority>();
    let host = host.map_or_else(|_| config.host.clone(), |host| host.host().to_owned());
    let parameters = TlsParameters::builder(host)
        .certificate_store(CertificateStore::None)
        .add_root_certificate(certificate.expect("PEM that was checked"))
        .build()
        .expect("certificates that were checked");
    match config.tls {
        MailTls::Always => Some(Tls::Wrapper(parameters)),
        MailTls::Required => Some(Tls::Required(parameters)),
        MailTls::Offered => Some(Tls::Opportunistic(parameters)),
        MailTls::Never => None,
    }
}

/// The server's address may hold a password.
impl fmt::Debug for Mail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mail")
            .field("host", &self.host)
            .field("to", &self.to)
            .finish_non_exhaustive()
    }
}
