//! Traces: the touches of programs, with their times.
//!
//! The format is foreswap's own, of self-contained compressed blocks; `docs/TRACES.md` specifies it byte by byte.
//! [`TraceWriter`] and [`TraceReader`] process it in constant memory. [`Source`] reads it, CSV and libCacheSim's
//! oracleGeneral as one stream of [`Record`]s. Files are not trusted: a violation is an error that names its place.

mod convert;
mod csv;
mod encoding;
mod error;
mod kept;
mod oracle;
mod reader;
mod record;
mod source;
mod writer;

pub use convert::{Target, convert};
pub use error::TraceError;
pub use foreswap_core::units::{PageRange, Vpn};
pub use kept::KeptUnits;
pub use reader::{Ending, TraceReader};
pub use record::{Event, Found, Header, MAX_AT_ONCE, MAX_PAGES, MAX_TASKS, Record, Start};
pub use source::{Format, Ids, Source, SourceOptions};
pub use writer::TraceWriter;

/// The start of a trace.
const MAGIC: [u8; 8] = *b"foretrac";
/// Of the format.
const VERSION: u32 = 1;
/// Of a page.
const PAGE_BYTES: u32 = 4096;
/// Bytes of the header.
const HEADER_BYTES: usize = 32;
/// The start of a block.
const BLOCK: [u8; 4] = *b"BLCK";
/// The start of the end mark.
const END: [u8; 4] = *b"DONE";
/// Bytes of a block's head, and of the end mark.
const BLOCK_BYTES: usize = 20;

/// FNV-1a of 32 bits: detects damage of the few bytes that zstd's own checksum does not cover.
fn check(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}
