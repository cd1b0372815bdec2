//! Files on the disk and their pages in memory: lookup, reading, and writeback.
//!
//! Writeback begins when a tenth of the memory available to files is dirty, or when pages have been dirty for half a
//! minute. Writers wait when dirty pages and pages under writeback exceed the midpoint between that and a fifth.
//! These are Linux's default thresholds.

use std::collections::VecDeque;

use foreswap_core::units::Nanos;
use foreswap_core::world::IoId;

use super::lists::{List, Pages};
use super::program::{FileId, Program};
use super::scheduler::Scheduler;
use super::zones::{FrameId, NONE};
use super::{Event, Machine};
use crate::sim::device::Transfer;

/// Pages of the largest write request (1280 KiB, Linux's `max_sectors_kb`).
const REQUEST: u32 = 320;
/// Pages of a readahead window; the next window is requested at the first use of the last (128 KiB, Linux's
/// `read_ahead_kb`). Programs read in small pieces here: since 4.10 larger requests are not cut.
pub const WINDOW: u32 = 32;
/// The most writeback requests that wait for the disk: its queue (Linux's `nr_requests`).
const QUEUE: usize = 128;
/// The queue counts as congested from seven eighths on until it has shrunk to thirteen sixteenths.
const CONGESTED: usize = QUEUE * 7 / 8;
const RELIEVED: usize = QUEUE * 13 / 16;
/// How long a page may stay dirty on the full machine: on a smaller one all pages stay in memory for a shorter time,
/// in proportion.
const OLD: Nanos = 30_000_000_000;
/// Page without a transfer yet.
pub const NO_IO: u32 = u32::MAX;

/// One file.
#[derive(Debug)]
struct File {
    /// Its first page on the disk.
    start: u64,
    /// The frame of each page in memory.
    pages: Vec<FrameId>,
    /// Dirty pages, and pages under writeback.
    dirty: u32,
    writeback: u32,
    since: Nanos,
    /// The position of writeback.
    cursor: u32,
    /// It waits in the queue of dirty files.
    queued: bool,
    /// A task waits for it to reach the disk.
    sync: bool,
}

/// A transfer in flight.
#[derive(Debug, Default)]
struct Io {
    file: FileId,
    frames: Vec<FrameId>,
    write: bool,
    waiters: Vec<u32>,
}

/// All files.
#[derive(Debug)]
pub struct Files {
    files: Vec<File>,
    ios: Vec<Io>,
    idle: Vec<u32>,
    /// Dirty files, in the order in which they became dirty.
    queue: VecDeque<FileId>,
    scheduler: Scheduler,
    /// Write requests, and whether the disk is congested by them.
    writes: usize,
    pub congested: bool,
    /// Dirty pages and pages under writeback.
    dirty: u64,
    writeback: u64,
    /// When the oldest dirty page becomes old.
    old: Nanos,
    /// Dirty pages to write whatever their age, because reclaim met too many.
    kicked: u64,
    /// An event to continue writeback is planned.
    planned: bool,
}

impl Files {
    /// Files of these sizes, one after the other on a disk of `disk` pages. On a scaled machine they have the
    /// distances of the full-sized ones, and seeks take as long.
    pub fn new(sizes: &[u32], disk: u64, scale: u64) -> Self {
        let total: u64 = sizes.iter().map(|&pages| u64::from(pages)).sum();
        let spread = scale.min(disk / total.max(1)).max(1);
        let mut start = 0;
        let file = |&pages: &u32| {
            let file = File {
                start,
                pages: vec![NONE; pages as usize],
                dirty: 0,
                writeback: 0,
                since: 0,
                cursor: 0,
                queued: false,
                sync: false,
            };
            start += u64::from(pages) * spread;
            file
        };
        Files {
            files: sizes.iter().map(file).collect(),
            ios: Vec::new(),
            idle: Vec::new(),
            queue: VecDeque::new(),
            scheduler: Scheduler::default(),
            writes: 0,
            congested: false,
            dirty: 0,
            writeback: 0,
            old: OLD / scale,
            kicked: 0,
            planned: false,
        }
    }

    /// The frame of a page in memory.
    pub fn frame(&self, file: FileId, page: u32) -> Option<FrameId> {
        let frame = self.files[file as usize].pages.get(page as usize)?;
        Some(*frame).filter(|&frame| frame != NONE)
    }

    /// Dirty pages and pages under writeback.
    pub fn unwritten(&self) -> u64 {
        self.dirty + self.writeback
    }

    /// A file has no dirty pages and no pages under writeback.
    pub fn is_clean(&self, file: FileId) -> bool {
        let file = &self.files[file as usize];
        file.dirty == 0 && file.writeback == 0
    }

