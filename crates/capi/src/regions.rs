//! Regions: private anonymous mappings that the engine manages, and advice for them.

use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, SeqCst};

use foreswap::program::{MOST_REGIONS, state};
use rustix::io::Errno;

use crate::error::Error;
use crate::open::{Mode, mode};
use crate::{PROGRAM, forks};

const PAGE: usize = 4096;
/// Regions of this size and more are aligned to it: that of a huge page.
const HUGE: usize = 2 << 20;
/// The largest region: half of the address space.
const MOST: usize = 64 << 40;

/// Maps `bytes` of zeros, rounded up to whole pages.
pub fn map(bytes: usize) -> Result<*mut c_void, Error> {
    let mode = mode().ok_or(Error::NotOpen)?;
    if bytes == 0 || bytes > MOST {
        return Err(Error::Size { bytes });
    }
    let range =
        mapping(bytes.next_multiple_of(PAGE)).map_err(|errno| Error::NoRoom { bytes, errno })?;
    match mode {
        Mode::Own => manage(&range)?,
        // Nothing but the list: the preload object has seen the mapping.
        Mode::Run => list(&range)?,
    }
    Ok(range.start as *mut c_void)
}

/// Lists the region, or unmaps it.
fn list(range: &Range<usize>) -> Result<(), Error> {
    if PROGRAM.regions.add(range) {
        return Ok(());
    }
    // SAFETY: mapped by `map`, and nobody has its address.
    let _ = unsafe { munmap(range) };
    Err(Error::TooMany { most: MOST_REGIONS })
}

/// Tells the engine of the region, before anybody can touch it.
fn manage(range: &Range<usize>) -> Result<(), Error> {
    list(range)?;
    PROGRAM.grew(range.start, range.len());
    let why = match PROGRAM.state.load(Acquire) {
        state::BARE => return Ok(()),
        state::ARMED if PROGRAM.advised(range.start, range.len(), libc::MADV_NORMAL) => {
            return Ok(());
        }
        state::ARMED => "the kernel did not register it (`vm.max_map_count`)".to_owned(),
        _ => match PROGRAM.failure() {
            why if why.is_empty() => "it did not start in this process".to_owned(),
            why => why,
        },
    };
    PROGRAM.regions.remove(range.start);
    // SAFETY: mapped by `map`, and nobody has its address.
    let _ = unsafe { munmap(range) };
    Err(Error::Unmanaged { why })
}

/// A fresh mapping of `len` bytes, aligned to huge pages if it has any. By the C library's functions: under `foreswap run`
/// they are the preload object's.
fn mapping(len: usize) -> Result<Range<usize>, Errno> {
    let slack = if len >= HUGE { HUGE - PAGE } else { 0 };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let anywhere = core::ptr::null_mut();
    // SAFETY: a fresh mapping where nothing is.
    let at = unsafe { libc::mmap(anywhere, len + slack, access, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(last());
    }
    let at = at as usize;
    let start = if slack > 0 {
        at.next_multiple_of(HUGE)
    } else {
        at
    };
    let (end, all) = (start + len, at + len + slack);
    for edge in [at..start, end..all] {
        if !edge.is_empty() {
            // SAFETY: an edge of the mapping above, which nobody has touched.
            unsafe { munmap(&edge) }?;
        }
    }
    Ok(start..end)
}

/// As the C library's.
///
/// # Safety
/// Nobody uses the range.
unsafe fn munmap(range: &Range<usize>) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    match unsafe { libc::munmap(range.start as *mut c_void, range.len()) } {
        0 => Ok(()),
        _ => Err(last()),
    }
}

/// The C library's error.
fn last() -> Errno {
    let errno = std::io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(errno.unwrap_or(0))
}

/// Unmaps the region that starts at `at`.
///
/// # Safety
/// Nobody uses it any more.
pub unsafe fn unmap(at: usize) -> Result<(), Error> {
    if forks::lacks_regions() {
        return Err(Error::Lacks);
    }
    let bytes = PROGRAM.regions.remove(at).ok_or(Error::NoRegion { at })?;
    // SAFETY: the caller's promise, and it was mapped by `map` with this length.
    let unmapped = unsafe { munmap(&(at..at + bytes)) };
    unmapped.map_err(|errno| Error::System {
        what: "munmap",
        errno,
    })
}

/// The numbers of `enum foreswap_advice`, in their order.
const ADVICE: [c_int; 7] = [
    libc::MADV_NORMAL,
    libc::MADV_RANDOM,
    libc::MADV_SEQUENTIAL,
    libc::MADV_WILLNEED,
    libc::MADV_COLD,
    libc::MADV_PAGEOUT,
    libc::MADV_DONTNEED,
];

/// Gives advice number `number` for `bytes` at `at`.
///
/// # Safety
/// The content is not needed, if it is discarded.
pub unsafe fn advise(at: usize, bytes: usize, number: c_int) -> Result<(), Error> {
    if forks::lacks_regions() {
        return Err(Error::Lacks);
    }
    let index = usize::try_from(number).ok();
    let advice = *index
        .and_then(|index| ADVICE.get(index))
        .ok_or(Error::NoAdvice(number))?;
    let outside = Error::NotInside { at, bytes };
    let Some(end) = at.checked_add(bytes).filter(|_| bytes > 0) else {
        return Err(outside);
    };
    let range = at / PAGE * PAGE..end.next_multiple_of(PAGE);
    if !PROGRAM.regions.have(&range) {
        return Err(outside);
    }
    if advice == libc::MADV_DONTNEED && range != (at..end) {
        return Err(Error::NotPages { at, bytes });
    }
    let is_managed = mode() == Some(Mode::Own) && PROGRAM.state.load(SeqCst) == state::ARMED;
    // The kernel would move managed pages to its own swap; it accepts COLD by the same rules.
    let to_kernel = match advice {
        libc::MADV_PAGEOUT if is_managed => libc::MADV_COLD,
        other => other,
    };
    if matches!(
        advice,
        libc::MADV_NORMAL | libc::MADV_RANDOM | libc::MADV_SEQUENTIAL
    ) {
        PROGRAM.hints.store(true, SeqCst);
    }
    // SAFETY: inside of a region; the caller's promise.
    if unsafe { libc::madvise(range.start as *mut c_void, range.len(), to_kernel) } != 0 {
        return Err(Error::System {
            what: "madvise",
            errno: last(),
        });
    }
    if advice != libc::MADV_DONTNEED {
        PROGRAM.advised(range.start, range.len(), advice);
    }
    Ok(())
}
