//! Which page leaves when a frame is needed. Pure: the uses of a page are told by the caller.
//!
//! Two queues. A page enters *probation*. At the head of that queue it moves to the *protected* queue if it was used
//! again, is left for one more round if it was read ahead and not used yet, and leaves otherwise: a scan uses its pages
//! once, so it passes through probation and flushes nothing that is hot. The protected queue has at most three quarters
//! of the frames; at its head a page that was used since goes to the tail, any other back to probation.
//!
//! Free frames are given in the order in which they became free. Pages of a scan leave in the order in which they came,
//! so a scan's frames lie side by side, and a transfer of many pages has few pieces.

use std::collections::VecDeque;

/// A frame of the arena.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameId(pub u32);

/// How a page was used since the last question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Not at all.
    None,
    /// Once, or several times in succession.
    Once,
    /// More than once, with others in between.
    Again,
}

/// The pages in the frames, as their owner knows them. `P` names a page.
pub trait Pages<P> {
    /// The use of a page since the last question.
    fn take_use(&mut self, page: P) -> Use;

    /// Takes the page's frame away. False if the page has to stay: dirty, or in use at this moment.
    fn evict(&mut self, page: P) -> bool;
}

/// A place in a queue. It is empty if its frame has another page since.
#[derive(Clone, Copy, Debug)]
struct Place {
    frame: FrameId,
    tenant: u32,
}

#[derive(Clone, Copy, Debug)]
struct Resident<P> {
    page: P,
    /// It had its further round in probation.
    spared: bool,
}

#[derive(Clone, Copy, Debug)]
struct Frame<P> {
    resident: Option<Resident<P>>,
    /// Counts the pages that it had.
    tenant: u32,
}

/// The frames of a cache and the pages in them.
#[derive(Debug)]
pub struct Frames<P> {
    frames: Vec<Frame<P>>,
    free: VecDeque<FrameId>,
    probation: VecDeque<Place>,
    protected: VecDeque<Place>,
    most_protected: usize,
}

impl<P: Copy> Frames<P> {
    /// So many frames, all free.
    pub fn new(count: u32) -> Self {
        let empty = Frame {
            resident: None,
            tenant: 0,
        };
        Frames {
            frames: vec![empty; count as usize],
            free: (0..count).map(FrameId).collect(),
            probation: VecDeque::new(),
            protected: VecDeque::new(),
            most_protected: count as usize * 3 / 4,
        }
    }

    /// A frame for `page`: a free one, or that of a page that leaves. `None` if no page can leave.
    pub fn take(&mut self, page: P, pages: &mut impl Pages<P>) -> Option<FrameId> {
        let frame = self.free.pop_front().or_else(|| self.evict(pages))?;
        let at = &mut self.frames[frame.0 as usize];
        at.tenant = at.tenant.wrapping_add(1);
        at.resident = Some(Resident {
            page,
            spared: false,
        });
        let tenant = at.tenant;
        self.probation.push_back(Place { frame, tenant });
        self.sweep();
        Some(frame)
    }

    /// A frame has no page any more. Its place in a queue is left empty.
    pub fn give_back(&mut self, frame: FrameId) {
        self.frames[frame.0 as usize].resident = None;
        self.free.push_back(frame);
    }

    /// Frames without a page.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Removes empty places once there are more of them than frames.
    fn sweep(&mut self) {
        if self.probation.len() + self.protected.len() <= 2 * self.frames.len() {
            return;
        }
        let frames = &self.frames;
        let is_taken = |place: &Place| {
            let at = &frames[place.frame.0 as usize];
            at.resident.is_some() && at.tenant == place.tenant
        };
        self.probation.retain(is_taken);
        self.protected.retain(is_taken);
    }

    fn resident(&mut self, place: Place) -> Option<&mut Resident<P>> {
        let at = &mut self.frames[place.frame.0 as usize];
        at.resident.as_mut().filter(|_| at.tenant == place.tenant)
    }

    fn evict(&mut self, pages: &mut impl Pages<P>) -> Option<FrameId> {
        self.demote(pages);
        // A page is met at most three times in probation: as used again, as spared, and at last.
        let mut left = 3 * self.frames.len();
        let mut round = 2 * self.probation.len();
        while left > 0 {
            left -= 1;
            if round == 0 || self.probation.is_empty() {
                // Nothing here can leave, so a protected page has to.
                self.demote_one(pages);
                round = 1;
            }
            round -= 1;
            let place = self.probation.pop_front()?;
            if self.examine(place, pages) {
                return Some(place.frame);
            }
        }
        None
    }

