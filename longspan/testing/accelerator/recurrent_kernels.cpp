// T, S: tokens, J: channels, P: tokens before a row, B: blocks, M: key heads, N: value heads, Z:
// chunks, C: tokens of a chunk, K, V: numbers in a head of keys and of values, A: queries and keys.
#include "longspan/testing/accelerator/recurrent_kernels.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <utility>
#include <vector>

#include "longspan/cuda/rows/arguments.h"
#include "longspan/cuda/rows/delta_arguments.h"
#include "longspan/kernels/delta_chunks.h"

namespace longspan::testing::accelerator {
namespace {

constexpr int64_t kC = cuda::kRuleTokens, kTaps = cuda::kConvTaps;

at::ScalarType dtype_of(std::string_view name) {
  return name.back() == 'b' ? at::kBFloat16 : at::kFloat;
}

/// Returns gradients of `inputs` for those of `compute`'s results.
template <typename F>
std::vector<at::Tensor> gradients_of(const F& compute, std::vector<at::Tensor> inputs,
                                     const std::vector<at::Tensor>& of_results) {
  const c10::AutoGradMode with_graph(true);
  for (at::Tensor& x : inputs) x = x.detach().requires_grad_(true);
  return torch::autograd::grad(compute(inputs), inputs, of_results);
}

Compute unit(bool backward, at::ScalarType dtype, const cuda::UnitHeads& a, Arguments& given) {
  const int64_t S = a.num_tokens, M = a.num_heads, K = a.key_dim, Z = a.num_chunks;
  std::vector<at::Tensor> x;
  for (const int which : {0, 1}) {
    const std::array<int64_t, 3> strides{a.at_x[which].row_stride, a.at_x[which].head_stride, 1};
    x.push_back(given.read(a.x[which], {S, M, K}, dtype, strides));
  }
  const auto made = [=](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{
        at::stack({unit_heads(inputs[0], a.scale[0], Z), unit_heads(inputs[1], a.scale[1], Z)}, 2)};
  };
  if (!backward) {
    const at::Tensor y = given.write(a.y, {M, Z, 2, kC, K}, at::kFloat);
    return [=] { y.copy_(made(x)[0]); };
  }
  const at::Tensor dy = given.read(a.dy, {M, Z, 2, kC, K}, at::kFloat),
                   dq = given.write(a.dx[0], {S, M, K}, dtype),
                   dk = given.write(a.dx[1], {S, M, K}, dtype);
  return [=] {
    const auto found = gradients_of(made, x, {dy});
    dq.copy_(found[0]);
    dk.copy_(found[1]);
  };
}

/// The inputs of a part's chunks, and the operands of its products in fp32.
struct PartOfRow {
  int64_t S, Z, M, N, K, V;
  at::Tensor g_SN, beta_SN, heads_MZACK, v_SNV, documents_ZC, before_1;

  PartOfRow(const cuda::DeltaPart& a, at::ScalarType dtype, Arguments& given)
      : S(a.num_tokens),
        Z(a.num_chunks),
        M(a.num_key_heads),
        N(a.num_value_heads),
        K(a.key_dim),
        V(a.value_dim),
        g_SN(given.read(a.g, {S, N}, at::kFloat)),
        beta_SN(given.read(a.beta, {S, N}, at::kFloat)),
        heads_MZACK(given.read(a.heads, {M, Z, 2, kC, K}, at::kFloat)),
        v_SNV(given.read(a.v, {S, N, V}, dtype,
                         std::array<int64_t, 3>{a.at_v.row_stride, a.at_v.head_stride, 1})),
        documents_ZC(given.read(a.documents, {Z, kC}, at::kLong)),
        before_1(given.read(a.document_before, {1}, at::kLong)) {}

