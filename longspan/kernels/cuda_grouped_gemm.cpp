#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "longspan/cuda/kernels.h"
#include "longspan/cuda/rows/arguments.h"
#include "longspan/kernels/cuda_launch.h"
#include "longspan/kernels/grouped_gemm.h"
#include "longspan/kernels/grouped_library.h"
#include "longspan/memory/transfer.h"

namespace longspan {
namespace {

using cuda_rows::blocks_of;
using cuda_rows::is_bf16;
using cuda_rows::Kernels;
using cuda_rows::kernels_of;
using cuda_rows::Launch;
using cuda_rows::Part;

Kernels& kernels_for(const at::Tensor& x, Part part) {
  Kernels* const kernels = kernels_of(x, part);
  TORCH_CHECK(kernels != nullptr, "no kernels for rows in experts");
  return *kernels;
}

const long long* numbers_of(const at::Tensor& x_S) {
  static_assert(sizeof(long long) == sizeof(int64_t));
  if (!x_S.defined()) return nullptr;
  TORCH_CHECK(x_S.scalar_type() == at::kLong && x_S.is_contiguous(), "numbers of rows are int64");
  return reinterpret_cast<const long long*>(x_S.const_data_ptr<int64_t>());
}
long long* numbers_to(at::Tensor& x) {
  return reinterpret_cast<long long*>(x.mutable_data_ptr<int64_t>());
}

cuda::RowGroups groups_of(const SortedRows& sorted) {
  return {.begins = numbers_of(sorted.begins),
          .first_tiles = numbers_of(sorted.first_tiles),
          .tile_groups = numbers_of(sorted.tile_groups),
          .num_groups = static_cast<int>(sorted.num_groups)};
}

unsigned tiles_of(const SortedRows& sorted) {
  return static_cast<unsigned>(sorted.tile_groups.size(0));
}

void check_rows(const PickedRows& rows, const SortedRows& sorted) {
  TORCH_CHECK(is_bf16(rows.x) && rows.x.dim() == 2 && rows.x.is_contiguous() &&
                  rows.x.size(1) % cuda::kBf16Vector == 0 &&
                  cuda_rows::aligned({&rows.x}, cuda::kBf16Vector) &&
                  (rows.from_S.defined() ? rows.from_S : rows.x).size(0) == sorted.num_rows,
              "rows in experts are bf16, contiguous, aligned, of 8n numbers");
}

cuda::RowsOfGradient rows_of_gradient(const PickedRows& rows, const SortedRows& sorted) {
  check_rows(rows, sorted);
  return {.x = rows.x.const_data_ptr(),
          .from = numbers_of(rows.from_S),
          .num_columns = static_cast<int>(rows.x.size(1))};
}

const long long* addresses_of(const std::optional<GroupMatrices>& matrices) {
  return matrices ? numbers_of(matrices->addresses_E) : nullptr;
}
bool is_bf16_too(const std::optional<GroupMatrices>& matrices) {
  return matrices && matrices->dtype == at::kBFloat16;
}

/// Returns the most stages with which two blocks run on a multiprocessor at once, else one block.
int stages_of(const Kernels& kernels, int stage_bytes) {
  constexpr int kBytesOfDriver = 1024;  // of each block
  for (const int blocks : {2, 1}) {
    for (const int stages : {cuda::kMostStages, cuda::kMostStages - 1}) {
      if (blocks * (stages * stage_bytes + kBytesOfDriver) <= kernels.shared_bytes()) return stages;
    }
  }
  return cuda::kMostStages - 1;
}

/// Starts a gemm over `blocks_x` x `blocks_y` tiles.
template <typename Argument>
void start_gemm(Kernels& kernels, const std::string& name, unsigned blocks_x, unsigned blocks_y,
                int stage_bytes, Argument argument) {
  argument.num_stages = stages_of(kernels, stage_bytes);
  kernels.launch(name,
                 Launch{.blocks_x = blocks_x,
                        .blocks_y = blocks_y,
                        .threads_x = cuda::kGemmThreads,
                        .shared_bytes = static_cast<unsigned>(argument.num_stages * stage_bytes)},
                 argument);
}

/// Whether at::_grouped_mm computes the sum.
bool is_for_library(bool transposed, const SortedRows& sorted, int64_t columns,
                    const std::vector<GroupedOperands>& operands,
                    const std::optional<GroupMatrices>& biases, double scale) {
  return operands.size() == 1 && !biases && scale == 1.0 &&
         operands[0].matrices.side_by_side.defined() &&
         grouped::library_multiplies(
             {sorted.num_groups, operands[0].rows.x.size(1), columns, transposed});
}

/// Returns bf16 matrices that follow each other in one tensor as this tensor; else undefined.
at::Tensor side_by_side(const std::vector<at::Tensor>& matrices) {
  const at::Tensor& first = matrices[0];
  if (!is_bf16(first) || first.dim() != 2) return {};
  for (size_t i = 0; i < matrices.size(); ++i) {
    const int64_t at = first.storage_offset() + static_cast<int64_t>(i) * first.numel();
    if (!matrices[i].is_alias_of(first) || matrices[i].storage_offset() != at) return {};
  }
  return first.as_strided({std::ssize(matrices), first.size(0), first.size(1)},
                          {first.numel(), first.size(1), 1});
}

void multiply(const char* kernel, bool transposed, at::Tensor& y, const at::Tensor& to_S,
              const SortedRows& sorted, const std::vector<GroupedOperands>& operands,
              const std::optional<GroupMatrices>& biases, double scale) {
  TORCH_CHECK(!operands.empty() && operands.size() <= cuda::kMostFactors, "one to four products");
  TORCH_CHECK(is_bf16(y) && y.is_contiguous() && y.size(0) == sorted.num_rows &&
                  y.size(1) % cuda::kBf16Vector == 0,
              "rows in experts are bf16, contiguous, of 8n numbers");
  if (sorted.num_rows == 0) return;
  if (is_for_library(transposed, sorted, y.size(1), operands, biases, scale)) {
    check_rows(operands[0].rows, sorted);
    return grouped::multiply_by_library(y, to_S, sorted, operands[0], transposed);
  }
  cuda::GroupedRows argument{.sorted = groups_of(sorted),
                             .factors = {},
                             .biases = addresses_of(biases),
                             .y = y.mutable_data_ptr(),
                             .to = numbers_of(to_S),
                             .num_factors = static_cast<int>(operands.size()),
                             .num_columns = static_cast<int>(y.size(1)),
                             .biases_are_bf16 = is_bf16_too(biases),
                             .num_stages = 0,
                             .scale = static_cast<float>(scale)};
  bool has_fp32 = false;
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto& [rows, matrices] = operands[i];
    check_rows(rows, sorted);
    const int64_t depth = transposed ? matrices.num_rows : matrices.num_columns,
                  columns = transposed ? matrices.num_columns : matrices.num_rows;
    TORCH_CHECK(rows.x.size(1) == depth && y.size(1) == columns, "a matrix of other rows");
    has_fp32 |= matrices.dtype != at::kBFloat16;
    argument.factors[i] = {.x = rows.x.const_data_ptr(),
                           .from = numbers_of(rows.from_S),
                           .matrices = numbers_of(matrices.addresses_E),
                           .depth = static_cast<int>(depth),
                           .matrices_are_bf16 = matrices.dtype == at::kBFloat16};
  }
  start_gemm(kernels_for(y, Part::kGroupedGemm), fmt::format("{}_{}", kernel, has_fp32 ? 'f' : 'b'),
             tiles_of(sorted) * blocks_of(y.size(1), cuda::kTileColumns), 1,
             has_fp32 ? cuda::kFp32StageBytes : cuda::kBf16StageBytes, argument);
}

cuda::GroupedDots dots_of(at::Tensor& dots, const at::Tensor& to_S, const SortedRows& sorted,
                          const PickedRows& x) {
  check_rows(x, sorted);
  return {.sorted = groups_of(sorted),
          .x = x.x.const_data_ptr(),
          .from = numbers_of(x.from_S),
          .y = nullptr,
          .vectors = nullptr,
          .vectors_are_bf16 = 0,
          .dots = dots.mutable_data_ptr<float>(),
          .to = numbers_of(to_S),
          .num_columns = static_cast<int>(x.x.size(1)),
          .adds = 0};
}

void start(const at::Tensor& x, const SortedRows& sorted, const cuda::GroupedDots& argument) {
  kernels_for(x, Part::kGroupedRows)
      .launch("grouped_dots",
              Launch{.blocks_x = tiles_of(sorted), .threads_x = cuda::kBlockThreads}, argument);
}

}  // namespace

