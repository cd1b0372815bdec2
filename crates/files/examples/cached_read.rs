//! Reads a file twice through a cache and prints what the cache did: `cached_read FILE [CACHE-BYTES]`.

use std::io::{Error, ErrorKind};

use foreswap_files::Cache;

fn main() -> std::io::Result<()> {
    let mut args = std::env::args_os().skip(1);
    let usage = || {
        Error::new(
            ErrorKind::InvalidInput,
            "usage: cached_read FILE [CACHE-BYTES]",
        )
    };
    let path = args.next().ok_or_else(usage)?;
    let bytes = match args.next() {
        Some(word) => word
            .to_str()
            .and_then(|word| word.parse().ok())
            .ok_or_else(usage)?,
        None => 64 << 20,
    };
    let cache = Cache::new(bytes)?;
    let file = cache.open(&path)?;
    let mut buffer = vec![0; 64 << 10];
    for _ in 0..2 {
        let (mut offset, mut sum) = (0, 0u64);
        loop {
            let read = file.read_at(&mut buffer, offset)?;
            if read == 0 {
                break;
            }
            sum += buffer[..read]
                .iter()
                .map(|byte| u64::from(*byte))
                .sum::<u64>();
            offset += read as u64;
        }
        println!("{offset} bytes, their sum {sum}: {:?}", cache.stats());
    }
    Ok(())
}
