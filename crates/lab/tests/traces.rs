//! Traces are read back as they were written, and no bytes make a reader panic or grow.
//!
//! Randomness comes from a seed: `FORESWAP_SEED` replays one, `FORESWAP_FUZZ` sets how many files are damaged.

use std::path::Path;

use foreswap_core::units::Vpn;
use foreswap_lab::trace::{
    Ending, Event, Format, Found, Header, Ids, MAX_AT_ONCE, MAX_PAGES, Record, Source,
    SourceOptions, Start, Target, TraceReader, TraceWriter, convert,
};

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Small most of the time, of any size now and then.
    fn wild(&mut self, below: u64) -> u64 {
        let bits = self.below(64);
        (self.next() >> bits) % below
    }
}

fn seed() -> u64 {
    std::env::var("FORESWAP_SEED").map_or(1, |seed| seed.parse().expect("FORESWAP_SEED: a number"))
}

fn records(rng: &mut Rng, count: u64) -> Vec<Record> {
    let (mut tasks, mut time, mut page) = (0, 0u64, 0u64);
    let mut records = Vec::new();
    for _ in 0..count {
        time = time.wrapping_add(match rng.below(4) {
            0 => rng.next(),
            1 => 0,
            _ => 1000,
        });
        let task = if tasks == 0 {
            0
        } else {
            rng.below(tasks) as u32
        };
        page = match rng.below(5) {
            0 => rng.wild(MAX_PAGES),
            1 => page,
            _ => (page + 1) % MAX_PAGES,
        };
        let pages = Vpn(page)..Vpn(page + 1 + rng.wild(MAX_PAGES - page));
        let few = Vpn(page)..Vpn(page + 1 + rng.wild(MAX_AT_ONCE.min(MAX_PAGES - page)));
        let write = rng.below(2) == 0;
        let event = match rng.below(if tasks == 0 { 1 } else { 16 }) {
            0 => Event::Start(Start {
                space: rng.wild(1 << 24) as u32,
                pid: rng.next() as u32,
                tid: rng.next() as u32,
                parent: (tasks > 0).then_some(task),
            }),
            1 => Event::End,
            2 => Event::Map(pages),
            3 => Event::Unmap(pages),
            4 => Event::Discard(pages),
            5 => {
                // To the other half of the address space.
                let half = MAX_PAGES / 2;
                let first = page % half;
                let from = Vpn(first)..Vpn(first + 1 + rng.wild(half - first));
                let to = Vpn(first + half);
                match rng.below(2) {
                    0 => Event::Move { from, to },
                    _ => {
                        let length = from.end.0 - first;
                        let (from, to) = (to..to.plus(length), from.start);
                        Event::Move { from, to }
                    }
                }
            }
            6 => Event::File {
                file: rng.wild(1 << 24) as u32,
                pages: few,
                write,
            },
            7 => Event::Prefetched(few),
            8 => Event::Evicted(few),
            9 => Event::Lost(rng.next()),
            n => {
                let all = [
                    Found::Unknown,
                    Found::New,
                    Found::Kept,
                    Found::Ahead,
                    Found::Away,
                ];
                let found = all[(n % 5) as usize];
                Event::Touch {
                    page: Vpn(page),
                    found,
                    write,
                }
            }
        };
        let starts = matches!(event, Event::Start(_));
        let task = if starts { tasks as u32 } else { task };
        tasks += u64::from(starts);
        records.push(Record { time, task, event });
    }
    records
}

fn written(records: &[Record], flush_every: usize) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new(), Header { limit: 77 }).expect("a vector");
    for (n, record) in records.iter().enumerate() {
        writer.push(record).expect("a vector");
        if n % flush_every == 0 {
            writer.flush().expect("a vector");
        }
    }
    assert_eq!(writer.records(), records.len() as u64);
    writer.finish().expect("a vector")
}

fn read_all(bytes: &[u8]) -> (Vec<Record>, Result<Ending, String>) {
    let mut found = Vec::new();
    let mut reader = match TraceReader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return (found, Err(error.to_string())),
    };
    loop {
        match reader.next() {
            Ok(Some(record)) => found.push(record),
            Ok(None) => return (found, Ok(reader.ending().expect("it ended"))),
            Err(error) => {
                assert!(
                    matches!(reader.next(), Ok(None)),
                    "nothing comes after an error"
                );
                return (found, Err(error.to_string()));
            }
        }
    }
}

