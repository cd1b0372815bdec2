//! Swap areas on servers (NBD here, Redis in `redis...` and `cluster`, an object store in `s3`): the same bytes as on a disk, nothing to read on the
//! server, and what is refused. What becomes of failures is in `failures`.

mod cluster;
mod failures;
mod redis;
mod redis_access;
mod redis_runs;
mod s3;
mod tiers;
mod tls;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use foreswap_e2e::foreswap::{binary, tell};
use foreswap_e2e::nbd::Server;
use foreswap_e2e::process::{Outcome, Running, Scratch};
use foreswap_e2e::{Job, MIB, Managed, program, requirement};
use rustix::process::Signal;

/// Mebibytes; the programs fill 160.
const LIMIT: u64 = 40;
const PAGE: usize = 4096;

fn managed(address: &str) -> Managed {
    Managed::limit(LIMIT).options(["--swap", address])
}

fn full_area(test: &str, part: &str) -> Option<Job> {
    Some(Job::new(program::compile(test, "full_area")?).arg(part))
}

/// A program that writes, reads and forks on an area until it is told to end.
struct Restless {
    running: Running,
    stop: PathBuf,
}

impl Restless {
    fn start(test: &str, scratch: &Scratch, address: &str) -> Option<Self> {
        let program = program::compile(test, "verify_loop")?;
        let stop = scratch.join("stop");
        let job = Job::new(program).args(["160", &stop.display().to_string(), "forks"]);
        let mut running = managed(address)
            .talkative()
            .start(&job, &scratch.join("stats.json"));
        running.wait_for_output("ready");
        Some(Self { running, stop })
    }

    /// Ends it: all bytes were right.
    #[track_caller]
    fn end(self) -> Outcome {
        fs::write(&self.stop, "").expect("a file");
        let outcome = self.running.wait().succeeded();
        assert!(
            outcome.text().ends_with("all right\n"),
            "{}",
            outcome.stderr
        );
        outcome
    }
}

/// Starts a part of `full_area`, and waits until it has filled its memory.
fn start(job: &Job, scratch: &Scratch, managed: &Managed) -> Running {
    let job = job.clone().cwd(scratch.path());
    let managed = managed.clone().talkative();
    let mut running = managed.start(&job, &scratch.join("stats.json"));
    running.wait_for_output("ready");
    running
}

fn go_on(scratch: &Scratch) {
    fs::write(scratch.join("go-on"), "").expect("the signal to go on can be given");
}

/// A run of a program that forks (`verify_loop`), whose first area is a folder.
struct Changed {
    running: Running,
    /// That folder.
    near: String,
    /// The folder of its socket.
    runtime: PathBuf,
    pid: String,
    stop: PathBuf,
}

impl Changed {
    fn start(program: PathBuf, scratch: &Scratch) -> Self {
        for folder in ["a", "run"] {
            fs::create_dir(scratch.join(folder)).expect("a folder");
        }
        let near = scratch.join("a").display().to_string();
        let (runtime, stop) = (scratch.join("run"), scratch.join("stop"));
        let job = Job::new(program).arg("160").arg(&stop).arg("forks");
        let job = job.env("XDG_RUNTIME_DIR", &runtime);
        let mut running = managed(&near)
            .talkative()
            .start(&job, &scratch.join("stats.json"));
        running.wait_for_output("ready");
        Self {
            near,
            runtime,
            pid: running.pid().as_raw_nonzero().to_string(),
            stop,
            running,
        }
    }

    #[track_caller]
    fn tell(&self, words: &[&str]) {
        tell(&self.runtime, words);
    }

    #[track_caller]
    fn ends_right(self) -> Outcome {
        fs::write(&self.stop, "").expect("a file");
        let outcome = self.running.wait().succeeded();
        assert!(
            outcome.text().ends_with("all right\n"),
            "{}",
            outcome.stderr
        );
        outcome
    }
}

