//! Changes to the system that some tests need (a loop device, a mount, a swap file). Each is undone when its guard is
//! dropped, whatever the result of the test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::process::Scratch;
use crate::requirement::find_command;

/// Runs a command of the system that must succeed, and returns its output.
#[track_caller]
pub fn system(line: &[&str]) -> String {
    let program = find_command(line[0]).unwrap_or_else(|| line[0].into());
    let output = Command::new(program)
        .args(&line[1..])
        .output()
        .unwrap_or_else(|error| panic!("{line:?} does not start: {error}"));
    assert!(
        output.status.success(),
        "{line:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A cgroup (v1) of tests that writes at most `rate` bytes a second to the block device `device`.
#[track_caller]
pub fn slow_writes(device: &str, rate: u64) -> (PathBuf, Undo) {
    let name = device.trim_start_matches("/dev/");
    let number = fs::read_to_string(format!("/sys/block/{name}/dev")).expect("a block device");
    let cgroup = PathBuf::from(format!(
        "/sys/fs/cgroup/blkio/foreswap-test-{}-{name}",
        std::process::id()
    ));
    fs::create_dir(&cgroup).expect("a cgroup can be made");
    let guard = undo(&["rmdir", &cgroup.display().to_string()]);
    let rule = format!("{} {rate}", number.trim());
    fs::write(cgroup.join("blkio.throttle.write_bps_device"), rule).expect("and given a rate");
    (cgroup, guard)
}

/// A second in total.
const UNDO_TRIES: u32 = 20;
const UNDO_PAUSE: Duration = Duration::from_millis(50);

/// Runs a command when dropped, again until it succeeds.
pub struct Undo(Vec<String>);

impl Drop for Undo {
    fn drop(&mut self) {
        let program = find_command(&self.0[0]).unwrap_or_default();
        // What has just ended may still be in the cgroup, or on the area.
        for _ in 0..UNDO_TRIES {
            let output = Command::new(&program).args(&self.0[1..]).output();
            if output.is_ok_and(|output| output.status.success()) {
                return;
            }
            std::thread::sleep(UNDO_PAUSE);
        }
    }
}

/// The guard that will run `line`.
pub fn undo(line: &[&str]) -> Undo {
    Undo(line.iter().map(|word| (*word).to_owned()).collect())
}

/// A file of `mebibytes`, all zero, 0600, fit to be a swap area.
pub fn area_file(scratch: &Scratch, mebibytes: u64) -> PathBuf {
    let path = scratch.join("area");
    let file = fs::File::create(&path).expect("a file can be made");
    file.set_len(mebibytes << 20).expect("and given a size");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("and a mode");
    path
}

/// A loop device over `file`, until the guard is dropped.
#[track_caller]
pub fn loop_device(file: &std::path::Path) -> (String, Undo) {
    let name = file.display().to_string();
    let device = system(&["losetup", "--find", "--show", &name]);
    let guard = undo(&["losetup", "--detach", &device]);
    (device, guard)
}
