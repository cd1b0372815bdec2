//! `--encrypt`: nothing of the program's memory can be read on its area, nothing that is put there passes for its memory,
//! and everything else is as without it.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use foreswap_e2e::foreswap::binary;
use foreswap_e2e::process::{Running, Scratch};
use foreswap_e2e::system::area_file;
use foreswap_e2e::{Job, MIB, Managed, program};
use rustix::fs::OFlags;

/// Mebibytes; the programs fill 160.
const LIMIT: u64 = 40;

fn full_area(test: &str, part: &str) -> Option<Job> {
    Some(Job::new(program::compile(test, "full_area")?).arg(part))
}

/// Starts a part of `full_area` with the file `area`, and waits until it has filled its memory.
fn start(job: &Job, scratch: &Scratch, area: &Path, options: &[&str]) -> Running {
    let mut running = Managed::limit(LIMIT)
        .options(["--swap".as_ref(), area.as_os_str()])
        .options(options)
        .talkative()
        .start(
            &job.clone().cwd(scratch.path()),
            &scratch.join("stats.json"),
        );
    running.wait_for_output("ready");
    running
}

fn go_on(scratch: &Scratch) {
    fs::write(scratch.join("go-on"), "").expect("the signal to go on can be given");
}

/// Aligned for O_DIRECT: past the page cache, as the pager reads and writes.
#[repr(align(4096))]
struct Page([u8; 4096]);

fn direct(area: &Path) -> File {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true);
    options.custom_flags(OFlags::DIRECT.bits() as i32);
    options.open(area).expect("the area opens")
}

/// Calls `each` with all pages of the area that were ever written, and their places.
fn each_page(file: &File, mut each: impl FnMut(&mut Page, u64)) {
    let mut page = Page([0; 4096]);
    let bytes = file.metadata().expect("its size").len();
    for at in (0..bytes).step_by(4096) {
        file.read_exact_at(&mut page.0, at).expect("a page");
        if page.0.iter().any(|&byte| byte != 0) {
            each(&mut page, at);
        }
    }
}

/// Pages on the area, and those among them that show what the program wrote.
fn look(area: &Path) -> (u64, u64) {
    let (mut all, mut plain) = (0, 0);
    each_page(&direct(area), |page, _| {
        all += 1;
        plain += u64::from(
            page.0
                .windows(29)
                .any(|part| part == b"the secret of foreswap's test"),
        );
    });
    (all, plain)
}

#[test]
fn what_is_on_the_area_cannot_be_read() {
    let test = "what_is_on_the_area_cannot_be_read";
    let Some(job) = full_area(test, "writes_a_secret") else {
        return;
    };
    for options in [&["--encrypt"], &[][..]] {
        let scratch = Scratch::new(test);
        let area = area_file(&scratch, 256);
        let running = start(&job, &scratch, &area, options);
        let (all, plain) = look(&area);
        go_on(&scratch);
        running.wait().succeeded();
        assert!(all > 100 * MIB / 4096, "{all} pages");
        match options {
            // The search finds what is there.
            [] => assert!(plain > all / 2, "{plain} of {all}"),
            _ => assert_eq!(plain, 0, "of {all} pages"),
        }
    }
}

/// One bit of some pages is changed: each page read is right or gives a bus error with an explanation, never a wrong byte.
#[test]
fn a_changed_bit_is_a_bus_error() {
    let test = "a_changed_bit_is_a_bus_error";
    let Some(job) = full_area(test, "reads_after_damage") else {
        return;
    };
    for io in ["auto", "threads"] {
        let scratch = Scratch::new(test);
        let area = area_file(&scratch, 256);
        let running = start(&job, &scratch, &area, &["--encrypt", "--io", io]);
        let (file, mut number) = (direct(&area), 0_u64);
        each_page(&file, |page, at| {
            number += 1;
            if number.is_multiple_of(64) {
                page.0[(number * 7 % 4096) as usize] ^= 1 << (number / 64 % 8);
                file.write_all_at(&page.0, at)
                    .expect("the area can be changed");
            }
        });
        assert!(number > 100 * MIB / 4096, "{number} pages");
        go_on(&scratch);
        let outcome = running.wait();
        assert_eq!(
            outcome.text(),
            "ready\n0 wrong, some lost, most right: 1\nreads_after_damage: as it should be\n",
            "{}",
            outcome.stderr
        );
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
        // Pages that were in memory do not notice.
        let lost = outcome.note("lost");
        assert!(lost > number / 128 && lost <= number / 64, "{lost} lost");
        let name = area.display().to_string();
        let told = |line: &str| line.contains(&name) && line.contains("offset");
        assert!(outcome.stderr.lines().any(told), "{}", outcome.stderr);
    }
}

fn tell(runtime: &Path, words: &[&str]) {
    let output = Command::new(binary())
        .args(words)
        .env("XDG_RUNTIME_DIR", runtime)
        .stdin(Stdio::null())
        .output()
        .expect("foreswap starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {text}");
}

/// The program verifies and rewrites its memory, and forks children that verify theirs, while its area is replaced.
#[test]
fn areas_come_and_go_while_the_program_forks() {
    let test = "areas_come_and_go_while_the_program_forks";
    let Some(program) = program::compile(test, "verify_loop") else {
        return;
    };
    let scratch = Scratch::new(test);
    for folder in ["a", "b", "run"] {
        fs::create_dir(scratch.join(folder)).expect("a folder");
    }
    let [a, b] = ["a", "b"].map(|folder| scratch.join(folder).display().to_string());
    let runtime = scratch.join("run");
    let job = Job::new(program)
        .args(["160".to_owned(), scratch.join("stop").display().to_string()])
        .arg("forks")
        .env("XDG_RUNTIME_DIR", &runtime);
    let mut running = Managed::limit(LIMIT)
        .options(["--swap", &a, "--encrypt"])
        .talkative()
        .start(&job, &scratch.join("stats.json"));
    running.wait_for_output("ready");
    let pid = running.pid().as_raw_nonzero().to_string();
    for (new, old) in [(&b, &a), (&a, &b)] {
        tell(&runtime, &["swapon", &pid, new]);
        tell(&runtime, &["swapoff", &pid, old]);
    }
    fs::write(scratch.join("stop"), "").expect("a file");
    let outcome = running.wait().succeeded();
    assert!(
        outcome.text().ends_with("all right\n"),
        "{}",
        outcome.stderr
    );
}

/// Threads, forks, executed programs, huge pages, small reads, and pages that compressed memory passes on.
#[test]
fn programs_run_as_without_it() {
    let test = "programs_run_as_without_it";
    let scratch = Scratch::new(test);
    let swap = scratch.path().display().to_string();
    let cases: [(&str, &[&str], &[&str]); 7] = [
        ("torture", &["7", "3", "150"], &[]),
        (
            "torture",
            &["8", "2", "150"],
            &["--thp", "always", "--helpers", "0"],
        ),
        (
            "torture",
            &["9", "2", "100"],
            &["--readahead", "none", "--io", "threads"],
        ),
        ("huge_pages", &["in_parts"], &["--thp", "always"]),
        ("fork_calls", &["fork_and_exec"], &[]),
        ("fork_past_libc", &["reads_and_writes"], &[]),
        ("full_area", &["fits_both"], &["--swap", "ram:8M"]),
    ];
    for (name, arguments, options) in cases {
        let Some(program) = program::compile(test, name) else {
            return;
        };
        let outcome = Managed::limit(LIMIT)
            .options(options)
            .options(["--swap", &swap, "--encrypt"])
            .run(&Job::new(program).args(arguments))
            .succeeded();
        outcome.swapped();
    }
}
