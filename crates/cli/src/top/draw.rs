//! How `foreswap top` looks: the run of the selected row with its rates, the processes of all runs, the run's areas,
//! and a line for a prompt, a message or the keys.
//!
//! What does not fit is left out from below: the areas first, then lines of the run.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Sparkline, Table, TableState, Wrap};

use super::heat::Place;
use super::state::{Asks, Rates, State};
use crate::control::commands::{limit, plain, short};
use crate::control::words::Run;
use crate::size::{humane, humane_ns};
use crate::unmanaged::Kind;

/// The heading of each line of the run.
const HEAD: u16 = 9;
/// The least rows for the processes, with their heading.
const PROCESSES: u16 = 4;
/// The lines of a run.
const RUN: u16 = 6;

const HELP: &str = "\
memory     managed memory against the limit, and what foreswap does not manage
faults     per second: major ones waited for an area, minor ones were served
           from memory, zero ones with an empty page
stalled    part of the time in which a thread waited for a page that more
           memory would have kept; more processes than one can pass 100 %
swap       bytes per second from and to the areas; readahead: pages that were
           touched, of those read ahead
latency    mean time of a fault, one bar per look, the newest on the right
space      memory of the selected process by address:
           ░▒▓█ how much of a place is in memory   . nothing, in a mapping
           with pages on areas   blank: nothing. Yellow, red: some or much of
           it came in since the last look (looks at a sample of the pages)

up, down   select a process          l   change the limit of its run
p          pause, go on              a   add a swap area
q          quit (an area being         e   empty an area and remove it
           emptied stays in use)";

/// Styles, without colours if they are not wanted.
#[derive(Clone, Copy)]
struct Look {
    coloured: bool,
}

