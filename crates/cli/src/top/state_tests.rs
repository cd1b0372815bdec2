use super::super::fixed;
use super::*;

fn press(state: &mut State, keys: &str) -> Option<Action> {
    let mut action = None;
    for c in keys.chars() {
        let code = match c {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            'v' => KeyCode::Down,
            '^' => KeyCode::Up,
            c => KeyCode::Char(c),
        };
        action = state.on_key(KeyEvent::from(code));
    }
    action
}

#[test]
fn rates_are_differences_per_second() {
    let state = fixed::state();
    let rates = state.run_rates(100).expect("two looks");
    assert_eq!(
        (rates.major, rates.minor, rates.zero),
        (1_000.0, 25_000.0, 10.0)
    );
    assert_eq!(rates.bytes_in, f64::from(120 << 20));
    assert_eq!((rates.stalled, rates.hit_ratio), (0.125, Some(0.98)));
    assert_eq!(rates.fault_ns, Some(84_000));
    assert_eq!(state.latency(100).collect::<Vec<_>>(), [84_000]);
    assert_eq!(state.process_rates(101).expect("two looks").major, 1_000.0);
    assert_eq!(state.process_rates(102).expect("two looks").major, 0.0);
}

#[test]
fn the_selection_follows_its_process_and_survives_its_end() {
    let mut state = fixed::state();
    assert_eq!(state.selected_process(), Some(101));
    press(&mut state, "vvv");
    assert_eq!(state.selected_process(), Some(102));
    let mut run = fixed::run();
    run.processes.swap(0, 1);
    state.on_look(Duration::from_secs(4), vec![run.clone()], Vec::new());
    assert_eq!(
        (state.selected_process(), state.selected()),
        (Some(102), Some(0))
    );
    run.processes.remove(0);
    state.on_look(Duration::from_secs(5), vec![run], Vec::new());
    assert_eq!(state.selected_process(), Some(101));
    state.on_look(Duration::from_secs(6), Vec::new(), Vec::new());
    assert!(state.selected_run().is_none() && state.latency(100).count() == 0);
    assert_eq!(press(&mut state, "l"), None);
    assert!(state.prompt.is_none() && state.message.is_some());
    press(&mut state, "v^");
    assert_eq!(state.selected(), None);
}

#[test]
fn a_pause_keeps_the_figures() {
    let mut state = fixed::state();
    press(&mut state, "p");
    state.on_look(Duration::from_secs(9), Vec::new(), Vec::new());
    assert_eq!(state.runs.len(), 1);
    press(&mut state, "p");
    state.on_look(Duration::from_secs(9), Vec::new(), Vec::new());
    assert!(state.runs.is_empty());
}

#[test]
fn prompts_become_requests_or_say_what_is_wrong() {
    let mut state = fixed::state();
    assert_eq!(press(&mut state, "l96X\n"), None);
    let said = state.message.clone().expect("an error");
    assert!(said.contains("96X") && said.contains("512M"), "{said}");
    let memory = "96M".to_owned();
    let asked = press(&mut state, "\x08M\n");
    assert_eq!(asked, Some(Action::Ask(100, Request::Set { memory })));
    assert!(state.prompt.is_none());
    let asked = press(&mut state, "aram:64M\n");
    let area = "ram:64M".to_owned();
    let (priority, swap_size) = (None, None);
    let swapon = Request::Swapon {
        area,
        priority,
        swap_size,
    };
    assert_eq!(asked, Some(Action::Ask(100, swapon)));
    let Some(Action::Ask(100, Request::Swapoff { area })) = press(&mut state, "e\n") else {
        panic!("the only area is proposed");
    };
    assert_eq!(area.expect("an area")[0], "0");
    assert_eq!(press(&mut state, "lq\x1b"), None);
    assert_eq!(
        (state.prompt.is_none(), press(&mut state, "q")),
        (true, Some(Action::Quit))
    );
}
