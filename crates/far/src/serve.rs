//! The relay: one thread that serves all far areas of a run.
//!
//! It ignores the signals of a terminal and of an orderly shutdown: programs still need their pages while they end. It ends
//! when the supervisor has gone and no engine has a channel any more.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use foreswap_store::area::PAGE_BYTES;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::{LocalSet, spawn_local};

use crate::address::{Address, Addresses};
use crate::area::Area;
use crate::channel;
use crate::mirror::{Mirror, Store};
use crate::words::{self, Order, Report};
use crate::{nbd, redis, s3};

/// The process' name, as `ps` and `top` show it.
const NAME: &std::ffi::CStr = c"foreswap-relay";

/// The open areas, by the supervisor's numbers.
type Areas = Vec<(u32, Open)>;

/// What an address was opened as.
enum Served {
    Nbd(Rc<nbd::Served>),
    Redis(Rc<redis::Served>),
    S3(Rc<s3::Served>),
}

impl Served {
    async fn open(
        relay: &Rc<Relay>,
        address: Address,
        has_copy: bool,
        bytes: Option<u64>,
        timeout: Duration,
    ) -> Result<Self, String> {
        Ok(match address {
            Address::Nbd(nbd) => {
                Self::Nbd(nbd::Served::open(relay, nbd, has_copy, bytes, timeout).await?)
            }
            Address::S3(of_s3) => {
                let say = speaker(relay);
                Self::S3(s3::Served::open(say, of_s3, has_copy, bytes, timeout).await?)
            }
            Address::Redis(of_redis) => {
                let say = speaker(relay);
                Self::Redis(redis::Served::open(say, of_redis, has_copy, bytes, timeout).await?)
            }
        })
    }

    fn area(&self) -> &Rc<Area> {
        match self {
            Self::Nbd(nbd) => &nbd.area,
            Self::Redis(redis) => &redis.area,
            Self::S3(s3) => &s3.area,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Nbd(nbd) => nbd.bytes,
            Self::Redis(redis) => redis.bytes,
            Self::S3(s3) => s3.bytes,
        }
    }

    async fn close(&self) -> Result<(), String> {
        match self {
            Self::Nbd(nbd) => nbd.close().await,
            Self::Redis(redis) => redis.close().await,
            Self::S3(s3) => s3.close().await,
        }
    }
}

/// An open area: that of one server, or of two.
struct Open {
    servers: Vec<Served>,
    store: Rc<dyn Store>,
    bytes: u64,
}

impl Open {
    async fn new(
        relay: &Rc<Relay>,
        text: &str,
        bytes: Option<u64>,
        timeout: Duration,
    ) -> Result<Self, String> {
        let addresses = Addresses::parse(text).map_err(|error| error.to_string())?;
        let has_copy = addresses.all().len() > 1;
        let mut servers: Vec<Served> = Vec::new();
        for address in addresses.all() {
            let opened = Served::open(relay, address.clone(), has_copy, bytes, timeout).await;
            match opened {
                Ok(server) => servers.push(server),
                Err(why) => {
                    for server in servers {
                        let _ = server.close().await;
                    }
                    return Err(format!("swap area {}: {why}", address.text()));
                }
            }
        }
        let areas = servers.iter().map(|server| Rc::clone(server.area()));
        let areas: Vec<Rc<Area>> = areas.collect();
        let store: Rc<dyn Store> = match <[Rc<Area>; 2]>::try_from(areas) {
            Ok(both) => Rc::new(Mirror::new(both)),
            Err(mut one) => one.pop().ok_or_else(|| "no server is named".to_owned())?,
        };
        let bytes = servers.iter().map(Served::bytes).min();
        Ok(Self {
            bytes: bytes.unwrap_or(0),
            servers,
            store,
        })
    }

    /// Ends it. Why its contents may still be there.
    async fn close(self) -> Option<String> {
        let mut left = Vec::new();
        for server in self.servers {
            let name = server.area().name.clone();
            let closed = server.close().await;
            left.extend(closed.err().map(|why| {
                format!("swap area {name}: what was put there may still be there ({why})")
            }));
        }
        (!left.is_empty()).then(|| left.join("; "))
    }
}

/// What all tasks share.
pub(crate) struct Relay {
    control: OwnedFd,
    /// Channels that are served.
    channels: Cell<u32>,
    fewer: Notify,
}

impl Relay {
    /// Sends a report. A supervisor that has gone does not mind.
    pub(crate) fn report(&self, report: &Report, fds: &[std::os::fd::BorrowedFd<'_>]) {
        let _ = words::send(&self.control, report, fds);
    }

    /// Tells the user.
    pub(crate) fn say(&self, is_warning: bool, text: String) {
        self.report(&Report::Said { is_warning, text }, &[]);
    }
}

/// Tells the user through the relay, as long as it is there.
pub(crate) fn speaker(relay: &Rc<Relay>) -> impl Fn(bool, String) + Clone + 'static {
    let to = Rc::downgrade(relay);
    move |is_warning, text| {
        if let Some(relay) = to.upgrade() {
            relay.say(is_warning, text);
        }
    }
}

