//! Adapters in the files of `peft`.

use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use backburn::WeightNames;
use burn::module::{Lora, ParamGroup};
use burn::store::burn_pack::Tensor as PackTensor;
use burn::store::{
    FloatCastAdapter, KeyRemapper, ModuleAdapter, ModuleContext, ModuleSnapshot, PathFilter,
    SafetensorsStore, bridge,
};
use burn::tensor::{DType, FloatDType, Shape, TensorData};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::decoder::Decoder;
use crate::first_factors;
use crate::names;
use crate::replace::replace;
use crate::tensor_file;

pub const WEIGHTS: &str = "adapter_model.safetensors";
pub const CONFIG: &str = "adapter_config.json";

/// The linear layers that can have an adapter.
pub const TARGETS: [&str; 7] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
];

/// The paths of [`TARGETS`] in a layer.
const PATHS: [&str; 7] = [
    "attention.query",
    "attention.key",
    "attention.value",
    "attention.output",
    "mlp.swiglu.linear_inner",
    "mlp.swiglu.linear_outer",
    "mlp.output",
];

/// The names of the factors of an adapter, and those of `peft`.
const FACTORS: [(&str, &str); 2] = [("a", "lora_A"), ("b", "lora_B")];

/// The layers that have adapters, and the size of the adapters.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Adapters {
    pub rank: usize,
    pub alpha: f64,
    pub targets: Vec<String>,
}

impl Adapters {
    /// Returns an error for a layer that the decoder does not have, and for a rank of zero.
    pub fn check(&self) -> Result<()> {
        ensure!(self.rank > 0, "`--rank` is 0: use 1 or more");
        ensure!(!self.targets.is_empty(), "`--targets` names no layer");
        for target in &self.targets {
            ensure!(
                TARGETS.contains(&target.as_str()),
                "`--targets` names {target}, and the linear layers are {}",
                TARGETS.join(", ")
            );
        }
        Ok(())
    }

    /// Returns Burn's reparameterizer. The first factors have the deviation of those of `peft` in layers with an input of `hidden`
    /// elements.
    pub fn lora(&self, hidden: usize) -> Lora {
        let targets = TARGETS.iter().zip(PATHS);
        let targets = targets.filter(|(name, _)| self.targets.iter().any(|it| it == *name));
        let paths = targets.map(|(_, path)| format!(".{path}.weight"));
        let group = ParamGroup::from_any_predicates(paths.collect());
        let mut lora = Lora::new(self.rank, self.alpha).set_param_group(group);
        lora.init_std = Some(first_factors::deviation(hidden));
        lora
    }

    /// Returns the names that the factors of a layer have in files of `peft`.
    pub fn names(&self, layer: usize) -> Vec<String> {
        let module = |target: &str| match target.starts_with(['q', 'k', 'v', 'o']) {
            true => "self_attn",
            false => "mlp",
        };
        let names = self.targets.iter().flat_map(|target| {
            FACTORS.map(|(_, factor)| {
                let module = module(target);
                format!("base_model.model.model.layers.{layer}.{module}.{target}.{factor}.weight")
            })
        });
        names.collect()
    }

    /// Writes the adapters of `decoder` and their config to `folder`.
    pub fn save(&self, decoder: &Decoder, base: &Path, folder: &Path) -> Result<()> {
        let file = folder.join(WEIGHTS);
        let mut names = WeightNames::decoder().to_file();
        for (ours, theirs) in FACTORS {
            let pattern = format!(r"^(.*)\.weight\.q?lora\.{ours}$");
            let name = format!("base_model.model.${{1}}.{theirs}.weight");
            names = names.add_pattern(pattern, name)?;
        }
        tensor_file::write(decoder, &file, Transposed, factors(), names)?;
        let base = std::path::absolute(base).unwrap_or(base.to_path_buf());
        let config = json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base.display().to_string(),
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "target_modules": self.targets,
            "bias": "none",
            "fan_in_fan_out": false,
            "inference_mode": true,
        });
        let file = folder.join(CONFIG);
        let text = serde_json::to_string_pretty(&config)? + "\n";
        replace(&file, text.as_bytes())
            .with_context(|| format!("{} can't be written", file.display()))
    }

    /// Returns `decoder`, which has adapters, with the factors in a file of `peft`, in `dtype`. Those that the file lacks stay.
    pub fn load(mut decoder: Decoder, file: &Path, dtype: FloatDType) -> Result<Decoder> {
        let mut names = KeyRemapper::new();
        for (ours, theirs) in FACTORS {
            let pattern = format!(r"^(?:initial\.)?base_model\.model\.(.*)\.{theirs}\.weight$");
            names = names.add_pattern(pattern, format!("${{1}}.weight.lora.{ours}"))?;
        }
        names
            .patterns
            .extend(WeightNames::decoder().to_module().patterns);
        let mut store = SafetensorsStore::from_file(file)
            .remap(names)
            .with_from_adapter(Transposed.chain(FloatCastAdapter::to(dtype.into())))
            .allow_partial(true);
        let loaded = decoder.load_from(&mut store);
        loaded.map_err(|error| anyhow!("{}: {}", file.display(), names::in_files(&error)))?;
        Ok(decoder)
    }
}

/// Returns the filter for the factors of adapters.
pub fn factors() -> PathFilter {
    PathFilter::new().with_predicate(|path, _| is_factor(path))
}

/// Returns `true` for the path of a factor of an adapter.
fn is_factor(path: &str) -> bool {
    path.ends_with("lora.a") || path.ends_with("lora.b")
}

/// Factors transposed.
#[derive(Clone, Debug)]
struct Transposed;

impl ModuleAdapter for Transposed {
    fn adapt(&self, tensor: PackTensor, _: ModuleContext<'_>) -> PackTensor {
        let name = tensor.name.clone();
        match is_factor(&name) {
            true => transposed(tensor, name),
            false => tensor,
        }
    }

    fn clone_box(&self) -> Box<dyn ModuleAdapter> {
        Box::new(self.clone())
    }
}

fn transposed(tensor: PackTensor, name: String) -> PackTensor {
    let [rows, columns] = [tensor.shape[0], tensor.shape[1]];
    let dtype = tensor.dtype;
    bridge::map_data(
        tensor,
        name,
        dtype,
        Shape::from([columns, rows]),
        move |data| {
            let numbers: Vec<f32> = data.convert_dtype(DType::F32).iter().collect();
            let turned =
                (0..columns).flat_map(|column| (0..rows).map(move |row| row * columns + column));
            let turned: Vec<f32> = turned.map(|index| numbers[index]).collect();
            TensorData::new(turned, [columns, rows]).convert_dtype(dtype)
        },
    )
}
