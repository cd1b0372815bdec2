//! `--encrypt`: nothing of the program's memory can be read on its area, nothing that is put there passes for its memory,
//! and everything else is as without it.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use foreswap_e2e::foreswap::tell;
use foreswap_e2e::process::{Running, Scratch};
use foreswap_e2e::system::area_file;
use foreswap_e2e::{Job, MIB, Managed, program, requirement};
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

const PAGE: u64 = 4096;

/// Aligned for O_DIRECT: past the page cache, as the pager reads and writes.
#[repr(align(4096))]
struct Part([u8; MIB as usize]);

fn direct(area: &Path) -> File {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true);
    options.custom_flags(OFlags::DIRECT.bits() as i32);
    options.open(area).expect("the area opens")
}

/// Calls `each` with all pages of the area that were ever written, and their places.
fn each_page(file: &File, mut each: impl FnMut(&mut [u8], u64)) {
    let mut part = Box::new(Part([0; MIB as usize]));
    let bytes = file.metadata().expect("its size").len();
    for start in (0..bytes).step_by(MIB as usize) {
        file.read_exact_at(&mut part.0, start)
            .expect("a part of the area");
        let pages = part.0.chunks_mut(PAGE as usize);
        for (page, at) in pages.zip((start..).step_by(PAGE as usize)) {
            if page.iter().any(|&byte| byte != 0) {
                each(page, at);
            }
        }
    }
}

/// Pages on the area, and those among them that show what the program wrote.
fn look(area: &Path) -> (u64, u64) {
    let (mut all, mut plain) = (0, 0);
    each_page(&direct(area), |page, _| {
        all += 1;
        let secret = b"the secret of foreswap's test";
        plain += u64::from(page.windows(secret.len()).any(|part| part == secret));
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
        assert!(all > 100 * MIB / PAGE, "{all} pages");
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
                page[(number * 7 % PAGE) as usize] ^= 1 << (number / 64 % 8);
                file.write_all_at(page, at)
                    .expect("the area can be changed");
            }
        });
        assert!(number > 100 * MIB / PAGE, "{number} pages");
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

/// The command ends, and a program that it has left goes on to fork: a copy of the supervisor has the key.
#[test]
fn what_the_command_leaves_behind_keeps_its_memory() {
    let test = "what_the_command_leaves_behind_keeps_its_memory";
    let Some(program) = program::compile(test, "verify_loop") else {
        return;
    };
    let scratch = Scratch::new(test);
    let script = "\"$0\" 160 stop forks >said 2>&1 & until grep -q ready said; do sleep 0.05; done";
    let job = Job::shell(script).arg(&program).cwd(scratch.path());
    let mut running = Managed::limit(LIMIT)
        .options(["--encrypt"])
        .start(&job, &scratch.join("stats.json"));
    while !running.has_ended() {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_secs(1));
    fs::write(scratch.join("stop"), "").expect("a file");
    let said = || fs::read_to_string(scratch.join("said")).expect("its words");
    let end = Instant::now() + Duration::from_secs(30);
    while !said().ends_with("all right\n") {
        assert!(Instant::now() < end, "{}", said());
        std::thread::sleep(Duration::from_millis(20));
    }
    running.wait().succeeded();
}

/// Threads, forks, executed programs, huge pages, small reads, and pages that compressed memory passes on.
#[test]
fn programs_run_as_without_it() {
    let test = "programs_run_as_without_it";
    let scratch = Scratch::new(test);
    let swap = scratch.path().display().to_string();
    let cases: [(&str, &[&str], &[&str]); 7] = [
        ("torture", &["7", "3", "60"], &[]),
        (
            "torture",
            &["8", "2", "50"],
            &["--thp", "always", "--helpers", "0"],
        ),
        (
            "torture",
            &["9", "2", "40"],
            &["--readahead", "none", "--io", "threads"],
        ),
        ("huge_pages", &["in_parts"], &["--thp", "always"]),
        ("fork_calls", &["fork_and_exec"], &[]),
        ("fork_past_libc", &["reads_and_writes"], &[]),
        ("full_area", &["fits_both"], &["--swap", "ram:8M"]),
    ];
    // A random program may end before a page that went out comes back: `properties`.
    let mut came_in = 0;
    for (name, arguments, options) in cases {
        let Some(program) = program::compile(test, name) else {
            return;
        };
        let outcome = Managed::limit(LIMIT)
            .options(options)
            .options(["--swap", &swap, "--encrypt"])
            .run(&Job::new(program).args(arguments))
            .succeeded();
        if name != "torture" {
            outcome.swapped();
            continue;
        }
        let stats = outcome.stats();
        assert!(stats.count("swap_out_bytes") >= MIB, "{}", stats.0);
        came_in += stats.count("swap_in_bytes");
    }
    assert!(came_in > 0, "no random program read a page back");
}

/// Where the kernel's memory for secrets is refused, the key is in locked memory.
#[test]
fn without_memory_for_secrets() {
    let test = "without_memory_for_secrets";
    // memfd_secret, which older headers do not name.
    let refused = ["-DFIRST=447", "-DLAST=447"];
    let launcher = program::compile_with(test, "without_io_uring", &refused);
    let (Some(launcher), Some(job)) = (launcher, full_area(test, "fits_both")) else {
        return;
    };
    let managed = Managed::limit(LIMIT)
        .options(["--encrypt"])
        .started_by([launcher]);
    managed.equals_bare_swapping(&job);
}

/// Without a page that may be locked nothing is started: the key would be swapped out in the end.
#[test]
fn refused_where_nothing_may_be_locked() {
    let test = "refused_where_nothing_may_be_locked";
    let commands = ["prlimit", "setpriv"].map(|name| requirement::command(test, name));
    if !requirement::root(test) || commands.iter().any(Option::is_none) {
        return;
    }
    let wrapper = ["prlimit", "--memlock=0", "setpriv", "--inh-caps=-ipc_lock"];
    let wrapper = wrapper.into_iter().chain(["--bounding-set=-ipc_lock"]);
    for (options, code) in [(&["--encrypt"][..], 125), (&[], 0)] {
        let outcome = Managed::limit(LIMIT)
            .options(options)
            .started_by(wrapper.clone())
            .run(&Job::new("/bin/true"));
        assert_eq!(outcome.code(), code, "{}", outcome.stderr);
        let expected = code == 0
            || ["locked", "--encrypt", "limit", "is 0 bytes", "`ulimit -l`"]
                .iter()
                .all(|word| outcome.stderr.contains(word));
        assert!(expected, "{}", outcome.stderr);
    }
}
