//! Sessions with clients of the real protocol instead of engines.

use std::time::{Duration, Instant};

use foreswap::ledger::protocol::{Client, Welcome};
use foreswap::ledger::{
    AreaId, AreaInfo, IoBackend, LedgerSpec, Options, Put, ReadaheadPolicy, SlotIndex, ThpMode,
};
use foreswap::sys::host::Host;
use foreswap_core::ReclaimPolicy;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

const AREA: AreaId = AreaId(0);
const SLOT: SlotIndex = SlotIndex(3);

/// The process that engines here serve: this one.
fn host() -> Host {
    Host::open(std::process::id()).expect("this process")
}

/// As a pager does.
fn reserve(parent: &mut Client) -> ProcId {
    parent.ask_to_reserve().expect("sent");
    loop {
        poll(&mut [PollFd::new(&parent.fd(), PollFlags::IN)], None).expect("poll");
        if let Some(answer) = parent.reserved() {
            return answer.expect("a record");
        }
    }
}

struct TestSupervisor {
    name: String,
    listener: OwnedFd,
    sessions: Sessions,
    voice: Voice,
}

fn supervisor(test: &str) -> TestSupervisor {
    let name = format!("foreswap-test-{test}-{}", std::process::id());
    let ledger = Ledger::create(&LedgerSpec {
        limit_pages: 1000,
        options: Options {
            readahead: ReadaheadPolicy::Vma,
            reclaim: ReclaimPolicy::Clock,
            thp: ThpMode::Never,
            helpers: 0,
            io: IoBackend::Auto,
            max_window: 8,
            full_timeout: Duration::ZERO,
            adopt_threshold: 0,
        },
        areas: vec![AreaInfo {
            slots: 512,
            priority: 0,
            flags: 0,
            first_byte: 0,
            name: "test".into(),
        }],
    });
    let area = tempfile::tempfile().expect("a temporary file");
    TestSupervisor {
        listener: protocol::listen(&name).expect("a listener"),
        name,
        sessions: Sessions::new(
            ledger.expect("a ledger"),
            vec![(AREA, Descriptors::of_file(area))],
            None,
        ),
        voice: Voice::new(true),
    }
}

impl TestSupervisor {
    /// Serves until `done`, as the supervisor does.
    fn serve_until(&mut self, mut done: impl FnMut(&Sessions) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !done(&self.sessions) {
            assert!(Instant::now() < end, "it never happens");
            let watched = self.sessions.watched();
            let mut fds: Vec<PollFd<'_>> = watched
                .iter()
                .map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
                .collect();
            let step = Timespec {
                tv_sec: 0,
                tv_nsec: 1_000_000,
            };
            poll(&mut fds, Some(&step)).expect("poll");
            let ready: Vec<Watched> = watched
                .iter()
                .zip(&fds)
                .filter(|(_, fd)| !fd.revents().is_empty())
                .map(|((what, _), _)| *what)
                .collect();
            drop(fds);
            self.sessions.on_ready(&ready, &mut self.voice);
            self.sessions
                .on_connect(self.listener.as_fd(), &mut self.voice);
            for what in ready {
                if let Watched::Child(record) = what {
                    self.sessions.on_child_death(record);
                }
            }
            self.sessions.finish();
        }
    }

    /// Serves until every engine has gone and its holdings are free. That may take a moment: a program started by
    /// another test has a copy of every file descriptor, and so of the lock, until it executes.
    fn serve_to_the_end(&mut self) {
        self.serve_until(|sessions| sessions.open() == 0 && !sessions.has_unfinished());
    }

    /// Lets an engine do something on its own thread while it is served.
    fn with<T: Send>(&mut self, engine: impl FnOnce(&str) -> T + Send) -> T {
        let name = self.name.clone();
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || engine(&name));
            self.serve_until(|_| thread.is_finished());
            thread.join().expect("the engine")
        })
    }

    fn engine(&mut self) -> (Client, Welcome) {
        self.with(|name| {
            let mut client = Client::connect(name).expect("connected");
            let welcome = client.hello(&host(), None, None).expect("welcome");
            (client, welcome)
        })
    }

    fn state(&self, record: ProcId) -> ProcessState {
        self.sessions.ledger().state(record)
    }
}

