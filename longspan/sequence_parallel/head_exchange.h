// Exchanges tokens for heads (all-to-all), and back, around the inner attention of every Ulysses
// method. t: this rank's tokens, T = P t: tokens of the group, N: all heads, n: heads of a block,
// H: elements of a head, S: tokens of a block.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/plan/head_split.h"

namespace longspan {

/// The blocks of heads and tokens that each rank attends with. Before the exchange, a rank holds
/// tokens [rank t, (rank + 1) t).
using BlocksByRank = std::vector<std::vector<HeadBlock>>;

/// The blocks of one rank in transit. wait() must be called once, and returns one [S, n, H] per
/// block.
class BlocksInFlight {
 public:
  BlocksInFlight(Pending arrival, std::vector<at::Tensor> blocks)
      : arrival_(std::move(arrival)), blocks_(std::move(blocks)) {}
  std::vector<at::Tensor> wait() {
    arrival_.wait_all();
    return std::move(blocks_);
  }

 private:
  Pending arrival_;
  std::vector<at::Tensor> blocks_;
};

/// Heads in transit, from the ranks of the heads to the rank of the tokens.
class TokensInFlight {
 public:
  /// Heads of consecutive tokens, and their place in x_tNH.
  struct Part {
    int64_t token_begin, head_begin;
    at::Tensor data;  // [S, n, H]
  };
  TokensInFlight(Pending arrival, std::vector<Part> parts)
      : arrival_(std::move(arrival)), parts_(std::move(parts)) {}
  /// Writes the received data to its place in x_tNH. With `add`, adds the data to x_tNH instead.
  /// Must be called once.
  void wait_into(at::Tensor& x_tNH, bool add);
  /// Returns the number of received pairs of a head and a token, counting repetitions.
  int64_t num_arriving() const;

 private:
  Pending arrival_;
  std::vector<Part> parts_;
};

BlocksInFlight start_to_heads(const at::Tensor& x_tNH, const BlocksByRank& by_rank,
                              const Group& group);
/// `blocks`: this rank's blocks, [S, n, H] each.
TokensInFlight start_to_tokens(const std::vector<at::Tensor>& blocks, const BlocksByRank& by_rank,
                               const Group& group, int64_t tokens_per_rank);

/// Returns a tensor of shape `sizes` without values. The tensor takes no memory.
at::Tensor without_values(at::IntArrayRef sizes, const at::TensorOptions& options);

/// The differentiable form of an exchange, in two steps, so that other work can run between start
/// and finish. The backward of finish starts the exchange of gradients, and the backward of start
/// waits for this exchange. Gradients of data that went to several ranks are summed (in fp32 for
/// bf16). A rank without a block gets a tensor of one element instead of blocks. The caller must
/// pass this tensor as `also` to the reverse exchange, so that all ranks take part in the backward.
struct StartedExchange {
  at::Tensor token;  // carries the autograd graph
  std::shared_ptr<void> state;
};
StartedExchange start_tokens_to_heads(const at::Tensor& x_tNH, const BlocksByRank& by_rank,
                                      const Group& group);
std::vector<at::Tensor> finish_tokens_to_heads(const StartedExchange& started);

/// The blocks of all ranks must cover each head of each token once. With `output_is_known`, the
/// forward sends nothing and the result has no values. The backward exchanges the result's gradient
/// in any case. The backward waits for the backward of `also`.
StartedExchange start_heads_to_tokens(const std::vector<at::Tensor>& blocks,
                                      const BlocksByRank& by_rank, const Group& group,
                                      int64_t tokens_per_rank, bool output_is_known,
                                      const std::vector<at::Tensor>& also = {});
at::Tensor finish_heads_to_tokens(const StartedExchange& started);

}  // namespace longspan
