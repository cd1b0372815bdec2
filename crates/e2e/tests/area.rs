//! Swap areas: where they are, who can see them, and the results of a full area and of changed bytes.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use foreswap_e2e::process::Scratch;
use foreswap_e2e::system::{area_file, loop_device, system, undo};
use foreswap_e2e::{Job, MIB, Managed, Outcome, program, requirement};
use rustix::fs::OFlags;

/// Mebibytes.
const LIMIT: u64 = 64;

fn full_area(test: &str, part: &str) -> Option<Job> {
    Some(Job::new(program::compile(test, "full_area")?).arg(part))
}

/// `part` with all its swap in `area`.
#[track_caller]
fn with_area(test: &str, part: &str, area: &Path, options: &[&str]) -> Option<Outcome> {
    let managed = Managed::limit(LIMIT)
        .options(["--swap".as_ref(), area.as_os_str()])
        .options(options)
        .talkative();
    Some(managed.equals_bare(&full_area(test, part)?))
}

#[test]
fn folder_is_left_empty() {
    let scratch = Scratch::new("folder");
    let Some(outcome) = with_area("folder_is_left_empty", "fits_both", scratch.path(), &[]) else {
        return;
    };
    outcome.swapped();
    assert_eq!(
        fs::read_dir(scratch.path())
            .expect("the folder is there")
            .count(),
        0
    );
}

/// While it runs, the area has no name, and no other process could open it.
#[test]
fn area_in_a_folder_is_unlinked_and_private() {
    let test = "area_in_a_folder_is_unlinked_and_private";
    let Some(job) = full_area(test, "writes_a_secret") else {
        return;
    };
    let (folder, scratch) = (Scratch::new(test), Scratch::new("cwd"));
    let mut running = Managed::limit(LIMIT)
        .options(["--swap".as_ref(), folder.path().as_os_str()])
        .start(&job.cwd(scratch.path()), &scratch.join("stats.json"));
    running.wait_for_output("ready");
    assert_eq!(
        fs::read_dir(folder.path())
            .expect("the folder is there")
            .count(),
        0
    );
    let mut found = 0;
    let descriptors = format!("/proc/{}/fd", running.pid().as_raw_nonzero());
    for entry in fs::read_dir(descriptors).expect("foreswap runs").flatten() {
        let Ok(target) = fs::read_link(entry.path()) else {
            continue;
        };
        if target.starts_with(folder.path()) {
            found += 1;
            let metadata = fs::metadata(entry.path()).expect("it can be looked at");
            assert_eq!(metadata.mode() & 0o777, 0o600);
            assert_eq!(metadata.nlink(), 0);
            assert!(
                metadata.blocks() * 512 >= 64 * MIB,
                "{} blocks",
                metadata.blocks()
            );
        }
    }
    assert!(found > 0, "the area is not in the folder");
    fs::write(scratch.join("go-on"), "").expect("the signal to go on can be given");
    running.wait().succeeded();
}

#[test]
fn a_file_as_area_keeps_no_secret() {
    let test = "a_file_as_area_keeps_no_secret";
    let Some(job) = full_area(test, "writes_a_secret") else {
        return;
    };
    let scratch = Scratch::new(test);
    fs::write(scratch.join("go-on"), "").expect("the signal to go on can be given");
    let path = area_file(&scratch, 256);
    let managed = Managed::limit(LIMIT).options(["--swap".as_ref(), path.as_os_str()]);
    managed.equals_bare_swapping(&job.cwd(scratch.path()));
    let left = fs::read(&path).expect("the file is still there");
    let secret = b"the secret of foreswap's test";
    let page = left
        .chunks(4096)
        .position(|page| page[128..].starts_with(secret));
    assert_eq!(page, None, "swapped memory is still in the file");
    // And it can serve again.
    managed.run(&Job::new("/bin/true")).succeeded();
}

#[test]
fn memory_file_system_as_area() {
    let test = "memory_file_system_as_area";
    if !requirement::root(test) {
        return;
    }
    let scratch = Scratch::new(test);
    let folder = scratch.path().display().to_string();
    system(&[
        "mount",
        "-t",
        "tmpfs",
        "-o",
        "size=300m,mode=700",
        "foreswap-e2e",
        &folder,
    ]);
    let _unmount = undo(&["umount", &folder]);
    if let Some(outcome) = with_area(test, "fits_both", scratch.path(), &["--swap-size", "256M"]) {
        outcome.swapped();
    }
    // No process of the run holds it any more.
    system(&["umount", &folder]);
}

#[test]
fn block_device_as_area() {
    let test = "block_device_as_area";
    if !requirement::root(test) {
        return;
    }
    let scratch = Scratch::new(test);
    let (device, _detach) = loop_device(&area_file(&scratch, 256));
    if let Some(outcome) = with_area(test, "fits_both", &PathBuf::from(device), &[]) {
        outcome.swapped();
    }
}

/// Neither area is large enough alone.
#[test]
fn two_areas() {
    let Some(path) = program::compile("two_areas", "small") else {
        return;
    };
    let (first, second) = (Scratch::new("first"), Scratch::new("second"));
    Managed::limit(LIMIT)
        .options(["--swap".as_ref(), first.path().as_os_str()])
        .options(["--swap".as_ref(), second.path().as_os_str()])
        .options(["--swap-size", "80M"])
        .equals_bare_swapping(&Job::new(path).arg("swaps_once"));
}

