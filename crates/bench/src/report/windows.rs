//! The histogram of readahead windows, in one line.

use std::collections::BTreeMap;

use serde_json::Value;

use super::PeerReport;

/// The windows of all turns of a peer that reports them, in powers of two: how many of 1 page, of 2, of 3 to 4, of 5 to
/// 8, ... A window of 0 pages is a fault that read only its own page.
pub fn windows_line(peer: &PeerReport) -> Option<String> {
    let mut groups: BTreeMap<u64, u64> = BTreeMap::new();
    for histogram in peer
        .details
        .iter()
        .filter_map(|turn| turn["stats"]["window_histogram"].as_object())
    {
        for (pages, count) in histogram {
            let pages: u64 = pages.parse().ok()?;
            let group = if pages == 0 {
                0
            } else {
                pages.next_power_of_two()
            };
            *groups.entry(group).or_default() += count.as_u64().unwrap_or(0);
        }
    }
    let all: u64 = groups.values().sum();
    if all == 0 {
        return None;
    }
    let part = |(top, count): (&u64, &u64)| {
        let range = match top {
            0..=2 => top.to_string(),
            top => format!("{}-{top}", top / 2 + 1),
        };
        format!("{range}: {:.1} %", *count as f64 * 100.0 / all as f64)
    };
    let parts: Vec<String> = groups.iter().map(part).collect();
    Some(format!(
        "windows of {} (pages: share of {all}): {}",
        peer.peer,
        parts.join(", ")
    ))
}

/// Hits per page read ahead, of the regions of `bytes` in a run's statistics.
pub fn regions_hit_ratio(stats: &Value, bytes: u64) -> Option<f64> {
    let of_size = || {
        let regions = stats["vmas"].as_array().into_iter().flatten();
        regions.filter(move |region| region["bytes"] == bytes)
    };
    let sum = |key: &str| -> Option<u64> { of_size().map(|region| region[key].as_u64()).sum() };
    let (pages, hits) = (sum("readahead_pages")?, sum("readahead_hits")?);
    (pages > 0).then(|| hits as f64 / pages as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn windows_are_grouped_over_turns() {
        let turn = |histogram| json!({ "stats": { "window_histogram": histogram } });
        let details = vec![
            turn(json!({ "0": 1, "1": 1, "2": 1, "3": 1 })),
            turn(json!({ "4": 2, "5": 1, "32": 1 })),
        ];
        let line = windows_line(&PeerReport::new("foreswap", Vec::new(), details)).unwrap();
        assert_eq!(
            line,
            "windows of foreswap (pages: share of 8): 0: 12.5 %, 1: 12.5 %, 2: 12.5 %, \
             3-4: 37.5 %, 5-8: 12.5 %, 17-32: 12.5 %"
        );
        assert!(windows_line(&PeerReport::new("kernel", Vec::new(), vec![json!({})])).is_none());
    }

    #[test]
    fn regions_are_told_by_their_size() {
        let region = |bytes: u64, pages: u64, hits: u64| {
            json!({ "bytes": bytes,
            "readahead_pages": pages, "readahead_hits": hits })
        };
        let stats = json!({ "vmas": [region(8, 100, 99), region(8, 300, 291), region(4, 9, 0)] });
        assert_eq!(regions_hit_ratio(&stats, 8), Some(0.975));
        assert_eq!(regions_hit_ratio(&stats, 16), None);
        assert_eq!(
            regions_hit_ratio(&json!({ "vmas": [{ "bytes": 8 }] }), 8),
            None
        );
    }
}
