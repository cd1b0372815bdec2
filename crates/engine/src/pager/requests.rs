//! Requests of program threads to the pager over the doorbell.

use super::world::now;
use super::{MESSAGES, Pager, SETTLES};
use crate::program::{FileMapping, request};
use crate::sys::doorbell::{Knock, SlotIndex};
use crate::sys::uffd::{Event, RawMsg};

impl Pager {
    pub(super) fn read_doorbell(&mut self) -> bool {
        let mut buffer = [RawMsg::ZERO; MESSAGES];
        let mut calls = core::mem::take(&mut self.early_calls);
        if let Ok(events) = self.w.quiet.read(&mut buffer) {
            for event in events {
                if let Event::Fault { addr, .. } = event
                    && let Knock::Call(slot) = self.doorbell.on_fault(&self.w.quiet, addr)
                {
                    calls.push(slot);
                }
            }
        }
        let any = !calls.is_empty();
        for slot in calls {
            // The program's actions before it rang must be known before the answer.
            self.settle();
            let words = self.doorbell.request(slot);
            match words[0] {
                request::GREW | request::SEEN => {
                    let goes_on = if words[0] == request::GREW {
                        self.on_grew(words[1] as usize, words[2] as usize)
                    } else {
                        self.on_seen(words[1] as usize)
                    };
                    if !goes_on {
                        self.hold.delay_growth(slot, now());
                        continue;
                    }
                }
                request::HOLD => {
                    self.on_hold(slot);
                    continue;
                }
                request::ADVISE => {
                    let managed = self.on_advice(words[1], words[2], words[3]);
                    self.answer(slot, [managed, 0, 0, 0]);
                    continue;
                }
                request::RELEASE => {
                    let number = self.on_release();
                    self.answer(slot, [number, 0, 0, 0]);
                    continue;
                }
                request::GUARD => self.on_guard(words[1], words[2], words[3] as i32),
                request::LET_GO => {
                    let gone = self.on_let_go(words[1] as usize, words[2] as usize);
                    self.answer(slot, [gone.into(), 0, 0, 0]);
                    continue;
                }
                request::JOIN => {
                    let joined = self.on_join(words[1] as usize, words[2] as usize);
                    let next = [joined.next.start as u64, joined.next.end as u64];
                    self.answer(slot, [joined.whole.into(), next[0], next[1], 0]);
                    continue;
                }
                request::MAP_FILE => {
                    let file = FileMapping::from_word(words[3]);
                    let served = self.on_map_file(words[1] as usize, words[2] as usize, file);
                    self.answer(slot, [served.into(), 0, 0, 0]);
                    continue;
                }
                request::IS_FILE => {
                    let is_file = self.on_is_file(words[1] as usize, words[2] as usize);
                    self.answer(slot, [is_file.into(), 0, 0, 0]);
                    continue;
                }
                request::EXECUTES => {
                    if let Some(bell) = &self.announced {
                        let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
                    }
                }
                request::FORKED => self.on_forked(words[1], words[2] as u32),
                _ => {}
            }
            self.answer(slot, [0; 4]);
        }
        any
    }

    pub(super) fn answer(&mut self, slot: SlotIndex, words: [u64; 4]) {
        // Fails only while the process' memory is being torn down.
        let _ = self.doorbell.answer(&self.w.quiet, slot, words);
    }

    /// Read events until none is pending or in progress. Adoption then sees the address space as it is. A thread that
    /// unmaps may lose its CPU before it raises the event; new memory at the freed place would then be mistaken for
    /// the old. That costs no content: until the event has been read, the kernel neither moves nor maps a page on
    /// this descriptor, and a page that the event makes the core forget is found again at the next fault. The wait is
    /// therefore bounded: a program that unmaps endlessly must not block the pager here.
    pub(super) fn settle(&mut self) {
        let began = now();
        for turn in 0u32.. {
            self.read_program();
            if !self.w.program.mmap_changing() || now() - began > SETTLES {
                return;
            }
            if turn < 1000 {
                rustix::thread::sched_yield();
            } else {
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
        }
    }
}
