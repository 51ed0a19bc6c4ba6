//! Records of states in formats: in the form of stock Burn, or compact.

use super::*;

on_every_backend!(
    formats_run_resumes_at_any_step_to_bit,
    formats_stock_loop_resumes_to_bit,
    stock_continues_from_record_of_formats,
);

fn saved(record: OptimizerRecord) -> Bytes {
    record.into_bytes().unwrap().shared()
}

fn loaded(bytes: &Bytes) -> OptimizerRecord {
    OptimizerRecord::from_bytes(bytes.clone()).unwrap()
}

fn formats_run_resumes_at_any_step_to_bit(device: &Device) {
    for (states, weights, dtype) in formats(device) {
        let batches = batches(device, dtype);
        let loss = |model: &Network, step: usize| model.loss(batches[step].clone());
        for (name, optimizer) in optimizers(states, weights) {
            let model = cast(Network::init(device), dtype).unwrap();
            let mut fused = FusedOptimizer::new(model, optimizer.clone()).unwrap();
            let mut resumed = Vec::new();
            for step in 0..4 {
                fused.step(RATE, |model| loss(model, step)).unwrap();
                for resumed in &mut resumed {
                    let resumed: &mut FusedOptimizer<Network> = resumed;
                    resumed.step(RATE, |model| loss(model, step)).unwrap();
                    assert_equal_weights(&fused.model(), &resumed.model());
                    assert_equal_weights(
                        &fused.full_precision_model(),
                        &resumed.full_precision_model(),
                    );
                }
                if steps(device, name, states) == 1 {
                    resumed.clear();
                }
                let [full, compact] = both_records(&fused).map(saved);
                if states != StateFormat::Full && !name.ends_with("Sgd") {
                    assert!(compact.len() < full.len(), "{name}");
                }
                for bytes in [full, compact] {
                    let mut again = FusedOptimizer::new(fused.model(), optimizer.clone()).unwrap();
                    again.load_record(loaded(&bytes)).unwrap();
                    resumed.push(again);
                }
            }
        }
    }
}

fn formats_stock_loop_resumes_to_bit(device: &Device) {
    let (states, weights, dtype) = *formats(device).last().unwrap();
    let config = optim::AdamWConfig::new()
        .with_state_format(states)
        .with_weight_format(weights);
    let batches = batches(device, dtype);
    let step = |model: Network, optimizer: &mut ModuleOptimizer, step: usize| {
        let loss = |model: &Network, _| model.loss(batches[step].clone());
        train_stock(model, optimizer, 1, RATE, loss)
    };
    let mut optimizer = config.init();
    let mut model = cast(Network::init(device), dtype).unwrap();
    for index in 0..3 {
        model = step(model, &mut optimizer, index);
    }
    let bytes = saved(optimizer.to_record());
    let mut again = config.init().load_record(loaded(&bytes));
    let resumed = step(model.clone(), &mut again, 3);
    assert_equal_weights(&step(model, &mut optimizer, 3), &resumed);
}

/// The moments in stock Burn are the decoded values.
fn stock_continues_from_record_of_formats(device: &Device) {
    let batches = batches(device, FloatDType::F32);
    let ours = optim::AdamWConfig::new().with_state_format(StateFormat::Bits8);
    let mut fused = FusedOptimizer::new(Network::init(device), ours.init()).unwrap();
    fused
        .step(RATE, |model| model.loss(batches[0].clone()))
        .unwrap();
    let bytes = saved(fused.to_record());
    let with = |optimizer: ModuleOptimizer| {
        let mut fused = FusedOptimizer::new(fused.model(), optimizer).unwrap();
        fused.load_record(loaded(&bytes)).unwrap();
        fused
            .step(RATE, |model| model.loss(batches[1].clone()))
            .unwrap();
        fused.model()
    };
    let stock = with(burn::optim::AdamWConfig::new().init());
    let full = with(optim::AdamWConfig::new().init());
    assert_equal_weights(&stock, &full);
}
