use std::collections::BTreeMap;

use super::*;

/// A small generator: the same numbers each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn content(version: u32) -> Vec<u8> {
    version.to_ne_bytes().repeat(PAGE / 4)
}

const SEGMENT: u32 = 8;
const PAGES: u32 = 400;

/// A log, the objects of a server, and the versions that pages must have.
struct World {
    log: Log,
    objects: BTreeMap<Number, Bytes>,
    versions: BTreeMap<u32, u32>,
    storing: Vec<(Number, Bytes)>,
    cleaning: Vec<Number>,
    removing: Vec<Number>,
    /// Reads under way: the page, its place, and the version it had.
    reads: Vec<(Number, u32, u32)>,
    numbers: Numbers,
    /// Of a hundred requests so many fail.
    fails: u64,
}

impl World {
    fn new(seed: u64, fails: u64) -> Self {
        Self {
            log: Log::new(SEGMENT),
            objects: BTreeMap::new(),
            versions: BTreeMap::new(),
            storing: Vec::new(),
            cleaning: Vec::new(),
            removing: Vec::new(),
            reads: Vec::new(),
            numbers: Numbers(seed * 0x9E37_79B9_7F4A_7C15 + 1),
            fails,
        }
    }

    fn fails(&mut self) -> bool {
        self.numbers.below(100) < self.fails
    }

    fn any<T>(&mut self, of: impl Fn(&mut Self) -> &mut Vec<T>) -> Option<T> {
        let length = of(self).len() as u64;
        let at = self.numbers.below(length.max(1)) as usize;
        (length > 0).then(|| of(self).swap_remove(at))
    }

    fn write(&mut self, page: u32) {
        if self.log.has_room() && !self.log.is_behind() {
            let version = self.versions.get(&page).map_or(1, |version| version + 1);
            self.log.write(page, &content(version));
            self.versions.insert(page, version);
        }
    }

    fn begin_read(&mut self, page: u32) {
        let version = self.versions.get(&page).copied();
        match (self.log.find(page), version) {
            (Found::Never, None) => {}
            (Found::Here(bytes), Some(version)) => assert_eq!(bytes, content(version)),
            (Found::There(number, index), Some(version)) => {
                self.reads.push((number, index, version));
                self.log.pin(number);
            }
            (found, version) => panic!("page {page}: {found:?}, of version {version:?}"),
        }
    }

    fn end_read(&mut self) {
        if let Some((number, index, version)) = self.any(|world| &mut world.reads) {
            let object = self.objects.get(&number).expect("an object that is read");
            let from = index as usize * PAGE;
            assert_eq!(object[from..from + PAGE], content(version));
            self.log.unpin(number);
        }
    }

    fn work(&mut self) {
        match self.numbers.below(6) {
            0 => self.storing.extend(self.log.next_to_store()),
            1 => {
                if let Some((number, bytes)) = self.any(|world| &mut world.storing) {
                    // A request that fails may have been carried out.
                    let (is_stored, is_said) = (!self.fails(), !self.fails());
                    if is_stored {
                        self.objects.insert(number, bytes);
                    }
                    self.log.on_stored(number, is_stored && is_said);
                }
            }
            2 => self.cleaning.extend(self.log.next_to_clean()),
            3 => {
                if let Some(number) = self.any(|world| &mut world.cleaning) {
                    let fails = self.fails();
                    let bytes = self.objects.get(&number).filter(|_| !fails);
                    self.log.on_read(number, bytes.map(|bytes| &bytes[..]));
                }
            }
            4 => self.removing.extend(self.log.next_to_remove()),
            _ => {
                if let Some(number) = self.any(|world| &mut world.removing) {
                    let is_removed = !self.fails();
                    if is_removed {
                        self.objects.remove(&number);
                        let reads = &self.reads;
                        assert!(reads.iter().all(|(of, _, _)| *of != number), "{number}");
                    }
                    self.log.on_removed(number, is_removed);
                }
            }
        }
    }

    /// Until nothing is left to do.
    fn settle(&mut self) {
        self.fails = 0;
        for _ in 0..20_000 {
            self.end_read();
            self.work();
        }
    }
}

#[test]
fn pages_are_the_last_ones_written_whatever_fails() {
    for seed in 1..40 {
        let mut world = World::new(seed, seed % 4 * 20);
        let mut most = 0;
        for _ in 0..6000 {
            let hot = u64::from(PAGES) / 10;
            let page = match world.numbers.below(10) {
                0..7 => world.numbers.below(hot),
                _ => world.numbers.below(PAGES.into()),
            } as u32;
            match world.numbers.below(4) {
                0 | 1 => world.write(page),
                2 => world.begin_read(page),
                _ => world.end_read(),
            }
            world.work();
            most = most.max(world.log.staged[0] + world.log.staged[1]);
        }
        assert!(world.versions.len() > 100, "{} pages", world.versions.len());
        assert!(
            most <= MOST_STAGED + MOST_MOVED,
            "{most} segments in memory"
        );
        world.settle();
        for page in 0..PAGES {
            world.begin_read(page);
        }
        world.settle();
        let (live, slack) = (world.versions.len() as u64, SLACK * u64::from(SEGMENT));
        let objects = world.objects.len() as u64 * u64::from(SEGMENT);
        assert_eq!(world.log.live, live);
        assert!(
            objects * 3 <= live * 4 + slack * 3,
            "{objects} pages in objects, {live} live"
        );
        // What is known of is all that is there.
        let mut known = world.log.close();
        known.retain(|number| world.objects.contains_key(number));
        assert_eq!(known.len(), world.objects.len());
    }
}

#[test]
fn a_segment_that_was_written_again_before_it_was_sent_is_never_stored() {
    let mut log = Log::new(2);
    for page in [0, 1, 1, 0] {
        log.write(page, &content(page));
    }
    let (number, _) = log.next_to_store().expect("the second");
    assert_eq!((number, log.next_to_store()), (1, None));
    // The other way round, its object is removed, even though storing it has failed.
    log.on_stored(number, false);
    log.write(0, &content(7));
    log.write(1, &content(7));
    assert_eq!(log.next_to_remove(), Some(1));
    assert_eq!(log.close(), [1]);
}

#[test]
fn pages_of_an_object_that_is_gone_are_lost_until_they_are_written() {
    let mut log = Log::new(4);
    for page in 0..6 {
        log.write(page, &content(page));
    }
    let (number, _) = log.next_to_store().expect("a segment");
    assert!(!log.on_gone(number), "it is in memory");
    log.on_stored(number, true);
    assert_eq!(log.find(3), Found::There(number, 3));
    log.write(3, &content(9));
    assert!(log.on_gone(number));
    assert!(!log.on_gone(number));
    let found: Vec<_> = (0..7).map(|page| log.find(page)).collect();
    let (four, five, nine) = (content(4), content(5), content(9));
    assert_eq!(
        found,
        [
            Found::Lost,
            Found::Lost,
            Found::Lost,
            Found::Here(&nine[..]),
            Found::Here(&four[..]),
            Found::Here(&five[..]),
            Found::Never
        ]
    );
    log.write(0, &content(1));
    assert_eq!((log.live, log.stored), (4, 0));
    assert!(matches!(log.find(0), Found::Here(_) | Found::There(..)));
}
