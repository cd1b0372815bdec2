//! Shared code of the tests of the benches: a directory of their own, and the system's state, which must be the same
//! after a bench as before it.

#![allow(dead_code, reason = "each test binary uses what it needs")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub const EXE: &str = env!("CARGO_BIN_EXE_foreswap-bench");
/// The message of a bench when another has the system.
const BUSY: &str = "another foreswap bench";
const SETTINGS: [&str; 4] = [
    "/proc/sys/vm/page-cluster",
    "/sys/kernel/mm/swap/vma_ra_enabled",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled",
];

/// Until the guard is dropped, no other test changes the system. When this returns, no bench outside of these tests has
/// changed it, neither a running nor a killed one. Otherwise the state "before" would be that bench's, gone when it
/// ends.
pub fn kernel_alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let start = Instant::now();
    while is_root() {
        let undo = Command::new(EXE).args(["bench", "--undo"]).output();
        let undo = undo.expect("the bench starts");
        let errors = String::from_utf8_lossy(&undo.stderr);
        if undo.status.success() {
            break;
        }
        let waits = errors.contains(BUSY) && start.elapsed() < Duration::from_secs(300);
        assert!(waits, "the system is not as these tests need it: {errors}");
        std::thread::sleep(Duration::from_secs(1));
    }
    guard
}

pub fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let root = status.lines().any(|line| line.starts_with("Uid:\t0\t0"));
    if !root {
        eprintln!("passed over: the kernel's peers need root");
    }
    root
}

/// A directory of our own on the file system of /tmp, gone when the test is.
pub struct Place(pub PathBuf);

impl Place {
    pub fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("foreswap-peers-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn command(place: &Place, words: &str) -> Command {
    let mut command = Command::new(EXE);
    command
        .arg("bench")
        .args(words.split_whitespace())
        .arg("--dir")
        .arg(&place.0);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a bench, again when one outside of these tests has the system at the time.
pub fn bench(place: &Place, words: &str) -> Output {
    let start = Instant::now();
    loop {
        let output = command(place, words).output().expect("the bench starts");
        let busy = String::from_utf8_lossy(&output.stdout).contains(BUSY);
        if !busy || start.elapsed() > Duration::from_secs(120) {
            return output;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Everything that a bench may change of this system.
pub fn system(place: &Place) -> Vec<String> {
    let mut state: Vec<String> = SETTINGS
        .iter()
        .map(|path| fs::read_to_string(path).unwrap_or_default())
        .collect();
    for disk in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let rotational = disk.path().join("queue/rotational");
        state.push(format!(
            "{rotational:?} {:?}",
            fs::read_to_string(&rotational).ok()
        ));
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    state.extend(
        swaps
            .lines()
            .filter(|line| line.contains("foreswap"))
            .map(str::to_owned),
    );
    for root in ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"] {
        let entries = fs::read_dir(root).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        state.extend(names.filter(|name| name.starts_with("foreswap")));
    }
    state.extend(place.files());
    state.push(format!(
        "note: {}",
        Path::new("/run/foreswap-bench/changes.json").exists()
    ));
    state
}

/// Starts a bench on the kernel's swap, and returns once more than `mebibytes` are swapped.
pub fn swapping(place: &Place, words: &str, mebibytes: u64) -> Child {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(120) {
        // Ends at once when another bench has the system; then it is tried again.
        let mut child = command(place, words).spawn().unwrap();
        while child.try_wait().unwrap().is_none() {
            if swapped(place) > mebibytes << 20 {
                return child;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        child.wait().unwrap();
        std::thread::sleep(Duration::from_secs(1));
    }
    panic!("the bench never swapped: {words}");
}

/// Bytes that are swapped to a file in `place`.
pub fn swapped(place: &Place) -> u64 {
    let here = place.0.to_str().unwrap();
    let swaps = fs::read_to_string("/proc/swaps").unwrap();
    let used = swaps
        .lines()
        .filter(|line| line.contains(here))
        .filter_map(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok());
    used.sum::<u64>() << 10
}

pub fn signal(child: &Child, name: &str) {
    let status = Command::new("kill")
        .arg(format!("-{name}"))
        .arg(child.id().to_string())
        .status();
    assert!(status.unwrap().success());
}

/// The project's Python with SciPy; without it the test is skipped, but not in CI.
pub fn scipy() -> Option<PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    if python.exists() {
        return Some(python);
    }
    assert!(std::env::var_os("CI").is_none(), "no .venv: make setup");
    eprintln!("passed over: linpack needs SciPy in .venv (make setup)");
    None
}
