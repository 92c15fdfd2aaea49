#include "longspan/sequence_parallel/head_exchange.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <optional>

namespace longspan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The part of a block that lies in tokens [begin, begin + count).
HeadBlock cut(const HeadBlock& block, int64_t begin, int64_t count) {
  const int64_t from = std::max(block.token_begin, begin);
  const int64_t to = std::min(block.token_begin + block.num_tokens, begin + count);
  return {block.head_begin, block.num_heads, from, std::max<int64_t>(0, to - from)};
}

int64_t size_of(const HeadBlock& block) { return block.num_heads * block.num_tokens; }

// How many heads of tokens of these blocks each rank's tokens have.
std::vector<int64_t> rows_by_owner(const std::vector<HeadBlock>& blocks, int num_ranks, int64_t t) {
  std::vector<int64_t> rows(num_ranks, 0);
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (const HeadBlock& block : blocks) rows[rank] += size_of(cut(block, rank * t, t));
  }
  return rows;
}

// How many heads of tokens of `rank` each rank works with.
std::vector<int64_t> rows_by_worker(const BlocksByRank& by_rank, int rank, int64_t t) {
  std::vector<int64_t> rows;
  for (const auto& blocks : by_rank) {
    rows.push_back(rows_by_owner(blocks, static_cast<int>(by_rank.size()), t)[rank]);
  }
  return rows;
}

at::Tensor concatenated(const std::vector<at::Tensor>& parts) {
  return parts.size() == 1 ? parts[0].contiguous() : at::cat(parts);
}

}  // namespace

BlocksInFlight::BlocksInFlight(Pending rows, std::vector<HeadBlock> blocks, int64_t tokens_per_rank)
    : rows_(std::move(rows)), blocks_(std::move(blocks)), tokens_per_rank_(tokens_per_rank) {}

std::vector<at::Tensor> BlocksInFlight::wait() {
  const at::Tensor rows = rows_.wait();
  const int64_t H = rows.size(1);
  // One block lies as it should: the owners of its tokens come in order.
  if (blocks_.size() == 1) return {rows.view({-1, blocks_[0].num_heads, H})};
  std::vector<std::vector<at::Tensor>> parts(blocks_.size());
  int64_t at = 0;
  for (int64_t first = 0; at < rows.size(0); first += tokens_per_rank_) {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const int64_t size = size_of(cut(blocks_[i], first, tokens_per_rank_));
      if (size > 0) parts[i].push_back(rows.narrow(0, at, size));
      at += size;
    }
  }
  std::vector<at::Tensor> blocks;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const at::Tensor block = parts[i].empty() ? rows.narrow(0, 0, 0) : concatenated(parts[i]);
    blocks.push_back(block.view({blocks_[i].num_tokens, blocks_[i].num_heads, H}));
  }
  return blocks;
}

TokensInFlight::TokensInFlight(Pending rows, const BlocksByRank& by_rank, int rank,
                               int64_t tokens_per_rank)
    : rows_(std::move(rows)), first_token_(rank * tokens_per_rank) {
  for (const auto& blocks : by_rank) {
    for (const HeadBlock& block : blocks) {
      arriving_.push_back(cut(block, first_token_, tokens_per_rank));
    }
  }
}

int64_t TokensInFlight::num_arriving() const {
  int64_t count = 0;
  for (const HeadBlock& block : arriving_) count += size_of(block);
  return count;
}

void TokensInFlight::wait_into(at::Tensor& x_tNH, bool add) {
  const at::Tensor rows = rows_.wait();
  int64_t at = 0;
  for (const HeadBlock& block : arriving_) {
    const int64_t size = size_of(block);
    if (size == 0) continue;
    const at::Tensor part = rows.narrow(0, at, size).view({block.num_tokens, block.num_heads, -1});
    at::Tensor place = x_tNH.narrow(0, block.token_begin - first_token_, block.num_tokens)
                           .narrow(1, block.head_begin, block.num_heads);
    add ? place.add_(part) : place.copy_(part);
    at += size;
  }
}

