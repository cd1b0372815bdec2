//! Which memory is a thread's stack.
//!
//! The C library keeps a thread's *control block* at the upper end of its stack. The kernel writes to it
//! when the thread ends; a page that is absent then is not waited for, and whoever joins the thread would
//! wait for ever. So the stacks that the C library makes are left alone. Memory above a guard page alone
//! is no evidence: allocators guard their chunks as well. A control block is: it begins with its own
//! address, twice. Where they are is noted as threads are made; those that the C library makes for itself
//! (`aio_read`, `timer_create`) are found by what they look like at the end of the stack.

use core::ops::Range;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicUsize};

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};

use super::maps::{PageMap, Vma};

const PAGE: usize = 4096;
/// The largest guard below a thread's stack.
const GUARD: usize = 64 << 10;
/// What the C library may use of a control block, and some.
const BLOCK: usize = 2560;
/// What a control block is aligned to at least.
const ALIGNED: usize = 64;
/// Places of control blocks that are noted: stacks are used again, so that even programs with many
/// short-lived threads have few.
const PLACES: usize = 1 << 14;
/// Places that are tried before the table counts as full.
const TRIES: usize = 64;

/// Where threads' control blocks are or were. Written by the program's threads.
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

    /// A thread was made with its control block at `block`. Never waits.
    pub fn note(&self, block: usize) {
        // Stacks of one size lie at equal distances: all bits of the page's number count.
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

    /// The blocks that were noted, in order of address; `None` if some could not be.
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

/// Reads the program's memory without relying on it to be there.
pub struct Reader(Option<OwnedFd>);

impl Reader {
    /// Of the calling thread's process.
    pub fn open() -> Self {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Reader(open(c"/proc/thread-self/mem", flags, Mode::empty()).ok())
    }

    /// Where in the page at `page` a control block begins. `Err` if that cannot be told. The page must
    /// be in memory: pages that an engine serves leave it by the engine's doing only.
    fn control_block_in(&self, page: usize) -> Result<Option<usize>, ()> {
        let mut words = [0_u8; PAGE];
        let file = self.0.as_ref().ok_or(())?;
        let read = rustix::io::pread(file, &mut words[..], page as u64).map_err(|_| ())?;
        let word = |at: usize| {
            let bytes = words[..read].get(at..at + 8)?;
            Some(usize::from_ne_bytes(bytes.try_into().ok()?))
        };
        Ok((0..PAGE).step_by(ALIGNED).map(|at| page + at).find(|&at| {
            let own = Some(at);
            word(at - page) == own && word(at - page + 16) == own
        }))
    }
}

/// The stacks among `vmas`, which are in order of address, and control blocks that lie elsewhere.
/// `is_steady`: no thread was in the making while the map was read.
pub fn find(
    vmas: &[Vma],
    blocks: &ControlBlocks,
    is_steady: bool,
    pages: &mut PageMap,
    memory: &Reader,
) -> Vec<Range<usize>> {
    let known = blocks.all();
    let can_tell = is_steady && known.is_some();
    let known = known.unwrap_or_default();
    let mut is_block = |at: usize| holds_block(at, pages, memory);
    let mut found = Vec::new();
    for (index, vma) in vmas.iter().enumerate() {
        if !vma.anonymous() || !vma.write {
            continue;
        }
        let from = known.partition_point(|&block| block < vma.start);
        let to = known.partition_point(|&block| block < vma.end);
        let mut inside = known[from..to].iter().filter(|&&block| {
            // The stack may have been given back meanwhile and something else be there.
            !matches!(is_block(block / PAGE * PAGE), Some(Ok(at)) if at != Some(block))
        });
        let end_of = |block: usize| (block + BLOCK).next_multiple_of(PAGE).min(vma.end);
        if index > 0 && is_guard_of(&vmas[index - 1], vma) {
            match inside.next() {
                // What is above it, the kernel has taken together with it.
                Some(&block) => found.push(vma.start..end_of(block)),
                None if !can_tell => found.push(vma.start..vma.end),
                None => {}
            }
        }
        found.extend(inside.map(|&block| block / PAGE * PAGE..end_of(block)));
    }
    if can_tell {
        let looks_like = |pair: &[Vma]| is_guard_of(&pair[0], &pair[1]) && pair[1].write;
        for pair in vmas.windows(2).filter(|pair| looks_like(pair)) {
            let vma = &pair[1];
            let is_found = found.iter().any(|stack| stack.start == vma.start);
            let last = is_block(vma.end - PAGE);
            if !is_found && matches!(last, Some(Err(()) | Ok(Some(_)))) {
                found.push(vma.start..vma.end);
            }
        }
    }
    found
}

/// Whether `below` may be the guard of a stack at `vma`.
fn is_guard_of(below: &Vma, vma: &Vma) -> bool {
    let is_closed = !below.read && !below.write && !below.exec;
    is_closed && below.bytes() <= GUARD && below.anonymous() && below.end == vma.start
}

/// The control block in the page at `page`; `None` if the page was never touched.
fn holds_block(
    page: usize,
    pages: &mut PageMap,
    memory: &Reader,
) -> Option<Result<Option<usize>, ()>> {
    let mut runs = Vec::new();
    match pages.runs(page, page + PAGE, &mut runs) {
        Ok(()) if runs.is_empty() => None,
        Ok(()) => Some(memory.control_block_in(page)),
        Err(_) => Some(Err(())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::maps;

    fn stacks(blocks: &ControlBlocks, is_steady: bool) -> Vec<Range<usize>> {
        let vmas = maps::read().expect("the map");
        let mut pages = PageMap::open().expect("the page map");
        find(&vmas, blocks, is_steady, &mut pages, &Reader::open())
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
            // Closed on both sides: the kernel would join it with what is above.
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
        let contains = |found: &[Range<usize>]| found.iter().any(|stack| stack.contains(&block));
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
        // One that nobody noted is found by what it looks like, unless the kernel joined it with others.
        let unnoted = ControlBlocks::new();
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: as above.
            let block = unsafe { libc::pthread_self() } as usize;
            tell.send(block).expect("told");
            let _ = ended.recv();
        });
        let block = told.recv().expect("a thread");
        let vmas = maps::read().expect("the map");
        let vma = vmas.iter().find(|vma| vma.end > block).expect("an area");
        if vma.end < block + 2 * PAGE {
            let found = stacks(&unnoted, true);
            assert!(found.iter().any(|stack| stack.contains(&block)));
        }
        assert!(!contains(&[]));
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
