// Gemms of rows sorted by expert. Each expert has its own matrix. The number of rows of each expert
// is known on the device only, and the host does not wait for this number. Kernels exist for bf16
// (cuda/rows/grouped_gemm.cu). Without kernels, the caller computes one expert after the other.
// at::_grouped_mm computes some gemms where it is faster (grouped_library.h). S: rows of all
// experts, E: experts, I, O: a row's numbers before and after a matrix.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace longspan {

/// The first row of each expert among S rows sorted by expert, as tensors on the rows' device.
struct SortedRows {
  at::Tensor begins, first_tiles, tile_groups;  // int64 (cuda/rows/arguments.h)
  int64_t num_rows = 0, num_groups = 0;
};

/// Addresses of one matrix or vector for each expert. The maker of a GroupMatrices keeps the
/// matrices alive until the device has used them.
struct GroupMatrices {
  at::Tensor addresses_E;                 // int64
  int64_t num_rows = 0, num_columns = 0;  // a vector has one row
  at::ScalarType dtype = at::kFloat;
  at::Tensor side_by_side = {};  // [E, num_rows, num_columns], for bf16 matrices of one tensor
};

/// Collects addresses of matrices, and sends them to the device in one copy, without a wait of the
/// host.
class GroupTable {
 public:
  /// `device`: the device of all matrices.
  explicit GroupTable(at::Device device) : device_(device) {}
  /// Adds one matrix for each expert, all contiguous and of one shape and dtype. Returns the
  /// entry's index.
  size_t add(const std::vector<at::Tensor>& matrices);
  void send();
  /// Returns an added entry. Call after send().
  GroupMatrices at(size_t number) const;

 private:
  at::Device device_;
  std::vector<GroupMatrices> groups_;
  std::vector<at::Tensor> addresses_;
};

/// Rows of a tensor, [.., I], in the order of SortedRows: x[from_S[row]] (int64), or x[row] where
/// from_S is undefined.
struct PickedRows {
  at::Tensor x, from_S = {};
};

/// Rows times their expert's matrix: [O, I], or [I, O] in an input gradient.
struct GroupedOperands {
  PickedRows rows;
  GroupMatrices matrices;
};

namespace grouped {

/// Whether kernels exist for rows of these options: bf16, on a GPU with kernels.
bool have_kernels(const at::TensorOptions& rows);
/// Whether the kernels can read this matrix or vector: bf16 or fp32, contiguous, rows of 8n
/// numbers, aligned.
bool can_read(const at::Tensor& matrix_OI);

/// Returns bf16 copies of fp32 matrices that can_read() allows. matrices[i]: one for each expert,
/// of one shape. One launch for each i.
std::vector<std::vector<at::Tensor>> cast_to_bf16(
    const std::vector<std::vector<at::Tensor>>& matrices);

/// Computes SortedRows. counts_E: int64, rows of each expert; their sum is num_rows.
SortedRows sort_out(const at::Tensor& counts_E, int64_t num_rows);

/// y[to_S[row]] = scale * the sum of at most four products + the expert's bias. y: bf16, [S, O];
/// writes each row once. Undefined to_S: y[row].
void forward_out(at::Tensor& y, const at::Tensor& to_S, const SortedRows& sorted,
                 const std::vector<GroupedOperands>& operands,
                 const std::optional<GroupMatrices>& biases, double scale = 1.0);
/// As forward_out(), with transposed matrices.
void input_gradient_out(at::Tensor& dx, const at::Tensor& to_S, const SortedRows& sorted,
                        const std::vector<GroupedOperands>& operands, double scale = 1.0);
/// gradients += dy^T x over the rows of each expert, in fp32.
void add_matrix_gradients(const GroupMatrices& gradients, const SortedRows& sorted,
                          const PickedRows& dy_SO, const PickedRows& x_SI);
/// gradients += the sum over each expert's rows of weights * dy. weights_S: fp32.
void add_bias_gradients(const GroupMatrices& gradients, const SortedRows& sorted,
                        const PickedRows& dy_SO, const at::Tensor& weights_S);
/// dots[to_S[row]] = the dot product of rows of x and y. dots: fp32.
void dots_out(at::Tensor& dots, const at::Tensor& to_S, const SortedRows& sorted,
              const PickedRows& x, const at::Tensor& y_SO);
/// dots[to_S[row]] += the dot product of rows of x with their expert's vector.
void add_dots_(at::Tensor& dots, const at::Tensor& to_S, const SortedRows& sorted,
               const PickedRows& x, const GroupMatrices& vectors);
/// sum_CD += the sum over k, in order, of weights_CK * y_CKD. sum, weights: fp32; y: bf16.
/// Undefined weights are 1.
void combine_(at::Tensor& sum_CD, const at::Tensor& y_CKD, const at::Tensor& weights_CK);

}  // namespace grouped
}  // namespace longspan
