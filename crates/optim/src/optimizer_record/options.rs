//! Thread-local options for saving and loading the records of this crate's optimizers. Burn's interface has no parameter for
//! them.

use std::cell::{Cell, RefCell};

use burn::tensor::Device;

use backburn_base::caught::finally;

thread_local! {
    static COMPACT: Cell<bool> = const { Cell::new(false) };
    static LOAD_ON: RefCell<Option<Device>> = const { RefCell::new(None) };
}

/// Runs `save`. Inside, records keep quantized optimizer states quantized, instead of converting them to f32.
///
/// Stock Burn can't read such a record and silently starts with fresh states. [This crate](crate) resumes
/// from both kinds bit for bit, except from states in f64, which Burn loads in f32.
///
/// ```
/// # use burn::{module::Module, nn::LinearConfig, optim::GradientsParams, tensor::{Device, Tensor}};
/// use backburn_optim::{AdamWConfig, StateFormat, compact_records};
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
    finally(save, || COMPACT.set(before))
}

/// Returns `true` inside of [`compact_records`].
pub fn records_are_compact() -> bool {
    COMPACT.get()
}

/// Runs `load` with the states of this crate's optimizers loaded onto `device`. Burn would load them onto its default device
/// first.
pub fn load_on<R>(device: &Device, load: impl FnOnce() -> R) -> R {
    let before = LOAD_ON.replace(Some(device.clone()));
    finally(load, || LOAD_ON.set(before))
}

/// Returns the device of [`load_on`], or `device` outside of it.
pub fn load_device(device: &Device) -> Device {
    let chosen = LOAD_ON.with_borrow(Option::clone);
    chosen.unwrap_or_else(|| device.clone())
}
