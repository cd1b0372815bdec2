mod run;

use alloc::vec::Vec;

use super::*;
use crate::units::{PageRange, Vpn};
use run::Run;

const SECOND: u64 = 1_000_000_000;

/// The shared pages of a process, and the ranges that were opened.
struct Pages {
    shared: Vec<u64>,
    opened: Vec<PageRange>,
}

impl Pages {
    fn new(shared: core::ops::Range<u64>) -> Self {
        Pages {
            shared: shared.collect(),
            opened: Vec::new(),
        }
    }
}

impl Protected for Pages {
    fn shared(&self, range: &PageRange) -> u64 {
        let shared = self.shared.iter();
        shared.filter(|page| range.contains(&Vpn(**page))).count() as u64
    }

    fn unshare(&mut self, range: &PageRange) {
        self.shared.retain(|page| !range.contains(&Vpn(*page)));
    }

    fn open(&mut self, range: &PageRange, page: Vpn) -> Opening {
        assert!(range.contains(&page));
        self.opened.push(range.clone());
        Opening::Done
    }
}

fn write(page: u64, since: u64) -> Copy {
    Copy {
        page: Vpn(page),
        since,
    }
}

/// A child that owes for `n` pages.
fn debtor(run: &mut Run, me: usize, n: u64) -> Account<usize> {
    let mut account = Account::default();
    account.begin_debt(0, 0);
    account.charge_existing(&mut run.seat(me), n);
    account.close_debt();
    account
}

#[test]
fn a_process_that_sleeps_leaves_its_memory_to_one_that_lacks_it() {
    let mut run = Run::new(1000, 2);
    let (mut sleeps, mut works) = (Account::default(), Account::default());
    for account in [&mut sleeps, &mut works] {
        account.refresh(&run.seat(0));
    }
    assert!(run.seat(0).try_charge(500) && run.seat(1).try_charge(500));
    works.ask(&mut run.seat(1), true, 0);
    sleeps.refresh(&run.seat(0));
    assert_eq!(sleeps.excess(&run.seat(0)), 0, "both have their share");
    for second in 1..10 {
        sleeps.look_at_activity(&mut run.seat(0), second * SECOND, 0, false);
        works.look_at_activity(&mut run.seat(1), second * SECOND, second * SECOND, true);
    }
    for (me, account) in [(0, &mut sleeps), (1, &mut works)] {
        account.refresh(&run.seat(me));
    }
    works.ask(&mut run.seat(1), true, 0);
    sleeps.refresh(&run.seat(0));
    // Of 65 parts of 1000 pages, 64 are for the one that works.
    assert_eq!(run.wanted[1], 984 - 500);
    assert_eq!(sleeps.excess(&run.seat(0)), 984 - 500);
    assert_eq!(
        sleeps.share(&run.seat(0)),
        500,
        "it keeps what nobody takes"
    );
    // It wakes up, and its share is that of the others at once.
    sleeps.look_at_activity(&mut run.seat(0), 11 * SECOND, 0, true);
    assert_eq!(sleeps.excess(&run.seat(0)), 0);
    works.refresh(&run.seat(1));
    works.ask(&mut run.seat(1), true, 0);
    assert_eq!(run.wanted[1], 0);
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
    // Pages 5 to 54 are shared, 0 to 4 are the child's own.
    let (mut copies, mut pages) = (Copies::default(), Pages::new(5..55));
    copies.extend([write(7, 0), write(3, 0), write(15, 0), write(16, 0)]);
    let seat = &mut run.seat(1);
    assert!(copies.step(&mut account, seat, 0, &mut pages));
    assert_eq!(core::mem::take(&mut pages.opened), [Vpn(3)..Vpn(4)]);
    // It has no more than its share, and no page of its own.
    assert_eq!((account.uncopied(), account.excess(seat)), (38, 0));
    // There is room for the 11 pages of the first batch; both of its writes go on.
    seat.run.charged[0] = 88;
    assert!(copies.step(&mut account, seat, 0, &mut pages));
    assert_eq!(core::mem::take(&mut pages.opened), [Vpn(0)..Vpn(16)]);
    assert_eq!((seat.own(), account.debt().owed()), (11, 39));
    // It makes room for the other write from what it has itself, though that is less than its share.
    assert_eq!((account.uncopied(), account.excess(seat)), (16, 11));
    // After its patience the limit gives way.
    assert!(!copies.step(&mut account, seat, SECOND, &mut pages));
    assert_eq!((seat.own(), account.debt().owed()), (27, 23));
    assert!(copies.is_empty());
    assert_eq!((account.uncopied(), account.excess(seat)), (0, 0));
}

