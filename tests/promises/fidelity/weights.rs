//! Fidelity for all uses of a weight, trained or frozen.

use burn::module::Initializer;
use burn::nn::loss::CrossEntropyLossConfig;

use super::*;

fn weights_tied_to_output_match_stock(device: &Device) {
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

/// A use of the weights: its loss, and the parameters that it trains.
type Use = (
    &'static str,
    fn(&TwoHeads, [Tensor<2>; 2], usize) -> Tensor<1>,
    fn(&str) -> bool,
);

const USES: [Use; 5] = [
    (
        "read but not in the loss",
        |model, [x, _], _| {
            let x = model.body.forward(x);
            let _read = model.second.forward(x.clone());
            square_mean(model.first.forward(x))
        },
        |path| !path.starts_with("second"),
    ),
    (
        "in some steps",
        |model, [x, _], step| {
            let head = [&model.first, &model.second][step % 2];
            square_mean(head.forward(model.body.forward(x)))
        },
        |_| true,
    ),
    (
        "frozen",
        |model, [x, _], _| model.loss(x),
        |path| !path.starts_with("first"),
    ),
    (
        "several forward passes in a step",
        |model, [x, y], _| {
            let of = |x, head: &Linear| square_mean(head.forward(model.body.forward(x)));
            of(x, &model.first) + of(y, &model.second)
        },
        |_| true,
    ),
    (
        "without a gradient in the step",
        |model, [x, _], _| {
            let judge = model.first.clone().no_grad();
            let x = model.body.forward(x);
            let target = model.valid().second.forward(x.clone().inner());
            square_mean(judge.forward(x) - Tensor::from_inner(target))
        },
        |path| path.starts_with("body"),
    ),
];

fn weights_in_every_use_match_stock(device: &Device) {
    for (name, loss, trained) in USES {
        println!("{name}");
        let init = || match name {
            "frozen" => TwoHeads::init(device).freeze_group(ParamGroup::from_predicate("first")),
            _ => TwoHeads::init(device),
        };
        let x = [(); 2].map(|()| random([5, 3], device));
        assert_fused_equals_stock(init, |model, step| loss(model, x.clone(), step), trained);
    }
}

fn weights_frozen_and_unfrozen_match_stock(device: &Device) {
    let x = random([5, 3], device);
    let loss = |model: &TwoHeads, _: usize| model.loss(x.clone());
    let freeze = |model: TwoHeads| model.freeze_group(ParamGroup::from_predicate("body"));
    let initial = TwoHeads::init(device);
    let copy = || copy(&initial, || TwoHeads::init(device));

    let mut optimizer = AdamWConfig::new().init();
    let mut fused = FusedOptimizer::new(copy(), optimizer.clone()).unwrap();
    let stock = train_stock(copy(), &mut optimizer, 2, RATE, loss);
    let stock = train_stock(freeze(stock), &mut optimizer, 2, RATE, loss);
    let stock = train_stock(stock.unfreeze(), &mut optimizer, 2, RATE, loss);

    train_fused(&mut fused, 2, RATE, loss);
    let before = fused.model();
    fused.change_model(freeze).unwrap();
    assert_eq!(parts(&fused), (4, 0, 2));
    train_fused(&mut fused, 2, RATE, loss);
    assert_changed(&before, &fused.model(), |path| !path.starts_with("body"));
    fused.change_model(TwoHeads::unfreeze).unwrap();
    train_fused(&mut fused, 2, RATE, loss);
    assert_equal_weights(&stock, &fused.model());
}

fn lora_adapters_match_stock(device: &Device) {
    let x = random([5, 3], device);
    for (thaws, expected) in [(false, (6, 0, 6)), (true, (9, 3, 0))] {
        let init = || {
            let adapted = TwoHeads::init(device).apply_lora(Lora::new(2, 4.0));
            if thaws { adapted.unfreeze() } else { adapted }
        };
        let fused = FusedOptimizer::new(init(), SgdConfig::new().init()).unwrap();
        assert_eq!(parts(&fused), expected);
        let trained = |path: &str| thaws || path.contains(".lora.");
        assert_fused_equals_stock(init, |model, _| model.loss(x.clone()), trained);
    }
}

fn lazily_initialized_parameters_match_stock(device: &Device) {
    let init = || -> (Param<Tensor<2>>, Linear) {
        let (min, max) = (-1.0, 1.0);
        let lazy = Initializer::Uniform { min, max }.init([3, 3], device);
        (lazy, LinearConfig::new(3, 2).init(device))
    };
    let lazy = init();
    assert!(!lazy.0.is_initialized());
    let mut fused = FusedOptimizer::new(lazy, AdamWConfig::new().init()).unwrap();
    let stock = copy(&fused.model(), init);

    let x = random([4, 3], device);
    let loss = |(weight, linear): &(Param<Tensor<2>>, Linear), _: usize| {
        square_mean(linear.forward(x.clone().matmul(weight.val())))
    };
    let stock = train_stock(stock, &mut AdamWConfig::new().init(), STEPS, RATE, loss);
    train_fused(&mut fused, STEPS, RATE, loss);
    assert_equal_weights(&stock, &fused.model());
}

fn weights_in_columns_match_stock(device: &Device) {
    let x = random([4, 3], device);
    let config = LinearConfig::new(3, 5).with_layout(LinearLayout::Col);
    assert_fused_equals_stock(
        || config.init(device),
        |model: &Linear, _| square_mean(model.forward(x.clone())),
        |_| true,
    );
}

on_every_backend!(
    weights_tied_to_output_match_stock,
    weights_in_every_use_match_stock,
    weights_frozen_and_unfrozen_match_stock,
    lora_adapters_match_stock,
    lazily_initialized_parameters_match_stock,
    weights_in_columns_match_stock,
);
