// Cuts the blocks of a call into tasks and gives them to threads, the largest first.
#include "longspan/attention/flash/flash_attention.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <numeric>

#include "longspan/attention/flash/backward_order.h"
#include "longspan/attention/flash/flash_tasks.h"
#include "longspan/cpu/capability.h"

namespace longspan::flash {
namespace {

Strides strides_of(const at::Tensor& x) { return {x.stride(0), x.stride(1)}; }

/// Makes the head dim contiguous. Tokens and heads may have any strides.
at::Tensor readable(const at::Tensor& x) { return x.stride(2) == 1 ? x : x.contiguous(); }

/// The number of pairs of a query and a key that it sees.
double cost_of(const Task& task) {
  const bool has_lower_end = task.lower > kNoLowerEnd / 2;
  if (!task.causal && !has_lower_end) return double(task.q_length) * task.k_length;
  double total = 0;
  for (int64_t i = 0; i < task.q_length; i += kQueryTile) {
    const int64_t rows = std::min(kQueryTile, task.q_length - i), middle = i + rows / 2;
    const int64_t end =
        task.causal ? std::clamp<int64_t>(middle + task.offset, 0, task.k_length) : task.k_length;
    const int64_t begin =
        has_lower_end ? std::clamp<int64_t>(middle + task.lower, 0, end) : int64_t{0};
    total += double(rows) * (end - begin);
  }
  return total;
}

/// Runs work(i, scratch) for every i on all threads. A free thread takes the next i.
void for_each(int64_t count, int64_t scratch_floats,
              const std::function<void(int64_t, float*)>& work) {
  std::atomic<int64_t> next{0};
  const int64_t num_threads = std::min<int64_t>(at::get_num_threads(), count);
  at::parallel_for(0, num_threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      const at::Tensor scratch = at::empty({scratch_floats}, at::kFloat);
      for (int64_t i = next++; i < count; i = next++) work(i, scratch.mutable_data_ptr<float>());
    }
  });
}

/// Returns the queries of a forward task, few enough to give every thread several tasks.
int64_t queries_of_task(int64_t queries_of_all_heads, int64_t group, int64_t num_threads) {
  int64_t tiles = query_tiles_of_task(group);
  while (tiles > 2 && queries_of_all_heads < 16 * num_threads * tiles * kForwardTile) --tiles;
  return tiles * kForwardTile;
}

const Tiles* tiles_for(CpuCapability capability) {
  switch (capability) {
    case CpuCapability::kPortable:
      return portable_tiles();
    case CpuCapability::kAvx2:
      return avx2_tiles();
    case CpuCapability::kAvx512:
      return avx512_tiles();
  }
  return nullptr;
}

}  // namespace

const Tiles& best_tiles() {
  static const Tiles& chosen = []() -> const Tiles& {
    const Tiles* tiles = tiles_for(cpu_capability());
    TORCH_CHECK(tiles != nullptr, "built without tiles for ", name_of(cpu_capability()));
    return *tiles;
  }();
  return chosen;
}

bool supports(const at::Tensor& q_TNH, const at::Tensor& v_SMH) {
  return q_TNH.is_cpu() && q_TNH.scalar_type() == at::kFloat &&
         q_TNH.size(2) % kHeadDimMultiple == 0 && v_SMH.size(2) % kHeadDimMultiple == 0;
}