size_t GroupTable::add(const std::vector<at::Tensor>& matrices) {
  const at::Tensor& first = matrices.at(0);
  const at::Tensor addresses = at::empty({std::ssize(matrices)}, at::kLong);
  auto* const to = addresses.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < matrices.size(); ++i) {
    TORCH_CHECK(matrices[i].is_contiguous() && matrices[i].sizes() == first.sizes() &&
                    matrices[i].scalar_type() == first.scalar_type() &&
                    matrices[i].device() == device_,
                "matrices of experts are of one shape and dtype, on one device");
    to[i] = reinterpret_cast<intptr_t>(matrices[i].const_data_ptr());
  }
  addresses_.push_back(addresses);
  const bool is_vector = first.dim() == 1;
  groups_.push_back({.addresses_E = {},
                     .num_rows = is_vector ? 1 : first.size(0),
                     .num_columns = first.size(is_vector ? 0 : 1),
                     .dtype = first.scalar_type(),
                     .side_by_side = side_by_side(matrices)});
  return groups_.size() - 1;
}

void GroupTable::send() { addresses_ = sent_to(addresses_, device_); }

GroupMatrices GroupTable::at(size_t number) const {
  GroupMatrices found = groups_.at(number);
  found.addresses_E = addresses_.at(number);
  return found;
}

