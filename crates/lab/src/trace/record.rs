//! What a trace tells: one record after the other.

use foreswap_core::units::{Nanos, PageRange, Vpn, len};

/// Pages of an address space of 64 bits: page numbers are below this.
pub const MAX_PAGES: u64 = 1 << 52;
/// Pages that one record of pages of a file, of pages that were brought or of pages that went has at
/// the most: they are looked at one by one.
pub const MAX_AT_ONCE: u64 = 1 << 20;
/// Tasks, address spaces and files of a trace, at the most.
pub const MAX_TASKS: u32 = 1 << 24;

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// When, in nanoseconds since the trace began. Times of one address space never fall; records of
    /// different ones may be out of order by as much as the recorder keeps back.
    pub time: Nanos,
    /// Whose doing it is. Tasks are numbered from 0 in the order in which they start.
    pub task: u32,
    /// What.
    pub event: Event,
}

/// What happened. Ranges have at least one page.
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
    /// The content is given back; the pages read as zeros.
    Discard(PageRange),
    /// Pages move, with their content; what was at their new place is gone.
    Move {
        /// Where they were.
        from: PageRange,
        /// Where the first one is now.
        to: Vpn,
    },
    /// A page is touched.
    Touch {
        /// Which.
        page: Vpn,
        /// What is known of how it was found.
        found: Found,
        /// To write to it.
        write: bool,
    },
    /// A file is read (or written).
    File {
        /// Which, numbered by the trace.
        file: u32,
        /// Which of its pages.
        pages: PageRange,
        /// Written, not read.
        write: bool,
    },
    /// The recorder's memory manager mapped pages before they were touched.
    Brought(PageRange),
    /// The recorder's memory manager took pages away from the task.
    Evicted(PageRange),
    /// So many records are missing here, as the recorder could not keep up.
    Lost(u64),
}

/// How a task begins.
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

/// How a touch found its page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Nobody looked.
    Unknown,
    /// Never touched before: zeros were mapped.
    New,
    /// In a frame of the memory manager, where it waited for a second chance.
    Kept,
    /// In a frame, or on its way into one, as readahead brought it.
    Ahead,
    /// On a swap area only.
    Away,
}

/// What a trace says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// The memory limit in pages under which it was recorded, if only faults were seen: touches of
    /// pages that were mapped are missing. 0 when every touch is in the trace.
    pub limit: u64,
}

impl Event {
    /// What is wrong with its numbers.
    pub(super) fn problem(&self) -> Option<String> {
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
            Event::Brought(range) | Event::Evicted(range) | Event::File { pages: range, .. } => {
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
    /// What is wrong with `record`, coming now.
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
