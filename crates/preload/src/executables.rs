//! The exec family: a program is examined before it is executed, and reported if it escapes.
//!
//! A statically linked program, a program that gains privileges, or one of another C library does not load this
//! object. Such programs run as always, but unmanaged, and the user has to know. A program whose environment lost the
//! variable that names this object gets it back (`environment`). Calls within the C library do not pass here: each
//! function of the family is interposed.
//!
//! All this runs on the program's threads between fork and exec, also in vfork children that borrow their parent's
//! memory: only system calls that preserve errno, and a few KiB of stack.

mod calls;
mod environment;

use core::ffi::{CStr, c_char, c_int};
use core::mem::MaybeUninit;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};

use foreswap::ledger::protocol::{self, Severity};
use foreswap::program::{SOCKET_BYTES, say};
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, Stat, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, getgid, getuid};

use crate::PROGRAM;
use environment::Lacks;

/// The loader's path of this object; valid as long as the object is loaded.
static OBJECT: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());

/// Bytes of a file read at once: they mostly contain the program headers and the loader's name.
const HEAD_BYTES: usize = 1024;
/// The part of a script's first line that the kernel reads.
const LINE_BYTES: usize = 256;
/// The longest path that the kernel accepts.
const PATH_BYTES: usize = 4096;
/// Longer paths are cut in messages.
const SHOWN_BYTES: usize = 800;
/// The depth of interpreters that the kernel follows.
const DEEPEST: u32 = 5;

/// EM_X86_64.
const MACHINE: u16 = 62;
/// The end of the name of glibc's loader in a program that requests it.
const LOADER: &[u8; 22] = b"/ld-linux-x86-64.so.2\0";

const STATIC: &[u8] = b" is statically linked, so it runs unmanaged";
const FOREIGN: &[u8] = b" is not a 64-bit program for this processor, so it runs unmanaged";
const OTHER_LOADER: &[u8] = b" does not start through glibc's loader, so it runs unmanaged";
const UNREADABLE: &[u8] =
    b" may be executed but not read; if it is statically linked it runs unmanaged";
const PRIVILEGED: &[u8] = b" runs with other privileges (setuid, setgid or capabilities), so it \
    and what it starts run unmanaged";
const NO_OBJECT: &[u8] =
    b" was started without foreswap's object in LD_PRELOAD, so it and what it \
    starts run unmanaged";
const NO_SOCKET: &[u8] =
    b" was started without FORESWAP_SOCKET, so it and what it starts run unmanaged";

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn(c_int, *const Strings, Strings) = begin;

/// Runs when the object is loaded: the dynamic linker is asked now, because that may be impossible between fork and
/// exec. The C library does not know the environment yet.
extern "C" fn begin(_: c_int, _: *const Strings, environment: Strings) {
    if crate::first_variable(environment, c"FORESWAP_SOCKET").is_none() {
        return;
    }
    calls::look_up();
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: an address of this object, and room for the answer, which is all zero until it comes.
    let found = unsafe {
        libc::dladdr((&raw const BEGIN).cast(), found.as_mut_ptr());
        found.assume_init()
    };
    OBJECT.store(found.dli_fname.cast_mut(), Relaxed);
}

/// A list of strings that ends with null, as the kernel accepts it; null is an empty one.
type Strings = *const *const c_char;

unsafe extern "C" {
    static environ: Strings;
}

/// The program's present environment.
fn own_environment() -> Strings {
    // SAFETY: the C library's variable; a program that changes it on another thread at this moment
    // has that race in the exec itself.
    unsafe { (&raw const environ).read_volatile() }
}

/// An open file, closed past the C library.
struct Opened(Option<OwnedFd>);

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(file) = self.0.take() {
            // SAFETY: it is closed once, here.
            unsafe { rustix::io::close(file.into_raw_fd()) };
        }
    }
}