#[test]
fn the_end_of_a_connection_frees_the_resources_of_its_process() {
    let mut supervisor = supervisor("end");
    let (client, welcome) = supervisor.engine();
    let (ledger, me) = (&welcome.ledger, welcome.record);
    assert!(ledger.try_charge(me, 10) && ledger.slot_get(me, AREA, SLOT));
    ledger.stats(me).set_managed(4096);
    drop((client, welcome.areas));
    supervisor.serve_to_the_end();
    assert_eq!(
        (ledger.charged_pages(), ledger.slot_count(AREA, SLOT)),
        (0, 0)
    );
    let totals = supervisor.sessions.totals_now();
    assert_eq!((totals.processes, totals.stats.managed_bytes), (1, 4096));
}

#[test]
fn slots_are_not_free_before_the_transfers_of_the_dead_have_ended() {
    let mut supervisor = supervisor("transfers");
    let (client, welcome) = supervisor.engine();
    let (ledger, me) = (&welcome.ledger, welcome.record);
    assert!(ledger.try_charge(me, 10) && ledger.slot_get(me, AREA, SLOT));
    // Like a transfer in progress.
    let transfer = rustix::io::dup(&welcome.areas[0].1.own).expect("a copy");
    drop((client, welcome.areas));
    supervisor.serve_until(|sessions| sessions.open() == 0);
    for _ in 0..10 {
        supervisor.sessions.finish();
        assert!(supervisor.sessions.has_unfinished());
        assert_eq!(supervisor.state(me), ProcessState::Ended);
        assert_eq!(ledger.slot_count(AREA, SLOT), 1);
        assert_eq!(ledger.charged_pages(), 0, "memory is gone with the process");
    }
    drop(transfer);
    supervisor.serve_until(|sessions| !sessions.has_unfinished());
    assert_eq!(supervisor.state(me), ProcessState::Free);
    assert_eq!(ledger.slot_count(AREA, SLOT), 0);
}

#[test]
fn a_fork_child_inherits_its_reservation_even_when_the_parent_dies_first() {
    let mut supervisor = supervisor("fork");
    let (mut parent, welcome) = supervisor.engine();
    let (ledger, me) = (&welcome.ledger, welcome.record);
    assert!(ledger.slot_get(me, AREA, SLOT));
    let child = supervisor.with(|_| reserve(&mut parent));
    assert_eq!(ledger.share(me, child, [(AREA, SLOT)].into_iter()), 1);
    drop((parent, welcome.areas));
    supervisor.serve_to_the_end();
    assert_eq!(ledger.slot_count(AREA, SLOT), 1, "the child's");
    let (client, hello) = supervisor.with(|name| {
        let mut client = Client::connect(name).expect("connected");
        let hello = client
            .hello(&host(), Some(me), Some(child))
            .expect("welcome");
        (client, hello)
    });
    assert_eq!(hello.record, child);
    assert_eq!(ledger.slot_put(child, AREA, SLOT), Put::Freed);
    drop((client, hello.areas));
    supervisor.serve_to_the_end();
    assert_eq!(supervisor.sessions.totals_now().processes, 2);
}

#[test]
fn reservations_of_failed_forks_and_dead_children_are_freed() {
    let mut supervisor = supervisor("reap");
    let (mut parent, welcome) = supervisor.engine();
    let me = welcome.record;
    let failed = supervisor.with(|_| reserve(&mut parent));
    parent.reap(failed, None).expect("sent");
    supervisor.serve_until(|s| s.ledger().state(failed) == ProcessState::Free);

    let dead = supervisor.with(|_| reserve(&mut parent));
    assert!(welcome.ledger.slot_get(me, AREA, SLOT));
    assert_eq!(
        welcome.ledger.share(me, dead, [(AREA, SLOT)].into_iter()),
        1
    );
    let mut process = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .expect("a process");
    parent.reap(dead, Some(process.id())).expect("sent");
    supervisor.with(|_| std::thread::sleep(Duration::from_millis(50)));
    assert_eq!(supervisor.state(dead), ProcessState::Reserved, "it lives");
    process.kill().expect("a kill");
    supervisor.serve_until(|s| s.ledger().state(dead) == ProcessState::Free);
    process.wait().expect("its end");
    assert_eq!(welcome.ledger.slot_count(AREA, SLOT), 1);

    // Dead and reaped before its parent's engine reported it.
    let gone = supervisor.with(|_| reserve(&mut parent));
    parent.reap(gone, Some(process.id())).expect("sent");
    supervisor.serve_until(|s| s.ledger().state(gone) == ProcessState::Free);
}

