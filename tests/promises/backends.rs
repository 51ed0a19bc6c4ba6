//! Runs the same tests on every CPU backend.

/// Turns functions that take an autodiff device into one test per backend and function.
macro_rules! on_cpu_backends {
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

pub(crate) use on_cpu_backends;
