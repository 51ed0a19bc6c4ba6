//! The first factors of adapters, which are drawn.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;

use crate::decoder::Decoder;

/// Returns the standard deviation of the first factor of a layer with this input in `peft`, whose uniform distribution is
/// `kaiming_uniform_(a=sqrt(5))`.
pub fn deviation(d_in: usize) -> f64 {
    (3.0 * d_in as f64).sqrt().recip()
}

/// Returns `decoder`, whose factors were drawn with the deviation of an input of `hidden` elements, with that of the input of each
/// layer.
pub fn with_deviations(decoder: Decoder, hidden: usize) -> Decoder {
    decoder.map(&mut Deviations {
        hidden,
        path: Vec::new(),
    })
}

struct Deviations {
    hidden: usize,
    path: Vec<String>,
}

impl ModuleMapper for Deviations {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let d_in = param.lazy_shape()[0];
        let is_first_factor = matches!(&self.path[..], [.., lora, a] if lora == "lora" && a == "a");
        if !is_first_factor || d_in == self.hidden {
            return param;
        }
        let factor = deviation(d_in) / deviation(self.hidden);
        param.map(|a| a.detach().mul_scalar(factor).detach().require_grad())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use backburn::FusedOptimizer;
    use burn::optim::SgdConfig;
    use burn::store::{ModuleSnapshot, bridge};
    use burn::tensor::Device;

    use super::*;
    use crate::adapters::{Adapters, TARGETS, factors};
    use crate::config::DecoderConfig;

    #[test]
    fn first_factors_have_deviation_of_input_of_layer() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/llama");
        let config = DecoderConfig::read(&folder).unwrap();
        let adapters = Adapters {
            rank: 64,
            alpha: 1.0,
            targets: TARGETS.map(str::to_owned).into(),
        };
        let decoder = Decoder::init(&config, false, &Device::flex().autodiff());
        let decoder = decoder.apply_lora(adapters.lora(config.hidden));
        let decoder = with_deviations(decoder, config.hidden);
        let mut inputs = Vec::new();
        for tensor in decoder.collect(Some(factors()), None, false) {
            if !tensor.name.ends_with("lora.a") {
                continue;
            }
            let (name, d_in) = (tensor.name.clone(), tensor.shape[0]);
            let data = bridge::into_data(tensor).unwrap();
            let squares: f64 = data.iter::<f64>().map(|it| it * it).sum();
            let found = (squares / data.num_elements() as f64).sqrt();
            let ratio = found / deviation(d_in);
            assert!((0.9..1.1).contains(&ratio), "{name}: {ratio}");
            inputs.push(d_in);
        }
        let adapters = inputs.len();
        inputs.sort_unstable();
        inputs.dedup();
        assert_eq!(inputs, [config.hidden, config.intermediate]);
        let fused = FusedOptimizer::new(decoder, SgdConfig::new().init()).unwrap();
        assert_eq!(fused.num_released(), 2 * adapters);
    }
}
