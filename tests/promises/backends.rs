//! Runs the same tests on every backend that is built.

/// Runs the tests on the CPU backends only.
macro_rules! on_every_cpu_backend {
    ($($test:ident),* $(,)?) => {
        mod flex {
            $(#[test]
            fn $test() {
                super::$test(&burn::tensor::Device::flex().autodiff());
            })*
        }

        #[allow(deprecated)] // Burn 0.22 still ships it.
        mod ndarray {
            $(#[test]
            fn $test() {
                super::$test(&burn::tensor::Device::ndarray().autodiff());
            })*
        }

    };
}

/// Turns functions that take an autodiff device into one test per backend and function.
macro_rules! on_every_backend {
    ($($test:ident),* $(,)?) => {
        $crate::backends::on_every_cpu_backend!($($test),*);

        #[cfg(feature = "cpu")]
        mod cpu {
            $(#[test]
            fn $test() {
                super::$test(&burn::tensor::Device::cpu().autodiff());
            })*
        }

        #[cfg(feature = "wgpu")]
        mod wgpu {
            $(#[test]
            fn $test() {
                super::$test(&burn::tensor::Device::wgpu(Default::default()).autodiff());
            })*
        }

        #[cfg(feature = "cuda")]
        mod cuda {
            $(#[test]
            fn $test() {
                super::$test(&burn::tensor::Device::cuda(0).autodiff());
            })*
        }
    };
}

pub(crate) use {on_every_backend, on_every_cpu_backend};
