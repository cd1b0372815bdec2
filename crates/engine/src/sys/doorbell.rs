//! How a program thread calls the engine without a descriptor, a lock, TLS or an allocation.
//!
//! Interposed functions run on program threads, in signal handlers and in vfork children, in a program whose
//! descriptors are its own. They share memory with the engine, and the engine already waits for one kind of memory
//! event: page faults. A caller therefore claims a slot, writes its request there, discards the slot's *door* page
//! and reads it. The fault wakes the engine like any other. It serves the request, writes the answer and maps the
//! door, which wakes the caller.
//!
//! A slot's life, with the orderings that carry it:
//!
//! | from | to | by | ordering |
//! | --- | --- | --- | --- |
//! | `FREE` | `CLAIMED` | caller | Acquire, pairs with its release: the old answer is read before the new request |
//! | `CLAIMED` | `POSTED` | caller | Release: the request's words are visible with it |
//! | `POSTED` | `SERVING` | engine, on the fault | Acquire, pairs with the above |
//! | `SERVING` | `ANSWERED` | engine | Release: the answer's words; then the door is mapped |
//! | `ANSWERED` | `FREE` | caller, past the door | Acquire to read, Release to free |
//! | `POSTED` | `FREE` | caller, without an engine | a door that keeps opening by itself has no engine |
//!
//! The door only wakes the caller; the state decides. A door opened too early or twice (a signal interrupted the wait
//! and the fault came again, a message was read late) costs a turn and never an answer. A slot whose caller was torn
//! away (longjmp out of a signal handler) is lost; there are 64.

use core::hint::spin_loop;
use core::ptr::{NonNull, without_provenance};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;

use super::own_memory::{self, Kind};
use super::uffd::{Mode, Outcome, Uffd, Why};

const PAGE: usize = 4096;
/// Calls that can be in progress at once.
pub const SLOTS: usize = 64;
/// Openings without an answer after which a caller concludes that there is no engine. A stray opening is rare and
/// happens once; without an engine the door opens every time.
const PATIENCE: u32 = 64;

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const POSTED: u32 = 2;
const SERVING: u32 = 3;
const ANSWERED: u32 = 4;

/// One call. Alone on two cache lines, which processors fetch together.
#[repr(C, align(128))]
struct Slot {
    state: AtomicU32,
    words: [AtomicU64; 4],
}

/// The shared memory: the slots, then one door page for each.
#[repr(C, align(4096))]
struct Board {
    slots: [Slot; SLOTS],
    /// Where the next caller begins its search, to spread them.
    hint: AtomicU32,
}

const DOORS: usize = size_of::<Board>();
const LEN: usize = DOORS + SLOTS * PAGE;

impl Slot {
    fn load(&self) -> [u64; 4] {
        core::array::from_fn(|i| self.words[i].load(Ordering::Relaxed))
    }

    fn store(&self, words: [u64; 4]) {
        for (to, word) in self.words.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
    }
}

/// A slot's number, 0 to 63.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotIndex(u8);

impl SlotIndex {
    /// For tables by slot.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The meaning of a fault for the doorbell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knock {
    /// Not a door: the fault is another one.
    Elsewhere,
    /// A new call, to be answered by [`Doorbell::answer`].
    Call(SlotIndex),
    /// A door without a new call; the fault is resolved.
    Nothing,
}

/// The engine's side. Serve it from one thread.
#[derive(Debug)]
pub struct Doorbell {
    board: NonNull<Board>,
}

// SAFETY: the board is atomics, and the door pages are only ever touched as addresses.
unsafe impl Send for Doorbell {}

/// The caller's side: a plain pointer, copied freely, kept in a static.
#[derive(Debug, Clone, Copy)]
pub struct Ring {
    board: NonNull<Board>,
}

