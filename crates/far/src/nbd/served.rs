//! An area from its opening to its end: its connections, its mark, its discard.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use foreswap_store::area::contents::{self, Contents, INSPECTED_BYTES, Page};
use foreswap_store::area::{MIN_AREA_BYTES, PAGE_BYTES};
use foreswap_store::ring::Direction;
use tokio::sync::{Notify, oneshot};
use tokio::task::spawn_local;

use super::{Export, Problem, Stream};
use crate::address;
use crate::area::Area;
use crate::mark::{self, BEAT, Run, WATCH};
use crate::nbd;
use crate::serve::Relay;
use crate::tls::{self, Identity};
use crate::transfer::Target;

/// Connections to a server that allows several.
const LINKS: u32 = 4;
/// The interval of [`Area::tick`].
const TICK: Duration = Duration::from_millis(50);
/// The pauses between attempts to connect: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MOST_PAUSE: Duration = Duration::from_secs(2);
/// The longest attempt to connect.
const CONNECTING: Duration = Duration::from_secs(10);
/// Attempts at the last connection.
const LAST_TRIES: u32 = 10;
/// How long the discard at the end may take.
const DISCARDING: Duration = Duration::from_secs(10);

/// An area that is open.
pub(crate) struct Served {
    /// What its connections share.
    pub area: Rc<Area>,
    /// Bytes in use, a multiple of 4 KiB.
    pub bytes: u64,
    server: Server,
    export: Export,
    run: Run,
    beat: Cell<u64>,
    /// The mark is there.
    is_claimed: Cell<bool>,
    /// The page that was there before, if it was the header of `mkswap`.
    before: RefCell<Option<Box<Page>>>,
    links: Cell<u32>,
    fewer: Notify,
}

/// Where to connect to.
struct Server {
    address: address::Nbd,
    identity: Option<Identity>,
}

impl Server {
    async fn connect(&self, patience: Duration) -> Result<(Box<dyn Stream>, Export), Problem> {
        nbd::connect(&self.address, self.identity.as_ref(), patience).await
    }
}

impl Served {
    /// Connects, looks at what is on the export, and marks it.
    pub(crate) async fn open(
        relay: &Rc<Relay>,
        address: address::Nbd,
        has_copy: bool,
        bytes: Option<u64>,
        timeout: Duration,
    ) -> Result<Rc<Self>, String> {
        let name = address.text.clone();
        let identity = address.tls.as_ref();
        let identity = identity.map(|tls| tls::identity(tls, &address.place));
        let server = Server {
            address,
            identity: identity.transpose()?,
        };
        let connected = server.connect(CONNECTING.min(timeout)).await;
        let (stream, export) = connected.map_err(|problem| problem.to_string())?;
        let bytes = size(&export, bytes)?;
        let say = Box::new(crate::serve::speaker(relay));
        let served = Rc::new(Self {
            area: Rc::new(match has_copy {
                true => Area::with_copy(name, timeout, say),
                false => Area::new(name, timeout, say),
            }),
            bytes,
            server,
            export,
            run: mark::draw().map_err(|error| error.to_string())?,
            beat: Cell::new(1),
            is_claimed: Cell::new(false),
            before: RefCell::default(),
            links: Cell::new(0),
            fewer: Notify::new(),
        });
        served.begin(stream);
        match served.claim().await {
            Ok(()) => {
                served.is_claimed.set(true);
                spawn_local(Rc::clone(&served).beat_on());
                Ok(served)
            }
            Err(why) => {
                served.area.close();
                Err(why)
            }
        }
    }

    fn begin(self: &Rc<Self>, first: Box<dyn Stream>) {
        let mut first = Some(first);
        let links = match self.export.allows_many() {
            true => LINKS,
            false => 1,
        };
        for number in 0..links {
            self.links.set(self.links.get() + 1);
            let (served, stream) = (Rc::clone(self), first.take());
            // The first is up before anything else is done.
            if stream.is_some() {
                served.area.on_up();
            }
            spawn_local(async move {
                served.keep(number, stream).await;
                served.links.set(served.links.get() - 1);
                served.fewer.notify_one();
            });
        }
        let served = Rc::downgrade(self);
        spawn_local(async move {
            while let Some(served) = served.upgrade().filter(|served| served.links.get() > 0) {
                served.area.tick();
                drop(served);
                tokio::time::sleep(TICK).await;
            }
        });
    }

