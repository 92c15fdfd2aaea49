#include "longspan/sequence_parallel/head_waves.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "longspan/attention/kept_attention.h"

namespace longspan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct WaveState : torch::CustomClassHolder {
  Group group;
  HeadSplit split;
  AttendPiece attend;
  std::vector<KeptAttention> kept;  // one a wave

  int num_waves() const { return static_cast<int>(mine().waves.size()); }
  const RankShare& mine() const { return split[group.rank()]; }
  const HeadWave& wave(int w) const { return mine().waves[w]; }
};

/// The tensors of a wave on their way to those who attend with them. Waves of some ranks may fetch
/// keys where those of others do not; where no rank does, nothing is sent.
struct Arriving {
  std::vector<BlocksInFlight> queries;  // one for each tensor cut like the queries
  std::optional<BlocksInFlight> k, v;
};

bool any(const BlocksByRank& by_rank) {
  for (const auto& blocks : by_rank) {
    if (!blocks.empty()) return true;
  }
  return false;
}

Arriving start(const WaveState& state, int w, const std::vector<at::Tensor>& like_queries,
               const at::Tensor& k_tMH, const at::Tensor& v_tMH) {
  Arriving arriving;
  const BlocksByRank queries = query_blocks(state.split, w), kv = fetched_blocks(state.split, w);
  for (const at::Tensor& x : like_queries) {
    arriving.queries.push_back(start_to_heads(x, queries, state.group));
  }
  if (any(kv)) {
    arriving.k = start_to_heads(k_tMH, kv, state.group);
    arriving.v = start_to_heads(v_tMH, kv, state.group);
  }
  return arriving;
}

/// Waits for a wave's keys and values and puts them to those that are here.
void receive_items(const HeadWave& wave, Arriving& arriving, ExchangedHeads& heads) {
  if (!arriving.k) return;
  const std::vector<at::Tensor> k = arriving.k->wait(), v = arriving.v->wait();
  for (size_t i = 0; i < wave.fetched.size(); ++i) {
    heads.k_items[wave.fetched[i]] = k[i];
    heads.v_items[wave.fetched[i]] = v[i];
  }
}

void finish_into(std::optional<TokensInFlight>& returning, at::Tensor& x_tNH, bool add) {
  if (!returning) return;
  returning->wait_into(x_tNH, add);
  returning.reset();
}

/// A wave's outputs: computed and kept, or taken from an outer checkpoint, which has them already.
std::vector<at::Tensor> attend_wave(WaveState& state, int w, const ExchangedHeads& heads) {
  KeepScope keep(state.kept[w]);
  return attend_pieces(state.mine(), state.wave(w), heads, state.attend);
}

std::vector<at::Tensor> replay_wave(WaveState& state, int w, KeptAttention& outer) {
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < state.wave(w).pieces.size(); ++i) {
    TORCH_CHECK(!outer.results.empty(), "a replayed wave was not kept");
    state.kept[w].results.push_back(std::move(outer.results.front()));
    outer.results.pop_front();
    outs.push_back(state.kept[w].results.back().out_TNH);
  }
  return outs;
}

