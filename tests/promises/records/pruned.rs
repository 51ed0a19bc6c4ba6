//! If parameters are removed between two steps, exactly their optimizer states are removed.

use backburn::optim as ours;
use burn::optim::{AdanConfig, MuonConfig};

use crate::common::*;

pub(super) const RATE: f64 = 0.01;

pub(super) type Net = Vec<Linear>;

pub(super) fn init(device: &Device) -> Net {
    let linear = |input, output| LinearConfig::new(input, output).init(device);
    // Smaller matrices have no states in 8 bits.
    vec![linear(66, 66), linear(66, 64)]
}

pub(super) fn loss(model: &Net, x: Tensor<2>) -> Tensor<1> {
    loss_of_layers(model, false, x)
}

pub(super) fn without_last_layer(mut model: Net) -> Net {
    model.pop();
    model
}

pub(super) fn optimizers() -> Vec<ModuleOptimizer> {
    let muon = MuonConfig::new().build();
    let matrices = ParamGroup::from_predicate("weight");
    let adamw = || AdamWConfig::new().init();
    let in_8_bits = ours::AdamWConfig::new().with_state_format(StateFormat::Bits8);
    vec![
        adamw(),
        adamw().with_group(matrices, muon, None),
        AdanConfig::new().init(),
        ours::AdamWConfig::new().init(),
        in_8_bits.init(),
    ]
}

fn removed_layer_leaves_record_and_rest_equals_stock(device: &Device) {
    let initial = init(device);
    let x = Tensor::<2>::random([4, 66], Distribution::Default, device);
    for optimizer in optimizers() {
        let loss = |model: &Net, _| loss(model, x.clone());
        let start = || copy(&initial, || init(device));
        let mut fused = FusedOptimizer::new(start(), optimizer.clone()).unwrap();
        let mut in_stock = optimizer.clone();
        train_fused(&mut fused, 2, RATE, loss);
        let stock = train_stock(start(), &mut in_stock, 2, RATE, loss);

        fused.change_model(without_last_layer).unwrap();
        let stock = without_last_layer(stock);
        train_fused(&mut fused, 2, RATE, loss);
        let stock = train_stock(stock, &mut in_stock, 2, RATE, loss);
        assert_equal_weights(&stock, &fused.model());

        assert_eq!(fused.load_record(fused.to_record()), Ok(()));
        let (model, optimizer) = fused.into_parts();
        let mut again = FusedOptimizer::new(model, optimizer).unwrap();
        assert_eq!(again.load_record(again.to_record()), Ok(()));
    }
}

/// Returns the layer with new parameters, without optimizer states.
pub(super) fn with_new_ids(layer: &Linear) -> Linear {
    let bias = layer.bias.as_ref();
    Linear {
        weight: Param::initialized(ParamId::new(), layer.weight.val()),
        bias: bias.map(|bias| Param::initialized(ParamId::new(), bias.val())),
    }
}

fn layer_that_is_cut_down_starts_without_state(device: &Device) {
    let initial = init(device);
    let x = Tensor::<2>::random([4, 66], Distribution::Default, device);
    let loss = |model: &Net, _| loss(model, x.clone());
    let cut_down = |mut model: Net| {
        let last = model.pop().unwrap();
        let cut = |value: Tensor<2>| value.narrow(1, 0, 2).detach().require_grad();
        model.push(Linear {
            weight: last.weight.map(cut),
            bias: None,
        });
        model
    };
    for optimizer in [AdamWConfig::new().init(), ours::AdamWConfig::new().init()] {
        let start = || copy(&initial, || init(device));
        let mut in_stock = optimizer.clone();
        let mut stock = cut_down(train_stock(start(), &mut in_stock, 2, RATE, loss));
        stock[1] = with_new_ids(&stock[1]);
        let stock = train_stock(stock, &mut in_stock, 3, RATE, loss);

        let mut fused = FusedOptimizer::new(start(), optimizer).unwrap();
        train_fused(&mut fused, 2, RATE, loss);
        fused.change_model(cut_down).unwrap();
        train_fused(&mut fused, 2, RATE, loss);
        assert_eq!(fused.load_record(fused.to_record()), Ok(()));
        train_fused(&mut fused, 1, RATE, loss);
        assert_equal_weights(&stock, &fused.model());
    }
}

/// In bf16, of which Burn's optimizers load no state.
#[test]
fn merged_adapters_leave_record_and_rest_equals_stock() {
    let device = &Device::flex().autodiff();
    let x = Tensor::<2>::random([4, 66], Distribution::Default, device).cast(FloatDType::BF16);
    for optimizer in optimizers() {
        let loss = |model: &Net, _| loss(model, x.clone());
        let model = backburn::cast(init(device), FloatDType::BF16).unwrap();
        let adapted = model.apply_lora(Lora::new(2, 4.0)).unfreeze();
        let mut in_stock = optimizer.clone();
        let stock = train_stock(adapted.clone(), &mut in_stock, 2, RATE, loss);
        let stock = train_stock(stock.materialize(), &mut in_stock, 2, RATE, loss);

        let mut fused = FusedOptimizer::new(adapted, optimizer).unwrap();
        train_fused(&mut fused, 2, RATE, loss);
        fused.change_model(Module::materialize).unwrap();
        train_fused(&mut fused, 2, RATE, loss);
        assert_equal_weights(&stock, &fused.model());
        assert_eq!(fused.load_record(fused.to_record()), Ok(()));
    }
}

