//! All transfers go through this process: a server requests nothing from another (`proxy`).

use backburn::optim::AdamWConfig;

use super::*;

/// A model with everything that moves with a model.
#[derive(Module, Debug)]
struct Mixed {
    /// A constant, which Burn's mappers don't visit.
    scale: Tensor<2>,
    columns: Param<Tensor<1, Int>>,
    frozen: Linear,
    norm: BatchNorm,
    linear: Linear,
}

impl Mixed {
    fn init(device: &Device) -> Self {
        let columns = Tensor::<1, Int>::from_data([5, 3, 0], device);
        Self {
            scale: Tensor::from_data([[1.5, -0.5, 2.0]], device),
            columns: Param::initialized(ParamId::new(), columns),
            frozen: LinearConfig::new(3, 4).init(device).no_grad(),
            norm: BatchNormConfig::new(4).init(device),
            linear: LinearConfig::new(4, 1100).init(device),
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let x = x.select(1, self.columns.val()) * self.scale.clone();
        let x = self.frozen.forward(x);
        let x = self.linear.forward(self.norm.forward(x).tanh());
        x.powi_scalar(2).mean()
    }
}

/// Batches for two ranks.
fn steps(count: usize) -> Vec<[Tensor<2>; 2]> {
    (0..count).map(|_| [batch(), batch()]).collect()
}

#[test]
fn replicas_on_servers_with_changing_owners_train_as_local() {
    in_time(|| {
        let servers = [Server::start(), Server::start()];
        let remote = servers.each_ref().map(|server| server.device.clone());
        let initial = Mixed::init(&flex());
        let steps = steps(8);
        let trained = |devices: [Device; 2]| {
            let model = copy(&initial, || Mixed::init(&flex())).fork(&devices[1]);
            let optimizer = AdamWConfig::new().init();
            let mut fused = FusedReplicas::new(model, optimizer, devices.clone()).unwrap();
            for (index, batches) in steps.iter().enumerate() {
                let config = fused.config().clone();
                fused = fused
                    .with_config(match index {
                        2 => config.with_ownership(Ownership::MainDevice),
                        4 => config.with_sharding(Sharding::Full),
                        6 => config.with_ownership(Ownership::BySize),
                        _ => config,
                    })
                    .unwrap();
                let batches = batches.clone().into_iter().zip(&devices);
                let batches: Vec<_> = batches.map(|(x, device)| x.to_device(device)).collect();
                fused.step(RATE, batches, Mixed::loss).unwrap();
            }
            fused.model().fork(&flex())
        };
        assert_equal_weights(&trained([flex(), flex()]), &trained(remote));
    });
}

#[test]
fn model_moved_to_another_server_keeps_states() {
    in_time(|| {
        let servers = [Server::start(), Server::start()];
        let remote = servers.each_ref().map(|server| server.device.clone());
        let initial = Mixed::init(&flex());
        let steps = steps(4);
        // The first is Burn's, which moves its states itself.
        let ours = || optimizers().into_iter().skip(1);
        for index in 0..ours().count() {
            let trained = |devices: [Device; 2]| {
                let model = copy(&initial, || Mixed::init(&flex())).fork(&devices[0]);
                let optimizer = ours().nth(index).unwrap();
                let mut fused = FusedOptimizer::new(model, optimizer).unwrap();
                for (step, [x, _]) in steps.iter().enumerate() {
                    let device = &devices[step / 2];
                    if step == 2 {
                        fused = fused.with_config_on(FusedConfig::new(), device).unwrap();
                    }
                    let x = x.clone().to_device(device);
                    fused.step(RATE, |model| model.loss(x)).unwrap();
                }
                fused.into_parts().0.fork(&flex())
            };
            assert_equal_weights(&trained([flex(), flex()]), &trained(remote.clone()));
        }
    });
}
