//! Changes to a run in progress: its limit, and its areas.
//!
//! A new area is attached by every engine before any engine may put a page there. For removal, all engines first stop
//! writing to an area, then empty it, and it is closed when no slot of it is in use. One such change runs at a time;
//! its client cancels it by closing the connection.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use foreswap::ledger::protocol::AreaStep;
use foreswap::ledger::{AreaId, AreaState, Ledger, MAX_AREAS, ProcessState};
use foreswap_far::address::Addresses;
use foreswap_store::area::{OpenArea, PAGE_BYTES};

use super::server::Control;
use super::words::{Area, Progress, Reply, Request};
use super::{joining, list, named};
use crate::areas::{self, Areas, AreasError, Spec};
use crate::args::Encrypt;
use crate::auto_memory::AutoMemory;
use crate::memory_setting::Setting;
use crate::sessions::Sessions;
use crate::size::humane;

/// The interval of progress reports.
const TELL: Duration = Duration::from_millis(100);
/// How long an area may make no progress if its pages no longer fit elsewhere, and if they do.
const STUCK_FULL: Duration = Duration::from_secs(3);
const STUCK: Duration = Duration::from_secs(30);
/// How long engines may take to attach or close an area.
const ANSWERS: Duration = Duration::from_secs(30);
/// The working reserve of a process, in pages of the limit: the engine's upper watermark, as a share of the limit and
/// within bounds, and its slack.
const RESERVE_SHARE: u64 = 64;
const RESERVE_MOST: u64 = 4096;
const RESERVE_LEAST: u64 = 64;
/// Slots that engines leave free when they move pages to other areas.
const MARGIN: u64 = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Attaching,
    Draining,
    Closing,
}

/// An area being added or removed.
#[derive(Debug)]
struct Job {
    client: u64,
    area: AreaId,
    path: String,
    stage: Stage,
    began: Instant,
    total: u64,
    left: u64,
    /// The time of the last progress, or of the start of the stage.
    moved: Instant,
    told: Instant,
    /// The answer when the area is closed.
    end: Reply,
}

/// An area on a server that is being opened. Nobody waits for the server meanwhile but the client.
#[derive(Debug)]
struct Opening {
    client: u64,
    address: Addresses,
    /// Its number with the relay.
    number: u32,
    priority: Option<i32>,
    told: Instant,
}

/// The changes in progress.
#[derive(Debug, Default)]
pub struct Changes {
    job: Option<Job>,
    opening: Option<Opening>,
}

/// The parts of the supervisor that a change needs.
#[derive(Debug)]
pub struct Parts<'a> {
    /// The clients.
    pub control: &'a mut Control,
    /// The engines.
    pub sessions: &'a mut Sessions,
    /// The open areas.
    pub areas: &'a mut Areas,
    /// The limit, if it is not fixed.
    pub auto: &'a mut AutoMemory,
    /// Where pages are encrypted.
    pub encrypt: Encrypt,
}

fn done(text: String) -> Reply {
    Reply::Done { text }
}

fn error(text: impl Into<String>) -> Reply {
    Reply::Error { text: text.into() }
}

impl Changes {
    /// Whether to look again soon.
    pub fn is_busy(&self) -> bool {
        self.job.is_some() || self.opening.is_some()
    }

    /// An area is being emptied, into memory as far as there is room.
    pub fn needs_room(&self) -> bool {
        let job = self.job.as_ref();
        job.is_some_and(|job| matches!(job.stage, Stage::Draining))
    }

    /// A client made a request other than a list.
    pub fn on_request(&mut self, client: u64, request: Request, parts: &mut Parts<'_>) {
        let answer = match request {
            Request::Ps { .. } | Request::Join { .. } => None,
            Request::Set { memory } => Some(set_memory(&memory, parts)),
            Request::Swapon { .. } | Request::Swapoff { .. } if self.is_busy() => Some(error(
                "another swap area is on its way in or out; wait for it to end",
            )),
            Request::Swapon {
                area,
                priority,
                swap_size,
            } => self
                .begin_on(client, &area, priority, swap_size, parts)
                .err()
                .map(error),
            Request::Swapoff { area } => match begin_off(client, area.as_ref(), parts) {
                Ok(job) => {
                    self.job = Some(job);
                    None
                }
                Err(text) => Some(error(text)),
            },
        };
        if let Some(answer) = answer {
            parts.control.say(client, &answer, true);
        }
        self.step(parts);
    }

