//! Price conditions. A model may have prices that replace its default price for calls that meet a condition.

use std::{cmp::Reverse, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::calendar::rfc3339;

use super::time::{CallTimes, Hours, Moment, PossibleTimes, TimeCondition, Weekdays};

/// A vendor's word for how it serves a call, such as `priority`, in lower case. At most [`Label::BYTES_MAX`] bytes are
/// kept: a longer word is truncated, and is never equal to a word that fits. A label is empty if the vendor reported no
/// word.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Label([u8; Self::BYTES_MAX + 1]);

impl Label {
    /// The largest length of a label, in bytes.
    pub const BYTES_MAX: usize = 23;

    /// Creates a label from a vendor's word, which is truncated if it is too long.
    #[must_use]
    pub fn new(word: &str) -> Self {
        let mut bytes = [0; Self::BYTES_MAX + 1];
        // The last byte is used only for a truncated word. Therefore a truncated word differs from a short word that
        // begins in the same way.
        for (byte, letter) in bytes.iter_mut().zip(word.bytes()) {
            *byte = match letter {
                b'!'..=b'~' => letter.to_ascii_lowercase(),
                _ => b'?',
            };
        }
        Self(bytes)
    }

    /// Returns the label, in lower case.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0);
        // A label has only ASCII bytes, so this conversion cannot fail.
        std::str::from_utf8(&self.0[..end.unwrap_or(self.0.len())]).unwrap_or_default()
    }

    /// Returns whether the vendor reported no label.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0[0] == 0
    }

    /// Returns this service tier under one common name. Vendors use `fast` and `priority` for the same tier: a vendor
    /// may answer a request for `fast` with `priority`, or a request for `priority` with `fast`.
    #[must_use]
    pub fn as_tier(self) -> Self {
        match self.as_str() {
            "fast" => Self::new("priority"),
            _ => self,
        }
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl From<&str> for Label {
    fn from(word: &str) -> Self {
        Self::new(word)
    }
}

impl Serialize for Label {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Label {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|word| Self::new(&word))
    }
}

/// How a vendor served a call, or how the caller wants it to be served. Vendors' prices depend on these fields as well
/// as on the number of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Served {
    /// The service tier: the field `service_tier` of all formats.
    pub service_tier: Label,
    /// The speed: the field `speed` of the Messages format.
    pub speed: Label,
    /// The region: the field `inference_geo` of the Messages format.
    pub inference_geo: Label,
}

impl Served {
    /// Words that mean default service, in any of the fields. A request with one of these words has the default price.
    const USUAL: [&'static str; 9] = [
        "",
        "auto",
        "default",
        "standard",
        "standard_only",
        "on_demand",
        "global",
        "not_available",
        "none",
    ];
    /// Words for which every vendor charges more than its default price, in any of the fields.
    const DEARER: [&'static str; 5] = ["priority", "fast", "ultrafast", "scale", "us"];

    /// Returns a copy in which words for the default service are replaced by empty labels.
    #[must_use]
    pub fn unusual(self) -> Self {
        let reported = |label: Label| match Self::USUAL.contains(&label.as_str()) {
            true => Label::default(),
            false => label,
        };
        Self {
            service_tier: reported(self.service_tier),
            speed: reported(self.speed),
            inference_geo: reported(self.inference_geo),
        }
    }

    /// Returns how the call was served according to its vendor's response (`self`), completed from the request
    /// (`requested`). A tier that is missing in the response is taken from the request. Speed and region are taken from
    /// the request only if the response has neither of them.
    #[must_use]
    pub fn or_asked(self, requested: Self) -> Self {
        let has_tier = !self.service_tier.is_empty();
        let has_place = !self.speed.is_empty() || !self.inference_geo.is_empty();
        let place = if has_place { self } else { requested };
        Self {
            service_tier: if has_tier { self } else { requested }.service_tier,
            ..place
        }
    }

    pub(super) fn labels(&self) -> [Label; 3] {
        [self.service_tier, self.speed, self.inference_geo]
    }

    /// Returns whether a field has a word for which every vendor charges more than its default price.
    pub(super) fn is_dearer(&self) -> bool {
        let dearer = |label: &Label| Self::DEARER.contains(&label.as_str());
        self.labels().iter().any(dearer)
    }
}

/// The condition under which a price applies. A call meets it if every field that is set matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// The call has more input tokens than this number. Cached input and cache writes count as input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above_input_tokens: Option<u64>,
    /// The service tier in which the vendor served the call.
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub service_tier: Label,
    /// The speed at which the vendor served the call.
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub speed: Label,
    /// The region in which the vendor served the call.
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub inference_geo: Label,
    /// The moment of the call that `hours_at` names is within these hours of the day (UTC).
    #[serde(default, skip_serializing_if = "Hours::is_every")]
    pub hours_utc: Hours,
    /// The moment of the call that `hours_at` names is on one of these weekdays (UTC).
    #[serde(default, skip_serializing_if = "Weekdays::is_every")]
    pub weekdays: Weekdays,
    /// Which moment of the call `hours_utc` and `weekdays` are compared with, for example the arrival of the request.
    #[serde(default, skip_serializing_if = "Moment::is_request")]
    pub hours_at: Moment,
    /// The request arrived at this Unix time in milliseconds, or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_from_ms: Option<u64>,
}

