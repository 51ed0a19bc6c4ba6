//! Matrix products of slices, by the kernels of `gemm`.

use std::ops::Range;

use gemm::Parallelism;

/// A matrix in a slice: its elements from the first one on, its numbers of rows and columns, and the distances of neighbours in
/// both directions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    pub(crate) elements: &'a [f32],
    pub(crate) sizes: [usize; 2],
    pub(crate) strides: [usize; 2],
}

impl<'a> Matrix<'a> {
    /// Creates a matrix whose rows follow each other.
    pub(crate) fn new(elements: &'a [f32], rows: usize, columns: usize) -> Self {
        Self {
            elements,
            sizes: [rows, columns],
            strides: [columns, 1],
        }
    }

    pub(crate) fn transposed(mut self) -> Self {
        self.sizes.reverse();
        self.strides.reverse();
        self
    }

    /// Returns the rows of this range.
    pub(crate) fn part(mut self, range: &Range<usize>) -> Self {
        self.elements = &self.elements[range.start * self.strides[0]..];
        self.sizes[0] = range.len();
        self
    }

    /// Returns `true` if each element is inside of the slice.
    fn fits(&self) -> bool {
        let last = self.sizes.iter().zip(self.strides);
        let last = last.map(|(size, stride)| Some(size.checked_sub(1)? * stride));
        let last = last.sum::<Option<usize>>();
        last.is_none_or(|last| last < self.elements.len())
    }
}

/// The effect of a product on its result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    /// The result is the product times this factor.
    Set(f32),
    /// The product is added to the result.
    Add,
}

/// Computes on the thread of the caller.
#[cfg(feature = "flex")]
pub(crate) const ALONE: Parallelism = Parallelism::None;

/// Computes on all threads of the pool.
pub(crate) const ON_POOL: Parallelism = Parallelism::Rayon(0);

/// Computes `a * b` into the first columns of `to`, whose rows have `row` elements each.
///
/// # Panics
///
/// If the shapes don't match, or a matrix is not inside of its slice.
pub(crate) fn multiply(
    to: &mut [f32],
    row: usize,
    a: Matrix<'_>,
    b: Matrix<'_>,
    effect: Effect,
    parallelism: Parallelism,
) {
    let mut result = Matrix::new(to, a.sizes[0], row);
    result.sizes[1] = b.sizes[1];
    assert!(result.fits() && result.sizes[1] <= row);
    // SAFETY: by the assertion, each element of the product is inside of `to`. A slice is initialized.
    unsafe { call(to.as_mut_ptr(), row, a, b, effect, parallelism) }
}

/// Returns `a * b`, row by row, computed on all threads of the pool.
///
/// # Panics
///
/// If the shapes don't match, or a matrix is not inside of its slice.
pub(crate) fn product(a: Matrix<'_>, b: Matrix<'_>) -> Vec<f32> {
    let row = b.sizes[1];
    let length = a.sizes[0].checked_mul(row);
    let length = length.expect("a product fits the memory");
    let mut to = Vec::with_capacity(length);
    // SAFETY: `to` has room for the product. `Set` reads no element and writes all, so that all are initialized then.
    unsafe {
        call(to.as_mut_ptr(), row, a, b, Effect::Set(1.0), ON_POOL);
        to.set_len(length);
    }
    to
}

/// Computes `a * b` into the matrix at `to`, whose rows begin at distances of `row`.
///
/// # Panics
///
/// If the shapes of `a` and `b` don't match, or one is not inside of its slice.
///
/// # Safety
///
/// The elements of the product must be in memory at `to` that is valid for writes, without overlap with each other, `a` and `b`. They
/// must be initialized if the effect is `Add`.
unsafe fn call(
    to: *mut f32,
    row: usize,
    a: Matrix<'_>,
    b: Matrix<'_>,
    effect: Effect,
    parallelism: Parallelism,
) {
    let ([m, k], [rows_of_b, n]) = (a.sizes, b.sizes);
    assert!(
        k == rows_of_b,
        "the shapes of a product don't match: {m} x {k}, {rows_of_b} x {n}"
    );
    assert!(a.fits() && b.fits());
    let (adds, scale) = match effect {
        Effect::Set(scale) => (false, scale),
        Effect::Add => (true, 1.0),
    };
    let strides = [a.strides, b.strides].map(|it| it.map(|stride| stride as isize));
    let [[a_row, a_column], [b_row, b_column]] = strides;
    // SAFETY: as the caller promises, and by the assertions, each element of `a` and `b` is inside of its slice. Offsets inside of
    // allocated memory fit `isize`.
    unsafe {
        #[rustfmt::skip]
        gemm::gemm(
            m, n, k,
            to, 1, row as isize, adds,
            a.elements.as_ptr(), a_column, a_row,
            b.elements.as_ptr(), b_column, b_row,
            1.0, scale, false, false, false, parallelism,
        );
    }
}
