//! Measures one 4 KiB random read at a time, from an unlinked 1 GiB file: `pread` against every way
//! of waiting for io_uring and against the threads. Prints medians and judges nothing.
//!
//! `cargo run --release -p foreswap-store --example read_latency [DIRECTORY [READS [ROUNDS]]]`

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Instant;

use foreswap_store::area::{self, AreaSpec};
use foreswap_store::ring::{Completion, Io, IoVec, Pool, SetupFlags, Uring};
use rustix::event::{PollFd, PollFlags, poll};

const FILE_BYTES: u64 = 1 << 30;

#[repr(C, align(4096))]
struct Chunk([u8; 1 << 20]);

#[derive(Clone, Copy, Debug)]
enum Waiting {
    Poll,
    Enter,
    Spin,
}

struct Random(u64);

impl Random {
    fn offset(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % (FILE_BYTES / 4096) * 4096
    }
}

fn one_read(
    io: &mut dyn Io,
    waiting: Waiting,
    offset: u64,
    memory: &mut Chunk,
    out: &mut Vec<Completion>,
) {
    let piece = IoVec {
        ptr: memory.0.as_mut_ptr(),
        len: 4096,
    };
    // SAFETY: the completion is awaited below, while `memory` is borrowed.
    unsafe { io.read(offset, 0, offset, &[piece]) }.expect("a free slot");
    io.flush().expect("a submission");
    out.clear();
    while out.is_empty() {
        match waiting {
            Waiting::Poll => {
                // SAFETY: the descriptor belongs to `io`, which is borrowed.
                let fd = unsafe { BorrowedFd::borrow_raw(io.poll_fd()) };
                poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None).expect("poll");
            }
            Waiting::Enter => io.wait().expect("a wait"),
            Waiting::Spin => std::hint::spin_loop(),
        }
        io.reap(out);
    }
    assert_eq!(out[0].result, Ok(()));
    assert_eq!(memory.0[..8], offset.to_ne_bytes());
}

fn quantiles(mut times: Vec<u64>) -> (f64, f64) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100] as f64 / 1000.0;
    (at(50), at(99))
}

fn ring(fd: RawFd, flags: SetupFlags) -> Box<dyn Io> {
    Box::new(Uring::with_flags(&[fd], 64, flags).expect("io_uring"))
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments
        .next()
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let reads: usize = arguments
        .next()
        .map_or(3000, |text| text.parse().expect("a number"));
    let rounds: usize = arguments
        .next()
        .map_or(5, |text| text.parse().expect("a number"));

    let spec = AreaSpec::Path(directory.to_path_buf());
    let area = area::open(&spec, Some(FILE_BYTES), 1 << 30).expect("an area");
    println!("direct: {}, notes: {:?}", area.direct, area.notes);
    let mut memory = Box::new(Chunk([0; 1 << 20]));
    for start in (0..FILE_BYTES).step_by(1 << 20) {
        for (index, page) in memory.0.chunks_mut(4096).enumerate() {
            page[..8].copy_from_slice(&(start + index as u64 * 4096).to_ne_bytes());
        }
        area.file.write_all_at(&memory.0, start).expect("a write");
    }
    area.file.sync_all().expect("a sync");

    let fd = area.file.as_raw_fd();
    let all_flags = [
        SetupFlags::Plain,
        SetupFlags::Cooperative,
        SetupFlags::SingleIssuer,
    ];
    let mut backends: Vec<(String, Box<dyn Io>, Waiting)> = Vec::new();
    for waiting in [Waiting::Poll, Waiting::Enter, Waiting::Spin] {
        for flags in all_flags {
            backends.push((format!("{flags:?} {waiting:?}"), ring(fd, flags), waiting));
        }
    }
    let pool = Pool::new(&[fd], 64, 2, |worker| {
        std::thread::spawn(move || worker.run());
        Ok(())
    })
    .expect("threads");
    backends.push(("threads Poll".to_owned(), Box::new(pool), Waiting::Poll));

    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut out = Vec::with_capacity(64);
    let mut bare = Vec::new();
    let mut times = vec![Vec::new(); backends.len()];
    for _ in 0..rounds {
        for _ in 0..reads {
            let offset = random.offset();
            let begin = Instant::now();
            area.file
                .read_exact_at(&mut memory.0[..4096], offset)
                .expect("a read");
            bare.push(begin.elapsed().as_nanos() as u64);
        }
        for ((_, io, waiting), times) in backends.iter_mut().zip(&mut times) {
            for _ in 0..reads {
                let offset = random.offset();
                let begin = Instant::now();
                one_read(io.as_mut(), *waiting, offset, &mut memory, &mut out);
                times.push(begin.elapsed().as_nanos() as u64);
            }
        }
    }
    println!("{:24} {:>9} {:>9}", "one 4 KiB read", "p50 us", "p99 us");
    let (p50, p99) = quantiles(bare);
    println!("{:24} {p50:9.1} {p99:9.1}", "pread");
    for ((name, ..), times) in backends.iter().zip(times) {
        let (p50, p99) = quantiles(times);
        println!("{name:24} {p50:9.1} {p99:9.1}");
    }
}
