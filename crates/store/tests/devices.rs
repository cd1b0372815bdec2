//! Block devices and the kernel's own swap, on loop devices. That takes root; without it these
//! tests say so by name and pass.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use foreswap_store::area::{self, AreaError, AreaSpec, OpenArea};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// Each test has the machine's devices to itself: between fork and exec, a program that another one
/// starts holds copies of all descriptors, and a device that is open anywhere is busy.
static ALONE: Mutex<()> = Mutex::new(());

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(format!(
            "{program}: {}",
            String::from_utf8_lossy(&output.stderr)
        ))
    }
}

/// A loop device over a file of its own; detached with the value.
struct Loop {
    device: PathBuf,
    directory: TempDir,
}

impl Loop {
    fn new(test: &str, bytes: u64) -> Option<Loop> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: {test}: loop devices need root");
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let backing = directory.path().join("backing");
        let file = File::create(&backing).expect("a file");
        file.set_len(bytes).expect("a size");
        let backing = backing.to_str().expect("UTF-8");
        match run("losetup", &["--find", "--show", backing]) {
            Ok(device) => Some(Loop {
                device: PathBuf::from(device),
                directory,
            }),
            Err(reason) => {
                eprintln!("skipped: {test}: {reason}");
                None
            }
        }
    }

    fn name(&self) -> &str {
        self.device.to_str().expect("UTF-8")
    }

    fn open(&self, swap_size: Option<u64>) -> Result<OpenArea, AreaError> {
        open(&self.device, swap_size)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run("losetup", &["--detach", self.name()]);
    }
}

fn open(path: &Path, swap_size: Option<u64>) -> Result<OpenArea, AreaError> {
    let spec = AreaSpec::Path(path.to_path_buf());
    area::open(&spec, swap_size, 0)
}

#[test]
fn a_blank_device_is_taken_marked_and_known_again() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(disk) = Loop::new("a_blank_device", 4 * MIB) else {
        return;
    };
    let area = disk.open(None).expect("an area");
    assert_eq!((area.bytes, area.reserved_bytes), (4 * MIB, 4096));
    let busy = disk.open(None).expect_err("in use");
    assert!(matches!(busy, AreaError::DeviceBusy { .. }), "{busy}");
    assert!(busy.to_string().contains("lsblk"));
    drop(area);
    let link = disk.directory.path().join("by-name");
    symlink(&disk.device, &link).expect("a link");
    let area = open(&link, Some(2 * MIB)).expect("by its link, a part of it");
    assert_eq!(area.bytes, 2 * MIB);
    drop(area);
    let error = disk
        .open(Some(8 * MIB))
        .expect_err("larger than the device");
    assert!(matches!(error, AreaError::DeviceTooSmall { bytes, .. } if bytes == 4 * MIB));
}

#[test]
fn a_device_with_a_file_system_is_refused_mounted_or_not() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(disk) = Loop::new("a_device_with_a_file_system", 8 * MIB) else {
        return;
    };
    run("mkfs.ext4", &["-q", disk.name()]).expect("a file system");
    let error = disk.open(None).expect_err("a file system");
    assert!(error.to_string().contains("ext2/3/4"), "{error}");
    assert!(error.to_string().contains("wipefs"), "{error}");

    let point = disk.directory.path().join("mount");
    fs::create_dir(&point).expect("a directory");
    let point = point.to_str().expect("UTF-8");
    run("mount", &[disk.name(), point]).expect("a mount");
    let error = disk.open(None).expect_err("mounted");
    run("umount", &[point]).expect("unmounted");
    assert!(matches!(error, AreaError::Mounted { .. }), "{error}");
    assert!(error.to_string().contains(point), "{error}");

    run("mkswap", &["--force", disk.name()]).expect("the remedy that the error names");
    let area = disk.open(None).expect("an area");
    assert_eq!(area.reserved_bytes, 4096);
}

#[test]
fn a_small_file_system_runs_out_with_a_clear_word() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(disk) = Loop::new("a_small_file_system", 16 * MIB) else {
        return;
    };
    run("mkfs.ext4", &["-q", disk.name()]).expect("a file system");
    let point = disk.directory.path().join("mount");
    fs::create_dir(&point).expect("a directory");
    let text = point.to_str().expect("UTF-8");
    run("mount", &[disk.name(), text]).expect("a mount");
    let too_much = open(&point, Some(64 * MIB));
    let fits = open(&point, Some(2 * MIB)).map(|area| area.bytes);
    let default = open(&point, None).map(|area| area.bytes);
    run("umount", &[text]).expect("unmounted");
    let error = too_much.expect_err("more than there is");
    assert!(matches!(error, AreaError::NoRoom { needed, .. } if needed == 64 * MIB));
    assert_eq!(fits.expect("an area"), 2 * MIB);
    assert!(default.expect("an area") < 16 * MIB);
}

#[test]
fn an_area_of_the_kernel_is_refused() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(disk) = Loop::new("what_the_kernel_swaps_to", 4 * MIB) else {
        return;
    };
    let path = disk.directory.path().join("swap file");
    fs::write(&path, vec![0; 4 << 20]).expect("a file without holes");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("a mode");
    for place in [path.as_path(), disk.device.as_path()] {
        let name = place.to_str().expect("UTF-8");
        run("mkswap", &[name]).expect("mkswap");
        if let Err(reason) = run("swapon", &[name]) {
            eprintln!("skipped: what_the_kernel_swaps_to: {reason}");
            return;
        }
        let result = open(place, None);
        run("swapoff", &[name]).expect("swapoff");
        let error = result.expect_err("active swap");
        assert!(matches!(error, AreaError::KernelSwap { .. }), "{error}");
        assert!(error.to_string().contains("swapoff"), "{error}");
        open(place, None).expect("free after swapoff");
    }
}

#[test]
fn a_device_that_everybody_may_read_is_refused() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(disk) = Loop::new("a_device_that_everybody_may_read", 2 * MIB) else {
        return;
    };
    let node = fs::metadata(&disk.device).expect("metadata").permissions();
    fs::set_permissions(&disk.device, Permissions::from_mode(0o664)).expect("a mode");
    let result = disk.open(None);
    fs::set_permissions(&disk.device, node).expect("the mode it had");
    let error = result.expect_err("exposed");
    assert!(error.to_string().contains("chmod 660"), "{error}");
}
