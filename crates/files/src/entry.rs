//! The state of one page of a file, in one word.
//!
//! The word is a sequence lock. It names the frame that holds the page and a *version*, which is different after each
//! change of the page's content and after each change of its frame. A reader loads the word, copies out of the frame,
//! and loads the word again: if frame, version or [`BUSY`] differ, the copy may be a mixture and is made again. A reader
//! writes nothing, except for the bits of its use, once.
//!
//! Who sets [`BUSY`] owns the page's content until it clears the bit: a read from the store that fills the frame, or a
//! writer. The version has 28 bits: a reader would have to sleep in the middle of a copy for exactly 2^28 changes of the
//! same page to be deceived.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::frames::{FrameId, Use};

const FRAME: u64 = (1 << 28) - 1;
const VERSION_ONE: u64 = 1 << 28;
const VERSION: u64 = FRAME << 28;
/// The frame holds the page.
pub const PRESENT: u64 = 1 << 56;
/// Somebody changes the frame's content. Without [`PRESENT`]: the page is being read.
pub const BUSY: u64 = 1 << 57;
/// The frame has content that the store has not.
pub const DIRTY: u64 = 1 << 58;
/// The frame is being written to the store; its content must not change.
pub const WRITEBACK: u64 = 1 << 59;
/// Readahead's mark: the read that meets it asks for the next window.
pub const MARK: u64 = 1 << 60;
/// A read or write used the page.
const USED: u64 = 1 << 61;
/// Another use, which did not follow the first directly.
const AGAIN: u64 = 1 << 62;

/// The most frames of a cache: 1 TiB.
pub const MOST_FRAMES: u64 = FRAME + 1;

/// The word of a page.
#[derive(Debug, Default)]
pub struct Entry(AtomicU64);

/// A word, as loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(u64);

impl State {
    /// All of these bits are set.
    pub fn is(self, bits: u64) -> bool {
        self.0 & bits == bits
    }

    /// The page can be copied from its frame.
    pub fn is_readable(self) -> bool {
        self.0 & (PRESENT | BUSY) == PRESENT
    }

    /// The page has a frame: it is in memory or on its way.
    pub fn has_frame(self) -> bool {
        self.0 & (PRESENT | BUSY) != 0
    }

    /// The frame; meaningless without one.
    pub fn frame(self) -> FrameId {
        FrameId((self.0 & FRAME) as u32)
    }

    fn changed(self, set: u64, clear: u64) -> Self {
        State(self.0 & !clear | set)
    }

    fn next_version(self) -> Self {
        let version = self.0.wrapping_add(VERSION_ONE) & VERSION;
        State(self.0 & !VERSION | version)
    }

    /// The bit that a further use sets; `None` if all are set. `apart`: the thread used another page since its last use
    /// of this one.
    fn use_bit(self, apart: bool) -> Option<u64> {
        match self.0 & (USED | AGAIN) {
            0 => Some(USED),
            USED if apart => Some(AGAIN),
            _ => None,
        }
    }
}

impl Entry {
    /// The state, and with it what its last owner wrote to the frame.
    pub fn load(&self) -> State {
        State(self.0.load(Ordering::Acquire))
    }

    /// After a copy out of the frame: whether the copy is what `before` named.
    pub fn still(&self, before: State) -> bool {
        // The copy's loads come before this load: then bytes of a later owner imply its BUSY or its version.
        fence(Ordering::Acquire);
        let now = self.0.load(Ordering::Relaxed);
        (now ^ before.0) & (FRAME | VERSION | PRESENT | BUSY) == 0
    }

