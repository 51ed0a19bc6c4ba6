use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;

use super::*;
use crate::pass::Scope;
use crate::{
    FusedConfig, FusedOptimizer, GradientCheckpointingConfig, Offload, OffloadConfig, OffloadHost,
    gradient_checkpointing,
};

fn saved_tensors(is_synchronous: bool) -> ActivationOffload {
    let transfers = TransferWorkers::new(None, Some(Device::flex())).unwrap();
    ActivationOffload::new(Arc::new(transfers), is_synchronous)
}

fn save(all: &ActivationOffload, value: f32) -> Arc<OffloadedTensors> {
    all.save(vec![Tensor::full([2], value, &Device::flex())])
}

fn is_on_host(saved: &OffloadedTensors) -> bool {
    matches!(*saved.state.lock(), TransferState::OnHost(_))
}

fn take(all: &ActivationOffload, saved: Arc<OffloadedTensors>) -> Vec<f32> {
    let tensors = all.take(saved).unwrap().into_iter();
    tensors
        .flat_map(|it| it.into_data().iter::<f32>().collect::<Vec<_>>())
        .collect()
}

#[test]
fn activations_are_prefetched_one_ahead_in_any_order() {
    for is_synchronous in [false, true] {
        let all = saved_tensors(is_synchronous);
        let [first, unused, third, last] = [1.0, 2.0, 3.0, 4.0].map(|value| save(&all, value));
        all.transfers.wait();
        assert!(
            [&first, &unused, &third, &last]
                .into_iter()
                .all(|it| is_on_host(it))
        );
        all.prefetch_last();
        assert!(!is_on_host(&last) && is_on_host(&third));
        assert_eq!(take(&all, last), [4.0; 2]);
        assert!(!is_on_host(&third) && is_on_host(&unused));
        // Dropped tensors don't block the others.
        drop(unused);
        assert_eq!(take(&all, third), [3.0; 2]);
        assert!(!is_on_host(&first));
        assert_eq!(take(&all, first), [1.0; 2]);
        let [earlier, later] = [5.0, 6.0].map(|value| save(&all, value));
        assert_eq!(take(&all, earlier), [5.0; 2]);
        assert_eq!(take(&all, later), [6.0; 2]);
        assert!(all.order.lock().is_empty());
    }
}

#[test]
fn activations_taken_before_offload_stay_on_device() {
    let all = saved_tensors(false);
    // Block the worker, so that the transfers stay in its queue.
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    all.transfers
        .to_host
        .submit(0, usize::MAX, move || wait.recv().unwrap());
    let [dropped, taken] = [1.0, 2.0].map(|value| {
        let tensor = Tensor::full([2], value, &Device::flex());
        let state = Mutex::new(TransferState::Offloading(vec![tensor]));
        let is_fetched = Condvar::new();
        let saved = Arc::new(OffloadedTensors {
            bytes: 8,
            state,
            is_fetched,
        });
        all.order.lock().push(Arc::downgrade(&saved));
        saved
    });
    let gone = Arc::downgrade(&dropped);
    drop(dropped);
    assert_eq!(take(&all, taken), [2.0; 2]);
    assert!(gone.upgrade().is_none());
    go_on.send(()).unwrap();
    all.transfers.wait();
}

#[test]
fn activations_lost_in_transfer_are_an_error() {
    let all = saved_tensors(false);
    let saved = save(&all, 1.0);
    all.transfers.wait();
    *saved.state.lock() = TransferState::Failed("no memory".to_string());
    assert_eq!(all.take(saved).unwrap_err(), "no memory");
}

#[test]
fn activations_beyond_host_memory_are_an_error_with_bytes() {
    let all = saved_tensors(false);
    // An expanded view of one element, which is materialized by the transfer.
    let one = Tensor::<1>::ones([1], &Device::flex());
    let saved = all.save(vec![one.expand([1_i64 << 50])]);
    all.transfers.wait();
    let error = all.take(saved).unwrap_err();
    assert!(
        error.contains("offload_inputs` needs 4503599627370496 bytes"),
        "{error}"
    );
}

#[test]
#[cfg(feature = "ndarray")]
#[allow(deprecated)] // Burn 0.22 still ships it.
fn activations_are_prefetched_before_their_block() {
    let device = Device::ndarray().autodiff();
    let linear = |_| LinearConfig::new(4, 4).init(&device);
    let model: Vec<Linear> = (0..5).map(linear).collect();
    let blocks = GradientCheckpointingConfig::new().with_offload_inputs(true);
    let offload = OffloadConfig::new(Offload::Updates).with_host(OffloadHost::Flex);
    let config = FusedConfig::new()
        .with_gradient_checkpointing(blocks)
        .with_offload(Some(offload));
    let mut fused = FusedOptimizer::new(model, SgdConfig::new().init())
        .unwrap()
        .with_config_on(config, &device)
        .unwrap();
    PREFETCHED.take();
    for _ in 0..2 {
        fused
            .step(0.1, |model| {
                let block = |linear: &Linear, x| linear.forward(x).tanh();
                let x = Tensor::<2>::ones([3, 4], &device);
                let run = |x, linear| gradient_checkpointing(linear, x, block);
                let loss = model.iter().fold(x, run).mean();
                // All inputs are on the host when the backward pass begins.
                let scope = Scope::current().unwrap();
                scope
                    .pass
                    .blocks
                    .input_offload
                    .as_ref()
                    .unwrap()
                    .transfers
                    .wait();
                loss
            })
            .unwrap();
    }
    assert_eq!(PREFETCHED.take(), [true; 10]);
}