#[test]
fn a_parents_write_waits_until_a_child_has_paid() {
    let mut run = Run::new(1000, 2);
    run.charged[0] = 800;
    let mut child = debtor(&mut run, 1, 700);
    child.pay(&mut run.seat(1), 700);
    assert_eq!((run.owed[1], run.due[1], run.shared[1]), (700, 0, 0));
    let mut parent = Account::default();
    parent.find_debtors(&run.seat(0));
    assert!(parent.has_debtors());
    let (mut copies, mut pages) = (Copies::default(), Pages::new(0..700));
    copies.push(write(0, 0));
    assert!(copies.step(&mut parent, &mut run.seat(0), 0, &mut pages));
    assert_eq!(run.asked[1], 256);
    // There is room for 200: the child pays that much, and asks the parent, which has more than its share.
    child.pay(&mut run.seat(1), 700);
    assert_eq!((run.charged[1], run.due[1], run.asked[1]), (200, 56, 0));
    assert_eq!(child.excess(&run.seat(1)), 0);
    child.ask(&mut run.seat(1), false, 0);
    parent.refresh(&run.seat(0));
    assert_eq!(parent.excess(&run.seat(0)), 56);
    assert!(copies.step(&mut parent, &mut run.seat(0), 0, &mut pages));
    parent.uncharge(&mut run.seat(0), 56);
    child.pay(&mut run.seat(1), 700);
    assert_eq!((run.due[1], run.shared[1]), (0, 256));
    assert!(!copies.step(&mut parent, &mut run.seat(0), 0, &mut pages));
    // The next batches are paid for already.
    copies.push(write(16, 0));
    assert!(!copies.step(&mut parent, &mut run.seat(0), 0, &mut pages));
    assert_eq!(run.asked[1], 0);
}

/// What a write copies before it is paid for is asked for as well, beside the payment under way.
#[test]
fn late_copies_are_asked_for_as_well() {
    let mut run = Run::new(1000, 2);
    run.charged[0] = 1000;
    let mut child = debtor(&mut run, 1, 1000);
    child.pay(&mut run.seat(1), 1000);
    let mut parent = Account::default();
    parent.find_debtors(&run.seat(0));
    assert!(!parent.may_copy(&mut run.seat(0), 16, false));
    assert_eq!(run.asked[1], 256);
    for late in 1..=40 {
        assert!(parent.may_copy(&mut run.seat(0), 16, true));
        assert_eq!(run.asked[1], 256 + 16 * late);
    }
}

/// A process may end before it looks at its debts after a fork.
#[test]
fn a_fork_publishes_what_its_child_may_share() {
    let mut run = Run::new(1000, 2);
    run.charged[0] = 700;
    let mut parent = Account::<usize>::default();
    parent.begin_fork(&mut run.seat(0));
    assert_eq!(run.shared[0], 700);
    parent.pay(&mut run.seat(0), 0);
    assert_eq!(run.shared[0], 700);
    parent.end_fork();
    parent.pay(&mut run.seat(0), 650);
    assert_eq!(run.shared[0], 650);
}

/// The same for pages that it is about to pay for: nobody else is charged for them.
#[test]
fn a_fork_publishes_what_is_due_as_well() {
    let mut run = Run::new(100, 2);
    run.charged[0] = 90;
    let mut parent = debtor(&mut run, 1, 50);
    run.asked[1] = 20;
    parent.pay(&mut run.seat(1), 50);
    assert_eq!((run.charged[1], run.due[1], run.shared[1]), (10, 10, 20));
    // What nobody was asked for, it pays for as well.
    run.unasked = 5;
    let unasked = parent.begin_fork(&mut run.seat(1));
    assert_eq!((unasked, run.due[1], run.shared[1]), (5, 15, 25));
}

#[test]
fn a_writer_asks_the_next_debtor_when_one_has_nothing_left() {
    let mut run = Run::new(1000, 3);
    run.charged[0] = 100;
    let mut first = debtor(&mut run, 1, 5);
    let mut second = debtor(&mut run, 2, 4);
    for (child, me) in [(&mut first, 1), (&mut second, 2)] {
        run.limit = 100;
        child.pay(&mut run.seat(me), 5);
        run.limit = 1000;
    }
    let mut parent = Account::default();
    parent.find_debtors(&run.seat(0));
    assert!(!parent.may_copy(&mut run.seat(0), 9, false));
    assert_eq!(run.asked, [0, 5, 0]);
    first.pay(&mut run.seat(1), 5);
    assert!(!parent.may_copy(&mut run.seat(0), 9, false));
    assert_eq!(run.asked, [0, 0, 4]);
    second.pay(&mut run.seat(2), 4);
    assert!(parent.may_copy(&mut run.seat(0), 9, false));
    // Nobody owes anything any more: all members are charged for all that they have.
    parent.find_debtors(&run.seat(0));
    assert!(!parent.has_debtors() && parent.may_copy(&mut run.seat(0), 100, false));
}

