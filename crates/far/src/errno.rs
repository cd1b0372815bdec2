//! Error numbers that go to engines.

use rustix::io::Errno;

/// A transfer failed on the server.
pub const IO: i32 = Errno::IO.raw_os_error();
/// The server went away in the middle of a write, or of an earlier one to the same place: nobody knows whether it will be carried
/// out, and the place is not used again. Says nothing about the area.
pub const IN_DOUBT: i32 = Errno::CONNRESET.raw_os_error();
/// The area gets no pages for a while: nothing was sent.
pub const NO_SPACE: i32 = Errno::NOSPC.raw_os_error();
/// No answer in time.
pub const TIMED_OUT: i32 = Errno::TIMEDOUT.raw_os_error();
