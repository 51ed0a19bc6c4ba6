use backburn_optim::{
    AdamConfig, AdamWConfig, LionConfig, MuonConfig, MuonWithAdamWConfig, SgdConfig, StateFormat,
    WeightFormat,
};
use burn::optim::ModuleOptimizer;

pub(super) use sealed::Planned;

/// Formats of states and weights; `None` for those of the optimizer.
pub(super) type Formats = (Option<StateFormat>, Option<WeightFormat>);

/// An optimizer of a plan. A plan can set the formats of a config of [`backburn::optim`](crate::optim). Any other
/// [`ModuleOptimizer`] keeps its formats, and a plan with it can't be saved.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not supported by the planner",
    note = "use a config of `backburn::optim`, or `init()` of any other for a `ModuleOptimizer`"
)]
pub trait PlannedOptimizer: Clone + Planned {
    /// Creates the optimizer.
    fn build(&self) -> ModuleOptimizer;
}

mod sealed {
    use super::*;

    /// The planner's private interface to an optimizer.
    pub trait Planned: Sized {
        /// `true` if the state of a parameter depends only on its shape, not on its path.
        const DEPENDS_ON_SHAPE_ONLY: bool;

        /// Returns the optimizer with other formats. Returns `None` if the optimizer has no formats.
        fn formatted(&self, formats: Formats) -> Option<Self>;
    }
}

macro_rules! planned {
    ($($by_shape:literal, $config:ty;)*) => {
        $(
            impl PlannedOptimizer for $config {
                fn build(&self) -> ModuleOptimizer {
                    self.init()
                }
            }

            impl Planned for $config {
                const DEPENDS_ON_SHAPE_ONLY: bool = $by_shape;

                fn formatted(&self, (states, weights): Formats) -> Option<Self> {
                    let mut formatted = self.clone();
                    if let Some(states) = states {
                        formatted = formatted.with_state_format(states);
                    }
                    if let Some(weights) = weights {
                        formatted = formatted.with_weight_format(weights);
                    }
                    Some(formatted)
                }
            }
        )*
    };
}

planned! {
    true, AdamConfig;
    true, AdamWConfig;
    true, SgdConfig;
    true, LionConfig;
    false, MuonConfig;
    false, MuonWithAdamWConfig;
}

impl PlannedOptimizer for ModuleOptimizer {
    fn build(&self) -> ModuleOptimizer {
        self.clone()
    }
}

impl Planned for ModuleOptimizer {
    const DEPENDS_ON_SHAPE_ONLY: bool = false;

    fn formatted(&self, formats: Formats) -> Option<Self> {
        (formats == (None, None)).then(|| self.clone())
    }
}
