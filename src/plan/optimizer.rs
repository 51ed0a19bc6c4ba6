use burn::optim::ModuleOptimizer;

use crate::error::FusedError;
use crate::fused::Policies;
use crate::optim::{
    AdamConfig, AdamWConfig, LionConfig, MuonConfig, MuonWithAdamWConfig, SgdConfig, StateFormat,
    WeightFormat,
};

pub(super) use sealed::Planned;

/// An optimizer that can be planned with: the configs of [`backburn::optim`](crate::optim), whose formats a plan can set, and any
/// [`ModuleOptimizer`], whose formats stay as they are (its plans can't be saved).
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be planned with",
    note = "use a config of `backburn::optim`, or `init()` of any other for a `ModuleOptimizer`"
)]
pub trait PlannedOptimizer: Clone + Planned {
    /// The optimizer for a model.
    fn build(&self) -> ModuleOptimizer;
}

mod sealed {
    use super::*;

    /// What a plan can do with an optimizer.
    #[allow(private_interfaces)] // Nobody outside can call it.
    pub trait Planned: Sized {
        /// Whether what it holds for a parameter goes by its shape alone, wherever it is.
        const DEPENDS_ON_SHAPE_ONLY: bool;

        /// The same with formats, if it has any; those that are not given stay.
        fn formatted(
            &self,
            states: Option<StateFormat>,
            weights: Option<WeightFormat>,
        ) -> Option<Self>;

        /// The optimizer that takes the gradients of micro-batches into its state, and the policies for that.
        fn in_state(&self) -> Result<(ModuleOptimizer, Policies), FusedError>;
    }
}

macro_rules! planned {
    ($($by_shape:literal, $config:ty: |$it:ident| $in_state:expr;)*) => {
        $(
            impl PlannedOptimizer for $config {
                fn build(&self) -> ModuleOptimizer {
                    self.init()
                }
            }

            #[allow(private_interfaces)]
            impl Planned for $config {
                const DEPENDS_ON_SHAPE_ONLY: bool = $by_shape;

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

                fn in_state(&self) -> Result<(ModuleOptimizer, Policies), FusedError> {
                    let $it = self;
                    $in_state
                }
            }
        )*
    };
}

planned! {
    true, AdamConfig: |it| Policies::in_state_of(it.build());
    true, AdamWConfig: |it| Policies::in_state_of(it.build());
    true, SgdConfig: |it| Policies::in_state_of(it.build());
    true, LionConfig: |_it| whole_gradient();
    false, MuonConfig: |_it| whole_gradient();
    false, MuonWithAdamWConfig: |_it| whole_gradient();
}

fn whole_gradient() -> Result<(ModuleOptimizer, Policies), FusedError> {
    Err(FusedError::NotInState {
        reason: "it looks at the whole gradient: use `AdamW`",
    })
}

impl PlannedOptimizer for ModuleOptimizer {
    fn build(&self) -> ModuleOptimizer {
        self.clone()
    }
}

#[allow(private_interfaces)]
impl Planned for ModuleOptimizer {
    const DEPENDS_ON_SHAPE_ONLY: bool = false;

    fn formatted(
        &self,
        states: Option<StateFormat>,
        weights: Option<WeightFormat>,
    ) -> Option<Self> {
        (states.is_none() && weights.is_none()).then(|| self.clone())
    }

    fn in_state(&self) -> Result<(ModuleOptimizer, Policies), FusedError> {
        Err(FusedError::NotInState {
            reason: "what a `ModuleOptimizer` holds is not known: plan with a config of `backburn::optim`",
        })
    }
}
