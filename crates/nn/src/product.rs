//! Matrix products of slices, by the kernels of `gemm`.

use gemm::Parallelism;

/// A matrix in a slice: its number of rows and columns, and the distances of neighbours in both directions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl Shape {
    /// Returns the shape of a matrix whose rows are `row_stride` elements apart.
    pub(crate) fn new(rows: usize, columns: usize, row_stride: usize) -> Self {
        Self::with_strides([rows, columns], [row_stride, 1])
    }

    pub(crate) fn with_strides([rows, columns]: [usize; 2], strides: [usize; 2]) -> Self {
        let [row_stride, column_stride] = strides;
        Self {
            rows,
            columns,
            row_stride,
            column_stride,
        }
    }

    /// Returns the shape of the transposed matrix.
    pub(crate) fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }

    /// Returns the least length of a slice that contains the matrix.
    fn length(self) -> usize {
        match self.rows * self.columns {
            0 => 0,
            _ => (self.rows - 1) * self.row_stride + (self.columns - 1) * self.column_stride + 1,
        }
    }
}

/// A matrix in a slice.
pub(crate) type Matrix<'a> = (&'a [f32], Shape);

/// The effect of a product on its result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    /// The result is the product times this factor.
    Set(f32),
    /// The product is added to the result.
    Add,
}

/// Computes `a * b` on the thread of the caller.
///
/// # Panics
///
/// If the shapes don't match, or a matrix is not inside of its slice.
pub(crate) fn multiply(to: (&mut [f32], Shape), a: Matrix<'_>, b: Matrix<'_>, effect: Effect) {
    multiply_with(to, a, b, effect, Parallelism::None);
}

/// Computes [`multiply`] on all threads of the pool.
pub(crate) fn multiply_on_pool(
    to: (&mut [f32], Shape),
    a: Matrix<'_>,
    b: Matrix<'_>,
    effect: Effect,
) {
    multiply_with(to, a, b, effect, Parallelism::Rayon(0));
}

fn multiply_with(
    (to, to_shape): (&mut [f32], Shape),
    (a, a_shape): Matrix<'_>,
    (b, b_shape): Matrix<'_>,
    effect: Effect,
    parallelism: Parallelism,
) {
    let (m, n, k) = (to_shape.rows, to_shape.columns, a_shape.columns);
    assert!(
        a_shape.rows == m && b_shape.columns == n && b_shape.rows == k,
        "the shapes of a product don't match: {to_shape:?}, {a_shape:?}, {b_shape:?}"
    );
    let fits = |shape: Shape, length: usize| shape.length() <= length;
    assert!(fits(to_shape, to.len()) && fits(a_shape, a.len()) && fits(b_shape, b.len()));
    // Elements of the result must not overlap.
    let [row, column] = [to_shape.row_stride, to_shape.column_stride];
    assert!((column > 0 && row >= n * column) || (row > 0 && column >= m * row));
    let (adds, scale) = match effect {
        Effect::Set(scale) => (false, scale),
        Effect::Add => (true, 1.0),
    };
    // SAFETY: by the assertions above, each element of the three matrices is inside of its slice, and those of `to`, which is
    // borrowed mutably, don't overlap. Slices are initialized, and offsets inside of a slice fit `isize`.
    unsafe {
        let strides = |shape: Shape| (shape.column_stride as isize, shape.row_stride as isize);
        let (to_columns, to_rows) = strides(to_shape);
        let (a_columns, a_rows) = strides(a_shape);
        let (b_columns, b_rows) = strides(b_shape);
        #[rustfmt::skip]
        gemm::gemm(
            m, n, k,
            to.as_mut_ptr(), to_columns, to_rows, adds,
            a.as_ptr(), a_columns, a_rows,
            b.as_ptr(), b_columns, b_rows,
            1.0, scale, false, false, false, parallelism,
        );
    }
}