    fn begin_on(
        &mut self,
        client: u64,
        path: &str,
        priority: Option<i32>,
        size: Option<u64>,
        parts: &mut Parts<'_>,
    ) -> Result<(), String> {
        let say = |error: AreasError| error.to_string();
        if list::areas(parts.sessions.ledger()).len() >= MAX_AREAS {
            return Err(format!(
                "{MAX_AREAS} swap areas are in use, which is the most; take one away with `foreswap swapoff` first"
            ));
        }
        let limit = parts.sessions.ledger().bound_pages() * PAGE_BYTES;
        let opener = &mut parts.areas.opener;
        match areas::parse(path).map_err(say)? {
            Spec::Far(address) => {
                let number = opener.begin_to_open(&address, size).map_err(say)?;
                self.opening = Some(Opening {
                    client,
                    address,
                    number,
                    priority,
                    told: Instant::now(),
                });
            }
            local => {
                let open = opener.open(&local, size, limit).map_err(say)?;
                self.job = Some(attach(client, open, priority, parts)?);
            }
        }
        Ok(())
    }

    /// Goes on with an area on a server, once it is open.
    fn step_opening(&mut self, parts: &mut Parts<'_>) {
        let Some(mut opening) = self.opening.take() else {
            return;
        };
        let client = opening.client;
        let opened = parts.areas.opener.opened(&opening.address, opening.number);
        let Some(opened) = opened else {
            if opening.told.elapsed() >= TELL {
                opening.told = Instant::now();
                let progress = Reply::Progress(Progress::default());
                parts.control.say(client, &progress, false);
            }
            self.opening = Some(opening);
            return;
        };
        let job = match opened {
            Ok(open) if !parts.control.has(client) => {
                parts.areas.opener.abandon(&open);
                Err("interrupted".to_owned())
            }
            Ok(open) => attach(client, open, opening.priority, parts),
            Err(why) => Err(why.to_string()),
        };
        match job {
            Ok(job) => self.job = Some(job),
            Err(why) => parts.control.say(client, &error(why), true),
        }
    }

    /// Advances the changes in progress.
    pub fn step(&mut self, parts: &mut Parts<'_>) {
        self.step_opening(parts);
        let Some(mut job) = self.job.take() else {
            return;
        };
        let end = match job.stage {
            Stage::Attaching => job.attaching(parts),
            Stage::Draining => job.draining(parts),
            Stage::Closing => job.closing(parts),
        };
        match end {
            Some(reply) => parts.control.say(job.client, &reply, true),
            None => self.job = Some(job),
        }
    }
}

fn set_memory(text: &str, parts: &mut Parts<'_>) -> Reply {
    let setting = match text.parse::<Setting>() {
        Ok(setting) => setting,
        Err(why) => return error(format!("memory={text}: {why}")),
    };
    let limits = match setting.resolve("memory=") {
        Ok(limits) => limits,
        Err(why) => return error(why.to_string()),
    };
    let ledger = parts.sessions.ledger();
    let before = ledger.limit_pages() * PAGE_BYTES;
    let was_auto = parts.auto.bounds().is_some();
    let waits = parts.sessions.waits();
    let bytes = parts.auto.set(&limits, ledger, waits);
    let now = match parts.auto.bounds() {
        Some(auto) => format!("auto ({}), {} now", auto.bounds(), humane(bytes)),
        None => format!("{} now", humane(bytes)),
    };
    let was = if was_auto { "auto, " } else { "" };
    done(format!(
        "the limit is {now}; it was {was}{}, {} are resident",
        humane(before),
        humane(ledger.charged_pages() * PAGE_BYTES)
    ))
}

