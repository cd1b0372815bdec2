//! Mapped files that foreswap serves (`--map-files`): the same content as the kernel's mappings, in less memory than the
//! file has, whatever the program does to the mapping, and others to the file.

use std::ffi::OsStr;
use std::path::Path;

use foreswap_e2e::copies::Copies;
use foreswap_e2e::foreswap::{Stats, binary};
use foreswap_e2e::process::Scratch;
use foreswap_e2e::{Job, MIB, Managed, Outcome, parts, program, requirement};

/// Mebibytes. The files have 96.
const LIMIT: u64 = 64;
const FILE_PAGES: u64 = 96 * MIB / 4096;

fn managed() -> Managed {
    Managed::limit(LIMIT)
        .options(["--map-files", "*.mapped"])
        .talkative()
}

/// A part of the program, in a folder on a disk: files in memory stay the kernel's.
fn job(name: &str) -> Option<(Job, Scratch)> {
    let path = program::compile(name, "mapped_files")?;
    let scratch = Scratch::new(name);
    Some((Job::new(path).arg(name).cwd(scratch.path()), scratch))
}

#[track_caller]
fn part_with(name: &str, managed: &Managed) -> Option<Outcome> {
    let (job, _scratch) = job(name)?;
    let outcome = managed.run(&job).succeeded();
    outcome.equals(&job.run());
    assert!(
        outcome.stats().count("file_in_bytes") > 0,
        "nothing was read by foreswap: {}",
        outcome.stderr
    );
    Some(outcome)
}

#[track_caller]
fn part(name: &str) {
    if let Some(outcome) = part_with(name, &managed()) {
        outcome.within_limit(LIMIT * MIB);
    }
}

/// As [`part`]; and little of the file is in memory.
#[track_caller]
fn small_part(name: &str) {
    if let Some(outcome) = part_with(name, &managed()) {
        outcome.within_limit(LIMIT * MIB);
        let resident = outcome.note("resident");
        assert!(resident < FILE_PAGES * 3 / 4, "{resident} pages in memory");
    }
}

parts!(small_part: reads private_writes threads);
parts!(part:
    ends
    advice
    moves
    forks
    unlinked_and_replaced
    changes
    changes_beside_unmaps
    changes_beside_forks
    sparse
    own_descriptors
);

/// The child's pages cannot be evicted: the limit gives way, and the user is told.
#[test]
fn forks_past_libc() {
    if let Some(outcome) = part_with("forks_past_libc", &managed()) {
        let told = "forked by a system call of its own";
        assert!(outcome.stderr.contains(told), "{}", outcome.stderr);
    }
}

/// With threads for the I/O, without readahead, and with huge pages whole.
#[test]
fn with_other_options() {
    let others: [&[&str]; 3] = [
        &["--io", "threads"],
        &["--readahead", "none"],
        &["--thp", "always", "--swap", "ram:200M"],
    ];
    for options in others {
        part_with("private_writes", &managed().options(options));
    }
}

#[test]
fn of_the_kernel() {
    let Some((job, _scratch)) = job("of_the_kernel") else {
        return;
    };
    let outcome = managed().equals_bare(&job).succeeded();
    for told in [
        "is open for writing",
        "--map-files '*.mapped' matched no file",
    ] {
        assert!(outcome.stderr.contains(told), "{}", outcome.stderr);
    }
}

/// The limit gives way to what is locked.
#[test]
fn locked() {
    let Some((job, _scratch)) = job("locked") else {
        return;
    };
    managed().run(&job).succeeded().equals(&job.run());
}

