//! Teams: processes that share memory have their turns together.
//!
//! Ranks of MPI, workers of a database and the like wait for each other by looking at memory that they share, again and again.
//! Such a wait looks like work. If one of them had a turn and another had none, the first would use up its turn in waiting, and
//! the second would get on no further than its next message. So they are one process to [`super::Load`].

use alloc::vec::Vec;

use super::load::{Seen, Turn};

/// Which processes are together. The oldest stands for its team.
#[derive(Debug)]
pub struct Teams<P> {
    /// Each process, and the one that stands for its team.
    of: Vec<(P, P)>,
}

impl<P> Default for Teams<P> {
    fn default() -> Self {
        Teams { of: Vec::new() }
    }
}

impl<P: Copy + PartialEq> Teams<P> {
    /// Forms the teams of all processes, the oldest first, each with the memory that it shares. Processes with a memory in common
    /// are together, also by way of others.
    pub fn form<K: Copy + Ord>(processes: &[(Seen<P>, &[K])]) -> Self {
        let mut first: Vec<usize> = (0..processes.len()).collect();
        let shared = processes.iter().enumerate();
        let mut shared: Vec<(K, usize)> = shared
            .flat_map(|(at, (_, keys))| keys.iter().map(move |&key| (key, at)))
            .collect();
        shared.sort_unstable();
        for pair in shared.windows(2) {
            let [(key, one), (same, other)] = [pair[0], pair[1]];
            if key == same {
                let (one, other) = (root(&first, one), root(&first, other));
                first[one.max(other)] = one.min(other);
            }
        }
        let id = |at: usize| processes[at].0.id;
        let of = (0..processes.len()).map(|at| (id(at), id(root(&first, at))));
        Teams { of: of.collect() }
    }

    /// The process that stands for the team of `id`.
    pub fn of(&self, id: P) -> P {
        let known = self.of.iter().find(|(member, _)| *member == id);
        known.map_or(id, |(_, team)| *team)
    }

    /// What each process of the team of `id` may do if the team may do `turn`.
    pub fn part(&self, id: P, turn: Turn) -> Turn {
        let team = self.of(id);
        let members = self.of.iter().filter(|(_, other)| *other == team).count();
        match turn {
            Turn::Has(pages) => Turn::Has(pages / (members as u64).max(1)),
            Turn::Free | Turn::Waits(_) => turn,
        }
    }

    /// The teams as one process each, the oldest first.
    pub fn merged(&self, processes: impl IntoIterator<Item = Seen<P>>) -> Vec<Seen<P>> {
        let mut merged: Vec<Seen<P>> = Vec::new();
        for seen in processes {
            let id = self.of(seen.id);
            match merged.iter_mut().find(|team| team.id == id) {
                Some(team) => {
                    *team = Seen {
                        id,
                        charged: team.charged + seen.charged,
                        needs: team.needs + seen.needs,
                        lost: team.lost + seen.lost,
                        losses: team.losses + seen.losses,
                        faults: team.faults + seen.faults,
                        worked: team.worked + seen.worked,
                        system: team.system + seen.system,
                        busy: team.busy || seen.busy,
                    }
                }
                None => merged.push(Seen { id, ..seen }),
            }
        }
        merged
    }
}

/// The process at the end of the chain from `at`.
fn root(first: &[usize], mut at: usize) -> usize {
    while first[at] != at {
        at = first[at];
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(id: u32, pages: u64) -> Seen<u32> {
        Seen {
            id,
            charged: pages,
            needs: 2 * pages,
            lost: 10,
            losses: 1,
            faults: 3,
            worked: 100,
            system: 10,
            busy: id == 4,
        }
    }

    #[test]
    fn processes_are_together_by_way_of_others() {
        let all = [
            (seen(1, 1), &["a"][..]),
            (seen(2, 2), &[]),
            (seen(3, 4), &["b"]),
            (seen(4, 8), &["c", "b"]),
            (seen(5, 16), &["a", "c"]),
            (seen(6, 32), &["d"]),
        ];
        let teams = Teams::form(&all);
        assert_eq!(
            [1, 2, 3, 4, 5, 6].map(|id| teams.of(id)),
            [1, 2, 1, 1, 1, 6]
        );
        assert_eq!(teams.of(7), 7);
        let merged = teams.merged(all.map(|(seen, _)| seen));
        let of = |seen: &Seen<u32>| (seen.id, seen.charged, seen.needs, seen.losses, seen.busy);
        assert_eq!(
            merged.iter().map(of).collect::<Vec<_>>(),
            [
                (1, 29, 58, 4, true),
                (2, 2, 4, 1, false),
                (6, 32, 64, 1, false)
            ]
        );
        assert_eq!(teams.part(5, Turn::Has(400)), Turn::Has(100));
        assert_eq!(teams.part(2, Turn::Has(400)), Turn::Has(400));
        assert_eq!(teams.part(5, Turn::Waits(9)), Turn::Waits(9));
    }
}
