//! The vision transformer of the examples is torchvision's, by the number of its parameters.

#[allow(dead_code)] // A part of an example.
#[path = "../../examples/vit/model.rs"]
mod model;

use burn::module::Module;
use burn::tensor::Device;

use model::VitConfig;

/// The counts that torchvision documents for `vit_b_16` and `vit_l_16`.
#[test]
fn presets_have_as_many_parameters_as_torchvisions_models() {
    let count = |config: VitConfig| config.init(&Device::flex()).num_params();
    assert_eq!(count(VitConfig::vit_b_16()), 86_567_656);
    assert_eq!(count(VitConfig::vit_l_16()), 304_326_632);
}
