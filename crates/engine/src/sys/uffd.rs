//! userfaultfd: the kernel reports absent pages, and the engine fills them.
//!
//! A thin layer over the ioctls: it opens a descriptor and checks that the kernel granted the features that the
//! engine needs, turns each ioctl into a method with a typed outcome, and decodes messages without allocating. The
//! engine decides whether to retry, defer or give up.
//!
//! Three properties of the kernel shape the outcomes. First, an ioctl that completed only a part reports EAGAIN and
//! the bytes done, whatever stopped it; trying the rest yields the actual reason. Second, while the program unmaps,
//! discards, remaps or forks, every ioctl returns EAGAIN until that event has been read and its waiter has run.
//! Third, a UFFDIO_MOVE that stops early may have moved more than it reports (see `recount`).

mod access;
mod message;
mod recount;

use core::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use linux_raw_sys::general as k;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use access::new_descriptor;
pub use access::{Features, UffdError};
pub use message::{Event, Events, FaultFlags, RawMsg};

const PAGE: usize = 4096;

bitflags::bitflags! {
    /// The faults that a range reports.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Mode: u64 {
        /// Accesses to absent pages.
        const MISSING = k::UFFDIO_REGISTER_MODE_MISSING as u64;
        /// Writes to write-protected pages.
        const WP = k::UFFDIO_REGISTER_MODE_WP as u64;
    }
}

/// Why an ioctl stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// EAGAIN: an event is unread or its waiter has not run; or, with bytes done, the next try will name the
    /// obstacle.
    Again,
    /// EEXIST: a page is already at the destination.
    Exists,
    /// EBUSY: the source page is pinned, shared by fork or under migration.
    Busy,
    /// ENOENT: no source page, or no registered range at the destination.
    NoEntry,
    /// EINVAL: the range is unaligned, unmapped, of the wrong kind or not registered.
    Invalid,
    /// ESRCH: the process' memory is gone (exit or exec).
    Gone,
    /// ENOMEM.
    NoMemory,
    /// Any other.
    Other(Errno),
}

impl From<Errno> for Why {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::AGAIN => Self::Again,
            Errno::EXIST => Self::Exists,
            Errno::BUSY => Self::Busy,
            Errno::NOENT => Self::NoEntry,
            Errno::INVAL => Self::Invalid,
            Errno::SRCH => Self::Gone,
            Errno::NOMEM => Self::NoMemory,
            other => Self::Other(other),
        }
    }
}

/// An ioctl that completed only part of its range, and the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped after {done} bytes: {why:?}")]
pub struct Short {
    /// Bytes done, from the start of the range.
    pub done: usize,
    /// The reason for the stop.
    pub why: Why,
}

/// The whole range, or where and why it stopped.
pub type Outcome = Result<(), Short>;

const REGISTER: Opcode = opcode::read_write::<k::uffdio_register>(0xAA, 0x00);
const UNREGISTER: Opcode = opcode::read::<k::uffdio_range>(0xAA, 0x01);
const WAKE: Opcode = opcode::read::<k::uffdio_range>(0xAA, 0x02);
const COPY: Opcode = opcode::read_write::<k::uffdio_copy>(0xAA, 0x03);
const ZEROPAGE: Opcode = opcode::read_write::<k::uffdio_zeropage>(0xAA, 0x04);
const MOVE: Opcode = opcode::read_write::<k::uffdio_move>(0xAA, 0x05);
const WRITEPROTECT: Opcode = opcode::read_write::<k::uffdio_writeprotect>(0xAA, 0x06);
const CONTINUE: Opcode = opcode::read_write::<k::uffdio_continue>(0xAA, 0x07);
const POISON: Opcode = opcode::read_write::<k::uffdio_poison>(0xAA, 0x08);
const API: Opcode = opcode::read_write::<k::uffdio_api>(0xAA, 0x3F);
const MOVE_ALLOW_SRC_HOLES: u64 = 1 << 1;

/// A userfaultfd after its handshake. Usable from any thread of the process that opened it.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
    features: Features,
}

impl Uffd {
    /// The userfaultfd that a fork event brought ([`Event::Fork`]): for the memory of the child.
    pub const fn of_child(fd: OwnedFd) -> Self {
        let features = Features::NEEDED.union(Features::EVENT_FORK);
        Self { fd, features }
    }

    /// The features that it was opened with.
    pub const fn features(&self) -> Features {
        self.features
    }

