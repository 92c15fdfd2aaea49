#include "longspan/sequence_parallel/head_exchange.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <optional>

namespace longspan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns the part of a block in tokens [begin, begin + count).
HeadBlock cut(const HeadBlock& block, int64_t begin, int64_t count) {
  const int64_t from = std::max(block.token_begin, begin);
  const int64_t to = std::min(block.token_begin + block.num_tokens, begin + count);
  return {block.head_begin, block.num_heads, from, std::max<int64_t>(0, to - from)};
}

// Returns the largest number of blocks on a rank; messages are identified by the index of their
// block.
int num_slots(const BlocksByRank& by_rank) {
  size_t most = 0;
  for (const auto& blocks : by_rank) most = std::max(most, blocks.size());
  return static_cast<int>(most);
}

bool empty(const HeadBlock& block) { return block.num_heads == 0 || block.num_tokens == 0; }

}  // namespace

void TokensInFlight::wait_into(at::Tensor& x_tNH, bool add) {
  arrival_.wait_all();
  for (const Part& part : parts_) {
    at::Tensor place = x_tNH.narrow(0, part.token_begin, part.data.size(0))
                           .narrow(1, part.head_begin, part.data.size(1));
    add ? place.add_(part.data) : place.copy_(part.data);
  }
  parts_.clear();
}

int64_t TokensInFlight::num_arriving() const {
  int64_t count = 0;
  for (const Part& part : parts_) count += part.data.size(0) * part.data.size(1);
  return count;
}

BlocksInFlight start_to_heads(const at::Tensor& x_tNH, const BlocksByRank& by_rank,
                              const Group& group) {
  const int64_t t = x_tNH.size(0), H = x_tNH.size(2), first = group.rank() * t;
  const auto mine_of = [&](const HeadBlock& own) {
    return x_tNH.narrow(0, own.token_begin - first, own.num_tokens)
        .narrow(1, own.head_begin, own.num_heads);
  };
  std::vector<Group::Message> send, receive;
  std::vector<at::Tensor> arriving;
  for (int rank = 0; rank < group.size(); ++rank) {
    for (size_t i = 0; i < by_rank[rank].size(); ++i) {
      const HeadBlock& block = by_rank[rank][i];
      const int slot = static_cast<int>(i);
      if (rank != group.rank()) {
        const HeadBlock own = cut(block, first, t);
        if (!empty(own)) send.push_back({rank, slot, mine_of(own).contiguous()});
        continue;
      }
      arriving.push_back(at::empty({block.num_tokens, block.num_heads, H}, x_tNH.options()));
      for (int owner = 0; owner < group.size(); ++owner) {
        const HeadBlock part = cut(block, owner * t, t);
        if (empty(part)) continue;
        at::Tensor place =
            arriving.back().narrow(0, part.token_begin - block.token_begin, part.num_tokens);
        if (owner == group.rank()) {
          place.copy_(mine_of(part));
        } else {
          receive.push_back({owner, slot, place});
        }
      }
    }
  }
  return {group.exchange(send, receive, num_slots(by_rank)), std::move(arriving)};
}

at::Tensor without_values(at::IntArrayRef sizes, const at::TensorOptions& options) {
  // Hides the view from autograd, which would otherwise use the view's base.
  const at::AutoDispatchBelowADInplaceOrView guard;
  return at::zeros({1}, options).expand(sizes);
}

