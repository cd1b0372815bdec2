use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::units::{PageRange, Vpn};

const SECOND: u64 = 1_000_000_000;

/// A ledger of a few processes; number 0 is the parent of the others.
struct Run {
    limit: u64,
    charged: Vec<u64>,
    wanted: Vec<u64>,
    asked: Vec<u64>,
    owed: Vec<u64>,
    due: Vec<u64>,
    paid: Vec<u32>,
}

impl Run {
    fn new(limit: u64, processes: usize) -> Self {
        Run {
            limit,
            charged: vec![0; processes],
            wanted: vec![0; processes],
            asked: vec![0; processes],
            owed: vec![0; processes],
            due: vec![0; processes],
            paid: vec![0; processes],
        }
    }

    fn seat(&mut self, me: usize) -> Seat<'_> {
        Seat { run: self, me }
    }
}

struct Seat<'a> {
    run: &'a mut Run,
    me: usize,
}

impl Ledger for Seat<'_> {
    type Process = usize;

    fn limit(&self) -> u64 {
        self.run.limit
    }

    fn charged(&self) -> u64 {
        self.run.charged.iter().sum()
    }

    fn own(&self) -> u64 {
        self.run.charged[self.me]
    }

    fn live(&self) -> u64 {
        self.run.charged.len() as u64
    }

    fn try_charge(&mut self, n: u64) -> bool {
        let fits = self.charged() + n <= self.run.limit;
        self.run.charged[self.me] += if fits { n } else { 0 };
        fits
    }

    fn charge_anyway(&mut self, n: u64) {
        self.run.charged[self.me] += n;
    }

    fn uncharge(&mut self, n: u64) {
        self.run.charged[self.me] -= n.min(self.own());
    }

    fn set_wanted(&mut self, n: u64) {
        self.run.wanted[self.me] = n;
    }

    fn wanted_by_others(&self) -> u64 {
        self.run.wanted.iter().sum::<u64>() - self.run.wanted[self.me]
    }

    fn asked(&self) -> u64 {
        self.run.asked[self.me]
    }

    fn set_debt(&mut self, owed: u64, due: u64, asked: u64) {
        (self.run.owed[self.me], self.run.due[self.me]) = (owed, due);
        self.run.asked[self.me] -= asked;
    }

    fn paid(&mut self, n: u64) {
        self.run.paid[self.me] = self.run.paid[self.me].wrapping_add(n as u32);
    }

    fn debtors(&self) -> impl Iterator<Item = usize> {
        let children = 1..self.run.owed.len();
        children.filter(|&child| self.me == 0 && self.run.owed[child] > 0)
    }

    fn paid_by(&self, child: usize) -> u32 {
        self.run.paid[child]
    }

    fn is_even(&self, child: usize) -> bool {
        self.run.asked[child] == 0 && self.run.due[child] == 0
    }

    fn ask_to_pay(&mut self, child: usize, n: u32) {
        self.run.asked[child] += u64::from(n);
    }
}

fn write(page: u64, since: u64) -> Copy {
    Copy {
        page: Vpn(page),
        since,
        makes_room: false,
    }
}

/// Lets through what may go, and returns the batches.
fn step(
    copies: &mut Copies,
    account: &mut Account<usize>,
    seat: &mut Seat<'_>,
    now: u64,
) -> Vec<PageRange> {
    let mut opened = Vec::new();
    copies.step(account, seat, now, |batch, _| {
        opened.push(batch.clone());
        Opening::Done
    });
    opened
}

/// A child with a debt of `n` pages, none of which is due before the grace is over.
fn debtor(run: &mut Run, me: usize, n: u64) -> Account<usize> {
    let mut account = Account::default();
    account.begin_debt(0);
    account.charge_existing(&mut run.seat(me), n);
    account.close_debt(0);
    account
}

#[test]
fn a_grant_covers_the_need_and_is_spent_on_the_pages_found() {
    let mut run = Run::new(10_000, 1);
    let (mut grant, mut account) = (Grant::default(), Account::default());
    let spare = grant.extend(&account, &mut run.seat(0), 4000);
    assert_eq!(
        (spare, grant.pages(), run.charged[0]),
        (Some(1000), 5000, 5000)
    );
    // Within the grant: nothing is charged for the need itself.
    let spare = grant.extend(&account, &mut run.seat(0), 4500);
    assert_eq!(spare, Some(500 + 1125));
    // The need fits, but nothing in advance.
    let spare = grant.extend(&account, &mut run.seat(0), 9900);
    assert_eq!((spare, run.charged[0]), (Some(0), 9900));
    assert_eq!(grant.extend(&account, &mut run.seat(0), 10_001), None);
    grant.spend(&mut account);
    account.charge_existing(&mut run.seat(0), 9000);
    assert_eq!((run.charged[0], account.prepaid()), (9900, 900));
    account.return_prepaid(&mut run.seat(0));
    assert_eq!(
        (run.charged[0], account.prepaid(), grant.pages()),
        (9000, 0, 0)
    );
}

