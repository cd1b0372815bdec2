//! Where in memory the paging was: the pictures of the most active processes, and their mappings in figures.

use foreswap_store::area::PAGE_BYTES;
use maud::{Markup, html};

use super::activity::Space;
use super::axis::{Axis, Unit};
use super::chart::x_labels;
use super::heat::{Group, Heat, Shows};
use super::{Story, section};
use crate::size::humane;

/// Processes with a picture.
const PICTURES: usize = 3;
/// Rows of a table of mappings.
const MAPPINGS: usize = 10;
/// Pixels of a picture: its height, and the least that a name needs.
const LEAST: usize = 120;
const MOST: usize = 400;
const NAME: f64 = 15.0;

impl Shows {
    fn id(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Back => "back",
            Self::Out => "out",
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Held => "In memory",
            Self::Back => "Came back",
            Self::Out => "Evicted",
        }
    }
}

/// The process: its command, if it is known.
fn name_of(story: &Story<'_>, space: &Space) -> String {
    let measured = story.measured.iter();
    let mut processes = measured.flat_map(|measured| measured.processes);
    match processes.find(|process| process.pid == space.pid) {
        Some(process) => format!("{} (process {})", process.command, space.pid),
        None => format!("Process {}", space.pid),
    }
}

fn picture(heat: &Heat, columns: &Axis) -> Markup {
    let height = (heat.height() * 3).clamp(LEAST, MOST);
    let percent = |rows: usize| 100.0 * rows as f64 / heat.height() as f64;
    let fits = |group: usize| percent(heat.place(group).len()) / 100.0 * height as f64 >= NAME;
    html! {
        div .heat style=(format!("height:{height}px")) {
            div .names {
                @for (number, group) in heat.groups.iter().enumerate() {
                    @if fits(number) {
                        @let rows = heat.place(number);
                        span title=(group.name.as_deref().unwrap_or_default())
                            style=(format!("top:{:.2}%;height:{:.2}%", percent(rows.start), percent(rows.len()))) {
                            (group.spoken())
                        }
                    }
                }
            }
            div .frame {
                @for number in 1..heat.groups.len() {
                    i .gap style=(format!("top:{:.2}%", percent(heat.place(number).start))) {}
                }
                @for shows in Shows::ALL {
                    img .(shows.id()) src=(heat.picture(shows)) alt=(alt(heat, shows));
                }
            }
        }
        div .under { (x_labels(columns)) }
    }
}

fn alt(heat: &Heat, shows: Shows) -> String {
    let name = shows.label();
    let busiest = heat.groups.iter().max_by_key(|group| match shows {
        Shows::Held => 0,
        Shows::Back => group.back,
        Shows::Out => group.out,
    });
    match busiest {
        Some(group) if shows != Shows::Held => {
            format!(
                "{name}, by address and time; most of it: {}",
                group.spoken()
            )
        }
        _ => format!("{name}, by address and time"),
    }
}

/// A mapping's figures: the groups of the same name together.
fn mappings(heat: &Heat) -> (Vec<Group>, usize) {
    let mut all: Vec<Group> = Vec::new();
    for group in &heat.groups {
        match all
            .iter_mut()
            .find(|other| other.name.is_some() && other.name == group.name)
        {
            Some(other) => {
                other.back += group.back;
                other.out += group.out;
                other.rows.end += group.rows.len();
            }
            None => all.push(group.clone()),
        }
    }
    all.retain(|group| group.back + group.out > 0);
    all.sort_by_key(|group| std::cmp::Reverse(group.back + group.out));
    let more = all.len().saturating_sub(MAPPINGS);
    all.truncate(MAPPINGS);
    (all, more)
}

fn table(heat: &Heat) -> Markup {
    let (mappings, more) = mappings(heat);
    let pages = |pages: u64| humane(pages * PAGE_BYTES);
    html! {
        div .table {
            table {
                thead { tr {
                    th scope="col" { "Mapping" }
                    th scope="col" .wide { "Touched, about" }
                    th scope="col" { "Came back" }
                    th scope="col" { "Evicted" }
                } }
                tbody {
                    @for group in &mappings {
                        tr {
                            th scope="row" title=(group.name.as_deref().unwrap_or_default()) { (group.spoken()) }
                            td .wide { (pages(group.rows.len() as u64 * heat.block_pages())) }
                            td { (pages(group.back)) }
                            td { (pages(group.out)) }
                        }
                    }
                }
            }
        }
        @if more > 0 { p .note { (more) " more mappings had less." } }
    }
}

/// The section.
pub fn draw(story: &Story<'_>) -> Markup {
    let found = story.found;
    let active = found.spaces.iter().filter(|space| space.grid.moves() > 0);
    let shown: Vec<&Space> = active.clone().take(PICTURES).collect();
    if shown.is_empty() {
        return html! {};
    }
    let more = active.count() - shown.len() + found.left_out as usize;
    let end = found.column.as_secs_f64() * found.columns.len() as f64;
    let time = Axis::within(0.0, end, Unit::Time);
    let content = html! {
        p {
            "Each row is a block of addresses, low ones at the top; time runs to the right. The stronger the colour, the more pages. \
             Only memory that came or went is shown, and lines mark what is left out between."
        }
        div .tabs {
            @for shows in Shows::ALL {
                input type="radio" name="shows" id=(format!("show-{}", shows.id())) checked[shows == Shows::Back];
                label for=(format!("show-{}", shows.id())) { (shows.label()) }
            }
            @for space in &shown {
                @let heat = Heat::new(space, found.columns.len());
                figure .places {
                    figcaption {
                        h3 { (name_of(story, space)) }
                        span { (humane(heat.block_pages() * PAGE_BYTES)) " per row" }
                    }
                    (picture(&heat, &time))
                    (table(&heat))
                }
            }
        }
        p .note {
            @if more > 0 { (more) " more processes had less traffic. " }
            "A page that is evicted is written only if it has changed and is not needed again at once, so less goes out than is \
             evicted. Names are those that the kernel gave to mappings while the process lived"
            @if story.measured.is_none() { ", and a trace does not have them" }
            ". Which code touched a page is not known: the kernel tells foreswap the address that was touched, not that of the \
             instruction."
            @if story.measured.is_some() { " Threads that wait are looked at: see Which code waited." }
        }
    };
    section("Where in memory", &content)
}