BlocksInFlight start_to_heads(const at::Tensor& x_tNH, const BlocksByRank& by_rank,
                              const Group& group) {
  const int64_t t = x_tNH.size(0), H = x_tNH.size(2), first = group.rank() * t;
  std::vector<at::Tensor> parts;
  for (const auto& blocks : by_rank) {
    for (const HeadBlock& block : blocks) {
      const HeadBlock own = cut(block, first, t);
      if (size_of(own) == 0) continue;
      parts.push_back(x_tNH.narrow(0, own.token_begin - first, own.num_tokens)
                          .narrow(1, own.head_begin, own.num_heads)
                          .reshape({-1, H}));
    }
  }
  const auto& mine = by_rank[group.rank()];
  const at::Tensor rows = parts.empty() ? at::empty({0, H}, x_tNH.options()) : concatenated(parts);
  return {group.all_to_all(rows, rows_by_worker(by_rank, group.rank(), t),
                           rows_by_owner(mine, group.size(), t)),
          mine, t};
}

TokensInFlight start_to_tokens(const std::vector<at::Tensor>& blocks, const BlocksByRank& by_rank,
                               const Group& group, int64_t tokens_per_rank) {
  const auto& mine = by_rank[group.rank()];
  const int64_t t = tokens_per_rank, H = blocks.at(0).size(2);
  std::vector<at::Tensor> parts;
  if (mine.size() == 1) {
    parts.push_back(blocks[0].reshape({-1, H}));
  } else {
    for (int rank = 0; rank < group.size(); ++rank) {
      for (size_t i = 0; i < mine.size(); ++i) {
        const HeadBlock theirs = cut(mine[i], rank * t, t);
        if (size_of(theirs) == 0) continue;
        parts.push_back(blocks[i]
                            .narrow(0, theirs.token_begin - mine[i].token_begin, theirs.num_tokens)
                            .reshape({-1, H}));
      }
    }
  }
  const at::Tensor rows =
      parts.empty() ? at::empty({0, H}, blocks[0].options()) : concatenated(parts);
  return {group.all_to_all(rows, rows_by_owner(mine, group.size(), t),
                           rows_by_worker(by_rank, group.rank(), t)),
          by_rank, group.rank(), t};
}

namespace {

struct ExchangeState : torch::CustomClassHolder {
  Group group;
  BlocksByRank by_rank;
  int64_t tokens_per_rank = 0, num_heads = 0, head_dim = 0;
  at::TensorOptions options;
  std::optional<BlocksInFlight> to_heads;
  std::optional<TokensInFlight> to_tokens;

  at::Tensor token() const { return at::zeros({1}, options); }

  // Where several ranks worked with a head of a token, their sum, in fp32 for bf16.
  at::Tensor received_tokens() {
    const bool once = to_tokens->num_arriving() == tokens_per_rank * num_heads;
    const at::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
    const std::array<int64_t, 3> shape{tokens_per_rank, num_heads, head_dim};
    at::Tensor x_tNH =
        once ? at::empty(shape, options) : at::zeros(shape, options.dtype(at::toOpMathType(dtype)));
    to_tokens->wait_into(x_tNH, /*add=*/!once);
    to_tokens.reset();
    return x_tNH.to(dtype);
  }

  std::vector<at::Tensor> received_blocks() {
    std::vector<at::Tensor> blocks = to_heads->wait();
    to_heads.reset();
    if (blocks.empty()) blocks.push_back(token());
    return blocks;
  }
};

using StatePointer = c10::intrusive_ptr<ExchangeState>;

void keep(AutogradContext* ctx, const StatePointer& state) {
  ctx->saved_data["state"] = c10::IValue::make_capsule(state);
}

StatePointer kept(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<ExchangeState>(ctx->saved_data["state"].toCapsule());
}

// A gradient that nothing reached is zero; the exchange needs it all the same.
std::vector<at::Tensor> defined(const variable_list& gradients, const ExchangeState& state) {
  std::vector<at::Tensor> blocks;
  const auto& mine = state.by_rank[state.group.rank()];
  for (size_t i = 0; i < mine.size(); ++i) {
    blocks.push_back(
        gradients[i].defined()
            ? gradients[i]
            : at::zeros({mine[i].num_tokens, mine[i].num_heads, state.head_dim}, state.options));
  }
  if (blocks.empty()) blocks.push_back(at::empty({0, 1, state.head_dim}, state.options));
  return blocks;
}

struct StartToHeads : torch::autograd::Function<StartToHeads> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_tNH, StatePointer state) {
    keep(ctx, state);
    state->to_heads = start_to_heads(x_tNH, state->by_rank, state->group);
    return state->token();
  }
  static variable_list backward(AutogradContext* ctx, variable_list) {
    return {kept(ctx)->received_tokens(), {}};
  }
};

