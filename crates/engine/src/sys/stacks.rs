//! Recognition of thread stacks.
//!
//! The C library keeps a thread's *control block* at the upper end of its stack. The kernel writes to it when the
//! thread ends. It does not wait for an absent page then, and a join of the thread would wait for ever. The stacks of
//! the C library are therefore left alone. A guard page below memory is no proof of a stack: allocators guard their
//! chunks as well. Control blocks are noted as threads are created, because the pager may not read memory that could
//! be managed. Threads created past the preload object's wrappers (by jemalloc, or for `aio_read`) are not noted. The
//! absence of a noted block is therefore conclusive only in a program with a single thread; else all memory above a
//! guard counts as a stack. A fork child's C library follows the list of all control blocks before any handler runs
//! there: a stack mistaken for other memory would end the child.

use core::ops::Range;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicUsize};

use super::maps::{PageMap, Vma};

const PAGE: usize = 4096;
/// The largest guard below a thread's stack.
const GUARD: usize = 64 << 10;
/// The size that the C library may use of a control block, with a margin.
const BLOCK: usize = 2560;
/// Noted places of control blocks: stacks are reused, and even programs with many short-lived threads have few.
const PLACES: usize = 1 << 14;
/// Places tried before the table counts as full.
const TRIES: usize = 64;

/// The places of present and former control blocks. Written by the program's threads.
pub struct ControlBlocks {
    places: [AtomicUsize; PLACES],
    is_full: AtomicBool,
}

impl ControlBlocks {
    /// None yet.
    pub const fn new() -> Self {
        ControlBlocks {
            places: [const { AtomicUsize::new(0) }; PLACES],
            is_full: AtomicBool::new(false),
        }
    }

    /// A thread was created with its control block at `block`. Never waits.
    pub fn note(&self, block: usize) {
        // Stacks of equal size lie at equal distances: the hash uses all bits of the page number.
        let hash = (block / PAGE).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - 14);
        for try_ in 0..TRIES {
            let place = &self.places[(hash + try_) % PLACES];
            match place.compare_exchange(0, block, SeqCst, Relaxed) {
                Ok(_) => return,
                Err(found) if found == block => return,
                Err(_) => {}
            }
        }
        self.is_full.store(true, SeqCst);
    }

    /// The noted blocks, in order of address; `None` if some could not be noted.
    fn all(&self) -> Option<Vec<usize>> {
        let noted = self.places.iter().map(|place| place.load(Relaxed));
        let mut blocks: Vec<_> = noted.filter(|&block| block != 0).collect();
        blocks.sort_unstable();
        (!self.is_full.load(SeqCst)).then_some(blocks)
    }
}

impl Default for ControlBlocks {
    fn default() -> Self {
        Self::new()
    }
}

/// The stacks among `vmas`, which are in order of address, and control blocks outside of stacks. `can_tell`: memory
/// above a guard without a noted block is not a stack.
pub fn find(
    vmas: &[Vma],
    blocks: &ControlBlocks,
    can_tell: bool,
    pages: &mut PageMap,
) -> Vec<Range<usize>> {
    let known = blocks.all();
    let can_tell = can_tell && known.is_some();
    let known = known.unwrap_or_default();
    let mut found = Vec::new();
    for (index, vma) in vmas.iter().enumerate() {
        if !vma.anonymous() || !vma.write {
            continue;
        }
        let from = known.partition_point(|&block| block < vma.start);
        let to = known.partition_point(|&block| block < vma.end);
        // The stack may have been unmapped meanwhile, with other memory in its place.
        let mut inside = known[from..to]
            .iter()
            .filter(|&&block| is_touched(block / PAGE * PAGE, pages));
        let end_of = |block: usize| (block + BLOCK).next_multiple_of(PAGE).min(vma.end);
        if index > 0 && is_guard_of(&vmas[index - 1], vma) {
            match inside.next() {
                // The kernel has merged the mapping above it with it.
                Some(&block) => found.push(vma.start..end_of(block)),
                None if !can_tell => found.push(vma.start..vma.end),
                None => {}
            }
        }
        found.extend(inside.map(|&block| block / PAGE * PAGE..end_of(block)));
    }
    found
}

/// Whether `below` may be the guard of a stack at `vma`.
fn is_guard_of(below: &Vma, vma: &Vma) -> bool {
    let is_closed = !below.read && !below.write && !below.exec;
    is_closed && below.bytes() <= GUARD && below.anonymous() && below.end == vma.start
}

/// Whether the page at `page` was ever touched, or may have been.
fn is_touched(page: usize, pages: &mut PageMap) -> bool {
    let mut runs = Vec::new();
    pages.runs(page, page + PAGE, &mut runs).is_err() || !runs.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::maps;

    fn stacks(blocks: &ControlBlocks, is_steady: bool) -> Vec<Range<usize>> {
        let vmas = maps::read().expect("the map");
        let mut pages = PageMap::open().expect("the page map");
        find(&vmas, blocks, is_steady, &mut pages)
    }

    /// Memory above a guard page, as an allocator's chunk.
    fn chunk() -> Range<usize> {
        let len = 64 * PAGE;
        // SAFETY: a mapping of its own, whose first page nobody uses.
        let at = unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let around = libc::mmap(core::ptr::null_mut(), len + 2 * PAGE, prot, flags, -1, 0);
            assert_ne!(around, libc::MAP_FAILED);
            // Closed on both sides: the kernel would merge it with the memory above.
            assert_eq!(libc::mprotect(around, PAGE, libc::PROT_NONE), 0);
            let above = around.byte_add(PAGE + len);
            assert_eq!(libc::mprotect(above, PAGE, libc::PROT_NONE), 0);
            around as usize + PAGE
        };
        at..at + len
    }

    #[test]
    fn a_guard_alone_makes_no_stack() {
        let chunk = chunk();
        // SAFETY: the chunk is the test's.
        unsafe { ((chunk.end - 64) as *mut u64).write(1) };
        let blocks = ControlBlocks::new();
        let contains = |found: Vec<Range<usize>>| found.contains(&chunk);
        assert!(!contains(stacks(&blocks, true)));
        assert!(contains(stacks(&blocks, false)), "a thread is being made");
    }

    #[test]
    fn a_stack_is_known_by_its_control_block() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: asks for the calling thread's own number.
            let block = unsafe { libc::pthread_self() } as usize;
            tell.send(block).expect("told");
            let _ = ended.recv();
        });
        let block = told.recv().expect("a thread");
        let blocks = ControlBlocks::new();
        blocks.note(block);
        blocks.note(block);
        let found = stacks(&blocks, true);
        let stack = found.iter().find(|stack| stack.contains(&block));
        let stack = stack.expect("the stack is found");
        let local = 0_u64;
        assert!(!stack.contains(&((&raw const local) as usize)));
        assert!(stack.end >= block + BLOCK || stack.end.is_multiple_of(PAGE));
        drop(end);
        thread.join().expect("joined");
    }

    #[test]
    fn a_full_table_says_so() {
        let blocks = ControlBlocks::new();
        (1..=2 * PLACES).for_each(|number| blocks.note(number * 8 * PAGE));
        assert_eq!(blocks.all(), None);
    }
}
