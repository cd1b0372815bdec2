//! Changes to the machine that a peer needs, and their undoing.
//!
//! All of them (sysctl and sysfs values, swap files, swapon, cgroups) go through one [`Changes`]. It notes each change
//! in a file under `/run` before making it, and undoes all of them in reverse when it is dropped: at the end of a turn,
//! on an error, after Ctrl-C. After a kill -9 the next bench or `foreswap bench --undo` undoes the changes from the
//! note. Only one bench at a time may change the system. A lock beside the notes enforces this, so no bench takes
//! another's value for the original.

pub mod cgroup;
pub mod device;
pub mod note;
pub mod swap;
mod zram;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use note::Note;
pub use note::undo_left_behind;

/// One change, with the data to undo it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// A value under /proc/sys or /sys was `was`.
    Setting {
        /// The file that holds it.
        path: PathBuf,
        /// Its content before.
        was: String,
    },
    /// A file was made.
    File(PathBuf),
    /// Swapping to this file began.
    Swap(PathBuf),
    /// A cgroup was made.
    Cgroup(PathBuf),
    /// An unused zram device got a size; its compression was `was`.
    Zram {
        /// Its folder under /sys/block.
        path: PathBuf,
        /// The compression that was chosen.
        was: String,
    },
}

/// Why the system could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// Not root.
    #[error("it needs root (swapon, cgroups, sysctls)")]
    NotRoot,
    /// The lock is held.
    #[error("another foreswap bench is changing this system; run one at a time")]
    Busy,
    /// A step failed.
    #[error("{what} {path}: {source}")]
    Step {
        /// The step.
        what: &'static str,
        /// Its file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A required file or feature is missing.
    #[error("{0}")]
    Missing(String),
}

impl ChangeError {
    fn step(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Step { what, path, source }
    }
}

/// The changes made so far; dropped, it undoes them.
#[derive(Debug)]
pub struct Changes {
    note: Note,
}

impl Changes {
    /// Takes the right to change this system; first undoes the changes of a dead bench.
    pub fn begin() -> Result<Self, ChangeError> {
        // SAFETY: reads a number of this process.
        if unsafe { libc::geteuid() } != 0 {
            return Err(ChangeError::NotRoot);
        }
        Self::begin_in(Path::new(note::DIRECTORY))
    }

    fn begin_in(directory: &Path) -> Result<Self, ChangeError> {
        Ok(Self {
            note: Note::begin(directory)?,
        })
    }

    /// Sets a value under /proc/sys or /sys, if it differs.
    pub fn set(&mut self, path: &Path, value: &str) -> Result<(), ChangeError> {
        let was = fs::read_to_string(path).map_err(ChangeError::step("read", path))?;
        let was = chosen(&was).to_owned();
        if was == value {
            return Ok(());
        }
        self.note.add(Change::Setting {
            path: path.to_owned(),
            was,
        })?;
        fs::write(path, value).map_err(ChangeError::step("set", path))
    }

    /// Makes a swap file.
    pub fn make_swap_file(&mut self, path: &Path, bytes: u64) -> Result<(), ChangeError> {
        self.note.add(Change::File(path.to_owned()))?;
        swap::make(path, bytes).map_err(ChangeError::step("make the swap file", path))
    }

    /// Begins to swap to a file, with priority over all others.
    pub fn swap_on(&mut self, path: &Path) -> Result<(), ChangeError> {
        self.note.add(Change::Swap(path.to_owned()))?;
        swap::on(path).map_err(ChangeError::step("swapon", path))
    }

    /// Sets up an unused zram device for `bytes` of pages, with lz4; returns the device, which can be swapped to.
    pub fn make_zram(&mut self, bytes: u64) -> Result<PathBuf, ChangeError> {
        let (path, device) = zram::unused().ok_or_else(|| {
            let what = "there is no zram device that is not in use (modprobe zram)";
            ChangeError::Missing(what.to_owned())
        })?;
        let algorithm = path.join("comp_algorithm");
        let was = fs::read_to_string(&algorithm).map_err(ChangeError::step("read", &algorithm))?;
        self.note.add(Change::Zram {
            path: path.clone(),
            was: chosen(&was).to_owned(),
        })?;
        zram::set_up(&path, &device, bytes).map_err(ChangeError::step("set up", &path))?;
        Ok(device)
    }

    /// Makes a cgroup.
    pub fn make_cgroup(&mut self, path: &Path) -> Result<(), ChangeError> {
        self.note.add(Change::Cgroup(path.to_owned()))?;
        fs::create_dir(path).map_err(ChangeError::step("make the cgroup", path))
    }