struct FinishToHeads : torch::autograd::Function<FinishToHeads> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor&, StatePointer state) {
    keep(ctx, state);
    return state->received_blocks();
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const StatePointer state = kept(ctx);
    state->to_tokens = start_to_tokens(defined(gradients, *state), state->by_rank, state->group,
                                       state->tokens_per_rank);
    return {state->token(), {}};
  }
};

struct StartToTokens : torch::autograd::Function<StartToTokens> {
  // The blocks, then what else the backward has to wait for.
  static at::Tensor forward(AutogradContext* ctx, at::TensorList tensors, StatePointer state,
                            int64_t num_blocks) {
    keep(ctx, state);
    ctx->saved_data["others"] = static_cast<int64_t>(tensors.size()) - num_blocks;
    state->to_tokens = start_to_tokens(tensors.slice(0, num_blocks).vec(), state->by_rank,
                                       state->group, state->tokens_per_rank);
    return state->token();
  }
  static variable_list backward(AutogradContext* ctx, variable_list) {
    const StatePointer state = kept(ctx);
    variable_list gradients = state->received_blocks();
    const int64_t others = ctx->saved_data["others"].toInt();
    for (int64_t i = 0; i < others; ++i) gradients.push_back(state->token());
    gradients.resize(gradients.size() + 2);
    return gradients;
  }
};

struct FinishToTokens : torch::autograd::Function<FinishToTokens> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor&, StatePointer state) {
    keep(ctx, state);
    return state->received_tokens();
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const StatePointer state = kept(ctx);
    state->to_heads = start_to_heads(gradients[0], state->by_rank, state->group);
    return {state->token(), {}};
  }
};

StatePointer make_state(const at::Tensor& like, const BlocksByRank& by_rank, const Group& group,
                        int64_t tokens_per_rank, int64_t num_heads) {
  auto state = c10::make_intrusive<ExchangeState>();
  state->group = group;
  state->by_rank = by_rank;
  state->tokens_per_rank = tokens_per_rank;
  state->num_heads = num_heads;
  state->head_dim = like.size(2);
  state->options = like.options().requires_grad(false);
  return state;
}

StartedExchange started(at::Tensor token, const StatePointer& state) {
  return {std::move(token), std::make_shared<StatePointer>(state)};
}

const StatePointer& state_of(const StartedExchange& exchange) {
  return *static_cast<StatePointer*>(exchange.state.get());
}

}  // namespace

StartedExchange start_tokens_to_heads(const at::Tensor& x_tNH, const BlocksByRank& by_rank,
                                      const Group& group) {
  const StatePointer state = make_state(x_tNH, by_rank, group, x_tNH.size(0), x_tNH.size(1));
  return started(StartToHeads::apply(x_tNH, state), state);
}

std::vector<at::Tensor> finish_tokens_to_heads(const StartedExchange& exchange) {
  return FinishToHeads::apply(exchange.token, state_of(exchange));
}

StartedExchange start_heads_to_tokens(const std::vector<at::Tensor>& blocks,
                                      const BlocksByRank& by_rank, const Group& group,
                                      int64_t tokens_per_rank,
                                      const std::vector<at::Tensor>& also) {
  int64_t first_head = INT64_MAX, end_head = 0;
  for (const auto& of_rank : by_rank) {
    for (const HeadBlock& block : of_rank) {
      first_head = std::min(first_head, block.head_begin);
      end_head = std::max(end_head, block.head_begin + block.num_heads);
    }
  }
  TORCH_CHECK(first_head == 0, "an exchange back to tokens starts at head 0");
  const StatePointer state = make_state(blocks[0], by_rank, group, tokens_per_rank, end_head);
  std::vector<at::Tensor> tensors = blocks;
  tensors.insert(tensors.end(), also.begin(), also.end());
  return started(
      StartToTokens::apply(at::TensorList(tensors), state, static_cast<int64_t>(blocks.size())),
      state);
}

at::Tensor finish_heads_to_tokens(const StartedExchange& exchange) {
  return FinishToTokens::apply(exchange.token, state_of(exchange));
}

}  // namespace longspan