  /// `in`: g, beta, heads, products, v.
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& in) const {
    const ChunkMatrices made = chunk_matrices(
        {in[0], in[1], in[3].select(2, 0), in[3].select(2, 1), documents_ZC, before_1});
    const auto scaled = [&](int which, const at::Tensor& factor_NZC) {
      return (in[2].select(2, which).unsqueeze(1) * factor_NZC.reshape({M, N / M, Z, kC, 1}))
          .reshape({N, Z, kC, K});
    };
    const at::Tensor v_NZCV = rows_in_chunks(in[4].to(at::kFloat), Z);
    return {
        at::cat({scaled(0, made.since_NZC), made.scores_NZCC}, 3),
        at::cat({-scaled(1, made.beta_NZC * made.since_NZC), made.beta_NZC.unsqueeze(3) * v_NZCV},
                3),
        scaled(1, made.to_end_NZC), made.inverse_NZCC, made.whole_NZ};
  }
  std::vector<int64_t> matrices(int64_t columns) const { return {N, Z, kC, columns}; }
};

Compute chunks(at::ScalarType dtype, const cuda::DeltaChunks& a, Arguments& given) {
  const PartOfRow part(a.part, dtype, given);
  const at::Tensor products = given.read(a.products, {part.M, part.Z, 2, kC, kC}, at::kFloat),
                   dout = given.read_if_any(a.dout, {part.S, part.N, part.V}, dtype);
  const std::vector<at::Tensor> out{given.write(a.left, part.matrices(part.K + kC), dtype),
                                    given.write(a.right, part.matrices(part.K + part.V), dtype),
                                    given.write(a.kept, part.matrices(part.K), dtype),
                                    given.write(a.inverse, part.matrices(kC), dtype),
                                    given.write(a.whole, {part.N, part.Z}, at::kFloat)};
  const at::Tensor in_chunks =
      dout.defined() ? given.write(a.dout_in_chunks, part.matrices(part.V), dtype) : at::Tensor();
  return [=] {
    const auto made = part({part.g_SN, part.beta_SN, part.heads_MZACK, products, part.v_SNV});
    for (size_t i = 0; i < out.size(); ++i) out[i].copy_(made[i]);
    if (dout.defined()) in_chunks.copy_(rows_in_chunks(dout, part.Z));
  };
}

Compute chunks_backward(at::ScalarType dtype, const cuda::DeltaChunksBackward& a,
                        Arguments& given) {
  const PartOfRow part(a.part, dtype, given);
  const auto matrices = [&](const void* at, int64_t columns) {
    return given.read(at, part.matrices(columns), dtype);
  };
  const auto states = [&](const void* at) {
    return given.read(at, {part.N, part.Z, part.K + kC, part.V}, dtype).narrow(2, 0, part.K);
  };
  matrices(a.inverse, kC);
  const at::Tensor dleft = matrices(a.dleft, part.K + kC),
                   dright = matrices(a.dright, part.K + part.V), dkept = matrices(a.dkept, part.K),
                   dinverse = matrices(a.dinverse, kC), held = states(a.held),
                   dheld = states(a.dheld),
                   products = given.change(a.products, {part.M, part.Z, 2, kC, kC}, at::kFloat);
  const std::vector<at::Tensor> to{given.write(a.dg, {part.S, part.N}, at::kFloat),
                                   given.write(a.dbeta, {part.S, part.N}, at::kFloat),
                                   given.write(a.dheads, part.heads_MZACK.sizes(), at::kFloat),
                                   products, given.write(a.dv, {part.S, part.N, part.V}, dtype)};
  return [=] {
    const auto wide = [](const at::Tensor& x) { return x.to(at::kFloat); };
    const auto found = gradients_of(
        part, {part.g_SN, part.beta_SN, part.heads_MZACK, products.clone(), part.v_SNV},
        {wide(dleft), wide(dright), wide(dkept), wide(dinverse),
         (wide(held) * wide(dheld)).sum({2, 3})});
    for (size_t i = 0; i < to.size(); ++i) to[i].copy_(found[i]);
  };
}

Compute scan(at::ScalarType dtype, int64_t N, const cuda::DeltaScan& a, Arguments& given) {
  const int64_t Z = a.num_chunks, K = a.key_dim, V = a.value_dim;
  const auto at_places = [&](const cuda::ChunkPlaces& at, int64_t rows, int64_t columns,
                             bool writes) {
    const std::array<int64_t, 4> sizes{N, Z, rows, columns},
        strides{Z * at.chunk_stride, at.chunk_stride, at.row_stride, 1};
    return writes ? given.write(at.data, sizes, dtype, strides)
                  : given.read(at.data, sizes, dtype, strides);
  };
  const at::Tensor of_a = at_places(a.a, kC, K, false), b = at_places(a.b, kC, K, false),
                   e = at_places(a.e, kC, V, false),
                   f = a.f.data == nullptr ? at::Tensor() : at_places(a.f, K, V, false),
                   decay = given.read(a.decay, {N, Z}, at::kFloat), x = at_places(a.x, kC, V, true),
                   states = at_places(a.states, K, V, true),
                   state = given.change(a.state, {N, K, V}, at::kFloat);
  return [=] {
    for (int64_t step = 0; step < Z; ++step) {
      const int64_t z = a.reversed != 0 ? Z - 1 - step : step;
      const auto of_chunk = [&](const at::Tensor& all) { return all.select(1, z).to(at::kFloat); };
      const at::Tensor added = f.defined() ? of_chunk(f).clone() : at::Tensor();
      states.select(1, z).copy_(state);
      const at::Tensor made = of_chunk(e) + of_chunk(of_a).bmm(state);
      x.select(1, z).copy_(made);
      state.mul_(decay.select(1, z).view({N, 1, 1}));
      state.add_(of_chunk(b).transpose(1, 2).bmm(made));
      if (added.defined()) state.add_(added);
    }
  };
}

/// The tensors of a convolution, and its result.
struct Conv {
  at::Tensor x_TJ, before_PJ, weight_WJ, earlier_T;

