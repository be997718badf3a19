//! The slot map of a Cluster: which server owns which slot.

use std::sync::Arc;

use super::node::Node;

/// The number of slots in a Cluster.
const SLOTS: u16 = 16_384;

/// The primaries and the slots that each of them owns, according to one look-up.
pub(super) struct Map(Vec<Range>);

/// A range of consecutive slots that one server owns.
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) node: Arc<Node>,
}

impl Map {
    /// Creates a map in which one server owns all slots.
    pub(super) fn whole(node: Arc<Node>) -> Self {
        Self(vec![Range {
            first: 0,
            last: SLOTS - 1,
            node,
        }])
    }

    pub(super) fn new(mut ranges: Vec<Range>) -> Self {
        ranges.sort_unstable_by_key(|range| range.first);
        Self(ranges)
    }

    pub(super) fn ranges(&self) -> &[Range] {
        &self.0
    }

    /// Returns the server that owns a slot. `None` if that server has failed and no other server has taken the slot
    /// over yet.
    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        let index = self.0.partition_point(|range| range.last < slot);
        let range = self.0.get(index).filter(|range| range.first <= slot)?;
        Some(&range.node)
    }

    /// Returns all primaries, each of them once.
    pub(super) fn primaries(&self) -> Vec<Arc<Node>> {
        let mut primaries: Vec<Arc<Node>> = Vec::new();
        for range in &self.0 {
            if !primaries.iter().any(|node| Arc::ptr_eq(node, &range.node)) {
                primaries.push(Arc::clone(&range.node));
            }
        }
        primaries
    }
}

/// Returns the slot of a Redis key: the CRC-16 of its hash tag, modulo the number of slots.
pub(super) fn slot_of(key: &str) -> u16 {
    let crc = hash_tag(key).bytes().fold(0, |crc: u16, byte| {
        (crc << 8) ^ CRC[usize::from((crc >> 8) ^ u16::from(byte))]
    });
    crc % SLOTS
}

/// Returns the hash tag of a Redis key, which determines its slot: the text between the first `{` and the next `}`. If
/// there is no such text, the whole Redis key is the hash tag.
pub(super) fn hash_tag(key: &str) -> &str {
    key.split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty())
        .unwrap_or(key)
}

/// The table of CRC-16/XMODEM, which the Cluster specification requires.
const CRC: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte: u16 = 0;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::url::{Address, RedisUrl};

    #[test]
    fn computed_slot_of_a_key_equals_the_slot_that_redis_computes() {
        // The expected slots are the results of CLUSTER KEYSLOT.
        for (key, slot) in [
            ("123456789", 12_739),
            ("tg:{acme}", 11_304),
            ("tg:{acme}:d:1", 11_304),
            ("acme", 11_304),
            ("{}x", 10_595),
            ("tg:k:ab", 10_728),
            ("", 0),
        ] {
            assert_eq!(slot_of(key), slot, "{key}");
        }
    }

    #[test]
    fn hash_tag_is_the_text_between_the_first_braces() {
        for (key, tag) in [
            ("tg:{acme}:d:{x}", "acme"),
            ("a{}b{c}", "a{}b{c}"),
            ("a{b", "a{b"),
            ("a}b{c}", "c"),
            ("{a{b}", "a{b"),
            ("plain", "plain"),
        ] {
            assert_eq!(hash_tag(key), tag, "{key}");
        }
    }

    #[tokio::test]
    async fn each_cluster_slot_has_at_most_one_owner() {
        let url = RedisUrl::parse("redis-cluster://a:1,b:2").unwrap();
        let node = |address: &Address| {
            Arc::new(Node::new(address.clone(), url.server(address), 1).unwrap())
        };
        let [a, b] = [node(&url.hosts[0]), node(&url.hosts[1])];
        let range = |first, last, node: &Arc<Node>| Range {
            first,
            last,
            node: Arc::clone(node),
        };
        let map = Map::new(vec![
            range(200, 16_383, &a),
            range(0, 99, &a),
            range(100, 150, &b),
        ]);
        for (slot, owner) in [
            (0, Some(&a)),
            (99, Some(&a)),
            (100, Some(&b)),
            (150, Some(&b)),
            (151, None),
            (199, None),
            (200, Some(&a)),
            (16_383, Some(&a)),
        ] {
            let found = map.owner(slot).map(|node| node.shown().to_string());
            assert_eq!(found, owner.map(|node| node.shown().to_string()), "{slot}");
        }
        let shown: Vec<_> = map
            .primaries()
            .iter()
            .map(|node| node.shown().to_string())
            .collect();
        assert_eq!(shown, ["a:1", "b:2"]);
    }
}
