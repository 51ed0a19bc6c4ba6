use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use burn::optim::StateSink;
use burn::store::RecordError;
use burn::tensor::{Bytes, DType, Shape, TensorData};
use burn_pack::{Error, Reader, Tensor};

use super::state::writer;
use backburn_base::caught::catch;

thread_local! {
    /// Tensors of the record that is made inside of [`save_by_tensor`], by name.
    static WITHHELD: RefCell<Option<BTreeMap<String, Withheld>>> = const { RefCell::new(None) };
}

/// A tensor of a state that is not read yet.
struct Withheld {
    dtype: DType,
    shape: Shape,
    read: Arc<dyn Fn() -> TensorData + Send + Sync>,
}

/// Writes the serialized records that `records` returns to `file`, as one, and reads one state after the other. Leaves out entries of ids
/// for which `keeps` returns `false`.
///
/// A record of Burn holds a copy of all states at once. The states of this crate leave their tensors out of it instead, and each is
/// read when it is written. Other states are all copied first.
///
/// # Errors
///
/// If the file can't be written.
pub fn save_by_tensor(
    file: &Path,
    keeps: impl Fn(u64) -> bool,
    records: impl FnOnce() -> Vec<Bytes>,
) -> Result<(), RecordError> {
    // The name of an entry begins with the id of its parameter.
    let keeps = |name: &str| {
        let id = name.split('.').next().and_then(|id| id.parse().ok());
        id.is_none_or(&keeps)
    };
    let before = WITHHELD.replace(Some(BTreeMap::new()));
    let records = catch(records);
    let withheld = WITHHELD.replace(before).unwrap_or_default();
    let records = records.unwrap_or_else(|panic| panic.resume());
    let (mut scalars, mut paths) = (BTreeMap::new(), BTreeMap::new());
    let mut tensors = Vec::new();
    for record in records {
        let reader = Reader::from_bytes(record)?;
        scalars.extend(reader.scalars().clone());
        paths.extend(reader.metadata().clone());
        tensors.extend(reader.into_tensors()?);
    }
    scalars.retain(|name, _| keeps(name));
    paths.retain(|name, _| keeps(name));
    let tensors = tensors.into_iter().filter(|tensor| keeps(&tensor.name));
    let tensors = tensors.map(|tensor| match withheld.get(&tensor.name) {
        Some(state) => state.deferred(&tensor),
        None => tensor,
    });
    let writer = writer(tensors.collect(), &scalars, &paths);
    Ok(writer.write_to_file(file)?)
}

/// Adds the tensor that `read` returns to `sink` as `{prefix}.{leaf}`, or withholds it inside of [`save_by_tensor`].
pub(crate) fn push_tensor(
    sink: &mut StateSink,
    (prefix, leaf): (&str, &str),
    (dtype, shape): (DType, Shape),
    read: impl Fn() -> TensorData + Send + Sync + 'static,
) {
    let is_withheld = WITHHELD.with_borrow(Option::is_some);
    if !is_withheld {
        return sink.push_tensor(prefix, leaf, read());
    }
    let state = Withheld {
        dtype,
        shape,
        read: Arc::new(read),
    };
    WITHHELD.with_borrow_mut(|all| {
        let name = format!("{prefix}.{leaf}");
        all.get_or_insert_default().insert(name, state);
    });
    sink.push_tensor(prefix, leaf, TensorData::new(Vec::<f32>::new(), [0]));
}

impl Withheld {
    /// Returns the tensor, which is read when it is written, in place of the empty one in a record.
    fn deferred(&self, empty: &Tensor) -> Tensor {
        let read = self.read.clone();
        let bytes = self.shape.num_elements() * self.dtype.size();
        let read = move || Ok::<_, Error>(read().into_parts().0);
        Tensor::deferred(
            empty.name.clone(),
            self.dtype,
            self.shape.clone(),
            empty.param_id,
            bytes,
            read,
        )
    }
}