    /// Undoes all changes since `mark` changes were noted; see [`Changes::mark`].
    pub fn undo_to(&mut self, mark: usize) {
        for complaint in self.note.undo_to(mark) {
            eprintln!("foreswap bench: {complaint}");
        }
    }

    /// How many changes there are.
    pub fn mark(&self) -> usize {
        self.note.changes().len()
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.undo_to(0);
    }
}

/// How long an undo may wait for the kernel (the end of a cgroup's last process).
const PATIENCE: Duration = Duration::from_secs(5);

impl Change {
    /// Restores the original state. It is no error if that has happened already.
    fn undo(&self) -> Result<(), ChangeError> {
        let done = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        match self {
            Self::Setting { path, was } => {
                fs::write(path, was).map_err(ChangeError::step("put back", path))
            }
            Self::File(path) => match fs::remove_file(path) {
                Err(error) if !done(&error) => Err(ChangeError::step("remove", path)(error)),
                _ => Ok(()),
            },
            Self::Zram { path, was } => {
                zram::take_down(path, was).map_err(ChangeError::step("take down", path))
            }
            Self::Swap(path) => swap::off(path).map_err(ChangeError::step("swapoff", path)),
            Self::Cgroup(path) => {
                cgroup::remove(path, PATIENCE).map_err(ChangeError::step("remove cgroup", path))
            }
        }
    }
}

/// The value of a settings file: the bracketed word where it lists choices.
pub fn chosen(text: &str) -> &str {
    let text = text.trim();
    match text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
    {
        Some((word, _)) => word,
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("foreswap-bench-test-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn the_chosen_word_of_a_list() {
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen("3\n"), "3");
    }

    #[test]
    fn dropping_puts_everything_back() {
        let place = place("drop");
        let setting = place.join("setting");
        fs::write(&setting, "3\n").unwrap();
        let file = place.join("swap");
        let mut changes = Changes::begin_in(&place.join("notes")).unwrap();
        changes.set(&setting, "5").unwrap();
        changes.make_swap_file(&file, 1 << 20).unwrap();
        assert_eq!(fs::read_to_string(&setting).unwrap(), "5");
        assert_eq!(fs::metadata(&file).unwrap().len(), 1 << 20);
        drop(changes);
        assert_eq!(fs::read_to_string(&setting).unwrap(), "3");
        assert!(!file.exists());
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn changes_are_undone_to_a_mark() {
        let place = place("mark");
        let setting = place.join("setting");
        fs::write(&setting, "a").unwrap();
        let mut changes = Changes::begin_in(&place.join("notes")).unwrap();
        changes.set(&setting, "b").unwrap();
        let mark = changes.mark();
        changes.set(&setting, "c").unwrap();
        changes.undo_to(mark);
        assert_eq!(fs::read_to_string(&setting).unwrap(), "b");
        drop(changes);
        assert_eq!(fs::read_to_string(&setting).unwrap(), "a");
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn a_step_that_fails_undoes_those_before() {
        let place = place("fail");
        let setting = place.join("setting");
        fs::write(&setting, "1").unwrap();
        let mut changes = Changes::begin_in(&place.join("notes")).unwrap();
        changes.set(&setting, "2").unwrap();
        assert!(changes.set(&place.join("absent"), "2").is_err());
        drop(changes);
        assert_eq!(fs::read_to_string(&setting).unwrap(), "1");
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn one_bench_at_a_time() {
        let place = place("lock");
        let first = Changes::begin_in(&place).unwrap();
        assert!(matches!(Changes::begin_in(&place), Err(ChangeError::Busy)));
        drop(first);
        assert!(Changes::begin_in(&place).is_ok());
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn changes_of_a_killed_bench_are_undone_by_the_next() {
        let place = place("left");
        let setting = place.join("setting");
        let notes = place.join("notes");
        fs::write(&setting, "old").unwrap();
        let mut changes = Changes::begin_in(&notes).unwrap();
        changes.set(&setting, "new").unwrap();
        // As after kill -9: the lock is gone with the process, the note is not.
        changes.note.abandon();
        drop(changes);
        assert_eq!(fs::read_to_string(&setting).unwrap(), "new");
        drop(Changes::begin_in(&notes).unwrap());
        assert_eq!(fs::read_to_string(&setting).unwrap(), "old");
        fs::remove_dir_all(place).unwrap();
    }
}
