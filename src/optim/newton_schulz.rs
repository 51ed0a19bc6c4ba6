use burn::tensor::Tensor;

/// The Newton-Schulz iteration that takes a matrix to the nearest one whose rows, or columns, are orthonormal, roughly.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewtonSchulz {
    /// Of the polynomial `a x + b x^3 + c x^5`, which takes singular values towards one.
    pub(super) coefficients: (f32, f32, f32),
    /// The least norm that is divided by.
    pub(super) epsilon: f32,
    pub(super) steps: usize,
}

impl NewtonSchulz {
    /// `matrix`, orthogonalized: the operations of Burn's `Muon` in their order, in two buffers of its size and three of the
    /// square of its shorter side.
    pub(super) fn orthogonalized(self, matrix: Tensor<2>) -> Tensor<2> {
        if matrix.shape().num_elements() == 0 {
            return matrix;
        }
        let (a, b, c) = self.coefficients;
        let [rows, columns] = matrix.dims();
        let is_tall = rows > columns;
        let wide = if is_tall { matrix.transpose() } else { matrix };
        let norm = wide.clone().powf_scalar(2.0).sum().sqrt();
        let mut x = wide.div(norm.clamp_min(self.epsilon).unsqueeze());
        for _ in 0..self.steps {
            let square = x.clone().matmul(x.clone().transpose());
            let fourth = square.clone().matmul(square.clone()).mul_scalar(c);
            let factor = square.mul_scalar(b).add(fourth);
            let rest = factor.matmul(x.clone());
            x = x.mul_scalar(a).add(rest);
        }
        if is_tall { x.transpose() } else { x }
    }
}
