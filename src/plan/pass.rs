//! What a forward and a backward pass hold.

use crate::memory::{MemoryTimeline, Phase, Sample};

use super::recorded::Recorded;
use super::twice::Twice;

/// Passes over so many items, as they were measured.
#[derive(Clone, Debug)]
pub(super) struct Pass {
    pub(super) items: usize,
    /// The one whose blocks all run twice, if there are any.
    pub(super) twice: Option<Twice>,
    /// The others.
    runs: Vec<Kept>,
    /// The blocks that kept their activations where the pass did not fit.
    too_large: Vec<Vec<bool>>,
    rehearsals: Vec<Rehearsal>,
}

/// Steps that were made, whose optimizer holds nothing.
#[derive(Clone, Debug)]
struct Rehearsal {
    keep: Vec<bool>,
    /// Whether gradients were summed up.
    summed: bool,
    /// The most bytes in use, with all that was there before; none if the steps did not come to their end.
    peak: Option<usize>,
}

/// The most bytes in use in a pass, with all that was there before, and its time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Bytes in use when it began.
    pub(super) start: usize,
    pub(super) peak: usize,
    /// The most until the backward pass began.
    pub(super) forward: usize,
    /// The most until it could be ended, over those before.
    pub(super) stretch: usize,
    pub(super) seconds: f64,
}

/// Which blocks keep their activations, and the peak then.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) keep: Vec<bool>,
    pub(super) run: Run,
}

impl Kept {
    /// Number of blocks that keep their activations.
    fn count(&self) -> usize {
        count(&self.keep)
    }

    /// Whether no block runs twice.
    fn is_all(&self) -> bool {
        self.keep.iter().all(|keep| *keep)
    }
}

fn count(keep: &[bool]) -> usize {
    keep.iter().filter(|keep| **keep).count()
}

impl Run {
    /// The pass in `timeline`, that took so many seconds, and so many bytes until it could be ended.
    pub(super) fn of(timeline: &MemoryTimeline, stretch: usize, seconds: f64) -> Self {
        let bytes = |sample: Option<&Sample>| sample.map_or(0, |s| s.bytes.total());
        // What the backend has kept for itself is there from the begin the next time.
        let start = bytes(timeline.samples.first());
        let grown = bytes(timeline.samples.last()).saturating_sub(start);
        let backward = timeline
            .marks
            .iter()
            .position(|mark| mark.phase == Phase::Backward);
        let forward = timeline
            .samples
            .iter()
            .filter(|sample| Some(sample.mark) < backward);
        Self {
            start,
            peak: timeline.peak().bytes.total() + grown,
            forward: forward
                .map(|sample| sample.bytes.total())
                .max()
                .unwrap_or(start),
            stretch,
            seconds,
        }
    }

    /// The most bytes of the pass itself.
    pub(super) fn in_pass(&self) -> usize {
        self.peak.saturating_sub(self.start)
    }

    /// Whether the pass has left so much behind, or taken along, that a second one tells more.
    pub(super) fn warms_up(&self, timeline: &MemoryTimeline) -> bool {
        let end = timeline.samples.last();
        let end = end.map_or(self.start, |sample| sample.bytes.total());
        self.start.abs_diff(end) > self.in_pass() / 100
    }
}

impl Pass {
    /// None yet.
    pub(super) fn over(items: usize) -> Self {
        Self {
            items,
            twice: None,
            runs: Vec::new(),
            too_large: Vec::new(),
            rehearsals: Vec::new(),
        }
    }

    /// Whether nothing is known.
    pub(super) fn is_empty(&self) -> bool {
        self.twice.is_none() && self.runs.is_empty()
    }

    /// Whether it is known to have no block.
    pub(super) fn has_no_blocks(&self) -> bool {
        self.twice.is_none() && self.runs.iter().any(|run| run.keep.is_empty())
    }

    /// Notes a pass whose blocks all run twice, or that has none.
    pub(super) fn note_twice(&mut self, recorded: Recorded) {
        self.twice = Twice::of(&recorded);
        if self.twice.is_none() {
            self.note(Vec::new(), recorded.run);
        }
    }

    /// Notes a pass with these blocks.
    pub(super) fn note(&mut self, keep: Vec<bool>, run: Run) {
        let start = self.twice.as_ref().map_or(run.start, |it| it.run.start);
        // As if it had begun with the same.
        let run = Run {
            start,
            peak: start + run.in_pass(),
            forward: start + run.forward.saturating_sub(run.start),
            ..run
        };
        if let Some(twice) = &mut self.twice {
            twice.learn(|block| keep.get(block).is_some_and(|keep| *keep), run);
        }
        self.runs.push(Kept { keep, run });
    }

    /// Notes that a pass with these blocks takes more than so many `bytes`.
    pub(super) fn note_too_large(&mut self, keep: Vec<bool>, bytes: usize) {
        if let Some(twice) = &mut self.twice {
            let run = Run {
                peak: bytes,
                ..twice.run
            };
            twice.learn(|block| keep.get(block).is_some_and(|keep| *keep), run);
        }
        self.too_large.push(keep);
    }

