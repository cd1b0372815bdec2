//! Load control: which processes of a run wait while the working sets of all do not fit together.
//!
//! When they do not, each process loses its pages to the others before it needs them again, and all of them wait for the
//! disk. If some have the memory and the others wait, all get on. [`Load`] looks at all processes several times a second
//! and judges spans of half a second. It starts when, for two spans, the time that processes lost by pages that the whole
//! memory would have kept (*losses*) is a large part of the time that they worked. Then the processes that need memory
//! form a queue, oldest first. The first ones have a *turn*, as many as fit, at least one. The others wait: a fault of
//! theirs that needs memory is not served.
//!
//! How much fits is not known in advance, as a process may need less than it has allocated. So a factor of the limit
//! (`stretch`) is learned: it falls when those that have a turn lose much, and rises slowly while they lose nothing.
//!
//! A turn lasts a multiple of the time that it takes to read the memory of the process back, at the pace measured by its
//! losses. Then the process goes to the end of the queue. A turn ends early when its process ends or is idle. Nobody
//! overtakes the first process that waits, so each one waits at most for the turns of those before it. A process that
//! needs little memory, or does little, neither waits nor has a turn. When nobody waits any longer, load control is off.
//!
//! Processes that wait for each other by looking again and again seem to work. There are two ways to look: at memory that
//! both share ([`super::Teams`] have their turns together), and by asking the kernel. A process that has a turn, touches no page
//! that is missing, and spends its time in the kernel is excused: it neither waits nor has a turn for a while.

use alloc::vec::Vec;

use crate::units::Nanos;

/// Parameters. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The time that is judged as a whole: long beside a fault on the slowest disk (10 ms), short beside a turn.
    pub span: Nanos,
    /// Spans with losses before load control starts: a change of phase of one process takes less.
    pub spans: u32,
    /// Losses are large from this part of the work on (1/4) ...
    pub much: u64,
    /// ... and from this part of the time of all that lose (1/12) ...
    pub much_of_time: u64,
    /// ... and small up to this part of the work (1/16).
    pub little: u64,
    /// A process needs memory if it has this part of the limit (1/16). Holding back less frees too little.
    pub part: u64,
    /// It is idle if it works and loses for less than this part of the time (1/8) ...
    pub busy: u64,
    /// ... for this long. A process that waits for the one that waits for memory must pass its turn soon.
    pub idle: Nanos,
    /// A process with a turn asks again and again if of its work this part or more is the kernel's (1/4) ...
    pub asking: u64,
    /// ... in as long as this, with no more faults than ...
    pub asks: Nanos,
    /// ... these: what it looks at is in memory.
    pub few: u64,
    /// A turn lasts this multiple of the time in which its process reads its memory back: at most a fifth of the time is
    /// spent so.
    pub slice: u64,
    /// Bounds of a turn.
    pub shortest: Nanos,
    /// See above: how long each process that waits may have to wait for one before it.
    pub longest: Nanos,
    /// Pages that a process that waits can keep.
    pub kept: u64,
    /// The time of a read, before one was measured.
    pub read: Nanos,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            span: 500_000_000,
            spans: 2,
            much: 4,
            much_of_time: 12,
            little: 16,
            part: 16,
            busy: 8,
            idle: 250_000_000,
            asking: 4,
            asks: 500_000_000,
            few: 8,
            slice: 4,
            shortest: 2_000_000_000,
            longest: 120_000_000_000,
            kept: 256,
            read: 100_000,
        }
    }
}

/// A process, as the driver sees it. Pages, nanoseconds and counts; the times and counts only grow.
#[derive(Clone, Copy, Debug)]
pub struct Seen<P> {
    /// Names it; never the same for two processes.
    pub id: P,
    /// Its charge.
    pub charged: u64,
    /// The pages that it would have if nothing was short ([`crate::Mm::needed`]).
    pub needs: u64,
    /// The time that it lost ([`crate::stats::Stats::lost_ns`]).
    pub lost: Nanos,
    /// In this number of waits.
    pub losses: u64,
    /// Its faults, of all kinds.
    pub faults: u64,
    /// Its CPU time.
    pub worked: Nanos,
    /// The part of it that the kernel spent for it.
    pub system: Nanos,
    /// One of its threads can run, or a fault of it waits for its turn.
    pub busy: bool,
}

