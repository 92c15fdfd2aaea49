#include "longspan/sequence_parallel/head_waves.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <optional>

#include "longspan/attention/saved_attention.h"
#include "longspan/attention/sinks.h"

namespace longspan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct WaveState : torch::CustomClassHolder {
  Group group;
  HeadSplit split;
  AttendPiece attend;
  std::vector<SavedAttention> saved;  // one per wave
  AttentionCheckpoint checkpoint;     // for the forward alone

  int num_waves() const { return static_cast<int>(mine().waves.size()); }
  const RankShare& mine() const { return split[group.rank()]; }
  const HeadWave& wave(int w) const { return mine().waves[w]; }
};

// In the backward a wave of n heads holds q, dout and dq. With the next wave's queries and output
// gradients in transit, and the wave's own gradients returning, the memory is twice as much. Users
// choose few waves for overlap, and many waves to save memory. Above this number of waves the
// backward prefetches only the next queries.
constexpr int kMostWavesInFlight = 4;

bool any(const BlocksByRank& by_rank) {
  for (const auto& blocks : by_rank) {
    if (!blocks.empty()) return true;
  }
  return false;
}

BlocksInFlight start_queries(const WaveState& state, int w, const at::Tensor& x_tNH) {
  return start_to_heads(x_tNH, query_blocks(state.split, w), state.group);
}

/// Keys and values of a wave in transit to the ranks that attend with these keys. A wave may fetch
/// keys on some ranks and none on other ranks. If no rank fetches, nothing is sent.
struct ArrivingItems {
  std::optional<BlocksInFlight> k, v;

  /// Adds the received keys and values to the items of this rank.
  void wait_into(const HeadWave& wave, ExchangedHeads& heads) {
    if (!k) return;
    const std::vector<at::Tensor> ks = k->wait(), vs = v->wait();
    for (size_t i = 0; i < wave.fetched.size(); ++i) {
      heads.k_items[wave.fetched[i]] = ks[i];
      heads.v_items[wave.fetched[i]] = vs[i];
    }
    k.reset();
    v.reset();
  }
};

ArrivingItems start_items(const WaveState& state, int w, const at::Tensor& k_tMH,
                          const at::Tensor& v_tMH) {
  ArrivingItems items;
  const BlocksByRank kv = fetched_blocks(state.split, w);
  if (!any(kv)) return items;
  items.k = start_to_heads(k_tMH, kv, state.group);
  items.v = start_to_heads(v_tMH, kv, state.group);
  return items;
}

void finish_into(std::optional<TokensInFlight>& returning, at::Tensor& x_tNH, bool add) {
  if (!returning) return;
  returning->wait_into(x_tNH, add);
  returning.reset();
}

/// Returns a wave's outputs: computed and saved, or taken from an outer checkpoint.
std::vector<at::Tensor> attend_wave(WaveState& state, int w, const ExchangedHeads& heads) {
  return attend_pieces(state.mine(), state.wave(w), heads, state.attend,
                       AttentionCheckpoint::saving(state.saved[w]));
}

std::vector<at::Tensor> replay_wave(WaveState& state, int w, AttentionCheckpoint outer) {
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < state.wave(w).pieces.size(); ++i) {
    state.saved[w].results.push_back(outer.next());
    outs.push_back(state.saved[w].results.back().out_TNH);
  }
  return outs;
}

