//! `foreswap top`: the runs, live in a terminal.
//!
//! One thread looks at the runs, one per request waits for its answer, and this one draws: a run that is slow to answer
//! delays its figures, never a key. `state.rs` decides what is shown, `draw.rs` how. When the run that was asked for has ended, the
//! terminal is given back and `closing.rs` says so.

mod closing;
mod draw;
#[cfg(test)]
mod fixed;
mod heat;
mod state;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use foreswap_bench::interrupt;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::args::TopArgs;
use crate::control::asking::{self, Found, Which};
use crate::control::words::{Reply, Request, Run};
use crate::size::{self, humane};
use crate::voice;
use heat::{Place, Sampler};
use state::{Action, State};

/// The longest wait for a key: how soon a look is drawn, and a signal noticed.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// The time between a look at which the run that was asked for is missing, and the one that makes sure: a group that gets
/// another supervisor is missing for a moment.
const AGAIN: Duration = Duration::from_millis(200);

/// The exit status if the terminal is gone: that of SIGHUP, which may come later or not at all.
const HUNG_UP: u8 = 128 + libc::SIGHUP as u8;

/// What other threads tell the one that draws.
enum News {
    Look(Instant, Vec<Run>, Vec<Place>),
    /// The run that was asked for has ended; the run at the last look.
    Ended(Option<Box<Run>>),
    Said(String),
}

/// Parses the time between two looks.
pub fn interval(text: &str) -> Result<Duration, String> {
    let interval = size::duration(text).map_err(|error| error.to_string())?;
    if !(Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&interval) {
        return Err("expected 100ms to 1h".to_owned());
    }
    Ok(interval)
}

/// Why the screen was left.
enum End {
    Quit,
    /// The terminal was closed.
    HungUp,
    Signal(interrupt::Interrupted),
    /// The run that was asked for has ended.
    Run(Option<Box<Run>>),
}

/// Shows the runs until `q`, a signal, the end of the terminal, or that of the run that was asked for.
pub fn top(args: &TopArgs) -> ExitCode {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        voice::error(
            "top needs a terminal on standard input and output; `foreswap ps` prints the same once",
        );
        return ExitCode::FAILURE;
    }
    if let Some(which) = &args.which
        && let Err(error) = asking::find(which)
    {
        voice::error(&error.to_string());
        return ExitCode::FAILURE;
    }
    interrupt::watch();
    // The terminal is restored by its panic hook as well.
    let mut terminal = match ratatui::try_init() {
        Ok(terminal) => terminal,
        Err(error) => {
            let _ = ratatui::try_restore();
            return unusable(&error);
        }
    };
    let ended = show(&mut terminal, args);
    // If neither terminal nor standard error are there any more, ratatui's own ways panic on what they cannot print.
    let _ = terminal.show_cursor();
    let restored = ratatui::try_restore();
    std::mem::forget(terminal);
    if restored.is_err() {
        return ExitCode::from(HUNG_UP);
    }
    match ended {
        Ok(End::Quit) => ExitCode::SUCCESS,
        Ok(End::HungUp) => ExitCode::from(HUNG_UP),
        Ok(End::Signal(signal)) => signal.exit_code(),
        Ok(End::Run(last)) => {
            voice::error(&closing::sentence(last.as_deref()));
            ExitCode::SUCCESS
        }
        Err(error) => unusable(&error),
    }
}

fn unusable(error: &io::Error) -> ExitCode {
    voice::error(&format!("the terminal cannot be used: {error}"));
    ExitCode::FAILURE
}

