//! Frozen weights are also on the host, and are never transferred back.

use super::*;

fn frozen(model: Network) -> Network {
    model.freeze_group(ParamGroup::from_predicate("expand.weight"))
}

fn frozen_weights_rest_on_host_and_are_read_on_device(device: &Device) {
    let initial = Network::init(device);
    let batches = batches(device);
    for mode in modes(device) {
        let [mut plain, mut fused] =
            [None, Some(mode)].map(|mode| adam(frozen(twin(&initial)), device, mode));
        let inner = device.clone().inner();
        for tokens in &batches {
            plain
                .step(RATE, |model| model.loss(tokens.clone()))
                .unwrap();
            fused
                .step(RATE, |model| {
                    let weight = &model.blocks[1].expand.weight;
                    let rests = weight.base().device().inner();
                    let waits = matches!(mode, Offload::Weights(_));
                    assert_eq!(rests != inner, waits, "{mode:?}");
                    assert_eq!(weight.val().device().inner(), inner);
                    assert_eq!(model.blocks[1].expand.devices()[0].clone().inner(), inner);
                    model.loss(tokens.clone())
                })
                .unwrap();
        }
        assert_equal_weights(&plain.model(), &fused.model());
        assert_equal_weights(&plain.valid(), &fused.model().valid());
        assert_eq!(fused.valid().devices()[0], inner);
        assert_eq!(fused.model().devices(), [host(device)], "{mode:?}");
    }
}

/// The adapters are trained, and the base is frozen, or trained as an ordinary leaf.
fn adapters_and_shared_frozen_weights_train_as_without_offload(device: &Device) {
    let adapted = || Network::init(device).apply_lora(adapters());
    let mut with_frozen_adapter = adapted();
    with_frozen_adapter.blocks[1] = with_frozen_adapter.blocks[1].clone().no_grad();
    let mut shared_by_blocks = frozen(Network::init(device));
    shared_by_blocks.blocks[2].expand.weight = shared_by_blocks.blocks[1].expand.weight.clone();
    let batches = batches(device);
    let loss = |model: &Network, step: usize| model.loss(batches[step].clone());
    for initial in [
        adapted(),
        adapted().unfreeze(),
        with_frozen_adapter,
        shared_by_blocks,
    ] {
        let fuse = |mode| adam(initial.clone(), device, mode);
        assert_offload_changes_nothing(device, &modes(device), fuse, |fused| {
            train_fused(fused, 4, RATE, loss);
        });
    }
}

/// Burn keeps the id of a parameter in its records.
fn frozen_copies_with_one_id_keep_their_values(device: &Device) {
    let mut initial = frozen(Network::init(device));
    let weight = initial.blocks[1].expand.weight.clone();
    let other = weight.map(|weight| (weight + 1).detach());
    initial.blocks[2].expand.weight = other;
    let batches = batches(device);
    let loss = |model: &Network, step: usize| model.loss(batches[step].clone());
    let fuse = |mode| adam(initial.clone(), device, mode);
    assert_equal_weights(&initial, &fuse(None).model());
    assert_offload_changes_nothing(device, &modes(device), fuse, |fused| {
        train_fused(fused, 3, RATE, loss);
    });
}

