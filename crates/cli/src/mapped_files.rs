//! The files that the processes of a run map and foreswap serves (`--map-files`).
//!
//! A page of such a file has a number, which all processes of the run use in its stead: a forked child inherits its
//! parent's memory with the numbers. The supervisor gives them out, and keeps the files open for children that come. A
//! file is closed when no process maps it, and none may come that does.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use foreswap::ledger::protocol::{FileNumbers, MOST_PATTERNS, Sharing};
use foreswap::sys::lease;

/// Numbers come in chunks of this many, and one chunk is between two files: no read of pages with adjacent numbers
/// reaches from one file into another.
const CHUNK: u64 = 512;
/// The most files at a time. Each takes a descriptor.
const MOST: usize = 256;

/// One file.
#[derive(Debug)]
struct MappedFile {
    numbers: FileNumbers,
    /// Device and inode.
    id: (u64, u64),
    file: OwnedFd,
    /// Its size and time of change when it was mapped last: seconds and nanoseconds.
    then: (i64, i64, i64),
    /// The sessions of processes that map it.
    users: HashSet<u64>,
}

fn time_of(stat: &rustix::fs::Stat) -> (i64, i64, i64) {
    (stat.st_size, stat.st_mtime, stat.st_mtime_nsec as i64)
}

/// A pattern of `--map-files`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// As it was given.
    given: String,
    /// What paths are compared with; names, if it has no slash.
    glob: Vec<u8>,
    /// A file that it matches was mapped.
    matched: bool,
}

/// Why a pattern cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PatternError {
    /// It is empty or has a line break.
    #[error("--map-files {0:?}: expected a pattern such as '*.safetensors' or '/data/**'")]
    NoPattern(OsString),
    /// All of them are too long.
    #[error(
        "--map-files: the patterns have {0} bytes, with the folder before those that begin with none; at most \
         {MOST_PATTERNS} are possible"
    )]
    TooLong(usize),
    /// The folder that a pattern is relative to is not known.
    #[error("--map-files {0:?} is relative to the current folder, which cannot be found: {1}")]
    NoFolder(OsString, std::io::Error),
}

impl Pattern {
    fn new(given: &OsStr) -> Result<Self, PatternError> {
        let bytes = given.as_bytes();
        if bytes.is_empty() || bytes.contains(&b'\n') {
            return Err(PatternError::NoPattern(given.to_owned()));
        }
        let is_relative = bytes.contains(&b'/') && !bytes.starts_with(b"/");
        let glob = match is_relative {
            true => {
                let folder = std::env::current_dir();
                let folder = folder.map_err(|why| PatternError::NoFolder(given.to_owned(), why))?;
                folder.join(given).into_os_string().into_vec()
            }
            false => bytes.to_vec(),
        };
        Ok(Self {
            given: given.to_string_lossy().into_owned(),
            glob,
            matched: false,
        })
    }

    /// All patterns of a command line, and their text for the environment.
    pub fn all(given: &[OsString]) -> Result<(Vec<Self>, OsString), PatternError> {
        let patterns = given.iter().map(|given| Self::new(given));
        let patterns: Vec<Self> = patterns.collect::<Result<_, _>>()?;
        let text = patterns.iter().map(|pattern| pattern.glob.as_slice());
        let text = text.collect::<Vec<_>>().join(&b'\n');
        match text.len() > MOST_PATTERNS {
            true => Err(PatternError::TooLong(text.len())),
            false => Ok((patterns, OsString::from_vec(text))),
        }
    }

    fn is_match(&self, path: &[u8]) -> bool {
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        let of = if self.glob.contains(&b'/') {
            path
        } else {
            name
        };
        fast_glob::glob_match(&self.glob, of)
    }
}

/// All files.
#[derive(Debug, Default)]
pub struct MappedFiles {
    files: Vec<MappedFile>,
    patterns: Vec<Pattern>,
}

impl MappedFiles {
    /// Of a run with these patterns.
    pub fn new(patterns: Vec<Pattern>) -> Self {
        Self {
            files: Vec::new(),
            patterns,
        }
    }

    /// The patterns, as they were given, that no mapped file has matched.
    pub fn unmatched(&self) -> impl Iterator<Item = &str> {
        let unmatched = self.patterns.iter().filter(|pattern| !pattern.matched);
        unmatched.map(|pattern| pattern.given.as_str())
    }

    fn note_path_of(&mut self, file: &OwnedFd) {
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let Ok(path) = std::fs::read_link(link) else {
            return;
        };
        for pattern in &mut self.patterns {
            pattern.matched |= pattern.is_match(path.as_os_str().as_bytes());
        }
    }

