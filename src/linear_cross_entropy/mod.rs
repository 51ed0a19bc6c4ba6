//! Head and cross entropy for a large vocabulary, without allocating all logits.

mod config;
mod head;

use backburn_base::{is_cpu_backend, signed};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Bool, DType, FloatDType, Int, Tensor};

pub use config::{LinearCrossEntropyLossConfig, LossReduction};
pub use head::Head;

use crate::gradient_checkpointing;

/// The output head and the cross entropy loss, computed in chunks of tokens. Only the logits of one chunk are in memory
/// at a time.
///
/// With a vocabulary of 50,257 the logits of 2,048 tokens take 412 MB, and softmax and gradient take the same again.
/// This is more than all other activations of a model with checkpointed blocks. Each chunk is a block under
/// [`gradient_checkpointing`]: in a fused step its logits are computed, reduced to one number per token, dropped, and
/// recomputed in the backward pass. The head is updated once. In stock training and in validation the chunks are plain
/// calls.
///
/// The value equals that of Burn's [`CrossEntropyLoss`](burn::nn::loss::CrossEntropyLoss) over all logits cast to f32, with label
/// smoothing up to rounding. Gradients differ in the order of the sums over the chunks, in f32 by a relative error of about 1e-7.
/// [`LossReduction`] selects the mean, the sum, or one loss per token.
///
/// The head computes logits in the type of the model; the loss is computed in f32 (in f64 if the model is in f64). In a model in bf16
/// the gradient of the head is summed over chunks in bf16, which loses terms below 1/256 of the sum. Set
/// [`FusedConfig::full_precision_accumulation`](crate::FusedConfig::full_precision_accumulation) to sum in f32.
///
/// [Liger Kernel](https://arxiv.org/abs/2410.10989) and torchtune (`LinearCrossEntropyLoss`) have the same loss without the fused
/// optimizer.
///
/// ```
/// use backburn::{FusedOptimizer, LinearCrossEntropyLossConfig};
/// use burn::module::Module;
/// use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
/// use burn::optim::AdamConfig;
/// use burn::tensor::{Device, Int, Tensor};
///
/// #[derive(Module, Debug)]
/// struct Bigram {
///     embedding: Embedding,
///     head: Linear, // or none: the embedding is a head, too
/// }
///
/// let device = Device::flex().autodiff();
/// let model = Bigram {
///     embedding: EmbeddingConfig::new(1000, 16).init(&device),
///     head: LinearConfig::new(16, 1000).init(&device),
/// };
/// let loss = LinearCrossEntropyLossConfig::new().with_chunk_size(64).init();
/// let text = Tensor::<1, Int>::arange(0..257, &device);
/// let (tokens, targets) = (text.clone().slice(0..256), text.slice(1..257));
///
/// let mut fused = FusedOptimizer::new(model, AdamConfig::new().init())?;
/// fused.step(1e-3, |model| {
///     let hidden = model.embedding.forward(tokens.unsqueeze()).squeeze_dim(0);
///     loss.forward(&model.head, hidden, targets)
/// })?;
/// # Ok::<(), backburn::FusedError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LinearCrossEntropyLoss(LinearCrossEntropyLossConfig);

impl LinearCrossEntropyLoss {
    /// Computes the cross entropy of the `targets` in nats, with the logits that `head` computes from `hidden`.
    ///
    /// If all tokens are padding, the mean is NaN and all gradients are zero, as in Burn.
    ///
    /// # Shapes
    ///
    /// - hidden: `[tokens, d_model]`
    /// - targets: `[tokens]`
    /// - output: `[1]`, or `[tokens]` with [`LossReduction::None`]; in f64 if the logits are, else in f32
    ///
    /// # Panics
    ///
    /// If there are no tokens, or not one target per token; on CPU backends also if a target is neither padding nor a class of the
    /// head. Other devices don't check it, because that would wait for the device: the loss is NaN, and the token adds no gradient.
    pub fn forward<H: Head>(
        &self,
        head: &H,
        hidden: Tensor<2>,
        targets: Tensor<1, Int>,
    ) -> Tensor<1> {
        let (losses, padding) = self.losses(head, hidden, targets);
        match (self.0.reduction, padding) {
            (LossReduction::Mean, None) => losses.mean(),
            (LossReduction::Mean, Some(padding)) => {
                let dtype = precision(losses.dtype());
                // Counted in the type of the loss, because the device's default float type may be too small.
                let counted = padding.bool_not().int().cast(dtype).sum();
                losses.sum() / counted
            }
            (LossReduction::Sum, _) => losses.sum(),
            (LossReduction::None, _) => losses,
        }
    }

    /// Computes the cross entropy as [`forward`](Self::forward) does, with the loss of each token multiplied by its weight.
    ///
    /// The mean divides by the sum of the weights, as PyTorch and Burn do with weights of classes. Weights may be zero or negative. If
    /// all weights are zero, the mean and its gradients are NaN (`0 / 0`), and the sum and its gradients are zero.
    /// Weights of tokens in `pad_tokens` are ignored. A weight of zero does not hide a loss that is NaN or infinite.
    ///
    /// # Shapes
    ///
    /// - hidden: `[tokens, d_model]`
    /// - targets, weights: `[tokens]`; the weights are cast to the type of the output
    /// - output: `[1]`, or `[tokens]` with [`LossReduction::None`]; in f64 if the logits are, else in f32
    ///
    /// # Panics
    ///
    /// Where [`forward`](Self::forward) panics, and if there is not one weight per token.
    pub fn forward_weighted<H: Head>(
        &self,
        head: &H,
        hidden: Tensor<2>,
        targets: Tensor<1, Int>,
        weights: Tensor<1>,
    ) -> Tensor<1> {
        let ([tokens, _], [given]) = (hidden.dims(), weights.dims());
        assert!(
            tokens == given,
            "there are {tokens} hidden states and {given} weights: pass one weight for each hidden state"
        );
        let (losses, padding) = self.losses(head, hidden, targets);
        let weights = weights.cast(precision(losses.dtype()));
        let weights = match padding {
            None => weights,
            Some(padding) => weights.mask_fill(padding, 0),
        };
        let losses = losses * weights.clone();
        match self.0.reduction {
            LossReduction::Mean => losses.sum() / weights.sum(),
            LossReduction::Sum => losses.sum(),
            LossReduction::None => losses,
        }
    }

