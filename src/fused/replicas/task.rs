//! What one rank does in a pass, and how it fails.

use std::sync::Arc;

use burn::optim::GradientsParams;

use crate::device::{caught, check_connected, hand_over};
use crate::error::FusedError;
use crate::fused::work::InFlight;
use crate::layout::Layout;
use crate::pass::Pass;
use crate::random::Stream;
use crate::replica::Group;
use crate::weights::Views;

/// What comes of the work of a rank: what the closure returned, and the gradients of the parameters that are ordinary
/// leaves.
pub(super) type Worked<R> = Result<(R, GradientsParams), FusedError>;

/// What one rank has to do in a pass.
pub(super) struct Task {
    pub(super) rank: usize,
    pub(super) pass: Arc<Pass>,
    pub(super) views: Arc<Views>,
    pub(super) layout: Arc<Layout>,
    pub(super) group: Arc<Group>,
}

impl Task {
    /// Does `work`, and what is left of the pass after it.
    pub(super) fn run<R>(
        self,
        numbers: Option<Stream>,
        work: impl FnOnce(&Arc<Pass>) -> Worked<R>,
    ) -> Result<(R, GradientsParams), Failure> {
        let part = self.group.take_part(self.rank);
        let done = caught(|| {
            let in_flight = InFlight::of(&self.layout);
            let _scope = self.pass.enter();
            self.pass.begin_turn()?;
            if let Some(numbers) = numbers {
                numbers.start();
            }
            let output = work(&self.pass)?;
            self.pass.end_turn();
            drop(in_flight);
            self.views.flush(&self.pass)?;
            // Updates on behalf of others, too: where they fail, the step does.
            self.group.devices().iter().for_each(hand_over);
            check_connected(|| vec![self.group.device(self.rank).clone()])?;
            Ok(output)
        });
        self.pass.end_turn();
        let output = done.map_err(Failure::Panic)?.map_err(Failure::Error)?;
        part.well();
        Ok(output)
    }

    /// The same without a batch.
    pub(super) fn stand_by(self) -> Result<(), Failure> {
        let flushed = caught(|| self.views.flush(&self.pass));
        flushed.map_err(Failure::Panic)?.map_err(Failure::Error)
    }
}

/// How a rank has failed.
pub(super) enum Failure {
    Error(FusedError),
    Panic(String),
}

impl Failure {
    /// The error of a pass that may be `repeated` if its random numbers were not those of the pass before.
    pub(super) fn on(self, rank: usize, group: &Group, repeated: bool) -> FusedError {
        let device = format!("{:?}", group.device(rank));
        match self {
            Self::Error(error @ FusedError::RandomNumbers { .. }) if repeated => error,
            Self::Error(error) => FusedError::Rank {
                rank,
                device,
                error: Box::new(error),
            },
            Self::Panic(message) => FusedError::RankPanicked {
                rank,
                device,
                message,
            },
        }
    }
}