/// The known debtor has paid for all, and a second child has not looked at its debts yet: it shares the pages too.
#[test]
fn a_copy_that_no_known_debtor_pays_for_is_paid_for_by_a_later_one() {
    let mut run = Run::new(1000, 3);
    run.charged[0] = 300;
    let mut first = debtor(&mut run, 1, 8);
    run.owed[1] = 8;
    let mut parent = Account::default();
    parent.find_debtors(&run.seat(0));
    let mut second = debtor(&mut run, 2, 300);
    first.pay(&mut run.seat(1), 8);
    assert_eq!(run.owed, [0, 0, 0]);
    assert!(parent.may_copy(&mut run.seat(0), 16, false));
    run.limit = 400;
    second.pay(&mut run.seat(2), 300);
    assert_eq!((run.charged[2], second.debt().owed()), (16, 284));
}

#[test]
fn payments_of_an_ended_debtor_count_no_more() {
    let mut run = Run::new(1000, 3);
    run.charged[0] = 100;
    let mut first = debtor(&mut run, 1, 300);
    run.owed[1] = 300;
    let mut parent = Account::default();
    parent.find_debtors(&run.seat(0));
    assert!(!parent.may_copy(&mut run.seat(0), 4, false));
    first.pay(&mut run.seat(1), 300);
    assert!(parent.may_copy(&mut run.seat(0), 4, false));
    (run.owed[1], run.charged[1]) = (0, 0);
    run.owed[2] = 300;
    parent.find_debtors(&run.seat(0));
    assert!(!parent.may_copy(&mut run.seat(0), 4, false));
    assert_eq!(run.asked[2], 256);
}

#[test]
fn a_process_that_drops_a_shared_page_passes_its_charge_on() {
    let mut run = Run::new(100, 3);
    run.charged[0] = 60;
    let mut first = debtor(&mut run, 1, 60);
    let mut second = debtor(&mut run, 2, 60);
    run.limit = 60;
    first.pay(&mut run.seat(1), 60);
    second.pay(&mut run.seat(2), 60);
    assert_eq!(run.charged, [60, 0, 0]);
    let mut parent = Account::default();
    parent.find_debtors(&run.seat(0));
    parent.let_go(&mut run.seat(0), 60);
    assert_eq!((run.charged[0], run.asked[1]), (0, 60));
    first.pay(&mut run.seat(1), 60);
    assert_eq!((run.charged[1], run.shared[1]), (60, 60));
    // A debtor's own page less is a debt less.
    second.let_go(&mut run.seat(2), 10);
    assert_eq!(second.debt().owed(), 50);
    second.pay(&mut run.seat(2), 50);
    // The first has paid for all: now it passes on what it lets go.
    first.find_debtors(&run.seat(1));
    first.let_go(&mut run.seat(1), 30);
    second.pay(&mut run.seat(2), 50);
    assert_eq!((run.charged[1], run.charged[2]), (30, 30));
    // It copies the rest, to evict it.
    first.find_debtors(&run.seat(1));
    first.on_copied(&mut run.seat(1), 20);
    run.limit = 100;
    second.pay(&mut run.seat(2), 50);
    assert_eq!((run.charged[2], second.debt().owed()), (50, 0));
}

/// Who was charged for them has ended, and this process has not looked since. A child that it forked meanwhile does not
/// know of that: its pages are charged to nobody when this process lets them go.
#[test]
fn pages_that_nobody_is_charged_for_any_more_are_passed_on() {
    let mut run = Run::new(100, 2);
    let mut parent = debtor(&mut run, 0, 3);
    run.unasked = 3;
    let mut child = Account::default();
    child.begin_debt(0, 3);
    child.charge_existing(&mut run.seat(1), 3);
    child.close_debt();
    run.owed[1] = 3;
    parent.find_debtors(&run.seat(0));
    parent.let_go(&mut run.seat(0), 1);
    assert_eq!(run.asked[1], 1);
    assert_eq!((parent.debt().due(), parent.debt().covered()), (2, 0));
}

