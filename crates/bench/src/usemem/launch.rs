//! Starts the tasks as processes or as threads, lets them begin together, and collects their measurements.
//!
//! Tasks as processes are forked while this process has one thread and nothing mapped, report through a pipe each, and
//! die with their parent. They meet at a barrier in shared memory. A task that fails opens it for good, so that no
//! other task waits for ever.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};

use super::clock::Clock;
use super::task::{Measured, Task, TaskError};
use crate::args::{Mode, UsememArgs};

/// Another task failed, so the barrier will never be full.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("stopped, because another task failed")]
pub struct Left;

/// Where tasks wait for each other; usable any number of times.
#[derive(Debug)]
#[repr(C)]
pub struct Barrier {
    tasks: AtomicU32,
    arrived: AtomicU32,
    failed: AtomicU32,
}

/// How often a waiting task looks: rarely enough to leave the others their CPU.
const LOOK: Duration = Duration::from_micros(200);

impl Barrier {
    /// A barrier that forked children share with us. It stays mapped to the end of the
    /// process: children may look at it at any time.
    fn shared(tasks: u32) -> std::io::Result<&'static Self> {
        // SAFETY: a new shared anonymous mapping at an address of the kernel's choice;
        // it is zeroed, which is a valid barrier, and is never unmapped.
        let barrier: &'static Self = unsafe {
            let raw = libc::mmap(
                std::ptr::null_mut(),
                size_of::<Self>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if raw == libc::MAP_FAILED {
                return Err(std::io::Error::last_os_error());
            }
            &*raw.cast()
        };
        barrier.tasks.store(tasks, Ordering::Release);
        Ok(barrier)
    }

    /// Returns when all tasks have come, or one has failed.
    pub fn wait(&self) -> Result<(), Left> {
        let tasks = self.tasks.load(Ordering::Acquire);
        let mine = self.arrived.fetch_add(1, Ordering::AcqRel);
        let full = (mine / tasks + 1) * tasks;
        while self.arrived.load(Ordering::Acquire) < full {
            if self.failed.load(Ordering::Acquire) != 0 {
                return Err(Left);
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn fail(&self) {
        self.failed.store(1, Ordering::Release);
    }
}

/// The work of each task; task number `i` does `tasks[i]`.
type Tasks<'a> = [&'a UsememArgs];

/// Runs all tasks to their end, as `mode` says.
pub fn run(mode: Mode, tasks: &Tasks<'_>, clock: Clock) -> anyhow::Result<Vec<Measured>> {
    let barrier = Barrier::shared(tasks.len() as u32).context("no memory for the barrier")?;
    match (mode, tasks) {
        (_, [args]) => Ok(vec![run_one(args, 0, clock, barrier)?]),
        (Mode::Thread, _) => in_threads(tasks, clock, barrier),
        (Mode::Process, _) => in_processes(tasks, clock, barrier),
    }
}

fn run_one(
    args: &UsememArgs,
    number: u32,
    clock: Clock,
    barrier: &Barrier,
) -> Result<Measured, TaskError> {
    let result = Task::new(args, number, clock).and_then(|task| task.run(barrier));
    if result.is_err() {
        barrier.fail();
    }
    result
}

fn in_threads(tasks: &Tasks<'_>, clock: Clock, barrier: &Barrier) -> anyhow::Result<Vec<Measured>> {
    let results: Vec<_> = std::thread::scope(|scope| {
        let start = |(number, args)| scope.spawn(move || run_one(args, number, clock, barrier));
        let threads: Vec<_> = (0..).zip(tasks.iter().copied()).map(start).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let mut all = Vec::new();
    let mut first_error = None;
    for (number, result) in results.into_iter().enumerate() {
        match result {
            Ok(Ok(measured)) => all.push(measured),
            Ok(Err(TaskError::Left(_))) => {}
            Ok(Err(error)) => {
                first_error.get_or_insert(format!("task {number}: {error}"));
            }
            Err(_) => {
                first_error.get_or_insert(format!("task {number} panicked"));
            }
        }
    }
    match first_error {
        Some(error) => bail!(error),
        None => Ok(all),
    }
}

/// A forked task as its parent sees it.
struct Child {
    pid: libc::pid_t,
    report: Option<File>,
    words: Vec<u8>,
}

fn in_processes(
    tasks: &Tasks<'_>,
    clock: Clock,
    barrier: &'static Barrier,
) -> anyhow::Result<Vec<Measured>> {
    let mut children = Vec::new();
    for (number, args) in (0..).zip(tasks.iter().copied()) {
        match fork_task(args, number, clock, barrier) {
            Ok(child) => children.push(child),
            Err(error) => {
                barrier.fail();
                reap(&mut children, barrier);
                return Err(error).context("cannot start a task");
            }
        }
    }
    let failures = reap(&mut children, barrier);
    if let Some(failure) = failures.into_iter().next() {
        bail!(failure);
    }
    let parse = |child: &Child| {
        serde_json::from_slice::<Measured>(&child.words).context("a task's report is broken")
    };
    children.iter().map(parse).collect()
}

fn fork_task(
    args: &UsememArgs,
    number: u32,
    clock: Clock,
    barrier: &'static Barrier,
) -> std::io::Result<Child> {
    let mut ends = [0; 2];
    // SAFETY: `pipe2` fills in two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: both are open and owned by nobody else.
    let (reader, mut writer) = unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) };
    let parent = std::process::id() as libc::pid_t;
    // SAFETY: this process has one thread, so the child may do whatever we may.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()),
        0 => {
            die_with(parent);
            drop(reader);
            let (words, status) = match run_one(args, number, clock, barrier) {
                Ok(measured) => (serde_json::to_vec(&measured).unwrap_or_default(), 0),
                Err(TaskError::Left(_)) => (Vec::new(), 3),
                Err(error) => (format!("task {number}: {error}").into_bytes(), 1),
            };
            let written = writer.write_all(&words).is_ok();
            std::process::exit(if written { status } else { 4 });
        }
        pid => Ok(Child {
            pid,
            report: Some(reader),
            words: Vec::new(),
        }),
    }
}

