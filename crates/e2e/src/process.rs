//! Runs one command to its end, or to its time-out, and keeps its output.
//!
//! Output goes to files, not pipes, so that a left-over descendant that holds a stream open cannot hang a test. Every
//! process of a run carries a tag in its environment. At a time-out exactly the processes with the run's tag are
//! killed, wherever they are.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::foreswap::Stats;

static RUNS: AtomicU64 = AtomicU64::new(0);

/// The environment variable that marks every process of a run.
pub const TAG: &str = "E2E_RUN_TAG";

/// The build's folder for temporary files: a disk, and not a tmpfs, which would be memory.
pub(crate) fn target_tmp() -> PathBuf {
    let exe = std::env::current_exe().expect("the test knows its own path");
    exe.ancestors()
        .nth(3)
        .expect("a test lies in <target>/<profile>/deps")
        .join("tmp")
}

/// A folder of this test alone, 0700, removed on drop.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes a fresh, empty folder whose name holds `name`.
    pub fn new(name: &str) -> Self {
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let path = target_tmp().join(format!("{name}-{}-{run}", std::process::id()));
        fs::create_dir_all(&path).expect("the scratch folder can be made");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700))
            .expect("the scratch folder's mode can be set");
        Self { path }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path inside the folder.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Seconds from `FORESWAP_E2E_TIMEOUT`, or ten to a hundred times the duration of a run: hosts take most of the CPU
/// time for minutes.
fn default_timeout() -> Duration {
    let asked = std::env::var("FORESWAP_E2E_TIMEOUT").ok();
    let seconds = asked.and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(if crate::full_size() { 1200 } else { 300 }))
}

/// A command with everything that its run needs.
#[derive(Clone)]
pub struct Job {
    argv: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    cwd: Option<PathBuf>,
    stdin: Option<PathBuf>,
    stdout: Option<PathBuf>,
    timeout: Duration,
}

