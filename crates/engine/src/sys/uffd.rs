//! userfaultfd: the kernel tells us which page is missing, we say what goes there.
//!
//! A thin layer over the ioctls: it opens a descriptor and checks that the kernel granted what the
//! engine depends on, turns each ioctl into a method with a typed outcome, and decodes messages
//! without allocating. It decides nothing: whether to retry, defer or give up is the engine's.
//!
//! Two habits of the kernel shape the outcomes. First, an ioctl that did only a part reports
//! EAGAIN and leaves the bytes done in its structure, whatever stopped it; the true reason shows
//! when the rest is tried again. Second, while the program unmaps, discards, remaps or forks,
//! every ioctl answers EAGAIN until that event has been read and its waiter has run.

use core::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use linux_raw_sys::general as k;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Updater, ioctl, opcode};

bitflags::bitflags! {
    /// What a userfaultfd can be asked for; the names are the kernel's, less `UFFD_FEATURE_`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Features: u64 {
        /// Write-protect faults are told apart from missing ones.
        const PAGEFAULT_FLAG_WP = k::UFFD_FEATURE_PAGEFAULT_FLAG_WP as u64;
        /// A forked child gets its own descriptor (needs CAP_SYS_PTRACE).
        const EVENT_FORK = k::UFFD_FEATURE_EVENT_FORK as u64;
        /// mremap of a registered range is announced.
        const EVENT_REMAP = k::UFFD_FEATURE_EVENT_REMAP as u64;
        /// madvise(DONTNEED, FREE, REMOVE) of a registered range is announced.
        const EVENT_REMOVE = k::UFFD_FEATURE_EVENT_REMOVE as u64;
        /// Missing faults on hugetlbfs.
        const MISSING_HUGETLBFS = k::UFFD_FEATURE_MISSING_HUGETLBFS as u64;
        /// Missing faults on shared memory.
        const MISSING_SHMEM = k::UFFD_FEATURE_MISSING_SHMEM as u64;
        /// munmap of a registered range is announced.
        const EVENT_UNMAP = k::UFFD_FEATURE_EVENT_UNMAP as u64;
        /// Faults become SIGBUS instead of messages.
        const SIGBUS = k::UFFD_FEATURE_SIGBUS as u64;
        /// Fault messages carry the thread's id.
        const THREAD_ID = k::UFFD_FEATURE_THREAD_ID as u64;
        /// Minor faults on hugetlbfs.
        const MINOR_HUGETLBFS = k::UFFD_FEATURE_MINOR_HUGETLBFS as u64;
        /// Minor faults on shared memory.
        const MINOR_SHMEM = k::UFFD_FEATURE_MINOR_SHMEM as u64;
        /// Fault addresses keep their offset within the page.
        const EXACT_ADDRESS = k::UFFD_FEATURE_EXACT_ADDRESS as u64;
        /// Write protection of hugetlbfs and shared memory.
        const WP_HUGETLBFS_SHMEM = k::UFFD_FEATURE_WP_HUGETLBFS_SHMEM as u64;
        /// Write protection of pages that are not there yet.
        const WP_UNPOPULATED = k::UFFD_FEATURE_WP_UNPOPULATED as u64;
        /// UFFDIO_POISON: accesses to a page end in SIGBUS.
        const POISON = k::UFFD_FEATURE_POISON as u64;
        /// Write-protect faults resolve themselves and are only recorded.
        const WP_ASYNC = k::UFFD_FEATURE_WP_ASYNC as u64;
        /// UFFDIO_MOVE: pages change address without being copied.
        const MOVE = k::UFFD_FEATURE_MOVE as u64;
    }

    /// Which faults a range reports.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Mode: u64 {
        /// Accesses to absent pages.
        const MISSING = k::UFFDIO_REGISTER_MODE_MISSING as u64;
        /// Writes to write-protected pages.
        const WP = k::UFFDIO_REGISTER_MODE_WP as u64;
    }

    /// How [`Uffd::copy`] maps what it copied.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct CopyMode: u64 {
        /// Leave the waiting threads asleep; [`Uffd::wake`] follows.
        const DONTWAKE = k::UFFDIO_COPY_MODE_DONTWAKE as u64;
        /// Map the pages write-protected, atomically with the copy.
        const WP = k::UFFDIO_COPY_MODE_WP as u64;
    }
}

