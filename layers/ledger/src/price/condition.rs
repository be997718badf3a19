//! Conditions under which a model has a price other than its usual one.

use std::{cmp::Reverse, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::calendar::rfc3339;

use super::time::{CallTimes, Hours, Moment, PossibleTimes, TimeCondition, Weekdays};

/// A vendor's word for how it serves a call, such as `priority`: at most [`Label::BYTES_MAX`] bytes, compared without
/// case. A longer word is truncated, and differs from every word that fits. Empty if the vendor reported no such word.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Label([u8; Self::BYTES_MAX + 1]);

impl Label {
    /// The length of the longest label.
    pub const BYTES_MAX: usize = 23;

    /// Builds a label; truncates a word that is too long.
    #[must_use]
    pub fn new(word: &str) -> Self {
        let mut bytes = [0; Self::BYTES_MAX + 1];
        // Only a truncated word uses the last byte, so that it differs from an untruncated word with the same
        // beginning.
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
        // The label has only ASCII bytes, so that this cannot fail.
        std::str::from_utf8(&self.0[..end.unwrap_or(self.0.len())]).unwrap_or_default()
    }

    /// Returns whether the vendor reported no label.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0[0] == 0
    }

    /// Returns the label as a service tier. Vendors use `fast` and `priority` for the same tier, and may answer a
    /// request for one of them with the other.
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

/// How a call was served, or should be served. Vendors' prices depend on these fields and on the counted tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Served {
    /// The tier: `service_tier` in both formats.
    pub service_tier: Label,
    /// The speed: `speed` in the messages format.
    pub speed: Label,
    /// The region: `inference_geo` in the messages format.
    pub inference_geo: Label,
}

impl Served {
    /// Words for the usual service, in any of the fields. They select the usual price.
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
    /// Words that every vendor bills above the usual price, in any of the fields.
    const DEARER: [&'static str; 5] = ["priority", "fast", "ultrafast", "scale", "us"];

    /// Returns a copy in which words for the usual service are empty.
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

    /// How a call was served, according to its vendor. A tier that the vendor does not report is taken from the request
    /// (`asked`); speed and region are taken from it only if the vendor reports neither.
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

    fn labels(&self) -> [Label; 3] {
        [self.service_tier, self.speed, self.inference_geo]
    }

    /// Returns whether a field has a word that every vendor bills above the usual price.
    pub(super) fn is_dearer(&self) -> bool {
        let dearer = |label: &Label| Self::DEARER.contains(&label.as_str());
        self.labels().iter().any(dearer)
    }
}

/// The condition under which a price applies: every field that is set must match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// The call has more input tokens than this, including cached input and cache writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above_input_tokens: Option<u64>,
    /// The tier in which the vendor served the call.
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub service_tier: Label,
    /// The speed at which the vendor served the call.
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub speed: Label,
    /// The region in which the vendor served the call.
    #[serde(default, skip_serializing_if = "Label::is_empty")]
    pub inference_geo: Label,
    /// The call's moment is within these hours.
    #[serde(default, skip_serializing_if = "Hours::is_every")]
    pub hours_utc: Hours,
    /// The call's moment is on one of these days.
    #[serde(default, skip_serializing_if = "Weekdays::is_every")]
    pub weekdays: Weekdays,
    /// The moment that hours and weekdays are compared with.
    #[serde(default, skip_serializing_if = "Moment::is_request")]
    pub hours_at: Moment,
    /// The request arrived at this time or later, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_from_ms: Option<u64>,
}

impl Condition {
    fn labels(&self) -> [Label; 3] {
        [self.service_tier, self.speed, self.inference_geo]
    }

    /// Returns whether no field is set, which means the usual price.
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

    /// Returns whether the condition has hours or weekdays.
    #[must_use]
    pub fn has_hours(&self) -> bool {
        self.time().has_hours()
    }

    /// Returns whether the condition depends on the time of a call.
    #[must_use]
    pub fn has_time(&self) -> bool {
        !self.time().is_always()
    }

    /// Returns whether these times of a call meet the condition, if its other parts are met.
    #[must_use]
    pub fn holds_at(&self, times: &CallTimes) -> bool {
        self.time().holds(times)
    }

    /// Returns whether a call with this many input tokens, served this way at these times, meets the condition.
    #[must_use]
    pub fn holds(&self, input_tokens: u64, served: &Served, times: &CallTimes) -> bool {
        self.above_input_tokens.is_none_or(|max| input_tokens > max)
            && std::iter::zip(self.labels(), served.labels())
                .all(|(needed, reported)| needed.is_empty() || needed == reported)
            && self.holds_at(times)
    }

    /// Returns whether the condition may apply to a call with at most this number of input tokens and these service
    /// fields. The vendor may also serve the call in the usual way. `times`: `None` if the call may have any time.
    pub(super) fn can_hold(
        &self,
        input_tokens_max: u64,
        requested: &Served,
        times: Option<&PossibleTimes>,
    ) -> bool {
        self.above_input_tokens
            .is_none_or(|max| input_tokens_max > max)
            && std::iter::zip(self.labels(), requested.labels())
                .all(|(needed, requested)| needed.is_empty() || needed == requested)
            && self.time().can_hold(times)
    }

    /// Returns whether the condition applies to a call with these times, however the vendor serves it.
    pub(super) fn must_hold(&self, times: Option<&PossibleTimes>) -> bool {
        self.above_input_tokens.is_none()
            && self.labels().iter().all(Label::is_empty)
            && self.time().must_hold(times)
    }

    /// Ranks two conditions that both apply: the one with more labels wins, then the one with fewer minutes per week,
    /// then the one that is valid from a later time, then the one with the higher threshold.
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

    /// Returns the condition that requires both; `None` if they exclude each other.
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

/// Writes the condition for people: `above_input_tokens 272000, service_tier flex`.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        if let Some(max) = self.above_input_tokens {
            write!(f, "above_input_tokens {max}")?;
            between = ", ";
        }
        for (name, label) in [
            ("service_tier", self.service_tier),
            ("speed", self.speed),
            ("inference_geo", self.inference_geo),
        ] {
            if !label.is_empty() {
                write!(f, "{between}{name} {label}")?;
                between = ", ";
            }
        }
        for (name, parts) in [
            ("hours_utc", self.hours_utc.spans().join(" ")),
            ("weekdays", self.weekdays.names().join(" ")),
        ] {
            if !parts.is_empty() {
                write!(f, "{between}{name} {parts}")?;
                between = ", ";
            }
        }
        if !self.hours_at.is_request() {
            write!(f, "{between}hours_at {}", self.hours_at.as_str())?;
            between = ", ";
        }
        if let Some(ms) = self.valid_from_ms {
            write!(f, "{between}valid_from {}", rfc3339(ms))?;
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
    fn labels_ignore_case_and_long_labels_stay_distinct() {
        assert_eq!(Label::new("Priority"), Label::new("priority"));
        assert_eq!(Label::new("priority").as_str(), "priority");
        assert!(Label::new("").is_empty());
        let (just, over) = ("x".repeat(23), "x".repeat(24));
        assert_eq!(Label::new(&just).as_str(), just);
        assert_ne!(Label::new(&just), Label::new(&over));
        assert_eq!(Label::new("a b\u{0}ю").as_str(), "a?b???");
    }

    #[test]
    fn price_condition_holds_only_if_each_of_its_parts_holds() {
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
    fn price_conditions_are_combined_unless_they_exclude_each_other() {
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
    fn names_of_the_default_tier_select_the_usual_price() {
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
