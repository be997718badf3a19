//! Sends emails by SMTP: events to receivers, and sign-in links.

use std::{fmt, time::Duration};

use http::uri::Authority;
use lettre::{
    AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor,
    message::{Mailbox, MessageBuilder, header::ContentType},
    transport::smtp::client::{Certificate, CertificateStore, Tls, TlsParameters},
};
use tollgate_ledger::happening::Event;

use super::{
    webhook::{Sent, failed, id},
    words,
};
use crate::{
    config::{MailConfig, MailTls, SmtpConfig},
    text::causes::chain,
};

/// Time limit for sending one email, including the time to connect to the server.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends emails through one SMTP server, from one sender address.
pub(crate) struct Mailer {
    server: AsyncSmtpTransport<Tokio1Executor>,
    host: String,
    from: Mailbox,
}

impl Mailer {
    pub(crate) fn new(config: &SmtpConfig) -> Self {
        let server = AsyncSmtpTransport::<Tokio1Executor>::from_url(&config.server);
        let mut server = server.expect("the configuration has checked the address");
        if let Some(tls) = tls(config) {
            server = server.tls(tls);
        }
        Self {
            server: server.timeout(Some(PATIENCE)).build(),
            host: config.host.clone(),
            from: config.from.clone(),
        }
    }

    /// Begins a plain-text email with the configured sender.
    pub(crate) fn message(&self) -> MessageBuilder {
        Message::builder()
            .from(self.from.clone())
            .header(ContentType::TEXT_PLAIN)
    }

    /// Sends an email once, within the time limit.
    ///
    /// # Errors
    /// If the email cannot be sent, or the server does not answer in time: the reason, for example the server's answer.
    pub(crate) async fn send(&self, message: Message) -> Result<(), String> {
        match tokio::time::timeout(PATIENCE, self.server.send(message)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(chain(&error)),
            Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
        }
    }
}

/// A receiver that gets events by email.
#[derive(Debug)]
pub(super) struct Mail {
    mailer: Mailer,
    to: Vec<Mailbox>,
    utc_offset_minutes: i32,
}

impl Mail {
    pub(super) fn new(config: &MailConfig) -> Self {
        Self {
            mailer: Mailer::new(&config.smtp),
            to: config.to.clone(),
            utc_offset_minutes: config.utc_offset_minutes,
        }
    }

    pub(super) fn host(&self) -> &str {
        &self.mailer.host
    }

    pub(super) async fn send(&self, event: &Event) -> Sent {
        let message = match self.message(event) {
            Ok(message) => message,
            Err(error) => {
                return failed(format!("the event cannot be written as an email: {error}"));
            }
        };
        let sent = self.mailer.send(message).await;
        sent.map_or_else(failed, |()| Sent::Taken)
    }

    /// Returns the email about an event. Its Message-ID is the same at each attempt, so that mail servers can drop a
    /// repeated email.
    fn message(&self, event: &Event) -> Result<Message, lettre::error::Error> {
        let domain = self.mailer.from.email.domain();
        let mut message = (self.mailer.message())
            .subject(words::subject(event, self.utc_offset_minutes))
            .message_id(Some(format!("<{}@{domain}>", id(event))));
        for to in &self.to {
            message = message.to(to.clone());
        }
        message.body(words::text(event, self.utc_offset_minutes))
    }
}

/// Returns the TLS settings that contain the configured certificate authorities; `None` if no authorities are
/// configured or TLS is off.
fn tls(config: &SmtpConfig) -> Option<Tls> {
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

/// Leaves out the server's address, which may contain a password.
impl fmt::Debug for Mailer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailer")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}
