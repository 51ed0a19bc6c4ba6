//! Head and loss as a composition of Burn's operations, in chunks of tokens.

use std::ops::Range;

use backburn_base::{AnyTensor, in_type, signed};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Bool, DType, Int, Tensor};

use super::Problem;
use crate::elements::wide;
use crate::node::{Computed, leaf};

impl Problem {
    /// Returns the loss by operations that Burn differentiates.
    pub(super) fn composed(&self, hidden: Tensor<2>, weight: Tensor<2>) -> Tensor<1> {
        let dtype = wide(hidden.dtype());
        let zero = Tensor::zeros([1], (&hidden.device(), dtype));
        self.chunks().fold(zero, |sum, tokens| {
            let hidden = hidden.clone().slice(tokens.clone());
            sum + self.chunk(hidden, weight.clone(), tokens)
        })
    }

    /// Computes the gradients of each chunk by Burn's autodiff, in the forward pass.
    pub(super) fn operations(&self, inputs: [AnyTensor; 2], needed: [bool; 2]) -> Computed {
        if !needed.contains(&true) {
            let [hidden, weight] = inputs.map(AnyTensor::of_dims::<2>);
            let loss = self.composed(hidden, weight).into();
            return Computed::new(loss, |_| [None::<AnyTensor>, None]);
        }
        let dtype = wide(inputs[0].dtype());
        // In f16 small gradients would vanish before the backward pass multiplies them, by a loss scale for example.
        let products = match inputs[0].dtype() {
            DType::F16 => DType::F32,
            other => other,
        };
        let [hidden, weight] = inputs.map(|it| in_type(it.of_dims::<2>(), products));
        let options = (&hidden.device(), dtype);
        let mut loss = Tensor::<1>::zeros([1], options);
        let mut dhidden = Vec::new();
        let mut dweight = needed[1].then(|| Tensor::<2>::zeros(weight.dims(), options));
        for tokens in self.chunks() {
            let hidden = hidden.clone().slice(tokens.clone());
            let hidden = leaf(&hidden.into(), needed[0]).of_dims::<2>();
            let weight = leaf(&weight.clone().into(), needed[1]).of_dims::<2>();
            let losses = self.chunk(hidden.clone(), weight.clone(), tokens);
            loss = loss + losses.clone().inner();
            let mut gradients = losses.backward();
            dhidden.extend(hidden.grad_remove(&mut gradients));
            let term = weight.grad_remove(&mut gradients);
            let term = term.map(|term| in_type(term, dtype));
            dweight = dweight.zip(term).map(|(sum, term)| sum + term);
        }
        let dhidden = match dhidden.is_empty() {
            true => needed[0].then(|| hidden.zeros_like()),
            false => Some(Tensor::cat(dhidden, 0)),
        };
        let is_empty = hidden.dims()[0] == 0;
        let ignored = self.ignored(&self.targets).filter(|_| !is_empty);
        let ignored = ignored.map(|ignored| ignored.unsqueeze_dim::<2>(1));
        Computed::new(loss.into(), move |gradient| {
            let factor = gradient.of_dims::<1>().unsqueeze::<2>();
            let scaled = |all: Tensor<2>, factor| in_type(all, dtype) * factor;
            // The factor may be infinite, for example of a mean over no token. What no token reaches stays zero, as in Burn.
            let dhidden = dhidden.map(|all| {
                let (shape, all) = (all.dims(), scaled(all, factor.clone()));
                match ignored.clone() {
                    Some(ignored) if shape[1] > 0 => all.mask_fill(ignored.expand(shape), 0),
                    _ => all,
                }
            });
            let dweight = dweight.map(|all| {
                let factor = match ignored {
                    _ if is_empty => factor.ones_like(),
                    Some(ignored) => factor.mask_fill(ignored.all().unsqueeze::<2>(), 1),
                    None => factor,
                };
                scaled(all, factor)
            });
            [dhidden, dweight].map(|it| it.map(AnyTensor::from))
        })
    }

    fn chunks(&self) -> impl Iterator<Item = Range<usize>> {
        let (tokens, size) = (self.targets.dims()[0], self.options.chunk_size);
        let starts = (0..tokens).step_by(size);
        starts.map(move |start| start..tokens.min(start.saturating_add(size)))
    }

    /// Returns a mask of the targets that are ignored.
    fn ignored(&self, targets: &Tensor<1, Int>) -> Option<Tensor<1, Bool>> {
        let targets = signed(targets.clone());
        let fits = |ignored: &i64| targets.dtype() == DType::I64 || i32::try_from(*ignored).is_ok();
        let ignored = self.options.ignored.filter(fits)?;
        Some(targets.equal_scalar(ignored))
    }

    /// Returns the sum of the losses of a chunk of tokens.
    fn chunk(&self, hidden: Tensor<2>, weight: Tensor<2>, tokens: Range<usize>) -> Tensor<1> {
        let classes = weight.dims()[0];
        let logits = hidden.matmul(weight.transpose());
        let dtype = wide(logits.dtype());
        let logits = in_type(logits, dtype);
        let logits = match self.options.soft_cap {
            Some(cap) => (logits * cap.recip()).tanh() * cap,
            None => logits,
        };
        let logarithms = log_softmax(logits, 1);
        let targets = self.targets.clone().slice(tokens.clone());
        let ignored = self.ignored(&targets);
        let targets = signed(targets);
        let outside = targets.clone().lower_scalar(0);
        let outside = outside.bool_or(targets.clone().greater_equal_scalar(classes as i64));
        let index = targets.mask_fill(outside.clone(), 0).unsqueeze_dim(1);
        let smoothing = self.options.smoothing;
        let of_targets = logarithms.clone().gather(1, index).squeeze_dim::<1>(1);
        let mut losses = of_targets * (smoothing - 1.0);
        if smoothing != 0.0 {
            let of_all = logarithms.sum_dim(1).squeeze_dim::<1>(1);
            losses = losses - of_all * (smoothing / classes as f64);
        }
        losses = losses.mask_fill(outside, f32::NAN);
        if let Some(weights) = self.weights.clone() {
            losses = losses * in_type(weights.slice(tokens), dtype);
        }
        if let Some(ignored) = ignored {
            losses = losses.mask_fill(ignored, 0);
        }
        losses.sum()
    }
}