impl Look {
    fn of(self, colour: Color) -> Style {
        match self.coloured {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    fn head(self) -> Style {
        self.of(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    /// How full an area is.
    fn grade(self, part: f64) -> Style {
        self.of(match part {
            part if part >= 0.95 => Color::Red,
            part if part >= 0.8 => Color::Yellow,
            _ => Color::Green,
        })
    }
}

/// Draws all of the screen.
pub fn draw(frame: &mut Frame<'_>, state: &State, coloured: bool) {
    let look = Look { coloured };
    let [title, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(title_line(state, look), title);
    frame.render_widget(foot_line(state, look), foot);
    if state.help {
        let help = Paragraph::new(HELP).wrap(Wrap { trim: false });
        frame.render_widget(help, below(body, 1));
        return;
    }
    let Some(run) = state.selected_run() else {
        let text = "no run is under way; begin one: foreswap run --memory 1G -- ./program";
        let empty = Paragraph::new(text).wrap(Wrap { trim: true });
        frame.render_widget(empty, below(body, 1));
        return;
    };
    let room = body.height.saturating_sub(PROCESSES);
    let lines = room.min(RUN);
    let wanted = run.areas.len() as u16 + 2;
    let spare = room.saturating_sub(lines + 1);
    let areas = if spare >= 3 { wanted.min(spare) } else { 0 };
    let processes = (state.rows().len() as u16).saturating_add(1);
    let [about, _, processes, swap] = Layout::vertical([
        Constraint::Length(lines),
        Constraint::Length(u16::from(room > lines)),
        Constraint::Max(processes),
        Constraint::Length(areas),
    ])
    .areas(body);
    draw_run(frame, about, state, run, look);
    draw_processes(frame, processes, state, look);
    draw_areas(frame, below(swap, 1), run, look);
}

fn below(area: Rect, rows: u16) -> Rect {
    let rows = rows.min(area.height);
    Rect {
        y: area.y + rows,
        height: area.height - rows,
        ..area
    }
}

fn title_line(state: &State, look: Look) -> Line<'static> {
    let mut title = vec![Span::styled("foreswap top", look.head())];
    if let Some(run) = state.selected_run() {
        let (supervisor, command) = (run.supervisor, short(&run.command));
        let group = run.group.as_deref().map(|name| format!(" of group {name}"));
        let group = group.unwrap_or_default();
        title.push(Span::raw(format!("  run {supervisor}{group}  {command}")));
    }
    if state.runs.len() > 1 {
        let runs = state.runs.len();
        title.push(Span::raw(format!("  (one of {runs} runs)")));
    }
    if state.paused {
        let style = look.of(Color::Yellow).add_modifier(Modifier::BOLD);
        title.push(Span::styled("  paused", style));
    }
    Line::from(title)
}

fn foot_line(state: &State, look: Look) -> Line<'static> {
    let message = state.message.as_deref().map(plain);
    if let Some(prompt) = &state.prompt {
        let asks = match prompt.asks {
            Asks::Limit => "new limit (512M, 40%, auto)",
            Asks::Add => "area to add (folder, file, device, ram:512M)",
            Asks::Empty => "area to empty (number or path)",
        };
        let text = plain(&prompt.text);
        let mut line = vec![
            Span::styled(format!("{asks}: "), look.head()),
            Span::raw(format!("{text}_")),
        ];
        if let Some(message) = message {
            let style = look.of(Color::Red).add_modifier(Modifier::BOLD);
            line.push(Span::styled(format!("  {message}"), style));
        }
        return Line::from(line);
    }
    if let Some(message) = message {
        return Line::styled(message, look.of(Color::Yellow));
    }
    let keys = "q quit  ? help  l limit  a add area  e empty area  p pause";
    Line::styled(keys, Style::new().add_modifier(Modifier::DIM))
}

/// A number that a person reads: 950, 12.3k, 4.5M.
fn figure(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.1}M", value / 1e6),
        value if value >= 1e4 => format!("{:.1}k", value / 1e3),
        value => format!("{value:.0}"),
    }
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

fn bytes_per_second(value: f64) -> String {
    format!("{}/s", humane(value as u64))
}

/// A figure of the rates; a dash until there are any.
fn or_dash(rates: Option<&Rates>, text: impl Fn(&Rates) -> String) -> String {
    rates.map_or_else(|| "-".to_owned(), text)
}

fn draw_run(frame: &mut Frame<'_>, area: Rect, state: &State, run: &Run, look: Look) {
    let rates = state.run_rates(run.supervisor);
    let fault = rates.and_then(|rates| rates.fault_ns);
    let fault = fault.map_or_else(|| "-".to_owned(), humane_ns);
    let faults = [
        ("major", or_dash(rates, |rates| figure(rates.major) + "/s")),
        ("minor", or_dash(rates, |rates| figure(rates.minor) + "/s")),
        ("zero", or_dash(rates, |rates| figure(rates.zero) + "/s")),
        ("stalled", or_dash(rates, |rates| percent(rates.stalled))),
    ];
    let swap = [
        (
            "in",
            or_dash(rates, |rates| bytes_per_second(rates.bytes_in)),
        ),
        (
            "out",
            or_dash(rates, |rates| bytes_per_second(rates.bytes_out)),
        ),
        (
            "readahead hits",
            or_dash(rates, |rates| {
                rates.hit_ratio.map_or("-".to_owned(), percent)
            }),
        ),
    ];
    let heads = [
        ("memory", memory(run, area.width, look)),
        ("faults", named(&faults)),
        ("swap", named(&swap)),
        ("latency", Line::raw(format!("{fault:>8}"))),
        ("space", Line::default()),
        ("unmanaged", Line::raw(unmanaged(run))),
    ];
    for (line, (head, text)) in area.rows().zip(heads) {
        let [left, _, right] = Layout::horizontal([
            Constraint::Length(HEAD),
            Constraint::Length(1),
            Constraint::Min(0),
        ])
        .areas(line);
        frame.render_widget(Span::styled(head, look.head()), left);
        frame.render_widget(text, right);
        match head {
            "latency" => draw_latency(frame, right, state, run, look),
            "space" => frame.render_widget(space(&state.places, right.width, look), right),
            _ => {}
        }
    }
}

/// Names and figures in columns that do not move with the figures.
fn named(figures: &[(&str, String)]) -> Line<'static> {
    let cells = figures.iter().map(|(name, text)| {
        let width = if text.contains("B/s") { 11 } else { 8 };
        Span::raw(format!("{name} {text:<width$} "))
    });
    Line::from(cells.collect::<Vec<_>>())
}

fn memory(run: &Run, width: u16, look: Look) -> Line<'static> {
    let part = run.resident_bytes as f64 / run.limit_bytes.max(1) as f64;
    let figures = format!("{} of {}", humane(run.resident_bytes), limit(run));
    let bar = usize::from(width.saturating_sub(HEAD + 36).min(40));
    let colour = match run.resident_bytes > run.limit_bytes {
        true => Color::Red,
        false => Color::Green,
    };
    let full = ((part * bar as f64).round() as usize).min(bar);
    Line::from(vec![
        Span::raw(format!("{figures:<23} ")),
        Span::styled("█".repeat(full), look.of(colour)),
        Span::styled(
            "░".repeat(bar - full),
            Style::new().add_modifier(Modifier::DIM),
        ),
        Span::raw(format!(" {:>5}", percent(part))),
    ])
}

/// The unmanaged memory, with the kinds that make it up.
fn unmanaged(run: &Run) -> String {
    let of = &run.unmanaged_bytes;
    let kinds = of.main_kinds().into_iter();
    let kinds: Vec<String> = kinds
        .map(|kind: Kind| format!("{} {}", kind.name(), humane(of.of(kind))))
        .collect();
    match kinds.is_empty() {
        true => humane(of.total),
        false => format!("{} ({})", humane(of.total), kinds.join(", ")),
    }
}