    /// A clean page leaves memory.
    pub fn forget(&mut self, pages: &mut Pages, frame: FrameId) {
        let page = std::mem::take(&mut pages[frame]);
        debug_assert!(!page.dirty && !page.writeback && !page.locked);
        if !page.gone {
            self.files[page.file as usize].pages[page.index as usize] = NONE;
        }
    }

    fn begin(&mut self, io: Io) -> u32 {
        match self.idle.pop() {
            Some(id) => {
                self.ios[id as usize] = io;
                id
            }
            None => {
                self.ios.push(io);
                self.ios.len() as u32 - 1
            }
        }
    }
}

impl<P: Program> Machine<P> {
    /// A frame becomes a page of a file, to be read or to be written by the program.
    pub(super) fn insert(&mut self, file: FileId, index: u32, frame: FrameId, locked: bool) {
        self.files.files[file as usize].pages[index as usize] = frame;
        let page = &mut self.pages[frame];
        page.file = file;
        page.index = index;
        page.io = NO_IO;
        page.locked = locked;
        let node = self.memory.node(frame);
        self.pages.put(node, List::Inactive, frame, false);
    }

    /// A page of a file is used.
    pub(super) fn used(&mut self, frame: FrameId) {
        let page = &mut self.pages[frame];
        if !page.referenced {
            page.referenced = true;
        } else if page.list == List::Inactive {
            page.referenced = false;
            let node = self.memory.node(frame);
            self.pages.remove(node, frame);
            self.pages.put(node, List::Active, frame, false);
        }
    }

    /// The program wrote a page.
    pub(super) fn soil(&mut self, frame: FrameId) {
        let page = &mut self.pages[frame];
        if std::mem::replace(&mut page.dirty, true) {
            return;
        }
        self.files.dirty += 1;
        let file = &mut self.files.files[page.file as usize];
        if file.dirty == 0 {
            file.since = self.now;
        }
        file.dirty += 1;
        if !std::mem::replace(&mut file.queued, true) {
            self.files.queue.push_back(page.file);
        }
    }

    /// Submits a read of the pages of a file from `first` on, which are in memory and locked.
    pub(super) fn read_pages(&mut self, file: FileId, first: u32, count: u32) {
        let range = first as usize..(first + count) as usize;
        let frames = self.files.files[file as usize].pages[range].to_vec();
        self.submit(file, first, frames, false);
    }

    fn submit(&mut self, file: FileId, first: u32, frames: Vec<FrameId>, write: bool) {
        let count = frames.len() as u32;
        let id = self.files.begin(Io {
            file,
            frames,
            write,
            waiters: Vec::new(),
        });
        for n in 0..count as usize {
            let frame = self.files.ios[id as usize].frames[n];
            self.pages[frame].io = id;
        }
        self.files.writes += usize::from(write);
        self.files.congested |= self.files.writes > CONGESTED;
        let transfer = Transfer {
            write,
            first: self.files.files[file as usize].start + u64::from(first),
            pages: count,
        };
        self.files.scheduler.add(self.now, id, transfer);
        self.give_disk();
    }

    /// Dispatches the next request to the disk.
    fn give_disk(&mut self) {
        if let Some((id, transfer)) = self.files.scheduler.next(self.now) {
            self.device.submit(self.now, IoId(id), transfer);
        }
    }

    /// A task waits for a page that is being read.
    pub(super) fn wait_for(&mut self, frame: FrameId, task: u32) -> bool {
        let io = self.pages[frame].io;
        if io == NO_IO {
            return false;
        }
        self.files.ios[io as usize].waiters.push(task);
        true
    }

    /// The disk has completed a transfer.
    pub(super) fn on_completion(&mut self, id: u32) {
        let io = std::mem::take(&mut self.files.ios[id as usize]);
        self.files.idle.push(id);
        self.files.scheduler.ended();
        self.give_disk();
        for &frame in &io.frames {
            let page = &mut self.pages[frame];
            page.io = NO_IO;
            if !io.write {
                page.locked = false;
                continue;
            }
            page.writeback = false;
            let (gone, soon) = (page.gone, page.reclaim && !page.dirty);
            page.reclaim = false;
            self.files.writeback -= 1;
            self.files.files[io.file as usize].writeback -= 1;
            let node = self.memory.node(frame);
            if gone {
                self.pages.remove(node, frame);
                self.files.forget(&mut self.pages, frame);
                self.memory.give(frame);
            } else if soon {
                // Reclaim has met it already: it is evicted next.
                self.pages.remove(node, frame);
                self.pages.put(node, List::Inactive, frame, true);
            }
        }
        for task in io.waiters {
            self.resume(task, self.prices.complete);
        }
        if io.write {
            self.files.writes -= 1;
            if self.files.congested && self.files.writes < RELIEVED {
                self.files.congested = false;
                self.relieved();
            }
            self.flush();
        }
    }