/// Kills the process that has the connections of a run.
fn kill_the_relay(running: &Running) {
    let relays: Vec<_> = foreswap_e2e::process::processes_with_tag(running.tag())
        .into_iter()
        .filter(|pid| {
            let comm = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
            comm.is_ok_and(|comm| comm.trim() == "foreswap-relay")
        })
        .collect();
    let [relay] = relays[..] else {
        panic!("{relays:?}");
    };
    rustix::process::kill_process(relay, Signal::KILL).expect("the relay can be killed");
}

/// A file that a server can export.
fn file(scratch: &Scratch, name: &str, mebibytes: u64) -> String {
    let path = scratch.join(name);
    let file = fs::File::create(&path).expect("a file");
    file.set_len(mebibytes * MIB).expect("a size");
    path.display().to_string()
}

/// Calls `each` with the pages of a file that are not zero and their offsets.
fn each_page(path: &str, mut each: impl FnMut(&mut [u8], u64)) -> u64 {
    let mut options = fs::OpenOptions::new();
    let file = options.read(true).open(path).expect("the file opens");
    let bytes = file.metadata().expect("its size").len();
    let (mut page, mut count) = ([0; PAGE], 0);
    for at in (0..bytes).step_by(PAGE) {
        file.read_exact_at(&mut page, at).expect("a page");
        if page.iter().any(|&byte| byte != 0) {
            count += 1;
            each(&mut page, at);
        }
    }
    count
}

fn says(outcome: &Outcome, words: &[&str]) {
    let found = |line: &str| words.iter().all(|word| line.contains(word));
    let any = outcome.stderr.lines().any(found);
    assert!(any, "no line with {words:?} in: {}", outcome.stderr);
}

#[test]
fn programs_run_as_on_a_disk() {
    let test = "programs_run_as_on_a_disk";
    let cases: [(&str, &[&str], &[&str]); 7] = [
        ("torture", &["7", "3", "60"], &[]),
        ("torture", &["8", "2", "50"], &["--encrypt=never"]),
        (
            "torture",
            &["9", "2", "40"],
            &["--helpers", "0", "--io", "threads"],
        ),
        ("huge_pages", &["in_parts"], &["--thp", "always"]),
        ("fork_calls", &["fork_and_exec"], &[]),
        ("fork_past_libc", &["reads_and_writes"], &[]),
        ("full_area", &["fits_both"], &["--swap", "ram:8M"]),
    ];
    for (name, arguments, options) in cases {
        let scratch = Scratch::new(test);
        let Some(server) = Server::nbdkit(test, &scratch, "s", &["memory", "512M"]) else {
            return;
        };
        let Some(program) = program::compile(test, name) else {
            return;
        };
        let outcome = Managed::limit(LIMIT)
            .options(options)
            .options(["--swap", &server.address("")])
            .run(&Job::new(program).args(arguments))
            .succeeded();
        match name {
            // A random program may end before a page comes back.
            "torture" => assert!(outcome.stats().count("swap_out_bytes") >= MIB),
            _ => outcome.swapped(),
        }
    }
}

/// Servers that allow one connection, and other servers than nbdkit.
#[test]
fn every_server_will_do() {
    let test = "every_server_will_do";
    let Some(job) = full_area(test, "fits_both") else {
        return;
    };
    let bare = job.run();
    let commands =
        ["nbd-server", "qemu-nbd", "nbdkit"].map(|name| requirement::command(test, name));
    let [Some(_), Some(qemu_nbd), Some(_)] = commands else {
        return;
    };
    for which in ["nbd-server", "qemu-nbd", "one connection"] {
        let scratch = Scratch::new(test);
        let image = file(&scratch, "image", 256);
        let socket = scratch.join("s");
        let path = socket.display().to_string();
        let line = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let (server, export) = match which {
            "nbd-server" => {
                let section = format!("[swap]\nexportname = {image}\ntrim = true\n");
                let server = Server::nbd_server(test, &scratch, &section);
                (server.expect("checked above"), "swap")
            }
            "qemu-nbd" => {
                let program = qemu_nbd.display().to_string();
                let words = [
                    "-k",
                    path.as_str(),
                    "-f",
                    "raw",
                    "-t",
                    "--discard=unmap",
                    "-x",
                    "disk",
                    &image,
                ];
                let words = [&[program.as_str()], &words[..]].concat();
                (Server::start(line(&words), socket), "disk")
            }
            _ => {
                let words = ["--filter=limit", "file", &image, "limit=1"];
                let server = Server::nbdkit(test, &scratch, "s", &words);
                // The connection that found it listening must be over.
                std::thread::sleep(Duration::from_millis(200));
                (server.expect("checked above"), "")
            }
        };
        let outcome = managed(&server.address(export)).run(&job);
        assert_eq!(outcome.code(), 0, "{which}: {}", outcome.stderr);
        outcome.equals(&bare);
        outcome.swapped();
        // What a run leaves is a free area.
        let left = each_page(&image, |_, at| assert_eq!(at, 0, "{which}: not discarded"));
        assert!(left >= 1, "{which}: the mark");
    }
}

