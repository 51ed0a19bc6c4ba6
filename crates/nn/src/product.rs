//! Matrix products of slices, by the kernels of `gemm`.

use std::ops::{Deref, Range};

use gemm::Parallelism;

/// A matrix in a slice: its elements from the first one on, its number of rows and columns, and the distances of neighbours in
/// both directions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<S> {
    elements: S,
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<S: Deref<Target = [f32]>> Matrix<S> {
    /// Creates a matrix whose rows follow each other.
    pub(crate) fn new(elements: S, rows: usize, columns: usize) -> Self {
        Self::with_strides(elements, [rows, columns], [columns, 1])
    }

    pub(crate) fn with_strides(
        elements: S,
        [rows, columns]: [usize; 2],
        [row_stride, column_stride]: [usize; 2],
    ) -> Self {
        Self {
            elements,
            rows,
            columns,
            row_stride,
            column_stride,
        }
    }

    pub(crate) fn transposed(self) -> Self {
        let strides = [self.column_stride, self.row_stride];
        Self::with_strides(self.elements, [self.columns, self.rows], strides)
    }

    /// Returns `true` if each element is inside of the slice.
    fn fits(&self) -> bool {
        let ends = [self.rows, self.columns].map(|count| count.checked_sub(1));
        match ends {
            [Some(row), Some(column)] => {
                row * self.row_stride + column * self.column_stride < self.elements.len()
            }
            _ => true,
        }
    }

    /// Returns `true` if no two elements are in the same place.
    fn is_apart(&self) -> bool {
        let [rows, columns] = [self.rows, self.columns];
        let [row, column] = [self.row_stride, self.column_stride];
        (column > 0 && row >= columns * column) || (row > 0 && column >= rows * row)
    }
}

impl Matrix<&[f32]> {
    /// Returns the rows of this range.
    pub(crate) fn part(self, range: &Range<usize>) -> Self {
        let elements = &self.elements[range.start * self.row_stride..];
        Self {
            elements,
            rows: range.len(),
            ..self
        }
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
pub(crate) const ALONE: Parallelism = Parallelism::None;

/// Computes on all threads of the pool.
pub(crate) const ON_POOL: Parallelism = Parallelism::Rayon(0);

/// Computes `a * b`.
///
/// # Panics
///
/// If the shapes don't match, or a matrix is not inside of its slice.
pub(crate) fn multiply(
    to: Matrix<&mut [f32]>,
    a: Matrix<&[f32]>,
    b: Matrix<&[f32]>,
    effect: Effect,
    parallelism: Parallelism,
) {
    let (m, n, k) = (to.rows, to.columns, a.columns);
    assert!(
        a.rows == m && b.columns == n && b.rows == k,
        "the shapes of a product don't match: {m} x {n}, {} x {k}, {} x {}",
        a.rows,
        b.rows,
        b.columns
    );
    assert!(to.fits() && a.fits() && b.fits() && to.is_apart());
    let strides = [to.row_stride, to.column_stride];
    // SAFETY: by the assertions above, each element of the three matrices is inside of its slice, and those of `to`, which is
    // borrowed mutably, don't overlap. Slices are initialized.
    unsafe { call(to.elements.as_mut_ptr(), strides, a, b, effect, parallelism) }
}

/// Returns `a * b`, row by row, computed on all threads of the pool.
///
/// # Panics
///
/// If the shapes don't match, or a matrix is not inside of its slice.
pub(crate) fn product(a: Matrix<&[f32]>, b: Matrix<&[f32]>) -> Vec<f32> {
    let (rows, columns) = (a.rows, b.columns);
    assert!(a.columns == b.rows && a.fits() && b.fits());
    let length = rows
        .checked_mul(columns)
        .expect("a product fits the memory");
    if length == 0 || a.columns == 0 {
        return vec![0.0; length];
    }
    let mut to = Vec::with_capacity(length);
    // SAFETY: `a` and `b` are inside of their slices, and `to` has room for each element of the product. `Set` reads none of them and
    // writes all, so that all are initialized then.
    unsafe {
        call(
            to.as_mut_ptr(),
            [columns, 1],
            a,
            b,
            Effect::Set(1.0),
            ON_POOL,
        );
        to.set_len(length);
    }
    to
}

/// Computes `a * b` into the matrix at `to` with these distances of rows and of columns.
///
/// # Safety
///
/// Each element of the three matrices must be in memory that is valid for reads, in `to` for writes, without overlap. Those of `a` and
/// `b` must be initialized, and those of `to` if the effect is `Add`.
unsafe fn call(
    to: *mut f32,
    [row_stride, column_stride]: [usize; 2],
    a: Matrix<&[f32]>,
    b: Matrix<&[f32]>,
    effect: Effect,
    parallelism: Parallelism,
) {
    let (adds, scale) = match effect {
        Effect::Set(scale) => (false, scale),
        Effect::Add => (true, 1.0),
    };
    // SAFETY: as the caller promises. Offsets inside of allocated memory fit `isize`.
    unsafe {
        #[rustfmt::skip]
        gemm::gemm(
            a.rows, b.columns, a.columns,
            to, column_stride as isize, row_stride as isize, adds,
            a.elements.as_ptr(), a.column_stride as isize, a.row_stride as isize,
            b.elements.as_ptr(), b.column_stride as isize, b.row_stride as isize,
            1.0, scale, false, false, false, parallelism,
        );
    }
}
