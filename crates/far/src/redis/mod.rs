//! Areas on Redis and Valkey: chunks of pages in strings, on one server or spread over the masters of a cluster.
//!
//! A chunk is a string of 256 KiB, of which SETRANGE and GETRANGE transfer parts: of the layouts that were measured
//! (docs/FAR.md) it is the fastest one, and its expiry is renewed with one command. What a string cannot tell is whether
//! zeros were written or never were, so [`chunks`] remembers which pages are there, and a write of a part of a chunk asks (by
//! EXPIRE, which it needs anyway) whether the chunk was there before it. A page that was written and is gone is a failed read, never zeros.
//!
//! [`connect`] makes a connection; [`link`] is one at work; [`command`] is what goes over it and what a reply means;
//! [`cluster`] knows which node has a chunk; [`room`] is what a server says of itself; [`served`] is the area from its opening
//! to its end. Transfers speak the protocol themselves, so that their bytes are not copied on the way; the crate `redis` carries
//! out the relay's own commands.

mod chunks;
mod cluster;
mod command;
mod connect;
mod link;
mod room;
mod served;

pub(crate) use served::Served;

use foreswap_store::area::PAGE_BYTES;

/// Bytes of a chunk.
pub const CHUNK: u64 = crate::transfer::PART as u64;
/// Pages of one: as many as bits of a word.
pub const CHUNK_PAGES: u64 = CHUNK / PAGE_BYTES;
