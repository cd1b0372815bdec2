//! Nodes of memory, their zones, and their free frames.
//!
//! A node has the zones DMA, DMA32 and Normal; the core's watermarks keep pages free in each. Frames are in blocks of
//! the size of a huge page. A single frame is taken from a partly used block if there is one: whole blocks remain for
//! huge pages. A block is whole again when its last frame is freed.

use foreswap_core::linux_kswapd::{
    DEFAULT_SCALE, MAX_ZONES, Watermarks, Zone, ZoneIndex, min_free,
};
use foreswap_core::units::PAGE_SIZE;

use crate::sim::machine::SimError;
use crate::sim::parameters::Parameters;

/// Zones of a node.
pub const ZONES: usize = 3;
/// The highest of them, which may serve any request here.
pub const HIGHEST: ZoneIndex = ZoneIndex(ZONES - 1);
/// Pages of a huge page, and its order.
pub const BLOCK: u32 = 512;
pub const HUGE: u32 = 9;
/// Pages below 16 MiB.
const DMA: u64 = (16 << 20) / PAGE_SIZE as u64;
/// Pages of RAM below 4 GiB; the rest of the addresses there belongs to devices.
const DMA32: u64 = (3 << 30) / PAGE_SIZE as u64;
/// The fraction of the zones above it that a low zone reserves against requests for them; Linux's default
/// (`lowmem_reserve_ratio`).
const RESERVE: u64 = 256;
/// Blocks that Linux keeps free in each zone with huge pages enabled: two, and one for each pair of the three page
/// types (`set_recommended_min_free_kbytes`).
const BLOCKS_FREE: u64 = 2 + 3 * 3;

/// Identifies a frame.
pub type FrameId = u32;

/// Blocks of a zone with free frames.
#[derive(Debug)]
struct Pool {
    /// The block from which frames are taken.
    current: Option<u32>,
    /// Other partly used blocks. Blocks that have become whole since are skipped.
    partial: Vec<u32>,
    whole: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    /// Free frames, with the first of them.
    free: u32,
    first: FrameId,
    pool: u32,
    whole: bool,
    /// It is in its pool's list of partly used blocks.
    listed: bool,
}

/// All memory of a machine.
#[derive(Debug)]
pub struct Memory {
    /// The zones of each node, as seen by the core.
    pub nodes: Vec<[Zone; ZONES]>,
    pools: Vec<Pool>,
    blocks: Vec<Block>,
    /// The next free frame of a block.
    next: Vec<FrameId>,
}

/// No frame.
pub const NONE: FrameId = FrameId::MAX;

impl Memory {
    /// The memory of a machine, all of it free. The watermarks are those of the full machine: the rate of allocation
    /// does not depend on the number of pages.
    ///
    /// `boost`: the factor on Linux's default distance between watermarks.
    ///
    /// # Errors
    ///
    /// The machine is so small that the watermarks leave no room.
    pub fn new(parameters: &Parameters, boost: u64) -> Result<Self, SimError> {
        let scale = parameters.scale;
        let nodes = u64::from(parameters.nodes);
        let machine = parameters.pages() * scale;
        let layout = |node| {
            let all = machine / nodes;
            if node > 0 {
                return [0, 0, all];
            }
            let low = DMA32.min(all);
            let dma = DMA.min(low);
            [dma, low - dma, all - low]
        };
        let populated = |node| layout(node).iter().filter(|&&pages| pages > 0).count() as u64;
        let zones: u64 = (0..nodes).map(populated).sum();
        let huge = zones * BLOCKS_FREE * u64::from(BLOCK);
        let least = min_free(machine).max(huge.min(machine / 20));
        let mut memory = Memory {
            nodes: Vec::new(),
            pools: Vec::new(),
            blocks: Vec::new(),
            next: Vec::new(),
        };
        for node in 0..nodes {
            let full = layout(node);
            let mut zones = [Zone::default(); ZONES];
            for (at, zone) in zones.iter_mut().enumerate() {
                let marks = Watermarks::new(full[at], machine, least, DEFAULT_SCALE);
                let step = (marks.low - marks.min) * boost;
                let mut reserve = [0; MAX_ZONES];
                for (highest, kept) in reserve.iter_mut().enumerate().take(ZONES).skip(at + 1) {
                    *kept = full[at + 1..=highest].iter().sum::<u64>() / RESERVE;
                }
                let pages = memory.pool(full[at] / scale);
                *zone = Zone {
                    pages,
                    free: pages,
                    largest: (pages > 0).then_some(HUGE),
                    marks: Watermarks {
                        min: marks.min,
                        low: marks.min + step,
                        high: marks.min + 2 * step,
                    },
                    reserve,
                };
            }
            memory.nodes.push(zones);
        }
        let zones = memory.nodes.iter().flatten();
        let kept: u64 = zones.map(|zone| zone.marks.high).sum();
        let pages = memory.next.len() as u64;
        if kept * 4 > pages {
            return Err(SimError::TooSmall { pages, kept });
        }
        Ok(memory)
    }

