//! Reads and writes that fail, files that others change, and the death of the program.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foreswap_files::store::{Direction, MemoryStore, SlowStore, Slowness, Store};
use foreswap_files::{Cache, CachedFile, Options};

const PAGE: u64 = 4096;

/// A file of so many pages, each full of its number, on a store that can fail.
fn faulty(pages: u64) -> (Cache, Arc<SlowStore>, Arc<MemoryStore>, CachedFile) {
    let content = (0..pages * PAGE).map(|at| (at / PAGE) as u8).collect();
    let memory = Arc::new(MemoryStore::new(content));
    let slow = SlowStore::new(Arc::clone(&memory) as Arc<dyn Store>, Slowness::default());
    let slow = Arc::new(slow.expect("a thread"));
    let cache = Cache::new(4 << 20).expect("a cache");
    let file = cache
        .open_store(Arc::clone(&slow) as Arc<dyn Store>, true)
        .expect("a file");
    (cache, slow, memory, file)
}

#[test]
fn a_page_that_cannot_be_read_fails_alone() {
    let (_cache, slow, _memory, file) = faulty(200);
    slow.fail(Direction::Read, 100 * PAGE..100 * PAGE + 1);
    let mut page = [0; PAGE as usize];
    for number in 0..200 {
        let read = file.read_exact_at(&mut page, number * PAGE);
        if number == 100 {
            assert_eq!(
                read.expect_err("the page is bad").raw_os_error(),
                Some(libc_eio())
            );
            continue;
        }
        read.expect("a page beside it");
        assert!(
            page.iter().all(|byte| *byte == number as u8),
            "page {number}"
        );
    }
    slow.heal();
    file.read_exact_at(&mut page, 100 * PAGE)
        .expect("it is good again");
    assert_eq!(page[0], 100);
}

/// EIO on Linux.
fn libc_eio() -> i32 {
    5
}

#[test]
fn an_error_of_write_back_is_told_by_the_next_sync_and_nothing_is_lost() {
    let (cache, slow, memory, file) = faulty(16);
    slow.fail(Direction::Write, 3 * PAGE..4 * PAGE);
    file.write_at(&[77; 2 * PAGE as usize], 3 * PAGE)
        .expect("a write to memory");
    let told = file.sync().expect_err("the store failed");
    assert_eq!(told.raw_os_error(), Some(libc_eio()));
    assert_eq!(cache.stats().dirty_pages, 2);
    file.sync().expect_err("it fails still");
    slow.heal();
    file.sync().expect("the next attempt");
    assert_eq!(memory.content()[3 * PAGE as usize..][..2], [77, 77]);
    assert_eq!(cache.stats().dirty_pages, 0);
}

/// When memory is full of pages that cannot be written, writes fail and do not wait for ever.
#[test]
fn writes_to_a_store_that_fails_end_with_its_error() {
    let (_cache, slow, _memory, file) = faulty(1);
    slow.fail(Direction::Write, 0..u64::MAX);
    let failed = (0..4000).find_map(|page| file.write_at(&[1; PAGE as usize], page * PAGE).err());
    assert_eq!(
        failed.expect("4 MiB are full").raw_os_error(),
        Some(libc_eio())
    );
    slow.heal();
    file.sync().expect_err("the kept error");
    file.sync().expect("all is written now");
}

#[test]
fn bad_requests_are_refused_with_their_values() {
    let refused = Cache::new(4095).expect_err("too small").to_string();
    assert!(
        refused.contains("4095") && refused.contains("1 MiB"),
        "{refused}"
    );
    let cache = Cache::new(1 << 20).expect("a cache");
    let missing = cache.open("/nonexistent").expect_err("no file");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(missing.to_string().contains("/nonexistent"));
    let directory = cache.open("/proc").expect_err("a directory").to_string();
    assert!(directory.contains("/proc"), "{directory}");
    let store = cache
        .open_store(Arc::new(MemoryStore::default()), false)
        .expect("a file");
    let refused = store.write_at(b"x", 0).expect_err("read only");
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    let file = cache
        .open_store(Arc::new(MemoryStore::default()), true)
        .expect("a file");
    let refused = file
        .write_at(b"x", u64::MAX)
        .expect_err("no such offset")
        .to_string();
    assert!(refused.contains(&u64::MAX.to_string()), "{refused}");
}

