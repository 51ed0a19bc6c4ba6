use std::iter::once;

use burn::tensor::{DType, Device, FloatDType, Tensor};

use super::super::call;
use super::residual::Residual;
use super::square_root_code::SquareRootCode;
use super::state::{MIN_ELEMENTS, StateFormat, StateTensor};
use super::weight::WeightFormat;
use backburn_base::{in_type, is_remote};

/// The formats of an optimizer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Formats {
    pub(crate) state: StateFormat,
    pub(crate) weight: WeightFormat,
    /// `true` if the formats wrap an optimizer, which always steps in f32.
    pub(crate) is_wrapper: bool,
}

/// The formats of one parameter. The check ensures that its step loses no bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResolvedFormats {
    state: StateFormat,
    pub(crate) weight: WeightFormat,
    /// `true` for a small parameter in f32 (a norm, a bias), which has all its bits.
    pub(crate) is_whole: bool,
    /// `true` if parameter and states are stored as in Burn. With quantized states, the full states of small parameters in half
    /// types are in f32.
    pub(crate) is_plain: bool,
}

/// A parameter with the residual of its format.
#[derive(Clone, Debug)]
pub(crate) struct Weight<const D: usize> {
    pub(crate) value: Tensor<D>,
    pub(crate) format: WeightFormat,
    pub(crate) residual: Option<Residual>,
}

/// Returns `true` if a format may refuse a parameter of this type and number of elements.
pub fn formats_may_refuse(dtype: DType, elements: usize) -> bool {
    // Small parameters in f32 are stepped without formats.
    let is_whole = dtype == DType::F32 && elements < MIN_ELEMENTS;
    dtype != DType::BF16 && !is_whole
}

impl Formats {
    /// Resolves the formats of this parameter. Returns an error if operands don't match, or the step would lose bits.
    pub(crate) fn resolve<const D: usize>(
        self,
        parameter: &Tensor<D>,
        gradient: &Tensor<D>,
        states: &[Option<StateTensor<D>>],
        residual: Option<&Residual>,
    ) -> Result<ResolvedFormats, String> {
        let has_format = self.state != StateFormat::Full || self.weight != WeightFormat::Plain;
        if has_format {
            self.check_has_kernels(&call::device(parameter.device()))?;
        }
        let dtype = parameter.dtype();
        let is_small = (has_format || self.is_wrapper)
            && call::elements(parameter.shape().num_elements()) < MIN_ELEMENTS;
        let is_whole = is_small && dtype == DType::F32;
        let weight = match is_whole {
            true => WeightFormat::Plain,
            false => self.weight,
        };
        let is_wide = matches!(dtype, DType::F32 | DType::F64);
        let is_full = self.state == StateFormat::Full || is_small && is_wide;
        let is_plain = is_full && weight == WeightFormat::Plain;
        if let Some(residual) = residual {
            check_residual(weight, parameter, residual)?;
        }
        if weight != WeightFormat::Plain || self.is_wrapper && !is_whole {
            self.check_bf16(parameter)?;
        }
        let is_computed_in_f32 = matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
        if !is_computed_in_f32 && !is_plain {
            return Err(format!(
                "parameters in {dtype:?} support only `StateFormat::Full`: use them in f32, f16 or bf16. This one was not \
                 stepped"
            ));
        }
        let states = states.iter().flatten().map(|state| {
            let (shape, device) = match state {
                StateTensor::Full(state) => (state.shape(), state.device()),
                StateTensor::Packed(state) => (state.shape.clone(), state.scales.device()),
            };
            // Its type does not matter: it will be converted.
            ("optimizer state", shape, dtype, device)
        });
        let gradient = (
            "gradient",
            gradient.shape(),
            gradient.dtype(),
            gradient.device(),
        );
        let (shape, device) = (parameter.shape(), parameter.device());
        for (operand, its_shape, its_dtype, its_device) in once(gradient).chain(states) {
            if (&its_shape, its_dtype, &its_device) != (&shape, dtype, &device) {
                return Err(format!(
                    "the {operand} is {:?} in {its_dtype:?} on {its_device:?}, but its parameter is {:?} in {dtype:?} on \
                     {device:?}: it belongs to another model. The parameter was not stepped",
                    its_shape.as_slice(),
                    shape.as_slice()
                ));
            }
        }
        Ok(ResolvedFormats {
            state: self.state,
            weight,
            is_whole,
            is_plain,
        })
    }

