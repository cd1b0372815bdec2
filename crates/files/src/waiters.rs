//! Threads that wait for a page: until it is read, written, or its frame is free.
//!
//! Pages share a few places to wait, by their number, so that a page costs nothing while nobody waits.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::cache::PageId;

const PLACES: usize = 64;
/// Pages that lie together share a place: a transfer wakes few.
const TOGETHER: u32 = 7;
/// A bound in case the change happens where nobody announces it.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
struct Place {
    waiting: AtomicU32,
    lock: Mutex<()>,
    changed: Condvar,
}

/// All places.
#[derive(Debug)]
pub struct Waiters([Place; PLACES]);

impl Default for Waiters {
    fn default() -> Self {
        Waiters(std::array::from_fn(|_| Place::default()))
    }
}

impl Waiters {
    fn place(&self, page: PageId) -> &Place {
        let number = (page.page.0 >> TOGETHER).wrapping_add(u64::from(page.file) * 31);
        &self.0[number as usize % PLACES]
    }

    /// Waits until `is_over`, which looks at the state of `page`.
    pub fn wait(&self, page: PageId, is_over: impl Fn() -> bool) {
        let place = self.place(page);
        place.waiting.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let mut guard = place.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !is_over() {
            let waited = place.changed.wait_timeout(guard, LOOK);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(guard);
        place.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// The states of some pages in succession have changed.
    pub fn wake(&self, first: PageId, count: u64) {
        fence(Ordering::SeqCst);
        let last = first.page.plus(count.max(1) - 1);
        let mut woken = None;
        for group in first.page.0 >> TOGETHER..=last.0 >> TOGETHER {
            let page = foreswap_core::readahead::file::FilePage(group << TOGETHER);
            let place = self.place(PageId { page, ..first });
            if woken == Some(std::ptr::from_ref(place)) || place.waiting.load(Ordering::SeqCst) == 0
            {
                continue;
            }
            woken = Some(std::ptr::from_ref(place));
            // A waiter that has looked already is now in its wait.
            drop(place.lock.lock().unwrap_or_else(PoisonError::into_inner));
            place.changed.notify_all();
        }
    }
}
