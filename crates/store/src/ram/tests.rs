//! The area compared with a plain table of pages: by one writer and several, with frees, moves, kills and a full
//! area; every page read is compared byte by byte.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};

use super::*;

/// Memory private to this process.
struct Plain {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: `base` names memory of the value's own, changed by atomics only.
unsafe impl Send for Plain {}
// SAFETY: as above.
unsafe impl Sync for Plain {}

// SAFETY: mapped in `area`, unmapped when dropped.
unsafe impl Backing for Plain {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn punch(&self, offset: u64, bytes: u64) {
        assert!(offset.is_multiple_of(4096) && offset + bytes <= self.bytes as u64);
        // SAFETY: a range of our own anonymous memory, which reads as zeros afterwards.
        unsafe {
            let at = self.base.add(offset as usize).as_ptr().cast();
            rustix::mm::madvise(at, bytes as usize, rustix::mm::Advice::LinuxDontNeed)
        }
        .expect("memory can be given back");
    }
    fn populate(&self, _: u64, _: u64) {}
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: mapped in `area` with this length, and nobody else has it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

pub(crate) fn area(capacity: u64, method: Method) -> Ram {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let bytes = memory_bytes(capacity).expect("within bounds") as usize;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) };
    let base = NonNull::new(base.expect("address space").cast::<u8>()).expect("not null");
    let first = first_bytes(capacity, method).expect("within bounds");
    // SAFETY: just mapped, and as long as the first bytes.
    unsafe { base.copy_from_nonoverlapping(NonNull::from(&first).cast(), first.len()) };
    Ram::over(Box::new(Plain { base, bytes })).expect("an area")
}