impl Condition {
    pub(super) fn labels(&self) -> [Label; 3] {
        [self.service_tier, self.speed, self.inference_geo]
    }

    /// Returns whether no field is set, so that every call meets the condition.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    const fn time(&self) -> TimeCondition {
        TimeCondition {
            hours: self.hours_utc,
            weekdays: self.weekdays,
            at: self.hours_at,
            valid_from_ms: self.valid_from_ms,
        }
    }

    /// Returns whether the condition limits the hours of the day or the weekdays.
    #[must_use]
    pub fn has_hours(&self) -> bool {
        self.time().has_hours()
    }

    /// Returns whether the condition depends on when the call is made.
    #[must_use]
    pub fn has_time(&self) -> bool {
        !self.time().is_always()
    }

    /// Returns whether a call at these times meets the time limits of the condition. The other fields are not checked.
    #[must_use]
    pub fn holds_at(&self, times: &CallTimes) -> bool {
        self.time().holds(times)
    }

    /// Returns whether a call meets the condition: a call with this number of input tokens, served in this way, at
    /// these times.
    #[must_use]
    pub fn holds(&self, input_tokens: u64, served: &Served, times: &CallTimes) -> bool {
        self.allows(input_tokens, served) && self.holds_at(times)
    }

    /// Returns whether the condition allows this number of input tokens and this service, at some time.
    fn allows(&self, input_tokens: u64, served: &Served) -> bool {
        self.above_input_tokens.is_none_or(|max| input_tokens > max)
            && std::iter::zip(self.labels(), served.labels())
                .all(|(needed, served)| needed.is_empty() || needed == served)
    }

    /// Returns whether the condition may apply to a call that has at most `input_tokens_max` input tokens and requests
    /// this service. The vendor may serve the call with its default service instead. If `times` is `None`, the call may
    /// be made at any time.
    pub(super) fn can_hold(
        &self,
        input_tokens_max: u64,
        requested: &Served,
        times: Option<&PossibleTimes>,
    ) -> bool {
        self.allows(input_tokens_max, requested) && self.time().can_hold(times)
    }

    /// Returns whether the condition certainly applies to a call at these times, however many input tokens it has and
    /// however the vendor serves it.
    pub(super) fn must_hold(&self, times: Option<&PossibleTimes>) -> bool {
        self.above_input_tokens.is_none()
            && self.labels().iter().all(Label::is_empty)
            && self.time().must_hold(times)
    }

    /// Returns the rank of this condition. If a call meets several conditions, the price of the highest rank applies:
    /// the condition with the most labels, then with the fewest minutes per week, then with the latest `valid_from_ms`,
    /// then with the highest `above_input_tokens`.
    #[must_use]
    pub fn rank(&self) -> (usize, Reverse<u32>, Option<u64>, Option<u64>) {
        let reported = self.labels().into_iter().filter(|label| !label.is_empty());
        let minutes = self.time().minutes_per_week();
        (
            reported.count(),
            Reverse(minutes),
            self.valid_from_ms,
            self.above_input_tokens,
        )
    }

    /// Returns the condition that a call meets if it meets both `self` and `other`; `None` if no call can meet both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Option<Self> {
        let both = |one: Label, other: Label| match (one.is_empty(), other.is_empty()) {
            (true, _) => Some(other),
            (_, true) => Some(one),
            _ => (one == other).then_some(one),
        };
        let time = self.time().and(&other.time())?;
        Some(Self {
            hours_utc: time.hours,
            weekdays: time.weekdays,
            hours_at: time.at,
            valid_from_ms: time.valid_from_ms,
            above_input_tokens: self.above_input_tokens.max(other.above_input_tokens),
            service_tier: both(self.service_tier, other.service_tier)?,
            speed: both(self.speed, other.speed)?,
            inference_geo: both(self.inference_geo, other.inference_geo)?,
        })
    }
}

