//! The remaining part of one read or write.
//!
//! The kernel may transfer less than requested, be interrupted, or hit the end of the file. Both backends use this
//! state machine, and therefore agree on the meaning of each. It makes no system call.

use std::os::fd::RawFd;

use rustix::io::Errno;

use super::{IoError, IoVec, QueueError};

/// The kernel refuses longer vectors (`UIO_MAXIOV`); longer requests take several steps.
pub(super) const MAX_VECS: usize = 1024;
/// Longest single step: the kernel cuts at 2 GiB - 4 KiB; a power of two keeps `O_DIRECT` aligned.
const MAX_STEP_BYTES: usize = 1 << 30;
/// How often in a row a transfer may be deferred before that counts as an error. Each retry has gone through the
/// kernel; a file that says "later" this often will say it for ever.
const MAX_RETRIES: u16 = 1024;
/// Smallest block of any device. After an end that is not a multiple of it, `O_DIRECT` cannot
/// continue.
const SECTOR: u64 = 512;

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the area to memory.
    Read,
    /// From memory to the area.
    Write,
}

/// The next action after the kernel's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Issue the next step.
    Again,
    /// Report this.
    Ended(Result<(), IoError>),
}

/// Memory that was lent for a transfer.
#[derive(Debug)]
struct Lent(Vec<IoVec>);

// SAFETY: the memory belongs to the owner of the transfer, by `Io`'s contract.
unsafe impl Send for Lent {}

#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) token: u64,
    pub(super) fd: RawFd,
    pub(super) direction: Direction,
    /// The start of the transfer in the area.
    start: u64,
    /// Bytes requested.
    wanted: u64,
    /// Bytes transferred.
    done: u64,
    /// Merged neighbouring pieces; the first unfinished one is cut at its front.
    vecs: Lent,
    /// Index of that one.
    cursor: usize,
    retries: u16,
}

impl Transfer {
    pub(super) fn idle() -> Self {
        Transfer {
            token: 0,
            fd: -1,
            direction: Direction::Read,
            start: 0,
            wanted: 0,
            done: 0,
            vecs: Lent(Vec::with_capacity(8)),
            cursor: 0,
            retries: 0,
        }
    }

    /// Total length of a request, if it is valid.
    pub(super) fn length_of(offset: u64, iov: &[IoVec]) -> Result<u64, QueueError> {
        let mut wanted = 0u64;
        for piece in iov {
            wanted = wanted
                .checked_add(piece.len as u64)
                .ok_or(QueueError::BadLength)?;
        }
        match offset.checked_add(wanted) {
            Some(end) if wanted > 0 && end <= i64::MAX as u64 => Ok(wanted),
            _ => Err(QueueError::BadLength),
        }
    }

    /// Begins a new request; `wanted` comes from [`Transfer::length_of`].
    pub(super) fn begin(
        &mut self,
        direction: Direction,
        token: u64,
        fd: RawFd,
        offset: u64,
        wanted: u64,
        iov: &[IoVec],
    ) {
        self.token = token;
        self.fd = fd;
        self.direction = direction;
        self.start = offset;
        self.wanted = wanted;
        self.done = 0;
        self.cursor = 0;
        self.retries = 0;
        let vecs = &mut self.vecs.0;
        vecs.clear();
        for piece in iov.iter().filter(|piece| piece.len > 0) {
            match vecs.last_mut() {
                Some(last) if last.ptr.wrapping_add(last.len) == piece.ptr => last.len += piece.len,
                _ => vecs.push(*piece),
            }
        }
    }

    /// The start of the next step in the area.
    pub(super) fn offset(&self) -> u64 {
        self.start + self.done
    }

    /// The memory of the next step: either one piece of at most 1 GiB or several pieces. The slice does not move
    /// until the next `begin` or `on_result`.
    pub(super) fn step(&self) -> &[IoVec] {
        let vecs = &self.vecs.0;
        let rest = &vecs[self.cursor.min(vecs.len())..];
        &rest[..rest.len().min(MAX_VECS)]
    }

    /// Bytes of a step of one piece.
    pub(super) fn single_len(piece: &IoVec) -> usize {
        piece.len.min(MAX_STEP_BYTES)
    }

    /// The kernel's answer to a step: bytes, or a negative errno.
    pub(super) fn on_result(&mut self, result: i32) -> Verdict {
        if result < 0 {
            return self.on_errno(result.saturating_neg());
        }
        let bytes = result as u64;
        if bytes == 0 || bytes > self.wanted - self.done {
            // Zero: the end of the file. More than requested cannot happen; trusting it would be unsound.
            return Verdict::Ended(Err(self.short()));
        }
        self.retries = 0;
        self.done += bytes;
        if self.done == self.wanted {
            return Verdict::Ended(Ok(()));
        }
        self.advance(bytes as usize);
        Verdict::Again
    }

    fn on_errno(&mut self, errno: i32) -> Verdict {
        let transient = errno == Errno::INTR.raw_os_error() || errno == Errno::AGAIN.raw_os_error();
        if transient && self.retries < MAX_RETRIES {
            self.retries += 1;
            return Verdict::Again;
        }
        if errno == Errno::INVAL.raw_os_error() && !self.done.is_multiple_of(SECTOR) {
            return Verdict::Ended(Err(self.short()));
        }
        Verdict::Ended(Err(IoError::Os { errno }))
    }