#[test]
fn nothing_can_be_read_on_the_server() {
    let test = "nothing_can_be_read_on_the_server";
    let Some(job) = full_area(test, "writes_a_secret") else {
        return;
    };
    for options in [&[][..], &["--encrypt=never"]] {
        let scratch = Scratch::new(test);
        let image = file(&scratch, "image", 256);
        let Some(server) = Server::nbdkit(test, &scratch, "s", &["file", &image]) else {
            return;
        };
        let running = start(
            &job,
            &scratch,
            &managed(&server.address("")).options(options),
        );
        let mut plain = 0;
        let all = each_page(&image, |page, _| {
            let secret = b"the secret of foreswap's test";
            plain += u64::from(page.windows(secret.len()).any(|part| part == secret));
        });
        go_on(&scratch);
        running.wait().succeeded();
        assert!(all > 100 * MIB / PAGE as u64, "{all} pages");
        match options {
            [] => assert_eq!(plain, 0, "of {all} pages"),
            // The search finds what is there.
            _ => assert!(plain > all / 2, "{plain} of {all}"),
        }
        let left = each_page(&image, |_, at| assert_eq!(at, 0, "not discarded"));
        assert_eq!(left, 1, "the mark");
    }
}

#[test]
fn changed_bytes_are_a_bus_error() {
    let test = "changed_bytes_are_a_bus_error";
    let Some(job) = full_area(test, "reads_after_damage") else {
        return;
    };
    let scratch = Scratch::new(test);
    let image = file(&scratch, "image", 256);
    let Some(server) = Server::nbdkit(test, &scratch, "s", &["file", &image]) else {
        return;
    };
    let address = server.address("");
    let running = start(&job, &scratch, &managed(&address));
    let writer = fs::OpenOptions::new()
        .write(true)
        .open(&image)
        .expect("the file opens");
    let mut number = 0;
    each_page(&image, |page, at| {
        number += 1;
        if number % 64 == 0 && at > 0 {
            page[number * 7 % PAGE] ^= 1 << (number / 64 % 8);
            writer.write_all_at(page, at).expect("it can be changed");
        }
    });
    go_on(&scratch);
    let outcome = running.wait();
    assert_eq!(
        outcome.text(),
        "ready\n0 wrong, some lost, most right: 1\nreads_after_damage: as it should be\n",
        "{}",
        outcome.stderr
    );
    says(&outcome, &["nbd+unix", "checksum", "SIGBUS"]);
}

/// The first area of a run that does not encrypt is replaced by one on a server, and back.
#[test]
fn areas_come_and_go_while_the_program_forks() {
    let test = "far_areas_come_and_go";
    let Some(program) = program::compile(test, "verify_loop") else {
        return;
    };
    let scratch = Scratch::new(test);
    let Some(server) = Server::nbdkit(test, &scratch, "s", &["memory", "512M"]) else {
        return;
    };
    let changed = Changed::start(program, &scratch);
    let (near, far) = (changed.near.clone(), server.address(""));
    for (new, old) in [(&far, &near), (&near, &far), (&far, &near)] {
        changed.tell(&["swapon", &changed.pid, new]);
        changed.tell(&["swapoff", &changed.pid, old]);
    }
    changed.ends_right();
}

