/// What a finished gradient is used for, after the hooks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Add it to the parameter's accumulated gradient. There are no hooks.
    Accumulate,
    /// Drop it: a hook has measured it.
    Measure,
    /// Step the parameter.
    #[default]
    Update,
}
