//! Training on devices of servers in other processes, over Burn's remote backend, equals training on local devices.

#[path = "../common/mod.rs"]
mod common;
mod formats;
mod hosts;
mod learner;
mod lost;
mod moves;
mod proxy;
mod resumed;
mod server;

use std::io::Read;
use std::net::TcpListener;
use std::time::Duration;

use burn::server::{RemoteServer, TokenAuthorizer, WebSocketTransport};

use crate::common::*;
use proxy::Proxy;
use server::{Server, connect};

const TOKEN: &str = "secret";
const SERVES: &str = "BACKBURN_TEST_SERVES";
const SERVES_AT: &str = "BACKBURN_TEST_SERVES_AT";
const RATE: f64 = 0.05;

/// Not a test: the process of a server, which the tests start.
#[test]
fn serve() {
    if std::env::var_os(SERVES).is_none() {
        return;
    }
    // It ends with the tests that started it.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let listener = TcpListener::bind(std::env::var(SERVES_AT).unwrap()).unwrap();
    println!("\nserves {}", listener.local_addr().unwrap());
    let server = match std::env::var(SERVES).as_deref() {
        #[allow(deprecated)] // Burn 0.22 still ships ndarray.
        Ok("ndarray") => RemoteServer::new([Device::ndarray()]),
        _ => RemoteServer::new([Device::flex()]),
    };
    let server = server.with_authorizer(TokenAuthorizer::new(TOKEN).unwrap());
    let transport = WebSocketTransport::from_listener(listener);
    server.serve(transport).unwrap();
}

#[derive(Module, Debug)]
struct Net {
    input: Linear,
    output: Linear,
}

impl Net {
    fn init(device: &Device) -> Self {
        Self {
            input: LinearConfig::new(6, 8).init(device),
            output: LinearConfig::new(8, 3).init(device),
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let x = self.output.forward(self.input.forward(x).tanh());
        x.powi_scalar(2).mean()
    }
}

#[track_caller]
fn assert_clean(error: &FusedError) {
    let is_clean = matches!(
        error,
        FusedError::Rank { .. } | FusedError::RankPanicked { .. } | FusedError::DeviceLost { .. }
    );
    assert!(is_clean, "{error}");
}

fn adamw() -> ModuleOptimizer {
    AdamWConfig::new().init()
}

fn batch() -> Tensor<2> {
    Tensor::random([5, 6], Distribution::Default, &flex())
}

/// A batch of ones for each device.
fn ones<const N: usize>(devices: &[Device; N]) -> [Tensor<2>; N] {
    devices
        .each_ref()
        .map(|device| Tensor::ones([5, 6], device))
}

/// Burn's optimizers, and ours, which use tensor operations on servers.
fn optimizers() -> Vec<ModuleOptimizer> {
    vec![
        adamw(),
        backburn::optim::AdamWConfig::new().init(),
        backburn::optim::AdamConfig::new().init(),
        backburn::optim::LionConfig::new().init(),
        backburn::optim::SgdConfig::new().init(),
        backburn::optim::MuonWithAdamWConfig::new(vec![]).init(),
    ]
}

#[test]
fn plan_for_remote_device_is_refused() {
    in_time(|| {
        let server = Server::start();
        let planner = Planner::new(|| Net::init(&server.device), adamw());
        let loss = |model: &Net, _: usize| model.loss(batch().to_device(&server.device));
        let error = planner.plan(loss, 1 << 30).map(drop).unwrap_err();
        assert_says(&error, "plan on the machine of its server");
    });
}

#[test]
fn remote_device_trains_as_device_of_this_process() {
    in_time(|| {
        let server = Server::start();
        let initial = Net::init(&flex());
        let batches: Vec<_> = (0..4).map(|_| batch()).collect();
        for index in 0..optimizers().len() {
            let stock = copy(&initial, || Net::init(&flex()));
            let mut optimizer = optimizers().remove(index);
            let loss = |model: &Net, step: usize| model.loss(batches[step].clone());
            let stock = train_stock(stock, &mut optimizer, batches.len(), RATE, loss);
            let model = copy(&initial, || Net::init(&server.device));
            let mut fused = FusedOptimizer::new(model, optimizers().remove(index)).unwrap();
            for x in &batches {
                let x = x.clone().to_device(&server.device);
                fused.step(RATE, |model| model.loss(x)).unwrap();
            }
            assert_equal_weights(&stock, &fused.model().fork(&flex()));
        }
    });
}

#[test]
fn replicas_train_on_two_servers() {
    in_time(|| {
        let servers = [Server::start(), Server::start()];
        let devices: Vec<Device> = servers.iter().map(|server| server.device.clone()).collect();
        let initial = Net::init(&flex());
        let steps: Vec<_> = (0..4).map(|_| [batch(), batch()]).collect();
        let train = |devices: &[Device], sharding| {
            let model = copy(&initial, || Net::init(&flex()));
            let mut fused = FusedReplicas::new(model, adamw(), devices.to_vec())
                .unwrap()
                .with_config(FusedConfig::sharded(sharding))
                .unwrap();
            for batches in &steps {
                let batches = batches.clone().into_iter().zip(devices);
                let batches: Vec<_> = batches.map(|(x, device)| x.to_device(device)).collect();
                fused.step(RATE, batches, Net::loss).unwrap();
            }
            fused.model().fork(&flex())
        };
        for sharding in [Sharding::State, Sharding::Full] {
            let expected = train(&[flex(), flex()], sharding);
            assert_equal_weights(&expected, &train(&devices, sharding));
        }
    });
}