#[test]
fn a_debtor_that_copies_to_evict_needs_no_room() {
    let mut run = Run::new(54, 2);
    run.charged[0] = 50;
    let mut child = debtor(&mut run, 1, 50);
    child.on_copied(&mut run.seat(1), 8);
    assert_eq!(
        (run.charged[1], child.debt().owed(), child.debt().due()),
        (0, 50, 8)
    );
    child.uncharge(&mut run.seat(1), 6);
    assert_eq!((child.debt().owed(), child.debt().due()), (44, 2));
    // Two stay, and are charged when there is room.
    child.pay(&mut run.seat(1), 42);
    assert_eq!(
        (run.charged[1], child.debt().owed(), run.paid[1]),
        (2, 42, 2)
    );
    child.uncharge(&mut run.seat(1), 2);
    child.let_go(&mut run.seat(1), 42);
    assert_eq!((run.charged[1], child.debt().owed()), (0, 0));
}

#[test]
fn a_process_with_its_share_leaves_the_rest_to_those_that_lack_some() {
    let mut run = Run::new(1000, 2);
    (run.charged[0], run.charged[1]) = (600, 100);
    let (mut large, mut small) = (Account::default(), Account::default());
    assert_eq!(large.available(&run.seat(0)), 300 - 32);
    small.ask(&mut run.seat(1), true, 0);
    assert_eq!(run.wanted[1], 400);
    large.refresh(&run.seat(0));
    assert_eq!(large.available(&run.seat(0)), 0);
    assert_eq!(large.excess(&run.seat(0)), 100);
    small.refresh(&run.seat(1));
    assert!(small.try_charge(&mut run.seat(1), 268));
    small.ask(&mut run.seat(1), false, 0);
    assert_eq!(run.wanted[1], 0);
}

const MILLISECOND: u64 = SECOND / 1000;

/// A process with `charged` pages in a run with this limit, that has found `n` pages.
fn finder(run: &mut Run, charged: u64, n: u64) -> Account<usize> {
    let mut account = Account::default();
    account.charge_existing(&mut run.seat(0), charged);
    account.open_found(0);
    account.charge_existing(&mut run.seat(0), n);
    account.close_found();
    account
}

#[test]
fn found_pages_are_charged_as_room_is_made() {
    let mut run = Run::new(1000, 1);
    let mut account = finder(&mut run, 900, 200);
    assert_eq!((run.charged[0], account.unpaid()), (900, 200));
    // The free pages are for them, not for others.
    assert_eq!(account.available(&run.seat(0)), 0);
    assert!(!account.try_charge(&mut run.seat(0), 1));
    account.pay_for_found(&mut run.seat(0), 0);
    let charged = run.charged[0];
    assert!(charged > 900 && charged <= 1000);
    assert_eq!(charged + account.unpaid(), 1100);
    let left = account.unpaid();
    assert_eq!(account.excess(&run.seat(0)), left);
    // The memory of a page that is gone pays for a found page.
    account.uncharge(&mut run.seat(0), left - 10);
    assert_eq!((run.charged[0], account.unpaid()), (charged, 10));
    account.uncharge(&mut run.seat(0), 60);
    assert_eq!((run.charged[0], account.unpaid()), (charged - 50, 0));
    assert_eq!(account.excess(&run.seat(0)), 0);
    // Later pages are charged at once.
    account.charge_existing(&mut run.seat(0), 100);
    assert_eq!((run.charged[0], account.unpaid()), (charged + 50, 0));
}

#[test]
fn found_pages_are_charged_above_the_limit_if_no_room_is_made() {
    let mut run = Run::new(1000, 1);
    let mut account = finder(&mut run, 1000, 200);
    account.pay_for_found(&mut run.seat(0), 150 * MILLISECOND);
    account.uncharge(&mut run.seat(0), 1);
    account.pay_for_found(&mut run.seat(0), 190 * MILLISECOND);
    account.pay_for_found(&mut run.seat(0), 380 * MILLISECOND);
    assert_eq!((run.charged[0], account.unpaid()), (1000, 199));
    account.pay_for_found(&mut run.seat(0), 390 * MILLISECOND);
    assert_eq!((run.charged[0], account.unpaid()), (1199, 0));
}

/// A child may share the found pages, and believes that others are charged for them.
#[test]
fn found_pages_are_charged_before_a_fork() {
    let mut run = Run::new(1000, 2);
    let mut account = finder(&mut run, 1000, 200);
    account.begin_fork(&mut run.seat(0));
    assert_eq!(
        (account.unpaid(), run.charged[0], run.shared[0]),
        (0, 1200, 1200)
    );
}

#[test]
fn others_are_asked_for_the_room_that_found_pages_need() {
    let mut run = Run::new(1000, 2);
    run.charged[1] = 900;
    let mut account = finder(&mut run, 100, 200);
    account.ask(&mut run.seat(0), false, 0);
    assert_eq!(run.wanted[0], 200);
    let mut other = Account::<usize>::default();
    other.refresh(&run.seat(1));
    assert_eq!(other.excess(&run.seat(1)), 200);
}