/// Lets all engines attach an area that is open.
fn attach(
    client: u64,
    mut open: OpenArea,
    priority: Option<i32>,
    parts: &mut Parts<'_>,
) -> Result<Job, String> {
    match joining::describe(&mut open, priority, parts) {
        Ok((area, descriptors, name, text)) => {
            parts.areas.add(area, open);
            parts.sessions.add_area(area, descriptors);
            parts.sessions.order(area, AreaStep::Attach);
            let end = done(text);
            Ok(Job::new(client, area, name, Stage::Attaching, end))
        }
        Err(why) => {
            parts.areas.opener.abandon(&open);
            Err(why)
        }
    }
}

/// At most as many bytes are on areas and not in memory: a page in memory may have a slot, too, and needs no other place.
fn absent_bytes(ledger: &Ledger) -> u64 {
    let mut absent = 0;
    for process in ledger.records_in_use() {
        if ledger.state(process) != ProcessState::Live {
            // Its engine has not counted them.
            return u64::MAX;
        }
        let stats = ledger.stats(process);
        let managed = stats.managed_bytes.load(Relaxed);
        absent += managed.saturating_sub(stats.resident_bytes.load(Relaxed));
    }
    absent
}

/// Why the pages on `area` fit nowhere else, with the figures.
fn does_not_fit(area: &Area, sessions: &Sessions, auto: &AutoMemory) -> Option<String> {
    let ledger = sessions.ledger();
    let limit = auto.ceiling(ledger);
    let each = (limit / RESERVE_SHARE).clamp(RESERVE_LEAST, RESERVE_MOST);
    let reserve = each * u64::from(ledger.live());
    let memory = limit.saturating_sub(ledger.charged_pages() + reserve) * PAGE_BYTES;
    let others = list::areas(ledger).into_iter();
    let others = others.filter(|other| other.number != area.number && other.state == "usable");
    let (mut free, mut size) = (0, 0);
    for other in others {
        free += ledger.area_room(AreaId(other.number)) * PAGE_BYTES;
        size += other.bytes;
    }
    let kept = MARGIN.min(size / PAGE_BYTES / 64) * u64::from(ledger.live());
    let free = free.saturating_sub(kept * PAGE_BYTES);
    let used = ledger.area_used(AreaId(area.number)) * PAGE_BYTES;
    let used = used.min(absent_bytes(ledger));
    if used <= memory + free {
        return None;
    }
    let us = std::process::id();
    let short = humane((used - memory - free).next_multiple_of(1 << 20));
    Some(format!(
        "{} cannot be emptied: {} there are not in memory, the limit of {} has room for {} more, the other \
         areas have {} free; it takes {short} more: raise the limit (foreswap set {us} memory=SIZE) or \
         add an area (foreswap swapon {us} AREA)",
        area.path,
        humane(used),
        humane(limit * PAGE_BYTES),
        humane(memory),
        humane(free),
    ))
}

fn begin_off(
    client: u64,
    wanted: Option<&[String; 2]>,
    parts: &mut Parts<'_>,
) -> Result<Job, String> {
    let ledger = parts.sessions.ledger();
    let area = named::find(&list::areas(ledger), wanted)?;
    if let Some(why) = does_not_fit(&area, parts.sessions, parts.auto) {
        return Err(why);
    }
    let number = AreaId(area.number);
    ledger.set_area_state(number, AreaState::Draining);
    parts.sessions.order(number, AreaStep::Drain);
    let nothing = done(String::new());
    let mut job = Job::new(client, number, area.path, Stage::Draining, nothing);
    job.total = area.used_bytes;
    job.left = area.used_bytes;
    Ok(job)
}

impl Job {
    fn new(client: u64, area: AreaId, path: String, stage: Stage, end: Reply) -> Self {
        let now = Instant::now();
        Self {
            client,
            area,
            path,
            stage,
            began: now,
            total: 0,
            left: 0,
            moved: now,
            told: now,
            end,
        }
    }

    fn tell(&mut self, parts: &mut Parts<'_>) {
        if self.told.elapsed() < TELL {
            return;
        }
        self.told = Instant::now();
        let waits_for = parts.sessions.waits_for();
        let waits_for = waits_for.iter().map(|pid| pid.as_raw_nonzero().get());
        let progress = Progress {
            left: self.left,
            total: self.total,
            waits_for: waits_for.collect(),
        };
        parts
            .control
            .say(self.client, &Reply::Progress(progress), false);
    }

