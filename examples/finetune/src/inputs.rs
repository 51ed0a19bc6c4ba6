//! The model, the data and the options that fit them.

use anyhow::{Result, ensure};
use burn::tensor::{DType, Device};
use peak_alloc::PeakAlloc;

use crate::config::DecoderConfig;
use crate::conversion::Conversion;
use crate::counts::Counts;
use crate::data::Data;
use crate::dry_run;
use crate::extent;
use crate::options::Options;
use crate::peaks;
use crate::planning;
use crate::print::{count, say};
use crate::tokens::Tokens;
use crate::weights;

/// Tokens of a prompt that is taken from the data.
const PROMPT: usize = 24;

/// Everything that a training reads, except for the weights.
pub struct Inputs {
    /// The options, with those that depend on the data.
    pub options: Options,
    pub config: DecoderConfig,
    pub tokens: Tokens,
    pub data: Data,
    pub device: Device,
    /// The type of the written weights.
    pub dtype: DType,
    pub counts: Counts,
    /// The beginning of the text that is sampled.
    pub prompt: Vec<u32>,
    /// The number of steps of the whole training.
    pub steps: usize,
    /// The number of steps after which this run stops.
    pub stop_at: usize,
}

impl Inputs {
    /// Reads the files that `options` name. `bytes` counts those that the program has allocated.
    ///
    /// # Errors
    ///
    /// If a file can't be read, or an option does not fit the model or the data.
    pub fn read(options: &Options, bytes: &PeakAlloc) -> Result<Self> {
        let config = DecoderConfig::read(&options.model)?;
        options.check(&config)?;
        let tensors = weights::check(&options.model, &config)?;
        let dtype = options.dtype.dtype(weights::dtype(&tensors, config.tied));
        ensure!(
            dtype != DType::F64 || options.writes_adapters(),
            "the weights of the base are in f64, which this program does not write: choose `--dtype f32`"
        );
        let tokens = Tokens::read(&options.model, &config)?;
        let data = Data::read(options, &config, &tokens)?;
        let device = options.device.device().autodiff();
        let inner = device.clone().inner();
        if let Some(budget) = options.fit.filter(|_| !peaks::has_own_memory(&inner)) {
            let (read, budget) = (bytes.peak_usage(), budget.bytes(&inner)?);
            ensure!(
                read <= budget,
                "to read the data takes {read} bytes, and `--fit` has {budget}: raise it, or divide long texts into several documents"
            );
        }
        let (rows, held_out) = (&data.rows, &data.held_out);
        ensure!(
            !held_out.is_empty() || !options.follows_loss(),
            "`--keep-best` and `--patience` need the held-out loss: raise `--held-out`, add documents, or name a file with `--validation`"
        );
        let prompt = match &options.prompt {
            Some(prompt) => tokens.prompt(prompt, data.is_chats)?,
            None if held_out.is_empty() => rows.beginning(PROMPT),
            None => held_out.beginning(PROMPT),
        };
        let options = options.for_rows(rows.len())?;
        let steps = options.steps(rows.len())?;
        options.check_patience(steps)?;
        let stop_at = options.stop.unwrap_or(steps);
        ensure!(
            stop_at <= steps,
            "`--stop` is {stop_at}, and the training has {}: stop earlier, or leave the option out",
            count(steps, "step")
        );
        let counts = Counts::of(&options, &config, &tensors);
        Ok(Self {
            options,
            config,
            tokens,
            data,
            device,
            dtype,
            counts,
            prompt,
            steps,
            stop_at,
        })
    }

    /// Prints the first rows, the extent of the training and its plan.
    ///
    /// # Errors
    ///
    /// If nothing fits the budget, or the result could not be written within it.
    pub fn dry_run(&self, bytes: &PeakAlloc) -> Result<()> {
        let (options, config, device) = (&self.options, &self.config, &self.device);
        let (rows, counts) = (&self.data.rows, self.counts);
        dry_run::print(&self.data, &self.tokens)?;
        extent::report(options, counts, rows.length(), self.steps);
        let plan = planning::plan(options, config, counts, rows, device)?;
        let plan = plan.as_ref();
        let fused = planning::fuse(options, config, plan, device)?;
        let held = peaks::held(&device.clone().inner(), bytes)?;
        Conversion::check(options, plan, &fused, counts, self.dtype, held)?;
        say!("{fused}");
        Ok(())
    }
}
