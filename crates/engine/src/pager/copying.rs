//! The number of copies that a forked child or its parent may have made of the pages that they share.
//!
//! The kernel reports no copy. Where a process' pages are not write-protected, each of its faults that brought no data
//! may have copied one; pages that the parent's engine copies for eviction are counted there. What the numbers mean is
//! decided in the core: see `process::Debt`.

use std::sync::atomic::Ordering::Relaxed;

use crate::ledger::{Ledger, ProcId};
use crate::sys::host;

/// More pages than any process copies.
const ENDED: u64 = u64::MAX / 2;

/// The number of pages shared by child and parent that either may have copied.
#[derive(Clone, Debug, Default)]
pub struct Copying {
    child: Faults,
    parent: Faults,
    /// The parent's engine, once it is known.
    engine: Option<Engine>,
}

/// The engine of the parent.
#[derive(Clone, Copy, Debug)]
struct Engine {
    ledger: &'static Ledger,
    record: ProcId,
    /// The number of its copied pages that were counted.
    counted: u64,
}

impl Engine {
    /// Pages copied for eviction since the last call.
    fn more(&mut self) -> u64 {
        let all = self.ledger.stats(self.record).unshared.load(Relaxed);
        all.saturating_sub(core::mem::replace(&mut self.counted, all))
    }
}

/// The faults of a process, as far as they were counted.
#[derive(Clone, Debug, Default)]
struct Faults {
    pid: u32,
    counted: u64,
}

impl Faults {
    /// Faults since the last call; `ENDED` if the process has ended.
    fn more(&mut self) -> u64 {
        let faults = host::faults(self.pid).unwrap_or(u64::MAX);
        faults.saturating_sub(core::mem::replace(&mut self.counted, faults))
    }
}

impl Copying {
    /// Counts from now on for the parent, from its birth on for the child.
    pub fn begin(child: u32, parent: u32) -> Self {
        let mut parent = Faults {
            pid: parent,
            counted: 0,
        };
        let _ = parent.more();
        let child = Faults {
            pid: child,
            counted: 0,
        };
        Copying {
            child,
            parent,
            engine: None,
        }
    }

    /// Also count the copies of the parent's engine, beyond its count at the fork.
    pub fn know_parent(&mut self, ledger: &'static Ledger, me: ProcId, copied: u64) {
        let mut records = ledger.records_in_use();
        let parent = records.find(|&record| ledger.pid(record) == self.parent.pid);
        // A parent that was bare when it forked left no snapshot that names its record.
        if let (Some(parent), None) = (parent, ledger.parent(me)) {
            ledger.set_parent(me, parent);
        }
        self.engine = parent.map(|record| Engine {
            ledger,
            record,
            counted: copied,
        });
    }

    /// Pages that may have been copied since the last call; only by the parent if the child's copies are paid in
    /// advance.
    pub fn more(&mut self, is_protected: bool) -> u64 {
        let own = if is_protected { 0 } else { self.child.more() };
        let unshared = self.engine.as_mut().map_or(0, Engine::more);
        let parents = self.parent.more().saturating_add(unshared);
        let asks = |engine: Engine| engine.ledger.protects(engine.record);
        // An ended parent makes no requests.
        let counts = parents > ENDED || !self.engine.is_some_and(asks);
        own.saturating_add(if counts { parents } else { 0 })
    }
}
