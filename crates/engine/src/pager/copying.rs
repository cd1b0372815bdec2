//! The number of copies that a forked child or its parent may have made of the pages that they share, before each is
//! write-protected.
//!
//! The kernel reports no copy. Each fault that brought no data may have copied a page. The core decides on these
//! numbers: see `process::Debt`.

use crate::ledger::{Ledger, ProcId, ProcessState};
use crate::sys::host;

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
    family: u32,
    /// It asks for copies: the faults before are counted.
    asks: bool,
}

impl Engine {
    /// The record is still the parent's.
    fn is_there(&self) -> bool {
        self.ledger.state(self.record) == ProcessState::Live
            && self.ledger.family(self.record) == self.family
    }
}

/// The faults of a process, as far as they were counted.
#[derive(Clone, Debug, Default)]
struct Faults {
    pid: u32,
    counted: u64,
}

impl Faults {
    /// Faults since the last call; more than any process has if it has ended.
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

    /// The child `me` joins the family of its parent. Returns whether the parent is in the ledger and of this family.
    pub fn join(&mut self, ledger: &'static Ledger, me: ProcId, family: u32) -> bool {
        let mut records = ledger.records_in_use();
        let parent = records.find(|&record| {
            ledger.pid(record) == self.parent.pid && ledger.family(record) == family
        });
        // A parent that was bare when it forked left no snapshot that names its record.
        if let (Some(parent), None) = (parent, ledger.parent(me)) {
            ledger.set_parent(me, parent);
        }
        self.engine = parent.map(|record| Engine {
            ledger,
            record,
            family,
            asks: false,
        });
        self.has_parent()
    }

    /// The parent is in the ledger, and of the same family.
    pub fn has_parent(&self) -> bool {
        self.engine.is_some_and(|engine| engine.is_there())
    }

    /// Copies of the parent are counted here: it does not ask for them.
    pub fn counts_parent(&self) -> bool {
        self.engine
            .is_none_or(|engine| engine.is_there() && !engine.asks)
    }

    /// Pages that may have been copied since the last call; only by the parent if the child is write-protected. A
    /// parent that is protected asks for the pages that it copies.
    pub fn more(&mut self, is_protected: bool) -> u64 {
        let own = if is_protected { 0 } else { self.child.more() };
        let parents = match &mut self.engine {
            None => self.parent.more(),
            // The supervisor asks for the pages that it was charged for.
            Some(engine) if !engine.is_there() => 0,
            // The pages that it shares with this process stay protected from now on until it is paid for.
            Some(engine) if engine.asks => 0,
            Some(engine) => {
                engine.asks = engine.ledger.protects(engine.record);
                self.parent.more()
            }
        };
        own.saturating_add(parents)
    }
}
