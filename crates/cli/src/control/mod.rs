//! The control plane: requests to a running `foreswap run` from outside.
//!
//! The supervisor listens on a unix socket in a folder that only its user can enter, and answers in its own loop,
//! without waiting for a client. A request is one line of JSON; the answer is one line, or several progress lines and
//! a final one. A client that closes the connection cancels its request.

pub mod asking;
pub mod change;
pub mod commands;
mod joining;
pub mod list;
mod named;
pub mod place;
pub mod server;
pub mod words;