    /// All pages of a file leave memory, those under writeback once they are written. Returns how many left.
    pub(super) fn remove(&mut self, file: FileId) -> u64 {
        let mut left = 0;
        for at in 0..self.files.files[file as usize].pages.len() {
            let frame = self.files.files[file as usize].pages[at];
            if frame == NONE {
                continue;
            }
            left += 1;
            let page = &mut self.pages[frame];
            if std::mem::take(&mut page.dirty) {
                self.files.dirty -= 1;
                self.files.kicked = self.files.kicked.saturating_sub(1);
                self.files.files[file as usize].dirty -= 1;
            }
            if page.writeback {
                page.gone = true;
                self.files.files[file as usize].pages[at] = NONE;
                continue;
            }
            let node = self.memory.node(frame);
            self.pages.remove(node, frame);
            self.files.forget(&mut self.pages, frame);
            self.memory.give(frame);
        }
        left
    }

    /// The dirty threshold of writeback, and the threshold of dirty pages and pages under writeback above which
    /// writers wait.
    fn levels(&self) -> [u64; 2] {
        let high: u64 = self.zones().map(|zone| zone.marks.high).sum();
        let could = (self.memory.free() + self.pages.file_pages()).saturating_sub(high);
        let (begin, limit) = (could / 10, could / 5);
        [begin, (begin + limit) / 2]
    }

    /// Whether a writer has to wait. Wakes writeback if due.
    pub(super) fn must_wait(&mut self) -> bool {
        let [begin, wait] = self.levels();
        if self.files.dirty > begin {
            self.flush();
        }
        self.files.unwritten() > wait
    }

    /// A task waits for a file to reach the disk.
    pub(super) fn sync(&mut self, file: FileId) {
        self.files.files[file as usize].sync = true;
        self.flush();
    }

    /// Reclaim met only dirty pages: all present dirty pages are written, whatever their age.
    pub(super) fn kick(&mut self) {
        self.files.kicked = self.files.dirty;
        self.flush();
    }

    /// Writeback continues soon, unless that is planned already.
    pub(super) fn flush(&mut self) {
        if !std::mem::replace(&mut self.files.planned, true) {
            self.plan(self.prices.switch, Event::Flush);
        }
    }

    /// Writes one request's worth, and continues while the disk's queue has room.
    pub(super) fn on_flush(&mut self) {
        self.files.planned = false;
        if self.files.writes >= QUEUE {
            return;
        }
        let [begin, _] = self.levels();
        let many = self.files.dirty > begin;
        for _ in 0..self.files.queue.len() {
            let Some(id) = self.files.queue.pop_front() else {
                return;
            };
            let file = &mut self.files.files[id as usize];
            if file.dirty == 0 {
                file.queued = false;
                file.sync = false;
                continue;
            }
            let old = file.since + self.files.old < self.now;
            let due = many || file.sync || old || self.files.kicked > 0;
            if !due {
                self.files.queue.push_back(id);
                continue;
            }
            let written = self.write_some(id);
            // It keeps its turn: neighbours are written together.
            self.files.queue.push_front(id);
            if written > 0 {
                let took = written * self.prices.look + self.prices.submit;
                self.files.planned = true;
                self.plan(took, Event::Flush);
            }
            return;
        }
    }

    /// Submits the next run of dirty pages of a file; returns their number.
    fn write_some(&mut self, id: FileId) -> u64 {
        let file = &self.files.files[id as usize];
        let size = file.pages.len() as u32;
        let ready = |page: u32| {
            let frame = file.pages[page as usize];
            frame != NONE && self.pages[frame].dirty && !self.pages[frame].writeback
        };
        let places = (file.cursor..size).chain(0..file.cursor.min(size));
        let Some(first) = places.into_iter().find(|&page| ready(page)) else {
            return 0;
        };
        let run = (first..size.min(first + REQUEST)).take_while(|&page| ready(page));
        let count = run.count() as u32;
        self.write_run(id, first, count);
        self.files.files[id as usize].cursor = first + count;
        u64::from(count)
    }

    fn write_run(&mut self, id: FileId, first: u32, count: u32) {
        let file = &mut self.files.files[id as usize];
        file.dirty -= count;
        file.writeback += count;
        self.files.dirty -= u64::from(count);
        self.files.kicked = self.files.kicked.saturating_sub(count.into());
        self.files.writeback += u64::from(count);
        let frames = file.pages[first as usize..(first + count) as usize].to_vec();
        for &frame in &frames {
            let page = &mut self.pages[frame];
            page.dirty = false;
            page.writeback = true;
        }
        self.submit(id, first, frames, true);
    }

    /// Reclaim writes a dirty page itself.
    pub(super) fn write_page(&mut self, frame: FrameId) {
        let page = self.pages[frame];
        self.write_run(page.file, page.index, 1);
    }
}
