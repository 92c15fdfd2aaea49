// Exchanges tokens for heads, and back, around the inner attention of every Ulysses kind. t: this
// rank's tokens, T = P t: tokens of the group, N: all heads, n: heads of a block, H: elements of a
// head, S: tokens of a block.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/plan/head_split.h"

namespace longspan {

/// The blocks of heads and tokens on each rank. A rank's own tokens are [rank t, (rank + 1) t).
using BlocksByRank = std::vector<std::vector<HeadBlock>>;

/// The blocks of one rank in transit. Call wait() once; it returns one [S, n, H] per block.
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

/// Heads of a rank's own tokens on their way back from the ranks that attended with them.
class TokensInFlight {
 public:
  /// Heads of consecutive tokens, and their place.
  struct Part {
    int64_t token_begin, head_begin;
    at::Tensor data;  // [S, n, H]
  };
  TokensInFlight(Pending arrival, std::vector<Part> parts)
      : arrival_(std::move(arrival)), parts_(std::move(parts)) {}
  /// Writes the received data to its place in x_tNH, or adds it there with `add`. Call once.
  void wait_into(at::Tensor& x_tNH, bool add);
  /// Returns the number of received pairs of a head and a token, counting repetitions.
  int64_t num_arriving() const;

 private:
  Pending arrival_;
  std::vector<Part> parts_;
};

BlocksInFlight start_to_heads(const at::Tensor& x_tNH, const BlocksByRank& by_rank,
                              const Group& group);
/// `blocks`: this rank's, [S, n, H] each.
TokensInFlight start_to_tokens(const std::vector<at::Tensor>& blocks, const BlocksByRank& by_rank,
                               const Group& group, int64_t tokens_per_rank);

/// Returns a tensor of this shape without values; it takes no memory.
at::Tensor without_values(at::IntArrayRef sizes, const at::TensorOptions& options);

/// The differentiable form, in two steps, so that other work can run between start and finish. In
/// the backward, finish starts the exchange of gradients and start waits for it. Gradients of data
/// that went to several ranks are summed (in fp32 for bf16). A rank without a block gets a tensor
/// of one element instead. This tensor must be passed as `also` to an exchange back, so that all
/// ranks take part in the backward.
struct StartedExchange {
  at::Tensor token;  // carries the graph
  std::shared_ptr<void> state;
};
StartedExchange start_tokens_to_heads(const at::Tensor& x_tNH, const BlocksByRank& by_rank,
                                      const Group& group);
std::vector<at::Tensor> finish_tokens_to_heads(const StartedExchange& started);

/// The blocks must cover each head of each token once. With `output_is_known`, nothing is sent and
/// the result has no values; its gradient is exchanged in any case. The backward waits for the
/// backward of `also`.
StartedExchange start_heads_to_tokens(const std::vector<at::Tensor>& blocks,
                                      const BlocksByRank& by_rank, const Group& group,
                                      int64_t tokens_per_rank, bool output_is_known,
                                      const std::vector<at::Tensor>& also = {});
at::Tensor finish_heads_to_tokens(const StartedExchange& started);

}  // namespace longspan
