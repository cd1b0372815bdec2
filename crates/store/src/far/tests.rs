//! A channel between two threads, one of which plays the relay.

use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::MemfdFlags;
use rustix::io::IoSliceMut;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};

use super::*;
use crate::ring::{Completion, IoError, IoVec, QueueError};

/// A mapped file.
struct Mapped(NonNull<u8>, OwnedFd);

// SAFETY: shared memory.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn of(file: OwnedFd) -> Self {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let at = std::ptr::null_mut::<c_void>();
        // SAFETY: a new mapping.
        let base = unsafe { mmap(at, BYTES as usize, access, MapFlags::SHARED, &file, 0) };
        Mapped(
            NonNull::new(base.expect("mmap").cast()).expect("not null"),
            file,
        )
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped in `of`.
        unsafe { munmap(self.0.as_ptr().cast(), BYTES as usize) }.expect("munmap");
    }
}

// SAFETY: mapped as long as the value lives.
unsafe impl Backing for Mapped {
    fn base(&self) -> NonNull<u8> {
        self.0
    }
    fn bytes(&self) -> usize {
        BYTES as usize
    }
    fn punch(&self, offset: u64, bytes: u64) {
        use rustix::fs::FallocateFlags as F;
        rustix::fs::fallocate(&self.1, F::PUNCH_HOLE | F::KEEP_SIZE, offset, bytes).expect("punch");
    }
    fn populate(&self, _: u64, _: u64) {}
}

/// Both sides.
struct Bench {
    client: Client,
    bell: OwnedFd,
    relay: Arc<Channel>,
    /// The life socket, the bell and the description, of the relay.
    held: Vec<OwnedFd>,
}

fn bench() -> Bench {
    let flags = SocketFlags::CLOEXEC;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (register, registered) = pair.expect("a pair of sockets");
    let file = rustix::fs::memfd_create(c"channel", MemfdFlags::CLOEXEC).expect("memory");
    rustix::fs::ftruncate(&file, BYTES).expect("a size");
    let own = tempfile::tempfile().expect("a file");
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
    let memory = Box::new(Mapped::of(rustix::io::dup(&file).expect("a copy")));
    let [file, register, own] = [file.as_fd(), register.as_fd(), own.as_fd()];
    let client = Client::open(memory, file, register, own, bell.as_fd()).expect("a channel");
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut version = [0; 8];
    let mut parts = [IoSliceMut::new(&mut version)];
    recvmsg(
        &registered,
        &mut parts,
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )
    .expect("a message");
    assert_eq!(u64::from_ne_bytes(version), VERSION);
    let mut held = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            held.extend(fds);
        }
    }
    assert_eq!(held.len(), 4);
    let memory = Box::new(Mapped::of(held.remove(0)));
    let relay = Arc::new(Channel::attach(memory).expect("this version"));
    Bench {
        client,
        bell,
        relay,
        held,
    }
}

const PAGE: usize = super::PAGE as usize;

fn piece(bytes: &mut [u8]) -> IoVec {
    IoVec {
        ptr: bytes.as_mut_ptr(),
        len: bytes.len(),
    }
}

/// The relay's bytes of a request.
#[expect(
    clippy::mut_from_ref,
    reason = "the buffer of a request belongs to the relay until its end"
)]
fn bytes_of<'a>(relay: &'a Channel, request: &Request) -> &'a mut [u8] {
    // SAFETY: the request is valid, and not ended.
    unsafe {
        std::slice::from_raw_parts_mut(relay.page(request.page).as_ptr(), request.bytes as usize)
    }
}

