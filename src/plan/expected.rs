//! What a pass is expected to hold before it is run, whether it is worth a try, and whether it is feared not to fit.

use super::run::Run;

/// Bytes of a pass, with all that was there before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    /// When it begins.
    pub(super) start: usize,
    /// If all goes well.
    pub(super) hoped: usize,
    /// At most.
    pub(super) feared: usize,
    /// At most until it can be ended, over those before.
    pub(super) stretch: usize,
}

/// How blocks that were not seen to keep their activations, and what differs from run to run, are reckoned with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    /// As if all went well.
    Hoped,
    /// As what was run tells.
    Seen,
    /// As for a budget for which nothing was tried.
    Untried,
}

/// What the next size is computed with may take more than in proportion.
const OTHERWISE: f64 = 1.5;

impl Expected {
    /// A pass over `items`, after those over fewer that are `known`, the last of them the largest; none if none is known.
    pub(super) fn after(
        known: &[(usize, Run)],
        items: usize,
        largest_gradient: usize,
    ) -> Option<Self> {
        let (&(many, last), before) = known.split_last()?;
        // Of the gradients in it are no more for more items: one comes into being beside another.
        let in_backward = last.peak - last.forward.max(last.start);
        let fixed = in_backward.min(2 * largest_gradient);
        let in_proportion = (last.in_pass() - fixed) as f64 / many as f64;
        let on_a_line = before.last().map(|(few, small)| {
            let more = last.in_pass().saturating_sub(small.in_pass());
            more as f64 / (many - few) as f64
        });
        // What one pass takes may all be there in any case.
        let hoped = on_a_line.unwrap_or(0.0);
        // The line is often less, and wrong where other sizes are computed in other ways.
        let feared = hoped.max(in_proportion);
        let at = |grows: f64| last.peak + (grows * (items - many) as f64) as usize;
        // No gradient is larger for more items.
        let gradient = last.stretch.min(largest_gradient);
        let grows = (last.stretch - gradient) as f64 * items as f64 / many as f64;
        Some(Self {
            start: last.start,
            hoped: at(hoped),
            feared: at(feared),
            stretch: gradient + (grows * OTHERWISE) as usize,
        })
    }

    /// The worse of what two kinds of experience say of the same pass.
    pub(super) fn worse(self, other: Self) -> Self {
        let worst = (self.feared, self.start).max((other.feared, other.start));
        let (feared, start) = worst;
        Self {
            start,
            hoped: self.hoped.max(other.hoped),
            feared,
            stretch: self.stretch.max(other.stretch),
        }
    }

    /// Whether it may stay within `room`.
    pub(super) fn is_worth_a_try(&self, room: usize) -> bool {
        self.hoped <= room
    }

    /// Whether it is feared to go beyond `budget` if passes may take this part more than is known.
    pub(super) fn is_feared(&self, budget: usize, margin: f64) -> bool {
        self.with_margin(margin).feared > budget
    }

    fn with_margin(self, margin: f64) -> Self {
        let in_pass = self.feared.saturating_sub(self.start);
        Self {
            feared: self.feared + (in_pass as f64 * margin) as usize,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pass over so many items that holds so many bytes.
    fn over(items: usize, bytes: usize) -> (usize, Run) {
        let run = Run {
            start: 100,
            peak: 100 + bytes,
            forward: 100 + bytes,
            stretch: bytes,
            seconds: 0.0,
        };
        (items, run)
    }

    #[test]
    fn what_a_pass_holds_in_any_case_is_feared_to_grow_and_hoped_not_to() {
        let expected = |known: &[_], items| Expected::after(known, items, 0).unwrap();
        let known = [over(1, 1010), over(2, 1020)];
        let first = expected(&known[..1], 2);
        assert_eq!([first.hoped, first.feared], [100 + 1010, 100 + 2 * 1010]);
        let second = expected(&known, 4);
        assert_eq!([second.hoped, second.feared], [100 + 1040, 100 + 2 * 1020]);
        assert_eq!(second.with_margin(0.1).feared, 100 + 2 * 1020 + 204);
        assert!(Expected::after(&[], 1, 0).is_none());
    }
}
