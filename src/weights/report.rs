/// What happened to one parameter in a pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct ParameterReport {
    /// A gradient arrived, or one that was accumulated was used.
    pub(crate) received: bool,
    /// The optimizer stepped the parameter.
    pub(crate) updated: bool,
    /// Someone else held the value, so it was copied to be updated. None if the backend can't tell, or
    /// there was no update.
    pub(crate) copied: Option<bool>,
    /// A gradient arrived, and a hook kept it from being used.
    pub(crate) vetoed: bool,
}

impl ParameterReport {
    /// What happened to it on another rank, too.
    pub(crate) fn add(&mut self, other: &Self) {
        self.received |= other.received;
        self.updated |= other.updated;
        self.copied = self.copied.or(other.copied);
        self.vetoed |= other.vetoed;
    }
}
