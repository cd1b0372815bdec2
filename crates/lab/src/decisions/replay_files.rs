//! Replays one recording of file reads through the core's policy `linux`: the same reads, and at each miss and mark
//! the core's window and reads, compared with Linux's.
//!
//! As in `replay`, the cache and the window follow the recording, not the core. In recordings with dropped pages
//! (`drop_ahead_every`), so do the causes.

use std::collections::BTreeSet;
use std::fmt;

use foreswap_core::readahead::file;
use foreswap_core::readahead::file::{
    Ask, Cached, Event, FilePage, Limits, OpenFile, PageCache, Pattern, Plan, Policy, Reading, Run,
};
use foreswap_core::units::PAGE_SIZE;

use super::files::{Access, Advice, Cause, Decision, File, Read, Window};

/// The device's maximum I/O in the recordings, in pages.
const DEVICE: u64 = 256;

/// The first decision that differs.
#[derive(PartialEq, Eq, Debug)]
pub struct Difference {
    /// The number of the access, from 0.
    pub access: usize,
    /// The core's decision; `None` if the policy is not asked.
    pub ours: Option<Decision>,
    /// Linux's decision; `None` if there was none.
    pub theirs: Option<Decision>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |decision: &Option<Decision>| match decision {
            Some(decision) => decision.to_string(),
            None => "not asked".into(),
        };
        let (ours, theirs) = (text(&self.ours), text(&self.theirs));
        write!(f, "accesses[{}], {ours}; Linux: {theirs}", self.access)
    }
}

/// The result of one recording.
#[derive(PartialEq, Eq, Debug, Default)]
pub struct Comparison {
    /// Decisions, of Linux or of the core.
    pub decisions: usize,
    /// Of these, equal in everything.
    pub equal: usize,
    /// The first difference.
    pub first: Option<Difference>,
}

impl Comparison {
    fn count(&mut self, access: usize, ours: Option<&Decision>, theirs: Option<&Decision>) {
        self.decisions += 1;
        if ours == theirs {
            self.equal += 1;
        } else if self.first.is_none() {
            self.first = Some(Difference {
                access,
                ours: ours.cloned(),
                theirs: theirs.cloned(),
            });
        }
    }
}

/// The file's pages in memory.
struct Pages {
    file: u64,
    /// One bit per page.
    cached: Vec<u64>,
    marked: BTreeSet<u64>,
}

impl Pages {
    fn new(file: u64) -> Self {
        Pages {
            file,
            cached: vec![0; file.div_ceil(64) as usize],
            marked: BTreeSet::new(),
        }
    }

    /// No page is cached from this page on.
    fn drop_from(&mut self, page: u64) {
        let word = (page / 64) as usize;
        if let Some((first, rest)) = self
            .cached
            .get_mut(word..)
            .and_then(<[u64]>::split_first_mut)
        {
            *first &= (1 << (page % 64)) - 1;
            rest.fill(0);
        }
        self.marked.split_off(&page);
    }
}

impl Cached for Pages {
    fn file_pages(&self) -> u64 {
        self.file
    }

    fn has(&self, page: FilePage) -> bool {
        let word = self.cached.get((page.0 / 64) as usize);
        word.is_some_and(|word| word >> (page.0 % 64) & 1 == 1)
    }
}

impl PageCache for Pages {
    fn take_mark(&mut self, page: FilePage) -> bool {
        self.marked.remove(&page.0)
    }

    fn read(&mut self, run: &Run) {
        for page in run.start.0..run.end().0.min(self.file) {
            if !self.has(FilePage(page)) {
                self.cached[(page / 64) as usize] |= 1 << (page % 64);
                if run.mark() == Some(FilePage(page)) {
                    self.marked.insert(page);
                }
            }
        }
    }
}

/// The policy's decision, in the recording's terms.
fn decision(event: Event, plan: &Plan) -> Option<Decision> {
    let (cause, ask) = match event {
        Event::Miss(ask) => (Cause::Sync, ask),
        Event::Mark(ask) => (Cause::Async, ask),
        _ => return None,
    };
    let read = |run: Run| Read {
        start: run.start.0,
        pages: run.pages,
        lookahead: run.ahead,
    };
    Some(Decision {
        cause,
        page: ask.page.0,
        req: ask.want,
        window: plan.window().map(|window| Window {
            start: window.start.0,
            size: window.size,
            async_size: window.ahead,
        }),
        reads: plan.runs().map(read).collect(),
    })
}