AttentionResult forward(const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v_in,
                        const AttentionSpec& spec, const std::vector<Block>& blocks,
                        const Tiles& tiles) {
  const at::Tensor q = readable(q_in), k = readable(k_in), v = readable(v_in);
  const int64_t T = q.size(0), N = q.size(1), M = k.size(1), key_dim = q.size(2),
                value_dim = v.size(2);
  AttentionResult result{at::empty({T, N, value_dim}, q.options()), at::empty({N, T}, q.options())};

  std::vector<Task> tasks;
  int64_t covered = 0;
  for (const Block& block : blocks) covered += block.q_length;
  const int64_t task_queries = queries_of_task(covered * M, N / M, at::get_num_threads());
  for (const Block& block : blocks) {
    for (int64_t query = 0; query < block.q_length; query += task_queries)
      for (int64_t head = 0; head < M; ++head)
        tasks.push_back({head, block.q_begin + query,
                         std::min(task_queries, block.q_length - query), block.k_begin,
                         block.k_length, query + block.offset,
                         block.lower ? query + *block.lower : kNoLowerEnd, block.causal});
  }
  if (covered < T) {  // queries in no block
    result.out_TNH.zero_();
    result.lse_NT.fill_(-std::numeric_limits<float>::infinity());
  }
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const Task& a, const Task& b) { return cost_of(a) > cost_of(b); });

  const Forward call{q.const_data_ptr<float>(),
                     k.const_data_ptr<float>(),
                     v.const_data_ptr<float>(),
                     result.out_TNH.mutable_data_ptr<float>(),
                     result.lse_NT.mutable_data_ptr<float>(),
                     strides_of(q),
                     strides_of(k),
                     strides_of(v),
                     T,
                     N,
                     M,
                     key_dim,
                     value_dim,
                     static_cast<float>(spec.scale),
                     static_cast<float>(spec.softcap.value_or(0.0))};
  for_each(int64_t(tasks.size()), tiles.forward_scratch(key_dim, value_dim, N / M),
           [&](int64_t i, float* scratch) { tiles.forward(call, tasks[i], scratch); });
  return result;
}

AttentionGradients backward(const AttentionGradientInputs& inputs, const AttentionSpec& spec,
                            const std::vector<Block>& blocks, const Tiles& tiles) {
  const at::Tensor q = readable(inputs.q_TNH), k = readable(inputs.k_SMH),
                   v = readable(inputs.v_SMH), dout = readable(inputs.dout_TNH);
  const at::Tensor lse = inputs.lse_NT.contiguous();
  const int64_t T = q.size(0), N = q.size(1), S = k.size(0), M = k.size(1), key_dim = q.size(2),
                value_dim = v.size(2);
  AttentionGradients gradients{at::zeros({T, N, key_dim}, q.options()),
                               at::zeros({S, M, key_dim}, q.options()),
                               at::zeros({S, M, value_dim}, q.options())};
  const at::Tensor delta_NT = at::empty({N, T}, q.options());
  {
    const at::Tensor out = readable(inputs.out_TNH);
    const float *o = out.const_data_ptr<float>(), *d = dout.const_data_ptr<float>();
    float* delta = delta_NT.mutable_data_ptr<float>();
    at::parallel_for(0, T, 256, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        for (int64_t n = 0; n < N; ++n)
          delta[n * T + t] =
              std::inner_product(o + t * out.stride(0) + n * out.stride(1),
                                 o + t * out.stride(0) + n * out.stride(1) + value_dim,
                                 d + t * dout.stride(0) + n * dout.stride(1), 0.0f);
    });
  }

  BackwardOrder order(blocks, T, M);
  if (order.tasks().empty()) return gradients;
  const Backward call{q.const_data_ptr<float>(),
                      k.const_data_ptr<float>(),
                      v.const_data_ptr<float>(),
                      dout.const_data_ptr<float>(),
                      lse.const_data_ptr<float>(),
                      delta_NT.const_data_ptr<float>(),
                      gradients.dq_TNH.mutable_data_ptr<float>(),
                      gradients.dk_SMH.mutable_data_ptr<float>(),
                      gradients.dv_SMH.mutable_data_ptr<float>(),
                      strides_of(q),
                      strides_of(k),
                      strides_of(v),
                      strides_of(dout),
                      T,
                      N,
                      M,
                      key_dim,
                      value_dim,
                      static_cast<float>(spec.scale),
                      static_cast<float>(spec.softcap.value_or(0.0)),
                      order.turns()};
  // Tasks begin in order. The kv heads of a task run side by side, since they share no gradients.
  for_each(std::ssize(order.tasks()) * M, tiles.backward_scratch(key_dim, value_dim, N / M),
           [&](int64_t i, float* scratch) {
             Task task = order.tasks()[i / M];
             task.kv_head = i % M;
             tiles.backward(call, task, scratch);
           });
  return gradients;
}

}  // namespace longspan::flash
