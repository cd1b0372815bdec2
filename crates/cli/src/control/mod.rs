//! The control plane: what a running `foreswap run` can be asked and told from outside.
//!
//! The supervisor listens on a unix socket in a folder that only its user can enter, and answers in
//! its own loop, without ever waiting for a client. A request is one line of JSON; the answer is one
//! line, or many that tell the progress and a last one. Who hangs up takes the request back.

pub mod asking;
pub mod change;
pub mod commands;
pub mod list;
pub mod place;
pub mod server;
pub mod words;
