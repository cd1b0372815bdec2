//! Children of forks past the C library.
//!
//! A program that forks by a system call of its own tells nobody. The kernel reports such a fork after it has copied
//! the address space, with a userfaultfd for the memory of the child (UFFD_EVENT_FORK, which requires
//! CAP_SYS_PTRACE). No page can have come or gone in between, as the kernel refuses all userfaultfd operations until
//! the event is read. The page table therefore tells which pages the child lacks, and where their content is.
//!
//! No engine can be put beside the child, since only the child could start it. It is a *guest* of its parent's engine:
//! a thread brings its pages when it touches them, and evicts none. A record of the ledger holds its references to
//! slots, and is charged for the pages that were brought. A page whose content cannot be found is poisoned. If the
//! parent ends, or an area is drained, the thread brings all pages that are left.

mod areas;
mod lacking;
pub(super) mod mark;
mod serve;

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use foreswap_core::units::{PageRange, Slot, Vpn};
use foreswap_core::{Place, Stored};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};

use super::Pager;
use super::lazy::Heard;
use super::moves::Move;
use super::snapshot::Region;
use crate::ledger::protocol::{self, Client, Message, Severity};
use crate::ledger::{AreaId, SlotIndex};
use crate::program::Program;
use crate::sys::uffd::Uffd;
use areas::{Areas, Reserved};
use lacking::{Content, Lacking};
pub(super) use serve::{Guest, Recent};

/// How often a guest is looked at.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};
/// Changes of the parent's memory that are remembered. A thread makes one at a time, and waits until it is reported.
const MOST_RECENT: usize = 1024;
/// How long the pager waits for the supervisor's answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Guests of this engine, and threads that read reports.
static GUESTS: AtomicUsize = AtomicUsize::new(0);
/// There were guests.
static WERE: AtomicBool = AtomicBool::new(false);
/// The program has ended: guests get all their pages.
static ENDS: AtomicBool = AtomicBool::new(false);

/// In a fork child: its engine has no guests. The fork has copied the counts of its parent's, which may have been reading
/// a report.
pub(super) fn forget_after_fork() {
    GUESTS.store(0, SeqCst);
    WERE.store(false, SeqCst);
    ENDS.store(false, SeqCst);
}