/// The first area is filled before the second is touched.
#[test]
fn order_gives_priority() {
    let test = "order_gives_priority";
    let Some(path) = program::compile(test, "small") else {
        return;
    };
    let (first, second) = (Scratch::new("first"), Scratch::new("second"));
    let files = [area_file(&first, 256), area_file(&second, 256)];
    let stats = first.join("stats.json");
    let mut running = Managed::limit(LIMIT)
        .options(["--swap".as_ref(), files[0].as_os_str()])
        .options(["--swap".as_ref(), files[1].as_os_str()])
        .start(&Job::new(path).arg("swaps_for_ever"), &stats);
    running.wait_for_output("ready");
    let written = |file: &PathBuf| {
        let bytes = fs::read(file).expect("the area can be read");
        // The first MiB may hold the area's header.
        bytes[MIB as usize..]
            .chunks(4096)
            .filter(|page| page.iter().any(|&b| b != 0))
            .count()
    };
    let (used, spare) = (written(&files[0]), written(&files[1]));
    assert!(
        used > 10_000 && spare == 0,
        "{used} pages in the first, {spare} in the second"
    );
}

#[test]
fn nearly_full_area_serves() {
    let scratch = Scratch::new("nearly_full");
    let options = ["--swap-size", "32M", "--full-timeout", "20s"];
    let test = "nearly_full_area_serves";
    if let Some(outcome) = with_area(test, "fits_both", scratch.path(), &options) {
        outcome.succeeded().swapped();
    }
}

#[test]
fn slots_come_back() {
    let scratch = Scratch::new("turns_over");
    let options = ["--swap-size", "48M", "--full-timeout", "20s"];
    if let Some(outcome) = with_area("slots_come_back", "turns_over", scratch.path(), &options) {
        outcome.succeeded().swapped();
    }
}

#[test]
fn thread_waits_for_room() {
    let scratch = Scratch::new("waits");
    let options = ["--swap-size", "32M", "--full-timeout", "60s"];
    let test = "thread_waits_for_room";
    if let Some(outcome) = with_area(test, "waits_for_room", scratch.path(), &options) {
        let outcome = outcome.succeeded();
        outcome.swapped();
        assert_eq!(
            full_warnings(&outcome, scratch.path()),
            1,
            "{}",
            outcome.stderr
        );
    }
}

/// How many lines say that the area in `folder` is full.
fn full_warnings(outcome: &Outcome, folder: &Path) -> usize {
    let folder = folder.display().to_string();
    let mut lines = 0;
    for line in outcome.stderr.lines() {
        lines += usize::from(line.contains(&folder) && line.contains("full"));
    }
    lines
}

/// If no page can be freed, the thread that needs one gets SIGBUS after the time-out, and the message names the area
/// and its size once.
#[test]
fn full_area_ends_in_a_bus_error() {
    let test = "full_area_ends_in_a_bus_error";
    for (part, code) in [("fits_neither", 55), ("fits_neither_unhandled", 128 + 7)] {
        let Some(job) = full_area(test, part) else {
            return;
        };
        let scratch = Scratch::new(test);
        let job = Job::shell("ulimit -c 0; exec \"$0\" \"$1\"")
            .arg(job.program())
            .arg(part);
        let outcome = Managed::limit(LIMIT)
            .options(["--swap".as_ref(), scratch.path().as_os_str()])
            .options(["--swap-size", "48M", "--full-timeout", "1s"])
            .talkative()
            .run(&job.timeout(60));
        assert_eq!(
            outcome.code(),
            code,
            "{} {}",
            outcome.text(),
            outcome.stderr
        );
        assert!(!outcome.text().contains("no bus error"));
        assert_eq!(
            full_warnings(&outcome, scratch.path()),
            1,
            "{}",
            outcome.stderr
        );
        assert!(
            outcome.stderr.contains("48"),
            "no size in {}",
            outcome.stderr
        );
        assert!(
            outcome.stderr.contains("SIGBUS"),
            "no word on the bus error: {}",
            outcome.stderr
        );
        outcome.within_limit(LIMIT * MIB);
    }
}

/// Aligned for O_DIRECT.
#[repr(align(4096))]
struct Damage([u8; 16384]);

/// The area's bytes are changed: each page read is right or gives a bus error with an explanation, never a wrong byte.
#[test]
fn damaged_area_loses_pages_and_tells() {
    let test = "damaged_area_loses_pages_and_tells";
    let Some(job) = full_area(test, "reads_after_damage") else {
        return;
    };
    for backend in ["auto", "threads"] {
        let scratch = Scratch::new(test);
        let path = area_file(&scratch, 256);
        let mut running = Managed::limit(LIMIT)
            .options(["--swap".as_ref(), path.as_os_str()])
            .options(["--io", backend])
            .talkative()
            .start(
                &job.clone().cwd(scratch.path()),
                &scratch.join("stats.json"),
            );
        running.wait_for_output("ready");
        // Past the page cache, as the pager writes: the kernel throws buffered pages away where they meet its writes,
        // with EIO for fsync.
        let file = fs::OpenOptions::new()
            .write(true)
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(&path)
            .expect("the area opens");
        for at in (2..256).step_by(8) {
            file.write_all_at(&Damage([0xd5; 16384]).0, at * MIB)
                .expect("the area can be damaged");
        }
        fs::write(scratch.join("go-on"), "").expect("the signal to go on can be given");
        let outcome = running.wait();
        assert_eq!(
            outcome.text(),
            "ready\n0 wrong, some lost, most right: 1\nreads_after_damage: as it should be\n",
            "{}",
            outcome.stderr
        );
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
        let name = path.display().to_string();
        let told = outcome
            .stderr
            .lines()
            .any(|line| line.contains(&name) && line.contains("offset"));
        assert!(
            told,
            "no line names the area and the offset: {}",
            outcome.stderr
        );
    }
}