fn adapter_outside_of_blocks_is_refused_by_name(device: &Device) {
    let trained = Network::init(device).apply_lora(Lora::new(2, 4.0));
    let mut frozen = Network::init(device).apply_lora(Lora::new(4, 4.0));
    frozen.embedding = frozen.embedding.no_grad();
    let tokens = batches(device).remove(0);
    // The adapters of the embedding are offloaded, too, unless they are too small.
    for (model, min_elements) in [(trained, 10), (frozen.clone(), 10), (frozen, 50)] {
        let mode = Offload::Weights(OffloadedBlocks::All);
        let config = config(device, mode).with_min_elements(min_elements);
        let fused = FusedOptimizer::new(model.clone(), AdamConfig::new().init()).unwrap();
        let mut fused = fused
            .with_config_on(FusedConfig::offload(config), device)
            .unwrap();
        for training in [true, false] {
            let text = panic_of(|| {
                fused
                    .step(RATE, |model| match training {
                        true => model.loss(tokens.clone()),
                        false => model.valid().loss(tokens.clone()),
                    })
                    .unwrap()
            });
            assert_says(&text, "`embedding.weight` is offloaded");
        }
        assert_equal_weights(&model, &fused.model());
    }

    // Also if two layers share the base.
    let mut shared = Network::init(device);
    shared.blocks[2].expand.weight = shared.blocks[1].expand.weight.clone();
    let mode = Offload::Weights(OffloadedBlocks::All);
    let mut fused = adam(shared.apply_lora(adapters()), device, mode);
    for block in [1, 2] {
        let text = panic_of(|| {
            let read = |model: &Network| model.blocks[block].expand.weight.val().sum();
            fused.step(RATE, read).unwrap()
        });
        assert_says(
            &text,
            &format!("`blocks.{block}.expand.weight` is offloaded"),
        );
    }
}

on_every_backend!(
    adapters_and_shared_frozen_weights_train_as_without_offload,
    frozen_copies_with_one_id_keep_their_values,
    adapter_outside_of_blocks_is_refused_by_name,
    frozen_weights_rest_on_host_and_are_read_on_device,
);

/// The quantized weights are merged, too. Dense, they stay on the host.
#[test]
fn valid_of_float_and_quantized_adapters_stays_on_host() {
    let [host, device] = cpus();
    let of = |part| adapters().set_param_group(ParamGroup::from_predicate(part));
    let quantized = QuantizedLora::new(of("blocks.1"), BaseFormat::Bits4);
    let model = Network::init(&host)
        .apply_lora(of("blocks.0"))
        .apply_reparameterization(quantized)
        .unfreeze_group(ParamGroup::from_any_predicates(vec!["lora.a", "lora.b"]));
    let tokens = Tensor::<2, Int>::from_data([[0, 3, 1], [7, 2, 9]], &device);
    let mode = Offload::Weights(OffloadedBlocks::All);
    let mut fused = adam(model, &device, mode);
    fused
        .step(RATE, |model| model.loss(tokens.clone()))
        .unwrap();
    let valid = fused.valid();
    for block in &valid.blocks[..2] {
        let weight = &block.expand.weight;
        assert_eq!(weight.base().device(), host.clone().inner());
        assert_eq!(weight.val().device(), device.clone().inner());
    }
    valid.loss(tokens.inner());
}

#[test]
fn valid_of_adapters_in_bf16_computes_as_training() {
    let [host, device] = cpus();
    let trained = ParamGroup::from_predicate("embedding");
    let lora = adapters().set_dtype(FloatDType::BF16);
    let mut model = Network::init(&host)
        .apply_lora(lora)
        .unfreeze_group(trained);
    model.embedding = cast(model.embedding, FloatDType::BF16).unwrap();
    let in_f32 = FusedConfig::new().with_compute_dtype(Some(FloatDType::F32));
    let weights = config(&device, Offload::Weights(OffloadedBlocks::All));
    let logits = |config: FusedConfig, device: &Device| {
        let fused = FusedOptimizer::new(model.clone(), AdamConfig::new().init()).unwrap();
        let mut fused = fused.with_config_on(config, device).unwrap();
        let tokens = Tensor::<2, Int>::from_data([[0, 3, 1], [7, 2, 9]], device);
        for _ in 0..3 {
            fused
                .step(RATE, |model| model.loss(tokens.clone()))
                .unwrap();
        }
        let logits = fused.valid().logits(tokens.inner()).into_data();
        logits.iter::<f64>().collect::<Vec<_>>()
    };
    let expected = logits(in_f32.clone(), &host);
    let found = logits(in_f32.with_offload(Some(weights)), &device);
    let are_near = expected
        .iter()
        .zip(&found)
        .all(|(a, b)| (a - b).abs() <= 1e-5);
    assert!(are_near, "{expected:?} {found:?}");
}
