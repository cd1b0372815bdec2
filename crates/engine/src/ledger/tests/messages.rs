//! Messages and descriptors over a real socket.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::SocketFlags;

use super::super::protocol::*;
use super::*;
use crate::sys::host::Host;

fn name(test: &str) -> String {
    format!("foreswap-test-{test}-{}", std::process::id())
}

const ORDER: AreaOrder = AreaOrder {
    area: AreaId(7),
    step: AreaStep::Detach,
    round: 4_000_000_000,
};

fn accept(listener: &OwnedFd) -> OwnedFd {
    poll(&mut [PollFd::new(listener, PollFlags::IN)], None).expect("poll");
    rustix::net::accept_with(listener, SocketFlags::CLOEXEC).expect("a connection")
}

fn host() -> Host {
    Host::open(std::process::id()).expect("this process")
}

fn next(socket: &OwnedFd) -> Message {
    let received = receive(socket).expect("a message");
    let fds = match received.message {
        // The pidfd, and the descriptor to keep.
        Message::Hello { .. } | Message::Keep => 1,
        _ => 0,
    };
    assert!(received.same_version && received.fds.len() == fds);
    received.message
}

fn temporary(text: &[u8]) -> File {
    let file = tempfile::tempfile().expect("a temporary file");
    file.write_all_at(text, 0).expect("written");
    file
}

fn reserved(client: &mut Client) -> Result<ProcId, Refusal> {
    loop {
        poll(&mut [PollFd::new(&client.fd(), PollFlags::IN)], None).expect("poll");
        if let Some(answer) = client.reserved() {
            return answer;
        }
    }
}

