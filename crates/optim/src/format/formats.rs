use std::fmt::Debug;

use burn::tensor::{DType, Device, FloatDType, Shape, Tensor};

use super::super::call;
use super::low_bits::LowBits;
use super::root::Root;
use super::state::{MIN_ELEMENTS, StateFormat, StateTensor};
use super::weight::WeightFormat;
use backburn_base::{in_type, is_remote};

/// The formats of an optimizer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Formats {
    pub(crate) state: StateFormat,
    pub(crate) weight: WeightFormat,
    /// Whether they are around the optimizer, which would step in f32 whatever the weight is in.
    pub(crate) is_around: bool,
}

/// The formats of one parameter, whose step loses nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fitted {
    state: StateFormat,
    pub(crate) weight: WeightFormat,
    /// Whether it is a small one that was left in f32 (a norm, a bias): it has all its bits.
    pub(crate) is_whole: bool,
    /// Whether parameter and states are kept as Burn keeps them. (Beside states in few bits, the full ones of small parameters
    /// in half types are in f32.)
    pub(crate) is_plain: bool,
}

/// A parameter with what its format keeps beside it.
#[derive(Clone, Debug)]
pub(crate) struct Weight<const D: usize> {
    pub(crate) value: Tensor<D>,
    pub(crate) format: WeightFormat,
    pub(crate) low_bits: Option<LowBits>,
}

/// Returns `true` if a format may refuse a parameter of this type and number of elements.
pub fn formats_may_refuse(dtype: DType, elements: usize) -> bool {
    // Small parameters in f32 are stepped without formats.
    let is_whole = dtype == DType::F32 && elements < MIN_ELEMENTS;
    dtype != DType::BF16 && !is_whole
}

impl Formats {
    /// Those of this parameter. Refuses a step whose operands don't fit, or that would lose something.
    pub(crate) fn fit<const D: usize>(
        self,
        parameter: &Tensor<D>,
        gradient: &Tensor<D>,
        states: &[Option<StateTensor<D>>],
        low_bits: Option<&LowBits>,
    ) -> Result<Fitted, String> {
        let has_format = self.state != StateFormat::Full || self.weight != WeightFormat::Plain;
        if has_format {
            self.check_has_kernels(&call::device(parameter.device()))?;
        }
        let dtype = parameter.dtype();
        let is_small = (has_format || self.is_around)
            && call::elements(parameter.shape().num_elements()) < MIN_ELEMENTS;
        let is_whole = is_small && dtype == DType::F32;
        let weight = match is_whole {
            true => WeightFormat::Plain,
            false => self.weight,
        };
        let is_wide = matches!(dtype, DType::F32 | DType::F64);
        let is_full = self.state == StateFormat::Full || is_small && is_wide;
        let is_plain = is_full && weight == WeightFormat::Plain;
        if let Some(low_bits) = low_bits {
            check_low_bits(weight, parameter, low_bits)?;
        }
        if weight != WeightFormat::Plain || self.is_around && !is_whole {
            self.check_bf16(parameter)?;
        }
        let is_computed_in_f32 = matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
        if !is_computed_in_f32 && !is_plain {
            return Err(format!(
                "there is no `StateFormat` but `Full` for parameters in {dtype:?}: use them in f32, f16 or bf16. This one was \
                 not stepped"
            ));
        }
        let form = |tensor: &Tensor<D>| (tensor.shape(), tensor.dtype(), tensor.device());
        // Whatever its type is: it will be in another.
        let states = states.iter().flatten().map(|state| match state {
            StateTensor::Full(state) => (state.shape(), dtype, state.device()),
            StateTensor::Packed(state) => (state.shape.clone(), dtype, state.scales.device()),
        });
        check_forms(form(parameter), form(gradient), states)?;
        Ok(Fitted {
            state: self.state,
            weight,
            is_whole,
            is_plain,
        })
    }