TokensInFlight start_to_tokens(const std::vector<at::Tensor>& blocks, const BlocksByRank& by_rank,
                               const Group& group, int64_t tokens_per_rank) {
  const int64_t t = tokens_per_rank, H = blocks.at(0).size(2), first = group.rank() * t;
  std::vector<Group::Message> send, receive;
  std::vector<TokensInFlight::Part> parts;
  for (int rank = 0; rank < group.size(); ++rank) {
    for (size_t i = 0; i < by_rank[rank].size(); ++i) {
      const HeadBlock& block = by_rank[rank][i];
      const int slot = static_cast<int>(i);
      const HeadBlock own = cut(block, first, t);
      if (rank != group.rank()) {
        if (empty(own)) continue;
        parts.push_back({own.token_begin - first, own.head_begin,
                         at::empty({own.num_tokens, own.num_heads, H}, blocks[0].options())});
        receive.push_back({rank, slot, parts.back().data});
        continue;
      }
      for (int owner = 0; owner < group.size(); ++owner) {
        const HeadBlock theirs = cut(block, owner * t, t);
        if (empty(theirs)) continue;
        const at::Tensor data =
            blocks[i].narrow(0, theirs.token_begin - block.token_begin, theirs.num_tokens);
        if (owner == group.rank()) {
          parts.push_back({own.token_begin - first, own.head_begin, data});
        } else {
          send.push_back({owner, slot, data.contiguous()});
        }
      }
    }
  }
  return {group.exchange(send, receive, num_slots(by_rank)), std::move(parts)};
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

  // Returns the received tokens. If several ranks worked with a head of a token, their sum, in fp32
  // for bf16.
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

void save_state(AutogradContext* ctx, const StatePointer& state) {
  ctx->saved_data["state"] = c10::IValue::make_capsule(state);
}

StatePointer saved_state(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<ExchangeState>(ctx->saved_data["state"].toCapsule());
}

// Replaces undefined gradients by zeros, which the exchange needs.
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
    save_state(ctx, state);
    state->to_heads = start_to_heads(x_tNH, state->by_rank, state->group);
    return state->token();
  }
  static variable_list backward(AutogradContext* ctx, variable_list) {
    return {saved_state(ctx)->received_tokens(), {}};
  }
};

struct FinishToHeads : torch::autograd::Function<FinishToHeads> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor&, StatePointer state) {
    save_state(ctx, state);
    return state->received_blocks();
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const StatePointer state = saved_state(ctx);
    state->to_tokens = start_to_tokens(defined(gradients, *state), state->by_rank, state->group,
                                       state->tokens_per_rank);
    return {state->token(), {}};
  }
};

struct StartToTokens : torch::autograd::Function<StartToTokens> {
  // `tensors`: the blocks, then the other tensors that the backward must wait for.
  static at::Tensor forward(AutogradContext* ctx, at::TensorList tensors, StatePointer state,
                            int64_t num_blocks, bool output_is_known) {
    save_state(ctx, state);
    ctx->saved_data["others"] = static_cast<int64_t>(tensors.size()) - num_blocks;
    if (output_is_known) return state->token();
    state->to_tokens = start_to_tokens(tensors.slice(0, num_blocks).vec(), state->by_rank,
                                       state->group, state->tokens_per_rank);
    return state->token();
  }
  static variable_list backward(AutogradContext* ctx, variable_list) {
    const StatePointer state = saved_state(ctx);
    variable_list gradients = state->received_blocks();
    const int64_t others = ctx->saved_data["others"].toInt();
    for (int64_t i = 0; i < others; ++i) gradients.push_back(state->token());
    gradients.resize(gradients.size() + 3);
    return gradients;
  }
};

struct FinishToTokens : torch::autograd::Function<FinishToTokens> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor&, StatePointer state) {
    save_state(ctx, state);
    if (!state->to_tokens) {
      return without_values({state->tokens_per_rank, state->num_heads, state->head_dim},
                            state->options);
    }
    return state->received_tokens();
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const StatePointer state = saved_state(ctx);
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
                                      int64_t tokens_per_rank, bool output_is_known,
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
  return started(StartToTokens::apply(at::TensorList(tensors), state,
                                      static_cast<int64_t>(blocks.size()), output_is_known),
                 state);
}

at::Tensor finish_heads_to_tokens(const StartedExchange& exchange) {
  return FinishToTokens::apply(exchange.token, state_of(exchange));
}

}  // namespace longspan
