//! Runs the same tests on every backend that is built.

/// Turns functions that take an autodiff device into one test on one backend each.
#[allow(unused_macros)] // Each program uses a part.
macro_rules! on_backend {
    ($backend:ident $arguments:tt: $($test:ident),*) => {
        #[allow(deprecated)] // Burn 0.22 still ships ndarray.
        mod $backend {
            $(#[test]
            fn $test() {
                super::$test(&burn::tensor::Device::$backend $arguments.autodiff());
            })*
        }
    };
}

/// Runs the tests on the CPU backends only.
#[allow(unused_macros)]
macro_rules! on_every_cpu_backend {
    ($($test:ident),* $(,)?) => {
        $crate::common::on_backend!(flex(): $($test),*);
        $crate::common::on_backend!(ndarray(): $($test),*);
    };
}

/// Turns functions that take an autodiff device into one test per backend and function.
#[allow(unused_macros)]
macro_rules! on_every_backend {
    ($($test:ident),* $(,)?) => {
        $crate::common::on_every_cpu_backend!($($test),*);
        #[cfg(feature = "cpu")]
        $crate::common::on_backend!(cpu(): $($test),*);
        #[cfg(feature = "wgpu")]
        $crate::common::on_backend!(wgpu(Default::default()): $($test),*);
        #[cfg(feature = "cuda")]
        $crate::common::on_backend!(cuda(0): $($test),*);
    };
}

pub(crate) use {on_backend, on_every_backend, on_every_cpu_backend};