    /// Opens a userfaultfd with exactly `features`: by the device first, then by the system call.
    pub fn open(features: Features) -> Result<Self, UffdError> {
        let uffd = Self {
            fd: new_descriptor()?,
            features,
        };
        match uffd.handshake(features) {
            Ok(_) => Ok(uffd),
            Err(Errno::INVAL) => {
                // The kernel does not report the bit that it refused; a descriptor that requests none gets the list
                // of all features.
                let probe = Self {
                    fd: new_descriptor()?,
                    features: Features::empty(),
                };
                let offered =
                    probe
                        .handshake(Features::empty())
                        .map_err(|errno| UffdError::Other {
                            what: "UFFDIO_API",
                            errno,
                        })?;
                let missing = features.difference(offered);
                if missing.is_empty() {
                    return Err(UffdError::Other {
                        what: "UFFDIO_API",
                        errno: Errno::INVAL,
                    });
                }
                let kernel = rustix::system::uname()
                    .release()
                    .to_string_lossy()
                    .into_owned();
                Err(UffdError::FeatureMissing { missing, kernel })
            }
            Err(errno) => Err(UffdError::Other {
                what: "UFFDIO_API",
                errno,
            }),
        }
    }

    fn handshake(&self, features: Features) -> Result<Features, Errno> {
        let mut api = k::uffdio_api {
            api: u64::from(k::UFFD_API),
            features: features.bits(),
            ioctls: 0,
        };
        self.call::<API, _>(&mut api)?;
        Ok(Features::from_bits_truncate(api.features))
    }

    fn call<const OP: Opcode, T>(&self, arg: &mut T) -> Result<(), Errno> {
        // SAFETY: every OP of this module is paired with the structure that the kernel reads and
        // writes for it; the structure outlives the call. What the call does to the pages of the
        // ranges inside is the caller's, whose methods say so.
        unsafe { ioctl(&self.fd, Updater::<OP, T>::new(arg)) }
    }

    /// Registers `start..start+len`: its faults are then reported here.
    pub fn register(&self, start: usize, len: usize, mode: Mode) -> Result<(), Errno> {
        let mut arg = k::uffdio_register {
            range: range(start, len),
            mode: mode.bits(),
            ioctls: 0,
        };
        self.call::<REGISTER, _>(&mut arg)
    }

    /// [`Self::register`] for missing faults only.
    pub fn register_missing(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.register(start, len, Mode::MISSING)
    }

    /// Ends the registration and wakes every thread that waits in the range.
    pub fn unregister(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.call::<UNREGISTER, _>(&mut range(start, len))
    }

    /// Wakes the threads that wait for a page of the range; they fault again if it is absent.
    pub fn wake(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.call::<WAKE, _>(&mut range(start, len))
    }

    /// Maps copies of the pages at `src` at the absent pages of `dst` and wakes their waiters.
    ///
    /// # Safety
    /// `src` must be readable for `len` bytes; `dst` is memory that this descriptor's owner
    /// serves, whose absent pages no Rust reference relies on.
    pub unsafe fn copy(&self, dst: usize, src: *const c_void, len: usize) -> Outcome {
        let mut arg = k::uffdio_copy {
            dst: dst as u64,
            src: src as u64,
            len: len as u64,
            mode: 0,
            copy: 0,
        };
        let result = self.call::<COPY, _>(&mut arg);
        outcome(result, arg.copy, len)
    }

    /// Maps zero pages at the absent pages of `start..start+len` and wakes their waiters.
    pub fn zeropage(&self, start: usize, len: usize) -> Outcome {
        let mut arg = k::uffdio_zeropage {
            range: range(start, len),
            mode: 0,
            zeropage: 0,
        };
        let result = self.call::<ZEROPAGE, _>(&mut arg);
        outcome(result, arg.zeropage, len)
    }

    /// Moves the pages at `src` to the absent pages at `dst`, which is registered here, and wakes the waiters there.
    /// With `allow_src_holes`, absent source pages are skipped and counted as done. Aligned whole huge pages stay
    /// whole. The outcome counts every moved page, even if the kernel does not: if a destination is in use while its
    /// source is absent, the page counts as moved. Only move present pages to absent ones, as far as is known.
    ///
    /// The kernel requires both areas to have the same access rights, writing included, and the same mlock state:
    /// after an mprotect by the program the result is `Invalid`, while [`Self::copy`] still works.
    ///
    /// # Safety
    /// The contents of `src` become absent: only the owner of that memory may request this, and no Rust reference may
    /// point into it.
    pub unsafe fn move_pages(
        &self,
        dst: usize,
        src: usize,
        len: usize,
        allow_src_holes: bool,
    ) -> Outcome {
        let mode = if allow_src_holes {
            MOVE_ALLOW_SRC_HOLES
        } else {
            0
        };
        let mut arg = k::uffdio_move {
            dst: dst as u64,
            src: src as u64,
            len: len as u64,
            mode,
            move_: 0,
        };
        let result = self.call::<MOVE, _>(&mut arg);
        let short = match outcome(result, arg.move_, len) {
            // Some pages of the unfinished part may have moved.
            Err(short) if short.why == Why::Exists || short.why == Why::Again && short.done > 0 => {
                short
            }
            other => return other,
        };
        let more = recount::moved_uncounted(src + short.done..src + len, dst + short.done);
        if more == 0 {
            return Err(short);
        }
        // The kernel has not woken their waiters either.
        let _ = self.wake(dst + short.done, more);
        let done = short.done + more;
        if done == len {
            return Ok(());
        }
        let why = Why::Again;
        Err(Short { done, why })
    }

