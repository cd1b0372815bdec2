//! The key of a run that encrypts (`--encrypt`): where it is, and how engines get it.
//!
//! The supervisor draws it into a page that nobody else reads ([`SecretPage`]), and passes the page's descriptor to each
//! engine with its welcome. An engine maps the page for a moment and expands the key into such a page of its own, which
//! stays until the process ends. It is not cleared before: threads that encrypt at that moment would do so with a known
//! key.

use foreswap_store::seal::{Cipher, KEY_BYTES};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::sys::own_memory::{self, Kind};
use crate::sys::secret_page::{self, SecretError, SecretPage};

/// Bytes of the stack that an expansion may use, amply.
const STACK: usize = 16 << 10;

/// Supervisor: the key.
#[derive(Debug)]
pub struct RunKey(SecretPage);

impl RunKey {
    /// A new key.
    pub fn draw() -> Result<Self, SecretError> {
        let key = RunKey(SecretPage::create()?);
        let failed = |errno| SecretError::System {
            what: "getrandom",
            errno,
        };
        // So few bytes are drawn at once, or not at all.
        let drawn = getrandom(key.bytes(), GetRandomFlags::empty()).map_err(failed)?;
        match drawn {
            KEY_BYTES => Ok(key),
            _ => Err(failed(Errno::AGAIN)),
        }
    }

    #[expect(clippy::mut_from_ref, reason = "see the argument")]
    fn bytes(&self) -> &mut [u8; KEY_BYTES] {
        // SAFETY: the page is mapped as long as `self`, and its only user in this process is the caller: this function is
        // called when the key is made and when it is dropped. Engines read it later, by messages.
        unsafe { self.0.start().cast().as_mut() }
    }

    /// In a forked child of the supervisor: locks are not inherited.
    pub fn lock_again(&self) {
        // A child that may not keeps the page, which the kernel may swap out then, if it has no memory for secrets.
        let _ = self.0.lock();
    }

    /// The descriptor of its page, for engines.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

impl Drop for RunKey {
    /// Clears the key.
    fn drop(&mut self) {
        self.bytes().fill(0);
        std::hint::black_box(self.bytes());
    }
}

/// Engine: the cipher with the key of the run. It stays until the process ends.
pub fn cipher(page: OwnedFd) -> Result<&'static Cipher, SecretError> {
    let page = SecretPage::attach(page)?;
    // SAFETY: it is mapped, and cleared by nobody while its run goes on.
    let key: &[u8; KEY_BYTES] = unsafe { page.start().cast().as_ref() };
    if key == &[0; KEY_BYTES] {
        return Err(SecretError::Gone);
    }
    let place = SecretPage::create()?;
    place.keep_from_children()?;
    let start = place.start();
    if !own_memory::list(start.as_ptr() as usize, secret_page::BYTES, Kind::Secret) {
        return Err(SecretError::System {
            what: "mmap",
            errno: Errno::NOMEM,
        });
    }
    let start = place.leak().cast::<Cipher>();
    // SAFETY: a page of our own, for which the cipher is not too large.
    let made = unsafe { expand(key, start.as_ptr()) };
    wipe_stack();
    if !made {
        return Err(SecretError::System {
            what: "the expansion of the key",
            errno: Errno::INVAL,
        });
    }
    // SAFETY: written just now, and never unmapped or changed.
    Ok(unsafe { start.as_ref() })
}

/// # Safety
/// A cipher can be written to `place`.
#[inline(never)]
unsafe fn expand(key: &[u8; KEY_BYTES], place: *mut Cipher) -> bool {
    let cipher = Cipher::new(key);
    cipher.is_some_and(|cipher| {
        // SAFETY: the caller's promise.
        unsafe { place.write(cipher) };
        true
    })
}

/// Overwrites what the call before has left on the stack, which may be swapped out.
#[inline(never)]
fn wipe_stack() {
    std::hint::black_box(&mut [0_u8; STACK]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_has_its_key_and_each_engine_the_key_of_its_run() {
        let [first, second] = [(); 2].map(|()| RunKey::draw().expect("a key"));
        assert_ne!(first.bytes(), second.bytes());
        assert_ne!(first.bytes(), &[0; KEY_BYTES]);
        let of = |key: &RunKey| cipher(key.fd().try_clone_to_owned().expect("a descriptor"));
        let engines = [&first, &first, &second].map(|key| of(key).expect("a cipher"));
        let mut page = [5; 4096];
        let seal = engines[0].seal(1, &mut page);
        let sealed = page;
        assert!(engines[1].open(&seal, &mut page));
        assert_eq!(page, [5; 4096]);
        page = sealed;
        assert!(!engines[2].open(&seal, &mut page));
    }

    #[test]
    fn a_key_that_is_dropped_is_cleared() {
        let key = RunKey::draw().expect("a key");
        let page = SecretPage::attach(key.fd().try_clone_to_owned().expect("a descriptor"));
        let page = page.expect("the page");
        drop(key);
        // SAFETY: mapped, and nobody else uses it.
        let left = unsafe { page.start().cast::<[u8; KEY_BYTES]>().read() };
        assert_eq!(left, [0; KEY_BYTES]);
        // No engine encrypts with what is left.
        let late = page.fd().try_clone_to_owned().expect("a descriptor");
        assert!(matches!(cipher(late), Err(SecretError::Gone)));
    }
}
