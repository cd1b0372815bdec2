//! The engine's allocator: the core's, one per process, on a ledger.

use std::ops::Range;
use std::time::Duration;

use anyhow::Context;
use foreswap::ledger::{
    AreaId, AreaInfo, IoBackend, Ledger, LedgerSpec, Options, ProcId, ProcessMap, ReadaheadPolicy,
    SlotIndex, ThpMode,
};
use foreswap_core::ReclaimPolicy;
use foreswap_core::Slots;
use foreswap_core::units::Slot;
use foreswap_core::world::SwapMap;

use super::{CLUSTER, TASKS, append};

const AREA: AreaId = AreaId(0);

/// A run with one area.
pub struct Shipped {
    ledger: Ledger,
    processes: Vec<ProcId>,
}

impl Shipped {
    /// A run whose area has `slots` slots, and a process that holds every second slot of each cluster of `fragmented`.
    pub fn new(slots: u32, fragmented: &[u32]) -> anyhow::Result<Self> {
        let ledger = Ledger::create(&LedgerSpec {
            limit_pages: 0,
            // None of them concerns slots.
            options: Options {
                reclaim: ReclaimPolicy::default(),
                readahead: ReadaheadPolicy::None,
                thp: ThpMode::Always,
                helpers: 0,
                io: IoBackend::Auto,
                max_window: 1,
                full_timeout: Duration::ZERO,
                adopt_threshold: 0,
            },
            areas: vec![AreaInfo {
                slots,
                priority: 0,
                flags: 0,
                first_byte: 0,
                name: "foreswap bench slots".to_owned(),
            }],
        })?;
        let process = || {
            let process = ledger.reserve(None)?;
            ledger
                .connect(process, std::process::id())
                .then_some(process)
        };
        let processes = (0..TASKS).map(|_| process()).collect::<Option<_>>();
        let processes = processes.context("no free record in a new ledger")?;
        let other = process().context("no free record in a new ledger")?;
        for slot in fragmented.iter().flat_map(|&cluster| super::held(cluster)) {
            ledger.slot_get(other, AREA, SlotIndex(slot));
        }
        Ok(Self { ledger, processes })
    }
}

impl super::Area for Shipped {
    type Task<'a> = Process<'a>;

    fn tasks(&self, count: usize) -> Vec<Process<'_>> {
        let process = |&me: &ProcId| Process {
            slots: Slots::default(),
            map: ProcessMap::new(&self.ledger, me),
        };
        self.processes.iter().take(count).map(process).collect()
    }

    fn used(&self) -> u64 {
        self.ledger.area_used(AREA)
    }
}

/// One process of the run.
pub struct Process<'a> {
    slots: Slots,
    map: ProcessMap<'a>,
}

impl super::Task for Process<'_> {
    fn take(&mut self, request: u32, taken: &mut Vec<Range<u32>>) -> u32 {
        let got = if request == CLUSTER {
            let cluster = self.slots.take_cluster(&mut self.map);
            cluster.map(|first| (first, CLUSTER))
        } else {
            self.slots.take(&mut self.map, request)
        };
        let Some((first, n)) = got else {
            return 0;
        };
        append(taken, first.index..first.index + n);
        n
    }

    fn put(&mut self, slots: Range<u32>) {
        for index in slots {
            self.map.put(Slot {
                area: AREA.0,
                index,
            });
        }
    }

    fn end(&mut self) {
        self.slots.give_back(&mut self.map);
    }
}
