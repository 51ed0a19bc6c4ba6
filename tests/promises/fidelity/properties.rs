//! Fused training equals stock Burn bit for bit, on architectures, parameter groups, freezing patterns
//! and recomputed blocks that nobody chose.

use burn::grad_clipping::GradientClipping;
use burn::nn::{RmsNorm, RmsNormConfig, Tanh};
use burn::optim::LionConfig;
use proptest::prelude::*;

use crate::common::*;

#[derive(Module, Debug)]
enum Norm {
    Layer(LayerNorm),
    Rms(RmsNorm),
}

#[derive(Module, Debug)]
struct Block {
    norm: Option<Norm>,
    expand: Linear,
    contract: Option<Linear>,
    gelu: Option<Gelu>,
    tanh: Option<Tanh>,
    #[module(skip)]
    residual: bool,
}

#[derive(Module, Debug)]
struct Stack {
    blocks: Vec<Block>,
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
    /// It runs twice, one after the other, with the same weights.
    twice: bool,
    recompute: Recompute,
}

/// The recomputed part of a block.
#[derive(Clone, Copy, Debug)]
enum Recompute {
    None,
    Block,
    /// All that there is of it from here on: the blocks after it are within this one.
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

fn init(plans: &[Plan], device: &Device) -> Stack {
    let linear = |input, output, bias| {
        LinearConfig::new(input, output)
            .with_bias(bias)
            .init(device)
    };
    let blocks = plans.iter().map(|plan| Block {
        norm: match plan.norm {
            0 => None,
            1 => Some(Norm::Layer(LayerNormConfig::new(WIDTH).init(device))),
            _ => Some(Norm::Rms(RmsNormConfig::new(WIDTH).init(device))),
        },
        expand: linear(WIDTH, plan.hidden.unwrap_or(WIDTH), plan.bias),
        contract: plan.hidden.map(|hidden| linear(hidden, WIDTH, plan.bias)),
        gelu: (plan.activation == 1).then(Gelu::new),
        tanh: (plan.activation == 2).then(Tanh::new),
        residual: plan.residual,
    });
    let mut stack = Stack {
        blocks: blocks.collect(),
    };
    for (index, plan) in plans.iter().enumerate() {
        let part = match plan.frozen {
            0 => "norm",
            1 => "expand",
            _ => continue,
        };
        let group = ParamGroup::from_predicate(format!("blocks.{index}.{part}"));
        stack = stack.freeze_group(group);
    }
    stack
}

fn optimizer(plans: &[Plan]) -> ModuleOptimizer {
    let initial = AdamWConfig::new().init();
    let groups = plans.iter().enumerate();
    groups.fold(initial, |optimizer, (index, plan)| {
        let group = ParamGroup::from_predicate(format!("blocks.{index}."));
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
        let hidden = match &self.norm {
            None => x.clone(),
            Some(Norm::Layer(norm)) => norm.forward(x.clone()),
            Some(Norm::Rms(norm)) => norm.forward(x.clone()),
        };
        let mut hidden = self.expand.forward(hidden);
        if let Some(gelu) = &self.gelu {
            hidden = gelu.forward(hidden);
        }
        if let Some(tanh) = &self.tanh {
            hidden = tanh.forward(hidden);
        }
        if let Some(contract) = &self.contract {
            hidden = contract.forward(hidden);
        }
        if self.residual { hidden + x } else { hidden }
    }
}

fn forward(blocks: &[Block], plans: &[Plan], x: Tensor<2>) -> Tensor<2> {
    blocks.iter().zip(plans).fold(x, |x, (block, plan)| {
        let x = block.forward(x);
        if plan.twice { block.forward(x) } else { x }
    })
}

fn recomputed(blocks: &[Block], plans: &[Plan], x: Tensor<2>) -> Tensor<2> {
    let ([block, rest @ ..], [plan, later @ ..]) = (blocks, plans) else {
        return x;
    };
    let run = |block: &Block, x| block.forward(x);
    let once = |x| match plan.recompute {
        Recompute::None | Recompute::Rest => block.forward(x),
        Recompute::Block | Recompute::Kept => gradient_checkpointing(block, x, run),
    };
    let x = once(x);
    let x = if plan.twice { once(x) } else { x };
    match plan.recompute {
        Recompute::Rest if !rest.is_empty() => {
            let run = |rest: &Vec<Block>, (x, Constant(later)): (_, Constant<Vec<Plan>>)| {
                recomputed(rest, &later, x)
            };
            gradient_checkpointing(&rest.to_vec(), (x, Constant(later.to_vec())), run)
        }
        _ => recomputed(rest, later, x),
    }
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

fn assert_fused_equals_stock(plans: &[Plan], device: &Device) {
    let initial = init(plans, device);
    let batches: Vec<Tensor<2>> = (0..3)
        .map(|_| Tensor::random([5, WIDTH], Distribution::Default, device))
        .collect();
    let loss = |model: &Stack, step: usize| {
        let output = forward(&model.blocks, plans, batches[step].clone());
        output.powi_scalar(2).mean()
    };

    let stock = copy(&initial, || init(plans, device));
    let stock = train_stock(stock, &mut optimizer(plans), 3, 1e-2, loss);
    let fused = copy(&initial, || init(plans, device));
    let mut fused = FusedOptimizer::new_ok(fused, optimizer(plans));
    train_fused(&mut fused, 3, 1e-2, loss);
    assert_equal_weights(&stock, &fused.model());

    let fused = copy(&initial, || init(plans, device));
    let mut fused = FusedOptimizer::new_ok(fused, optimizer(plans))
        .with_config_ok(FusedConfig::new().with_gradient_checkpointing(choice(plans)));
    train_fused(&mut fused, 3, 1e-2, |model, step| {
        let output = recomputed(&model.blocks, plans, batches[step].clone());
        output.powi_scalar(2).mean()
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
    fn any_architecture_groups_freezing_and_recomputed_blocks_on_flex(plans in plans()) {
        assert_fused_equals_stock(&plans, &Device::flex().autodiff());
    }

    #[test]
    #[allow(deprecated)] // Burn 0.22 still ships ndarray.
    fn any_architecture_groups_freezing_and_recomputed_blocks_on_ndarray(plans in plans()) {
        assert_fused_equals_stock(&plans, &Device::ndarray().autodiff());
    }
}
