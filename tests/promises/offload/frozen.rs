//! Frozen weights wait on the host, too, and never go back.

use super::*;
use crate::common::*;

/// The devices of the parameters that are read in a block, and those on which they rest.
struct Places(Vec<(String, Device)>, Vec<String>);

impl ModuleVisitor for Places {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.1.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.1.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let device = param.base().device().inner();
        self.0.push((self.1.join("."), device));
    }
}

fn frozen(model: Network) -> Network {
    model.freeze_group(ParamGroup::from_predicate("expand.weight"))
}

fn frozen_weights_rest_on_the_host_and_are_read_on_the_device(device: &Device) {
    let initial = frozen(Network::init(device));
    let batches = batches(device);
    for mode in modes(device) {
        let copy = || copy(&initial, || frozen(Network::init(device)));
        let mut plain = FusedOptimizer::new_ok(copy(), AdamConfig::new().init());
        let mut fused = offloaded(copy(), AdamConfig::new().init(), device, mode);
        let inner = device.clone().inner();
        for tokens in &batches {
            plain.step_ok(RATE, |model| model.loss(tokens.clone()));
            fused.step_ok(RATE, |model| {
                let mut places = Places(Vec::new(), Vec::new());
                model.visit(&mut places);
                let weight = "blocks.1.expand.weight";
                let (_, rests) = places.0.iter().find(|(path, _)| path == weight).unwrap();
                let waits = matches!(mode, Offload::Weights(_));
                assert_eq!(*rests != inner, waits, "{mode:?}");
                let read = model.blocks[1].expand.weight.val();
                assert_eq!(read.device().inner(), inner);
                model.loss(tokens.clone())
            });
        }
        assert_equal_weights(&plain.model(), &fused.model());
        assert_equal_weights(&plain.valid(), &fused.model().valid());
        let mut places = Places(Vec::new(), Vec::new());
        fused.model().visit(&mut places);
        let host = host(device).inner();
        assert!(places.0.iter().all(|(_, place)| *place == host), "{mode:?}");
    }
}

/// `model` after three steps without offload and with it: their weights are equal.
fn trained_with_and_without(
    device: &Device,
    mode: Offload,
    model: Network,
    batches: &[Tensor<2, Int>],
) -> [FusedOptimizer<Network>; 2] {
    let mut plain = FusedOptimizer::new_ok(model.clone(), AdamConfig::new().init());
    let mut fused = offloaded(model, AdamConfig::new().init(), device, mode);
    let loss = |model: &Network, step: usize| model.loss(batches[step].clone());
    train_fused(&mut plain, 3, RATE, loss);
    train_fused(&mut fused, 3, RATE, loss);
    assert_equal_weights(&plain.model(), &fused.model());
    [plain, fused]
}

fn adapters_on_weights_that_wait_compute_in_inference(device: &Device) {
    let adapted = || Network::init(device).apply_lora(adapters());
    let batches = batches(device);
    for mode in modes(device) {
        let both = trained_with_and_without(device, mode, adapted(), &batches);
        let [expected, found] = both.map(|fused| {
            let logits = fused.valid().logits(batches[5].clone());
            // Copied at once: on wgpu the data show what is written in place later.
            logits.into_data().iter::<f64>().collect::<Vec<_>>()
        });
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-3;
        assert!(expected.iter().zip(&found).all(near), "{mode:?}");
    }
}

fn a_frozen_weight_in_two_blocks_waits_for_both(device: &Device) {
    let mut initial = frozen(Network::init(device));
    initial.blocks[2].expand.weight = initial.blocks[1].expand.weight.clone();
    let batches = batches(device);
    for mode in modes(device) {
        trained_with_and_without(device, mode, initial.clone(), &batches);
    }
}

fn an_adapter_outside_of_a_block_is_refused_by_name(device: &Device) {
    let model = Network::init(device).apply_lora(Lora::new(2, 4.0));
    let mode = Offload::Weights(OffloadedBlocks::All);
    let mut fused = offloaded(model, AdamConfig::new().init(), device, mode);
    let tokens = batches(device).remove(0);
    let step = || fused.step_ok(RATE, |model| model.loss(tokens.clone()));
    let text = panic_of(step);
    assert_says(&text, "`embedding.weight` waits on the host");
}

/// `model` with the adapters of its embedding frozen, and trained elsewhere.
fn with_a_frozen_adapter(model: Network) -> Network {
    let mut model = model.apply_lora(Lora::new(4, 4.0));
    model.embedding = model.embedding.no_grad();
    model
}

fn a_frozen_adapter_outside_of_a_block_is_refused_by_name(device: &Device) {
    let model = with_a_frozen_adapter(Network::init(device));
    // The adapters of the embedding wait, too, or are too small to.
    for min_elements in [10, 50] {
        let mode = Offload::Weights(OffloadedBlocks::All);
        let config = config(device, mode).with_min_elements(min_elements);
        let fused = FusedOptimizer::new_ok(model.clone(), AdamConfig::new().init());
        let mut fused = fused.with_config_on_ok(FusedConfig::offload(config), device);
        let tokens = batches(device).remove(0);
        for training in [true, false] {
            let text = panic_of(|| {
                fused.step_ok(RATE, |model| match training {
                    true => model.loss(tokens.clone()),
                    false => model.valid().loss(tokens.clone()),
                })
            });
            let expected = "`embedding.weight` waits on the host";
            assert!(text.contains(expected), "{min_elements}: {text}");
        }
        assert_equal_weights(&model, &fused.model());
    }
}

fn a_frozen_adapter_in_a_block_computes_with_its_base(device: &Device) {
    let mut model = Network::init(device).apply_lora(adapters());
    model.blocks[1] = model.blocks[1].clone().no_grad();
    let batches = batches(device);
    for mode in modes(device) {
        trained_with_and_without(device, mode, model.clone(), &batches);
    }
}

on_every_backend!(
    a_frozen_adapter_in_a_block_computes_with_its_base,
    a_frozen_adapter_outside_of_a_block_is_refused_by_name,
    an_adapter_outside_of_a_block_is_refused_by_name,
    frozen_weights_rest_on_the_host_and_are_read_on_the_device,
    adapters_on_weights_that_wait_compute_in_inference,
    a_frozen_weight_in_two_blocks_waits_for_both,
);