fn show(terminal: &mut DefaultTerminal, args: &TopArgs) -> io::Result<End> {
    let (tell, news) = mpsc::channel();
    let selected = Arc::new(AtomicI32::new(0));
    watch(args, tell.clone(), Arc::clone(&selected));
    let coloured = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let began = Instant::now();
    let mut state = State::default();
    let mut changed = true;
    let stdin = io::stdin();
    loop {
        if let Err(signal) = interrupt::check() {
            return Ok(End::Signal(signal));
        }
        for item in news.try_iter() {
            changed = true;
            match item {
                News::Look(at, runs, places) => state.on_look(at - began, runs, places),
                News::Said(text) => state.message = Some(text),
                News::Ended(last) => return Ok(End::Run(last)),
            }
        }
        selected.store(state.selected_process().unwrap_or(0), Ordering::Relaxed);
        if changed {
            terminal.draw(|frame| draw::draw(frame, &state, coloured))?;
        }
        // A terminal that was closed: crossterm would read its end without a pause.
        let mut input = [PollFd::new(&stdin, PollFlags::IN)];
        let _ = rustix::event::poll(&mut input, Some(&LOOK));
        if input[0]
            .revents()
            .intersects(PollFlags::HUP | PollFlags::ERR)
        {
            return Ok(End::HungUp);
        }
        changed = event::poll(Duration::ZERO)?;
        if !changed {
            continue;
        }
        let action = match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Press => state.on_key(key),
            _ => None,
        };
        match action {
            Some(Action::Quit) => return Ok(End::Quit),
            Some(Action::Ask(run, request)) => ask(run, request, tell.clone()),
            None => {}
        }
    }
}

/// Looks at the runs at each interval, in a thread of its own, until the run that was asked for has ended.
fn watch(args: &TopArgs, tell: Sender<News>, selected: Arc<AtomicI32>) {
    let interval = args.interval;
    // A run is known by its supervisor: the process may end before it. A group may get another supervisor.
    let only = args.which.clone().map(|which| match which {
        Which::Group(_) => which,
        Which::Process(pid) => {
            let found = asking::find(&which);
            Which::Process(found.map_or(pid, |found| found.run.supervisor))
        }
    });
    std::thread::spawn(move || {
        let mut last = None;
        let mut missing = false;
        let mut sampler = Sampler::default();
        loop {
            let at = Instant::now();
            let pid = selected.load(Ordering::Relaxed);
            let (found, silent) = asking::all_runs((pid != 0).then_some(pid));
            let runs = found.into_iter().map(|Found { run, .. }| run);
            let runs = runs.filter(|run| only.as_ref().is_none_or(|only| only.is(run)));
            let runs: Vec<Run> = runs.collect();
            // A run that does not answer has not ended.
            if only.is_some() && runs.is_empty() && silent.is_empty() {
                if missing {
                    return drop(tell.send(News::Ended(last)));
                }
                missing = true;
                std::thread::sleep(AGAIN);
                continue;
            }
            missing = false;
            if only.is_some() {
                last = runs.first().cloned().map(Box::new).or(last);
            }
            let mappings = runs.iter().map(|run| &run.mappings);
            let mappings = mappings.max_by_key(|mappings| mappings.len());
            let places = mappings.map(|mappings| sampler.look(pid, mappings));
            let mut told = tell.send(News::Look(at, runs, places.unwrap_or_default()));
            if let Some(error) = silent.first() {
                told = tell.send(News::Said(error.to_string()));
            }
            if told.is_err() {
                return;
            }
            std::thread::sleep(interval.saturating_sub(at.elapsed()));
        }
    });
}

/// Sends a request, and tells its progress and its end, in a thread of its own.
fn ask(run: i32, request: Request, tell: Sender<News>) {
    std::thread::spawn(move || {
        let mut asked = match asking::ask(&Which::Process(run), &request) {
            Ok(asked) => asked,
            Err(error) => return drop(tell.send(News::Said(error.to_string()))),
        };
        loop {
            let said = match asked.next() {
                Ok(Some(Reply::Progress(progress))) => {
                    let (left, total) = (humane(progress.left), humane(progress.total));
                    let text = format!("emptying the area: {left} of {total} left");
                    if tell.send(News::Said(text)).is_err() {
                        return;
                    }
                    continue;
                }
                Ok(Some(Reply::Done { text } | Reply::Error { text })) => text,
                Ok(Some(_) | None) => continue,
                Err(error) => error.to_string(),
            };
            return drop(tell.send(News::Said(said)));
        }
    });
}
