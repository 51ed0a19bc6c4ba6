use super::super::error::MemoryError;
use super::MemoryTimeline;

/// More blocks than a step with a complete log can have.
const MAX_BLOCKS: usize = 1 << 20;
/// More seconds than a recording can take.
const MAX_SECONDS: f64 = 1e9;

impl MemoryTimeline {
    /// Checks a timeline, which from a file can hold anything.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), MemoryError> {
        if self.samples.is_empty() {
            return Err(MemoryError::Empty);
        }
        let marks = self.marks.len();
        if let Some(sample) = self.samples.iter().find(|sample| sample.mark >= marks) {
            return Err(damaged(format!(
                "a sample is in phase {}, and there are {marks}",
                sample.mark
            )));
        }
        let blocks = || self.blocks.iter();
        if let Some(block) = blocks().find(|block| block.index >= MAX_BLOCKS) {
            let (name, index) = (&block.name, block.index);
            return Err(damaged(format!(
                "block {name} is number {index} of its step"
            )));
        }
        let seconds = self.samples.iter().map(|sample| sample.seconds);
        let seconds = seconds.chain(self.marks.iter().map(|mark| mark.seconds));
        let mut seconds = seconds.chain(blocks().flat_map(|b| [b.forward, b.backward]));
        match seconds.find(|seconds| !(0.0..MAX_SECONDS).contains(seconds)) {
            None => Ok(()),
            Some(seconds) => Err(damaged(format!("something happened after {seconds} s"))),
        }
    }
}

fn damaged(reason: String) -> MemoryError {
    MemoryError::Damaged { reason }
}