impl Features {
    /// The first kernel that has the feature, for messages.
    fn since(self) -> &'static str {
        if self.contains(Self::MOVE) {
            "6.8"
        } else if self.contains(Self::WP_ASYNC) {
            "6.7"
        } else if self.contains(Self::POISON) {
            "6.6"
        } else if self.contains(Self::WP_UNPOPULATED) {
            "6.4"
        } else if self.contains(Self::WP_HUGETLBFS_SHMEM) {
            "5.19"
        } else if self.contains(Self::EXACT_ADDRESS) {
            "5.18"
        } else {
            "5.14"
        }
    }
}

fn names(features: Features) -> String {
    let mut list = String::new();
    for (name, _) in features.iter_names() {
        if !list.is_empty() {
            list.push_str(", ");
        }
        list.push_str(name);
    }
    list
}

/// Why no userfaultfd could be had, with what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum UffdError {
    /// Neither the device nor the system call may be used.
    #[error(
        "no permission to use userfaultfd (/dev/userfaultfd: {device}; userfaultfd(2): {call}). \
         Any one of these helps: run as root; give your group the device with the udev rule \
         KERNEL==\"userfaultfd\", GROUP=\"users\", MODE=\"0660\"; \
         sysctl vm.unprivileged_userfaultfd=1; in a container, pass --device=/dev/userfaultfd"
    )]
    NoPermission {
        /// What opening the device said.
        device: Errno,
        /// What the system call said.
        call: Errno,
    },
    /// The kernel was built without it.
    #[error("this kernel has no userfaultfd: it needs CONFIG_USERFAULTFD=y and Linux 6.8 or later")]
    NoSupport,
    /// The kernel has userfaultfd, but not all that is needed.
    #[error(
        "this kernel's userfaultfd lacks {}: Linux {} or later is needed, this is {kernel}",
        names(*.missing), .missing.since()
    )]
    FeatureMissing {
        /// Wanted and not offered.
        missing: Features,
        /// The running kernel's release.
        kernel: String,
    },
    /// Anything else.
    #[error("userfaultfd: {what}: {errno}")]
    Other {
        /// The step that failed.
        what: &'static str,
        /// With what.
        errno: Errno,
    },
}

/// Why an ioctl stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// EAGAIN: an event waits to be read or its waiter has not run yet; or, with bytes done, the
    /// rest met an obstacle that the next try will name.
    Again,
    /// EEXIST: a page is already at the destination.
    Exists,
    /// EBUSY: the source page is pinned, shared by fork or under migration.
    Busy,
    /// ENOENT: no source page, or no registered range at the destination.
    NoEntry,
    /// EINVAL: the range is unaligned, unmapped, of the wrong kind or not registered.
    Invalid,
    /// ESRCH: the process' memory is gone (it exits or execs).
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

/// An ioctl that did not do all of its range: what it did, and why it stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped after {done} bytes: {why:?}")]
pub struct Short {
    /// Bytes done, from the start of the range.
    pub done: usize,
    /// What stopped it.
    pub why: Why,
}

/// The whole range, or where and why it stopped.
pub type Outcome = Result<(), Short>;

/// One message as the kernel writes it.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct RawMsg([u8; 32]);

impl RawMsg {
    /// An empty message, to fill a buffer with.
    pub const ZERO: Self = Self([0; 32]);
}

const _: () = assert!(size_of::<RawMsg>() == size_of::<k::uffd_msg>());

/// What kind of access faulted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultFlags {
    /// It was a write.
    pub write: bool,
    /// The page is there but write-protected.
    pub wp: bool,
    /// The page is in the page cache but not mapped.
    pub minor: bool,
}

