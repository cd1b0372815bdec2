//! The file readahead `linux` against the decisions of a real kernel: for each read of a file, every call of Linux 6.18
//! to its policy, the window that it set and the pages that it submitted. Only the reads are taken from the recording:
//! one wrong decision changes all that follow.
//!
//! Ordinary patterns are in `file-read`; the corner cases are in `file-edges`, which `scripts/record-file-readahead`
//! recorded.

use std::collections::BTreeMap;
use std::io::Read as _;

use flate2::read::GzDecoder;
use foreswap_core::readahead::file::{
    Cached, Event, FilePage, Limits, OpenFile, PageCache, Pattern, Policy, Run,
};
use serde_json::{Value, json};

const FILES: &[u8] = include_bytes!("../data/file-read.jsonl.gz");
const EDGES: &[u8] = include_bytes!("../data/file-edges.jsonl.gz");
/// The size of one device I/O in the recordings, in pages.
const DEVICE: u64 = 256;

/// A file's pages in memory, each with whether it is marked.
struct Pages {
    file: u64,
    cached: BTreeMap<u64, bool>,
}

impl Cached for Pages {
    fn file_pages(&self) -> u64 {
        self.file
    }

    fn has(&self, page: FilePage) -> bool {
        self.cached.contains_key(&page.0)
    }
}

impl PageCache for Pages {
    fn take_mark(&mut self, page: FilePage) -> bool {
        self.cached.insert(page.0, false).expect("cached")
    }

    fn read(&mut self, run: &Run) {
        for page in run.start.0..run.end().0 {
            let mark = run.mark() == Some(FilePage(page));
            self.cached.entry(page).or_insert(mark);
        }
    }
}

fn recordings(gzip: &[u8]) -> Vec<Value> {
    let mut text = String::new();
    let mut packed = GzDecoder::new(gzip);
    packed.read_to_string(&mut text).expect("gzip");
    let line = |line| serde_json::from_str(line).expect("JSON");
    text.lines().map(line).collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

/// The effects of one read, in the words of the recording.
fn access(file: &mut OpenFile, pages: &mut Pages, offset: u64, length: u64) -> Vec<Value> {
    let mut events = Vec::new();
    let mut reading = file.begin(offset, length, pages.file * 4096);
    while let Some(event) = reading.next(pages) {
        let plan = file.decide(&mut reading, pages, event);
        let order = match event {
            Event::Miss(ask) => {
                events.push(json!(["sync", ask.page.0, ask.want]));
                0
            }
            Event::Mark(ask) => {
                events.push(json!(["async", ask.page.0, ask.want]));
                2
            }
            _ => 0,
        };
        if let Some(window) = plan.window() {
            let (start, size) = (window.start.0, window.size);
            events.push(json!(["window", start, size, window.ahead, order]));
        }
        for run in plan.runs() {
            events.push(json!(["read", run.start.0, run.pages, run.ahead]));
            pages.read(&run);
        }
    }
    events
}

/// The number of decisions, or the first read that differs.
fn replay(recording: &Value, policy: Policy, max: u64) -> Result<usize, String> {
    let limits = Limits {
        max,
        device: DEVICE,
    };
    let mut file = OpenFile::new(policy, limits);
    file.advise(match recording["advice"].as_str() {
        Some("none") => Pattern::Normal,
        Some("sequential") => Pattern::Sequential,
        Some("random") => Pattern::Random,
        other => panic!("advice {other:?}"),
    });
    let mut pages = Pages {
        file: number(&recording["file_pages"]),
        cached: BTreeMap::new(),
    };
    let drop_every = number(&recording["drop_ahead_every"]);
    let mut decisions = 0;
    let accesses = recording["accesses"].as_array().expect("a list");
    for (nth, recorded) in accesses.iter().enumerate() {
        let (offset, length) = (number(&recorded[0]), number(&recorded[1]));
        let events = access(&mut file, &mut pages, offset, length);
        let theirs = recorded[2].as_array().expect("a list");
        if events != *theirs {
            let name = &recording["name"];
            return Err(format!("{name}, access {nth}: {events:?}, not {theirs:?}"));
        }
        if drop_every > 0 && (nth as u64 + 1).is_multiple_of(drop_every) {
            // Whole pages behind the read.
            pages.cached.split_off(&(offset + length).div_ceil(4096));
        }
        let asked = |event: &&Value| event[0] == "sync" || event[0] == "async";
        decisions += events.iter().filter(asked).count();
    }
    Ok(decisions)
}

fn limit(recording: &Value) -> u64 {
    number(&recording["read_ahead_pages"])
}

/// The number of recordings and of decisions, all equal.
fn all_equal(gzip: &[u8]) -> (usize, usize) {
    let all = recordings(gzip);
    let replay = |recording| replay(recording, Policy::Linux, limit(recording)).expect("equal");
    (all.len(), all.iter().map(replay).sum())
}

#[test]
fn every_decision_is_the_kernels() {
    assert_eq!(all_equal(FILES), (31, 9_738));
}

#[test]
fn so_is_every_decision_in_the_corners() {
    assert_eq!(all_equal(EDGES), (97, 5_789));
}

/// The recordings tell `linux` from the other policies and from other limits.
#[test]
fn another_policy_or_limit_does_not_pass() {
    let differ = |policy, times: fn(u64) -> u64| {
        let differs =
            |recording: &Value| replay(recording, policy, times(limit(recording))).is_err();
        recordings(FILES).iter().filter(|r| differs(r)).count()
    };
    for policy in [Policy::Legacy, Policy::OnDemand, Policy::Streams] {
        assert!(differ(policy, |limit| limit) >= 10, "{policy:?}");
    }
    assert!(differ(Policy::Linux, |limit| limit / 2) >= 20);
    assert!(differ(Policy::Linux, |limit| limit * 2) >= 20);
}

/// Reads of a recording that meet a page which is not cached, under one of our policies.
fn waits(recording: &Value, policy: Policy) -> usize {
    let limits = Limits {
        max: limit(recording),
        device: DEVICE,
    };
    let mut file = OpenFile::new(policy, limits);
    let mut pages = Pages {
        file: number(&recording["file_pages"]),
        cached: BTreeMap::new(),
    };
    let accesses = recording["accesses"].as_array().expect("a list");
    let waits = |access: &&Value| {
        let (offset, length) = (number(&access[0]), number(&access[1]));
        let mut wanted = offset / 4096..(offset + length).div_ceil(4096);
        let waits = wanted.any(|page| !pages.has(FilePage(page)));
        let mut reading = file.begin(offset, length, pages.file * 4096);
        while file.read(&mut reading, &mut pages).is_some() {}
        waits
    };
    accesses.iter().filter(waits).count()
}

/// `streams` finds streams that `linux` does not, and loses none, except for random reads of a file that is partly in
/// memory: reads that `linux` takes for a stream there are sometimes followed by others close by.
#[test]
fn streams_wait_less_than_linux() {
    let (mut ours, mut theirs) = (0, 0);
    for recording in recordings(FILES) {
        let (streams, linux) = (
            waits(&recording, Policy::Streams),
            waits(&recording, Policy::Linux),
        );
        let name = &recording["name"];
        let half_cached = name.as_str().is_some_and(|name| name.starts_with("oltp-"));
        let most = linux + usize::from(half_cached) * linux / 100;
        assert!(streams <= most, "{name}: {streams}, linux {linux}");
        ours += streams;
        theirs += linux;
    }
    assert!(ours * 10 < theirs * 7, "{ours}, linux {theirs}");
}
