//! One far area: which part goes next, and what becomes of parts that fail.
//!
//! Connections take parts when they can send: reads first, because threads wait for them. A part that the server refuses is
//! tried again, later each time. A connection that breaks, or does not answer for half of the time-out, is made anew; its
//! reads go again, its writes fail. They must: nobody knows whether the server will carry them out yet, so that not only
//! their pages go elsewhere, but nothing is ever written to these places again. While no connection is left, writes are
//! refused as if the area were full, so that pages go to other areas, and reads wait until the time-out is over. A page is
//! lost only then. `lab clients` simulates these rules (`lab/src/clients/relay.rs`).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use foreswap_store::ring::Direction;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::errno;
use crate::transfer::{Part, Target, Transfer};

const PAGE: u64 = 4096;
/// The page of the mark, see [`crate::mark`].
const MARK: u64 = 0;
/// The pause before the second attempt at a part; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const MOST_PAUSE: Duration = Duration::from_secs(1);
/// Attempts at a write, whose page can also go elsewhere.
const WRITE_TRIES: u32 = 5;

/// The user hears of it.
pub type Say = Box<dyn Fn(bool, String)>;

/// The state that connections share.
pub struct Area {
    /// As the user wrote it.
    pub name: String,
    /// The age at which a transfer has failed.
    pub timeout: Duration,
    reads: RefCell<VecDeque<Part>>,
    writes: RefCell<VecDeque<Part>>,
    /// Parts that are tried again, and when.
    paused: RefCell<Vec<(Instant, Part)>>,
    /// Pages that must not be written any more.
    doubtful: RefCell<BTreeSet<u64>>,
    /// Connections that are up.
    up: Cell<u32>,
    /// When the last of them went down.
    down_since: Cell<Option<Instant>>,
    /// No part is sent any more, by decision.
    is_closed: Cell<bool>,
    /// Somebody else uses the export: nothing is written any more.
    is_taken: Cell<bool>,
    /// Transfers have failed since the last message about it.
    told_late: Cell<bool>,
    told_down: Cell<bool>,
    /// How often what was there was found to be gone.
    losses: Cell<u32>,
    /// The end of the part that was ever written.
    reach: Cell<u64>,
    /// Another area has the same pages.
    has_copy: bool,
    /// Connections take different parts: each is woken for each part.
    is_routed: Cell<bool>,
    /// Connections that wait for a part, by number.
    idle: RefCell<BTreeMap<u32, Rc<Notify>>>,
    say: Say,
}

impl Area {
    /// Without a connection.
    pub fn new(name: String, timeout: Duration, say: Say) -> Self {
        Self {
            name,
            timeout,
            reads: RefCell::default(),
            writes: RefCell::default(),
            paused: RefCell::default(),
            doubtful: RefCell::default(),
            up: Cell::new(0),
            down_since: Cell::new(None),
            is_closed: Cell::new(false),
            is_taken: Cell::new(false),
            told_late: Cell::new(false),
            told_down: Cell::new(false),
            losses: Cell::new(0),
            reach: Cell::new(0),
            has_copy: false,
            is_routed: Cell::new(false),
            idle: RefCell::default(),
            say,
        }
    }

    /// The same, for an area that is a copy of another: its reads are not waited for when the server goes away.
    pub fn with_copy(name: String, timeout: Duration, say: Say) -> Self {
        Self {
            has_copy: true,
            ..Self::new(name, timeout, say)
        }
    }

    /// From now on each connection takes the parts that suit it, by [`Area::next_where`].
    pub fn route(&self) {
        self.is_routed.set(true);
    }

    /// Begins a transfer of `bytes` bytes at `offset`.
    pub fn submit(&self, direction: Direction, offset: u64, bytes: u32, target: Box<dyn Target>) {
        let is_write = direction == Direction::Write;
        if is_write && !self.may_write() {
            return target.end(errno::NO_SPACE);
        }
        if is_write && self.is_doubtful(offset, bytes) {
            return target.end(errno::IN_DOUBT);
        }
        if self.is_given_up() {
            return target.end(errno::TIMED_OUT);
        }
        if is_write {
            let end = offset + u64::from(bytes);
            self.reach.set(self.reach.get().max(end));
        }
        for part in Transfer::parts(direction, offset, bytes, target) {
            self.queue(part);
        }
    }

