use std::time::SystemTime;

use bytes::Bytes;

use super::messages;
use crate::{
    call::{Attempt, Format},
    error::Error,
    facts::RequestNumber,
    formats::{
        self,
        origin::Origin,
        responses::requested::RequestEcho,
        turn::{Translator, request::translate},
        wire::{AnswerCx, RequestCx},
    },
};

/// The format of the caller and the format of the vendor, which differ.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    caller: Format,
    vendor: Format,
}

impl Pair {
    /// Returns the translation that an attempt needs; `None` if caller and vendor use the same format.
    pub(super) fn of(attempt: &Attempt) -> Option<Self> {
        let (caller, vendor) = (attempt.priced.call.format, attempt.route.vendor.format);
        (caller != vendor).then_some(Self { caller, vendor })
    }

    /// Translates the body of the request to the vendor's format.
    pub(super) fn request(
        self,
        body: &Bytes,
        vendor: &str,
        cx: &RequestCx<'_>,
    ) -> Result<Bytes, Error> {
        translate(self.caller, self.vendor, body, vendor, cx)
    }
}

/// The translation of an answer, with the data that it needs.
#[derive(Clone, Debug)]
pub(super) struct Answering {
    vendor: Format,
    created: u64,
    caller: Caller,
}

/// The format in which an answer is written, with the data that its writer needs.
#[derive(Clone, Debug)]
enum Caller {
    Chat(AnswerCx, Origin),
    Messages(AnswerCx, Origin),
    Responses(Box<RequestEcho>),
}

impl Answering {
    /// Returns the translation of the answer to this attempt; `None` if caller and vendor use the same format.
    ///
    /// # Errors
    /// Those of translating the request.
    pub(super) fn of(
        attempt: &Attempt,
        number: Option<RequestNumber>,
    ) -> Result<Option<Self>, Error> {
        let Some(Pair { vendor, caller }) = Pair::of(attempt) else {
            return Ok(None);
        };
        let (call, name) = (&attempt.priced.call, &attempt.route.vendor.name);
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let created = now.as_secs();
        let cx = AnswerCx {
            created,
            usage_asked: call.usage_asked,
            thinking_asked: caller == Format::Messages && messages::thinking_asked(&call.body),
        };
        let origin = || match vendor {
            // These vendors get the caller's names of tools.
            Format::Messages => Origin::default(),
            Format::Chat | Format::Responses => Origin::new(name, &call.body),
        };
        let caller = match caller {
            Format::Chat => Caller::Chat(cx, origin()),
            Format::Messages => Caller::Messages(cx, origin()),
            Format::Responses => {
                let number = number.unwrap_or_else(RequestNumber::now_v7);
                let requested =
                    RequestEcho::read(&call.body, number.uuid().simple(), created, name)?;
                Caller::Responses(Box::new(requested))
            }
        };
        Ok(Some(Self {
            vendor,
            created,
            caller,
        }))
    }

    /// Returns the format of the caller.
    pub(super) const fn caller(&self) -> Format {
        match self.caller {
            Caller::Chat(..) => Format::Chat,
            Caller::Messages(..) => Format::Messages,
            Caller::Responses(_) => Format::Responses,
        }
    }

    /// Returns the translator of a plain answer or of a stream.
    pub(super) fn translator(self, plain: bool) -> Translator {
        let (vendor, created) = (self.vendor, self.created);
        match self.caller {
            Caller::Chat(cx, origin) => {
                let writer = formats::chat::Writer::new(origin, cx, plain);
                Translator::new(vendor, created, writer)
            }
            Caller::Messages(cx, origin) => {
                let writer = formats::messages::Writer::new(origin, cx, plain);
                Translator::new(vendor, created, writer)
            }
            Caller::Responses(requested) => {
                let writer = formats::responses::Writer::new(*requested, plain);
                Translator::new(vendor, created, writer)
            }
        }
    }
}
