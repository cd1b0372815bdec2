//! `foreswap top`: the runs, live in a terminal.
//!
//! One thread looks at the runs, one per request waits for its answer, and this one draws: a run that is slow to answer
//! delays its figures, never a key. `state.rs` decides what is shown, `draw.rs` how.

mod draw;
#[cfg(test)]
mod fixed;
mod state;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
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
use state::{Action, State};

/// The longest wait for a key: how soon a look is drawn, and a signal noticed.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// What other threads tell the one that draws.
enum News {
    Look(Instant, Vec<Run>),
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

/// Shows the runs until `q` or a signal.
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
    let ended = ratatui::try_init().and_then(|mut terminal| show(&mut terminal, args));
    ratatui::restore();
    match ended {
        Ok(code) => code,
        Err(error) => {
            voice::error(&format!("the terminal cannot be used: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn show(terminal: &mut DefaultTerminal, args: &TopArgs) -> io::Result<ExitCode> {
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
            return Ok(signal.exit_code());
        }
        changed |= hear(&news, &mut state, began);
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
            return Ok(ExitCode::FAILURE);
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
            Some(Action::Quit) => return Ok(ExitCode::SUCCESS),
            Some(Action::Ask(run, request)) => ask(run, request, tell.clone()),
            None => {}
        }
    }
}

/// Takes all news. False if there are none.
fn hear(news: &Receiver<News>, state: &mut State, began: Instant) -> bool {
    let mut heard = false;
    for item in news.try_iter() {
        heard = true;
        match item {
            News::Look(at, runs) => state.on_look(at - began, runs),
            News::Said(text) => state.message = Some(text),
        }
    }
    heard
}

/// Looks at the runs at each interval, in a thread of its own.
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
        loop {
            let at = Instant::now();
            let pid = selected.load(Ordering::Relaxed);
            let (found, silent) = asking::all_runs((pid != 0).then_some(pid));
            let runs = found.into_iter().map(|Found { run, .. }| run);
            let runs = runs.filter(|run| only.as_ref().is_none_or(|only| only.is(run)));
            let mut told = tell.send(News::Look(at, runs.collect()));
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
