#include "longspan/kernels/cuda_delta_rule.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>

#include "longspan/cuda/rows/arguments.h"
#include "longspan/cuda/rows/delta_arguments.h"
#include "longspan/kernels/cuda_launch.h"
#include "longspan/spec/recurrence_spec.h"

namespace longspan::cuda_rows {
namespace {

static_assert(cuda::kRuleTokens == kRuleChunk);

bool is_number_type(const at::Tensor& x) { return is_fp32(x) || is_bf16(x); }

Kernels& kernels_for(const at::Tensor& x, Part part) {
  Kernels* const kernels = kernels_of(x, part);
  TORCH_CHECK(kernels != nullptr, "the kernels of the gated delta rule are gone");
  return *kernels;
}

template <typename Argument>
void start(Part part, const std::string& name, const at::Tensor& like, const Launch& launch,
           const Argument& argument) {
  if (launch.blocks_x == 0 || launch.blocks_y == 0) return;
  kernels_for(like, part).launch(fmt::format("{}_{}", name, letter(like)), launch, argument);
}

cuda::HeadPlaces rows_of_heads(const at::Tensor& x) { return {x.stride(0), x.stride(1)}; }

/// Forward: `y`; backward: `dy` and the gradients.
void start_unit_heads(const char* name, const DeltaPart& in, const at::Tensor& like_MZACK, float* y,
                      const float* dy, const PartGradients& to) {
  const int64_t M = like_MZACK.size(0), Z = like_MZACK.size(1), K = like_MZACK.size(4);
  const auto data = [](const at::Tensor& x) {
    return x.defined() ? x.mutable_data_ptr() : nullptr;
  };
  constexpr unsigned kHeads = cuda::kBlockThreads / cuda::kUnitThreads;
  start(Part::kDeltaChunks, name, in.q_SMK,
        Launch{.blocks_x = blocks_of(M * Z * kRuleChunk, kHeads),
               .blocks_y = 2,
               .threads_x = cuda::kUnitThreads,
               .threads_y = kHeads},
        cuda::UnitHeads{.x = {in.q_SMK.const_data_ptr(), in.k_SMK.const_data_ptr()},
                        .at_x = {rows_of_heads(in.q_SMK), rows_of_heads(in.k_SMK)},
                        .scale = {static_cast<float>(1 / std::sqrt(static_cast<double>(K))), 1.0f},
                        .y = y,
                        .dy = dy,
                        .dx = {data(to.dq_SMK), data(to.dk_SMK)},
                        .num_tokens = static_cast<int>(in.q_SMK.size(0)),
                        .num_chunks = static_cast<int>(Z),
                        .num_heads = static_cast<int>(M),
                        .key_dim = static_cast<int>(K)});
}

cuda::DeltaPart argument_of(const DeltaPart& in, const at::Tensor& heads_MZACK) {
  const auto documents = [](const at::Tensor& x) {
    return reinterpret_cast<const long long*>(x.const_data_ptr<int64_t>());
  };
  return {.g = in.g_SN.const_data_ptr<float>(),
          .beta = in.beta_SN.const_data_ptr<float>(),
          .documents = documents(in.documents_ZC),
          .document_before = documents(in.document_before_1),
          .heads = heads_MZACK.const_data_ptr<float>(),
          .v = in.v_SNV.const_data_ptr(),
          .at_v = rows_of_heads(in.v_SNV),
          .num_tokens = static_cast<int>(in.v_SNV.size(0)),
          .num_chunks = static_cast<int>(in.documents_ZC.size(0)),
          .num_key_heads = static_cast<int>(in.k_SMK.size(1)),
          .num_value_heads = static_cast<int>(in.v_SNV.size(1)),
          .key_dim = static_cast<int>(in.k_SMK.size(2)),
          .value_dim = static_cast<int>(in.v_SNV.size(2))};
}

constexpr unsigned kChunkBytes =
    2 * cuda::kRuleTokens * (cuda::kRuleTokens + 4) * static_cast<unsigned>(sizeof(float));

cuda::ChunkPlaces places_in_chunks(const at::Tensor& x_NZIJ) {
  if (!x_NZIJ.defined()) return {};
  TORCH_CHECK(x_NZIJ.stride(3) == 1 && x_NZIJ.stride(0) == x_NZIJ.size(1) * x_NZIJ.stride(1),
              "a scan reads rows of matrices of chunks");
  return {x_NZIJ.mutable_data_ptr(), static_cast<int>(x_NZIJ.stride(1)),
          static_cast<int>(x_NZIJ.stride(2))};
}

}  // namespace

bool has_delta_rule(const DeltaRuleInputs& in) {
  const int64_t M = in.k_TMK.size(1), N = in.v_TNV.size(1), K = in.k_TMK.size(2),
                V = in.v_TNV.size(2), num_rows = in.v_TNV.size(0) + kRuleChunk;
  return is_number_type(in.v_TNV) && is_number_type(in.q_TMK) &&
         in.q_TMK.scalar_type() == in.k_TMK.scalar_type() && in.q_TMK.stride(2) == 1 &&
         in.k_TMK.stride(2) == 1 && K <= cuda::kScanKeys && K % cuda::kRuleVector == 0 &&
         V % cuda::kRuleVector == 0 && V > 0 && fits_int(num_rows * M) &&
         fits_int((K + kRuleChunk) * (K + V)) && N % std::max<int64_t>(1, M) == 0 &&
         kernels_of(in.v_TNV, Part::kDeltaChunks) != nullptr &&
         kernels_of(in.v_TNV, Part::kDeltaScan) != nullptr;
}

at::Tensor readable_values(const at::Tensor& v_TNV) {
  constexpr int64_t kVector = cuda::kRuleVector;
  return v_TNV.stride(2) == 1 && v_TNV.stride(1) % kVector == 0 && v_TNV.stride(0) % kVector == 0 &&
                 aligned({&v_TNV}, kVector)
             ? v_TNV
             : v_TNV.contiguous();
}

void unit_heads(const at::Tensor& heads_MZACK, const DeltaPart& in) {
  start_unit_heads("unit_heads", in, heads_MZACK, heads_MZACK.mutable_data_ptr<float>(), nullptr,
                   {});
}

void unit_heads_backward(const PartGradients& to, const at::Tensor& dheads_MZACK,
                         const DeltaPart& in) {
  start_unit_heads("unit_heads_backward", in, dheads_MZACK, nullptr,
                   dheads_MZACK.const_data_ptr<float>(), to);
}

void chunk_operands(const PartOperands& out, const DeltaPart& in, const at::Tensor& dout_SNV) {
  const auto data = [](const at::Tensor& x) { return x.mutable_data_ptr(); };
  start(Part::kDeltaChunks, "delta_chunks", in.v_SNV,
        Launch{.blocks_x = static_cast<unsigned>(out.left_NZCL.size(1)),
               .blocks_y = static_cast<unsigned>(out.left_NZCL.size(0)),
               .threads_x = cuda::kBlockThreads,
               .shared_bytes = kChunkBytes},
        cuda::DeltaChunks{.part = argument_of(in, out.heads_MZACK),
                          .products = out.products_MZACC.const_data_ptr<float>(),
                          .dout = data_of(dout_SNV),
                          .left = data(out.left_NZCL),
                          .right = data(out.right_NZCR),
                          .kept = data(out.kept_NZCK),
                          .inverse = data(out.inverse_NZCC),
                          .dout_in_chunks = out.dout_NZCV.defined() ? data(out.dout_NZCV) : nullptr,
                          .whole = out.whole_NZ.mutable_data_ptr<float>()});
}

void chunk_operands_backward(const PartGradients& to, const at::Tensor& dheads_MZACK,
                             const OperandGradients& d, const PartOperands& x,
                             const DeltaPart& in) {
  constexpr unsigned kWarp = 32;
  start(Part::kDeltaChunks, "delta_chunks_backward", in.v_SNV,
        Launch{.blocks_x = static_cast<unsigned>(dheads_MZACK.size(1)),
               .blocks_y = static_cast<unsigned>(dheads_MZACK.size(0)),
               .threads_x = kWarp,
               .threads_y = cuda::kBlockThreads / kWarp,
               .shared_bytes = kChunkBytes},
        cuda::DeltaChunksBackward{.part = argument_of(in, x.heads_MZACK),
                                  .products = x.products_MZACC.mutable_data_ptr<float>(),
                                  .inverse = data_of(x.inverse_NZCC),
                                  .dinverse = data_of(d.dinverse_NZCC),
                                  .dleft = data_of(d.dleft_NZCL),
                                  .dright = data_of(d.dright_NZCR),
                                  .dkept = data_of(d.dkept_NZCK),
                                  .held = data_of(d.held_NZLV),
                                  .dheld = data_of(d.dheld_NZLV),
                                  .dheads = dheads_MZACK.mutable_data_ptr<float>(),
                                  .dv = to.dv_SNV.mutable_data_ptr(),
                                  .dg = to.dg_SN.mutable_data_ptr<float>(),
                                  .dbeta = to.dbeta_SN.mutable_data_ptr<float>()});
}

void delta_scan(const ScanMatrices& m, const at::Tensor& state_NKV) {
  const int64_t N = m.a_NZCK.size(0), Z = m.a_NZCK.size(1), K = m.a_NZCK.size(3),
                V = m.e_NZCV.size(3);
  const bool is_narrow = N * blocks_of(V, cuda::kNarrowScanColumns) <=
                         kernels_for(m.a_NZCK, Part::kDeltaScan).num_multiprocessors();
  const int columns = is_narrow ? cuda::kNarrowScanColumns : cuda::kScanColumns;
  start(Part::kDeltaScan, is_narrow ? "delta_scan_narrow" : "delta_scan", m.a_NZCK,
        Launch{.blocks_x = blocks_of(V, columns),
               .blocks_y = static_cast<unsigned>(N),
               .threads_x = static_cast<unsigned>(columns * cuda::kScanColumnThreads),
               .shared_bytes = static_cast<unsigned>((cuda::kScanKeys + cuda::kRuleTokens) *
                                                     columns * sizeof(float))},
        cuda::DeltaScan{.a = places_in_chunks(m.a_NZCK),
                        .b = places_in_chunks(m.b_NZCK),
                        .e = places_in_chunks(m.e_NZCV),
                        .x = places_in_chunks(m.x_NZCV),
                        .f = places_in_chunks(m.f_NZKV),
                        .states = places_in_chunks(m.states_NZKV),
                        .decay = m.decay_NZ.const_data_ptr<float>(),
                        .state = state_NKV.mutable_data_ptr<float>(),
                        .num_chunks = static_cast<int>(Z),
                        .key_dim = static_cast<int>(K),
                        .value_dim = static_cast<int>(V),
                        .reversed = m.reversed});
}

}  // namespace longspan::cuda_rows
