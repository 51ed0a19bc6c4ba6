//! Fidelity for all uses of a weight, trained or frozen.

use burn::module::Initializer;
use burn::nn::loss::CrossEntropyLossConfig;

use super::*;
use crate::backends::on_every_backend;

fn weights_tied_between_embedding_and_output(device: &Device) {
    #[derive(Module, Debug)]
    struct Tied {
        embedding: Embedding,
        hidden: Linear,
    }

    assert_fused_equals_stock(
        || Tied {
            embedding: EmbeddingConfig::new(7, 6).init(device),
            hidden: LinearConfig::new(6, 6).init(device),
        },
        |model, _| {
            let x = model.embedding.forward(token_ids(device));
            let x = model.hidden.forward(x);
            let logits = x.matmul(model.embedding.weight.val().transpose().unsqueeze());
            CrossEntropyLossConfig::new()
                .init(device)
                .forward(logits.reshape([8, 7]), token_ids(device).reshape([8]))
        },
        |_| true,
    );
}

fn weights_not_used_in_the_loss(device: &Device) {
    let x = random([5, 3], device);
    assert_fused_equals_stock(
        || TwoHeads::init(device),
        |model, _| {
            let x = model.body.forward(x.clone());
            let _read_but_not_in_the_loss = model.second.forward(x.clone());
            square_mean(model.first.forward(x))
        },
        |path| !path.starts_with("second"),
    );
}

fn weights_used_in_some_steps_only(device: &Device) {
    let x = random([5, 3], device);
    assert_fused_equals_stock(
        || TwoHeads::init(device),
        |model, step| {
            let x = model.body.forward(x.clone());
            let head = if step % 2 == 0 {
                &model.first
            } else {
                &model.second
            };
            square_mean(head.forward(x))
        },
        |_| true,
    );
}

fn frozen_weights(device: &Device) {
    let x = random([5, 3], device);
    assert_fused_equals_stock(
        || {
            let group = ParamGroup::from_predicate("first");
            TwoHeads::init(device).freeze_group(group)
        },
        |model, _| {
            let x = model.body.forward(x.clone());
            square_mean(model.first.forward(x.clone()) - model.second.forward(x))
        },
        |path| !path.starts_with("first"),
    );
}

fn weights_frozen_and_thawed_between_steps(device: &Device) {
    let x = random([5, 3], device);
    let loss = |model: &TwoHeads, _: usize| {
        let x = model.body.forward(x.clone());
        square_mean(model.first.forward(x.clone()) - model.second.forward(x))
    };
    let freeze = |model: TwoHeads| model.freeze_group(ParamGroup::from_predicate("body"));
    let optimizer = || AdamWConfig::new().init();
    let initial = TwoHeads::init(device);

    let mut stock_optimizer = optimizer();
    let stock = copy(&initial, || TwoHeads::init(device));
    let stock = train_stock(stock, &mut stock_optimizer, 2, RATE, loss);
    let stock = train_stock(freeze(stock), &mut stock_optimizer, 2, RATE, loss);
    let stock = train_stock(stock.unfreeze(), &mut stock_optimizer, 2, RATE, loss);

    let fused = copy(&initial, || TwoHeads::init(device));
    let mut fused = FusedOptimizer::new_ok(fused, optimizer());
    train_fused(&mut fused, 2, RATE, loss);
    let before = fused.model();
    fused.change_model_ok(freeze);
    assert_eq!((fused.num_released(), fused.num_frozen()), (4, 2));
    train_fused(&mut fused, 2, RATE, loss);
    assert_changed(&before, &fused.model(), |path| !path.starts_with("body"));
    fused.change_model_ok(TwoHeads::unfreeze);
    train_fused(&mut fused, 2, RATE, loss);

    assert_equal_weights(&stock, &fused.model());
}

fn lora_adapters_on_a_frozen_base(device: &Device) {
    let x = random([5, 3], device);
    assert_fused_equals_stock(
        || TwoHeads::init(device).apply_lora(Lora::new(2, 4.0)),
        |model, _| {
            let x = model.body.forward(x.clone());
            square_mean(model.first.forward(x.clone()) - model.second.forward(x) + 1.0)
        },
        |path| path.contains(".lora."),
    );
}

fn lora_adapters_on_a_base_in_training(device: &Device) {
    let x = random([5, 3], device);
    let init = || {
        TwoHeads::init(device)
            .apply_lora(Lora::new(2, 4.0))
            .unfreeze()
    };
    let fused = FusedOptimizer::new_ok(init(), SgdConfig::new().init());
    assert_eq!(
        (
            fused.num_released(),
            fused.num_retained(),
            fused.num_frozen()
        ),
        (9, 3, 0)
    );

    assert_fused_equals_stock(
        init,
        |model, _| {
            let x = model.body.forward(x.clone());
            square_mean(model.first.forward(x.clone()) - model.second.forward(x) + 1.0)
        },
        |_| true,
    );
}

fn lazily_initialized_parameters(device: &Device) {
    #[derive(Module, Debug)]
    struct Lazy {
        weight: Param<Tensor<2>>,
        linear: Linear,
    }

    let init = || Lazy {
        weight: Initializer::Uniform {
            min: -1.0,
            max: 1.0,
        }
        .init([3, 3], device),
        linear: LinearConfig::new(3, 2).init(device),
    };
    let lazy = init();
    assert!(!lazy.weight.is_initialized());
    let mut fused = FusedOptimizer::new_ok(lazy, AdamWConfig::new().init());
    let initialized = fused.model();

    let x = random([4, 3], device);
    let loss = |model: &Lazy, _: usize| {
        square_mean(model.linear.forward(x.clone().matmul(model.weight.val())))
    };
    let stock = copy(&initialized, init);
    let stock = train_stock(stock, &mut AdamWConfig::new().init(), STEPS, RATE, loss);
    train_fused(&mut fused, STEPS, RATE, loss);
    assert_equal_weights(&stock, &fused.model());
}

fn weights_in_column_layout(device: &Device) {
    let x = random([4, 3], device);
    assert_fused_equals_stock(
        || {
            LinearConfig::new(3, 5)
                .with_layout(LinearLayout::Col)
                .init(device)
        },
        |model, _| square_mean(model.forward(x.clone())),
        |_| true,
    );
}

on_every_backend!(
    weights_tied_between_embedding_and_output,
    weights_not_used_in_the_loss,
    weights_used_in_some_steps_only,
    frozen_weights,
    weights_frozen_and_thawed_between_steps,
    lora_adapters_on_a_frozen_base,
    lora_adapters_on_a_base_in_training,
    lazily_initialized_parameters,
    weights_in_column_layout,
);