    /// Returns the loss of each token, zero for padding, and a mask of the padding. Shapes: `[tokens, d_model]`, and `[tokens]`.
    fn losses<H: Head>(
        &self,
        head: &H,
        hidden: Tensor<2>,
        targets: Tensor<1, Int>,
    ) -> (Tensor<1>, Option<Tensor<1, Bool>>) {
        let ([tokens, _], [targets_given]) = (hidden.dims(), targets.dims());
        assert!(
            tokens == targets_given,
            "there are {tokens} hidden states and {targets_given} targets: pass one target for each hidden state"
        );
        assert!(
            tokens > 0,
            "there are no hidden states, and the loss of zero tokens is not defined: skip empty batches"
        );
        let given = targets.dtype();
        let targets = signed(targets);
        let padding = self.padding(&targets, given);
        let targets = match &padding {
            None => targets,
            // Any valid class; its loss is masked below.
            Some(padding) => targets.mask_fill(padding.clone(), 0),
        };
        let losses = self.over_chunks(head, hidden, targets).neg();
        match padding {
            None => (losses, None),
            Some(padding) => (losses.mask_fill(padding.clone(), 0), Some(padding)),
        }
    }

    /// Returns the logarithm of the probability of each target, computed in chunks. Shapes: `[tokens, d_model]`, `[tokens]`, `[tokens]`.
    fn over_chunks<H: Head>(
        &self,
        head: &H,
        hidden: Tensor<2>,
        targets: Tensor<1, Int>,
    ) -> Tensor<1> {
        let [tokens, _] = hidden.dims();
        let (smoothing, soft_cap) = (self.0.smoothing, self.0.soft_cap);
        let chunks = (0..tokens).step_by(self.0.chunk_size).map(|start| {
            let chunk = start..tokens.min(start + self.0.chunk_size);
            let input = (
                hidden.clone().slice(chunk.clone()),
                targets.clone().slice(chunk),
            );
            gradient_checkpointing(head, input, move |head: &H, (hidden, targets)| {
                log_likelihoods(head.logits(hidden), targets, smoothing, soft_cap)
            })
        });
        Tensor::cat(chunks.collect(), 0)
    }

    /// Returns a mask of the targets that are padding, given the original type of the targets.
    fn padding(&self, targets: &Tensor<1, Int>, given: DType) -> Option<Tensor<1, Bool>> {
        let is = |token: &i64| targets.clone().equal_scalar(*token);
        let has_sign = matches!(given, DType::I8 | DType::I16 | DType::I32 | DType::I64);
        // Ignore pad tokens outside of the range of the original type: large unsigned targets are negative after the cast.
        let fits = |token: &&i64| {
            (has_sign || **token >= 0)
                && (targets.dtype() == DType::I64 || i32::try_from(**token).is_ok())
        };
        let pads = self.0.pad_tokens.iter().flatten().filter(fits);
        pads.map(is).reduce(Tensor::bool_or)
    }
}

/// Returns the logarithm of the probability of each target. Shapes: `[tokens, classes]`, `[tokens]`, `[tokens]`.
fn log_likelihoods(
    logits: Tensor<2>,
    targets: Tensor<1, Int>,
    smoothing: Option<f32>,
    soft_cap: Option<f64>,
) -> Tensor<1> {
    let [tokens, classes] = logits.dims();
    let outside = outside(&targets, classes);
    let targets = targets.mask_fill(outside.clone(), 0);
    let dtype = precision(logits.dtype());
    let logits = logits.cast(dtype);
    let logits = match soft_cap {
        None => logits,
        Some(cap) => logits.div_scalar(cap).tanh().mul_scalar(cap),
    };
    let all = log_softmax(logits, 1);
    let index = targets.reshape([tokens, 1]);
    let of_targets = all.clone().gather(1, index).reshape([tokens]);
    let smoothed = match smoothing {
        None => of_targets,
        Some(share) => {
            let of_all = all.sum_dim(1).reshape([tokens]);
            of_targets.mul_scalar(1.0 - share) + of_all.mul_scalar(share / classes as f32)
        }
    };
    smoothed.mask_fill(outside, f32::NAN)
}

/// Returns the float type of the loss for logits in `dtype`.
fn precision(dtype: DType) -> FloatDType {
    match dtype {
        DType::F64 => FloatDType::F64,
        _ => FloatDType::F32,
    }
}

/// Returns a mask of the `targets` that are not classes. Panics on CPU backends if there are any.
fn outside(targets: &Tensor<1, Int>, classes: usize) -> Tensor<1, Bool> {
    let below = targets.clone().lower_scalar(0);
    let outside = below.bool_or(targets.clone().greater_equal_scalar(classes as i64));
    if is_cpu_backend(&targets.device()) && outside.clone().any().into_scalar::<bool>() {
        let found: Vec<i64> = targets.clone().into_data().iter().collect();
        let found = found
            .into_iter()
            .find(|target| !(0..classes as i64).contains(target));
        panic!(
            "the target {} is not one of the {classes} classes of the head: check the tokenizer, or add it to `pad_tokens`",
            found.unwrap_or_default()
        );
    }
    outside
}