impl Job {
    /// A run of `program`, without arguments, with nothing on standard input.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            argv: vec![program.as_ref().to_owned()],
            env: Vec::new(),
            cwd: None,
            stdin: None,
            stdout: None,
            timeout: default_timeout(),
        }
    }

    /// A run of `/bin/sh -c script`.
    pub fn shell(script: &str) -> Self {
        Self::new("/bin/sh").arg("-c").arg(script)
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.argv.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<T: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.argv
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable, on top of the test's own.
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env
            .push((key.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Sets the working folder.
    pub fn cwd(mut self, folder: impl AsRef<Path>) -> Self {
        self.cwd = Some(folder.as_ref().to_owned());
        self
    }

    /// Reads standard input from `file`.
    pub fn stdin(mut self, file: impl AsRef<Path>) -> Self {
        self.stdin = Some(file.as_ref().to_owned());
        self
    }

    /// Sends standard output to `file` instead of [`Outcome::stdout`].
    pub fn stdout(mut self, file: impl AsRef<Path>) -> Self {
        self.stdout = Some(file.as_ref().to_owned());
        self
    }

    /// Sets the time after which the run is killed and the test fails.
    pub fn timeout(mut self, seconds: u64) -> Self {
        self.timeout = Duration::from_secs(seconds);
        self
    }

    /// The same job with `prefix` before its command line.
    pub fn under<T: AsRef<OsStr>>(&self, prefix: impl IntoIterator<Item = T>) -> Self {
        let mut job = self.clone();
        job.argv = prefix
            .into_iter()
            .map(|word| word.as_ref().to_owned())
            .chain(self.argv.iter().cloned())
            .collect();
        job
    }

    /// The program that the job runs.
    pub fn program(&self) -> &OsStr {
        &self.argv[0]
    }

    /// Starts the job as it is.
    pub fn start(&self) -> Running {
        let scratch = Scratch::new("run");
        let tag = format!(
            "{}-{}",
            std::process::id(),
            RUNS.fetch_add(1, Ordering::Relaxed)
        );
        let stdout = self.stdout.clone().unwrap_or(scratch.join("stdout"));
        let create = |path: &Path| File::create(path).expect("an output file can be made");
        let mut command = Command::new(&self.argv[0]);
        command
            .args(&self.argv[1..])
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .env(TAG, &tag)
            .stdout(create(&stdout))
            .stderr(create(&scratch.join("stderr")))
            .stdin(match &self.stdin {
                Some(path) => Stdio::from(File::open(path).expect("the input file opens")),
                None => Stdio::null(),
            });
        if let Some(folder) = &self.cwd {
            command.current_dir(folder);
        }
        let started = Instant::now();
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{:?} does not start: {error}", self.argv[0]));
        Running {
            child,
            tag,
            scratch,
            stdout: self.stdout.is_none().then_some(stdout),
            started,
            timeout: self.timeout,
            line: self.argv.join(OsStr::new(" ")),
        }
    }

    /// Runs the job as it is, to its end.
    #[track_caller]
    pub fn run(&self) -> Outcome {
        self.start().wait()
    }
}

/// A running job; its remaining processes are killed on drop.
pub struct Running {
    child: Child,
    tag: String,
    scratch: Scratch,
    stdout: Option<PathBuf>,
    started: Instant,
    timeout: Duration,
    line: OsString,
}

impl Running {
    /// The process that was started (foreswap itself in a managed run).
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The tag of the run's processes, for [`processes_with_tag`].
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// All processes of the run that are alive.
    pub fn processes(&self) -> Vec<Pid> {
        processes_with_tag(&self.tag)
    }

    /// The engines of the run's processes.
    pub fn engines(&self) -> Vec<Pid> {
        self.processes().into_iter().filter(is_engine).collect()
    }

    /// The run's processes whose executable's name is `name`, without their engines, which have the same name.
    pub fn processes_named(&self, name: &str) -> Vec<Pid> {
        self.processes()
            .into_iter()
            .filter(|pid| !is_engine(pid))
            .filter(|pid| {
                fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero()))
                    .is_ok_and(|exe| exe.file_name() == Some(OsStr::new(name)))
            })
            .collect()
    }

    /// Standard output so far.
    pub fn stdout_so_far(&self) -> String {
        self.stdout.as_ref().map_or_else(String::new, |path| {
            String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
        })
    }

    /// Waits until standard output holds `text`; fails at the job's time-out or when it ends first.
    #[track_caller]
    pub fn wait_for_output(&mut self, text: &str) {
        loop {
            let ended = self.has_ended();
            if self.stdout_so_far().contains(text) {
                return;
            }
            assert!(
                !ended && self.started.elapsed() < self.timeout,
                "{:?} never said {text:?}; it said {:?} and {:?}",
                self.line,
                self.stdout_so_far(),
                fs::read_to_string(self.scratch.join("stderr")).unwrap_or_default(),
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// True when the started process has ended.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// True when it has exceeded the job's time-out: [`Running::wait`] ends it.
    pub fn is_overdue(&self) -> bool {
        self.started.elapsed() > self.timeout
    }

    /// Waits for the end; a time-out kills the run and fails the test.
    #[track_caller]
    pub fn wait(mut self) -> Outcome {
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("the child can be waited for") {
                break Some(status);
            }
            if self.is_overdue() {
                break None;
            }
            thread::sleep(Duration::from_millis(2));
        };
        let elapsed = self.started.elapsed();
        let state = if status.is_none() {
            self.describe_processes()
        } else {
            String::new()
        };
        let stdout = self
            .stdout
            .as_ref()
            .map(|path| fs::read(path).unwrap_or_default())
            .unwrap_or_default();
        let stderr =
            String::from_utf8_lossy(&fs::read(self.scratch.join("stderr")).unwrap_or_default())
                .into_owned();
        let Some(status) = status else {
            panic!(
                "{:?} had not ended after {elapsed:?}; killed.\nprocesses:\n{state}stdout: {}\nstderr: {}",
                self.line,
                excerpt(&stdout),
                excerpt(stderr.as_bytes()),
            );
        };
        Outcome {
            status,
            stdout,
            stderr,
            elapsed,
            stats: None,
        }
    }

    fn describe_processes(&self) -> String {
        let mut text = String::new();
        for pid in self.processes() {
            let pid = pid.as_raw_nonzero();
            for task in fs::read_dir(format!("/proc/{pid}/task"))
                .into_iter()
                .flatten()
            {
                let Ok(task) = task else { continue };
                let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
                let state = read("stat");
                let state = state.rsplit(')').next().unwrap_or("").trim_start();
                // A thread that works in vain has used much time.
                let time = state.split(' ').skip(11).take(2).map(str::parse::<u64>);
                text += &format!(
                    "  {pid}/{} {} state {} in {}, {} ticks used\n",
                    task.file_name().display(),
                    read("comm").trim(),
                    state.get(..1).unwrap_or("?"),
                    read("wchan"),
                    time.flatten().sum::<u64>(),
                );
            }
        }
        text
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        for pid in self.processes() {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Whether this is an engine.
fn is_engine(pid: &Pid) -> bool {
    let name = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
    name.is_ok_and(|name| name == "fs-pager\n")
}

/// The live processes whose environment carries `tag`.
pub fn processes_with_tag(tag: &str) -> Vec<Pid> {
    let wanted = format!("{TAG}={tag}");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
            .and_then(Pid::from_raw)
        else {
            continue;
        };
        let Ok(environ) = fs::read(entry.path().join("environ")) else {
            continue;
        };
        if environ
            .split(|&byte| byte == 0)
            .any(|variable| variable == wanted.as_bytes())
        {
            found.push(pid);
        }
    }
    found
}

/// Status and output of a run.
pub struct Outcome {
    /// The status of the started process.
    pub status: ExitStatus,
    /// Standard output, unless the job sent it to a file.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: String,
    /// Wall-clock time.
    pub elapsed: Duration,
    /// The content of the `--stats` file, in a managed run.
    pub stats: Option<Stats>,
}

impl Outcome {
    /// The status as a shell's `$?` shows it: the exit code, or 128 plus the signal.
    pub fn code(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Fails unless the run ended with exit status 0.
    #[track_caller]
    pub fn succeeded(self) -> Self {
        assert_eq!(
            self.code(),
            0,
            "stdout: {}\nstderr: {}",
            excerpt(&self.stdout),
            self.stderr
        );
        self
    }

    /// The figure that one of our C programs wrote to standard error as `note NAME VALUE`.
    #[track_caller]
    pub fn note(&self, name: &str) -> u64 {
        self.stderr
            .lines()
            .filter_map(|line| line.strip_prefix("note "))
            .filter_map(|line| line.split_once(' '))
            .find(|(noted, _)| *noted == name)
            .and_then(|(_, value)| value.trim().parse().ok())
            .unwrap_or_else(|| panic!("no note {name:?} in {:?}", self.stderr))
    }
}

/// The beginning of `bytes` as text, for messages.
pub fn excerpt(bytes: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(&bytes[..bytes.len().min(2000)]).into_owned();
    if bytes.len() > 2000 {
        text += "...";
    }
    text
}