#[test]
fn an_engine_gets_its_record_the_ledger_and_the_areas() {
    let name = name("hello");
    let listener = listen(&name).expect("a listener");
    let ours = ledger(77, &[512, 1024]);
    let files = [temporary(b"first"), temporary(b"second")];
    let (go, asked) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let name = &name;
        let engine = scope.spawn(move || {
            let mut client = Client::connect(name).expect("connected");
            let welcome = client.hello(&host(), None, None).expect("welcome");
            assert_eq!(welcome.ledger.limit_pages(), 77);
            let mut text = [0; 6];
            assert_eq!(welcome.ledger.area_slots(AreaId(1)), 1024);
            let files = &welcome.areas[1].1;
            for file in [&files.file, &files.own] {
                let file = file.try_clone().map(File::from).expect("dup");
                file.read_at(&mut text, 0).expect("read");
                assert_eq!(&text, b"second");
            }
            assert!(welcome.ring.is_some());
            for fd in welcome.areas.iter().flat_map(|(_, f)| [&f.file, &f.own]) {
                let flags = rustix::io::fcntl_getfd(fd).expect("flags");
                assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
            }
            assert!(client.order().is_none(), "nothing came yet");
            client.ask_to_reserve().expect("sent");
            assert!(client.reserved().is_none(), "no answer yet");
            go.send(()).expect("the supervisor goes on");
            let child = reserved(&mut client).expect("a record");
            let (order, fds) = client.order().expect("it came before the answer");
            assert_eq!((order, fds.len()), (ORDER, 1));
            client.done(order, true).expect("sent");
            client.starved(order.area).expect("sent");
            client.reap(child, Some(4711)).expect("sent");
            client.reap(child, None).expect("sent");
            client
                .log(Severity::Warning, &"ä".repeat(2000))
                .expect("sent");
            client
                .keep(&[welcome.areas[0].1.file.as_fd()])
                .expect("sent");
            client.unused(welcome.record, child).expect("sent");
            client.ask_to_reserve().expect("sent");
            assert_eq!(reserved(&mut client), Err(Refusal::TooManyProcesses));
            let mut second = Client::connect(name).expect("connected");
            let [parent, lost] = [9, 10].map(ProcId::new);
            assert!(matches!(
                second.hello(&host(), parent, lost),
                Err(ProtocolError::Refused(Refusal::NotReserved))
            ));
            let mut third = Client::connect(name).expect("connected");
            assert!(matches!(
                third.hello(&host(), None, None),
                Err(ProtocolError::Closed)
            ));
        });
        let socket = accept(&listener);
        let pid = std::process::id();
        assert_eq!(
            next(&socket),
            Message::Hello {
                pid,
                parent: None,
                record: None
            }
        );
        let record = ours.reserve(None).expect("a record");
        let ring = Ring::create().expect("a ring");
        let tables = |area| ours.area_fd(AreaId(area)).expect("tables");
        let fds = [
            ours.fd(),
            tables(0),
            files[0].as_fd(),
            files[0].as_fd(),
            tables(1),
            files[1].as_fd(),
            files[1].as_fd(),
            files[0].as_fd(),
            ring.fd(),
        ];
        let welcome = Message::Welcome {
            record,
            areas: 3,
            encrypted: true,
            traced: true,
        };
        send(&socket, &welcome, &fds).expect("sent");
        assert_eq!(next(&socket), Message::Reserve);
        asked.recv().expect("the engine has looked");
        send(&socket, &Message::Area(ORDER), &[ours.fd()]).expect("sent");
        let child = ours.reserve(Some(record)).expect("a record");
        send(&socket, &Message::Reserved { record: child }, &[]).expect("sent");
        let (order, ok) = (ORDER, true);
        assert_eq!(next(&socket), Message::AreaDone { order, ok });
        assert_eq!(next(&socket), Message::Starved { area: ORDER.area });
        assert_eq!(
            next(&socket),
            Message::Reap {
                record: child,
                child: Some(4711)
            }
        );
        assert_eq!(
            next(&socket),
            Message::Reap {
                record: child,
                child: None
            }
        );
        let Message::Log {
            severity: Severity::Warning,
            text,
        } = next(&socket)
        else {
            panic!("not the log message")
        };
        assert_eq!(text, "ä".repeat(LOG_BYTES / 2), "cut between characters");
        assert_eq!(next(&socket), Message::Keep);
        let (parent, record) = (record, child);
        assert_eq!(next(&socket), Message::Unused { parent, record });
        assert_eq!(next(&socket), Message::Reserve);
        send(&socket, &Message::Refused(Refusal::TooManyProcesses), &[]).expect("sent");
        let second = accept(&listener);
        let (parent, record) = (ProcId::new(9), ProcId::new(10));
        assert_eq!(
            next(&second),
            Message::Hello {
                pid,
                parent,
                record
            }
        );
        send(&second, &Message::Refused(Refusal::NotReserved), &[]).expect("sent");
        drop(accept(&listener));
        assert!(engine.join().is_ok());
        assert!(matches!(receive(&socket), Err(ProtocolError::Closed)));
    });
}

#[test]
fn nonsense_is_refused() {
    let flags = SocketFlags::CLOEXEC;
    let pair = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        flags,
        None,
    );
    let (ours, theirs) = pair.expect("a pair");
    let mut words = [0u8; 24];
    for length in [1, 23, 24, 2000] {
        let packet = vec![0xa5; length];
        rustix::net::send(&ours, &packet, rustix::net::SendFlags::empty()).expect("sent");
        assert!(
            matches!(receive(&theirs), Err(ProtocolError::Malformed)),
            "{length} bytes"
        );
    }
    // A log message that claims more text than it has.
    words[0] = 4;
    words[20..24].copy_from_slice(&5000u32.to_ne_bytes());
    rustix::net::send(&ours, &words, rustix::net::SendFlags::empty()).expect("sent");
    assert!(matches!(receive(&theirs), Err(ProtocolError::Malformed)));
    // A record that does not exist.
    words[0] = 6;
    words[8..12].copy_from_slice(&(MAX_PROCESSES as u32).to_ne_bytes());
    rustix::net::send(&ours, &words, rustix::net::SendFlags::empty()).expect("sent");
    assert!(matches!(receive(&theirs), Err(ProtocolError::Malformed)));
}

#[test]
fn without_a_supervisor_there_is_no_connection() {
    assert!(matches!(
        Client::connect(&name("nobody")),
        Err(ProtocolError::Closed)
    ));
    assert!(Client::connect(&"x".repeat(500)).is_err());
}
