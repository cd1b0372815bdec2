//! Files through foreswap's own page cache.
//!
//! A [`Cache`] has a fixed number of frames, which the files that are open in it share. A read of a page that is in
//! memory makes no system call and takes no lock. Misses and readahead go past the kernel's page cache (O_DIRECT). The
//! policy of `foreswap-core` follows up to 64 streams in one file, and windows grow with the measured latency and
//! bandwidth of the store. Writes go to memory, and [`CachedFile::sync`] makes them durable.
//!
//! ```
//! use foreswap_files::{Cache, Options};
//!
//! let directory = tempfile::tempdir()?;
//! let path = directory.path().join("data");
//! let cache = Cache::new(16 << 20)?;
//! let file = cache.open_with(&path, Options::new().write(true).create(true))?;
//! file.write_at(b"forty-two", 1_000_000)?;
//! file.sync()?;
//!
//! let mut word = [0; 5];
//! file.read_exact_at(&mut word, 1_000_000)?;
//! assert_eq!(&word, b"forty");
//! assert_eq!(file.len(), std::fs::metadata(&path)?.len());
//! # std::io::Result::Ok(())
//! ```
//!
//! # After a crash
//!
//! - What was written before a [`CachedFile::sync`] that returned `Ok` is in the file, whatever happens to the program
//!   or the machine (as far as the file system and the disk keep what fdatasync promises).
//! - If the program dies (kill -9), each page of the file is as one of the writes to it left it since the last sync, or
//!   as that sync left it; different pages may be of different times. A transfer that the death interrupts is carried
//!   out by the kernel or not, in parts of the disk's sectors.
//! - If the machine dies, the same holds for each sector of the disk.
//! - The file is never longer than what was written to it.
//!
//! # Limits
//!
//! Other programs see changes when the pages are written back, and changes by other programs are seen for pages that
//! are read again. Memory is not given back to the system before the cache is dropped. A forked child must not use it.

mod arena;
mod cache;
mod entry;
mod file;
mod frames;
mod load;
mod map;
mod stats;
pub mod store;
mod waiters;
mod write;
mod writeback;

pub use cache::Cache;
pub use file::CachedFile;
pub use foreswap_core::readahead::file::Pattern;
pub use stats::Stats;
pub use store::Options;
