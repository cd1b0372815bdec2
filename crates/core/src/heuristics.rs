//! The heuristics that can be turned off, to measure what each is worth (`foreswap lab worth`, docs/HEURISTICS.md).
//!
//! Each machine asks [`Heuristics::has`] where it uses one. Without the feature `ablate`, which no shipped build has, the
//! answer is a constant, and the questions cost nothing.

/// A rule of thumb whose worth is measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Heuristic {
    /// A stream is read as far ahead as fills the pipe to its store, a byte stride as far as it goes in two reads.
    WindowByTime,
    /// Pages of a stream are mapped before they are touched, except for the marks.
    DirectMapping,
    /// Marks are at places that the program cannot know.
    ScatteredMarks,
    /// The distance of marks grows with the window.
    MarkDistance,
    /// A stream that leaves marks out is not followed any longer.
    Doubts,
    /// Streams that together take most pages become one scan.
    MergedStreams,
    /// A stream from huge page to huge page reads nothing until its step is known.
    HiddenStreams,
    /// A stream whose readahead was dropped reads nothing until its next touch.
    ReadaheadRest,
    /// Strides of 5 to 8 pages are read in huge pages while that is faster.
    StrideProbe,
    /// Distances in bytes are followed.
    ByteStrides,
    /// Touches that continue no stream are answered as the kernel does.
    BesideStreams,
    /// Active streams share the memory for readahead.
    StreamShares,
    /// A region that loses by readahead demands more touches of a stream.
    StreamProof,
    /// Pages that streams read and left are dropped before evicted ones.
    StaleReadahead,
    /// A stream waits for a number of frames instead of reading fewer pages.
    WorthwhileReads,
    /// Entries of the queue are reserved for faults and writes.
    KeptEntries,
    /// Streams read huge pages whole.
    WholeReads,
    /// The huge page after the touched one is mapped with it.
    NextUnit,
    /// Pages behind a long stream are evicted first.
    DropBehind,
    /// During random faults drop-behind begins behind two huge pages.
    DropBehindAtRandom,
    /// Only active streams offer pages for drop-behind.
    DropBehindActive,
    /// A page that returns soon after its eviction gets two references.
    RefaultReferences,
    /// Memory is kept ready for units while some are taken.
    KeptUnits,
    /// Half of the pages under write count as free while units are taken.
    ComingPages,
    /// Few pages are evicted at a time while a thread waits for a read.
    SmallBatches,
    /// Leaves that cannot be moved are skipped for some passes.
    LeafRest,
    /// After a leaf could not be made a huge page, the next ones are left alone.
    LeanUnits,
    /// After the system had no huge page, some tries do not ask.
    ScarceUnits,
    /// During random faults the sweep splits huge pages.
    SplitAtRandom,
    /// During random faults memory outside of clusters is kept.
    KeptSingles,
    /// Readahead that a stream is about to use is dropped last.
    FarthestFirst,
    /// A stream waits for a cluster instead of reading single pages.
    UnitPatience,
    /// Full leaves are made huge pages before they are evicted.
    Collapse,
    /// Only regions that are touched in order are made of huge pages.
    LocalRegions,
    /// Random faults are told from others.
    RandomFaults,
    /// During random faults background reads are small and few.
    ReadDepth,
    /// During random faults writes are small and few.
    WriteDepth,
    /// While other processes fault at random, background I/O is small and few.
    OthersDepth,
    /// A disk that completes in batches gets batches.
    CompletionBatching,
    /// A waiting read goes first when a thread comes to wait for it.
    Hasten,
    /// Writes wait until there are enough for a request.
    WorthWriting,
    /// During random faults more writes are gathered.
    GatheredWrites,
    /// Pages that were read keep their slots.
    KeptSlots,
    /// A unit of which much has changed gets new slots, and stays a unit.
    StaysWhole,
    /// A unit with many separate changes is written whole.
    WritesAll,
    /// Swapoff has less in flight while the program faults.
    SwapoffDepth,
    /// First touches that continue a run map more and more pages.
    FirstTouchGrowth,
}

/// Which heuristics are in use: all of them, unless the feature `ablate` turns some off.
#[derive(Clone, Copy, Default, Debug)]
pub struct Heuristics {
    #[cfg(feature = "ablate")]
    off: u64,
}

impl Heuristics {
    /// Whether `heuristic` is in use.
    #[cfg(not(feature = "ablate"))]
    #[inline(always)]
    pub(crate) const fn has(self, _: Heuristic) -> bool {
        true
    }

    /// Whether `heuristic` is in use.
    #[cfg(feature = "ablate")]
    pub(crate) const fn has(self, heuristic: Heuristic) -> bool {
        self.off >> heuristic as u32 & 1 == 0
    }

    /// All but `off`.
    #[cfg(feature = "ablate")]
    pub fn without(off: &[Heuristic]) -> Self {
        let bits = off.iter().map(|&heuristic| 1 << heuristic as u32);
        Heuristics { off: bits.sum() }
    }
}

#[cfg(feature = "ablate")]
impl Heuristic {
    /// All of them.
    pub const ALL: [Heuristic; 47] = [
        Heuristic::WindowByTime,
        Heuristic::DirectMapping,
        Heuristic::ScatteredMarks,
        Heuristic::MarkDistance,
        Heuristic::Doubts,
        Heuristic::MergedStreams,
        Heuristic::HiddenStreams,
        Heuristic::ReadaheadRest,
        Heuristic::StrideProbe,
        Heuristic::ByteStrides,
        Heuristic::BesideStreams,
        Heuristic::StreamShares,
        Heuristic::StreamProof,
        Heuristic::StaleReadahead,
        Heuristic::WorthwhileReads,
        Heuristic::KeptEntries,
        Heuristic::WholeReads,
        Heuristic::NextUnit,
        Heuristic::DropBehind,
        Heuristic::DropBehindAtRandom,
        Heuristic::DropBehindActive,
        Heuristic::RefaultReferences,
        Heuristic::KeptUnits,
        Heuristic::ComingPages,
        Heuristic::SmallBatches,
        Heuristic::LeafRest,
        Heuristic::LeanUnits,
        Heuristic::ScarceUnits,
        Heuristic::SplitAtRandom,
        Heuristic::KeptSingles,
        Heuristic::FarthestFirst,
        Heuristic::UnitPatience,
        Heuristic::Collapse,
        Heuristic::LocalRegions,
        Heuristic::RandomFaults,
        Heuristic::ReadDepth,
        Heuristic::WriteDepth,
        Heuristic::OthersDepth,
        Heuristic::CompletionBatching,
        Heuristic::Hasten,
        Heuristic::WorthWriting,
        Heuristic::GatheredWrites,
        Heuristic::KeptSlots,
        Heuristic::StaysWhole,
        Heuristic::WritesAll,
        Heuristic::SwapoffDepth,
        Heuristic::FirstTouchGrowth,
    ];
}
