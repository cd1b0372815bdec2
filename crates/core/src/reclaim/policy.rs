//! A reclaim policy: what it sees, and what it answers.
//!
//! The page table keeps a rank per mapped page, and one per huge page. The policy chooses the rank when the page is
//! mapped. Reclaim sweeps the page table in order of address and shows each rank to the policy, which names a victim or
//! gives the page a new rank. So a policy needs no list of pages and no memory per page, no page can get lost, and
//! victims that are neighbours are evicted by one move. A policy sees no touch of a mapped page. It sees how pages come
//! back.

/// What a policy notes of a mapped page. 0 is the rank of a page that the program called cold: it is a victim at once.
pub(crate) type Rank = u16;

/// How a page came to be mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Came {
    /// With its neighbour, which was touched, or in swapoff: nobody asked for it.
    Beside,
    /// It was touched, and was not evicted before.
    Touched,
    /// Before its touch, as readahead predicts one.
    Ahead,
    /// It was evicted and is touched again.
    Returned {
        /// Pages that were evicted between its own eviction and its read (the refault distance). `None`: it was
        /// still in its frame, or a word filled it.
        distance: Option<u32>,
        /// It was complete in a frame, or a little more memory would have kept it.
        soon: bool,
    },
    /// 512 mapped pages were made a huge page; the first of them had this rank.
    Joined(Rank),
}

impl Came {
    /// The page was touched in its frame, or up to `most` pages were evicted between its own eviction and its read.
    pub fn returned_within(self, most: u64) -> bool {
        match self {
            Came::Returned {
                distance: Some(distance),
                ..
            } => u64::from(distance) <= most,
            Came::Returned {
                distance: None,
                soon,
            } => soon,
            _ => false,
        }
    }
}

/// An order of eviction.
pub(crate) trait ReclaimPolicy {
    /// The rank of a page, or of a huge page whose pages were counted already. `resident` pages are mapped.
    fn rank(&self, came: Came, resident: u64) -> Rank;

    /// A page with this rank was mapped; `resident` pages are.
    fn on_mapped(&mut self, rank: Rank, resident: u64);

    /// The sweep comes to a page, or to a huge page of so many pages. `None`: it is a victim; otherwise its new rank.
    /// Within few passes, some page must be a victim whatever the ranks are.
    fn judge(&mut self, rank: Rank, pages: u32) -> Option<Rank>;

    /// The sweep begins at the first page again. Since the last time it did, so many pages were `evicted`, for any
    /// reason; `resident` pages are mapped.
    fn begin_pass(&mut self, evicted: u64, resident: u64);

    /// Whether a page has proved that it is needed again, so that a scan that passes over it does not evict it.
    fn is_needed(&self, rank: Rank) -> bool;
}