    fn may_write(&self) -> bool {
        self.up.get() > 0 && !self.is_taken.get() && !self.is_closed.get()
    }

    /// The server has been away for so long that nobody waits for it any more.
    fn is_given_up(&self) -> bool {
        let since = self.down_since.get();
        since.is_some_and(|since| since.elapsed() >= self.timeout)
    }

    fn is_doubtful(&self, offset: u64, bytes: u32) -> bool {
        let pages = offset / PAGE..(offset + u64::from(bytes)).div_ceil(PAGE);
        self.doubtful.borrow().range(pages).next().is_some()
    }

    fn queue(&self, part: Part) {
        let queue = match part.is_write() {
            true => &self.writes,
            false => &self.reads,
        };
        queue.borrow_mut().push_back(part);
        if self.is_routed.get() {
            return self.wake_all();
        }
        // The lowest number: one read after the other goes over one connection, whose server's thread is awake.
        if let Some((_, link)) = self.idle.borrow_mut().pop_first() {
            link.notify_one();
        }
    }

    /// The next part to send.
    pub fn next(&self) -> Option<Part> {
        let read = self.reads.borrow_mut().pop_front();
        read.or_else(|| self.writes.borrow_mut().pop_front())
    }

    /// The next read, or write, that is `suitable` for a connection.
    pub fn next_where(&self, is_write: bool, suitable: impl Fn(&Part) -> bool) -> Option<Part> {
        let queue = match is_write {
            true => &self.writes,
            false => &self.reads,
        };
        let mut queue = queue.borrow_mut();
        let at = queue.iter().position(suitable)?;
        queue.remove(at)
    }

    /// Returns when connection `number` may have a part to send.
    pub async fn wait_for_work(&self, number: u32) {
        let woken = Rc::new(Notify::new());
        self.idle.borrow_mut().insert(number, Rc::clone(&woken));
        woken.notified().await;
    }

    /// All connections look for parts.
    pub fn wake_all(&self) {
        for link in std::mem::take(&mut *self.idle.borrow_mut()).values() {
            link.notify_one();
        }
    }

    /// The server has refused a part, with an errno of the protocol.
    pub fn refused(&self, part: Part, errno: i32) {
        let is_last = part.tries + 1 >= WRITE_TRIES || errno == errno::NO_SPACE;
        match part.is_write() && is_last {
            true => part.end(errno),
            false => self.pause(part, errno),
        }
    }

    /// The server has not carried a part out, and will later.
    pub fn later(&self, part: Part) {
        match part.is_write() {
            true if part.tries + 1 >= WRITE_TRIES => part.end(errno::NO_SPACE),
            true => self.pause(part, errno::NO_SPACE),
            false if self.has_copy => part.end(errno::IO),
            false => self.pause(part, errno::TIMED_OUT),
        }
    }

    /// Tries a part again after a while, unless that is too late.
    fn pause(&self, mut part: Part, errno: i32) {
        part.tries += 1;
        let pause = FIRST_PAUSE.saturating_mul(1 << (part.tries - 1).min(16));
        let when = Instant::now() + pause.min(MOST_PAUSE);
        match when >= part.of.began + self.timeout {
            true => part.end(errno),
            false => self.paused.borrow_mut().push((when, part)),
        }
    }

    /// Nobody knows whether a part was, or will be, carried out: a write fails, and its pages are never written again.
    pub fn doubt(&self, part: Part) {
        if !part.is_write() {
            return self.queue(part);
        }
        let first = part.offset() / PAGE;
        let pages = first..first + u64::from(part.bytes).div_ceil(PAGE);
        // The mark is written again and again.
        let pages = pages.filter(|page| *page != MARK);
        self.doubtful.borrow_mut().extend(pages);
        part.end(errno::IN_DOUBT);
    }

