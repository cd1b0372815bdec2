//! A turn of swapoff (seed 003). A program (`workload hold`) has filled its memory. It is evicted, then the limit is
//! raised so that all of it fits. The bench measures the time until all is swapped in and the area is detached, while
//! the program runs.
//!
//! All of this is done from outside: by `foreswap set` and `foreswap swapoff` there, by the cgroup's limit and
//! swapoff(2) here. The swapped amount is derived from the program's resident memory as the kernel counts it, which
//! includes pages that foreswap holds in frames but has not mapped. At the end the program compares every word.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::child::{self, Talk};
use super::foreswap::{Run, size};
use super::kernel::Kind;
use super::{Figures, Session, Turn, TurnError};
use crate::hold::Answer;
use crate::interrupt;
use crate::progress::Progress;
use crate::system::cgroup::MemoryCgroup;
use crate::system::device::Device;
use crate::system::swap;

/// The program's limit while it is squeezed: the smallest that foreswap accepts.
const SQUEEZED: u64 = 16 << 20;
/// The kernel counts a process' resident memory per CPU, and sums it up now and then.
const COUNTED_ROUGHLY: u64 = 1 << 20;
/// The time limit of the squeeze, and the longest time without progress.
const SQUEEZE_PATIENCE: Duration = Duration::from_secs(60);
const SQUEEZE_STALL: Duration = Duration::from_secs(3);

/// On foreswap with further `options`, by its commands.
pub fn of_foreswap(
    session: &Session,
    options: &[&str],
    command: &[OsString],
    progress: &Progress,
) -> anyhow::Result<Turn> {
    let run = Run::with(session, options, command);
    let device = Device::under(&session.directory).ok();
    let mut program = Program::start(&run.line, device, None, progress)?;
    let pid = program.talk.pid().to_string();
    let own = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        child::run(&session.own_command(&words), None, None, progress).map(|done| done.elapsed)
    };
    let set = |bytes| own(&["set", &pid, &format!("memory={}", size(bytes))]);
    set(SQUEEZED)?;
    program.wait_until_out(progress)?;
    set(program.raised())?;
    let figures = program.time(progress, || own(&["swapoff", &pid]))?;
    program.talk.finish(progress)?;
    let (mut all, statistics) = run.statistics()?;
    all.extend(figures);
    Ok(Turn {
        output: Vec::new(),
        figures: all,
        details: Some(statistics),
    })
}

/// On the kernel, by the cgroup's limit and swapoff(2).
pub fn of_kernel(
    session: &mut Session,
    kind: Kind,
    command: &[OsString],
    progress: &Progress,
) -> Result<Turn, TurnError> {
    let device = Device::under(&session.directory).ok();
    let (kernels, place) = session.kernels();
    let (figures, mut all) = kernels.with(kind, place, progress, |ground| {
        let door = ground.cgroup.door();
        let mut program = Program::start(command, device, Some(&door), progress)?;
        squeeze(&ground.cgroup)?;
        program.wait_until_out(progress)?;
        ground
            .cgroup
            .set_limit(program.raised())
            .context("cannot raise the cgroup's limit")?;
        let figures = program.time(progress, || {
            let start = Instant::now();
            loop {
                let result = swap::off_unless_interrupted(ground.swap_file);
                interrupt::check()?;
                match result {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    result => return result.context("swapoff").map(|()| start.elapsed()),
                }
            }
        })?;
        program.talk.finish(progress)?;
        Ok(figures)
    })?;
    all.extend(figures);
    Ok(Turn {
        output: Vec::new(),
        figures: all,
        details: None,
    })
}

/// Lowers the limit as far as the kernel allows in a few attempts.
fn squeeze(cgroup: &MemoryCgroup) -> anyhow::Result<()> {
    let mut attempts = 0;
    loop {
        interrupt::check()?;
        match cgroup.set_limit(SQUEEZED) {
            Ok(()) => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && attempts < 20 => {
                attempts += 1;
            }
            Err(error) => return Err(error).context("cannot lower the cgroup's limit"),
        }
    }
}

/// The running program, filled.
struct Program {
    talk: Talk,
    device: Option<Device>,
    answer: Answer,
}

impl Program {
    fn start(
        line: &[OsString],
        device: Option<Device>,
        door: Option<&Path>,
        progress: &Progress,
    ) -> anyhow::Result<Self> {
        let mut talk = Talk::start(line, door)?;
        let answer = serde_json::from_slice(&talk.listen(progress)?)?;
        Ok(Self {
            talk,
            device,
            answer,
        })
    }

    fn ask(&mut self, what: &str, progress: &Progress) -> anyhow::Result<()> {
        self.answer = serde_json::from_slice(&self.talk.ask(what, progress)?)?;
        Ok(())
    }

    /// A limit under which all of it fits with room to spare.
    fn raised(&self) -> u64 {
        2 * self.answer.bytes.next_multiple_of(1 << 20)
    }

    /// Waits until no more of it is in memory than the squeezed limit, and a little for its memory management.
    fn wait_until_out(&mut self, progress: &Progress) -> anyhow::Result<()> {
        let start = Instant::now();
        let (mut least, mut since) = (u64::MAX, start);
        loop {
            self.ask("count", progress)?;
            let resident = self.answer.resident_bytes;
            if resident < least {
                (least, since) = (resident, Instant::now());
            }
            if resident <= SQUEEZED {
                return Ok(());
            }
            let stalled = since.elapsed() > SQUEEZE_STALL;
            if stalled && resident <= 2 * SQUEEZED {
                return Ok(());
            }
            if stalled || start.elapsed() > SQUEEZE_PATIENCE {
                bail!(
                    "the program was squeezed to {SQUEEZED} bytes, but keeps {resident} in memory"
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Times `swapoff`, and lets the program check that all is in memory and right.
    fn time(
        &mut self,
        progress: &Progress,
        swapoff: impl FnOnce() -> anyhow::Result<Duration>,
    ) -> anyhow::Result<Figures> {
        let resident = self.answer.resident_bytes;
        let back = self.answer.bytes.saturating_sub(resident);
        let counters = || self.device.as_ref().and_then(Device::counters);
        let before = counters();
        progress.say("swapoff");
        let took = swapoff()?;
        let read = counters().zip(before).map(|(now, then)| now.since(then));
        self.ask("count", progress)?;
        let here = (self.answer.resident_bytes + COUNTED_ROUGHLY).max(self.answer.mapped_bytes);
        if here < self.answer.bytes {
            bail!(
                "swapoff ended with {} of {} bytes in memory",
                self.answer.resident_bytes,
                self.answer.bytes
            );
        }
        let mapped = self.answer.mapped_bytes;
        self.ask("check", progress)?;
        let mut figures = Figures::from([
            ("swapoff_ns".to_owned(), took.as_nanos() as f64),
            ("back_bytes".to_owned(), back as f64),
            ("left_bytes".to_owned(), resident as f64),
            ("mapped_bytes".to_owned(), mapped as f64),
            (
                "bytes_per_s".to_owned(),
                back as f64 / took.as_secs_f64().max(1e-9),
            ),
            ("check_ns".to_owned(), self.answer.took_ns as f64),
        ]);
        if let Some(read) = read.filter(|read| read.reads > 0) {
            figures.insert("device_transfers".to_owned(), read.reads as f64);
            figures.insert(
                "device_transfer_bytes".to_owned(),
                read.read_bytes as f64 / read.reads as f64,
            );
        }
        Ok(figures)
    }
}
