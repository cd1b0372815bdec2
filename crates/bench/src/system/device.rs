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
            });
        };
        // A partition has no queue of its own; its disk is the directory above.
        if place.join("partition").exists() {
            place.pop();
        }
        let rotational = place.join("queue/rotational");
        Ok(Self {
            name: place
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            rotational: rotational.exists().then_some(rotational),
        })
    }

    /// The setting by which the kernel takes the device for a disk with an arm.
    pub fn rotational(&self) -> Option<&Path> {
        self.rotational.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_device_is_under_the_root() {
        let device = Device::under(Path::new("/")).unwrap();
        assert!(!device.name.is_empty());
        assert!(Device::under(Path::new("/nonexistent")).is_err());
    }
}