  Conv(const cuda::CausalConv& a, at::ScalarType dtype, Arguments& given)
      : x_TJ(given.read(a.x, {a.num_tokens, a.num_channels}, dtype)),
        before_PJ(given.read_if_any(a.before, {a.num_before, a.num_channels}, dtype)),
        weight_WJ(given.read(a.weight, {kTaps, a.num_channels}, at::kFloat)),
        earlier_T(given.read(a.earlier, {a.num_tokens}, at::kByte)) {}
  /// Of x, the weight and, where there are such tokens, the tokens before x.
  std::vector<at::Tensor> inputs() const {
    std::vector<at::Tensor> all{x_TJ, weight_WJ};
    if (before_PJ.defined()) all.push_back(before_PJ);
    return all;
  }
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs) const {
    const at::Tensor x = inputs[0].to(at::kFloat);
    const int64_t T = x.size(0), P = inputs.size() > 2 ? inputs[2].size(0) : 0;
    std::vector<at::Tensor> rows{at::zeros({kTaps - 1 - P, x.size(1)})};
    if (P > 0) rows.push_back(inputs[2].to(at::kFloat));
    rows.push_back(x);
    const at::Tensor all = at::cat(rows);
    at::Tensor sum = at::zeros_like(x);
    for (int64_t w = 0; w < kTaps; ++w) {
      const at::Tensor sees_T1 = earlier_T.ge(kTaps - 1 - w).unsqueeze(1);
      sum = sum + sees_T1 * (inputs[1][w] * all.narrow(0, w, T));
    }
    return {at::silu(sum)};
  }
};

Compute conv(at::ScalarType dtype, const cuda::CausalConv& a, Arguments& given) {
  const Conv made(a, dtype, given);
  const at::Tensor y = given.write(a.y, made.x_TJ.sizes(), dtype);
  return [=] { y.copy_(made(made.inputs())[0]); };
}

Compute conv_backward(at::ScalarType dtype, int64_t blocks, const cuda::CausalConvBackward& a,
                      Arguments& given) {
  const Conv made(a.forward, dtype, given);
  const at::Tensor dy = given.read(a.dy, made.x_TJ.sizes(), dtype),
                   dx = given.write(a.dx, made.x_TJ.sizes(), dtype),
                   dweight = given.write(a.dweight, {blocks, kTaps, dx.size(1)}, at::kFloat),
                   dbefore = made.before_PJ.defined()
                                 ? given.write(a.dbefore, made.before_PJ.sizes(), dtype)
                                 : at::Tensor();
  return [=] {
    const auto found = gradients_of(made, made.inputs(), {dy.to(at::kFloat)});
    dx.copy_(found[0]);
    dweight.zero_();
    dweight[0].copy_(found[1]);
    if (dbefore.defined()) dbefore.copy_(found[2]);
  };
}

}  // namespace

Compute recurrent_kernel(std::string_view name, unsigned blocks, const void* argument,
                         Arguments& given) {
  if (name.starts_with("unit_heads_")) {
    return unit(name.starts_with("unit_heads_backward_"), dtype_of(name),
                as<cuda::UnitHeads>(argument), given);
  }
  if (name.starts_with("delta_chunks_backward_")) {
    return chunks_backward(dtype_of(name), as<cuda::DeltaChunksBackward>(argument), given);
  }
  if (name.starts_with("delta_chunks_")) {
    return chunks(dtype_of(name), as<cuda::DeltaChunks>(argument), given);
  }
  if (name.starts_with("delta_scan_")) {
    return scan(dtype_of(name), blocks, as<cuda::DeltaScan>(argument), given);
  }
  if (name.starts_with("causal_conv_backward_")) {
    return conv_backward(dtype_of(name), blocks, as<cuda::CausalConvBackward>(argument), given);
  }
  if (name.starts_with("causal_conv_")) {
    return conv(dtype_of(name), as<cuda::CausalConv>(argument), given);
  }
  return {};
}

}  // namespace longspan::testing::accelerator