/// A daemon: its parent, the last process of the run, ends at once, and the child connects when its engine is needed.
#[test]
fn a_run_is_not_over_while_a_forked_child_may_come() {
    let mut supervisor = supervisor("daemon");
    let (mut parent, welcome) = supervisor.engine();
    let me = welcome.record;
    let child = supervisor.with(|_| reserve(&mut parent));
    let mut process = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .expect("a process");
    parent.reap(child, Some(process.id())).expect("sent");
    drop((parent, welcome));
    supervisor.serve_until(|s| s.ledger().state(me) == ProcessState::Free);
    assert!(
        !supervisor.sessions.are_over(),
        "its swapped pages are needed"
    );
    assert_eq!(supervisor.sessions.expected(), 1);
    process.kill().expect("a kill");
    process.wait().expect("its end");
    supervisor.serve_until(Sessions::are_over);
}

/// Killed between its request and its fork: no one else could ever return the record.
#[test]
fn a_reservation_whose_parent_has_died_is_freed_in_time() {
    let mut supervisor = supervisor("orphan");
    supervisor.sessions.orphans_wait = Duration::from_millis(300);
    let (mut parent, welcome) = supervisor.engine();
    let (_other, beside) = supervisor.engine();
    let child = supervisor.with(|_| reserve(&mut parent));
    assert!(beside.ledger.try_charge(child, 70) && beside.ledger.try_charge(welcome.record, 5));
    assert_eq!(supervisor.sessions.retry(), None);
    drop((parent, welcome));
    supervisor.serve_until(|sessions| sessions.open() == 1 && !sessions.has_unfinished());
    assert_eq!(
        supervisor.state(child),
        ProcessState::Reserved,
        "it may come"
    );
    assert_eq!(beside.ledger.charged_pages(), 70);
    assert!(
        supervisor.sessions.retry().is_some(),
        "somebody has to look"
    );
    supervisor.serve_until(|sessions| sessions.ledger().state(child) == ProcessState::Free);
    assert_eq!(beside.ledger.charged_pages(), 0);
    assert_eq!(supervisor.sessions.retry(), None);
}

/// A child's engine that cannot reach the supervisor gets its connection from its parent's.
#[test]
fn a_connection_may_come_over_another() {
    let mut supervisor = supervisor("another");
    let (mut parent, welcome) = supervisor.engine();
    let child = supervisor.with(|_| reserve(&mut parent));
    let (client, hello) = supervisor.with(|_| {
        let given = parent.another().expect("a connection");
        let mut client = Client::of_socket(given);
        let hello = client.hello(&host(), Some(welcome.record), Some(child));
        (client, hello.expect("welcome"))
    });
    assert_eq!((hello.record, supervisor.sessions.managed()), (child, 2));
    drop((client, hello.areas));
    supervisor.serve_until(|sessions| sessions.open() == 1);
    assert_eq!(supervisor.state(welcome.record), ProcessState::Live);
}

/// It is not counted as a process of the run, nor ended with it.
#[test]
fn who_only_connects_is_a_stranger() {
    let mut supervisor = supervisor("stranger");
    let stranger = Client::connect(&supervisor.name).expect("connected");
    supervisor.serve_until(|sessions| sessions.open() == 1);
    assert!(supervisor.sessions.pids().is_empty());
    let (_client, _welcome) = supervisor.engine();
    let us = std::process::id().cast_signed();
    assert_eq!(supervisor.sessions.pids(), [us]);
    drop(stranger);
}

#[test]
fn nobody_takes_what_was_reserved_for_another() {
    let mut supervisor = supervisor("strange");
    let (mut parent, welcome) = supervisor.engine();
    let record = supervisor.with(|_| reserve(&mut parent));
    let (mut stranger, _) = supervisor.engine();
    stranger.reap(record, None).expect("sent");
    let refused = supervisor.with(|name| {
        let mut client = Client::connect(name).expect("connected");
        let wrong_parent = ProcId::new(200);
        client.hello(&host(), wrong_parent, Some(record)).is_err()
    });
    assert!(refused);
    assert_eq!(supervisor.state(record), ProcessState::Reserved);
    assert_eq!(supervisor.state(welcome.record), ProcessState::Live);
    // A second hello ends the connection, and the first one's reservations with it.
    supervisor.with(|_| stranger.hello(&host(), None, None).expect_err("twice"));
    supervisor.serve_until(|sessions| sessions.open() == 1);
}

