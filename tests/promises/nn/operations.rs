//! Operations of `backburn-nn` train fused as in stock Burn, whatever the model and the way to train.

use crate::common::*;

const RATE: f64 = 1e-2;
const STEPS: usize = 3;

#[test]
fn own_backward_trains_as_stock_in_steps_and_blocks() {
    for device in cpus() {
        for is_in_block in [false, true] {
            let [initial, stock, fused] = train_both(
                || Decoder::init(&device),
                &AdamWConfig::new().init(),
                STEPS,
                RATE,
                |model, step| model.loss(step, is_in_block),
            );
            assert_equal_weights(&stock, &fused);
            assert_changed(&initial, &fused, |_| true);
        }
    }
}

type Edit = fn(Decoder) -> Decoder;

/// Decoders with a frozen part, and with adapters on a frozen, trained or quantized base.
const PARTS: [(&str, Edit); 5] = [
    ("frozen head", |model| {
        model.freeze_group(ParamGroup::from_predicate("embedding"))
    }),
    ("frozen norms", |model| {
        model.freeze_group(ParamGroup::from_predicate("norm"))
    }),
    ("adapters", |model| {
        let layers = ParamGroup::from_predicates(vec!["mlp", "weight"]);
        model.apply_lora(Lora::new(2, 4.0).set_param_group(layers))
    }),
    ("adapters and their base", |model| {
        let layers = ParamGroup::from_predicates(vec!["mlp", "weight"]);
        model
            .apply_lora(Lora::new(2, 4.0).set_param_group(layers))
            .unfreeze()
    }),
    ("adapters on codes", |model| {
        let layers = ParamGroup::from_predicates(vec!["mlp", "weight"]);
        let lora = Lora::new(2, 4.0).set_param_group(layers);
        model.apply_reparameterization(QuantizedLora::new(lora, BaseFormat::Bits4))
    }),
];

#[test]
fn own_backward_with_a_part_trained_equals_stock() {
    let device = flex();
    for ((name, edit), is_in_block) in product(PARTS, [false, true]) {
        println!("{name}, in a block: {is_in_block}");
        let initial = edit(Decoder::init(&device));
        let mut stock = AdamWConfig::new().init();
        let loss = |model: &Decoder, step: usize| model.loss(step, is_in_block);
        let expected = train_stock(initial.clone(), &mut stock, STEPS, RATE, loss);
        let mut fused = FusedOptimizer::new(initial, AdamWConfig::new().init()).unwrap();
        train_fused(&mut fused, STEPS, RATE, loss);
        assert_equal_weights(&expected, &fused.model());
    }
}

#[test]
fn own_backward_dry_run_changes_nothing() {
    let initial = Decoder::init(&flex());
    for is_in_block in [false, true] {
        let loss = |model: &Decoder, step: usize| model.loss(step, is_in_block);
        let mut fused = FusedOptimizer::new(initial.clone(), AdamWConfig::new().init()).unwrap();
        fused.dry_run(|model| loss(model, 1)).unwrap();
        assert_equal_weights(&initial, &fused.model());
        train_fused(&mut fused, STEPS, RATE, loss);
        let mut stock = AdamWConfig::new().init();
        let expected = train_stock(initial.clone(), &mut stock, STEPS, RATE, loss);
        assert_equal_weights(&expected, &fused.model());
    }
}

#[test]
fn own_backward_clipped_in_two_passes_is_same_in_blocks() {
    let initial = Decoder::init(&flex());
    let clipping = GlobalNormClippingConfig::Exact(1e-3);
    let in_blocks = [false, true].map(|is_in_block| {
        let config = FusedConfig::new().with_clipping(Some(clipping));
        let mut fused = FusedOptimizer::new(initial.clone(), SgdConfig::new().init())
            .unwrap()
            .with_config(config)
            .unwrap();
        for step in 0..STEPS {
            fused
                .step_repeatable(1.0, |model| model.loss(step, is_in_block))
                .unwrap();
        }
        fused.model()
    });
    assert_changed(&initial, &in_blocks[0], |_| true);
    assert_equal_weights(&in_blocks[0], &in_blocks[1]);
}

#[test]
fn own_backward_in_compute_dtype_equals_mixed_precision_by_hand() {
    let initial = Decoder::init(&flex());
    for dtype in [FloatDType::BF16, FloatDType::F16] {
        let mut expected = initial.clone();
        let mut optimizer = AdamWConfig::new().init();
        for step in 0..STEPS {
            let computed = cast(expected.clone(), dtype).unwrap();
            let gradients = computed.loss(step, false).backward();
            let gradients = GradientsParams::from_grads(gradients, &computed);
            let gradients = in_types_of(&expected, gradients);
            expected = optimizer.step(RATE, expected, gradients);
        }
        for is_in_block in [false, true] {
            let config = FusedConfig::new().with_compute_dtype(Some(dtype));
            let fused = FusedOptimizer::new(initial.clone(), AdamWConfig::new().init()).unwrap();
            let mut fused = fused.with_config(config).unwrap();
            train_fused(&mut fused, STEPS, RATE, |model, step| {
                model.loss(step, is_in_block)
            });
            assert_equal_weights(&expected, &fused.model());
        }
    }
}

#[test]
fn own_backward_offloaded_equals_stock() {
    let initial = Decoder::init(&flex());
    for (mode, is_in_block) in product(OFFLOADS, [false, true]) {
        let loss = |model: &Decoder, step: usize| model.loss(step, is_in_block);
        let mut stock = AdamWConfig::new().init();
        let expected = train_stock(initial.clone(), &mut stock, STEPS, RATE, loss);
        let config = FusedConfig::offload(offload_from_flex(mode));
        let fused = FusedOptimizer::new(initial.clone(), AdamWConfig::new().init()).unwrap();
        let mut fused = fused.with_config_on(config, &flex()).unwrap();
        train_fused(&mut fused, STEPS, RATE, loss);
        assert_equal_weights(&expected, &fused.model());
    }
}

#[test]
fn own_backward_in_low_bits_equals_stock_loop() {
    // Smaller states are full.
    let wide = Decoder::of_width(64, &flex());
    let formats = [
        (StateFormat::Bits8, WeightFormat::Plain, FloatDType::F32),
        (
            StateFormat::Bits4,
            WeightFormat::Stochastic,
            FloatDType::BF16,
        ),
        (StateFormat::Bits8, WeightFormat::Split24, FloatDType::BF16),
    ];
    for ((states, weights, dtype), is_in_block) in product(formats, [false, true]) {
        let initial = cast(wide.clone(), dtype).unwrap();
        let optimizer = || {
            let config = optim::AdamWConfig::new().with_state_format(states);
            config.with_weight_format(weights).init()
        };
        let loss = |model: &Decoder, step: usize| model.loss(step, is_in_block);
        let expected = train_stock(initial.clone(), &mut optimizer(), STEPS, RATE, loss);
        assert_changed(&initial, &expected, |_| true);
        let mut fused = FusedOptimizer::new(initial, optimizer()).unwrap();
        train_fused(&mut fused, STEPS, RATE, loss);
        assert_equal_weights(&expected, &fused.model());
    }
}