    fn short(&self) -> IoError {
        IoError::Short {
            done: self.done,
            wanted: self.wanted,
        }
    }

    fn advance(&mut self, mut bytes: usize) {
        while let Some(piece) = self.vecs.0.get_mut(self.cursor) {
            if bytes < piece.len {
                piece.ptr = piece.ptr.wrapping_add(bytes);
                piece.len -= bytes;
                return;
            }
            bytes -= piece.len;
            self.cursor += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(at: usize, len: usize) -> IoVec {
        IoVec {
            ptr: std::ptr::without_provenance_mut(at),
            len,
        }
    }

    fn reading(offset: u64, iov: &[IoVec]) -> Transfer {
        let mut transfer = Transfer::idle();
        let wanted = Transfer::length_of(offset, iov).expect("a proper request");
        transfer.begin(Direction::Read, 7, 3, offset, wanted, iov);
        transfer
    }

    #[test]
    fn neighbouring_pieces_are_merged() {
        let transfer = reading(
            0,
            &[piece(0x1000, 4096), piece(0x2000, 4096), piece(0x9000, 512)],
        );
        assert_eq!(transfer.step().len(), 2);
        assert_eq!(transfer.step()[0].len, 8192);
    }

    #[test]
    fn a_short_step_continues_in_the_middle_of_a_piece() {
        let mut transfer = reading(4096, &[piece(0x1000, 4096), piece(0x9000, 4096)]);
        assert_eq!(transfer.on_result(5120), Verdict::Again);
        assert_eq!(transfer.offset(), 4096 + 5120);
        assert_eq!(transfer.step().len(), 1);
        assert_eq!(transfer.step()[0].ptr.addr(), 0x9000 + 1024);
        assert_eq!(transfer.step()[0].len, 3072);
        assert_eq!(transfer.on_result(3072), Verdict::Ended(Ok(())));
    }

    #[test]
    fn the_end_of_the_file_is_an_error() {
        let mut transfer = reading(0, &[piece(0x1000, 8192)]);
        assert_eq!(transfer.on_result(4096), Verdict::Again);
        let short = IoError::Short {
            done: 4096,
            wanted: 8192,
        };
        assert_eq!(transfer.on_result(0), Verdict::Ended(Err(short)));
        assert_eq!(short.errno(), 5);
    }

    #[test]
    fn an_unaligned_end_under_direct_io_is_the_end_of_the_file() {
        let mut transfer = reading(0, &[piece(0x1000, 8192)]);
        assert_eq!(transfer.on_result(4100), Verdict::Again);
        assert!(matches!(
            transfer.on_result(-22),
            Verdict::Ended(Err(IoError::Short { done: 4100, .. }))
        ));
    }

    #[test]
    fn transient_refusals_are_retried_but_not_for_ever() {
        let mut transfer = reading(0, &[piece(0x1000, 4096)]);
        for _ in 0..MAX_RETRIES {
            assert_eq!(transfer.on_result(-11), Verdict::Again);
        }
        assert_eq!(
            transfer.on_result(-11),
            Verdict::Ended(Err(IoError::Os { errno: 11 }))
        );
    }

    #[test]
    fn other_errors_end_the_transfer_with_their_number() {
        let mut transfer = reading(0, &[piece(0x1000, 4096)]);
        assert_eq!(
            transfer.on_result(-28),
            Verdict::Ended(Err(IoError::Os { errno: 28 }))
        );
    }

    #[test]
    fn an_answer_beyond_the_request_is_not_believed() {
        let mut transfer = reading(0, &[piece(0x1000, 4096)]);
        assert!(matches!(
            transfer.on_result(8192),
            Verdict::Ended(Err(IoError::Short { .. }))
        ));
    }

    #[test]
    fn requests_without_memory_or_beyond_any_file_are_refused() {
        assert_eq!(Transfer::length_of(0, &[]), Err(QueueError::BadLength));
        assert_eq!(
            Transfer::length_of(0, &[piece(0x1000, 0)]),
            Err(QueueError::BadLength)
        );
        assert_eq!(
            Transfer::length_of(i64::MAX as u64, &[piece(0x1000, 4096)]),
            Err(QueueError::BadLength)
        );
        assert_eq!(
            Transfer::length_of(0, &[piece(0x1000, usize::MAX), piece(0x1000, 2)]),
            Err(QueueError::BadLength)
        );
    }

    #[test]
    fn long_vectors_go_in_steps() {
        let iov: Vec<IoVec> = (0..1500).map(|i| piece(0x10_000 * (i + 1), 4096)).collect();
        let mut transfer = reading(0, &iov);
        assert_eq!(transfer.step().len(), MAX_VECS);
        assert_eq!(transfer.on_result((MAX_VECS * 4096) as i32), Verdict::Again);
        assert_eq!(transfer.step().len(), 1500 - MAX_VECS);
    }
}
