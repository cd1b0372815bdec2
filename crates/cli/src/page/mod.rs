//! The page of a run (`run --report FILE.html`, `foreswap report TRACE`): what happened, what it cost, and what another limit
//! would have cost, in one HTML file without anything from elsewhere.
//!
//! While the run goes on, [`activity`] counts the trace's records as they come, and [`timeline`] keeps the supervisor's
//! figures. [`limits`] computes from both what another limit would have cost. The other files write HTML. Names of programs
//! and files are anybody's text: all of it goes through maud, which escapes it.

pub mod activity;
mod axis;
mod chart;
mod code;
pub mod command;
mod grid;
mod heat;
mod lead;
mod limits;
mod names;
mod other_limits;
mod over_time;
mod places;
mod tables;
pub mod timeline;
pub mod watching;

use std::time::SystemTime;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::control::words::Area;
use crate::report::Run;
use activity::Found;
use timeline::Timeline;

/// A process of the run, at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its pid.
    pub pid: u32,
    /// Its command line when it connected.
    pub command: String,
    /// The most memory that was managed, resident or not.
    pub managed_bytes: u64,
    /// Faults that waited for an area.
    pub faults_major: u64,
    /// Bytes read from areas.
    pub in_bytes: u64,
    /// Bytes written to areas.
    pub out_bytes: u64,
    /// Time in which a thread waited for a page that more memory would have kept.
    pub stalled_ns: u64,
}

/// What only the supervisor of a run knows.
#[derive(Debug)]
pub struct Measured<'a> {
    /// The figures at the end.
    pub run: &'a Run,
    /// The figures over time.
    pub timeline: &'a Timeline,
    /// The areas, each with the most that was used of it.
    pub areas: &'a [Area],
    /// Managed processes, those with the most traffic first.
    pub processes: &'a [Process],
    /// Processes that are not among them.
    pub more_processes: usize,
    /// The functions that waited for pages, those that waited most first.
    pub functions: &'a [code::Function],
    /// When the run began.
    pub began: SystemTime,
}

/// All that a page tells.
#[derive(Debug)]
pub struct Story<'a> {
    /// The command line, or the name of the trace.
    pub title: String,
    /// What the records told.
    pub found: &'a Found,
    /// What the supervisor knows; `None` for a page from a trace.
    pub measured: Option<Measured<'a>>,
    /// The trace has no end.
    pub cut_off: bool,
}

impl Story<'_> {
    /// Whether the memory of a process was managed.
    fn is_idle(&self) -> bool {
        match &self.measured {
            Some(measured) => !measured.run.has_managed(),
            None => self.found.total() == activity::Column::default(),
        }
    }

    /// The page.
    pub fn page(&self) -> String {
        let style = include_str!("style.css");
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="generator" content=(concat!("foreswap ", env!("CARGO_PKG_VERSION")));
                    title { (self.title) " – foreswap" }
                    style { (PreEscaped(style)) }
                }
                body {
                    main {
                        (lead::draw(self))
                        @if !self.is_idle() {
                            (other_limits::draw(self))
                            (over_time::draw(self))
                            (places::draw(self))
                        }
                        (tables::draw(self))
                    }
                }
            }
        };
        page.into_string()
    }
}

/// A section with its heading.
fn section(heading: &str, content: &Markup) -> Markup {
    html! {
        section {
            h2 { (heading) }
            (content)
        }
    }
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
