//! Real programs, unmodified, in a quarter to a half of the memory that they need: each must produce exactly the output
//! of a run without a limit. `make test` runs them at sizes for a small machine; `make test-full` (FORESWAP_E2E_FULL=1)
//! at the sizes of the project's promise.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use foreswap_e2e::inputs::{Random, size, source};
use foreswap_e2e::process::{Running, Scratch};
use foreswap_e2e::requirement::{self, venv_python};
use foreswap_e2e::{Job, Managed, Outcome};

#[track_caller]
fn same_file(left: &Path, right: &Path) {
    Job::new("cmp").arg(left).arg(right).run().succeeded();
}

fn sort(test: &str, threads: u64) {
    let Some(sort) = requirement::command(test, "sort") else {
        return;
    };
    let scratch = Scratch::new(test);
    let input = scratch.join("input");
    let mut file = BufWriter::new(File::create(&input).expect("the input can be made"));
    let mut random = Random(threads);
    let lines = size(50, 600) * 1_000_000 / 40;
    for _ in 0..lines {
        let (key, rest) = (random.number(), random.number());
        writeln!(file, "{key:016x} {rest:020} ab").expect("the input can be written");
    }
    drop(file);
    let (bare, managed) = (scratch.join("bare"), scratch.join("managed"));
    let job = |output: &Path| {
        Job::new(&sort)
            .args([
                "-S",
                &format!("{}M", size(200, 2400)),
                &format!("--parallel={threads}"),
                "-o",
            ])
            .args([output, &input])
            .env("LC_ALL", "C")
            .env("TMPDIR", scratch.path())
    };
    job(&bare).run().succeeded();
    let limit = size(64, 768);
    let outcome = Managed::limit(limit).run(&job(&managed)).succeeded();
    outcome.within_limit(limit << 20);
    outcome.swapped();
    same_file(&bare, &managed);
}

#[test]
fn gnu_sort() {
    sort("gnu_sort", 1);
}

#[test]
fn gnu_sort_with_two_threads() {
    sort("gnu_sort_with_two_threads", 2);
}

/// Runs a Python program of ours bare and at `limit` mebibytes.
#[track_caller]
fn python(test: &str, name: &str, arguments: &[&str], limit: u64) -> Option<Outcome> {
    let job = Job::new(venv_python(test)?)
        .arg(source(name))
        .args(arguments)
        .env("PYTHONHASHSEED", "0")
        .env("OPENBLAS_NUM_THREADS", "2");
    Some(Managed::limit(limit).equals_bare_swapping(&job))
}

#[test]
fn numpy() {
    let mebibytes = size(256, 1024).to_string();
    python("numpy", "numpy_job.py", &[&mebibytes], size(64, 256));
}

#[track_caller]
fn multiprocessing(test: &str, method: &str, kind: &str, mebibytes: u64, limit: u64) {
    let mebibytes = mebibytes.to_string();
    let arguments = [method, kind, &mebibytes];
    if let Some(outcome) = python(test, "shared_list.py", &arguments, limit) {
        let managed = outcome.stats().count("processes");
        assert!(managed >= 3, "only {managed} processes were managed");
    }
}

#[test]
fn multiprocessing_forks_over_a_list() {
    let (mebibytes, limit) = (size(150, 300), size(64, 128));
    multiprocessing(
        "multiprocessing_forks_over_a_list",
        "fork",
        "list",
        mebibytes,
        limit,
    );
}

#[test]
fn multiprocessing_forks_over_an_array() {
    let (mebibytes, limit) = (size(150, 300), size(64, 128));
    multiprocessing(
        "multiprocessing_forks_over_an_array",
        "fork",
        "array",
        mebibytes,
        limit,
    );
}

#[test]
fn multiprocessing_spawns() {
    let (mebibytes, limit) = (size(240, 600), size(96, 192));
    multiprocessing("multiprocessing_spawns", "spawn", "array", mebibytes, limit);
}

#[test]
fn sqlite_in_memory() {
    let mebibytes = size(120, 500).to_string();
    python(
        "sqlite_in_memory",
        "sqlite_job.py",
        &[&mebibytes],
        size(48, 128),
    );
}

