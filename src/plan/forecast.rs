//! Forecast of the memory of a pass, by linear extrapolation of passes over fewer items.

use super::pass_bytes::PassBytes;

/// Expected bytes of a pass, in addition to those in use before it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Forecast {
    /// Peak by linear extrapolation.
    pub(super) in_pass: usize,
    /// Upper bound, if all bytes grow in proportion to the items.
    pub(super) most: usize,
    /// Maximum growth between two points at which the pass can be stopped.
    pub(super) stretch: usize,
    /// Peak of the backward pass, minus the bytes at its start.
    pub(super) rise: usize,
}

/// Growth of buffers because other kernels may be selected for more items.
const OTHER_KERNELS: f64 = 1.5;

impl Forecast {
    /// Returns the forecast of a pass over `items`, from the `known` passes over fewer items in ascending order.
    pub(super) fn after(
        known: &[(usize, PassBytes)],
        items: usize,
        largest_gradient: usize,
    ) -> Self {
        let Some((&(many, last), before)) = known.split_last() else {
            return Self {
                stretch: largest_gradient,
                rise: 2 * largest_gradient,
                ..Self::default()
            };
        };
        // Gradients don't grow with the number of items.
        let fixed = last.rise.min(2 * largest_gradient);
        let in_proportion = last.in_pass().saturating_sub(fixed) as f64 / many as f64;
        let on_line = before.last().map_or(0.0, |(few, small)| {
            let more = last.in_pass().saturating_sub(small.in_pass());
            more as f64 / (many - few) as f64
        });
        let at = |grows: f64| last.in_pass() + (grows * (items - many) as f64) as usize;
        let times = items as f64 / many as f64;
        let scaled = |bytes: usize, gradients: usize, more: f64| {
            let gradients = bytes.min(gradients);
            gradients + ((bytes - gradients) as f64 * (1.0 + (times - 1.0) * more)) as usize
        };
        Self {
            in_pass: at(on_line),
            most: at(on_line.max(in_proportion)),
            stretch: scaled(last.stretch, largest_gradient, OTHER_KERNELS),
            rise: scaled(last.rise, 2 * largest_gradient, 1.0),
        }
    }

    /// Limits the forecast to the bytes of a pass over more items.
    pub(super) fn at_most(self, more: &PassBytes) -> Self {
        Self {
            in_pass: self.in_pass.min(more.in_pass()),
            most: self.most.min(more.in_pass()),
            stretch: self.stretch.min(more.stretch),
            rise: self.rise.min(more.rise),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a pass over `items` that holds `bytes`.
    fn over(items: usize, bytes: usize) -> (usize, PassBytes) {
        let run = PassBytes {
            start: 100,
            peak: 100 + bytes,
            rise: 0,
            stretch: bytes,
            seconds: 0.0,
        };
        (items, run)
    }

    #[test]
    fn pass_over_more_items_is_on_a_line_or_in_proportion() {
        let known = [over(1, 1010), over(2, 1020)];
        let first = Forecast::after(&known[..1], 2, 0);
        assert_eq!([first.in_pass, first.most], [1010, 2020]);
        let second = Forecast::after(&known, 4, 0);
        assert_eq!([second.in_pass, second.most], [1040, 2040]);
    }
}
