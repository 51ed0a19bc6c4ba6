use backburn_base::config_struct;

config_struct! {
    /// Configuration of the blocks that a model runs under [`gradient_checkpointing`](crate::gradient_checkpointing()).
    ///
    /// ```
    /// use backburn::GradientCheckpointingConfig;
    ///
    /// // The last of three blocks keeps its activations, as if it were not recomputed.
    /// let some = GradientCheckpointingConfig::new().with_keep_activations(vec![false, false, true]);
    /// // The inputs of blocks are in host memory until the backward pass.
    /// let offloaded = GradientCheckpointingConfig::new().with_offload_inputs(true);
    /// ```
    ///
    /// Each block draws the same random numbers whether it keeps its activations or not. The result differs in two cases only: a
    /// tracked input that a recomputed block does not use gets a gradient of zeros, one of a kept block gets none; and the gradients
    /// of a tensor with three or more uses, some of them inside of the block, are added in another order.
    #[derive(Debug, PartialEq, Eq)]
    pub struct GradientCheckpointingConfig {
        /// One value for each block of a step, in the order of the calls: `true` keeps the activations of the block. Blocks
        /// beyond the list and nested blocks are recomputed.
        pub keep_activations (with_keep_activations): Vec<bool> = Vec::new(),
        /// Offloads the float inputs of recomputed blocks to host memory until the recomputation, on CubeCL devices and on
        /// a device that computes with [offload](crate::OffloadConfig). Worker threads transfer them, and prefetch one
        /// block ahead within [`max_bytes_in_flight`](crate::FusedConfig::max_bytes_in_flight).
        pub offload_inputs (with_offload_inputs): bool = false,
    }
}