/// A server that does not answer is waited for by the one who wants it, not by the run.
#[test]
fn a_run_goes_on_while_a_server_is_asked() {
    let test = "a_run_goes_on_while_a_server_is_asked";
    let Some(program) = program::compile(test, "verify_loop") else {
        return;
    };
    let scratch = Scratch::new(test);
    let Some(server) = Server::nbdkit(test, &scratch, "s", &["memory", "256M"]) else {
        return;
    };
    let changed = Changed::start(program, &scratch);
    let far = server.address("");
    server.signal(Signal::STOP);
    let mut asking = Command::new(binary())
        .args(["swapon", &changed.pid, &far])
        .env("XDG_RUNTIME_DIR", &changed.runtime)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("foreswap starts");
    std::thread::sleep(Duration::from_millis(300));
    for _ in 0..5 {
        let began = Instant::now();
        changed.tell(&["ps", &changed.pid]);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
    assert!(
        asking.try_wait().expect("it can be looked at").is_none(),
        "it waits"
    );
    // Nobody wants the area any more when the server answers.
    asking.kill().expect("it can be killed");
    asking.wait().expect("it can be waited for");
    server.signal(Signal::CONT);
    managed(&far).run(&Job::new("/bin/true")).succeeded();
    changed.ends_right();
}

#[test]
fn an_export_that_cannot_be_used_is_refused_with_the_reason() {
    let test = "an_export_that_cannot_be_used_is_refused_with_the_reason";
    let scratch = Scratch::new(test);
    let data = scratch.join("data");
    fs::write(&data, vec![7; 8 << 20]).expect("a file");
    let data = data.display().to_string();
    let small = file(&scratch, "small", 1);
    let empty = file(&scratch, "empty", 64);
    for (words, options, expected) in [
        (
            &["file", data.as_str()][..],
            &[][..],
            &["holds data", "zeros"][..],
        ),
        (&["-r", "file", &empty], &[], &["read-only"]),
        (&["file", &small], &[], &["1 MiB", "too small"]),
        (
            &["file", &empty],
            &["--swap-size", "1G"],
            &["--swap-size", "67108864"],
        ),
        (
            &[
                "--filter=blocksize-policy",
                "file",
                &empty,
                "blocksize-minimum=8K",
                "blocksize-preferred=64K",
                "blocksize-maximum=1M",
            ],
            &[],
            &["8192", "4096"],
        ),
    ] {
        let Some(server) = Server::nbdkit(test, &scratch, "s", words) else {
            return;
        };
        let outcome = managed(&server.address(""))
            .options(options)
            .run(&Job::new("/bin/true"));
        assert_eq!(outcome.code(), 125, "{words:?}: {}", outcome.stderr);
        says(&outcome, expected);
        says(&outcome, &["nbd+unix:///?socket="]);
        drop(server);
        fs::remove_file(scratch.join("s")).ok();
    }
    assert!(
        fs::read(&data)
            .expect("it is there")
            .iter()
            .all(|&byte| byte == 7)
    );
    let nobody = format!("nbd+unix:///?socket={}", scratch.join("s").display());
    let outcome = managed(&nobody).run(&Job::new("/bin/true"));
    assert_eq!(outcome.code(), 125);
    says(&outcome, &["No such file or directory", &nobody]);
}

/// Two runs cannot have one export; one that was killed does not keep it.
#[test]
fn an_export_belongs_to_one_run() {
    let test = "an_export_belongs_to_one_run";
    let Some(job) = full_area(test, "writes_a_secret") else {
        return;
    };
    let scratch = Scratch::new(test);
    let Some(server) = Server::nbdkit(test, &scratch, "s", &["memory", "256M"]) else {
        return;
    };
    let managed = managed(&server.address(""));
    let running = start(&job, &scratch, &managed);
    let second = managed.run(&Job::new("/bin/true"));
    assert_eq!(second.code(), 125);
    says(&second, &["another foreswap is using it"]);
    // With everything that belongs to it.
    for pid in running.processes() {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
    drop(running);
    managed.run(&Job::new("/bin/true")).succeeded();
}
