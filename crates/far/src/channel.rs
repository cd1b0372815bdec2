//! The relay's side of an engine's channel.
//!
//! A channel lives until its engine has ended and the last of its transfers has: with it the description of the area that
//! tells the supervisor that the engine's slots are still in use.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::ptr::NonNull;
use std::rc::Rc;

use foreswap_store::far::{self, Channel, End, Request};
use foreswap_store::ram::Backing;
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use tokio::net::UnixStream;

use crate::mirror::Store;
use crate::transfer::Target;

/// An engine's memory, mapped.
struct Mapped {
    base: NonNull<u8>,
}

// SAFETY: shared memory, which lives as long as the value.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn of(file: &OwnedFd) -> io::Result<Self> {
        let size = rustix::fs::fstat(file)?.st_size;
        let seals = rustix::fs::fcntl_get_seals(file)?;
        // Otherwise the engine could cut it, and the relay would get SIGBUS.
        let is_fixed = seals.contains(SealFlags::SHRINK);
        if u64::try_from(size) != Ok(far::BYTES) || !is_fixed {
            return Err(Errno::INVAL.into());
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let bytes = far::BYTES as usize;
        let at = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap(at, bytes, access, MapFlags::SHARED, file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped in `of` with this length; pointers into it do not outlive the channel.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), far::BYTES as usize) };
    }
}

// SAFETY: so many bytes are mapped, aligned to a page, as long as the value lives.
unsafe impl Backing for Mapped {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn bytes(&self) -> usize {
        far::BYTES as usize
    }
    fn punch(&self, _: u64, _: u64) {}
    fn populate(&self, _: u64, _: u64) {}
}

/// What lasts until the last transfer has ended.
struct Engine {
    channel: Channel,
    bell: OwnedFd,
    /// See `foreswap_store::area::lease`.
    _own: OwnedFd,
}

/// One transfer's end, for the engine.
struct Order {
    engine: Rc<Engine>,
    request: Request,
}

impl Target for Order {
    fn start(&self) -> *mut u8 {
        self.engine.channel.page(self.request.page).as_ptr()
    }

    fn end(&self, errno: i32) {
        let index = self.request.index;
        if self.engine.channel.end(End { index, errno }) {
            // An engine that has ended does not mind.
            let _ = rustix::io::write(&self.engine.bell, &1u64.to_ne_bytes());
        }
    }
}

/// The descriptors of a registration: the memory, the end of the socket, the bell and the description of the area.
pub async fn serve(store: Rc<dyn Store>, bytes: u64, fds: Vec<OwnedFd>) -> io::Result<()> {
    let [memory, life, bell, own] =
        <[OwnedFd; 4]>::try_from(fds).map_err(|_| io::Error::from(Errno::INVAL))?;
    let channel = Channel::attach(Box::new(Mapped::of(&memory)?)).ok_or(Errno::INVAL)?;
    let life = StdStream::from(life);
    life.set_nonblocking(true)?;
    let life = UnixStream::from_std(life)?;
    let engine = Rc::new(Engine {
        channel,
        bell,
        _own: own,
    });
    let mut told = [0; 64];
    loop {
        while let Some(request) = engine.channel.take() {
            begin(&store, bytes, &engine, request);
        }
        life.readable().await?;
        match life.try_read(&mut told) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Such as a reset: the engine was killed.
            Err(_) => break,
        }
    }
    // Its last requests.
    while let Some(request) = engine.channel.take() {
        begin(&store, bytes, &engine, request);
    }
    while Rc::strong_count(&engine) > 1 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    Ok(())
}

fn begin(store: &Rc<dyn Store>, bytes: u64, engine: &Rc<Engine>, request: Request) {
    let engine = Rc::clone(engine);
    let target = Box::new(Order { engine, request });
    match request.offset + u64::from(request.bytes) <= bytes {
        true => Rc::clone(store).submit(request.direction, request.offset, request.bytes, target),
        false => target.end(Errno::INVAL.raw_os_error()),
    }
}