/// The program has ended: returns when no guest needs the engine any more.
fn wait_for_guests() {
    ENDS.store(true, SeqCst);
    while GUESTS.load(SeqCst) > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The same, and tells the supervisor.
pub(super) fn see_off(supervisor: impl AsFd) {
    wait_for_guests();
    if WERE.load(SeqCst) {
        // Without a supervisor nobody keeps their memory.
        let _ = protocol::send(supervisor, &Message::Guest, &[]);
    }
}

/// Keeps the engine from ending: a guest needs it, or a report of one may have been read.
pub(super) struct Needed(());

impl Needed {
    pub(super) fn new() -> Self {
        GUESTS.fetch_add(1, SeqCst);
        WERE.store(true, SeqCst);
        Needed(())
    }
}

impl Drop for Needed {
    fn drop(&mut self) {
        GUESTS.fetch_sub(1, SeqCst);
    }
}

/// The forks that were reported while one is announced.
#[derive(Default)]
pub(super) enum Reported {
    #[default]
    None,
    /// The memory of its child. It does not keep the engine from ending: with it, it is closed.
    One(OwnedFd),
    /// Their children are guests.
    Several,
}

/// The memory of a child whose fork was not announced, or may not be the announced one.
pub(super) struct Child {
    uffd: Uffd,
    _needed: Needed,
}

impl Child {
    /// The memory that the report of a fork brought.
    pub(super) fn of(fd: OwnedFd) -> Self {
        Child {
            uffd: Uffd::of_child(fd),
            _needed: Needed::new(),
        }
    }

    /// The supervisor keeps the memory: without a userfaultfd, what the child lacks would be zeros when the engine is
    /// killed. At once, as the child runs already.
    fn is_kept_by(&self, supervisor: impl AsFd) {
        // Without a reader nobody would keep it.
        let _ = protocol::send(supervisor, &Message::Guest, &[self.uffd.as_fd()]);
    }
}

impl Pager {
    /// The kernel reports a fork. If it is the only one until the fork that a thread announced is over, it needs nothing:
    /// the child registers its memory itself once this descriptor is closed.
    pub(super) fn on_fork(&mut self, child: OwnedFd) {
        if !self.hold.is_held() {
            return self.take_guest(Child::of(child), false);
        }
        match core::mem::replace(&mut self.reported, Reported::Several) {
            Reported::None => {
                self.w.came_back.clear();
                self.reported = Reported::One(child);
            }
            // Which of them is the announced one is not known.
            Reported::One(first) => {
                let since = core::mem::take(&mut self.w.came_back);
                self.take_guest_in_doubt(Child::of(first), &since);
                self.take_guest_in_doubt(Child::of(child), &[]);
            }
            Reported::Several => self.take_guest_in_doubt(Child::of(child), &[]),
        }
    }

    /// Serve the child of a fork that was not announced. `is_lost`: the content of its missing pages is not known.
    pub(super) fn take_guest(&mut self, child: Child, is_lost: bool) {
        if let Some(client) = &self.w.client {
            child.is_kept_by(client.fd());
        }
        let guest = self.guest_of(child, is_lost, &[]);
        self.guests.push(guest);
    }

    /// The same for a child that may be the announced one. It lacks all that this process lacks, and the pages that
    /// `came_back` since its fork, whose content may have changed.
    fn take_guest_in_doubt(&mut self, child: Child, came_back: &[Vpn]) {
        let mut guest = self.guest_of(child, false, came_back);
        guest.is_in_doubt();
        self.guests.push(guest);
    }

    fn guest_of(&mut self, child: Child, is_lost: bool, came_back: &[Vpn]) -> Guest {
        // First what is in frames, as frames change from now on.
        let (mut pages, mut in_slots) = (Vec::new(), Vec::new());
        for (page, place) in self.mm.places().filter(|_| !is_lost) {
            let content = match place {
                Place::Stored(Stored::In(slot)) if slot.is_file() => Content::Slot(slot),
                Place::Stored(Stored::In(slot)) => {
                    in_slots.push((pages.len(), slot));
                    Content::Nowhere
                }
                Place::Stored(Stored::Filled(word)) => Content::Filled(word),
                Place::Frame(frame) => Content::Bytes(Box::new(*self.w.arena.page(frame))),
                Place::Nowhere => Content::Nowhere,
            };
            pages.push((page, content));
        }
        self.mm.forked_without_notice();
        self.on_shared_anew();
        let reserved = match in_slots.is_empty() {
            true => None,
            false => self.reserve_for_guest(),
        };
        if reserved.is_none() && !in_slots.is_empty() {
            self.say_of_guest(
                Severity::Error,
                "its child has lost its swapped pages, as no record is free for it: a touch of them raises SIGBUS",
            );
        }
        if let Some(reserved) = &reserved {
            let (ledger, record) = (self.w.ledger, reserved.record);
            let named = |slot: Slot| (AreaId(slot.area), SlotIndex(slot.index));
            ledger.share(
                self.w.me,
                record,
                in_slots.iter().map(|(_, slot)| named(*slot)),
            );
            for (at, slot) in in_slots {
                let (area, index) = named(slot);
                if ledger.slot_held(record, area, index) {
                    pages[at].1 = Content::Slot(slot);
                }
            }
        }
        if !came_back.is_empty() {
            pages.extend(came_back.iter().map(|page| (*page, Content::Nowhere)));
            // One that could not be mapped after all is where it was, which comes first.
            pages.sort_by_key(|(page, _)| *page);
            pages.dedup_by_key(|(page, _)| *page);
        }
        let regions = self.mm.regions().map(|vma| vma.range.clone()).collect();
        let known = self.areas.iter().map(|(area, files)| (*area, files));
        let areas = match is_lost {
            true => None,
            false => Areas::open(self.w.ledger, known, self.w.files.all(), self.w.cipher).ok(),
        };
        let supervisor = self.w.client.as_ref();
        let supervisor = supervisor.and_then(|client| rustix::io::dup(client.fd()).ok());
        let supervisor = supervisor.map(Arc::new);
        let files = self.mm.regions().map(Region::of);
        let files = files.filter(|region| region.first.is_some()).collect();
        let lacking = Lacking::of(pages, files);
        let mut guest = Guest::new(child, supervisor, regions, lacking, areas, reserved);
        guest.parent_had_changed(&self.changed_recently);
        guest
    }

    /// Guests begin once no earlier change of the parent's memory can be unread.
    pub(super) fn begin_guests(&mut self) {
        if self.guests.is_empty() && self.changed_recently.is_empty() {
            return;
        }
        if self.w.program.mmap_changing() {
            return;
        }
        self.changed_recently.clear();
        let begun = self.guests.len();
        // One for which there is no thread waits for its pages, and is tried again.
        let guests = core::mem::take(&mut self.guests).into_iter();
        self.guests = guests.filter_map(Guest::start).collect();
        if self.guests.len() < begun {
            self.say_of_guest(
                Severity::Warning,
                "the child runs unmanaged (it gets its swapped pages, and none of its pages is moved out)",
            );
        }
    }

    fn say_of_guest(&self, severity: Severity, text: &str) {
        let pid = self.w.pid;
        let text = format!(
            "process {pid} forked by a system call of its own, not by the C library: {text}"
        );
        if let Some(client) = &self.w.client {
            // Without a supervisor there is no reader.
            let _ = client.log(severity, &text);
        }
    }

    /// Memory of the program moves. The kernel queues the reports of a change and of a fork in an order that need not be
    /// that of the events: both are made, and then reported, and threads of the program do both at a time.
    pub(super) fn note_move(&mut self, moved: Move) {
        for guest in &mut self.guests {
            guest.parent_moved(&moved);
        }
        self.note(Recent::Moved(moved));
    }

    /// Memory of the program is unmapped.
    pub(super) fn note_unmapped(&mut self, range: &PageRange) {
        if self.mm.has_content(range) {
            self.note(Recent::Unmapped(range.clone()));
        }
    }

    fn note(&mut self, recent: Recent) {
        if self.changed_recently.len() >= MOST_RECENT {
            self.changed_recently.remove(0);
        }
        self.changed_recently.push(recent);
    }

    /// A record from the supervisor, at once. `None`: there is none.
    fn reserve_for_guest(&mut self) -> Option<Arc<Reserved>> {
        let began = Instant::now();
        // An announced fork may have asked already.
        while self.reserving {
            self.step_fork();
            if self.reserving && !await_answer(self.w.client.as_ref()?, began) {
                return None;
            }
        }
        let client = self.w.client.as_mut()?;
        client.ask_to_reserve().ok()?;
        let record = loop {
            match client.reserved() {
                Some(answer) => break answer.ok()?,
                None if !await_answer(client, began) => return None,
                None => {}
            }
        };
        Some(Arc::new(Reserved {
            record,
            ledger: self.w.ledger,
            supervisor: rustix::io::dup(client.fd()).ok()?,
            shared: Mutex::default(),
        }))
    }
}

/// Waits for a message of the supervisor. False if it takes too long.
fn await_answer(client: &Client, began: Instant) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(client.fd(), PollFlags::IN)];
    let _ = poll(&mut fds, Some(&LOOK));
    began.elapsed() < PATIENCE
}

/// The process has forked, but has no engine: its children lose what it had on areas. Returns when they have ended.
pub(super) fn lose(program: &Program, heard: Heard) {
    let client = Client::connect(&program.socket_name());
    for child in heard.forked {
        let mut unserved = Some(Guest::new(
            child,
            None,
            heard.regions.clone(),
            Lacking::default(),
            None,
            None,
        ));
        while let Some(guest) = unserved {
            unserved = guest.start();
        }
        let pid = program.pid.load(Relaxed);
        let text = format!(
            "process {pid} forked by a system call of its own and ended: its child has lost its swapped pages, a touch of \
             them raises SIGBUS"
        );
        if let Ok(client) = &client {
            // The supervisor may have ended since.
            let _ = client.log(Severity::Error, &text);
        }
    }
    wait_for_guests();
}