    /// A connection is up.
    pub fn on_up(&self) {
        self.up.set(self.up.get() + 1);
        self.down_since.set(None);
        if self.told_down.replace(false) {
            (self.say)(
                false,
                format!("swap area {}: the server is back", self.name),
            );
        }
        self.told_late.set(false);
    }

    /// Connection `number`, which was up, is down; the server has not answered to `sent`.
    pub fn on_down(&self, number: u32, sent: Vec<Part>, why: &str) {
        self.up.set(self.up.get() - 1);
        self.idle.borrow_mut().remove(&number);
        sent.into_iter().for_each(|part| self.doubt(part));
        if self.up.get() > 0 || self.is_closed.get() {
            return;
        }
        self.down_since.set(Some(Instant::now()));
        self.refuse_writes();
        if !self.told_down.replace(true) {
            let seconds = self.timeout.as_secs_f64();
            let meanwhile = match self.has_copy {
                true => "its mirror has the pages until the server is back".to_owned(),
                false => format!(
                    "pages go to other areas until the server is back, and reads wait for it, at most {seconds} s"
                ),
            };
            (self.say)(true, format!("swap area {}: {why}; {meanwhile}", self.name));
        }
        if self.has_copy {
            let reads: Vec<Part> = self.reads.borrow_mut().drain(..).collect();
            let paused: Vec<_> = self.paused.borrow_mut().drain(..).collect();
            let paused = paused.into_iter().map(|(_, part)| part);
            reads
                .into_iter()
                .chain(paused)
                .for_each(|part| part.end(errno::IO));
        }
    }

    /// Nothing of them was sent.
    fn refuse_writes(&self) {
        let mut refused: Vec<Part> = self.writes.borrow_mut().drain(..).collect();
        let mut paused = self.paused.borrow_mut();
        let writes = paused.extract_if(.., |(_, part)| part.is_write());
        refused.extend(writes.map(|(_, part)| part));
        drop(paused);
        for part in refused {
            part.end(errno::NO_SPACE);
        }
    }

    /// The node that parts are `meant` for is away: writes are refused, and reads wait unless there is a copy.
    pub fn on_away(&self, meant: impl Fn(&Part) -> bool) {
        while let Some(part) = self.next_where(true, &meant) {
            part.end(errno::NO_SPACE);
        }
        while self.has_copy
            && let Some(part) = self.next_where(false, &meant)
        {
            part.end(errno::IO);
        }
    }

    /// Somebody else has begun to use the export.
    pub fn on_taken(&self) {
        if !self.is_taken.replace(true) {
            self.refuse_writes();
            let text = format!(
                "swap area {}: another foreswap has begun to use it; nothing is written there any more, and pages on it may be lost",
                self.name
            );
            (self.say)(true, text);
        }
    }

    /// The mark is not there any more: the server has lost what was on the export.
    pub fn on_lost(&self) {
        self.losses.set(self.losses.get() + 1);
        if self.losses.get() == 1 {
            let then = match self.has_copy {
                true => "its mirror has the pages",
                false => "a touch of a page from there raises SIGBUS",
            };
            let text = format!(
                "swap area {}: the server has lost what was on it (was it started anew, with an empty export?); {then}",
                self.name
            );
            (self.say)(true, text);
        }
    }

    /// How often all that was there was lost.
    pub fn losses(&self) -> u32 {
        self.losses.get()
    }

    /// The end of the part that was ever written, in bytes.
    pub fn reach(&self) -> u64 {
        self.reach.get()
    }

    /// Whether somebody else uses the export.
    pub fn is_taken(&self) -> bool {
        self.is_taken.get()
    }