/// What a process may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Load control is off, or does not concern it.
    Free,
    /// It has a turn, and this many pages as its share.
    Has(u64),
    /// It waits, and should keep no more than this many pages.
    Waits(u64),
}

/// Where a process stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// Outside of the queue.
    Free,
    /// It has a turn since then.
    Has(Nanos),
    Waits,
}

#[derive(Debug)]
struct Member<P> {
    now: Seen<P>,
    /// As it was at the begin of the span, and at the last look.
    before: Seen<P>,
    last: Seen<P>,
    place: Place,
    /// It was last busy then.
    busy: Nanos,
    /// Until then it reads its memory back: its losses do not count.
    refills: Nanos,
    /// As it was when its last time of `asks` began, in its turn, and when that was.
    asked: (Nanos, Seen<P>),
    /// It neither waits nor has a turn until then.
    excused: Nanos,
    is_there: bool,
}

impl<P: Copy + PartialEq> Member<P> {
    fn lost(&self, span: Nanos) -> Nanos {
        self.now.lost.saturating_sub(self.before.lost).min(span)
    }

    fn worked(&self) -> Nanos {
        self.now.worked.saturating_sub(self.before.worked)
    }

    fn has(&self) -> bool {
        matches!(self.place, Place::Has(_))
    }
}

/// Load control of a run.
#[derive(Debug)]
pub struct Load<P> {
    config: Config,
    /// All processes, in the order of the queue.
    members: Vec<Member<P>>,
    limit: u64,
    span_began: Nanos,
    looked: Nanos,
    /// Spans with large losses, one after the other.
    lossy: u32,
    /// Spans with small losses while it is on.
    quiet: u32,
    /// No judgement before then: memory changes hands.
    settles: Nanos,
    /// The part of the limit, in percent, that those with a turn may need together.
    stretch: u64,
    is_on: bool,
}

/// The stretch at most: processes that need a quarter of what they have allocated.
const MOST_STRETCH: u64 = 400;
/// It falls to three quarters in a span with large losses, and rises by one after this many spans without losses: a try
/// that fails costs the memory of a process twice, and what processes need is mostly what they have allocated.
const RISES: u32 = 4;

impl<P: Copy + PartialEq> Load<P> {
    /// Load control is off.
    pub fn new(config: Config) -> Self {
        Load {
            config,
            members: Vec::new(),
            limit: 0,
            span_began: 0,
            looked: 0,
            lossy: 0,
            quiet: 0,
            settles: 0,
            stretch: 100,
            is_on: false,
        }
    }

    /// Whether some process waits.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// What process `id` may do.
    pub fn turn(&self, id: P) -> Turn {
        let member = self.members.iter().find(|member| member.now.id == id);
        match member.map(|member| member.place) {
            _ if !self.is_on => Turn::Free,
            None | Some(Place::Free) => Turn::Free,
            Some(Place::Waits) => Turn::Waits(self.config.kept),
            Some(Place::Has(_)) => Turn::Has(self.share()),
        }
    }

    /// Look at all processes, the oldest first. Returns whether turns have changed.
    pub fn look(&mut self, now: Nanos, limit: u64, seen: impl Iterator<Item = Seen<P>>) -> bool {
        self.limit = limit;
        self.meet(now, seen);
        let mut changed = self.leave_idle(now);
        changed |= self.excuse(now);
        let span = now.saturating_sub(self.span_began);
        if self.is_on {
            // A newcomer may take much memory until the end of the span.
            self.enter(now, self.config.span);
        }
        if span >= self.config.span {
            changed |= self.judge(now, span);
            self.span_began = now;
            for member in &mut self.members {
                member.before = member.now;
            }
        }
        if self.is_on {
            changed |= self.take_turns(now);
            changed |= self.admit(now);
            let nobody = !self.members.iter().any(|m| m.place == Place::Waits);
            if nobody {
                self.end();
                changed = true;
            }
        }
        self.looked = now;
        changed
    }

