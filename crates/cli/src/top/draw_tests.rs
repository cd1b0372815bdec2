use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::super::fixed;
use super::*;

fn drawn(state: &State, width: u16, height: u16, coloured: bool) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a buffer");
    let frame = terminal.draw(|frame| draw(frame, state, coloured));
    frame.expect("drawn");
    terminal
}

fn lines(state: &State, width: u16, height: u16) -> Vec<String> {
    let terminal = drawn(state, width, height, false);
    let cells: Vec<&str> = terminal
        .backend()
        .buffer()
        .content
        .iter()
        .map(|cell| cell.symbol())
        .collect();
    let rows = cells.chunks(usize::from(width));
    rows.map(|row| row.concat().trim_end().to_owned()).collect()
}

#[test]
fn an_ordinary_terminal_shows_all() {
    let shown = lines(&fixed::state(), 80, 24);
    let expected = include_str!("screen_80x24.txt");
    assert_eq!(
        shown.join("\n"),
        expected.trim_end_matches('\n'),
        "\n{}",
        shown.join("\n")
    );
}

#[test]
fn a_small_terminal_shows_the_most_important() {
    let shown = lines(&fixed::state(), 40, 12);
    assert!(
        shown[0].starts_with("foreswap top  run 100  python3"),
        "{shown:#?}"
    );
    assert!(
        shown[1].starts_with("memory    61 MiB of 64 MiB"),
        "{shown:#?}"
    );
    assert!(
        shown
            .iter()
            .any(|line| line.contains("PID COMMAND") && line.ends_with("SWAP")),
        "{shown:#?}"
    );
    assert!(
        shown.iter().any(|line| line.contains("101 python3")),
        "{shown:#?}"
    );
    assert!(
        !shown.iter().any(|line| line.contains("AREA")),
        "{shown:#?}"
    );
    // Nothing panics for lack of room.
    for (width, height) in [(1, 1), (5, 3), (12, 40), (300, 2)] {
        drawn(&fixed::state(), width, height, true);
    }
}

#[test]
fn a_large_terminal_is_filled_with_history_and_space() {
    let shown = lines(&fixed::state(), 200, 50);
    let space = shown
        .iter()
        .find(|line| line.starts_with("space"))
        .expect("the line");
    let cells = |symbol: char| space.chars().filter(|other| *other == symbol).count();
    let found = ['░', '▒', '▓', '█', '.'].map(cells);
    // 191 columns for 40 places.
    assert_eq!(found, [5, 14, 15, 61, 48], "{space}");
    let latency = shown
        .iter()
        .find(|line| line.starts_with("latency"))
        .expect("the line");
    assert!(
        latency.contains("84.0 µs") && latency.ends_with('█'),
        "{latency}"
    );
}

#[test]
fn colours_are_left_out_if_not_wanted() {
    let has_colour = |coloured| {
        let terminal = drawn(&fixed::state(), 80, 24, coloured);
        let mut cells = terminal.backend().buffer().content.iter();
        cells.any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert!(has_colour(true) && !has_colour(false));
}

#[test]
fn without_a_run_the_screen_says_how_to_begin_one() {
    let shown = lines(&State::default(), 80, 24).join("\n");
    assert!(
        shown.contains("no run is under way; begin one: foreswap run"),
        "{shown}"
    );
}

#[test]
fn prompts_and_their_errors_are_on_the_last_line() {
    let mut state = fixed::state();
    for code in [KeyCode::Char('l'), KeyCode::Char('x'), KeyCode::Enter] {
        state.on_key(KeyEvent::from(code));
    }
    let shown = lines(&state, 120, 24);
    let last = shown.last().expect("a line");
    assert!(
        last.starts_with("new limit (512M, 40%, auto): x_  x: expected a size"),
        "{last}"
    );
    state.on_key(KeyEvent::from(KeyCode::Esc));
    state.on_key(KeyEvent::from(KeyCode::Char('?')));
    assert!(
        lines(&state, 80, 24)
            .join("\n")
            .contains("empty an area and remove it")
    );
}
