use burn::optim::ModuleOptimizer;

use crate::optim::{
    AdamConfig, AdamWConfig, LionConfig, MuonConfig, MuonWithAdamWConfig, SgdConfig, StateFormat,
    WeightFormat,
};

/// An optimizer that can be planned with: the configs of [`backburn::optim`](crate::optim), whose formats a plan can set, and any
/// [`ModuleOptimizer`], whose formats stay as they are (its plans can't be saved).
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be planned with",
    note = "use a config of `backburn::optim`, or `init()` of any other for a `ModuleOptimizer`"
)]
pub trait PlannedOptimizer: Clone + sealed::Sealed {
    /// The optimizer for a model.
    fn build(&self) -> ModuleOptimizer;

    /// The same with formats, if it has any; those that are not given stay.
    #[doc(hidden)]
    fn formatted(&self, states: Option<StateFormat>, weights: Option<WeightFormat>)
    -> Option<Self>;

    /// Whether what it holds for a parameter goes by its shape alone, wherever it is.
    #[doc(hidden)]
    const SHAPE_TELLS: bool;
}

macro_rules! planned {
    ($shape_tells:literal: $($config:ty)*) => {
        $(
            impl sealed::Sealed for $config {}

            impl PlannedOptimizer for $config {
                fn build(&self) -> ModuleOptimizer {
                    self.init()
                }

                fn formatted(
                    &self,
                    states: Option<StateFormat>,
                    weights: Option<WeightFormat>,
                ) -> Option<Self> {
                    let mut formatted = self.clone();
                    if let Some(states) = states {
                        formatted = formatted.with_state_format(states);
                    }
                    if let Some(weights) = weights {
                        formatted = formatted.with_weight_format(weights);
                    }
                    Some(formatted)
                }

                const SHAPE_TELLS: bool = $shape_tells;
            }
        )*
    };
}

planned!(true: AdamConfig AdamWConfig LionConfig SgdConfig);
planned!(false: MuonConfig MuonWithAdamWConfig);

impl sealed::Sealed for ModuleOptimizer {}

impl PlannedOptimizer for ModuleOptimizer {
    fn build(&self) -> ModuleOptimizer {
        self.clone()
    }

    fn formatted(
        &self,
        states: Option<StateFormat>,
        weights: Option<WeightFormat>,
    ) -> Option<Self> {
        (states.is_none() && weights.is_none()).then(|| self.clone())
    }

    const SHAPE_TELLS: bool = false;
}

mod sealed {
    pub trait Sealed {}
}