    /// A few times a second: tries again what is due, and fails what is too late.
    pub fn tick(&self) {
        let now = Instant::now();
        let mut paused = self.paused.borrow_mut();
        let due: Vec<Part> = paused
            .extract_if(.., |(when, _)| *when <= now)
            .map(|(_, part)| part)
            .collect();
        drop(paused);
        due.into_iter().for_each(|part| self.queue(part));
        let is_late = |part: &mut Part| now.duration_since(part.of.began) >= self.timeout;
        let mut late = Vec::new();
        for queue in [&self.reads, &self.writes] {
            let mut queue = queue.borrow_mut();
            let mut at = 0;
            while let Some(part) = queue.get_mut(at) {
                if is_late(part) {
                    late.extend(queue.remove(at));
                } else {
                    at += 1;
                }
            }
        }
        if late.is_empty() {
            return;
        }
        if !self.told_late.replace(true) {
            let seconds = self.timeout.as_secs_f64();
            let text = format!(
                "swap area {}: no answer for {seconds} s: transfers fail now (--area-timeout allows more)",
                self.name
            );
            (self.say)(true, text);
        }
        for part in late {
            let errno = match part.is_write() {
                // It was not sent.
                true => errno::NO_SPACE,
                false => errno::TIMED_OUT,
            };
            part.end(errno);
        }
    }

    /// The age at which a connection without an answer counts as broken: half of the time-out, so that reads have another
    /// chance.
    pub fn patience(&self) -> Duration {
        self.timeout / 2
    }

    /// No transfer comes any more.
    pub fn close(&self) {
        self.is_closed.set(true);
        self.wake_all();
    }