#[test]
fn bytes_arrive_in_both_directions_and_in_any_order() {
    let Bench {
        mut client, relay, ..
    } = bench();
    let (mut one, mut two) = (vec![7u8; 2 * PAGE], vec![0u8; PAGE]);
    let (left, right) = one.split_at_mut(PAGE);
    // SAFETY: the memory outlives the completions.
    unsafe {
        client
            .start(Direction::Write, 10, 8 * 4096, &[piece(right), piece(left)])
            .expect("queued");
        client
            .start(Direction::Read, 11, 4096, &[piece(&mut two)])
            .expect("queued");
    }
    assert_eq!((relay.take(), client.in_flight()), (None, 2));
    client.flush();
    let [write, read] = [
        relay.take().expect("a write"),
        relay.take().expect("a read"),
    ];
    assert_eq!(
        (write.direction, write.offset, write.bytes),
        (Direction::Write, 8 * 4096, 8192)
    );
    assert_eq!(
        (read.direction, read.offset, read.bytes),
        (Direction::Read, 4096, 4096)
    );
    assert!(bytes_of(&relay, &write).iter().all(|byte| *byte == 7));
    bytes_of(&relay, &read).fill(9);
    assert!(
        relay.end(End {
            index: read.index,
            errno: 0
        }),
        "the first to end is told"
    );
    assert!(
        !relay.end(End {
            index: write.index,
            errno: 5
        }),
        "the second need not be"
    );
    let mut ended = Vec::new();
    assert!(client.has_ended());
    client.reap(&mut ended);
    let failed = Err(IoError::Os { errno: 5 });
    let expected = [(11, Ok(())), (10, failed)];
    assert_eq!(
        ended,
        expected.map(|(token, result)| Completion { token, result })
    );
    assert!(two.iter().all(|byte| *byte == 9));
    assert_eq!(client.in_flight(), 0);
}

#[test]
fn every_transfer_arrives_once_between_threads() {
    let Bench {
        mut client,
        bell,
        relay,
        mut held,
    } = bench();
    const COUNT: u64 = 20_000;
    let its_bell = held.remove(1);
    let life = held.remove(0);
    let far = Arc::clone(&relay);
    let server = std::thread::spawn(move || {
        let mut area = vec![0u8; 64 * PAGE];
        let mut taken = 0;
        while taken < COUNT {
            let mut fds = [rustix::event::PollFd::new(
                &life,
                rustix::event::PollFlags::IN,
            )];
            rustix::event::poll(&mut fds, None).expect("a poll");
            let mut told = [0; 64];
            let _ = rustix::io::read(&life, &mut told);
            while let Some(request) = far.take() {
                let at = request.offset as usize;
                let area = &mut area[at..at + request.bytes as usize];
                match request.direction {
                    Direction::Read => bytes_of(&far, &request).copy_from_slice(area),
                    Direction::Write => area.copy_from_slice(bytes_of(&far, &request)),
                }
                taken += 1;
                if far.end(End {
                    index: request.index,
                    errno: 0,
                }) {
                    rustix::io::write(&its_bell, &1u64.to_ne_bytes()).expect("the bell");
                }
            }
        }
    });
    // One page of memory and of the area per place: write its number, then read it back.
    let mut pages = vec![0u8; 64 * PAGE];
    let mut started = 0u64;
    let mut ended = Vec::new();
    let mut written = [0u64; 64];
    let mut free: Vec<usize> = (0..64).collect();
    let mut done = 0;
    while done < COUNT {
        while started < COUNT
            && let Some(place) = free.pop()
        {
            let page = &mut pages[place * PAGE..(place + 1) * PAGE];
            let direction = match written[place] {
                0 => {
                    written[place] = started + 1;
                    page[..8].copy_from_slice(&(started + 1).to_ne_bytes());
                    Direction::Write
                }
                _ => {
                    page.fill(0);
                    Direction::Read
                }
            };
            let at = (place * PAGE) as u64;
            // SAFETY: the page is touched again when its transfer has ended.
            unsafe { client.start(direction, place as u64, at, &[piece(page)]) }.expect("queued");
            started += 1;
        }
        client.flush();
        while !client.has_ended() {
            let mut fds = [rustix::event::PollFd::new(
                &bell,
                rustix::event::PollFlags::IN,
            )];
            rustix::event::poll(&mut fds, None).expect("a poll");
            let _ = rustix::io::read(&bell, &mut [0; 8]);
        }
        client.reap(&mut ended);
        for Completion { token, result } in ended.drain(..) {
            assert_eq!(result, Ok(()));
            let place = token as usize;
            let first = &pages[place * PAGE..place * PAGE + 8];
            let number = u64::from_ne_bytes(first.try_into().expect("eight bytes"));
            assert_eq!(number, written[place]);
            if done % 3 == 0 {
                written[place] = 0;
            }
            free.push(place);
            done += 1;
        }
    }
    server.join().expect("no panic");
}

