//! The command's program, and whether it can be managed.
//!
//! The program is found as a shell would find it, and then examined. A dynamically linked program of this machine
//! that starts through glibc's loader can be managed; a script can if its interpreter can. Everything else (static,
//! setuid, another libc, another machine) is refused here, because it would run unmanaged unnoticed.

pub mod elf;
mod script;

use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::Access;

/// The most nested interpreters: the kernel follows four.
const MAX_SCRIPTS: usize = 5;
/// The part of a file that the kernel reads to identify it, with room for program headers.
const HEAD_BYTES: u64 = 4096;

/// Why a command cannot be run, or not managed.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// No such file in PATH or at the path given.
    #[error("{name}: command not found")]
    NotFound {
        /// As given.
        name: String,
    },
    /// Permission, a directory, or a file of no known format.
    #[error("{path}: {why}")]
    NotExecutable {
        /// The file.
        path: String,
        /// The fault, and the remedy.
        why: String,
    },
    /// It would run, but not under foreswap.
    #[error(
        "{path} cannot be managed: {why}\n\
         foreswap would have no effect on it, so it was not started; run it without foreswap, or {remedy}"
    )]
    Unmanageable {
        /// The file.
        path: String,
        /// The obstacle.
        why: String,
        /// The alternative.
        remedy: &'static str,
    },
}

impl ProgramError {
    /// The exit status of a shell in this case.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::NotFound { .. } => 127,
            _ => 126,
        }
    }
}

/// Finds the program `name` as execvp would, and checks that it and every interpreter that it needs can be managed.
pub fn find(name: &OsStr, search: &OsStr) -> Result<PathBuf, ProgramError> {
    let path = look_up(name, search)?;
    check(&path, search)?;
    Ok(path)
}

fn look_up(name: &OsStr, search: &OsStr) -> Result<PathBuf, ProgramError> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        executable(&path)?;
        return Ok(path);
    }
    let mut refused = None;
    for folder in std::env::split_paths(search) {
        let path = folder.join(name);
        match executable(&path) {
            Ok(()) if !name.is_empty() => return Ok(path),
            Err(error @ ProgramError::NotExecutable { .. }) if !path.is_dir() => {
                refused.get_or_insert(error);
            }
            _ => {}
        }
    }
    Err(refused.unwrap_or_else(|| ProgramError::NotFound {
        name: name.display().to_string(),
    }))
}

fn executable(path: &Path) -> Result<(), ProgramError> {
    let shown = || path.display().to_string();
    let refuse = |why: String| ProgramError::NotExecutable { path: shown(), why };
    match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(ProgramError::NotFound { name: shown() })
        }
        Err(error) => Err(refuse(error.to_string())),
        Ok(meta) if meta.is_dir() => Err(refuse("is a directory, not a program".into())),
        Ok(meta) if !meta.is_file() => Err(refuse("is not a regular file".into())),
        Ok(meta) => {
            let allowed = rustix::fs::access(path, Access::EXEC_OK).is_ok();
            if meta.permissions().mode() & 0o111 == 0 {
                Err(refuse("is not executable; chmod +x makes it so".into()))
            } else if !allowed {
                Err(refuse("you are not allowed to execute it".into()))
            } else {
                Ok(())
            }
        }
    }
}

fn unmanageable(path: &Path, why: impl Into<String>, remedy: &'static str) -> ProgramError {
    ProgramError::Unmanageable {
        path: path.display().to_string(),
        why: why.into(),
        remedy,
    }
}

fn check(path: &Path, search: &OsStr) -> Result<(), ProgramError> {
    let mut path = path.to_owned();
    for _ in 0..MAX_SCRIPTS {
        match next(&path, search)? {
            None => return Ok(()),
            Some(interpreter) => path = interpreter,
        }
    }
    Err(ProgramError::NotExecutable {
        path: path.display().to_string(),
        why: "too many interpreters that need an interpreter".into(),
    })
}

/// Checks one file; returns the interpreter to check next, if there is one.
fn next(path: &Path, search: &OsStr) -> Result<Option<PathBuf>, ProgramError> {
    privileges(path)?;
    let mut head = Vec::new();
    let mut file = File::open(path).map_err(|error| {
        let why =
            format!("it may be executed but not read ({error}), so it may not be looked into");
        unmanageable(path, why, "ask its owner for read permission")
    })?;
    let read = Read::by_ref(&mut file)
        .take(HEAD_BYTES)
        .read_to_end(&mut head);
    if let Err(error) = read {
        let path = path.display().to_string();
        return Err(ProgramError::NotExecutable {
            path,
            why: error.to_string(),
        });
    }
    if head.starts_with(b"\x7fELF") {
        return match elf::loader(&head, &file) {
            Ok(()) => Ok(None),
            Err(obstacle) => Err(unmanageable(path, obstacle.to_string(), obstacle.remedy())),
        };
    }
    let interpreter = match script::interpreter(&head) {
        Some(line) => line,
        // No format known to the kernel: execvp passes such a file to the shell.
        None => return Ok(Some(PathBuf::from("/bin/sh"))),
    };
    let wanted = match interpreter.through_env {
        Some(program) => look_up(&program, search),
        None => executable(&interpreter.path).map(|()| interpreter.path.clone()),
    };
    match wanted {
        Ok(path) => Ok(Some(path)),
        Err(ProgramError::NotFound { name }) => Err(ProgramError::NotExecutable {
            path: path.display().to_string(),
            why: format!("its interpreter {name} is not there"),
        }),
        Err(error) => Err(error),
    }
}

/// Programs that gain privileges ignore LD_PRELOAD.
fn privileges(path: &Path) -> Result<(), ProgramError> {
    let Ok(meta) = fs::metadata(path) else {
        return Ok(());
    };
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let mode = meta.mode();
    // A setuid program of the user's own gains nothing, but glibc's secure mode depends on the ids being different.
    let setuid = mode & 0o4000 != 0 && meta.uid() != user.as_raw();
    let setgid = mode & 0o2010 == 0o2010 && meta.gid() != group.as_raw();
    let remedy = "run foreswap itself as the user that it needs";
    if setuid || setgid {
        let what = if setuid { "setuid" } else { "setgid" };
        return Err(unmanageable(
            path,
            format!("it is {what}, and the loader ignores preload objects for such programs"),
            remedy,
        ));
    }
    let root = user.is_root();
    if !root && has_capabilities(path) {
        return Err(unmanageable(
            path,
            "it has file capabilities, and the loader ignores preload objects for such programs",
            remedy,
        ));
    }
    Ok(())
}

fn has_capabilities(path: &Path) -> bool {
    const NAME: &CStr = c"security.capability";
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    let mut value = [0u8; 64];
    rustix::fs::getxattr(&path, NAME, &mut value[..]).is_ok_and(|bytes| bytes > 0)
}

/// PATH, or execvp's default without one.
pub fn search_path() -> OsString {
    std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"))
}

#[cfg(test)]
mod tests;
