//! Sends an event as a mail.

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

/// The time limit for sending one mail, including the time to connect.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends mails through an SMTP server.
pub(super) struct Mail {
    server: AsyncSmtpTransport<Tokio1Executor>,
    host: String,
    from: Mailbox,
    to: Vec<Mailbox>,
    utc_offset_minutes: i32,
}

impl Mail {
    pub(super) fn new(config: &MailConfig) -> Self {
        let server = AsyncSmtpTransport::<Tokio1Executor>::from_url(&config.server);
        let mut server = server.expect("the configuration has checked the address");
        if let Some(tls) = tls(config) {
            server = server.tls(tls);
        }
        Self {
            server: server.timeout(Some(PATIENCE)).build(),
            host: config.host.clone(),
            from: config.from.clone(),
            to: config.to.clone(),
            utc_offset_minutes: config.utc_offset_minutes,
        }
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) async fn send(&self, event: &Event) -> Sent {
        let message = match self.message(event) {
            Ok(message) => message,
            Err(error) => return failed(format!("the event cannot be written as a mail: {error}")),
        };
        let sent = tokio::time::timeout(PATIENCE, self.server.send(message));
        match sent.await {
            Ok(Ok(_)) => Sent::Taken,
            Ok(Err(error)) => failed(chain(&error)),
            Err(_) => failed(format!("no answer within {} s", PATIENCE.as_secs())),
        }
    }

    /// Returns the message. Its Message-ID is the same at each attempt to send it, so that mailboxes can drop a
    /// repeated mail.
    fn message(&self, event: &Event) -> Result<Message, lettre::error::Error> {
        let domain = self.from.email.domain();
        let mut message = Message::builder()
            .from(self.from.clone())
            .subject(words::subject(event, self.utc_offset_minutes))
            .message_id(Some(format!("<{}@{domain}>", id(event))))
            .header(ContentType::TEXT_PLAIN);
        for to in &self.to {
            message = message.to(to.clone());
        }
        message.body(words::text(event, self.utc_offset_minutes))
    }
}

/// Returns TLS settings with the certificate authorities of the configuration; `None` if it names no authorities, or
/// TLS is off.
fn tls(config: &MailConfig) -> Option<Tls> {
    let certificate = Certificate::from_pem(config.authorities.as_ref()?);
    let host = config.host.parse::<Authority>();
    let host = host.map_or_else(|_| config.host.clone(), |host| host.host().to_owned());
    let parameters = TlsParameters::builder(host)
        .certificate_store(CertificateStore::None)
        .add_root_certificate(certificate.expect("the configuration has checked the PEM"))
        .build()
        .expect("the configuration has checked the certificates");
    match config.tls {
        MailTls::Always => Some(Tls::Wrapper(parameters)),
        MailTls::Required => Some(Tls::Required(parameters)),
        MailTls::Offered => Some(Tls::Opportunistic(parameters)),
        MailTls::Never => None,
    }
}

/// Hides the server's address, which may contain a password.
impl fmt::Debug for Mail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mail")
            .field("host", &self.host)
            .field("to", &self.to)
            .finish_non_exhaustive()
    }
}
