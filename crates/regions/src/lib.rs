//! Regions of memory beyond RAM for Rust programs.
//!
//! A program opens its [`Engine`] once, with a limit, and maps a [`Region`] as large as it likes. The pages in use are in
//! RAM, within the limit, and the others on a swap area. All other memory of the program is untouched, and does not count.
//!
//! ```no_run
//! use foreswap_regions::Engine;
//!
//! let engine = Engine::open(["--memory=1G"])?;
//! let mut table = engine.map(16 << 30)?;
//! table[123_456_789] = 42;
//! assert_eq!(table[123_456_789], 42);
//! # Ok::<(), foreswap_regions::Error>(())
//! ```
//!
//! `examples/sort.rs` sorts an array of four times the limit.
//!
//! The engine itself is in `libforeswap_capi.so` (`crates/capi`), which this crate loads: its threads must not
//! allocate from the program's heap, and Rust has one allocator for each object. Linux on x86-64 only. What holds for the
//! C interface holds here, children of forks included: docs/ARRAYS.md.

mod library;

use std::ffi::{CString, c_int};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use library::{Library, library};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no library, or it lacks a function.
    #[error(
        "libforeswap_capi.so cannot be loaded from {places}: {why}; install foreswap, or name the file by the variable \
         FORESWAP_LIBRARY"
    )]
    Library {
        /// Where it was searched.
        places: String,
        /// The last error of the loader.
        why: String,
    },
    /// A word has a zero byte.
    #[error("{0:?} has a zero byte")]
    Zero(String),
    /// The library has refused.
    #[error("{0}")]
    Refused(String),
}

/// The engine of this process: one, which runs until the program ends.
#[derive(Clone, Copy, Debug)]
pub struct Engine {
    library: &'static Library,
}

/// What the program knows of its accesses to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Advice {
    /// Nothing: foreswap finds out (the default).
    Normal = 0,
    /// In no order: nothing is read ahead.
    Random = 1,
    /// In order: pages are read ahead, and evicted soon after they were used.
    Sequential = 2,
    /// Soon: read it now, as far as there is room.
    WillNeed = 3,
    /// Not soon: evict it before other memory.
    Cold = 4,
    /// Not soon: evict it now.
    PageOut = 5,
}

impl Engine {
    /// Starts the engine with words of `foreswap run`: `--memory=SIZE` is required, `--swap=AREA` may be repeated;
    /// `include/foreswap.h` of `crates/capi` lists all. If it was started with the same words already, nothing happens.
    ///
    /// # Errors
    /// [`Error::Library`] if foreswap is not installed, [`Error::Refused`] if an option is wrong, the system lacks
    /// something, or the engine runs with other options.
    pub fn open<T: Into<String>>(options: impl IntoIterator<Item = T>) -> Result<Self, Error> {
        let library = library()?;
        let words = options
            .into_iter()
            .map(|word| zero_ended(word.into()))
            .collect::<Result<Vec<_>, _>>()?;
        let mut pointers: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
        pointers.push(std::ptr::null());
        // SAFETY: an array of strings that ends with a null, and lives during the call.
        library.check(unsafe { (library.open)(pointers.as_ptr()) })?;
        Ok(Self { library })
    }

    /// Maps a region of `bytes` zeros, rounded up to whole pages of 4096 bytes.
    ///
    /// # Errors
    /// [`Error::Refused`] for 0 bytes, or if there is no address space.
    pub fn map(&self, bytes: usize) -> Result<Region, Error> {
        // SAFETY: it takes any number.
        let address = unsafe { (self.library.map)(bytes) };
        Ok(Region {
            library: self.library,
            address: NonNull::new(address.cast()).ok_or_else(|| self.library.error())?,
            len: bytes.next_multiple_of(PAGE),
        })
    }

    /// Changes the limit from now on: `512M`, `40%`, `auto`, `512M..8G`.
    ///
    /// # Errors
    /// [`Error::Refused`] if that is no size, or more than there is.
    pub fn set_memory(&self, memory: &str) -> Result<(), Error> {
        let memory = zero_ended(memory.to_owned())?;
        // SAFETY: a string that lives during the call.
        self.library
            .check(unsafe { (self.library.set_memory)(memory.as_ptr()) })
    }

    /// Figures of this process and of its children: a JSON object with the keys of `foreswap ps --json`.
    ///
    /// # Errors
    /// [`Error::Refused`] if the supervisor is gone, or the process runs under `foreswap run`.
    pub fn stats(&self) -> Result<String, Error> {
        let mut text = vec![0_u8; 64 << 10];
        loop {
            // SAFETY: the buffer has that many bytes.
            let got = unsafe { (self.library.stats)(text.as_mut_ptr().cast(), text.len()) };
            let len = usize::try_from(got).map_err(|_| self.library.error())?;
            if len < text.len() {
                text.truncate(len);
                return Ok(String::from_utf8_lossy(&text).into_owned());
            }
            // It has grown meanwhile, by a process or two.
            text.resize(len + 4096, 0);
        }
    }
}

fn zero_ended(text: String) -> Result<CString, Error> {
    CString::new(text).map_err(|error| {
        let bytes = error.into_vec();
        Error::Zero(String::from_utf8_lossy(&bytes).into_owned())
    })
}

/// The size of a page, in bytes.
const PAGE: usize = 4096;

/// Memory beyond RAM: as a slice of bytes, aligned to a page (from 2 MiB on to 2 MiB) and unmapped when it is dropped.
///
/// Slices of other types are views of it (`bytemuck::cast_slice_mut`, for example).
pub struct Region {
    library: &'static Library,
    address: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its memory, as a `Vec<u8>` does; the library may be called by any thread.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Advice for the whole region.
    ///
    /// # Errors
    /// [`Error::Refused`] if the kernel refuses it.
    pub fn advise(&self, advice: Advice) -> Result<(), Error> {
        self.give(advice as c_int)
    }

    /// Makes all of it zero, and frees what it has in RAM and on the swap area.
    ///
    /// # Errors
    /// [`Error::Refused`] if the kernel refuses it.
    pub fn discard(&mut self) -> Result<(), Error> {
        const DISCARD: c_int = 6;
        self.give(DISCARD)
    }

    fn give(&self, advice: c_int) -> Result<(), Error> {
        let at = self.address.as_ptr().cast();
        // SAFETY: the region's memory. Only `discard` changes its content, and has it alone.
        self.library
            .check(unsafe { (self.library.advise)(at, self.len, advice) })
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped with that length until it is dropped, and initialised with zeros.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed by nobody else.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Its content may be larger than memory.
        f.debug_struct("Region")
            .field("address", &self.address)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: nobody can use it any more. A failure would leave it mapped.
        let _ = unsafe { (self.library.unmap)(self.address.as_ptr().cast()) };
    }
}