/// Writes the condition for people, for example `above_input_tokens 272000, service_tier flex`.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let above = self.above_input_tokens.map(|max| max.to_string());
        let valid_from = self.valid_from_ms.map(rfc3339);
        let hours_at = match self.hours_at {
            Moment::Request => "",
            at => at.as_str(),
        };
        let parts = [
            ("above_input_tokens", above.unwrap_or_default()),
            ("service_tier", self.service_tier.to_string()),
            ("speed", self.speed.to_string()),
            ("inference_geo", self.inference_geo.to_string()),
            ("hours_utc", self.hours_utc.spans().join(" ")),
            ("weekdays", self.weekdays.names().join(" ")),
            ("hours_at", hours_at.to_owned()),
            ("valid_from", valid_from.unwrap_or_default()),
        ];
        let mut between = "";
        for (name, value) in parts.iter().filter(|(_, value)| !value.is_empty()) {
            write!(f, "{between}{name} {value}")?;
            between = ", ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_is_another_name_of_the_priority_tier() {
        for word in ["fast", "FAST", "priority"] {
            assert_eq!(Label::new(word).as_tier().as_str(), "priority");
        }
        assert_eq!(Label::new("ultrafast").as_tier().as_str(), "ultrafast");
    }

    #[test]
    fn labels_of_price_conditions_ignore_case_and_long_labels_stay_distinct() {
        assert_eq!(Label::new("Priority"), Label::new("priority"));
        assert_eq!(Label::new("priority").as_str(), "priority");
        assert!(Label::new("").is_empty());
        let (just, over) = ("x".repeat(23), "x".repeat(24));
        assert_eq!(Label::new(&just).as_str(), just);
        assert_ne!(Label::new(&just), Label::new(&over));
        assert_eq!(Label::new("a b\u{0}ю").as_str(), "a?b???");
    }

    #[test]
    fn call_meets_a_price_condition_only_if_it_matches_every_field() {
        let flex_and_long = Condition {
            above_input_tokens: Some(100),
            service_tier: "flex".into(),
            ..Condition::default()
        };
        let flex = Served {
            service_tier: "flex".into(),
            inference_geo: "us".into(),
            ..Served::default()
        };
        let now = CallTimes::at(0);
        assert!(flex_and_long.holds(101, &flex, &now));
        assert!(!flex_and_long.holds(100, &flex, &now));
        assert!(!flex_and_long.holds(101, &Served::default(), &now));
        assert!(Condition::default().holds(0, &flex, &now));
        assert_eq!(
            flex_and_long.to_string(),
            "above_input_tokens 100, service_tier flex"
        );
        let json = r#"{"above_input_tokens":100,"service_tier":"flex"}"#;
        assert_eq!(serde_json::to_string(&flex_and_long).unwrap(), json);
        assert_eq!(
            serde_json::from_str::<Condition>(json).unwrap(),
            flex_and_long
        );
    }

    #[test]
    fn two_price_conditions_are_combined_unless_they_exclude_each_other() {
        let tier = |word: &str| Condition {
            service_tier: word.into(),
            ..Condition::default()
        };
        let long = Condition {
            above_input_tokens: Some(5),
            ..Condition::default()
        };
        assert_eq!(tier("flex").and(&tier("priority")), None);
        let both = tier("flex").and(&long).unwrap();
        assert_eq!(
            (both.above_input_tokens, both.service_tier),
            (Some(5), "flex".into())
        );
        assert!(both.rank() > tier("flex").rank() && tier("flex").rank() > long.rank());
    }

    #[test]
    fn every_name_of_the_default_service_tier_selects_the_default_price() {
        let served = |word: &str| Served {
            service_tier: word.into(),
            ..Served::default()
        };
        for word in Served::USUAL {
            assert_eq!(served(word).unusual(), Served::default());
        }
        assert_eq!(served("priority").unusual(), served("priority"));
        assert!(served("priority").is_dearer() && !served("flex").is_dearer());
    }
}
