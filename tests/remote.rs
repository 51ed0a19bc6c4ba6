//! Devices of servers in other processes, which Burn's remote backend reaches, are trained on as those of this one.

#[allow(dead_code)] // A part of other tests.
#[path = "promises/compare.rs"]
mod compare;

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use backburn::{FusedError, FusedOptimizer, FusedReplicas, Sharding};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::remote::RemoteHost;
use burn::server::{TokenAuthorizer, WebSocketTransport};
use burn::tensor::{Device, Distribution, Tensor};

use compare::{assert_equal_weights, copy};

const TOKEN: &str = "secret";
const SERVES: &str = "BACKBURN_TEST_SERVES";
const RATE: f64 = 0.05;

/// Not a test: the process of a server, which the tests start.
#[test]
fn serve() {
    if std::env::var_os(SERVES).is_none() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("\nserves {}", listener.local_addr().unwrap());
    backburn::remote_server([Device::flex()])
        .unwrap()
        .with_authorizer(TokenAuthorizer::new(TOKEN).unwrap())
        .serve(WebSocketTransport::from_listener(listener))
        .unwrap();
}

struct Server {
    process: Child,
    device: Device,
}

impl Server {
    fn start() -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["serve", "--exact", "--nocapture"])
            .env(SERVES, "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut lines = output.lines().map(Result::unwrap);
        let address = lines.find_map(|line| Some(line.strip_prefix("serves ")?.to_string()));
        let url = format!("ws://{}", address.expect("the server tells its address"));
        // Nobody reads on, and the server must not wait for that.
        std::thread::spawn(move || lines.for_each(drop));
        let host = RemoteHost::websocket(&url).with_credential(TOKEN);
        let device = Device::remote_options(&host).init().unwrap().autodiff();
        Self { process, device }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
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

fn flex() -> Device {
    Device::flex().autodiff()
}

fn adamw() -> ModuleOptimizer {
    AdamWConfig::new().init()
}

/// Ends the test if `work` has not ended in time.
fn in_time<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, receiver) = channel();
    let thread = std::thread::spawn(move || {
        let result = work();
        let _ = sender.send(());
        result
    });
    let done = receiver.recv_timeout(Duration::from_secs(120));
    if done.is_err() && !thread.is_finished() {
        panic!("a thread hangs");
    }
    thread.join().unwrap()
}

/// Burn's optimizers, and ours, whose kernels the server runs.
fn optimizers() -> Vec<ModuleOptimizer> {
    vec![
        adamw(),
        backburn::optim::AdamWConfig::new().init(),
        backburn::optim::AdamConfig::new().init(),
        backburn::optim::LionConfig::new().init(),
        backburn::optim::SgdConfig::new().init(),
    ]
}

#[test]
fn a_remote_device_is_trained_on_as_one_of_this_process() {
    in_time(|| {
        let server = Server::start();
        let initial = Net::init(&flex());
        let batches: Vec<Tensor<2>> = (0..4)
            .map(|_| Tensor::random([5, 6], Distribution::Default, &flex()))
            .collect();
        for index in 0..optimizers().len() {
            let mut stock = copy(&initial, || Net::init(&flex()));
            let mut optimizer = optimizers().remove(index);
            for x in &batches {
                let gradients = stock.loss(x.clone()).backward();
                let gradients = GradientsParams::from_grads(gradients, &stock);
                stock = optimizer.step(RATE, stock, gradients);
            }
            let model = copy(&initial, || Net::init(&server.device));
            let mut fused = FusedOptimizer::new(model, optimizers().remove(index));
            for x in &batches {
                let x = x.clone().to_device(&server.device);
                fused.step(RATE, |model| model.loss(x));
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
        let steps: Vec<[Tensor<2>; 2]> = (0..4)
            .map(|_| [(); 2].map(|_| Tensor::random([5, 6], Distribution::Default, &flex())))
            .collect();
        let expected = {
            let model = copy(&initial, || Net::init(&flex()));
            let mut fused = FusedReplicas::new(model, adamw(), [flex(), flex()]);
            for batches in &steps {
                fused.step(RATE, batches.clone(), Net::loss);
            }
            fused.model()
        };
        for sharding in [Sharding::State, Sharding::Full] {
            let model = copy(&initial, || Net::init(&flex()));
            let mut fused =
                FusedReplicas::new(model, adamw(), devices.clone()).with_sharding(sharding);
            for batches in &steps {
                let batches = batches.clone().into_iter().zip(&devices);
                let batches: Vec<_> = batches.map(|(x, device)| x.to_device(device)).collect();
                fused.step(RATE, batches, Net::loss);
            }
            assert_equal_weights(&expected, &fused.model().fork(&flex()));
        }
    });
}

#[test]
fn a_server_that_dies_ends_the_step_with_an_error() {
    in_time(|| {
        let mut servers = [Server::start(), Server::start()];
        let devices: Vec<Device> = servers.iter().map(|server| server.device.clone()).collect();
        let model = Net::init(&flex());
        let mut fused = FusedReplicas::new(model, adamw(), devices.clone());
        let batches = || -> Vec<Tensor<2>> {
            devices
                .iter()
                .map(|device| Tensor::ones([5, 6], device))
                .collect()
        };
        fused.step(RATE, batches(), Net::loss);
        let given = batches();
        servers[1].process.kill().unwrap();
        servers[1].process.wait().unwrap();
        let error = fused.try_step(RATE, given, Net::loss).unwrap_err();
        // The other server may be closed, too: it was to receive from the one that is gone.
        let is_clean = matches!(
            error,
            FusedError::Rank { .. }
                | FusedError::RankPanicked { .. }
                | FusedError::DeviceLost { .. }
        );
        assert!(is_clean, "{error}");
    });
}
