//! The note of changes to undo, kept where a later bench finds it.
//!
//! One JSON file and one lock file in a directory that only root can write. A note is written before its change is
//! made: undoing a change that was not made is harmless (the value is the original, the file is absent), not undoing a
//! change is not. A reboot removes the notes and the changes that they name, except for a swap file; its name
//! identifies it (see `swap::sweep`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{Change, ChangeError};

/// Where notes are kept.
pub const DIRECTORY: &str = "/run/foreswap-bench";

/// The changes made under one lock.
#[derive(Debug)]
pub struct Note {
    path: PathBuf,
    changes: Vec<Change>,
    /// Locked for as long as it is open; the kernel unlocks it when we are killed.
    _lock: File,
}

impl Note {
    /// Takes the lock, and undoes the changes of the lock's last owner.
    pub fn begin(directory: &Path) -> Result<Self, ChangeError> {
        let (note, complaints) = Self::take_over(directory)?;
        if let Some(complaint) = complaints.into_iter().next() {
            return Err(ChangeError::Missing(format!(
                "an earlier bench that was killed left changes that cannot be undone: {complaint}"
            )));
        }
        Ok(note)
    }

    fn take_over(directory: &Path) -> Result<(Self, Vec<ChangeError>), ChangeError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(ChangeError::step("make", directory))?;
        let lock = lock(&directory.join("lock"))?;
        let path = directory.join("changes.json");
        let changes = match fs::read(&path) {
            // A truncated note was written before its change was made.
            Ok(text) => serde_json::from_slice(&text).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(ChangeError::step("read", path)(error)),
        };
        let mut note = Self {
            path,
            changes,
            _lock: lock,
        };
        let complaints = note.undo_to(0);
        Ok((note, complaints))
    }

    /// Notes a change that is about to be made.
    pub fn add(&mut self, change: Change) -> Result<(), ChangeError> {
        self.changes.push(change);
        self.write().inspect_err(|_| {
            self.changes.pop();
        })
    }

    /// The changes noted.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Undoes changes, the last first, until `mark` remain. A change that cannot be undone is kept in the note and
    /// reported; the others are still undone.
    pub fn undo_to(&mut self, mark: usize) -> Vec<ChangeError> {
        let mut complaints = Vec::new();
        let mut kept = Vec::new();
        while self.changes.len() > mark {
            let Some(change) = self.changes.pop() else {
                break;
            };
            match change.undo() {
                // The note is written again after each step, but only once it is done.
                Ok(()) => complaints.extend(self.write_with(&kept).err()),
                Err(error) => {
                    complaints.push(error);
                    kept.insert(0, change);
                }
            }
        }
        self.changes.append(&mut kept);
        complaints.extend(self.write().err());
        complaints
    }

    fn write(&self) -> Result<(), ChangeError> {
        self.write_with(&[])
    }

    fn write_with(&self, more: &[Change]) -> Result<(), ChangeError> {
        let all: Vec<&Change> = self.changes.iter().chain(more).collect();
        if all.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(ChangeError::step("remove", &self.path)(error))
                }
                _ => Ok(()),
            };
        }
        let new = self.path.with_extension("new");
        let write = || {
            let mut file = File::create(&new)?;
            serde_json::to_writer(&mut file, &all)?;
            file.flush()?;
            fs::rename(&new, &self.path)
        };
        write().map_err(ChangeError::step("write", &self.path))
    }

    #[cfg(test)]
    pub fn abandon(&mut self) {
        let left = fs::read(&self.path).unwrap();
        self.changes.clear();
        let path = std::mem::replace(&mut self.path, PathBuf::from("/nonexistent/note"));
        fs::write(path, left).unwrap();
    }
}

fn lock(path: &Path) -> Result<File, ChangeError> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(ChangeError::step("open", path))?;
    // SAFETY: locks a descriptor that is open.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(file);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::WouldBlock => Err(ChangeError::Busy),
        error => Err(ChangeError::step("lock", path)(error)),
    }
}

/// `foreswap bench --undo`: how many changes of a dead bench there were, and which of them could not be undone.
pub fn undo_left_behind() -> Result<(usize, Vec<ChangeError>), ChangeError> {
    let directory = Path::new(DIRECTORY);
    let read = fs::read(directory.join("changes.json")).unwrap_or_default();
    let left: Vec<Change> = serde_json::from_slice(&read).unwrap_or_default();
    if left.is_empty() && !directory.exists() {
        return Ok((0, Vec::new()));
    }
    let (_note, complaints) = Note::take_over(directory)?;
    Ok((left.len(), complaints))
}
