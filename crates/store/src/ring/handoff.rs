//! Lock-free handoff of work to other threads and back.
//!
//! A thread that is preempted with a lock held makes the others wait for as long as the scheduler likes, and the
//! thread that hands out work here serves faults. Work lies in slots. Their numbers travel through a ring from which
//! any worker may take, and back through a list that the owner takes as a whole. Workers sleep on a futex. An eventfd
//! notifies the owner. It is written to only if the list was empty: a busy owner costs few system calls.
//!
//! Work also comes back from a worker that panics. Released programs abort at a panic; otherwise the owner would wait
//! for ever.

use std::cell::UnsafeCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::thread::futex;

/// End of the list of finished slots.
const NONE: u32 = u32::MAX;

struct Slot<T> {
    work: UnsafeCell<T>,
    /// The next slot in the list of finished ones; written before the slot is pushed.
    next: AtomicU32,
}

struct Shared<T> {
    slots: Box<[Slot<T>]>,
    /// Slot numbers for the workers: a ring with as many entries as slots, which cannot overrun.
    queue: Box<[AtomicU32]>,
    head: AtomicU64,
    tail: AtomicU64,
    /// The futex: changes with every flush.
    bell: AtomicU32,
    sleepers: AtomicU32,
    stop: AtomicBool,
    /// The first finished slot that was not reaped yet, or `NONE`.
    ended: AtomicU32,
    /// Pushes onto an empty list: each is followed by adding one to the eventfd.
    notices: AtomicU64,
    event: OwnedFd,
}