    /// A pool of about this many pages, in whole blocks; returns its size.
    fn pool(&mut self, pages: u64) -> u64 {
        let blocks = (pages / u64::from(BLOCK)) as u32;
        let first = self.blocks.len() as u32;
        let pool = self.pools.len() as u32;
        for block in first..first + blocks {
            let start = block * BLOCK;
            self.next.extend((1..BLOCK).map(|n| start + n));
            self.next.push(NONE);
            self.blocks.push(Block {
                free: BLOCK,
                first: start,
                pool,
                whole: true,
                listed: false,
            });
        }
        self.pools.push(Pool {
            current: None,
            partial: Vec::new(),
            whole: (first..first + blocks).rev().collect(),
        });
        u64::from(blocks * BLOCK)
    }

    /// All frames.
    pub fn frames(&self) -> usize {
        self.next.len()
    }

    /// Free frames.
    pub fn free(&self) -> u64 {
        self.nodes.iter().flatten().map(|zone| zone.free).sum()
    }

    /// The node of a frame.
    pub fn node(&self, frame: FrameId) -> usize {
        self.blocks[(frame / BLOCK) as usize].pool as usize / ZONES
    }

    /// The zone of a frame, within its node.
    pub fn zone(&self, frame: FrameId) -> usize {
        self.blocks[(frame / BLOCK) as usize].pool as usize % ZONES
    }

    fn changed(&mut self, pool: u32, free: i64) {
        let (node, at) = (pool as usize / ZONES, pool as usize % ZONES);
        let zone = &mut self.nodes[node][at];
        zone.free = zone.free.wrapping_add_signed(free);
        zone.largest = match zone.free {
            0 => None,
            _ if self.pools[pool as usize].whole.is_empty() => Some(0),
            _ => Some(HUGE),
        };
    }

    /// Takes up to `count` frames of a zone into `out`; fewer if it has no more.
    pub fn take(&mut self, node: usize, zone: ZoneIndex, count: u64, out: &mut Vec<FrameId>) {
        let at = node * ZONES + zone.0;
        let mut taken = 0;
        while taken < count {
            let Some(block) = self.source(at) else { break };
            let block = &mut self.blocks[block as usize];
            out.push(block.first);
            block.first = self.next[block.first as usize];
            block.free -= 1;
            taken += 1;
        }
        self.changed(at as u32, -(taken as i64));
    }

    /// The block of the next frame.
    fn source(&mut self, at: usize) -> Option<u32> {
        let pool = &mut self.pools[at];
        loop {
            if let Some(block) = pool.current {
                if self.blocks[block as usize].free > 0 {
                    return Some(block);
                }
                pool.current = None;
            }
            if let Some(next) = pool.partial.pop() {
                let block = &mut self.blocks[next as usize];
                block.listed = false;
                if !block.whole {
                    pool.current = Some(next);
                }
                continue;
            }
            let next = pool.whole.pop()?;
            self.blocks[next as usize].whole = false;
            pool.current = Some(next);
        }
    }

    /// Takes a whole block of a zone, if it has one.
    pub fn take_huge(&mut self, node: usize, zone: ZoneIndex) -> Option<u32> {
        let at = node * ZONES + zone.0;
        let block = self.pools[at].whole.pop()?;
        let entry = &mut self.blocks[block as usize];
        entry.whole = false;
        entry.free = 0;
        self.changed(at as u32, -i64::from(BLOCK));
        Some(block)
    }

    /// Frees a frame.
    pub fn give(&mut self, frame: FrameId) {
        let at = frame / BLOCK;
        let block = &mut self.blocks[at as usize];
        self.next[frame as usize] = block.first;
        block.first = frame;
        block.free += 1;
        let number = block.pool;
        let pool = &mut self.pools[number as usize];
        if block.free == BLOCK {
            block.whole = true;
            if pool.current == Some(at) {
                pool.current = None;
            }
            pool.whole.push(at);
        } else if !block.listed && pool.current != Some(at) {
            block.listed = true;
            pool.partial.push(at);
        }
        self.changed(number, 1);
    }