/// Asks for SIGKILL when `parent` dies, and dies at once if it is dead already.
fn die_with(parent: libc::pid_t) {
    // SAFETY: sets an attribute of this process; reads its parent.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != parent {
            libc::_exit(4);
        }
    }
}

/// Reads the children's reports and waits for their ends; returns the errors, causes before consequences.
fn reap(children: &mut [Child], barrier: &Barrier) -> Vec<String> {
    let mut causes = Vec::new();
    let mut consequences = Vec::new();
    while children.iter().any(|child| child.report.is_some()) {
        let mut polled: Vec<libc::pollfd> = children
            .iter()
            .map(|child| libc::pollfd {
                fd: child.report.as_ref().map_or(-1, AsRawFd::as_raw_fd),
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        // SAFETY: the array is ours, with its true length.
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
        for (number, (child, polled)) in children.iter_mut().zip(&polled).enumerate() {
            let Some(report) = child.report.as_mut().filter(|_| polled.revents != 0) else {
                continue;
            };
            let mut part = [0; 16 << 10];
            match report.read(&mut part) {
                Ok(n) if n > 0 => child.words.extend_from_slice(&part[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                _ => {
                    child.report = None;
                    match end_of(child.pid) {
                        End::Exit(0) => continue,
                        End::Exit(1) => causes.push(String::from_utf8_lossy(&child.words).into()),
                        End::Exit(3) => consequences.push(format!("task {number} stopped")),
                        End::Exit(n) => causes.push(format!("task {number} exited with {n}")),
                        End::Signal(n) => {
                            causes.push(format!("task {number}: killed by signal {n}"))
                        }
                    }
                    barrier.fail();
                }
            }
        }
    }
    causes.append(&mut consequences);
    causes
}

enum End {
    Exit(i32),
    Signal(i32),
}

fn end_of(pid: libc::pid_t) -> End {
    let mut status = 0;
    // SAFETY: waits for a child of ours; the status is filled in.
    while unsafe { libc::waitpid(pid, &mut status, 0) } < 0 {
        if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            return End::Exit(255);
        }
    }
    if libc::WIFSIGNALED(status) {
        End::Signal(libc::WTERMSIG(status))
    } else {
        End::Exit(libc::WEXITSTATUS(status))
    }
}
