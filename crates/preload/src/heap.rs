//! The allocator's functions: they forward, and notice when the heap has grown.
//!
//! The C library's malloc gets memory from the kernel without asking anybody: it moves the break,
//! maps large blocks, and maps arenas of 64 MiB for further threads. Each is seen here by the
//! address of what it hands out: beyond the known break, a block that says of itself that it is
//! mapped, an address in a stretch of 64 MiB that was never seen. The common case is two
//! comparisons. Other allocators map through `mmap`, which is noticed there.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use crate::PROGRAM;
use crate::real::{Real, forward};

static MALLOC: Real = Real::new(c"malloc");
static CALLOC: Real = Real::new(c"calloc");
static REALLOC: Real = Real::new(c"realloc");
static MEMALIGN: Real = Real::new(c"memalign");
static POSIX_MEMALIGN: Real = Real::new(c"posix_memalign");
static ALIGNED_ALLOC: Real = Real::new(c"aligned_alloc");
static VALLOC: Real = Real::new(c"valloc");
static PVALLOC: Real = Real::new(c"pvalloc");
static BRK: Real = Real::new(c"brk");
static SBRK: Real = Real::new(c"sbrk");

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
}

/// Blocks from this size on may be mapped on their own.
const BIG: usize = 64 << 10;
/// log2 of the stretch of addresses that an arena is aligned to.
const STRETCH: u32 = 26;
/// Below this the break grows, above it the kernel maps.
const MAPPED_FROM: usize = 0x7000_0000_0000;
/// The C library's mark of a mapped block, in the size word before it.
const IS_MAPPED: usize = 2;

/// A bit for each stretch of addresses in which memory was seen.
static STRETCHES: [AtomicU64; 1 << (47 - STRETCH - 6)] =
    [const { AtomicU64::new(0) }; 1 << (47 - STRETCH - 6)];
static HEAP_START: AtomicUsize = AtomicUsize::new(usize::MAX);
static HEAP_END: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Blocks have the C library's layout.
static OWN_LAYOUT: AtomicBool = AtomicBool::new(false);

/// The object was loaded.
pub fn begin() {
    let here = current_break();
    HEAP_END.store(here, Relaxed);
    HEAP_START.store(here, Relaxed);
    OWN_LAYOUT.store(
        MALLOC.address() as usize == __libc_malloc as *const () as usize,
        Relaxed,
    );
    CALLOC.address();
}

fn current_break() -> usize {
    forward!(SBRK => fn(isize) -> *mut c_void; 0) as usize
}

/// A block was handed out.
#[inline]
fn note(block: *mut c_void, size: usize) {
    let at = block as usize;
    if at >= HEAP_START.load(Relaxed) && at < MAPPED_FROM {
        if at + size > HEAP_END.load(Relaxed) {
            note_break();
        }
    } else if size >= BIG {
        note_big(at, size);
    } else if at != 0 && !is_seen(at) {
        note_stretch(at, size);
    }
}

fn is_seen(at: usize) -> bool {
    let bit = at >> STRETCH;
    STRETCHES
        .get(bit / 64)
        .is_none_or(|word| word.load(Relaxed) >> (bit % 64) & 1 != 0)
}

/// The break has moved on.
#[cold]
fn note_break() {
    let end = current_break();
    let before = HEAP_END.swap(end, Relaxed);
    if end > before {
        PROGRAM.grew(before, end - before);
    }
}

#[cold]
fn note_stretch(at: usize, size: usize) {
    let bit = at >> STRETCH;
    if HEAP_START.load(Relaxed) == usize::MAX {
        // Before the constructor: the look at the maps will find it.
        return;
    }
    if let Some(word) = STRETCHES.get(bit / 64) {
        word.fetch_or(1 << (bit % 64), Relaxed);
    }
    PROGRAM.seen(at, size);
}

#[cold]
fn note_big(at: usize, size: usize) {
    if at == 0 || HEAP_START.load(Relaxed) == usize::MAX {
        return;
    }
    if !OWN_LAYOUT.load(Relaxed) {
        if !is_seen(at) {
            note_stretch(at, size);
        }
        return;
    }
    // SAFETY: the C library's blocks have two words before them.
    let [before, size_word] = unsafe { ((at - 16) as *const [usize; 2]).read() };
    if size_word & IS_MAPPED != 0 {
        PROGRAM.grew(at - 16 - before, before + (size_word & !7));
    } else if !is_seen(at) {
        note_stretch(at, size);
    }
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    let block = forward!(MALLOC => fn(usize) -> *mut c_void; size);
    note(block, size);
    block
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    if CALLOC.known().is_none() && HEAP_START.load(Relaxed) == usize::MAX {
        // The search for the real one may itself allocate.
        // SAFETY: the C library's own.
        return unsafe { __libc_calloc(count, size) };
    }
    let block = forward!(CALLOC => fn(usize, usize) -> *mut c_void; count, size);
    note(block, count.wrapping_mul(size));
    block
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn realloc(old: *mut c_void, size: usize) -> *mut c_void {
    let block = forward!(REALLOC => fn(*mut c_void, usize) -> *mut c_void; old, size);
    note(block, size);
    block
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    let block = forward!(MEMALIGN => fn(usize, usize) -> *mut c_void; alignment, size);
    note(block, size);
    block
}

/// As the C library's.
///
/// # Safety
/// `out` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(
    out: *mut *mut c_void,
    alignment: usize,
    size: usize,
) -> c_int {
    let status = forward!(POSIX_MEMALIGN =>
        fn(*mut *mut c_void, usize, usize) -> c_int; out, alignment, size);
    if status == 0 {
        // SAFETY: by contract, and it was just written.
        note(unsafe { *out }, size);
    }
    status
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    let block = forward!(ALIGNED_ALLOC => fn(usize, usize) -> *mut c_void; alignment, size);
    note(block, size);
    block
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    let block = forward!(VALLOC => fn(usize) -> *mut c_void; size);
    note(block, size);
    block
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    let block = forward!(PVALLOC => fn(usize) -> *mut c_void; size);
    note(block, size);
    block
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn brk(end: *mut c_void) -> c_int {
    let status = forward!(BRK => fn(*mut c_void) -> c_int; end);
    note_break();
    status
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn sbrk(more: isize) -> *mut c_void {
    let before = forward!(SBRK => fn(isize) -> *mut c_void; more);
    if more != 0 && HEAP_START.load(Relaxed) != usize::MAX {
        note_break();
    }
    before
}
