//! The engine's allocator: its memory is separate from the program's, and never managed.
//!
//! The engine must not allocate from the program's heap, which it may be paging out, nor depend on the program's
//! allocator, which may be interposed, broken or in the middle of an operation. Engine code therefore links dlmalloc
//! over its own arena: address space reserved in one piece and opened from the front as it grows. Growth is
//! contiguous, the arena is one entry in [`own_memory`], and a fork child can distinguish old memory from its own by
//! address.
//!
//! The lock is a futex word: no thread-local, no libc. Program threads must not allocate here at all: a thread that
//! holds the lock may be stopped by a fault that only the waiting engine could serve.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::{Cell, UnsafeCell};
use core::ptr::{null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicU32, Ordering};

use dlmalloc::Dlmalloc;
use rustix::mm::{Advice, MprotectFlags, madvise, mprotect};
use rustix::process::{Resource, getrlimit};
use rustix::thread::futex;

use super::own_memory::{self, Kind};

/// Address space of one arena. Metadata is at most a hundredth of the managed memory: this suffices for hundreds of
/// gigabytes before a second arena begins.
const RESERVE: usize = 4 << 30;
/// The same if the program's address space is limited and the engine's counts towards the limit.
const RESERVE_LIMITED: usize = 64 << 20;
/// The step in which the arena opens.
const STEP: usize = 1 << 20;
/// Arenas of one process: 256 GiB of metadata in total.
const ARENAS: usize = 64;

/// The allocator. Make it a static, and the `#[global_allocator]` of the preload object.
pub struct EngineAlloc {
    lock: AtomicU32,
    heap: UnsafeCell<Dlmalloc<Arenas>>,
}

// SAFETY: the heap is only touched between `acquire` and `release`.
unsafe impl Sync for EngineAlloc {}

const UNLOCKED: u32 = 0;
const LOCKED: u32 = 1;
const CONTENDED: u32 = 2;

const fn empty_heap() -> Dlmalloc<Arenas> {
    let mut heap = Dlmalloc::new_with_allocator(Arenas::new());
    assert!(heap.set_granularity(STEP));
    heap
}

impl EngineAlloc {
    /// An allocator that holds nothing and maps its arena at the first allocation.
    #[allow(clippy::new_without_default)] // It is only ever a static.
    pub const fn new() -> Self {
        Self {
            lock: AtomicU32::new(UNLOCKED),
            heap: UnsafeCell::new(empty_heap()),
        }
    }

    fn acquire(&self) {
        if self
            .lock
            .compare_exchange(UNLOCKED, LOCKED, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
        {
            return;
        }
        while self.lock.swap(CONTENDED, Ordering::Acquire) != UNLOCKED {
            let _ = futex::wait(&self.lock, futex::Flags::PRIVATE, CONTENDED, None);
        }
    }

    fn release(&self) {
        if self.lock.swap(UNLOCKED, Ordering::Release) == CONTENDED {
            let _ = futex::wake(&self.lock, futex::Flags::PRIVATE, 1);
        }
    }

    fn with<R>(&self, work: impl FnOnce(&mut Dlmalloc<Arenas>) -> R) -> R {
        self.acquire();
        // SAFETY: the lock is held, and `work` cannot come back here: dlmalloc calls `Arenas`,
        // which allocates nothing.
        let result = work(unsafe { &mut *self.heap.get() });
        self.release();
        result
    }

    /// In a fork child, on its only thread: starts with an empty heap. Allocations of the parent's engine stay
    /// readable (copy on write) until the child unmaps them with [`own_memory::unmap_inherited`], after
    /// [`own_memory::forget_after_fork`]. Freeing any of them does nothing.
    ///
    /// # Safety
    /// No other thread runs in this process. Old allocations are not to be resized or written by code that expects
    /// their memory to be released.
    pub unsafe fn forget_after_fork(&self) {
        // SAFETY: alone in this process, whatever state the lock was copied in. The old heap owns
        // nothing but address space that stays listed.
        unsafe { self.heap.get().write(empty_heap()) };
        self.lock.store(UNLOCKED, Ordering::Relaxed);
    }

    /// Bytes opened so far: the maximum of the heap's resident size.
    pub fn opened_bytes(&self) -> usize {
        self.with(|heap| heap.allocator().opened())
    }
}

// SAFETY: dlmalloc keeps the promises of GlobalAlloc; pointers of another process' heap (before a
// fork) are told apart and left alone.
unsafe impl GlobalAlloc for EngineAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout is valid.
        self.with(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        self.with(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        self.with(|heap| {
            if heap.allocator().holds(at) {
                // SAFETY: allocated here with this layout, as the caller promises.
                unsafe { heap.free(at, layout.size(), layout.align()) }
            }
        });
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let resized = self.with(|heap| {
            heap.allocator().holds(at).then(|| {
                // SAFETY: as in `dealloc`.
                unsafe { heap.realloc(at, layout.size(), layout.align(), new_size) }
            })
        });
        resized.unwrap_or_else(|| {
            // SAFETY: the caller's promises about sizes; the old memory is the parent's and stays.
            unsafe {
                let new = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
                if !new.is_null() {
                    core::ptr::copy_nonoverlapping(at, new, layout.size().min(new_size));
                }
                new
            }
        })
    }
}

/// A reserved range of addresses: `start..next` is open, `next..end` is not.
#[derive(Clone, Copy)]
struct Arena {
    start: usize,
    next: usize,
    end: usize,
}

/// The source of dlmalloc's segments: the arenas of this process, the last one growing.
struct Arenas {
    list: [Cell<Arena>; ARENAS],
    count: Cell<usize>,
}

impl Arenas {
    const fn new() -> Self {
        const NONE: Arena = Arena {
            start: 0,
            next: 0,
            end: 0,
        };
        Self {
            list: [const { Cell::new(NONE) }; ARENAS],
            count: Cell::new(0),
        }
    }

