//! An open area becomes one of the run's: its entry in the ledger, and what the user hears of it.

use std::os::fd::AsFd;

use foreswap::key::RunKey;
use foreswap::ledger::{AreaId, AreaState};
use foreswap_store::area::{OpenArea, PAGE_BYTES};

use super::change::Parts;
use super::list;
use crate::area_file::Descriptors;
use crate::areas;
use crate::size::humane;

/// Puts an open area into the ledger. Its number, its descriptors, its name, and what is said when it is used.
pub fn describe(
    open: &mut OpenArea,
    priority: Option<i32>,
    parts: &mut Parts<'_>,
) -> Result<(AreaId, Descriptors, String, String), String> {
    let ledger = parts.sessions.ledger();
    let there = list::areas(ledger);
    let lowest = there.iter().map(|area| area.priority).min().unwrap_or(0);
    let priority = priority.unwrap_or(lowest.saturating_sub(1));
    let say = |error: &dyn std::error::Error| error.to_string();
    let io = ledger.options().io;
    if let (_, Some(why)) = areas::backend(io, std::slice::from_mut(open)) {
        return Err(format!("{why}; start the run with --io threads to use it"));
    }
    let encrypt = parts.encrypt;
    let info = areas::describe(open, priority, encrypt).map_err(|e| say(&e))?;
    if areas::is_sealed(open, encrypt) && parts.sessions.key.is_none() {
        parts.sessions.key = Some(RunKey::draw().map_err(|e| say(&e))?);
    }
    let descriptors = Descriptors::of(open).map_err(|e| say(&e))?;
    let ledger = parts.sessions.ledger();
    let added = ledger.add_area(&info, AreaState::Joining);
    let area = added.map_err(|e| say(&e))?;
    if let Err(error) = ledger.attach_ram(area, open.file.as_fd()) {
        // SAFETY: this thread is the only one that uses the ledger.
        unsafe { ledger.detach_area(area) };
        ledger.set_area_state(area, AreaState::Absent);
        return Err(say(&error));
    }
    let mut text = format!(
        "{} is swap area {}: {}, priority {priority}",
        info.name,
        area.0,
        humane(u64::from(info.slots) * PAGE_BYTES),
    );
    for note in &open.notes {
        text = format!("{text}\n{note}");
    }
    Ok((area, descriptors, info.name, text))
}
