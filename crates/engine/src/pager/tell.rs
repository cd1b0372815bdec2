//! The messages for the user.

use core::mem::{Discriminant, discriminant};

use foreswap_core::units::{PAGE_SIZE, Slot};
use foreswap_core::world::Notice;

use foreswap_store::ring::IoError;
use rustix::io::Errno;

use super::world::Linux;
use crate::ledger::protocol::Severity;
use crate::ledger::{AREA_RAM, AreaId};

/// The most messages of one kind that one process sends; a failing disk causes millions.
const MOST: u32 = 20;

/// How many notices of each kind were sent. A flood of one kind (an area that is full, and full again) must not keep
/// another one from the user.
#[derive(Debug, Default)]
pub struct Told(Vec<(Discriminant<Notice>, u32)>);

impl Told {
    /// Counts a notice that is to be sent. False: there were enough of its kind.
    fn is_room(&mut self, notice: Notice) -> bool {
        let kind = discriminant(&notice);
        let known = self.0.iter().position(|(other, _)| *other == kind);
        let at = known.unwrap_or_else(|| {
            self.0.push((kind, 0));
            self.0.len() - 1
        });
        let (_, sent) = &mut self.0[at];
        *sent = (*sent + 1).min(MOST + 1);
        *sent <= MOST
    }
}

impl Linux {
    /// Send a notice of the core to the supervisor, which prints it. At once: the program may not live to see the
    /// next turn of the loop.
    pub(super) fn tell(&mut self, notice: Notice) {
        if !self.told.is_room(notice) {
            return;
        }
        let (severity, text) = self.words(notice);
        if let Some(client) = &self.client {
            // Without a supervisor there is no reader.
            let _ = client.log(severity, &text);
        }
    }

    fn place(&self, slot: Slot) -> String {
        if slot.is_file() {
            return self.files.name(slot);
        }
        let name = self.ledger.area_info(AreaId(slot.area)).map_or_else(
            || format!("area {}", slot.area),
            |info| info.name.to_string(),
        );
        format!(
            "{name} at offset {}",
            u64::from(slot.index) * PAGE_SIZE as u64
        )
    }

    fn words(&self, notice: Notice) -> (Severity, String) {
        let pid = self.pid;
        match notice {
            Notice::AreasFull => {
                let areas: Vec<String> = self
                    .ledger
                    .areas()
                    .filter_map(|area| self.ledger.area_info(area))
                    .map(|info| {
                        if info.flags & AREA_RAM != 0 {
                            // The name contains the size.
                            return info.name;
                        }
                        let mib = (u64::from(info.slots) * PAGE_SIZE as u64) >> 20;
                        format!("{} ({mib} MiB)", info.name)
                    })
                    .collect();
                if areas.is_empty() {
                    let text = "no swap area is left; the program goes on while it fits its limit (give one with `foreswap swapon`)";
                    return (Severity::Warning, text.to_owned());
                }
                let text = format!(
                    "the swap area is full: {}; the program goes on while it fits its limit (give more with --swap-size or another --swap)",
                    areas.join(", ")
                );
                (Severity::Warning, text)
            }
            Notice::ReadFailed { slot, page, error } => {
                let why = IoError::Os { errno: error };
                let text = format!(
                    "cannot read {} back ({why}): the page at {:#x} of process {pid} is lost, a touch of it raises SIGBUS",
                    self.place(slot),
                    page.address()
                );
                (Severity::Error, text)
            }
            Notice::Corrupt { slot, page } => {
                let text = format!(
                    "{} holds other bytes than were written (checksum): the page at {:#x} of process {pid} is lost, a touch of it raises SIGBUS",
                    self.place(slot),
                    page.address()
                );
                (Severity::Error, text)
            }
            Notice::WriteFailed { slot, error } => {
                let why = IoError::Os { errno: error };
                // As the core does: see `on_not_written`.
                let then = match error == Errno::NOSPC.raw_os_error() {
                    true => "the page stays in memory",
                    false => "the page stays in memory, the slot is not used again",
                };
                let text = format!("cannot write {} ({why}): {then}", self.place(slot));
                (Severity::Warning, text)
            }
            Notice::OutOfMemory { page } => {
                let text = format!(
                    "no memory for the page at {:#x} of process {pid}: the limit is reached and no swap area has room; the program gets SIGBUS (raise --memory or --swap-size)",
                    page.address()
                );
                (Severity::Error, text)
            }
            Notice::Unaccounted { page } => {
                let text = format!(
                    "the page at {:#x} of process {pid} is gone and nothing told why: it was discarded by a system call behind the C library's back (MADV_FREE or a guard), or this is a fault of foreswap; its content is lost, a touch of it raises SIGBUS",
                    page.address()
                );
                (Severity::Error, text)
            }
            Notice::LimitPassed => {
                let text = format!(
                    "process {pid} uses more than the limit: its pages cannot be moved out (locked with mlock, made read-only with mprotect, pinned by I/O, or shared with forked processes)"
                );
                (Severity::Warning, text)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use foreswap_core::units::Vpn;

    use super::*;

    #[test]
    fn a_flood_of_one_kind_silences_no_other() {
        let mut told = Told::default();
        let sent = (0..100).filter(|_| told.is_room(Notice::AreasFull));
        assert_eq!(sent.count(), MOST as usize);
        let lost = |n| Notice::OutOfMemory { page: Vpn(n) };
        let sent = (0..100).filter(|&n| told.is_room(lost(n)));
        assert_eq!(sent.count(), MOST as usize);
    }
}