#[test]
fn growth_and_cuts_by_others_are_seen_at_the_end() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = directory.path().join("file");
    std::fs::write(&path, [1; 5000]).expect("a file");
    let cache = Cache::new(1 << 20).expect("a cache");
    let file = cache.open(&path).expect("a file");
    let mut bytes = [0; 9000];
    assert_eq!(file.read_at(&mut bytes, 0).expect("a read"), 5000);
    let mut other = std::fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .expect("a file");
    other.write_all(&[2; 3000]).expect("growth");
    assert_eq!(file.read_at(&mut bytes, 0).expect("a read"), 8000);
    assert_eq!((bytes[4999], bytes[5000], bytes[7999]), (1, 2, 2));
    file.evict();
    other.set_len(100).expect("a cut");
    assert_eq!(file.read_at(&mut bytes[..8000], 0).expect("a read"), 100);
    assert_eq!(file.len(), 100);
}

/// Bytes of a record of the kill test: no multiple of a page.
const RECORD: u64 = 3001;
const RECORDS: u64 = 700;

fn record(number: u64, round: u64) -> Vec<u8> {
    let value = (number * 31 + round * 7 + 1) as u8;
    let mut bytes = vec![value; RECORD as usize];
    bytes[..8].copy_from_slice(&round.to_le_bytes());
    bytes
}

/// The child of the kill test, when it is called by that: writes records in rounds and tells each sync.
#[test]
fn child() {
    let Some(path) = std::env::var_os("FORESWAP_FILES_CHILD") else {
        return;
    };
    let cache = Cache::new(1 << 20).expect("a cache");
    let file = cache
        .open_with(path, Options::new().write(true).create(true))
        .expect("a file");
    for round in 1.. {
        for number in 0..RECORDS {
            file.write_at(&record(number, round), number * RECORD)
                .expect("a write");
        }
        file.sync().expect("a sync");
        println!("synced {round}");
    }
}

/// All that was synced is there: each record is of the last round that was told or of the one that was being written,
/// page by page.
#[test]
fn what_was_synced_survives_kill_9() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let mut most = 0;
    for kill in 0..8u64 {
        let path = directory.path().join(kill.to_string());
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["child", "--exact", "--nocapture"])
            .env("FORESWAP_FILES_CHILD", &path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        let reader = std::thread::spawn(move || {
            let lines = out.lines().map_while(Result::ok);
            let told = lines.filter_map(|line| line.split("synced ").nth(1)?.parse::<u64>().ok());
            told.last().unwrap_or(0)
        });
        let end = Instant::now() + Duration::from_millis(60 + 37 * kill);
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        child.kill().expect("SIGKILL");
        child.wait().expect("its end");
        let told = reader.join().expect("the lines");
        most = most.max(told);
        check(&std::fs::read(&path).unwrap_or_default(), told);
    }
    assert!(most > 0, "no child came to a sync");
}

/// Every byte is of round `told` or later, and no page mixes more than the records in it do.
fn check(content: &[u8], told: u64) {
    if told > 0 {
        assert_eq!(content.len() as u64, RECORDS * RECORD);
    }
    for (number, found) in (0..).zip(content.chunks(RECORD as usize)) {
        let base = number * RECORD;
        for (at, byte) in (base..).zip(found).filter(|(at, _)| *at >= base + 8) {
            // The rounds while the child was killed; before the first sync also nothing.
            let fits = (told..=told + 1).any(|round| match round {
                0 => *byte == 0,
                _ => *byte == record(number, round)[8],
            });
            assert!(fits, "byte {at} is {byte}, though round {told} was synced");
        }
    }
    // Within a record and a page there is one round only.
    let pages = content.chunks(PAGE as usize);
    for (page, bytes) in (0..).zip(pages) {
        let inside = |at: &u64| at % RECORD >= 8;
        let first = page * PAGE;
        for pair in (first..first + bytes.len() as u64 - 1).filter(inside) {
            if pair / RECORD == (pair + 1) / RECORD {
                let at = (pair - first) as usize;
                assert_eq!(
                    bytes[at],
                    bytes[at + 1],
                    "page {page} is a mixture at {pair}"
                );
            }
        }
    }
}
