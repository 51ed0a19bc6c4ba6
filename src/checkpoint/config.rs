use burn::config::Config;

/// How a fused step treats the blocks that its model [`checkpoint`](crate::checkpoint())s.
///
/// ```
/// use backburn::CheckpointingConfig;
///
/// // The last of three blocks keeps its activations, as if it were not checkpointed.
/// let some = CheckpointingConfig::new().with_keep_activations(vec![false, false, true]);
/// // What waits for the backward pass waits in host memory.
/// let offloaded = CheckpointingConfig::new().with_offload_inputs(true);
/// ```
///
/// Neither changes what is computed: every block sees the same random numbers whether it keeps its
/// activations or not.
#[derive(Config, Debug, Default, PartialEq, Eq)]
pub struct CheckpointingConfig {
    /// Whether the activations of a block are kept, for every block of a step in the order of the
    /// calls. Blocks beyond the list are checkpointed, and so are blocks within blocks, which are
    /// not in it.
    #[config(default = "Vec::new()")]
    pub keep_activations: Vec<bool>,
    /// Whether the float inputs of checkpointed blocks wait for the second run in the memory of the
    /// host, on devices that have memory of their own. Each transfer is waited for.
    #[config(default = false)]
    pub offload_inputs: bool,
}
