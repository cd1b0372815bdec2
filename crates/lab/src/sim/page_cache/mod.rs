//! The page cache of the modelled kernel: the pages of files in memory, and their eviction.
//!
//! As in Linux 2.6: a page enters the inactive list when its read is *started*, moves to the active list when it is
//! used twice, and leaves from the old end of the inactive list. Pages that are read ahead and not used before as
//! many other pages have arrived are lost before their use: that is thrashing. Pages in transfer from or to the disk,
//! and dirty pages, stay.

mod lists;

use std::collections::BTreeSet;

use foreswap_core::readahead::file::{self, FilePage, Run};

use lists::{Links, List, NONE};

/// Identifies a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FileId(pub u32);

/// Consecutive pages of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The file.
    pub file: FileId,
    /// Its first page.
    pub start: u64,
    /// The number of pages.
    pub pages: u64,
}

/// The state of a page in memory.
#[derive(Clone, Copy, Default, Debug)]
struct Frame {
    file: u32,
    page: u32,
    /// Its read is in flight.
    reading: bool,
    /// Its content is newer than the disk's.
    dirty: bool,
    /// Its write is in flight.
    writing: bool,
    /// It carries a policy's mark.
    mark: bool,
    /// It was used since it came onto its list.
    referenced: bool,
    active: bool,
    /// A program has used it.
    used: bool,
}

impl Frame {
    /// Whether it cannot be evicted.
    const fn stays(&self) -> bool {
        self.reading || self.dirty || self.writing
    }
}

/// The counts so far, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Read from the disk.
    pub read: u64,
    /// Evicted before any program used them.
    pub wasted: u64,
}

/// All files, and their pages in memory.
#[derive(Debug)]
pub struct PageCache {
    /// The frame of each page of each file.
    files: Vec<Vec<u32>>,
    frames: Vec<Frame>,
    free: Vec<u32>,
    links: Links,
    active: List,
    inactive: List,
    /// The most pages in memory.
    limit: u64,
    /// Active pages due for a look, in parts of an inactive one's turn.
    due: u64,
    dirty: BTreeSet<(FileId, u64)>,
    writing: u64,
    /// Pages in memory that stay.
    pinned: u64,
    /// The counts so far.
    pub stats: Stats,
}

impl PageCache {
    /// An empty cache with this limit in pages.
    pub fn new(limit: u64) -> Self {
        PageCache {
            files: Vec::new(),
            frames: Vec::new(),
            free: Vec::new(),
            links: Links::default(),
            active: List::default(),
            inactive: List::default(),
            limit,
            due: 0,
            dirty: BTreeSet::new(),
            writing: 0,
            pinned: 0,
            stats: Stats::default(),
        }
    }

    /// Adds a file of this many pages.
    pub fn add_file(&mut self, pages: u64) -> FileId {
        self.files.push(vec![NONE; pages as usize]);
        FileId(self.files.len() as u32 - 1)
    }

    /// Its limit in pages.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Pages newer than the disk's, including those being written.
    pub fn unwritten(&self) -> u64 {
        self.dirty.len() as u64 + self.writing
    }

    /// Dirty pages whose write was not started.
    pub fn dirty(&self) -> u64 {
        self.dirty.len() as u64
    }

    /// Pages of a file.
    pub fn file_pages(&self, file: FileId) -> u64 {
        self.files[file.0 as usize].len() as u64
    }

    fn frame_of(&self, file: FileId, page: u64) -> Option<u32> {
        let pages = &self.files[file.0 as usize];
        pages.get(page as usize).copied().filter(|&at| at != NONE)
    }

    /// The page is in memory, or its read is in flight.
    pub fn has(&self, file: FileId, page: u64) -> bool {
        self.frame_of(file, page).is_some()
    }

    /// The page can be used.
    pub fn is_ready(&self, file: FileId, page: u64) -> bool {
        let frame = self.frame_of(file, page);
        frame.is_some_and(|at| !self.frames[at as usize].reading)
    }

    /// A program uses the page.
    pub fn touch(&mut self, file: FileId, page: u64) {
        let Some(at) = self.frame_of(file, page) else {
            return;
        };
        let frame = &mut self.frames[at as usize];
        frame.used = true;
        if !std::mem::replace(&mut frame.referenced, true) || frame.active {
            return;
        }
        frame.active = true;
        frame.referenced = false;
        self.inactive.remove(&mut self.links, at);
        self.active.push(&mut self.links, at);
    }