#[test]
fn java_heap() {
    let test = "java_heap";
    let (Some(java), Some(javac)) = (
        requirement::command(test, "java"),
        requirement::command(test, "javac"),
    ) else {
        return;
    };
    let scratch = Scratch::new(test);
    Job::new(javac)
        .arg("-d")
        .arg(scratch.path())
        .arg(source("HeapJob.java"))
        .run()
        .succeeded();
    let heap = size(300, 1024);
    let job = Job::new(java)
        .args([
            format!("-Xms{heap}m"),
            format!("-Xmx{heap}m"),
            "-XX:ParallelGCThreads=2".to_owned(),
        ])
        .arg("-cp")
        .arg(scratch.path())
        .arg("HeapJob")
        .arg((heap * 2 / 3).to_string())
        .timeout(size(240, 1800));
    Managed::limit(size(128, 384)).equals_bare_swapping(&job);
}

#[test]
fn gcc_on_a_large_file() {
    let test = "gcc_on_a_large_file";
    let Some(gcc) = requirement::command(test, "gcc") else {
        return;
    };
    let scratch = Scratch::new(test);
    let mut source = String::from("static unsigned table[] = {\n");
    let mut random = Random(5);
    for _ in 0..size(500_000, 2_000_000) {
        source += &format!("{}u,\n", random.number() as u32);
    }
    source += "};\nunsigned f0(unsigned a, unsigned b) { return table[a % 500000u] + b; }\n";
    for i in 1..300 {
        source += &format!(
            "unsigned f{i}(unsigned a, unsigned b) {{ unsigned s = {i}; for (unsigned i = a; i < b; i++) {{ \
             s += table[(i * {}u) % 500000u]; if (s & 1) s ^= f{}(a + 1, b); else s = s * 31 + i; }} return s; }}\n",
            i * 7 + 1,
            i - 1
        );
    }
    let path = scratch.join("large.c");
    fs::write(&path, source).expect("the source can be written");
    let (bare, managed) = (scratch.join("bare.o"), scratch.join("managed.o"));
    let job = |output: &Path| {
        let names = [Path::new("-o"), output, &path];
        Job::new(&gcc).args(["-c", "-O1"]).args(names).timeout(300)
    };
    job(&bare).run().succeeded();
    let limit = size(48, 192);
    let outcome = Managed::limit(limit).run(&job(&managed)).succeeded();
    outcome.within_limit(limit << 20);
    outcome.swapped();
    same_file(&bare, &managed);
}

/// A Redis server on a socket in a folder of its own.
struct Redis {
    running: Running,
    socket: PathBuf,
}