struct Machine {
    file: OpenFile,
    bytes: u64,
    pages: Pages,
}

impl Machine {
    fn new(recording: &File) -> Self {
        let limits = Limits {
            max: recording.limit,
            device: DEVICE,
        };
        let mut file = OpenFile::new(Policy::Linux, limits);
        file.advise(match recording.advice {
            Advice::None => Pattern::Normal,
            Advice::Sequential => Pattern::Sequential,
            Advice::Random => Pattern::Random,
        });
        Machine {
            file,
            bytes: recording.pages * PAGE_SIZE as u64,
            pages: Pages::new(recording.pages),
        }
    }

    /// Applies Linux's decision; `before` is the window until then.
    fn apply(&mut self, theirs: &Decision, before: Option<file::Window>) {
        let window = theirs.window.map(|window| file::Window {
            start: FilePage(window.start),
            size: window.size,
            ahead: window.async_size,
        });
        if let Some(window) = window.or(before) {
            self.file.set_window(window);
        }
        if theirs.cause == Cause::Async {
            self.pages.take_mark(FilePage(theirs.page));
        }
        for read in &theirs.reads {
            self.pages.read(&Run {
                start: FilePage(read.start),
                pages: read.pages,
                ahead: read.lookahead,
            });
        }
    }

    /// The read ends here, complete or not.
    fn end(&mut self, reading: &mut Reading, access: &Access) {
        let end = access.offset.saturating_add(access.length).min(self.bytes);
        if end > access.offset {
            let first = FilePage::of(access.offset);
            let event = Event::End { first, end };
            self.file.decide(reading, &self.pages, event);
        }
    }

    fn access(&mut self, nth: usize, access: &Access, result: &mut Comparison) {
        let mut theirs = access.decisions.iter();
        let (offset, length) = (access.offset, access.length);
        let mut reading = self.file.begin(offset, length, self.bytes);
        while let Some(event) = reading.next(&mut self.pages) {
            let before = self.file.window();
            let plan = self.file.decide(&mut reading, &self.pages, event);
            let Some(ours) = decision(event, &plan) else {
                continue;
            };
            let their = theirs.next();
            result.count(nth, Some(&ours), their);
            if let Some(their) = their {
                self.apply(their, before);
            } else if let Some(window) = before {
                self.file.set_window(window);
            }
            let asked = |of: &Decision| (of.cause, of.page, of.req);
            if their.map(asked) != Some(asked(&ours)) {
                // The two are at different places: the rest of the read follows Linux.
                self.end(&mut reading, access);
                break;
            }
        }
        for their in theirs {
            result.count(nth, None, Some(their));
            let before = self.file.window();
            self.apply(their, before);
        }
    }

    /// As `access`, for a recording during which pages were dropped. The recording does not contain the dropped
    /// pages, and Linux does not drop all that it is asked to. The causes and their places are therefore taken from
    /// the recording; a miss of a page that had been read shows that no page is cached from there on.
    fn access_as_recorded(&mut self, nth: usize, access: &Access, result: &mut Comparison) {
        let (offset, length) = (access.offset, access.length);
        let mut reading = self.file.begin(offset, length, self.bytes);
        for their in &access.decisions {
            let page = FilePage(their.page);
            let ask = Ask {
                page,
                want: their.req.max(1),
            };
            let event = match their.cause {
                Cause::Sync => {
                    if self.pages.has(page) {
                        self.pages.drop_from(page.0);
                    }
                    Event::Miss(ask)
                }
                Cause::Async => Event::Mark(ask),
            };
            let before = self.file.window();
            let plan = self.file.decide(&mut reading, &self.pages, event);
            result.count(nth, decision(event, &plan).as_ref(), Some(their));
            self.apply(their, before);
        }
        self.end(&mut reading, access);
    }
}

