//! The swap map of one process: the core's queries, answered by the ledger.

use foreswap_core::units::Slot;
use foreswap_core::world::SwapMap;

use super::{AreaId, ClusterIndex, Ledger, MAX_AREAS, ProcId, SlotIndex};

/// The slots of a run's areas, for the process with the record `me`.
///
/// Values that cost too much to query each time are refreshed on request: [`ProcessMap::look_at_areas`] and
/// [`ProcessMap::look_at_filling`]. All others are those of the ledger at that instant.
#[derive(Debug)]
pub struct ProcessMap<'a> {
    ledger: &'a Ledger,
    me: ProcId,
    /// The receiver of shared slots: the child of the fork that is being held.
    child: Option<ProcId>,
    /// The areas that accept pages, in the order in which they are filled.
    order: Vec<u8>,
    /// Slots in use per area, at the last look.
    used: [u64; MAX_AREAS],
}

impl<'a> ProcessMap<'a> {
    /// The map for the process with record `me`, after a first look at the areas and their fill.
    pub fn new(ledger: &'a Ledger, me: ProcId) -> Self {
        let mut map = Self {
            ledger,
            me,
            child: None,
            order: Vec::with_capacity(MAX_AREAS),
            used: [0; MAX_AREAS],
        };
        map.look_at_areas();
        map.look_at_filling();
        map
    }

    /// An area was added, changed or removed.
    pub fn look_at_areas(&mut self) {
        self.order.clear();
        let order = self.ledger.areas_in_order().map(|area| area.0);
        self.order.extend(order);
    }

    /// Look up how many slots are in use.
    pub fn look_at_filling(&mut self) {
        for area in self.ledger.areas() {
            self.used[usize::from(area.0)] = self.ledger.area_filled(area);
        }
    }

    /// The record of the child for which [`SwapMap::share`] takes references; `None` once its fork is over.
    pub fn share_with(&mut self, child: Option<ProcId>) {
        self.child = child;
    }
}

impl SwapMap for ProcessMap<'_> {
    fn nth(&self, n: u8) -> Option<u8> {
        self.order.get(usize::from(n)).copied()
    }

    fn slots(&self, area: u8) -> u32 {
        self.ledger.area_slots(AreaId(area))
    }

    fn used(&self, area: u8) -> u64 {
        let used = self.used[usize::from(area)];
        // Memory fills faster than the look is repeated.
        let ram = self.ledger.ram(AreaId(area));
        ram.map_or(used, |ram| used.max(ram.filled_slots().into()))
    }

    fn compresses(&self, area: u8) -> bool {
        self.ledger.is_ram(AreaId(area))
    }

    fn tier(&self, area: u8) -> u8 {
        self.ledger.area_tier(AreaId(area))
    }

    fn claim_cluster(&mut self, area: u8) -> Option<u32> {
        self.ledger
            .claim_cluster(AreaId(area), self.me)
            .map(|cluster| cluster.0)
    }

    fn claim_empty_cluster(&mut self, area: u8) -> Option<u32> {
        self.ledger
            .claim_empty_cluster(AreaId(area), self.me)
            .map(|cluster| cluster.0)
    }

    fn release_cluster(&mut self, area: u8, cluster: u32) {
        self.ledger
            .release_cluster(AreaId(area), self.me, ClusterIndex(cluster));
    }

    fn count(&self, slot: Slot) -> u32 {
        self.ledger
            .slot_count(AreaId(slot.area), SlotIndex(slot.index))
    }

    fn get(&mut self, first: Slot, n: u32) {
        let (area, slot) = (AreaId(first.area), SlotIndex(first.index));
        let were_free = self.ledger.slots_get(self.me, area, slot, n);
        // A dead program is better than one that reads another program's data, or its own from another place.
        assert_eq!(
            were_free,
            Some(n),
            "{n} slots from {first:?} on are ours alone"
        );
    }

    fn put(&mut self, slot: Slot) {
        self.ledger
            .slot_put(self.me, AreaId(slot.area), SlotIndex(slot.index));
    }

    fn share(&mut self, slots: impl Iterator<Item = Slot>) {
        if let Some(child) = self.child {
            let slots = slots.map(|slot| (AreaId(slot.area), SlotIndex(slot.index)));
            self.ledger.share(self.me, child, slots);
        }
    }

    fn digest(&self, slot: Slot) -> u64 {
        self.ledger.digest(AreaId(slot.area), SlotIndex(slot.index))
    }

    fn set_digest(&mut self, slot: Slot, digest: u64) {
        self.ledger
            .set_digest(AreaId(slot.area), SlotIndex(slot.index), digest);
    }
}
