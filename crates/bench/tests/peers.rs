//! Peers in turns, and above all: nothing of them is left, however a bench ends.
//!
//! What needs root says so and is passed over without it. The tests of the kernel's
//! peers take turns with each other, since one bench at a time may change the system.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const EXE: &str = env!("CARGO_BIN_EXE_foreswap-bench");
const SETTINGS: [&str; 3] = [
    "/proc/sys/vm/page-cluster",
    "/sys/kernel/mm/swap/vma_ra_enabled",
    "/sys/kernel/mm/transparent_hugepage/enabled",
];

fn kernel_alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let root = status.lines().any(|line| line.starts_with("Uid:\t0\t0"));
    if !root {
        eprintln!("passed over: the kernel's peers need root");
    }
    root
}

/// A directory of our own on the file system of /tmp, gone when the test is.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("foreswap-peers-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn files(&self) -> Vec<String> {
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

fn command(place: &Place, words: &str) -> Command {
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
fn bench(place: &Place, words: &str) -> Output {
    let start = Instant::now();
    loop {
        let output = command(place, words).output().expect("the bench starts");
        let busy = String::from_utf8_lossy(&output.stdout).contains("another foreswap bench");
        if !busy || start.elapsed() > Duration::from_secs(120) {
            return output;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// All that a bench may change of this system.
fn system(place: &Place) -> Vec<String> {
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

#[test]
fn bare_turns_give_a_report_and_json() {
    let place = Place::new("bare");
    let json = place.0.join("out.json");
    let words = format!(
        "seq-read --runner bare --total 8M --turns 3 --against bare --json {}",
        json.display()
    );
    let output = bench(&place, &words);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("seq-read: 8 MiB in 256 MiB"), "{text}");
    let report: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert_eq!(report["peers"][0]["peer"], "bare");
    assert_eq!(report["peers"][0]["turns"].as_array().unwrap().len(), 3);
    assert!(
        report["peers"][0]["figures"]["ns_per_page"]["median"]
            .as_f64()
            .unwrap()
            > 0.0
    );
}

#[test]
fn a_wrong_byte_ends_the_bench() {
    let place = Place::new("wrong");
    let output = bench(
        &place,
        "seq-read --runner bare --total 1M --against bare --corrupt-word 5",
    );
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("wrong data") && errors.contains("word 5 of it"),
        "{errors}"
    );
}

#[test]
fn without_root_the_kernel_is_reported_as_not_run() {
    let place = Place::new("user");
    let mut words = command(
        &place,
        "seq-read --runner bare --total 1M --turns 2 --against kernel",
    );
    if is_root() {
        // The build's directory may be closed to others.
        let copy = place.0.join("copy");
        fs::copy(EXE, &copy).unwrap();
        let mut other = Command::new(copy);
        other.args(words.get_args());
        other.uid(65534).gid(65534);
        words = other;
    }
    let output = words.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("not run: it needs root"), "{text}");
}

#[test]
fn the_kernels_peers_swap_and_leave_nothing() {
    let _alone = kernel_alone();
    if !is_root() {
        return;
    }
    let place = Place::new("kernel");
    let before = system(&place);
    let words = "seq-write --runner bare --against kernel,kernel-default --total 64M --memory 32M --turns 2";
    let json = std::env::temp_dir().join(format!("foreswap-peers-{}.json", std::process::id()));
    let output = bench(&place, &format!("{words} --json {}", json.display()));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    fs::remove_file(json).unwrap();
    for peer in [1, 2] {
        let figures = &report["peers"][peer]["figures"];
        assert!(
            figures["swap_out_bytes"]["median"].as_f64().unwrap() >= f64::from(32 << 20),
            "{text}"
        );
        assert!(
            figures["peak_bytes"]["max"].as_f64().unwrap() <= f64::from(32 << 20),
            "{text}"
        );
    }
    assert_eq!(report["ratios"].as_array().unwrap().len(), 4, "{text}");
    assert_eq!(system(&place), before);
}

/// Starts a long bench on the kernel's swap, and returns once it swaps.
fn swapping(place: &Place) -> Child {
    const WORDS: &str = "rand-write --runner kernel --against kernel --total 64M --memory 32M \
                         --turns 9 --seconds 5";
    let here = place.0.to_str().unwrap();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(120) {
        // Ends at once when another bench has the system; then it is tried again.
        let mut child = command(place, WORDS).spawn().unwrap();
        while child.try_wait().unwrap().is_none() {
            let swaps = fs::read_to_string("/proc/swaps").unwrap();
            let used = |line: &str| line.contains(here) && !line.contains("\t0\t");
            if swaps.lines().any(used) {
                return child;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        child.wait().unwrap();
        std::thread::sleep(Duration::from_secs(1));
    }
    panic!("the bench never swapped");
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill")
        .arg(format!("-{name}"))
        .arg(child.id().to_string())
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn a_signal_undoes_everything() {
    let _alone = kernel_alone();
    if !is_root() {
        return;
    }
    let place = Place::new("signal");
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let before = system(&place);
        let mut child = swapping(&place);
        assert_ne!(system(&place), before);
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(code), "{name}");
        assert_eq!(system(&place), before, "{name}");
    }
}

#[test]
fn a_killed_bench_is_undone_by_hand_or_by_the_next() {
    let _alone = kernel_alone();
    if !is_root() {
        return;
    }
    let place = Place::new("killed");
    for remedy in [
        "--undo",
        "seq-read --runner kernel --against kernel --total 8M --memory 32M --turns 1",
    ] {
        let before = system(&place);
        let mut child = swapping(&place);
        signal(&child, "KILL");
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert_ne!(system(&place), before);
        let output = bench(&place, remedy);
        assert!(
            output.status.success(),
            "{remedy}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(system(&place), before, "{remedy}");
    }
}