namespace grouped {

bool have_kernels(const at::TensorOptions& rows) {
  if (rows.dtype() != at::kBFloat16) return false;
  const int device = rows.device().index();
  return cuda::kernels_of(device, Part::kGroupedGemm) != nullptr &&
         cuda::kernels_of(device, Part::kGroupedRows) != nullptr;
}

bool can_read(const at::Tensor& matrix_OI) {
  return (is_bf16(matrix_OI) || cuda_rows::is_fp32(matrix_OI)) && matrix_OI.is_contiguous() &&
         matrix_OI.size(-1) % cuda::kBf16Vector == 0 &&
         cuda_rows::aligned({&matrix_OI}, cuda::kBf16Vector) &&
         cuda_rows::fits_int(matrix_OI.size(0)) && cuda_rows::fits_int(matrix_OI.size(-1));
}

std::vector<std::vector<at::Tensor>> cast_to_bf16(
    const std::vector<std::vector<at::Tensor>>& matrices) {
  if (matrices.empty()) return {};
  GroupTable table(matrices[0].at(0).device());
  for (const std::vector<at::Tensor>& alike : matrices) table.add(alike);
  table.send();
  std::vector<std::vector<at::Tensor>> copies;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const at::Tensor& first = matrices[i][0];
    TORCH_CHECK(cuda_rows::is_fp32(first) && can_read(first), "matrices that are cast are fp32");
    const int64_t E = std::ssize(matrices[i]), size = first.numel();
    const at::Tensor cast =
        at::empty({E, first.size(0), first.size(1)}, first.options().dtype(at::kBFloat16));
    kernels_for(cast, Part::kGroupedRows)
        .launch("cast_matrices",
                Launch{.blocks_x = blocks_of(size / cuda::kBf16Vector, cuda::kBlockThreads),
                       .blocks_y = static_cast<unsigned>(E),
                       .threads_x = cuda::kBlockThreads},
                cuda::CastMatrices{.matrices = numbers_of(table.at(i).addresses_E),
                                   .cast = cast.mutable_data_ptr(),
                                   .size = size});
    copies.push_back(cast.unbind(0));
  }
  return copies;
}

SortedRows sort_out(const at::Tensor& counts_E, int64_t num_rows) {
  TORCH_CHECK(cuda_rows::fits_int(num_rows), "too many rows in experts");
  const int64_t E = counts_E.size(0),
                num_tiles = num_rows / cuda::kTileRows + std::min(E, num_rows);
  SortedRows sorted{.begins = at::empty({E + 1}, counts_E.options()),
                    .first_tiles = at::empty({E}, counts_E.options()),
                    .tile_groups = at::empty({num_tiles}, counts_E.options()),
                    .num_rows = num_rows,
                    .num_groups = E};
  kernels_for(counts_E, Part::kGroupedRows)
      .launch("group_tiles", Launch{.threads_x = cuda::kBlockThreads},
              cuda::GroupTiles{.counts = numbers_of(counts_E),
                               .begins = numbers_to(sorted.begins),
                               .first_tiles = numbers_to(sorted.first_tiles),
                               .tile_groups = numbers_to(sorted.tile_groups),
                               .num_groups = static_cast<int>(E),
                               .num_tiles = static_cast<int>(num_tiles)});
  return sorted;
}

void forward_out(at::Tensor& y, const at::Tensor& to_S, const SortedRows& sorted,
                 const std::vector<GroupedOperands>& operands,
                 const std::optional<GroupMatrices>& biases, double scale) {
  multiply("grouped_rows", /*transposed=*/false, y, to_S, sorted, operands, biases, scale);
}

