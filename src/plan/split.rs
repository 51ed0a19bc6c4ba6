/// How a batch is split.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    pub(super) ranks: usize,
    /// Micro-batches on each.
    pub(super) accumulation: usize,
}

impl Split {
    pub(super) fn of(ranks: usize, accumulation: usize) -> Self {
        Self {
            ranks,
            accumulation,
        }
    }

    /// Whether gradients are added up.
    pub(super) fn is_summed(self) -> bool {
        self.accumulation > 1
    }
}