/// A decoded message. Addresses are bytes in the process that faulted.
#[derive(Debug)]
pub enum Event {
    /// A thread waits for a page.
    Fault {
        /// Where; page-aligned unless EXACT_ADDRESS was asked for.
        addr: usize,
        /// How it was touched.
        flags: FaultFlags,
        /// The kernel's id of the thread, 0 without THREAD_ID.
        tid: u32,
    },
    /// `start..end` is about to be discarded: the message comes *before* the pages go.
    Remove {
        /// First byte.
        start: usize,
        /// One past the last.
        end: usize,
    },
    /// `start..end` was unmapped.
    Unmap {
        /// First byte.
        start: usize,
        /// One past the last.
        end: usize,
    },
    /// `from..from+len` was moved to `to`. An [`Event::Unmap`] of the old addresses follows, and
    /// the program's mremap returns only after both have been read.
    Remap {
        /// Old address.
        from: usize,
        /// New address.
        to: usize,
        /// Bytes that moved: the old length, also when the mapping grew.
        len: usize,
    },
    /// The process forked; the child's memory reports to this descriptor.
    Fork {
        /// The child's userfaultfd.
        fd: OwnedFd,
    },
    /// A message of a kind this kernel knows and we do not.
    Unknown(u8),
}

impl RawMsg {
    fn word(&self, index: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[8 + 8 * index..][..8]);
        u64::from_ne_bytes(bytes)
    }

    fn decode(&self) -> Event {
        let [a, b, c] = [self.word(0), self.word(1), self.word(2)];
        match u32::from(self.0[0]) {
            k::UFFD_EVENT_PAGEFAULT => {
                let flag = |bit: u32| a & u64::from(bit) != 0;
                let mut tid = [0; 4];
                tid.copy_from_slice(&self.0[24..28]);
                Event::Fault {
                    addr: b as usize,
                    flags: FaultFlags {
                        write: flag(k::UFFD_PAGEFAULT_FLAG_WRITE),
                        wp: flag(k::UFFD_PAGEFAULT_FLAG_WP),
                        minor: flag(k::UFFD_PAGEFAULT_FLAG_MINOR),
                    },
                    tid: u32::from_ne_bytes(tid),
                }
            }
            k::UFFD_EVENT_REMOVE => Event::Remove {
                start: a as usize,
                end: b as usize,
            },
            k::UFFD_EVENT_UNMAP => Event::Unmap {
                start: a as usize,
                end: b as usize,
            },
            k::UFFD_EVENT_REMAP => Event::Remap {
                from: a as usize,
                to: b as usize,
                len: c as usize,
            },
            k::UFFD_EVENT_FORK => {
                let mut fd = [0; 4];
                fd.copy_from_slice(&self.0[8..12]);
                // SAFETY: the kernel installed this descriptor for the reader of this message,
                // and each message is decoded once.
                let fd = unsafe { OwnedFd::from_raw_fd(RawFd::from_ne_bytes(fd)) };
                Event::Fork { fd }
            }
            _ => Event::Unknown(self.0[0]),
        }
    }
}

/// The messages of one read, oldest first.
pub struct Events<'b> {
    rest: core::slice::Iter<'b, RawMsg>,
}

impl Iterator for Events<'_> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.rest.next().map(RawMsg::decode)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rest.size_hint()
    }
}

impl ExactSizeIterator for Events<'_> {}

const REGISTER: Opcode = opcode::read_write::<k::uffdio_register>(0xAA, 0x00);
const UNREGISTER: Opcode = opcode::read::<k::uffdio_range>(0xAA, 0x01);
const WAKE: Opcode = opcode::read::<k::uffdio_range>(0xAA, 0x02);
const COPY: Opcode = opcode::read_write::<k::uffdio_copy>(0xAA, 0x03);
const ZEROPAGE: Opcode = opcode::read_write::<k::uffdio_zeropage>(0xAA, 0x04);
const MOVE: Opcode = opcode::read_write::<k::uffdio_move>(0xAA, 0x05);
const WRITEPROTECT: Opcode = opcode::read_write::<k::uffdio_writeprotect>(0xAA, 0x06);
const POISON: Opcode = opcode::read_write::<k::uffdio_poison>(0xAA, 0x08);
const API: Opcode = opcode::read_write::<k::uffdio_api>(0xAA, 0x3F);
/// On /dev/userfaultfd: a new descriptor.
const NEW: Opcode = opcode::none(0xAA, 0x00);
const MOVE_ALLOW_SRC_HOLES: u64 = 1 << 1;

