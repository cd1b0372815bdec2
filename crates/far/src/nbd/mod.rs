//! The client's side of the NBD protocol (the fixed newstyle negotiation, simple replies), as its public specification
//! describes it: <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>.

mod handshake;
mod leave;
mod link;
mod served;

pub use handshake::{Export, Problem, connect};
pub use leave::{leave, read_first_page, write_first_page};
pub use link::run;
pub(crate) use served::Served;

pub use crate::stream::Stream;

/// Commands.
pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISCONNECT: u16 = 2;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
}

/// The flags of an export.
pub mod flag {
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
}

/// Bytes of the head of a request.
pub const REQUEST: usize = 28;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// The head of a request.
pub fn request(command: u16, cookie: u64, offset: u64, bytes: u32) -> [u8; REQUEST] {
    let mut head = [0; REQUEST];
    head[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    head[6..8].copy_from_slice(&command.to_be_bytes());
    head[8..16].copy_from_slice(&cookie.to_be_bytes());
    head[16..24].copy_from_slice(&offset.to_be_bytes());
    head[24..28].copy_from_slice(&bytes.to_be_bytes());
    head
}

/// Bytes of the head of a reply.
pub const REPLY: usize = 16;

/// The error and the cookie of a reply. `None`: it is none.
pub fn reply(head: &[u8; REPLY]) -> Option<(u32, u64)> {
    let (words, cookie) = head.split_at(8);
    let [magic, error] = [0, 4].map(|at| {
        let word: [u8; 4] = words[at..at + 4].try_into().unwrap_or_default();
        u32::from_be_bytes(word)
    });
    let cookie: [u8; 8] = cookie.try_into().unwrap_or_default();
    (magic == REPLY_MAGIC).then_some((error, u64::from_be_bytes(cookie)))
}
