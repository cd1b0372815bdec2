//! The place of control sockets: `SUPERVISORPID.sock` in a folder that belongs to the user alone.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use foreswap::ledger::protocol;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

const FOLDER: &str = "foreswap";
/// The kernel's PID_MAX_LIMIT: a socket changes its name when another process takes over ([`hand_over`]), and the new
/// path must be short enough as well.
const LONGEST_PID: u32 = 1 << 22;

/// Why a folder cannot hold control sockets.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// It does not exist and cannot be created, or cannot be examined.
    #[error("{path}: {source}")]
    Io {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It belongs to another user, is open to others, or is not a folder.
    #[error("{path} is not a folder of user {user} with mode 0700")]
    NotOurs {
        /// The folder.
        path: PathBuf,
        /// The asking user.
        user: u32,
    },
    /// The path of a socket may have 107 bytes.
    #[error("{path} is too long for the name of a socket")]
    TooLong {
        /// The folder.
        path: PathBuf,
    },
}

/// The candidate folders, in order.
pub fn folders(user: u32) -> Vec<PathBuf> {
    let absolute = |name| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let runtime = absolute("XDG_RUNTIME_DIR").map(|path| path.join(FOLDER));
    let mut folders: Vec<PathBuf> = runtime.into_iter().collect();
    folders.push(PathBuf::from(format!("/run/user/{user}")).join(FOLDER));
    let own = format!("{FOLDER}-{user}");
    folders.extend(absolute("TMPDIR").map(|path| path.join(&own)));
    folders.push(Path::new("/tmp").join(own));
    folders.dedup();
    folders
}

/// Folders of every user, for root to look at.
pub fn all_folders() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/run/user").into_iter().flatten().flatten() {
        found.push(entry.path().join(FOLDER));
    }
    for entry in fs::read_dir("/tmp").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let user = name
            .to_str()
            .and_then(|name| name.strip_prefix("foreswap-"));
        if user.is_some_and(|user| user.parse::<u32>().is_ok()) {
            found.push(entry.path());
        }
    }
    found
}

/// The owner of a folder of sockets; an error unless it is private to one user.
pub fn owner(folder: &Path) -> Result<u32, PlaceError> {
    let path = folder.to_path_buf();
    match fs::symlink_metadata(folder) {
        Ok(found) if found.is_dir() && found.mode() & 0o777 == 0o700 => Ok(found.uid()),
        Ok(found) => Err(PlaceError::NotOurs {
            path,
            user: found.uid(),
        }),
        Err(source) => Err(PlaceError::Io { path, source }),
    }
}

/// Makes the folder if it is missing; an error unless it is private to `user`.
pub fn prepare(folder: &Path, user: u32) -> Result<(), PlaceError> {
    let made = fs::DirBuilder::new().mode(0o700).create(folder);
    if let Err(source) = made
        && source.kind() != io::ErrorKind::AlreadyExists
    {
        let path = folder.to_path_buf();
        return Err(PlaceError::Io { path, source });
    }
    match owner(folder)? {
        found if found == user => Ok(()),
        _ => Err(PlaceError::NotOurs {
            path: folder.to_path_buf(),
            user,
        }),
    }
}

fn name_of(pid: u32) -> String {
    format!("{pid}.sock")
}

/// The usable folders, in order.
pub fn usable_folders() -> impl Iterator<Item = PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let folders = folders(user).into_iter();
    folders.filter(move |folder| prepare(folder, user).is_ok())
}

/// The second name of a control socket in `folder`, for the commands of a group.
pub fn group(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.group"))
}

/// Listens as process `pid`, in the first usable folder.
pub fn listen(pid: u32) -> Result<(OwnedFd, PathBuf), PlaceError> {
    let user = rustix::process::geteuid().as_raw();
    let mut first = None;
    for folder in folders(user) {
        match listen_in(&folder, user, pid) {
            Ok(found) => return Ok(found),
            // The last candidate gives the most useful reason: /tmp exists everywhere.
            Err(error) => first = Some(error),
        }
    }
    Err(first.unwrap_or(PlaceError::TooLong {
        path: PathBuf::new(),
    }))
}

fn listen_in(folder: &Path, user: u32, pid: u32) -> Result<(OwnedFd, PathBuf), PlaceError> {
    prepare(folder, user)?;
    sweep(folder);
    let too_long = |_| PlaceError::TooLong {
        path: folder.to_path_buf(),
    };
    SocketAddrUnix::new(folder.join(name_of(LONGEST_PID))).map_err(too_long)?;
    let path = folder.join(name_of(pid));
    let address = SocketAddrUnix::new(&path).map_err(too_long)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let bound = || -> Result<OwnedFd, Errno> {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&socket, &address)?;
        // Until now no other user could enter the folder.
        rustix::fs::chmod(&path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
        rustix::net::listen(&socket, 16)?;
        Ok(socket)
    };
    let socket = bound().map_err(|errno| PlaceError::Io {
        path: path.clone(),
        source: errno.into(),
    })?;
    Ok((socket, path))
}