    /// The processes that have not answered, for a message.
    fn silent(parts: &Parts<'_>) -> String {
        let pids = parts.sessions.waits_for();
        let pids: Vec<String> = pids
            .iter()
            .map(|pid| pid.as_raw_nonzero().to_string())
            .collect();
        if pids.is_empty() {
            return String::new();
        }
        format!(" (no answer from process {})", pids.join(", "))
    }

    fn attaching(&mut self, parts: &mut Parts<'_>) -> Option<Reply> {
        let failed = parts.sessions.failed();
        let refused = if let Some(pid) = failed {
            let pid = pid.as_raw_nonzero();
            Some(format!("process {pid} cannot open {}", self.path))
        } else if !parts.control.has(self.client) {
            Some("interrupted".to_owned())
        } else if self.began.elapsed() > ANSWERS {
            Some(format!(
                "{} was not added{}",
                self.path,
                Self::silent(parts)
            ))
        } else {
            None
        };
        if let Some(why) = refused {
            self.close(parts, error(why));
            return None;
        }
        if !parts.sessions.waits_for().is_empty() {
            self.tell(parts);
            return None;
        }
        let ledger = parts.sessions.ledger();
        ledger.set_area_state(self.area, AreaState::Usable);
        parts.sessions.order(self.area, AreaStep::Use);
        // Faults that wait for a slot look again.
        parts.sessions.ledger().raise_pressure();
        Some(self.end.clone())
    }

    fn draining(&mut self, parts: &mut Parts<'_>) -> Option<Reply> {
        let ledger = parts.sessions.ledger();
        let left = ledger.area_used(self.area) * PAGE_BYTES;
        if left < self.left {
            self.moved = Instant::now();
        }
        self.left = left;
        if left == 0 && parts.sessions.waits_for().is_empty() {
            let seconds = self.began.elapsed().as_secs_f64();
            let text = format!(
                "{} is empty: {} in {seconds:.2} s, {}/s",
                self.path,
                humane(self.total),
                humane((self.total as f64 / seconds) as u64),
            );
            self.close(parts, done(text));
            return self.closing(parts);
        }
        self.tell(parts);
        let ledger = parts.sessions.ledger();
        let still = self.moved.elapsed();
        let why = if !parts.control.has(self.client) {
            "interrupted".to_owned()
        } else if parts.sessions.starved() == Some(self.area) {
            format!(
                "given up: memory and the other areas are full and the program needs more; {} are left on {}",
                humane(left),
                self.path
            )
        } else if still > STUCK {
            format!(
                "given up: nothing leaves {} any more, {} are left{}",
                self.path,
                humane(left),
                Self::silent(parts)
            )
        } else if still > STUCK_FULL
            && let Some(area) = list::areas(ledger)
                .into_iter()
                .find(|area| area.number == self.area.0)
            && let Some(why) = does_not_fit(&area, parts.sessions, parts.auto)
        {
            format!("given up: {why}")
        } else {
            return None;
        };
        ledger.set_area_state(self.area, AreaState::Usable);
        parts.sessions.order(self.area, AreaStep::Use);
        Some(error(why))
    }

    /// The area is empty: remove it everywhere, then answer `end`.
    fn close(&mut self, parts: &mut Parts<'_>, end: Reply) {
        self.stage = Stage::Closing;
        self.end = end;
        // Engines that start from now on do not get it, and those that have it wait for its state.
        parts.sessions.remove_area(self.area);
        parts.sessions.order(self.area, AreaStep::Detach);
    }

    fn closing(&mut self, parts: &mut Parts<'_>) -> Option<Reply> {
        if !parts.sessions.waits_for().is_empty() {
            self.tell(parts);
            return None;
        }
        let ledger = parts.sessions.ledger();
        // SAFETY: this thread is the only one that uses the ledger.
        unsafe { ledger.detach_area(self.area) };
        ledger.set_area_state(self.area, AreaState::Absent);
        parts.areas.remove(self.area);
        Some(self.end.clone())
    }
}