    fn end(&mut self) {
        self.is_on = false;
        self.lossy = 0;
        for member in &mut self.members {
            member.place = Place::Free;
        }
    }

    fn meet(&mut self, now: Nanos, seen: impl Iterator<Item = Seen<P>>) {
        for member in &mut self.members {
            member.is_there = false;
        }
        for seen in seen {
            match self.members.iter_mut().find(|m| m.now.id == seen.id) {
                Some(member) => {
                    member.last = core::mem::replace(&mut member.now, seen);
                    member.is_there = true;
                }
                None => {
                    self.members.push(Member {
                        now: seen,
                        before: seen,
                        last: seen,
                        place: Place::Free,
                        busy: now,
                        refills: 0,
                        asked: (now, seen),
                        excused: 0,
                        is_there: true,
                    });
                }
            }
        }
        self.members.retain(|member| member.is_there);
    }

    /// A process with little to do is not in the queue.
    fn leave_idle(&mut self, now: Nanos) -> bool {
        let passed = now.saturating_sub(self.looked);
        let mut changed = false;
        for member in &mut self.members {
            let lost = member.now.lost.saturating_sub(member.last.lost);
            let worked = member.now.worked.saturating_sub(member.last.worked);
            if member.now.busy || lost + worked >= passed / self.config.busy {
                member.busy = now;
            }
            let small = member.now.needs < self.limit / self.config.part / 2;
            let idle = now.saturating_sub(member.busy) >= self.config.idle;
            if member.place != Place::Free && (small || idle) {
                member.place = Place::Free;
                changed = true;
            }
        }
        changed
    }

    /// A process that asks for others in vain, while they wait for its turn to end, leaves the queue for as long as a turn
    /// may last.
    fn excuse(&mut self, now: Nanos) -> bool {
        let Config {
            asking, asks, few, ..
        } = self.config;
        let mut changed = false;
        for member in &mut self.members {
            let (began, before) = member.asked;
            let has_begun = matches!(member.place, Place::Has(since) if since <= began);
            let time = now.saturating_sub(began);
            if has_begun && time < asks {
                continue;
            }
            let worked = member.now.worked.saturating_sub(before.worked);
            let system = member.now.system.saturating_sub(before.system);
            let faults = member.now.faults.saturating_sub(before.faults);
            let works = worked >= time / self.config.busy;
            if has_begun && works && faults <= few && system * asking >= worked {
                member.place = Place::Free;
                member.excused = now + self.config.longest;
                changed = true;
            }
            member.asked = (now, member.now);
        }
        changed
    }

    /// Whether a process that is in no queue belongs there.
    fn contends(&self, member: &Member<P>, span: Nanos) -> bool {
        if member.excused > self.looked {
            return false;
        }
        let worked = member.lost(span) + member.worked();
        member.now.needs >= self.limit / self.config.part && worked >= span / self.config.busy
    }

    /// Losses and work of those that may use memory and need it, and have read theirs back; and their number.
    fn losses(&self, now: Nanos, span: Nanos) -> (Nanos, Nanos, u64) {
        let all = self.members.iter();
        let using = all.filter(|member| {
            member.place != Place::Waits && member.refills <= now && self.contends(member, span)
        });
        using.fold((0, 0, 0), |(lost, worked, n), member| {
            (lost + member.lost(span), worked + member.worked(), n + 1)
        })
    }

    fn judge(&mut self, now: Nanos, span: Nanos) -> bool {
        let (lost, worked, n) = self.losses(now, span);
        let Config {
            much,
            much_of_time,
            little,
            ..
        } = self.config;
        if lost * little <= worked && self.is_on && now >= self.settles {
            self.quiet += 1;
            if self.quiet.is_multiple_of(RISES) {
                self.stretch = (self.stretch + 1).min(MOST_STRETCH);
            }
        }
        let several = if self.is_on { self.having() } else { n } > 1;
        let lossy = several && n > 0 && lost * much >= worked && lost * much_of_time >= n * span;
        self.lossy = if lossy { self.lossy + 1 } else { 0 };
        if self.is_on {
            return lossy && now >= self.settles && self.drop_some(now);
        }
        if self.lossy < self.config.spans {
            return false;
        }
        self.is_on = true;
        self.stretch = MOST_STRETCH;
        self.enter(now, span);
        // All have a turn at first.
        for member in &mut self.members {
            if member.place == Place::Waits {
                member.place = Place::Has(now);
            }
        }
        self.drop_some(now)
    }

