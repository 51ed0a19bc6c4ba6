//! Head and loss by operations on whole tensors, chunk by chunk.

use std::ops::Range;

use backburn_base::{AnyTensor, in_type, signed};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Bool, DType, IndexingUpdateOp, Tensor};

use super::Problem;
use crate::elements::wide;
use crate::node::Computed;

impl Problem {
    /// Returns the loss by operations that Burn differentiates.
    pub(super) fn composed(&self, hidden: Tensor<2>, weight: Tensor<2>) -> Tensor<1> {
        let dtype = wide(hidden.dtype());
        let none = Tensor::zeros([1], (&hidden.device(), dtype));
        self.chunks().fold(none, |sum, tokens| {
            let hidden = hidden.clone().slice(tokens.clone());
            sum + self.chunk(hidden, weight.clone(), tokens).0
        })
    }

    pub(super) fn operations(&self, inputs: [AnyTensor; 2], needed: [bool; 2]) -> Computed {
        let [hidden, weight] = inputs.map(AnyTensor::of_rank::<2>);
        let dtype = wide(hidden.dtype());
        let options = (&hidden.device(), dtype);
        let mut loss = Tensor::<1>::zeros([1], options);
        let mut of_hidden = Vec::new();
        let mut of_weight = needed[1].then(|| Tensor::<2>::zeros(weight.dims(), options));
        // In f16 small gradients would vanish before the backward pass multiplies them, by a loss scale for example.
        let products = match hidden.dtype() {
            DType::F16 => dtype,
            of_hidden => of_hidden,
        };
        let head = needed[0].then(|| in_type(weight.clone(), products));
        let mut ignored = Vec::new();
        for tokens in self.chunks() {
            let of_chunk = hidden.clone().slice(tokens.clone());
            let (losses, left_out, gradient) = self.chunk(of_chunk.clone(), weight.clone(), tokens);
            loss = loss + losses;
            if !needed.contains(&true) {
                continue;
            }
            ignored.extend(left_out);
            let gradient = in_type(gradient(), products);
            if let Some(head) = &head {
                of_hidden.push(gradient.clone().matmul(head.clone()));
            }
            of_weight = of_weight.map(|sum| {
                let term = gradient.transpose().matmul(in_type(of_chunk, products));
                sum + in_type(term, dtype)
            });
        }
        let of_hidden = match of_hidden.is_empty() {
            true => needed[0].then(|| hidden.zeros_like()),
            false => Some(Tensor::cat(of_hidden, 0)),
        };
        let ignored = (!ignored.is_empty()).then(|| Tensor::<2, Bool>::cat(ignored, 0));
        let is_empty = hidden.dims()[0] == 0;
        Computed::new(loss.into(), move |gradient| {
            let factor = gradient.of_rank::<1>().unsqueeze::<2>();
            let scaled = |all: Tensor<2>, factor| in_type(all, dtype) * factor;
            // The factor may be infinite, for example of a mean over no token. What no token reaches stays zero, as in Burn.
            let of_hidden = of_hidden.map(|all| {
                let (shape, all) = (all.dims(), scaled(all, factor.clone()));
                match ignored.clone() {
                    Some(ignored) if shape[1] > 0 => all.mask_fill(ignored.expand(shape), 0),
                    _ => all,
                }
            });
            let of_weight = of_weight.map(|all| {
                let factor = match ignored {
                    _ if is_empty => factor.ones_like(),
                    Some(ignored) => factor.mask_fill(ignored.all().unsqueeze::<2>(), 1),
                    None => factor,
                };
                scaled(all, factor)
            });
            [of_hidden, of_weight].map(|it| it.map(AnyTensor::from))
        })
    }

    fn chunks(&self) -> impl Iterator<Item = Range<usize>> {
        let (tokens, size) = (self.targets.dims()[0], self.options.chunk_size);
        let starts = (0..tokens).step_by(size);
        starts.map(move |start| start..tokens.min(start.saturating_add(size)))
    }

    /// Returns the sum of the losses of a chunk of tokens, the tokens that are ignored, and a function that computes the gradients of
    /// the logits.
    fn chunk(
        &self,
        hidden: Tensor<2>,
        weight: Tensor<2>,
        tokens: Range<usize>,
    ) -> (
        Tensor<1>,
        Option<Tensor<2, Bool>>,
        impl FnOnce() -> Tensor<2>,
    ) {
        let (count, classes) = (tokens.len(), weight.dims()[0]);
        let logits = hidden.matmul(weight.transpose());
        let dtype = wide(logits.dtype());
        let mut logits = in_type(logits, dtype);
        let mut slope = None;
        if let Some(cap) = self.options.soft_cap {
            let share = (logits * cap.recip()).tanh();
            slope = Some(1 - share.clone().square());
            logits = share * cap;
        }
        let logarithms = log_softmax(logits, 1);
        // The tensors below have the shape `[tokens, 1]`.
        let targets = self.targets.clone().slice(tokens.clone());
        let targets = signed(targets.reshape([count, 1]));
        let fits = |ignored: &i64| targets.dtype() == DType::I64 || i32::try_from(*ignored).is_ok();
        let ignored = self.options.ignored.filter(fits);
        let ignored = ignored.map(|ignored| targets.clone().equal_scalar(ignored));
        let outside = targets.clone().lower_scalar(0);
        let outside = outside.bool_or(targets.clone().greater_equal_scalar(classes as i64));
        let index = targets.mask_fill(outside.clone(), 0);
        let weights = self.weights.clone().map(|weights| {
            let weights = weights.slice(tokens).reshape([count, 1]);
            in_type(weights, dtype)
        });
        let smoothing = self.options.smoothing;
        let of_targets = logarithms.clone().gather(1, index.clone());
        let mut losses = of_targets * (smoothing - 1.0);
        if smoothing != 0.0 {
            let of_all = logarithms.clone().sum_dim(1);
            losses = losses - of_all * (smoothing / classes as f64);
        }
        losses = losses.mask_fill(outside.clone(), f32::NAN);
        if let Some(weights) = weights.clone() {
            losses = losses * weights;
        }
        if let Some(ignored) = ignored.clone() {
            losses = losses.mask_fill(ignored, 0);
        }
        let left_out = ignored.clone();
        let gradient = move || {
            let options = (&logarithms.device(), dtype);
            let of_target = Tensor::full([count, 1], smoothing - 1.0, options);
            let shares = logarithms.exp() - smoothing / classes as f64;
            let mut all = shares.scatter(1, index, of_target, IndexingUpdateOp::Add);
            for factor in [slope, weights].into_iter().flatten() {
                all = all * factor;
            }
            let masked = left_out.into_iter().fold(outside, Tensor::bool_or);
            let masked = masked.expand(all.dims());
            all.mask_fill(masked, 0)
        };
        (losses.sum(), ignored, gradient)
    }
}
