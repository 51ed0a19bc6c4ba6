//! A launched training over a server.

use std::sync::{Arc, Mutex};

use backburn::train::{FusedLearner, LaunchFused};
use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::train::{ExecutionStrategy, MultiDeviceOptim, RegressionOutput, SupervisedTraining};

use super::*;

/// The number of batches, and the server that is killed with the fourth.
struct Rows {
    server: Arc<Mutex<(usize, Option<Server>)>>,
}

impl Batcher<f32, Tensor<2>> for Rows {
    fn batch(&self, items: Vec<f32>, device: &Device) -> Tensor<2> {
        let (made, server) = &mut *self.server.lock().unwrap();
        *made += 1;
        if *made == 4
            && let Some(server) = server
        {
            server.kill();
        }
        Tensor::<2>::ones([items.len(), 6], device)
    }
}

impl Net {
    fn output(&self, x: Tensor<2>) -> RegressionOutput {
        let output = self.output.forward(self.input.forward(x).tanh());
        let loss = output.clone().powi_scalar(2).mean();
        RegressionOutput::new(loss, output.clone(), output)
    }
}

impl_train_step!(Net, Tensor<2>);
impl_inference_step!(Net, Tensor<2>);

#[test]
fn launched_training_with_killed_server_ends_with_error() {
    for sharding in [Sharding::State, Sharding::Full] {
        in_time(move || {
            let folder = tempfile::tempdir().unwrap();
            let server = Server::start();
            let devices = vec![flex(), server.device.clone()];
            let server = Arc::new(Mutex::new((0, Some(server))));
            let loader = |server| {
                let items = InMemDataset::new(vec![0.0; 32]);
                let loader = DataLoaderBuilder::new(Rows { server });
                loader.batch_size(4).build(items)
            };
            let unharmed = Arc::new(Mutex::new((0, None)));
            let training = SupervisedTraining::new(folder.path(), loader(server), loader(unharmed));
            let strategy = ExecutionStrategy::multi(devices, MultiDeviceOptim::OptimSharded);
            let learner = FusedLearner::new(Net::init(&flex()), adamw(), RATE)
                .with_training_strategy(strategy)
                .unwrap()
                .with_config(FusedConfig::sharded(sharding))
                .unwrap();
            let training = training.with_application_logger(None).num_epochs(2);
            let result = training.launch_fused(learner);
            let error = result.error.expect("the server is gone").to_string();
            assert_says(&error, "device");
        });
    }
}