    /// Keeps one connection, from `stream` on if there is one, until the area is closed.
    async fn keep(&self, number: u32, stream: Option<Box<dyn Stream>>) {
        let (mut stream, mut was_up, mut pause) = (stream, false, FIRST_PAUSE);
        loop {
            let up = match stream.take() {
                Some(stream) => Some(stream),
                None => match self.again().await {
                    Ok(stream) => {
                        self.area.on_up();
                        Some(stream)
                    }
                    // The server does not allow as many.
                    Err(_) if !was_up && self.area.is_up() => return,
                    Err(_) => None,
                },
            };
            if let Some(stream) = up {
                (was_up, pause) = (true, FIRST_PAUSE);
                let (sent, why) = nbd::run(&self.area, number, stream).await;
                self.area.on_down(number, sent, &why);
            }
            if self.area.is_closed() {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(MOST_PAUSE);
        }
    }

    async fn again(&self) -> Result<Box<dyn Stream>, Problem> {
        let patience = CONNECTING.min(self.area.timeout);
        let (stream, export) = self.server.connect(patience).await?;
        if export.bytes < self.bytes {
            return Err(Problem::Refused("the export is smaller now".to_owned()));
        }
        if !self.is_claimed.get() {
            return Ok(stream);
        }
        // Before anything is read: what the server has may not be what it had.
        let looked = tokio::time::timeout(patience, self.look(stream));
        looked.await.unwrap_or(Err(Problem::TimedOut(patience)))
    }

    /// Looks whether the mark is there, on a new connection.
    async fn look(&self, mut stream: Box<dyn Stream>) -> Result<Box<dyn Stream>, Problem> {
        let page = nbd::read_first_page(&mut stream).await?;
        match mark::read(&page) {
            Some((run, _)) if run == self.run => {}
            Some(_) => self.area.on_taken(),
            None => {
                self.area.on_lost();
                // Other connections need not say so again.
                let ours = mark::page(self.run, self.beat.get());
                nbd::write_first_page(&mut stream, &ours).await?;
            }
        }
        Ok(stream)
    }

    /// Refuses an export with a user's data, or one that another run uses; then marks it.
    async fn claim(&self) -> Result<(), String> {
        let mut pages = self.inspected().await?;
        if let Some(page) = pages.get_mut(&0)
            && let Some(seen) = mark::read(page)
        {
            *page = self.watch(seen).await?;
        }
        let mut read = |offset: u64| {
            let page = pages.get(&offset).cloned();
            page.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
        };
        let found = contents::recognise(self.export.bytes, &mut read);
        match found.map_err(|error| error.to_string())? {
            Contents::Blank | Contents::Ours => {}
            Contents::KernelSwap(page) => *self.before.borrow_mut() = Some(page),
            Contents::Foreign(what) => {
                return Err(format!(
                    "it holds data ({what}), which foreswap would overwrite; expected zeros, a `mkswap` signature or an \
                     earlier area of foreswap; if nothing on it is needed, overwrite its first 128 KiB with zeros"
                ));
            }
        }
        let ours = mark::page(self.run, self.beat.get());
        self.write(&ours).await?;
        match self.read(0, PAGE_BYTES as u32).await? == ours.0 {
            true => Ok(()),
            false => {
                Err("a page that was written comes back changed; the server is faulty".to_owned())
            }
        }
    }

    /// The pages that tell whose data is on the export.
    async fn inspected(&self) -> Result<BTreeMap<u64, Box<Page>>, String> {
        let bytes = self.export.bytes;
        let whole = bytes - bytes % PAGE_BYTES;
        let front = INSPECTED_BYTES.min(whole);
        let tail = whole.saturating_sub(INSPECTED_BYTES).max(front);
        let mut pages = BTreeMap::new();
        for (from, to) in [(0, front), (tail, whole)] {
            if from == to {
                continue;
            }
            let read = self.read(from, (to - from) as u32).await?;
            let chunks = read.as_chunks::<{ PAGE_BYTES as usize }>().0;
            for (offset, bytes) in (from..).step_by(PAGE_BYTES as usize).zip(chunks) {
                let mut page = Page::zeroed();
                page.0 = *bytes;
                pages.insert(offset, page);
            }
        }
        if whole < bytes {
            // The last piece is no page, and never used.
            pages.insert(whole, Page::zeroed());
        }
        Ok(pages)
    }

    /// Waits whether the run of a mark that was found still lives. If not, the page that is there without it.
    async fn watch(&self, seen: (Run, u64)) -> Result<Box<Page>, String> {
        let end = Instant::now() + WATCH;
        while Instant::now() < end {
            tokio::time::sleep(BEAT / 4).await;
            let bytes = self.read(0, PAGE_BYTES as u32).await?;
            let mut page = Page::zeroed();
            page.0.copy_from_slice(&bytes);
            match mark::read(&page) {
                Some(still) if still == seen => {}
                // It has just ended.
                None => return Ok(page),
                Some(_) => {
                    return Err(
                        "another foreswap is using it; wait for it to end, or name another export"
                            .to_owned(),
                    );
                }
            }
        }
        Ok(contents::header())
    }

    /// Shows that the run lives, until the area is closed.
    async fn beat_on(self: Rc<Self>) {
        loop {
            tokio::time::sleep(BEAT).await;
            if self.area.is_closed() {
                return;
            }
            let Ok(bytes) = self.read(0, PAGE_BYTES as u32).await else {
                continue;
            };
            let mut page = Page::zeroed();
            page.0.copy_from_slice(&bytes);
            match mark::read(&page) {
                Some((run, _)) if run == self.run => {}
                Some(_) => return self.area.on_taken(),
                None => self.area.on_lost(),
            }
            self.beat.set(self.beat.get() + 1);
            let _ = self.write(&mark::page(self.run, self.beat.get())).await;
        }
    }

    async fn read(&self, offset: u64, bytes: u32) -> Result<Vec<u8>, String> {
        self.transfer(Direction::Read, offset, vec![0; bytes as usize])
            .await
    }

    async fn write(&self, mark: &Page) -> Result<(), String> {
        let written = self.transfer(Direction::Write, 0, mark.0.to_vec());
        written.await.map(|_| ())
    }

    /// Transfers bytes of the relay's own.
    async fn transfer(
        &self,
        direction: Direction,
        offset: u64,
        mut memory: Vec<u8>,
    ) -> Result<Vec<u8>, String> {
        let bytes = memory.len() as u32;
        let (done, ended) = oneshot::channel();
        let start = memory.as_mut_ptr();
        let target = Own {
            start,
            left: RefCell::new(Some((memory, done))),
        };
        self.area.submit(direction, offset, bytes, Box::new(target));
        let what = match direction {
            Direction::Read => "read",
            Direction::Write => "written",
        };
        let words = |errno| {
            let error = io::Error::from_raw_os_error(errno);
            format!("its byte {offset} cannot be {what}: {error}")
        };
        let (errno, memory) = ended.await.map_err(|_| words(crate::errno::IO))?;
        match errno {
            0 => Ok(memory),
            errno => Err(words(errno)),
        }
    }

    /// Ends the area: discards what is on it, and leaves the mark of one that is free.
    ///
    /// # Errors
    /// The text says why its contents may still be there.
    pub(crate) async fn close(&self) -> Result<(), String> {
        self.area.close();
        let ended = async {
            while self.links.get() > 0 {
                self.fewer.notified().await;
            }
        };
        // A server that is away is not waited for.
        let _ = tokio::time::timeout(MOST_PAUSE, ended).await;
        if self.area.is_taken() {
            return Ok(());
        }
        let discarded = tokio::time::timeout(DISCARDING, self.discard()).await;
        discarded.unwrap_or_else(|_| Err(format!("no end after {} s", DISCARDING.as_secs())))
    }

    async fn discard(&self) -> Result<(), String> {
        let mut tries = 0;
        let (stream, export) = loop {
            // A server that allows one connection may not have seen the end of ours.
            match self.server.connect(CONNECTING).await {
                Ok(connected) => break connected,
                Err(_) if tries < LAST_TRIES => {
                    tries += 1;
                    tokio::time::sleep(FIRST_PAUSE).await;
                }
                Err(problem) => return Err(problem.to_string()),
            }
        };
        let last = self.before.borrow_mut().take();
        let last = last.unwrap_or_else(contents::header);
        let used = PAGE_BYTES..self.bytes.min(self.area.reach()).max(PAGE_BYTES);
        let done = nbd::leave(stream, export.discards_by(), used, &last).await;
        done.map_err(|error| error.to_string())
    }
}

/// Memory of the relay, which moves without its bytes.
struct Own {
    start: *mut u8,
    left: RefCell<Option<(Vec<u8>, oneshot::Sender<Ended>)>>,
}

/// The result of a transfer, and its memory.
type Ended = (i32, Vec<u8>);

impl Target for Own {
    fn start(&self) -> *mut u8 {
        self.start
    }

    fn end(&self, errno: i32) {
        if let Some((memory, done)) = self.left.borrow_mut().take() {
            let _ = done.send((errno, memory));
        }
    }
}

/// The bytes to use of an export.
fn size(export: &Export, asked: Option<u64>) -> Result<u64, String> {
    let there = export.bytes - export.bytes % PAGE_BYTES;
    match asked {
        Some(asked) if asked > there => Err(format!(
            "--swap-size asks for {asked} bytes, the export has {there}; ask for less, or leave --swap-size out to use \
             all of it"
        )),
        _ if there < MIN_AREA_BYTES => Err(format!(
            "the export has {there} bytes; the least is {MIN_AREA_BYTES} (1M)"
        )),
        asked => Ok(asked.unwrap_or(there)),
    }
}
