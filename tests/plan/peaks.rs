//! The peaks are those that were planned.

use backburn::PlanError;
use burn::optim::GradientsParams;

use crate::models::*;
use crate::{ENOUGH, alone, init, measured, peak, trained};

/// Plans for budgets from what fused training takes down to half of the smallest rung, and trains each.
fn hold<K: Kind>() {
    let most = measured::<K>(ENOUGH).unwrap();
    let ladder = most.ladder(ENOUGH);
    println!("{}\n{ladder}", K::NAME);
    let peaks = ladder.rungs.iter().map(|rung| rung.device_bytes);
    let (top, least) = (ladder.rungs[0].device_bytes, peaks.min().unwrap());
    let mut fits = 0;
    for part in 0..6 {
        let budget = top - (top - least / 2) * part / 5;
        let (measured, of_planning) = peak(|| measured::<K>(budget).unwrap());
        match measured.choose(budget) {
            Ok(plan) => {
                let bytes = trained::<K, _>(&plan);
                let ratio = plan.device_bytes as f64 / bytes as f64;
                println!(
                    "{budget}: {} planned, {bytes} taken, {ratio:.3}; planning {of_planning}\n{plan}",
                    plan.device_bytes
                );
                assert!(bytes <= budget, "{}: {bytes} of {budget}\n{plan}", K::NAME);
                assert!(
                    (0.99..=1.1).contains(&ratio),
                    "{}: {ratio:.3}\n{plan}",
                    K::NAME
                );
                assert!(
                    of_planning <= budget,
                    "{}: planning took {of_planning} of {budget}",
                    K::NAME
                );
                fits += 1;
            }
            Err(PlanError::NothingFits { least, .. }) => {
                println!("{budget}: nothing fits, {least} needed, planning took {of_planning}");
                assert!(least > budget);
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(fits > 0, "{}: nothing fits anything", K::NAME);
}

macro_rules! hold {
    ($($test:ident: $model:ty),* $(,)?) => {
        $(#[test]
        fn $test() {
            let _alone = alone();
            hold::<$model>();
        })*
    };
}

hold! {
    plans_of_a_residual_network_hold: Mlp,
    plans_without_blocks_hold: Plain,
    plans_of_a_recurrent_network_hold: Recurrent,
    plans_of_a_convolutional_network_hold: Convolutional,
    plans_of_a_u_net_hold: UNet,
    plans_of_tied_weights_hold: Tied,
    plans_of_a_network_that_draws_hold: Variational,
    plans_of_a_mixture_of_experts_hold: Mixture,
    plans_of_embeddings_hold: Bag,
    plans_of_a_loss_in_chunks_hold: Language,
    plans_of_adapters_hold: Adapted,
    plans_of_adapters_on_codes_hold: InCodes,
    plans_of_adversarial_networks_hold: Adversarial,
}

#[test]
fn the_peak_of_stock_is_shown_beside() {
    let _alone = alone();
    let ladder = measured::<Mlp>(ENOUGH).unwrap().ladder(ENOUGH);
    let shown = ladder.stock.unwrap().device_bytes;
    let train = || {
        let mut model = init::<Mlp>();
        let mut optimizer = backburn::optim::AdamWConfig::new().init();
        for _ in 0..2 {
            let gradients = model.loss(Mlp::BATCH).backward();
            let gradients = GradientsParams::from_grads(gradients, &model);
            model = optimizer.step(1e-3, model, gradients);
        }
    };
    let taken = peak(train).1;
    let ratio = shown as f64 / taken as f64;
    assert!(
        (0.98..=1.1).contains(&ratio),
        "{shown} shown, {taken} taken"
    );
}
