#include "longspan/sequence_parallel/head_exchange.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace longspan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Ranges = std::vector<HeadRange>;

struct ExchangeState : torch::CustomClassHolder {
  Group group;
  std::vector<Ranges> ranges;
  std::vector<int64_t> num_heads;
};

// For each rank its heads of all our tokens, one behind the other; what arrives is [T, n, H] as it
// lies, without another copy.
Pending start_to_heads(const at::Tensor& x_tNH, const Ranges& ranges, const Group& group) {
  const int64_t t = x_tNH.size(0), H = x_tNH.size(2);
  std::vector<at::Tensor> parts;
  std::vector<int64_t> send_rows;
  for (const HeadRange& range : ranges) {
    parts.push_back(x_tNH.narrow(1, range.begin, range.count).reshape({-1, H}));
    send_rows.push_back(t * range.count);
  }
  std::vector<int64_t> recv_rows(group.size(), t * ranges[group.rank()].count);
  return group.all_to_all(at::cat(parts), send_rows, recv_rows);
}

// The tokens of each rank lie together in x; what arrives is a [t, n, H] of each rank's heads.
Pending start_to_tokens(const at::Tensor& x_TnH, const Ranges& ranges, const Group& group) {
  const int64_t t = x_TnH.size(0) / group.size(), n = x_TnH.size(1), H = x_TnH.size(2);
  std::vector<int64_t> send_rows(group.size(), t * n), recv_rows;
  for (const HeadRange& range : ranges) recv_rows.push_back(t * range.count);
  return group.all_to_all(x_TnH.reshape({-1, H}), send_rows, recv_rows);
}

at::Tensor sum_to_tokens(const at::Tensor& received, const Ranges& ranges, int64_t num_heads) {
  int64_t num_received = 0;
  for (const HeadRange& range : ranges) num_received += range.count;
  const int64_t t = received.size(0) / num_received, H = received.size(1);
  const bool once = num_received == num_heads;
  const at::ScalarType dtype = received.scalar_type();
  at::Tensor x_tNH =
      once ? at::empty({t, num_heads, H}, received.options())
           : at::zeros({t, num_heads, H},
                       received.options().dtype(dtype == at::kBFloat16 ? at::kFloat : dtype));
  int64_t row = 0;
  for (const HeadRange& range : ranges) {
    const at::Tensor part = received.narrow(0, row, t * range.count).view({t, range.count, H});
    at::Tensor place = x_tNH.narrow(1, range.begin, range.count);
    once ? place.copy_(part) : place.add_(part);
    row += t * range.count;
  }
  return x_tNH.to(dtype);
}

struct TokensToHeads : torch::autograd::Function<TokensToHeads> {
  static variable_list forward(AutogradContext* ctx, at::TensorList tensors,
                               c10::intrusive_ptr<ExchangeState> state) {
    ctx->saved_data["state"] = c10::IValue::make_capsule(state);
    std::vector<Pending> pending;
    for (size_t i = 0; i < tensors.size(); ++i) {
      pending.push_back(start_to_heads(tensors[i], state->ranges[i], state->group));
    }
    variable_list outputs;
    for (size_t i = 0; i < tensors.size(); ++i) {
      outputs.push_back(pending[i].wait().view(
          {-1, state->ranges[i][state->group.rank()].count, tensors[i].size(2)}));
    }
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto state =
        c10::static_intrusive_pointer_cast<ExchangeState>(ctx->saved_data["state"].toCapsule());
    std::vector<Pending> pending;
    for (size_t i = 0; i < gradients.size(); ++i) {
      pending.push_back(start_to_tokens(gradients[i], state->ranges[i], state->group));
    }
    variable_list results;
    for (size_t i = 0; i < gradients.size(); ++i) {
      results.push_back(sum_to_tokens(pending[i].wait(), state->ranges[i], state->num_heads[i]));
    }
    results.emplace_back();
    return results;
  }
};

struct HeadsToTokens : torch::autograd::Function<HeadsToTokens> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_TnH,
                            c10::intrusive_ptr<ExchangeState> state) {
    ctx->saved_data["state"] = c10::IValue::make_capsule(state);
    return sum_to_tokens(start_to_tokens(x_TnH, state->ranges[0], state->group).wait(),
                         state->ranges[0], state->num_heads[0]);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto state =
        c10::static_intrusive_pointer_cast<ExchangeState>(ctx->saved_data["state"].toCapsule());
    at::Tensor received = start_to_heads(gradients[0], state->ranges[0], state->group).wait();
    return {received.view({-1, state->ranges[0][state->group.rank()].count, gradients[0].size(2)}),
            {}};
  }
};

}  // namespace

HeadSplit::HeadSplit(int num_ranks, int64_t num_heads, int64_t num_kv_heads)
    : group_size(num_heads / num_kv_heads) {
  TORCH_CHECK(num_heads % num_ranks == 0 && num_heads % num_kv_heads == 0, "cannot split ",
              num_heads, "/", num_kv_heads, " heads over ", num_ranks, " ranks");
  const int64_t n = num_heads / num_ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    query.push_back({rank * n, n});
    const int64_t first = rank * n / group_size, last = ((rank + 1) * n - 1) / group_size;
    kv.push_back({first, last - first + 1});
  }
}

std::vector<int64_t> HeadSplit::kv_place(int rank) const {
  std::vector<int64_t> places;
  for (int64_t i = 0; i < query[rank].count; ++i) {
    places.push_back((query[rank].begin + i) / group_size - kv[rank].begin);
  }
  return places;
}

std::vector<at::Tensor> tokens_to_heads(const std::vector<at::Tensor>& tensors,
                                        const std::vector<std::vector<HeadRange>>& ranges,
                                        const Group& group) {
  if (group.size() == 1) return tensors;
  auto state = c10::make_intrusive<ExchangeState>();
  state->group = group;
  state->ranges = ranges;
  for (const at::Tensor& tensor : tensors) state->num_heads.push_back(tensor.size(1));
  return TokensToHeads::apply(at::TensorList(tensors), state);
}

at::Tensor heads_to_tokens(const at::Tensor& x_TnH, const std::vector<HeadRange>& ranges,
                           const Group& group) {
  if (group.size() == 1) return x_TnH;
  auto state = c10::make_intrusive<ExchangeState>();
  state->group = group;
  state->ranges = {ranges};
  state->num_heads = {ranges.back().begin + ranges.back().count};
  return HeadsToTokens::apply(x_TnH, state);
}

}  // namespace longspan
