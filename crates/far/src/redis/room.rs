//! What a server says of itself: whether it can have an area, and how large.

use foreswap_store::area::{MIN_AREA_BYTES, PAGE_BYTES};
use redis::Value;

use super::connect::Ask;

/// The size of an area if the server says nothing of its memory.
const DEFAULT_BYTES: u64 = 4 << 30;

/// What a server says of itself.
pub struct Info(String);

impl Info {
    /// Asks it.
    pub async fn of(send: &mut impl Ask) -> Result<Self, String> {
        let mut text = String::new();
        for section in ["server", "memory", "replication"] {
            let mut info = redis::cmd("INFO");
            info.arg(section);
            match send.ask(&info).await? {
                Value::BulkString(part) => text.push_str(&String::from_utf8_lossy(&part)),
                Value::VerbatimString { text: part, .. } => text.push_str(&part),
                _ => return Err("the server does not answer INFO".to_owned()),
            }
        }
        Ok(Self(text))
    }

    /// The value of a line.
    pub fn get(&self, key: &str) -> Option<&str> {
        let mut lines = self.0.lines();
        lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(':').map(str::trim))
    }

    /// The same, as a number; 0 if there is none.
    pub fn number(&self, key: &str) -> u64 {
        self.get(key)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    }

    /// Refuses a server that would drop keys, or is too old. Returns the bytes of pages that it has room for.
    pub fn room(&self) -> Result<u64, String> {
        let version = self.get("redis_version").unwrap_or("unknown");
        let major = version.split('.').next().and_then(|text| text.parse().ok());
        if major.unwrap_or(0) < 4 {
            return Err(format!(
                "the server's version is {version}; expected 4.0 or later"
            ));
        }
        let most = self.number("maxmemory");
        let policy = self.get("maxmemory_policy").unwrap_or("unknown");
        if most > 0 && policy != "noeviction" {
            return Err(format!(
                "the server drops keys when its memory is full (maxmemory-policy {policy}), and pages with them; expected \
                 noeviction: redis-cli CONFIG SET maxmemory-policy noeviction"
            ));
        }
        let free = match most {
            0 => self.number("total_system_memory") / 2,
            most => most.saturating_sub(self.number("used_memory")),
        };
        // A string of 256 KiB takes 320 KiB.
        Ok(match free {
            0 if most == 0 => DEFAULT_BYTES,
            free => free / 4 * 3,
        })
    }
}

/// The bytes to use.
pub fn size(room: u64, asked: Option<u64>) -> Result<u64, String> {
    let bytes = asked.unwrap_or(room / PAGE_BYTES * PAGE_BYTES);
    match bytes {
        bytes if bytes < MIN_AREA_BYTES => Err(format!(
            "the server has room for {bytes} bytes of pages; the least is {MIN_AREA_BYTES} (1M); raise its maxmemory"
        )),
        bytes => Ok(bytes),
    }
}