    /// Sets or removes write protection; removal wakes the waiting writers. The kernel keeps no count for this ioctl:
    /// a short outcome has 0 bytes done and is repeated as a whole.
    pub fn writeprotect(&self, start: usize, len: usize, on: bool) -> Outcome {
        let mut arg = k::uffdio_writeprotect {
            range: range(start, len),
            mode: u64::from(on),
        };
        let result = self.call::<WRITEPROTECT, _>(&mut arg);
        outcome(result, 0, len)
    }

    /// Makes every access to the absent pages of the range end in SIGBUS, and wakes the waiters.
    pub fn poison(&self, start: usize, len: usize) -> Outcome {
        let mut arg = k::uffdio_poison {
            range: range(start, len),
            mode: 0,
            updated: 0,
        };
        let result = self.call::<POISON, _>(&mut arg);
        outcome(result, arg.updated, len)
    }

    /// Whether an event is pending or its waiter has not run, in which case ioctls return EAGAIN. One system call
    /// without effect: the kernel checks this before the range.
    pub fn mmap_changing(&self) -> bool {
        let mut nothing = k::uffdio_zeropage {
            range: range(0, 0),
            mode: 0,
            zeropage: 0,
        };
        self.call::<ZEROPAGE, _>(&mut nothing) == Err(Errno::AGAIN)
    }

    /// Whether private anonymous memory at `address` is registered, here or elsewhere; `None` while the memory changes.
    /// One system call without effect: such memory has no page cache from which UFFDIO_CONTINUE could map a page, and the
    /// kernel says so only of a registered range. Of a descriptor without events, the answer does not wait for those of
    /// another.
    pub fn is_registered(&self, address: usize) -> Option<bool> {
        match self.continue_at(address) {
            Err(Errno::AGAIN) => None,
            other => Some(other == Err(Errno::INVAL)),
        }
    }

    /// Whether the memory still exists: its process has not ended or executed a file. Without effect on registered
    /// memory at `address`, as above.
    pub fn exists(&self, address: usize) -> bool {
        self.continue_at(address) != Err(Errno::SRCH)
    }

    fn continue_at(&self, address: usize) -> Result<(), Errno> {
        let mut page = k::uffdio_continue {
            range: range(address, PAGE),
            mode: 0,
            mapped: 0,
        };
        self.call::<CONTINUE, _>(&mut page)
    }

    /// Reads pending messages without waiting; if there are none, the iterator is empty.
    pub fn read<'b>(&self, buffer: &'b mut [RawMsg]) -> Result<Events<'b>, Errno> {
        // SAFETY: a RawMsg is 32 plain bytes in which every value is valid.
        let bytes = unsafe {
            core::slice::from_raw_parts_mut(buffer.as_mut_ptr().cast::<u8>(), size_of_val(buffer))
        };
        let count = loop {
            match rustix::io::read(&self.fd, &mut *bytes) {
                Ok(bytes) => break bytes / size_of::<RawMsg>(),
                Err(Errno::AGAIN) => break 0,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        };
        Ok(Events::new(&buffer[..count]))
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Uffd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

fn range(start: usize, len: usize) -> k::uffdio_range {
    k::uffdio_range {
        start: start as u64,
        len: len as u64,
    }
}

/// `field` is the structure's result: bytes done, or a negative error number when none were.
fn outcome(result: Result<(), Errno>, field: i64, len: usize) -> Outcome {
    let done = usize::try_from(field).unwrap_or(0);
    match result {
        Ok(()) => Ok(()),
        // Some kernels report an early EAGAIN in the field alone; the return value is decisive.
        Err(errno) => {
            debug_assert!(done <= len);
            Err(Short {
                done,
                why: errno.into(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_result_field_is_no_progress() {
        let again = outcome(Err(Errno::AGAIN), -11, 8192);
        assert_eq!(
            again,
            Err(Short {
                done: 0,
                why: Why::Again
            })
        );
        let part = outcome(Err(Errno::AGAIN), 4096, 8192);
        assert_eq!(
            part,
            Err(Short {
                done: 4096,
                why: Why::Again
            })
        );
        assert_eq!(outcome(Ok(()), 8192, 8192), Ok(()));
    }
}