#[test]
fn a_full_buffer_and_a_full_table_are_said_and_memory_is_given_back() {
    let Bench {
        mut client, relay, ..
    } = bench();
    let mut bytes = vec![0u8; MOST_BYTES as usize];
    let most = BUFFER_PAGES as usize * PAGE / MOST_BYTES as usize;
    let start_as = |direction, client: &mut Client, bytes: &mut [u8]| {
        // SAFETY: the memory outlives the completions.
        unsafe { client.start(direction, 0, 0, &[piece(bytes)]) }
    };
    let start = |client: &mut Client, bytes: &mut [u8]| start_as(Direction::Write, client, bytes);
    let read = |client: &mut Client, bytes: &mut [u8]| start_as(Direction::Read, client, bytes);
    for _ in 0..most / 4 * 3 {
        assert_eq!(start(&mut client, &mut bytes), Ok(()));
    }
    // A quarter is for reads.
    assert_eq!(start(&mut client, &mut bytes), Err(QueueError::Full));
    for _ in 0..most / 4 {
        assert_eq!(read(&mut client, &mut bytes), Ok(()));
    }
    assert_eq!(read(&mut client, &mut bytes), Err(QueueError::Full));
    assert_eq!(client.buffer_bytes(), u64::from(BUFFER_PAGES) * 4096);
    client.flush();
    let mut ended = Vec::new();
    let mut end_all = |client: &mut Client| {
        while let Some(request) = relay.take() {
            relay.end(End {
                index: request.index,
                errno: 0,
            });
        }
        client.reap(&mut ended);
    };
    end_all(&mut client);
    client.give_back();
    assert_eq!((client.in_flight(), client.buffer_bytes()), (0, 0));
    for _ in 0..MAX_DEPTH / 4 * 3 {
        assert_eq!(start(&mut client, &mut bytes[..PAGE]), Ok(()));
    }
    assert_eq!(
        start(&mut client, &mut bytes[..PAGE]),
        Err(QueueError::Full)
    );
    for _ in 0..MAX_DEPTH / 4 {
        assert_eq!(read(&mut client, &mut bytes[..PAGE]), Ok(()));
    }
    assert_eq!(
        start(&mut client, &mut bytes[..PAGE]),
        Err(QueueError::Full)
    );
    client.flush();
    end_all(&mut client);
    for wrong in [0, 100, MOST_BYTES as usize + PAGE] {
        let mut bytes = vec![0; wrong];
        assert_eq!(start(&mut client, &mut bytes), Err(QueueError::BadLength));
    }
}

#[test]
fn the_end_of_the_relay_fails_what_is_in_flight() {
    let Bench {
        mut client,
        relay,
        held,
        bell,
    } = bench();
    let mut bytes = vec![0u8; PAGE];
    // SAFETY: the memory outlives the completion.
    unsafe { client.start(Direction::Read, 3, 0, &[piece(&mut bytes)]) }.expect("queued");
    client.flush();
    drop((relay, held));
    let mut ended = Vec::new();
    for _ in 0..100 {
        client.reap(&mut ended);
    }
    assert_eq!((ended.len(), ended[0].token), (1, 3));
    assert!(ended[0].result.is_err());
    assert!(client.read_at(bell.as_fd(), 0, &mut bytes).is_err());
}

#[test]
fn words_that_make_no_sense_lead_nowhere() {
    let Bench {
        mut client, relay, ..
    } = bench();
    let good = Request {
        index: 0,
        direction: Direction::Read,
        offset: 0,
        page: 0,
        bytes: 4096,
    };
    let bad = [
        Request {
            index: MAX_DEPTH,
            ..good
        },
        Request { offset: 1, ..good },
        Request {
            offset: u64::MAX - 4095,
            ..good
        },
        Request { bytes: 0, ..good },
        Request { bytes: 100, ..good },
        Request {
            bytes: MOST_BYTES + 4096,
            ..good
        },
        Request {
            page: BUFFER_PAGES,
            ..good
        },
        Request {
            page: BUFFER_PAGES - 1,
            bytes: 8192,
            ..good
        },
    ];
    relay.request(&bad);
    relay.request(&[good]);
    assert_eq!((relay.take(), relay.take()), (Some(good), None));
    relay.words()[REQUESTED].store(u64::MAX / 2, SeqCst);
    assert_eq!(relay.take(), None);
    for index in [0, MAX_DEPTH, u32::MAX] {
        relay.end(End { index, errno: 0 });
    }
    let mut ended = Vec::new();
    client.reap(&mut ended);
    assert_eq!(ended, []);
}
