use burn::config::Config;

/// How a fused step treats the blocks that its model runs under [`gradient_checkpointing`](crate::gradient_checkpointing()).
///
/// ```
/// use backburn::GradientCheckpointingConfig;
///
/// // The last of three blocks keeps its activations, as if it were not recomputed.
/// let some = GradientCheckpointingConfig::new().with_keep_activations(vec![false, false, true]);
/// // What waits for the backward pass waits in host memory.
/// let offloaded = GradientCheckpointingConfig::new().with_offload_inputs(true);
/// ```
///
/// Neither changes what is computed: every block sees the same random numbers whether it keeps its
/// activations or not.
#[derive(Config, Debug, Default, PartialEq, Eq)]
pub struct GradientCheckpointingConfig {
    /// Whether the activations of a block are kept, for every block of a step in the order of the
    /// calls. Blocks beyond the list are recomputed, and so are blocks within blocks, which are
    /// not in it.
    #[config(default = "Vec::new()")]
    pub keep_activations: Vec<bool>,
    /// Whether the float inputs of recomputed blocks wait for the second run in the memory of the
    /// host, on CubeCL devices and on the one that computes with [offload](crate::OffloadConfig). They leave and come
    /// back on threads of their own, the latter a block ahead, as far as
    /// [`max_bytes_in_flight`](crate::FusedConfig::max_bytes_in_flight) allows.
    #[config(default = false)]
    pub offload_inputs: bool,
}
