// All experts of a layer at once, by GPU kernels: the same results as Experts (experts.h), which
// runs one expert after the other. The host does not wait for numbers of rows. S: rows of all
// experts, D: model dim, I: intermediate dim, E: experts.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "longspan/kernels/grouped_gemm.h"
#include "longspan/layers/expert_mlp.h"
#include "longspan/layers/grouped_linear.h"
#include "longspan/spec/gated_mlp_spec.h"

namespace longspan {

class GroupedExperts {
 public:
  /// Whether the kernels can read all parameters of the experts.
  static bool can_group(const std::vector<ExpertMlp>& experts);

  /// `counts_E`: rows of each expert, int64, on the rows' device; their sum is `num_rows`. With
  /// `trains`, backward() may be called, and every trained parameter has a gradient.
  GroupedExperts(const std::vector<ExpertMlp>& experts, const GateActivation& activation,
                 const at::Tensor& counts_E, int64_t num_rows, bool trains);

  GroupedExperts(const GroupedExperts&) = delete;
  GroupedExperts& operator=(const GroupedExperts&) = delete;

  /// Returns y[to_S[row]] = the output of the row's expert, [S, D], bf16. Undefined to_S: y[row].
  at::Tensor forward(const at::Tensor& to_S, const PickedRows& x) const;
  /// Returns dx[to_S[row]], [S, D]. dout: d loss / d (the expert's output times its weight).
  /// weights_S: fp32. Writes d loss / d weight of each row to dweights[to_S[row]], fp32, [S]. Adds
  /// to the experts' gradients.
  at::Tensor backward(at::Tensor& dweights, const at::Tensor& to_S, const PickedRows& x,
                      const PickedRows& dout, const at::Tensor& weights_S) const;

 private:
  struct Linears {
    std::vector<GroupedLinear> gate_and_up;  // two, or one with interleaved outputs
    GroupedLinear down;
  };
  Linears linears_of(const std::vector<ExpertMlp>& experts, bool trains);
  bool takes_turns() const { return linears_.gate_and_up.size() == 1; }
  void gate_and_up_out(at::Tensor& gate_SI, at::Tensor& up_SI, const at::Tensor& both_S2I,
                       const PickedRows& x) const;

  GateActivation activation_;
  int64_t expert_size_;
  GroupTable table_;
  Linears linears_;
  SortedRows sorted_;
};

}  // namespace longspan
