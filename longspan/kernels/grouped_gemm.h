// Gemms of rows that are sorted by expert, where each expert has a matrix of its own. The device
// alone knows how many rows an expert has, and no host waits to learn it. By kernels of their own
// (cuda/rows/grouped_gemm.cu), for bf16; where there are none, whoever calls works on one expert
// after the other.
// S: rows of all experts, E: experts, I, O: numbers of a row before and behind a matrix.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace longspan {

/// Where the rows of each expert begin, among S rows that are sorted by expert: as tensors where
/// the rows are.
struct SortedRows {
  at::Tensor begins, first_tiles, tile_groups;  // int64 (cuda/rows/arguments.h)
  int64_t num_rows = 0, num_groups = 0;
};

/// A matrix or a vector of each expert: where they are. Whoever makes it keeps them alive until the
/// device has used them.
struct GroupMatrices {
  at::Tensor addresses_E;                 // int64
  int64_t num_rows = 0, num_columns = 0;  // a vector has one row
  at::ScalarType dtype = at::kFloat;
};

/// Finds out where matrices are, and tells the device in one copy for which no host waits.
class GroupTable {
 public:
  /// The device that they are all on.
  explicit GroupTable(at::Device device) : device_(device) {}
  /// One of each expert, of one shape and dtype, contiguous. Returns their number.
  size_t add(const std::vector<at::Tensor>& matrices);
  void send();
  /// Once sent.
  GroupMatrices at(size_t number) const;

 private:
  at::Device device_;
  std::vector<GroupMatrices> groups_;
  std::vector<at::Tensor> addresses_;
};

/// Rows of a tensor, [.., I], in the order of SortedRows: the one of each row is from_S[row]
/// (int64), or the one of the same number where that is undefined.
struct PickedRows {
  at::Tensor x, from_S = {};
};

/// Rows times the matrix of their expert, [O, I], or, as a factor of an input gradient, [I, O].
struct GroupedProduct {
  PickedRows rows;
  GroupMatrices matrices;
};

namespace grouped {

/// Whether there are kernels for rows like these: bf16, where a GPU's kernels are.
bool have_kernels(const at::TensorOptions& rows);
/// Whether the kernels read this matrix or vector: bf16 or fp32, contiguous, rows of 8n numbers,
/// aligned.
bool can_read(const at::Tensor& matrix_OI);

/// counts_E: int64, how many rows each expert has; their sum is num_rows.
SortedRows sort_out(const at::Tensor& counts_E, int64_t num_rows);

/// y[to_S[row]] = scale * the sum of at most four products + the expert's bias. y: bf16, [S, O],
/// each row of which is written once. Undefined to_S: the row of the same number.
void forward_out(at::Tensor& y, const at::Tensor& to_S, const SortedRows& sorted,
                 const std::vector<GroupedProduct>& products,
                 const std::optional<GroupMatrices>& biases, double scale = 1.0);
/// The same with each matrix transposed.
void input_gradient_out(at::Tensor& dx, const at::Tensor& to_S, const SortedRows& sorted,
                        const std::vector<GroupedProduct>& products, double scale = 1.0);
/// gradients += dy^T x over the rows of each expert, in fp32.
void add_matrix_gradients(const GroupMatrices& gradients, const SortedRows& sorted,
                          const PickedRows& dy_SO, const PickedRows& x_SI);
/// gradients += the sum over the rows of each expert of weights * dy. weights_S: fp32.
void add_bias_gradients(const GroupMatrices& gradients, const SortedRows& sorted,
                        const PickedRows& dy_SO, const at::Tensor& weights_S);
/// dots[to_S[row]] = the dot product of rows of x and y. dots: fp32.
void dots_out(at::Tensor& dots, const at::Tensor& to_S, const SortedRows& sorted,
              const PickedRows& x, const at::Tensor& y_SO);
/// dots[to_S[row]] += that of rows of x with the vector of their expert.
void add_dots_(at::Tensor& dots, const at::Tensor& to_S, const SortedRows& sorted,
               const PickedRows& x, const GroupMatrices& vectors);
/// sum_CD += the sum over k of weights_CK * y_CKD, in the order of k. sum, weights: fp32 (undefined
/// weights are ones), y: bf16.
void combine_(at::Tensor& sum_CD, const at::Tensor& y_CKD, const at::Tensor& weights_CK);

}  // namespace grouped
}  // namespace longspan
