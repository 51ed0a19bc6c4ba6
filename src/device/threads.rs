use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use backburn_base::is_cpu_backend;
use burn::tensor::{Device, Tensor};

/// The longest time to wait for threads that are at work.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Makes each CPU thread that computes on `device` allocate its permanent buffer for matrix products now, and not during a
/// measurement. A thread at work allocates it later, and is not waited for.
pub(crate) fn warm_threads(device: &Device) {
    if !is_cpu_backend(device) {
        return;
    }
    let device = device.clone();
    let multiply = move || {
        let x = Tensor::<2>::ones([64, 64], &device);
        // One of both factors has the memory order of the buffer.
        drop(x.clone().transpose().matmul(x.clone()));
        drop(x.clone().matmul(x.transpose()));
    };
    multiply();
    let (sender, warm) = channel();
    rayon::spawn_broadcast(move |_| {
        multiply();
        let _ = sender.send(());
    });
    if rayon::current_thread_index().is_some() {
        // This thread takes its part only after it has returned.
        return;
    }
    let end = Instant::now() + TIMEOUT;
    for _ in 0..rayon::current_num_threads() {
        let left = end.saturating_duration_since(Instant::now());
        if warm.recv_timeout(left).is_err() {
            return;
        }
    }
}
