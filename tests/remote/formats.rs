//! Formats that need a kernel of backburn, or a type that the device lacks, are refused before the first step.

use backburn::optim::{AdamWConfig, InFormat, MuonWithAdamWConfig};

use super::*;

fn bits8() -> ModuleOptimizer {
    let adamw = AdamWConfig::new().with_state_format(StateFormat::Bits8);
    adamw.init()
}

#[track_caller]
fn assert_refused<T>(made: Result<T, FusedError>, format: &str) {
    let error = made.map(drop).expect_err(format);
    assert_matches!(error, FusedError::UnsupportedParameter { .. });
    assert_says(&error, format);
}

#[test]
fn formats_on_servers_are_refused_by_name() {
    in_time(|| {
        let server = Server::start();
        let adamw = AdamWConfig::new;
        let states = |format| adamw().with_state_format(format).init();
        let weights = |format| adamw().with_weight_format(format).init();
        let wrapped = |format| {
            let stock = burn::optim::AdamWConfig::new().build();
            ModuleOptimizer::from(InFormat::new(stock, format))
        };
        let muon = |format| {
            let adamw = adamw().with_state_format(format);
            MuonWithAdamWConfig::new(vec![]).with_adamw(adamw).init()
        };
        use StateFormat::{Bits4, Bits8};
        use WeightFormat::{Split24, Stochastic};
        let (f32, bf16) = (FloatDType::F32, FloatDType::BF16);
        let refused = [
            (bits8(), f32, "`StateFormat::Bits8`"),
            (states(Bits4), f32, "`StateFormat::Bits4`"),
            (bits8(), bf16, "`StateFormat::Bits8`"),
            (muon(Bits8), f32, "`StateFormat::Bits8`"),
            (weights(Stochastic), bf16, "`WeightFormat::Stochastic`"),
            (weights(Split24), bf16, "`WeightFormat::Split24`"),
            (wrapped(Split24), bf16, "`WeightFormat::Split24`"),
        ];
        // As the error advises.
        let initial = cast(Net::init(&flex()), bf16).unwrap();
        let x = |device: &Device| Tensor::<2>::ones([5, 6], device).cast(FloatDType::BF16);
        let mut plain = wrapped(WeightFormat::Plain);
        let model = initial.clone().fork(&server.device);
        let mut advised = FusedOptimizer::new(model, plain.clone()).unwrap();
        let stock = train_stock(initial, &mut plain, 3, RATE, |model, _| {
            model.loss(x(&flex()))
        });
        for _ in 0..3 {
            let step = advised.step(RATE, |model| model.loss(x(&server.device)));
            step.unwrap();
        }
        assert_equal_weights(&stock, &advised.model().fork(&flex()));
        for (optimizer, dtype, format) in refused {
            let model = cast(Net::init(&server.device), dtype).unwrap();
            assert_refused(FusedOptimizer::new(model, optimizer.clone()), format);
            let model = cast(Net::init(&flex()), dtype).unwrap();
            let devices = [flex(), server.device.clone()];
            // The second rank owns the second largest parameter.
            let config = FusedConfig::new().with_ownership(Ownership::BySize);
            let replicas = FusedReplicas::new_with_config(model, optimizer, devices, config);
            assert_refused(replicas, format);
        }
    });
}

#[test]
fn format_on_local_device_moved_to_server_is_refused() {
    in_time(|| {
        let server = Server::start();
        let fused = FusedOptimizer::new(Net::init(&flex()), bits8()).unwrap();
        let moved = fused.with_config_on(FusedConfig::new(), &server.device);
        assert_refused(moved, "`StateFormat::Bits8`");
    });
}

#[test]
fn formats_on_local_device_next_to_server_train() {
    in_time(|| {
        let server = Server::start();
        let initial = Net::init(&flex());
        let model = || copy(&initial, || Net::init(&flex()));
        // On the host.
        let x = Tensor::<2>::ones([5, 6], &flex());
        let loss = |model: &Net, _| model.loss(x.clone());
        let stock = train_stock(model(), &mut bits8(), 3, RATE, loss);
        let config =
            FusedConfig::offload(OffloadConfig::new(Offload::Updates).with_min_elements(0));
        let mut fused = FusedOptimizer::new(model(), bits8())
            .unwrap()
            .with_config_on(config, &server.device)
            .unwrap();
        for _ in 0..3 {
            let x = x.clone().to_device(&server.device);
            fused.step(RATE, |model| model.loss(x)).unwrap();
        }
        assert_equal_weights(&stock, &fused.model().fork(&flex()));
        // On the main device.
        let train = |devices: [Device; 2]| {
            let config = FusedConfig::new().with_ownership(Ownership::MainDevice);
            let batches = ones(&devices);
            let replicas = FusedReplicas::new_with_config(model(), bits8(), devices, config);
            let mut fused = replicas.unwrap();
            for _ in 0..3 {
                fused.step(RATE, batches.clone(), Net::loss).unwrap();
            }
            fused.model()
        };
        let here = train([flex(), flex()]);
        assert_equal_weights(&here, &train([flex(), server.device.clone()]));
    });
}

#[test]
fn float_type_of_hosted_device_missing_is_an_error() {
    in_time(|| {
        let server = Server::start_as("ndarray");
        assert_eq!(check_device(&server.device, FloatDType::F32), Ok(()));
        let error = check_device(&server.device, FloatDType::BF16).unwrap_err();
        assert_matches!(error, FusedError::FloatTypeNotSupported { .. });
        let model = cast(Net::init(&flex()), FloatDType::BF16).unwrap();
        let replicas = FusedReplicas::new(model, adamw(), [server.device.clone()]);
        let error = replicas.map(drop).unwrap_err();
        assert_matches!(error, FusedError::FloatTypeNotSupported { .. });
    });
}
