//! Head and loss of a large vocabulary.

mod config;
mod head;
mod tiles;

use burn::tensor::activation::log_softmax;
use burn::tensor::{Bool, DType, FloatDType, Int, IntDType, Tensor};

pub use config::{LinearCrossEntropyLossConfig, LossDirection};
pub use head::Head;

use crate::device::{is_cubecl, is_remote};
use crate::gradient_checkpointing;

/// Head and cross entropy piece by piece, so that the logits never exist whole.
///
/// With a vocabulary of 50,257 the logits of 2,048 tokens are 412 MB, several times over with softmax and gradient: more
/// than all other activations of a model whose blocks run twice. Here they come in chunks of tokens, or in tiles of classes, whichever
/// takes less memory ([`LossDirection`]; [`direction`](Self::direction) says which). Each is a block under
/// [`gradient_checkpointing`]: in a fused step its logits are computed, reduced to one or two numbers for
/// each token, dropped, and computed again when the backward pass starts with them. The head is updated once. In stock training
/// and in validation the pieces are plain calls.
///
/// The value is that of Burn's [`CrossEntropyLoss`](burn::nn::loss::CrossEntropyLoss) over all logits cast to f32: the mean over the
/// tokens that count, or NaN if none does (gradients are zero then, as in Burn). In chunks of tokens it has the same order of sums, in
/// tiles another, in f32 some 1e-7 away. Gradients differ by the order of the sums over the pieces, in f32 by some 1e-7 of their size.
///
/// The head computes logits in the type of the model, and all that follows is in f32 (in f64, if the model is). In a model in bf16 the
/// gradient of the head is summed over chunks in bf16, where terms below a 256th of the sum are lost. Set
/// [`FusedConfig::full_precision_accumulation`](crate::FusedConfig::full_precision_accumulation) to sum them in f32. Over tiles there
/// is no such sum.
///
/// As in [Liger Kernel](https://arxiv.org/abs/2410.10989) and torchtune (`LinearCrossEntropyLoss`), with the
/// optimizer fused.
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
/// let mut fused = FusedOptimizer::new(model, AdamConfig::new().init());
/// fused.step(1e-3, |model| {
///     let hidden = model.embedding.forward(tokens.unsqueeze()).squeeze_dim(0);
///     loss.forward(&model.head, hidden, targets)
/// });
/// ```
#[derive(Clone, Debug)]
pub struct LinearCrossEntropyLoss(LinearCrossEntropyLossConfig);

impl LinearCrossEntropyLoss {
    /// The mean cross entropy of the `targets` in nats, given the logits that `head` makes of `hidden`.
    ///
    /// # Shapes
    ///
    /// - hidden: `[tokens, d_model]`
    /// - targets: `[tokens]`
    /// - output: `[1]`, in f32 (f64)
    ///
    /// # Panics
    ///
    /// If there are no tokens, or not as many targets; on CPU backends if a target that counts is not a class of the head. Other
    /// devices would have to be waited for: there the loss is NaN, and the token is left out of the gradients.
    pub fn forward<H: Head>(
        &self,
        head: &H,
        hidden: Tensor<2>,
        targets: Tensor<1, Int>,
    ) -> Tensor<1> {
        let [tokens, _] = hidden.dims();
        let [targets_given] = targets.dims();
        assert!(
            tokens == targets_given,
            "there are {tokens} hidden states and {targets_given} targets: one target for each is needed"
        );
        assert!(
            tokens > 0,
            "there are no hidden states: the loss of no tokens is not defined, so leave empty batches out"
        );
        let given = targets.dtype();
        let targets = signed(targets);
        let padding = self.padding(&targets, given);
        let targets = match &padding {
            None => targets,
            // Any class: what it gives is not used.
            Some(padding) => targets.mask_fill(padding.clone(), 0),
        };
        let log_likelihoods = match (self.direction(head, hidden.dims()), head.classes()) {
            (LossDirection::Classes, Some(classes)) => {
                self.over_tiles(head, hidden, targets, classes)
            }
            _ => self.over_chunks(head, hidden, targets),
        };
        match padding {
            None => log_likelihoods.mean().neg(),
            Some(padding) => {
                let precision = precision(log_likelihoods.dtype());
                // In a type that can count them, whatever the default of the device is.
                let counted = padding.clone().bool_not().int().cast(precision).sum();
                log_likelihoods.mask_fill(padding, 0).sum().neg() / counted
            }
        }
    }

