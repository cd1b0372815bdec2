//! A swap file of our own: made, swapped to, removed.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const PAGE: u64 = 4096;
/// Where `SWAPSPACE2` stands in the first page.
const MAGIC_AT: usize = 4096 - 10;
/// Priority over all other swap of the system.
const FIRST: libc::c_int = 0x8000 | 0x7fff;
const PREFIX: &str = "foreswap-bench-";
const SUFFIX: &str = ".swap";

/// The name of this process' swap file in `directory`.
pub fn path_in(directory: &Path) -> PathBuf {
    directory.join(format!("{PREFIX}{}{SUFFIX}", std::process::id()))
}

/// Makes a swap file: readable by root only, without holes, and written once from end to end. A device that allocates
/// on the first write has then done so before the measurement.
pub fn make(path: &Path, bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    // SAFETY: allocates in a file that is open.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes as libc::off_t) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    write_through(&file, bytes)?;
    file.write_all_at(&header(bytes), 0)?;
    file.sync_all()
}

fn write_through(mut file: &File, bytes: u64) -> io::Result<()> {
    // Not zeros: a device may treat those as a hole.
    let part: Vec<u8> = (0..1u32 << 18)
        .flat_map(|i| i.wrapping_mul(0x9e37_79b1).to_le_bytes())
        .collect();
    let mut left = bytes;
    while left > 0 {
        crate::interrupt::check().map_err(io::Error::other)?;
        let now = left.min(part.len() as u64);
        file.write_all(&part[..now as usize])?;
        left -= now;
    }
    file.sync_data()?;
    // SAFETY: advice on a file that is open: its pages need not stay in memory.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    Ok(())
}

/// The header as mkswap writes it: version 1, the last page, the magic word.
pub fn header(bytes: u64) -> [u8; PAGE as usize] {
    let mut page = [0; PAGE as usize];
    let last = (bytes / PAGE - 1) as u32;
    page[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    page[1028..1032].copy_from_slice(&last.to_ne_bytes());
    page[MAGIC_AT..].copy_from_slice(b"SWAPSPACE2");
    page
}

/// Begins to swap to `path`.
pub fn on(path: &Path) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a path and flags; the kernel checks both.
    match unsafe { libc::swapon(name.as_ptr(), FIRST) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends swapping to `path`, however many signals arrive; does nothing if it is not a swap file in use.
pub fn off(path: &Path) -> io::Result<()> {
    loop {
        match off_unless_interrupted(path) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) => {
                return Ok(());
            }
            result => return result,
        }
    }
}

/// One call of swapoff, which a signal ends early and a later call continues.
pub fn off_unless_interrupted(path: &Path) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a path; the kernel checks it.
    match unsafe { libc::swapoff(name.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Files and devices that are swapped to, with whether a disk's arm has to move for them.
pub fn active() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let paths = text
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next());
    paths.map(PathBuf::from).collect()
}

/// Removes swap files of benches that were killed before a reboot, which no note names any more.
pub fn sweep(directory: &Path) {
    let active = active();
    for file in left_behind(directory, SUFFIX) {
        if !active.contains(&file) {
            let _ = fs::remove_file(file);
        }
    }
}

/// What killed benches have left in `directory`, with names that end so.
pub fn left_behind(directory: &Path, suffix: &str) -> Vec<PathBuf> {
    let is_left = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let pid = name.and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(suffix));
        pid.and_then(|pid| pid.parse::<u32>().ok())
            .is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(is_left).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_dead_have_left_is_found_by_their_names() {
        let folder = std::env::temp_dir().join(format!("left-behind-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let own = format!("{PREFIX}{}-programs", std::process::id());
        // Larger than any pid.
        for name in [
            "foreswap-bench-4999999-programs",
            "foreswap-bench-x-programs",
            &own,
        ] {
            fs::create_dir(folder.join(name)).unwrap();
        }
        let found = left_behind(&folder, "-programs");
        let none = left_behind(&folder, SUFFIX);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, [folder.join("foreswap-bench-4999999-programs")]);
        assert!(none.is_empty());
    }

    #[test]
    fn the_header_is_what_mkswap_writes() {
        let page = header(1 << 20);
        assert_eq!(&page[4086..], b"SWAPSPACE2");
        assert_eq!(page[1028..1032], 255u32.to_ne_bytes());
    }
}
