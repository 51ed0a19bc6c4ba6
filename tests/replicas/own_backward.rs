//! Operations of `backburn-nn` on several devices.

use super::*;

#[test]
fn own_backward_on_two_devices_equals_stock_sums() {
    let (_alone, device, _) = begin();
    let initial = Decoder::init(device);
    let steps = [[0, 1], [2, 3], [4, 5]];
    let mut expected = copy(&initial, || Decoder::init(device));
    let mut optimizer = adamw();
    for texts in steps {
        let loss = |model: &Decoder, text: &usize| model.loss(*text, false);
        let gradients = summed(&expected, &texts, loss);
        expected = optimizer.step(RATE, expected, gradients);
    }
    for (sharding, is_in_block) in product(SHARDINGS, [false, true]) {
        let model = copy(&initial, || Decoder::init(device));
        let mut fused = FusedReplicas::new(model, adamw(), flex(2))
            .unwrap()
            .with_config(FusedConfig::sharded(sharding))
            .unwrap();
        for texts in steps {
            fused
                .step(RATE, texts.to_vec(), move |model: &Decoder, text| {
                    model.loss(text, is_in_block)
                })
                .unwrap();
        }
        assert_equal_weights(&expected, &fused.model());
    }
}