impl Redis {
    /// Starts the server by `start`, which gets the job, and waits until it answers.
    #[track_caller]
    fn start(server: &Path, folder: &Path, start: impl FnOnce(&Job) -> Running) -> Self {
        let socket = folder.join("socket");
        let _ = fs::remove_file(&socket);
        let job = Job::new(server)
            .args([
                "--port",
                "0",
                "--save",
                "",
                "--appendonly",
                "no",
                "--daemonize",
                "no",
            ])
            .args(["--enable-debug-command", "yes", "--dbfilename", "dump.rdb"])
            .args([
                "--unixsocket".as_ref(),
                socket.as_os_str(),
                "--dir".as_ref(),
                folder.as_os_str(),
            ])
            .timeout(size(300, 3000));
        let mut redis = Self {
            running: start(&job),
            socket,
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !redis.socket.exists() || !redis.ask("PING").contains("PONG") {
            assert!(
                Instant::now() < deadline && !redis.running.has_ended(),
                "the server does not answer: {}",
                redis.running.stdout_so_far()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        redis
    }

    fn command(&self, program: &str) -> Job {
        Job::new(requirement::find_command(program).unwrap_or_else(|| program.into()))
            .arg("-s")
            .arg(&self.socket)
            .timeout(size(200, 2000))
    }

    fn ask(&self, words: &str) -> String {
        self.command("redis-cli")
            .args(words.split(' '))
            .run()
            .text()
            .trim()
            .to_owned()
    }

    /// Fills database 0 with the values in `input`, in Redis' own protocol.
    #[track_caller]
    fn load(&self, input: &Path) {
        let outcome = self
            .command("redis-cli")
            .arg("--pipe")
            .stdin(input)
            .run()
            .succeeded();
        assert!(outcome.text().contains("errors: 0"), "{}", outcome.text());
    }

    /// The job of the test: load, save in the background while others write, digest.
    #[track_caller]
    fn work(&self, input: &Path) -> String {
        self.load(input);
        let before = self.ask("DEBUG DIGEST");
        let saved = self.ask("LASTSAVE");
        // LASTSAVE counts in seconds.
        std::thread::sleep(Duration::from_millis(1100));
        assert!(self.ask("BGSAVE").contains("started"));
        let bench = self
            .command("redis-benchmark")
            .args([
                "--dbnum", "1", "-q", "-n", "20000", "-r", "5000", "-d", "1024", "-P", "8",
            ])
            .args(["-t", "set,get,lpush,lrange_100,sadd,hset"])
            .run()
            .succeeded();
        assert!(bench.text().contains("SET"), "{}", bench.text());
        let deadline = Instant::now() + Duration::from_secs(size(120, 1200));
        while self.ask("LASTSAVE") == saved {
            assert!(
                Instant::now() < deadline,
                "BGSAVE never ended: {}",
                self.ask("INFO persistence")
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(
            self.ask("INFO persistence")
                .contains("rdb_last_bgsave_status:ok")
        );
        self.ask("-n 1 FLUSHDB");
        assert_eq!(
            self.ask("DEBUG DIGEST"),
            before,
            "after the background save"
        );
        before
    }

    #[track_caller]
    fn stop(self) -> Outcome {
        self.ask("SHUTDOWN NOSAVE");
        self.running.wait().succeeded()
    }
}

/// Values of 10 kB, small ones, hashes and lists, as commands; about `mebibytes` of them.
fn redis_input(path: &Path, mebibytes: u64) {
    let mut file = BufWriter::new(File::create(path).expect("the input can be made"));
    let mut random = Random(77);
    let mut command = |words: &[&str]| {
        write!(file, "*{}\r\n", words.len()).expect("the input can be written");
        for word in words {
            write!(file, "${}\r\n{word}\r\n", word.len()).expect("the input can be written");
        }
    };
    for i in 0..mebibytes * 90 {
        let value = format!("{:016x}", random.number()).repeat(640);
        command(&["SET", &format!("value:{i}"), &value]);
        let small = format!("{:x}", random.number());
        command(&["SET", &format!("small:{i}"), &small]);
        command(&[
            "HSET",
            &format!("hash:{}", i % 500),
            &format!("field {i}"),
            &small,
        ]);
        command(&["RPUSH", &format!("list:{}", i % 50), &small]);
    }
}

#[test]
fn redis_with_a_background_save() {
    let test = "redis_with_a_background_save";
    let Some(server) = requirement::command(test, "redis-server") else {
        return;
    };
    if requirement::command(test, "redis-benchmark").is_none() {
        return;
    }
    let scratch = Scratch::new(test);
    let input = scratch.join("input");
    redis_input(&input, size(160, 1024));
    // Socket paths are short: 107 bytes at most.
    let short = std::env::temp_dir().join(format!("foreswap-redis-{}", std::process::id()));
    fs::create_dir_all(&short).expect("a folder can be made");
    let folder = RemoveOnDrop(short);

    let bare = Redis::start(&server, &folder.0, Job::start);
    let digest = bare.work(&input);
    bare.stop();
    fs::remove_file(folder.0.join("dump.rdb")).expect("the bare run saved");

    let limit = size(60, 256);
    let stats = scratch.join("stats.json");
    let managed = Redis::start(&server, &folder.0, |job| {
        Managed::limit(limit).start(job, &stats)
    });
    assert_eq!(managed.work(&input), digest);
    let mut outcome = managed.stop();
    outcome.stats = Some(foreswap_e2e::Stats::read(&stats));
    outcome.within_limit(limit << 20);
    outcome.swapped();
    let processes = outcome.stats().count("processes");
    assert!(
        processes >= 2,
        "the saving child was not managed ({processes} processes were)"
    );

    // The child saved the parent's state at the fork.
    let loaded = Redis::start(&server, &folder.0, Job::start);
    loaded.ask("-n 1 FLUSHDB");
    assert_eq!(loaded.ask("DEBUG DIGEST"), digest, "the saved file");
    loaded.stop();
}

struct RemoveOnDrop(PathBuf);

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