fn draw_latency(frame: &mut Frame<'_>, area: Rect, state: &State, run: &Run, look: Look) {
    let width = area.width.saturating_sub(HEAD);
    let graph = Rect {
        x: area.x + (area.width - width),
        width,
        ..area
    };
    let mut bars: Vec<u64> = state
        .latency(run.supervisor)
        .rev()
        .take(usize::from(width))
        .collect();
    bars.resize(usize::from(width), 0);
    bars.reverse();
    let graph_of = Sparkline::default().data(bars).style(look.of(Color::Green));
    frame.render_widget(graph_of, graph);
}

/// The mappings of a process as one line, by address: how much of each place is in memory, and how much came in.
fn space(places: &[Place], width: u16, look: Look) -> Line<'static> {
    if places.is_empty() {
        return Line::raw("-");
    }
    let width = usize::from(width);
    let cells = (0..width).map(|cell| {
        let from = cell * places.len() / width;
        let to = ((cell + 1) * places.len() / width).max(from + 1);
        let places = &places[from..to];
        let mean =
            |part: fn(&Place) -> f64| places.iter().map(part).sum::<f64>() / places.len() as f64;
        let (resident, came) = (mean(|place| place.resident), mean(|place| place.came));
        let symbol = match (resident * 4.0).ceil() as u32 {
            0 if places.iter().any(|place| place.is_swapped) => ".",
            0 => " ",
            quarters => ["░", "▒", "▓", "█"][quarters.min(4) as usize - 1],
        };
        let style = match came {
            _ if symbol == "." => look.of(Color::Blue),
            0.0 => look.of(Color::Green),
            _ if came < 0.25 => look.of(Color::Yellow),
            _ => look.of(Color::Red).add_modifier(Modifier::BOLD),
        };
        Span::styled(symbol, style)
    });
    Line::from(cells.collect::<Vec<_>>())
}

fn draw_processes(frame: &mut Frame<'_>, area: Rect, state: &State, look: Look) {
    let wide = area.width >= 70;
    let rows = state.rows();
    let table = rows.iter().map(|row| {
        let process = row.process;
        let pid = process.map(|one| one.pid).or(row.run.command_pid);
        let command = process.map_or(&row.run.command, |one| &one.command);
        let waits = process.is_some_and(|one| one.waits_for_memory);
        let waits = if waits { " (waits)" } else { "" };
        let rates = process.and_then(|one| state.process_rates(one.pid));
        let size = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), humane);
        let mut cells = vec![
            right(pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string())),
            Text::raw(short(command) + waits),
            right(size(process.map(|one| one.resident_bytes))),
            right(size(process.map(|one| one.swap_bytes))),
        ];
        if wide {
            let unmanaged = process.map_or(&row.run.unmanaged_bytes, |one| &one.unmanaged_bytes);
            cells.extend([
                right(humane(unmanaged.total)),
                right(or_dash(rates, |rates| figure(rates.major))),
                right(or_dash(rates, |rates| bytes_per_second(rates.bytes_in))),
                right(or_dash(rates, |rates| percent(rates.stalled))),
            ]);
        }
        TableRow::new(cells.into_iter().map(Cell::from))
    });
    let mut heads = vec![
        right("PID"),
        Text::raw("COMMAND"),
        right("MEMORY"),
        right("SWAP"),
    ];
    let mut widths = vec![
        Constraint::Length(7),
        Constraint::Min(8),
        Constraint::Length(8),
        Constraint::Length(8),
    ];
    if wide {
        heads.extend(["UNMANAGED", "MAJOR/s", "IN", "STALLED"].map(right));
        widths.extend([9, 7, 10, 7].map(Constraint::Length));
    }
    let table = Table::new(table, widths)
        .header(TableRow::new(heads).style(look.head()))
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut selected = TableState::new().with_selected(state.selected());
    frame.render_stateful_widget(table, area, &mut selected);
}

fn right(text: impl Into<String>) -> Text<'static> {
    Text::from(text.into()).right_aligned()
}

fn draw_areas(frame: &mut Frame<'_>, area: Rect, run: &Run, look: Look) {
    let rows = run.areas.iter().map(|area| {
        let mut path = plain(&area.path);
        if let Some(memory) = area.memory {
            path = format!("{path} ({} taken)", humane(memory.held_bytes));
        }
        if area.state != "usable" {
            path = format!("{path} ({})", plain(&area.state));
        }
        let part = area.used_bytes as f64 / area.bytes.max(1) as f64;
        TableRow::new([
            right(area.number.to_string()),
            Text::raw(path),
            right(humane(area.used_bytes)),
            right(humane(area.bytes)),
            right(percent(part)).style(look.grade(part)),
        ])
    });
    let heads = [
        right("AREA"),
        Text::raw("PATH"),
        right("USED"),
        right("SIZE"),
        right("FULL"),
    ];
    let widths = [
        Constraint::Length(7),
        Constraint::Min(8),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(5),
    ];
    let table = Table::new(rows, widths)
        .header(TableRow::new(heads).style(look.head()))
        .column_spacing(1);
    frame.render_widget(table, area);
}

#[cfg(test)]
#[path = "draw_tests.rs"]
mod tests;
