use std::io;

use super::super::check::Verdict;
use super::super::who::tests::{ordinary, root};
use super::*;

fn area(opened: Result<Opened, AreasError>) -> AreaFacts {
    AreaFacts {
        path: "/tmp".into(),
        is_named: false,
        opened,
        instead: Some("/var/tmp".into()),
    }
}

fn fast() -> Opened {
    Opened {
        system: "ext4",
        bytes: 16 * G,
        direct: true,
        speed: Some(Ok(Speed {
            write_bytes_per_s: 1e9,
            read_bytes_per_s: 2e9,
            random_read_ns: 80_000,
        })),
        ..Opened::default()
    }
}

/// A usual area.
pub fn direct() -> AreaFacts {
    area(Ok(fast()))
}

/// One in memory.
pub fn on_tmpfs() -> AreaFacts {
    area(Ok(Opened {
        system: "tmpfs",
        direct: false,
        ..fast()
    }))
}

fn commands(check: &Check) -> Vec<&str> {
    let remedies = check.remedies.iter();
    let commands = remedies.flat_map(|remedy| &remedy.commands);
    commands.map(String::as_str).collect()
}

#[track_caller]
fn judged(area: &AreaFacts, verdict: Verdict) -> Check {
    let check = judge_one(area, &ordinary());
    assert_eq!(check.verdict, verdict, "{check:?}");
    check
}

#[test]
fn a_disk() {
    let check = judged(&direct(), Verdict::Ok);
    assert!(check.found.contains("16 GiB on ext4"), "{}", check.found);
    assert!(check.found.contains("80.0 µs"), "{}", check.found);
    assert!(check.remedies.is_empty());
    let quick = area(Ok(Opened {
        speed: None,
        ..fast()
    }));
    judged(&quick, Verdict::Ok);
}

#[test]
fn memory_instead_of_a_disk() {
    let check = judged(&on_tmpfs(), Verdict::Warning);
    assert_eq!(commands(&check), ["export TMPDIR=/var/tmp"]);
    assert!(on_tmpfs().fills_memory() && !direct().fills_memory());
    let ram = area(Ok(Opened {
        is_ram: true,
        ..fast()
    }));
    assert!(!ram.fills_memory());
    judged(&ram, Verdict::Ok);
}

#[test]
fn small_and_slow_ones() {
    let small = area(Ok(Opened { bytes: G, ..fast() }));
    let check = judged(&small, Verdict::Warning);
    assert_eq!(commands(&check), ["df -h /tmp", "export TMPDIR=/var/tmp"]);
    let slow = area(Ok(Opened {
        speed: Some(Ok(Speed {
            write_bytes_per_s: 150e6,
            read_bytes_per_s: 150e6,
            random_read_ns: 8_000_000,
        })),
        ..fast()
    }));
    let check = judged(&slow, Verdict::Warning);
    assert!(check.found.contains("8.0 ms"), "{}", check.found);
    let broken = area(Ok(Opened {
        speed: Some(Err("Input/output error".into())),
        ..fast()
    }));
    judged(&broken, Verdict::Warning);
    let buffered = area(Ok(Opened {
        direct: false,
        ..fast()
    }));
    judged(&buffered, Verdict::Note);
    let without_locks = area(Ok(Opened {
        unlocked: Some("No locks available".into()),
        ..fast()
    }));
    let check = judged(&without_locks, Verdict::Note);
    assert!(check.found.contains("No locks"), "{}", check.found);
}

#[test]
fn refusals() {
    let path = || PathBuf::from("/tmp");
    let cases = [
        (AreaError::NotFound { path: path() }, "mkdir -p /tmp"),
        (
            AreaError::Permission { path: path() },
            "install -d -m 700 -o ada /tmp/foreswap",
        ),
        (
            AreaError::NoRoom {
                path: path(),
                needed: 2,
                free: 1,
            },
            "df -h /tmp",
        ),
        (
            AreaError::OpenToOthers {
                path: path(),
                mode: 0o644,
                wanted: 0o600,
            },
            "chmod 600 /tmp",
        ),
        (AreaError::KernelSwap { path: path() }, "swapoff /tmp"),
        (
            AreaError::FileSizeLimit {
                path: path(),
                bytes: 1,
                limit: None,
            },
            "ulimit -S -f unlimited",
        ),
        (
            AreaError::Io {
                path: path(),
                source: io::Error::from(io::ErrorKind::ReadOnlyFilesystem),
            },
            "export TMPDIR=/var/tmp",
        ),
    ];
    for (error, remedy) in cases {
        let check = judged(&area(Err(error.into())), Verdict::Failure);
        assert!(commands(&check).contains(&remedy), "{check:?}");
    }
    let mut named = area(Err(AreaError::NotFound { path: path() }.into()));
    named.is_named = true;
    let check = judge_one(&named, &root());
    assert!(
        commands(&check).contains(&"foreswap doctor --swap /var/tmp"),
        "{check:?}"
    );
}

#[test]
fn a_folder_is_opened_as_a_run_opens_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().display().to_string();
    let found = AreaFacts::read(std::slice::from_ref(&path), false);
    let opened = found[0].opened.as_ref().expect("an area");
    let speed = opened.speed.as_ref().expect("it was measured");
    let speed = speed.as_ref().expect("without an error");
    assert!(speed.read_bytes_per_s > 0.0 && speed.write_bytes_per_s > 0.0);
    assert!(speed.random_read_ns > 0);
    let names = std::fs::read_dir(folder.path()).expect("a folder");
    assert_eq!(names.count(), 0, "nothing is left");
}
