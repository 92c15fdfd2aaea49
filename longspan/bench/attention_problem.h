// A benchmark problem: attention alone, or the attention sublayer of a decoder layer. T: tokens of
// the row, t: tokens of one rank, N: query heads, M: kv heads, H: head dim, D: model dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/attention/saved_attention.h"
#include "longspan/kernels/rope.h"
#include "longspan/layers/layer.h"
#include "longspan/rows/batch.h"

namespace longspan {

struct ProblemShape {
  int64_t num_heads = 8, num_kv_heads = 2, head_dim = 64;
  /// A whole attention sublayer (norm, q, k and v projections, rotation, attention and output
  /// projection) instead of attention alone.
  bool layer = false;
  int64_t model_dim = 512;                 // of the layer
  at::ScalarType dtype = at::kFloat;       // of all tensors
  at::Device device{at::kCPU};             // of all tensors
  at::ScalarType rounded_to = at::kFloat;  // rounding of random values before their cast to dtype
  /// True: attention runs as under gradient checkpointing, first without autograd; the backward
  /// replays the results.
  bool checkpointing = false;

  AttentionSpec attention() const { return plain_attention(num_heads, num_kv_heads, head_dim); }
};

/// Inputs of some tokens, and the gradient of the loss with respect to their outputs.
struct ProblemInputs {
  std::vector<at::Tensor> tokens;  // q_tNH, k_tMH, v_tMH; for a layer h_tD
  at::Tensor dout;                 // out_tNH; for a layer out_tD

  /// Random inputs, with the same numbers on every device.
  static ProblemInputs random(const ProblemShape& shape, int64_t num_tokens, uint64_t seed);
  /// Returns one rank's share. Padding has no effect on the loss.
  ProblemInputs share(const TokenOrder& order) const;
};

/// Gradients of this rank's tokens, and of parameters. Gradients of parameters add up over ranks.
struct ProblemGradients {
  std::vector<at::Tensor> tokens, parameters;
};

class AttentionProblem {
 public:
  /// `row`: the whole row, unpadded. `order`: this rank's share of the row. Parameters are the same
  /// on all ranks.
  AttentionProblem(const ProblemShape& shape, const Packing& row, const TokenOrder& order,
                   ProblemInputs inputs);

  /// Clears the gradients, runs the forward, and saves the tensors that the backward needs. Returns
  /// the output, detached.
  at::Tensor forward(Attention& attention);
  void backward(Attention& attention);

  ProblemGradients gradients() const;
  /// Bytes of the output and of the inputs' gradients, which every method returns.
  int64_t output_bytes() const;
  int64_t gradient_bytes() const;

 private:
  at::Tensor run(Attention& attention, AttentionCheckpoint checkpoint) const;

  ProblemShape shape_;
  Packing packing_;
  ProblemInputs inputs_;
  Layer layer_;  // only its attention sublayer
  RotaryTable rotary_;
  std::vector<at::Tensor> parameters_;
  at::Tensor out_;
  SavedAttention saved_;
};

/// Names of the gradients in ProblemGradients, in their order.
std::vector<std::string> gradient_names(const ProblemShape& shape);

}  // namespace longspan
