//! What `foreswap top` shows: the last look at the runs, the rates since the look before, the selection, and a prompt.
//!
//! Looks and keys come in, actions go out. Nothing here draws, asks a run, or reads a clock.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::heat::Place;
use crate::control::commands;
use crate::control::words::{Process, Request, Run, Totals};
use crate::memory_setting;

/// Looks that the latency's history keeps.
const HISTORY: usize = 400;

/// Changes per second between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Faults that waited for an area.
    pub major: f64,
    /// Faults served from memory.
    pub minor: f64,
    /// Faults served with a zero page.
    pub zero: f64,
    /// Bytes read from areas.
    pub bytes_in: f64,
    /// Bytes written to areas.
    pub bytes_out: f64,
    /// Seconds stalled: above 1 if several processes were.
    pub stalled: f64,
    /// Pages of readahead that were touched, per page read; `None` without readahead.
    pub hit_ratio: Option<f64>,
    /// The mean time of a fault; `None` without faults.
    pub fault_ns: Option<u64>,
}

fn per_second(now: u64, before: u64, time: Duration) -> f64 {
    now.saturating_sub(before) as f64 / time.as_secs_f64()
}

impl Rates {
    fn of_run(now: &Totals, before: &Totals, time: Duration) -> Self {
        let rate = |figure: fn(&Totals) -> u64| per_second(figure(now), figure(before), time);
        let faults = now.faults_timed.saturating_sub(before.faults_timed);
        let fault_ns = now.fault_ns_sum.saturating_sub(before.fault_ns_sum);
        let read = rate(|totals| totals.readahead_pages);
        // Pages of earlier looks may be touched now.
        let hits = rate(|totals| totals.readahead_hits).min(read);
        Self {
            major: rate(|totals| totals.faults_major),
            minor: rate(|totals| totals.faults_minor),
            zero: rate(|totals| totals.faults_zero),
            bytes_in: rate(|totals| totals.swap_in_bytes),
            bytes_out: rate(|totals| totals.swap_out_bytes),
            stalled: rate(|totals| totals.stalled_ns) / 1e9,
            hit_ratio: (read > 0.0).then_some(hits / read),
            fault_ns: fault_ns.checked_div(faults),
        }
    }

    fn of_process(now: &Process, before: &Process, time: Duration) -> Self {
        let rate = |figure: fn(&Process) -> u64| per_second(figure(now), figure(before), time);
        Self {
            major: rate(|process| process.faults_major),
            bytes_in: rate(|process| process.swap_in_bytes),
            bytes_out: rate(|process| process.swap_out_bytes),
            stalled: rate(|process| process.stalled_ns) / 1e9,
            ..Self::default()
        }
    }
}

/// What a prompt asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// A new limit.
    Limit,
    /// An area to add.
    Add,
    /// An area to empty.
    Empty,
}

/// A line that the user types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Its purpose.
    pub asks: Asks,
    /// The run: the pid of its supervisor.
    pub run: i32,
    /// The text so far.
    pub text: String,
}

/// What the caller has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// End.
    Quit,
    /// Send a request to the run with this supervisor.
    Ask(i32, Request),
}

/// A row of the table: a process of a run, or a run without managed processes.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// The run.
    pub run: &'a Run,
    /// The process.
    pub process: Option<&'a Process>,
}

impl Row<'_> {
    fn key(&self) -> (i32, Option<i32>) {
        (self.run.supervisor, self.process.map(|one| one.pid))
    }
}

/// All of the screen.
#[derive(Debug, Default)]
pub struct State {
    /// The runs at the last look.
    pub runs: Vec<Run>,
    /// The time of the last look, since the start; `None` before the first.
    looked: Option<Duration>,
    run_rates: HashMap<i32, Rates>,
    process_rates: HashMap<i32, Rates>,
    latency: HashMap<i32, VecDeque<u64>>,
    selected: Option<(i32, Option<i32>)>,
    /// The memory of the selected process.
    pub places: Vec<Place>,
    /// Looks are ignored.
    pub paused: bool,
    /// The explanations are shown.
    pub help: bool,
    /// The open prompt.
    pub prompt: Option<Prompt>,
    /// The result of the last request, or an error of a look.
    pub message: Option<String>,
}

impl State {
    /// The runs as they are `at` this time since the start, and the memory of the process that was selected.
    pub fn on_look(&mut self, at: Duration, runs: Vec<Run>, places: Vec<Place>) {
        if self.paused {
            return;
        }
        self.places = places;
        let time = self.looked.map(|looked| at.saturating_sub(looked));
        let time = time.filter(|time| !time.is_zero());
        let (mut run_rates, mut process_rates) = (HashMap::new(), HashMap::new());
        for now in &runs {
            let old = self
                .runs
                .iter()
                .find(|old| old.supervisor == now.supervisor);
            let (Some(time), Some(old)) = (time, old) else {
                continue;
            };
            if let (Some(totals), Some(old)) = (&now.totals, &old.totals) {
                run_rates.insert(now.supervisor, Rates::of_run(totals, old, time));
            }
            for process in &now.processes {
                let old = old.processes.iter().find(|one| one.pid == process.pid);
                if let Some(old) = old {
                    process_rates.insert(process.pid, Rates::of_process(process, old, time));
                }
            }
        }
        self.runs = runs;
        self.looked = Some(at);
        self.run_rates = run_rates;
        self.process_rates = process_rates;
        self.keep_latency();
        self.keep_selection();
    }

