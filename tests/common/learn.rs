//! Models for Burn's learner, which train and validate with what their `output` computes.

/// Implements `TrainStep` for a model with a method `output`.
#[allow(unused_macros)] // Each program uses a part.
macro_rules! impl_train_step {
    ($model:ty, $input:ty) => {
        impl burn::train::TrainStep for $model {
            type Input = $input;
            type Output = burn::train::RegressionOutput;

            fn step(&self, batch: $input) -> burn::train::TrainOutput<Self::Output> {
                let output = self.output(batch);
                burn::train::TrainOutput::new(self, output.loss.backward(), output)
            }
        }
    };
}

/// Implements `InferenceStep` for a model with a method `output`, or with a field that has one.
#[allow(unused_macros)]
macro_rules! impl_inference_step {
    ($model:ty, $input:ty $(, $field:ident)?) => {
        impl burn::train::InferenceStep for $model {
            type Input = $input;
            type Output = burn::train::RegressionOutput;

            fn step(&self, batch: $input) -> Self::Output {
                self.$($field.)?output(batch)
            }
        }
    };
}

pub(crate) use {impl_inference_step, impl_train_step};