void input_gradient_out(at::Tensor& dx, const at::Tensor& to_S, const SortedRows& sorted,
                        const std::vector<GroupedOperands>& operands, double scale) {
  multiply("grouped_rows_transposed", /*transposed=*/true, dx, to_S, sorted, operands, {}, scale);
}

void add_matrix_gradients(const GroupMatrices& gradients, const SortedRows& sorted,
                          const PickedRows& dy_SO, const PickedRows& x_SI) {
  const cuda::GroupedMatrices argument{.sorted = groups_of(sorted),
                                       .a = rows_of_gradient(dy_SO, sorted),
                                       .b = rows_of_gradient(x_SI, sorted),
                                       .gradients = numbers_of(gradients.addresses_E),
                                       .gradients_are_bf16 = gradients.dtype == at::kBFloat16,
                                       .num_stages = 0};
  TORCH_CHECK(gradients.num_rows == argument.a.num_columns &&
                  gradients.num_columns == argument.b.num_columns,
              "gradients of other matrices");
  if (sorted.num_rows == 0) return;
  start_gemm(kernels_for(x_SI.x, Part::kGroupedGemm), "grouped_matrices",
             blocks_of(gradients.num_rows, cuda::kTileRows) *
                 blocks_of(gradients.num_columns, cuda::kTileColumns),
             static_cast<unsigned>(sorted.num_groups), cuda::kBf16StageBytes, argument);
}

void add_bias_gradients(const GroupMatrices& gradients, const SortedRows& sorted,
                        const PickedRows& dy_SO, const at::Tensor& weights_S) {
  const cuda::GroupedSums argument{
      .sorted = groups_of(sorted),
      .x = rows_of_gradient(dy_SO, sorted),
      .weights = weights_S.defined() ? weights_S.const_data_ptr<float>() : nullptr,
      .gradients = numbers_of(gradients.addresses_E),
      .gradients_are_bf16 = gradients.dtype == at::kBFloat16};
  TORCH_CHECK(gradients.num_columns == argument.x.num_columns, "gradients of other biases");
  if (sorted.num_rows == 0) return;
  kernels_for(dy_SO.x, Part::kGroupedRows)
      .launch("grouped_sums",
              Launch{.blocks_x = blocks_of(gradients.num_columns, cuda::kSumColumns),
                     .blocks_y = static_cast<unsigned>(sorted.num_groups),
                     .threads_x = cuda::kSumColumns,
                     .threads_y = cuda::kSumParts},
              argument);
}

void dots_out(at::Tensor& dots, const at::Tensor& to_S, const SortedRows& sorted,
              const PickedRows& x, const at::Tensor& y_SO) {
  if (sorted.num_rows == 0) return;
  check_rows({y_SO}, sorted);
  cuda::GroupedDots argument = dots_of(dots, to_S, sorted, x);
  argument.y = y_SO.const_data_ptr();
  start(x.x, sorted, argument);
}

void add_dots_(at::Tensor& dots, const at::Tensor& to_S, const SortedRows& sorted,
               const PickedRows& x, const GroupMatrices& vectors) {
  if (sorted.num_rows == 0) return;
  cuda::GroupedDots argument = dots_of(dots, to_S, sorted, x);
  argument.vectors = numbers_of(vectors.addresses_E);
  argument.vectors_are_bf16 = vectors.dtype == at::kBFloat16;
  argument.adds = 1;
  start(x.x, sorted, argument);
}

void combine_(at::Tensor& sum_CD, const at::Tensor& y_CKD, const at::Tensor& weights_CK) {
  const int64_t C = y_CKD.size(0), K = y_CKD.size(1), D = y_CKD.size(2);
  TORCH_CHECK(sum_CD.is_contiguous() && y_CKD.is_contiguous() && is_bf16(y_CKD) &&
                  D % cuda::kBf16Vector == 0 &&
                  (!weights_CK.defined() || weights_CK.is_contiguous()),
              "rows that are combined are contiguous, of 8n numbers");
  if (y_CKD.numel() == 0) return;
  kernels_for(y_CKD, Part::kGroupedRows)
      .launch("combine_rows",
              Launch{.blocks_x = blocks_of(C * D / cuda::kBf16Vector, cuda::kBlockThreads),
                     .threads_x = cuda::kBlockThreads},
              cuda::CombineRows{
                  .sum = sum_CD.mutable_data_ptr<float>(),
                  .y = y_CKD.const_data_ptr(),
                  .weights = weights_CK.defined() ? weights_CK.const_data_ptr<float>() : nullptr,
                  .num_rows = C,
                  .num_parts = static_cast<int>(K),
                  .num_columns = static_cast<int>(D)});
}

}  // namespace grouped
}  // namespace longspan