// SAFETY: a slot's cell belongs to one thread at a time: the owner until `tail` passes the slot's entry, the
// worker whose exchange of `head` won it until it pushed the slot onto `ended`, then again the owner, who
// takes that list. Each handover is a release/acquire pair.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Takes the oldest queued slot.
    fn take(&self) -> Option<u32> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            if head == self.tail.load(Ordering::Acquire) {
                return None;
            }
            let index = self.queue[head as usize % self.queue.len()].load(Ordering::Relaxed);
            let (won, lost) = (Ordering::AcqRel, Ordering::Acquire);
            match self.head.compare_exchange_weak(head, head + 1, won, lost) {
                Ok(_) => return Some(index),
                Err(seen) => head = seen,
            }
        }
    }

    /// Finishes a slot. Returns whether all earlier ones had been reaped.
    fn end(&self, index: u32) -> bool {
        let slot = &self.slots[index as usize];
        let mut first = self.ended.load(Ordering::Relaxed);
        loop {
            slot.next.store(first, Ordering::Relaxed);
            let (won, lost) = (Ordering::AcqRel, Ordering::Relaxed);
            match self.ended.compare_exchange_weak(first, index, won, lost) {
                Ok(_) => return first == NONE,
                Err(seen) => first = seen,
            }
        }
    }

    fn give_back(&self, index: u32) {
        if self.end(index) {
            self.notices.fetch_add(1, Ordering::AcqRel);
            // Fails only if the counter is about to overflow, and then it is readable anyway.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

/// A worker's side.
pub(super) struct Hand<T>(Arc<Shared<T>>);

impl<T> Hand<T> {
    /// Works until the [`Handoff`] is dropped. Work at which `carry_out` panics is returned in its state at that
    /// time.
    pub(super) fn run(&self, mut carry_out: impl FnMut(&mut T)) {
        let shared = &*self.0;
        loop {
            let bell = shared.bell.load(Ordering::SeqCst);
            while let Some(index) = shared.take() {
                // SAFETY: `take` gave this slot to this thread alone.
                let work = unsafe { &mut *shared.slots[index as usize].work.get() };
                let _ = catch_unwind(AssertUnwindSafe(|| carry_out(work)));
                shared.give_back(index);
            }
            if shared.stop.load(Ordering::SeqCst) {
                return;
            }
            shared.sleepers.fetch_add(1, Ordering::SeqCst);
            // Any result is fine: woken, interrupted, or the bell rang meanwhile.
            let _ = futex::wait(&shared.bell, futex::Flags::PRIVATE, bell, None);
            shared.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// The owner's side: it fills slots and reaps them.
pub(super) struct Handoff<T> {
    shared: Arc<Shared<T>>,
    free: Vec<u32>,
    /// Filled since the last flush; invisible to the workers until the next.
    unflushed: u64,
    /// The part of `notices` that was read from the eventfd.
    heard: u64,
    /// Reaped and not put back, oldest first.
    reaped: Vec<u32>,
    /// The slot on which the owner works itself.
    own: Option<u32>,
}

impl<T> Handoff<T> {
    /// Slots for all of `works`, without workers. `event` is a non-blocking eventfd, written to when a slot has
    /// finished after all others had been reaped.
    pub(super) fn new(works: impl Iterator<Item = T>, event: OwnedFd) -> Self {
        let slots: Box<[_]> = works
            .map(|work| Slot {
                work: UnsafeCell::new(work),
                next: AtomicU32::new(NONE),
            })
            .collect();
        let depth = slots.len() as u32;
        let shared = Shared {
            slots,
            queue: (0..depth).map(|_| AtomicU32::new(NONE)).collect(),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            bell: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            ended: AtomicU32::new(NONE),
            notices: AtomicU64::new(0),
            event,
        };
        Handoff {
            shared: Arc::new(shared),
            free: (0..depth).rev().collect(),
            unflushed: 0,
            heard: 0,
            reaped: Vec::with_capacity(depth as usize),
            own: None,
        }
    }

    /// The side of one more worker.
    pub(super) fn hand(&self) -> Hand<T> {
        Hand(Arc::clone(&self.shared))
    }

    /// The descriptor that is written to.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }

    /// Lets `fill` fill a free slot, visible to the workers after the next [`Handoff::flush`]. False, and `fill` was
    /// not called: none is free.
    pub(super) fn fill(&mut self, fill: impl FnOnce(&mut T)) -> bool {
        let Some(index) = self.free.pop() else {
            return false;
        };
        // SAFETY: the slot was free, so no worker has it.
        fill(unsafe { &mut *self.shared.slots[index as usize].work.get() });
        let at = self.shared.tail.load(Ordering::Relaxed) + self.unflushed;
        self.shared.queue[at as usize % self.shared.queue.len()].store(index, Ordering::Relaxed);
        self.unflushed += 1;
        true
    }

    /// Publishes the filled slots to the workers.
    pub(super) fn flush(&mut self) -> Result<(), Errno> {
        if self.unflushed == 0 {
            return Ok(());
        }
        let wake = u32::try_from(self.unflushed).unwrap_or(u32::MAX / 2);
        self.shared.tail.fetch_add(self.unflushed, Ordering::AcqRel);
        self.unflushed = 0;
        self.shared.bell.fetch_add(1, Ordering::SeqCst);
        if self.shared.sleepers.load(Ordering::SeqCst) > 0 {
            futex::wake(&self.shared.bell, futex::Flags::PRIVATE, wake)?;
        }
        Ok(())
    }

    /// Works on the owner's thread: on the slot that it has begun or else, if it may `begin`, on the oldest flushed
    /// slot that no worker has. `work` does a part and returns whether that was the last; the event does not report
    /// the end. Returns whether there was work.
    pub(super) fn work(&mut self, begin: bool, work: impl FnOnce(&mut T) -> bool) -> bool {
        if self.own.is_none() && begin {
            self.own = self.shared.take();
        }
        let Some(index) = self.own else {
            return false;
        };
        // SAFETY: `take` gave this slot to this thread alone, and `end` has not taken it back.
        let part = unsafe { &mut *self.shared.slots[index as usize].work.get() };
        if catch_unwind(AssertUnwindSafe(|| work(part))).unwrap_or(true) {
            self.own = None;
            self.shared.end(index);
        }
        true
    }

    /// There are finished slots that were not reaped.
    pub(super) fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire) != NONE
    }

    /// Filled and not reaped.
    pub(super) fn in_flight(&self) -> usize {
        self.shared.slots.len() - self.free.len() - self.reaped.len()
    }

    /// Reads the event if it was written to, or is about to be. Only for its sole reader.
    pub(super) fn hear(&mut self) {
        if self.shared.notices.load(Ordering::Acquire) != self.heard {
            let mut count = [0; 8];
            // Empty while a worker is between its push and its write; the next call reads it.
            if rustix::io::read(&self.shared.event, &mut count) == Ok(8) {
                self.heard += u64::from_ne_bytes(count);
            }
        }
    }

    /// Returns the slots of the last [`Handoff::reap`].
    pub(super) fn put_back(&mut self) {
        self.free.append(&mut self.reaped);
    }

    /// Returns the slots of the last call and takes those finished since, oldest first.
    pub(super) fn reap(&mut self) {
        self.put_back();
        let mut index = self.shared.ended.swap(NONE, Ordering::AcqRel);
        while index != NONE {
            self.reaped.push(index);
            index = self.shared.slots[index as usize]
                .next
                .load(Ordering::Relaxed);
        }
        self.reaped.reverse();
    }

    /// The slots of the last [`Handoff::reap`].
    pub(super) fn reaped(&self) -> impl Iterator<Item = &T> {
        self.reaped.iter().map(|&index| {
            // SAFETY: a worker gave the slot back by pushing it onto the list that was taken, and it cannot be
            // filled before it is put back, which needs this borrow to have ended.
            unsafe { &*self.shared.slots[index as usize].work.get() }
        })
    }
}

impl<T> Drop for Handoff<T> {
    /// Stops the workers after the flushed work. They hold the shared part until they have left. A caller that lent
    /// memory to the work waits before.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.bell.fetch_add(1, Ordering::SeqCst);
        let _ = futex::wake(&self.shared.bell, futex::Flags::PRIVATE, u32::MAX / 2);
    }
}