#[test]
fn removed_layer_with_offloaded_states_equals_stock() {
    let device = &Device::flex().autodiff();
    let x = Tensor::<2>::random([4, 66], Distribution::Default, device);
    let config = offload_from_flex(Offload::States).with_min_elements(10);
    let initial = init(device);
    for optimizer in optimizers() {
        let loss = |model: &Net, _| loss(model, x.clone());
        let start = || copy(&initial, || init(device));
        let mut in_stock = optimizer.clone();
        let whole = train_stock(start(), &mut in_stock, 2, RATE, loss);
        let shorter = without_last_layer(whole.clone());
        let shorter = train_stock(shorter, &mut in_stock, 2, RATE, loss);
        let returned = vec![whole[0].clone(), with_new_ids(&whole[1])];
        let returned = train_stock(returned, &mut in_stock, 2, RATE, loss);

        let mut fused = FusedOptimizer::new(start(), optimizer.clone())
            .unwrap()
            .with_config_on(FusedConfig::offload(config.clone()), device)
            .unwrap();
        train_fused(&mut fused, 2, RATE, loss);
        let whole = fused.model();
        for (model, expected) in [
            (without_last_layer(whole.clone()), shorter),
            (whole, returned),
        ] {
            fused.change_model(|_| model).unwrap();
            train_fused(&mut fused, 2, RATE, loss);
            assert_equal_weights(&expected, &fused.model());
            assert_eq!(fused.load_record(fused.to_record()), Ok(()));
        }
    }
}

#[test]
fn group_in_optimizer_state_outlives_removed_layer() {
    let device = &Device::flex().autodiff();
    let initial = init(device);
    let x = Tensor::<2>::random([4, 66], Distribution::Default, device);
    let train = |removes: bool| {
        let model = copy(&initial, || init(device));
        let adamw = ours::AdamWConfig::new().build();
        let mut fused = FusedOptimizer::accumulating_in_state(model, adamw).unwrap();
        fused.accumulate(|model| loss(model, x.clone())).unwrap();
        if removes {
            fused.change_model(without_last_layer).unwrap();
        }
        fused
            .step(RATE, |model| model[0].forward(x.clone()).mean())
            .unwrap();
        fused.model()[0].clone()
    };
    assert_equal_weights(&train(false), &train(true));
}

/// A record would change the type of the states: the next step panics in bf16, and loses precision in f64.
#[test]
fn states_of_frozen_layers_keep_their_type() {
    let device = &Device::flex().autodiff();
    let initial = init(device);
    let x = Tensor::<2>::random([4, 66], Distribution::Default, device);
    let adamw: fn() -> ModuleOptimizer = || AdamWConfig::new().init();
    let ours: fn() -> ModuleOptimizer = || ours::AdamWConfig::new().init();
    for (dtype, optimizer) in [(FloatDType::BF16, adamw), (FloatDType::F64, ours)] {
        let train = |freezes: bool| {
            let model = cast(copy(&initial, || init(device)), dtype).unwrap();
            let mut fused = FusedOptimizer::new(model, optimizer()).unwrap();
            let step = |fused: &mut FusedOptimizer<Net>| {
                let loss = |model: &Net| loss_of_layers(model, false, x.clone().cast(dtype));
                fused.step(RATE, loss).unwrap();
            };
            step(&mut fused);
            fused.change_model(without_last_layer).unwrap();
            if freezes {
                fused.change_model(|model| model.freeze()).unwrap();
            }
            let (model, optimizer) = fused.into_parts();
            let mut fused = FusedOptimizer::new(model.unfreeze(), optimizer).unwrap();
            step(&mut fused);
            fused.model()
        };
        assert_equal_weights(&train(false), &train(true));
    }
}

on_every_backend!(
    removed_layer_leaves_record_and_rest_equals_stock,
    layer_that_is_cut_down_starts_without_state,
);

#[test]
fn change_model_many_replaced_layers_train_as_stock() {
    let device = Device::flex().autodiff();
    let initial = init(&device);
    let x = Tensor::<2>::random([4, 66], Distribution::Default, &device);
    let loss = |model: &Net, _| loss(model, x.clone());
    let start = || copy(&initial, || init(&device));
    let (mut in_stock, mut stock) = (AdamWConfig::new().init(), start());
    let mut fused = FusedOptimizer::new(start(), AdamWConfig::new().init()).unwrap();
    for _ in 0..80 {
        let head = init(&device).remove(1);
        train_fused(&mut fused, 1, RATE, loss);
        stock = train_stock(stock, &mut in_stock, 1, RATE, loss);
        let replaced = |mut model: Net| {
            model[1] = head.clone();
            model
        };
        fused.change_model(replaced).unwrap();
        stock = replaced(stock);
    }
    train_fused(&mut fused, 1, RATE, loss);
    stock = train_stock(stock, &mut in_stock, 1, RATE, loss);
    assert_equal_weights(&stock, &fused.model());
}