    /// Frees a whole block.
    pub fn give_huge(&mut self, block: u32) {
        let entry = &mut self.blocks[block as usize];
        entry.whole = true;
        entry.free = BLOCK;
        let pool = entry.pool;
        self.pools[pool as usize].whole.push(block);
        self.changed(pool, i64::from(BLOCK));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(name: &str, scale: u64) -> Memory {
        let machine = Parameters::named(name).expect("a machine").scaled(scale);
        Memory::new(&machine, 1).expect("large enough")
    }

    #[test]
    fn zones_are_those_of_linux_and_levels_do_not_shrink() {
        let full = memory("two-socket-disk", 1);
        let [dma, dma32, normal] = full.nodes[0];
        assert_eq!((dma.pages, dma32.pages + dma.pages), (4096, 3 << 18));
        assert_eq!(full.nodes[1][0].pages + full.nodes[1][1].pages, 0);
        // 90,112 KiB on two nodes with four zones, as in Linux with huge pages enabled.
        let min = |memory: &Memory| -> u64 {
            let zones = memory.nodes.iter().flatten();
            zones.map(|zone| zone.marks.min).sum()
        };
        assert!((22_520..=22_528).contains(&min(&full)), "{}", min(&full));
        let small = memory("two-socket-disk", 8);
        assert_eq!(min(&small), min(&full));
        assert_eq!(small.nodes[0][2].marks, normal.marks);
        assert!(small.nodes[0][2].pages.abs_diff(normal.pages / 8) < 512);
        // A request that may use Normal cannot reach DMA, because of the kernel's reserve.
        assert!(dma.reserve[2] > dma.pages && dma.reserve[0] == 0);
        assert!(dma32.reserve[2] < dma32.pages);
    }

    #[test]
    fn a_machine_that_is_too_small_is_refused() {
        let machine = Parameters::named("uma-disk")
            .expect("a machine")
            .scaled(512);
        assert!(matches!(
            Memory::new(&machine, 1),
            Err(SimError::TooSmall { .. })
        ));
    }

    #[test]
    fn blocks_become_whole_again_and_partly_used_ones_go_first() {
        let mut memory = memory("uma-disk", 8);
        let normal = HIGHEST;
        let before = memory.nodes[0][2];
        let mut frames = Vec::new();
        memory.take(0, normal, 700, &mut frames);
        assert_eq!(frames.len(), 700);
        assert_eq!(memory.nodes[0][2].free, before.free - 700);
        let huge = memory.take_huge(0, normal).expect("a whole block");
        assert!(frames.iter().all(|frame| frame / BLOCK != huge));
        // The first block is whole again; the rest of the second is used before it is split.
        let mut distinct = frames.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 700);
        let second = frames[600] / BLOCK;
        for frame in frames.drain(..512) {
            memory.give(frame);
        }
        memory.take(0, normal, 324, &mut frames);
        assert!(frames.iter().all(|frame| frame / BLOCK == second));
        frames.drain(..).for_each(|frame| memory.give(frame));
        memory.give_huge(huge);
        assert_eq!(memory.nodes[0][2], before);
        // All of it is available as huge pages, and then nothing is.
        let all = before.pages / u64::from(BLOCK);
        assert_eq!(
            (0..).map_while(|_| memory.take_huge(0, normal)).count() as u64,
            all
        );
        memory.take(0, normal, 1, &mut frames);
        assert!(frames.is_empty() && memory.nodes[0][2].largest.is_none());
    }

    #[test]
    fn frames_come_and_go_without_loss() {
        let mut memory = memory("uma-disk", 8);
        let mut rng = crate::sim::rng::Rng::new(5);
        let start = memory.free();
        let (mut held, mut huge) = (Vec::new(), Vec::new());
        for _ in 0..20_000 {
            match rng.below(4) {
                0 => memory.take(0, HIGHEST, rng.below(100), &mut held),
                1 => huge.extend(memory.take_huge(0, HIGHEST)),
                2 => huge
                    .pop()
                    .into_iter()
                    .for_each(|block| memory.give_huge(block)),
                _ => {
                    for _ in 0..rng.below(100).min(held.len() as u64) {
                        let at = rng.below(held.len() as u64) as usize;
                        memory.give(held.swap_remove(at));
                    }
                }
            }
            let out = held.len() as u64 + huge.len() as u64 * u64::from(BLOCK);
            assert_eq!(memory.free() + out, start);
        }
        held.drain(..).for_each(|frame| memory.give(frame));
        huge.drain(..).for_each(|block| memory.give_huge(block));
        let zone = memory.nodes[0][2];
        let whole = (0..).map_while(|_| memory.take_huge(0, HIGHEST)).count() as u64;
        assert_eq!(whole * u64::from(BLOCK), zone.pages);
    }
}