const READS: &str = "\
import mmap, sys, zlib
with open(sys.argv[1], 'rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
    print(zlib.crc32(mapping), len(mapping))
peak = [line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')]
print('note peak_kib', peak[0], file=sys.stderr)
";

fn python(test: &str, file: &Path) -> Option<Job> {
    let python = requirement::command(test, "python3")?;
    Some(Job::new(python).args([OsStr::new("-c"), READS.as_ref(), file.as_os_str()]))
}

fn large(path: &Path) {
    let bytes: Vec<u8> = (0..40 * MIB).map(|n| ((n * n) >> 7) as u8).collect();
    let file = std::fs::File::create(path).expect("a file");
    for turn in 0..3 {
        use std::os::unix::fs::FileExt as _;
        file.write_all_at(&bytes, turn * 40 * MIB).expect("room");
    }
}

/// A program that needs no engine gets one by its first mapping. The pattern is that of a path, and of its descendants, also
/// without an environment.
#[test]
fn a_pattern_of_a_path() {
    let test = "a_pattern_of_a_path";
    let scratch = Scratch::new(test);
    let file = scratch.join("large.bin");
    large(&file);
    let Some(job) = python(test, &file) else {
        return;
    };
    let pattern = format!("{}/**", scratch.path().display());
    let bare = job.run();
    for wrapped in [job.clone(), job.under(["env", "-i"])] {
        let managed = Managed::limit(32).options(["--map-files", &pattern]);
        let outcome = managed.run(&wrapped).succeeded();
        outcome.equals(&bare);
        let peak = outcome.note("peak_kib") >> 10;
        assert!(peak < 70, "{peak} MiB of 120 were in memory");
    }
}

/// Who does not own the file gets no lease on it: changes are noticed later, and said.
#[test]
fn of_another_user() {
    let test = "of_another_user";
    let Some(setpriv) = requirement::command(test, "setpriv").filter(|_| requirement::root(test))
    else {
        return;
    };
    let Some(copies) = Copies::new(test, &["mapped_files"]) else {
        return;
    };
    // Not in memory, as /tmp may be, and in reach of that user.
    let folder = format!("/var/tmp/foreswap-{test}-{}", std::process::id());
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = Path::new(&folder).join("given.mapped");
    large(&file);
    let job = Job::new(setpriv)
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(copies.join("mapped_files"))
        .arg(test)
        .cwd(&folder)
        .timeout(60);
    let managed = Managed::limit(32)
        .binary(copies.join("foreswap"))
        .options(["--other-users", "--map-files", "*.mapped"])
        .talkative();
    let mut running = managed.start(&job, &Path::new(&folder).join("stats.json"));
    running.wait_for_output("sum");
    let opened = std::fs::OpenOptions::new().write(true).open(&file);
    std::os::unix::fs::FileExt::write_all_at(&opened.expect("a file"), b"changed!", 0)
        .expect("written");
    let outcome = running.wait().succeeded();
    std::fs::remove_dir_all(&folder).expect("it was made here");
    assert!(outcome.text().contains("\nchanged\n"), "{}", outcome.text());
    let told = "has changed while it was mapped";
    assert!(outcome.stderr.contains(told), "{}", outcome.stderr);
    let peak = outcome.note("peak_kib") >> 10;
    assert!(peak < 70, "{peak} MiB of 120 were in memory");
}

#[test]
fn bad_patterns() {
    let job = Job::new("true");
    for pattern in ["", "a\nb"] {
        let outcome = Managed::limit(LIMIT)
            .options(["--map-files", pattern])
            .run(&job);
        assert_eq!(outcome.code(), 125, "{}", outcome.stderr);
        assert!(
            outcome.stderr.contains("expected a pattern"),
            "{}",
            outcome.stderr
        );
    }
}

/// On a slow file system, with tensors in a shuffled order: the program compares each page. The mount goes with it.
#[test]
fn on_a_slow_file_system() {
    let test = "on_a_slow_file_system";
    let has_fuse = Path::new("/dev/fuse").exists();
    if !requirement::root(test) || !requirement::required(has_fuse, test, "/dev/fuse") {
        return;
    }
    let scratch = Scratch::new(test);
    let stats = scratch.join("stats.json");
    let run = |memory: &str, passes: &str| {
        let words = "workload slow-file --bytes 32M --delay 5 --bandwidth 1000 --dir";
        let program = "workload mapped --order shuffled --tensor 256K --passes";
        let job = Job::new(binary())
            .args(words.split(' '))
            .arg(scratch.path())
            .arg(binary())
            .args("run --map-files *.mapped --quiet --memory".split(' '))
            .args([memory, "--stats"])
            .arg(&stats)
            .arg("--")
            .arg(binary())
            .args(program.split(' '))
            .arg(passes)
            .timeout(60);
        let text = job.run().succeeded().text();
        (text, Stats::read(&stats))
    };
    let (text, found) = run("64M", "1");
    assert!(text.contains("\"pages\":8192"), "{text}");
    assert_eq!(found.count("swap_in_bytes"), 0);
    assert_eq!(found.count("file_dropped_bytes"), 0, "all of it fits");
    let read = found.count("file_in_bytes");
    assert!(read >= 32 * MIB, "{read}");
    let (hits, ahead) = (
        found.count("file_readahead_hits"),
        found.count("file_readahead_pages"),
    );
    assert!(
        hits > 0 && hits <= ahead && ahead * 4096 <= read,
        "{hits} of {ahead}"
    );
    let (text, found) = run("24M", "2");
    assert!(text.contains("\"pages\":16384"), "{text}");
    let [read, dropped] = ["file_in_bytes", "file_dropped_bytes"].map(|key| found.count(key));
    assert!(read >= 40 * MIB, "a quarter does not fit: {read}");
    assert!(dropped >= 8 * MIB && dropped <= read, "{dropped} of {read}");
    std::fs::remove_file(&stats).expect("the statistics");
    let left = std::fs::read_dir(scratch.path()).expect("a folder");
    assert_eq!(left.count(), 0, "the place of the mount is still there");
}