    /// Absent pages of `run` enter memory to be read; the page that it names is marked. Puts the pieces to read into
    /// `segments`.
    pub fn begin_read(&mut self, file: FileId, run: &Run, segments: &mut Vec<Segment>) {
        let mark = run.mark();
        let mut piece: Option<Segment> = None;
        for page in run.start.0..run.end().0.min(self.file_pages(file)) {
            if self.has(file, page) {
                segments.extend(piece.take());
                continue;
            }
            let at = self.bring(file, page);
            self.change(at, |frame| frame.reading = true);
            self.frames[at as usize].mark = mark == Some(FilePage(page));
            self.stats.read += 1;
            let none = Segment {
                file,
                start: page,
                pages: 0,
            };
            piece.get_or_insert(none).pages += 1;
        }
        segments.extend(piece);
    }

    /// A read has completed.
    pub fn end_read(&mut self, segment: Segment) {
        for page in segment.start..segment.start + segment.pages {
            if let Some(at) = self.frame_of(segment.file, page) {
                self.change(at, |frame| frame.reading = false);
            }
        }
    }

    /// A program overwrites a whole page, without reading it first.
    pub fn write(&mut self, file: FileId, page: u64) {
        if page >= self.file_pages(file) {
            return;
        }
        let at = match self.frame_of(file, page) {
            Some(at) => at,
            None => self.bring(file, page),
        };
        self.change(at, |frame| (frame.reading, frame.dirty) = (false, true));
        self.dirty.insert((file, page));
        self.touch(file, page);
    }

    /// The next pages to write, up to `most` consecutive ones, from `from` on in the order of files and pages, then
    /// from the start.
    pub fn begin_write(&mut self, from: (FileId, u64), most: u64) -> Option<Segment> {
        let next = self.dirty.range(from..).next();
        let &(file, start) = next.or_else(|| self.dirty.first())?;
        let mut pages = 0;
        while pages < most && self.dirty.remove(&(file, start + pages)) {
            if let Some(at) = self.frame_of(file, start + pages) {
                self.change(at, |frame| (frame.dirty, frame.writing) = (false, true));
            }
            pages += 1;
        }
        self.writing += pages;
        Some(Segment { file, start, pages })
    }

    /// A write has completed.
    pub fn end_write(&mut self, segment: Segment) {
        self.writing -= segment.pages;
        for page in segment.start..segment.start + segment.pages {
            if let Some(at) = self.frame_of(segment.file, page) {
                self.change(at, |frame| frame.writing = false);
            }
        }
    }

    /// Changes the state of a frame.
    fn change(&mut self, at: u32, change: impl FnOnce(&mut Frame)) {
        let frame = &mut self.frames[at as usize];
        self.pinned -= u64::from(frame.stays());
        change(frame);
        self.pinned += u64::from(frame.stays());
    }

    /// A file as seen by a readahead policy.
    pub fn view(&mut self, file: FileId) -> View<'_> {
        View { cache: self, file }
    }

    /// A frame for a page without one, at the new end of the inactive list.
    fn bring(&mut self, file: FileId, page: u64) -> u32 {
        while self.active.len() + self.inactive.len() >= self.limit && self.give_up() {}
        let frame = Frame {
            file: file.0,
            page: page as u32,
            ..Frame::default()
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.frames[at as usize] = frame;
                at
            }
            None => {
                self.frames.push(frame);
                self.frames.len() as u32 - 1
            }
        };
        self.files[file.0 as usize][page as usize] = at;
        self.inactive.push(&mut self.links, at);
        at
    }

    /// Evicts the oldest evictable page. False if there is none: memory is then exceeded until transfers end.
    fn give_up(&mut self) -> bool {
        while self.pinned < self.inactive.len() + self.active.len() {
            self.age();
            let Some(at) = self.inactive.oldest() else {
                continue;
            };
            self.inactive.remove(&mut self.links, at);
            let frame = self.frames[at as usize];
            if frame.stays() {
                self.inactive.push(&mut self.links, at);
                continue;
            }
            self.stats.wasted += u64::from(!frame.used);
            self.files[frame.file as usize][frame.page as usize] = NONE;
            self.free.push(at);
            return true;
        }
        false
    }

    /// Scans both lists at rates proportional to their lengths. A page that no program has mapped leaves the active
    /// list whether or not it was used there.
    fn age(&mut self) {
        self.due += self.active.len();
        while self.due >= self.inactive.len().max(1) {
            self.due -= self.inactive.len().max(1);
            let Some(at) = self.active.oldest() else {
                self.due = 0;
                return;
            };
            self.active.remove(&mut self.links, at);
            self.frames[at as usize].active = false;
            self.inactive.push(&mut self.links, at);
        }
    }
}