// SAFETY: the board is atomics and stays mapped as long as the process uses rings.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Doorbell {
    /// Maps a doorbell and registers its doors with `uffd`, which should report no events: the callers' own discards
    /// would be reported, and waited for.
    pub fn new(uffd: &Uffd) -> Result<Self, Errno> {
        let base = own_memory::map(LEN, Kind::Doorbell)?;
        let doors = base.as_ptr() as usize + DOORS;
        if let Err(errno) = uffd.register(doors, SLOTS * PAGE, Mode::MISSING) {
            // SAFETY: mapped above, not visible elsewhere.
            unsafe { own_memory::unmap(base, LEN) }?;
            return Err(errno);
        }
        Ok(Self { board: base.cast() })
    }

    /// The caller's side of this doorbell. It must not be used once the doorbell is destroyed.
    pub fn ring(&self) -> Ring {
        Ring { board: self.board }
    }

    fn slot(&self, index: SlotIndex) -> &Slot {
        // SAFETY: mapped zeroed by `new`, which is a valid board, until `destroy`.
        &unsafe { self.board.as_ref() }.slots[index.index()]
    }

    fn door(&self, index: SlotIndex) -> usize {
        self.board.as_ptr() as usize + DOORS + index.index() * PAGE
    }

    /// Looks at a fault that `uffd` reported.
    pub fn on_fault(&self, uffd: &Uffd, addr: usize) -> Knock {
        let doors = self.board.as_ptr() as usize + DOORS;
        if !(doors..doors + SLOTS * PAGE).contains(&addr) {
            return Knock::Elsewhere;
        }
        let index = SlotIndex(((addr - doors) / PAGE) as u8);
        let posted = self.slot(index).state.compare_exchange(
            POSTED,
            SERVING,
            Ordering::Acquire,
            Ordering::Acquire,
        );
        match posted {
            Ok(_) => Knock::Call(index),
            // The caller's wait was interrupted and it faulted again: the answer will wake it.
            Err(SERVING) => Knock::Nothing,
            // A message read late, or a stray read: let it pass. A caller that passes early sees that it has no
            // answer and knocks again.
            Err(_) => {
                let _ = self.open(uffd, index);
                Knock::Nothing
            }
        }
    }

    /// The request of the caller of `slot`.
    pub fn request(&self, slot: SlotIndex) -> [u64; 4] {
        self.slot(slot).load()
    }

    /// Stores the answer, then wakes the caller. An error means that the caller could not be woken: the process'
    /// memory is being torn down.
    pub fn answer(&self, uffd: &Uffd, slot: SlotIndex, answer: [u64; 4]) -> Outcome {
        debug_assert_eq!(self.slot(slot).state.load(Ordering::Relaxed), SERVING);
        self.slot(slot).store(answer);
        self.slot(slot).state.store(ANSWERED, Ordering::Release);
        self.open(uffd, slot)
    }

    fn open(&self, uffd: &Uffd, slot: SlotIndex) -> Outcome {
        let door = self.door(slot);
        loop {
            match uffd.zeropage(door, PAGE) {
                Err(short) if short.why == Why::Again => spin_loop(),
                // The door was opened before; waiters still have to be woken.
                Err(short) if short.why == Why::Exists => {
                    let _ = uffd.wake(door, PAGE);
                    return Ok(());
                }
                other => return other,
            }
        }
    }

    /// Unmaps the doorbell.
    ///
    /// # Safety
    /// No copy of its [`Ring`] is used any more.
    pub unsafe fn destroy(self) -> Result<(), Errno> {
        // SAFETY: the caller's promise; the mapping was made by `new`.
        unsafe { own_memory::unmap(self.board.cast(), LEN) }
    }
}

impl Ring {
    /// The ring as a number, for an atomic.
    pub fn to_address(self) -> usize {
        self.board.as_ptr() as usize
    }

    /// The inverse of [`Ring::to_address`]; `None` for 0.
    ///
    /// # Safety
    /// The number comes from a ring whose doorbell is still there.
    pub unsafe fn from_address(address: usize) -> Option<Self> {
        NonNull::new(address as *mut Board).map(|board| Ring { board })
    }

    /// Sends a request to the engine and waits for its answer. `None` if there is no engine: it has closed its
    /// userfaultfd, or this is a fork child of the process that it served.
    ///
    /// Async-signal-safe, callable from any thread and from a vfork child, and from a handler that interrupted
    /// another call. While all slots are taken it yields and tries again.
    pub fn call(&self, request: [u64; 4]) -> Option<[u64; 4]> {
        // SAFETY: as said at `Doorbell::ring`, the board is mapped while rings are used.
        let board = unsafe { self.board.as_ref() };
        let (index, slot) = claim(board);
        let door = self.board.as_ptr() as usize + DOORS + index * PAGE;
        slot.store(request);
        slot.state.store(POSTED, Ordering::Release);
        for turn in 0..PATIENCE {
            // SAFETY: the door is this slot's alone while it is claimed, and holds nothing.
            let discarded = unsafe { own_memory::discard(door, PAGE) };
            if discarded.is_ok() {
                // SAFETY: mapped readable memory; this is where the thread waits.
                unsafe { without_provenance::<u8>(door).read_volatile() };
            }
            if slot.state.load(Ordering::Acquire) == ANSWERED {
                let answer = slot.load();
                slot.state.store(FREE, Ordering::Release);
                return Some(answer);
            }
            if turn > 1 {
                rustix::thread::sched_yield();
            }
        }
        // No engine took it: take it back. If an engine took it and vanished, the slot stays lost, because that
        // engine might still write to it.
        let _ = slot
            .state
            .compare_exchange(POSTED, FREE, Ordering::Release, Ordering::Relaxed);
        None
    }
}

fn claim(board: &Board) -> (usize, &Slot) {
    let first = board.hint.fetch_add(1, Ordering::Relaxed) as usize;
    loop {
        for turn in 0..SLOTS {
            let index = (first + turn) % SLOTS;
            let slot = &board.slots[index];
            let claimed = slot.state.load(Ordering::Relaxed) == FREE
                && slot
                    .state
                    .compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok();
            if claimed {
                return (index, slot);
            }
        }
        rustix::thread::sched_yield();
    }
}
