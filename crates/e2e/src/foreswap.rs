//! Runs a job under `foreswap run`, reads its `--stats`, and compares it with the bare run.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::MIB;
use crate::process::{Job, Outcome, Running, Scratch, excerpt};

/// The `foreswap` under test: `FORESWAP_BIN`, or the one of the profile of this test, which `make test` builds before.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("FORESWAP_BIN") {
        return PathBuf::from(path);
    }
    let exe = std::env::current_exe().expect("the test knows its own path");
    let path = exe
        .ancestors()
        .nth(2)
        .expect("a test lies in <target>/<profile>/deps")
        .join("foreswap");
    assert!(
        path.exists(),
        "{} is not there: run `make quick` first",
        path.display()
    );
    path
}

/// Runs a command about a run whose sockets are in `runtime` (XDG_RUNTIME_DIR); it must succeed.
#[track_caller]
pub fn tell(runtime: &Path, words: &[&str]) {
    let output = Command::new(binary())
        .args(words)
        .env("XDG_RUNTIME_DIR", runtime)
        .stdin(Stdio::null())
        .output()
        .expect("foreswap starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {text}");
}

/// Every key that `--stats` must hold as a number.
pub const NUMBERS: [&str; 25] = [
    "elapsed_s",
    "processes",
    "memory_limit_bytes",
    "managed_bytes",
    "peak_resident_bytes",
    "faults_major",
    "faults_minor",
    "faults_zero",
    "swap_in_bytes",
    "swap_out_bytes",
    "swap_read_ios",
    "swap_write_ios",
    "readahead_pages",
    "readahead_hits",
    "readahead_hit_ratio",
    "huge_swap_in",
    "huge_swap_out",
    "huge_splits",
    "clean_drops",
    "kswapd_wakeups",
    "direct_reclaims",
    "refaults",
    "fault_ns_p50",
    "fault_ns_p99",
    "fault_ns_max",
];

/// The content of the `--stats` file.
#[derive(Debug)]
pub struct Stats(pub Value);

impl Stats {
    /// Reads the file at `path`.
    #[track_caller]
    pub fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path)
            .unwrap_or_else(|error| panic!("no statistics at {}: {error}", path.display()));
        Self(serde_json::from_str(&text).unwrap_or_else(|error| {
            panic!("the statistics are no JSON object ({error}): {text:?}")
        }))
    }

    /// The number at `key`.
    #[track_caller]
    pub fn number(&self, key: &str) -> f64 {
        self.0[key]
            .as_f64()
            .unwrap_or_else(|| panic!("statistics: {key} is no number in {}", self.0))
    }

    /// The whole number at `key`.
    #[track_caller]
    pub fn count(&self, key: &str) -> u64 {
        self.0[key]
            .as_u64()
            .unwrap_or_else(|| panic!("statistics: {key} is no whole number in {}", self.0))
    }
}

/// Bytes by which several processes may pass the limit: 256 pages.
const SLACK: u64 = MIB;

/// Bytes that an engine may use in addition to a hundredth of the memory that it manages.
const ENGINE: u64 = 16 * MIB;

/// The options of `foreswap run`.
#[derive(Clone)]
pub struct Managed {
    limit: u64,
    memory: String,
    options: Vec<OsString>,
    quiet: bool,
    wrapper: Vec<OsString>,
    binary: PathBuf,
}

impl Managed {
    /// With `--memory {mebibytes}M`, and `--quiet`.
    pub fn limit(mebibytes: u64) -> Self {
        Self {
            limit: mebibytes * MIB,
            memory: format!("{mebibytes}M"),
            options: Vec::new(),
            quiet: true,
            wrapper: Vec::new(),
            binary: binary(),
        }
    }

    /// With `--memory {memory}`, and `--quiet`.
    pub fn memory(memory: &str) -> Self {
        Self {
            memory: memory.to_owned(),
            ..Self::limit(0)
        }
    }

    /// With further options of `run`.
    pub fn options<T: AsRef<OsStr>>(mut self, options: impl IntoIterator<Item = T>) -> Self {
        self.options
            .extend(options.into_iter().map(|option| option.as_ref().to_owned()));
        self
    }

    /// Without `--quiet`.
    pub fn talkative(mut self) -> Self {
        self.quiet = false;
        self
    }

    /// With foreswap itself started by `wrapper` (a launcher that takes a command line).
    pub fn started_by<T: AsRef<OsStr>>(mut self, wrapper: impl IntoIterator<Item = T>) -> Self {
        self.wrapper = wrapper
            .into_iter()
            .map(|word| word.as_ref().to_owned())
            .collect();
        self
    }

    /// With another copy of foreswap.
    pub fn binary(mut self, path: PathBuf) -> Self {
        self.binary = path;
        self
    }