    /// Returns an error for formats on a server, which supports only tensor operations.
    fn check_has_kernels(self, device: &Device) -> Result<(), String> {
        if !is_remote(device) {
            return Ok(());
        }
        let (format, instead) = match self.state {
            StateFormat::Full => (
                format!("WeightFormat::{:?}", self.weight),
                "WeightFormat::Plain",
            ),
            state => (format!("StateFormat::{state:?}"), "StateFormat::Full"),
        };
        Err(format!(
            "`{format}` needs a kernel of backburn, and {device:?} is on a server, which has no kernels: use `{instead}` there"
        ))
    }

    /// Returns an error for a parameter that is not in bf16.
    fn check_bf16<const D: usize>(self, parameter: &Tensor<D>) -> Result<(), String> {
        let (device, dtype) = (call::device(parameter.device()), parameter.dtype());
        if dtype == DType::BF16 {
            return Ok(());
        }
        let what = format!("`WeightFormat::{:?}`", self.weight);
        let (what, instead) = match self.is_wrapper {
            true => (
                format!("`InFormat` with {what}"),
                "the optimizer without `InFormat`",
            ),
            false => (what, "`WeightFormat::Plain`"),
        };
        Err(if device.supports_dtype(FloatDType::BF16) {
            format!(
                "{what} is for parameters in bf16, and this parameter is in {dtype:?}: use \
                 `backburn::cast(model, FloatDType::BF16)`, or {instead}. The parameter was not stepped"
            )
        } else {
            format!(
                "{what} is for parameters in bf16, which {device:?} does not have: use {instead} there. The parameter was \
                 not stepped"
            )
        })
    }
}

impl ResolvedFormats {
    /// Converts a state of `parameter` to its format. Without a state it is filled with `blank`; without a root it is full.
    /// Updates in formats are computed in f32, so full states are in f32.
    pub(crate) fn state<const D: usize>(
        self,
        state: Option<StateTensor<D>>,
        root: Option<SquareRootCode>,
        blank: impl FnOnce() -> f32,
        parameter: &Tensor<D>,
    ) -> StateTensor<D> {
        let (shape, device) = (parameter.shape(), parameter.device());
        let root = root.filter(|_| !self.is_plain);
        let scheme = root.and_then(|root| self.state.scheme(root, shape.num_elements()));
        let dtype = match self.is_plain {
            true => parameter.dtype(),
            false => DType::F32,
        };
        match (state, scheme) {
            (Some(StateTensor::Full(state)), None) if state.dtype() == dtype => {
                StateTensor::Full(state)
            }
            // Burn loads a recorded state in the type of its default device.
            (Some(state), None) => StateTensor::Full(in_type(state.full(), dtype)),
            (Some(state), scheme) => state.conformed(scheme),
            (None, Some(scheme)) => StateTensor::blank(parameter, scheme),
            (None, None) => StateTensor::Full(Tensor::full(shape, blank(), (&device, dtype))),
        }
    }

    /// Returns `parameter` with its residual. The residual must come from a step that was not refused.
    pub(crate) fn weight<const D: usize>(
        self,
        parameter: Tensor<D>,
        residual: Option<Residual>,
    ) -> Weight<D> {
        // In other formats a weight has no residual, or one that its type includes.
        let residual = (self.weight == WeightFormat::Split24)
            .then(|| residual.unwrap_or_else(|| Residual::none(&parameter)));
        Weight {
            value: parameter,
            format: self.weight,
            residual,
        }
    }
}

impl<const D: usize> Weight<D> {
    /// Creates a weight without a format.
    pub(crate) fn plain(value: Tensor<D>) -> Self {
        Self {
            value,
            format: WeightFormat::Plain,
            residual: None,
        }
    }
}

/// Returns an error for the residual of another parameter, and for one that this format would drop.
fn check_residual<const D: usize>(
    format: WeightFormat,
    parameter: &Tensor<D>,
    residual: &Residual,
) -> Result<(), String> {
    if residual.elements != parameter.shape().num_elements() {
        return Err(format!(
            "the low bits are of {} elements, but their parameter is {:?}: they belong to another model. The parameter was \
             not stepped",
            residual.elements,
            parameter.shape().as_slice()
        ));
    }
    let are_dropped = match parameter.dtype() {
        DType::BF16 => format.residual_bytes() == 0,
        // The residual would be dropped, unless the weights are in full precision or are other weights.
        _ => residual.are_missing_in(parameter),
    };
    match are_dropped {
        false => Ok(()),
        true => Err(format!(
            "the optimizer state contains low bits of the weight, which `WeightFormat::{format:?}` would drop: use the \
             format that it was written with, or start from the model in full precision. The parameter was not stepped"
        )),
    }
}
