//! The records of a trace.

use foreswap_core::units::{Nanos, PageRange, Vpn, len};

/// Pages of an address space of 64 bits: page numbers are below this.
pub const MAX_PAGES: u64 = 1 << 52;
/// The most pages of one record of file pages, of prefetched or of evicted pages: they are processed one by one.
pub const MAX_AT_ONCE: u64 = 1 << 20;
/// The most tasks, address spaces and files of a trace.
pub const MAX_TASKS: u32 = 1 << 24;

/// An event in time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Nanoseconds since the trace began. Times of one address space never decrease; records of different ones may be
    /// out of order by as much as the recorder buffers.
    pub time: Nanos,
    /// Its task. Tasks are numbered from 0 in the order in which they start.
    pub task: u32,
    /// The event.
    pub event: Event,
}

/// The event. Ranges have at least one page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The task begins.
    Start(Start),
    /// The task has ended.
    End,
    /// A VMA: memory comes into the address space.
    Map(PageRange),
    /// Memory leaves the address space.
    Unmap(PageRange),
    /// The content is discarded; the pages read as zeros.
    Discard(PageRange),
    /// Pages move with their content; the old content of their new place is gone.
    Move {
        /// Their old place.
        from: PageRange,
        /// The new first page.
        to: Vpn,
    },
    /// A page is touched.
    Touch {
        /// The page.
        page: Vpn,
        /// Where it was found.
        found: Found,
        /// A write.
        write: bool,
    },
    /// A file is read (or written).
    File {
        /// The file, numbered by the trace.
        file: u32,
        /// Its pages.
        pages: PageRange,
        /// Written, not read.
        write: bool,
    },
    /// The recorder's memory manager mapped pages before they were touched.
    Prefetched(PageRange),
    /// The recorder's memory manager evicted pages of the task.
    Evicted(PageRange),
    /// This number of records is missing here, because the recorder could not keep up.
    Lost(u64),
}

/// The start of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Start {
    /// Its address space; threads share one. Numbered from 0.
    pub space: u32,
    /// The system's number of the process; 0 when unknown.
    pub pid: u32,
    /// The system's number of the thread; 0 when unknown.
    pub tid: u32,
    /// The task that forked it.
    pub parent: Option<u32>,
}

/// Where a touch found its page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Not recorded.
    Unknown,
    /// Never touched before: zeros were mapped.
    New,
    /// In a frame of the memory manager, as a minor fault.
    Kept,
    /// In a frame, or on its way into one, read by readahead.
    Ahead,
    /// On a swap area only.
    Away,
}

/// The header of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// The memory limit in pages of the recording, if only faults were recorded: touches of mapped pages are missing.
    /// 0 if every touch is in the trace.
    pub limit: u64,
}

impl Event {
    /// The fault in its numbers, if they are impossible.
    pub fn problem(&self) -> Option<String> {
        let bad = |range: &PageRange| {
            (len(range) == 0 || range.end.0 > MAX_PAGES).then(|| {
                format!(
                    "pages {:#x} to {:#x}; expected at least one page, all below {MAX_PAGES:#x}",
                    range.start.0, range.end.0
                )
            })
        };
        match self {
            Event::File { file, .. } if *file >= MAX_TASKS => {
                Some(format!("file {file}; expected one below {MAX_TASKS}"))
            }
            Event::Map(range) | Event::Unmap(range) | Event::Discard(range) => bad(range),
            Event::Prefetched(range) | Event::Evicted(range) | Event::File { pages: range, .. } => {
                let count = len(range);
                bad(range).or_else(|| {
                    (count > MAX_AT_ONCE)
                        .then(|| format!("{count} pages; expected up to {MAX_AT_ONCE} at once"))
                })
            }
            Event::Move { from, to } => {
                let target = *to..Vpn(to.0.saturating_add(len(from)));
                bad(from).or_else(|| bad(&target)).or_else(|| {
                    let both = foreswap_core::units::overlap(from, &target);
                    (len(&both) > 0).then(|| {
                        let (first, n) = (from.start.0, len(from));
                        format!(
                            "{n} pages move from {first:#x} to {:#x}; expected a place beside them",
                            to.0
                        )
                    })
                })
            }
            Event::Touch { page, .. } => bad(&(*page..Vpn(page.0.saturating_add(1)))),
            Event::Start(start) if start.space >= MAX_TASKS => {
                let space = start.space;
                Some(format!(
                    "address space {space}; expected one below {MAX_TASKS}"
                ))
            }
            Event::Start(_) | Event::End | Event::Lost(_) => None,
        }
    }
}

/// Checks records against those before them.
#[derive(Debug, Default)]
pub(super) struct Order {
    tasks: u32,
}

impl Order {
    /// The fault of `record`, coming now.
    pub(super) fn problem(&mut self, record: &Record) -> Option<String> {
        let (task, known) = (record.task, self.tasks);
        match &record.event {
            Event::Start(_) if task != known || task >= MAX_TASKS => Some(format!(
                "task {task} starts; expected task {known} to be the next, and fewer than {MAX_TASKS}"
            )),
            Event::Start(Start {
                parent: Some(parent),
                ..
            }) if *parent >= known => Some(format!(
                "task {task} is a child of task {parent}; expected one that has started"
            )),
            Event::Start(_) => {
                self.tasks += 1;
                record.event.problem()
            }
            _ if task >= known => Some(format!("task {task} has not started")),
            event => event.problem(),
        }
    }
}