    fn keep_latency(&mut self) {
        let rates = &self.run_rates;
        self.latency.retain(|run, _| rates.contains_key(run));
        for (&run, rates) in rates {
            let history = self.latency.entry(run).or_default();
            history.push_back(rates.fault_ns.unwrap_or(0));
            if history.len() > HISTORY {
                history.pop_front();
            }
        }
    }

    /// A selected process that has ended leaves the selection to its run, or to the first row.
    fn keep_selection(&mut self) {
        let keys: Vec<_> = self.rows().iter().map(Row::key).collect();
        if self.selected.is_some_and(|key| keys.contains(&key)) {
            return;
        }
        let run = self.selected.map(|(run, _)| run);
        let same_run = keys.iter().find(|(other, _)| Some(*other) == run);
        self.selected = same_run.or(keys.first()).copied();
    }

    /// The rows of the table.
    pub fn rows(&self) -> Vec<Row<'_>> {
        let mut rows = Vec::new();
        for run in &self.runs {
            let processes = run.processes.iter().map(Some);
            let none = run.processes.is_empty().then_some(None);
            rows.extend(processes.chain(none).map(|process| Row { run, process }));
        }
        rows
    }

    /// The index of the selected row.
    pub fn selected(&self) -> Option<usize> {
        let key = self.selected?;
        self.rows().iter().position(|row| row.key() == key)
    }

    /// The selected process.
    pub fn selected_process(&self) -> Option<i32> {
        self.selected?.1
    }

    /// The run of the selected row.
    pub fn selected_run(&self) -> Option<&Run> {
        let run = self.selected?.0;
        self.runs.iter().find(|other| other.supervisor == run)
    }

    /// The rates of a run; `None` until it was looked at twice.
    pub fn run_rates(&self, run: i32) -> Option<&Rates> {
        self.run_rates.get(&run)
    }

    /// The rates of a process; `None` until it was looked at twice.
    pub fn process_rates(&self, pid: i32) -> Option<&Rates> {
        self.process_rates.get(&pid)
    }

    /// The mean times of the faults of a run, ns, one per look, the newest last.
    pub fn latency(&self, run: i32) -> impl DoubleEndedIterator<Item = u64> {
        self.latency.get(&run).into_iter().flatten().copied()
    }

    /// A key was pressed.
    pub fn on_key(&mut self, key: KeyEvent) -> Option<Action> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return (key.code == KeyCode::Char('c')).then_some(Action::Quit);
        }
        if self.prompt.is_some() {
            return self.on_prompt_key(key.code);
        }
        self.message = None;
        if self.help {
            self.help = false;
            return None;
        }
        match key.code {
            KeyCode::Char('q') => return Some(Action::Quit),
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('l') => self.open(Asks::Limit),
            KeyCode::Char('a') => self.open(Asks::Add),
            KeyCode::Char('e') => self.open(Asks::Empty),
            KeyCode::Up => self.step(-1),
            KeyCode::Down => self.step(1),
            _ => {}
        }
        None
    }

    fn step(&mut self, by: isize) {
        let rows = self.rows();
        let at = self.selected().unwrap_or(0).saturating_add_signed(by);
        let key = rows.get(at.min(rows.len().saturating_sub(1))).map(Row::key);
        self.selected = key;
    }

    fn open(&mut self, asks: Asks) {
        let Some(run) = self.selected_run() else {
            self.message = Some("there is no run to change".to_owned());
            return;
        };
        // The area to empty is mostly the only one.
        let text = match (asks, &run.areas[..]) {
            (Asks::Empty, [area]) => area.number.to_string(),
            _ => String::new(),
        };
        let run = run.supervisor;
        self.prompt = Some(Prompt { asks, run, text });
    }

    fn on_prompt_key(&mut self, key: KeyCode) -> Option<Action> {
        let prompt = self.prompt.as_mut()?;
        match key {
            KeyCode::Esc => self.prompt = None,
            KeyCode::Backspace => drop(prompt.text.pop()),
            KeyCode::Char(c) => {
                prompt.text.push(c);
                self.message = None;
            }
            KeyCode::Enter if prompt.text.trim().is_empty() => self.prompt = None,
            KeyCode::Enter => match request(prompt) {
                Ok(request) => {
                    let run = prompt.run;
                    self.prompt = None;
                    return Some(Action::Ask(run, request));
                }
                Err(error) => self.message = Some(error),
            },
            _ => {}
        }
        None
    }
}

/// The request that a prompt has become, or what is wrong with its text.
fn request(prompt: &Prompt) -> Result<Request, String> {
    let text = prompt.text.trim();
    Ok(match prompt.asks {
        Asks::Limit => {
            text.parse::<memory_setting::Setting>()
                .map_err(|error| format!("{text}: {error}"))?;
            let memory = text.to_owned();
            Request::Set { memory }
        }
        Asks::Add => Request::Swapon {
            area: commands::area(text),
            priority: None,
            swap_size: None,
        },
        Asks::Empty => Request::Swapoff {
            area: Some([text.to_owned(), commands::absolute(text)]),
        },
    })
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