    fn holds(&self, at: *mut u8) -> bool {
        let at = at as usize;
        self.list[..self.count.get()]
            .iter()
            .any(|arena| (arena.get().start..arena.get().next).contains(&at))
    }

    fn opened(&self) -> usize {
        self.list[..self.count.get()]
            .iter()
            .map(|cell| cell.get().next - cell.get().start)
            .sum()
    }

    fn last(&self) -> Option<&Cell<Arena>> {
        self.list[..self.count.get()].last()
    }

    /// Opens `size` more bytes of the last arena.
    fn open(&self, size: usize) -> Option<*mut u8> {
        let cell = self.last()?;
        let mut arena = cell.get();
        if arena.end - arena.next < size {
            return None;
        }
        let at = without_provenance_mut::<u8>(arena.next);
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: reserved by us and given to nobody yet.
        unsafe { mprotect(at.cast(), size, access) }.ok()?;
        arena.next += size;
        cell.set(arena);
        Some(at)
    }

    /// Reserves an arena with room for `size` bytes.
    fn reserve(&self, size: usize) -> Option<()> {
        let slot = self.list.get(self.count.get())?;
        let limited = getrlimit(Resource::As).current.is_some();
        let len = size.max(if limited { RESERVE_LIMITED } else { RESERVE });
        let base = own_memory::reserve(len, Kind::Heap).ok()?;
        let start = base.as_ptr() as usize;
        // SAFETY: mapped just now. Whole huge pages for small tables would waste memory; a core
        // dump is about the program. Both are only wishes.
        unsafe {
            let _ = madvise(base.as_ptr().cast(), len, Advice::LinuxDontDump);
            let _ = madvise(base.as_ptr().cast(), len, Advice::LinuxNoHugepage);
        }
        slot.set(Arena {
            start,
            next: start,
            end: start + len,
        });
        self.count.set(self.count.get() + 1);
        Some(())
    }
}

// SAFETY: `alloc` gives out each stretch of a private mapping once, and takes back only the end.
unsafe impl dlmalloc::Allocator for Arenas {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let opened = self.open(size).or_else(|| {
            self.reserve(size)?;
            self.open(size)
        });
        (opened.unwrap_or(null_mut()), size, 0)
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        null_mut()
    }

    fn free_part(&self, at: *mut u8, old: usize, new: usize) -> bool {
        let Some(cell) = self.last() else {
            return false;
        };
        let mut arena = cell.get();
        if at as usize + old != arena.next {
            return false;
        }
        let tail = without_provenance_mut(at as usize + new);
        // SAFETY: dlmalloc gives the tail back. Discarding keeps the promise that opened memory
        // reads as zeros.
        let closed = unsafe {
            madvise(tail, old - new, Advice::LinuxDontNeed)
                .and_then(|()| mprotect(tail, old - new, MprotectFlags::empty()))
        };
        if closed.is_ok() {
            arena.next = tail as usize;
            cell.set(arena);
        }
        closed.is_ok()
    }

    /// A segment in the middle is not returned: dlmalloc goes on using it.
    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        4096
    }
}