/// The file behind a path.
enum Found {
    /// Not an executable file.
    Nothing,
    /// A program that loads this object.
    Loads,
    /// A program that does not load this object, and the reason.
    Escapes(&'static [u8]),
    /// A script; its interpreter was stored.
    Script,
    /// No format known to the kernel.
    Text,
}

/// Examines the file `path` in `folder`, and stores the interpreter if it is a script.
#[inline(never)]
fn inspect(folder: BorrowedFd<'_>, path: &CStr, interpreter: &mut [u8; LINE_BYTES]) -> Found {
    let Ok(status) = rustix::fs::statat(folder, path, AtFlags::empty()) else {
        return Found::Nothing;
    };
    // No other kinds: opening some of them has effects.
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile
        || rustix::fs::accessat(folder, path, Access::EXEC_OK, AtFlags::EACCESS).is_err()
    {
        return Found::Nothing;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::openat(folder, path, flags, Mode::empty());
    let unreadable = matches!(opened, Err(Errno::ACCESS | Errno::PERM));
    let opened = Opened(opened.ok());
    let Some(file) = &opened.0 else {
        return match unreadable {
            true if is_privileged(&status, None) => Found::Escapes(PRIVILEGED),
            true => Found::Escapes(UNREADABLE),
            // No descriptor left, or the like: most programs load this object.
            false => Found::Loads,
        };
    };
    let mut head = [0; HEAD_BYTES];
    let Ok(length) = rustix::io::pread(file, &mut head[..], 0) else {
        return Found::Nothing;
    };
    let head = &head[..length];
    if let Some(line) = head.strip_prefix(b"#!") {
        return match interpreter_of(line) {
            Some(path) => {
                interpreter[..path.len()].copy_from_slice(path);
                Found::Script
            }
            None => Found::Nothing,
        };
    }
    if !head.starts_with(b"\x7fELF") {
        return Found::Text;
    }
    match obstacle(head, file, path) {
        Some(why) => Found::Escapes(why),
        None if is_privileged(&status, Some(file)) => Found::Escapes(PRIVILEGED),
        None => Found::Loads,
    }
}

/// The program named on a script's first line, which has room for a zero after it.
fn interpreter_of(line: &[u8]) -> Option<&[u8]> {
    let line = &line[..line.len().min(LINE_BYTES - 2)];
    let line = line.split(|&byte| byte == b'\n').next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t' | b'\r' | 0));
    words.find(|word| !word.is_empty())
}

/// Why an ELF file does not load this object, by its headers.
fn obstacle(head: &[u8], file: &OwnedFd, path: &CStr) -> Option<&'static [u8]> {
    let short = |at| part::<2>(head, file, at).map(u16::from_le_bytes);
    let long = |at| part::<8>(head, file, at).map(u64::from_le_bytes);
    let of_this_kind = head.get(4..6) == Some(&[2, 1]) && short(18) == Some(MACHINE);
    if !of_this_kind {
        return Some(FOREIGN);
    }
    let (Some(start), Some(size), Some(count)) = (long(32), short(54), short(56)) else {
        // The kernel will refuse it.
        return None;
    };
    for index in 0..u64::from(count) {
        let header = start.saturating_add(index * u64::from(size));
        let kind = part::<4>(head, file, header).map(u32::from_le_bytes)?;
        if kind == libc::PT_INTERP {
            let name = long(header.saturating_add(8));
            let bytes = long(header.saturating_add(32));
            let end = name?.saturating_add(bytes?);
            let tail = part(head, file, end.saturating_sub(LOADER.len() as u64));
            return (tail.as_ref() != Some(LOADER)).then_some(OTHER_LOADER);
        }
    }
    // The loader itself, started by its name, has no loader and still loads this object.
    let name = path.to_bytes();
    let is_loader = name.ends_with(&LOADER[..LOADER.len() - 1]) || name.ends_with(b"/ld.so");
    (!is_loader).then_some(STATIC)
}

/// A few bytes of a file that begins with `head`.
fn part<const N: usize>(head: &[u8], file: &OwnedFd, at: u64) -> Option<[u8; N]> {
    let from = usize::try_from(at).ok()?;
    if let Some(bytes) = head.get(from..from.checked_add(N)?) {
        return bytes.try_into().ok();
    }
    let mut bytes = [0; N];
    let read = rustix::io::pread(file, &mut bytes[..], at).ok()?;
    (read == N).then_some(bytes)
}

/// Whether the loader will run in its secure mode, which ignores these environment variables.
fn is_privileged(status: &Stat, file: Option<&OwnedFd>) -> bool {
    const CAPABILITIES: &CStr = c"security.capability";
    let set_user = status.st_mode & 0o4000 != 0;
    let set_group = status.st_mode & 0o2010 == 0o2010;
    let (user, group) = (geteuid(), getegid());
    let capabilities = !user.is_root()
        && file.is_some_and(|file| {
            let mut value = [0; 64];
            rustix::fs::fgetxattr(file, CAPABILITIES, &mut value[..]).is_ok_and(|bytes| bytes > 0)
        });
    let ignored = (set_user || set_group || capabilities) && gain_is_forbidden(file);
    let gains = !ignored
        && (capabilities
            || set_user && status.st_uid != getuid().as_raw()
            || set_group && status.st_gid != getgid().as_raw());
    let differs_already =
        (!set_user || ignored) && user != getuid() || (!set_group || ignored) && group != getgid();
    gains || differs_already
}

/// The kernel does not let this process, or programs of that file system, gain privileges.
fn gain_is_forbidden(file: Option<&OwnedFd>) -> bool {
    let no_setuid = |file| {
        rustix::fs::fstatvfs(file)
            .is_ok_and(|system| system.f_flag.contains(StatVfsMountFlags::NOSUID))
    };
    file.is_some_and(no_setuid) || rustix::thread::no_new_privs().unwrap_or(false)
}

/// How the program of an exec is looked at.
#[derive(Clone, Copy)]
struct Look {
    /// A file of unknown format will go to the shell.
    shell: bool,
    /// What the environment lacks can be put in.
    may_change: bool,
}

/// For functions that take the environment from the caller or the program.
const CHANGES: Look = Look {
    shell: false,
    may_change: true,
};
/// For those that take it from the program by themselves.
const AS_IT_IS: Look = Look {
    shell: false,
    may_change: false,
};

/// Examines the program of an exec, and reports it if it escapes. `None` if there is none.
///
/// # Safety
/// `environment` is null or a list of strings.
unsafe fn look(
    folder: BorrowedFd<'_>,
    path: &CStr,
    how: Look,
    environment: Strings,
    depth: u32,
) -> Option<Lacks> {
    let mut interpreter = [0; LINE_BYTES];
    let next = match inspect(folder, path, &mut interpreter) {
        Found::Nothing => return None,
        Found::Loads => {
            // SAFETY: the caller's promise.
            let lacks = unsafe { environment::lacks(environment, how.may_change) };
            match lacks {
                Lacks::Nothing | Lacks::Ours => {}
                Lacks::Object => tell(path, NO_OBJECT),
                Lacks::Socket => tell(path, NO_SOCKET),
            }
            return Some(lacks);
        }
        Found::Escapes(why) => {
            tell(path, why);
            return Some(Lacks::Nothing);
        }
        Found::Script => CStr::from_bytes_until_nul(&interpreter).unwrap_or(c""),
        Found::Text if how.shell => c"/bin/sh",
        Found::Text => return Some(Lacks::Nothing),
    };
    let how = Look {
        shell: false,
        ..how
    };
    let found = match depth < DEEPEST {
        // SAFETY: the caller's promise.
        true => unsafe { look(CWD, next, how, environment, depth + 1) },
        false => None,
    };
    Some(found.unwrap_or(Lacks::Nothing))
}

/// Reports, through the supervisor, that `path` runs unmanaged; the supervisor prints it once.
#[cold]
#[inline(never)]
fn tell(path: &CStr, why: &[u8]) {
    let mut target = [MaybeUninit::uninit(); SHOWN_BYTES];
    let mut shown = path.to_bytes();
    if shown.starts_with(b"/proc/self/fd/")
        && let Ok((target, _)) = rustix::fs::readlinkat_raw(CWD, path, &mut target)
    {
        shown = target;
    }
    let cut = shown.len().saturating_sub(SHOWN_BYTES);
    let dots: &[u8] = if cut == 0 { b"" } else { b"..." };
    notify(&[dots, &shown[cut..], why]);
}

/// Reports, through the supervisor, that the program itself runs unmanaged; the supervisor prints it once.
pub fn say_once(why: &[u8]) {
    notify(&[why]);
}

fn notify(parts: &[&[u8]]) {
    let Some(name) = socket() else {
        return;
    };
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    if protocol::notify(name, Severity::Warning, parts).is_err() {
        // The supervisor is unreachable (another network namespace, no descriptor left).
        say(b"foreswap: ");
        for part in parts {
            say(part);
        }
        say(b"\n");
    }
}

/// The name of the supervisor's socket, with zeros after it; none if there is no supervisor.
fn socket() -> Option<[u8; SOCKET_BYTES]> {
    let mut name = [0; SOCKET_BYTES];
    for (bytes, word) in name.as_chunks_mut::<4>().0.iter_mut().zip(&PROGRAM.socket) {
        *bytes = word.load(Relaxed).to_ne_bytes();
    }
    (name[0] != 0).then_some(name)
}

/// There is a supervisor.
fn is_configured() -> bool {
    PROGRAM.socket[0].load(Relaxed) != 0
}

/// Before a program at `path` is executed.
///
/// # Safety
/// As for `execve`.
unsafe fn before(path: *const c_char, how: Look, environment: Strings) -> Lacks {
    if !is_configured() || path.is_null() {
        return Lacks::Nothing;
    }
    // SAFETY: the caller's promise.
    let found = unsafe { look(CWD, CStr::from_ptr(path), how, environment, 0) };
    found.unwrap_or(Lacks::Nothing)
}

/// Before the program `name` is searched in PATH and executed.
///
/// # Safety
/// As for `execvpe`.
#[inline(never)]
unsafe fn before_search(name: *const c_char, how: Look, environment: Strings) -> Lacks {
    if !is_configured() || name.is_null() {
        return Lacks::Nothing;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    if name.to_bytes().contains(&b'/') {
        // SAFETY: as above.
        let found = unsafe { look(CWD, name, how, environment, 0) };
        return found.unwrap_or(Lacks::Nothing);
    }
    // SAFETY: the real function reads the variable in the same way.
    let search = unsafe { libc::getenv(c"PATH".as_ptr()) };
    let search = if search.is_null() {
        c"/bin:/usr/bin"
    } else {
        // SAFETY: getenv gives a string.
        unsafe { CStr::from_ptr(search) }
    };
    let mut room = [0; PATH_BYTES];
    for folder in search.to_bytes().split(|&byte| byte == b':') {
        let Some(path) = join(&mut room, folder, name) else {
            continue;
        };
        // SAFETY: as above.
        if let Some(lacks) = unsafe { look(CWD, path, how, environment, 0) } {
            return lacks;
        }
    }
    Lacks::Nothing
}

fn join<'a>(room: &'a mut [u8; PATH_BYTES], folder: &[u8], name: &CStr) -> Option<&'a CStr> {
    let slash: &[u8] = if folder.is_empty() { b"" } else { b"/" };
    let mut at = 0;
    for part in [folder, slash, name.to_bytes_with_nul()] {
        room.get_mut(at..at + part.len())?.copy_from_slice(part);
        at += part.len();
    }
    CStr::from_bytes_with_nul(&room[..at]).ok()
}

/// Before the program in an open file is executed.
///
/// # Safety
/// As for `fexecve`.
unsafe fn before_file(file: c_int, environment: Strings) -> Lacks {
    if !is_configured() || file < 0 {
        return Lacks::Nothing;
    }
    // This path is readable even if the file was opened only for execution.
    let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    let first = b"/proc/self/fd/".len();
    let digits = file.checked_ilog10().unwrap_or(0) as usize + 1;
    let mut rest = file.cast_unsigned();
    for byte in path[first..first + digits].iter_mut().rev() {
        *byte = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let Ok(path) = CStr::from_bytes_until_nul(&path) else {
        return Lacks::Nothing;
    };
    // SAFETY: the caller's promise.
    let found = unsafe { look(CWD, path, CHANGES, environment, 0) };
    found.unwrap_or(Lacks::Nothing)
}