    /// Refuses formats on a server, which has tensor operations only.
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
            "`{format}` needs a kernel of backburn, and {device:?} is on a server, which has none: use `{instead}` there"
        ))
    }

    /// Refuses a parameter that is not in bf16.
    fn check_bf16<const D: usize>(self, parameter: &Tensor<D>) -> Result<(), String> {
        let (device, dtype) = (call::device(parameter.device()), parameter.dtype());
        if dtype == DType::BF16 {
            return Ok(());
        }
        let what = format!("`WeightFormat::{:?}`", self.weight);
        let (what, instead) = match self.is_around {
            true => (
                format!("`InFormat` with {what}"),
                "the optimizer without `InFormat`",
            ),
            false => (what, "`WeightFormat::Plain`"),
        };
        Err(if device.supports_dtype(FloatDType::BF16) {
            format!(
                "{what} is for parameters in bf16, and this one is in {dtype:?}: use \
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

impl Fitted {
    /// A state of `parameter` as it is to be kept, `blank` if there is none yet; without a root it is full. Updates in formats
    /// are computed in f32, so full states are in that.
    pub(crate) fn state<const D: usize>(
        self,
        state: Option<StateTensor<D>>,
        root: Option<Root>,
        blank: impl FnOnce() -> f32,
        parameter: &Tensor<D>,
    ) -> StateTensor<D> {
        let (shape, device) = (parameter.shape(), parameter.device());
        let root = root.filter(|_| !self.is_plain);
        let coding = root.and_then(|root| self.state.coding(root, shape.num_elements()));
        let dtype = match self.is_plain {
            true => parameter.dtype(),
            false => DType::F32,
        };
        match (state, coding) {
            // Burn loads it from a record in the type of its default device.
            (Some(state), None) => StateTensor::Full(in_type(state.full(), dtype)),
            (Some(state), coding) => state.conformed(coding),
            (None, Some(coding)) => StateTensor::blank(parameter, coding),
            (None, None) => StateTensor::Full(Tensor::full(shape, blank(), (&device, dtype))),
        }
    }

    /// `parameter` with what it lacks. Its low bits are those of a step that was not refused.
    pub(crate) fn weight<const D: usize>(
        self,
        parameter: Tensor<D>,
        low_bits: Option<LowBits>,
    ) -> Weight<D> {
        let format = self.weight;
        let (value, low_bits) = match low_bits {
            Some(low_bits) if low_bits.format == format => (parameter, Some(low_bits)),
            Some(low_bits) if parameter.dtype() == DType::BF16 => {
                let (high, low_bits) = LowBits::split(low_bits.joined(parameter), format);
                (high, Some(low_bits))
            }
            // In another type it lacks nothing.
            _ if format == WeightFormat::Plain => (parameter, None),
            _ => {
                let low_bits = LowBits::none(format, &parameter);
                (parameter, low_bits)
            }
        };
        Weight {
            value,
            format,
            low_bits,
        }
    }
}

impl<const D: usize> Weight<D> {
    /// As it is.
    pub(crate) fn plain(value: Tensor<D>) -> Self {
        Self {
            value,
            format: WeightFormat::Plain,
            low_bits: None,
        }
    }

    /// The same for a kernel that takes low bits whose mark is another for those of other weights.
    #[cfg(feature = "cubecl")]
    pub(crate) fn into_split(self) -> Self {
        match self.low_bits {
            Some(low_bits) if low_bits.is_loaded => {
                let (value, low_bits) = low_bits.with_weights(self.value);
                Self {
                    value,
                    format: self.format,
                    low_bits: Some(low_bits),
                }
            }
            _ => self,
        }
    }
}

/// Refuses low bits of another parameter, and those that a weight in this format would drop.
fn check_low_bits<const D: usize>(
    format: WeightFormat,
    parameter: &Tensor<D>,
    low_bits: &LowBits,
) -> Result<(), String> {
    let shape = parameter.shape();
    if low_bits.elements != shape.num_elements() {
        let found = format!("of {} elements", low_bits.elements);
        return misfit("low bits", &found, &told(&shape));
    }
    let are_dropped = match parameter.dtype() {
        DType::BF16 => format.low_bytes() == 0,
        // All weights but those in full precision, or others.
        _ => low_bits.are_missing_in(parameter),
    };
    match are_dropped {
        false => Ok(()),
        true => Err(format!(
            "the optimizer state holds low bits of the weight, which `WeightFormat::{format:?}` would drop: use the \
             format that it was written with, or start from the model in full precision. The parameter was not stepped"
        )),
    }
}

/// What all operands of a step share.
type Form<D> = (Shape, DType, D);

/// Refuses a gradient or a state of another form than that of its parameter.
fn check_forms<D: PartialEq + Debug>(
    parameter: Form<D>,
    gradient: Form<D>,
    states: impl Iterator<Item = Form<D>>,
) -> Result<(), String> {
    let states = states.map(|state| ("optimizer state", state));
    let mut operands = std::iter::once(("gradient", gradient)).chain(states);
    let Some((operand, found)) = operands.find(|(_, found)| *found != parameter) else {
        return Ok(());
    };
    let whole =
        |(shape, dtype, device): Form<D>| format!("{} in {dtype:?} on {device:?}", told(&shape));
    misfit(operand, &whole(found), &whole(parameter))
}

fn told(shape: &Shape) -> String {
    format!("{:?}", shape.as_slice())
}

/// The gradient, or something in the state, can't be used element by element with the parameter.
fn misfit(operand: &str, found: &str, parameter: &str) -> Result<(), String> {
    Err(format!(
        "the {operand} is {found}, but its parameter is {parameter}: it belongs to another model. The parameter was not \
         stepped"
    ))
}
