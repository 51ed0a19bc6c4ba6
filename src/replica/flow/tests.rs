use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::*;

/// Creates a flow control whose ranks check the others often.
fn impatient(ranks: usize, limit: usize) -> Flow {
    Flow {
        look_after: Duration::from_millis(50),
        unknown_phase_timeout: Duration::from_millis(20),
        ..Flow::new(ranks, limit, usize::MAX)
    }
}

#[test]
fn no_rank_is_further_ahead_than_the_limit() {
    let flow = Flow::new(3, 2, usize::MAX);
    flow.begin(&[true, true, true]);
    let sent = [const { AtomicUsize::new(0) }; 3];
    thread::scope(|scope| {
        for rank in 0..3 {
            let (flow, sent) = (&flow, &sent);
            scope.spawn(move || {
                let part = flow.take_part(rank);
                for _ in 0..20 {
                    thread::sleep(Duration::from_micros(100 * rank as u64));
                    assert_eq!(flow.sent(rank, 1, || false), Ok(()));
                    let mine = sent[rank].fetch_add(1, Ordering::SeqCst) + 1;
                    // `report_sent` counts the bytes first.
                    let least = sent
                        .iter()
                        .map(|sent| sent.load(Ordering::SeqCst) + 1)
                        .min();
                    assert!(mine <= least.unwrap() + 2, "{mine} of {sent:?}");
                }
                part.well();
            });
        }
    });
    assert_eq!(flow.failed(), None);
}

/// Neither in its forward pass nor in its backward pass.
#[test]
fn a_slow_rank_does_not_lift_the_limit() {
    let flow = impatient(2, 2);
    let slow = || thread::sleep(10 * flow.unknown_phase_timeout);
    flow.begin(&[true, true]);
    let sent = AtomicUsize::new(0);
    thread::scope(|scope| {
        let fast = scope.spawn(|| {
            let part = flow.take_part(0);
            flow.ready(0);
            flow.begun(0);
            for _ in 0..5 {
                assert_eq!(flow.sent(0, 1, || false), Ok(()));
                sent.fetch_add(1, Ordering::SeqCst);
            }
            part.well();
        });
        let part = flow.take_part(1);
        slow();
        assert_eq!(sent.load(Ordering::SeqCst), 0);
        flow.ready(1);
        flow.begun(1);
        for before in 0..5 {
            slow();
            assert!(sent.load(Ordering::SeqCst) <= before + 2);
            assert_eq!(flow.sent(1, 1, || false), Ok(()));
        }
        part.well();
        fast.join().unwrap();
    });
    assert_eq!(flow.failed(), None);
}

/// Each rank waits for the graph of the other.
#[test]
fn a_rank_whose_backward_pass_does_not_begin_is_stuck() {
    let flow = impatient(2, 0);
    flow.begin(&[true, true]);
    thread::scope(|scope| {
        let locked_out = scope.spawn(|| flow.ready(1));
        flow.ready(0);
        flow.begun(0);
        assert_eq!(flow.sent(0, 1, || false), Err(Deadlock));
        locked_out.join().unwrap();
    });
}

/// The closure runs the backward pass itself.
#[test]
fn nobody_waits_for_ever_for_a_rank_of_which_nothing_is_known() {
    let flow = impatient(2, 0);
    flow.begin(&[true, true]);
    assert_eq!(flow.sent(0, 1, || false), Ok(()));
    assert_eq!(flow.sent(0, 1, || false), Ok(()));
}

#[test]
fn nobody_waits_for_a_rank_that_has_failed() {
    for is_ready in [false, true] {
        let flow = Flow::new(2, 0, usize::MAX);
        flow.begin(&[true, true]);
        thread::scope(|scope| {
            scope.spawn(|| match is_ready {
                true => flow.ready(0),
                false => assert_eq!(flow.sent(0, 1, || false), Ok(())),
            });
            thread::sleep(Duration::from_millis(5));
            drop(flow.take_part(1));
        });
        assert_eq!(flow.failed(), Some(1));
    }
}
