// The chunked gated delta rule of one key head and its value heads. T: tokens, R: value heads of
// the key head, K, V: numbers in a head of keys and of values, C: tokens of a chunk, Z: chunks of a
// segment.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "longspan/spec/recurrence_spec.h"

namespace longspan::delta_rule {

constexpr int64_t kChunk = kRuleChunk;
constexpr int64_t C = kChunk;  // for names of dimensions
/// Chunks whose intermediate results are held together. The state before each segment is saved.
constexpr int64_t kSegment = kRuleSegment;
constexpr int64_t kSegmentChunks = kSegment / kChunk;

inline int64_t num_segments(int64_t num_tokens) { return (num_tokens + kSegment - 1) / kSegment; }

/// One key head's part of a row, or its gradients. q, k and v keep their dtype; the gates are fp64.
struct HeadViews {
  at::Tensor q_TK, k_TK, v_TRV, g_TR, beta_TR;
};

/// `A`: the type of the arithmetic, float or double.
template <typename A>
class Head {
 public:
  /// Allocates memory for a segment of a row of `num_tokens` tokens.
  Head(int64_t num_tokens, int64_t num_value_heads, int64_t key_dim, int64_t value_dim,
       bool backward);

  /// Writes the output. `documents_T`: the document of each token, ascending. `state_RKV`: the
  /// state before the first token; becomes the state after the last. `segment_states`: [segments,
  /// R, K, V]; where defined, gets the states at the segments' begins.
  void forward(const HeadViews& in, const std::vector<int64_t>& documents_T,
               const at::Tensor& out_TRV, at::Tensor state_RKV, const at::Tensor& segment_states);
  /// Writes the gradients. `dstate_RKV`: d loss / d state after the last token; becomes d loss / d
  /// state before the first.
  void backward(const HeadViews& in, const std::vector<int64_t>& documents_T,
                const at::Tensor& dout_TRV, const at::Tensor& segment_states, at::Tensor dstate_RKV,
                const HeadViews& gradients);

 private:
  void load(const HeadViews& in, const std::vector<int64_t>& documents_T, int64_t begin);
  void prepare_decays();
  void prepare_solutions();
  /// Runs the states from states_[0] on.
  void scan();
  void scan_back(const at::Tensor& dstate_RKV);
  void gradients_of_products();
  void gradients_of_gates();
  void store_gradients(const HeadViews& in, const HeadViews& gradients, int64_t begin);

  /// Gates of a chunk and one value head, for each token.
  struct Gates {
    std::vector<double> g, beta, dg, dbeta;
    std::vector<double> sum;     // of g, from the chunk's begin
    std::vector<double> since;   // decay since chunk begin; 0: the token's document began later
    std::vector<double> to_end;  // decay to the chunk's end; 0: the document ends before
    double whole = 0;            // decay of the chunk; 0: the chunk ends in another document
  };
  Gates& gates(int64_t z, int64_t r) { return gates_[z * R_ + r]; }
  A* of(const at::Tensor& x, int64_t z, int64_t r) const;

  int64_t R_, K_, V_, Z_;
  int64_t size_ = 0, num_chunks_ = 0;  // of the current segment
  std::vector<int64_t> documents_;     // of the token before the segment, and of its tokens
  std::vector<Gates> gates_;

  at::Tensor x_;          // [Z, 2C, K]: normalized, scaled queries, then normalized keys
  std::vector<A> norms_;  // [Z, 2C]: the factors of these norms
  at::Tensor products_;   // [Z, 2C, C]: x times the keys
  at::Tensor v_;          // [Z, R, C, V]
  at::Tensor decay_;      // [Z, R, C, C]: exp(G_i - G_j) where i sees j, else 0
  at::Tensor scores_;     // [Z, R, C, C]: decay * q k^T
  at::Tensor solve_;      // [Z, R, C, C]: (1 + beta decay k k^T, below the diagonal)^-1
  at::Tensor of_state_;   // [Z, R, 2C, V]: x times the chunk's first state
  at::Tensor right_;      // [Z, R, C, V]: beta (v - since * k S)
  at::Tensor new_;        // [Z, R, C, V]: solve * right, the update of the state
  at::Tensor scaled_;     // [Z, R, C, V]: to_end * new
  at::Tensor states_;     // [Z + 1, R, K, V]
  at::Tensor out_;        // [Z, R, C, V]

  at::Tensor dout_, dnew_, dscaled_, dright_, dof_state_, dstates_, dscores_, dsolve_, dproducts_,
      dx_;
};

extern template class Head<float>;
extern template class Head<double>;

}  // namespace longspan::delta_rule
