//! The effect of trace records on the order of pages.
//!
//! A trace with every touch is counted directly. A recorded run has only the touches that the engine saw: touches of
//! mapped pages are missing. But it has every eviction and every return, and a page that returns after n other
//! evictions would have stayed in a memory larger by n pages. The stack therefore holds the evicted pages, in the
//! order of eviction, and depths count from the recording's limit on: below it the curve is unknown. This is exact if
//! the engine evicts the least recently touched page, and close otherwise, because its clock has roughly the same
//! order. A page mapped before it was touched counts as touched then; nearly all of them are.

use std::collections::HashMap;
use std::ops::Range;

use foreswap_core::units::PageRange;

use super::shards::Counter;
use super::stack::Page;
use crate::trace::{Event, Found, KeptUnits, MAX_PAGES, Record};

/// The contents of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Records of all kinds.
    pub records: u64,
    /// Page touches.
    pub touches: u64,
    /// Pages of files read or written.
    pub file_pages: u64,
    /// Tasks.
    pub tasks: u64,
    /// Records that the recorder lost.
    pub lost: u64,
}

/// The walk through a trace.
pub struct Walk {
    counter: Counter,
    /// Only faults were recorded.
    faults_only: bool,
    /// The address space of each task.
    spaces: Vec<u32>,
    /// Tasks that live in each.
    living: HashMap<u32, u32>,
    kept: KeptUnits,
    /// The contents so far.
    pub totals: Totals,
}

/// Address spaces and files have separate numbers.
fn of_space(space: u32) -> u32 {
    space << 1
}

fn of_file(file: u32) -> u32 {
    file << 1 | 1
}

fn numbers(range: &PageRange) -> Range<u64> {
    range.start.0..range.end.0
}

impl Walk {
    /// Counts with `counter`.
    pub fn new(counter: Counter, faults_only: bool) -> Self {
        Walk {
            counter,
            faults_only,
            spaces: Vec::new(),
            living: HashMap::new(),
            kept: KeptUnits::default(),
            totals: Totals::default(),
        }
    }

    /// The next record.
    pub fn record(&mut self, record: &Record) {
        self.totals.records += 1;
        if let Event::Start(start) = &record.event {
            self.totals.tasks += 1;
            self.spaces.push(start.space);
            *self.living.entry(start.space).or_default() += 1;
            return;
        }
        // Sources yield no record of a task that has not started.
        let space = self.spaces.get(record.task as usize).copied().unwrap_or(0);
        let owner = of_space(space);
        let is_rest = self.faults_only && self.kept.is_rest(space, &record.event);
        match &record.event {
            Event::Touch { page, found, .. } => {
                self.totals.touches += 1;
                self.touch(
                    Page {
                        owner,
                        number: page.0,
                    },
                    *found,
                );
            }
            Event::File { file, pages, .. } => {
                for number in numbers(pages) {
                    self.totals.file_pages += 1;
                    self.counter.touch(Page {
                        owner: of_file(*file),
                        number,
                    });
                }
            }
            Event::Prefetched(pages) if self.faults_only => {
                for number in numbers(pages) {
                    let page = Page { owner, number };
                    if is_rest {
                        self.counter.touch_above(page);
                    } else {
                        self.counter.touch_and_take(page);
                    }
                }
            }
            Event::Evicted(pages) if self.faults_only => {
                for number in numbers(pages) {
                    self.counter.put(Page { owner, number });
                }
            }
            Event::Unmap(pages) | Event::Discard(pages) => {
                self.counter.forget(owner, numbers(pages));
            }
            Event::Move { from, to } => self.counter.rename(owner, numbers(from), to.0),
            Event::End => {
                let living = self.living.entry(space).or_default();
                *living = living.saturating_sub(1);
                if *living == 0 {
                    self.living.remove(&space);
                    self.counter.forget(owner, 0..MAX_PAGES);
                }
            }
            Event::Lost(records) => self.totals.lost = self.totals.lost.saturating_add(*records),
            Event::Start(_) | Event::Map(_) | Event::Prefetched(_) | Event::Evicted(_) => {}
        }
    }

    fn touch(&mut self, page: Page, found: Found) {
        if !self.faults_only {
            return self.counter.touch(page);
        }
        match found {
            Found::Kept => self.counter.touch_above(page),
            Found::New | Found::Unknown | Found::Ahead | Found::Away => {
                self.counter.touch_and_take(page);
            }
        }
    }

    /// All records were given.
    pub fn finish(self) -> (Counter, Totals) {
        (self.counter, self.totals)
    }
}
