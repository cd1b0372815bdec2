//! A slow file system with one file, by FUSE: the only slow store that the kernel can map files from.
//!
//! A request ends `delay` after its bytes have passed a link of a given bandwidth, one request after the other, as
//! [`foreswap_files::store::SlowStore`] does it: requests in flight share the delay, and not the bandwidth. The content
//! of a page is its number and a constant, so nothing is stored. Three limits of FUSE would bound the store instead of
//! these two figures, and are raised: requests have up to 1 MiB (`max_pages`), as many as the kernel likes may be in
//! flight (`max_background`, which counts direct reads too), and direct reads are asynchronous.
//!
//! The mount is in a mount namespace of the thread that makes it, and of the processes that it starts: the kernel
//! unmounts it when the last of them has ended, also after kill -9.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context, ensure};
use foreswap_files::store::Slowness;
use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData,
    ReplyEntry, ReplyOpen, Request,
};

use crate::files::{PAGE, number_pages, pattern};
use crate::system::swap;

/// The name of the file.
const NAME: &str = "slow.mapped";
/// What the names of folders end with.
const SUFFIX: &str = ".slow";
const FILE: INodeNo = INodeNo(2);
/// Bytes of the largest request.
const REQUEST: usize = 1 << 20;
/// Requests in flight.
const IN_FLIGHT: u16 = u16::MAX;
/// The kernel need not ask for attributes again.
const FOREVER: Duration = Duration::from_secs(1 << 30);

/// A mounted file, until it is dropped.
#[derive(Debug)]
pub struct SlowMount {
    session: Option<BackgroundSession>,
    directory: PathBuf,
}

impl SlowMount {
    /// Mounts a file of so many bytes, a multiple of 4 KiB, in a new folder in `directory`.
    ///
    /// # Errors
    /// There is no right to mount (root), or no /dev/fuse.
    pub fn new(directory: &Path, bytes: u64, slowness: Slowness) -> anyhow::Result<Self> {
        ensure!(
            bytes > 0 && bytes.is_multiple_of(PAGE as u64) && slowness.bandwidth > 0,
            "a slow file of {bytes} bytes with {} bytes per second: expected a multiple of 4096, and a bandwidth",
            slowness.bandwidth
        );
        own_namespace().context("no mount namespace of its own (it needs root)")?;
        for folder in swap::left_behind(directory, SUFFIX) {
            // Only an empty one: nothing is mounted there.
            let _ = std::fs::remove_dir(folder);
        }
        let name = format!("foreswap-bench-{}{SUFFIX}", std::process::id());
        let directory = directory.join(name);
        std::fs::create_dir(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let mut mount = Self {
            session: None,
            directory,
        };
        let mut options = fuser::Config::default();
        options.mount_options = vec![
            MountOption::RO,
            MountOption::FSName("foreswap-bench".to_owned()),
        ];
        options.acl = fuser::SessionACL::All;
        let session =
            fuser::Session::new(Server::new(bytes, slowness)?, &mount.directory, &options)
                .and_then(fuser::Session::spawn);
        mount.session = Some(session.with_context(|| {
            format!(
                "cannot mount a FUSE file system at {} (it needs /dev/fuse)",
                mount.directory.display()
            )
        })?);
        Ok(mount)
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.directory.join(NAME)
    }
}

impl Drop for SlowMount {
    fn drop(&mut self) {
        // A process that has just ended may have the file open for a moment more.
        if let Some(session) = self.session.take()
            && session.umount_and_join().is_err()
            && let Err(error) = detach(&self.directory)
        {
            eprintln!(
                "foreswap: {} is not unmounted: {error}",
                self.directory.display()
            );
        }
        // It may be gone already.
        let _ = std::fs::remove_dir(&self.directory);
    }
}

/// Mounts of this thread, and of the processes that it starts, are not seen by others from now on.
fn own_namespace() -> io::Result<()> {
    // SAFETY: changes which mounts this thread sees; both see the same ones so far.
    let done = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                std::ptr::null(),
                c"/".as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            ) == 0
    };
    done.then_some(()).ok_or_else(io::Error::last_os_error)
}

/// Unmounts now, and ends the mount when nobody has a file of it open.
fn detach(directory: &Path) -> io::Result<()> {
    let path = std::ffi::CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a zero.
    match unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A request that is answered when it is due.
struct Late {
    due: Instant,
    offset: u64,
    bytes: usize,
    reply: ReplyData,
}

/// When the link is free again, and where requests wait for their time. They are due in the order of their arrival.
struct Link {
    free_at: Instant,
    late: Sender<Late>,
}

struct Server {
    bytes: u64,
    slowness: Slowness,
    link: Mutex<Link>,
}

impl Server {
    fn new(bytes: u64, slowness: Slowness) -> io::Result<Self> {
        let (late, due) = channel();
        let thread = std::thread::Builder::new().name("foreswap-slow".to_owned());
        thread.spawn(move || answer(&due))?;
        let link = Link {
            free_at: Instant::now(),
            late,
        };
        Ok(Self {
            bytes,
            slowness,
            link: Mutex::new(link),
        })
    }

    fn attributes(&self, file: INodeNo) -> FileAttr {
        let is_file = file == FILE;
        let size = if is_file { self.bytes } else { 0 };
        FileAttr {
            ino: file,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_file {
                FileType::RegularFile
            } else {
                FileType::Directory
            },
            perm: if is_file { 0o444 } else { 0o555 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: PAGE as u32,
        }
    }
}

/// Answers requests when they are due, until the server is gone.
fn answer(due: &Receiver<Late>) {
    let mut pages = pattern(PAGE).repeat(REQUEST / PAGE);
    for late in due {
        std::thread::sleep(late.due.saturating_duration_since(Instant::now()));
        let pages = &mut pages[..late.bytes];
        number_pages(pages, late.offset / PAGE as u64);
        late.reply.data(pages);
    }
}

impl Filesystem for Server {
    fn init(&mut self, _: &Request, kernel: &mut KernelConfig) -> io::Result<()> {
        let refused = |what| io::Error::other(format!("the kernel refuses {what}"));
        let requests = kernel.set_max_write(REQUEST as u32).map(drop);
        requests.map_err(|_| refused("requests of 1 MiB"))?;
        let in_flight = kernel.set_max_background(IN_FLIGHT).map(drop);
        in_flight.map_err(|_| refused("many requests in flight"))?;
        kernel
            .add_capabilities(InitFlags::FUSE_ASYNC_DIO | InitFlags::FUSE_MAX_PAGES)
            .map_err(|_| refused("asynchronous direct reads"))
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match parent == INodeNo::ROOT && name == NAME {
            true => reply.entry(&FOREVER, &self.attributes(FILE), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, file: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOREVER, &self.attributes(file));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Each opening would drop the kernel's pages otherwise.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let left = usize::try_from(self.bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let bytes = left.min(size as usize);
        let through = Duration::from_secs_f64(bytes as f64 / self.slowness.bandwidth as f64);
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        link.free_at = link.free_at.max(Instant::now()) + through;
        let late = Late {
            due: link.free_at + self.slowness.delay,
            offset,
            bytes,
            reply,
        };
        // Its thread ends after the server; the kernel ends requests that are not answered.
        let _ = link.late.send(late);
    }
}
