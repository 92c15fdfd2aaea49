// What the benchmark times: attention alone, or the attention sublayer of a decoder layer. T:
// tokens of the row, t: tokens of one rank, N: query heads, M: kv heads, H: head dim, D: model dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/attention/saved_attention.h"
#include "longspan/data/batch.h"
#include "longspan/kernels/rope.h"
#include "longspan/layers/layer.h"

namespace longspan {

struct ProblemShape {
  int64_t num_heads = 8, num_kv_heads = 2, head_dim = 64;
  /// Norm, q, k and v projections, rotation, attention and output projection, instead of attention
  /// alone.
  bool layer = false;
  int64_t model_dim = 512;                 // of the layer
  at::ScalarType dtype = at::kFloat;       // of everything
  at::Device device{at::kCPU};             // of everything
  at::ScalarType rounded_to = at::kFloat;  // random values: the same problem in another dtype
  /// Attention runs without autograd first, and its results are replayed before the backward, as
  /// under gradient checkpointing.
  bool checkpointing = false;

  AttentionSpec attention() const { return plain_attention(num_heads, num_kv_heads, head_dim); }
};

/// Inputs of tokens, and the gradient of the loss for their outputs.
struct ProblemInputs {
  std::vector<at::Tensor> tokens;  // q_tNH, k_tMH, v_tMH; of a layer h_tD
  at::Tensor dout;                 // out_tNH; of a layer out_tD

  /// The same numbers on each device.
  static ProblemInputs random(const ProblemShape& shape, int64_t num_tokens, uint64_t seed);
  /// One rank's share; no loss depends on its padding.
  ProblemInputs share(const TokenOrder& order) const;
};

/// Gradients of the parts that ranks hold of the row, and of parameters, which add up over ranks.
struct ProblemGradients {
  std::vector<at::Tensor> tokens, parameters;
};

class AttentionProblem {
 public:
  /// `row` is the unpadded row of which `order` takes a share. Parameters are the same everywhere.
  AttentionProblem(const ProblemShape& shape, const Packing& row, const TokenOrder& order,
                   ProblemInputs inputs);

  /// Forgets the gradients, then runs forward and saves what the backward needs. Detached output.
  at::Tensor forward(Attention& attention);
  void backward(Attention& attention);

  ProblemGradients gradients() const;
  /// Bytes of the output and of the gradients of the inputs: what any method hands over.
  int64_t output_bytes() const;
  int64_t gradient_bytes() const;

 private:
  at::Tensor run(Attention& attention) const;

  ProblemShape shape_;
  Packing packing_;
  ProblemInputs inputs_;
  Layer layer_;  // its attention sublayer alone
  RotaryTable rotary_;
  std::vector<at::Tensor> parameters_;
  at::Tensor out_;
  SavedAttention saved_;
};

/// Names of ProblemGradients, in their order.
std::vector<std::string> gradient_names(const ProblemShape& shape);

}  // namespace longspan
