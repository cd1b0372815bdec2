//! A simulated machine around the memory manager of `foreswap-core`, for the core's own tests and for the lab's torture.
//!
//! [`Machine`] is a whole machine: a [`Plan`] gives its sizes, devices and failures, and [`Machine::step`] executes one
//! [`Step`]. All follows from a seed: [`Plan::draw`] draws the machine, [`Steps`] the steps, and each step seeds the
//! draws of its execution.
//!
//! Threads touch and change their memory (`changes`, `events`), the driver (`process`, `fork`, `bare`) and the devices (`space`) proceed
//! in any order, areas are added, removed, filled and fail (`system`), writes of ended processes arrive later
//! (`leaving`). The rules between calls (`oracle`): every read sees the last write, or an error that was reported; the
//! limit holds; nothing leaks; every fault ends in bounded virtual time (`patience`, `progress`).
//!
//! Below it, for tests that direct each event, are [`System`] (the clock, the limit, the swap areas, the failure rates:
//! all that processes share) and [`Process`] (threads, driver, and the core under test). [`View`] is the world of one
//! process for one call of the core: its MMU, disk, swap map and charge.

mod bare;
mod chance;
mod changes;
mod events;
mod family;
mod fork;
mod leaving;
mod machine;
mod oracle;
mod patience;
mod plan;
#[cfg(feature = "planted")]
mod planted;
mod process;
mod progress;
mod rounds;
mod setup;
mod space;
mod step;
mod steps;
mod summary;
mod system;
mod view;

pub use chance::{Chance, mix};
pub use events::Event;
pub use machine::Machine;
pub use plan::{Emptying, Huge, Plan, Rates, Readahead};
#[cfg(feature = "planted")]
pub use planted::PlantedBug;
pub use process::{Access, Cell, Fork, Process, Tally, Wait};
pub use setup::Setup;
pub use space::{Ended, Flight, Mapping, Page, Space, Use};
pub use step::{Act, Says, Step, Touch};
pub use steps::Steps;
pub use summary::Summary;
pub use system::{Area, Chaos, FOREIGN, System};
pub use view::View;
