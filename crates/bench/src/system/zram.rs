//! A zram device for swapping: found, set up, taken down.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::swap;

const DEVICES: &str = "/sys/block";

/// A device without a size: its folder under /sys/block, and the device.
pub fn unused() -> Option<(PathBuf, PathBuf)> {
    let mut folders: Vec<PathBuf> = fs::read_dir(DEVICES)
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    folders.sort();
    folders.into_iter().find_map(|path| {
        let name = path.file_name()?.to_str()?;
        let device = Path::new("/dev").join(name);
        let size = fs::read_to_string(path.join("disksize")).ok()?;
        (name.starts_with("zram") && size.trim() == "0" && device.exists())
            .then_some((path.clone(), device))
    })
}

/// Gives it lz4, a size, and the header of a swap area.
pub fn set_up(path: &Path, device: &Path, bytes: u64) -> io::Result<()> {
    fs::write(path.join("comp_algorithm"), "lz4")?;
    fs::write(path.join("disksize"), bytes.to_string())?;
    let file = File::options().write(true).open(device)?;
    file.write_all_at(&swap::header(bytes), 0)?;
    file.sync_all()
}

/// Restores the original state: a device without a size.
pub fn take_down(path: &Path, was: &str) -> io::Result<()> {
    fs::write(path.join("reset"), "1")?;
    fs::write(path.join("comp_algorithm"), was)
}