    /// A place at the head of probation. True if its page has left.
    fn examine(&mut self, place: Place, pages: &mut impl Pages<P>) -> bool {
        let Some(resident) = self.resident(place) else {
            return false;
        };
        let used = pages.take_use(resident.page);
        if used == Use::Again {
            self.protected.push_back(place);
            self.demote(pages);
            return false;
        }
        let spare = used == Use::None && !resident.spared;
        resident.spared = true;
        if !spare && pages.evict(resident.page) {
            self.frames[place.frame.0 as usize].resident = None;
            return true;
        }
        self.probation.push_back(place);
        false
    }

    fn demote(&mut self, pages: &mut impl Pages<P>) {
        while self.protected.len() > self.most_protected && self.demote_one(pages).is_some() {}
    }

    /// The head of the protected queue goes to its tail or to probation. `None` if the queue is empty.
    fn demote_one(&mut self, pages: &mut impl Pages<P>) -> Option<()> {
        let mut rounds = self.protected.len();
        loop {
            let place = self.protected.pop_front()?;
            let Some(resident) = self.resident(place) else {
                continue;
            };
            if rounds > 0 && pages.take_use(resident.page) != Use::None {
                rounds -= 1;
                self.protected.push_back(place);
                continue;
            }
            resident.spared = true;
            // It had its time: it is examined next.
            self.probation.push_front(place);
            return Some(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    #[derive(Default)]
    struct Told {
        uses: HashMap<u64, Use>,
        pinned: HashSet<u64>,
        gone: Vec<u64>,
    }

    impl Pages<u64> for Told {
        fn take_use(&mut self, page: u64) -> Use {
            self.uses.insert(page, Use::None).unwrap_or(Use::None)
        }

        fn evict(&mut self, page: u64) -> bool {
            let goes = !self.pinned.contains(&page);
            self.gone.extend(goes.then_some(page));
            goes
        }
    }

    fn used(told: &mut Told, pages: impl IntoIterator<Item = u64>, used: Use) {
        told.uses.extend(pages.into_iter().map(|page| (page, used)));
    }

    #[test]
    fn a_scan_flushes_nothing_that_is_hot() {
        let (mut frames, mut told) = (Frames::new(100), Told::default());
        for page in 0..50 {
            frames.take(page, &mut told).expect("free");
        }
        for page in 1000..3000 {
            used(&mut told, 0..50, Use::Again);
            frames.take(page, &mut told).expect("a page of the scan");
            used(&mut told, [page], Use::Once);
        }
        assert!(
            told.gone.iter().all(|&page| page >= 1000),
            "{:?}",
            told.gone
        );
        // The scan's pages leave in order.
        assert!(told.gone.is_sorted());
        // When the hot pages are used no more, they leave.
        for page in 3000..4000 {
            frames.take(page, &mut told).expect("a page");
            used(&mut told, [page], Use::Again);
        }
        assert!((0..50).all(|page| told.gone.contains(&page)));
    }

    #[test]
    fn pages_read_ahead_outlast_pages_that_were_read() {
        let (mut frames, mut told) = (Frames::new(8), Told::default());
        for page in 0..8 {
            frames.take(page, &mut told).expect("free");
        }
        used(&mut told, 4..8, Use::Once);
        for page in 8..12 {
            frames.take(page, &mut told).expect("a page");
            used(&mut told, [page], Use::Once);
        }
        assert_eq!(told.gone, [4, 5, 6, 7]);
    }

    #[test]
    fn without_a_page_that_can_leave_there_is_no_frame() {
        let (mut frames, mut told) = (Frames::new(4), Told::default());
        told.pinned.extend(0..4);
        used(&mut told, 0..4, Use::Again);
        let taken: Vec<_> = (0..6).map(|page| frames.take(page, &mut told)).collect();
        assert!(taken[3].is_some() && taken[4].is_none() && taken[5].is_none());
        told.pinned.remove(&2);
        assert_eq!(frames.take(9, &mut told), taken[2]);
    }

    #[test]
    fn frames_given_back_are_taken_again_and_leave_no_trace() {
        let (mut frames, mut told) = (Frames::new(4), Told::default());
        for page in 0..1000 {
            let frame = frames.take(page, &mut told).expect("free");
            frames.give_back(frame);
            assert_eq!(frames.free(), 4);
        }
        assert!(frames.probation.len() <= 8 && told.gone.is_empty());
        let taken: HashSet<_> = (0..4).map(|page| frames.take(page, &mut told)).collect();
        assert_eq!(taken.len(), 4);
    }
}
