use super::*;
use alloc::vec::Vec;

/// As a clock judges.
fn one_less(rank: u16) -> Option<u16> {
    rank.checked_sub(1)
}

#[test]
fn entries_survive_packing() {
    let slot = Slot {
        area: 7,
        index: u32::MAX,
    };
    for entry in [
        Entry::Unmapped,
        Entry::Resident(Resident {
            slot: None,
            rank: 3,
            found: true,
        }),
        Entry::Resident(Resident {
            slot: Some(slot),
            rank: 1,
            found: false,
        }),
        Entry::Cached(Frame(u32::MAX)),
        Entry::Swapped {
            slot,
            evicted: (1 << EVICTED_BITS) - 1,
        },
        Entry::Poisoned,
        Entry::Guarded,
    ] {
        assert_eq!(unpack(pack(entry)), entry);
    }
}

#[test]
fn counts_follow_the_entries_and_empty_leaves_vanish() {
    let mut table = PageTable::default();
    let page = Vpn(512 * 9 + 3);
    let slot = Slot { area: 0, index: 1 };
    table.set(
        page,
        Entry::Resident(Resident {
            slot: Some(slot),
            ..Resident::default()
        }),
    );
    assert_eq!((table.resident(), table.keeping()), (1, 1));
    table.set(page, Entry::Swapped { slot, evicted: 0 });
    assert_eq!((table.resident(), table.keeping()), (0, 0));
    assert_eq!(
        table.next_used(Vpn(0), Vpn(u64::MAX)).map(|(p, _)| p),
        Some(page)
    );
    assert_eq!(table.next_used(Vpn(0), page), None);
    table.set(page, Entry::Unmapped);
    assert_eq!(table.bytes(), 0);
}

#[test]
fn pages_on_an_area_are_found_in_order() {
    let mut table = PageTable::default();
    let on = |area| Slot { area, index: 9 };
    let mapped = |slot| {
        Entry::Resident(Resident {
            slot,
            rank: 2,
            found: false,
        })
    };
    let swapped = |area| Entry::Swapped {
        slot: on(area),
        evicted: 5,
    };
    let entries = [
        (3, swapped(1)),
        (4, swapped(2)),
        (5, mapped(None)),
        (6, mapped(Some(on(1)))),
        (7, mapped(Some(on(0)))),
        (8, Entry::Cached(Frame(3))),
        (9, Entry::Poisoned),
        (512 * 600, swapped(1)),
    ];
    for (page, entry) in entries {
        table.set(Vpn(page), entry);
    }
    let mut found = Vec::new();
    let next = table.on_area(1, Vpn(0), 2, &mut found);
    assert_eq!(next, Some(Vpn(7)));
    assert_eq!(table.on_area(1, Vpn(7), 9, &mut found), None);
    let pages: Vec<u64> = found.iter().map(|(page, _)| page.0).collect();
    assert_eq!(pages, [3, 6, 8, 512 * 600]);
    assert_eq!(found[1].1, entries[3].1);
}

#[test]
fn usage_counts_whole_and_cut_leaves() {
    let mut table = PageTable::default();
    for n in 500..1600 {
        let slot = Slot {
            area: 0,
            index: n as u32,
        };
        let entry = match n % 2 {
            0 => Entry::Resident(Resident::default()),
            _ => Entry::Swapped { slot, evicted: 0 },
        };
        table.set(Vpn(n), entry);
    }
    assert_eq!(table.usage(&(Vpn(0)..Vpn(4096))), (550, 550));
    assert_eq!(table.usage(&(Vpn(510)..Vpn(1540))), (515, 515));
    assert_eq!(table.usage(&(Vpn(3000)..Vpn(4096))), (0, 0));
}

#[test]
fn a_search_crosses_leaves_and_chill_takes_all_credit() {
    let mut table = PageTable::default();
    for n in 500..530 {
        let rank = (n % 4) as u16;
        table.set(
            Vpn(n),
            Entry::Resident(Resident {
                rank,
                ..Resident::default()
            }),
        );
    }
    let search = |table: &PageTable, max| {
        let mut found = Vec::new();
        let cold = |entry| matches!(entry, Entry::Resident(Resident { rank: 0, .. }));
        let next = table.search(&(Vpn(505)..Vpn(520)), max, cold, &mut found);
        (next.0, found.iter().map(|page| page.0).collect::<Vec<_>>())
    };
    assert_eq!(search(&table, 9), (520, [508, 512, 516].to_vec()));
    assert_eq!(search(&table, 2), (513, [508, 512].to_vec()));
    table.chill(&(Vpn(510)..Vpn(514)));
    assert_eq!(
        search(&table, 9),
        (520, [508, 510, 511, 512, 513, 516].to_vec())
    );
    assert_eq!(table.resident(), 30);
}

#[test]
fn a_sweep_ranks_the_pages_anew_and_names_victims() {
    let mut table = PageTable::default();
    for n in 0..4 {
        let rank = u16::from(n == 1);
        table.set(
            Vpn(n),
            Entry::Resident(Resident {
                rank,
                ..Resident::default()
            }),
        );
    }
    let mut victims = Vec::new();
    let next = table.sweep(&(Vpn(0)..Vpn(512)), 2, true, one_less, &mut victims);
    assert_eq!((next, victims.as_slice()), (Vpn(3), &[Vpn(0), Vpn(2)][..]));
    victims.clear();
    table.sweep(&(Vpn(0)..Vpn(512)), 9, true, one_less, &mut victims);
    assert_eq!(victims.len(), 4);
}

#[test]
fn shared_pages_are_counted_and_left_alone_by_the_hand() {
    let resident = Entry::Resident(Resident::default());
    let mut table = PageTable::default();
    for page in [3, 510, 511, 512, 1030] {
        table.set(Vpn(page), resident);
    }
    table.share(Vpn(4));
    assert_eq!(table.shared(), 0, "it is not mapped");
    table.share_all();
    table.set(Vpn(5), resident);
    assert_eq!(
        (table.shared(), table.shared_in(&(Vpn(4)..Vpn(513)))),
        (5, 3)
    );
    let mut victims = Vec::new();
    table.sweep(&(Vpn(0)..Vpn(512)), 9, false, one_less, &mut victims);
    assert_eq!(victims, [Vpn(5)]);
    assert_eq!(table.unshare(&(Vpn(511)..Vpn(1031))), 3);
    assert_eq!(table.unshare(&(Vpn(511)..Vpn(1031))), 0);
    assert_eq!(table.shared(), 2);
    assert_eq!(table.check(), Ok(()));
    table.unshare(&(Vpn(3)..Vpn(4)));
    table.set(Vpn(3), Entry::Unmapped);
    table.share(Vpn(5));
    assert_eq!((table.shared(), table.check()), (2, Ok(())));
}