    /// Which way the loss goes with `head` over hidden states of shape `[tokens, d_model]`: the one that was asked for, or that
    /// which takes less memory in a backward pass. It is always chunks of tokens on devices of CubeCL, whose fusion fails on tiles, and
    /// with a head that can't compute some of its [classes](Head::classes) alone.
    pub fn direction<H: Head>(&self, head: &H, [tokens, d_model]: [usize; 2]) -> LossDirection {
        let Some(classes) = head.classes() else {
            return LossDirection::Tokens;
        };
        // The fusion of Burn 0.22.1 panics where it joins the reductions of tiles (`TraceFuser::block_local_input`).
        if head.devices().iter().any(is_cubecl) {
            return LossDirection::Tokens;
        }
        if let Some(direction) = self.0.direction {
            return direction;
        }
        let (chunk, tile) = (self.0.chunk_size.min(tokens), self.0.tile_size.min(classes));
        // Of logits, head and hidden states. One chunk is no sum.
        let of_heads = if chunk < tokens { 2 } else { 1 };
        let chunks = 6 * chunk * classes + of_heads * d_model * classes;
        let tiles = 6 * tokens * tile + d_model * classes + 3 * tokens * d_model;
        match tiles < chunks {
            true => LossDirection::Classes,
            false => LossDirection::Tokens,
        }
    }

    /// The logarithm of the probability of each target. Shapes: `[tokens, d_model]`, `[tokens]`, `[tokens]`.
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

    /// Which targets, that were `given` in this type, count for nothing.
    fn padding(&self, targets: &Tensor<1, Int>, given: DType) -> Option<Tensor<1, Bool>> {
        let is = |token: &i64| targets.clone().equal_scalar(*token);
        let has_sign = matches!(given, DType::I8 | DType::I16 | DType::I32 | DType::I64);
        // A number that the type of the targets does not have is none of them: the largest without a sign are negative
        // here.
        let fits = |token: &&i64| {
            (has_sign || **token >= 0)
                && (targets.dtype() == DType::I64 || i32::try_from(**token).is_ok())
        };
        let pads = self.0.pad_tokens.iter().flatten().filter(fits);
        pads.map(is).reduce(Tensor::bool_or)
    }
}

/// The logarithm of the probability of each target. Shapes: `[tokens, classes]`, `[tokens]`, `[tokens]`.
fn log_likelihoods(
    logits: Tensor<2>,
    targets: Tensor<1, Int>,
    smoothing: Option<f32>,
    soft_cap: Option<f64>,
) -> Tensor<1> {
    let [tokens, classes] = logits.dims();
    let outside = outside(&targets, classes);
    let targets = targets.mask_fill(outside.clone(), 0);
    let all = log_softmax(capped(logits, soft_cap), 1);
    let index = targets.reshape([tokens, 1]);
    let of_targets = all.clone().gather(1, index).reshape([tokens]);
    let of_all = || all.sum_dim(1).reshape([tokens]);
    smoothed(of_targets, of_all, smoothing, classes).mask_fill(outside, f32::NAN)
}

/// What there is of each target, with the share that smoothing spreads evenly over all `classes`, of which there is `of_all`.
fn smoothed<const D: usize>(
    of_target: Tensor<D>,
    of_all: impl FnOnce() -> Tensor<D>,
    smoothing: Option<f32>,
    classes: usize,
) -> Tensor<D> {
    let Some(share) = smoothing else {
        return of_target;
    };
    of_target.mul_scalar(1.0 - share) + of_all().mul_scalar(share / classes as f32)
}

/// `logits` in the type for probabilities, within the soft cap.
fn capped(logits: Tensor<2>, soft_cap: Option<f64>) -> Tensor<2> {
    let precision = precision(logits.dtype());
    let logits = logits.cast(precision);
    match soft_cap {
        None => logits,
        Some(cap) => logits.div_scalar(cap).tanh().mul_scalar(cap),
    }
}

/// `targets` in a type that has negative numbers, and all classes.
fn signed(targets: Tensor<1, Int>) -> Tensor<1, Int> {
    match targets.dtype() {
        DType::I32 | DType::I64 => targets,
        _ if targets.device().supports_dtype(DType::I64) => targets.cast(IntDType::I64),
        _ => targets.cast(IntDType::I32),
    }
}

/// The type for probabilities of logits in `dtype`.
fn precision(dtype: DType) -> FloatDType {
    match dtype {
        DType::F64 => FloatDType::F64,
        _ => FloatDType::F32,
    }
}

/// Which `targets` are no classes.
fn outside(targets: &Tensor<1, Int>, classes: usize) -> Tensor<1, Bool> {
    let below = targets.clone().lower_scalar(0);
    let outside = below.bool_or(targets.clone().greater_equal_scalar(classes as i64));
    let device = targets.device();
    let is_waited_for = is_cubecl(&device) || is_remote(&device);
    if !is_waited_for && outside.clone().any().into_scalar::<bool>() {
        let found: Vec<i64> = targets.clone().into_data().iter().collect();
        let found = found
            .into_iter()
            .find(|target| !(0..classes as i64).contains(target));
        panic!(
            "the target {} is not one of the {classes} classes of the head: look at the tokenizer, or name it in `pad_tokens`",
            found.unwrap_or_default()
        );
    }
    outside
}
