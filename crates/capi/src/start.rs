//! Starts the supervisor of this process: the command `foreswap serve`.
//!
//! It must not be a child that the program could wait for, hold none of the program's descriptors open, and cost no copy
//! of the program's page tables. So it begins as an engine does, as an orphan that shares the memory (`sys::beside`),
//! and becomes the command at once.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::AtomicI32;
use core::sync::atomic::Ordering::Relaxed;
use std::ffi::{CString, OsStr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use foreswap::program::own_pid;
use foreswap::sys::beside;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::error::Error;
use crate::text::Text;

/// The command's name, and the variable that names another one.
const COMMAND: &str = "foreswap";
const VARIABLE: &str = "FORESWAP_COMMAND";
/// Stack of the process that becomes the command, in bytes.
const STACK: usize = 64 << 10;
/// Its name until then.
const NAME: &CStr = c"fs-start";
/// Descriptors below this are the command's: its streams, and the program's standard error.
const STREAMS: c_int = 4;

/// Where the supervisor is asked; empty if it has no control socket.
pub static CONTROL: Text<128> = Text::new();

/// What the new process needs. It shares this memory.
struct Launch {
    path: CString,
    words: Vec<*const c_char>,
    /// Its standard input, its output for this process, and this process' standard error.
    fds: [c_int; 3],
    /// Why the command cannot be executed; 0 while that is not known.
    failed: AtomicI32,
}

/// Starts the supervisor and waits until it serves. Returns the name of its socket for engines.
pub fn supervisor(options: &[Vec<u8>]) -> Result<String, Error> {
    let path = find()?;
    let command = path.display().to_string();
    let text = said(&path, options)?;
    let lines = text.split_inclusive('\n');
    let (notes, rest): (Vec<&str>, Vec<&str>) = lines.partition(|line| !line.starts_with("ready "));
    let notes = notes.concat();
    let Some(ready) = rest.first().and_then(|line| line.strip_prefix("ready ")) else {
        let why = notes.trim().trim_start_matches("foreswap: ");
        return Err(match why {
            "" => Error::NotStarted {
                command,
                why: "it ended without a message".to_owned(),
            },
            why => Error::Refused(why.to_owned()),
        });
    };
    foreswap::program::say(notes.as_bytes());
    let (name, control) = ready
        .trim_end()
        .split_once(' ')
        .unwrap_or((ready.trim_end(), ""));
    if !CONTROL.set(control) {
        CONTROL.set("");
    }
    Ok(name.to_owned())
}

/// All that the command prints until it serves or ends.
fn said(path: &Path, options: &[Vec<u8>]) -> Result<String, Error> {
    let system = |what| move |errno| Error::System { what, errno };
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(system("pipe2"))?;
    let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let null = null.map_err(system("open of /dev/null"))?;
    let nul = |_| Error::Refused(format!("a zero byte in {}", path.display()));
    let command = CString::new(path.as_os_str().as_bytes()).map_err(nul)?;
    let mut words = vec![c"foreswap".to_owned(), c"serve".to_owned()];
    for option in options {
        words.push(CString::new(option.clone()).map_err(nul)?);
    }
    words.push(c"--".to_owned());
    words.push(CString::new(own_pid().to_string()).map_err(nul)?);
    let mut pointers: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
    pointers.push(core::ptr::null());
    let launch = Launch {
        path: command,
        words: pointers,
        fds: [null.as_raw_fd(), writer.as_raw_fd(), 2],
        failed: AtomicI32::new(0),
    };
    let argument = (&raw const launch).cast_mut().cast::<c_void>();
    // SAFETY: `become_command` keeps to the rules for engine threads; what it gets lives until it has left this memory,
    // which `join` waits for.
    let spawned = unsafe { beside::spawn(NAME, STACK, become_command, argument) };
    spawned.map_err(system("clone of the supervisor"))?.join();
    match launch.failed.load(Relaxed) {
        0 => {}
        errno => {
            return Err(Error::NotStarted {
                command: path.display().to_string(),
                why: Errno::from_raw_os_error(errno).to_string(),
            });
        }
    }
    drop((writer, null));
    read_all(&reader).map_err(system("read"))
}

/// Until a line says that the command serves, or the end.
fn read_all(reader: &OwnedFd) -> Result<String, Errno> {
    let mut text = Vec::new();
    let mut buffer = [0; 512];
    loop {
        let is_ready = text
            .split_inclusive(|&byte| byte == b'\n')
            .any(|line: &[u8]| line.starts_with(b"ready ") && line.ends_with(b"\n"));
        if is_ready {
            break;
        }
        match rustix::io::read(reader, &mut buffer) {
            Ok(0) => break,
            Ok(got) => text.extend_from_slice(&buffer[..got]),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// In the new process, which has a copy of the descriptors. Does not return.
extern "C" fn become_command(launch: *mut c_void) {
    // SAFETY: `said` passed it and keeps it.
    let launch = unsafe { &*launch.cast::<Launch>() };
    // SAFETY: system calls on the descriptors of this process, which nobody else has.
    unsafe {
        // First to places that the next step does not overwrite. A closed standard error becomes /dev/null.
        let high = launch.fds.map(|fd| libc::fcntl(fd, libc::F_DUPFD, STREAMS));
        let errors = if high[2] < 0 { high[0] } else { high[2] };
        for (to, from) in [high[0], high[1], high[1], errors].into_iter().enumerate() {
            libc::dup2(from, to as c_int);
        }
        libc::syscall(libc::SYS_close_range, STREAMS, c_int::MAX, 0);
        let mut none = core::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, core::ptr::null_mut());
        libc::execv(launch.path.as_ptr(), launch.words.as_ptr());
        launch.failed.store(*libc::__errno_location(), Relaxed);
    }
    foreswap::sys::process::exit(127)
}

/// The command: named by the variable, beside this library, in a folder `bin` above it, or on PATH. In a setuid program,
/// the variables are those of somebody else, and do not count.
fn find() -> Result<PathBuf, Error> {
    // SAFETY: reads a word of the auxiliary vector.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let variable = |name| std::env::var_os(name).filter(|_| !is_secure);
    if let Some(named) = variable(VARIABLE) {
        return Ok(PathBuf::from(named));
    }
    let library = own_path();
    let folders = library.ancestors().skip(1);
    let beside = folders.clone().take(1).map(Path::to_path_buf);
    let above = folders.skip(1).take(2).map(|folder| folder.join("bin"));
    let path = variable("PATH").unwrap_or_default();
    let path: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let mut found = beside
        .chain(above)
        .chain(path)
        .map(|folder| folder.join(COMMAND));
    found
        .find(|file| is_executable(file))
        .ok_or_else(|| Error::NoCommand {
            library: library.display().to_string(),
        })
}

fn is_executable(file: &Path) -> bool {
    file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}

/// The file of this library.
fn own_path() -> PathBuf {
    // SAFETY: all zeros is a valid answer, which is valid while this object is loaded.
    let name = unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        let found = libc::dladdr(own_path as *const () as *const c_void, &mut info);
        (found != 0 && !info.dli_fname.is_null()).then(|| CStr::from_ptr(info.dli_fname))
    };
    let name = name.map_or(&b""[..], CStr::to_bytes);
    let path = PathBuf::from(OsStr::from_bytes(name));
    path.canonicalize().unwrap_or(path)
}
