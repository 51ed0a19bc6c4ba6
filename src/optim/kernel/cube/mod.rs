//! One kernel, one file an optimizer for what it does to a vector of elements.

mod adam;
mod adamw;
mod kernel;
mod lion;
mod moments;
mod sgd;

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::rule::Rule;
use kernel::VectorRule;

/// Applies `rule` to every element.
pub(super) fn update(
    rule: Rule,
    parameter: CubeTensor,
    gradient: CubeTensor,
    states: Vec<CubeTensor>,
) -> (CubeTensor, Vec<CubeTensor>) {
    let parameter = writable(parameter);
    let states: Vec<_> = states.into_iter().map(writable).collect();
    if parameter.meta.num_elements() > 0 {
        let launch = Launch::new(&parameter, gradient, &states);
        match rule {
            Rule::Adam(rule) => adam::launch(rule, launch),
            Rule::AdamW(rule) => adamw::launch(rule, launch),
            Rule::CautiousAdamW(rule) => adamw::launch(rule, launch),
            Rule::Lion(rule) => lion::launch(rule, launch),
            Rule::Sgd(rule) => sgd::launch(rule, launch),
        }
    }
    (parameter, states)
}

/// `tensor` in a dense buffer with one owner: itself, or a copy.
fn writable(tensor: CubeTensor) -> CubeTensor {
    let tensor = into_contiguous(tensor);
    match tensor.can_mut() && tensor.is_contiguous_buffer() {
        true => tensor,
        false => tensor.copy(),
    }
}

/// What the kernel is launched with.
struct Launch<'a> {
    client: Client,
    cube_count: CubeCount,
    cube_dim: CubeDim,
    address_type: AddressType,
    vector_size: VectorSize,
    /// The types of the elements as they are stored and as they are computed with.
    types: [ElemType; 2],
    parameter: &'a CubeTensor,
    gradient: CubeTensor,
    states: &'a [CubeTensor],
}

impl<'a> Launch<'a> {
    fn new(parameter: &'a CubeTensor, gradient: CubeTensor, states: &'a [CubeTensor]) -> Self {
        let client = parameter.client.clone();
        let length = parameter.meta.num_elements();
        // A strided gradient is read element by element.
        let dense = gradient.is_contiguous();
        let sizes = client.io_optimized_vector_sizes(parameter.dtype.size());
        let sizes = sizes.filter(|size| dense && length.is_multiple_of(*size));
        let vector_size = sizes.max().unwrap_or(1);
        let units = length / vector_size;
        let cube_dim = CubeDim::new(&client, units);
        let cube_count = calculate_cube_count_elemwise(&client, units, cube_dim);
        let tensors = [parameter, &gradient].into_iter().chain(states);
        let address_type = tensors.map(CubeTensor::required_address_type).max();
        // Half types are computed in f32.
        let computed = match parameter.dtype {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        Self {
            client,
            cube_count,
            cube_dim,
            address_type: address_type.unwrap_or_default(),
            vector_size,
            types: [parameter.dtype, computed].map(dtype_to_storage_type),
            parameter,
            gradient,
            states,
        }
    }

    /// A hyperparameter.
    fn scalar(&self, value: f64) -> InputScalar {
        InputScalar::new(value, self.types[1])
    }

    /// Starts the kernel.
    fn start<R: VectorRule>(self, options: RuntimeArg<R::Options>) {
        let states = self
            .states
            .iter()
            .map(|state| state.clone().into_linear_view());
        // SAFETY: the tensors have one shape, those written are dense and have one owner, and every unit
        // ends before it touches an element that is not there.
        unsafe {
            kernel::update::launch_unchecked::<R>(
                &self.client,
                self.cube_count,
                self.cube_dim,
                self.address_type,
                self.vector_size,
                self.gradient.into_linear_view(),
                self.parameter.clone().into_linear_view(),
                states.collect(),
                options,
                self.types,
            );
        }
    }
}