pub(super) fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A page of which about `eighths` of 8 are incompressible.
pub(super) fn page_of(seed: u64, eighths: u32) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    for (i, word) in page.chunks_exact_mut(8).enumerate() {
        let fresh = (i as u64 % 8) < u64::from(eighths);
        let value = if fresh {
            mix(seed << 16 | i as u64)
        } else {
            seed
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
    page
}

const USED: fn(u32) -> bool = |_| true;

fn read(ram: &Ram, slot: u32) -> Result<[u8; PAGE], ReadError> {
    let mut page = [0xaa; PAGE];
    Reader::new(ram.method()).read(ram, slot, &mut page)?;
    Ok(page)
}

/// The invariants while no operation is in progress.
fn check(ram: &Ram, pages: u64) {
    let usage = ram.usage();
    assert_eq!(usage.pages, pages);
    let mut live = 0;
    for number in 0..ram.layout.chunks {
        let chunk = ram.chunk(number).expect("there are as many");
        let entries = 0..ram.entries_of(number);
        let words: BTreeMap<u64, u32> = entries
            .filter_map(|entry| ram.live_in(number, entry))
            .map(|(_, word)| (word.offset(), word.units()))
            .collect();
        let mut end = u64::from(number) * CHUNK_BYTES;
        for (&offset, &units) in &words {
            assert!(offset >= end, "pages overlap at {offset} of chunk {number}");
            end = offset + u64::from(units) * UNIT;
        }
        let units: u32 = words.values().sum();
        match Ram::state_of(chunk).kind() {
            chunks::Kind::Open | chunks::Kind::Closed => {
                assert_eq!(chunk.live.load(SeqCst), units, "chunk {number}");
                live += u64::from(units);
            }
            chunks::Kind::Spare | chunks::Kind::Bare => assert_eq!(units, 0, "chunk {number}"),
        }
    }
    assert_eq!(usage.live, live * UNIT);
    assert!(usage.live <= usage.held && usage.held <= usage.capacity);
}

#[test]
fn pages_come_back_as_they_were_written_last() {
    for method in [Method::Lz4, Method::Zstd] {
        let ram = area(4 << 20, method);
        let mut writer = Writer::new(1, method);
        let mut held: BTreeMap<u32, [u8; PAGE]> = BTreeMap::new();
        let (mut refused, mut full) = (0, 0);
        for n in 0..60_000u64 {
            let draw = mix(n);
            let slot = (draw >> 8) as u32 % 6000;
            if draw % 8 < 5 {
                let page = page_of(n, (draw >> 40) as u32 % 9);
                match writer.write(&ram, slot, &page, draw % 16 < 2, &USED) {
                    Ok(()) => _ = held.insert(slot, page),
                    Err(why) => {
                        // The slot's old content is void.
                        held.remove(&slot);
                        match why {
                            Refused::Incompressible => refused += 1,
                            Refused::Full => full += 1,
                            Refused::NoSuchSlot => panic!("slot {slot}"),
                        }
                    }
                }
            } else if draw % 8 < 7 {
                assert_eq!(read(&ram, slot).ok(), held.get(&slot).copied(), "{n}");
            } else {
                ram.free(slot, || false);
                held.remove(&slot);
            }
            if n % 997 == 0 {
                check(&ram, held.len() as u64);
            }
        }
        assert!(refused > 1000 && full > 100, "{refused} {full}");
        for (&slot, page) in &held {
            assert_eq!(read(&ram, slot).as_ref(), Ok(page));
            ram.free(slot, || false);
        }
        writer.give_back(&ram);
        check(&ram, 0);
        assert_eq!(ram.usage().held, 0, "all chunks are free again");
    }
}

/// An area is full when most of its capacity is live, not before.
#[test]
fn most_of_the_capacity_can_be_used() {
    let ram = area(16 << 20, Method::Lz4);
    let mut writer = Writer::new(1, Method::Lz4);
    for round in 0..3u64 {
        let mut slot = 0;
        // From the second round on every third page leaves a hole first.
        for n in (0..ram.slots()).filter(|n| n % 3 == 0) {
            if round > 0 {
                ram.free(n, || false);
            }
        }
        while slot < ram.slots() {
            let page = page_of(u64::from(slot) + round * 100_000, 3);
            if ram.holds(slot) || writer.write(&ram, slot, &page, false, &USED).is_ok() {
                slot += 1;
            } else {
                break;
            }
        }
        let usage = ram.usage();
        assert!(
            usage.live * 100 >= usage.capacity * 85,
            "round {round}: {usage:?}"
        );
        check(&ram, usage.pages);
    }
}

/// The held memory follows the live pages, although pages are overwritten endlessly.
#[test]
fn sparse_chunks_are_compacted() {
    let ram = area(64 << 20, Method::Lz4);
    let mut writer = Writer::new(1, Method::Lz4);
    for n in 0..100_000u64 {
        let slot = mix(n) as u32 % 4000;
        writer
            .write(&ram, slot, &page_of(n, 2), false, &USED)
            .expect("it fits many times");
    }
    let usage = ram.usage();
    assert!(usage.held < usage.live * 3 / 2 + (4 << 20), "{usage:?}");
    check(&ram, 4000);
}

#[test]
fn memory_is_given_back_and_read_as_nothing() {
    let ram = area(64 << 20, Method::Lz4);
    let mut writer = Writer::new(1, Method::Lz4);
    for slot in 0..30_000 {
        writer
            .write(&ram, slot, &page_of(slot.into(), 2), false, &USED)
            .expect("it fits");
    }
    for slot in 0..30_000 {
        ram.free(slot, || false);
        assert_eq!(read(&ram, slot), Err(ReadError::Nothing));
    }
    writer.give_back(&ram);
    assert_eq!(ram.usage().held, 0);
    let with_memory = ram.layout.chunks - ram.bares();
    assert!(with_memory <= 32, "{with_memory} have memory");
}

/// A slot that was taken again is not freed by its former user.
#[test]
fn a_slot_that_is_used_again_is_left_alone() {
    let ram = area(4 << 20, Method::Lz4);
    let mut writer = Writer::new(1, Method::Lz4);
    let page = page_of(1, 2);
    writer.write(&ram, 7, &page, false, &USED).expect("it fits");
    ram.free(7, || true);
    assert_eq!(read(&ram, 7), Ok(page));
    // Its user was killed before it freed the page: compaction frees it when room is short. Its chunk contains hardly
    // anything else.
    let used = |slot| slot >= 100;
    for n in 0..2000 {
        let page = page_of(n.into(), 2);
        assert_eq!(
            writer.write(&ram, 100 + n % 100, &page, false, &used),
            Ok(())
        );
    }
    assert!(ram.holds(7));
    let full = (200..ram.slots())
        .find_map(|slot| writer.write(&ram, slot, &page_of(1, 2), false, &used).err());
    assert_eq!(full, Some(Refused::Full));
    assert!(!ram.holds(7));
}

/// A dying writer leaves an open chunk; nothing else is lost, and all of it is usable again.
#[test]
fn chunks_of_a_dead_process_are_taken_over() {
    let ram = area(4 << 20, Method::Lz4);
    for owner in 0..200u16 {
        let mut dies = Writer::new(owner, Method::Lz4);
        let slots = u32::from(owner) * 20..u32::from(owner) * 20 + 20;
        for slot in slots.clone() {
            dies.write(&ram, slot, &page_of(slot.into(), 1), false, &USED)
                .unwrap_or_else(|why| panic!("process {owner}: {why}"));
        }
        // Bytes that were written and not published.
        dies.write_in_vain(&ram, slots.start, &[7; 500]);
        drop(dies);
        ram.bury(owner);
        if owner >= 10 {
            let old = slots.start - 200..slots.end - 200;
            for slot in old {
                assert_eq!(read(&ram, slot), Ok(page_of(slot.into(), 1)));
                ram.free(slot, || false);
            }
        }
    }
    let mut last = Writer::new(300, Method::Lz4);
    for slot in 0..1000 {
        last.write(&ram, slot, &page_of(5, 1), false, &USED)
            .expect("room");
    }
}

/// Several processes (threads here) write, move, free and read in parallel. Each slot has one writer at a time;
/// readers check that a page they see was that slot's at some moment.
#[test]
fn writers_and_readers_do_not_disturb_each_other() {
    const SLOTS: u32 = 1200;
    let ram = Arc::new(area(4 << 20, Method::Lz4));
    let stop = Arc::new(AtomicBool::new(false));
    // The last written value of each slot; odd while it is being written or free.
    let seeds: Arc<Vec<AtomicU64>> = Arc::new((0..SLOTS).map(|_| AtomicU64::new(1)).collect());
    let checked = Arc::new(AtomicU32::new(0));
    std::thread::scope(|scope| {
        for reader in 0..2u64 {
            let (ram, stop, seeds) = (ram.clone(), stop.clone(), seeds.clone());
            let checked = checked.clone();
            scope.spawn(move || {
                let mut reading = Reader::new(Method::Lz4);
                let mut n = reader << 40;
                while !stop.load(SeqCst) {
                    n += 1;
                    let slot = mix(n) as u32 % SLOTS;
                    let before = seeds[slot as usize].load(SeqCst);
                    let mut page = [0; PAGE];
                    let found = reading.read(&ram, slot, &mut page);
                    if before % 2 == 0 && seeds[slot as usize].load(SeqCst) == before {
                        assert_eq!(found, Ok(()), "slot {slot}");
                        assert_eq!(page, page_of(before, (before / 2 % 6) as u32));
                        checked.fetch_add(1, SeqCst);
                    }
                }
            });
        }
        let writers: Vec<_> = (0..3u32)
            .map(|number| {
                let (ram, seeds) = (ram.clone(), seeds.clone());
                scope.spawn(move || {
                    let mut writer = Writer::new(number as u16, Method::Lz4);
                    for n in 0..40_000u64 {
                        let draw = mix(n << 8 | u64::from(number));
                        let slot = (draw >> 8) as u32 % (SLOTS / 3) * 3 + number;
                        let seed = &seeds[slot as usize];
                        let value = (n << 4 | u64::from(number)) * 2;
                        seed.store(value | 1, SeqCst);
                        if draw.is_multiple_of(8) {
                            ram.free(slot, || false);
                            continue;
                        }
                        let page = page_of(value, (value / 2 % 6) as u32);
                        if writer.write(&ram, slot, &page, false, &USED).is_ok() {
                            seed.store(value, SeqCst);
                        }
                        if n % 1000 == 999 {
                            writer.give_back(&ram);
                        }
                    }
                    writer.give_back(&ram);
                })
            })
            .collect();
        for writer in writers {
            writer.join().expect("no writer fails");
        }
        stop.store(true, SeqCst);
    });
    assert!(checked.load(SeqCst) > 1000);
    let mut held = 0;
    for slot in 0..SLOTS {
        let seed = seeds[slot as usize].load(SeqCst);
        if seed.is_multiple_of(2) {
            assert_eq!(
                read(&ram, slot),
                Ok(page_of(seed, (seed / 2 % 6) as u32)),
                "slot {slot}"
            );
            held += 1;
        }
    }
    check(&ram, held);
}

#[test]
fn other_memory_is_not_taken_for_an_area() {
    let ram = area(4 << 20, Method::Zstd);
    assert_eq!(ram.method(), Method::Zstd);
    ram.header().magic.store(1, SeqCst);
    let Ram { memory, .. } = ram;
    assert_eq!(Ram::over(memory).err(), Some(RamError::Mismatch));
}