    /// Whether as many or fewer of these blocks are known to be too large.
    fn is_too_large(&self, keep: &[bool]) -> bool {
        let mut known = self.too_large.iter();
        known.any(|known| known.iter().zip(keep).all(|(known, keep)| keep >= known))
    }

    /// Notes steps with these blocks.
    pub(super) fn note_rehearsal(&mut self, keep: Vec<bool>, summed: bool, peak: Option<usize>) {
        self.rehearsals.push(Rehearsal { keep, summed, peak });
    }

    /// The most bytes that a pass has taken until it could be ended.
    pub(super) fn stretch(&self) -> usize {
        let runs = self.runs.iter().map(|kept| kept.run);
        let runs = runs.chain(self.twice.as_ref().map(|twice| twice.run));
        runs.map(|run| run.stretch).max().unwrap_or(0)
    }

    /// Number of steps that were made.
    pub(super) fn rehearsals(&self) -> usize {
        self.rehearsals.len()
    }

    /// Whether steps with these blocks were made.
    pub(super) fn is_rehearsed(&self, keep: &[bool], summed: bool) -> bool {
        self.rehearsal(keep, summed).is_some()
    }

    /// The peak of steps with these blocks, if they were made.
    pub(super) fn rehearsed(&self, keep: &[bool], summed: bool) -> Option<usize> {
        self.rehearsal(keep, summed)?.peak
    }

    fn rehearsal(&self, keep: &[bool], summed: bool) -> Option<&Rehearsal> {
        let mut rehearsals = self.rehearsals.iter();
        rehearsals.find(|it| it.keep == keep && it.summed == summed)
    }

    /// Number of passes with some blocks of each kind.
    pub(super) fn tried(&self) -> usize {
        let tried = self.runs.iter().filter(|run| !run.is_all()).count();
        tried + self.too_large.len()
    }

    /// Whether a pass was run with these blocks.
    pub(super) fn knows(&self, kept: &Kept) -> bool {
        kept.count() == 0 && !kept.is_all()
            || self.runs.iter().any(|run| run.keep == kept.keep)
            || self.too_large.contains(&kept.keep)
    }

    /// A pass without a block that runs twice.
    pub(super) fn none_twice(&self) -> Option<Kept> {
        self.runs.iter().find(|run| run.is_all()).cloned()
    }

    /// A pass whose blocks all run twice.
    pub(super) fn all_twice(&self) -> Option<Kept> {
        self.twice.as_ref().map(|twice| Kept {
            keep: vec![false; twice.count()],
            run: twice.run,
        })
    }

    /// A pass with the blocks of `kept` and one more, if none of as many is known and one may fit `budget`.
    pub(super) fn one_more(&self, kept: &Kept, budget: usize) -> Option<Kept> {
        let (twice, mut more) = (self.twice.as_ref()?, kept.clone());
        let last = more.keep.iter().rposition(|keep| !keep)?;
        more.keep[last] = true;
        let mut known = self.runs.iter().map(|run| &run.keep).chain(&self.too_large);
        let is_known = known.any(|keep| count(keep) == more.count());
        let expected = twice.expected(|block| more.keep[block]);
        (!is_known && expected.hoped <= budget).then_some(more)
    }

    /// As few blocks that run twice as a pass of `budget` bytes takes; whether one `fits` that was run is known better.
    pub(super) fn fewest_twice(&self, budget: usize, fits: impl Fn(&Kept) -> bool) -> Option<Kept> {
        let known = self.all_twice().into_iter().chain(self.runs.clone());
        let known = known.filter(fits);
        let best = known.max_by_key(Kept::count);
        match (&self.twice, best) {
            (Some(twice), best) if twice.run.peak <= budget => {
                let expected = self.expected(twice, budget);
                best.filter(|best| self.knows(&expected) || best.count() >= expected.count())
                    .or(Some(expected))
            }
            (_, best) => best,
        }
    }

    /// The same as far as the recording of blocks that run twice tells.
    fn expected(&self, twice: &Twice, budget: usize) -> Kept {
        let keep = vec![false; twice.count()];
        let mut expected = Kept {
            keep,
            run: twice.run,
        };
        let kept = self.none_twice().map(|kept| kept.run);
        // The last ones cost least: what a block keeps is needed until the backward pass has come back to it.
        for index in (0..expected.keep.len()).rev() {
            expected.keep[index] = true;
            let peak = twice.peak_of(|block| expected.keep[block]);
            let too_many = self.is_too_large(&expected.keep)
                || expected.is_all() && kept.is_some_and(|kept| kept.peak > budget);
            if peak <= budget && !too_many {
                expected.run.peak = expected.run.peak.max(peak);
            } else {
                expected.keep[index] = false;
            }
        }
        if let Some(kept) = kept {
            let part = expected.count() as f64 / expected.keep.len() as f64;
            expected.run.seconds += (kept.seconds - twice.run.seconds) * part;
        }
        expected
    }
}
