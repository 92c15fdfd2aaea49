#include "longspan/kernels/delta_chunks.h"

#include <ATen/ATen.h>

#include <limits>

#include "longspan/kernels/storage_type.h"
#include "longspan/spec/recurrence_spec.h"

namespace longspan {
at::Tensor rows_in_chunks(const at::Tensor& x_SHD, int64_t num_chunks) {
  const int64_t S = x_SHD.size(0), H = x_SHD.size(1), D = x_SHD.size(2);
  const int64_t behind = num_chunks * kRuleChunk - S;
  const at::Tensor padded =
      behind == 0 ? x_SHD : at::constant_pad_nd(x_SHD, {0, 0, 0, 0, 0, behind});
  return padded.reshape({num_chunks, kRuleChunk, H, D}).permute({2, 0, 1, 3});
}

at::Tensor unit_heads(const at::Tensor& x_SMK, double scale, int64_t num_chunks) {
  const at::Tensor x = x_SMK.to(arithmetic_dtype(x_SMK.scalar_type()));
  return rows_in_chunks(x * ((x.square().sum(-1, /*keepdim=*/true) + 1e-6).rsqrt() * scale),
                        num_chunks);
}

ChunkMatrices chunk_matrices(const ChunkInputs& in) {
  constexpr int64_t C = kRuleChunk;
  const at::ScalarType dtype = in.qk_MZCC.scalar_type();
  const int64_t M = in.qk_MZCC.size(0), Z = in.qk_MZCC.size(1), N = in.g_SN.size(1);
  const auto gates = [&](const at::Tensor& x_SN) {  // -> [N, Z, C]
    return rows_in_chunks(x_SN.unsqueeze(2), Z).squeeze(3);
  };
  const auto of_value_heads = [&](const at::Tensor& x_MZCC) {
    return x_MZCC.unsqueeze(1).expand({M, N / M, Z, C, C}).reshape({N, Z, C, C});
  };
  const at::Tensor &all_ZC = in.documents_ZC, last_Z = all_ZC.select(1, C - 1),
                   before_Z = at::cat({in.document_before_1, last_Z.narrow(0, 0, Z - 1)});
  const at::Tensor sees_ZCC = all_ZC.unsqueeze(2).eq(all_ZC.unsqueeze(1)).tril();
  const at::Tensor beta = gates(in.beta_SN);
  // Logarithms of decays from the chunk's begin, in fp64, since their differences are used. A
  // product, since CUDA's cumsum is not bit-reproducible.
  const at::Tensor g = gates(in.g_SN.to(at::kDouble));
  const at::Tensor sum = at::matmul(g, at::ones({C, C}, g.options()).triu());
  const at::Tensor all = sum.narrow(2, C - 1, 1);
  const auto decay_where = [&](const at::Tensor& mask, const at::Tensor& logarithm) {
    return at::where(mask, logarithm, -std::numeric_limits<double>::infinity()).to(dtype).exp();
  };
  const at::Tensor decay = decay_where(sees_ZCC, sum.unsqueeze(3) - sum.unsqueeze(2));
  const at::Tensor lower = (beta.unsqueeze(3) * decay * of_value_heads(in.kk_MZCC)).tril(-1);
  const at::Tensor one = at::eye(C, lower.options());
  return {decay * of_value_heads(in.qk_MZCC),
          at::linalg_solve_triangular(lower + one, one.expand(lower.sizes()), /*upper=*/false,
                                      /*left=*/true, /*unitriangular=*/true),
          decay_where(all_ZC.eq(before_Z.unsqueeze(1)), sum),
          decay_where(all_ZC.eq(last_Z.unsqueeze(1)), all - sum),
          decay_where(last_Z.eq(before_Z), all.squeeze(2)),
          beta};
}

}  // namespace longspan