    /// The command line up to and including `--`; statistics go to `stats`.
    pub fn command_line(&self, stats: &Path) -> Vec<OsString> {
        let mut line = self.wrapper.clone();
        line.push(self.binary.clone().into_os_string());
        line.push("run".into());
        line.push("--memory".into());
        line.push(self.memory.clone().into());
        line.push("--stats".into());
        line.push(stats.as_os_str().to_owned());
        line.extend(self.options.iter().cloned());
        if self.quiet {
            line.push("--quiet".into());
        }
        line.push("--".into());
        line
    }

    /// Starts `job` under foreswap.
    pub fn start(&self, job: &Job, stats: &Path) -> Running {
        job.under(self.command_line(stats)).start()
    }

    /// Runs `job` under foreswap to its end and reads the statistics.
    #[track_caller]
    pub fn run(&self, job: &Job) -> Outcome {
        let scratch = Scratch::new("stats");
        let path = scratch.join("stats.json");
        if !self.wrapper.is_empty() {
            // The launcher may change to another user, who must be able to write there.
            use std::os::unix::fs::PermissionsExt;
            let open = fs::Permissions::from_mode(0o777);
            fs::set_permissions(scratch.path(), open).expect("the mode can be set");
        }
        let mut outcome = self.start(job, &path).wait();
        if path.exists() {
            outcome.stats = Some(Stats::read(&path));
        }
        outcome
    }

    /// Runs `job` bare and under foreswap. Output and status must be equal, and the limit must hold. Returns the
    /// managed run.
    #[track_caller]
    pub fn equals_bare(&self, job: &Job) -> Outcome {
        let bare = job.run();
        let managed = self.run(job);
        managed.equals(&bare);
        managed.within_limit(self.limit);
        managed
    }

    /// As [`Managed::equals_bare`], for a job that must end with 0 and must have swapped.
    #[track_caller]
    pub fn equals_bare_swapping(&self, job: &Job) -> Outcome {
        let managed = self.equals_bare(job).succeeded();
        managed.swapped();
        managed
    }
}

impl Outcome {
    /// Fails unless output and status are those of `bare`.
    #[track_caller]
    pub fn equals(&self, bare: &Outcome) {
        assert!(
            self.code() == bare.code() && self.stdout == bare.stdout,
            "under foreswap: status {}, stdout {}\nstderr: {}\nbare: status {}, stdout {}\nstderr: {}",
            self.code(),
            excerpt(&self.stdout),
            self.stderr,
            bare.code(),
            excerpt(&bare.stdout),
            bare.stderr,
        );
    }

    /// The statistics; fails when there are none.
    #[track_caller]
    pub fn stats(&self) -> &Stats {
        self.stats.as_ref().unwrap_or_else(|| {
            panic!(
                "no statistics were written; status {}, stderr: {}",
                self.code(),
                self.stderr
            )
        })
    }

    /// Fails unless the limit was `limit`, the peak within it, and the engines' own memory as small as promised.
    /// Several processes may exceed it by a slack. During the hold of a fork nothing is evicted, and a thread that has
    /// waited for its end for 50 ms still gets a page, as the forking thread may need a lock of it.
    #[track_caller]
    pub fn within_limit(&self, limit: u64) {
        self.within(limit, 0);
    }

    /// The same if the command forks: the limit may be exceeded by the amount in the statistics, at most a sixteenth.
    #[track_caller]
    pub fn within_limit_but_for_forks(&self, limit: u64) {
        let over = &self.stats().0["over_limit_bytes"];
        let named = [&over["forks"], &over["present"]].map(|bytes| bytes.as_u64().unwrap_or(0));
        self.within(limit, named.into_iter().max().unwrap_or(0).min(limit / 16));
    }

    #[track_caller]
    fn within(&self, limit: u64, named: u64) {
        let stats = self.stats();
        assert_eq!(stats.count("memory_limit_bytes"), limit);
        let peak = stats.count("peak_resident_bytes");
        let several = stats.count("processes") > 1;
        let allowed = limit + named + if several { SLACK } else { 0 };
        let over = &stats.0["over_limit_bytes"];
        assert!(
            peak <= allowed,
            "peak {peak} above the limit {limit}, because of {over}; {}",
            self.stderr
        );
        let (own, managed) = (stats.count("engine_bytes"), stats.count("managed_bytes"));
        let promised = managed / 100 + stats.count("processes") * ENGINE;
        assert!(
            own <= promised,
            "the engines take {own} bytes for {managed} managed"
        );
    }

    /// Fails unless pages were written and read back: without that a comparison proves nothing.
    #[track_caller]
    pub fn swapped(&self) {
        let stats = self.stats();
        assert!(
            stats.count("swap_out_bytes") >= MIB,
            "nothing was swapped out: {}",
            stats.0
        );
        assert!(
            stats.count("swap_in_bytes") > 0 && stats.count("faults_major") > 0,
            "nothing was swapped in: {}",
            stats.0
        );
    }
}