struct AttentionInWaves : torch::autograd::Function<AttentionInWaves> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_tNH, const at::Tensor& k_tMH,
                            const at::Tensor& v_tMH, c10::intrusive_ptr<WaveState> state) {
    KeptAttention *outer_keeping = KeptAttention::keeping(),
                  *outer_replaying = KeptAttention::replaying();
    const int64_t t = q_tNH.size(0);
    at::Tensor out_tNH = at::empty(q_tNH.sizes(), q_tNH.options());
    ExchangedHeads heads;
    heads.k_items.resize(state->mine().kv_items.size());
    heads.v_items.resize(state->mine().kv_items.size());
    state->kept = std::vector<KeptAttention>(state->num_waves());

    Arriving next;
    if (outer_replaying == nullptr) next = start(*state, 0, {q_tNH}, k_tMH, v_tMH);
    std::optional<TokensInFlight> returning;
    for (int w = 0; w < state->num_waves(); ++w) {
      std::vector<at::Tensor> outs;
      if (outer_replaying != nullptr) {
        outs = replay_wave(*state, w, *outer_replaying);
      } else {
        receive_items(state->wave(w), next, heads);
        heads.queries = next.queries[0].wait();
        next = {};
        if (w + 1 < state->num_waves()) next = start(*state, w + 1, {q_tNH}, k_tMH, v_tMH);
        outs = attend_wave(*state, w, heads);
        heads.queries.clear();
        release(state->wave(w), heads);
        if (outer_keeping != nullptr) {
          for (const AttentionResult& result : state->kept[w].results) {
            outer_keeping->results.push_back(result);
          }
        }
      }
      finish_into(returning, out_tNH, /*add=*/false);
      returning = start_to_tokens(outs, query_blocks(state->split, w), state->group, t);
    }
    finish_into(returning, out_tNH, /*add=*/false);
    ctx->save_for_backward({q_tNH, k_tMH, v_tMH});
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
    heads.k_items.resize(num_items);
    heads.v_items.resize(num_items);
    std::vector<at::Tensor> dk_items(num_items), dv_items(num_items);
    Arriving next = start(*state, 0, {q_tNH, dout_tNH}, k_tMH, v_tMH);
    std::optional<TokensInFlight> dq_returning, dk_returning, dv_returning;
    for (int w = 0; w < state->num_waves(); ++w) {
      const HeadWave& wave = state->wave(w);
      receive_items(wave, next, heads);
      heads.queries = next.queries[0].wait();
      std::vector<at::Tensor> douts = next.queries[1].wait();
      next = {};
      if (w + 1 < state->num_waves()) {
        next = start(*state, w + 1, {q_tNH, dout_tNH}, k_tMH, v_tMH);
      }
      std::vector<at::Tensor> dqs = wave_gradients(*state, w, heads, douts, dk_items, dv_items);
      heads.queries.clear();
      douts.clear();
      release(wave, heads);
      finish_into(dq_returning, dq_tNH, /*add=*/false);
      finish_into(dk_returning, dk_tMH, /*add=*/true);
      finish_into(dv_returning, dv_tMH, /*add=*/true);
      dq_returning = start_to_tokens(dqs, query_blocks(state->split, w), state->group, t);
      dqs.clear();
      const BlocksByRank kv = released_blocks(state->split, w);
      if (any(kv)) {
        dk_returning = start_to_tokens(taken(wave, dk_items, k_tMH), kv, state->group, t);
        dv_returning = start_to_tokens(taken(wave, dv_items, v_tMH), kv, state->group, t);
      }
    }
    finish_into(dq_returning, dq_tNH, /*add=*/false);
    finish_into(dk_returning, dk_tMH, /*add=*/true);
    finish_into(dv_returning, dv_tMH, /*add=*/true);
    return {dq_tNH, dk_tMH.to(dtype), dv_tMH.to(dtype), {}};
  }

 private:
  static void release(const HeadWave& wave, ExchangedHeads& heads) {
    for (int item : wave.released) {
      heads.k_items[item].reset();
      heads.v_items[item].reset();
    }
  }

  // The gradients of the items that a wave releases, in the dtype they travel in.
  static std::vector<at::Tensor> taken(const HeadWave& wave, std::vector<at::Tensor>& items,
                                       const at::Tensor& like) {
    std::vector<at::Tensor> gradients;
    for (int item : wave.released) {
      gradients.push_back(items[item].to(like.scalar_type()));
      items[item].reset();
    }
    // A rank that releases nothing here still has the shape to say.
    if (gradients.empty()) gradients.push_back(like.new_empty({0, 1, like.size(2)}));
    return gradients;
  }

  // dq of each piece; adds to the items' gradients. The forward is replayed on what was kept.
  static std::vector<at::Tensor> wave_gradients(WaveState& state, int w, ExchangedHeads& heads,
                                                const std::vector<at::Tensor>& douts,
                                                std::vector<at::Tensor>& dk_items,
                                                std::vector<at::Tensor>& dv_items) {
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
    KeptAttention kept = std::move(state.kept[w]);
    std::vector<at::Tensor> outs;
    {
      ReplayScope replay(kept);
      outs = attend_pieces(state.mine(), wave, leaves, state.attend);
    }
    variable_list results = torch::autograd::grad(outs, inputs, douts);
    const size_t num_pieces = wave.pieces.size();
    const at::ScalarType wide = at::toOpMathType(results[0].scalar_type());
    for (size_t i = 0; i < used.size(); ++i) {
      const auto add = [&](at::Tensor& total, const at::Tensor& part) {
        // Read by one wave only: as it is.
        if (!total.defined()) {
          total = part;
        } else {
          total = total.to(wide).add_(part);
        }
      };
      add(dk_items[used[i]], results[num_pieces + 2 * i]);
      add(dv_items[used[i]], results[num_pieces + 2 * i + 1]);
    }
    results.resize(num_pieces);
    return results;
  }
};

}  // namespace

at::Tensor attend_in_waves(const at::Tensor& q_tNH, const at::Tensor& k_tMH,
                           const at::Tensor& v_tMH, const HeadSplit& split, const Group& group,
                           const AttendPiece& attend) {
  auto state = c10::make_intrusive<WaveState>();
  state->group = group;
  state->split = split;
  state->attend = attend;
  return AttentionInWaves::apply(q_tNH, k_tMH, v_tMH, state);
}

}  // namespace longspan