    /// Process `user` maps `file`, of which `pages` pages need numbers. `None`: there are none left.
    pub fn add(
        &mut self,
        user: u64,
        file: OwnedFd,
        pages: u32,
        shared: bool,
    ) -> Option<FileNumbers> {
        let stat = rustix::fs::fstat(&file).ok()?;
        self.note_path_of(&file);
        let id = (stat.st_dev, stat.st_ino);
        let sharing = match shared {
            false => Sharing::Private,
            true if lease::is_held(&file) => Sharing::Leased,
            true => Sharing::Watched,
        };
        let known = self.files.iter_mut().find(|known| {
            let numbers = known.numbers;
            // Others that map it may have pages of before a change, and not have noticed it: their children have to
            // find the old time under their numbers.
            let is_same = !shared || known.users.is_empty() || known.then == time_of(&stat);
            let fits = numbers.sharing.is_shared() == shared && numbers.pages >= pages;
            known.id == id && fits && is_same
        });
        if let Some(known) = known {
            // Its mappings of before may have been given back to the kernel, and the lease with them.
            (known.file, known.then) = (file, time_of(&stat));
            known.numbers.sharing = sharing;
            known.users.insert(user);
            return Some(known.numbers);
        }
        if self.files.len() >= MOST {
            return None;
        }
        let numbers = FileNumbers {
            first: self.room_for(pages)?,
            pages,
            sharing,
        };
        self.files.push(MappedFile {
            numbers,
            id,
            file,
            then: time_of(&stat),
            users: HashSet::from([user]),
        });
        self.files.sort_unstable_by_key(|known| known.numbers.first);
        Some(numbers)
    }

    /// The first number of the first gap of this many.
    fn room_for(&self, pages: u32) -> Option<u32> {
        let needed = (u64::from(pages).div_ceil(CHUNK) + 1) * CHUNK;
        let mut start = 0;
        for known in &self.files {
            if u64::from(known.numbers.first) - start >= needed {
                break;
            }
            let end = u64::from(known.numbers.first) + u64::from(known.numbers.pages);
            start = (end.div_ceil(CHUNK) + 1) * CHUNK;
        }
        (start + needed <= 1 << 32).then_some(start as u32)
    }

    /// Process `user` has inherited a page of this number.
    pub fn join(&mut self, user: u64, page: u32) -> Option<FileNumbers> {
        let has = |known: &&mut MappedFile| {
            let FileNumbers { first, pages, .. } = known.numbers;
            page >= first && page - first < pages
        };
        let known = self.files.iter_mut().find(has)?;
        known.users.insert(user);
        // The process has pages in memory from before.
        let is_same = match known.numbers.sharing {
            Sharing::Leased => lease::is_held(&known.file),
            Sharing::Watched => {
                let stat = rustix::fs::fstat(&known.file);
                stat.is_ok_and(|stat| time_of(&stat) == known.then)
            }
            Sharing::Private | Sharing::Changed => true,
        };
        let sharing = match is_same {
            true => known.numbers.sharing,
            false => Sharing::Changed,
        };
        Some(FileNumbers {
            sharing,
            ..known.numbers
        })
    }