    /// Notes a use of a page whose state was `seen`.
    pub fn note_use(&self, seen: State, apart: bool) {
        if let Some(bit) = seen.use_bit(apart) {
            self.0.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Sets the mark.
    pub fn mark(&self) {
        self.0.fetch_or(MARK, Ordering::Relaxed);
    }

    /// Removes the mark; returns whether there was one.
    pub fn take_mark(&self) -> bool {
        self.load().is(MARK) && self.0.fetch_and(!MARK, Ordering::Relaxed) & MARK != 0
    }

    fn exchange(&self, old: State, new: State) -> bool {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        let done = self
            .0
            .compare_exchange(old.0, new.0, order.0, order.1)
            .is_ok();
        // The owner's writes to the frame come after the word that announces them.
        fence(Ordering::Release);
        done
    }

    fn update(&self, to: impl Fn(State) -> State) -> State {
        let mut old = self.load();
        loop {
            let new = to(old);
            let order = (Ordering::AcqRel, Ordering::Acquire);
            match self.0.compare_exchange(old.0, new.0, order.0, order.1) {
                Ok(_) => return old,
                Err(now) => old = State(now),
            }
        }
    }

    /// An absent page gets a frame that is about to be filled. False if the state is no longer `absent`.
    pub fn begin_fill(&self, absent: State, frame: FrameId) -> bool {
        debug_assert!(!absent.has_frame());
        let new = State(absent.0 & VERSION | u64::from(frame.0) | BUSY).next_version();
        self.exchange(absent, new)
    }

    /// The frame is filled; `bits`: [`DIRTY`] or 0.
    pub fn end_fill(&self, bits: u64) {
        self.update(|old| old.changed(PRESENT | bits, BUSY));
    }

    /// The frame was not filled: the page is absent again.
    pub fn fail_fill(&self) -> FrameId {
        self.update(|old| State(old.next_version().0 & VERSION))
            .frame()
    }

    /// A writer takes a readable page that is not under write-back. False if its state is no longer `seen`.
    pub fn begin_write(&self, seen: State) -> bool {
        debug_assert!(seen.is_readable() && !seen.is(WRITEBACK));
        self.exchange(seen, seen.changed(BUSY, 0))
    }

    /// The writer is done; `bits`: [`DIRTY`] or 0.
    pub fn end_write(&self, bits: u64) {
        self.update(|old| old.next_version().changed(bits, BUSY));
    }

    /// Write-back of a dirty page begins. False if the page is not dirty, or a writer has it.
    pub fn begin_writeback(&self) -> Option<State> {
        loop {
            let old = self.load();
            if !old.is(DIRTY | PRESENT) || old.is(BUSY) || old.is(WRITEBACK) {
                return None;
            }
            if self.exchange(old, old.changed(WRITEBACK, DIRTY)) {
                return Some(old);
            }
        }
    }

    /// Write-back has ended; `bits`: [`DIRTY`] if it failed.
    pub fn end_writeback(&self, bits: u64) {
        self.update(|old| old.changed(bits, WRITEBACK));
    }

    /// Takes the use bits.
    pub fn take_use(&self) -> Use {
        let old = State(self.load().0);
        if old.0 & (USED | AGAIN) == 0 {
            return Use::None;
        }
        let old = self.0.fetch_and(!(USED | AGAIN), Ordering::Relaxed);
        if old & AGAIN != 0 {
            Use::Again
        } else {
            Use::Once
        }
    }

    /// Takes the frame away, if nobody owns the page and the store has its content.
    pub fn evict(&self) -> Option<FrameId> {
        let old = self.load();
        let free = old.is_readable() && old.0 & (DIRTY | WRITEBACK) == 0;
        let gone = State(old.next_version().0 & VERSION);
        (free && self.exchange(old, gone)).then(|| old.frame())
    }

    /// Takes the frame away though it is dirty: the page is no longer of the file. `None` while somebody owns it.
    pub fn discard(&self) -> Option<State> {
        let old = self.load();
        let gone = State(old.next_version().0 & VERSION);
        let free = old.is_readable() && !old.is(WRITEBACK);
        (free && self.exchange(old, gone)).then_some(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled() -> Entry {
        let entry = Entry::default();
        assert!(entry.begin_fill(entry.load(), FrameId(7)));
        entry.end_fill(0);
        entry
    }

    #[test]
    fn a_copy_is_good_until_content_or_frame_change() {
        let entry = filled();
        let seen = entry.load();
        entry.note_use(seen, false);
        entry.mark();
        assert!(entry.still(seen) && entry.take_mark() && !entry.take_mark());
        assert!(entry.begin_write(entry.load()));
        assert!(!entry.still(seen), "a writer is at work");
        entry.end_write(DIRTY);
        assert!(!entry.still(seen), "the content has changed");
        let seen = entry.load();
        assert!(entry.begin_writeback().is_some());
        assert!(entry.still(seen), "a write to the store changes nothing");
        entry.end_writeback(0);
        assert_eq!(entry.evict(), Some(FrameId(7)));
        // The same page in the same frame again: the content may have been another in between.
        assert!(entry.begin_fill(entry.load(), FrameId(7)));
        entry.end_fill(0);
        assert!(!entry.still(seen));
    }

    #[test]
    fn a_page_that_somebody_needs_stays() {
        let entry = filled();
        assert!(entry.begin_write(entry.load()));
        assert_eq!((entry.evict(), entry.discard()), (None, None));
        entry.end_write(DIRTY);
        assert_eq!(entry.evict(), None, "dirty");
        assert!(entry.begin_writeback().is_some() && entry.begin_writeback().is_none());
        assert_eq!((entry.evict(), entry.discard()), (None, None));
        entry.end_writeback(DIRTY);
        assert!(entry.discard().is_some_and(|old| old.is(DIRTY)));
        assert!(!entry.load().has_frame());
    }

    #[test]
    fn uses_that_follow_each_other_count_once() {
        let entry = filled();
        assert_eq!(entry.take_use(), Use::None);
        for apart in [true, false, false] {
            entry.note_use(entry.load(), apart);
        }
        assert_eq!(entry.take_use(), Use::Once);
        entry.note_use(entry.load(), true);
        entry.note_use(entry.load(), true);
        assert_eq!(
            (entry.take_use(), entry.take_use()),
            (Use::Again, Use::None)
        );
    }

    #[test]
    fn the_version_wraps_within_its_bits() {
        let last = State(VERSION | FRAME | PRESENT);
        assert_eq!(last.next_version(), State(FRAME | PRESENT));
    }
}
