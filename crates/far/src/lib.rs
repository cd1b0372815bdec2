//! Swap areas that are not on this machine.
//!
//! A far area is an export of an NBD server, keys of a Redis server or cluster, or objects of a bucket. Its transfers are carried by the *relay*: one process per run, started by the
//! supervisor when the first far area is opened, with the connections to all servers. Engines reach it through memory (see
//! `foreswap_store::far`), the supervisor through a socket ([`words`]). The relay outlives engines, so that nothing that a
//! killed process has begun is in doubt, and the supervisor, so that a run whose supervisor was killed keeps its pages.
//!
//! [`address`] reads a user's `--swap nbd://...`; [`handle`] is the supervisor's side; [`serve`] the relay's.

pub mod address;
pub mod handle;
pub mod serve;
pub mod words;

mod area;
mod channel;
mod errno;
mod mark;
mod mirror;
mod nbd;
mod polling;
mod redis;
pub mod s3;
mod stream;
mod tls;
mod transfer;