    /// The file whose first page has this number.
    pub fn file(&self, first: u32) -> Option<BorrowedFd<'_>> {
        let known = self
            .files
            .iter()
            .find(|known| known.numbers.first == first)?;
        Some(known.file.as_fd())
    }

    /// Process `user` maps it no longer.
    pub fn leave(&mut self, user: u64, first: u32) {
        for known in &mut self.files {
            if known.numbers.first == first {
                known.users.remove(&user);
            }
        }
    }

    /// Process `user` is gone.
    pub fn on_end(&mut self, user: u64) {
        for known in &mut self.files {
            known.users.remove(&user);
        }
    }

    /// Close files that no process maps. No child may be about to come.
    pub fn close_unused(&mut self) {
        self.files.retain(|known| {
            let is_used = !known.users.is_empty();
            if !is_used {
                // Others may have the open file for a moment longer, and a writer wait. Without a lease it fails.
                let _ = lease::end(&known.file);
            }
            is_used
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> OwnedFd {
        tempfile::tempfile().expect("a file").into()
    }

    fn add(files: &mut MappedFiles, user: u64, file: &OwnedFd, pages: u32) -> Option<u32> {
        let file = file.try_clone().expect("a descriptor");
        Some(files.add(user, file, pages, true)?.first)
    }

    #[test]
    fn a_file_has_the_same_numbers_for_all() {
        let (a, b) = (file(), file());
        let mut files = MappedFiles::default();
        assert_eq!(add(&mut files, 1, &a, 513), Some(0));
        assert_eq!(add(&mut files, 2, &b, 1), Some(3 * 512));
        assert_eq!(add(&mut files, 2, &a, 500), Some(0));
        // It has grown.
        assert_eq!(add(&mut files, 2, &a, 514), Some(5 * 512));
        assert_eq!(files.join(3, 512).map(|numbers| numbers.first), Some(0));
        assert_eq!(files.join(3, 513), None);
        assert!(files.file(0).is_some() && files.file(1).is_none());
    }

    #[test]
    fn who_comes_after_a_change_is_told() {
        use std::os::unix::fs::FileExt as _;
        let file = tempfile::tempfile().expect("a file");
        let mut files = MappedFiles::default();
        let copy = || file.try_clone().expect("a copy").into();
        let sharing = |numbers: Option<FileNumbers>| numbers.expect("numbers").sharing;
        // There is no lease on a file that is open for writing.
        assert_eq!(sharing(files.add(1, copy(), 10, true)), Sharing::Watched);
        assert_eq!(sharing(files.add(1, copy(), 10, false)), Sharing::Private);
        assert_eq!(sharing(files.join(2, 0)), Sharing::Watched);
        file.write_all_at(b"more", 0).expect("written");
        assert_eq!(sharing(files.join(3, 0)), Sharing::Changed);
        let private = files.add(1, copy(), 10, false).expect("numbers").first;
        assert_eq!(sharing(files.join(3, private)), Sharing::Private);
        // Process 2 may have old pages, and so may its children.
        let anew = files.add(1, copy(), 10, true).expect("numbers");
        assert_eq!(anew.sharing, Sharing::Watched);
        assert_eq!(sharing(files.join(4, 0)), Sharing::Changed);
        assert_eq!(sharing(files.join(5, anew.first)), Sharing::Watched);
    }

    #[test]
    fn numbers_and_files_are_freed_with_the_last_user() {
        let (a, b) = (file(), file());
        let mut files = MappedFiles::default();
        assert_eq!(add(&mut files, 1, &a, 1000), Some(0));
        assert_eq!(add(&mut files, 1, &b, 1), Some(3 * 512));
        files.leave(1, 0);
        files.close_unused();
        assert!(files.file(0).is_none() && files.file(3 * 512).is_some());
        assert_eq!(add(&mut files, 1, &a, 900), Some(0));
        files.on_end(1);
        files.close_unused();
        assert!(files.files.is_empty());
    }

    #[test]
    fn patterns_are_checked_and_those_without_a_file_are_known() {
        let given =
            |texts: &[&str]| Pattern::all(&texts.iter().map(OsString::from).collect::<Vec<_>>());
        for wrong in ["", "a\nb"] {
            let error = given(&[wrong]).expect_err("not a pattern").to_string();
            assert!(error.contains("expected a pattern"), "{error}");
        }
        let long = "/".repeat(MOST_PATTERNS);
        assert!(matches!(
            given(&[&long, "a"]),
            Err(PatternError::TooLong(_))
        ));
        let (patterns, text) = given(&["*.npy", "/data/**", "sub/*.bin"]).expect("patterns");
        let folder = std::env::current_dir().expect("a folder");
        let expected = format!("*.npy\n/data/**\n{}/sub/*.bin", folder.display());
        assert_eq!(text, OsString::from(expected));
        assert!(patterns[0].is_match(b"/a/b.npy") && !patterns[0].is_match(b"/a/b.npz"));
        assert!(patterns[1].is_match(b"/data/a/b") && !patterns[1].is_match(b"/home/data/a"));
        let mut files = MappedFiles::new(patterns);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.npy");
        let file = std::fs::File::create(&path).expect("a file");
        add(&mut files, 1, &file.into(), 1).expect("numbers");
        assert_eq!(
            files.unmatched().collect::<Vec<_>>(),
            ["/data/**", "sub/*.bin"]
        );
    }

    #[test]
    fn numbers_end() {
        let mut files = MappedFiles::default();
        let all = file();
        assert_eq!(add(&mut files, 1, &all, u32::MAX - 510), None);
        assert_eq!(add(&mut files, 1, &all, u32::MAX - 511), Some(0));
        assert_eq!(add(&mut files, 1, &file(), 1), None);
    }
}
