//! A short text in static memory, which a forked child has too.

use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;

/// At most `N - 1` bytes, zero-terminated.
pub struct Text<const N: usize>([AtomicU8; N]);

impl<const N: usize> Text<N> {
    /// Empty.
    pub const fn new() -> Self {
        Text([const { AtomicU8::new(0) }; N])
    }

    /// Keeps `text`; false if it is too long.
    pub fn set(&self, text: &str) -> bool {
        for (at, byte) in self.0.iter().zip(text.bytes().chain([0])) {
            at.store(byte, Relaxed);
        }
        text.len() < N
    }

    /// The text.
    pub fn get(&self) -> String {
        let bytes = self.0.iter().map(|byte| byte.load(Relaxed));
        let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
