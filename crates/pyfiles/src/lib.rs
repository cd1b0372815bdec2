//! Files through foreswap's page cache for `python/foreswap/_files.py`, which calls these functions by ctypes:
//! `libforeswap_files_py.so`.
//!
//! It is an object of its own. `libforeswap_capi.so` has the engine's allocator, of whose heap a forked child has no copy, and the
//! cache needs threads and memory of the ordinary kind. The interface is private to the package: both are in one wheel.
//!
//! Files are numbers and not addresses. Python lets one thread close a file while another reads it; a number that is closed is an
//! error then, and the read that is under way keeps the file until its end. A result below zero is the negative errno.
//! A forked child must call nothing here: it has no I/O thread. Python sees to that.

use core::error::Error as _;
use core::ffi::{CStr, c_char, c_int};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::{OnceLock, PoisonError, RwLock};

use foreswap_files::{Cache, CachedFile, Pattern};

/// The errors of the system that this object reports itself.
const EBADF: i64 = 9;
const EIO: i64 = 5;
const EINVAL: i64 = 22;
const EBUSY: i64 = 16;

static CACHE: OnceLock<Cache> = OnceLock::new();
static FILES: RwLock<Vec<Option<CachedFile>>> = RwLock::new(Vec::new());

/// The system's number, which may be that of the error's source.
fn errno(error: &io::Error) -> i64 {
    let source = error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>());
    let number = error.raw_os_error().or_else(|| source?.raw_os_error());
    let own = match error.kind() {
        io::ErrorKind::InvalidInput => EINVAL,
        _ => EIO,
    };
    -number.map_or(own, i64::from)
}

/// The file of a number. A clone shares it.
fn file(number: i64) -> Option<CachedFile> {
    let files = FILES.read().unwrap_or_else(PoisonError::into_inner);
    usize::try_from(number)
        .ok()
        .and_then(|at| files.get(at)?.clone())
}

/// Makes the cache of this process, once. Returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn foreswap_files_cache(bytes: u64) -> i64 {
    match Cache::new(bytes) {
        Ok(cache) => CACHE.set(cache).map_or(-EBUSY, |()| 0),
        Err(error) => errno(&error),
    }
}

/// Opens a file for reading and returns its number.
///
/// # Safety
/// `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foreswap_files_open(path: *const c_char) -> i64 {
    let Some(cache) = CACHE.get() else {
        return -EINVAL;
    };
    // SAFETY: the caller's promise.
    let path = OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes());
    let file = match cache.open(path) {
        Ok(file) => file,
        Err(error) => return errno(&error),
    };
    let mut files = FILES.write().unwrap_or_else(PoisonError::into_inner);
    let free = files.iter().position(Option::is_none);
    let at = free.unwrap_or(files.len());
    match free {
        Some(at) => files[at] = Some(file),
        None => files.push(Some(file)),
    }
    at as i64
}

/// Closes a file. Returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn foreswap_files_close(number: i64) -> i64 {
    let mut files = FILES.write().unwrap_or_else(PoisonError::into_inner);
    let file = usize::try_from(number)
        .ok()
        .and_then(|at| files.get_mut(at)?.take());
    drop(files);
    file.map_or(-EBADF, |_| 0)
}

/// Reads up to `bytes` from `offset` on to `buffer`, and returns how many: fewer only at the end of the file.
///
/// # Safety
/// `buffer` has `bytes` bytes, which nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foreswap_files_read(
    number: i64,
    buffer: *mut u8,
    bytes: usize,
    offset: u64,
) -> i64 {
    let Some(file) = file(number) else {
        return -EBADF;
    };
    if bytes == 0 {
        return 0;
    }
    // SAFETY: the caller's promise.
    let buffer = unsafe { core::slice::from_raw_parts_mut(buffer, bytes) };
    match file.read_at(buffer, offset) {
        Ok(done) => done as i64,
        Err(error) => errno(&error),
    }
}

/// The size of a file in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn foreswap_files_size(number: i64) -> i64 {
    file(number).map_or(-EBADF, |file| file.len().cast_signed())
}

/// How a file will be read: 0 not said, 1 in no order, 2 in order. Returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn foreswap_files_advise(number: i64, pattern: c_int) -> i64 {
    let pattern = match pattern {
        0 => Pattern::Normal,
        1 => Pattern::Random,
        2 => Pattern::Sequential,
        _ => return -EINVAL,
    };
    let Some(file) = file(number) else {
        return -EBADF;
    };
    file.advise(pattern);
    0
}

/// Starts to read `bytes` from `offset` on, as far as there is room, and does not wait. Returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn foreswap_files_prefetch(number: i64, offset: u64, bytes: u64) -> i64 {
    let Some(file) = file(number) else {
        return -EBADF;
    };
    file.prefetch(offset..offset.saturating_add(bytes));
    0
}

/// Writes five counts of the cache: hits, misses, pages read, transfers, free pages. Returns 0.
///
/// # Safety
/// `counts` has room for five.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foreswap_files_stats(counts: *mut u64) -> i64 {
    let Some(cache) = CACHE.get() else {
        return -EINVAL;
    };
    let stats = cache.stats();
    let found = [
        stats.hits,
        stats.misses,
        stats.pages_read,
        stats.transfers,
        stats.free_pages,
    ];
    // SAFETY: the caller's promise.
    unsafe { core::ptr::copy_nonoverlapping(found.as_ptr(), counts, found.len()) };
    0
}