/// Connects to the socket at `path`.
pub fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

/// The control sockets in a folder. Sockets of processes that have ended are removed, of all kinds.
pub fn sweep(folder: &Path) -> Vec<(PathBuf, OwnedFd)> {
    let mut live = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if !entry.file_type().is_ok_and(|kind| kind.is_socket()) {
            continue;
        }
        if protocol::is_forsaken(&path) {
            let _ = fs::remove_file(path);
        } else if path.extension() == Some(OsStr::new("sock"))
            && let Ok(socket) = connect(&path)
        {
            live.push((path, socket));
        }
    }
    live
}

/// From now on, process `pid` listens on the socket at `path`.
pub fn hand_over(path: &Path, pid: u32) -> PathBuf {
    let new = path.with_file_name(name_of(pid));
    match fs::rename(path, &new) {
        Ok(()) => new,
        Err(_) => path.to_path_buf(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn user() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn a_socket_is_found_until_its_supervisor_is_gone() {
        let top = tempfile::tempdir().expect("a temporary directory");
        let folder = top.path().join("foreswap");
        let (listener, path) = listen_in(&folder, user(), 4711).expect("a socket");
        assert_eq!(path, folder.join("4711.sock"));
        let mode = |path: &Path| fs::metadata(path).expect("it is there").mode() & 0o777;
        assert_eq!((mode(&folder), mode(&path)), (0o700, 0o600));
        assert_eq!(sweep(&folder).len(), 1);
        let path = hand_over(&path, 4712);
        assert_eq!(sweep(&folder)[0].0, path);
        drop(listener);
        assert!(sweep(&folder).is_empty());
        assert!(!path.exists(), "the stale socket is removed");
    }

    #[test]
    fn every_path_that_is_accepted_can_be_handed_over_and_has_an_abstract_twin() {
        let top = tempfile::tempdir().expect("a temporary directory");
        let own = top.path().as_os_str().len();
        for length in 80..=110 {
            let folder = top.path().join("x".repeat(length - own - 1));
            assert_eq!(folder.as_os_str().len(), length);
            if let Ok((_listener, path)) = listen_in(&folder, user(), 1) {
                let path = hand_over(&path, LONGEST_PID);
                assert!(connect(&path).is_ok(), "{length}");
            }
            let at = top.path().join("y".repeat(length - own - 1));
            if let Ok(_listener) = protocol::listen_at(&at) {
                let name = at.to_str().expect("UTF-8");
                assert!(protocol::listen(name).is_ok(), "{length}");
            }
        }
    }

    #[test]
    fn a_socket_of_a_run_is_swept_once_nobody_listens() {
        let top = tempfile::tempdir().expect("a temporary directory");
        let path = top.path().join("foreswap-1-0");
        let listener = protocol::listen_at(&path).expect("a socket");
        assert!(sweep(top.path()).is_empty() && path.exists());
        let connection = rustix::net::accept(&listener).map(drop);
        assert_eq!(connection, Err(Errno::AGAIN), "the run was not asked");
        drop(listener);
        sweep(top.path());
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_that_does_not_listen_yet_is_left() {
        let top = tempfile::tempdir().expect("a temporary directory");
        let path = top.path().join("1.sock");
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None);
        let socket = socket.expect("a socket");
        let address = SocketAddrUnix::new(&path).expect("an address");
        rustix::net::bind(&socket, &address).expect("its place");
        assert!(sweep(top.path()).is_empty() && path.exists());
    }

    #[test]
    fn a_folder_that_others_can_enter_is_refused() {
        let top = tempfile::tempdir().expect("a temporary directory");
        let folder = top.path().join("foreswap");
        fs::create_dir(&folder).expect("a folder");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("its mode");
        let refused = listen_in(&folder, user(), 1).expect_err("it is open to others");
        assert!(refused.to_string().contains("0700"), "{refused}");
        let link = top.path().join("link");
        std::os::unix::fs::symlink(top.path(), &link).expect("a link");
        assert!(listen_in(&link, user(), 1).is_err());
        let long = top.path().join("x".repeat(120));
        assert!(matches!(
            listen_in(&long, user(), 1),
            Err(PlaceError::TooLong { .. })
        ));
    }
}