#[test]
fn a_written_trace_is_read_back() {
    let mut rng = Rng(seed());
    for round in 0..60 {
        let count = rng.below(3000) * (1 + 20 * u64::from(round % 20 == 0));
        let records = records(&mut rng, count);
        let bytes = written(&records, 1 + rng.below(2000) as usize);
        let (found, ending) = read_all(&bytes);
        assert_eq!(ending, Ok(Ending::Complete));
        assert!(found == records, "round {round}");
    }
}

#[test]
fn blocks_are_cut_where_they_are_full() {
    let mut rng = Rng(seed());
    let records = records(&mut rng, 120_000);
    let bytes = written(&records, usize::MAX);
    let (found, ending) = read_all(&bytes);
    assert_eq!(ending, Ok(Ending::Complete));
    assert!(found == records);
}

/// The writer was killed: the records up to the last whole block are there.
#[test]
fn a_trace_that_is_cut_off_is_valid_up_to_there() {
    let mut rng = Rng(seed());
    let records = records(&mut rng, 900);
    let bytes = written(&records, 100);
    for end in 32..bytes.len() {
        let (found, ending) = read_all(&bytes[..end]);
        assert_eq!(ending, Ok(Ending::CutOff), "{end} bytes");
        assert!(found[..] == records[..found.len()], "{end} bytes");
    }
    let (found, _) = read_all(&bytes[..bytes.len() - 1]);
    assert_eq!(found.len(), records.len());
}

/// Through CSV: everything except the processes' numbers is kept.
#[test]
fn a_converted_trace_is_the_same() {
    let mut rng = Rng(seed());
    let folder = tempfile::tempdir().expect("a folder");
    let [first, csv, last] = ["first", "all.csv", "last"].map(|name| folder.path().join(name));
    let all = records(&mut rng, 5000);
    std::fs::write(&first, written(&all, 700)).expect("written");
    for (from, to, target) in [(&first, &csv, Target::Csv), (&csv, &last, Target::Foreswap)] {
        let mut source = Source::open(from, &SourceOptions::default()).expect("open");
        convert(&mut source, from, to, target).expect("converted");
    }
    let (found, ending) = read_all(&std::fs::read(&last).expect("read"));
    assert_eq!(ending, Ok(Ending::Complete));
    let events = |records: &[Record]| -> Vec<(u64, Event)> {
        let told = records
            .iter()
            .filter(|r| !matches!(r.event, Event::Start(_)));
        told.map(|r| (r.time, r.event.clone())).collect()
    };
    assert!(events(&found) == events(&all));
    assert_eq!(
        std::fs::read_dir(folder.path()).expect("a folder").count(),
        3
    );
}

fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..=rng.below(3) {
        let at = rng.below(bytes.len().max(1) as u64) as usize;
        match rng.below(6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at.min(bytes.len()), rng.next() as u8),
            2 if !bytes.is_empty() => drop(bytes.remove(at)),
            3 if bytes.len() > at + 4 => bytes[at..at + 4].fill(0xff),
            4 => {
                let part = bytes[at.min(bytes.len())..].to_vec();
                bytes.extend(part);
            }
            _ if !bytes.is_empty() => bytes[at] ^= 1 << rng.below(8),
            _ => {}
        }
    }
}

fn fuzz_count() -> u64 {
    std::env::var("FORESWAP_FUZZ").map_or(60_000, |n| n.parse().expect("FORESWAP_FUZZ: a number"))
}

