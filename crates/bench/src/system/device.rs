//! The block device under a directory, and its properties in the kernel.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The device under a directory.
#[derive(Debug, Clone)]
pub struct Device {
    /// Its name, or the file system's device number if there is no single device.
    pub name: String,
    /// The file that tells whether it rotates, if there is one.
    rotational: Option<PathBuf>,
    /// The file of its counters, if there is one.
    counters: Option<PathBuf>,
}

/// The reads and writes of a device, by all processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads, as the device saw them.
    pub reads: u64,
    /// Bytes in them.
    pub read_bytes: u64,
    /// Bytes of writes.
    pub written_bytes: u64,
}

impl Counters {
    /// The counts since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            reads: self.reads.saturating_sub(before.reads),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
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

    /// Its reads and writes since the machine was started; `None` if it does not count.
    pub fn counters(&self) -> Option<Counters> {
        let text = fs::read_to_string(self.counters.as_ref()?).ok()?;
        counters_of(&text)
    }

    /// The setting that tells the kernel whether the device has a moving arm.
    pub fn rotational(&self) -> Option<&Path> {
        self.rotational.as_deref()
    }
}

/// Of a block device's `stat`: the first number is reads, the third 512-byte sectors read, the
/// seventh sectors written.
fn counters_of(text: &str) -> Option<Counters> {
    let numbers: Vec<u64> = text
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    Some(Counters {
        reads: *numbers.first()?,
        read_bytes: 512 * numbers.get(2)?,
        written_bytes: 512 * numbers.get(6)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_devices_counters_are_read() {
        let then = counters_of("  12  3  80  9 5 0 16 0\n").unwrap();
        let expected = Counters {
            reads: 12,
            read_bytes: 40_960,
            written_bytes: 8192,
        };
        assert_eq!(then, expected);
        let now = counters_of("  13  3  88  9 5 0 16 0\n").unwrap();
        let since = now.since(then);
        assert_eq!(
            (since.reads, since.read_bytes, since.written_bytes),
            (1, 4096, 0)
        );
        assert!(counters_of("").is_none() && counters_of("1 2 3 4 5 6").is_none());
    }

    #[test]
    fn some_device_is_under_the_root() {
        let device = Device::under(Path::new("/")).unwrap();
        assert!(!device.name.is_empty());
        assert!(Device::under(Path::new("/nonexistent")).is_err());
    }
}
