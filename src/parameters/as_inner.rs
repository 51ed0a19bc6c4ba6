//! Delegation for modules that wrap one other module.

/// Implements the methods that a wrapper delegates to the module in this field.
macro_rules! as_inner {
    ($inner:ident) => {
        fn collect_devices(&self, devices: Vec<burn::tensor::Device>) -> Vec<burn::tensor::Device> {
            self.$inner.collect_devices(devices)
        }

        fn to_device(self, device: &burn::tensor::Device) -> Self {
            let $inner = self.$inner.to_device(device);
            Self { $inner, ..self }
        }

        fn train(self) -> Self {
            let $inner = self.$inner.train();
            Self { $inner, ..self }
        }

        fn valid(&self) -> Self {
            let $inner = self.$inner.valid();
            Self {
                $inner,
                ..self.clone()
            }
        }

        fn materialize(self) -> Self {
            let $inner = self.$inner.materialize();
            Self { $inner, ..self }
        }
    };
}

pub(crate) use as_inner;