    /// Processes that need memory take their places in the queue.
    fn enter(&mut self, now: Nanos, span: Nanos) {
        for at in 0..self.members.len() {
            let member = &self.members[at];
            if member.place == Place::Free && self.contends(member, span) {
                self.members[at].place = Place::Waits;
                self.members[at].busy = now;
            }
        }
    }

    /// The needs of those that have a turn.
    fn needs(&self) -> u64 {
        let having = self.members.iter().filter(|member| member.has());
        having.map(|member| member.now.needs).sum()
    }

    fn having(&self) -> u64 {
        self.members.iter().filter(|member| member.has()).count() as u64
    }

    fn room(&self) -> u64 {
        self.limit * self.stretch / 100
    }

    /// Those that have a turn lose much: the last of them wait.
    fn drop_some(&mut self, now: Nanos) -> bool {
        let stretched = self.needs() * 100 / self.limit.max(1);
        self.stretch = (stretched.min(self.stretch) * 3 / 4).max(100);
        let mut changed = false;
        while self.having() > 1 && (!changed || self.needs() > self.room()) {
            let last = self.members.iter_mut().rev().find(|member| member.has());
            if let Some(last) = last {
                last.place = Place::Waits;
            }
            changed = true;
        }
        self.settles = now + self.config.span;
        changed
    }

    /// The time in which a process reads the pages back that it has not.
    fn refill(&self, seen: &Seen<P>, pages: u64) -> Nanos {
        let each = seen.lost.checked_div(seen.losses);
        pages * each.unwrap_or(self.config.read)
    }

    /// Turns that have lasted long enough end, while others wait.
    fn take_turns(&mut self, now: Nanos) -> bool {
        let Config {
            slice,
            shortest,
            longest,
            ..
        } = self.config;
        if !self.members.iter().any(|m| m.place == Place::Waits) {
            return false;
        }
        let over = |member: &Member<P>| match member.place {
            Place::Has(since) => {
                let refill = self.refill(&member.now, member.now.needs);
                now.saturating_sub(since) >= (slice * refill).clamp(shortest, longest)
            }
            Place::Free | Place::Waits => false,
        };
        let Some(at) = self.members.iter().position(over) else {
            return false;
        };
        let mut member = self.members.remove(at);
        member.place = Place::Waits;
        self.members.push(member);
        true
    }

    /// The first that waits gets a turn if it fits, or if nobody has one.
    fn admit(&mut self, now: Nanos) -> bool {
        let mut changed = false;
        loop {
            let first = self.members.iter().position(|m| m.place == Place::Waits);
            let Some(at) = first else {
                return changed;
            };
            let member = &self.members[at];
            let fits = self.needs() + member.now.needs <= self.room();
            if !fits && self.having() > 0 {
                return changed;
            }
            let missing = member.now.needs.saturating_sub(member.now.charged);
            let refill = self.refill(&member.now, missing);
            let refill = refill.min(self.config.longest / self.config.slice);
            let member = &mut self.members[at];
            member.place = Place::Has(now);
            member.refills = now + refill;
            self.settles = now + self.config.span;
            changed = true;
        }
    }

    /// The pages of each process that has a turn: what the others leave.
    fn share(&self) -> u64 {
        let others = self.members.iter().filter(|member| !member.has());
        let taken: u64 = others
            .map(|member| match member.place {
                Place::Waits => self.config.kept.min(member.now.charged),
                _ => member.now.charged,
            })
            .sum();
        let n = self.having().max(1);
        let fair = self.limit / (self.members.len() as u64).max(1);
        (self.limit.saturating_sub(taken) / n).max(fair)
    }
}

#[cfg(test)]
mod tests;