/// A forked child that needs no engine is connected, but has sent nothing.
#[test]
fn a_child_that_executes_gives_its_record_back() {
    let mut supervisor = supervisor("unused");
    let (mut parent, welcome) = supervisor.engine();
    let child = supervisor.with(|_| reserve(&mut parent));
    let early = supervisor.with(|name| Client::connect(name).expect("connected"));
    supervisor.serve_until(|sessions| sessions.open() == 2);
    assert_eq!(supervisor.sessions.managed(), 1);
    assert_eq!(supervisor.sessions.early().len(), 1);
    let wrong = supervisor.with(|name| Client::connect(name).expect("connected"));
    let stranger = ProcId::new(200).expect("a record");
    wrong.unused(stranger, child).expect("sent");
    supervisor.serve_until(|sessions| sessions.open() == 2);
    assert_eq!(supervisor.state(child), ProcessState::Reserved);
    early.unused(welcome.record, child).expect("sent");
    supervisor.serve_until(|sessions| sessions.open() == 1 && !sessions.has_unfinished());
    assert_eq!(supervisor.state(child), ProcessState::Free);
    assert_eq!(supervisor.sessions.early().len(), 0);
}

/// A process beyond the descriptors of the supervisor is told, and the others go on.
#[test]
fn a_process_without_room_is_refused() {
    let mut supervisor = supervisor("room");
    let (mut parent, _welcome) = supervisor.engine();
    supervisor.sessions.descriptors = 2 * DESCRIPTORS + SPARE;
    let child = supervisor.with(|_| reserve(&mut parent));
    let refused = supervisor.with(|name| {
        let mut client = Client::connect(name).expect("connected");
        client.hello(&host(), None, None).err()
    });
    assert!(matches!(
        refused,
        Some(ProtocolError::Refused(Refusal::TooFewDescriptors))
    ));
    supervisor.serve_until(|sessions| sessions.open() == 1);
    parent.reap(child, None).expect("sent");
    supervisor.serve_until(|sessions| sessions.ledger().state(child) == ProcessState::Free);
    supervisor.with(|_| reserve(&mut parent));
}

/// A parent that drops a file right after its fork must not take it from the child, which asks for it later.
#[test]
fn a_forked_child_finds_the_files_that_its_parent_dropped() {
    use std::os::unix::fs::FileExt as _;
    let mut supervisor = supervisor("files");
    let (mut parent, welcome) = supervisor.engine();
    let file = tempfile::tempfile().expect("a file");
    file.write_all_at(b"of the file", 0).expect("written");
    let numbers = supervisor.with(|_| parent.map_file(file.as_fd(), 100, true));
    let numbers = numbers.expect("numbers");
    let again = supervisor.with(|_| parent.map_file(file.as_fd(), 90, true));
    assert_eq!(again.expect("the same numbers"), numbers);
    let child = supervisor.with(|_| reserve(&mut parent));
    parent.drop_file(numbers.first).expect("sent");
    let mut engine = supervisor.with(|name| {
        let mut engine = Client::connect(name).expect("connected");
        let hello = engine.hello(&host(), Some(welcome.record), Some(child));
        hello.expect("welcome");
        engine
    });
    supervisor.serve_until(|sessions| sessions.managed() == 2);
    let found = supervisor.with(|_| engine.file(numbers.first + 99));
    let (found, opened) = found.expect("the file");
    let mut text = [0; 11];
    std::fs::File::from(opened)
        .read_at(&mut text, 0)
        .expect("read");
    assert_eq!((found, &text), (numbers, b"of the file"));
    engine.has_inherited().expect("sent");
    let beyond = supervisor.with(|_| engine.file(numbers.first + 100));
    assert!(beyond.is_err(), "no file has this number");
    engine.drop_file(numbers.first).expect("sent");
    let gone = supervisor.with(|_| engine.file(numbers.first).is_err());
    assert!(gone, "nobody maps it");
}
