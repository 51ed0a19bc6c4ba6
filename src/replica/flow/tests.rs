use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::*;

/// Creates a flow control whose ranks check the others often.
fn impatient(ranks: usize, limit: usize) -> Flow {
    Flow {
        check_interval: Duration::from_millis(50),
        unknown_phase_timeout: Duration::from_millis(20),
        ..Flow::new(ranks, limit, usize::MAX)
    }
}

#[test]
fn flow_fast_rank_stays_within_limit() {
    let flow = Flow::new(3, 2, usize::MAX);
    flow.begin(&[true, true, true]);
    let sent = [const { AtomicUsize::new(0) }; 3];
    thread::scope(|scope| {
        for rank in 0..3 {
            let (flow, sent) = (&flow, &sent);
            scope.spawn(move || {
                let part = flow.enter(rank);
                for _ in 0..20 {
                    thread::sleep(Duration::from_micros(100 * rank as u64));
                    assert_eq!(flow.report_sent(rank, 1, || false), Ok(()));
                    let mine = sent[rank].fetch_add(1, Ordering::SeqCst) + 1;
                    // `report_sent` counts the bytes first.
                    let least = sent
                        .iter()
                        .map(|sent| sent.load(Ordering::SeqCst) + 1)
                        .min();
                    assert!(mine <= least.unwrap() + 2, "{mine} of {sent:?}");
                }
                part.succeed();
            });
        }
    });
    assert_eq!(flow.failed(), None);
}

/// Neither in its forward pass nor in its backward pass.
#[test]
fn flow_slow_rank_keeps_limit() {
    let flow = impatient(2, 2);
    let slow = || thread::sleep(10 * flow.unknown_phase_timeout);
    flow.begin(&[true, true]);
    let sent = AtomicUsize::new(0);
    thread::scope(|scope| {
        let fast = scope.spawn(|| {
            let part = flow.enter(0);
            flow.request_backward(0);
            flow.begin_backward(0);
            for _ in 0..5 {
                assert_eq!(flow.report_sent(0, 1, || false), Ok(()));
                sent.fetch_add(1, Ordering::SeqCst);
            }
            part.succeed();
        });
        let part = flow.enter(1);
        slow();
        assert_eq!(sent.load(Ordering::SeqCst), 0);
        flow.request_backward(1);
        flow.begin_backward(1);
        for before in 0..5 {
            slow();
            assert!(sent.load(Ordering::SeqCst) <= before + 2);
            assert_eq!(flow.report_sent(1, 1, || false), Ok(()));
        }
        part.succeed();
        fast.join().unwrap();
    });
    assert_eq!(flow.failed(), None);
}

/// Each rank waits for the graph of the other.
#[test]
fn flow_backward_that_never_begins_is_deadlock() {
    let flow = impatient(2, 0);
    flow.begin(&[true, true]);
    thread::scope(|scope| {
        let locked_out = scope.spawn(|| flow.request_backward(1));
        flow.request_backward(0);
        flow.begin_backward(0);
        assert_eq!(flow.report_sent(0, 1, || false), Err(Deadlock));
        locked_out.join().unwrap();
    });
}

/// The closure runs the backward pass itself.
#[test]
fn flow_rank_in_unknown_phase_ends_wait() {
    let flow = impatient(2, 0);
    flow.begin(&[true, true]);
    assert_eq!(flow.report_sent(0, 1, || false), Ok(()));
    assert_eq!(flow.report_sent(0, 1, || false), Ok(()));
}

#[test]
fn flow_failed_rank_ends_wait() {
    for is_ready in [false, true] {
        let flow = Flow::new(2, 0, usize::MAX);
        flow.begin(&[true, true]);
        thread::scope(|scope| {
            scope.spawn(|| match is_ready {
                true => flow.request_backward(0),
                false => assert_eq!(flow.report_sent(0, 1, || false), Ok(())),
            });
            thread::sleep(Duration::from_millis(5));
            drop(flow.enter(1));
        });
        assert_eq!(flow.failed(), Some(1));
    }
}
