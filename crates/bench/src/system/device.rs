//! Which block device lies under a directory, and how the kernel takes it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The device under a directory.
#[derive(Debug, Clone)]
pub struct Device {
    /// Its name, or the file system's device number where there is no single device.
    pub name: String,
    /// The file that says whether it rotates, where there is one.
    rotational: Option<PathBuf>,
    /// The file of its counters, where there is one.
    counters: Option<PathBuf>,
}

/// What a device has read since the machine was started.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reads {
    /// Transfers, as the device saw them.
    pub transfers: u64,
    /// Bytes in them.
    pub bytes: u64,
}

impl Reads {
    /// What was read since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            transfers: self.transfers.saturating_sub(before.transfers),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }
}

impl Device {
    /// Finds the device under `directory`.
    pub fn under(directory: &Path) -> io::Result<Self> {
        let number = fs::metadata(directory)?.dev();
        let number = format!("{}:{}", libc::major(number), libc::minor(number));
        let Ok(mut place) = fs::canonicalize(Path::new("/sys/dev/block").join(&number)) else {
            return Ok(Self {
                name: number,
                rotational: None,
                counters: None,
            });
        };
        // A partition has no queue of its own; its disk is the directory above.
        if place.join("partition").exists() {
            place.pop();
        }
        let rotational = place.join("queue/rotational");
        let counters = place.join("stat");
        Ok(Self {
            name: place
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            rotational: rotational.exists().then_some(rotational),
            counters: counters.exists().then_some(counters),
        })
    }

    /// What it has read so far, by whomever; nothing where it does not count.
    pub fn reads(&self) -> Option<Reads> {
        let text = fs::read_to_string(self.counters.as_ref()?).ok()?;
        reads_of(&text)
    }

    /// The setting by which the kernel takes the device for a disk with an arm.
    pub fn rotational(&self) -> Option<&Path> {
        self.rotational.as_deref()
    }
}

/// The first and third number of a block device's `stat`: reads, and 512-byte sectors read.
fn reads_of(text: &str) -> Option<Reads> {
    let mut numbers = text.split_whitespace().map(str::parse);
    Some(Reads {
        transfers: numbers.next()?.ok()?,
        bytes: 512 * numbers.nth(1)?.ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_devices_counters_are_read() {
        let reads = reads_of("  12  3  80  9 0 0\n").unwrap();
        assert_eq!((reads.transfers, reads.bytes), (12, 40_960));
        assert!(reads_of("").is_none());
    }

    #[test]
    fn some_device_is_under_the_root() {
        let device = Device::under(Path::new("/")).unwrap();
        assert!(!device.name.is_empty());
        assert!(Device::under(Path::new("/nonexistent")).is_err());
    }
}
