use std::cell::Cell;

use crate::caught::catch;

thread_local! {
    static COMPACT: Cell<bool> = const { Cell::new(false) };
}

/// Lets `save` write the records of optimizer states as they are kept, in codes, instead of in f32.
///
/// Stock Burn can't read such a record, and starts the states anew without a word; [`backburn::optim`](crate::optim) resumes
/// from both to the bit.
///
/// ```
/// # use burn::{module::Module, nn::LinearConfig, optim::GradientsParams, tensor::{Device, Tensor}};
/// use backburn::optim::{AdamWConfig, StateFormat, compact_records};
///
/// # let device = Device::flex().autodiff();
/// # let model = LinearConfig::new(64, 64).init(&device);
/// let mut optimizer = AdamWConfig::new().with_state_format(StateFormat::Bits8).init();
/// # let gradients = model.forward(Tensor::<2>::ones([1, 64], &device)).mean().backward();
/// # let gradients = GradientsParams::from_grads(gradients, &model);
/// # optimizer.step(1e-3, model, gradients);
/// let record = compact_records(|| optimizer.to_record());
/// # let compact = record.into_bytes().unwrap().len();
/// # assert!(compact < optimizer.to_record().into_bytes().unwrap().len() / 3);
/// ```
pub fn compact_records<R>(save: impl FnOnce() -> R) -> R {
    let before = COMPACT.replace(true);
    let saved = catch(save);
    COMPACT.set(before);
    saved.unwrap_or_else(|panic| panic.resume())
}

/// Whether the records that are written now are to be compact.
pub(crate) fn records_are_compact() -> bool {
    COMPACT.get()
}
