//! A process all of whose memory is on one area, at chosen slots: the reads of each touch.

use std::collections::BTreeMap;
use std::ops::Range;

use foreswap_core::readahead::Policy;
use foreswap_core::units::Slot;
use foreswap_core::{Config, ReclaimPolicy, Stored};
use foreswap_model::{Chaos, Process, Setup, System, View};

/// Pages that are modelled; the number puts the first at a border of 2 MiB.
pub const PAGES: usize = 6 * 3 * 512;

/// Memory and frames for all of it, so that only the touches decide which pages are read.
pub struct Swapped {
    pub sys: System,
    pub p: Process,
    /// The page in each slot.
    pages: BTreeMap<Slot, usize>,
}

fn content(at: usize) -> u64 {
    1_000_000 + at as u64
}

impl Swapped {
    /// Regions of the process, and for each of their pages its slot.
    pub fn new(readahead: Policy, regions: &[Range<usize>], slots: &[(usize, u32)]) -> Self {
        Self::with_files(readahead, regions, &[], slots)
    }

    /// As [`Swapped::new`]; `files` of it is memory of files.
    pub fn with_files(
        readahead: Policy,
        regions: &[Range<usize>],
        files: &[Range<usize>],
        slots: &[(usize, u32)],
    ) -> Self {
        let last = slots.iter().map(|&(_, slot)| slot).max().expect("slots");
        let mut sys = System::new(1 << 20, &[last + 1], Chaos::default());
        sys.ordinary = u64::MAX;
        let config = Config {
            frames: 4 * PAGES as u32,
            depth: 512,
            readahead,
            reclaim: ReclaimPolicy::default(),
            full_timeout: 1_000_000,
            swapoff: foreswap_core::Swapoff::Stream,
            first_touch: 1,
            thp: foreswap_core::Thp::Never,
            clusters: 0,
        };
        let setup = Setup {
            threads: 1,
            queue: 512,
            ..Setup::new(config, PAGES)
        };
        let mut p = Process::new(&mut sys, setup);
        assert_eq!(p.space.base % 512, 0);
        for region in regions {
            p.map(region.clone());
            p.adopt(&mut sys, region.clone());
        }
        for file in files {
            let pages = p.space.vpn(file.start)..p.space.vpn(file.end);
            p.mm.set_file(&pages);
        }
        let mut pages = BTreeMap::new();
        for &(at, index) in slots {
            let slot = Slot { area: 0, index };
            sys.get(slot);
            let digest = System::digest(content(at), sys.ordinary);
            sys.areas[0].content[index as usize] = content(at);
            sys.areas[0].digests[index as usize] = digest.number();
            *p.space.refs_mut(slot) += 1;
            p.cells[at].value = content(at);
            let page = p.space.vpn(at);
            let mut view = View {
                sys: &mut sys,
                space: &mut p.space,
            };
            p.mm.inherit(&mut view, page, Stored::In(slot), false);
            assert!(pages.insert(slot, at).is_none(), "{slot:?} twice");
        }
        Swapped { sys, p, pages }
    }

    /// A thread touches the page and gets it. Returns the pages read meanwhile, in order. Skips the checks after every
    /// call, which would take longer than everything else.
    pub fn touch(&mut self, at: usize) -> Vec<usize> {
        let page = self.p.space.vpn(at);
        let mut read = Vec::new();
        if self.p.space.pages[at].present.is_none() {
            self.call(|mm, view| mm.on_fault(view, page.address()));
            for flight in &self.p.space.flights {
                assert!(!flight.write);
                let first = flight.slot.expect("a read");
                let slots = (0..flight.frames.len() as u32).map(|n| first.plus(n));
                read.extend(slots.map(|slot| self.pages[&slot]));
            }
            self.finish();
        }
        assert_eq!(self.p.space.pages[at].present, Some(self.p.cells[at].value));
        read.sort_unstable();
        read
    }

    /// All I/O in flight is done.
    pub fn finish(&mut self) {
        while !self.p.space.flights.is_empty() {
            self.p.complete(&mut self.sys, 0);
        }
        self.call(|mm, view| mm.run(view));
    }

    /// Call the core.
    pub fn call<T>(&mut self, call: impl FnOnce(&mut foreswap_core::Mm, &mut View<'_>) -> T) {
        let mut view = View {
            sys: &mut self.sys,
            space: &mut self.p.space,
        };
        call(&mut self.p.mm, &mut view);
        self.p.space.woken.clear();
    }

    /// Move pages that are on the area elsewhere, as mremap does.
    pub fn remap(&mut self, from: Range<usize>, to: usize) {
        self.p.remap(from.clone(), to);
        for _ in 0..8 {
            self.p.round(&mut self.sys, true);
        }
        for at in self.pages.values_mut().filter(|at| from.contains(*at)) {
            *at = *at - from.start + to;
        }
    }

    /// Invariants at the end.
    pub fn check(&mut self) {
        self.p.run(&mut self.sys);
        self.p.check_references();
    }
}
