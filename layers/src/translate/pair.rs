use std::time::SystemTime;

use crate::{
    call::{Attempt, Format},
    error::Error,
    facts::RequestNumber,
    formats::{
        messages, origin::Origin, responses::requested::RequestEcho, turn::Translator,
        wire::AnswerCx,
    },
};

/// The format of the caller and the format of the vendor, which differ.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) caller: Format,
    pub(super) vendor: Format,
}

impl Pair {
    /// Returns the pair of formats of an attempt. `None` if caller and vendor use the same format.
    pub(super) fn of(attempt: &Attempt) -> Option<Self> {
        let (caller, vendor) = (attempt.priced.call.format, attempt.route.vendor.format);
        (caller != vendor).then_some(Self { caller, vendor })
    }
}

/// The translation of one response, with the data that it needs.
#[derive(Clone, Debug)]
pub(super) struct Answering {
    pub(super) pair: Pair,
    caller: Caller,
}

/// The format in which the response is written, with the data that the format's writer needs.
#[derive(Clone, Debug)]
enum Caller {
    Chat(AnswerCx, Origin),
    Messages(AnswerCx, Origin),
    Responses(Box<RequestEcho>),
}

impl Answering {
    /// Returns the translation of the response to this attempt; `None` if caller and vendor use the same format.
    ///
    /// # Errors
    /// The errors of translating the request.
    pub(super) fn of(
        attempt: &Attempt,
        number: Option<RequestNumber>,
    ) -> Result<Option<Self>, Error> {
        let Some(pair) = Pair::of(attempt) else {
            return Ok(None);
        };
        let Pair { vendor, caller } = pair;
        let (call, name) = (&attempt.priced.call, &attempt.route.vendor.name);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let created = now.unwrap_or_default().as_secs();
        let cx = AnswerCx {
            created,
            usage_asked: call.usage_asked,
            thinking_asked: caller == Format::Messages && messages::thinking_asked(&call.body),
        };
        let origin = || match vendor {
            // Vendors of the Messages format get the caller's names of tools.
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
        Ok(Some(Self { pair, caller }))
    }

    /// Returns the translator of the response. If `plain`, the response is not a stream.
    pub(super) fn translator(self, plain: bool) -> Translator {
        let vendor = self.pair.vendor;
        match self.caller {
            Caller::Chat(cx, origin) => Translator::to_chat(vendor, origin, cx, plain),
            Caller::Messages(cx, origin) => Translator::to_messages(vendor, origin, cx, plain),
            Caller::Responses(requested) => Translator::to_responses(vendor, *requested, plain),
        }
    }
}
