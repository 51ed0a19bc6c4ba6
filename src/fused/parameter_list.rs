use std::fmt::{Display, Formatter};

use backburn_base::{Parameter, list};
use burn::module::{Module, ParamId};
use burn::tensor::Shape;

use crate::error::{FusedError, listed};
use crate::parameters::running_statistics;
use crate::quantized::{is_factor, weight_of_values};
use crate::shared_optimizer::SharedOptimizer;
use crate::weights::Role;

/// The parameters of a model in module order, each with its role and its optimizer state.
///
/// `Display` prints a sentence with their numbers, and with `{:#}` also one line for each.
pub(crate) struct ParameterList(Vec<Listed>);

struct Listed {
    path: String,
    shape: Shape,
    role: Role,
    /// The names of the tensors in the optimizer state; `None` if they were not requested.
    state: Option<Vec<String>>,
}

impl ParameterList {
    /// Returns the parameters of `model`, with the role that `trained` returns for a trained one, and its shape if the model lacks its
    /// value. `optimizer` contains the states.
    pub(crate) fn of<M: Module>(
        model: &M,
        trained: impl Fn(ParamId) -> Option<(Role, Option<Shape>)>,
        optimizer: Option<&SharedOptimizer>,
    ) -> Self {
        let parameters = list(model).into_iter();
        // Quantized values do not count as parameters in addition to their weights.
        let parameters = parameters.filter(|it| weight_of_values(&it.path).is_none());
        let listed = |it: Parameter| {
            let id = it.param.id();
            let (role, shape) = trained(id).unwrap_or((Role::Frozen, None));
            let shape = shape.unwrap_or_else(|| it.param.shape());
            let trained_by = optimizer.filter(|_| role != Role::Frozen);
            let state =
                trained_by.map(|optimizer| optimizer.state_names(id, &it.path, shape.num_dims()));
            Listed {
                path: it.path,
                shape,
                role,
                state,
            }
        };
        Self(parameters.map(listed).collect())
    }

    /// Returns the numbers of parameters and elements for which `which` is `true`.
    fn count(&self, which: impl Fn(Role) -> bool) -> (usize, usize) {
        let found = self.0.iter().filter(|it| which(it.role));
        found.fold((0, 0), |(parameters, elements), it| {
            (parameters + 1, elements + it.shape.num_elements())
        })
    }
}

impl Display for ParameterList {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let (all, all_elements) = self.count(|_| true);
        let (trained, elements) = self.count(|role| role != Role::Frozen);
        write!(
            f,
            "{trained} of {all} parameters are trained ({elements} of {all_elements} elements)"
        )?;
        if !f.alternate() {
            return Ok(());
        }
        for it in &self.0 {
            let (path, shape, elements) = (&it.path, it.shape.to_vec(), it.shape.num_elements());
            write!(f, "\n  {path} {shape:?}, {elements} elements: ")?;
            match it.role {
                Role::Released => f.write_str("trained")?,
                Role::Retained => f.write_str("trained after the backward pass")?,
                Role::Frozen => f.write_str("frozen")?,
            }
            match it.state.as_deref() {
                None => {}
                Some([]) => f.write_str(", optimizer without state")?,
                Some(names) => write!(f, ", optimizer state {}", names.join(", "))?,
            }
        }
        Ok(())
    }
}

/// Returns the error of a model whose parameters are all frozen, or `None` if it has no parameters.
pub(super) fn nothing_trained<M: Module>(model: &M) -> Option<FusedError> {
    let mut parameters = list(model);
    let statistics = running_statistics(model);
    let can_be_trained = |it: &Parameter| {
        weight_of_values(&it.path).is_none() && !statistics.contains(&it.param.id())
    };
    parameters.retain(can_be_trained);
    let paths = |which: fn(&Parameter) -> bool| {
        let found = parameters.iter().filter(|it| which(it));
        let found: Vec<_> = found.map(|it| format!("`{}`", it.path)).collect();
        (!found.is_empty()).then(|| listed(found.iter()))
    };
    let is_factor = |it: &Parameter| is_factor(&it.path);
    let is_matrix = |it: &Parameter| it.param.shape().num_dims() == 2;
    let advice = if let Some(factors) = paths(is_factor) {
        format!("Unfreeze the adapters with `Module::unfreeze_group`: {factors}")
    } else if let Some(matrices) = paths(is_matrix) {
        format!(
            "To train adapters, choose a parameter group of `Lora` that matches matrices: {matrices}. To train \
             parameters, unfreeze them with `Module::unfreeze_group`"
        )
    } else {
        let all = paths(|_| true)?;
        format!(
            "`Lora` adds adapters to matrices, and the model has none. Unfreeze parameters with \
             `Module::unfreeze_group`: {all}"
        )
    };
    Some(FusedError::NothingTrained { advice })
}
