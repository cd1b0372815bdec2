//! The pages in use, and the lists from whose ends they are reclaimed.
//!
//! Each node has a list of file pages used once (inactive), a list of file pages used again (active), and a list of
//! anonymous pages.

use super::zones::{FrameId, Memory, NONE};

/// The list of a page.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum List {
    /// None: free, or part of a huge page.
    #[default]
    Off,
    /// File pages used once.
    Inactive,
    /// File pages used again.
    Active,
    /// Anonymous pages.
    Anon,
}

const LISTS: usize = 3;

impl List {
    const fn at(self) -> usize {
        match self {
            List::Off | List::Inactive => 0,
            List::Active => 1,
            List::Anon => 2,
        }
    }
}

/// The state of a page in use.
#[derive(Clone, Copy, Default, Debug)]
pub struct Page {
    newer: FrameId,
    older: FrameId,
    /// Its list.
    pub list: List,
    /// Its file, and its index in it.
    pub file: u32,
    pub index: u32,
    /// Its transfer while it is read or written.
    pub io: u32,
    /// It is being read.
    pub locked: bool,
    /// Used since it arrived, or since the last look.
    pub referenced: bool,
    /// Its content is newer than the disk's.
    pub dirty: bool,
    /// It is being written.
    pub writeback: bool,
    /// Reclaim has met it dirty or under writeback: it is freed once it is clean.
    pub reclaim: bool,
    /// Its file is removed; it is freed once it has been written.
    pub gone: bool,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    newest: FrameId,
    oldest: FrameId,
    count: u64,
}

/// All pages.
#[derive(Debug)]
pub struct Pages {
    pages: Vec<Page>,
    ends: Vec<[Ends; LISTS]>,
}

impl std::ops::Index<FrameId> for Pages {
    type Output = Page;
    fn index(&self, frame: FrameId) -> &Page {
        &self.pages[frame as usize]
    }
}

impl std::ops::IndexMut<FrameId> for Pages {
    fn index_mut(&mut self, frame: FrameId) -> &mut Page {
        &mut self.pages[frame as usize]
    }
}

impl Pages {
    /// No pages in use.
    pub fn new(memory: &Memory) -> Self {
        let empty = Ends {
            newest: NONE,
            oldest: NONE,
            count: 0,
        };
        Pages {
            pages: vec![Page::default(); memory.frames()],
            ends: vec![[empty; LISTS]; memory.nodes.len()],
        }
    }

    /// Pages on a node's list.
    pub fn count(&self, node: usize, list: List) -> u64 {
        self.ends[node][list.at()].count
    }

    /// File pages, on all nodes.
    pub fn file_pages(&self) -> u64 {
        let file =
            |ends: &[Ends; LISTS]| ends[List::Inactive.at()].count + ends[List::Active.at()].count;
        self.ends.iter().map(file).sum()
    }

    /// The oldest page of a list.
    pub fn oldest(&self, node: usize, list: List) -> Option<FrameId> {
        Some(self.ends[node][list.at()].oldest).filter(|&frame| frame != NONE)
    }

    /// Puts a page without a list on the new or the old end of one.
    pub fn put(&mut self, node: usize, list: List, frame: FrameId, old_end: bool) {
        debug_assert_eq!(self[frame].list, List::Off);
        let ends = &mut self.ends[node][list.at()];
        let (newer, older) = if old_end {
            (ends.oldest, NONE)
        } else {
            (NONE, ends.newest)
        };
        if newer == NONE {
            ends.newest = frame;
        }
        if older == NONE {
            ends.oldest = frame;
        }
        ends.count += 1;
        for (neighbour, is_newer) in [(newer, true), (older, false)] {
            if neighbour == NONE {
                continue;
            }
            if is_newer {
                self[neighbour].older = frame;
            } else {
                self[neighbour].newer = frame;
            }
        }
        let page = &mut self[frame];
        (page.newer, page.older, page.list) = (newer, older, list);
    }

    /// Removes a page from its list.
    pub fn remove(&mut self, node: usize, frame: FrameId) {
        let Page {
            newer, older, list, ..
        } = self[frame];
        debug_assert_ne!(list, List::Off);
        if newer != NONE {
            self[newer].older = older;
        }
        if older != NONE {
            self[older].newer = newer;
        }
        let ends = &mut self.ends[node][list.at()];
        if newer == NONE {
            ends.newest = older;
        }
        if older == NONE {
            ends.oldest = newer;
        }
        ends.count -= 1;
        self[frame].list = List::Off;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::parameters::Parameters;

    #[test]
    fn pages_leave_in_the_order_in_which_they_came_unless_moved() {
        let machine = Parameters::named("uma-disk").expect("a machine").scaled(8);
        let memory = Memory::new(&machine, 1).expect("large enough");
        let mut pages = Pages::new(&memory);
        for frame in [5, 9, 2, 7] {
            pages.put(0, List::Inactive, frame, false);
        }
        pages.remove(0, 9);
        pages.put(0, List::Inactive, 9, true);
        pages.put(0, List::Active, 100, false);
        assert_eq!((pages.count(0, List::Inactive), pages.file_pages()), (4, 5));
        let mut order = Vec::new();
        while let Some(frame) = pages.oldest(0, List::Inactive) {
            pages.remove(0, frame);
            order.push(frame);
        }
        assert_eq!(order, [9, 5, 2, 7]);
        assert_eq!(pages.oldest(0, List::Anon), None);
        assert_eq!(pages.oldest(0, List::Active), Some(100));
    }
}