struct AttentionInWaves : torch::autograd::Function<AttentionInWaves> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_tNH, const at::Tensor& k_tMH,
                            const at::Tensor& v_tMH, const std::optional<at::Tensor>& sinks,
                            c10::intrusive_ptr<WaveState> state) {
    const AttentionCheckpoint outer = std::exchange(state->checkpoint, {});
    const at::Tensor sinks_N = sinks.value_or(at::Tensor());
    const int64_t t = q_tNH.size(0);
    const std::array<int64_t, 3> shape{t, q_tNH.size(1), v_tMH.size(2)};
    at::Tensor out_tNH = outer.output_is_known() ? without_values(shape, q_tNH.options())
                                                 : at::empty(shape, q_tNH.options());
    ExchangedHeads heads;
    heads.sinks_N = sinks_N;
    heads.k_items.resize(state->mine().kv_items.size());
    heads.v_items.resize(state->mine().kv_items.size());
    state->saved = std::vector<SavedAttention>(state->num_waves());

    std::optional<BlocksInFlight> next_q;
    ArrivingItems next_items;
    const auto start_next = [&](int w) {
      if (w == state->num_waves()) return;
      next_q = start_queries(*state, w, q_tNH);
      next_items = start_items(*state, w, k_tMH, v_tMH);
    };
    if (!outer.replays()) start_next(0);
    std::optional<TokensInFlight> returning;
    for (int w = 0; w < state->num_waves(); ++w) {
      std::vector<at::Tensor> outs;
      if (outer.replays()) {
        outs = replay_wave(*state, w, outer);
      } else {
        heads.queries = next_q->wait();
        next_items.wait_into(state->wave(w), heads);
        start_next(w + 1);
        outs = attend_wave(*state, w, heads);
        heads.queries.clear();
        release(state->wave(w), heads);
        if (outer.saves()) {
          for (const AttentionResult& result : state->saved[w].results) outer.save(result);
        }
      }
      finish_into(returning, out_tNH, /*add=*/false);
      if (outer.output_is_known()) continue;
      returning = start_to_tokens(outs, query_blocks(state->split, w), state->group, t);
    }
    finish_into(returning, out_tNH, /*add=*/false);
    ctx->save_for_backward({q_tNH, k_tMH, v_tMH, sinks_N});
    ctx->saved_data["state"] = c10::IValue::make_capsule(state);
    return out_tNH;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto state =
        c10::static_intrusive_pointer_cast<WaveState>(ctx->saved_data["state"].toCapsule());
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &q_tNH = saved[0], &k_tMH = saved[1], &v_tMH = saved[2];
    const at::Tensor dout_tNH = gradients[0].contiguous();
    const int64_t t = q_tNH.size(0);
    const at::ScalarType dtype = q_tNH.scalar_type();
    const auto wide = q_tNH.options().dtype(at::toOpMathType(dtype));
    at::Tensor dq_tNH = at::empty(q_tNH.sizes(), q_tNH.options());
    at::Tensor dk_tMH = at::zeros(k_tMH.sizes(), wide), dv_tMH = at::zeros(v_tMH.sizes(), wide);

    const size_t num_items = state->mine().kv_items.size();
    ExchangedHeads heads;
    heads.sinks_N = saved[3];
    heads.k_items.resize(num_items);
    heads.v_items.resize(num_items);
    SharedGradients sums;
    sums.dk_items.resize(num_items);
    sums.dv_items.resize(num_items);
    const bool overlaps = state->num_waves() <= kMostWavesInFlight;
    std::optional<BlocksInFlight> next_q, next_dout;
    ArrivingItems next_items;
    std::optional<TokensInFlight> dq_returning, dk_returning, dv_returning;
    const auto finish_returns = [&] {
      finish_into(dq_returning, dq_tNH, /*add=*/false);
      finish_into(dk_returning, dk_tMH, /*add=*/true);
      finish_into(dv_returning, dv_tMH, /*add=*/true);
    };
    const auto start_rest = [&](int w) {
      if (w == state->num_waves()) return;
      next_dout = start_queries(*state, w, dout_tNH);
      next_items = start_items(*state, w, k_tMH, v_tMH);
    };
    next_q = start_queries(*state, 0, q_tNH);
    if (overlaps) start_rest(0);
    for (int w = 0; w < state->num_waves(); ++w) {
      const HeadWave& wave = state->wave(w);
      if (!overlaps) start_rest(w);
      heads.queries = next_q->wait();
      std::vector<at::Tensor> douts = next_dout->wait();
      next_items.wait_into(wave, heads);
      if (w + 1 < state->num_waves()) next_q = start_queries(*state, w + 1, q_tNH);
      if (overlaps) start_rest(w + 1);
      std::vector<at::Tensor> dqs = wave_gradients(*state, w, heads, douts, sums);
      heads.queries.clear();
      douts.clear();
      release(wave, heads);
      finish_returns();
      dq_returning = start_to_tokens(dqs, query_blocks(state->split, w), state->group, t);
      dqs.clear();
      const BlocksByRank kv = released_blocks(state->split, w);
      if (any(kv)) {
        dk_returning = start_to_tokens(taken(wave, sums.dk_items, k_tMH), kv, state->group, t);
        dv_returning = start_to_tokens(taken(wave, sums.dv_items, v_tMH), kv, state->group, t);
      }
      if (!overlaps) finish_returns();
    }
    finish_returns();
    return {dq_tNH, dk_tMH.to(dtype), dv_tMH.to(dtype), sums.dsinks_N, {}};
  }

 private:
  /// Gradients of tensors that several waves may read: a rank's kv items, and the sinks.
  struct SharedGradients {
    std::vector<at::Tensor> dk_items, dv_items;
    at::Tensor dsinks_N;
  };

  static void release(const HeadWave& wave, ExchangedHeads& heads) {
    for (int item : wave.released) {
      heads.k_items[item].reset();
      heads.v_items[item].reset();
    }
  }

  // Returns the gradients of the items that a wave releases, in the dtype in which they travel.
  static std::vector<at::Tensor> taken(const HeadWave& wave, std::vector<at::Tensor>& items,
                                       const at::Tensor& like) {
    std::vector<at::Tensor> gradients;
    for (int item : wave.released) {
      gradients.push_back(items[item].to(like.scalar_type()));
      items[item].reset();
    }
    // A rank without released items must still pass the shape.
    if (gradients.empty()) gradients.push_back(like.new_empty({0, 1, like.size(2)}));
    return gradients;
  }

  // Returns dq of each piece; adds to the other gradients. Replays the forward on the saved
  // results.
  static std::vector<at::Tensor> wave_gradients(WaveState& state, int w,
                                                const ExchangedHeads& heads,
                                                const std::vector<at::Tensor>& douts,
                                                SharedGradients& sums) {
    const HeadWave& wave = state.wave(w);
    std::vector<int> used;
    for (const AttentionPiece& piece : wave.pieces) {
      if (std::find(used.begin(), used.end(), piece.kv_item) == used.end()) {
        used.push_back(piece.kv_item);
      }
    }
    c10::AutoGradMode with_gradients(true);
    ExchangedHeads leaves;
    leaves.k_items.resize(heads.k_items.size());
    leaves.v_items.resize(heads.v_items.size());
    variable_list inputs;
    const auto leaf = [&inputs](const at::Tensor& x) {
      inputs.push_back(x.detach().requires_grad_(true));
      return inputs.back();
    };
    for (const at::Tensor& q : heads.queries) leaves.queries.push_back(leaf(q));
    for (int item : used) {
      leaves.k_items[item] = leaf(heads.k_items[item]);
      leaves.v_items[item] = leaf(heads.v_items[item]);
    }
    const bool has_sinks = heads.sinks_N.defined();
    if (has_sinks) leaves.sinks_N = leaf(heads.sinks_N);
    SavedAttention saved = std::move(state.saved[w]);
    const std::vector<at::Tensor> outs = attend_pieces(state.mine(), wave, leaves, state.attend,
                                                       AttentionCheckpoint::replaying(saved));
    variable_list results = torch::autograd::grad(outs, inputs, douts);
    const size_t num_pieces = wave.pieces.size();
    const at::ScalarType wide = at::toOpMathType(results[0].scalar_type());
    for (size_t i = 0; i < used.size(); ++i) {
      const auto add = [&](at::Tensor& total, const at::Tensor& part) {
        // An item read by a single wave needs no sum.
        if (!total.defined()) {
          total = part;
        } else {
          total = total.to(wide).add_(part);
        }
      };
      add(sums.dk_items[used[i]], results[num_pieces + 2 * i]);
      add(sums.dv_items[used[i]], results[num_pieces + 2 * i + 1]);
    }
    if (has_sinks) {
      const c10::AutoGradMode no_gradients(false);
      sums.dsinks_N = sums.dsinks_N.defined() ? sums.dsinks_N + results.back() : results.back();
    }
    results.resize(num_pieces);
    return results;
  }
};

}  // namespace

at::Tensor attend_in_waves(const AttentionInputs& inputs, const HeadSplit& split,
                           const Group& group, const AttendPiece& attend,
                           AttentionCheckpoint checkpoint) {
  auto state = c10::make_intrusive<WaveState>();
  state->group = group;
  state->split = split;
  state->attend = attend;
  state->checkpoint = checkpoint;
  return AttentionInWaves::apply(inputs.q_TNH, inputs.k_SMH, inputs.v_SMH,
                                 as_argument(inputs.sinks_N), state);
}

}  // namespace longspan
