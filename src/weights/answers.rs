use burn::tensor::Tensor;

use crate::replica::{Hold, Membership};

/// What the ranks have said about their gradients of a parameter in a pass.
#[derive(Debug, Default)]
pub(super) struct Answers<const D: usize> {
    given: usize,
    /// By rank, where the value rests.
    gradients: Vec<Option<Held<D>>>,
}

/// A gradient that is counted with what the owner holds.
#[derive(Debug)]
pub(super) struct Held<const D: usize> {
    pub(super) gradient: Tensor<D>,
    pub(super) hold: Hold,
}

impl<const D: usize> Answers<D> {
    /// Notes what a rank has, and returns what all have, by rank, when this was the last.
    pub(super) fn give(
        &mut self,
        member: &Membership,
        gradient: Option<Held<D>>,
    ) -> Option<Vec<Option<Held<D>>>> {
        let ranks = member.group.ranks();
        self.gradients.resize_with(ranks, || None);
        self.gradients[member.rank] = gradient;
        self.given += 1;
        let all = (self.given == ranks).then(|| std::mem::take(self));
        all.map(|answers| answers.gradients)
    }
}
