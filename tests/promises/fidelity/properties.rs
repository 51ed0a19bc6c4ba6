//! Fused training equals stock Burn bit for bit, on random architectures, parameter groups, freezing patterns and
//! recomputed blocks.

use burn::grad_clipping::GradientClipping;
use burn::nn::{RmsNorm, RmsNormConfig};
use burn::optim::LionConfig;
use proptest::prelude::*;

use super::square_mean;
use crate::common::*;

#[derive(Module, Debug)]
struct Block {
    layer_norm: Option<LayerNorm>,
    rms_norm: Option<RmsNorm>,
    expand: Linear,
    contract: Option<Linear>,
    #[module(skip)]
    plan: Plan,
}

/// The random options of one block.
#[derive(Clone, Debug)]
struct Plan {
    norm: u8,
    activation: u8,
    hidden: Option<usize>,
    bias: bool,
    residual: bool,
    frozen: u8,
    group: u8,
    /// `true` if it runs twice in a row with the same weights.
    twice: bool,
    recompute: Recompute,
}

/// The recomputed part of a block.
#[derive(Clone, Copy, Debug)]
enum Recompute {
    None,
    Block,
    /// The rest of the model: all later blocks are nested in this one.
    Rest,
    /// A `Block` that keeps its activations.
    Kept,
}

const WIDTH: usize = 4;

fn plan() -> impl Strategy<Value = Plan> {
    let hidden = prop::option::of(1usize..7);
    let shape = (0u8..3, 0u8..3, hidden, any::<bool>(), any::<bool>());
    let recompute = prop::sample::select(vec![
        Recompute::None,
        Recompute::Block,
        Recompute::Rest,
        Recompute::Kept,
    ]);
    (shape, 0u8..4, 0u8..4, any::<bool>(), recompute).prop_map(
        |((norm, activation, hidden, bias, residual), frozen, group, twice, recompute)| Plan {
            norm,
            activation,
            hidden,
            bias,
            residual,
            frozen,
            group,
            twice,
            recompute,
        },
    )
}

fn init(plans: &[Plan], device: &Device) -> Vec<Block> {
    let block = |plan: &Plan| {
        let linear = |input, output| {
            let config = LinearConfig::new(input, output);
            config.with_bias(plan.bias).init(device)
        };
        let block = Block {
            layer_norm: (plan.norm == 1).then(|| LayerNormConfig::new(WIDTH).init(device)),
            rms_norm: (plan.norm == 2).then(|| RmsNormConfig::new(WIDTH).init(device)),
            expand: linear(WIDTH, plan.hidden.unwrap_or(WIDTH)),
            contract: plan.hidden.map(|hidden| linear(hidden, WIDTH)),
            plan: plan.clone(),
        };
        match plan.frozen {
            0 => block.freeze_group(ParamGroup::from_predicate("norm")),
            1 => block.freeze_group(ParamGroup::from_predicate("expand")),
            _ => block,
        }
    };
    plans.iter().map(block).collect()
}

fn optimizer(plans: &[Plan]) -> ModuleOptimizer {
    let initial = AdamWConfig::new().init();
    let groups = plans.iter().enumerate();
    groups.fold(initial, |optimizer, (index, plan)| {
        let group = ParamGroup::from_predicate(format!("{index}."));
        match plan.group {
            0 => optimizer,
            1 => optimizer.with_group(group, SgdConfig::new().build(), None),
            2 => {
                let clipping = GradientClipping::Norm(0.01);
                optimizer.with_group(group, AdamConfig::new().build(), Some(clipping))
            }
            _ => optimizer.with_group(group, LionConfig::new().build(), None),
        }
    })
}

impl Block {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let mut hidden = x.clone();
        if let Some(norm) = &self.layer_norm {
            hidden = norm.forward(hidden);
        }
        if let Some(norm) = &self.rms_norm {
            hidden = norm.forward(hidden);
        }
        hidden = self.expand.forward(hidden);
        hidden = match self.plan.activation {
            0 => hidden,
            1 => Gelu::new().forward(hidden),
            _ => hidden.tanh(),
        };
        if let Some(contract) = &self.contract {
            hidden = contract.forward(hidden);
        }
        if self.plan.residual {
            hidden + x
        } else {
            hidden
        }
    }
}

fn plain(blocks: &[Block], x: Tensor<2>) -> Tensor<2> {
    blocks.iter().fold(x, |x, block| {
        let x = block.forward(x);
        if block.plan.twice {
            block.forward(x)
        } else {
            x
        }
    })
}

fn recomputed(blocks: &[Block], x: Tensor<2>) -> Tensor<2> {
    let [block, rest @ ..] = blocks else {
        return x;
    };
    let recompute = block.plan.recompute;
    let is_block = matches!(recompute, Recompute::Block | Recompute::Kept);
    let x = block_if(is_block, block, x, Block::forward);
    let x = match block.plan.twice {
        true => block_if(is_block, block, x, Block::forward),
        false => x,
    };
    let is_rest = matches!(recompute, Recompute::Rest) && !rest.is_empty();
    block_if(is_rest, &rest.to_vec(), x, |rest, x| recomputed(rest, x))
}

/// The outermost blocks that keep their activations.
fn choice(plans: &[Plan]) -> GradientCheckpointingConfig {
    let mut keep = Vec::new();
    for plan in plans {
        let uses = if plan.twice { 2 } else { 1 };
        match plan.recompute {
            Recompute::None => {}
            Recompute::Block => keep.extend(vec![false; uses]),
            Recompute::Kept => keep.extend(vec![true; uses]),
            Recompute::Rest => break,
        }
    }
    GradientCheckpointingConfig::new().with_keep_activations(keep)
}

fn assert_matches_stock(plans: &[Plan], device: &Device) {
    let batch = |_| Tensor::<2>::random([5, WIDTH], Distribution::Default, device);
    let batches: Vec<_> = (0..3).map(batch).collect();
    let loss = |model: &Vec<Block>, step: usize| square_mean(plain(model, batches[step].clone()));
    let optimizer = optimizer(plans);
    let init = || init(plans, device);
    let [initial, stock, fused] = train_both(init, &optimizer, 3, 1e-2, loss);
    assert_equal_weights(&stock, &fused);

    let config = FusedConfig::new().with_gradient_checkpointing(choice(plans));
    let fused = FusedOptimizer::new(copy(&initial, init), optimizer).unwrap();
    let mut fused = fused.with_config(config).unwrap();
    train_fused(&mut fused, 3, 1e-2, |model, step| {
        square_mean(recomputed(model, batches[step].clone()))
    });
    assert_equal_weights(&stock, &fused.model());
}

/// At least one parameter must be in training: the last block is never frozen.
fn plans() -> impl Strategy<Value = Vec<Plan>> {
    prop::collection::vec(plan(), 1..6).prop_map(|mut plans| {
        if let Some(last) = plans.last_mut() {
            last.frozen = 3;
        }
        plans
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_architecture_in_any_blocks_matches_stock_on_flex(plans in plans()) {
        assert_matches_stock(&plans, &cpus()[0]);
    }

    #[test]
    fn any_architecture_in_any_blocks_matches_stock_on_ndarray(plans in plans()) {
        assert_matches_stock(&plans, &cpus()[1]);
    }
}