    /// Whether [`Area::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Whether any connection is up.
    pub fn is_up(&self) -> bool {
        self.up.get() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Ended = Rc<RefCell<Vec<(u64, i32)>>>;

    /// Memory that nobody looks at, and the place of the transfer.
    struct Seen(RefCell<Vec<u8>>, u64, Ended);

    impl Target for Seen {
        fn start(&self) -> *mut u8 {
            self.0.borrow_mut().as_mut_ptr()
        }
        fn end(&self, errno: i32) {
            self.2.borrow_mut().push((self.1, errno));
        }
    }

    struct Bench {
        area: Area,
        ended: Ended,
        said: Rc<RefCell<Vec<String>>>,
    }

    fn bench(timeout: Duration) -> Bench {
        let said: Rc<RefCell<Vec<String>>> = Rc::default();
        let to = Rc::clone(&said);
        let say = Box::new(move |_, text| to.borrow_mut().push(text));
        Bench {
            area: Area::new("nbd://x".to_owned(), timeout, say),
            ended: Rc::default(),
            said,
        }
    }

    impl Bench {
        fn submit(&self, direction: Direction, page: u64) {
            let target = Seen(RefCell::new(vec![0; 4096]), page, Rc::clone(&self.ended));
            self.area
                .submit(direction, page * 4096, 4096, Box::new(target));
        }

        fn take(&self) -> Part {
            self.area.next().expect("a part")
        }

        fn ended(&self) -> Vec<(u64, i32)> {
            std::mem::take(&mut self.ended.borrow_mut())
        }
    }

    const LONG: Duration = Duration::from_secs(60);
    use Direction::{Read, Write};

    #[test]
    fn reads_go_first() {
        let bench = bench(LONG);
        bench.area.on_up();
        for (direction, page) in [(Write, 1), (Write, 2), (Read, 3), (Write, 4), (Read, 5)] {
            bench.submit(direction, page);
        }
        let order: Vec<u64> = std::iter::from_fn(|| bench.area.next())
            .map(|part| part.offset() / 4096)
            .collect();
        assert_eq!(order, [3, 5, 1, 2, 4]);
    }

    #[test]
    fn what_a_broken_connection_had_is_read_again_and_never_written_again() {
        let bench = bench(LONG);
        bench.area.on_up();
        bench.area.on_up();
        bench.submit(Read, 1);
        bench.submit(Write, 2);
        let sent = vec![bench.take(), bench.take()];
        bench.area.on_down(0, sent, "gone");
        assert_eq!(bench.ended(), [(2, errno::IN_DOUBT)]);
        assert!(bench.said.borrow().is_empty(), "the other connection is up");
        assert_eq!(bench.take().offset(), 4096);
        // The other connection carries on, but not at the place in doubt.
        bench.submit(Write, 2);
        assert_eq!(bench.ended(), [(2, errno::IN_DOUBT)]);
        bench.submit(Write, 3);
        assert_eq!(bench.take().offset(), 3 * 4096);
        bench.submit(Read, 2);
        assert_eq!(bench.take().offset(), 2 * 4096);
    }

    #[test]
    fn while_the_server_is_away_writes_are_refused_and_reads_wait() {
        let bench = bench(LONG);
        bench.area.on_up();
        bench.submit(Write, 1);
        bench.submit(Write, 2);
        bench.submit(Read, 3);
        let read = bench.take();
        bench.area.on_down(0, vec![read], "connection reset");
        assert_eq!(bench.ended(), [(1, errno::NO_SPACE), (2, errno::NO_SPACE)]);
        bench.submit(Write, 4);
        bench.submit(Read, 5);
        assert_eq!(bench.ended(), [(4, errno::NO_SPACE)]);
        bench.area.tick();
        assert_eq!(bench.ended(), []);
        bench.area.on_up();
        bench.submit(Write, 1);
        let back: Vec<u64> = std::iter::from_fn(|| bench.area.next())
            .map(|part| part.offset() / 4096)
            .collect();
        assert_eq!(back, [3, 5, 1]);
        let said = bench.said.borrow();
        assert!(
            said[0].contains("connection reset") && said[1].contains("is back"),
            "{said:?}"
        );
        assert_eq!(said.len(), 2);
    }

    #[test]
    fn the_server_is_asked_again_when_it_refuses() {
        let bench = bench(Duration::from_millis(200));
        bench.area.on_up();
        bench.submit(Read, 1);
        let began = Instant::now();
        let mut tries = 0;
        while bench.ended.borrow().is_empty() {
            bench.area.tick();
            if let Some(part) = bench.area.next() {
                tries += 1;
                bench.area.refused(part, errno::IO);
            }
        }
        // The time was over when it was refused, or before it was asked again.
        let ended = bench.ended();
        assert!(
            matches!(ended[..], [(1, errno::IO | errno::TIMED_OUT)]),
            "{ended:?}"
        );
        assert!((1..=6).contains(&tries), "{tries}");
        assert!(began.elapsed() >= Duration::from_millis(40));
        bench.submit(Write, 2);
        let part = bench.take();
        bench.area.refused(part, errno::NO_SPACE);
        assert_eq!(bench.ended(), [(2, errno::NO_SPACE)]);
        bench.submit(Write, 3);
        let part = bench.take();
        bench.area.refused(part, errno::IO);
        assert_eq!(bench.ended(), []);
    }

    #[test]
    fn reads_that_wait_too_long_fail_and_that_is_said_once() {
        let bench = bench(Duration::from_millis(10));
        bench.area.on_up();
        bench.area.on_down(0, Vec::new(), "gone");
        bench.submit(Read, 1);
        bench.submit(Read, 2);
        std::thread::sleep(Duration::from_millis(20));
        bench.area.tick();
        assert_eq!(
            bench.ended(),
            [(1, errno::TIMED_OUT), (2, errno::TIMED_OUT)]
        );
        assert_eq!(bench.said.borrow().len(), 2);
        // Nobody waits as long for each page.
        bench.submit(Read, 3);
        assert_eq!(bench.ended(), [(3, errno::TIMED_OUT)]);
        bench.area.on_up();
        bench.submit(Read, 3);
        assert_eq!(bench.take().offset(), 3 * 4096);
    }

    #[test]
    fn nothing_is_written_to_an_export_that_somebody_else_uses() {
        let bench = bench(LONG);
        bench.area.on_up();
        bench.submit(Write, 1);
        bench.area.on_taken();
        bench.area.on_taken();
        bench.submit(Write, 2);
        bench.submit(Read, 3);
        assert_eq!(bench.ended(), [(1, errno::NO_SPACE), (2, errno::NO_SPACE)]);
        assert_eq!(
            (bench.take().offset(), bench.said.borrow().len()),
            (3 * 4096, 1)
        );
    }
}