#[test]
fn one_fork_at_a_time_and_growth_waits_a_moment() {
    let mut hold = Hold::default();
    assert!(hold.begin(1) && !hold.begin(2) && !hold.begin(3));
    assert_eq!(hold.stage(), Stage::Quieting(1));
    hold.hold();
    hold.delay_growth(4, 0);
    assert!(hold.end_delay(1000).is_empty() && hold.delays_growth());
    assert_eq!(hold.release(), Some(2));
    assert_eq!(hold.end_delay(2000), [4]);
    assert!(hold.begin(2));
    hold.hold();
    hold.delay_growth(5, 0);
    assert_eq!(hold.end_delay(SECOND), [5]);
    assert_eq!((hold.release(), hold.is_none()), (Some(3), true));
}

#[test]
fn a_childs_write_waits_until_its_batch_is_paid_for() {
    let mut run = Run::new(100, 2);
    run.charged[0] = 90;
    let mut account = debtor(&mut run, 1, 50);
    assert_eq!(run.charged[1], 0);
    let mut copies = Copies::default();
    copies.extend([write(3, 0), write(15, 0), write(16, 0)]);
    let seat = &mut run.seat(1);
    assert!(step(&mut copies, &mut account, seat, 0).is_empty());
    seat.run.charged[0] = 80;
    // One batch of 16 fits; both of its writes go on.
    assert_eq!(step(&mut copies, &mut account, seat, 0), [Vpn(0)..Vpn(16)]);
    assert_eq!((seat.own(), account.debt().owed()), (16, 34));
    assert!(step(&mut copies, &mut account, seat, 0).is_empty());
    // After its patience the limit gives way.
    assert_eq!(step(&mut copies, &mut account, seat, SECOND).len(), 1);
    assert_eq!(seat.own(), 32);
    assert!(copies.is_empty());
}

#[test]
fn a_parents_write_waits_until_a_child_has_paid() {
    let mut run = Run::new(1000, 2);
    run.charged[0] = 800;
    let mut child = debtor(&mut run, 1, 700);
    child.pay(&mut run.seat(1), 0);
    assert_eq!((run.owed[1], run.due[1]), (700, 0));
    let mut parent = Account::default();
    parent.find_debtors(&run.seat(0));
    assert!(parent.has_debtors());
    let mut copies = Copies::default();
    copies.push(write(0, 0));
    assert!(step(&mut copies, &mut parent, &mut run.seat(0), 0).is_empty());
    assert_eq!(run.asked[1], 256);
    // There is room for 200: the child pays that much, and asks the parent, which has more than its share.
    child.pay(&mut run.seat(1), 0);
    assert_eq!((run.charged[1], run.due[1], run.asked[1]), (200, 56, 0));
    assert_eq!(child.excess(&run.seat(1), 0), 0);
    child.ask(&mut run.seat(1), false, 0, 0);
    parent.refresh(&run.seat(0));
    assert_eq!(parent.excess(&run.seat(0), 0), 56);
    assert!(step(&mut copies, &mut parent, &mut run.seat(0), 0).is_empty());
    parent.uncharge(&mut run.seat(0), 56);
    child.pay(&mut run.seat(1), 0);
    assert_eq!(run.due[1], 0);
    assert_eq!(step(&mut copies, &mut parent, &mut run.seat(0), 0).len(), 1);
}

#[test]
fn the_rest_of_a_debt_is_due_after_the_grace() {
    let mut run = Run::new(100, 2);
    run.charged[0] = 95;
    let mut child = debtor(&mut run, 1, 50);
    child.pay(&mut run.seat(1), 0);
    assert_eq!(run.due[1], 0);
    child.pay(&mut run.seat(1), SECOND);
    assert_eq!((run.charged[1], run.due[1], run.owed[1]), (5, 45, 45));
    // Above its share is nothing: it asks the parent, which has more than its own.
    assert_eq!(child.excess(&run.seat(1), SECOND), 0);
    child.ask(&mut run.seat(1), false, 0, SECOND);
    assert_eq!(run.wanted[1], 45);
    let mut parent: Account<usize> = Account::default();
    parent.refresh(&run.seat(0));
    assert_eq!(parent.excess(&run.seat(0), SECOND), 45);
}

#[test]
fn a_debt_ends_with_the_pages() {
    let mut run = Run::new(100, 2);
    let mut child = debtor(&mut run, 1, 50);
    child.on_unshare(&mut run.seat(1), 10);
    child.uncharge(&mut run.seat(1), 10);
    assert_eq!(
        (child.debt().owed(), run.charged[1], run.paid[1]),
        (40, 0, 10)
    );
    child.pay(&mut run.seat(1), SECOND);
    assert_eq!((child.debt().owed(), run.charged[1]), (0, 40));
    child.uncharge(&mut run.seat(1), 40);
    assert_eq!(run.charged[1], 0);
}

#[test]
fn a_process_with_its_share_leaves_the_rest_to_those_that_lack_some() {
    let mut run = Run::new(1000, 2);
    (run.charged[0], run.charged[1]) = (600, 100);
    let (mut large, mut small) = (Account::default(), Account::default());
    assert_eq!(large.available(&run.seat(0)), 300 - 32);
    small.ask(&mut run.seat(1), true, 0, 0);
    assert_eq!(run.wanted[1], 400);
    large.refresh(&run.seat(0));
    assert_eq!(large.available(&run.seat(0)), 0);
    assert_eq!(large.excess(&run.seat(0), 0), 100);
    small.refresh(&run.seat(1));
    assert!(small.try_charge(&mut run.seat(1), 268));
    small.ask(&mut run.seat(1), false, 0, 0);
    assert_eq!(run.wanted[1], 0);
}