/// Replays all reads of a recording.
pub fn replay(recording: &File) -> Comparison {
    let mut machine = Machine::new(recording);
    let mut result = Comparison::default();
    for (nth, access) in recording.accesses.iter().enumerate() {
        if recording.drops {
            machine.access_as_recorded(nth, access, &mut result);
        } else {
            machine.access(nth, access, &mut result);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = PAGE_SIZE as u64;

    fn decided(cause: Cause, page: u64, window: Option<[u64; 3]>, read: [u64; 3]) -> Decision {
        let [start, pages, lookahead] = read;
        Decision {
            cause,
            page,
            req: 1,
            window: window.map(|[start, size, async_size]| Window {
                start,
                size,
                async_size,
            }),
            reads: vec![Read {
                start,
                pages,
                lookahead,
            }],
        }
    }

    /// Pages 0 to 4 in order.
    fn scan() -> File {
        let access = |page: u64, decisions| Access {
            offset: page * PAGE,
            length: PAGE,
            decisions,
        };
        File {
            name: "scan".into(),
            limit: 32,
            pages: 100,
            advice: Advice::None,
            drops: false,
            accesses: vec![
                access(0, vec![decided(Cause::Sync, 0, Some([0, 4, 3]), [0, 4, 3])]),
                access(
                    1,
                    vec![decided(Cause::Async, 1, Some([4, 8, 8]), [4, 8, 8])],
                ),
                access(2, vec![]),
                access(3, vec![]),
                access(
                    4,
                    vec![decided(Cause::Async, 4, Some([12, 16, 16]), [12, 16, 16])],
                ),
            ],
        }
    }

    #[test]
    fn equal_decisions_are_counted_and_hits_are_not_decisions() {
        let result = replay(&scan());
        assert_eq!((result.decisions, result.equal, result.first), (3, 3, None));
    }

    /// Any change in a decision is detected, and only in this one.
    #[test]
    fn one_changed_number_is_one_difference() {
        type Change = fn(&mut Decision);
        let changes: [Change; 8] = [
            |d| d.req += 1,
            |d| d.window = None,
            |d| d.reads.clear(),
            |d| d.reads[0].lookahead -= 1,
            |d| d.reads[0].pages += 1,
            |d| d.window.as_mut().expect("one").async_size -= 1,
            |d| d.window.as_mut().expect("one").size += 1,
            |d| d.cause = Cause::Sync,
        ];
        for (nth, change) in changes.iter().enumerate() {
            let mut recording = scan();
            recording.accesses.truncate(2);
            change(&mut recording.accesses[1].decisions[0]);
            let result = replay(&recording);
            assert_eq!((result.decisions, result.equal), (2, 1), "change {nth}");
            assert_eq!(result.first.map(|first| first.access), Some(1));
        }
    }

    #[test]
    fn a_decision_too_many_or_too_few_is_a_difference() {
        let mut recording = scan();
        recording.accesses[1].decisions.clear();
        let result = replay(&recording);
        let text = result.first.expect("one").to_string();
        let expected = "accesses[1], mark at 1 of 1: window 4+8 async 8 read 4+8 lookahead 8; Linux: not asked";
        assert_eq!(text, expected);

        let mut recording = scan();
        let more = decided(Cause::Sync, 2, None, [2, 1, 0]);
        recording.accesses[2].decisions.push(more);
        let result = replay(&recording);
        assert_eq!((result.decisions, result.equal), (4, 3));
        let text = result.first.expect("one").to_string();
        let expected = "accesses[2], not asked; Linux: miss at 2 of 1: read 2+1 lookahead 0";
        assert_eq!(text, expected);
    }

    /// Linux put the mark elsewhere: the next decision is judged by that.
    #[test]
    fn after_a_difference_the_kernels_cache_and_window_count() {
        let mut recording = scan();
        recording.accesses[0].decisions[0] = decided(Cause::Sync, 0, Some([0, 4, 2]), [0, 4, 2]);
        recording.accesses[1].decisions.clear();
        recording.accesses[2].decisions =
            vec![decided(Cause::Async, 2, Some([4, 8, 8]), [4, 8, 8])];
        let result = replay(&recording);
        assert_eq!((result.decisions, result.equal), (3, 2));
    }

    #[test]
    fn dropped_pages_are_believed_only_where_the_recording_says_so() {
        let mut recording = scan();
        let again = decided(Cause::Sync, 2, Some([2, 4, 3]), [2, 4, 3]);
        recording.accesses[2].decisions = vec![again];
        // Page 3 would carry a mark then, but it had not been dropped.
        recording.accesses[4].decisions.clear();
        assert_eq!(replay(&recording).equal, 2);
        recording.drops = true;
        let result = replay(&recording);
        assert_eq!((result.decisions, result.equal), (3, 3));
        // Decisions count as before.
        let window = &mut recording.accesses[2].decisions[0].window;
        window.as_mut().expect("one").size = 5;
        let result = replay(&recording);
        assert_eq!((result.decisions, result.equal), (3, 2));
    }
}