/// A userfaultfd after its handshake. Usable from any thread of the process that opened it.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
}

impl Uffd {
    /// Opens a userfaultfd with exactly `features`: by the device first, then by the system call.
    pub fn open(features: Features) -> Result<Self, UffdError> {
        let uffd = Self {
            fd: new_descriptor()?,
        };
        match uffd.handshake(features) {
            Ok(_) => Ok(uffd),
            Err(Errno::INVAL) => {
                // The kernel does not say which bit it refused; a descriptor that asks for
                // nothing is told everything there is.
                let probe = Self {
                    fd: new_descriptor()?,
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

    /// Takes over a descriptor whose handshake is done, e.g. one received in a message.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
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

    /// Registers `start..start+len`, whose faults then come here.
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

    /// Maps copies of the pages at `src` at the absent pages of `dst`.
    ///
    /// # Safety
    /// `src` must be readable for `len` bytes; `dst` is memory that this descriptor's owner
    /// serves, whose absent pages no Rust reference relies on.
    pub unsafe fn copy(
        &self,
        dst: usize,
        src: *const c_void,
        len: usize,
        mode: CopyMode,
    ) -> Outcome {
        let mut arg = k::uffdio_copy {
            dst: dst as u64,
            src: src as u64,
            len: len as u64,
            mode: mode.bits(),
            copy: 0,
        };
        let result = self.call::<COPY, _>(&mut arg);
        outcome(result, arg.copy, len)
    }

    /// Maps zero pages at the absent pages of `start..start+len` and wakes who waits there.
    pub fn zeropage(&self, start: usize, len: usize) -> Outcome {
        let mut arg = k::uffdio_zeropage {
            range: range(start, len),
            mode: 0,
            zeropage: 0,
        };
        let result = self.call::<ZEROPAGE, _>(&mut arg);
        outcome(result, arg.zeropage, len)
    }

    /// Moves the pages at `src` to the absent pages at `dst`, which is registered here, and wakes
    /// who waits there. With `allow_src_holes` absent source pages are passed over and counted as
    /// done. Aligned whole huge pages stay whole.
    ///
    /// # Safety
    /// The contents of `src` become absent: nobody but the owner of that memory may ask for it,
    /// and no Rust reference may point into it.
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
        outcome(result, arg.move_, len)
    }

    /// Sets or lifts write protection; lifting wakes the writers that wait. The kernel keeps no
    /// count for this ioctl: a short outcome has 0 bytes done and is repeated as a whole.
    pub fn writeprotect(&self, start: usize, len: usize, on: bool) -> Outcome {
        let mut arg = k::uffdio_writeprotect {
            range: range(start, len),
            mode: u64::from(on),
        };
        let result = self.call::<WRITEPROTECT, _>(&mut arg);
        outcome(result, 0, len)
    }

    /// Makes every access to the absent pages of the range end in SIGBUS, and wakes who waits.
    pub fn poison(&self, start: usize, len: usize) -> Outcome {
        let mut arg = k::uffdio_poison {
            range: range(start, len),
            mode: 0,
            updated: 0,
        };
        let result = self.call::<POISON, _>(&mut arg);
        outcome(result, arg.updated, len)
    }

    /// Whether an event is still pending or its waiter has not run, so that ioctls answer EAGAIN.
    /// Costs one system call that changes nothing: the kernel looks at this before the range.
    pub fn mmap_changing(&self) -> bool {
        let mut nothing = k::uffdio_zeropage {
            range: range(0, 0),
            mode: 0,
            zeropage: 0,
        };
        self.call::<ZEROPAGE, _>(&mut nothing) == Err(Errno::AGAIN)
    }

    /// Reads what has arrived, without waiting; nothing there is an empty iterator.
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
        Ok(Events {
            rest: buffer[..count].iter(),
        })
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
        // Some kernels report an early EAGAIN in the field alone; the return value is what counts.
        Err(errno) => {
            debug_assert!(done <= len);
            Err(Short {
                done,
                why: errno.into(),
            })
        }
    }
}

/// USERFAULTFD_IOC_NEW takes flags by value and returns a descriptor.
struct NewFromDevice;

// SAFETY: the ioctl reads its argument as an integer, writes no memory, and returns a descriptor
// that belongs to the caller.
unsafe impl Ioctl for NewFromDevice {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        NEW
    }

    fn as_ptr(&mut self) -> *mut c_void {
        core::ptr::without_provenance_mut((k::O_CLOEXEC | k::O_NONBLOCK) as usize)
    }

    unsafe fn output_from_ptr(fd: IoctlOutput, _: *mut c_void) -> Result<OwnedFd, Errno> {
        // SAFETY: a successful call returns a fresh descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

fn new_descriptor() -> Result<OwnedFd, UffdError> {
    use rustix::fs::{Mode, OFlags, open};
    let by_device = open(
        c"/dev/userfaultfd",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )
    // SAFETY: as the implementation of NewFromDevice says.
    .and_then(|device| unsafe { ioctl(&device, NewFromDevice) });
    let device = match by_device {
        Ok(fd) => return Ok(fd),
        Err(errno) => errno,
    };
    use rustix::mm::{UserfaultfdFlags, userfaultfd};
    // SAFETY: creating the descriptor changes no memory; what its methods change, they say.
    let by_call = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK) };
    by_call.map_err(|call| match call {
        Errno::NOSYS => UffdError::NoSupport,
        Errno::PERM | Errno::ACCESS => UffdError::NoPermission { device, call },
        errno => UffdError::Other {
            what: "userfaultfd(2)",
            errno,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(event: u32, words: [u64; 3]) -> RawMsg {
        let mut raw = RawMsg::ZERO;
        raw.0[0] = event as u8;
        for (i, word) in words.iter().enumerate() {
            raw.0[8 + 8 * i..][..8].copy_from_slice(&word.to_ne_bytes());
        }
        raw
    }

    #[test]
    fn each_message_decodes_to_its_event() {
        let fault = message(k::UFFD_EVENT_PAGEFAULT, [0b011, 0x7000, 42]).decode();
        let Event::Fault {
            addr: 0x7000,
            flags,
            tid: 42,
        } = fault
        else {
            panic!("{fault:?}");
        };
        assert_eq!(
            flags,
            FaultFlags {
                write: true,
                wp: true,
                minor: false
            }
        );
        let other = message(k::UFFD_EVENT_REMOVE, [1, 2, 0]).decode();
        assert!(matches!(other, Event::Remove { start: 1, end: 2 }));
        let other = message(k::UFFD_EVENT_UNMAP, [3, 4, 0]).decode();
        assert!(matches!(other, Event::Unmap { start: 3, end: 4 }));
        let other = message(k::UFFD_EVENT_REMAP, [5, 6, 7]).decode();
        assert!(matches!(
            other,
            Event::Remap {
                from: 5,
                to: 6,
                len: 7
            }
        ));
        assert!(matches!(
            message(0x44, [0; 3]).decode(),
            Event::Unknown(0x44)
        ));
    }

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

    #[test]
    fn errors_name_the_remedy() {
        let denied = UffdError::NoPermission {
            device: Errno::NOENT,
            call: Errno::PERM,
        };
        let text = denied.to_string();
        for part in [
            "root",
            "KERNEL==\"userfaultfd\"",
            "vm.unprivileged_userfaultfd=1",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let old = UffdError::FeatureMissing {
            missing: Features::MOVE | Features::POISON,
            kernel: "6.1.0".into(),
        };
        assert_eq!(
            old.to_string(),
            "this kernel's userfaultfd lacks POISON, MOVE: Linux 6.8 or later is needed, this is 6.1.0"
        );
    }
}