/// Serves the supervisor at the other end of `control`, in a process of its own: the calling one ends with 0 when that has
/// started.
///
/// # Errors
/// The system refuses what is needed.
pub fn run(control: OwnedFd) -> io::Result<()> {
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {}
        _ => return Ok(()),
    }
    let _ = rustix::process::setsid();
    // Each channel takes four descriptors.
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    let _ = setrlimit(Resource::Nofile, files);
    // It may outlive the run: nobody's terminal, pipe or folder is kept.
    let _ = rustix::process::chdir(c"/");
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    let _ = rustix::thread::set_name(NAME);
    for signal in [
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGPIPE,
    ] {
        // SAFETY: no handler is installed.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, serve(control))
}

async fn serve(control: OwnedFd) -> io::Result<()> {
    let relay = Rc::new(Relay {
        control: rustix::io::fcntl_dupfd_cloexec(&control, 0)?,
        channels: Cell::new(0),
        fewer: Notify::new(),
    });
    let pid = std::process::id();
    relay.report(&Report::Started { pid }, &[]);
    let areas: Rc<RefCell<Areas>> = Rc::default();
    let control = watched(control)?;
    loop {
        let Some((order, _)) = receive(&control).await? else {
            break;
        };
        match order {
            Order::Open {
                area,
                address,
                bytes,
                timeout_ms,
            } => {
                let (relay, areas) = (Rc::clone(&relay), Rc::clone(&areas));
                let timeout = Duration::from_millis(timeout_ms);
                spawn_local(async move {
                    match open(&relay, area, &address, bytes, timeout).await {
                        Ok(opened) => areas.borrow_mut().push((area, opened)),
                        Err(why) => {
                            relay.report(&Report::Failed { area, why }, &[]);
                        }
                    }
                });
            }
            Order::Close { area } => {
                let mut areas = areas.borrow_mut();
                let at = areas.iter().position(|(number, _)| *number == area);
                let open = at.map(|at| areas.swap_remove(at).1);
                drop(areas);
                let relay = Rc::clone(&relay);
                spawn_local(async move {
                    let left = match open {
                        Some(open) => open.close().await,
                        None => None,
                    };
                    relay.report(&Report::Closed { area, left }, &[]);
                });
            }
        }
    }
    while relay.channels.get() > 0 {
        relay.fewer.notified().await;
    }
    // The supervisor was killed, or had no time for it.
    let rest: Vec<_> = areas.borrow_mut().drain(..).collect();
    for (_, open) in rest {
        let _ = open.close().await;
    }
    Ok(())
}

fn watched(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor stays the same open socket as long as it lives.
    Ok(unsafe { AsyncFd::register(socket) }?)
}

/// The next message on a socket. `None`: the other side has gone.
async fn receive<T: serde::de::DeserializeOwned>(
    socket: &AsyncFd<OwnedFd>,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    loop {
        let mut ready = socket.readable().await?;
        if !is_readable(socket.get_ref()) {
            ready.clear_ready();
            continue;
        }
        return words::receive(socket.get_ref());
    }
}

/// Whether a read would not wait: the sockets of others stay blocking.
fn is_readable(socket: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&socket, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

async fn open(
    relay: &Rc<Relay>,
    area: u32,
    address: &str,
    bytes: Option<u64>,
    timeout: Duration,
) -> Result<Open, String> {
    let opened = Open::new(relay, address, bytes, timeout).await?;
    let flags = SocketFlags::CLOEXEC;
    let failed = |errno: Errno| format!("no socket for engines ({errno})");
    let (register, its) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(failed)?;
    spawn_local(register_channels(
        Rc::clone(relay),
        Rc::clone(&opened.store),
        opened.bytes,
        register,
    ));
    let report = Report::Opened {
        area,
        bytes: opened.bytes,
        reserved_bytes: PAGE_BYTES,
    };
    relay.report(&report, &[its.as_fd()]);
    Ok(opened)
}

/// Serves the channels that engines register, until all of them and the supervisor have closed the socket.
async fn register_channels(relay: Rc<Relay>, store: Rc<dyn Store>, bytes: u64, socket: OwnedFd) {
    let Ok(socket) = watched(socket) else {
        return;
    };
    loop {
        let Ok(mut ready) = socket.readable().await else {
            return;
        };
        if !is_readable(socket.get_ref()) {
            ready.clear_ready();
            continue;
        }
        match words::receive_bytes(socket.get_ref()) {
            Ok((version, fds)) if !version.is_empty() => {
                let (relay, store) = (Rc::clone(&relay), Rc::clone(&store));
                relay.channels.set(relay.channels.get() + 1);
                spawn_local(async move {
                    // An engine of another version, or one that was killed meanwhile, sees the end of its socket.
                    let _ = channel::serve(store, bytes, fds).await;
                    relay.channels.set(relay.channels.get() - 1);
                    relay.fewer.notify_one();
                });
            }
            _ => return,
        }
    }
}
