//! Reports of the engine's panics.
//!
//! A panic ends the engine's process (it is built to abort), and then the supervisor ends the program. Standard error
//! does not belong to the engine: without this report the user would not know the cause.

use std::panic::PanicHookInfo;

use crate::ledger::protocol::{Client, Severity};
use crate::program::Program;

/// Report panics to the supervisor of `program` from now on, on this thread and all threads that it starts.
pub(crate) fn are_said(program: &'static Program) {
    std::panic::set_hook(Box::new(|info: &PanicHookInfo<'_>| {
        let pid = program.pid.load(std::sync::atomic::Ordering::Relaxed);
        let text =
            format!("the engine of process {pid} failed, which is a fault of foreswap: {info}");
        // Without a supervisor there is no receiver.
        let _ = Client::connect(&program.socket_name())
            .and_then(|client| client.log(Severity::Error, &text));
    }));
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::OwnedFd;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::ledger::protocol::{self, Message};
    use crate::sys::arena_alloc::EngineAlloc;

    static HEAP: EngineAlloc = EngineAlloc::new();
    static PROGRAM: Program = Program::new(&HEAP);
    /// Marks the test's own process as the one that panics.
    const VICTIM: &str = "FORESWAP_PANIC_VICTIM";

    /// The error that an engine logs on a new connection to `listener`.
    pub(crate) fn logged_error(listener: &OwnedFd) -> String {
        let deadline = Instant::now() + Duration::from_secs(5);
        let connection = loop {
            match rustix::net::accept(listener) {
                Ok(connection) => break connection,
                Err(error) => assert!(Instant::now() < deadline, "nothing was logged: {error}"),
            }
        };
        let received = protocol::receive(connection).expect("a message");
        let Message::Log { severity, text } = received.message else {
            panic!("{:?}", received.message);
        };
        assert_eq!(severity, Severity::Error);
        text
    }

    #[test]
    fn the_supervisor_hears_of_a_panic() {
        if let Ok(socket) = std::env::var(VICTIM) {
            assert!(PROGRAM.configure(socket.as_bytes(), 0));
            are_said(&PROGRAM);
            panic!("words of a panic");
        }
        let socket = format!("foreswap-panic-test-{}", std::process::id());
        let listener = protocol::listen(&socket).expect("a socket");
        let exe = std::env::current_exe().expect("the test knows its own path");
        let output = Command::new(exe)
            .args(["the_supervisor_hears_of_a_panic", "--nocapture"])
            .env(VICTIM, &socket)
            .output()
            .expect("the victim ran");
        assert!(!output.status.success(), "{output:?}");
        let text = logged_error(&listener);
        assert!(text.contains("words of a panic"), "{text}");
    }
}