/// One file of a cache.
#[derive(Debug)]
pub struct View<'a> {
    cache: &'a mut PageCache,
    file: FileId,
}

impl file::Cached for View<'_> {
    fn file_pages(&self) -> u64 {
        self.cache.file_pages(self.file)
    }

    fn has(&self, page: FilePage) -> bool {
        self.cache.has(self.file, page.0)
    }
}

impl file::PageCache for View<'_> {
    fn take_mark(&mut self, page: FilePage) -> bool {
        let frame = self.cache.frame_of(self.file, page.0);
        frame.is_some_and(|at| std::mem::take(&mut self.cache.frames[at as usize].mark))
    }

    /// The pages appear at once: a caller that needs the pieces to read uses [`PageCache::begin_read`].
    fn read(&mut self, run: &Run) {
        let mut segments = Vec::new();
        self.cache.begin_read(self.file, run, &mut segments);
        for segment in segments {
            self.cache.end_read(segment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(cache: &mut PageCache, file: FileId, start: u64, pages: u64) -> Vec<Segment> {
        let mut segments = Vec::new();
        cache.begin_read(file, &Run::plain(FilePage(start), pages), &mut segments);
        segments.iter().for_each(|&segment| cache.end_read(segment));
        segments
    }

    fn in_memory(cache: &PageCache, file: FileId) -> Vec<u64> {
        let pages = 0..cache.file_pages(file);
        pages.filter(|&page| cache.has(file, page)).collect()
    }

    #[test]
    fn the_oldest_page_goes_first_unless_it_was_used_twice() {
        let mut cache = PageCache::new(4);
        let file = cache.add_file(20);
        read(&mut cache, file, 0, 4);
        cache.touch(file, 0);
        cache.touch(file, 1);
        cache.touch(file, 1);
        read(&mut cache, file, 10, 2);
        assert_eq!(in_memory(&cache, file), [1, 3, 10, 11]);
        assert_eq!(cache.stats, Stats { read: 6, wasted: 1 });
        // An active page that is not used again is evicted as well.
        (12..20).for_each(|page| drop(read(&mut cache, file, page, 1)));
        assert_eq!(in_memory(&cache, file), [16, 17, 18, 19]);
    }

    #[test]
    fn only_what_is_absent_is_read_and_marked() {
        let mut cache = PageCache::new(100);
        let file = cache.add_file(20);
        read(&mut cache, file, 5, 2);
        let mut segments = Vec::new();
        let run = Run {
            start: FilePage(3),
            pages: 30,
            ahead: 25,
        };
        cache.begin_read(file, &run, &mut segments);
        let ranges: Vec<_> = segments.iter().map(|s| (s.start, s.pages)).collect();
        assert_eq!(ranges, [(3, 2), (7, 13)]);
        assert!(cache.has(file, 3) && !cache.is_ready(file, 3));
        let marked = |cache: &mut PageCache, page| {
            file::PageCache::take_mark(&mut cache.view(file), FilePage(page))
        };
        assert!(marked(&mut cache, 8) && !marked(&mut cache, 8) && !marked(&mut cache, 9));
    }

    #[test]
    fn pages_in_transfer_and_dirty_pages_stay() {
        let mut cache = PageCache::new(3);
        let file = cache.add_file(20);
        cache.write(file, 0);
        cache.write(file, 1);
        let mut segments = Vec::new();
        cache.begin_read(file, &Run::plain(FilePage(5), 1), &mut segments);
        read(&mut cache, file, 10, 2);
        assert_eq!(
            in_memory(&cache, file),
            [0, 1, 5, 10, 11],
            "memory is exceeded"
        );
        assert_eq!(cache.unwritten(), 2);
        let segment = cache.begin_write((file, 1), 8).expect("dirty");
        assert_eq!((segment.start, segment.pages), (1, 1));
        let other = cache.begin_write((file, 2), 8).expect("dirty");
        assert_eq!((other.start, other.pages), (0, 1), "from the beginning");
        assert_eq!(cache.begin_write((file, 0), 8), None);
        cache.write(file, 0);
        cache.end_write(segment);
        cache.end_write(other);
        assert_eq!(cache.unwritten(), 1, "written again");
        read(&mut cache, file, 12, 1);
        assert_eq!(in_memory(&cache, file), [0, 5, 12]);
    }
}
