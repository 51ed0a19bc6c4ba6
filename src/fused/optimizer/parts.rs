//! A step on a batch that is divided into micro-batches.

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;
use burn::tensor::Tensor;

use super::FusedOptimizer;
use crate::error::FusedError;

impl<M: Module> FusedOptimizer<M> {
    /// Runs one step on a batch that is split into `parts`. Each part has its number of items (images, or tokens that
    /// count in the loss).
    ///
    /// `forward` returns the mean loss of the items of one part. Each part is weighted by its share of all items, so
    /// the step uses the mean over the whole batch, even if the parts differ in size. (Plain
    /// [`accumulate`](Self::accumulate) calls would weight all parts equally.) Parts without items are skipped. Returns
    /// the mean loss of the whole batch. A closure that draws random numbers draws new ones for each part.
    ///
    /// ```
    /// # use backburn::FusedOptimizer;
    /// # use burn::{nn::LinearConfig, optim::SgdConfig, tensor::{Device, Tensor}};
    /// # let device = Device::flex().autodiff();
    /// # let mut fused = FusedOptimizer::new(LinearConfig::new(2, 1).init(&device), SgdConfig::new().init())?;
    /// let batch = Tensor::<2>::ones([5, 2], &device);
    /// let parts = batch.split(2, 0).into_iter().map(|part| { // of 2, 2 and 1 items
    ///     let items = part.dims()[0];
    ///     (part, items)
    /// });
    /// let loss = fused.step_in_parts(0.1, parts, |model, part| model.forward(part.clone()).mean())?;
    /// # let _: Tensor<1> = loss;
    /// # Ok::<(), backburn::FusedError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`FusedError::NoItems`] if no part has an item. In this case nothing has changed. Returns the errors of
    /// [`accumulate`](Self::accumulate) and of [`step_repeatable`](Self::step_repeatable). They drop all accumulated
    /// gradients, except for those in the optimizer state ([`accumulating_in_state`](Self::accumulating_in_state)).
    /// Running statistics keep the updates of earlier parts.
    ///
    /// # Panics
    ///
    /// Panics as [`step`](Self::step) does, and drops accumulated gradients as an error does.
    pub fn step_in_parts<P>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        parts: impl IntoIterator<Item = (P, usize)>,
        forward: impl Fn(&M, &P) -> Tensor<1>,
    ) -> Result<Tensor<1>, FusedError> {
        let mut parts: Vec<_> = parts.into_iter().filter(|(_, items)| *items > 0).collect();
        let all: usize = parts.iter().map(|(_, items)| items).sum();
        let Some((last, last_items)) = parts.pop() else {
            return self.core.refuse(FusedError::NoItems);
        };
        let share = |items: usize| items as f64 / all as f64;
        let mut sums = SumsOfParts {
            fused: self,
            is_applied: false,
        };
        let mut losses = Vec::with_capacity(parts.len() + 1);
        for (part, items) in parts {
            let loss = |model: &M| forward(model, &part) * share(items);
            losses.push(sums.fused.accumulate(loss)?);
        }
        let loss = |model: &M| forward(model, &last) * share(last_items);
        losses.push(sums.fused.step_repeatable(learning_rate, loss)?);
        sums.is_applied = true;
        let mean = losses.into_iter().reduce(|sum, loss| sum + loss);
        Ok(mean.expect("there is a part"))
    }
}

/// A guard that drops the gradients of the parts so far, unless a step has applied them.
struct SumsOfParts<'a, M: Module> {
    fused: &'a mut FusedOptimizer<M>,
    is_applied: bool,
}

impl<M: Module> Drop for SumsOfParts<'_, M> {
    fn drop(&mut self) {
        if !self.is_applied {
            self.fused.drop_accumulated();
        }
    }
}