/// Damage that the checksums detect: no record is read that was not written.
#[test]
fn damaged_traces_give_errors_and_no_false_record() {
    let mut rng = Rng(seed());
    let (mut errors, mut cut) = (0u64, 0u64);
    for _ in 0..20 {
        let count = 1 + rng.below(60);
        let records = records(&mut rng, count);
        let bytes = written(&records, 20);
        for _ in 0..fuzz_count() / 20 {
            let mut damaged = bytes.clone();
            damage(&mut rng, &mut damaged);
            let (found, ending) = read_all(&damaged);
            assert!(found.len() <= records.len() && found[..] == records[..found.len()]);
            match ending {
                Ok(Ending::CutOff) => cut += 1,
                Ok(Ending::Complete) => assert_eq!(found.len(), records.len()),
                Err(text) => {
                    assert!(text.starts_with("offset "), "{text}");
                    errors += 1;
                }
            }
        }
    }
    assert!(
        errors > fuzz_count() / 4 && cut > 0,
        "{errors} errors, {cut} cut off"
    );
}

fn fnv(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// Damage with correct checksums: the bytes of the records themselves.
#[test]
fn wild_records_in_sound_blocks_give_errors() {
    let mut rng = Rng(seed());
    let head = written(&[], 1)[..32].to_vec();
    let mut errors = 0;
    let mut compressor = zstd::bulk::Compressor::new(1).expect("memory");
    for _ in 0..fuzz_count() {
        let mut raw: Vec<u8> = (0..1 + rng.below(40)).map(|_| rng.next() as u8).collect();
        if rng.below(2) == 0 {
            // A task starts, so that what follows is looked at.
            raw.splice(0..0, [0x51, 0, 0, 0, 0]);
        }
        let records = 1 + rng.below(raw.len() as u64 + 2) as u32;
        let compressed = compressor.compress(&raw).expect("a vector");
        let mut bytes = head.clone();
        let mut block = b"BLCK".to_vec();
        for word in [compressed.len() as u32, raw.len() as u32, records] {
            block.extend(word.to_le_bytes());
        }
        let check = fnv(&block);
        block.extend(check.to_le_bytes());
        bytes.extend(block);
        bytes.extend(compressed);
        let (found, ending) = read_all(&bytes);
        assert!(found.len() <= records as usize);
        errors += u64::from(ending.is_err());
    }
    assert!(errors > fuzz_count() / 2, "{errors} errors");
}

fn drain(path: &Path, options: &SourceOptions) -> Result<u64, String> {
    let mut source = Source::open(path, options).map_err(|e| e.to_string())?;
    let mut records = 0;
    while source.next().map_err(|e| e.to_string())?.is_some() {
        records += 1;
        // An object of 4 GiB is a million touches, which is right, and slow.
        if records > 4000 {
            break;
        }
    }
    Ok(records)
}

/// Every format, also in zstd and gzip.
#[test]
fn damaged_files_of_all_formats_give_errors() {
    use std::io::Write as _;
    let mut rng = Rng(seed());
    let folder = tempfile::tempdir().expect("a folder");
    let csv =
        b"time,task,op,page,pages,write\n1,2,touch,0x10,,w\n2,2,map,7,9,\n3,1,,9,,\n".to_vec();
    let mut access = Vec::new();
    for id in 0..5u64 {
        access.extend(9u32.to_le_bytes());
        access.extend(id.to_le_bytes());
        access.extend(5000u32.to_le_bytes());
        access.extend((-1i64).to_le_bytes());
    }
    let ours = written(&records(&mut rng, 30), 7);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&csv).expect("a vector");
    let gzip = gzip.finish().expect("a vector");
    let packed = zstd::bulk::compress(&access, 1).expect("a vector");
    let formats = [
        (Format::Csv, &csv),
        (Format::Csv, &gzip),
        (Format::Oracle, &access),
        (Format::Oracle, &packed),
        (Format::Foreswap, &ours),
    ];
    let mut errors = 0;
    let path = folder.path().join("trace");
    for (format, bytes) in formats {
        let options = SourceOptions {
            format: Some(format),
            ids: Ids::Objects,
        };
        std::fs::write(&path, bytes).expect("written");
        drain(&path, &options).expect("sound");
        for _ in 0..fuzz_count() / 40 {
            let mut damaged = bytes.clone();
            damage(&mut rng, &mut damaged);
            // A file that is truncated and written again is forced to the disk when it is closed.
            std::fs::remove_file(&path).expect("removed");
            std::fs::write(&path, &damaged).expect("written");
            errors += u64::from(drain(&path, &options).is_err());
        }
    }
    assert!(errors > fuzz_count() / 40, "{errors} errors");
}
