//! The memory of replicas.

use super::*;

pub fn replicas(
    ranks: usize,
    depth: usize,
    width: usize,
    sharding: Sharding,
) -> FusedReplicas<Mlp> {
    let model = Mlp::init(depth, width, &device());
    FusedReplicas::new(model, AdamConfig::new().init(), vec![device(); ranks])
        .unwrap()
        .with_config(FusedConfig::sharded(sharding).with_ownership(Ownership::BySize))
        .unwrap()
}

#[test]
fn replicas_hold_few_gradients_at_once() {
    alone!();
    let (ranks, depth, width) = (4, 12, 256);
    let parameters = Mlp::init(depth, width, &device()).num_params() * size_of::<f32>();
    for sharding in [Sharding::State, Sharding::Full] {
        let before = BYTES.current_usage();
        BYTES.reset_peak_usage();
        let mut fused = replicas(ranks, depth, width, sharding);
        let input = x(width);
        for _ in 0..3 {
            let batches = vec![input.clone(); ranks];
            fused
                .step(1e-3, batches, |model: &Mlp, x| model.recomputed_loss(x))
                .unwrap();
        }
        let peak = (BYTES.peak_usage() - before) as f64 / parameters as f64;
        // Weights and two moments; stock also holds four gradients.
        assert!(peak < 4.0, "{sharding:?}: {peak:.2} P");
        let bytes = fused.bytes();
        let peak_of_ranks = bytes.iter().map(|bytes| bytes.peak).max().unwrap() as f64;
        let between_steps: usize = bytes.iter().map(|bytes| bytes.between_steps).sum();
        match sharding {
            Sharding::State => assert_eq!(between_steps, ranks * parameters),
            Sharding::Full => {
                assert_eq!(between_steps, parameters);
                assert!(peak_of_ranks < 0.6 * parameters as f64, "{peak_of_ranks}");
            }
        }
    }
}
